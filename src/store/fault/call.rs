//! The calls of [`Dir`](crate::store::Dir) and [`File`](crate::store::File), for code that counts, watches or
//! fails them.

/// A call to the store. Calls that differ only in how the object is named (entry, directory itself,
/// open file) share a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `open_dir`
    OpenDir,
    /// `reopen` of a directory
    Reopen,
    /// `open_file`, `reopen` of a file
    OpenFile,
    /// `create_file`
    CreateFile,
    /// `mkdir`
    Mkdir,
    /// `mknod`
    Mknod,
    /// `symlink`
    Symlink,
    /// `readlink`
    Readlink,
    /// `link`
    Link,
    /// `unlink`
    Unlink,
    /// `rmdir`
    Rmdir,
    /// `rename`
    Rename,
    /// `stat`, `stat_self`
    Stat,
    /// `chmod`, `chmod_self`
    Chmod,
    /// `chown`, `chown_self`
    Chown,
    /// `set_times`, `set_times_self`
    SetTimes,
    /// `get_xattr`, `get_xattr_self`
    GetXattr,
    /// `set_xattr`, `set_xattr_self`
    SetXattr,
    /// `remove_xattr`, `remove_xattr_self`
    RemoveXattr,
    /// `read` of a directory
    List,
    /// `sync` of a directory, `sync_store`
    SyncDir,
    /// `space`, `is_read_only`
    Space,
    /// `read_at`
    Read,
    /// `write_at`, `write_vectored_at`
    Write,
    /// `set_len`
    SetLen,
    /// `allocate`
    Allocate,
    /// `seek`
    Seek,
    /// `sync_data`
    SyncData,
    /// `sync_all`
    SyncAll,
    /// `try_lock` of a file or a directory, `try_lock_span`, `find_lock`
    Lock,
}

impl Call {
    /// Every call.
    pub const ALL: [Call; 30] = [
        Call::OpenDir,
        Call::Reopen,
        Call::OpenFile,
        Call::CreateFile,
        Call::Mkdir,
        Call::Mknod,
        Call::Symlink,
        Call::Readlink,
        Call::Link,
        Call::Unlink,
        Call::Rmdir,
        Call::Rename,
        Call::Stat,
        Call::Chmod,
        Call::Chown,
        Call::SetTimes,
        Call::GetXattr,
        Call::SetXattr,
        Call::RemoveXattr,
        Call::List,
        Call::SyncDir,
        Call::Space,
        Call::Read,
        Call::Write,
        Call::SetLen,
        Call::Allocate,
        Call::Seek,
        Call::SyncData,
        Call::SyncAll,
        Call::Lock,
    ];

    /// Returns whether the call changes the store or makes a change durable. Then a power cut
    /// before it differs from one after it.
    pub fn is_change(self) -> bool {
        !matches!(
            self,
            Call::OpenDir
                | Call::Reopen
                | Call::OpenFile
                | Call::Readlink
                | Call::Stat
                | Call::GetXattr
                | Call::List
                | Call::Space
                | Call::Read
                | Call::Seek
                | Call::Lock
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_in_the_order_of_the_numbers() {
        // `Lock` is the last one; a call that is missing in the list would shift it.
        assert!(Call::ALL.iter().enumerate().all(|(i, &call)| call as usize == i));
        assert_eq!(Call::ALL.len(), Call::Lock as usize + 1);
    }
}

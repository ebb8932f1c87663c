//! Walking a vault by nodes, for commands that work without a mount.
//!
//! Rule: every node that a look-up gave is let go of, so that a walk over a million files keeps
//! none.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::crypto::Random;
use crate::store::Kind;
use crate::vault::{self, Attr, Caller, Entry, Handle, NodeId, OpenFlags, OsRandom, ROOT, Vault};

/// Bytes that are read or written at once.
pub const BLOCK: usize = 1 << 20;
/// Bytes of names that are listed at once.
const LISTING: usize = 64 << 10;
/// Name under which a file is written until it is complete: this and a hash of its name, so that a
/// second run finds what the first left.
const PARTIAL: &str = ".kithfs-part-";

/// A node that was looked up; let go of on drop.
pub struct Node<'a> {
    vault: &'a Vault,
    /// What it is.
    pub attr: Attr,
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.attr.node != ROOT {
            self.vault.forget(self.attr.node, 1);
        }
    }
}

impl<'a> Node<'a> {
    /// Takes over what a call of the vault has counted.
    pub fn counted(vault: &'a Vault, attr: Attr) -> Node<'a> {
        Node { vault, attr }
    }

    /// Finds a path from the root.
    pub fn at(vault: &'a Vault, path: &[u8]) -> vault::Result<Node<'a>> {
        Ok(Node { vault, attr: vault.resolve(path)? })
    }

    /// Finds a name in a directory; `None` where there is none.
    pub fn child(vault: &'a Vault, parent: NodeId, name: &[u8]) -> vault::Result<Option<Node<'a>>> {
        match vault.lookup(parent, name) {
            Ok(attr) => Ok(Some(Node { vault, attr })),
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.attr.node
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == Kind::Dir
    }
}

/// An open file or directory of a vault; closed on drop, where [`OpenFile::close`] did not do it
/// and tell how it went.
pub struct OpenFile<'a> {
    vault: &'a Vault,
    handle: Option<Handle>,
}

impl<'a> OpenFile<'a> {
    /// Opens a file for reading.
    pub fn read(vault: &'a Vault, node: NodeId) -> vault::Result<OpenFile<'a>> {
        let opened = vault.open_file(node, OpenFlags { read: true, ..OpenFlags::default() })?;
        Ok(OpenFile { vault, handle: Some(opened.handle) })
    }

    /// Makes a file for writing.
    pub fn create(
        vault: &'a Vault,
        parent: NodeId,
        name: &[u8],
    ) -> vault::Result<(Node<'a>, OpenFile<'a>)> {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (attr, opened) = vault.create_file(&caller(), parent, name, 0o600, flags)?;
        Ok((Node { vault, attr }, OpenFile { vault, handle: Some(opened.handle) }))
    }

    /// The handle.
    pub fn handle(&self) -> Handle {
        self.handle.expect("it is there until close takes it with self")
    }

    /// Closes it, which commits.
    pub fn close(mut self) -> vault::Result<()> {
        match self.handle.take() {
            Some(handle) => self.vault.release(handle),
            None => Ok(()),
        }
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && let Err(error) = self.vault.release(handle)
        {
            tracing::debug!("{error}");
        }
    }
}

/// The user of this process, whose files come out with exactly the bits that are asked for.
pub fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    }
}

/// Calls `each` with every entry of a directory, in the order of the store.
///
/// # Errors
/// Those of the listing and of `each`.
pub fn for_each_entry<E: From<vault::Error>>(
    vault: &Vault,
    dir: NodeId,
    each: impl FnMut(&Entry) -> Result<(), E>,
) -> Result<(), E> {
    list(vault, dir, each).map(drop)
}

/// [`for_each_entry`] that tells whether there are entries besides, whose names cannot be read.
fn list<E: From<vault::Error>>(
    vault: &Vault,
    dir: NodeId,
    mut each: impl FnMut(&Entry) -> Result<(), E>,
) -> Result<bool, E> {
    let handle = vault.open_dir(dir)?;
    let listing = Listing { vault, handle };
    let mut cookie = 0;
    loop {
        let entries = vault.read_dir(listing.handle, cookie, LISTING)?;
        let Some(last) = entries.last() else { return Ok(vault.misses_entries(listing.handle)) };
        cookie = last.next;
        entries.iter().try_for_each(&mut each)?;
    }
}

struct Listing<'a> {
    vault: &'a Vault,
    handle: Handle,
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.vault.release_dir(self.handle);
    }
}

/// All names of a directory: for those who change it while they walk it.
pub fn names(vault: &Vault, dir: NodeId) -> vault::Result<Vec<Box<[u8]>>> {
    Ok(names_and_more(vault, dir)?.0)
}

/// The same, and whether there are entries besides, whose names cannot be read.
pub fn names_and_more(vault: &Vault, dir: NodeId) -> vault::Result<(Vec<Box<[u8]>>, bool)> {
    let mut names = Vec::new();
    let more = list(vault, dir, |entry| {
        names.push(entry.name.clone());
        vault::Result::Ok(())
    })?;
    Ok((names, more))
}

/// Makes a directory and those above it, where they are missing; gives its node.
pub fn make_path<'a>(vault: &'a Vault, path: &[u8], mode: u32) -> vault::Result<Node<'a>> {
    let mut node = Node::at(vault, b"")?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        node = match Node::child(vault, node.id(), name)? {
            Some(found) if found.is_dir() => found,
            Some(_) => return Err(vault::Error::Os { op: "make", errno: libc::ENOTDIR }),
            None => Node::counted(vault, vault.mkdir(&caller(), node.id(), name, mode)?),
        };
    }
    Ok(node)
}

/// What mkdir(1) gives: all bits but those of the umask.
pub fn new_dir_mode() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    0o777 & !umask.as_raw_mode()
}

/// The name under which `name` is written until it is complete (FNV-1a: it need only be the same
/// each time).
pub fn partial_name(name: &[u8]) -> String {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{PARTIAL}{hash:016x}")
}

/// As [`partial_name`], but another one each time: two runs that write the same file do not meet.
pub fn new_partial_name() -> String {
    let mut number = [0; 8];
    OsRandom.fill(&mut number);
    format!("{PARTIAL}{:016x}", u64::from_le_bytes(number))
}

/// Whether a name is one of [`partial_name`]: what another run left, and no file of anybody.
pub fn is_partial(name: &[u8]) -> bool {
    name.strip_prefix(PARTIAL.as_bytes())
        .is_some_and(|hash| hash.len() == 16 && hash.iter().all(u8::is_ascii_hexdigit))
}

/// Last component of a local path, as bytes.
pub fn file_name(path: &Path) -> Option<&[u8]> {
    path.file_name().map(OsStrExt::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_names_are_stable_short_and_known() {
        assert_eq!(partial_name(b"a"), ".kithfs-part-af63dc4c8601ec8c");
        assert!(is_partial(partial_name(&[b'x'; 255]).as_bytes()));
        assert_ne!(partial_name(b"a"), partial_name(b"b"));
        for other in [
            &b".kithfs-part-"[..],
            b".kithfs-part-af63dc4c8601ec8",
            b".kithfs-part-zf63dc4c8601ec8c",
            b"a",
        ] {
            assert!(!is_partial(other));
        }
    }
}

//! Walking a vault by nodes, for commands that work without a mount.
//!
//! Rule: every node that a lookup returned is forgotten again, so that a walk over a million files
//! keeps none.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::crypto::Random;
use crate::store::Kind;
use crate::vault::{self, Attr, Caller, Entry, Handle, NodeId, OpenFlags, OsRandom, ROOT, Vault};

/// Bytes per read or write.
pub const BLOCK: usize = 1 << 20;
/// Bytes of names per listing.
const LISTING: usize = 64 << 10;
/// Prefix of the name under which a file is written until it is complete. See [`partial_name`] and
/// [`new_partial_name`].
const PARTIAL: &str = ".kithfs-part-";

/// A node that was looked up; forgotten on drop.
pub struct Node<'a> {
    vault: &'a Vault,
    /// Its attributes at the lookup.
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
    /// Takes over the lookup count of a call that returned `attr`.
    pub fn counted(vault: &'a Vault, attr: Attr) -> Node<'a> {
        Node { vault, attr }
    }

    /// Finds a path from the root.
    pub fn at(vault: &'a Vault, path: &[u8]) -> vault::Result<Node<'a>> {
        Ok(Node { vault, attr: vault.resolve(path)? })
    }

    /// Finds a name in a directory; `None` if it does not exist.
    pub fn child(vault: &'a Vault, parent: NodeId, name: &[u8]) -> vault::Result<Option<Node<'a>>> {
        match vault.lookup(parent, name) {
            Ok(attr) => Ok(Some(Node { vault, attr })),
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the node.
    pub fn id(&self) -> NodeId {
        self.attr.node
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == Kind::Dir
    }
}

/// An open file of a vault. It is closed on drop, unless [`OpenFile::close`] did so and returned
/// the result.
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

    /// Creates a file for writing.
    pub fn create(
        vault: &'a Vault,
        parent: NodeId,
        name: &[u8],
    ) -> vault::Result<(Node<'a>, OpenFile<'a>)> {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (attr, opened) = vault.create_file(&caller(), parent, name, 0o600, flags)?;
        Ok((Node { vault, attr }, OpenFile { vault, handle: Some(opened.handle) }))
    }

    /// Returns the handle.
    pub fn handle(&self) -> Handle {
        self.handle.expect("it is there until close takes it with self")
    }

    /// Closes and commits the file.
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

/// Returns the user of this process as the caller, without a umask, so that modes are exact.
pub fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0,
    }
}

/// Calls `each` with every entry of a directory, in the order of the store. Returns whether there
/// are further entries with unreadable names.
///
/// # Errors
/// Those of the listing and of `each`.
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

/// Returns all names of a directory, for callers that change it during the walk.
pub fn names(vault: &Vault, dir: NodeId) -> vault::Result<Vec<Box<[u8]>>> {
    Ok(names_and_more(vault, dir)?.0)
}

/// Does [`names`], and also returns whether there are further entries with unreadable names.
pub fn names_and_more(vault: &Vault, dir: NodeId) -> vault::Result<(Vec<Box<[u8]>>, bool)> {
    let mut names = Vec::new();
    let more = list(vault, dir, |entry| {
        names.push(entry.name.clone());
        vault::Result::Ok(())
    })?;
    Ok((names, more))
}

/// Creates a directory and its parents where they are missing, and returns its node.
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

/// Returns the mode that mkdir(1) uses: all bits except those of the umask.
pub fn new_dir_mode() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    0o777 & !umask.as_raw_mode()
}

/// Returns the temporary name for `name`, with a hash of that, so that a second run finds the
/// remains of the first. The hash is FNV-1a, as it only has to be stable.
pub fn partial_name(name: &[u8]) -> String {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{PARTIAL}{hash:016x}")
}

/// Returns a random temporary name, so that two runs which write the same file do not collide.
pub fn new_partial_name() -> String {
    let mut number = [0; 8];
    OsRandom.fill(&mut number);
    format!("{PARTIAL}{:016x}", u64::from_le_bytes(number))
}

/// Returns whether a name has the form of temporary names, such as one left by an earlier run.
pub fn is_partial(name: &[u8]) -> bool {
    name.strip_prefix(PARTIAL.as_bytes())
        .is_some_and(|hash| hash.len() == 16 && hash.iter().all(u8::is_ascii_hexdigit))
}

/// Returns the last component of a local path, as bytes.
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

//! A synced share whose parts arrive one by one, while programs have files open: a directory under
//! the name of a new folder key before that key.

use kithfs::roster::Identity;
use kithfs::store::mem::MemStore;
use kithfs::store::{Dir, Kind, RenameMode};
use kithfs::vault::{ROOT, Vault};

use crate::support::members::ShareOfPath;
use crate::support::members::{open_as, quiet, root_share, with_bob};
use crate::support::raw::{self, named, names, write};
use crate::support::vaults::{
    self, Item, READ_WRITE, faults, get, mkdir, open_or_create, pattern, put, walk,
};

/// How a sync tool gives a directory another name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tool {
    /// It renames the directory, as the Nextcloud client does.
    Renames,
    /// It makes a new directory and removes the old one, as Syncthing and Dropbox do.
    Copies,
}

const TOOLS: [Tool; 2] = [Tool::Renames, Tool::Copies];

/// A share of Ann and Bob with the files `a/b/file` and `a/b/other`, after Ann has changed the folder
/// key. Nothing of that has arrived in Bob's copy.
struct Rekeyed {
    bob: Identity,
    anns: MemStore,
    bobs: MemStore,
    /// The stored name of `a` before and after.
    names: [Vec<u8>; 2],
    contents: Vec<u8>,
}

impl Rekeyed {
    fn new() -> Rekeyed {
        let (anns, ann, bob) = with_bob();
        assert!(Vault::set_synced(&anns.root()).unwrap());
        let contents = pattern(1, 30_000);
        let vault = open_as(&anns, &ann).unwrap();
        mkdir(&vault, b"a").unwrap();
        mkdir(&vault, b"a/b").unwrap();
        put(&vault, b"a/b/file", &contents).unwrap();
        put(&vault, b"a/b/other", b"other").unwrap();
        let before = vault.cipher_path(b"a").unwrap();
        vault.close().unwrap();
        let bobs = anns.snapshot();
        let vault = open_as(&anns, &ann).unwrap();
        root_share(&vault).rekey().unwrap();
        vault.reseal(b"", false, &mut quiet()).unwrap();
        let after = vault.cipher_path(b"a").unwrap();
        vault.close().unwrap();
        assert_ne!(before, after);
        Rekeyed { bob, anns, bobs, names: [before, after], contents }
    }

    fn open(&self) -> Vault {
        open_as(&self.bobs, &self.bob).unwrap()
    }

    /// Delivers the directory under its new name.
    fn deliver_directory(&self, tool: Tool) {
        let root = self.bobs.root();
        let [before, after] = &self.names;
        if tool == Tool::Renames {
            return root.rename(before, &*root, after, RenameMode::NoReplace).unwrap();
        }
        root.mkdir(after, 0o755).unwrap();
        let old = root.open_dir(before).unwrap();
        raw::copy(&*old, &*root.open_dir(after).unwrap());
        empty(&*old);
        root.rmdir(before).unwrap();
    }

    /// Delivers the key, and everything that explains names.
    fn deliver_key(&self) {
        raw::merge(&*self.anns.root(), &*self.bobs.root());
    }
}

/// Removes everything in a directory.
fn empty(dir: &dyn Dir) {
    for name in names(dir) {
        if dir.stat(&name).unwrap().kind == Kind::Dir {
            empty(&*dir.open_dir(&name).unwrap());
            dir.rmdir(&name).unwrap();
        } else {
            dir.unlink(&name).unwrap();
        }
    }
}

/// Returns the paths of the files with these contents.
fn holding(vault: &Vault, contents: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut visit = |path: &[u8], item| {
        if matches!(item, Ok(Item::File { bytes, .. }) if bytes == contents) {
            found.push(path.escape_ascii().to_string());
        }
        Ok(())
    };
    walk(vault, ROOT, b"", &mut visit).unwrap();
    found
}

/// A program wrote to a file, and a tool had renamed the directory above under a new folder key that
/// was yet to arrive. The directory had no name, so the file was not found: fsync failed with EIO, and
/// the bytes were gone. They are kept whether the key arrives or not.
#[test]
fn a_write_before_the_key_of_its_directory_is_kept() {
    for (tool, is_new) in TOOLS.into_iter().flat_map(|tool| [(tool, false), (tool, true)]) {
        let share = Rekeyed::new();
        let vault = share.open();
        let path: &[u8] = if is_new { b"a/b/new" } else { b"a/b/file" };
        let handle = open_or_create(&vault, path, READ_WRITE).unwrap();
        vault.write(handle, 5, b"before", false).unwrap();
        share.deliver_directory(tool);
        let mut ours = if is_new { Vec::new() } else { share.contents.clone() };
        ours.resize(ours.len().max(40_010), 0);
        for (at, bytes) in [(5, &b"before"[..]), (40_000, b"afterwards")] {
            ours[at..at + bytes.len()].copy_from_slice(bytes);
        }
        vault.write(handle, 40_000, b"afterwards", false).unwrap();
        let what = format!("{tool:?}, new: {is_new}");
        vault.fsync(handle, false).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(holding(&vault, &ours).len(), 1, "{what}");
        let dead = open_as(&share.bobs.crash(&mut |_| 0), &share.bob).unwrap();
        assert!(!holding(&dead, &ours).is_empty(), "{what}: after a power cut");
        // The descriptor continues where the bytes are.
        vault.write(handle, 0, b"later", false).unwrap();
        vault.release(handle).unwrap();
        ours[..5].copy_from_slice(b"later");
        assert_eq!(holding(&vault, &ours).len(), 1, "{what}");
        vault.close().unwrap();
        let vault = share.open();
        assert_eq!(holding(&vault, &ours).len(), 1, "{what}: the key does not arrive");
        vault.close().unwrap();
        share.deliver_key();
        let vault = share.open();
        assert!(!holding(&vault, &ours).is_empty(), "{what}: the key has arrived");
        assert_eq!(get(&vault, b"a/b/other").unwrap(), b"other", "{what}");
        assert_eq!(faults(&vault), Vec::<String>::new(), "{what}");
    }
}

/// The key arrives first, and then the tool gives the directory its new name. Syncthing and Dropbox
/// remove the file that a program has open, and fsync failed with EIO. The same file is at the same
/// path in the new directory, so the descriptor continues there.
#[test]
fn a_write_after_the_key_continues_under_the_name() {
    for tool in TOOLS {
        let share = Rekeyed::new();
        let vault = share.open();
        let handle = open_or_create(&vault, b"a/b/file", READ_WRITE).unwrap();
        share.deliver_key();
        share.deliver_directory(tool);
        let mut ours = share.contents.clone();
        for (at, bytes) in [(5, b"first"), (29_000, b"again")] {
            vault.write(handle, at, bytes, false).unwrap();
            vault.fsync(handle, false).unwrap_or_else(|error| panic!("{tool:?}: {error}"));
            ours[at as usize..at as usize + 5].copy_from_slice(bytes);
            assert_eq!(holding(&vault, &ours), ["a/b/file"], "{tool:?}");
        }
        vault.release(handle).unwrap();
        vault.close().unwrap();
        let vault = share.open();
        assert_eq!(holding(&vault, &ours), ["a/b/file"], "{tool:?}");
        let mut files = 0;
        let mut count = |_: &[u8], item: Result<Item, _>| {
            files += usize::from(matches!(item?, Item::File { .. }));
            Ok(())
        };
        walk(&vault, ROOT, b"", &mut count).unwrap();
        assert_eq!(files, 2, "{tool:?}: no conflict copy");
    }
}

/// The list of members has arrived, and its key cannot be read: nothing may be written, and changes
/// stay in memory. Then the directory moved. A commit looked for another place for the file, failed
/// with EIO, and dropped the changes. They stay in memory until the key can be read.
#[test]
fn a_write_without_a_key_survives_the_move_of_its_directory() {
    for tool in TOOLS {
        let share = Rekeyed::new();
        let vault = share.open();
        let handles = [&b"a/b/file"[..], b"a/b/other"].map(|path| {
            let handle = open_or_create(&vault, path, READ_WRITE).unwrap();
            vault.write(handle, 0, b"ours", false).unwrap();
            handle
        });
        share.deliver_key();
        let root = share.bobs.root();
        let slots: Vec<Vec<u8>> = named(&*root, b"+slots-");
        let of_ann = share.anns.root();
        for name in &slots {
            write(&*root, name, &vec![0; raw::read(&*of_ann, name).len()]);
        }
        assert!(vault.refresh().is_err());
        share.deliver_directory(tool);
        let before = names(&*root);
        assert_eq!(vault.fsync(handles[0], false).unwrap_err().errno(), libc::EROFS, "{tool:?}");
        assert_eq!(vault.release(handles[1]).unwrap_err().errno(), libc::EROFS, "{tool:?}");
        assert_eq!(names(&*root), before, "{tool:?}: nothing is written meanwhile");
        for name in &slots {
            write(&*root, name, &raw::read(&*of_ann, name));
        }
        vault.refresh().unwrap();
        vault.fsync(handles[0], false).unwrap_or_else(|error| panic!("{tool:?}: {error}"));
        vault.release(handles[0]).unwrap();
        vault.close().unwrap();
        let vault = share.open();
        let ours = [b"ours", &share.contents[4..]].concat();
        assert_eq!(get(&vault, b"a/b/file").unwrap(), ours, "{tool:?}");
        assert_eq!(get(&vault, b"a/b/other").unwrap(), b"oursr", "{tool:?}");
        assert_eq!(faults(&vault), Vec::<String>::new(), "{tool:?}");
    }
}

/// The mode of the file's directory may have kept other users from the file. The copy is in another
/// directory, so only its owner may read it.
#[test]
fn a_copy_outside_of_its_directory_is_its_owners_alone() {
    let share = Rekeyed::new();
    let vault = share.open();
    let handle = open_or_create(&vault, b"a/b/file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"ours", false).unwrap();
    share.deliver_directory(Tool::Copies);
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    let copies: Vec<_> = vaults::entries(&vault, ROOT).unwrap();
    let [(name, attr)] = &copies[..] else { panic!("{copies:?}") };
    assert!(name.starts_with(b"file (conflict "), "{}", name.escape_ascii());
    assert_eq!(attr.perm & 0o7777, 0o600);
}

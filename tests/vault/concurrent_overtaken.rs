//! Daemons that another one has overtaken: it has changed a name that a program here still uses, or
//! has taken the lease or a guard over while this daemon slept.

use kithfs::store::{SetTime, Timestamp};
use kithfs::vault::{ROOT, RenameMode, SetAttr, SetXattr, Vault};

use super::concurrent::{both, errno, open};
use crate::support::vaults::{mkdir, put, rename};

fn perm(vault: &Vault, path: &[u8]) -> u32 {
    vault.resolve(path).unwrap().perm
}

fn set_perm(perm: u32) -> SetAttr {
    SetAttr { perm: Some(perm), ..SetAttr::default() }
}

/// A program had a directory open that another daemon renamed. `fchmod` and `fsetxattr` changed the
/// directory that had the name by then.
#[test]
fn attributes_follow_an_open_directory_that_is_renamed() {
    let (_store, ann, bob) = both();
    mkdir(&ann, b"d").unwrap();
    let node = ann.resolve(b"d").unwrap().node;
    let listed = ann.open_dir(node).unwrap();
    rename(&bob, b"d", b"e", RenameMode::NoReplace).unwrap();
    mkdir(&bob, b"d").unwrap();
    assert_eq!(ann.setattr(node, &set_perm(0o700)).unwrap().perm, 0o700);
    assert_eq!([perm(&bob, b"d"), perm(&bob, b"e")], [0o755, 0o700]);
    let time = Timestamp { secs: 1_000_000, nanos: 0 };
    let times = SetAttr { mtime: SetTime::At(time), ..SetAttr::default() };
    assert_eq!(ann.setattr(node, &times).unwrap().mtime, time);
    assert_ne!(bob.resolve(b"d").unwrap().mtime, time);
    ann.set_xattr(node, b"user.note", b"of e", SetXattr::Any).unwrap();
    assert_eq!(ann.get_xattr(node, b"user.note").unwrap(), b"of e");
    let note = |path: &[u8]| bob.get_xattr(bob.resolve(path).unwrap().node, b"user.note");
    assert_eq!((note(b"e").unwrap(), errno(note(b"d"))), (b"of e".to_vec(), libc::ENODATA));
    ann.release_dir(listed);
}

/// The same for a file that no program has open for reading or writing, as with `O_PATH`. A link to
/// it was made to the file that had the name by then.
#[test]
fn a_file_that_took_the_name_of_another_is_not_changed() {
    let (_store, ann, bob) = both();
    put(&ann, b"f", b"old").unwrap();
    let node = ann.resolve(b"f").unwrap().node;
    rename(&bob, b"f", b"g", RenameMode::NoReplace).unwrap();
    put(&bob, b"f", b"new").unwrap();
    let before = bob.resolve(b"f").unwrap();
    let times = SetAttr { mtime: SetTime::Now, ..SetAttr::default() };
    for set in [set_perm(0o600), times] {
        assert_eq!(errno(ann.setattr(node, &set)), libc::ESTALE);
    }
    let set = ann.set_xattr(node, b"user.note", b"of g", SetXattr::Any);
    assert_eq!(errno(set), libc::ESTALE);
    assert_eq!(errno(ann.get_xattr(node, b"user.note")), libc::ESTALE);
    assert_eq!(errno(ann.link(node, ROOT, b"linked")), libc::ESTALE);
    assert_eq!(errno(bob.resolve(b"linked")), libc::ENOENT);
    let now = bob.resolve(b"f").unwrap();
    assert_eq!((now.perm, now.nlink, now.ctime), (before.perm, 1, before.ctime));
}

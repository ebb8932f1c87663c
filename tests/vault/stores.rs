//! Stores that cannot do what a local disk does: exFAT, NTFS and sshfs, as they come through FUSE.
//! `scripts/stores.sh` drives the real ones. `sharing::conversion` tests how shares are made there.

use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Kind, SetTime, Timestamp};
use kithfs::vault::{Caller, RenameMode, SetAttr, Vault};

use crate::support::raw;
use crate::support::vaults::{
    self, CALLER, READ_WRITE, at, get, mkdir, open_or_create, pattern, put, rename, split,
};

/// Creates a vault on such a store. Returns it with the store and the plan of its failures.
fn vault() -> (Vault, MemStore, Arc<FaultPlan>) {
    let (store, plan) = (MemStore::new(), FaultPlan::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    plan.come_through_fuse();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    (vault, store, plan)
}

/// Creates a directory that was renamed with contents and then emptied.
fn renamed_and_emptied(vault: &Vault, path: &[u8]) {
    mkdir(vault, b"first").unwrap();
    put(vault, b"first/file", b"x").unwrap();
    rename(vault, b"first", path, RenameMode::Replace).unwrap();
    unlink(vault, &[path, b"/file"].concat());
}

fn unlink(vault: &Vault, path: &[u8]) {
    let (parent, name) = split(path);
    at(vault, parent, |parent| vault.unlink(parent, name)).unwrap();
}

/// Returns the temporary names in the root that an operation has left behind.
fn left(store: &MemStore) -> Vec<String> {
    let entries = store.root().read(0, 1 << 16).unwrap();
    let names = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
    names.filter(|name| name.starts_with("+trash") || name.starts_with("+tmp")).collect()
}

#[test]
fn a_directory_replaces_an_emptied_one_without_an_exchange() {
    // On exFAT, NTFS, sshfs and NFS `mv -T` over an empty directory that had been renamed once
    // failed with EINVAL.
    let (vault, store, _) = vault();
    renamed_and_emptied(&vault, b"target");
    add_foreign_entry(&vault, &store, b"target");
    mkdir(&vault, b"source").unwrap();
    put(&vault, b"source/kept", b"kept").unwrap();
    rename(&vault, b"source", b"target", RenameMode::Replace).unwrap();
    assert_eq!(get(&vault, b"target/kept").unwrap(), b"kept");
    assert_eq!(vault.resolve(b"source").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(left(&store), [""; 0]);
    let root = vault.resolve(b"").unwrap().node;
    let refused = vault.rename(root, b"target", root, b"target", RenameMode::NoReplace);
    assert_eq!(refused.unwrap_err().errno(), libc::EEXIST);
}

/// GlusterFS refuses to set the times of a file that has lost its name. An editor that saved a file
/// while another program had it open with cached writes made the close of that program fail (EIO).
#[test]
fn the_kernel_may_set_the_time_of_a_nameless_file() {
    let (vault, _, plan) = vault();
    let handle = open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"written", false).unwrap();
    let node = vault.resolve(b"file").unwrap().node;
    let time = SetTime::At(Timestamp { secs: 1_000_000_000, nanos: 0 });
    let by_kernel = SetAttr { mtime: time, ..SetAttr::default() };
    let by_program = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
    plan.add(Fault {
        calls: Calls::Of(Call::SetTimes),
        when: When::From(plan.count(Calls::Of(Call::SetTimes)) + 1),
        errno: libc::ESTALE,
        short: false,
    });
    assert_eq!(vault.setattr(node, &by_kernel).unwrap_err().errno(), libc::ESTALE);
    unlink(&vault, b"file");
    vault.setattr(node, &by_kernel).unwrap();
    assert_eq!(vault.setattr(node, &by_program).unwrap_err().errno(), libc::ESTALE);
    vault.write(handle, 0, &pattern(1, 300_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
}

/// Puts what a file manager leaves into the directory: the store replaces it by no other one then.
fn add_foreign_entry(vault: &Vault, store: &MemStore, path: &[u8]) {
    let dir = raw::beneath(&store.root(), &vault.cipher_path(path).unwrap());
    raw::write(&*dir, b".of-others", b"a file manager's");
}

#[test]
fn a_rename_over_a_directory_that_fails_midway_leaves_both() {
    let mut renames = 0;
    loop {
        let (vault, store, plan) = vault();
        renamed_and_emptied(&vault, b"target");
        add_foreign_entry(&vault, &store, b"target");
        mkdir(&vault, b"source").unwrap();
        put(&vault, b"source/kept", b"kept").unwrap();
        let nth = plan.count(Calls::Of(Call::Rename)) + renames + 1;
        let calls = Calls::Of(Call::Rename);
        plan.add(Fault { calls, when: When::Nth(nth), errno: libc::EIO, short: false });
        let renamed = rename(&vault, b"source", b"target", RenameMode::Replace);
        let has_failed = plan.count(calls) >= nth;
        plan.heal();
        let at = if renamed.is_ok() { &b"target/kept"[..] } else { b"source/kept" };
        assert_eq!(get(&vault, at).unwrap(), b"kept", "rename {renames}");
        vault.resolve(b"target").unwrap();
        if !has_failed {
            renamed.unwrap();
            break;
        }
        renames += 1;
    }
    // The evidence, the refused rename and exchange, the target's and the source's.
    assert_eq!(renames, 5);
}

#[test]
fn a_removed_directory_is_deleted_once_its_files_are_closed() {
    // Through FUSE an open file that is removed keeps a hidden name, and therefore its directory.
    // The directory stayed in the vault for ever, and fsck reported it as a fault. So did the
    // directory above it.
    let (vault, store, plan) = vault();
    mkdir(&vault, b"outer").unwrap();
    renamed_and_emptied(&vault, b"outer/dir");
    let outer = store
        .root()
        .read(0, 1 << 16)
        .unwrap()
        .into_iter()
        .find(|entry| !entry.name.starts_with(b"+"))
        .unwrap();
    let outer = store.root().open_dir(&outer.name).unwrap();
    let inner = outer.open_dir(&outer.read(0, 1 << 16).unwrap()[0].name).unwrap();
    inner.create_file(b".fuse_hidden0000000100000001", 0o600).unwrap();
    let done = plan.count(Calls::Of(Call::Rmdir));
    for n in [2, 4] {
        // Each time the directory is found not empty, is moved away, and cannot be deleted either.
        plan.add(Fault {
            calls: Calls::Of(Call::Rmdir),
            when: When::Nth(done + n),
            errno: libc::ENOTEMPTY,
            short: false,
        });
    }
    at(&vault, b"outer", |outer| vault.rmdir(outer, b"dir")).unwrap();
    assert_eq!(vault.resolve(b"outer/dir").unwrap_err().errno(), libc::ENOENT);
    at(&vault, b"", |root| vault.rmdir(root, b"outer")).unwrap();
    vault.close().unwrap();
    assert_eq!(left(&store), [""; 0]);
    let entries = store.root().read(0, 1 << 16).unwrap();
    assert!(entries.iter().all(|entry| entry.name.starts_with(b"+")), "both are gone");
}

#[test]
fn a_nameless_file_is_writable_if_the_store_counts_a_link() {
    // sshfs and exFAT keep an open file that is removed under a hidden name. The vault was searched
    // for it, and its fsync failed with EIO.
    let (vault, _, plan) = vault();
    let handle = open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(1, 300_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    unlink(&vault, b"file");
    vault.write(handle, 50, b"after", false).unwrap();
    let listed = plan.count(Calls::Of(Call::List));
    vault.fsync(handle, false).unwrap();
    let mut buf = [0; 5];
    vault.read(handle, 50, &mut buf).unwrap();
    assert_eq!(&buf, b"after");
    vault.release(handle).unwrap();
    assert_eq!(plan.count(Calls::Of(Call::List)), listed, "nothing is searched for");
}

#[test]
fn a_hard_link_is_refused_where_it_would_show_as_another_file() {
    // Over sshfs the two names were opened as two files: data written through one name was damage
    // to the other.
    let (vault, store, _) = vault();
    put(&vault, b"file", b"contents").unwrap();
    let entries = || raw::names(&*store.root()).into_iter().filter(|name| name != b"+long").count();
    let before = entries();
    for name in [&b"link"[..], &[b'l'; 250]] {
        let node = vault.resolve(b"file").unwrap().node;
        let root = vault.resolve(b"").unwrap().node;
        assert_eq!(vault.link(node, root, name).unwrap_err().errno(), libc::EOPNOTSUPP);
        vault.forget(node, 1);
        assert_eq!(vault.resolve(name).unwrap_err().errno(), libc::ENOENT);
    }
    assert_eq!(get(&vault, b"file").unwrap(), b"contents");
    assert_eq!(entries(), before, "only the sealed long name stays, for a later entry");
    let (parent, name) = split(b"new");
    at(&vault, parent, |parent| vault.mkdir(&CALLER, parent, name, 0o755)).unwrap();
}

#[test]
fn a_link_that_is_too_long_for_the_store_has_its_target_aside() {
    // XFS accepts links of 1,024 bytes: a target of more than 700 failed with ENAMETOOLONG, and so
    // did cp of a tree with one.
    let (vault, store, plan) = vault();
    let target = pattern(1, 900).iter().map(|b| b'a' + b % 26).collect::<Vec<_>>();
    let done = plan.count(Calls::Of(Call::Symlink));
    plan.add(Fault {
        calls: Calls::Of(Call::Symlink),
        when: When::Nth(done + 1),
        errno: libc::ENAMETOOLONG,
        short: false,
    });
    vaults::symlink(&vault, b"link", &target).unwrap();
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(at(&vault, b"link", |node| vault.readlink(node)).unwrap(), target);
    let attr = vault.resolve(b"link").unwrap();
    assert_eq!(attr.size, 900);
}

#[test]
fn what_a_failed_call_has_made_instead_is_removed() {
    // exfat-fuse creates an empty file instead of a FIFO, and then fails. The file stayed, and fsck
    // reported it as a fault.
    let (vault, store, _) = vault();
    let before = store.root().read(0, 1 << 16).unwrap().len();
    let root = vault.resolve(b"").unwrap().node;
    assert_eq!(
        vault.mknod(&CALLER, root, b"fifo", Kind::Fifo, 0o644, 0).unwrap_err().errno(),
        libc::EIO
    );
    assert_eq!(store.root().read(0, 1 << 16).unwrap().len(), before);
}

#[test]
fn a_refused_chown_keeps_the_file_and_clears_setuid() {
    // exFAT has no owners: in a mount by root for all users no other user could create a file, and
    // each attempt left an empty one behind.
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root makes files for others");
        return;
    }
    let (vault, store, plan) = vault();
    let other = Caller { uid: 1234, gid: 1234, umask: 0o022 };
    let root = vault.resolve(b"").unwrap().node;
    let chown = |errno| {
        let done = plan.count(Calls::Of(Call::Chown));
        plan.add(Fault {
            calls: Calls::Of(Call::Chown),
            when: When::Nth(done + 1),
            errno,
            short: false,
        });
    };
    chown(libc::EPERM);
    let (attr, opened) = vault.create_file(&other, root, b"file", 0o6755, READ_WRITE).unwrap();
    assert_eq!(
        attr.perm & 0o6000,
        0,
        "set-user-ID or set-group-ID is left on a file of another owner"
    );
    vault.write(opened.handle, 0, b"his", false).unwrap();
    vault.release(opened.handle).unwrap();
    assert_eq!(get(&vault, b"file").unwrap(), b"his");
    chown(libc::EIO);
    assert_eq!(
        vault.create_file(&other, root, b"not made", 0o644, READ_WRITE).unwrap_err().errno(),
        libc::EIO
    );
    let there = store
        .root()
        .read(0, 1 << 16)
        .unwrap()
        .into_iter()
        .filter(|entry| !entry.name.starts_with(b"+"))
        .count();
    assert_eq!(there, 1, "a file that could not be given away was left");
}

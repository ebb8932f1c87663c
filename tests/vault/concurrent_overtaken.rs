//! Daemons that another one has overtaken: it has changed a name that a program here still uses, or
//! has taken the lease or a guard over while this daemon slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, FaultPlan, FaultStore, Locks};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, RenameMode as StoreRename, SetTime, Timestamp};
use kithfs::vault::{LockMode, NodeId, ROOT, RenameMode, SetAttr, SetXattr, Vault};
use parking_lot::Mutex;

use super::concurrent::{both, errno, open, with_locks};
use crate::support::members::{together, trusting, with_bob};
use crate::support::raw;
use crate::support::vaults::{READ_WRITE, faults, get, mkdir, pattern, put, rename};

const LEN: usize = 60_000;

/// Opens the share on a store with these locks, behind a plan.
fn planned(store: &MemStore, who: &Identity, how: Locks) -> (Vault, Arc<FaultPlan>) {
    let plan = FaultPlan::new();
    plan.give_locks(how);
    let root = FaultStore::wrap(store.root(), plan.clone());
    (Vault::open(root, who, trusting(false, LockMode::Shared)).unwrap(), plan)
}

/// Has `act` run once, before the `nth` rename in the store. Returns whether it has run.
fn before_rename(
    plan: &FaultPlan,
    nth: u64,
    act: impl Fn() + Send + Sync + 'static,
) -> Arc<AtomicBool> {
    let (calls, ran) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
    let has_run = ran.clone();
    plan.before(Call::Rename, move || {
        if calls.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            act();
            has_run.store(true, Ordering::Relaxed);
        }
    });
    ran
}

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

/// A rename found its target missing, and the daemon was suspended. Another one took the lease over
/// and made a file of that name, which the rename then replaced, even with `RENAME_NOREPLACE`.
#[test]
fn a_late_rename_replaces_no_file_that_it_has_not_seen() {
    for mode in [RenameMode::NoReplace, RenameMode::Replace] {
        let (store, ann, bob) = with_bob();
        let (ann, plan) = planned(&store, &ann, Locks::Everybody);
        let [bob] = with_locks(&store, [&bob], Locks::Everybody);
        put(&ann, b"from", b"hers").unwrap();
        let his = bob.clone();
        let ran = before_rename(&plan, 1, move || put(&his, b"to", b"his").unwrap());
        let renamed = rename(&ann, b"from", b"to", mode);
        assert!(ran.load(Ordering::Relaxed));
        if mode == RenameMode::NoReplace {
            assert_eq!(errno(renamed), libc::EEXIST);
            assert_eq!(get(&bob, b"from").unwrap(), b"hers");
            assert_eq!(get(&bob, b"to").unwrap(), b"his");
        } else {
            renamed.unwrap();
            assert_eq!(errno(get(&bob, b"from")), libc::ENOENT);
            assert_eq!(get(&bob, b"to").unwrap(), b"hers");
        }
        assert_eq!(faults(&ann), [""; 0]);
    }
}

/// A share with a directory `d` that holds nothing but a control file. `arrive` puts a file `d/f`
/// there.
fn with_late_file() -> (MemStore, Identity, impl Fn() + Send + Sync + 'static) {
    let (store, ann, _) = with_bob();
    let vault = together(&store, &ann).unwrap();
    mkdir(&vault, b"d").unwrap();
    put(&vault, b"d/f", b"late").unwrap();
    let path = vault.cipher_path(b"d/f").unwrap();
    vault.close().unwrap();
    let (root, at) = (store.root(), path.iter().position(|byte| *byte == b'/').unwrap());
    let (dir, name) = (root.open_dir(&path[..at]).unwrap(), path[at + 1..].to_vec());
    dir.rename(&name, &*root, b"+tmp-000000000001", StoreRename::NoReplace).unwrap();
    dir.create_file(b"+tmp-000000000000", 0o600).unwrap();
    let arrive =
        move || root.rename(b"+tmp-000000000001", &*dir, &name, StoreRename::NoReplace).unwrap();
    (store, ann, arrive)
}

/// A directory that held nothing but control files was moved to a control name to be removed. A file
/// that another daemon, or a sync tool, had made in it meanwhile was hidden.
#[test]
fn a_file_made_in_a_directory_being_removed_is_not_hidden() {
    let (store, ann, arrive) = with_late_file();
    let (ann, plan) = planned(&store, &ann, Locks::Own);
    let ran = before_rename(&plan, 1, arrive);
    assert_eq!(errno(ann.rmdir(ROOT, b"d")), libc::ENOTEMPTY);
    assert!(ran.load(Ordering::Relaxed));
    assert_eq!(get(&ann, b"d/f").unwrap(), b"late");
    assert!(raw::named(&*store.root(), b"+trash-").is_empty());
}

/// The same for a directory that a rename replaces, on stores that can exchange names and others.
#[test]
fn a_file_made_in_a_directory_being_replaced_is_not_hidden() {
    for through_fuse in [false, true] {
        let mut nth = 1;
        loop {
            let (store, ann, arrive) = with_late_file();
            let (ann, plan) = planned(&store, &ann, Locks::Own);
            mkdir(&ann, b"s").unwrap();
            put(&ann, b"s/own", b"own").unwrap();
            if through_fuse {
                plan.come_through_fuse();
            }
            let ran = before_rename(&plan, nth, arrive);
            let renamed = errno(rename(&ann, b"s", b"d", RenameMode::Replace));
            if !ran.load(Ordering::Relaxed) {
                assert_eq!(renamed, 0);
                break;
            }
            assert_eq!(renamed, libc::ENOTEMPTY, "{through_fuse} {nth}");
            assert_eq!(get(&ann, b"d/f").unwrap(), b"late", "{through_fuse} {nth}");
            assert_eq!(get(&ann, b"s/own").unwrap(), b"own", "{through_fuse} {nth}");
            assert!(raw::named(&*store.root(), b"+trash-").is_empty());
            nth += 1;
        }
        assert!(nth > 3);
    }
}

/// How long a daemon sleeps: longer than a lease is valid.
const SLEEP: Duration = Duration::from_millis(2500);

/// Lets a daemon with such a plan sleep for [`SLEEP`], so that it knows of it. Runs `meanwhile`, and
/// wakes it.
fn sleeps(vault: &Vault, plan: &FaultPlan, node: NodeId, meanwhile: impl FnOnce()) {
    while vault.caching(node).is_none() {
        std::thread::yield_now();
    }
    let (wake, wakes) = channel::<()>();
    let (sleep, is_asleep) = channel();
    let wakes = Mutex::new(wakes);
    // Nobody looks after the lease.
    plan.before(Call::OpenFile, move || {
        if std::thread::current().name() == Some("kithfs-lease") {
            let _ = sleep.send(());
            let _ = wakes.lock().recv(); // an error, once it is awake
        }
    });
    is_asleep.recv().unwrap();
    std::thread::sleep(SLEEP);
    meanwhile();
    drop(wake);
}

/// The server had dropped the locks of a machine that slept with a file open for writing, and
/// another machine had appended to the file. Data that was then written here went to its places in
/// the file at once, where it destroyed what the other machine had synced. Only the next commit
/// noticed that.
#[test]
fn a_writer_that_slept_destroys_nothing() {
    let (store, ann, bob) = with_bob();
    let (ann, plan) = planned(&store, &ann, Locks::Everybody);
    let [bob] = with_locks(&store, [&bob], Locks::Everybody);
    put(&ann, b"file", &pattern(1, LEN)).unwrap();
    let node = ann.resolve(b"file").unwrap().node;
    let hers = ann.open_file(node, READ_WRITE).unwrap().handle;
    let grown = [pattern(1, LEN), pattern(2, 200_000)].concat();
    sleeps(&ann, &plan, node, || {
        let his = open(&bob, b"file", READ_WRITE).unwrap();
        bob.write(his, LEN as u64, &grown[LEN..], false).unwrap();
        bob.fsync(his, false).unwrap();
        bob.release(his).unwrap();
    });
    let written = ann.write(hers, LEN as u64, &pattern(3, 200_000), false);
    assert_eq!(errno(written), libc::ESTALE);
    assert_eq!(errno(ann.write(hers, 0, b"x", false)), libc::ESTALE, "the error is repeated");
    let _ = ann.release(hers);
    assert!(get(&bob, b"file").unwrap() == grown);
    assert_eq!(faults(&bob), [""; 0]);
}

/// The other machine had the file open for writing by then, and had not committed yet. A commit here
/// made the later one there fail.
#[test]
fn a_writer_that_slept_leaves_the_file_to_the_next_one() {
    let (store, ann, bob) = with_bob();
    let (ann, plan) = planned(&store, &ann, Locks::Everybody);
    let bob = together(&store, &bob).unwrap();
    put(&ann, b"file", &pattern(1, LEN)).unwrap();
    let node = ann.resolve(b"file").unwrap().node;
    let hers = ann.open_file(node, READ_WRITE).unwrap().handle;
    let mut his = None;
    sleeps(&ann, &plan, node, || {
        plan.give_locks(Locks::Own); // from now on Bob's are seen
        let handle = open(&bob, b"file", READ_WRITE).unwrap();
        bob.write(handle, 0, b"his", false).unwrap();
        his = Some(handle);
    });
    assert_eq!(errno(ann.write(hers, 0, b"hers", false)), libc::ESTALE);
    assert_eq!(errno(ann.write(hers, 0, b"hers", false)), libc::ESTALE, "the error is repeated");
    let _ = ann.release(hers);
    let his = his.unwrap();
    bob.fsync(his, false).unwrap();
    bob.release(his).unwrap();
    assert_eq!(get(&ann, b"file").unwrap()[..4], [b"his", &pattern(1, LEN)[3..4]].concat());
}

/// A daemon that was busy for seconds, and lost no lock, goes on writing.
#[test]
fn a_writer_that_slept_with_its_locks_goes_on() {
    let (store, ann, bob) = with_bob();
    let (ann, plan) = planned(&store, &ann, Locks::Own);
    let bob = together(&store, &bob).unwrap();
    put(&ann, b"file", &pattern(1, LEN)).unwrap();
    let node = ann.resolve(b"file").unwrap().node;
    let hers = ann.open_file(node, READ_WRITE).unwrap().handle;
    ann.write(hers, 0, b"before", false).unwrap();
    sleeps(&ann, &plan, node, || {});
    ann.write(hers, 6, b" and after", false).unwrap();
    assert_eq!(errno(open(&bob, b"file", READ_WRITE)), libc::EBUSY, "the guard is still held");
    ann.release(hers).unwrap();
    assert_eq!(&get(&bob, b"file").unwrap()[..16], b"before and after");
}

/// A program that wrote to a log that another daemon had rotated had its daemon search the whole
/// vault for the name, under the lease.
#[test]
fn a_file_renamed_in_its_directory_is_found_there() {
    const DIRS: u64 = 50;
    let (store, ann, bob) = with_bob();
    let (ann, plan) = planned(&store, &ann, Locks::Own);
    let bob = together(&store, &bob).unwrap();
    mkdir(&ann, b"logs").unwrap();
    for dir in 0..DIRS {
        mkdir(&ann, format!("logs/{dir}").as_bytes()).unwrap();
        mkdir(&ann, format!("{dir}").as_bytes()).unwrap();
    }
    put(&ann, b"logs/log", b"one").unwrap();
    let hers = open(&ann, b"logs/log", READ_WRITE).unwrap();
    ann.write(hers, 3, b" two", false).unwrap();
    rename(&bob, b"logs/log", b"logs/log.1", RenameMode::Replace).unwrap();
    put(&bob, b"logs/log", b"new").unwrap();
    plan.reset();
    ann.fsync(hers, false).unwrap();
    let listed = plan.count(Calls::Of(Call::List));
    assert!(listed < DIRS, "{listed} directories were listed");
    ann.release(hers).unwrap();
    assert_eq!(get(&bob, b"logs/log.1").unwrap(), b"one two");
    assert_eq!(get(&bob, b"logs/log").unwrap(), b"new");
}

/// Another program had renamed a directory two or more levels above the file. The search went
/// through handles from before and found the file at its former path: no later commit knew the
/// present one, and a daemon that had the share alone reported EIO for a commit that was made.
#[test]
fn a_file_in_a_moved_tree_is_found_at_its_place() {
    let (store, ann, bob) = with_bob();
    let (ann, plan) = planned(&store, &ann, Locks::Own);
    let bob = together(&store, &bob).unwrap();
    for dir in [&b"a"[..], b"a/x", b"a/x/y", b"a/x/y/d"] {
        mkdir(&ann, dir).unwrap();
    }
    put(&ann, b"a/x/y/d/f", b"one").unwrap();
    let hers = open(&ann, b"a/x/y/d/f", READ_WRITE).unwrap();
    ann.write(hers, 3, b" two", false).unwrap();
    rename(&bob, b"a", b"b", RenameMode::NoReplace).unwrap();
    ann.fsync(hers, false).unwrap();
    plan.reset();
    ann.write(hers, 7, b" three", false).unwrap();
    ann.fsync(hers, false).unwrap();
    assert_eq!(plan.count(Calls::Of(Call::List)), 0, "its place is known");
    ann.release(hers).unwrap();
    assert_eq!(get(&bob, b"b/x/y/d/f").unwrap(), b"one two three");
}

/// The same with a daemon that has the share alone.
#[test]
fn a_commit_to_a_moved_tree_is_no_failure() {
    let (store, ann, _) = with_bob();
    let ann = Vault::open(store.root(), &ann, trusting(false, LockMode::Exclusive)).unwrap();
    for dir in [&b"a"[..], b"a/x", b"a/x/y", b"a/x/y/d"] {
        mkdir(&ann, dir).unwrap();
    }
    put(&ann, b"a/x/y/d/f", b"one").unwrap();
    // The daemon knows both names of the directory, so that another program may use either.
    rename(&ann, b"a", b"b", RenameMode::NoReplace).unwrap();
    let there = ann.cipher_path(b"b").unwrap();
    rename(&ann, b"b", b"a", RenameMode::NoReplace).unwrap();
    let here = ann.cipher_path(b"a").unwrap();
    let hers = open(&ann, b"a/x/y/d/f", READ_WRITE).unwrap();
    ann.write(hers, 3, b" two", false).unwrap();
    store.root().rename(&here, &*store.root(), &there, StoreRename::NoReplace).unwrap();
    ann.fsync(hers, false).unwrap();
    ann.release(hers).unwrap();
    assert_eq!(get(&ann, b"b/x/y/d/f").unwrap(), b"one two");
}

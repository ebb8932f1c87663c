//! What a daemon does with written data while another one has the lease, or the store is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, File, Lock, SetTime, Span};
use kithfs::vault::{Error, LockMode, LockRequest, OpenFlags, Vault};

use crate::support::members::{together, trusting, with_bob};
use crate::support::vaults::{READ, READ_WRITE, at, get, mkdir, pattern, put, write_at};

const ALL: Span = Span { first: 0, last: Span::END };

fn open(vault: &Vault, path: &[u8], flags: OpenFlags) -> u64 {
    at(vault, path, |node| Ok(vault.open_file(node, flags)?.handle)).unwrap()
}

fn on(store: &MemStore, who: &Identity, plan: &Arc<FaultPlan>) -> Vault {
    let store = FaultStore::wrap(store.root(), plan.clone());
    Vault::open(store, who, trusting(false, LockMode::Shared)).unwrap()
}

fn errno(result: Result<(), Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

/// Takes the lease until the returned handle is dropped, as another daemon does. Whenever the daemon of
/// `plan` tries to take it, there is a sign of life.
fn keep_lease(store: &MemStore, plan: &FaultPlan) -> Arc<dyn File> {
    let open = |name: &[u8]| store.root().open_file(name, Access::ReadWrite).unwrap();
    let wanted = match store.root().open_file(b"+wanted", Access::ReadWrite) {
        Ok(file) => file,
        Err(_) => store.root().create_file(b"+wanted", 0o600).unwrap(),
    };
    assert!(wanted.try_lock_span(Some(Lock::Shared), ALL).unwrap());
    let lease = loop {
        let lease = open(b"+lease");
        if lease.try_lock_span(Some(Lock::Exclusive), ALL).unwrap() {
            break lease;
        }
        std::thread::yield_now(); // until the daemons have given it up
    };
    let shown = lease.clone();
    plan.before(Call::Lock, move || shown.set_times(SetTime::Omit, SetTime::Now).unwrap());
    lease
}

/// Gives back what [`keep_lease`] has taken.
fn give_back(lease: Arc<dyn File>, plan: &FaultPlan) {
    lease.try_lock_span(None, ALL).unwrap();
    plan.before(Call::Lock, || {});
}

/// Returns whether a daemon has a file open for writing, with its guard or on demand.
fn is_guarded(store: &MemStore, vault: &Vault, path: &[u8]) -> bool {
    let stored = vault.cipher_path(path).unwrap();
    let file = store.root().open_file(&stored, Access::ReadWrite).unwrap();
    file.find_lock(Lock::Exclusive, Span { first: 0, last: 2 }).unwrap().is_some()
}

/// Has a vault commit everything, as its background does at the same time. Returns whether the file is
/// not guarded any more, within some seconds.
fn commits(store: &MemStore, vault: &Vault, path: &[u8]) -> bool {
    let begun = Instant::now();
    while is_guarded(store, vault, path) {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        vault.commit_due(Duration::ZERO);
        std::thread::yield_now();
    }
    true
}

/// A program wrote, and closed the file while another daemon had the lease for longer than ten seconds,
/// as for `share create` in a large folder. The close failed with EBUSY, which many programs ignore, and
/// the data was dropped. Now the daemon keeps it, and commits it later.
#[test]
fn data_closed_while_the_lease_is_taken_is_kept() {
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    let (ann, bob) = (together(&store, &ann).unwrap(), on(&store, &bob, &plan));
    put(&bob, b"file", &[1; 10_000]).unwrap();
    put(&bob, b"read", &[1; 10_000]).unwrap();
    let handles = [&b"file"[..], b"read"].map(|name| open(&bob, name, READ_WRITE));
    let reading = open(&bob, b"read", READ);
    handles.iter().for_each(|handle| bob.write(*handle, 0, &[2; 5000], false).unwrap());
    let lease = keep_lease(&store, &plan);
    std::thread::scope(|scope| {
        let bob = &bob;
        let closing = handles.map(|handle| scope.spawn(move || bob.release(handle)));
        for closed in closing {
            assert_eq!(errno(closed.join().unwrap()), libc::EBUSY);
        }
    });
    assert_eq!(errno(bob.release(reading)), libc::EBUSY, "the last close");
    assert_eq!(get(&ann, b"file").unwrap(), [1; 10_000]);
    give_back(lease, &plan);
    let wanted = [[2; 5000], [1; 5000]].concat();
    for name in [&b"file"[..], b"read"] {
        assert!(commits(&store, &bob, name));
        assert!(get(&ann, name).unwrap() == wanted);
        write_at(&ann, name, 0, b"hers").unwrap();
    }
    bob.close().unwrap();
}

/// The last program that wrote to a file closed it while the store was full, and another one had it open
/// for reading, such as `tail -f`. The background committed the changes later, but the guard stayed: all
/// other daemons got EBUSY until the reader closed the file, too.
#[test]
fn a_guard_ends_with_a_commit_after_the_close() {
    for is_locked in [false, true] {
        let (store, ann, bob) = with_bob();
        let plan = FaultPlan::new();
        let (ann, bob) = (together(&store, &ann).unwrap(), on(&store, &bob, &plan));
        put(&bob, b"file", &[1; 10_000]).unwrap();
        let (writing, reading) = (open(&bob, b"file", READ_WRITE), open(&bob, b"file", READ));
        if is_locked {
            for lock in [Some(Lock::Exclusive), None] {
                let request = LockRequest { owner: 1, lock, span: ALL, whole: false };
                assert!(bob.lock(writing, &request).unwrap());
            }
        }
        bob.write(writing, 0, &[2; 5000], false).unwrap();
        for call in [Call::Write, Call::CreateFile] {
            let calls = Calls::Of(call);
            plan.add(Fault { calls, when: When::From(1), errno: libc::ENOSPC, short: false });
        }
        assert_eq!(errno(bob.release(writing)), libc::ENOSPC);
        assert!(is_guarded(&store, &bob, b"file"), "there are changes");
        plan.heal();
        assert!(commits(&store, &bob, b"file"));
        assert_eq!(get(&ann, b"file").unwrap()[..5000], [2; 5000]);
        write_at(&ann, b"file", 0, b"hers").unwrap();
        let mut read = [0; 4];
        assert_eq!(bob.read(reading, 0, &mut read).unwrap(), 4);
        assert_eq!(&read, b"hers");
        bob.release(reading).unwrap();
    }
}

/// A commit flushes what it relies on before it writes its record. The daemon did that under the lease,
/// for seconds after a large copy to a slow disk, and all other daemons waited.
#[test]
fn a_large_file_is_flushed_without_the_lease() {
    const PART: usize = 6 << 20;
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    let (ann, bob) = (on(&store, &ann, &plan), together(&store, &bob).unwrap());
    let (is_due, here) = (Arc::new(AtomicBool::new(false)), std::thread::current().id());
    let made = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (flushes, results) = (is_due.clone(), made.clone());
    plan.before(Call::SyncData, move || {
        if std::thread::current().id() == here && flushes.swap(false, Ordering::Relaxed) {
            let name = format!("made {}", results.lock().len());
            let result = errno(mkdir(&bob, name.as_bytes()));
            results.lock().push(result);
        }
    });
    let lock = |handle, lock| {
        ann.lock(handle, &LockRequest { owner: 1, lock, span: ALL, whole: false }).unwrap()
    };
    let ways: [(&str, &dyn Fn(u64)); 5] = [
        ("fsync", &|handle| ann.fsync(handle, false).unwrap()),
        ("flush", &|handle| ann.flush(handle).unwrap()),
        ("write", &|handle| {
            ann.write(handle, PART as u64, &pattern(1, PART), false).unwrap();
        }),
        ("background", &|_| ann.commit_due(Duration::ZERO)),
        ("unlock", &|handle| assert!(lock(handle, None))),
    ];
    for (at, (way, commit)) in ways.iter().enumerate() {
        put(&ann, b"file", b"some").unwrap();
        let handle = open(&ann, b"file", READ_WRITE);
        assert!(lock(handle, Some(Lock::Exclusive)));
        ann.write(handle, 0, &pattern(0, PART), false).unwrap();
        is_due.store(true, Ordering::Relaxed);
        commit(handle);
        assert!(!is_due.load(Ordering::Relaxed), "{way} flushed nothing");
        assert_eq!(made.lock()[at], 0, "{way}");
        ann.release(handle).unwrap();
        assert!(get(&ann, b"file").unwrap()[..PART] == pattern(0, PART), "{way}");
    }
    plan.before(Call::SyncData, || {}); // the action keeps Bob's vault open
}

/// A daemon that was being closed waited ten seconds for the lease of another one for each file with
/// changes. Now it waits once, and reports the first file.
#[test]
fn a_close_waits_for_a_taken_lease_once() {
    const FILES: u32 = 12;
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    let (ann, bob) = (together(&store, &ann).unwrap(), on(&store, &bob, &plan));
    let names = (0..FILES).map(|n| format!("file {n}").into_bytes());
    for name in names.clone() {
        put(&bob, &name, &[1; 10_000]).unwrap();
        let handle = open(&bob, &name, READ_WRITE);
        bob.write(handle, 0, &[2; 5000], false).unwrap();
    }
    let lease = keep_lease(&store, &plan);
    let begun = Instant::now();
    assert_eq!(errno(bob.close()), libc::EBUSY);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    give_back(lease, &plan);
    names.for_each(|name| assert_eq!(get(&ann, &name).unwrap(), [1; 10_000]));
}

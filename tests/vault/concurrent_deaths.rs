//! Daemons that die in a commit, beside others that have the share open for writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, Lock, Span};
use kithfs::vault::{Error, LockMode, OpenFlags, RenameMode, Vault};

use crate::support::members::{open_as, together, trusting, with_bob};
use crate::support::raw;
use crate::support::vaults::{
    READ_WRITE, Seeded, at, get, mkdir, open_or_create, pattern, put, rename,
};

pub(super) const CHUNK: usize = 1 << 14;
pub(super) const LEN: usize = 3 * CHUNK;

pub(super) fn open(vault: &Vault, path: &[u8], flags: OpenFlags) -> Result<u64, Error> {
    at(vault, path, |node| Ok(vault.open_file(node, flags)?.handle))
}

/// Opens a share in a daemon whose calls a plan counts and fails.
pub(super) fn planned(store: &MemStore, who: &Identity) -> (Vault, Arc<FaultPlan>) {
    let plan = FaultPlan::new();
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    (Vault::open(wrapped, who, trusting(false, LockMode::Shared)).unwrap(), plan)
}

/// Creates Ann's share with Bob, and a durable file in it.
pub(super) fn with_file() -> (MemStore, Identity, Identity) {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"file", &pattern(0, LEN)).unwrap();
    let handle = open(&vault, b"file", READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    vault.close().unwrap();
    (store, ann, bob)
}

/// Writes `bytes` to the beginning of the file in a daemon of `who` that dies at a call of the
/// commit. Returns false if the commit has fewer calls.
pub(super) fn dies(store: &MemStore, who: &Identity, bytes: &[u8], call: u64) -> bool {
    dies_at(store, who, bytes, Calls::All, call)
}

fn dies_at(store: &MemStore, who: &Identity, bytes: &[u8], calls: Calls, nth: u64) -> bool {
    let (vault, plan) = planned(store, who);
    let handle = open(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, bytes, false).unwrap();
    plan.reset();
    plan.add(Fault { calls, when: When::From(nth), errno: libc::EIO, short: false });
    vault.fsync(handle, false).is_err()
}

pub(super) fn write_and_sync(
    vault: &Vault,
    handle: u64,
    at: usize,
    bytes: &[u8],
) -> Result<(), Error> {
    vault.write(handle, at as u64, bytes, false)?;
    vault.fsync(handle, false)
}

/// Runs `act` in a thread of its own at event number `moment` of the store (from 0). The event
/// waits until `act` has ended or a daemon waits for the lease. The receiver returns the error
/// number of `act` (0: success), or fails if the event does not come.
fn at_moment(
    store: &MemStore,
    moment: u64,
    act: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> mpsc::Receiver<i32> {
    let (sender, outcome) = mpsc::channel();
    let (count, watched) = (AtomicU64::new(0), store.clone());
    let act = parking_lot::Mutex::new(Some((act, sender)));
    store.on_event(Box::new(move |_| {
        if count.fetch_add(1, Ordering::AcqRel) != moment {
            return;
        }
        let (act, sender) = act.lock().take().unwrap();
        let other = std::thread::spawn(move || {
            let error = act().map_or_else(|error| error.errno(), |()| 0);
            sender.send(error).unwrap();
        });
        while !other.is_finished() && !is_lease_wanted(&watched) {
            std::thread::yield_now();
        }
    }));
    outcome
}

/// Returns whether a daemon waits for the lease.
fn is_lease_wanted(store: &MemStore) -> bool {
    let file = store.root().open_file(b"+wanted", Access::Read);
    let all = Span { first: 0, last: Span::END };
    file.is_ok_and(|file| file.find_lock(Lock::Exclusive, all).unwrap().is_some())
}

pub(super) fn has_name(root: &dyn Dir, prefix: &[u8]) -> bool {
    raw::names(root).iter().any(|name| name.starts_with(prefix))
}

/// A replay compared the header with its records and then wrote, without waiting for other daemons.
/// Ann's replay overwrote what Bob had committed in between, although his `fsync` had returned.
/// Here he commits another part of that chunk at each moment of her replay: with a file that he has
/// open already, and with one that he opens then.
#[test]
fn a_commit_during_a_replay_is_not_lost() {
    let (start, ann_id, bob_id) = with_file();
    let (hers, his) = ([1u8; 8192], [2u8; 8192]);
    let (mut tried, mut wrote, mut replayed) = (0, 0, 0);
    for call in 1.. {
        let left = start.snapshot();
        if !dies(&left, &ann_id, &hers, call) {
            break;
        }
        let mut is_open = true;
        let mut moment = 0;
        loop {
            let what = format!("call {call}, moment {moment}, open before: {is_open}");
            let store = left.snapshot();
            let bob = together(&store, &bob_id).unwrap();
            let before = is_open.then(|| open(&bob, b"file", READ_WRITE).unwrap());
            let vault = bob.clone();
            let outcome = at_moment(&store, moment, move || {
                let handle = before.map_or_else(|| open(&vault, b"file", READ_WRITE), Ok)?;
                let written = write_and_sync(&vault, handle, 8192, &his);
                vault.release(handle)?;
                written
            });
            let ann = together(&store, &ann_id).unwrap();
            store.on_event(Box::new(|_| {}));
            let Ok(outcome) = outcome.recv() else {
                if !std::mem::replace(&mut is_open, false) {
                    break;
                }
                moment = 0;
                continue;
            };
            moment += 1;
            tried += 1;
            let bytes = get(&ann, b"file").unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(bytes == get(&bob, b"file").unwrap(), "{what}");
            assert!([0, libc::EIO].contains(&outcome), "{what}: {outcome}");
            if outcome == 0 {
                wrote += 1;
                assert!(bytes[8192..CHUNK] == his, "{what}: {:?}", &bytes[8192..8196]);
            }
            replayed += u32::from(bytes[..8192] == hers);
            assert!(bytes[CHUNK..] == pattern(0, LEN)[CHUNK..], "{what}");
            ann.close().unwrap();
            bob.close().unwrap();
            assert!(get(&together(&store, &ann_id).unwrap(), b"file").unwrap() == bytes, "{what}");
        }
    }
    assert!(tried > 20 && wrote > 10 && replayed > 0, "{tried} {wrote} {replayed}");
}

/// Bob's daemon commits, and the power is cut while it commits once more, so the header is torn. The
/// old record of Ann's dead daemon then counted as matching. If she was the first to mount, she
/// overwrote what he had synced before.
#[test]
fn a_header_torn_by_others_matches_no_old_record() {
    let (start, ann_id, bob_id) = with_file();
    let (hers, his) = ([1u8; 4096], [2u8; 4096]);
    let mut torn = 0;
    for call in 1.. {
        let store = start.snapshot();
        if !dies(&store, &ann_id, &hers, call) {
            break;
        }
        let bob = together(&store, &bob_id).unwrap();
        let handle = open(&bob, b"file", READ_WRITE).unwrap();
        if write_and_sync(&bob, handle, 0, &his).is_err() {
            continue; // a chunk that she has half written
        }
        bob.write(handle, CHUNK as u64, &his, false).unwrap();
        let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
        let (watched, seen) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
        bob.fsync(handle, false).unwrap();
        store.on_event(Box::new(|_| {}));
        for (moment, cut) in moments.lock().iter().enumerate() {
            for seed in 0..8 {
                let random = Seeded::new(seed);
                let cut = cut.crash(&mut |n| random.below(n as u64) as usize);
                let what = format!("call {call}, moment {moment}, seed {seed}");
                for who in [&ann_id, &bob_id] {
                    let vault = together(&cut, who).unwrap();
                    let _ = get(&vault, b"file");
                    vault.close().unwrap();
                }
                let bytes = get(&together(&cut, &ann_id).unwrap(), b"file");
                let bytes = bytes.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(bytes[..4096] == his, "{what}: {:?}", &bytes[..4]);
                torn += u32::from(has_name(&*cut.root(), b"+refused-"));
            }
        }
        bob.release(handle).unwrap();
    }
    assert!(torn > 0, "her record was never put aside");
}

/// The same for the replay of a creation record: a power cut has left a file without bytes, and the
/// replay makes it an empty file. Bob truncates and writes the file at each moment.
#[test]
fn a_commit_beside_the_replay_of_a_creation_stays() {
    let (start, ann_id, bob_id) = with_bob();
    let ann = together(&start, &ann_id).unwrap();
    open_or_create(&ann, b"made", READ_WRITE).unwrap();
    ann.commit_due(Duration::ZERO);
    assert!(has_name(&*start.root(), b"+created-"));
    let left = start.snapshot();
    let stored = ann.cipher_path(b"made").unwrap();
    left.root().open_file(&stored, Access::ReadWrite).unwrap().set_len(0).unwrap();
    let mut made = 0;
    for moment in 0.. {
        let store = left.snapshot();
        let bob = together(&store, &bob_id).unwrap();
        let vault = bob.clone();
        let outcome = at_moment(&store, moment, move || {
            let flags = OpenFlags { truncate: true, ..READ_WRITE };
            let handle = open(&vault, b"made", flags)?;
            let written = write_and_sync(&vault, handle, 0, b"his");
            vault.release(handle)?;
            written
        });
        let ann = together(&store, &ann_id).unwrap();
        store.on_event(Box::new(|_| {}));
        let Ok(outcome) = outcome.recv() else { break };
        assert_eq!(outcome, 0, "moment {moment}");
        for vault in [&ann, &bob] {
            assert_eq!(get(vault, b"made").unwrap(), b"his", "moment {moment}");
        }
        made += 1;
    }
    assert!(made > 3, "{made} moments");
}

/// Creates a share in which Ann's dead daemon has left a record for an intact file, beside other
/// files with these names and lengths.
pub(super) fn with_left_record(sizes: &[(&[u8], usize)]) -> (MemStore, Identity, Identity) {
    let (start, ann, bob) = with_file();
    let vault = open_as(&start, &ann).unwrap();
    for (name, len) in sizes {
        put(&vault, name, &pattern(1, *len)).unwrap();
    }
    vault.close().unwrap();
    (left_record(&start, &ann, &bob, &[1; 4096]), ann, bob)
}

/// Returns a copy of `start` in which Ann's daemon has left a record of `bytes` for a file that is
/// intact and has other contents. The daemon dies at a write: the thread that looks after its lease
/// makes other calls, too, so their number varies.
pub(super) fn left_record(
    start: &MemStore,
    ann: &Identity,
    bob: &Identity,
    bytes: &[u8],
) -> MemStore {
    for nth in (1..30).cycle().take(300) {
        let store = start.snapshot();
        if !dies_at(&store, ann, bytes, Calls::Of(Call::Write), nth) {
            continue;
        }
        let root = store.root();
        let mut journals = raw::named(&*root, b"+journal-").into_iter();
        let has_record = |name: Vec<u8>| raw::read(&*root, &name).get(4096..4100) == Some(b"KREC");
        let his = get(&together(&store.snapshot(), bob).unwrap(), b"file");
        if journals.any(has_record) && his.is_ok_and(|his| !his.starts_with(bytes)) {
            return store;
        }
    }
    panic!("no record was left");
}

/// While a daemon read a large file because of what another one had left, it kept the lease, so no
/// other daemon could change anything. After ten seconds their changes failed with EBUSY.
#[test]
fn others_work_while_a_large_file_is_read() {
    let (store, _ann, bob_id) = with_left_record(&[(b"large", 6 << 20)]);
    let (bob, plan) = planned(&store, &bob_id);
    let other = together(&store, &bob_id).unwrap();
    let handle = open(&bob, b"large", READ_WRITE).unwrap();
    let (reads, writer) = (Arc::new(AtomicU64::new(0)), other.clone());
    let count = reads.clone();
    plan.before(Call::Read, move || {
        if count.fetch_add(1, Ordering::AcqRel) == 200 {
            put(&writer, b"other", b"written meanwhile").unwrap();
        }
    });
    write_and_sync(&bob, handle, 100, b"his").unwrap();
    assert!(reads.load(Ordering::Acquire) > 384, "not the whole file was read");
    bob.release(handle).unwrap();
    let mut wanted = pattern(1, 6 << 20);
    wanted[100..103].copy_from_slice(b"his");
    assert!(get(&other, b"large").unwrap() == wanted);
}

/// Each write to a file with a half-written chunk read all of it again.
#[test]
fn a_half_written_file_is_read_once() {
    const LARGE: usize = 5 << 20;
    let (start, ann_id, bob_id) = with_bob();
    let vault = open_as(&start, &ann_id).unwrap();
    put(&vault, b"file", &pattern(1, LARGE)).unwrap();
    vault.close().unwrap();
    let mut refused = 0;
    for (call, short) in (1..).flat_map(|call| [(call, false), (call, true)]) {
        let store = start.snapshot();
        let (ann, plan) = planned(&store, &ann_id);
        let handle = open(&ann, b"file", READ_WRITE).unwrap();
        ann.write(handle, LARGE as u64 - 8192, &[1; 8192], false).unwrap();
        plan.reset();
        plan.add(Fault { calls: Calls::All, when: When::From(call), errno: libc::EIO, short });
        let done = ann.fsync(handle, false).is_ok();
        drop(ann);
        if done {
            break;
        }
        let (bob, plan) = planned(&store, &bob_id);
        let Ok(handle) = open(&bob, b"file", READ_WRITE) else { continue }; // a torn header
        let write = || {
            let before = plan.count(Calls::Of(Call::Read));
            let written = write_and_sync(&bob, handle, 0, b"his");
            let error = written.map_or_else(|error| error.errno(), |()| 0);
            (error, plan.count(Calls::Of(Call::Read)) - before)
        };
        let (first, reads) = write();
        if first != 0 {
            assert_eq!((first, write().0), (libc::EIO, libc::EIO), "call {call}");
            let again = write().1;
            assert!(again < 40, "call {call}: {reads} and then {again} reads");
            refused += u32::from(reads > 300);
        }
        bob.release(handle).unwrap();
    }
    assert!(refused > 0, "nothing was half written");
}

/// Holes of the store were read, too. For a file of this size that takes hours.
#[test]
fn holes_are_not_read_for_what_others_left() {
    let (store, _ann, bob_id) = with_left_record(&[]);
    let bob = together(&store, &bob_id).unwrap();
    let handle = open_or_create(&bob, b"sparse", READ_WRITE).unwrap();
    bob.write(handle, 1 << 42, b"end", false).unwrap();
    bob.fsync(handle, false).unwrap();
    bob.release(handle).unwrap();
    let handle = open(&bob, b"sparse", READ_WRITE).unwrap();
    write_and_sync(&bob, handle, 1 << 41, b"middle").unwrap();
    bob.release(handle).unwrap();
}

/// A new file contains no bytes that another daemon could have half written.
#[test]
fn a_created_file_is_not_checked() {
    let (store, _ann, bob_id) = with_left_record(&[]);
    let (bob, plan) = planned(&store, &bob_id);
    let handle = open_or_create(&bob, b"new", READ_WRITE).unwrap();
    bob.fsync(handle, false).unwrap();
    let before = plan.count(Calls::Of(Call::List));
    bob.write(handle, 0, b"his", false).unwrap();
    assert_eq!(plan.count(Calls::Of(Call::List)), before);
    bob.release(handle).unwrap();
}

/// A journal that Bob may not read was taken into account only once. So a chunk that its daemon
/// half wrote later was not noticed, and Bob's commit made the chunk unreadable for good.
#[test]
fn a_journal_that_cannot_be_read_hides_no_death() {
    let (start, ann_id, bob_id) = with_file();
    let (mut refused, mut wrote) = (0, 0);
    for (call, short) in (1..).flat_map(|call| [(call, false), (call, true)]) {
        let store = start.snapshot();
        let (ann, hers) = planned(&store, &ann_id);
        for bytes in [b"one", b"two"] {
            put(&ann, b"hers", bytes).unwrap();
        }
        let journals = raw::named(&*store.root(), b"+journal-");
        assert_eq!(journals.len(), 1);
        let (bob, his) = planned(&store, &bob_id);
        his.forbid(&journals[0]);
        let write = |at: usize| {
            let written = open(&bob, b"file", READ_WRITE).and_then(|handle| {
                let written = write_and_sync(&bob, handle, at, b"his");
                bob.release(handle)?;
                written
            });
            written.map_or_else(|error| error.errno(), |()| 0)
        };
        assert_eq!(write(2 * CHUNK), 0);
        let handle = open(&ann, b"file", READ_WRITE).unwrap();
        ann.write(handle, 0, &[1; 8192], false).unwrap();
        hers.reset();
        hers.add(Fault { calls: Calls::All, when: When::From(call), errno: libc::EIO, short });
        let done = ann.fsync(handle, false).is_ok();
        drop(ann);
        if done {
            break;
        }
        match write(CHUNK) {
            0 => wrote += 1,
            error => {
                assert_eq!(error, libc::EIO, "call {call}");
                refused += 1;
            }
        }
        bob.close().unwrap();
        let bytes = get(&together(&store, &ann_id).unwrap(), b"file");
        let bytes = bytes.unwrap_or_else(|error| panic!("call {call}, short {short}: {error}"));
        assert!(bytes[8192..CHUNK] == pattern(0, LEN)[8192..CHUNK], "call {call}");
    }
    assert!(refused > 0 && wrote > 0, "{refused} {wrote}");
}

/// A replay searches the vault for files that others have renamed. A directory that it could not list
/// made the mount fail: another daemon was removing it, or belonged to another user.
#[test]
fn a_directory_that_cannot_be_listed_fails_no_mount() {
    let (store, ann_id, bob_id) = with_left_record(&[]);
    let bob = together(&store, &bob_id).unwrap();
    mkdir(&bob, b"dir").unwrap();
    rename(&bob, b"file", b"dir/file", RenameMode::Replace).unwrap();
    bob.close().unwrap();
    let opened = Arc::new(AtomicU64::new(0));
    let open_and_fail = |store: &MemStore, nth| {
        let plan = FaultPlan::new();
        let (count, next) = (opened.clone(), plan.clone());
        count.store(0, Ordering::Release);
        plan.before(Call::OpenDir, move || {
            if count.fetch_add(1, Ordering::AcqRel) + 1 == nth {
                let (calls, errno) = (Calls::Of(Call::List), libc::EACCES);
                let when = When::Nth(next.count(calls) + 1);
                next.add(Fault { calls, when, errno, short: false });
            }
        });
        let wrapped = FaultStore::wrap(store.root(), plan.clone());
        let vault = Vault::open(wrapped, &ann_id, trusting(false, LockMode::Shared));
        (vault, plan.failed())
    };
    let whole = open_and_fail(&store.snapshot(), u64::MAX).0.unwrap();
    let last = opened.load(Ordering::Acquire);
    drop(whole);
    let mut failed = 0;
    for nth in 1..=last {
        let (vault, failures) = open_and_fail(&store.snapshot(), nth);
        assert!(vault.is_ok(), "directory {nth} of {last}");
        failed += failures;
    }
    assert!(failed > 0, "the listing of none of {last} directories failed");
}

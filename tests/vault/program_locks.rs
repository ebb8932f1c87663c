//! Locks of programs on files of a vault that two daemons have open, and what an unlock commits. On
//! real mounts: `tests/mount/program_locks.rs`.

use std::sync::Arc;

use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, Locks, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Lock, Span};
use kithfs::vault::{Error, LockMode, LockRequest, Vault};

use crate::support::members::{together, trusting, with_bob};
use crate::support::vaults::{READ_WRITE, Seeded, at, faults, get, put};

const ALL: Span = Span { first: 0, last: Span::END };

fn open(vault: &Vault, path: &[u8]) -> Result<u64, Error> {
    at(vault, path, |node| Ok(vault.open_file(node, READ_WRITE)?.handle))
}

/// Locks for the owner 1, or unlocks (`None`). Returns whether the lock was granted.
fn lock(vault: &Vault, handle: u64, lock: Option<Lock>, span: Span) -> bool {
    vault.lock(handle, &LockRequest { owner: 1, lock, span, whole: false }).unwrap()
}

fn read(vault: &Vault, handle: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let read = vault.read(handle, offset, &mut buf).unwrap();
    buf.truncate(read);
    buf
}

/// Creates a file and opens it for writing by both. Bob's open is refused until Ann has locked and
/// unlocked the file.
fn opened(ann: &Vault, bob: &Vault, len: usize) -> (u64, u64) {
    put(ann, b"file", &vec![0; len]).unwrap();
    let hers = open(ann, b"file").unwrap();
    assert_eq!(open(bob, b"file").unwrap_err().errno(), libc::EBUSY);
    assert!(lock(ann, hers, Some(Lock::Shared), ALL) && lock(ann, hers, None, ALL));
    (hers, open(bob, b"file").unwrap())
}

fn on(store: &MemStore, who: &kithfs::roster::Identity, plan: &Arc<FaultPlan>) -> Vault {
    let store = FaultStore::wrap(store.root(), plan.clone());
    Vault::open(store, who, trusting(false, LockMode::Shared)).unwrap()
}

#[test]
fn the_locks_of_programs_work_with_those_of_nfs() {
    // On NFS an flock(2) is a lock on the range of all offsets. If the guard of a file were an
    // flock(2), no program could lock a file that its own daemon guards.
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    plan.give_locks(Locks::ByAccess);
    let (ann, bob) = (on(&store, &ann, &plan), on(&store, &bob, &plan));
    let (hers, his) = opened(&ann, &bob, 10_000);
    assert!(lock(&ann, hers, Some(Lock::Exclusive), ALL));
    ann.write(hers, 0, b"hers", false).unwrap();
    assert!(!lock(&bob, his, Some(Lock::Shared), ALL));
    let request = LockRequest { owner: 1, lock: Some(Lock::Shared), span: ALL, whole: false };
    assert_eq!(bob.find_lock(his, &request).unwrap(), Some((Lock::Exclusive, ALL)));
    assert_eq!(read(&bob, his, 0, 4), [0; 4], "not committed");
    assert!(lock(&ann, hers, None, ALL));
    assert_eq!(read(&bob, his, 0, 4), b"hers");
    assert!(lock(&bob, his, Some(Lock::Exclusive), Span { first: 5, last: 9 }));
    assert!(lock(&ann, hers, Some(Lock::Exclusive), Span { first: 10, last: 10 }));
    // A lock on the whole file is of another kind, and ends with its handle.
    let whole = |lock| LockRequest { owner: 2, lock, span: ALL, whole: true };
    assert!(bob.lock(his, &whole(Some(Lock::Exclusive))).unwrap());
    assert!(!ann.lock(hers, &whole(Some(Lock::Shared))).unwrap());
    bob.release(his).unwrap();
    assert!(ann.lock(hers, &whole(Some(Lock::Shared))).unwrap());
    assert!(lock(&ann, hers, Some(Lock::Exclusive), ALL));
    ann.release(hers).unwrap();
}

#[test]
fn data_that_an_unlock_cannot_commit_is_kept() {
    let (store, ann, bob) = with_bob();
    let (hers_fails, fine) = (FaultPlan::new(), FaultPlan::new());
    let (ann, bob) = (on(&store, &ann, &hers_fails), on(&store, &bob, &fine));
    let (hers, his) = opened(&ann, &bob, 10_000);
    assert!(lock(&ann, hers, Some(Lock::Exclusive), ALL));
    ann.write(hers, 0, b"hers", false).unwrap();
    for call in [Call::Write, Call::CreateFile] {
        let calls = Calls::Of(call);
        hers_fails.add(Fault { calls, when: When::From(1), errno: libc::ENOSPC, short: false });
    }
    assert!(lock(&ann, hers, None, ALL), "an unlock never fails");
    // Ann's change waits for room, so Bob cannot change the file: one of the two changes would be
    // lost.
    assert!(lock(&bob, his, Some(Lock::Exclusive), ALL));
    assert_eq!(bob.write(his, 4, b"his", false).unwrap_err().errno(), libc::EBUSY);
    hers_fails.heal();
    ann.fsync(hers, false).unwrap();
    bob.write(his, 4, b"his", false).unwrap();
    assert!(lock(&bob, his, None, ALL));
    assert_eq!(read(&ann, hers, 0, 7), b"hershis");
    ann.release(hers).unwrap();
    bob.release(his).unwrap();
    assert_eq!(faults(&ann), [""; 0]);
}

#[test]
fn random_work_under_locks_agrees_with_a_model() {
    const LEN: usize = 30_000;
    const PARTS: usize = 6;
    let (store, ann, bob) = with_bob();
    let vaults = [&ann, &bob, &ann].map(|who| together(&store, who).unwrap());
    let (first, second) = opened(&vaults[0], &vaults[1], LEN);
    let handles = [first, second, open(&vaults[2], b"file").unwrap()];
    let random = Seeded::new(20);
    let mut contents = vec![0; LEN];
    // Which lock each vault has on each part.
    let mut held = [[None::<Lock>; PARTS]; 3];
    for step in 0..600u64 {
        let (who, part) = (random.below(3) as usize, random.below(PARTS as u64) as usize);
        let (vault, handle) = (&vaults[who], handles[who]);
        let first = part * LEN / PARTS;
        let end = (part + 1) * LEN / PARTS;
        let span = Span { first: first as u64, last: end as u64 - 1 };
        match (random.below(4), held[who][part]) {
            (0, _) => {
                assert!(lock(vault, handle, None, span));
                held[who][part] = None;
            }
            (1, Some(_)) => {
                let at = first + random.below((end - first) as u64) as usize;
                assert!(read(vault, handle, at as u64, end - at) == contents[at..end], "{step}");
            }
            (2, Some(Lock::Exclusive)) => {
                let at = first + random.below((end - first) as u64) as usize;
                let len = 1 + random.below((end - at) as u64) as usize;
                let bytes = vec![step as u8; len];
                vault.write(handle, at as u64, &bytes, false).unwrap();
                contents[at..at + len].copy_from_slice(&bytes);
                if random.below(8) == 0 {
                    vault.fsync(handle, false).unwrap();
                }
            }
            _ => {
                let wanted = if random.below(2) == 0 { Lock::Shared } else { Lock::Exclusive };
                let is_free = (0..3).filter(|&other| other != who).all(|other| {
                    !matches!(
                        (held[other][part], wanted),
                        (Some(Lock::Exclusive), _) | (Some(_), Lock::Exclusive)
                    )
                });
                assert_eq!(lock(vault, handle, Some(wanted), span), is_free, "{step}");
                if is_free {
                    held[who][part] = Some(wanted);
                }
            }
        }
    }
    for (vault, handle) in vaults.iter().zip(handles) {
        vault.release(handle).unwrap();
    }
    for vault in &vaults {
        assert!(get(vault, b"file").unwrap() == contents);
        assert_eq!(faults(vault), [""; 0]);
    }
}

#[test]
fn pages_older_than_the_commit_of_another_are_dropped() {
    let (store, ann, bob) = with_bob();
    let [ann, bob] = [&ann, &bob].map(|who| together(&store, who).unwrap());
    let (hers, his) = opened(&ann, &bob, 10_000);
    let older = ann.pages_to_drop(hers).expect("nothing was dropped before");
    ann.pages_dropped(hers, older);
    assert_eq!(ann.pages_to_drop(hers), None);
    let write = |vault: &Vault, handle| {
        assert!(lock(vault, handle, Some(Lock::Exclusive), ALL));
        vault.write(handle, 0, b"text", false).unwrap();
        assert!(lock(vault, handle, None, ALL));
    };
    write(&ann, hers);
    assert_eq!(ann.pages_to_drop(hers), None, "her own commit");
    write(&bob, his);
    let newer = ann.pages_to_drop(hers).unwrap();
    write(&bob, his);
    ann.pages_dropped(hers, newer);
    assert!(ann.pages_to_drop(hers).is_some(), "the pages of what Bob wrote in between");
    write(&ann, hers);
    assert!(
        ann.pages_to_drop(hers).is_some(),
        "her commit followed a state of which there may be older pages"
    );
    ann.release(hers).unwrap();
    bob.release(his).unwrap();
}

//! Access: the members of a share, the passphrase of an identity. A crash leaves the old or the new
//! state, and nobody is locked out.

use std::io;
use std::sync::Arc;

use kithfs::crypto::{Argon2Params, Suite};
use kithfs::roster::{Identity, IdentityError, IdentityFile, Member, NewSlot, Pin, Role, Secret};
use kithfs::store::mem::MemStore;
use kithfs::store::{self, Access, Dir, ReplaceError};
use kithfs::vault::{
    CreateOptions, CreateShare, Error, LockMode, OpenOptions, Pins, Share, Trust, Vault,
};
use parking_lot::Mutex;

use crate::support::cuts::chance;
use crate::support::vaults::{self, Seeded, get, pattern, put};

/// The pin that one person has of one share.
#[derive(Default)]
struct Remembered(Mutex<Option<Pin>>);

impl Pins for Remembered {
    fn get(&self, _share: &[u8; 32]) -> io::Result<Option<Pin>> {
        Ok(*self.0.lock())
    }

    fn inviter(&self, _share: &[u8; 32]) -> io::Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn put(&self, _share: &[u8; 32], head: Pin) -> io::Result<()> {
        *self.0.lock() = Some(head);
        Ok(())
    }
}

fn person(n: u64) -> Identity {
    Identity::generate(&Seeded::new(1000 + n))
}

fn member(identity: &Identity, role: Role, name: &str) -> Member {
    Member { public: identity.public(), role, name: name.into() }
}

fn open_as(
    store: &MemStore,
    who: &Identity,
    pins: &Arc<Remembered>,
    beside: bool,
) -> Result<Vault, Error> {
    let trust = Trust { pins: Some(pins.clone()), first_use: true };
    let lock = if beside { LockMode::None } else { LockMode::Exclusive };
    Vault::open(
        store.root(),
        who,
        OpenOptions { read_only: beside, lock, trust, ..OpenOptions::default() },
    )
}

/// Names and roles, sorted.
type Members = Vec<(String, Role)>;

fn members(vault: &Vault) -> Members {
    let all = vault.share_at(b"").and_then(|share| share.info()).unwrap().members;
    let mut all: Members = all.into_iter().map(|m| (m.name, m.role)).collect();
    all.sort();
    all
}

/// Ann's share with Bob as a writer, and a file of each.
fn with_bob() -> (MemStore, Identity, Identity) {
    let (ann, bob) = (person(1), person(2));
    let store = MemStore::new();
    let share = CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(&bob, Role::Writer, "Bob")],
    };
    Vault::create_signed(
        &store.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
        &ann,
        &share,
    )
    .unwrap();
    for (who, name) in [(&ann, &b"by Ann"[..]), (&bob, b"by Bob")] {
        let vault = open_as(&store, who, &Arc::default(), false).unwrap();
        put(&vault, name, &pattern(1, 9000)).unwrap();
        vault.close().unwrap();
    }
    store.root().sync_store().unwrap();
    (store, ann, bob)
}

/// One change: the members before and after, and how it is made.
struct Case {
    what: &'static str,
    after: Members,
    change: fn(&Share) -> Result<Pin, Error>,
}

fn cases() -> Vec<Case> {
    let named = |list: &[(&str, Role)]| {
        list.iter().map(|(name, role)| ((*name).to_owned(), *role)).collect()
    };
    vec![
        Case {
            what: "a member is added",
            after: named(&[("Ann", Role::Admin), ("Bob", Role::Writer), ("Cem", Role::Reader)]),
            change: |share| share.add(&[member(&person(3), Role::Reader, "Cem")]),
        },
        Case {
            what: "a member becomes a reader",
            after: named(&[("Ann", Role::Admin), ("Bob", Role::Reader)]),
            change: |share| share.set_role(&person(2).public().sign, Role::Reader, &mut |_| {}),
        },
        Case {
            what: "a member is removed",
            after: named(&[("Ann", Role::Admin)]),
            change: |share| share.remove(&[person(2).public().sign], &mut |_| {}),
        },
        Case {
            what: "the key is changed",
            after: named(&[("Ann", Role::Admin), ("Bob", Role::Writer)]),
            change: |share| share.rekey(),
        },
    ]
}

/// Checks that Ann can enter and read everything, and so can Bob, but only if he is a member.
/// Returns the members.
fn look(
    store: &MemStore,
    pins: &[Arc<Remembered>; 2],
    (ann, bob): (&Identity, &Identity),
    what: &str,
) -> Members {
    let vault = open_as(store, ann, &pins[0], false)
        .unwrap_or_else(|e| panic!("{what}: Ann is locked out: {e}"));
    let found = members(&vault);
    let all_is_there = |vault: &Vault| {
        for name in [&b"by Ann"[..], b"by Bob"] {
            let bytes =
                get(vault, name).unwrap_or_else(|e| panic!("{what}: {}: {e}", name.escape_ascii()));
            assert!(bytes == pattern(1, 9000), "{what}");
        }
    };
    all_is_there(&vault);
    let residue = ["was left behind by a crash"];
    for fault in vault.check(b"", &mut |_| {}).unwrap().faults {
        assert!(residue.iter().any(|r| fault.what.contains(r)), "{what}: {fault:?}");
    }
    vault.close().unwrap();
    match open_as(store, bob, &pins[1], true) {
        Ok(vault) => {
            assert!(
                found.iter().any(|(name, _)| name == "Bob"),
                "{what}: Bob is no member, but can enter"
            );
            all_is_there(&vault);
        }
        Err(e) => {
            let out =
                matches!(e, Error::NoAccess { .. }) && found.iter().all(|(name, _)| name != "Bob");
            assert!(out, "{what}: Bob is locked out: {e}");
        }
    }
    found
}

fn two() -> [Arc<Remembered>; 2] {
    [Arc::default(), Arc::default()]
}

/// Tests the line of the contract of this name.
pub fn change_of_members() {
    for Case { what, after, change } in cases() {
        let (store, ann, bob) = with_bob();
        let before: Members = vec![("Ann".into(), Role::Admin), ("Bob".into(), Role::Writer)];
        let epoch = |vault: &Vault| vault.share_at(b"").unwrap().info().unwrap().epoch;
        let pins = two();
        let vault = open_as(&store, &ann, &pins[0], true).unwrap();
        let epochs = epoch(&vault);
        // What Ann's own program remembers is part of each moment.
        type Moment = (String, MemStore, Option<Pin>);
        let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
        {
            let (watched, moments, pins) = (store.clone(), moments.clone(), pins[0].clone());
            store.on_event(Box::new(move |event| {
                let remembered = *pins.0.lock();
                moments.lock().push((
                    format!("{what}, cut before {:?}", event.call),
                    watched.snapshot(),
                    remembered,
                ));
            }));
        }
        change(&vault.share_at(b"").unwrap()).unwrap();
        store.on_event(Box::new(|_| {}));
        let last = (format!("{what}, cut afterwards"), store.snapshot(), *pins[0].0.lock());
        drop(vault);
        let moments = std::mem::take(&mut *moments.lock());
        assert!(moments.len() > 4, "{what}: a change makes too few calls");
        let (mut olds, mut news) = (0, 0);
        for (n, (what, store, remembered)) in moments.iter().chain([&last]).enumerate() {
            let cut = |way: usize, store: &MemStore| match way {
                0 => store.snapshot(),
                1 => store.crash(&mut |_| 0),
                2 => store.crash(&mut |n| n - 1),
                _ => store.crash(&mut chance((n * 10 + way) as u64)),
            };
            for way in 0..6 {
                let mine = two();
                *mine[0].0.lock() = *remembered;
                let after_cut = cut(way, store);
                let found = look(&after_cut, &mine, (&ann, &bob), &format!("{what}, way {way}"));
                assert!(found == before || found == after, "{what}, way {way}: {found:?}");
                if n == moments.len() {
                    assert_eq!(found, after, "{what}, way {way}: the change was acknowledged");
                }
                if found == after {
                    news += 1
                } else {
                    olds += 1
                }
                // The same change succeeds afterwards, if it was not made.
                let vault = open_as(&after_cut, &ann, &mine[0], true).unwrap();
                if found == before && epoch(&vault) == epochs {
                    change(&vault.share_at(b"").unwrap())
                        .unwrap_or_else(|e| panic!("{what}, way {way}, made again: {e}"));
                    assert_eq!(members(&vault), after, "{what}, way {way}, made again");
                }
            }
            // Others who have the share open see the change before the cut, and remember it. The
            // cut must not revert it.
            let mine = two();
            for (who, pins) in [(&ann, &mine[0]), (&bob, &mine[1])] {
                let _ = open_as(store, who, pins, true);
            }
            for way in 1..6 {
                look(
                    &cut(way, store),
                    &mine,
                    (&ann, &bob),
                    &format!("{what}, seen by others, way {way}"),
                );
            }
        }
        assert!(news > 0 && (olds > 0 || before == after), "{what}: both states are seen");
    }
}

/// Tests the same line with a full store.
pub fn change_of_members_in_a_full_store() {
    for Case { what, after, change } in cases() {
        let mut refused = 0;
        for blocks in 0..12 {
            let what = format!("{what}, {blocks} free blocks");
            let (store, ann, bob) = with_bob();
            let pins = two();
            let vault = open_as(&store, &ann, &pins[0], true).unwrap();
            let before = members(&vault);
            let space = vault.space().unwrap();
            store.set_capacity(Some((space.blocks - space.free + blocks) * space.block_size));
            let changed = change(&vault.share_at(b"").unwrap());
            drop(vault);
            let full = store.snapshot();
            full.set_capacity(None);
            let found = look(&full, &two(), (&ann, &bob), &what);
            match changed {
                Ok(_) => assert_eq!(found, after, "{what}"),
                Err(e) => {
                    assert_eq!(e.errno(), libc::ENOSPC, "{what}: {e}");
                    assert_eq!(found, before, "{what}");
                    refused += 1;
                    store.set_capacity(None);
                    let vault = open_as(&store, &ann, &pins[0], true).unwrap();
                    change(&vault.share_at(b"").unwrap())
                        .unwrap_or_else(|e| panic!("{what}, with space: {e}"));
                    assert_eq!(members(&vault), after, "{what}, with space");
                }
            }
        }
        assert!(refused > 0, "the store was never full");
    }
}

fn read(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn passphrase(text: &str) -> Secret {
    Secret::Passphrase(zeroize::Zeroizing::new(text.as_bytes().to_vec()))
}

/// Returns a vault with its own identity, as `init` leaves it, and the identity's file as it will
/// be after the passphrase is changed.
fn with_identity() -> (MemStore, Identity, Vec<u8>) {
    let params = Argon2Params { memory_kib: 32 << 10, passes: 1, lanes: 1 };
    let owner = person(7);
    let store = MemStore::new();
    let (old, new) = (passphrase("old"), passphrase("new"));
    let slot = |secret| NewSlot { secret, params, label: "", created: 0 };
    let mut file =
        IdentityFile::new(Suite::Aes256Gcm, &owner, &slot(&old), &Seeded::new(8)).unwrap();
    let made = store.root().create_file(b"+identity", 0o600).unwrap();
    made.write_at(&file.encode(), 0).unwrap();
    made.sync_all().unwrap();
    Vault::create(
        &store.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
        &owner,
    )
    .unwrap();
    let id = file.slots().next().unwrap().id;
    file.change_passphrase(&owner, id, &slot(&new), &Seeded::new(9)).unwrap();
    (store, owner, file.encode())
}

/// Does what `kithfs passphrase change` does, which reads back what it has written.
fn change(store: &MemStore, new: &[u8]) -> Result<(), ReplaceError<IdentityError>> {
    store::replace(&*store.root(), b"+identity", b"+tmp-000102030405", new, |written| {
        IdentityFile::decode(written)?.unlock(&passphrase("new")).map(drop)
    })
}

/// Tests the line of the contract of this name.
pub fn change_of_a_passphrase() {
    let (store, owner, new) = with_identity();
    let old = read(&*store.root(), b"+identity");
    // Each file opens with its own passphrase and not with the other one: so an intact file of
    // either kind grants access.
    for (bytes, opens, not) in [(&old, "old", "new"), (&new, "new", "old")] {
        let file = IdentityFile::decode(bytes).unwrap();
        assert_eq!(file.unlock(&passphrase(opens)).unwrap().public(), owner.public());
        assert!(matches!(file.unlock(&passphrase(not)), Err(IdentityError::WrongSecret(_))));
    }
    let moments: Arc<Mutex<Vec<MemStore>>> = Arc::default();
    {
        let (watched, moments) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |_| moments.lock().push(watched.snapshot())));
    }
    change(&store, &new).unwrap();
    store.on_event(Box::new(|_| {}));
    let moments = std::mem::take(&mut *moments.lock());
    assert!(moments.len() > 4, "a change makes too few calls");
    let mut seen = [0; 2];
    for (n, moment) in moments.iter().enumerate() {
        let random = |way| moment.crash(&mut chance((n * 100 + way) as u64));
        for crashed in [moment.snapshot(), moment.crash(&mut |_| 0), moment.crash(&mut |n| n - 1)]
            .into_iter()
            .chain((0..40).map(random))
        {
            let found = read(&*crashed.root(), b"+identity");
            assert!(found == old || found == new, "before call {n}");
            seen[usize::from(found == new)] += 1;
            let vault = Vault::open(crashed.root(), &owner, OpenOptions::default()).unwrap();
            let residue = |fault: &kithfs::vault::CheckFault| {
                fault.what.contains("was left behind by a crash")
            };
            assert!(
                vault.check(b"", &mut |_| {}).unwrap().faults.iter().all(residue),
                "before call {n}"
            );
        }
    }
    assert!(seen.iter().all(|n| *n > 0), "both states are seen: {seen:?}");
    for way in 0..40 {
        assert!(
            read(&*store.crash(&mut chance(way)).root(), b"+identity") == new,
            "the change was acknowledged"
        );
    }
}

/// Tests the same line with a full store.
pub fn change_of_a_passphrase_in_a_full_store() {
    let (store, _, new) = with_identity();
    let old = read(&*store.root(), b"+identity");
    let space = store.root().space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));
    match change(&store, &new).unwrap_err() {
        ReplaceError::Store(_, e) => assert_eq!(e.raw_os_error(), Some(libc::ENOSPC)),
        ReplaceError::Refused(e) => panic!("{e}"),
    }
    assert!(read(&*store.root(), b"+identity") == old);
    store.set_capacity(None);
    assert_eq!(
        vaults::faults(
            &Vault::open(store.snapshot().root(), &person(7), OpenOptions::default()).unwrap()
        ),
        Vec::<String>::new()
    );
    change(&store, &new).unwrap();
    assert!(read(&*store.root(), b"+identity") == new);
}

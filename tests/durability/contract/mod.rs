//! The contract of `docs/DURABILITY.md`, line by line: each line has a test of its name here.
//! `project::documents` compares the two.
//!
//! A test runs the operation as a program would and cuts it at every call that reaches the store:
//! once as the death of the daemon leaves it (what has reached the store stays), and in several
//! ways as a power cut leaves it. Then the operation meets a store that fills up at every point:
//! existing data stays, the error is reported, and after space is made the same mount continues.

mod people;

use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::vault::{Error, OpenFlags, RenameMode, Vault};

use crate::support::cuts::{Cut, Session, chance, record, verify};
use crate::support::vaults::{self, READ_WRITE, at, get, pattern};

/// Cuts a session everywhere: the daemon dies, the power fails.
fn crash(session: impl Fn(&mut Session, &MemStore)) {
    for chunk_log2 in [12, 18] {
        for (n, Cut { what, store, promises, .. }) in
            record(chunk_log2, &session).iter().enumerate()
        {
            verify(&store.snapshot(), promises, &format!("{what}, the daemon died"));
            verify(&store.crash(&mut |_| 0), promises, &format!("{what}, harsh"));
            for way in 0..4 {
                verify(
                    &store.crash(&mut chance(n as u64 * 10 + way)),
                    promises,
                    &format!("{what}, way {way}"),
                );
            }
        }
    }
}

/// The contents of a path; `None`: the path is missing.
type State = Option<Vec<u8>>;

/// Runs `act` on stores with 0 to 39 free blocks. Whatever it returns, `path` has the contents
/// `old` or `new` after a power cut, or a beginning of `new`. Once there is space, `act` succeeds
/// in the same mount, and another open shows `new`.
fn fills_up(
    path: &[u8],
    old: State,
    new: State,
    prepare: impl Fn(&Vault),
    act: impl Fn(&Vault) -> Result<(), Error>,
) {
    let mut refused = 0;
    for blocks in 0..40 {
        let what = format!("with {blocks} free blocks");
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let vault = vaults::open(store.root()).unwrap();
        durable(&vault, b"bystander", &pattern(99, 9000));
        prepare(&vault);
        let space = vault.space().unwrap();
        store.set_capacity(Some((space.blocks - space.free + blocks) * space.block_size));
        let done = act(&vault);
        if let Err(e) = &done {
            assert_eq!(e.errno(), libc::ENOSPC, "{what}");
            refused += 1;
        }
        let allowed = |vault: &Vault, when: &str| {
            let found = match get(vault, path) {
                Ok(bytes) => Some(bytes),
                Err(e) if e.errno() == libc::ENOENT => None,
                // A name was created, and nothing else: the program was promised no more.
                Err(_) if old.is_none() => return,
                Err(e) => panic!("{what}, {when}: {e}"),
            };
            // A name may exist before its contents if the file is new.
            let begun = old.is_none()
                && found.as_ref().is_some_and(|f| new.as_ref().is_some_and(|n| n.starts_with(f)));
            // A refused change may be done as far as there was room for it.
            let fits = done.is_err()
                && matches!((&found, &old, &new), (Some(f), Some(o), Some(n)) if f.len() >= o.len() && n.starts_with(f));
            assert!(
                begun || fits || found == old || found == new,
                "{what}, {when}: {:?} bytes",
                found.map(|f| f.len())
            );
            assert!(get(vault, b"bystander").unwrap() == pattern(99, 9000), "{what}, {when}");
        };
        let crashed = store.crash(&mut |_| 0);
        crashed.set_capacity(None);
        allowed(&vaults::open(crashed.root()).unwrap(), "after a power cut");
        store.set_capacity(None);
        act(&vault).unwrap_or_else(|e| panic!("{what}, after space was made: {e}"));
        vault.close().unwrap();
        let again = vaults::open(store.root()).unwrap();
        let found = get(&again, path).ok();
        assert!(found == new, "{what}: after space was made");
    }
    assert!(refused > 0, "the store was never full");
}

fn sync_dir(vault: &Vault, path: &[u8]) -> Result<(), Error> {
    at(vault, path, |node| {
        let handle = vault.open_dir(node)?;
        let synced = vault.sync_dir(handle);
        vault.release_dir(handle);
        synced
    })
}

fn durable(vault: &Vault, path: &[u8], bytes: &[u8]) {
    write(vault, path, 0, bytes, true).unwrap();
    sync_dir(vault, vaults::split(path).0).unwrap();
}

/// Opens, writes, optionally fsyncs, closes; returns the first error that a program would see.
fn write(vault: &Vault, path: &[u8], offset: u64, bytes: &[u8], sync: bool) -> Result<(), Error> {
    let handle = vaults::open_or_create(vault, path, READ_WRITE)?;
    let written = vault.write(handle, offset, bytes, false);
    let synced = if sync { vault.fsync(handle, false) } else { Ok(()) };
    let flushed = vault.flush(handle);
    let _ = vault.release(handle);
    written.and(synced).and(flushed)
}

fn patched(mut bytes: Vec<u8>, offset: usize, patch: &[u8]) -> Vec<u8> {
    bytes.resize(bytes.len().max(offset + patch.len()), 0);
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

#[test]
fn write_without_fsync() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        let handle = s.open(b"file", READ_WRITE);
        for round in 0..3 {
            s.write_on(handle, b"file", 3000 * round, &pattern(2 + round as u64, 6000));
            s.commit();
        }
        s.write_on(handle, b"file", 18_000, &pattern(9, 3000));
        s.vault.release(handle).unwrap();
    });
    let (old, patch) = (pattern(1, 20_000), pattern(2, 6000));
    let new = patched(old.clone(), 8192, &patch);
    fills_up(
        b"file",
        Some(old.clone()),
        Some(new),
        |v| durable(v, b"file", &old),
        |v| write(v, b"file", 8192, &patch, false),
    );
}

#[test]
fn write_and_fsync() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        s.overwrite(b"file", 4096, &pattern(2, 4096));
        s.overwrite(b"file", 100, &pattern(3, 9000));
        s.overwrite(b"file", 4096, &pattern(4, 4096));
    });
    let (old, patch) = (pattern(1, 20_000), pattern(2, 6000));
    let new = patched(old.clone(), 8192, &patch);
    fills_up(
        b"file",
        Some(old.clone()),
        Some(new),
        |v| durable(v, b"file", &old),
        |v| write(v, b"file", 8192, &patch, true),
    );
}

#[test]
fn write_with_o_sync() {
    let flags = OpenFlags { sync: true, ..READ_WRITE };
    crash(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        let handle = s.open(b"file", flags);
        for round in 0..3 {
            s.write_on(handle, b"file", 5000 * round, &pattern(2 + round as u64, 4096));
            s.must(b"file");
        }
        s.vault.release(handle).unwrap();
    });
    let (old, patch) = (pattern(1, 20_000), pattern(2, 6000));
    let new = patched(old.clone(), 8192, &patch);
    let act = |v: &Vault| {
        let handle = vaults::open_or_create(v, b"file", flags)?;
        let written = v.write(handle, 8192, &patch, false);
        let _ = v.release(handle);
        written
    };
    fills_up(b"file", Some(old.clone()), Some(new), |v| durable(v, b"file", &old), act);
}

#[test]
fn create_without_fsync() {
    crash(|s, _| {
        s.create(b"other", &pattern(1, 5000));
        s.may_break(b"file");
        s.may(b"file", Some(b""));
        let handle = s.open(b"file", READ_WRITE);
        s.write_on(handle, b"file", 0, &pattern(2, 9000));
        s.commit();
        s.write_on(handle, b"file", 4096, &pattern(3, 9000));
        s.vault.release(handle).unwrap();
        s.commit();
    });
    fills_up(
        b"file",
        None,
        Some(pattern(2, 9000)),
        |_| {},
        |v| write(v, b"file", 0, &pattern(2, 9000), false),
    );
}

#[test]
fn write_for_long_without_fsync() {
    crash(|s, _| {
        s.may_break(b"file");
        s.may(b"file", Some(b""));
        let handle = s.open(b"file", READ_WRITE);
        s.write_on(handle, b"file", 0, &pattern(2, 9000));
        s.commit();
        s.made_durable(b"file");
        for round in 1..4 {
            s.write_on(handle, b"file", 9000 * round, &pattern(round as u64, 9000));
            s.commit();
        }
        s.write_on(handle, b"file", 100, &pattern(9, 5000));
        s.vault.release(handle).unwrap();
    });
    // What was committed before stays.
    let old = pattern(2, 9000);
    let act = |v: &Vault| {
        let handle = vaults::open_or_create(v, b"file", READ_WRITE)?;
        v.write(handle, 0, &old, false)?;
        v.commit_due(Duration::ZERO);
        v.flush_due(Duration::ZERO);
        let written = v.write(handle, 9000, &pattern(3, 50_000), false);
        let flushed = v.flush(handle);
        let _ = v.release(handle);
        written.and(flushed)
    };
    let new = patched(old.clone(), 9000, &pattern(3, 50_000));
    fills_up(b"file", Some(old.clone()), Some(new), |v| durable(v, b"file", &old), act);
}

#[test]
fn create_and_fsync() {
    crash(|s, _| {
        s.mkdir(b"dir");
        for (n, len) in [0, 100, 9000].into_iter().enumerate() {
            // The file's fsync alone makes its name durable, and those of the directories above.
            let path = format!("dir/file {n}").into_bytes();
            s.may_break(&path);
            s.may(&path, Some(b""));
            let handle = s.open(&path, READ_WRITE);
            s.write_on(handle, &path, 0, &pattern(n as u64, len));
            s.fsync(handle, &path);
            s.vault.release(handle).unwrap();
        }
    });
    fills_up(
        b"file",
        None,
        Some(pattern(2, 9000)),
        |_| {},
        |v| write(v, b"file", 0, &pattern(2, 9000), true),
    );
}

#[test]
fn replace_by_rename() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 9000));
        s.may_break(b"new");
        s.may(b"new", Some(b""));
        // The program calls no fsync.
        let handle = s.open(b"new", READ_WRITE);
        s.write_on(handle, b"new", 0, &pattern(2, 7000));
        s.vault.release(handle).unwrap();
        s.rename(b"new", b"file");
        s.sync_dir(b"");
        s.must(b"file");
        s.must(b"new");
    });
    let act = |v: &Vault| {
        write(v, b"new", 0, &pattern(2, 7000), false)?;
        vaults::rename(v, b"new", b"file", RenameMode::Replace)?;
        sync_dir(v, b"")
    };
    let prepare = |v: &Vault| durable(v, b"file", &pattern(1, 9000));
    fills_up(b"file", Some(pattern(1, 9000)), Some(pattern(2, 7000)), prepare, act);
}

#[test]
fn replace_by_truncate_and_write() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 9000));
        // From the truncation to the close the file may be lost, as in any filesystem; after the
        // close it exists.
        s.may_break(b"file");
        s.change(b"file", Vec::clear);
        let handle = s.open(b"file", OpenFlags { truncate: true, ..READ_WRITE });
        s.write_on(handle, b"file", 0, &pattern(2, 7000));
        s.vault.release(handle).unwrap();
        s.must(b"file");
        s.create(b"other", b"later");
    });
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 9000));
    let space = vault.space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));
    // The space of the old contents is free for the new ones.
    vaults::put(&vault, b"file", &pattern(2, 7000)).unwrap();
    assert!(get(&vault, b"file").unwrap() == pattern(2, 7000));
    assert!(vaults::put(&vault, b"file", &pattern(3, 90_000)).is_err());
    store.set_capacity(None);
    vaults::put(&vault, b"file", &pattern(3, 90_000)).unwrap();
    vault.close().unwrap();
    assert!(get(&vaults::open(store.root()).unwrap(), b"file").unwrap() == pattern(3, 90_000));
}

#[test]
fn append_and_fsync() {
    crash(|s, _| {
        s.create(b"log", b"");
        let mut len = 0;
        for (round, part) in [100, 3000, 2000, 5000, 70_000].into_iter().enumerate() {
            s.overwrite(b"log", len, &pattern(round as u64, part));
            len += part;
        }
    });
    let (old, part) = (pattern(1, 20_000), pattern(2, 5000));
    let new = patched(old.clone(), 20_000, &part);
    fills_up(
        b"log",
        Some(old.clone()),
        Some(new),
        |v| durable(v, b"log", &old),
        |v| write(v, b"log", 20_000, &part, true),
    );
}

#[test]
fn shorten() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 30_000));
        s.truncate(b"file", 9000);
        s.fsync_path(b"file");
        s.truncate(b"file", 100);
        s.fsync_path(b"file");
        s.overwrite(b"file", 50, &pattern(2, 9000));
    });
    let (old, cut) = (pattern(1, 30_000), 9000u64);
    let new = old[..cut as usize].to_vec();
    let act = |v: &Vault| {
        at(v, b"file", |node| {
            v.setattr(node, &kithfs::vault::SetAttr { size: Some(cut), ..Default::default() })
        })?;
        let handle = vaults::open_or_create(v, b"file", READ_WRITE)?;
        let synced = v.fsync(handle, false);
        let _ = v.release(handle);
        synced
    };
    fills_up(b"file", Some(old.clone()), Some(new), |v| durable(v, b"file", &old), act);
}

#[test]
fn make_a_directory() {
    crash(|s, _| {
        s.create(b"file", b"before");
        s.mkdir(b"a");
        s.mkdir(b"a/b");
        s.sync_dir(b"a");
        s.create(b"a/b/file", &pattern(1, 100));
    });
    let act = |v: &Vault| {
        match vaults::mkdir(v, b"dir") {
            Err(e) if e.errno() != libc::EEXIST => return Err(e),
            _ => {}
        }
        write(v, b"dir/file", 0, b"inside", true)
    };
    fills_up(b"dir/file", None, Some(b"inside".to_vec()), |_| {}, act);
}

#[test]
fn rename_a_directory() {
    crash(|s, _| {
        s.mkdir(b"a");
        s.mkdir(b"a/b");
        s.create(b"a/b/file", &pattern(1, 9000));
        s.overwrite(b"a/b/file", 0, &pattern(2, 4096));
        s.rename_dir(b"a", b"c");
        s.sync_dir(b"");
        s.must(b"a/b/file");
        s.must(b"c/b/file");
        s.overwrite(b"c/b/file", 4096, &pattern(3, 4096));
    });
    let prepare = |v: &Vault| {
        vaults::mkdir(v, b"a").unwrap();
        durable(v, b"a/file", &pattern(1, 9000));
        sync_dir(v, b"").unwrap();
    };
    let act = |v: &Vault| match vaults::rename(v, b"a", b"c", RenameMode::Replace) {
        Err(e) if e.errno() == libc::ENOENT => Ok(()),
        other => other.and_then(|()| sync_dir(v, b"")),
    };
    fills_up(b"c/file", None, Some(pattern(1, 9000)), prepare, act);
    fills_up(b"a/file", Some(pattern(1, 9000)), None, prepare, act);
}

#[test]
fn unlink() {
    crash(|s, _| {
        s.create(b"file", &pattern(1, 9000));
        s.overwrite(b"file", 0, &pattern(2, 4096));
        s.unlink(b"file");
        s.sync_dir(b"");
        s.must(b"file");
        s.create(b"file", &pattern(3, 5000));
        let handle = s.open(b"file", READ_WRITE);
        s.unlink(b"file");
        s.vault.write(handle, 100, &pattern(4, 9000), false).unwrap();
        s.vault.fsync(handle, false).unwrap();
        s.vault.release(handle).unwrap();
    });
    // A full store allows the removal of names; that is how space is made.
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 50_000));
    durable(&vault, b"other", &pattern(2, 9000));
    let space = vault.space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));
    assert!(write(&vault, b"new", 0, &pattern(3, 30_000), true).is_err());
    at(&vault, b"", |root| vault.unlink(root, b"file")).unwrap();
    write(&vault, b"new", 0, &pattern(3, 30_000), true).unwrap();
    assert!(get(&vault, b"other").unwrap() == pattern(2, 9000));
    vault.close().unwrap();
    // A store with room for the name of the lock file but not for its text could not be opened for
    // writing, so nothing could be deleted.
    let space = store.root().space().unwrap();
    store.set_capacity(Some((space.blocks - space.free + 1) * space.block_size));
    let vault = vaults::open(store.root()).unwrap();
    at(&vault, b"", |root| vault.unlink(root, b"new")).unwrap();
    write(&vault, b"other", 0, &pattern(4, 9000), true).unwrap();
    vault.close().unwrap();
}

#[test]
fn long_names() {
    let (one, two) = ("o".repeat(200).into_bytes(), "t".repeat(255).into_bytes());
    crash(|s, _| {
        s.create(&one, &pattern(1, 5000));
        s.rename(&one, &two);
        s.sync_dir(b"");
        s.must(&one);
        s.must(&two);
        s.overwrite(&two, 10, &pattern(3, 100));
        s.unlink(&two);
        s.sync_dir(b"");
        s.must(&two);
    });
    fills_up(
        &one,
        None,
        Some(pattern(2, 9000)),
        |_| {},
        |v| write(v, &one, 0, &pattern(2, 9000), true),
    );
}

#[test]
fn change_of_members() {
    people::change_of_members();
    people::change_of_members_in_a_full_store();
}

#[test]
fn change_of_a_passphrase() {
    people::change_of_a_passphrase();
    people::change_of_a_passphrase_in_a_full_store();
}

#[test]
fn an_error_sticks_until_the_file_is_reopened() {
    use kithfs::store::Call;
    use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
    for (call, nth) in
        [(Call::Write, 1), (Call::Write, 2), (Call::SyncData, 1), (Call::SetTimes, 1)]
    {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"file", &pattern(1, 20_000));
        durable(&vault, b"other", &pattern(2, 20_000));
        write(&vault, b"file", 0, b"the journal is there", true).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 8192, &pattern(3, 4096), false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(call),
            when: When::Nth(nth),
            errno: libc::EIO,
            short: false,
        });
        assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EIO, "{call:?} {nth}");
        // The store works again; a program that only saw later successes would believe that nothing
        // was lost.
        for _ in 0..2 {
            assert_eq!(vault.write(handle, 0, b"x", false).unwrap_err().errno(), libc::EIO);
            assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EIO);
            assert_eq!(vault.flush(handle).unwrap_err().errno(), libc::EIO);
            write(&vault, b"other", 0, b"goes on", true).unwrap();
        }
        assert_eq!(vault.release(handle).unwrap_err().errno(), libc::EIO);
        write(&vault, b"file", 0, b"opened again", true).unwrap();
        vault.commit_due(Duration::ZERO);
        vault.close().unwrap();
    }
}

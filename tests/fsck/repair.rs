//! Repair: each kind of damage is repaired or set aside, nothing is ever lost, and a crash at any
//! moment of it does no harm.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, Kind, RenameMode};
use kithfs::vault::{
    CheckFault, CheckReport, NoteKind, Online, OpenOptions, Outcome, RepairReport, Vault,
};
use parking_lot::Mutex;

use crate::support::vaults::{
    self, Item, Seeded, get, mkdir, pattern, put, rename, set_xattr, symlink, tree,
};
use crate::support::{raw, turn};

const RUN: &[u8] = b"repair-test";
const LONG: [u8; 200] = [b'n'; 200];

fn check(vault: &Vault) -> CheckReport {
    vault.check(b"", &mut |_| {}).expect("the check runs")
}

fn repair(vault: &Vault) -> RepairReport {
    let found = check(vault);
    let report = vault.repair(&found.faults, RUN, &mut |_| true).expect("the repair runs");
    for repaired in &report.repaired {
        assert!(!matches!(repaired.outcome, Outcome::Failed(_)), "{repaired:?}");
    }
    report
}

fn stored(vault: &Vault, path: &[u8]) -> Vec<u8> {
    vault.cipher_path(path).unwrap()
}

/// Returns the directory of the store that contains a stored path, and the last component.
fn at<'p>(store: &MemStore, cipher: &'p [u8]) -> (Arc<dyn Dir>, &'p [u8]) {
    let mut dir = store.root();
    let mut parts = cipher.split(|b| *b == b'/').peekable();
    loop {
        let part = parts.next().unwrap();
        if parts.peek().is_none() {
            return (dir, part);
        }
        dir = dir.open_dir(part).unwrap();
    }
}

fn flip(store: &MemStore, cipher: &[u8], offset: u64) {
    let (dir, name) = at(store, cipher);
    let file = dir.open_file(name, Access::ReadWrite).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, offset).unwrap();
    file.write_at(&[byte[0] ^ 1], offset).unwrap();
}

/// Collects every object of the store by path: type, mode, modification time, contents.
fn everything(dir: &Arc<dyn Dir>, path: &[u8], into: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut cookie = 0;
    loop {
        let entries = dir.read(cookie, 4096).unwrap();
        let Some(last) = entries.last() else { return };
        cookie = last.next;
        for entry in entries {
            let path = [path, b"/", &entry.name].concat();
            let stat = dir.stat(&entry.name).unwrap();
            let mut what =
                format!("{:?} {:o} {:?} ", stat.kind, stat.perm, stat.mtime).into_bytes();
            match stat.kind {
                Kind::File => {
                    let mut bytes = vec![0; stat.size as usize];
                    dir.open_file(&entry.name, Access::Read)
                        .unwrap()
                        .read_at(&mut bytes, 0)
                        .unwrap();
                    what.extend(bytes);
                }
                Kind::Symlink => what.extend(dir.readlink(&entry.name).unwrap()),
                Kind::Dir => everything(&dir.open_dir(&entry.name).unwrap(), &path, into),
                _ => {}
            }
            into.insert(path, what);
        }
    }
}

fn image(store: &MemStore) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    everything(&store.root(), b"", &mut all);
    all
}

fn fresh() -> (MemStore, Vault) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    (store, vault)
}

/// A vault with a directory that was renamed while it had entries, and objects of every other kind
/// that can be damaged.
fn build() -> (MemStore, BTreeMap<Vec<u8>, Item>) {
    let (store, vault) = fresh();
    let v = &vault;
    put(v, b"small", &pattern(1, 1000)).unwrap();
    put(v, b"large", &pattern(2, 600_000)).unwrap();
    put(v, &LONG, &pattern(3, 100)).unwrap();
    symlink(v, b"link", b"target").unwrap();
    set_xattr(v, b"small", b"user.a", b"value").unwrap();
    mkdir(v, b"before").unwrap();
    put(v, b"before/inside", &pattern(4, 5000)).unwrap();
    mkdir(v, b"before/sub").unwrap();
    put(v, b"before/sub/deep", &pattern(5, 50)).unwrap();
    put(v, &[b"before/", &LONG[..]].concat(), &pattern(6, 70)).unwrap();
    rename(v, b"before", b"after", RenameMode::Replace).unwrap();
    let all = tree(v).unwrap();
    assert_eq!(check(v).faults, []);
    vault.close().unwrap();
    (store, all)
}

fn without_kept(vault: &Vault) -> BTreeMap<Vec<u8>, Item> {
    let mut all = BTreeMap::new();
    vaults::walk(vault, kithfs::vault::ROOT, b"", &mut |path, item| {
        if !path.starts_with(b"lost+found") {
            all.insert(path.to_vec(), item?);
        }
        Ok(())
    })
    .unwrap();
    all
}

/// If the evidence of a directory's rename is lost, its entries are shown with a mark. That is no
/// fault. Changed evidence is a fault, and a repair sets it aside.
#[test]
fn lost_evidence_of_a_rename_marks_entries_and_hides_nothing() {
    for damage in ["lost", "flipped"] {
        let (store, all) = build();
        let (dir, file) = raw::evidence(&store.root()).remove(0);
        let bytes = raw::read(&*dir, &file);
        match damage {
            "lost" => dir.unlink(&file).unwrap(),
            _ => {
                let mut wrong = bytes.clone();
                wrong[40] ^= 1;
                raw::write(&*dir, &file, &wrong);
            }
        }
        let vault = vaults::open(store.root()).unwrap();
        let found = check(&vault);
        assert_eq!(found.faults.len(), usize::from(damage == "flipped"), "{:?}", found.faults);
        let marked: Vec<_> = tree(&vault).unwrap().into_iter().collect();
        let contents = |all: &mut dyn Iterator<Item = &Item>| {
            let mut contents: Vec<Vec<u8>> = all
                .filter_map(|item| match item {
                    Item::File { bytes, .. } => Some(bytes.clone()),
                    _ => None,
                })
                .collect();
            contents.sort();
            contents
        };
        assert_eq!(contents(&mut marked.iter().map(|(_, item)| item)), contents(&mut all.values()));
        let notes = found.notes.iter().filter(|note| note.kind == NoteKind::Marked).count();
        assert_eq!(notes, 3, "one for each entry, the long name too: {:?}", found.notes);
        repair(&vault);
        assert_eq!(check(&vault).faults, []);
        vault.close().unwrap();
        raw::write(&*dir, &file, &bytes);
        let vault = vaults::open(store.root()).unwrap();
        assert!(without_kept(&vault) == all, "{damage}");
        vault.close().unwrap();
    }
}

#[test]
fn lost_and_damaged_names_are_restored() {
    let (store, all) = build();
    let vault = vaults::open(store.root()).unwrap();
    let long = stored(&vault, &LONG);
    let (dir, file) = raw::long_name(&store.root(), &long);
    dir.unlink(&file).unwrap();
    let inner = stored(&vault, &[b"after/", &LONG[..]].concat());
    let (dir, file) = raw::long_name(&store.root(), at(&store, &inner).1);
    let mut sealed = raw::read(&*dir, &file);
    sealed[50] ^= 1;
    raw::write(&*dir, &file, &sealed);
    let small = stored(&vault, b"small");
    store
        .root()
        .rename(&small, &*store.root(), b"AAAAAAAAAAAAAAAAAAAAAA", RenameMode::NoReplace)
        .unwrap();
    let large = stored(&vault, b"large");
    store.root().rename(&large, &*store.root(), b"+hidden", RenameMode::NoReplace).unwrap();
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(check(&vault).faults.len(), 5);
    repair(&vault);
    assert_eq!(check(&vault).faults, []);
    assert!(without_kept(&vault) == all);
}

/// A file that cannot be authenticated is set aside, and its intact bytes can still be read.
#[test]
fn unauthentic_files_are_kept_and_their_good_bytes_readable() {
    let (store, mut all) = build();
    let vault = vaults::open(store.root()).unwrap();
    let whole = get(&vault, b"large").unwrap();
    let (large, small) = (stored(&vault, b"large"), stored(&vault, b"small"));
    let layout = kithfs::format::layout::Layout::new(12, false).unwrap();
    // A segment, a table, and an index block above 128 chunks: 4 KiB, 4 KiB, and everything from
    // chunk 128 on.
    flip(&store, &large, layout.segment_offset(3, 0) + 7);
    flip(&store, &large, layout.table_offset(10) + 70);
    flip(&store, &large, layout.index_offset(1, 1) + 5);
    flip(&store, &small, 300);
    flip(
        &store,
        &[
            &stored(&vault, b"after")[..],
            b"/",
            stored(&vault, b"after/inside").rsplit(|b| *b == b'/').next().unwrap(),
        ]
        .concat(),
        20,
    );
    let link = stored(&vault, b"link");
    store.root().unlink(&link).unwrap();
    store.root().symlink(&link, b"/etc/passwd").unwrap();
    drop(vault);

    let before = image(&store);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let vault = Vault::open(store.root(), &vaults::owner(), options).unwrap();
    let found = check(&vault);
    let fault = found.faults.iter().find(|f| f.plain == b"large").unwrap();
    assert_eq!(fault.size, Some(600_000));
    assert_eq!(fault.bad, [3 * 4096..4 * 4096, 10 * 4096..11 * 4096, 128 * 4096..600_000]);
    assert_eq!(fault.good(), [0..3 * 4096, 4 * 4096..10 * 4096, 11 * 4096..128 * 4096]);
    let mut salvaged = vec![0; 600_000];
    vault
        .salvage(fault, &mut |at, bytes| {
            salvaged[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    for range in fault.good() {
        let range = range.start as usize..range.end as usize;
        assert!(salvaged[range.clone()] == whole[range]);
    }
    assert!(
        vault.repair(&found.faults, RUN, &mut |_| true).is_err(),
        "a vault that is open for reading is not changed"
    );
    drop(vault);
    assert!(image(&store) == before, "a check changes nothing");

    let vault = vaults::open(store.root()).unwrap();
    let declined = vault.repair(&check(&vault).faults, RUN, &mut |_| false).unwrap();
    assert!(
        declined.repaired.iter().all(|r| r.outcome == Outcome::Declined)
            && declined.kept_in.is_none()
    );
    let report = repair(&vault);
    assert_eq!(report.kept_in.as_deref(), Some(&b"lost+found/repair-test"[..]));
    let after = check(&vault);
    assert_eq!((after.faults, after.kept.len()), (Vec::new(), 4));
    for path in [&b"large"[..], b"small", b"link", b"after/inside"] {
        all.remove(path).unwrap();
    }
    assert!(without_kept(&vault) == all);
    // The kept file has its name, its intact bytes can be read, and its ciphertext can be found.
    let handle =
        vaults::open_or_create(&vault, b"lost+found/repair-test/large", vaults::READ).unwrap();
    let mut part = [0; 4096];
    assert_eq!(vault.read(handle, 4 * 4096, &mut part).unwrap(), 4096);
    assert!(part[..] == whole[4 * 4096..5 * 4096]);
    assert!(vault.read(handle, 3 * 4096, &mut part).is_err());
    vault.release(handle).unwrap();
    let kept = stored(&vault, b"lost+found/repair-test/small");
    let (dir, name) = at(&store, &kept);
    assert_eq!(
        dir.stat(name).unwrap().size,
        layout.cipher_len(1000),
        "the ciphertext is there, whole"
    );
}

#[test]
fn attributes_and_surplus_bytes_are_set_aside() {
    let (store, all) = build();
    let vault = vaults::open(store.root()).unwrap();
    let (small, large) = (stored(&vault, b"small"), stored(&vault, b"large"));
    drop(vault);
    store.root().set_xattr(&small, b"user.kithfs", b"not sealed by anybody").unwrap();
    let file = store.root().open_file(&large, Access::ReadWrite).unwrap();
    let end = file.stat().unwrap().size;
    file.write_at(b"surplus", end).unwrap();
    store.root().mkdir(b"+trash-0011223344556677", 0o700).unwrap();
    store.root().create_file(b"+tmp-001122334455", 0o600).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(check(&vault).faults.len(), 4);
    repair(&vault);
    assert_eq!(check(&vault).faults, []);
    assert_eq!(
        get(&vault, b"lost+found/repair-test/small.attributes").unwrap(),
        b"not sealed by anybody"
    );
    assert_eq!(get(&vault, b"lost+found/repair-test/large.surplus").unwrap(), b"surplus");
    let now = without_kept(&vault);
    let Some(Item::File { bytes, xattrs }) = now.get(&b"small"[..]) else { panic!("small") };
    let Some(Item::File { bytes: expected, .. }) = all.get(&b"small"[..]) else { panic!("small") };
    assert!(bytes == expected && xattrs.is_empty());
}

/// Returns a store after a power cut: an append that was synced is in a file, and what makes it count
/// is in the journal. Also returns what the file should contain.
fn cut_after_an_append() -> (MemStore, Vec<u8>) {
    let (store, vault) = fresh();
    let handle = vaults::open_or_create(&vault, b"file", vaults::READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(1, 20_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 20_000, &pattern(2, 200_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    (store.crash(&mut |_| 0), [pattern(1, 20_000), pattern(2, 200_000)].concat())
}

fn is_surplus(fault: &CheckFault) -> bool {
    fault.what.contains("beyond its end")
}

/// The replay before a repair could not write a file. It had its former header, so the bytes of an
/// append that had been synced counted as residue, and the repair cut them. Then the record was
/// applied, and reading the file failed for good. If the replay had written a part, the file counted as
/// damaged, and was moved to `lost+found` when the record could be applied.
#[test]
fn bytes_that_a_waiting_record_needs_are_not_cut() {
    let (store, wanted) = cut_after_an_append();
    // The same fault, as a check finds it without the journal: there it has a remedy.
    let without = store.snapshot();
    for name in raw::named(&*without.root(), b"+journal-") {
        without.root().unlink(&name).unwrap();
    }
    let elsewhere = vaults::open(without.root()).unwrap();
    let outdated: Vec<_> = check(&elsewhere).faults.into_iter().filter(is_surplus).collect();
    assert!(outdated.len() == 1 && outdated[0].remedy.is_some(), "{outdated:?}");
    elsewhere.close().unwrap();
    let mut waiting = 0;
    let calls = [Call::Write, Call::SyncAll, Call::SetTimes].map(Calls::Of);
    for (calls, is_lasting) in
        calls.map(|calls| (calls, true)).into_iter().chain([(Calls::All, false)])
    {
        for nth in 1.. {
            let mut failed = 0;
            for use_outdated in [false, true] {
                let (plan, disk) = (FaultPlan::new(), store.snapshot());
                let when = if is_lasting { When::From(nth) } else { When::Nth(nth) };
                plan.add(Fault { calls, when, errno: libc::EIO, short: false });
                let opened = vaults::open(FaultStore::wrap(disk.root(), plan.clone()));
                failed = plan.failed();
                plan.heal();
                let Ok(vault) = opened else { continue };
                let what = format!("{calls:?} from {nth}, outdated {use_outdated}");
                let found = check(&vault).faults;
                let is_left = |fault: &CheckFault| fault.remedy.is_none();
                assert!(found.iter().all(is_left), "{what}: {found:?}");
                if let Some(surplus) = found.iter().find(|fault| is_surplus(fault)) {
                    waiting += 1;
                    assert!(surplus.residue, "{what}: {surplus:?}");
                    assert!(surplus.what.contains("a journal may need"), "{what}: {surplus:?}");
                }
                let faults = if use_outdated { &outdated } else { &found };
                let done = vault.repair(faults, RUN, &mut |_| true).unwrap();
                let _ = vault.close();
                let again = get(&vaults::open(disk.root()).unwrap(), b"file");
                let again = again.unwrap_or_else(|e| panic!("{what}, {done:?}: {e}"));
                assert!(again == wanted, "{what}: {done:?}");
            }
            if failed == 0 {
                break;
            }
        }
    }
    assert!(waiting > 0, "no record waits");
}

/// Another program wrote to a file while a repair copied the bytes beyond its end. They were cut
/// with those that the copy did not have.
#[test]
fn a_file_that_changes_during_a_repair_is_not_cut() {
    let (store, vault) = fresh();
    put(&vault, b"file", &pattern(1, 5000)).unwrap();
    let cipher = stored(&vault, b"file");
    let file = store.root().open_file(&cipher, Access::ReadWrite).unwrap();
    let end = file.stat().unwrap().size;
    file.write_at(b"surplus", end).unwrap();
    let found = check(&vault);
    let (done, theirs) = (AtomicBool::new(false), file.clone());
    store.on_event(Box::new(move |event| {
        let is_copy =
            event.call == Call::CreateFile && event.name.is_some_and(|name| name[0] != b'+');
        if is_copy && !done.swap(true, Ordering::Relaxed) {
            theirs.write_at(b"more", end + 7).unwrap();
        }
    }));
    let report = vault.repair(&found.faults, RUN, &mut |_| true).unwrap();
    store.on_event(Box::new(|_| {}));
    assert!(matches!(report.repaired[0].outcome, Outcome::Failed(_)), "{report:?}");
    assert_eq!(file.stat().unwrap().size, end + 11, "nothing is cut");
}

#[test]
fn bad_attributes_of_a_link_are_found_and_set_aside() {
    // The attributes of a link have another name in the store than those of a file, and the check
    // did not read that name.
    let (store, vault) = fresh();
    symlink(&vault, b"link", b"target").unwrap();
    set_xattr(&vault, b"link", b"trusted.tag", b"value").unwrap();
    assert_eq!(check(&vault).faults, []);
    let link = stored(&vault, b"link");
    drop(vault);
    store.root().set_xattr(&link, b"trusted.kithfs", b"not sealed by anybody").unwrap();
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(check(&vault).faults.len(), 1);
    repair(&vault);
    assert_eq!(check(&vault).faults, []);
    assert_eq!(
        get(&vault, b"lost+found/repair-test/link.attributes").unwrap(),
        b"not sealed by anybody"
    );
    assert!(vaults::at(&vault, b"link", |node| vault.list_xattr(node)).unwrap().is_empty());
}

#[test]
fn files_of_an_unknown_directory_are_recovered() {
    let (store, vault) = fresh();
    mkdir(&vault, b"box").unwrap();
    put(&vault, b"box/one", b"1").unwrap();
    put(&vault, b"box/two", b"2").unwrap();
    mkdir(&vault, b"box/inner").unwrap();
    put(&vault, b"box/inner/three", b"3").unwrap();
    // The directory and its entries get other stored names: only the headers identify the files.
    let dir = store.root().open_dir(&stored(&vault, b"box")).unwrap();
    for (n, name) in [&b"box/one"[..], b"box/two", b"box/inner"].iter().enumerate() {
        let cipher = stored(&vault, name);
        let last = cipher.rsplit(|b| *b == b'/').next().unwrap();
        dir.rename(
            last,
            &*dir,
            format!("CCCCCCCCCCCCCCCCCCCCC{n}").as_bytes(),
            RenameMode::NoReplace,
        )
        .unwrap();
    }
    let renamed = stored(&vault, b"another name");
    store
        .root()
        .rename(&stored(&vault, b"box"), &*store.root(), &renamed, RenameMode::NoReplace)
        .unwrap();
    drop(dir);
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    repair(&vault);
    assert_eq!(check(&vault).faults, []);
    let mut contents: Vec<Vec<u8>> = tree(&vault)
        .unwrap()
        .into_values()
        .filter_map(|item| if let Item::File { bytes, .. } = item { Some(bytes) } else { None })
        .collect();
    contents.sort();
    assert_eq!(contents, [b"1", b"2", b"3"]);
    assert_eq!(get(&vault, b"lost+found/repair-test/one").unwrap(), b"1");
}

#[test]
fn a_power_cut_at_any_moment_of_a_repair_harms_nothing() {
    let (store, all) = build();
    let vault = vaults::open(store.root()).unwrap();
    let layout = kithfs::format::layout::Layout::new(12, false).unwrap();
    flip(&store, &stored(&vault, b"large"), layout.segment_offset(3, 0));
    // Two entries lose their long names, and two others have invalid names.
    let inner = stored(&vault, &[b"after/", &LONG[..]].concat());
    for entry in [&stored(&vault, &LONG)[..], at(&store, &inner).1] {
        let (dir, file) = raw::long_name(&store.root(), entry);
        dir.unlink(&file).unwrap();
    }
    for path in [&b"small"[..], b"after/inside"] {
        let entry = stored(&vault, path);
        let (dir, name) = at(&store, &entry);
        dir.rename(name, &*dir, b"AAAAAAAAAAAAAAAAAAAAAA", RenameMode::NoReplace).unwrap();
    }
    let large = store.root().open_file(&stored(&vault, b"large"), Access::ReadWrite).unwrap();
    let end = large.stat().unwrap().size;
    large.write_at(b"surplus", end).unwrap();
    drop(large);
    drop(vault);
    // The damage is on the disk.
    let store = store.crash(&mut |n| n - 1);
    let snapshots = Arc::new(Mutex::new(Vec::new()));
    {
        let vault = vaults::open(store.root()).unwrap();
        let taken = snapshots.clone();
        let watched = store.clone();
        store.on_event(Box::new(move |_| taken.lock().push(watched.snapshot())));
        repair(&vault);
        vault.close().unwrap();
        store.on_event(Box::new(|_| {}));
    }
    let snapshots = std::mem::take(&mut *snapshots.lock());
    assert!(snapshots.len() > 20, "{} moments", snapshots.len());
    let mut expected = all.clone();
    expected.remove(&b"large"[..]);
    for (n, moment) in snapshots.iter().enumerate() {
        for seed in 0..4 {
            let random = Seeded::new(n as u64 * 7 + seed);
            let crashed = moment.crash(&mut |n| match seed {
                0 => 0,
                1 => n - 1,
                _ => random.below(n as u64) as usize,
            });
            let vault = vaults::open(crashed.root()).unwrap();
            repair(&vault);
            let after = check(&vault);
            assert_eq!(after.faults, [], "cut {n}, choice {seed}");
            let now = without_kept(&vault);
            assert!(
                now == expected,
                "cut {n}, choice {seed}: {:?}",
                now.keys().collect::<Vec<_>>()
            );
            // The damaged file is kept once, whole.
            let kept: Vec<_> = after.kept.iter().filter(|f| f.size == Some(600_000)).collect();
            assert_eq!(kept.len(), 1, "cut {n}, choice {seed}");
            assert!(kept[0].bad.len() == 1 && kept[0].bad[0] == (3 * 4096..4 * 4096));
            vault.close().unwrap();
        }
    }
}

/// A check beside a writer reports the damaged file and no file that the writer is changing.
#[test]
fn an_online_check_reports_only_real_damage() {
    let (store, vault) = fresh();
    let v = &vault;
    put(v, b"damaged", &pattern(1, 20_000)).unwrap();
    let damaged = stored(v, b"damaged");
    let layout = kithfs::format::layout::Layout::new(12, false).unwrap();
    flip(&store, &damaged, layout.segment_offset(1, 0));
    let options = OpenOptions {
        read_only: true,
        lock: kithfs::vault::LockMode::None,
        ..OpenOptions::default()
    };
    // On a busy machine the writer had no processor for a second, in the middle of a file.
    let online = Online { settle: Duration::from_secs(3), tries: 3 };
    let stop = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // Also in a panic: a check that failed left the scope waiting for the writer for ever.
        scopeguard::defer! { stop.store(true, Ordering::Release) }
        scope.spawn(|| {
            // Files that come and go and are renamed, and one that is never committed between two
            // writes to it.
            let steady = vaults::open_or_create(v, b"steady", vaults::READ_WRITE).unwrap();
            let mut n = 0u64;
            while !stop.load(Ordering::Acquire) {
                v.write(steady, n * 1000 % 300_000, &pattern(n, 9000), false).unwrap();
                let name = format!("file {}", n % 7).into_bytes();
                put(v, &name, &pattern(n, (n * 977 % 50_000) as usize)).unwrap();
                if n.is_multiple_of(3) {
                    rename(v, &name, b"renamed", RenameMode::Replace).unwrap();
                }
                n += 1;
                rounds.store(n as usize, Ordering::Release);
            }
            v.release(steady).unwrap();
        });
        for _ in 0..3 {
            let reader = Vault::open(store.root(), &vaults::owner(), options.clone()).unwrap();
            let report = reader.check_online(b"", &online, &mut |_| {}).unwrap();
            let plain: Vec<_> =
                report.faults.iter().map(|f| f.plain.escape_ascii().to_string()).collect();
            assert_eq!(
                plain,
                ["damaged"],
                "after {} rounds of the writer",
                rounds.load(Ordering::Acquire)
            );
        }
    });
    assert!(rounds.into_inner() > 10, "there was a writer");
}

#[test]
fn a_check_on_a_machine_that_paused_finds_no_fault() {
    // A virtual machine lost its processors for longer than a check waits for a writer. The writer
    // had no chance to commit its new file in that time, and the check reported the file as
    // damaged.
    const AS_CHILD: &str = "KITHFS_PAUSED_CHECK";
    if std::env::var_os(AS_CHILD).is_some() {
        return checks_beside_a_slow_writer();
    }
    let _turn = turn::take();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "repair::a_check_on_a_machine_that_paused_finds_no_fault", "--nocapture"])
        .env(AS_CHILD, "1");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("the check begins")), "it ended before");
    // The child is stopped while its writer pauses, and for longer than that pause.
    std::thread::sleep(Duration::from_millis(200));
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    lines.for_each(|line| println!("{}", line.unwrap()));
    assert!(child.wait().unwrap().success());
}

fn checks_beside_a_slow_writer() {
    let (store, vault) = fresh();
    let v = &vault;
    let options = OpenOptions {
        read_only: true,
        lock: kithfs::vault::LockMode::None,
        ..OpenOptions::default()
    };
    let reader = Vault::open(store.root(), &vaults::owner(), options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Release) }
        let handle = vaults::open_or_create(v, b"steady", vaults::READ_WRITE).unwrap();
        v.write(handle, 0, &pattern(0, 9000), false).unwrap();
        assert_eq!(
            check(&reader).faults.len(),
            1,
            "the file is not committed, and this check does not wait for that"
        );
        let stop = &stop;
        scope.spawn(move || {
            for n in 1.. {
                // In short sleeps: one long sleep would be over as soon as the machine continues.
                (0..15).for_each(|_| std::thread::sleep(Duration::from_millis(40)));
                if stop.load(Ordering::Acquire) {
                    break;
                }
                v.write(handle, n * 1000, &pattern(n, 9000), false).unwrap();
            }
            v.release(handle).unwrap();
        });
        println!("\nthe check begins");
        let report = reader
            .check_online(b"", &Online { settle: Duration::from_secs(1), tries: 2 }, &mut |_| {})
            .unwrap();
        assert_eq!(report.faults, []);
    });
}

#[test]
fn a_call_that_fails_once_moves_nothing_to_lost_and_found() {
    // A check that had no free descriptor, or no right to read a file, reported the file as
    // damaged, and the repair moved it to lost+found.
    let (store, wanted) = build();
    let mut reported = 0;
    for (n, errno) in (1..).zip([libc::EACCES, libc::EMFILE, libc::EIO].into_iter().cycle()) {
        let (plan, disk) = (FaultPlan::new(), store.snapshot());
        let vault = vaults::open(FaultStore::wrap(disk.root(), plan.clone())).unwrap();
        plan.reset();
        plan.add(Fault { calls: Calls::All, when: When::Nth(n), errno, short: false });
        let found = vault.check(b"", &mut |_| {});
        if plan.failed() == 0 {
            break;
        }
        plan.heal();
        let Ok(found) = found else { continue };
        reported += usize::from(!found.faults.is_empty());
        vault.repair(&found.faults, RUN, &mut |_| true).unwrap();
        vault.close().unwrap();
        // Opened anew: for a second, evidence that could not be read counts as missing.
        let again = tree(&vaults::open(disk.root()).unwrap()).unwrap();
        assert!(again == wanted, "call {n}: {:?}", found.faults);
    }
    assert!(reported > 5, "only {reported} failing calls led to a fault");
}

#[test]
fn directories_deeper_than_the_stack_do_not_end_a_check() {
    // fsck recursed into directories, so a deep tree that the storage host made in a vault
    // overflowed its stack. The vault could then be neither checked nor repaired.
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 14);
    put(&vaults::open(store.root()).unwrap(), b"file", b"text").unwrap();
    let mut dir = store.root();
    for _ in 0..20_000 {
        dir.mkdir(b"BBBBBBBBBBBBBBBBBBBBBBBB", 0o755).unwrap();
        dir = dir.open_dir(b"BBBBBBBBBBBBBBBBBBBBBBBB").unwrap();
    }
    let check = move || {
        let vault = vaults::open(store.root()).unwrap();
        let online = Online { settle: Duration::from_millis(1), tries: 3 };
        [
            vault.check(b"", &mut |_| {}).unwrap(),
            vault.check_online(b"", &online, &mut |_| {}).unwrap(),
        ]
    };
    // The stack of a command.
    let reports =
        std::thread::Builder::new().stack_size(8 << 20).spawn(check).unwrap().join().unwrap();
    for report in reports {
        let deep: Vec<_> =
            report.faults.iter().filter(|fault| fault.what.contains("too deep")).collect();
        assert_eq!((report.seen.files, deep.len()), (1, 1));
        assert_eq!(report.faults.len(), deep[0].cipher.split(|&b| b == b'/').count() + 1);
    }
}

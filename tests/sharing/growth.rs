//! How control files and calls to the store grow with members, files and epochs. Everything is
//! counted, and nothing is timed.

use std::sync::Arc;

use kithfs::roster::{Member, Role};
use kithfs::store::Call;
use kithfs::store::fault::{Calls, FaultPlan, FaultStore};
use kithfs::store::mem::MemStore;
use kithfs::vault::{LockMode, ROOT, Vault};

use crate::support::members::{
    beside, founded, key, member, open_as, person, quiet, root_share, trusting, with_bob,
};
use crate::support::raw;
use crate::support::vaults::{entries, faults, get, mkdir, put};

/// Returns number and total length of the control files at the root whose names begin with
/// `prefix`.
fn control(store: &MemStore, prefix: &[u8]) -> (u64, u64) {
    let root = store.root();
    let names = raw::names(&*root).into_iter().filter(|name| name.starts_with(prefix));
    names.fold((0, 0), |(files, bytes), name| (files + 1, bytes + root.stat(&name).unwrap().size))
}

/// Returns readers, one for each number.
fn readers(numbers: std::ops::Range<u64>) -> Vec<Member> {
    numbers.map(|n| member(&person(n), Role::Reader, &format!("person {n}"))).collect()
}

/// Removes the unused control files, as `fsck --prune` does, and returns them.
fn prune(vault: &Vault) -> Vec<(Vec<u8>, Vec<u8>)> {
    let unused = vault.check(b"", &mut quiet_check()).unwrap().unused_files;
    let mut kept = Vec::new();
    let mut keep = |path: &[u8], bytes: &[u8]| {
        kept.push((path.to_vec(), bytes.to_vec()));
        Ok(())
    };
    vault.prune(&unused, &mut keep).unwrap();
    kept
}

fn quiet_check() -> impl FnMut(&kithfs::vault::CheckProgress) {
    |_| {}
}

/// Each change of the members left the slot block of the former list, which has a slot for each
/// member: 200 members who were added one by one took 2.9 MB. What `share log` shows of the former
/// lists is lost without them, and is there again when they are put back.
#[test]
fn pruned_control_files_grow_linearly_with_members() {
    let grown = |n: u64| {
        let (store, ann) = founded(Vec::new());
        let vault = open_as(&store, &ann).unwrap();
        put(&vault, b"file", b"for all").unwrap();
        let share = root_share(&vault);
        for new in readers(10..10 + n) {
            share.add(&[new]).unwrap();
        }
        assert_eq!(control(&store, b"+slots-").0, n + 1);
        let (log, kept) = (share.log().unwrap(), prune(&vault));
        assert_eq!(kept.len() as u64, n);
        // Only these are counted: in a slow run there is a journal of creation records, too.
        let (manifests, blocks) = (control(&store, b"+manifest-"), control(&store, b"+slots-"));
        assert!(prune(&vault).is_empty() && faults(&vault).is_empty());

        let pruned = share.log().unwrap();
        assert!(log.iter().all(|entry| entry.changes.is_some()));
        assert!(pruned.iter().all(|entry| entry.changes.is_none()) && pruned.len() == log.len());
        share.add(&readers(1000..1001)).unwrap();
        vault.close().unwrap();
        for n in [10, 9 + n, 1000] {
            assert_eq!(get(&open_as(&store, &person(n)).unwrap(), b"file").unwrap(), b"for all");
        }
        for (name, bytes) in kept {
            raw::write(&*store.root(), &name, &bytes);
        }
        let restored = root_share(&beside(&store, &ann)).log().unwrap();
        assert!(restored.iter().all(|entry| entry.changes.is_some()), "put back");
        assert_eq!(blocks.0, 1);
        (manifests.0, manifests.1 + blocks.1)
    };
    let [small, medium, large] = [8, 16, 32].map(grown);
    assert_eq!(large.0 - medium.0, 16, "a manifest for each change");
    assert!(large.1 - medium.1 <= 2 * (medium.1 - small.1) + 64, "{small:?} {medium:?} {large:?}");
}

/// A change of a long list of members keeps its blocks and adds one for the new members; once there
/// are four, it writes one for all.
#[test]
fn blocks_that_a_later_list_keeps_are_not_pruned() {
    let (store, ann) = founded(readers(10..266));
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"file", b"for all").unwrap();
    let share = root_share(&vault);
    for (new, blocks) in readers(1000..1004).into_iter().zip([2, 3, 4, 1]) {
        share.add(&[new]).unwrap();
        prune(&vault);
        assert_eq!(control(&store, b"+slots-").0, blocks);
    }
    vault.close().unwrap();
    for n in [10, 265, 1000, 1003] {
        assert_eq!(get(&open_as(&store, &person(n)).unwrap(), b"file").unwrap(), b"for all");
    }
}

/// A sync tool may deliver a block before the manifest that names it, and two admins may have
/// changed the list at the same time. No block is removed that either needs.
#[test]
fn blocks_of_late_manifests_and_of_both_heads_are_not_pruned() {
    let dan = person(4);
    let (store, ann) = founded(vec![member(&dan, Role::Admin, "Dan")]);
    root_share(&beside(&store, &ann)).add(&readers(10..11)).unwrap();
    let other = store.snapshot();
    root_share(&beside(&other, &dan)).add(&readers(20..21)).unwrap();
    let kept = root_share(&beside(&store, &ann)).add(&readers(30..31)).unwrap();
    let deliver = |prefix: &[u8]| {
        let (from, to) = (other.root(), store.root());
        for name in raw::names(&*from).into_iter().filter(|name| name.starts_with(prefix)) {
            if to.stat(&name).is_err() {
                raw::write(&*to, &name, &raw::read(&*from, &name));
            }
        }
    };
    deliver(b"+slots-");
    assert_eq!(control(&store, b"+slots-").0, 4);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(prune(&vault).len(), 2, "of the founding, and of the first change");
    vault.close().unwrap();
    deliver(b"+manifest-");
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(root_share(&vault).info().unwrap().heads.len(), 2);
    vault.close().unwrap();
    root_share(&beside(&store, &ann)).settle(&kept.hash, &[]).unwrap();
    let members = root_share(&beside(&store, &ann)).info().unwrap().members;
    assert!(members.iter().any(|member| member.public == person(30).public()));
}

/// Opens the share as a command beside mounts does, on a store that counts its calls.
fn counting(store: &MemStore, who: u64) -> (Vault, Arc<FaultPlan>) {
    let plan = FaultPlan::new();
    let root = FaultStore::wrap(store.root(), plan.clone());
    let options = trusting(true, LockMode::None);
    let vault = Vault::open(root, &person(who), options).unwrap();
    plan.reset();
    (vault, plan)
}

/// Creates Ann's share with Bob and Cem, and in it `n` directories with a file each.
fn filled(n: usize) -> MemStore {
    let others =
        vec![member(&person(2), Role::Writer, "Bob"), member(&person(3), Role::Reader, "Cem")];
    let (store, ann) = founded(others);
    for (by, who) in [(ann, "ann"), (person(2), "bob")] {
        let vault = open_as(&store, &by).unwrap();
        for n in 0..n / 2 {
            mkdir(&vault, format!("{who} {n}").as_bytes()).unwrap();
            put(&vault, format!("{who} {n}/file").as_bytes(), b"text").unwrap();
        }
        vault.close().unwrap();
    }
    store
}

/// `share remove` walked through the whole share for an inventory of what a reader had signed,
/// although a reader cannot have signed anything. For a writer it has to: the manifest that removes
/// them commits to the inventory.
#[test]
fn removing_a_reader_reads_no_file() {
    let calls = |files: usize, who: u64| {
        let store = filled(files);
        let (vault, plan) = counting(&store, 1);
        root_share(&vault).remove(&[key(&person(who))], &mut quiet()).unwrap();
        plan.count(Calls::All)
    };
    assert_eq!(calls(16, 3), calls(64, 3), "the reader");
    let [small, medium, large] = [16, 32, 64].map(|files| calls(files, 2));
    assert!(large > medium && large - medium <= 2 * (medium - small), "the writer");
}

/// One command adds all of its members with one block and one manifest.
#[test]
fn adding_members_costs_one_block_for_all() {
    let added = |n: u64| {
        let (store, _) = founded(Vec::new());
        let (vault, plan) = counting(&store, 1);
        let before = control(&store, b"+");
        root_share(&vault).add(&readers(10..10 + n)).unwrap();
        let after = control(&store, b"+");
        let written = plan.count(Calls::Of(Call::Write)) + plan.count(Calls::Of(Call::SyncAll));
        (after.0 - before.0, after.1 - before.1, written)
    };
    let [small, medium, large] = [32, 64, 128].map(added);
    assert_eq!([small.0, medium.0, large.0], [2, 2, 2]);
    assert_eq!([small.2, medium.2], [medium.2, large.2]);
    assert!(large.1 - medium.1 <= 2 * (medium.1 - small.1) + 256, "{small:?} {medium:?} {large:?}");
}

/// A name that is sealed under a former epoch is looked for under each epoch.
#[test]
fn listing_under_several_epochs_takes_calls_in_proportion() {
    let calls = |files: usize, epochs: usize| {
        let (store, ann) = founded(Vec::new());
        let vault = open_as(&store, &ann).unwrap();
        for n in 0..files {
            if n % (files / epochs) == 0 {
                root_share(&vault).rekey().unwrap();
            }
            put(&vault, format!("file {n}").as_bytes(), b"text").unwrap();
        }
        vault.close().unwrap();
        let (vault, plan) = counting(&store, 1);
        assert_eq!(entries(&vault, ROOT).unwrap().len(), files);
        plan.count(Calls::All)
    };
    let [few, some, many] = [2, 4, 8].map(|epochs| calls(32, epochs));
    assert!(many - some <= 2 * (some - few), "{few} {some} {many}");
    let [small, medium, large] = [32, 64, 128].map(|files| calls(files, 4));
    assert!(large - medium <= 2 * (medium - small) + 4, "{small} {medium} {large}");
}

/// If the manifests cannot be verified, it is unknown which control files are unused. The check said
/// that this was because there are lists of attributes and no entry has any, and `fsck --prune` had
/// the user give a file an attribute, which did not help.
#[test]
fn an_unreadable_roster_is_no_lack_of_attributes() {
    let (store, ann, _) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"file", b"contents").unwrap();
    let root = store.root();
    for name in raw::named(&*root, b"+manifest-") {
        root.unlink(&name).unwrap();
    }
    let report = vault.check(b"", &mut quiet_check()).unwrap();
    assert_eq!((report.faults, report.unused), (Vec::new(), None));
    assert!(!report.lists_alone);
}

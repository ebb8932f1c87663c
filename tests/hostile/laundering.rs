//! Laundering: a reader, who has the folder key and can write to the store, plants data where an
//! honest client reads, so that this client seals and signs it as its own. No planted data is ever
//! signed by an honest client.
//!
//! All planted data contains a marker, which is searched for in what honest clients have signed
//! afterwards. `sharing::signed` has planted segments and tables before an honest write, and
//! `sharing::rekey` has planted files before a pass.

use kithfs::crypto::RecordCipher;
use kithfs::format::journal::{JournalHead, JournalRecord, Patch, RECORDS_AT, header_hash};
use kithfs::format::layout::Layout;
use kithfs::format::record::{RecordContext, RecordKind, Xattrs};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::roster::{Identity, Role};
use kithfs::store::Dir;
use kithfs::store::mem::MemStore;
use kithfs::vault::{CreateShare, Error, Outcome};

use crate::support::forger::Forger;
use crate::support::members::{founded, key, member, open_as, person, quiet, root_share};
use crate::support::raw::{self, beneath, named, names, read, write};
use crate::support::vaults::{
    self, Item, READ_WRITE, Seeded, at, get, mkdir, open_or_create, pattern, put, set_xattr,
    symlink, walk, write_at,
};

const PLANTED: &[u8] = b"planted by Cem ";

/// Ann's share, of which Cem is a reader.
fn with_cem() -> (MemStore, Identity, Identity) {
    let cem = person(3);
    let (store, ann) =
        founded(vec![member(&cem, Role::Reader, "Cem"), member(&person(2), Role::Writer, "Bob")]);
    (store, ann, cem)
}

/// Returns the planted data that a member is shown, and which therefore counts as signed by a
/// writer.
fn laundered(store: &MemStore, member: &Identity) -> Vec<Vec<u8>> {
    let holds = |bytes: &[u8]| bytes.windows(PLANTED.len()).any(|part| part == PLANTED);
    let vault = open_as(store, member).unwrap();
    let mut found = Vec::new();
    let mut visit = |path: &[u8], item: Result<Item, Error>| {
        match item {
            Ok(Item::File { bytes, .. }) if holds(&bytes) => found.push(path.to_vec()),
            Ok(Item::Symlink(target)) if holds(&target) => found.push(path.to_vec()),
            _ => {}
        }
        Ok(())
    };
    walk(&vault, kithfs::vault::ROOT, b"", &mut visit).unwrap();
    vault.close().unwrap();
    found
}

/// Asserts that none of these members reads planted data.
fn nothing_is_laundered(store: &MemStore, members: &[&Identity]) {
    members.iter().for_each(|member| {
        assert_eq!(laundered(store, member), Vec::<Vec<u8>>::new(), "signed by an honest client")
    });
}

#[test]
fn laundered_data_is_found_by_the_search() {
    // The other tests assert that the search finds nothing. Here it finds data that Ann's key has
    // signed.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"letter", b"by Ann").unwrap();
    let stored = vault.cipher_path(b"letter").unwrap();
    vault.close().unwrap();
    let forger = Forger::of(&store.root(), &cem);
    write(&*store.root(), &stored, &forger.small(PLANTED, &cem, &ann));
    assert_eq!(laundered(&store, &cem), [b"letter".to_vec()]);
    write(&*store.root(), &stored, &forger.small(PLANTED, &ann, &cem));
    nothing_is_laundered(&store, &[&ann, &cem]);
}

/// Returns a copy of the store in the middle of Ann's work: an overwrite is in her journal and
/// acknowledged, and perhaps applied.
fn in_the_middle(
    store: &MemStore,
    ann: &Identity,
    path: &[u8],
    offset: u64,
    bytes: &[u8],
) -> MemStore {
    let vault = open_as(store, ann).unwrap();
    let handle = open_or_create(&vault, path, READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, offset, bytes, false).unwrap();
    vault.fsync(handle, false).unwrap();
    let middle = store.snapshot();
    vault.release(handle).unwrap();
    vault.close().unwrap();
    middle
}

fn journal(root: &dyn Dir) -> Vec<u8> {
    named(root, b"+journal-").pop().expect("a journal with a record")
}

#[test]
fn records_planted_in_a_journal_are_not_replayed() {
    // Cem, a reader, writes records into a journal of Ann's.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"plan", &pattern(1, 40_000)).unwrap();
    let stored = vault.cipher_path(b"plan").unwrap();
    vault.close().unwrap();
    let middle = in_the_middle(&store, &ann, b"plan", 5000, b"by Ann herself");
    let root = middle.root();
    let name = journal(&*root);
    let (honest, file) = (read(&*root, &name), read(&*root, &stored));
    let head = JournalHead::decode(&honest[..RECORDS_AT as usize]).unwrap();
    let forger = Forger::of(&root, &cem);
    let header = Layout::new(14, true).unwrap().header();
    let own_header = {
        let by = Authorship { author: key(&ann), signer: key(&ann) };
        let data = [PLANTED, b"in a record"].concat();
        let header = forger.header(
            data.len() as u64,
            Some(data.len() as u16),
            file[28..60].try_into().unwrap(),
            [0; 32],
        );
        forger.seal(&header, &data, by, &|label, message| cem.sign(label, message))
    };
    let keys = [
        *cem.journal_key(&forger.share).expose(),
        *forger.keys.records.expose(),
        *forger.keys.headers.expose(),
        *forger.keys.content.expose(),
    ];
    let record = JournalRecord {
        path: stored.clone(),
        file_id: file[28..60].try_into().unwrap(),
        born: None,
        base: header_hash(&file[..header]),
        result: header_hash(&own_header[..header]),
        cipher_len: own_header.len() as u64,
        mtime: (1_700_000_000, 0),
        patches: vec![Patch { offset: 0, bytes: own_header.into() }],
    };
    for key in &keys {
        let mut sealed = Vec::new();
        record.seal(
            &mut sealed,
            &head,
            &RecordCipher::new(forger.suite, key),
            1,
            0,
            &Seeded::new(3),
        );
        // In the place of hers, and after it.
        for at in [RECORDS_AT as usize, honest_end(&honest)] {
            let copy = middle.snapshot();
            let mut bytes = honest.clone();
            bytes[at..at + sealed.len()].copy_from_slice(&sealed);
            write(&*copy.root(), &name, &bytes);
            nothing_is_laundered(&copy, &[&ann, &cem]);
            let vault = open_as(&copy, &ann).unwrap();
            let mut expected = pattern(1, 40_000);
            expected[5000..5014].copy_from_slice(b"by Ann herself");
            assert_eq!(get(&vault, b"plan").unwrap(), expected);
        }
        // As a journal of Cem's own, with Ann's owner mark.
        let copy = middle.snapshot();
        let mut bytes = honest.clone();
        bytes[RECORDS_AT as usize..].fill(0);
        bytes[RECORDS_AT as usize..][..sealed.len()].copy_from_slice(&sealed);
        write(&*copy.root(), &[&name[..name.len() - 4], b"0000"].concat(), &bytes);
        nothing_is_laundered(&copy, &[&ann, &cem]);
    }
}

/// Returns the end of the records of a journal.
fn honest_end(journal: &[u8]) -> usize {
    let last = journal.iter().rposition(|b| *b != 0).unwrap();
    (last + 1).next_multiple_of(512)
}

#[test]
fn a_replay_signs_nothing_planted_beside_its_record() {
    // Ann's own record is replayed over a file into which Cem has planted segments, over a file of
    // Cem's with its id, and long afterwards.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"plan", &pattern(1, 40_000)).unwrap();
    put(&vault, b"small", b"by Ann").unwrap();
    let [plan, small] = [&b"plan"[..], b"small"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    let layout = Layout::new(14, true).unwrap();
    let middle = in_the_middle(&store, &ann, b"plan", 5000, b"by Ann herself");
    let forger = Forger::of(&middle.root(), &cem);

    // Segments that the record does not write.
    let copy = middle.snapshot();
    let file = copy.root().open_file(&plan, kithfs::store::Access::ReadWrite).unwrap();
    for segment in [0, 2] {
        file.write_at(PLANTED, layout.segment_offset(1, segment)).unwrap();
    }
    nothing_is_laundered(&copy, &[&ann, &cem]);
    let vault = open_as(&copy, &ann).unwrap();
    assert_eq!(get(&vault, b"plan").unwrap_err().errno(), libc::EIO);
    write_at(&vault, b"plan", 5000, b"once more").unwrap();
    assert_eq!(
        get(&vault, b"plan").unwrap_err().errno(),
        libc::EIO,
        "an honest write beside it does not make it good"
    );
    vault.close().unwrap();
    nothing_is_laundered(&copy, &[&ann, &cem]);

    // A file of Cem's with the id of hers: the replay takes it for one that a crash tore.
    for signer in [&cem, &ann] {
        let copy = middle.snapshot();
        let by = Authorship { author: key(&ann), signer: key(signer) };
        let id = read(&*copy.root(), &plan)[28..60].try_into().unwrap();
        let header = forger.header(PLANTED.len() as u64, Some(PLANTED.len() as u16), id, [0; 32]);
        write(
            &*copy.root(),
            &plan,
            &forger.seal(&header, PLANTED, by, &|label, message| cem.sign(label, message)),
        );
        nothing_is_laundered(&copy, &[&ann, &cem]);
    }

    // Her journal of that time with the present contents, and in another share of hers.
    let name = journal(&*middle.root());
    let old = read(&*middle.root(), &name);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"plan", &pattern(2, 40_000)).unwrap();
    vault.close().unwrap();
    write(&*store.root(), &name, &old);
    write(&*store.root(), &small, &forger.small(PLANTED, &ann, &cem));
    nothing_is_laundered(&store, &[&ann, &cem]);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"plan").unwrap(), pattern(2, 40_000), "what is newer stays");
    vault.close().unwrap();
    let (other, ann) = founded(vec![]);
    let vault = open_as(&other, &ann).unwrap();
    put(&vault, b"plan", &pattern(3, 40_000)).unwrap();
    let there = vault.cipher_path(b"plan").unwrap();
    vault.close().unwrap();
    write(&*other.root(), &name, &old);
    write(&*other.root(), &plan, &read(&*middle.root(), &plan));
    let vault = open_as(&other, &ann).unwrap();
    assert_eq!(get(&vault, b"plan").unwrap(), pattern(3, 40_000));
    assert_ne!(there, plan);
}

#[test]
fn a_repair_signs_nothing_planted_before_it() {
    // Cem plants everything that a repair could take for evidence, and Ann accepts everything that
    // it proposes.
    let (store, ann, cem) = with_cem();
    let long = [b'l'; 230];
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"dir").unwrap();
    for path in [&b"letter"[..], b"dir/in", b"surplus", b"spoilt", b"tagged"] {
        put(&vault, path, &pattern(path.len() as u64, 20_000)).unwrap();
    }
    put(&vault, &long, b"a long name").unwrap();
    set_xattr(&vault, b"tagged", b"user.tag", b"blue").unwrap();
    symlink(&vault, b"link", b"letter").unwrap();
    let path_of = |path: &[u8]| vault.cipher_path(path).unwrap();
    let [letter, dir, surplus, spoilt, tagged, link] =
        [&b"letter"[..], b"dir", b"surplus", b"spoilt", b"tagged", b"link"].map(path_of);
    vault.close().unwrap();
    let root = store.root();
    let forger = Forger::of(&root, &cem);
    let seal = |kind: RecordKind, bound: &[u8], plain: &[u8]| {
        let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
        let context = RecordContext {
            share: &forger.share,
            suite: forger.suite,
            signed: true,
            epoch: forger.epoch,
            cipher: &cipher,
        };
        let by = Authorship { author: key(&ann), signer: key(&cem) };
        context.seal(
            kind,
            bound,
            plain,
            Some(Sign { by, sign: &|label, message| cem.sign(label, message) }),
            &Seeded::new(8),
        )
    };
    // A file of Cem's in the place of hers, another one under an invalid name, segments, and bytes
    // after an end.
    write(&*root, &letter, &forger.small(&[PLANTED, b"in her file"].concat(), &ann, &cem));
    write(
        &*root,
        b"AAAAAAAAAAAAAAAAAAAAAA",
        &forger.small(&[PLANTED, b"without a name"].concat(), &ann, &cem),
    );
    let layout = Layout::new(14, true).unwrap();
    root.open_file(&spoilt, kithfs::store::Access::ReadWrite)
        .unwrap()
        .write_at(PLANTED, layout.segment_offset(0, 1))
        .unwrap();
    let file = root.open_file(&surplus, kithfs::store::Access::ReadWrite).unwrap();
    file.write_at(&PLANTED.repeat(400), file.stat().unwrap().size).unwrap();
    // In her directory, a file of Cem's without a name.
    write(
        &*root.open_dir(&dir).unwrap(),
        b"BBBBBBBBBBBBBBBBBBBBBB",
        &forger.small(&[PLANTED, b"as a hint"].concat(), &ann, &cem),
    );
    // Her long name is lost, her attributes and her link are Cem's.
    let (names_dir, long_file) = raw::long_names(&root).remove(0);
    names_dir.unlink(&long_file).unwrap();
    root.set_xattr(&tagged, b"user.kithfs", &[PLANTED, b"attributes"].concat()).unwrap();
    root.unlink(&link).unwrap();
    let target = kithfs::format::record::link_text(&seal(RecordKind::Symlink, b"", PLANTED));
    root.symlink(&link, &target).unwrap();

    for round in 0..2 {
        let vault = open_as(&store, &ann).unwrap();
        let found = vault.check(b"", &mut |_| {}).unwrap();
        assert!(found.faults.len() >= 5 || round > 0, "{:?}", found.faults);
        let done = vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
        assert!(
            done.repaired.iter().any(|repaired| matches!(repaired.outcome, Outcome::Done(_)))
                || round > 0
        );
        vault.close().unwrap();
        nothing_is_laundered(&store, &[&ann, &person(2), &cem]);
    }
    // Her file contains its name, and its hash proves it; no evidence was signed on Cem's word.
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, &long).unwrap(), b"a long name");
    assert_eq!(raw::evidence(&root).len(), 0);
}

#[test]
fn a_conversion_signs_nothing_planted_in_the_folder() {
    // Sharing a folder of a signed vault reseals everything in it, as Ann: only verified data is
    // included.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    put(&vault, b"projects/plan", &pattern(1, 30_000)).unwrap();
    put(&vault, b"projects/small", b"by Ann").unwrap();
    let [plan, small] =
        [&b"projects/plan"[..], b"projects/small"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    let (folder, honest) = (beneath(&store.root(), vaults::split(&plan).0), store.snapshot());
    let forger = Forger::of(&store.root(), &cem);
    let create = |store: &MemStore| {
        let vault = open_as(store, &ann).unwrap();
        let made = vault.create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        );
        vault.close().unwrap();
        made
    };
    write(&*folder, vaults::split(&small).1, &forger.small(PLANTED, &ann, &cem));
    assert_eq!(
        create(&store).unwrap_err().errno(),
        libc::EIO,
        "nothing is left out in silence either"
    );
    nothing_is_laundered(&store, &[&ann]);
    let layout = Layout::new(14, true).unwrap();
    let folder = beneath(&honest.root(), vaults::split(&plan).0);
    let file = folder.open_file(vaults::split(&plan).1, kithfs::store::Access::ReadWrite).unwrap();
    let mut original = vec![0; PLANTED.len()];
    file.read_at(&mut original, layout.segment_offset(1, 0)).unwrap();
    file.write_at(PLANTED, layout.segment_offset(1, 0)).unwrap();
    assert_eq!(create(&honest).unwrap_err().errno(), libc::EIO);
    nothing_is_laundered(&honest, &[&ann]);
    // After the repair the same command continues, and data planted meanwhile in the new share is
    // not adopted.
    file.write_at(&original, layout.segment_offset(1, 0)).unwrap();
    let staging = names(&*honest.root())
        .into_iter()
        .find(|name| name.starts_with(b"+moving-"))
        .expect("it was begun");
    let inside = honest.root().open_dir(&staging).unwrap();
    for name in names(&*inside).iter().filter(|name| name[0] != b'+') {
        write(&*inside, name, &forger.small(PLANTED, &ann, &cem));
    }
    write(&*inside, b"AAAAAAAAAAAAAAAAAAAAAA", &forger.small(PLANTED, &ann, &cem));
    create(&honest).unwrap();
    nothing_is_laundered(&honest, &[&ann]);
    let vault = open_as(&honest, &ann).unwrap();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), pattern(1, 30_000));
    assert_eq!(get(&vault, b"projects/small").unwrap(), b"by Ann");
}

#[test]
fn attributes_are_unsigned_and_a_reader_can_change_them() {
    // THREAT_MODEL.md allows this: attributes are not signed.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"tagged", b"by Ann").unwrap();
    set_xattr(&vault, b"tagged", b"user.tag", b"blue").unwrap();
    let stored = vault.cipher_path(b"tagged").unwrap();
    root_share(&vault).set_role(&key(&cem), Role::Writer, &mut quiet()).unwrap();
    vault.close().unwrap();
    let elsewhere = store.snapshot();
    let of_cem = open_as(&elsewhere, &cem).unwrap();
    set_xattr(&of_cem, b"tagged", b"user.tag", b"red").unwrap();
    of_cem.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).set_role(&key(&cem), Role::Reader, &mut quiet()).unwrap();
    let blob = elsewhere.root().get_xattr(&stored, b"user.kithfs").unwrap().unwrap();
    store.root().set_xattr(&stored, b"user.kithfs", &blob).unwrap();
    assert_eq!(at(&vault, b"tagged", |node| vault.get_xattr(node, b"user.tag")).unwrap(), b"red");
    assert_eq!(get(&vault, b"tagged").unwrap(), b"by Ann");
}

#[test]
fn a_removed_member_can_set_attributes_under_the_old_key() {
    // THREAT_MODEL.md allows this: attributes are not signed.
    let (store, ann, cem) = with_cem();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"tagged", b"by Ann").unwrap();
    let forger = Forger::of(&store.root(), &cem);
    root_share(&vault).remove(&[key(&cem)], &mut quiet()).unwrap();
    root_share(&vault).reseal(true, &mut quiet()).unwrap();
    let stored = vault.cipher_path(b"tagged").unwrap();
    let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
    let context = RecordContext {
        share: &forger.share,
        suite: forger.suite,
        signed: true,
        epoch: forger.epoch,
        cipher: &cipher,
    };
    let list = Xattrs([(b"user.tag".to_vec(), b"green".to_vec())].into()).encode();
    store
        .root()
        .set_xattr(
            &stored,
            b"user.kithfs",
            &context.seal(RecordKind::Xattrs, b"", &list, None, &Seeded::new(8)),
        )
        .unwrap();
    assert_eq!(at(&vault, b"tagged", |node| vault.get_xattr(node, b"user.tag")).unwrap(), b"green");
    assert_eq!(get(&vault, b"tagged").unwrap(), b"by Ann");
}

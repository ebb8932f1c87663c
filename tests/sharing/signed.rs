//! Signed shares: who may write, and what honest clients accept of what others put into the store.
//!
//! The attackers here are members: they hold the folder key, and they or the storage host may
//! change every byte. Each forgery is made with the key, as a modified client would make it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kithfs::crypto::hierarchy::file_key;
use kithfs::crypto::{ChunkKeys, RecordCipher, Suite, labels};
use kithfs::format::header::{Header, HeaderContext, PublicHeader};
use kithfs::format::layout::Layout;
use kithfs::format::name::NameCipher;
use kithfs::format::signature::Authorship;
use kithfs::format::slots;
use kithfs::format::suffix;
use kithfs::format::table::{HOLE, Table, segment_aad, table_hash};
use kithfs::roster::{Acting, Identity, Role, VerifiedRoster};
use kithfs::store::Access;
use kithfs::store::mem::MemStore;
use kithfs::vault::{
    CreateOptions, CreateShare, Error, OpenOptions, ROOT, RenameMode, Trust, Vault,
};

use crate::support::forger::{self, Forger, folder_keys, overwrite, read};
use crate::support::members::{Memory, member, person};
use crate::support::vaults::{
    self, READ_WRITE, Seeded, at, faults, get, mkdir, open_or_create, pattern, put, rename,
    symlink, tree, write_at,
};

const CHUNK_LOG2: u8 = 14;

/// Ann's share with Bob, who writes, and Cem, who reads.
struct People {
    ann: Identity,
    bob: Identity,
    cem: Identity,
    store: MemStore,
}

impl People {
    fn new(suite: Suite) -> Self {
        let (ann, bob, cem) = (person(1), person(2), person(3));
        let store = MemStore::new();
        let others = vec![member(&bob, Role::Writer, "Bob"), member(&cem, Role::Reader, "Cem")];
        let share = CreateShare { isolated: false, name: "Ann".into(), others };
        Vault::create_signed(
            &store.root(),
            &CreateOptions { suite, chunk_log2: CHUNK_LOG2 },
            &ann,
            &share,
        )
        .unwrap();
        People { ann, bob, cem, store }
    }

    fn open(&self, who: &Identity) -> Vault {
        self.try_open(who).unwrap()
    }

    fn try_open(&self, who: &Identity) -> Result<Vault, Error> {
        let trust = Trust { first_use: true, ..Trust::default() };
        Vault::open(self.store.root(), who, OpenOptions { trust, ..OpenOptions::default() })
    }

    fn roster(&self) -> VerifiedRoster {
        forger::roster(&self.store.root())
    }

    /// Returns the keys that a modified client of a member has.
    fn keys(&self, who: &Identity) -> Forger {
        Forger::of(&self.store.root(), who)
    }
}

fn stored(vault: &Vault, path: &[u8]) -> Vec<u8> {
    vault.cipher_path(path).unwrap()
}

fn refused(result: Result<Vec<u8>, Error>, why: &str) {
    let error = result.expect_err("the forgery is refused");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

/// Members read and write as their roles allow, and each file names its author.
#[test]
fn members_act_by_role_and_files_name_their_authors() {
    for suite in Suite::ALL {
        let people = People::new(suite);
        let long = vec![b'n'; 250];
        let vault = people.open(&people.ann);
        put(&vault, b"letter", b"dear Bob").unwrap();
        put(&vault, b"large", &pattern(1, 100_000)).unwrap();
        mkdir(&vault, b"dir").unwrap();
        put(&vault, b"dir/empty", b"").unwrap();
        put(&vault, &long, b"a long name").unwrap();
        symlink(&vault, b"link", b"dir/empty").unwrap();
        symlink(&vault, b"far", &vec![b't'; 4000]).unwrap();
        symlink(&vault, b"edge", &vec![b't'; 2877]).unwrap();
        rename(&vault, b"dir", b"moved", RenameMode::Replace).unwrap();
        let of_ann = tree(&vault).unwrap();
        assert!(!vault.is_read_only());
        vault.close().unwrap();

        let vault = people.open(&people.bob);
        assert_eq!(tree(&vault).unwrap(), of_ann);
        put(&vault, b"answer", b"dear Ann").unwrap();
        write_at(&vault, b"large", 50_000, b"by Bob").unwrap();
        vault.close().unwrap();

        let vault = people.open(&people.cem);
        assert!(vault.is_read_only(), "a reader cannot write");
        assert_eq!(get(&vault, b"answer").unwrap(), b"dear Ann");
        let mut large = pattern(1, 100_000);
        large[50_000..50_006].copy_from_slice(b"by Bob");
        assert_eq!(get(&vault, b"large").unwrap(), large);
        assert_eq!(put(&vault, b"answer", b"no").unwrap_err().errno(), libc::EROFS);
        assert_eq!(mkdir(&vault, b"new").unwrap_err().errno(), libc::EROFS);
        let author =
            |path: &[u8]| at(&vault, path, |node| vault.author(node)).unwrap().unwrap().author;
        assert_eq!(author(b"letter"), people.ann.public().sign);
        assert_eq!(author(b"answer"), people.bob.public().sign);
        assert_eq!(author(b"large"), people.bob.public().sign, "the last writer");
        assert_eq!(faults(&vault), Vec::<String>::new());
    }
}

impl People {
    /// Removes a member, as Ann, while others have the share open.
    fn remove(&self, gone: &Identity) {
        let root = self.store.root();
        let roster = self.roster();
        let keys = folder_keys(&roster, &self.ann, &root);
        let members = roster
            .members(&keys, &mut |block, offset, buf| {
                root.open_file(slots::file_name(&block.root).as_bytes(), Access::Read)?
                    .read_at(buf, offset)
                    .map(|_| ())
            })
            .unwrap();
        let acting = Acting {
            by: &self.ann,
            keys: &keys,
            members: &members,
            random: &Seeded::new(99),
            now: 1_700_000_000,
        };
        let change = roster.remove_members(&acting, &[gone.public().sign], None).unwrap();
        for (name, bytes) in
            [(change.slots_name, change.slots), (change.manifest_name, change.manifest)]
        {
            root.create_file(name.as_bytes(), 0o600).unwrap().write_at(&bytes, 0).unwrap();
        }
    }
}

/// An open vault notices that a member was removed. Nothing written from then on opens with the old
/// keys.
#[test]
fn an_open_vault_notices_a_removal_and_uses_new_keys() {
    let people = People::new(Suite::Aes256Gcm);
    let vault = people.open(&people.bob);
    put(&vault, b"of Bob", b"no inventory keeps this").unwrap();
    vault.close().unwrap();
    let vault = people.open(&people.ann);
    put(&vault, b"before", &pattern(1, 50_000)).unwrap();
    let before = stored(&vault, b"before");
    let handle = open_or_create(&vault, b"half", READ_WRITE).unwrap();
    vault.write(handle, 0, &[1; 20_000], false).unwrap();
    let old = people.keys(&people.bob);
    people.remove(&people.bob);
    assert!(vault.refresh().unwrap());
    assert!(!vault.refresh().unwrap(), "nothing is new");
    vault.write(handle, 20_000, &[2; 20_000], false).unwrap();
    vault.release(handle).unwrap();
    put(&vault, b"after", b"new epoch").unwrap();
    write_at(&vault, b"before", 0, b"changed").unwrap();
    assert!(matches!(people.try_open(&people.bob), Err(Error::NoAccess { .. })));

    let epoch_of = |bytes: &[u8]| u32::from_le_bytes(bytes[16..20].try_into().unwrap());
    let root = people.store.root();
    for name in [b"after".as_slice(), b"half"] {
        let bytes = read(&*root, &stored(&vault, name));
        assert_eq!(epoch_of(&bytes), 2);
        assert!(
            PublicHeader::decode(&Layout::new(CHUNK_LOG2, true).unwrap(), &bytes)
                .unwrap()
                .commitment
                != old.keys.commitment[..8]
        );
    }
    let half = read(&*root, &stored(&vault, b"half"));
    for k in 0..3 {
        let at = Layout::new(CHUNK_LOG2, true).unwrap().table_offset(k) as usize;
        assert_eq!(
            epoch_of(&half[at..]),
            2,
            "what waited under the old epoch was sealed anew: chunk {k}"
        );
    }
    assert_eq!(stored(&vault, b"before"), before, "the name is found under its old epoch");
    assert_eq!(put(&vault, b"before", b"x").map(|()| stored(&vault, b"before")).unwrap(), before);
    refused(get(&vault, b"of Bob"), "may not write here");
    let names: Vec<Vec<u8>> =
        vaults::entries(&vault, ROOT).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 4);

    // A daemon that did not know of the removal made the same name under the old epoch: both are
    // shown.
    let old_name = {
        let hctr2 = kithfs::crypto::Hctr2::new(&old.keys.names);
        let folder = folder_keys(&people.roster(), &people.ann, &root);
        let directories = kithfs::crypto::directory_key(&folder.first().key, &old.share);
        let tag = kithfs::crypto::root_tag(&directories, &old.share);
        NameCipher::new(&hctr2, 152).encode(&tag, b"after").unwrap().entry().to_vec()
    };
    root.create_file(&old_name, 0o600)
        .unwrap()
        .write_at(&old.small(b"old", &people.ann, &people.ann), 0)
        .unwrap();
    assert_eq!(get(&vault, b"after").unwrap(), b"new epoch");
    let older = suffix::marked(b"after", &suffix::mark_of(&old_name));
    assert_eq!(get(&vault, &older).unwrap(), b"old");
    let names: Vec<Vec<u8>> =
        vaults::entries(&vault, ROOT).unwrap().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&older));
}

#[test]
fn a_stranger_opens_nothing() {
    let people = People::new(Suite::Aes256Gcm);
    assert!(matches!(people.try_open(&person(9)), Err(Error::NoAccess { .. })));
}

#[test]
fn a_share_that_nothing_vouches_for_is_not_entered() {
    let people = People::new(Suite::Aes256Gcm);
    let open = |who: &Identity, trust: Trust| {
        Vault::open(people.store.root(), who, OpenOptions { trust, ..OpenOptions::default() })
    };
    assert!(open(&people.ann, Trust::default()).is_ok(), "the founder knows her own key");
    let untrusted = open(&people.bob, Trust::default()).err().unwrap();
    assert!(
        matches!(untrusted, Error::Untrusted { .. }) && untrusted.errno() == libc::EACCES,
        "{untrusted}"
    );
    let pins = Arc::new(Memory::default());
    let remembering = |first_use| Trust { pins: Some(pins.clone()), first_use };
    assert!(open(&people.bob, remembering(false)).is_err());
    assert!(open(&people.bob, remembering(true)).is_ok());
    assert!(open(&people.bob, remembering(false)).is_ok(), "the first use was remembered");
}

/// A reader has the folder key and can seal a file with it. Every member's client refuses it.
#[test]
fn a_readers_writes_with_the_folder_key_are_refused() {
    let people = People::new(Suite::Aes256Gcm);
    let vault = people.open(&people.bob);
    put(&vault, b"letter", b"dear Ann").unwrap();
    let name = stored(&vault, b"letter");
    vault.close().unwrap();
    let root = people.store.root();
    let forger = people.keys(&people.cem);
    let honest = read(&*root, &name);
    let (bob, cem) = (&people.bob, &people.cem);
    let own = forger.small(b"forged by Cem", cem, cem);
    let for_bob = forger.small(b"forged by Cem for Bob", bob, cem);
    let as_bob = {
        // The signature is copied from a file that Bob has signed.
        let by = Authorship { author: bob.public().sign, signer: bob.public().sign };
        let header = forger.header(5, Some(5), [7; 32], HOLE);
        forger.seal(&header, b"other", by, &|_, _| {
            bob.sign(&labels::FILE_SIGNATURE, b"another message")
        })
    };
    let under_another_label = {
        let by = Authorship { author: bob.public().sign, signer: bob.public().sign };
        let header = forger.header(5, Some(5), [7; 32], HOLE);
        forger.seal(&header, b"other", by, &|_, message| {
            bob.sign(&labels::SYMLINK_SIGNATURE, message)
        })
    };
    for who in [&people.ann, bob, cem] {
        for (forged, why) in [
            (&own, "may not write here"),
            (&for_bob, "may not write here"),
            (&as_bob, "cannot be authenticated"),
            (&under_another_label, "cannot be authenticated"),
        ] {
            overwrite(&*root, &name, forged);
            let vault = people.open(who);
            refused(get(&vault, b"letter"), why);
            assert_eq!(faults(&vault).len(), 1, "the check reports the file");
            if !vault.is_read_only() {
                refused(write_at(&vault, b"letter", 2, b"x").map(|()| Vec::new()), why);
                assert_eq!(
                    read(&*root, &name),
                    *forged,
                    "nothing planted is signed by an honest client"
                );
            }
        }
    }
    overwrite(&*root, &name, &honest);
    assert_eq!(get(&people.open(cem), b"letter").unwrap(), b"dear Ann");
}

/// In a folder that a sync tool keeps, a reader's modified client adds a file and a conflict copy,
/// and changes a segment of a file of several chunks. The new names are shown, because names are
/// not signed. None of the three can be read, and the check reports each.
#[test]
fn what_a_reader_forges_in_a_synced_share_is_refused() {
    let people = People::new(Suite::Aes256Gcm);
    let (ann, bob, cem) = (&people.ann, &people.bob, &people.cem);
    let root = people.store.root();
    Vault::set_synced(&root).unwrap();
    let vault = people.open(bob);
    put(&vault, b"letter", b"dear Ann").unwrap();
    put(&vault, b"large", &pattern(1, 100_000)).unwrap();
    let [letter, large] = [&b"letter"[..], b"large"].map(|path| stored(&vault, path));
    put(&vault, b"new", b"for its stored name").unwrap();
    let new = stored(&vault, b"new");
    at(&vault, b"", |dir| vault.unlink(dir, b"new")).unwrap();
    vault.close().unwrap();
    let forger = people.keys(cem);
    let copy = [&letter[..], b".sync-conflict-20260101-120000-ABCDEFG"].concat();
    for (name, forged) in
        [(&new, forger.small(b"new", cem, cem)), (&copy, forger.small(b"changed", bob, cem))]
    {
        root.create_file(name, 0o600).unwrap().write_at(&forged, 0).unwrap();
    }
    // Cem could even seal the segment again, but not sign the root above its table.
    let file = root.open_file(&large, Access::ReadWrite).unwrap();
    let at_byte = Layout::new(CHUNK_LOG2, true).unwrap().segment_offset(1, 0);
    file.write_at(&[0x5a; 64], at_byte).unwrap();
    for who in [ann, bob, cem] {
        let vault = people.open(who);
        let names = vaults::entries(&vault, ROOT).unwrap().into_iter().map(|(name, _)| name);
        let copies: Vec<Vec<u8>> = names.filter(|name| name.starts_with(b"letter.")).collect();
        assert_eq!(copies.len(), 1, "{copies:?}");
        refused(get(&vault, b"new"), "may not write here");
        refused(get(&vault, &copies[0]), "may not write here");
        assert_eq!(get(&vault, b"large").unwrap_err().errno(), libc::EIO);
        assert_eq!(get(&vault, b"letter").unwrap(), b"dear Ann");
        assert_eq!(faults(&vault).len(), 3);
    }
}

#[test]
fn a_cached_signature_vouches_only_for_its_own_message() {
    // If a file was opened before, or written here, its signature is not verified again. Everything
    // here happens in one open vault.
    for len in [5, 100_000] {
        let people = People::new(Suite::Aes256Gcm);
        let (ann, bob, cem) = (&people.ann, &people.bob, &people.cem);
        let honest = pattern(3, len);
        for writer in [ann, bob] {
            // Ann reads her own file, which is cached because she has signed it, and Bob's, which
            // she has verified.
            let vault = people.open(writer);
            put(&vault, b"file", &honest).unwrap();
            let name = stored(&vault, b"file");
            let vault = if std::ptr::eq(writer, ann) {
                vault
            } else {
                vault.close().unwrap();
                people.open(ann)
            };
            assert_eq!(get(&vault, b"file").unwrap(), honest);
            let root = people.store.root();
            let bytes = read(&*root, &name);
            let forger = people.keys(cem);
            let (header, by, data) = parts(&forger, &bytes);
            let signed = std::cell::RefCell::new(Vec::new());
            let reseal =
                |header: &Header,
                 by: Authorship,
                 sign: &dyn Fn(&kithfs::crypto::Label, &[u8]) -> [u8; 64]| {
                    let sealed = forger.seal(header, &data, by, sign);
                    [&sealed[..], &bytes[sealed.len()..]].concat()
                };
            // Sealed again by the writer without a change. The signature is the same, because equal
            // messages have equal signatures.
            let same = reseal(&header, by, &|label, message| {
                *signed.borrow_mut() = message.to_vec();
                writer.sign(label, message)
            });
            let taken =
                |label: &kithfs::crypto::Label, _: &[u8]| writer.sign(label, &signed.borrow());
            let newer = Header { version: header.version + 1, ..header.clone() };
            let flipped = |label: &kithfs::crypto::Label, message: &[u8]| {
                let mut signature = writer.sign(label, message);
                signature[40] ^= 1;
                signature
            };
            let of_cem = Authorship { author: cem.public().sign, ..by };
            let by_cem = Authorship { author: cem.public().sign, signer: cem.public().sign };
            let forgeries = [
                (reseal(&newer, by, &taken), "cannot be authenticated"),
                (reseal(&header, of_cem, &taken), "cannot be authenticated"),
                (reseal(&header, by, &flipped), "cannot be authenticated"),
                // A valid signature of a person whose signatures do not count: it is cached from
                // the second time on, and still does not count.
                (
                    reseal(&newer, by_cem, &|label, message| cem.sign(label, message)),
                    "may not write here",
                ),
            ];
            for (forged, why) in &forgeries {
                overwrite(&*root, &name, forged);
                for _ in 0..3 {
                    refused(get(&vault, b"file"), why);
                    refused(write_at(&vault, b"file", 2, b"x").map(|()| Vec::new()), why);
                }
                assert_eq!(
                    read(&*root, &name),
                    *forged,
                    "nothing planted is signed by an honest client"
                );
            }
            // A file that was only sealed again contains what its writer has signed.
            for whole in [&same, &bytes] {
                overwrite(&*root, &name, whole);
                assert_eq!(get(&vault, b"file").unwrap(), honest);
            }
            write_at(&vault, b"file", 2, b"x").unwrap();
            assert_eq!(get(&vault, b"file").unwrap()[..3], [honest[0], honest[1], b'x']);
            vault.close().unwrap();
        }
    }
}

/// Returns bits of a segment that can be flipped together without changing its tag. A key holder
/// can always find them, because the tag of GCM is linear in the ciphertext.
fn collision(
    key: &kithfs::crypto::SegmentKey,
    nonce: &[u8; 12],
    aad: &[u8],
    plain: &[u8],
) -> Vec<usize> {
    let tag = |flipped: Option<usize>| {
        let mut bytes = plain.to_vec();
        if let Some(bit) = flipped {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        u128::from_le_bytes(key.seal(nonce, aad, &mut bytes))
    };
    let base = tag(None);
    // Gaussian elimination over the differences that single bits make; each row lists the bits of
    // which it is the sum.
    let mut rows: Vec<(u128, BTreeSet<usize>)> = Vec::new();
    for bit in 0..200 {
        let (mut difference, mut bits) = (tag(Some(bit)) ^ base, BTreeSet::from([bit]));
        for (pivot, of) in &rows {
            if difference & (1 << pivot.trailing_zeros()) != 0 {
                difference ^= pivot;
                bits = &bits ^ of;
            }
        }
        if difference == 0 {
            return bits.into_iter().collect();
        }
        rows.push((difference, bits));
    }
    unreachable!("129 vectors of 128 bits depend on each other")
}

/// Returns header, authorship and small data of a file, opened with the forger's keys.
fn parts(forger: &Forger, bytes: &[u8]) -> (Header, Authorship, Vec<u8>) {
    let cipher = RecordCipher::new(forger.suite, forger.keys.headers.expose());
    let context = HeaderContext { share: &forger.share, layout: forger.layout, cipher: &cipher };
    let (header, data, by) = Header::open(&context, bytes).unwrap();
    (header, by.unwrap(), data.to_vec())
}

/// Returns header, authorship and first table of a large file, opened with the forger's keys.
fn take_apart(forger: &Forger, bytes: &[u8]) -> (Header, Authorship, Table) {
    let layout = Layout::new(CHUNK_LOG2, true).unwrap();
    let cipher = RecordCipher::new(forger.suite, forger.keys.headers.expose());
    let context = HeaderContext { share: &forger.share, layout, cipher: &cipher };
    let (header, _, by) = Header::open(&context, bytes).unwrap();
    let at = layout.table_offset(0) as usize;
    let table = Table::decode(&layout, forger.suite, &bytes[at..at + layout.table_used()]).unwrap();
    (header, by.unwrap(), table)
}

#[test]
fn a_second_ciphertext_with_one_tag_is_refused_and_unsigned() {
    // A reader makes a ciphertext with the same nonce and tag for another plain text. Tag and table
    // match; only the hash in the signed tree does not. An honest 4 KiB write into the same chunk
    // must not sign it.
    let people = People::new(Suite::Aes256Gcm);
    let contents = pattern(3, 12_000);
    let vault = people.open(&people.bob);
    put(&vault, b"plans", &contents).unwrap();
    let name = stored(&vault, b"plans");
    vault.close().unwrap();

    let root = people.store.root();
    let forger = people.keys(&people.cem);
    let mut bytes = read(&*root, &name);
    let (header, _, table) = take_apart(&forger, &bytes);
    let key = ChunkKeys::new(forger.suite, &file_key(&forger.keys.content, &header.public.file_id))
        .derive(&table.salt);
    let segment = &table.segments[0];
    let aad = segment_aad(
        &forger.share,
        &header.public.file_id,
        0,
        0,
        segment.len,
        table.epoch,
        forger.suite,
    );
    let at_segment = Layout::new(CHUNK_LOG2, true).unwrap().segment_offset(0, 0) as usize;
    for bit in collision(&key, &segment.nonce, &aad, &contents[..4096]) {
        bytes[at_segment + bit / 8] ^= 1 << (bit % 8);
    }
    let mut planted = bytes[at_segment..at_segment + 4096].to_vec();
    key.open(&segment.nonce, &aad, &mut planted, &segment.tag)
        .expect("the tag fits the planted segment");
    assert_ne!(planted, contents[..4096]);
    overwrite(&*root, &name, &bytes);

    let vault = people.open(&people.ann);
    refused(get(&vault, b"plans"), "not the one that was signed");
    write_at(&vault, b"plans", 4096, &[9; 4096])
        .expect("a whole segment can be replaced without reading the others");
    refused(get(&vault, b"plans"), "not the one that was signed");
    refused(
        write_at(&vault, b"plans", 10, b"x").map(|()| Vec::new()),
        "not the one that was signed",
    );
    let handle = open_or_create(&vault, b"plans", READ_WRITE).unwrap();
    let mut buf = [0; 4096];
    vault.read(handle, 4096, &mut buf).unwrap();
    assert_eq!(buf, [9; 4096]);
    vault.release(handle).unwrap();
    vault.close().unwrap();
    let vault = people.open(&people.cem);
    refused(get(&vault, b"plans"), "not the one that was signed");
}

#[test]
fn a_planted_table_is_not_taken_into_a_signed_tree() {
    // A reader changes the table of a chunk, and seals a header whose root is that table's hash.
    // The header names Bob or the reader as its signer, and the signature is the reader's.
    let people = People::new(Suite::Aes256Gcm);
    let vault = people.open(&people.bob);
    put(&vault, b"plans", &pattern(3, 12_000)).unwrap();
    let name = stored(&vault, b"plans");
    vault.close().unwrap();
    let root = people.store.root();
    let forger = people.keys(&people.cem);
    let bytes = read(&*root, &name);
    let (header, by, mut table) = take_apart(&forger, &bytes);
    table.seals += 1;
    let used = table.encode(&Layout::new(CHUNK_LOG2, true).unwrap());
    let mut with_table = bytes.clone();
    let table_at = Layout::new(CHUNK_LOG2, true).unwrap().table_offset(0) as usize;
    with_table[table_at..table_at + used.len()].copy_from_slice(&used);
    overwrite(&*root, &name, &with_table);
    refused(get(&people.open(&people.ann), b"plans"), "chunk table that cannot be authenticated");

    let forged = Header { root: table_hash(&used), ..header };
    for (by, why) in [
        (by, "cannot be authenticated"),
        (Authorship { signer: people.cem.public().sign, ..by }, "may not write here"),
    ] {
        let sealed =
            forger.seal(&forged, &[], by, &|label, message| people.cem.sign(label, message));
        let mut with_both = with_table.clone();
        with_both[..sealed.len()].copy_from_slice(&sealed);
        overwrite(&*root, &name, &with_both);
        let vault = people.open(&people.ann);
        refused(get(&vault, b"plans"), why);
        refused(write_at(&vault, b"plans", 4096, &[9; 4096]).map(|()| Vec::new()), why);
    }
}

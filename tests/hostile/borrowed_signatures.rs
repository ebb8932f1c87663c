//! Signatures that were made for one thing and are presented for another. A reader has all
//! encryption keys, and can therefore seal anything around a signature that another member has
//! made.

use kithfs::crypto::RecordCipher;
use kithfs::format::header::{Header, HeaderContext};
use kithfs::format::record::{CLEAR, link_record, link_text};
use kithfs::format::signature::Authorship;
use kithfs::format::table::{HOLE, Table};
use kithfs::roster::Role;

use crate::support::forger::Forger;
use crate::support::members::{founded, key, member, open_as, person, quiet, root_share, with_bob};
use crate::support::raw::{read, write};
use crate::support::vaults::{Seeded, at, get, pattern, put, symlink};

/// The signed reference of a long link is never shown as the target of a short link.
#[test]
fn a_long_link_reference_is_not_a_short_links_target() {
    let cem = person(3);
    let (store, ann) = founded(vec![member(&cem, Role::Reader, "Cem")]);
    let target = [b't'; 3500];
    let vault = open_as(&store, &ann).unwrap();
    symlink(&vault, b"link", &target).unwrap();
    let stored = vault.cipher_path(b"link").unwrap();
    assert_eq!(at(&vault, b"link", |node| vault.readlink(node)).unwrap(), target);
    vault.close().unwrap();
    let root = store.root();
    let forger = Forger::of(&root, &cem);
    let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
    let text = root.readlink(&stored).unwrap();
    let record = link_record(&text[1..]).unwrap();
    let (clear, sealed) = record.split_at(CLEAR);
    let aad = [b"KSYM", &forger.share[..], clear].concat();
    let whole = cipher.open_record(&[&aad[..], b"+"].concat(), sealed).unwrap();
    let (reference, author, rest) = (&whole[..16], &whole[16..48], &whole[48..]);
    let moved = [&author[31..], reference, b"+", &author[..31], rest].concat();
    let forged = [clear, &cipher.seal_record(&Seeded::new(4), &aad, &moved)].concat();
    root.unlink(&stored).unwrap();
    root.symlink(&stored, &link_text(&forged)).unwrap();
    for member in [&ann, &cem] {
        let vault = open_as(&store, member).unwrap();
        let read = at(&vault, b"link", |node| vault.readlink(node));
        assert_eq!(read.map_err(|e| e.errno()), Err(libc::EIO));
    }
}

#[test]
fn a_target_that_looks_like_a_reference_survives_resealing() {
    // A client that refuses what may be another member's reference must not refuse, or create, an
    // honest link of that length.
    let bob = (100..).map(person).find(|person| key(person)[0] == b'+').unwrap();
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let target = b"../seventeen/byte";
    let vault = open_as(&store, &bob).unwrap();
    symlink(&vault, b"link", target).unwrap();
    let read =
        |vault: &kithfs::vault::Vault| at(vault, b"link", |node| vault.readlink(node)).unwrap();
    assert_eq!(read(&vault), target);
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let before = store.root().readlink(&vault.cipher_path(b"link").unwrap()).unwrap();
    root_share(&vault).rekey().unwrap();
    root_share(&vault).reseal(false, &mut quiet()).unwrap();
    assert_ne!(store.root().readlink(&vault.cipher_path(b"link").unwrap()).unwrap(), before);
    assert_eq!(read(&vault), target);
}

#[test]
fn a_forged_oldest_epoch_hides_no_chunk_from_an_eager_rekey() {
    // The oldest epoch of a file's chunks is not signed. Cem set it to the current one, and the
    // pass left the file under the removed member's key.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Reader, "Bob"), member(&cem, Role::Reader, "Cem")]);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"plan", &pattern(1, 40_000)).unwrap();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    root_share(&vault).reseal(false, &mut quiet()).unwrap();
    let stored = vault.cipher_path(b"plan").unwrap();
    vault.close().unwrap();
    let root = store.root();
    let bytes = read(&*root, &stored);
    let forger = Forger::of(&root, &cem);
    let cipher = RecordCipher::new(forger.suite, forger.keys.headers.expose());
    let (header, _, by) = Header::open(
        &HeaderContext { share: &forger.share, layout: forger.layout, cipher: &cipher },
        &bytes,
    )
    .unwrap();
    assert_eq!((forger.epoch, header.oldest_epoch), (2, 1));
    let changed = Header { oldest_epoch: 2, ..header };
    // The field is not part of the signed message, so Ann's signature would be the same.
    let sealed =
        forger.seal(&changed, &[], by.unwrap(), &|label, message| ann.sign(label, message));
    write(&*root, &stored, &[&sealed[..], &bytes[sealed.len()..]].concat());
    let table_epoch = || {
        let at = forger.layout.table_offset(0) as usize;
        Table::decode(
            &forger.layout,
            forger.suite,
            &read(&*root, &stored)[at..at + forger.layout.table_used()],
        )
        .unwrap()
        .epoch
    };
    assert_eq!(table_epoch(), 1);
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).reseal(true, &mut quiet()).unwrap();
    assert_eq!(get(&vault, b"plan").unwrap(), pattern(1, 40_000));
    vault.close().unwrap();
    assert_eq!(table_epoch(), 2);
}

#[test]
fn a_writer_can_name_another_author_but_no_other_signer() {
    // THREAT_MODEL.md: the signer vouches for the author that a file names.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"letter", b"by Ann").unwrap();
    let stored = vault.cipher_path(b"letter").unwrap();
    let forger = Forger::of(&store.root(), &bob);
    write(&*store.root(), &stored, &forger.small(b"by Bob", &ann, &bob));
    assert_eq!(get(&vault, b"letter").unwrap(), b"by Bob");
    let by = at(&vault, b"letter", |node| vault.author(node)).unwrap().unwrap();
    assert_eq!((by.author, by.signer), (key(&ann), key(&bob)));
    let by = Authorship { author: key(&ann), signer: key(&ann) };
    let header = forger.header(6, Some(6), [7; 32], HOLE);
    write(
        &*store.root(),
        &stored,
        &forger.seal(&header, b"by Bob", by, &|label, message| bob.sign(label, message)),
    );
    assert_eq!(get(&vault, b"letter").unwrap_err().errno(), libc::EIO);
}

//! What a reader of a synced signed share seals with the keys that every member has, while a writer
//! has the share open: files, targets of links, lists of attributes and rename evidence. No member
//! reads wrong bytes, follows a wrong target or sees a wrong name. Attributes are the exception
//! that THREAT_MODEL.md states: they are not signed.

use kithfs::crypto::{RecordCipher, directory_key, directory_tag, moved_place, root_tag};
use kithfs::format::moved::{Moved, file_name, place_name};
use kithfs::format::record::{RecordContext, RecordKind, Xattrs, link_record, link_text};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::roster::{Identity, Role};
use kithfs::store::RenameMode;
use kithfs::store::mem::MemStore;
use kithfs::vault::{ROOT, Vault};

use crate::support::forger::{self, Forger};
use crate::support::members::{beside, founded, key, member, open_as, person};
use crate::support::raw::{self, named, read, write};
use crate::support::vaults::{
    self, Item, READ_WRITE, Seeded, at, faults, get, open_or_create, pattern, put, set_xattr,
    symlink, walk,
};

/// Ann's synced share, in which Bob writes and Cem reads, and Cem's keys.
struct Share {
    store: MemStore,
    ann: Identity,
    bob: Identity,
    cem: Identity,
    forger: Forger,
}

impl Share {
    fn new() -> Share {
        let (bob, cem) = (person(2), person(3));
        let members = vec![member(&bob, Role::Writer, "Bob"), member(&cem, Role::Reader, "Cem")];
        let (store, ann) = founded(members);
        assert!(Vault::set_synced(&store.root()).unwrap());
        let forger = Forger::of(&store.root(), &cem);
        Share { store, ann, bob, cem, forger }
    }

    /// Seals a record with Cem's keys. `by` is its author, its signer and the identity that really
    /// signs.
    fn record(
        &self,
        kind: RecordKind,
        bound: &[u8],
        plain: &[u8],
        by: Option<[&Identity; 3]>,
    ) -> Vec<u8> {
        let forger = &self.forger;
        let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
        let (share, suite, epoch) = (&forger.share, forger.suite, forger.epoch);
        let signed = by.is_some() || kind == RecordKind::Xattrs;
        let context = RecordContext { share, suite, signed, epoch, cipher: &cipher };
        let random =
            Seeded::new(plain.len() as u64 + u64::from(bound.first().copied().unwrap_or(0)));
        let Some([author, signer, hand]) = by else {
            return context.seal(kind, bound, plain, None, &random);
        };
        let by = Authorship { author: key(author), signer: key(signer) };
        let sign = |label: &_, message: &[u8]| hand.sign(label, message);
        context.seal(kind, bound, plain, Some(Sign { by, sign: &sign }), &random)
    }

    /// Returns the ways in which Cem can sign a record, and `None` for a record without a
    /// signature.
    fn signatures(&self) -> Vec<Option<[&Identity; 3]>> {
        let (bob, cem) = (&self.bob, &self.cem);
        let signed = [[cem, cem, cem], [bob, cem, cem], [bob, bob, cem], [cem, bob, cem]];
        signed.into_iter().map(Some).chain([None]).collect()
    }

    /// Opens the vault as each member, beside the mount that has it open.
    fn views(&self) -> Vec<Vault> {
        [&self.ann, &self.bob, &self.cem].map(|member| beside(&self.store, member)).into()
    }
}

/// Returns the paths whose contents or targets contain `forged`.
fn shown(vault: &Vault, forged: &[u8]) -> Vec<Vec<u8>> {
    let holds = |bytes: &[u8]| bytes.windows(forged.len()).any(|part| part == forged);
    let mut found = Vec::new();
    let mut visit = |path: &[u8], item| {
        match item {
            Ok(Item::File { bytes, .. }) if holds(&bytes) => found.push(path.to_vec()),
            Ok(Item::Symlink(target)) if holds(&target) => found.push(path.to_vec()),
            _ => {}
        }
        Ok(())
    };
    walk(vault, ROOT, b"", &mut visit).unwrap();
    found
}

fn error_of<T>(result: Result<T, kithfs::vault::Error>) -> Option<i32> {
    result.err().map(|error| error.errno())
}

/// A reader puts a file of their own in the place of a writer's, which the writer has open: with
/// unwritten changes, and without. The writer's changes go to a conflict copy and are never built on
/// the forged bytes. The contents may be the same as the writer's: the file still is not theirs.
#[test]
fn a_readers_file_over_an_open_one_is_not_continued() {
    let ours = b"by Bob, changed";
    for (forged, is_changed) in [(&b"by Cem"[..], true), (ours, true), (b"by Cem", false)] {
        let share = Share::new();
        let vault = open_as(&share.store, &share.bob).unwrap();
        put(&vault, b"letter", b"by Bob").unwrap();
        let handle = open_or_create(&vault, b"letter", READ_WRITE).unwrap();
        if is_changed {
            vault.write(handle, 0, ours, false).unwrap();
        }
        let (root, stored) = (share.store.root(), vault.cipher_path(b"letter").unwrap());
        write(&*root, b".arriving", &share.forger.small(forged, &share.bob, &share.cem));
        root.rename(b".arriving", &*root, &stored, RenameMode::Replace).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.write(handle, 0, ours, false).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        for view in share.views().iter().chain([&vault]) {
            assert_eq!(error_of(get(view, b"letter")), Some(libc::EIO));
            assert_eq!(shown(view, ours).len(), 1, "Bob's changes are in a conflict copy");
            assert_eq!(faults(view).len(), 1, "the check names the forged file");
        }
        assert_eq!(error_of(vaults::write_at(&vault, b"letter", 0, b"x")), Some(libc::EIO));
        let there = read(&*root, &stored);
        assert_eq!(
            there,
            share.forger.small(forged, &share.bob, &share.cem),
            "no member has signed it"
        );
    }
}

/// A reader seals the target of a link in all the ways that their keys allow: in the link itself, in
/// the control file of a long target, and as a reference to another link's control file.
#[test]
fn a_readers_targets_are_not_followed() {
    const FORGED: &[u8] = b"/forged/by/Cem";
    let share = Share::new();
    let vault = open_as(&share.store, &share.bob).unwrap();
    let long = |byte: u8| vec![byte; 3500];
    symlink(&vault, b"short", b"by Bob").unwrap();
    symlink(&vault, b"long", &long(b'l')).unwrap();
    let root = share.store.root();
    let of_long = named(&*root, b"+link-").remove(0);
    symlink(&vault, b"other", &long(b'o')).unwrap();
    let of_other = named(&*root, b"+link-").into_iter().find(|name| *name != of_long).unwrap();
    let [short, long_link] = [&b"short"[..], b"long"].map(|path| vault.cipher_path(path).unwrap());
    let reference = |name: &[u8]| -> Vec<u8> {
        let hex = std::str::from_utf8(&name[b"+link-".len()..]).unwrap();
        (0..16).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect()
    };
    let target = |vault: &Vault, path: &[u8]| at(vault, path, |node| vault.readlink(node));
    let refused = |what: &str, path: &[u8]| {
        for view in share.views().iter().chain([&vault]) {
            assert_eq!(error_of(target(view, path)), Some(libc::EIO), "{what}");
            assert_eq!(shown(view, FORGED), Vec::<Vec<u8>>::new(), "{what}");
            assert_eq!(faults(view).len(), 1, "{what}: the check names it");
        }
    };
    let put_link = |stored: &[u8], text: &[u8]| {
        root.unlink(stored).unwrap();
        root.symlink(stored, text).unwrap();
    };
    let honest = [&short, &long_link].map(|stored| root.readlink(stored).unwrap());
    let genuine = read(&*root, &of_long);
    for (n, by) in share.signatures().into_iter().enumerate() {
        let seal = |kind, bound: &[u8], plain: &[u8]| share.record(kind, bound, plain, by);
        put_link(&short, &link_text(&seal(RecordKind::Symlink, b"", FORGED)));
        refused(&format!("a target, {n}"), b"short");
        put_link(&short, &honest[0]);
        write(&*root, &of_long, &seal(RecordKind::LongSymlink, &reference(&of_long), FORGED));
        refused(&format!("a long target, {n}"), b"long");
        write(&*root, &of_long, &genuine);
        let to_other = seal(RecordKind::Symlink, b"+", &reference(&of_other));
        put_link(&long_link, &[b"+", &link_text(&to_other)[..]].concat());
        refused(&format!("a reference, {n}"), b"long");
        put_link(&long_link, &honest[1]);
    }
    // Records of one kind in the place of another.
    let list = Xattrs([(b"user.tag".to_vec(), FORGED.to_vec())].into()).encode();
    let attributes = share.record(RecordKind::Xattrs, &reference(&of_long), &list, None);
    for (what, bytes) in [("a list", attributes), ("another's", read(&*root, &of_other))] {
        write(&*root, &of_long, &bytes);
        refused(what, b"long");
    }
    write(&*root, &of_long, &genuine);
    put_link(&short, &link_text(&link_record(&honest[1][1..]).unwrap()));
    refused("a reference as a target", b"short");
    put_link(&short, &honest[0]);
    assert_eq!(target(&vault, b"short").unwrap(), b"by Bob");
    assert_eq!(target(&vault, b"long").unwrap(), long(b'l'));
    assert_eq!(faults(&vault), Vec::<String>::new());
}

/// Attributes are not signed: a reader can change those of a file, both in the store's attribute
/// and in the control file of a long list. Contents stay unchanged. A list with another reference,
/// or a record of another kind, is refused there.
#[test]
fn a_readers_lists_change_attributes_and_nothing_else() {
    let share = Share::new();
    let vault = open_as(&share.store, &share.bob).unwrap();
    put(&vault, b"file", &pattern(1, 30_000)).unwrap();
    set_xattr(&vault, b"file", b"user.long", &[7; 65_536]).unwrap();
    let root = share.store.root();
    let control = named(&*root, b"+attr-").remove(0);
    let hex = std::str::from_utf8(&control[b"+attr-".len()..]).unwrap();
    let reference: Vec<u8> =
        (0..16).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect();
    let list = |name: &[u8]| Xattrs([(name.to_vec(), b"by Cem".to_vec())].into()).encode();
    let value = |vault: &Vault, name: &[u8]| at(vault, b"file", |node| vault.get_xattr(node, name));
    let genuine = read(&*root, &control);
    let seal = |kind, bound: &[u8], plain: &[u8], by| share.record(kind, bound, plain, by);
    let (bob, cem) = (&share.bob, &share.cem);
    let other: Vec<u8> = reference.iter().map(|byte| byte ^ 1).collect();
    for (what, forged) in [
        ("of another reference", seal(RecordKind::Xattrs, &other, &list(b"user.tag"), None)),
        ("of no reference", seal(RecordKind::Xattrs, b"", &list(b"user.tag"), None)),
        ("no list", seal(RecordKind::Xattrs, &reference, b"by Cem", None)),
        ("a target", seal(RecordKind::LongSymlink, &reference, b"by Cem", Some([cem, cem, cem]))),
        ("a target of Bob's", seal(RecordKind::LongSymlink, &reference, b"x", Some([bob; 3]))),
    ] {
        write(&*root, &control, &forged);
        for view in share.views().iter().chain([&vault]) {
            assert_eq!(error_of(value(view, b"user.long")), Some(libc::EIO), "{what}");
            assert_eq!(error_of(value(view, b"user.tag")), Some(libc::EIO), "{what}");
            assert_eq!(get(view, b"file").unwrap(), pattern(1, 30_000), "{what}");
            assert_eq!(faults(view).len(), 1, "{what}: the check names it");
        }
    }
    // What Cem can do according to the threat model.
    write(&*root, &control, &seal(RecordKind::Xattrs, &reference, &list(b"user.tag"), None));
    for view in share.views().iter().chain([&vault]) {
        assert_eq!(value(view, b"user.tag").unwrap(), b"by Cem");
        assert_eq!(error_of(value(view, b"user.long")), Some(libc::ENODATA));
        assert_eq!(get(view, b"file").unwrap(), pattern(1, 30_000));
    }
    write(&*root, &control, &genuine);
    assert_eq!(value(&vault, b"user.long").unwrap(), [7; 65_536]);
}

/// Evidence that a reader forges arrives in a share that is open and has looked for evidence before.
/// It moves no entry into another directory; a writer's record would.
#[test]
fn a_readers_evidence_in_an_open_share_moves_nothing() {
    let share = Share::new();
    let vault = open_as(&share.store, &share.bob).unwrap();
    for dir in [&b"private"[..], b"public"] {
        vaults::mkdir(&vault, dir).unwrap();
    }
    put(&vault, b"private/x", b"secret").unwrap();
    let [secret, public] = [&b"private/x"[..], b"public"].map(|p| vault.cipher_path(p).unwrap());
    let root = share.store.root();
    let (private, x) = vaults::split(&secret);
    let (from_dir, to_dir) = (root.open_dir(private).unwrap(), root.open_dir(&public).unwrap());
    from_dir.rename(x, &*to_dir, x, RenameMode::NoReplace).unwrap();
    let forger = &share.forger;
    let folder = forger::folder_keys(&forger::roster(&root), &share.cem, &root);
    let directories = directory_key(&folder.first().key, &forger.share);
    let [from, to] = [&b"private"[..], b"public"]
        .map(|name| directory_tag(&directories, &root_tag(&directories, &forger.share), name));
    let names = |vault: &Vault| -> Vec<Vec<u8>> {
        let entries = at(vault, b"public", |node| vaults::entries(vault, node)).unwrap();
        entries.iter().for_each(|(_, attr)| vault.forget(attr.node, 1));
        entries.into_iter().map(|(name, _)| name).collect()
    };
    let marked = names(&vault);
    assert!(marked.len() == 1 && marked[0].starts_with(b"x (moved "), "{marked:?}");
    let place = place_name(&moved_place(&forger.keys.names, &to));
    let _ = root.mkdir(b"+moved", 0o755);
    let all = root.open_dir(b"+moved").unwrap();
    all.mkdir(&place, 0o755).unwrap();
    let dir = all.open_dir(&place).unwrap();
    let plain = Moved { from, to }.encode();
    let forged: Vec<Vec<u8>> = share
        .signatures()
        .into_iter()
        .map(|by| share.record(RecordKind::Moved, b"", &plain, by))
        .collect();
    forged.iter().for_each(|record| write(&*dir, &file_name(record), record));
    // A target that Bob signed is no evidence either, whatever is around it.
    for view in share.views().iter().chain([&vault]) {
        assert_eq!(names(view), marked);
        assert_eq!(error_of(get(view, b"public/x")), Some(libc::ENOENT));
        assert_eq!(faults(view).len(), forged.len(), "the check names each record");
    }
    // Bob creates an entry of that name: nothing has it.
    put(&vault, b"public/x", b"by Bob").unwrap();
    let genuine = share.record(RecordKind::Moved, b"", &plain, Some([&share.bob; 3]));
    write(&*dir, &file_name(&genuine), &genuine);
    for view in share.views() {
        assert_eq!(get(&view, b"public/x").unwrap(), b"by Bob", "the entry that belongs there");
        assert_eq!(names(&view).len(), 2);
    }
    to_dir.unlink(&raw::names(&*to_dir).into_iter().find(|name| name != x).unwrap()).unwrap();
    let view = beside(&share.store, &share.ann);
    assert_eq!(get(&view, b"public/x").unwrap(), b"secret", "Bob's record counts");
}

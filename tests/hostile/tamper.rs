//! Every ciphertext file of a vault is damaged in the ways that are open to an attacker with access
//! to the store. A read then returns the true contents or an error.
//!
//! Three changes cannot be detected without a database of former states, and are allowed here: a
//! whole file (link, attribute blob) is set back to an older version of itself, two whole files of
//! one share are exchanged, or a file is removed. After such a change each read returns a complete
//! state.
//!
//! * Each damage is done to a copy of the vault in memory, which is then opened and read
//!   completely.
//! * Damage to an entry never makes the whole vault unusable.
//! * If damage makes anything unreadable or removes a name, the check must report the stored path
//!   of the damaged object.

use std::collections::{BTreeMap, BTreeSet};

use kithfs::crypto::Suite;
use kithfs::format::layout::{DATA_START, HEADER, INDEX_BLOCK, Layout, SEGMENT, TABLE_HEAD};
use kithfs::format::suffix::split_mark;
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Dir, Kind, RenameMode};
use kithfs::vault::{CheckReport, Fallocate, NoteKind, OpenOptions, ROOT, Vault};

use crate::support::vaults::{
    self, Item, READ_WRITE, Seeded, mkdir, pattern, put, rename, set_xattr, symlink, write_at,
};

const CHUNK_LOG2: u8 = 12;
/// Chunks of the file with two levels of index blocks.
const MANY: usize = 140;

/// What may be read.
struct Truth {
    /// The present items, by path.
    now: BTreeMap<Vec<u8>, Item>,
    /// The contents of all files, present and former: an exchange or an older version may show
    /// them.
    contents: BTreeSet<Vec<u8>>,
    targets: BTreeSet<Vec<u8>>,
    xattrs: BTreeSet<BTreeMap<Vec<u8>, Vec<u8>>>,
}

fn layout() -> Layout {
    Layout::new(CHUNK_LOG2, false).unwrap()
}

/// Creates a vault with each kind of entry; returns its present state and the one before its last
/// changes.
fn build(suite: Suite) -> (MemStore, MemStore, Truth) {
    let store = MemStore::new();
    vaults::create(&store.root(), suite, CHUNK_LOG2);
    let vault = vaults::open(store.root()).unwrap();
    let v = &vault;
    let long = vec![b'l'; 200];
    put(v, b"empty", b"").unwrap();
    put(v, b"small", &pattern(1, 1000)).unwrap();
    put(v, b"small 2", &pattern(2, 1000)).unwrap();
    put(v, b"one chunk", &pattern(3, 4097)).unwrap();
    put(v, b"chunks", &pattern(4, 30_000)).unwrap();
    put(v, b"many chunks", &pattern(5, MANY * 4096 - 100)).unwrap();
    write_at(v, b"sparse", 0, b"start").unwrap();
    write_at(v, b"sparse", 130 * 4096, &pattern(6, 5000)).unwrap();
    write_at(v, b"sparse", 900_000, b"end").unwrap();
    put(v, &long, &pattern(7, 100)).unwrap();
    symlink(v, b"link", b"target").unwrap();
    symlink(v, b"link 2", b"another target").unwrap();
    symlink(v, b"long link", &[b't'; 3500]).unwrap();
    set_xattr(v, b"small", b"user.a", b"value").unwrap();
    set_xattr(v, b"chunks", b"user.b", &pattern(8, 200)).unwrap();
    set_xattr(v, b"empty", b"user.long", &pattern(9, 66_000)).unwrap();
    mkdir(v, b"dir").unwrap();
    set_xattr(v, b"dir", b"user.c", b"of a directory").unwrap();
    put(v, b"dir/inside", &pattern(9, 500)).unwrap();
    mkdir(v, b"old name").unwrap();
    put(v, b"old name/inside", &pattern(10, 600)).unwrap();
    put(v, &[b"old name/", &long[..]].concat(), &pattern(11, 50)).unwrap();
    mkdir(v, b"old name/sub").unwrap();
    put(v, b"old name/sub/deep", &pattern(12, 5000)).unwrap();
    rename(v, b"old name", b"renamed", RenameMode::Replace).unwrap();
    mkdir(v, &long.iter().map(|_| b'd').collect::<Vec<_>>()).unwrap();
    vault.close().unwrap();

    let before = store.snapshot();
    let vault = vaults::open(store.root()).unwrap();
    let was = vaults::tree(&vault).unwrap();
    let v = &vault;
    write_at(v, b"small", 10, b"changed").unwrap();
    write_at(v, b"one chunk", 4000, b"changed").unwrap();
    write_at(v, b"chunks", 9000, &pattern(20, 6000)).unwrap();
    write_at(v, b"many chunks", 100_000, &pattern(21, 4096)).unwrap();
    write_at(v, b"many chunks", 136 * 4096, &pattern(22, 4096)).unwrap();
    write_at(v, b"sparse", 130 * 4096 + 10, b"changed").unwrap();
    let handle = vaults::open_or_create(v, b"sparse", READ_WRITE).unwrap();
    v.fallocate(handle, 131 * 4096, 4096, Fallocate::PunchHole).unwrap();
    v.release(handle).unwrap();
    write_at(v, &long, 10, b"changed").unwrap();
    set_xattr(v, b"small", b"user.a", b"changed").unwrap();
    write_at(v, b"renamed/sub/deep", 4500, b"changed").unwrap();
    let now = vaults::tree(v).unwrap();
    assert_eq!(vaults::faults(v), Vec::<String>::new());
    vault.close().unwrap();

    let all = || was.values().chain(now.values());
    let truth = Truth {
        contents: all()
            .filter_map(
                |i| if let Item::File { bytes, .. } = i { Some(bytes.clone()) } else { None },
            )
            .collect(),
        targets: all()
            .filter_map(|i| if let Item::Symlink(target) = i { Some(target.clone()) } else { None })
            .collect(),
        xattrs: all()
            .filter_map(
                |i| if let Item::File { xattrs, .. } = i { Some(xattrs.clone()) } else { None },
            )
            .collect(),
        now,
    };
    (store, before, truth)
}

/// An object of the store, by the names that lead to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place(Vec<Vec<u8>>);

impl Place {
    fn dir(&self, store: &MemStore) -> std::sync::Arc<dyn Dir> {
        self.0[..self.0.len() - 1]
            .iter()
            .fold(store.root(), |dir, name| dir.open_dir(name).unwrap())
    }

    fn name(&self) -> &[u8] {
        self.0.last().unwrap()
    }

    fn path(&self) -> Vec<u8> {
        self.0.join(&b'/')
    }

    fn is_control(&self) -> bool {
        self.0.iter().any(|name| name[0] == b'+')
    }
}

fn list(dir: &dyn Dir) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let part = dir.read(cookie, 4096).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.next;
        names.extend(part.into_iter().map(|e| e.name.to_vec()));
    }
    names.sort();
    names
}

fn places(store: &MemStore) -> Vec<(Place, Kind)> {
    fn below(dir: &dyn Dir, at: &[Vec<u8>], all: &mut Vec<(Place, Kind)>) {
        for name in list(dir) {
            let kind = dir.stat(&name).unwrap().kind;
            let place = [at, std::slice::from_ref(&name)].concat();
            all.push((Place(place.clone()), kind));
            if kind == Kind::Dir {
                below(&*dir.open_dir(&name).unwrap(), &place, all);
            }
        }
    }
    let mut all = Vec::new();
    below(&*store.root(), &[], &mut all);
    all
}

fn bytes_of(store: &MemStore, place: &Place) -> Vec<u8> {
    let file = place.dir(store).open_file(place.name(), Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// How strictly a read is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The true bytes of this path, or an error.
    Exact,
    /// Any complete state that ever existed: for the exceptions at the head of this file.
    AnyWhole,
}

/// Returns whether the check notes a marked entry in a damaged place, and all contents can be read.
/// This happens if a directory has lost its evidence or has another directory's name, and is no
/// fault.
fn is_marked(
    vault: &Vault,
    report: &CheckReport,
    damaged: &[Vec<u8>],
    shown: &[Vec<u8>],
    truth: &Truth,
) -> bool {
    let noted = damaged.iter().any(|path| {
        // The stored path of evidence does not show which directory it belongs to.
        let is_evidence = path.starts_with(b"+moved");
        let place = if is_evidence { Ok(Vec::new()) } else { vault.plain_path(path) };
        let is_there = |plain: &[u8]| place.as_ref().is_ok_and(|place| plain.starts_with(place));
        report.notes.iter().any(|note| note.kind == NoteKind::Marked && is_there(&note.plain))
    });
    noted
        && truth.now.values().all(|item| match item {
            Item::File { bytes, .. } => shown.contains(bytes),
            _ => true,
        })
}

/// Opens a damaged vault, reads everything and judges it. If anything was lost, the check must
/// report one of the stored paths `damaged`.
fn judge(store: &MemStore, truth: &Truth, judge: Judge, damaged: &[Vec<u8>], what: &str) {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    let vault = match Vault::open(store.root(), &vaults::owner(), options) {
        Ok(vault) => vault,
        Err(error) => {
            let is_control =
                |path: &Vec<u8>| path.split(|b| *b == b'/').any(|part| part.starts_with(b"+"));
            let is_allowed = damaged.is_empty() || damaged.iter().any(is_control);
            return assert!(is_allowed, "{what}: the whole vault is refused: {error}");
        }
    };
    let mut seen: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
    let mut shown = Vec::new();
    let walked = vaults::walk(&vault, ROOT, b"", &mut |path, item| {
        let item = match item {
            Ok(item) => item,
            Err(e) => {
                // Besides unauthentic data: errors of the store for an object of another type.
                let known = matches!(
                    e.errno(),
                    libc::EIO
                        | libc::ENOENT
                        | libc::ESTALE
                        | libc::ELOOP
                        | libc::EISDIR
                        | libc::ENOTDIR
                );
                assert!(known, "{what}: {}: {e}", path.escape_ascii());
                seen.insert(path.to_vec(), false);
                return Ok(());
            }
        };
        seen.entry(path.to_vec()).or_insert(true);
        if let Item::File { bytes, .. } = &item {
            shown.push(bytes.clone());
        }
        match (judge, truth.now.get(path), &item) {
            (Judge::Exact, Some(wanted), found) => {
                assert!(wanted == found, "{what}: {} shows other bytes", path.escape_ascii())
            }
            (_, _, Item::File { bytes, xattrs }) => {
                assert!(
                    truth.contents.contains(bytes),
                    "{what}: {} shows bytes that were never written",
                    path.escape_ascii()
                );
                assert!(
                    truth.xattrs.contains(xattrs),
                    "{what}: {} shows attributes that were never set",
                    path.escape_ascii()
                );
            }
            (_, _, Item::Symlink(target)) => {
                assert!(truth.targets.contains(target), "{what}: {}", path.escape_ascii())
            }
            (_, _, Item::Dir) => {}
            (_, _, Item::Other(kind)) => panic!("{what}: {} is {kind:?}", path.escape_ascii()),
        }
        if judge == Judge::Exact && !truth.now.contains_key(path) {
            // An entry that has lost its long name, or is not where its name was created.
            let is_apparent = |name: &[u8]| name[0] == b'=' || split_mark(name).is_some();
            let is_explained = path.split(|b| *b == b'/').any(is_apparent);
            assert!(is_explained, "{what}: {} was never there", path.escape_ascii());
            // An entry with a mark shows what an entry with the same plain name showed elsewhere.
            if let Some((plain, _)) = split_mark(vaults::split(path).1)
                && plain[0] != b'='
            {
                let mut same = truth.now.iter().filter(|(path, _)| vaults::split(path).1 == plain);
                let is_it = same.any(|(_, there)| *there == item);
                assert!(is_it, "{what}: {} shows other bytes", path.escape_ascii());
            }
        }
        Ok(())
    });
    let whole = walked.is_ok() && truth.now.keys().all(|path| seen.get(path) == Some(&true));
    let report = vault.check(b"", &mut |_| {}).expect("the check runs");
    if !whole && !damaged.is_empty() {
        // A control file belongs to an entry, and the check may report that entry instead.
        let mut damaged = damaged.to_vec();
        for path in damaged.clone() {
            let (dir, name) = vaults::split(&path);
            match name {
                _ if path.starts_with(b"+long") => {
                    let is_long = |(place, _): &(Place, Kind)| place.name()[0] == b'=';
                    damaged.extend(
                        places(store).into_iter().filter(is_long).map(|(place, _)| place.path()),
                    );
                }
                _ if name.starts_with(b"+attr-") => {
                    damaged.extend(places(store).into_iter().map(|(place, _)| place.path()));
                }
                _ if name.starts_with(b"+link-") => {
                    damaged.extend(
                        places(store)
                            .into_iter()
                            .filter(|(_, kind)| *kind == Kind::Symlink)
                            .map(|(place, _)| place.path()),
                    );
                }
                _ if name.starts_with(b"+") => damaged.push(dir.to_vec()),
                _ => {}
            }
        }
        let named = report.faults.iter().any(|fault| {
            damaged
                .iter()
                .any(|path| path.starts_with(&fault.cipher) || fault.cipher.starts_with(path))
        });
        assert!(
            named || is_marked(&vault, &report, &damaged, &shown, truth),
            "{what}: the check does not report it: {:?}",
            report.faults.iter().map(|f| f.cipher.escape_ascii().to_string()).collect::<Vec<_>>()
        );
    }
    vault.close().unwrap_or_else(|e| panic!("{what}: close: {e}"));
}

struct Bench<'a> {
    store: &'a MemStore,
    truth: &'a Truth,
    runs: usize,
}

impl Bench<'_> {
    /// Rewrites the file at `place` as `bytes` in a copy.
    fn with_bytes(&mut self, place: &Place, bytes: &[u8], strict: Judge, what: &str) {
        self.runs += 1;
        let copy = self.store.snapshot();
        {
            let file = place.dir(&copy).open_file(place.name(), Access::ReadWrite).unwrap();
            file.set_len(0).unwrap();
            file.write_at(bytes, 0).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
        }
        judge(
            &copy,
            self.truth,
            strict,
            &[place.path()],
            &format!("{} ({}): {what}", place.path().escape_ascii(), bytes.len()),
        );
    }

    /// Applies any change to a copy.
    fn with(
        &mut self,
        act: impl FnOnce(&MemStore),
        strict: Judge,
        damaged: &[Vec<u8>],
        what: &str,
    ) {
        self.runs += 1;
        let copy = self.store.snapshot();
        act(&copy);
        judge(&copy, self.truth, strict, damaged, what);
    }
}

/// Returns the offsets at which parts of a ciphertext file begin or end, with the part that begins
/// there.
fn boundaries(bytes: &[u8], control: bool) -> BTreeMap<usize, &'static str> {
    let mut at = BTreeMap::new();
    let len = bytes.len();
    let mut put = |offset: usize, what: &'static str| {
        if offset <= len {
            at.entry(offset).or_insert(what);
        }
    };
    if control || !bytes.starts_with(b"kithfile") {
        for (offset, what) in [
            (0, "version"),
            (1, "suite"),
            (2, "flags"),
            (3, "reserved"),
            (4, "epoch"),
            (8, "id"),
            (24, "nonce"),
            (48, "sealed"),
        ] {
            put(offset, what);
        }
        put(len.saturating_sub(16), "tag");
        put(len.saturating_sub(1), "last byte");
        return at;
    }
    let header = [
        (0, "magic"),
        (8, "version"),
        (10, "suite"),
        (11, "flags"),
        (12, "type"),
        (13, "chunk size"),
        (14, "small length"),
        (16, "epoch"),
        (20, "commitment"),
        (28, "file id"),
        (60, "nonce"),
        (84, "reserved"),
        (96, "tag"),
        (112, "size"),
        (120, "counter"),
        (128, "root"),
        (160, "oldest epoch"),
        (164, "body reserve"),
        (176, "hint"),
        (184, "hint name"),
        (HEADER, "data"),
    ];
    header.into_iter().for_each(|(offset, what)| put(offset, what));
    put(len.saturating_sub(1), "last byte");
    if len as u64 <= DATA_START + 512 && bytes[11] & 2 != 0 {
        return at;
    }
    let layout = layout();
    let size = layout.plain_size(len as u64);
    for k in (0..layout.chunks(size)).filter(|k| {
        layout.chunks(size) < 1000
            || *k < 3
            || (129..133).contains(k)
            || *k + 2 > layout.chunks(size)
    }) {
        let table = layout.table_offset(k) as usize;
        for (offset, what) in [
            (0, "salt"),
            (12, "salt tail"),
            (16, "table epoch"),
            (20, "seals"),
            (24, "table reserve"),
        ] {
            put(table + offset, what);
        }
        for (offset, what) in [(0, "segment nonce"), (12, "segment tag"), (28, "segment length")] {
            put(table + TABLE_HEAD + offset, what);
        }
        put(table + layout.table_used(), "table padding");
        put(layout.chunk_offset(k) as usize, "segment");
        put(layout.chunk_offset(k) as usize + SEGMENT - 1, "end of segment");
    }
    for level in 1..=Layout::levels(layout.chunks(size)) {
        for j in 0..layout.chunks(size).div_ceil(128u64.pow(level as u32)).min(3) {
            let block = layout.index_offset(level, j) as usize;
            for entry in [0, 1, 2, 100, 127] {
                put(block + entry * 32, "index entry");
            }
        }
    }
    at
}

/// Returns the files of the vault that are worth damaging: those of entries, and control files that
/// are read.
fn files(store: &MemStore) -> Vec<Place> {
    places(store)
        .into_iter()
        .filter(|(_, kind)| *kind == Kind::File)
        .map(|(place, _)| place)
        .collect()
}

/// The larger a file, the fewer of its offsets are used.
fn some<'a>(
    all: &'a BTreeMap<usize, &'static str>,
    random: &Seeded,
    most: u64,
) -> Vec<(usize, &'a str)> {
    let n = all.len() as u64;
    all.iter()
        .filter(|(offset, _)| **offset < HEADER + 1 || n <= most || random.below(n) < most)
        .map(|(o, w)| (*o, *w))
        .collect()
}

fn suites(act: impl Fn(&mut Bench, &MemStore, &Seeded)) {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let (store, before, truth) = build(suite);
        let mut bench = Bench { store: &store, truth: &truth, runs: 0 };
        act(&mut bench, &before, &Seeded::new(9));
        assert!(bench.runs > 50, "{} damages", bench.runs);
    }
}

#[test]
fn cut_or_extended_files_never_show_wrong_bytes() {
    suites(|bench, _, random| {
        for place in files(bench.store) {
            let bytes = bytes_of(bench.store, &place);
            let mut cuts: Vec<usize> = some(&boundaries(&bytes, place.is_control()), random, 40)
                .into_iter()
                .map(|(at, _)| at)
                .collect();
            cuts.extend(cuts.clone().iter().flat_map(|at| [at.saturating_sub(1), at + 1]));
            for cut in cuts.into_iter().filter(|cut| *cut < bytes.len()) {
                bench.with_bytes(&place, &bytes[..cut], Judge::Exact, &format!("cut at {cut}"));
            }
            for more in [1, 16, 4096, 5000] {
                for fill in [0, 0x5A] {
                    bench.with_bytes(
                        &place,
                        &[&bytes[..], &vec![fill; more]].concat(),
                        Judge::Exact,
                        &format!("{more} bytes more"),
                    );
                }
            }
        }
    });
}

#[test]
fn a_check_reports_bytes_beyond_the_end_of_a_file() {
    // Bytes after the end of a file are never shown, but the check did not report them.
    let (store, _, _) = build(Suite::Aes256Gcm);
    for place in files(&store).into_iter().filter(|place| !place.is_control()) {
        let copy = store.snapshot();
        let file = place.dir(&copy).open_file(place.name(), Access::ReadWrite).unwrap();
        file.write_at(b"more", file.stat().unwrap().size).unwrap();
        let vault = vaults::open(copy.root()).unwrap();
        let report = vault.check(b"", &mut |_| {}).unwrap();
        assert_eq!(
            report.faults.iter().map(|f| f.cipher.clone()).collect::<Vec<_>>(),
            [place.path()]
        );
    }
}

#[test]
fn zeroed_or_flipped_bytes_are_never_shown() {
    suites(|bench, _, random| {
        for place in files(bench.store) {
            let bytes = bytes_of(bench.store, &place);
            let all = boundaries(&bytes, place.is_control());
            for (at, what) in some(&all, random, 60).into_iter().filter(|(at, _)| *at < bytes.len())
            {
                for bit in [0x01, 0x80] {
                    let mut bad = bytes.clone();
                    bad[at] ^= bit;
                    bench.with_bytes(
                        &place,
                        &bad,
                        Judge::Exact,
                        &format!("bit {bit:#x} of {what} at {at} flipped"),
                    );
                }
                let end = all
                    .range(at + 1..)
                    .next()
                    .map_or(bytes.len(), |(next, _)| *next)
                    .min(bytes.len());
                let mut bad = bytes.clone();
                bad[at..end].fill(0);
                bench.with_bytes(&place, &bad, Judge::Exact, &format!("{what} {at}..{end} zeroed"));
            }
            for _ in 0..12 {
                let at = random.below(bytes.len().max(1) as u64) as usize;
                let mut bad = bytes.clone();
                if let Some(byte) = bad.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                    bench.with_bytes(&place, &bad, Judge::Exact, &format!("a bit at {at} flipped"));
                }
            }
            bench.with_bytes(&place, &vec![0; bytes.len()], Judge::Exact, "all zeroed");
        }
    });
}

/// Returns offsets and lengths of parts that can be cut out of a file of chunks and put into
/// another one.
fn parts(len: usize) -> Vec<(usize, usize, &'static str)> {
    let layout = layout();
    let size = layout.plain_size(len as u64);
    let mut parts = vec![
        (0, HEADER, "header"),
        (0, PUBLIC, "public header"),
        (PUBLIC, HEADER - PUBLIC, "sealed header"),
    ];
    if size > 4096 {
        let chunks = layout.chunks(size);
        for k in [0, 1, 2, 24, 127, 128, 130, 136, chunks - 1] {
            let (table, chunk) = (layout.table_offset(k) as usize, layout.chunk_offset(k) as usize);
            parts.push((table, layout.table() as usize, "table"));
            parts.push((chunk, SEGMENT, "segment"));
            parts.push((table, chunk + SEGMENT - table, "chunk"));
        }
        for level in 1..=Layout::levels(chunks) {
            for j in 0..2 {
                parts.push((layout.index_offset(level, j) as usize, INDEX_BLOCK, "index block"));
            }
        }
    }
    parts.retain(|(at, _, _)| *at < len);
    parts
}

const PUBLIC: usize = kithfs::format::header::PUBLIC;

#[test]
fn parts_of_other_files_or_versions_are_never_shown() {
    suites(|bench, before, _| {
        let files: Vec<_> =
            files(bench.store).into_iter().filter(|place| !place.is_control()).collect();
        for (n, place) in files.iter().enumerate() {
            let bytes = bytes_of(bench.store, place);
            let older = bytes_of(before, place);
            let neighbour = bytes_of(bench.store, &files[(n + 1) % files.len()]);
            for (from, source) in [(&older, "an older version"), (&neighbour, "its neighbour")] {
                for (at, len, what) in parts(bytes.len().min(from.len())) {
                    let end = (at + len).min(bytes.len()).min(from.len());
                    let mut bad = bytes.clone();
                    bad[at..end].copy_from_slice(&from[at..end]);
                    // If the part completes the whole other file, the result is a whole older
                    // version, which is allowed. Further bytes after that file are not shown.
                    let whole = bad.starts_with(from)
                        || source == "an older version"
                            && end == HEADER
                            && bytes[HEADER..] == from[HEADER..];
                    let strict = if whole { Judge::AnyWhole } else { Judge::Exact };
                    bench.with_bytes(place, &bad, strict, &format!("{what} at {at} of {source}"));
                }
                bench.with_bytes(place, from, Judge::AnyWhole, &format!("all of {source}"));
            }
            // Within one file: each chunk, table and segment in the place of another one.
            let parts = parts(bytes.len());
            for (at, len, what) in &parts {
                for (to, other, _) in parts
                    .iter()
                    .filter(|(to, other, same)| to != at && other == len && same == what)
                {
                    let end = (to + other).min(bytes.len());
                    let Some(source) = bytes.get(*at..at + (end - to)) else { continue };
                    let mut bad = bytes.clone();
                    bad[*to..end].copy_from_slice(source);
                    bench.with_bytes(
                        place,
                        &bad,
                        Judge::Exact,
                        &format!("{what} from {at} to {to}"),
                    );
                }
            }
        }
    });
}

#[test]
fn rearranged_entries_show_only_complete_states() {
    suites(|bench, before, _| {
        let all = places(bench.store);
        for (n, (place, kind)) in all.iter().enumerate() {
            let (other, _) = &all[(n + 1) % all.len()];
            let nested = other.0.starts_with(&place.0) || place.0.starts_with(&other.0);
            let shown = place.path().escape_ascii().to_string();
            if !nested {
                let both = [place.path(), other.path()];
                bench.with(
                    |copy| {
                        place
                            .dir(copy)
                            .rename(
                                place.name(),
                                &*other.dir(copy),
                                other.name(),
                                RenameMode::Exchange,
                            )
                            .unwrap()
                    },
                    Judge::AnyWhole,
                    &both,
                    &format!("{shown} exchanged with {}", other.path().escape_ascii()),
                );
            }
            // Into another directory, under its own stored name.
            for into in all
                .iter()
                .filter(|(into, kind)| *kind == Kind::Dir && !into.0.starts_with(&place.0))
                .take(2)
            {
                let target = into.0.dir_of(bench.store);
                if target.stat(place.name()).is_ok() {
                    continue;
                }
                // The check notes an entry of another directory.
                let target = [&into.0.0[..], &[place.name().to_vec()]].concat();
                let is_entry = !place.is_control() && !into.0.is_control();
                let noted = if is_entry { vec![Place(target).path()] } else { Vec::new() };
                bench.with(
                    |copy| {
                        place
                            .dir(copy)
                            .rename(
                                place.name(),
                                &*into.0.dir_of(copy),
                                place.name(),
                                RenameMode::NoReplace,
                            )
                            .unwrap()
                    },
                    Judge::Exact,
                    &noted,
                    &format!("{shown} moved to {}", into.0.path().escape_ascii()),
                );
            }
            // Under another name: a flipped letter, a foreign one, a control name.
            let mut flipped = place.name().to_vec();
            let last = flipped.len() / 2;
            flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
            for name in [flipped, b"foreign".to_vec(), b"+nonsense".to_vec(), b"=".to_vec()] {
                let renamed =
                    Place([&place.0[..place.0.len() - 1], std::slice::from_ref(&name)].concat())
                        .path();
                bench.with(
                    |copy| {
                        place
                            .dir(copy)
                            .rename(place.name(), &*place.dir(copy), &name, RenameMode::NoReplace)
                            .unwrap()
                    },
                    Judge::Exact,
                    &[renamed, place.path()],
                    &format!("{shown} renamed to {}", name.escape_ascii()),
                );
            }
            // Removed. That cannot be detected for an entry; with a control file, names or targets
            // disappear.
            if *kind != Kind::Dir {
                let damaged = if place.is_control() { vec![place.path()] } else { Vec::new() };
                bench.with(
                    |copy| place.dir(copy).unlink(place.name()).unwrap(),
                    Judge::Exact,
                    &damaged,
                    &format!("{shown} removed"),
                );
            }
            // The former state is restored, of a file or of the contents of a directory record.
            if *kind == Kind::File && place.is_control() && before_has(before, place) {
                bench.with_bytes(place, &bytes_of(before, place), Judge::AnyWhole, "put back");
            }
        }
    });
}

fn before_has(before: &MemStore, place: &Place) -> bool {
    places(before).iter().any(|(there, _)| there == place)
}

impl Place {
    fn dir_of(&self, store: &MemStore) -> std::sync::Arc<dyn Dir> {
        self.0.iter().fold(store.root(), |dir, name| dir.open_dir(name).unwrap())
    }
}

#[test]
fn damaged_links_and_attributes_are_never_shown() {
    suites(|bench, before, random| {
        let links: Vec<_> = places(bench.store)
            .into_iter()
            .filter(|(_, kind)| *kind == Kind::Symlink)
            .map(|(place, _)| place)
            .collect();
        for place in &links {
            let text = place.dir(bench.store).readlink(place.name()).unwrap();
            let replace = |bench: &mut Bench, text: &[u8], what: &str| {
                bench.with(
                    |copy| {
                        let dir = place.dir(copy);
                        dir.unlink(place.name()).unwrap();
                        dir.symlink(place.name(), text).unwrap();
                    },
                    Judge::Exact,
                    &[place.path()],
                    &format!("{}: {what}", place.path().escape_ascii()),
                );
            };
            for at in (0..40)
                .chain((0..20).map(|_| random.below(text.len() as u64) as usize))
                .filter(|at| *at < text.len())
            {
                let mut bad = text.clone();
                bad[at] = if bad[at] == b'A' { b'B' } else { b'A' };
                if bad != text {
                    replace(bench, &bad, &format!("letter {at} changed"));
                }
            }
            for cut in [1, 2, 30, text.len() / 2, text.len() - 1] {
                replace(bench, &text[..cut], &format!("cut at {cut}"));
            }
            for more in [&b"A"[..], b"AAAA", b"=", b"/x"] {
                replace(bench, &[&text[..], more].concat(), "more");
            }
            for plain in [&b"/etc/passwd"[..], b"../../etc/passwd", b"+", b"+AAAA"] {
                replace(bench, plain, "a link of another user");
            }
        }
        let key = b"user.kithfs";
        for (place, _) in places(bench.store).into_iter().filter(|(_, kind)| *kind != Kind::Symlink)
        {
            let Some(blob) = place.dir(bench.store).get_xattr(place.name(), key).unwrap() else {
                continue;
            };
            for at in (0..60).chain([blob.len() - 17, blob.len() - 1]) {
                let mut bad = blob.clone();
                bad[at] ^= 0x10;
                bench.with(
                    |copy| place.dir(copy).set_xattr(place.name(), key, &bad).unwrap(),
                    Judge::Exact,
                    &[place.path()],
                    &format!("{}: byte {at} of the attributes", place.path().escape_ascii()),
                );
            }
            for cut in [0, 1, 23, 24, 63, 64, blob.len() - 1] {
                bench.with(
                    |copy| place.dir(copy).set_xattr(place.name(), key, &blob[..cut]).unwrap(),
                    Judge::Exact,
                    &[place.path()],
                    &format!("{}: attributes cut at {cut}", place.path().escape_ascii()),
                );
            }
            if let Some(old) = before_has(before, &place)
                .then(|| place.dir(before).get_xattr(place.name(), key).unwrap())
                .flatten()
            {
                bench.with(
                    |copy| place.dir(copy).set_xattr(place.name(), key, &old).unwrap(),
                    Judge::AnyWhole,
                    &[],
                    &format!("{}: attributes put back", place.path().escape_ascii()),
                );
            }
        }
    });
}

/// A write of a whole chunk needs nothing of the old one, but read its table: if that was damaged, the
/// chunk could not be written again.
#[test]
fn a_chunk_with_a_damaged_table_can_be_overwritten() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, CHUNK_LOG2);
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, b"file", &pattern(1, 30_000)).unwrap();
    let stored = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    let file = store.root().open_file(&stored, Access::ReadWrite).unwrap();
    file.write_at(&[0xff; TABLE_HEAD], layout().table_offset(2)).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(vaults::faults(&vault).len(), 1);
    assert_eq!(write_at(&vault, b"file", 8192, b"a part").unwrap_err().errno(), libc::EIO);
    write_at(&vault, b"file", 8192, &pattern(2, 4096)).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    let store = store.crash(&mut |_| 0);
    let vault = vaults::open(store.root()).unwrap();
    let mut expected = pattern(1, 30_000);
    expected[8192..12_288].copy_from_slice(&pattern(2, 4096));
    assert!(vaults::get(&vault, b"file").unwrap() == expected);
    assert_eq!(vaults::faults(&vault), [""; 0]);
}

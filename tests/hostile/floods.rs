//! A storage host adds records and entries by the hundred thousand. Memory does not grow with their
//! number, and genuine alarms are still reported.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::format::text;
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Dir};
use kithfs::vault::{Notice, NoticeKind, RenameMode, SurveyOptions, Vault};

use crate::fuzz::memory;
use crate::support::vaults::{self, mkdir, pattern, put};

/// Numbers of added entries that are compared. Both are more than a comparison holds in memory.
const FEW: usize = 40_000;
const MANY: usize = 80_000;
/// How much more memory the second number may take, in bytes: 8 for each entry of a directory, in an
/// array that doubles.
const MORE: usize = 2 << 20;

/// A vault, and the database of a machine that has seen it.
struct Scene {
    store: MemStore,
    memory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let scene = Scene { store, memory: tempfile::tempdir().unwrap() };
        scene.session(|vault| {
            put(vault, b"letter", &pattern(1, 500)).unwrap();
            put(vault, b"other", b"text").unwrap();
            mkdir(vault, b"dir").unwrap();
        });
        scene
    }

    fn path(&self) -> std::path::PathBuf {
        self.memory.path().join("memory.redb")
    }

    fn root(&self) -> Arc<dyn Dir> {
        self.store.root()
    }

    /// Opens the vault, records what `act` does, and returns the peak of memory while it is closed.
    fn session(&self, act: impl FnOnce(&Vault)) -> usize {
        let vault = vaults::open(self.root()).unwrap();
        vault.remember(&self.path(), false).unwrap();
        act(&vault);
        self.root().sync_store().unwrap(); // takes memory for each entry
        memory::peak_of(|| vault.close().unwrap())
    }

    fn stored(&self, path: &[u8]) -> Vec<u8> {
        vaults::open(self.root()).unwrap().cipher_path(path).unwrap()
    }

    /// Compares the vault with the database at `path`.
    fn compare_with(&self, path: &Path) -> (Vec<Notice>, usize) {
        let (vault, mut notices) = (vaults::open(self.root()).unwrap(), Vec::new());
        let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
        self.root().sync_store().unwrap();
        let peak = memory::peak_of(|| notices = vault.survey(path, &options).unwrap());
        vault.close().unwrap();
        (notices, peak)
    }

    /// Compares the vault with a copy of the database.
    fn compare(&self) -> (Vec<Notice>, usize, u64) {
        let copy = self.memory.path().join("copy.redb");
        std::fs::copy(self.path(), &copy).unwrap();
        let (notices, peak) = self.compare_with(&copy);
        (notices, peak, Vault::omitted_by_rollback_memory(&copy).unwrap().notices)
    }

    /// Adds names of the file `stored`, as conflict copies, up to this number.
    fn copies(&self, stored: &[u8], numbers: std::ops::Range<usize>) {
        for n in numbers {
            let name = [stored, format!(" ({n})").as_bytes()].concat();
            self.root().link(stored, &*self.root(), &name).unwrap();
        }
    }
}

fn overwrite(dir: &Arc<dyn Dir>, name: &[u8], bytes: &[u8]) {
    let file = dir.open_file(name, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

fn content(dir: &Arc<dyn Dir>, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// A comparison held every deviation in memory until the whole vault was read, and kept a notice of
/// each: a million conflict copies of an older version, which cost the storage host no room, made
/// the daemon grow by 400 MB. Alarms about names that are remembered are listed beside any number of
/// new names.
#[test]
fn copies_of_an_older_version_take_bounded_memory() {
    let scene = Scene::new();
    let (root, letter) = (scene.root(), scene.stored(b"letter"));
    let old = content(&root, &letter);
    scene.session(|vault| vaults::write_at(vault, b"letter", 0, b"newer").unwrap());
    overwrite(&root, &letter, &old);
    root.unlink(&scene.stored(b"other")).unwrap();
    scene.copies(&letter, 0..FEW);
    let (notices, few, unlisted) = scene.compare();
    assert_eq!((notices.len(), unlisted), (10_002, FEW as u64 - 10_000));
    scene.copies(&letter, FEW..MANY);
    let (notices, many, unlisted) = scene.compare();
    assert_eq!((notices.len(), unlisted), (10_002, MANY as u64 - 10_000));
    let is_told = |name: &[u8], is: fn(&NoticeKind) -> bool| {
        notices.iter().any(|notice| notice.plain == name && notice.due && is(&notice.kind))
    };
    assert!(is_told(b"letter", |kind| matches!(kind, NoticeKind::Older { .. })));
    assert!(is_told(b"other", |kind| matches!(kind, NoticeKind::Gone { elsewhere: false })));
    println!("{few} bytes for {FEW} copies, {many} for {MANY}");
    assert!(many <= few + MORE, "{few} bytes for {FEW} copies, {many} for {MANY}");
}

/// All directories that were still to be read were in memory, with their names.
#[test]
fn added_directories_take_bounded_memory() {
    let scene = Scene::new();
    let (root, dir) = (scene.root(), scene.stored(b"dir"));
    let add = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            root.mkdir(&[&dir[..], format!(" ({n})").as_bytes()].concat(), 0o700).unwrap();
        }
    };
    add(0..FEW);
    let (notices, few, _) = scene.compare();
    assert_eq!(notices, []);
    add(FEW..MANY);
    let (notices, many, _) = scene.compare();
    assert_eq!(notices, []);
    println!("{few} bytes for {FEW} directories, {many} for {MANY}");
    assert!(many <= few + MORE, "{few} bytes for {FEW} directories, {many} for {MANY}");
}

/// All directories that were gone were in memory until the whole vault was read, with their paths: a
/// storage host that took away a million directories that it had added made the daemon grow by some
/// hundred bytes for each.
#[test]
fn directories_that_are_gone_take_bounded_memory() {
    let peak = |directories: usize| {
        let scene = Scene::new();
        let (root, dir) = (scene.root(), scene.stored(b"dir"));
        let name = |n: usize| [&dir[..], format!(" ({n})").as_bytes()].concat();
        (0..directories).for_each(|n| root.mkdir(&name(n), 0o700).unwrap());
        assert_eq!(scene.compare_with(&scene.path()).0, []);
        (0..directories).for_each(|n| root.rmdir(&name(n)).unwrap());
        let (notices, peak) = scene.compare_with(&scene.path());
        assert_eq!(notices, []);
        assert_eq!(scene.compare_with(&scene.path()).0, []);
        peak
    };
    let (few, many) = (peak(FEW), peak(MANY));
    println!("{few} bytes for {FEW} directories, {many} for {MANY}");
    // The first number does not fill the cache of the database.
    assert!(many <= few + 2 * MORE, "{few} bytes for {FEW} directories, {many} for {MANY}");
}

/// All rows of a renamed directory were in memory at once, those of added copies among them.
#[test]
fn moving_the_rows_of_a_directory_takes_bounded_memory() {
    let peak = |copies: usize| {
        let scene = Scene::new();
        scene.session(|vault| put(vault, b"dir/inside", b"text").unwrap());
        let (dir, inside) = (scene.stored(b"dir"), scene.stored(b"dir/inside"));
        let (dir, inside) = (scene.root().open_dir(&dir).unwrap(), vaults::split(&inside).1);
        for n in 0..copies {
            let name = [inside, format!(" ({n})").as_bytes()].concat();
            dir.link(inside, &*dir, &name).unwrap();
        }
        assert_eq!(scene.compare_with(&scene.path()).0, []);
        let peak = scene.session(|vault| {
            vaults::rename(vault, b"dir", b"moved", RenameMode::NoReplace).unwrap();
        });
        // All of them are known under the new name.
        for entry in dir.reopen().unwrap().read(0, 1 << 30).unwrap() {
            dir.unlink(&entry.name).unwrap();
        }
        let (notices, _) = scene.compare_with(&scene.path());
        let unlisted = Vault::omitted_by_rollback_memory(&scene.path()).unwrap().notices;
        assert_eq!(notices.len() as u64 + unlisted, copies as u64 + 1);
        assert!(notices.iter().all(|notice| notice.plain.starts_with(b"moved/inside")));
        peak
    };
    let (few, many) = (peak(FEW), peak(MANY));
    println!("{few} bytes for {FEW} copies, {many} for {MANY}");
    // The first number does not fill the cache of the database.
    assert!(many <= few + 2 * MORE, "{few} bytes for {FEW} copies, {many} for {MANY}");
}

/// The check held the name of each long-named entry, also of those that the storage host had made up.
#[test]
fn a_check_of_made_up_entries_takes_bounded_memory() {
    let scene = Scene::new();
    let check = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            let hash = text::encode(blake3::hash(&n.to_le_bytes()).as_bytes());
            scene.root().create_file(&[b"=", &hash[..]].concat(), 0o600).unwrap();
        }
        let vault = vaults::open(scene.root()).unwrap();
        let peak = memory::peak_of(|| drop(vault.check(b"", &mut |_| {}).unwrap()));
        vault.close().unwrap();
        peak
    };
    let (few, many) = (check(0..FEW), check(FEW..MANY));
    println!("{few} bytes for {FEW} entries, {many} for {MANY}");
    assert!(many <= few + MORE, "{few} bytes for {FEW} entries, {many} for {MANY}");
}

/// A mount lists a directory of a few recorded entries in which it has changed a file, and held the rows
/// of all new entries until the end.
#[test]
fn recording_a_flooded_directory_takes_bounded_memory() {
    let peak = |copies: usize| {
        let scene = Scene::new();
        assert!(Vault::set_synced(&scene.root()).unwrap());
        scene.copies(&scene.stored(b"letter"), 0..copies);
        scene.session(|vault| put(vault, b"new", b"text").unwrap())
    };
    let (few, many) = (peak(FEW), peak(MANY));
    println!("{few} bytes for {FEW} copies, {many} for {MANY}");
    assert!(many <= few + MORE, "{few} bytes for {FEW} copies, {many} for {MANY}");
}

/// Opens a vault with this many additional files at its root, named by `name`. Returns the peak of
/// memory and the error, if there is one. An open vault must still be readable.
fn opened(files: usize, name: impl Fn(usize) -> String) -> (usize, Option<String>) {
    let scene = Scene::new();
    for n in 0..files {
        let file = scene.root().create_file(name(n).as_bytes(), 0o600).unwrap();
        file.write_at(b"junk", 0).unwrap();
    }
    let mut opened = None;
    let peak = memory::peak_of(|| opened = Some(vaults::open(scene.root())));
    let read = opened.unwrap().map(|vault| vaults::get(&vault, b"other").unwrap());
    assert!(read.as_ref().map_or(true, |text| text == b"text"));
    (peak, read.err().map(|error| error.to_string()))
}

/// The names of all manifests were read before their number was limited, and a mount kept them.
#[test]
fn too_many_manifests_are_refused_in_bounded_memory() {
    let name = |n| format!("+manifest-2-{n:032x}");
    let ((few, error), (many, _)) = (opened(70_000, name), opened(140_000, name));
    assert!(error.is_some_and(|error| error.contains("+manifest-*")));
    assert!(many <= few + MORE, "{few} bytes for 70,000 manifests, {many} for 140,000");
}

/// A mount remembered each file with the name of a journal until all were replayed, and logged
/// each.
#[test]
fn invalid_journals_take_bounded_memory() {
    let name = |n| format!("+journal-other-{n:016x}");
    let ((few, error), (many, _)) = (opened(FEW, name), opened(MANY, name));
    assert_eq!(error, None);
    assert!(many <= few + MORE, "{few} bytes for {FEW} journals, {many} for {MANY}");
}

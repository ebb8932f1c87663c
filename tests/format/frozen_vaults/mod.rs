//! Vaults that the first version of the program made, read by this one. See
//! `tests/vaults/README.md`.
//!
//! Rules that hold here
//! * No test that runs by itself writes below `tests/vaults`: each vault is copied first.
//! * The expected contents are in `expected.txt`, which was written when the vault was made, and not
//!   in this program.

mod expected;
mod make;
mod walk;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kithfs::format::identity::SlotKind;
use kithfs::roster::{Identity, IdentityFile, RecoveryCode, Secret};
use kithfs::store::os::OsDir;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{OpenOptions, ROOT, RenameMode, Vault};
use zeroize::Zeroizing;

use expected::Expected;

fn version_1() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vaults/v1")
}

/// Names of the frozen vaults. The published package leaves them out; a checkout has them.
fn vaults() -> Vec<PathBuf> {
    if Path::new(env!("CARGO_MANIFEST_DIR")).join(".cargo_vcs_info.json").exists() {
        println!("skipped: the published package has no frozen vaults");
        return Vec::new();
    }
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(version_1()).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert_eq!(all.len(), make::VAULTS.len(), "all frozen vaults are there");
    all
}

/// Copies files, directories and symbolic links.
fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy_tree(&source, &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&source).unwrap(), &target).unwrap();
        } else {
            std::fs::write(&target, std::fs::read(&source).unwrap()).unwrap();
        }
    }
}

/// Returns the directory of the store that contains the entry at a stored path, and the entry's
/// name.
fn place(root: &Arc<dyn Dir>, path: &str) -> (Arc<dyn Dir>, String) {
    let mut parts: Vec<&str> = path.split('/').collect();
    let last = parts.pop().unwrap().to_owned();
    let dir = parts.iter().fold(root.clone(), |dir, part| dir.open_dir(part.as_bytes()).unwrap());
    (dir, last)
}

struct Copy {
    _dir: tempfile::TempDir,
    store: Arc<dyn Dir>,
    expected: Expected,
    attributes: bool,
    identity: IdentityFile,
}

/// Copies a frozen vault, and restores what git could not keep.
fn copy(frozen: &Path) -> Copy {
    let expected = Expected::parse(&std::fs::read_to_string(frozen.join("expected.txt")).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("vault");
    copy_tree(&frozen.join("vault"), &root);
    let identity = IdentityFile::decode(&std::fs::read(root.join("+identity")).unwrap()).unwrap();
    let store = OsDir::open(&root).unwrap();
    for path in &expected.store_fifos {
        let (dir, name) = place(&store, path);
        dir.mknod(name.as_bytes(), Kind::Fifo, 0o600, 0).unwrap();
    }
    let mut attributes = true;
    for (path, value) in &expected.store_xattrs {
        let (dir, name) = place(&store, path);
        if let Err(error) = dir.set_xattr(name.as_bytes(), b"user.kithfs", value) {
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
            println!("skipped: extended attributes, which the temporary directory does not have");
            attributes = false;
        }
    }
    Copy { _dir: dir, store, expected, attributes, identity }
}

/// The secret in the age slot, opened with the age identity.
fn age_secret(copy: &Copy) -> Secret {
    let identity: age::x25519::Identity = copy.expected.age_identity.parse().unwrap();
    let slot = copy.identity.slots().find(|slot| slot.kind == SlotKind::Age).unwrap();
    let secret = age::decrypt(&identity, slot.age_file).unwrap();
    let secret = Zeroizing::new(<[u8; 32]>::try_from(secret).unwrap());
    Secret::Age { file: slot.age_file.to_vec(), secret }
}

fn secrets(expected: &Expected) -> [Secret; 3] {
    [
        Secret::Passphrase(Zeroizing::new(expected.passphrase.clone().into_bytes())),
        Secret::RecoveryCode(RecoveryCode::parse(&expected.recovery_code).unwrap()),
        Secret::KeyFile(Zeroizing::new(expected.key_file.clone())),
    ]
}

fn unlock(copy: &Copy) -> Identity {
    copy.identity.unlock(&secrets(&copy.expected)[0]).unwrap()
}

#[test]
fn frozen_vaults_hold_what_was_put_into_them() {
    for frozen in vaults() {
        let copy = copy(&frozen);
        let vault =
            Vault::open(copy.store.clone(), &unlock(&copy), OpenOptions::default()).unwrap();
        let mut found = walk::entries(&vault);
        let mut entries = copy.expected.entries.clone();
        if !copy.attributes {
            for entry in found.values_mut().chain(entries.values_mut()) {
                entry.attributes.clear();
            }
        }
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            entries.keys().collect::<Vec<_>>(),
            "{}: paths",
            frozen.display()
        );
        for (path, entry) in &entries {
            assert_eq!(&found[path], entry, "{}: {path}", frozen.display());
        }
        vault.close().unwrap();
    }
}

#[test]
fn frozen_vaults_have_no_faults() {
    for frozen in vaults() {
        let copy = copy(&frozen);
        for read_only in [true, false] {
            let options = OpenOptions { read_only, ..OpenOptions::default() };
            let vault = Vault::open(copy.store.clone(), &unlock(&copy), options).unwrap();
            let report = vault.check(b"", &mut |_| {}).unwrap();
            assert_eq!(report.faults, [], "{}", frozen.display());
            let count = |kind: &str| {
                copy.expected.entries.values().filter(|entry| entry.kind == kind).count() as u64
            };
            assert_eq!(
                (report.seen.files, report.seen.symlinks, report.seen.others),
                (count("file"), count("symlink"), count("fifo"))
            );
            assert_eq!(report.seen.dirs, count("dir") + 1);
            vault.close().unwrap();
        }
    }
}

#[test]
fn every_secret_unlocks_and_public_facts_are_unchanged() {
    for frozen in vaults() {
        let copy = copy(&frozen);
        let described = Vault::describe(&copy.store).unwrap();
        assert_eq!(hex::encode(described.share_id), copy.expected.share_id);
        assert_eq!(described.founder.to_string(), copy.expected.identity);
        assert_eq!(described.founder.fingerprint(), copy.expected.fingerprint);
        for secret in secrets(&copy.expected).into_iter().chain([age_secret(&copy)]) {
            assert_eq!(copy.identity.unlock(&secret).unwrap().public(), described.founder);
        }
        let name = frozen.file_name().unwrap().as_bytes();
        let spec = make::VAULTS.iter().find(|(n, ..)| n.as_bytes() == name).unwrap();
        assert_eq!((described.suite, described.chunk_size), (spec.1, 1 << spec.2));
    }
}

/// A conflict copy of a directory is sealed for the place of the original. After a rename it keeps
/// its id, and its contents stay readable.
#[test]
fn a_conflict_copy_of_a_directory_can_be_renamed() {
    for frozen in vaults() {
        let copy = copy(&frozen);
        let identity = unlock(&copy);
        let vault = Vault::open(copy.store.clone(), &identity, OpenOptions::default()).unwrap();
        let before = walk::entries(&vault);
        let shown = b"before.sync-conflict-20260102-101112-ABCDEFG";
        vault.rename(ROOT, shown, ROOT, b"kept", RenameMode::NoReplace).unwrap();
        vault.close().unwrap();
        let vault = Vault::open(copy.store.clone(), &identity, OpenOptions::default()).unwrap();
        let after = walk::entries(&vault);
        let moved = |path: &String| path.replacen(&hex::encode(shown), &hex::encode("kept"), 1);
        assert_eq!(
            after,
            before.iter().map(|(path, entry)| (moved(path), entry.clone())).collect()
        );
        assert_eq!(vault.check(b"", &mut |_| {}).unwrap().faults, []);
        vault.close().unwrap();
    }
}

/// A frozen vault can also be changed: the changes are there after the next open, and nothing else
/// has changed.
#[test]
fn frozen_vaults_can_be_written() {
    for frozen in vaults() {
        let copy = copy(&frozen);
        let identity = unlock(&copy);
        let vault = Vault::open(copy.store.clone(), &identity, OpenOptions::default()).unwrap();
        let before = walk::entries(&vault);
        make::put(&vault, b"new", b"put by a later version");
        vault.close().unwrap();
        let vault = Vault::open(copy.store.clone(), &identity, OpenOptions::default()).unwrap();
        let mut after = walk::entries(&vault);
        let new = after.remove(&hex::encode("new")).unwrap();
        assert_eq!(new.contents, blake3::hash(b"put by a later version").to_hex().to_string());
        assert_eq!(after, before);
        vault.close().unwrap();
    }
}

/// Makes the vaults of a new version: `cargo test --test format frozen_vaults::make_vaults --
/// --ignored`.
#[test]
#[ignore = "makes vaults, once for each version of the format"]
fn make_vaults() {
    assert!(!version_1().exists(), "frozen vaults are never made anew: see tests/vaults/README.md");
    make::all(&version_1());
}

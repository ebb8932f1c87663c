//! `kithfs import|export`: whole trees with their metadata.
//!
//! Rules that hold here
//! * A file has its name only when it is complete, with its times: so a file of the same size and time of modification is done. But for
//!   what was copied before an interruption: a power cut can leave all of that and not the contents, so there these are compared.
//! * What fails for one file is reported and counted, and the others go on; the exit code tells.
//! * Metadata of a directory are set after its entries, for these change its times and may need its permissions.

mod export;
mod import;

use std::fs;

use crate::backing::{Kind, SetTime};
use crate::cli::args::files::{Export, Import};
use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::RangeError;
use crate::cli::node::{Node, for_each_entry, partial_name};
use crate::cli::open::{Purpose, open};
use crate::cli::paths::{join, split, split_vault};
use crate::cli::progress::{self, Progress};
use crate::cli::report::{Failure, note};
use crate::cli::size;
use crate::vault::{self, Attr, NodeId, SetAttr, Vault};

/// Name, in the directory that is copied to, of a file that is there while it is, and stays where that is interrupted. No other file has
/// the name, for it is that of one with an empty name.
fn mark() -> String {
    partial_name(b"")
}

/// Whether a copy can do without a mark: what is there may be complete, and its directory not to be written to.
fn may_be_unmarked(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EACCES | libc::EPERM | libc::EROFS))
}

/// Why one entry could not be copied.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    /// In the vault.
    #[error(transparent)]
    Vault(#[from] vault::Error),
    /// Outside.
    #[error("{0}: {1}")]
    Local(&'static str, std::io::Error),
    /// In the way.
    #[error("{0}")]
    Odd(&'static str),
}

impl From<RangeError> for EntryError {
    fn from(error: RangeError) -> EntryError {
        match error {
            RangeError::Local(error) => EntryError::Local("seek", error),
            RangeError::Vault(error) => EntryError::Vault(error),
        }
    }
}

/// Names the local call that failed.
fn local(op: &'static str) -> impl Fn(std::io::Error) -> EntryError {
    move |error| EntryError::Local(op, error)
}

/// As [`local`], for rustix.
fn call(op: &'static str) -> impl Fn(rustix::io::Errno) -> EntryError {
    move |errno| EntryError::Local(op, errno.into())
}

/// What was done so far.
struct Tally {
    progress: Progress,
    copied: u64,
    bytes: u64,
    skipped: u64,
    failed: u64,
    corrupt: bool,
}

impl Tally {
    fn new(bytes: Option<u64>) -> Tally {
        Tally { progress: Progress::new(bytes), copied: 0, bytes: 0, skipped: 0, failed: 0, corrupt: false }
    }

    fn copied(&mut self) {
        self.copied += 1;
        self.progress.files(self.copied + self.skipped);
    }

    fn bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.progress.add(bytes);
    }

    fn skipped(&mut self, bytes: u64) {
        self.skipped += 1;
        self.progress.add(bytes);
        self.progress.files(self.copied + self.skipped);
    }

    fn failed(&mut self, path: Shown<'_>, error: &EntryError) {
        self.failed += 1;
        self.corrupt |= matches!(error, EntryError::Vault(vault::Error::Corrupt { .. }));
        self.progress.warn(format_args!("{path}: {}", Shown(error.to_string().as_bytes())));
    }

    fn finish(self, op: &'static str) -> Result<Exit, Failure> {
        let Tally { progress, copied, bytes, skipped, failed, corrupt } = self;
        drop(progress);
        note(format_args!("{copied} copied ({}), {skipped} there already, {failed} failed", size::show(bytes)));
        match failed {
            0 => Ok(Exit::Ok),
            count => {
                let failure = Failure::from(Error::SomeFailed { op, count });
                Err(if corrupt { failure.exit(Exit::Corrupt) } else { failure })
            }
        }
    }
}

/// Copies a directory into a vault.
pub fn import(args: &Import) -> Result<Exit, Failure> {
    let failed = |source| Error::Io { op: "import", path: args.dir.clone(), source };
    if !fs::metadata(&args.dir).map_err(failed)?.is_dir() {
        return Err(failed(std::io::Error::from_raw_os_error(libc::ENOTDIR)).into());
    }
    let (vault, path) = split_vault(&args.target)?;
    let open = open(&vault, &args.open, Purpose::Write)?;
    if args.dir.canonicalize().map_err(failed)?.starts_with(&open.dir) {
        return Err(Error::Usage(format!("import {}: it lies in the vault {}", shown(&args.dir), shown(&open.dir))).into());
    }
    let total = progress::is_shown().then(|| import::total(&args.dir, &open.dir));
    let target = super::files::make_path(&open.vault, &path, super::files::new_dir_mode()).map_err(open.failed(&path))?;
    let above = std::iter::successors(split(&path).map(|(above, _)| above), |path| split(path).map(|(above, _)| above));
    let is_marked = |path: &[u8]| open.vault.resolve(&join(path, mark().as_bytes())).is_ok();
    let doubtful = above.into_iter().any(is_marked);
    let tally = import::run(&open, &args.dir, target.id(), doubtful, Tally::new(total));
    drop(target);
    let closed = open.close();
    let exit = tally.finish("import");
    closed?;
    exit
}

/// Copies a directory out of a vault.
pub fn export(args: &Export) -> Result<Exit, Failure> {
    let (vault, path) = split_vault(&args.source)?;
    let open = open(&vault, &args.open, Purpose::Read)?;
    let source = Node::at(&open.vault, &path).map_err(open.failed(&path))?;
    if !source.is_dir() {
        return Err(open.failed(&path)(vault::Error::Os { op: "export", errno: libc::ENOTDIR }));
    }
    let failed = |source| Error::Io { op: "export to", path: args.dir.clone(), source };
    open.refuse_within("export to", &args.dir)?;
    fs::create_dir_all(&args.dir).map_err(failed)?;
    let total = progress::is_shown().then(|| total(&open.vault, source.id(), libc::PATH_MAX as usize / 2));
    let allowed = export::Allowed { suid: args.suid, dev: args.dev };
    let tally = export::run(&open.vault, &source, &path, &args.dir, allowed, Tally::new(total));
    drop(source);
    let closed = open.close();
    let exit = tally.finish("export");
    closed?;
    exit
}

/// Bytes of all files below a directory of a vault, as far as they can be found out, and copied: no local path is of more than `depth`
/// components.
fn total(vault: &Vault, dir: NodeId, depth: usize) -> u64 {
    let mut bytes = 0;
    if depth == 0 {
        return bytes;
    }
    let _ = for_each_entry(vault, dir, |entry| -> vault::Result<()> {
        if let Ok(Some(node)) = Node::child(vault, dir, &entry.name) {
            match node.attr.kind {
                Kind::File => bytes += node.attr.size,
                Kind::Dir => bytes += total(vault, node.id(), depth - 1),
                _ => {}
            }
        }
        Ok(())
    });
    bytes
}

/// Sets owner (only root can), then mode (which a change of owner would cut), then times.
fn set_metadata(vault: &Vault, node: NodeId, stat: &fs::Metadata) -> vault::Result<Attr> {
    use std::os::unix::fs::MetadataExt;
    if rustix::process::geteuid().is_root() {
        vault.setattr(node, &SetAttr { uid: Some(stat.uid()), gid: Some(stat.gid()), ..SetAttr::default() })?;
    }
    let (atime, mtime) = (crate::cli::local::atime(stat), crate::cli::local::mtime(stat));
    // a link has no mode of its own
    let perm = (!stat.is_symlink()).then_some(stat.mode() & 0o7777);
    vault.setattr(node, &SetAttr { perm, atime: SetTime::At(atime), mtime: SetTime::At(mtime), ..SetAttr::default() })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::backing::fault::{Calls, Fault, FaultPlan, FaultStore, When};
    use crate::backing::mem::MemStore;
    use crate::backing::os::OsDir;
    use crate::backing::{Call, RenameMode, Timestamp};
    use crate::cli::local;
    use crate::cli::node::OpenFile;
    use crate::cli::open::Open;
    use crate::crypto::Suite;
    use crate::sharing::Identity;
    use crate::vault::{Caller, CreateOptions, OpenOptions, OsRandom, ROOT, SetXattr};

    /// A vault in a directory of its own, and a tree to copy.
    struct Scene {
        dir: tempfile::TempDir,
        owner: Identity,
        open: Open,
    }

    impl Scene {
        fn new() -> Scene {
            let dir = tempfile::tempdir().unwrap();
            let (vault, source) = (dir.path().join("vault"), dir.path().join("source"));
            fs::create_dir(&vault).unwrap();
            fs::create_dir_all(source.join("sub/empty")).unwrap();
            fs::write(source.join("one"), "1").unwrap();
            fs::write(source.join("none"), "").unwrap();
            fs::write(source.join("sub/large"), vec![7; 700_001]).unwrap();
            fs::hard_link(source.join("one"), source.join("sub/other")).unwrap();
            symlink("../one", source.join("sub/link")).unwrap();
            let sparse = fs::File::create(source.join("sparse")).unwrap();
            sparse.set_len(40 << 20).unwrap();
            sparse.write_all_at(b"island", 20 << 20).unwrap();
            local::set_times(&sparse, Timestamp { secs: -5, nanos: 7 }, Timestamp { secs: 1_000_000_000, nanos: 123_456_789 }).unwrap();
            fs::set_permissions(source.join("one"), fs::Permissions::from_mode(0o4751)).unwrap();
            fs::set_permissions(source.join("sub/empty"), fs::Permissions::from_mode(0o1711)).unwrap();
            let store = OsDir::open(&vault).unwrap();
            let owner = Identity::generate(&OsRandom);
            Vault::create(&store, &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 16 }, &owner).unwrap();
            let open = Open { vault: Vault::open(store, &owner, OpenOptions::default()).unwrap(), dir: vault };
            Scene { dir, owner, open }
        }

        fn source(&self) -> std::path::PathBuf {
            self.dir.path().join("source")
        }

        fn import(&self) -> Tally {
            import::run(&self.open, &self.source(), ROOT, false, Tally::new(None))
        }

        fn export(&self) -> (Tally, std::path::PathBuf) {
            self.export_with(export::Allowed { suid: true, dev: true })
        }

        fn export_with(&self, allowed: export::Allowed) -> (Tally, std::path::PathBuf) {
            let target = self.dir.path().join("target");
            fs::create_dir_all(&target).unwrap();
            let root = Node::at(&self.open.vault, b"").unwrap();
            (export::run(&self.open.vault, &root, b"", &target, allowed, Tally::new(None)), target)
        }
    }

    /// Everything of a tree that must be the same in a copy.
    fn describe(root: &Path) -> Vec<String> {
        fn walk(root: &Path, dir: &Path, out: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let stat = fs::symlink_metadata(&path).unwrap();
                let contents = match () {
                    () if stat.is_file() => format!("{} {:?}", stat.len(), fs::read(&path).unwrap().iter().position(|&byte| byte != 0)),
                    () if stat.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
                    () => String::new(),
                };
                let place = path.strip_prefix(root).unwrap().display();
                let (mode, links) = (stat.mode(), if stat.is_dir() { 0 } else { stat.nlink() });
                let owner = (stat.uid(), stat.gid());
                out.push(format!("{place} {mode:o} {links} {owner:?} {}.{} {contents}", stat.mtime(), stat.mtime_nsec()));
                if stat.is_dir() {
                    walk(root, &path, out);
                }
            }
        }
        let mut out = Vec::new();
        walk(root, root, &mut out);
        out.sort();
        out
    }

    fn counts(tally: &Tally) -> (u64, u64, u64) {
        (tally.copied, tally.skipped, tally.failed)
    }

    #[test]
    fn a_tree_goes_in_and_comes_out_the_same_and_a_second_run_copies_nothing() {
        let scene = Scene::new();
        assert_eq!(counts(&scene.import()), (6, 0, 0));
        assert_eq!(counts(&scene.import()), (0, 6, 0), "all is there");
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (6, 0, 0));
        assert!(tally.bytes < 4 << 20, "holes were not copied: {}", tally.bytes);
        let mut expected = describe(&scene.source());
        if !rustix::process::geteuid().is_root() {
            // without root the owner of a copy may be another one, so its set-user-id bit is not kept
            expected.iter_mut().for_each(|line| *line = line.replace(" 104751 ", " 100751 "));
        }
        assert_eq!(describe(&target), expected);
        assert_eq!(counts(&scene.export().0), (0, 6, 0), "all is there");
    }

    #[test]
    fn what_an_export_cannot_copy_is_no_success() {
        // A directory whose names could not be read came out empty: the export said that all was well.
        let scene = Scene::new();
        scene.import();
        let stored = |path: &[u8]| scene.open.dir.join(OsStr::from_bytes(&scene.open.vault.cipher_path(path).unwrap()));
        // What somebody else has put there is none of the vault's.
        fs::write(scene.open.dir.join("Thumbs.db"), "").unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (6, 0, 0));
        fs::remove_dir_all(&target).unwrap();
        // An entry that was moved beneath the vault, where its name says nothing.
        let place = stored(b"sub/empty").join(stored(b"none").file_name().unwrap());
        fs::rename(stored(b"none"), &place).unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (5, 0, 1));
        assert_eq!(fs::read_dir(target.join("sub/empty")).unwrap().count(), 0);
    }

    #[test]
    fn a_conflict_copy_beside_a_file_of_its_name_comes_out_too() {
        // A sync tool's copy of "one" shows as "one (1)", and somebody's own file has this name: of two entries that were shown under one
        // name the second was left out, at first without a word.
        let scene = Scene::new();
        scene.import();
        let stored = |path: &[u8]| scene.open.dir.join(OsStr::from_bytes(&scene.open.vault.cipher_path(path).unwrap()));
        fs::write(scene.source().join("one (1)"), "own").unwrap();
        scene.import();
        let one = stored(b"one");
        let copy = [one.file_name().unwrap().as_bytes(), b" (1)"].concat();
        fs::copy(&one, one.with_file_name(OsStr::from_bytes(&copy))).unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (8, 0, 0));
        assert_eq!(fs::read(target.join("one (1)")).unwrap(), b"own");
        assert_eq!(fs::read(target.join(OsStr::from_bytes(&copy))).unwrap(), b"1");
    }

    #[test]
    fn what_cannot_be_replaced_stays() {
        // What stood in the way of a link was removed before the link was made: on a store that has no links of this kind (exFAT, sshfs) it
        // was gone, and each later run failed in the same way.
        let scene = Scene::new();
        let plan = FaultPlan::new();
        let store = FaultStore::wrap(OsDir::open(&scene.open.dir).unwrap(), plan.clone());
        scene.open.vault.close().unwrap();
        let open = Open { vault: Vault::open(store, &scene.owner, OpenOptions::default()).unwrap(), dir: scene.open.dir.clone() };
        let import = || import::run(&open, &scene.source(), ROOT, false, Tally::new(None));
        assert_eq!(import().failed, 0);
        // A file, a link and a name of another file become a link, another link and names of one file.
        for name in ["none", "sub/link", "sub/other"] {
            fs::remove_file(scene.source().join(name)).unwrap();
        }
        symlink("one", scene.source().join("none")).unwrap();
        symlink("../none", scene.source().join("sub/link")).unwrap();
        fs::hard_link(scene.source().join("sub/large"), scene.source().join("sub/other")).unwrap();
        for call in [Call::Symlink, Call::Link] {
            plan.add(Fault { calls: Calls::Of(call), when: When::From(1), errno: libc::EPERM, short: false });
        }
        assert_eq!(import().failed, 3);
        let stat = |path: &[u8]| Node::at(&open.vault, path).map(|node| (node.attr.kind, node.attr.size, node.attr.ino)).unwrap();
        let kind_and_size = |path: &[u8]| (stat(path).0, stat(path).1);
        assert_eq!([kind_and_size(b"none"), kind_and_size(b"sub/link")], [(Kind::File, 0), (Kind::Symlink, 6)]);
        // Whichever of the two names comes first is copied, the other one is a link to it.
        assert_eq!(kind_and_size(b"sub/large"), (Kind::File, 700_001));
        assert!([1, 700_001].contains(&stat(b"sub/other").1) && stat(b"sub/other") != stat(b"sub/large"));
        plan.reset();
        assert_eq!(import().failed, 0);
        assert_eq!(kind_and_size(b"none"), (Kind::Symlink, 3));
        assert_eq!(stat(b"sub/other"), stat(b"sub/large"));
    }

    #[test]
    fn what_a_power_cut_has_left_of_an_import_is_not_taken_for_done() {
        // A power cut can leave a file's name, size and time without its contents. The next run said that it was there already, and nobody
        // would have looked for it before it was needed.
        let scene = Scene::new();
        let store = MemStore::new();
        Vault::create(&store.root(), &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 }, &scene.owner).unwrap();
        let import = |store: &MemStore| {
            let vault = Vault::open(store.root(), &scene.owner, OpenOptions::default()).unwrap();
            let open = Open { vault, dir: scene.open.dir.clone() };
            (import::run(&open, &scene.source(), ROOT, false, Tally::new(None)), open)
        };
        // Each moment in which a file gets its name; none once the command is about to say that all is done.
        let moments = Arc::new(Mutex::new(Vec::new()));
        let (noted, probe) = (moments.clone(), store.clone());
        store.on_event(Box::new(move |event| {
            if event.call == Call::Rename {
                noted.lock().push(probe.snapshot());
            }
        }));
        assert_eq!(import(&store).0.failed, 0);
        store.on_event(Box::new(|_| {}));
        let mut state = 1u64;
        let mut choose = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let moments = std::mem::take(&mut *moments.lock());
        assert!(moments.len() > 3);
        let mut compared = 0;
        for moment in moments.iter().cycle().take(60) {
            let (tally, open) = import(&moment.crash(&mut choose));
            assert_eq!(tally.failed, 0);
            for name in ["one", "none", "sparse", "sub/large", "sub/other"] {
                let node = Node::at(&open.vault, name.as_bytes()).unwrap();
                let file = OpenFile::read(&open.vault, node.id()).unwrap_or_else(|error| panic!("{name}: {error}"));
                let wanted = fs::read(scene.source().join(name)).unwrap();
                let mut found = vec![0; wanted.len() + 1];
                let read = open.vault.read(file.handle(), 0, &mut found).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(found[..read] == wanted, "{name}");
                compared += 1;
            }
            open.vault.close().unwrap();
        }
        assert_eq!(compared, 300);
    }

    #[test]
    fn what_an_interrupted_export_has_left_is_compared() {
        // As with an import: a stick that is pulled, or a power cut, can leave name, size and time of a file and other bytes.
        let scene = Scene::new();
        scene.import();
        let (_, target) = scene.export();
        let spoil = || {
            let file = fs::File::options().write(true).open(target.join("sub/large")).unwrap();
            let stat = file.metadata().unwrap();
            file.write_all_at(&[0; 4096], 8192).unwrap();
            local::set_times(&file, local::atime(&stat), local::mtime(&stat)).unwrap();
        };
        spoil();
        assert_eq!(counts(&scene.export().0), (0, 6, 0), "an export that came to its end is believed");
        for place in ["", "sub"] {
            fs::write(target.join(place).join(mark()), "").unwrap();
            spoil();
            assert_eq!(counts(&scene.export().0), (1, 5, 0), "{place}");
            assert_eq!(fs::read(target.join("sub/large")).unwrap(), vec![7; 700_001]);
            assert_eq!(target.join(place).join(mark()).exists(), place == "sub", "a mark goes with the export that has set it");
            let _ = fs::remove_file(target.join(place).join(mark()));
        }
    }

    #[test]
    fn an_export_to_which_another_one_came_is_done_all_the_same() {
        // The one that came to its end first took the mark with it, and the other one, which missed it, said that it had failed.
        let scene = Scene::new();
        scene.import();
        let plan = FaultPlan::new();
        let store = FaultStore::wrap(OsDir::open(&scene.open.dir).unwrap(), plan.clone());
        scene.open.vault.close().unwrap();
        let vault = Vault::open(store, &scene.owner, OpenOptions::default()).unwrap();
        let target = scene.dir.path().join("target");
        fs::create_dir(&target).unwrap();
        plan.slow_down(Call::Read, std::time::Duration::from_millis(100));
        std::thread::scope(|scope| {
            let export = scope.spawn(|| {
                let root = Node::at(&vault, b"").unwrap();
                export::run(&vault, &root, b"", &target, export::Allowed::default(), Tally::new(None))
            });
            while !export.is_finished() && fs::remove_file(target.join(mark())).is_err() {
                std::thread::yield_now();
            }
            assert_eq!(counts(&export.join().unwrap()), (6, 0, 0));
        });
        assert!(!target.join(mark()).exists());
    }

    #[test]
    fn what_gives_rights_is_made_only_where_that_is_asked_for() {
        // Modes and kinds are the store's own: whoever stores a vault that root exports could make any file of it a program that runs as
        // root, or a node of the machine's disk for everybody.
        let scene = Scene::new();
        scene.import();
        let vault = &scene.open.vault;
        let one = Node::child(vault, ROOT, b"one").unwrap().unwrap();
        assert_eq!(one.attr.perm, 0o4751);
        let is_root = rustix::process::geteuid().is_root();
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let mut nodes = 0;
        if is_root {
            let disk = vault.mknod(&caller, ROOT, b"disk", Kind::BlockDevice, 0o666, rustix::fs::makedev(7, 200)).unwrap();
            vault.forget(disk.node, 1);
            nodes = 1;
            // version 2, one capability, effective
            let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            vault.set_xattr(one.id(), b"security.capability", &capability, SetXattr::Any).unwrap();
        }
        let (tally, target) = scene.export_with(export::Allowed::default());
        assert_eq!((tally.copied, tally.failed), (6, nodes));
        assert_eq!(fs::metadata(target.join("one")).unwrap().mode() & 0o7777, 0o751);
        assert!(fs::symlink_metadata(target.join("disk")).is_err());
        let capabilities = |path: &Path| local::xattrs(path).unwrap().iter().filter(|(name, _)| name == b"security.capability").count();
        assert_eq!(capabilities(&target.join("one")), 0);
        fs::remove_dir_all(&target).unwrap();
        let (tally, target) = scene.export();
        assert_eq!((tally.copied, tally.failed), (6 + nodes, 0));
        let perm = if is_root { 0o4751 } else { 0o751 };
        assert_eq!(fs::metadata(target.join("one")).unwrap().mode() & 0o7777, perm);
        assert_eq!(capabilities(&target.join("one")), nodes as usize);
    }

    #[test]
    fn what_changed_is_copied_again_and_what_a_broken_run_left_is_replaced() {
        let scene = Scene::new();
        scene.import();
        fs::write(scene.source().join("one"), "changed").unwrap();
        let (vault, partial) = (&scene.open.vault, partial_name(b"one"));
        vault.rename(ROOT, b"none", ROOT, partial.as_bytes(), RenameMode::Replace).unwrap();
        let tally = scene.import();
        assert_eq!(tally.failed, 0);
        assert!(Node::child(vault, ROOT, partial.as_bytes()).unwrap().is_none(), "the rest of a broken run is gone");
        let target = scene.export().1;
        assert_eq!(fs::read(target.join("one")).unwrap(), b"changed");
        assert_eq!(fs::metadata(target.join("sub/other")).unwrap().nlink(), 2, "the other name is one of the same file");
        assert_eq!(fs::read(target.join("none")).unwrap(), b"");
    }

    #[test]
    fn one_file_that_fails_is_counted_and_the_others_go_on() {
        let scene = Scene::new();
        scene.import();
        let target = scene.dir.path().join("target");
        fs::create_dir_all(target.join("one")).unwrap();
        let (tally, target) = scene.export();
        // `one` and its other name are one file, whose first name may be either
        assert_eq!((tally.copied, tally.failed), (5, 1));
        assert!(target.join("sub/large").exists());
        assert!(target.join("one").is_dir(), "what was in the way stays");
        let failure = tally.finish("export").unwrap_err();
        assert_eq!(failure.exit, Exit::Failure);
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let scene = Scene::new();
        scene.import();
        let (target, outside) = (scene.dir.path().join("target"), scene.dir.path().join("outside"));
        fs::create_dir_all(&target).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, target.join("sub")).unwrap();
        symlink(outside.join("file"), target.join("none")).unwrap();
        let (tally, _) = scene.export();
        assert_eq!(tally.failed, 1, "the directory whose place is taken");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(fs::symlink_metadata(target.join("none")).unwrap().is_file(), "the link was replaced");
    }
}

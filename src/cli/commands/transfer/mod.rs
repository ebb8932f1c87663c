//! `kithfs import|export`: whole trees with their metadata.
//!
//! Rules that hold here
//! * A file gets its final name only when it is complete, with its times.
//! * An existing file at the target is kept only if it has the same contents, which are read and
//!   compared. The storage host can choose sizes and times, and a power cut can leave them without
//!   the contents.
//! * Both trees are walked by descriptor. A symlink that replaces a directory during the copy is
//!   not followed.
//! * A failure of one file is reported and counted, and the others are copied; the exit code
//!   reports it.
//! * Metadata of a directory is set after its entries, as these change its times and may need its
//!   permissions.

mod export;
mod import;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::cli::args::files::{Export, Import};
use crate::cli::daemon::signals;
use crate::cli::display::{self, Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::{self as files, DataRanges, Descent, Object, RangeError};
use crate::cli::report::{Failure, note};
use crate::cli::terminal::progress::{self, Progress};
use crate::cli::vaults::nodes::{self, BLOCK, Node, OpenFile, names};
use crate::cli::vaults::open::{Purpose, open};
use crate::cli::vaults::paths::{self, join};
use crate::store::{Kind, SetTime};
use crate::vault::{self, Attr, NodeId, SetAttr, Vault};

/// The failure of a file that was truncated during the copy.
const SHORTER: &str = "it was truncated while it was read";

/// The reason why one entry could not be copied.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    /// An operation in the vault failed.
    #[error(transparent)]
    Vault(#[from] vault::Error),
    /// A call outside the vault failed.
    #[error("{0}: {1}")]
    Local(&'static str, std::io::Error),
    /// The entry itself is unsuitable.
    #[error("{0}")]
    Odd(&'static str),
    /// The user has asked the command to stop.
    #[error("interrupted")]
    Interrupted,
}

impl EntryError {
    /// Returns why the whole copy ends; `None` if other entries may succeed.
    fn stops(&self) -> Option<Stop> {
        let errno = match self {
            EntryError::Vault(error) => error.errno(),
            EntryError::Local(_, error) => error.raw_os_error()?,
            EntryError::Odd(_) => return None,
            EntryError::Interrupted => return Some(Stop::Interrupted),
        };
        [libc::ENOSPC, libc::EDQUOT].contains(&errno).then_some(Stop::Full)
    }
}

/// Why a copy ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The disk or the quota is full.
    Full,
    /// The user has asked for it.
    Interrupted,
}

impl From<RangeError> for EntryError {
    fn from(error: RangeError) -> EntryError {
        match error {
            RangeError::Local(error) => EntryError::Local("seek", error),
            RangeError::Vault(error) => EntryError::Vault(error),
        }
    }
}

/// Adds the name of the failed local call.
fn local(op: &'static str) -> impl Fn(std::io::Error) -> EntryError {
    move |error| EntryError::Local(op, error)
}

/// Does [`local`] for errors of rustix.
fn call(op: &'static str) -> impl Fn(rustix::io::Errno) -> EntryError {
    move |errno| EntryError::Local(op, errno.into())
}

/// The counts of a copy.
struct Tally {
    progress: Progress,
    copied: u64,
    bytes: u64,
    /// Bytes of complete files.
    copied_bytes: u64,
    skipped: u64,
    skipped_bytes: u64,
    failed: u64,
    corrupt: bool,
    /// Why the copy ended early, and at which path.
    stopped: Option<(Stop, String)>,
}

impl Tally {
    fn new(bytes: Option<u64>) -> Tally {
        Tally {
            progress: Progress::new(bytes),
            copied: 0,
            bytes: 0,
            copied_bytes: 0,
            skipped: 0,
            skipped_bytes: 0,
            failed: 0,
            corrupt: false,
            stopped: None,
        }
    }

    fn copied(&mut self) {
        self.copied += 1;
        self.copied_bytes = self.bytes;
        self.progress.files(self.copied + self.skipped);
    }

    fn bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.progress.add(bytes);
    }

    fn skipped(&mut self, bytes: u64) {
        self.skipped += 1;
        self.skipped_bytes += bytes;
        self.progress.add(bytes);
        self.progress.files(self.copied + self.skipped);
    }

    /// Returns whether the copy ends here.
    fn has_stopped(&mut self) -> bool {
        if self.stopped.is_none() && signals::is_interrupted() {
            self.stopped = Some((Stop::Interrupted, String::new()));
        }
        self.stopped.is_some()
    }

    fn failed(&mut self, path: Shown<'_>, error: &EntryError) {
        // What was written of this file is removed again.
        self.bytes = self.copied_bytes;
        if let Some(stop) = error.stops() {
            self.stopped.get_or_insert((stop, path.to_string()));
            return;
        }
        self.failed += 1;
        self.corrupt |= matches!(error, EntryError::Vault(vault::Error::Corrupt { .. }));
        self.progress.warn(format_args!("{path}: {}", Shown(error.to_string().as_bytes())));
    }

    /// Reports the result. `disk` is in the filesystem that is written to, `total` counts the bytes
    /// of the whole copy.
    fn finish(
        self,
        op: &'static str,
        disk: &Path,
        total: impl FnOnce() -> u64,
    ) -> Result<Exit, Failure> {
        let Tally {
            progress, copied, bytes, skipped, skipped_bytes, failed, corrupt, stopped, ..
        } = self;
        drop(progress);
        note(format_args!(
            "{copied} copied ({}), {skipped} already there, {failed} failed",
            display::size(bytes)
        ));
        match stopped {
            Some((Stop::Full, path)) => {
                let left = total().saturating_sub(bytes + skipped_bytes);
                Err(Error::Full { op, path, left, free: free(disk) }.into())
            }
            Some((Stop::Interrupted, _)) => Err(Error::Interrupted(op).into()),
            None if failed == 0 => Ok(Exit::Ok),
            None => {
                let failure = Failure::from(Error::SomeFailed { op, count: failed });
                Err(if corrupt { failure.exit(Exit::Corrupt) } else { failure })
            }
        }
    }

    /// Returns whether the disk was full.
    fn is_full(&self) -> bool {
        matches!(self.stopped, Some((Stop::Full, _)))
    }
}

/// Returns the path of an entry of the current directory of a copy, or of that directory itself.
fn path_of(top: &[u8], descent: &Descent, name: Option<&[u8]>) -> Vec<u8> {
    let mut path = top.to_vec();
    for part in [&descent.path()[..], name.unwrap_or_default()] {
        if !part.is_empty() {
            path = join(&path, part);
        }
    }
    path
}

/// Returns the bytes that this user may still write to a filesystem.
fn free(place: &Path) -> u64 {
    rustix::fs::statvfs(place).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Copies a directory into a vault.
pub fn import(args: &Import) -> Result<Exit, Failure> {
    signals::take_interrupts(|| {})?;
    let failed = |source| Error::Io { op: "import", path: args.dir.clone(), source };
    let source = Object::open_root(&args.dir).map_err(failed)?;
    let (vault, path) = paths::one(&args.target, args.path.as_deref())?;
    let open = open(&vault, &args.open, Purpose::Write)?.recording(&args.memory);
    let store = Object::open_root(&open.dir).map_err(failed)?;
    if source.is_within(&store).map_err(failed)? {
        return Err(Error::Usage(format!(
            "import {}: it is inside the vault {}",
            shown(&args.dir),
            shown(&open.dir)
        ))
        .into());
    }
    let total = if progress::is_shown() {
        Some(import::total(&source, &store).map_err(failed)?)
    } else {
        None
    };
    let target =
        nodes::make_path(&open.vault, &path, nodes::new_dir_mode()).map_err(open.failed(&path))?;
    let tally = import::run(&open.vault, &store, source, &args.dir, target, Tally::new(total));
    let is_full = tally.is_full();
    let closed = open.close();
    let total = || {
        let all = Object::open_root(&args.dir).and_then(|source| import::total(&source, &store));
        all.unwrap_or(0)
    };
    let exit = tally.finish("import", &open.dir, total);
    // On a full disk, a failure to close has the same cause, and one message is enough.
    if !is_full {
        closed?;
    }
    exit
}

/// Copies a directory out of a vault.
pub fn export(args: &Export) -> Result<Exit, Failure> {
    signals::take_interrupts(|| {})?;
    let (dir, path) = args.rest.split_last().expect("clap wants one at least");
    let path = path.first().map(|path| path.as_os_str());
    let (vault, path) = paths::one(&args.source, path)?;
    files::check_can_make(dir).map_err(Error::io("export to", dir))?;
    let open = open(&vault, &args.open, Purpose::Read)?;
    let source = Node::at(&open.vault, &path).map_err(open.failed(&path))?;
    if !source.is_dir() {
        return Err(open.failed(&path)(vault::Error::Os { op: "export", errno: libc::ENOTDIR }));
    }
    let target = open.make_target("export to", dir)?;
    let total = progress::is_shown().then(|| total(&open.vault, source.id()));
    let allowed = export::Allowed { suid: args.suid, dev: args.dev };
    let tally = export::run(&open.vault, source, &path, target, allowed, Tally::new(total));
    // Looks the directory up again, as the copy has taken its node.
    let whole = || Node::at(&open.vault, &path).map_or(0, |top| self::total(&open.vault, top.id()));
    let exit = tally.finish("export", dir, whole);
    open.close()?;
    exit
}

/// Returns the bytes of all readable files below a directory of a vault.
fn total(vault: &Vault, dir: NodeId) -> u64 {
    let mut bytes = 0;
    let list = |dir| names(vault, dir).unwrap_or_default();
    let mut levels = vec![(dir, None, list(dir))];
    while let Some((dir, _, left)) = levels.last_mut() {
        let Some(name) = left.pop() else {
            levels.pop();
            continue;
        };
        match Node::child(vault, *dir, &name) {
            Ok(Some(node)) if node.attr.kind == Kind::File => bytes += node.attr.size,
            Ok(Some(node)) if node.is_dir() => {
                let left = list(node.id());
                levels.push((node.id(), Some(node), left));
            }
            _ => {}
        }
    }
    bytes
}

/// Returns whether a file of a vault and one outside have the same contents. The size is read from
/// the open file, so it is that of the authenticated header.
fn same_contents(
    vault: &Vault,
    node: NodeId,
    file: &fs::File,
    buffers: &mut [Vec<u8>; 2],
) -> Result<bool, RangeError> {
    let opened = OpenFile::read(vault, node).map_err(RangeError::Vault)?;
    let size = vault.getattr(node).map_err(RangeError::Vault)?.size;
    let has_this_size = || Ok(file.metadata().map_err(RangeError::Local)?.len() == size);
    if !has_this_size()? {
        return Ok(false);
    }
    let [left, right] = buffers;
    let (inside, outside) =
        (DataRanges::of_vault(vault, opened.handle(), size), DataRanges::of_local(file, size));
    let mut at = 0;
    while at < size {
        // If both have a hole, both are zeros.
        at = match (inside.next_data(at)?, outside.next_data(at)?) {
            (Some(left), Some(right)) => left.min(right),
            (left, right) => left.or(right).unwrap_or(size),
        };
        let want = BLOCK.min(usize::try_from(size.saturating_sub(at)).unwrap_or(BLOCK));
        let left =
            fill(&mut left[..want], |buffer, done| vault.read(opened.handle(), at + done, buffer))
                .map_err(RangeError::Vault)?;
        let right = fill(&mut right[..want], |buffer, done| file.read_at(buffer, at + done))
            .map_err(RangeError::Local)?;
        if left.len() != want || left != right {
            return Ok(false);
        }
        at += want as u64;
    }
    has_this_size()
}

/// Reads until the buffer is full or the file ends; returns the part that was read.
fn fill<E>(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, E>,
) -> Result<&[u8], E> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(&buffer[..done])
}

/// Extended attributes by their names.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the extended attributes of an inode.
fn attributes(vault: &Vault, node: NodeId) -> vault::Result<Attributes> {
    let mut found = Vec::new();
    for name in vault.list_xattr(node)? {
        match vault.get_xattr(node, &name) {
            Err(error) if error.errno() == libc::ENODATA => {}
            value => found.push((name.to_vec(), value?)),
        }
    }
    Ok(found)
}

/// Returns whether two files have the same attributes. All but `user.*` may be missing on one side
/// (see [`may_be_left_out`](crate::cli::local::may_be_left_out)).
fn same_attributes(one: &Attributes, other: &Attributes) -> bool {
    let value = |of: &Attributes, name| {
        of.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    one.iter().chain(other).all(|(name, _)| match (value(one, name), value(other, name)) {
        (Some(one), Some(other)) => one == other,
        _ => !name.starts_with(b"user."),
    })
}

/// Sets the owner (only as root), then the mode, of which a change of owner would clear bits, and
/// the times.
fn set_metadata(vault: &Vault, node: NodeId, stat: &fs::Metadata) -> vault::Result<Attr> {
    use std::os::unix::fs::MetadataExt;
    if rustix::process::geteuid().is_root() {
        vault.setattr(
            node,
            &SetAttr { uid: Some(stat.uid()), gid: Some(stat.gid()), ..SetAttr::default() },
        )?;
    }
    let (atime, mtime) = (crate::cli::local::atime(stat), crate::cli::local::mtime(stat));
    // A symlink has no mode.
    let perm = (!stat.is_symlink()).then_some(stat.mode() & 0o7777);
    vault.setattr(
        node,
        &SetAttr {
            perm,
            atime: SetTime::At(atime),
            mtime: SetTime::At(mtime),
            ..SetAttr::default()
        },
    )
}

#[cfg(test)]
mod tests {
    use crate::format::suffix;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::cli::local::{self, Descent, os_str};
    use crate::cli::vaults::nodes::partial_name;
    use crate::cli::vaults::open::Open;
    use crate::crypto::Suite;
    use crate::roster::Identity;
    use crate::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
    use crate::store::mem::MemStore;
    use crate::store::os::OsDir;
    use crate::store::{Call, RenameMode, Timestamp};
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
            local::set_times(
                &sparse,
                Timestamp { secs: -5, nanos: 7 },
                Timestamp { secs: 1_000_000_000, nanos: 123_456_789 },
            )
            .unwrap();
            fs::set_permissions(source.join("one"), fs::Permissions::from_mode(0o4751)).unwrap();
            fs::set_permissions(source.join("sub/empty"), fs::Permissions::from_mode(0o1711))
                .unwrap();
            let store = OsDir::open(&vault).unwrap();
            let owner = Identity::generate(&OsRandom);
            Vault::create(
                &store,
                &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 16 },
                &owner,
            )
            .unwrap();
            let open = Open {
                share: Vault::describe(&store).unwrap().share_id,
                vault: Vault::open(store, &owner, OpenOptions::default()).unwrap(),
                dir: vault,
            };
            Scene { dir, owner, open }
        }

        fn source(&self) -> std::path::PathBuf {
            self.dir.path().join("source")
        }

        fn import(&self) -> Tally {
            self.import_into(&self.open.vault)
        }

        fn import_into(&self, vault: &Vault) -> Tally {
            let store = Object::open_root(&self.open.dir).unwrap();
            let source = Object::open_root(&self.source()).unwrap();
            import::run(
                vault,
                &store,
                source,
                &self.source(),
                Node::at(vault, b"").unwrap(),
                Tally::new(None),
            )
        }

        fn export(&self) -> (Tally, std::path::PathBuf) {
            self.export_with(export::Allowed { suid: true, dev: true })
        }

        fn export_with(&self, allowed: export::Allowed) -> (Tally, std::path::PathBuf) {
            let target = self.dir.path().join("target");
            fs::create_dir_all(&target).unwrap();
            (export_from(&self.open.vault, &target, allowed), target)
        }

        /// Returns the ciphertext path of a plain one.
        fn stored(&self, path: &[u8]) -> std::path::PathBuf {
            self.open.dir.join(OsStr::from_bytes(&self.open.vault.cipher_path(path).unwrap()))
        }

        /// Opens the vault again, on a store with a plan, replacing the open one.
        fn reopened(&self, plan: &Arc<FaultPlan>) -> Vault {
            self.open.vault.close().unwrap();
            let store = FaultStore::wrap(OsDir::open(&self.open.dir).unwrap(), plan.clone());
            Vault::open(store, &self.owner, OpenOptions::default()).unwrap()
        }
    }

    fn export_from(vault: &Vault, target: &Path, allowed: export::Allowed) -> Tally {
        let target = Object::open_root(target).unwrap();
        export::run(vault, Node::at(vault, b"").unwrap(), b"", target, allowed, Tally::new(None))
    }

    /// Changes bytes of a file but neither its size nor its times.
    fn change(path: &Path, offset: u64, change: impl Fn(u8) -> u8) {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let stat = file.metadata().unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[change(byte[0])], offset).unwrap();
        local::set_times(&file, local::atime(&stat), local::mtime(&stat)).unwrap();
    }

    /// Returns everything of a tree that must be the same in a copy.
    fn describe(root: &Path) -> Vec<String> {
        fn walk(root: &Path, dir: &Path, out: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let stat = fs::symlink_metadata(&path).unwrap();
                let contents = match () {
                    () if stat.is_file() => format!(
                        "{} {:?}",
                        stat.len(),
                        fs::read(&path).unwrap().iter().position(|&byte| byte != 0)
                    ),
                    () if stat.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
                    () => String::new(),
                };
                let place = path.strip_prefix(root).unwrap().display();
                let (mode, links) = (stat.mode(), if stat.is_dir() { 0 } else { stat.nlink() });
                let owner = (stat.uid(), stat.gid());
                out.push(format!(
                    "{place} {mode:o} {links} {owner:?} {}.{} {contents}",
                    stat.mtime(),
                    stat.mtime_nsec()
                ));
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
    fn a_tree_makes_a_round_trip_and_a_second_run_copies_nothing() {
        let scene = Scene::new();
        assert_eq!(counts(&scene.import()), (6, 0, 0));
        assert_eq!(counts(&scene.import()), (0, 6, 0), "all is there");
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (6, 0, 0));
        assert!(tally.bytes < 4 << 20, "holes were not copied: {}", tally.bytes);
        let mut expected = describe(&scene.source());
        if !rustix::process::geteuid().is_root() {
            // Without root the owner of a copy may differ, so its set-user-ID bit is dropped.
            expected.iter_mut().for_each(|line| *line = line.replace(" 104751 ", " 100751 "));
        }
        assert_eq!(describe(&target), expected);
        assert_eq!(counts(&scene.export().0), (0, 6, 0), "all is there");
    }

    #[test]
    fn what_an_export_cannot_copy_is_no_success() {
        // A directory with unreadable names was exported as an empty one, and the export succeeded.
        let scene = Scene::new();
        scene.import();
        let stored = |path: &[u8]| scene.stored(path);
        // A file of another program is not part of the vault.
        fs::write(scene.open.dir.join("Thumbs.db"), "").unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (6, 0, 0));
        fs::remove_dir_all(&target).unwrap();
        // An entry with a name that no key opens.
        let place = stored(b"sub/empty").join("A".repeat(32));
        fs::rename(stored(b"none"), &place).unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (5, 0, 1));
        assert_eq!(fs::read_dir(target.join("sub/empty")).unwrap().count(), 0);
        fs::remove_dir_all(&target).unwrap();
        // An entry that was only moved inside the vault has a name, and comes out with a mark.
        let moved = stored(b"one");
        let stored_name = moved.file_name().unwrap().as_bytes().to_vec();
        fs::rename(&place, place.with_file_name(moved.file_name().unwrap())).unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (6, 0, 0));
        let shown = suffix::marked(b"one", &suffix::mark_of(&stored_name));
        assert!(target.join("sub/empty").join(OsStr::from_bytes(&shown)).exists());
    }

    #[test]
    fn a_conflict_copy_beside_a_file_of_its_name_comes_out_too() {
        // A sync tool's copy of "one" is shown as "one (1)" with a mark if that is also the name of
        // a user's file. If two entries had one name, the second was skipped without a message.
        let scene = Scene::new();
        scene.import();
        let stored = |path: &[u8]| scene.stored(path);
        fs::write(scene.source().join("one (1)"), "own").unwrap();
        scene.import();
        let one = stored(b"one");
        let copy = [one.file_name().unwrap().as_bytes(), b" (1)"].concat();
        fs::copy(&one, one.with_file_name(OsStr::from_bytes(&copy))).unwrap();
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (8, 0, 0));
        assert_eq!(fs::read(target.join("one (1)")).unwrap(), b"own");
        let shown = suffix::marked(b"one (1)", &suffix::mark_of(&copy));
        assert_eq!(fs::read(target.join(OsStr::from_bytes(&shown))).unwrap(), b"1");
    }

    #[test]
    fn what_cannot_be_replaced_stays() {
        // An entry in the way of a link was removed before the link was created. On a store without
        // such links (exFAT, sshfs) it was lost, and each later run failed again.
        let scene = Scene::new();
        let plan = FaultPlan::new();
        let vault = scene.reopened(&plan);
        let import = || scene.import_into(&vault);
        assert_eq!(import().failed, 0);
        // A file, a link and a name of another file are replaced by a link, another link and names
        // of one file.
        for name in ["none", "sub/link", "sub/other"] {
            fs::remove_file(scene.source().join(name)).unwrap();
        }
        symlink("one", scene.source().join("none")).unwrap();
        symlink("../none", scene.source().join("sub/link")).unwrap();
        fs::hard_link(scene.source().join("sub/large"), scene.source().join("sub/other")).unwrap();
        for call in [Call::Symlink, Call::Link] {
            plan.add(Fault {
                calls: Calls::Of(call),
                when: When::From(1),
                errno: libc::EPERM,
                short: false,
            });
        }
        assert_eq!(import().failed, 3);
        let stat = |path: &[u8]| {
            Node::at(&vault, path)
                .map(|node| (node.attr.kind, node.attr.size, node.attr.ino))
                .unwrap()
        };
        let kind_and_size = |path: &[u8]| (stat(path).0, stat(path).1);
        assert_eq!(
            [kind_and_size(b"none"), kind_and_size(b"sub/link")],
            [(Kind::File, 0), (Kind::Symlink, 6)]
        );
        // The first of the two names is copied, the other one becomes a link to it.
        assert_eq!(kind_and_size(b"sub/large"), (Kind::File, 700_001));
        assert!(
            [1, 700_001].contains(&stat(b"sub/other").1)
                && stat(b"sub/other") != stat(b"sub/large")
        );
        plan.reset();
        assert_eq!(import().failed, 0);
        assert_eq!(kind_and_size(b"none"), (Kind::Symlink, 3));
        assert_eq!(stat(b"sub/other"), stat(b"sub/large"));
    }

    #[test]
    fn a_torn_import_is_not_taken_for_done() {
        // A power cut can leave a file's name, size and time without its contents. The next run
        // reported that the file already existed.
        let scene = Scene::new();
        let store = MemStore::new();
        Vault::create(
            &store.root(),
            &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
            &scene.owner,
        )
        .unwrap();
        let import = |store: &MemStore| {
            let vault = Vault::open(store.root(), &scene.owner, OpenOptions::default()).unwrap();
            (scene.import_into(&vault), vault)
        };
        // Every moment in which a file gets its name; none right before the command reports
        // success.
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
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let moments = std::mem::take(&mut *moments.lock());
        assert!(moments.len() > 3);
        let mut compared = 0;
        for moment in moments.iter().cycle().take(60) {
            let (tally, vault) = import(&moment.crash(&mut choose));
            assert_eq!(tally.failed, 0);
            for name in ["one", "none", "sparse", "sub/large", "sub/other"] {
                let node = Node::at(&vault, name.as_bytes()).unwrap();
                let file = OpenFile::read(&vault, node.id())
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                let wanted = fs::read(scene.source().join(name)).unwrap();
                let mut found = vec![0; wanted.len() + 1];
                let read = vault
                    .read(file.handle(), 0, &mut found)
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(found[..read] == wanted, "{name}");
                compared += 1;
            }
            vault.close().unwrap();
        }
        assert_eq!(compared, 300);
    }

    /// An export kept every file of the same size and time. The storage host chooses both, and a
    /// power cut or a removed stick can leave both without the contents: a backup stayed stale, and
    /// the exit status was 0.
    #[test]
    fn a_copy_is_kept_only_if_it_has_the_same_contents() {
        let scene = Scene::new();
        scene.import();
        let (_, target) = scene.export();
        change(&target.join("sub/large"), 690_000, |byte| byte + 1);
        change(&target.join("sparse"), 30 << 20, |byte| byte + 1);
        assert_eq!(counts(&scene.export().0), (2, 4, 0));
        let (large, sparse) =
            (fs::read(target.join("sub/large")).unwrap(), fs::read(target.join("sparse")).unwrap());
        assert!(
            large == fs::read(scene.source().join("sub/large")).unwrap()
                && sparse == fs::read(scene.source().join("sparse")).unwrap()
        );
        // the same with the change on the other side
        change(&scene.source().join("sub/large"), 1, |byte| byte + 2);
        scene.import();
        assert_eq!(counts(&scene.export().0), (1, 5, 0));
        assert_eq!(fs::read(target.join("sub/large")).unwrap()[1], 9);
    }

    /// An import took every file of the vault with the same size and time for imported, even with
    /// unreadable ciphertext, and succeeded.
    #[test]
    fn an_unreadable_copy_is_not_taken_for_imported() {
        let scene = Scene::new();
        scene.import();
        for (path, offset) in [(&b"none"[..], 100), (b"sub/large", 500_000), (b"one", 70)] {
            change(&scene.stored(path), offset, |byte| byte ^ 1);
        }
        scene.open.vault.close().unwrap();
        let vault = scene.reopened(&FaultPlan::new());
        // Both names of `one` belong to one file, which is written once and linked once.
        assert_eq!(counts(&scene.import_into(&vault)), (4, 2, 0));
        let target = scene.dir.path().join("target");
        fs::create_dir(&target).unwrap();
        assert_eq!(counts(&export_from(&vault, &target, export::Allowed::default())), (6, 0, 0));
        assert_eq!(fs::read(target.join("sub/large")).unwrap(), vec![7; 700_001]);
    }

    /// A file whose mode or attributes changed is not "already there", though its contents are: a
    /// file that was made private stayed readable for all in the backup.
    #[test]
    fn a_copy_is_kept_only_if_it_has_the_same_mode() {
        let scene = Scene::new();
        scene.import();
        let (_, target) = scene.export();
        fs::set_permissions(scene.source().join("none"), fs::Permissions::from_mode(0o600))
            .unwrap();
        let large = Object::open_root(&scene.source())
            .unwrap()
            .dir(b"sub")
            .unwrap()
            .read(b"large")
            .unwrap();
        large.set_xattr(b"user.label", b"secret").unwrap();
        assert_eq!(counts(&scene.import()), (2, 4, 0));
        assert_eq!(counts(&scene.export().0), (2, 4, 0));
        assert_eq!(fs::metadata(target.join("none")).unwrap().mode() & 0o777, 0o600);
        let large =
            Object::open_root(&target).unwrap().dir(b"sub").unwrap().read(b"large").unwrap();
        assert!(large.xattrs().unwrap().contains(&(b"user.label".to_vec(), b"secret".to_vec())));
        assert_eq!((counts(&scene.import()), counts(&scene.export().0)), ((0, 6, 0), (0, 6, 0)));
    }

    /// A tree to copy whose directory `sub` another user owns, in effect: at some moment they
    /// replace it with a symlink to `outside`.
    fn exchange(tree: &Path, outside: &Path) {
        fs::rename(tree.join("sub"), tree.join("taken away")).unwrap();
        symlink(outside, tree.join("sub")).unwrap();
    }

    /// Root ran `export` a second time into a tree of which a user owned a part. The user replaced
    /// a directory with a symlink, and root wrote the files of that directory, with the user's
    /// ownership, to the target of the symlink.
    #[test]
    fn an_exchanged_directory_of_the_target_is_not_followed() {
        let scene = Scene::new();
        for n in 0..9 {
            fs::write(scene.source().join(format!("sub/{n}")), [n; 9]).unwrap();
        }
        scene.import();
        let plan = FaultPlan::new();
        let vault = scene.reopened(&plan);
        let (target, outside) = (scene.dir.path().join("target"), scene.dir.path().join("outside"));
        // The moments before the first, the second and the last file of the directory, and its
        // entries, are read.
        for (moment, call) in
            [(0, Call::OpenFile), (1, Call::OpenFile), (8, Call::OpenFile), (0, Call::List)]
        {
            fs::create_dir_all(target.join("sub")).unwrap();
            fs::create_dir(&outside).unwrap();
            fs::set_permissions(&outside, fs::Permissions::from_mode(0o700)).unwrap();
            let exchanged = Arc::new(Mutex::new(None));
            let (note, target_then, outside_then) =
                (exchanged.clone(), target.clone(), outside.clone());
            plan.before(call, move || {
                let count = |dir: &Path| fs::read_dir(dir).map_or(0, Iterator::count);
                let mut note = note.lock();
                if note.is_none() && count(&target_then.join("sub")) >= moment {
                    exchange(&target_then, &outside_then);
                    *note = Some(count(&target_then.join("taken away")));
                }
            });
            let tally = export_from(&vault, &target, export::Allowed::default());
            let before = exchanged.lock().expect("it was exchanged");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
            assert!(tally.failed > 0, "the user's directory is not copied whole");
            assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o700);
            // The file in progress may be complete; no other one is written to the directory's new
            // path.
            assert!(fs::read_dir(target.join("taken away")).unwrap().count() <= before + 1);
            plan.before(call, || {});
            fs::remove_dir_all(&target).unwrap();
            fs::remove_dir(&outside).unwrap();
        }
    }

    /// Root imported a tree of which a user owned a part. The user replaced a directory with a
    /// symlink to one of mode 0700 that was not theirs, and its files were imported into the vault,
    /// where the user could read them.
    #[test]
    fn an_exchanged_directory_of_the_source_is_not_followed() {
        let scene = Scene::new();
        let plan = FaultPlan::new();
        let vault = scene.reopened(&plan);
        let outside = scene.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        for name in ["large", "other", "secret"] {
            fs::write(outside.join(name), "secret").unwrap();
        }
        // when the directory is created in the vault, and when a file is
        for (n, call) in [Call::Mkdir, Call::CreateFile].into_iter().enumerate() {
            let exchanged = Arc::new(Mutex::new(false));
            let (note, source, outside) = (exchanged.clone(), scene.source(), outside.clone());
            plan.before(call, move || {
                let mut done = note.lock();
                if !*done {
                    *done = true;
                    exchange(&source, &outside);
                }
            });
            scene.import_into(&vault);
            assert!(*exchanged.lock());
            plan.before(call, || {});
            let target = scene.dir.path().join(format!("target {n}"));
            fs::create_dir(&target).unwrap();
            assert_eq!(export_from(&vault, &target, export::Allowed::default()).failed, 0);
            assert!(
                !describe(&target)
                    .iter()
                    .any(|line| line.contains("secret") || line.contains(" 6 Some(0)")),
                "{:?}",
                describe(&target)
            );
            fs::remove_file(scene.source().join("sub")).unwrap();
            fs::rename(scene.source().join("taken away"), scene.source().join("sub")).unwrap();
        }
    }

    /// Trees were walked by path: no deeper than a path is long (4,096 bytes), and everything below
    /// was omitted from a backup with an error.
    #[test]
    fn very_deep_trees_go_in_and_come_out() {
        const DEPTH: usize = 3000;
        let scene = Scene::new();
        let mut source = Descent::new(Object::open_root(&scene.source()).unwrap());
        for _ in 0..DEPTH {
            source.here().unwrap().mkdir(b"d", 0o700).unwrap();
            source.enter(b"d").unwrap();
        }
        source
            .here()
            .unwrap()
            .create(b"deepest", 0o600)
            .unwrap()
            .file()
            .write_all_at(b"text", 0)
            .unwrap();
        assert_eq!(counts(&scene.import()), (7, 0, 0));
        let (tally, target) = scene.export();
        assert_eq!(counts(&tally), (7, 0, 0));
        assert_eq!(counts(&scene.export().0), (0, 7, 0));
        let path = [b"d"; DEPTH].map(|name| &name[..]).join(&b'/');
        let deepest =
            Object::open_root(&target).unwrap().walk(&path).unwrap().read(b"deepest").unwrap();
        assert_eq!(deepest.stat().unwrap().len(), 4);
        assert_eq!(total(&scene.open.vault, ROOT), import::total(source.root(), &deepest).unwrap());
        [scene.source(), target, scene.open.dir.clone()].iter().for_each(|tree| remove_deep(tree));
    }

    /// Removes the contents of a directory. `remove_dir_all` takes minutes at this depth.
    fn remove_deep(tree: &Path) {
        let mut descent = Descent::new(Object::open_root(tree).unwrap());
        let mut levels = vec![(Box::default(), descent.root().names().unwrap())];
        while let Some((_, left)) = levels.last_mut() {
            let here = descent.here().unwrap();
            match left.next() {
                Some(name) if descent.enter(&name).is_ok() => {
                    levels.push((name, descent.here().unwrap().names().unwrap()))
                }
                Some(name) => here.unlink(&name).unwrap(),
                None => {
                    let (name, _) = levels.pop().expect("there is one");
                    descent.leave();
                    if !levels.is_empty() {
                        rustix::fs::unlinkat(
                            &*descent.here().unwrap(),
                            os_str(&name),
                            rustix::fs::AtFlags::REMOVEDIR,
                        )
                        .unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_gives_rights_is_made_only_where_that_is_asked_for() {
        // Modes and types are the store's own: the storage host could turn a file into a program
        // that runs as root, or into a node of the machine's disk, when root exports the vault.
        let scene = Scene::new();
        scene.import();
        let vault = &scene.open.vault;
        let one = Node::child(vault, ROOT, b"one").unwrap().unwrap();
        assert_eq!(one.attr.perm, 0o4751);
        let is_root = rustix::process::geteuid().is_root();
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let mut nodes = 0;
        if is_root {
            let disk = vault
                .mknod(
                    &caller,
                    ROOT,
                    b"disk",
                    Kind::BlockDevice,
                    0o666,
                    rustix::fs::makedev(7, 200),
                )
                .unwrap();
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
        let xattrs = |path: &Path| {
            Object::open_root(path.parent().unwrap())
                .unwrap()
                .entry(b"one")
                .unwrap()
                .unwrap()
                .xattrs()
                .unwrap()
        };
        let capabilities = |path: &Path| {
            xattrs(path).iter().filter(|(name, _)| name == b"security.capability").count()
        };
        assert_eq!(capabilities(&target.join("one")), 0);
        fs::remove_dir_all(&target).unwrap();
        let (tally, target) = scene.export();
        assert_eq!((tally.copied, tally.failed), (6 + nodes, 0));
        let perm = if is_root { 0o4751 } else { 0o751 };
        assert_eq!(fs::metadata(target.join("one")).unwrap().mode() & 0o7777, perm);
        assert_eq!(capabilities(&target.join("one")), nodes as usize);
    }

    #[test]
    fn changes_are_copied_again_and_leftovers_are_replaced() {
        let scene = Scene::new();
        scene.import();
        fs::write(scene.source().join("one"), "changed").unwrap();
        let (vault, partial) = (&scene.open.vault, partial_name(b"one"));
        vault.rename(ROOT, b"none", ROOT, partial.as_bytes(), RenameMode::Replace).unwrap();
        let tally = scene.import();
        assert_eq!(tally.failed, 0);
        assert!(
            Node::child(vault, ROOT, partial.as_bytes()).unwrap().is_none(),
            "the rest of a broken run is gone"
        );
        let target = scene.export().1;
        assert_eq!(fs::read(target.join("one")).unwrap(), b"changed");
        assert_eq!(
            fs::metadata(target.join("sub/other")).unwrap().nlink(),
            2,
            "the other name is one of the same file"
        );
        assert_eq!(fs::read(target.join("none")).unwrap(), b"");
    }

    #[test]
    fn one_file_that_fails_is_counted_and_the_others_go_on() {
        let scene = Scene::new();
        scene.import();
        let target = scene.dir.path().join("target");
        fs::create_dir_all(target.join("one")).unwrap();
        let (tally, target) = scene.export();
        // `one` and its other name are one file, whose first name may be either.
        assert_eq!((tally.copied, tally.failed), (5, 1));
        assert!(target.join("sub/large").exists());
        assert!(target.join("one").is_dir(), "what was in the way stays");
        let failure = tally.finish("export", Path::new("/"), || 0).unwrap_err();
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
        assert!(
            fs::symlink_metadata(target.join("none")).unwrap().is_file(),
            "the link was replaced"
        );
    }
}

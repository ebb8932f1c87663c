//! `kithfs import|export`: whole trees with their metadata.
//!
//! Rules that hold here
//! * A file has its name only when it is complete, with its times: so a file of the same size and time of modification is done.
//! * What fails for one file is reported and counted, and the others go on; the exit code tells.
//! * Metadata of a directory are set after its entries, for these change its times and may need its permissions.

mod export;
mod import;

use std::fs;
use std::path::Path;

use crate::backing::{Kind, SetTime};
use crate::cli::args::{Export, Import};
use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::RangeError;
use crate::cli::node::{Node, for_each_entry};
use crate::cli::open::{Purpose, open};
use crate::cli::paths::split_vault;
use crate::cli::progress::{self, Progress};
use crate::cli::report::{Failure, note};
use crate::cli::size;
use crate::vault::{self, Attr, NodeId, SetAttr, Vault};

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
    let target = super::files::make_path(&open.vault, &path).map_err(open.failed(&path))?;
    let tally = import::run(&open, &args.dir, target.id(), Tally::new(total));
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
    fs::create_dir_all(&args.dir).map_err(failed)?;
    if args.dir.canonicalize().map_err(failed)?.starts_with(&open.dir) {
        return Err(Error::Usage(format!("export to {}: it lies in the vault {}", shown(&args.dir), shown(&open.dir))).into());
    }
    let total = progress::is_shown().then(|| total(&open.vault, source.id()));
    let tally = export::run(&open.vault, &source, &path, &args.dir, Tally::new(total));
    drop(source);
    // names and contents of an export that ended well are on the disk
    let dir = fs::File::open(&args.dir).map_err(failed)?;
    rustix::fs::syncfs(&dir).map_err(|errno| failed(errno.into()))?;
    let closed = open.close();
    let exit = tally.finish("export");
    closed?;
    exit
}

/// Bytes of all files below a directory of a vault, as far as they can be found out.
fn total(vault: &Vault, dir: NodeId) -> u64 {
    let mut bytes = 0;
    let _ = for_each_entry(vault, dir, |entry| -> vault::Result<()> {
        if let Ok(Some(node)) = Node::child(vault, dir, &entry.name) {
            match node.attr.kind {
                Kind::File => bytes += node.attr.size,
                Kind::Dir => bytes += total(vault, node.id()),
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

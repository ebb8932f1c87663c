//! `kithfs ls|cat|get|put|rm|mkdir`: single files of a vault, without a mount.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::cli::args::files::{Cat, Get, Ls, Mkdir, Put, Rm};
use crate::cli::display;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local;
use crate::cli::local::os_str;
use crate::cli::report::{Failure, note, warn};
use crate::cli::terminal::stdout::Out;
use crate::cli::vaults::nodes::{
    BLOCK, Node, OpenFile, caller, file_name, make_path, names, new_dir_mode, new_partial_name,
    partial_name,
};
use crate::cli::vaults::open::{Open, Purpose, open};
use crate::cli::vaults::paths::{self, join, split};
use crate::store::{Kind, RenameMode, SetTime};
use crate::vault::{self, Attr, NodeId, SetAttr};

/// Lists a directory, or one entry.
pub fn ls(args: &Ls) -> Result<Exit, Failure> {
    let (vault, path) = paths::one(&args.vault, args.path.as_deref())?;
    let open = open(&vault, &args.open, Purpose::Read)?;
    let vault = &open.vault;
    let mut out = Out::stdout();
    let start = Node::at(vault, &path).map_err(open.failed(&path))?;
    let mut unreadable = 0;
    if start.is_dir() {
        let mut names = names(vault, start.id()).map_err(open.failed(&path))?;
        names.sort_unstable();
        for name in names {
            if !args.long {
                out.name(&name)?;
                out.text(format_args!("\n"))?;
                continue;
            }
            let shown = || -> vault::Result<_> {
                let Some(node) = Node::child(vault, start.id(), &name)? else { return Ok(None) };
                let target = if node.attr.kind == Kind::Symlink {
                    Some(vault.readlink(node.id())?)
                } else {
                    None
                };
                Ok(Some((node.attr, target)))
            };
            match shown() {
                Ok(Some((attr, target))) => long(&mut out, &attr, &name, target.as_deref())?,
                // It was removed since it was listed.
                Ok(None) => {}
                // One damaged entry must not hide the others.
                Err(error) => {
                    unreadable += 1;
                    warn(open.failed(&join(&path, &name))(error).message);
                }
            }
        }
    } else {
        let name = split(&path).map_or(&b""[..], |(_, name)| name);
        if args.long {
            let target = if start.attr.kind == Kind::Symlink {
                Some(vault.readlink(start.id()).map_err(open.failed(&path))?)
            } else {
                None
            };
            long(&mut out, &start.attr, name, target.as_deref())?;
        } else {
            out.name(name)?;
            out.text(format_args!("\n"))?;
        }
    }
    out.finish()?;
    drop(start);
    open.close()?;
    if unreadable == 0 {
        Ok(Exit::Ok)
    } else {
        Err(Failure::from(Error::SomeFailed { op: "ls", count: unreadable }).exit(Exit::Corrupt))
    }
}

fn long(out: &mut Out, attr: &Attr, name: &[u8], target: Option<&[u8]>) -> Result<(), Error> {
    let Attr { kind, perm, nlink, uid, gid, size, mtime, .. } = *attr;
    out.text(format_args!(
        "{} {nlink:>3} {uid:>6} {gid:>6} {size:>12} {} ",
        display::mode(kind, perm),
        display::time(mtime)
    ))?;
    out.name(name)?;
    if let Some(target) = target {
        out.text(format_args!(" -> "))?;
        out.name(target)?;
    }
    out.text(format_args!("\n"))
}

/// Writes files to stdout.
pub fn cat(args: &Cat) -> Result<Exit, Failure> {
    let (vault, paths) = some(paths::several(&args.vault, &args.paths)?, "cat needs a path")?;
    let open = open(&vault, &args.open, Purpose::Read)?;
    for path in &paths {
        to_stdout(&open, path)?;
    }
    open.close()?;
    Ok(Exit::Ok)
}

/// Refuses a command without a path.
fn some(
    (vault, paths): (PathBuf, Vec<Vec<u8>>),
    what: &str,
) -> Result<(PathBuf, Vec<Vec<u8>>), Error> {
    if paths.is_empty() {
        return Err(Error::Usage(format!("{what} in the vault {}", display::path(&vault))));
    }
    Ok((vault, paths))
}

/// Returns the vault, the path in it and the local file of `VAULT PATH [FILE]` or
/// `VAULT/PATH [FILE]`.
fn with_file(
    vault: &Path,
    path: Option<&OsStr>,
    file: Option<&Path>,
) -> Result<(PathBuf, Vec<u8>, Option<PathBuf>), Error> {
    let (dir, base) = paths::split_vault(vault)?;
    if base.is_empty() || file.is_some() {
        let (dir, path) = paths::one(vault, path)?;
        return Ok((dir, path, file.map(Path::to_owned)));
    }
    Ok((dir, base, path.map(PathBuf::from)))
}

fn regular<'a>(open: &'a Open, path: &[u8]) -> Result<Node<'a>, Failure> {
    let node = Node::at(&open.vault, path).map_err(open.failed(path))?;
    match node.attr.kind {
        Kind::File => Ok(node),
        Kind::Dir => Err(open.failed(path)(vault::Error::Os { op: "read", errno: libc::EISDIR })
            .hint("list a directory with `kithfs ls`, or copy it with `kithfs export`")),
        _ => Err(open.failed(path)(vault::Error::Os { op: "read", errno: libc::EINVAL })),
    }
}

fn to_stdout(open: &Open, path: &[u8]) -> Result<(), Failure> {
    let mut out = Out::stdout();
    to_stream(open, path, |bytes| Ok(out.bytes(bytes)?))?;
    Ok(out.finish()?)
}

/// Passes the contents of a file to `write`, piece by piece.
///
/// # Errors
/// The path is no regular file, or cannot be read; those of `write`.
pub fn to_stream(
    open: &Open,
    path: &[u8],
    mut write: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let node = regular(open, path)?;
    let file = OpenFile::read(&open.vault, node.id()).map_err(open.failed(path))?;
    let mut buffer = vec![0; BLOCK];
    let mut offset = 0;
    loop {
        let read =
            open.vault.read(file.handle(), offset, &mut buffer).map_err(open.failed(path))?;
        if read == 0 {
            break;
        }
        write(&buffer[..read])?;
        offset += read as u64;
    }
    file.close().map_err(open.failed(path))
}

/// Copies a file out of the vault.
pub fn get(args: &Get) -> Result<Exit, Failure> {
    let (vault, path, file) = with_file(&args.vault, args.path.as_deref(), args.file.as_deref())?;
    let Some((_, name)) = split(&path) else {
        return Err(Error::Usage("get copies one file; use export for directories".into()).into());
    };
    if let Some(file) = file.as_deref().filter(|file| !file.exists() && *file != Path::new("-")) {
        local::check_writable(local::parent(file)).map_err(Error::io("write", file))?;
    }
    let open = open(&vault, &args.open, Purpose::Read)?;
    match &file {
        Some(file) if file == Path::new("-") => to_stdout(&open, &path)?,
        Some(dir) if dir.is_dir() => to_file(&open, &path, &dir.join(local::os_str(name)))?,
        Some(file) => to_file(&open, &path, file)?,
        None => to_file(&open, &path, Path::new(local::os_str(name)))?,
    }
    open.close()?;
    Ok(Exit::Ok)
}

/// Writes to a temporary file that replaces the target once it is complete. A symlink is followed.
/// A device or a pipe is written to and not replaced: `/dev/stdout` may lead to one, and a command
/// of root would replace the device itself.
fn to_file(open: &Open, path: &[u8], target: &Path) -> Result<(), Failure> {
    let failed = |source| Error::Io { op: "write", path: target.to_owned(), source };
    open.refuse_within("write", target)?;
    // A path below /proc, such as /dev/stdout, leads to an open descriptor. Its file is written to
    // and not replaced.
    let is_descriptor =
        [Some(target.to_owned()), fs::read_link(target).ok()].iter().flatten().any(|place| {
            let dir = place.parent().and_then(|dir| dir.canonicalize().ok());
            dir.is_some_and(|dir| dir.starts_with("/proc"))
        });
    let there = followed(target).map_err(failed)?;
    if let Some(there) = &there
        && (is_descriptor
            || there.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()))
    {
        // Opens the file that was examined, even if its name belongs to another one by now.
        let mut stream = fs::File::options().append(true).open(proc_path(there)).map_err(failed)?;
        return to_stream(open, path, |bytes| Ok(stream.write_all(bytes).map_err(failed)?));
    }
    let node = regular(open, path)?;
    let file = OpenFile::read(&open.vault, node.id()).map_err(open.failed(path))?;
    // The header authenticates this size. That in `node.attr` follows from the length of the
    // ciphertext, which the storage host can change.
    let attr = open.vault.getattr(node.id()).map_err(open.failed(path))?;
    let place = match &there {
        Some(there) if target.is_symlink() => {
            Some(fs::read_link(proc_path(there)).map_err(failed)?)
        }
        _ => None,
    };
    let place = place.as_deref().unwrap_or(target);
    let name =
        file_name(place).ok_or_else(|| failed(std::io::Error::from_raw_os_error(libc::EISDIR)))?;
    let dir = local::parent(place);
    let dir = open.open_target(dir).map_err(failed)?.ok_or_else(|| open.within("write", target))?;
    let partial = new_partial_name().into_bytes();
    let new = dir.create(&partial, 0o600).map_err(failed)?;
    let written = || -> Result<(), Failure> {
        let mut ranges = local::DataRanges::of_vault(&open.vault, file.handle(), attr.size);
        let mut buffer = vec![0; BLOCK];
        while let Some((mut offset, end)) = ranges.next_range().map_err(|error| match error {
            local::RangeError::Local(source) => failed(source).into(),
            local::RangeError::Vault(error) => open.failed(path)(error),
        })? {
            while offset < end {
                let want = BLOCK.min((end - offset) as usize);
                let read = open
                    .vault
                    .read(file.handle(), offset, &mut buffer[..want])
                    .map_err(open.failed(path))?;
                if read == 0 {
                    break;
                }
                new.file().write_all_at(&buffer[..read], offset).map_err(failed)?;
                offset += read as u64;
            }
        }
        new.file().set_len(attr.size).map_err(failed)?;
        // Set-user-ID bits of a file that another user may have written are not copied.
        new.set_mode(attr.perm & 0o777).map_err(failed)?;
        new.set_times(attr.atime, attr.mtime).map_err(failed)?;
        file.close().map_err(open.failed(path))?;
        Ok(dir.rename(&partial, name).map_err(failed)?)
    };
    written().inspect_err(|_| drop(dir.unlink(&partial)))
}

/// Resolves a path; `None` if nothing exists there. The kernel follows symlinks, except those of
/// another user in a sticky directory, which would otherwise choose the file to replace
/// (`fs.protected_symlinks`).
fn followed(path: &Path) -> std::io::Result<Option<fs::File>> {
    match fs::File::options().read(true).custom_flags(libc::O_PATH).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        there => there.map(Some),
    }
}

fn proc_path(file: &fs::File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Copies a file into the vault.
pub fn put(args: &Put) -> Result<Exit, Failure> {
    let (vault, mut path, local) =
        with_file(&args.vault, args.path.as_deref(), args.file.as_deref())?;
    let local = local.unwrap_or_else(|| "-".into());
    let stdin = local == Path::new("-");
    let failed = |source| Error::Io { op: "read", path: local.clone(), source };
    if !stdin && fs::metadata(&local).is_ok_and(|found| found.is_dir()) {
        let failure = Failure::from(failed(std::io::Error::from_raw_os_error(libc::EISDIR)));
        return Err(failure.hint("copy a directory with `kithfs import`"));
    }
    // Opened before the passphrase prompt, with its time: both belong to the same state of the
    // file.
    let (mut source, stat): (Box<dyn Read>, _) = if stdin {
        (Box::new(std::io::stdin().lock()), None)
    } else {
        let file = fs::File::open(&local).map_err(failed)?;
        let stat = file.metadata().map_err(failed)?;
        (Box::new(file), Some(stat))
    };
    let open = open(&vault, &args.open, Purpose::Write)?.recording(&args.memory);
    let vault = &open.vault;
    if Node::at(vault, &path).is_ok_and(|node| node.is_dir()) {
        match file_name(&local).filter(|_| !stdin) {
            Some(name) => path = join(&path, name),
            None => {
                return Err(open.failed(&path)(vault::Error::Os {
                    op: "write",
                    errno: libc::EISDIR,
                }));
            }
        }
    }
    let Some((parent, name)) = split(&path) else {
        return Err(Error::Usage("put needs the path of a file".into()).into());
    };
    let parent = Node::at(vault, parent).map_err(open.failed(parent))?;
    let partial = Partial::new(vault, parent.id(), name).map_err(open.failed(&path))?;
    let mut fill = || -> Result<(), Failure> {
        let mut buffer = vec![0; BLOCK];
        let mut offset = 0;
        loop {
            let read = match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error).into()),
            };
            vault
                .write(partial.file.handle(), offset, &buffer[..read], false)
                .map_err(open.failed(&path))?;
            offset += read as u64;
        }
        let mut set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        if let Some(stat) = &stat {
            set.perm = Some(stat.permissions().mode() & 0o777);
            set.mtime = SetTime::At(local::mtime(stat));
        }
        match vault.setattr(partial.node.id(), &set) {
            // A USB stick that is mounted for all users belongs to another user, and so do new
            // files on it.
            Err(error) if error.errno() == libc::EPERM => {
                note("mode and time of the file cannot be set: it belongs to another user")
            }
            other => drop(other.map_err(open.failed(&path))?),
        }
        Ok(())
    };
    if let Err(failure) = fill() {
        partial.discard();
        return Err(failure);
    }
    partial.complete(name).map_err(open.failed(&path))?;
    drop(parent);
    open.close()?;
    Ok(Exit::Ok)
}

/// A file that is written under a temporary name. If it is neither completed nor discarded, the
/// next run for the same name replaces it.
pub struct Partial<'a> {
    vault: &'a vault::Vault,
    parent: NodeId,
    partial: String,
    /// The file.
    pub node: Node<'a>,
    /// The open file.
    pub file: OpenFile<'a>,
}

impl<'a> Partial<'a> {
    /// Creates it, replacing one that an earlier run left.
    pub fn new(vault: &'a vault::Vault, parent: NodeId, name: &[u8]) -> vault::Result<Partial<'a>> {
        let partial = partial_name(name);
        match vault.unlink(parent, partial.as_bytes()) {
            Ok(()) => {}
            Err(error) if error.errno() == libc::ENOENT => {}
            // Report a failed write, as the user has not asked to remove anything. With concurrent
            // writers a missing permission is found here, when the lease is taken.
            Err(vault::Error::Io { path, source, .. }) => {
                return Err(vault::Error::Io { op: "write", path, source });
            }
            Err(error) => return Err(vault::Error::Os { op: "write", errno: error.errno() }),
        }
        let (node, file) = OpenFile::create(vault, parent, partial.as_bytes())?;
        Ok(Partial { vault, parent, partial, node, file })
    }

    /// Commits it and renames it to its final name, replacing an existing file.
    pub fn complete(self, name: &[u8]) -> vault::Result<()> {
        let Partial { vault, parent, partial, node, file } = self;
        let done = file.close().and_then(|()| {
            vault.rename(parent, partial.as_bytes(), parent, name, RenameMode::Replace)
        });
        drop(node);
        done.inspect_err(|_| {
            let _ = vault.unlink(parent, partial.as_bytes());
        })
    }

    /// Discards it.
    pub fn discard(self) {
        let Partial { vault, parent, partial, node, file } = self;
        drop((file, node));
        let _ = vault.unlink(parent, partial.as_bytes());
    }
}

/// Removes files.
pub fn rm(args: &Rm) -> Result<Exit, Failure> {
    let (vault, paths) = some(paths::several(&args.vault, &args.paths)?, "rm needs a path")?;
    if paths.iter().any(Vec::is_empty) {
        return Err(Error::Usage("the root of a vault cannot be removed".into()).into());
    }
    let open = open(&vault, &args.open, Purpose::Write)?.recording(&args.memory);
    let mut first = None;
    for path in &paths {
        match remove(&open.vault, path, args.recursive) {
            Err(error) if args.force && error.errno() == libc::ENOENT => {}
            Err(error) => {
                let error_no = error.errno();
                let failure = open.failed(path)(error);
                let failure = match error_no {
                    libc::ENOTEMPTY if args.recursive => failure.hint(format_args!(
                        "the remaining entries have unreadable names; `kithfs fsck {}` lists them",
                        display::word(&open.dir)
                    )),
                    libc::ENOTEMPTY => failure.hint("-r removes a directory and its contents"),
                    _ => failure,
                };
                // Every failure is printed; the exit code is that of the first one.
                if let Some(earlier) = first.replace(failure) {
                    std::mem::replace(first.as_mut().expect("was just set"), earlier).print();
                }
            }
            Ok(()) => {}
        }
    }
    open.close()?;
    first.map_or(Ok(Exit::Ok), Err)
}

fn remove(vault: &vault::Vault, path: &[u8], recursive: bool) -> vault::Result<()> {
    let (parent, name) = split(path).expect("not the root");
    let parent = Node::at(vault, parent)?;
    let node = Node::child(vault, parent.id(), name)?
        .ok_or(vault::Error::Os { op: "remove", errno: libc::ENOENT })?;
    match (node.is_dir(), recursive) {
        (false, _) => vault.unlink(parent.id(), name),
        (true, false) => vault.rmdir(parent.id(), name),
        (true, true) => remove_tree(vault, parent.id(), name, node),
    }
}

/// A directory whose entries are being removed.
struct Level<'a> {
    node: Node<'a>,
    name: Box<[u8]>,
    left: Vec<Box<[u8]>>,
    /// Whether something was removed since the listing.
    has_removed: bool,
    /// Whether a listed entry was not found.
    has_missed: bool,
}

impl<'a> Level<'a> {
    fn new(vault: &vault::Vault, node: Node<'a>, name: &[u8]) -> vault::Result<Level<'a>> {
        let left = names(vault, node.id())?;
        Ok(Level { node, name: name.into(), left, has_removed: false, has_missed: false })
    }
}

/// Removes a directory and its contents. The depth is not limited by any path length, so the levels
/// are in a list and not on the stack.
fn remove_tree<'a>(
    vault: &'a vault::Vault,
    parent: NodeId,
    name: &[u8],
    node: Node<'a>,
) -> vault::Result<()> {
    let mut levels = vec![Level::new(vault, node, name)?];
    while let Some(level) = levels.last_mut() {
        let here = level.node.id();
        let Some(name) = level.left.pop() else {
            // The removal of a conflict copy can change the names of others, which were listed
            // before.
            if std::mem::take(&mut level.has_missed) && std::mem::take(&mut level.has_removed) {
                level.left = names(vault, here)?;
                continue;
            }
            let done = levels.pop().expect("there is one");
            let above = levels.last().map_or(parent, |level| level.node.id());
            drop(done.node);
            vault.rmdir(above, &done.name)?;
            if let Some(above) = levels.last_mut() {
                above.has_removed = true;
            }
            continue;
        };
        match Node::child(vault, here, &name) {
            Ok(Some(node)) if node.is_dir() => {
                let inside = Level::new(vault, node, &name)?;
                levels.push(inside);
            }
            Ok(None) => level.has_missed = true,
            // Damaged entries can be removed too.
            Ok(Some(_)) | Err(_) => {
                vault.unlink(here, &name)?;
                level.has_removed = true;
            }
        }
    }
    Ok(())
}

/// Creates directories.
pub fn mkdir(args: &Mkdir) -> Result<Exit, Failure> {
    let (vault, paths) = some(paths::several(&args.vault, &args.paths)?, "mkdir needs a path")?;
    let open = open(&vault, &args.open, Purpose::Write)?.recording(&args.memory);
    for path in &paths {
        if args.parents {
            make_path(&open.vault, path, new_dir_mode()).map_err(open.failed(path))?;
        } else {
            let Some((parent, name)) = split(path) else {
                return Err(open.failed(b"/")(vault::Error::Os {
                    op: "make",
                    errno: libc::EEXIST,
                }));
            };
            let parent = Node::at(&open.vault, parent).map_err(|error| {
                let is_missing = error.errno() == libc::ENOENT;
                let failure = open.failed(path)(error);
                if !is_missing {
                    return failure;
                }
                failure.hint(format_args!(
                    "-p creates missing parents: kithfs mkdir -p {} {}",
                    display::word(&open.dir),
                    display::word(os_str(path))
                ))
            })?;
            let made = open
                .vault
                .mkdir(&caller(), parent.id(), name, new_dir_mode())
                .map_err(open.failed(path))?;
            drop(Node::counted(&open.vault, made));
        }
    }
    open.close()?;
    Ok(Exit::Ok)
}

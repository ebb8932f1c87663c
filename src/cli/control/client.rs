//! The client side: access to the vault that a path belongs to.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::message::{self, Answer, Question, Reply, Request, Status, VERSION, What};
use super::perform::perform;
use super::wire::{by_short_path, check_peer, receive, send};
use crate::cli::args::{MemoryArgs, OpenArgs};
use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::error::Error;
use crate::cli::report::Failure;
use crate::cli::vaults::hand_over;
use crate::cli::vaults::open::{self, Open, Purpose};
use crate::cli::vaults::paths;
use crate::roster::{Member, Role};
use crate::vault::{LogEntry, Pending, ShareInfo, ShareProgress};

/// How long a daemon may take to answer a request that needs no work. One that is stopped, or that
/// waits for its store, does not answer.
const ANSWERS: Duration = Duration::from_secs(10);

/// Receives the progress of an operation.
pub type Progressed<'a> = &'a mut dyn FnMut(&ShareProgress);

/// A connection to a vault, for operations on a path in it.
pub struct Connection {
    way: Way,
    /// The vault's directory.
    pub vault: PathBuf,
    /// The plain path in it.
    pub path: Vec<u8>,
}

enum Way {
    /// This process has the vault open.
    Here(Open),
    /// The daemon that serves the vault listens on this socket.
    Daemon(PathBuf),
}

/// Returns what a reply of the expected kind contains. Any other reply is an error.
macro_rules! answer {
    ($reply:expr, $kind:ident) => {
        match $reply? {
            Reply::$kind(answer) => Ok(answer),
            _ => Err(other()),
        }
    };
}

/// Resolves symlinks in the existing part of a path.
fn resolve(given: &Path) -> PathBuf {
    let absolute = std::path::absolute(given).unwrap_or_else(|_| given.to_owned());
    for there in absolute.ancestors() {
        if let (Ok(place), Ok(rest)) = (there.canonicalize(), absolute.strip_prefix(there)) {
            return if rest.as_os_str().is_empty() { place } else { place.join(rest) };
        }
    }
    absolute
}

/// Returns the vault that a path of ciphertext or of a live mount belongs to, the plain path in it,
/// and the mount that can write to it.
fn locate(given: &Path) -> Result<(PathBuf, Vec<u8>, Option<Entry>), Failure> {
    let place = resolve(given);
    // Without a registry, no mounts are known.
    let live = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    let below = live
        .iter()
        .filter_map(|entry| Some((entry, place.strip_prefix(&entry.mountpoint.0).ok()?)));
    // Of nested mounts, the innermost one counts.
    let (vault, path) = match below.min_by_key(|(_, rest)| rest.as_os_str().len()) {
        Some((entry, rest)) => (entry.vault.0.clone(), paths::clean(rest.as_os_str())?),
        None => paths::split_vault(given)?,
    };
    let directory = vault.canonicalize().unwrap_or_else(|_| vault.clone());
    let mount = live.into_iter().find(|entry| entry.vault.0 == directory && !entry.read_only);
    Ok((vault, path, mount))
}

/// Returns whether a path is that of a vault that is not signed, or of its mount.
///
/// # Errors
/// The vault cannot be found.
pub fn is_unsigned_vault(given: &Path) -> Result<bool, Failure> {
    let (vault, path, _) = locate(given)?;
    Ok(path.is_empty() && !open::find(&vault)?.description.signed)
}

/// Returns the control socket of a mount, if its daemon listens.
fn socket(entry: &Entry) -> Option<PathBuf> {
    let socket = Registry::open().ok()?.socket_of(entry.process);
    by_short_path(&socket, |path| UnixStream::connect(path)).ok().map(|_| socket)
}

/// Asks the daemon of a mount for its state.
///
/// # Errors
/// The daemon does not answer, or is one of another version.
pub fn status(entry: &Entry) -> Result<Status, Failure> {
    answer!(ask_mount(entry, What::Status), Status)
}

/// Asks the daemon of a mount how often its store has answered.
///
/// # Errors
/// Those of [`status`].
pub fn answers(entry: &Entry) -> Result<u64, Failure> {
    answer!(ask_mount(entry, What::Answers), Answers)
}

/// Has the daemon of a mount lock its vault. The daemon ends afterwards.
///
/// # Errors
/// Those of [`status`].
pub fn lock(entry: &Entry) -> Result<(), Failure> {
    ask_mount(entry, What::Lock).map(drop)
}

fn ask_mount(entry: &Entry, what: What) -> Result<Reply, Failure> {
    let registry = Registry::open().map_err(failed)?;
    let request = Request { path: Vec::new(), what };
    over(&registry.socket_of(entry.process), request, Some(ANSWERS), &mut |_| {})
}

impl Connection {
    /// Connects to the vault that `given` names. If the vault is mounted for writing, its daemon is
    /// asked, unless another identity than the mount's was named. Otherwise the vault is opened for
    /// `purpose`.
    ///
    /// # Errors
    /// Those of finding and opening the vault.
    pub fn to(given: &Path, args: &OpenArgs, purpose: Purpose) -> Result<Connection, Failure> {
        let (vault, path, mount) = locate(given)?;
        let daemon = if args.identity.is_none() && !args.own_identity {
            mount.as_ref().and_then(socket)
        } else {
            None
        };
        let way = match daemon {
            Some(socket) => Way::Daemon(socket),
            None => Way::Here(open::open(&vault, args, purpose)?),
        };
        Ok(Connection { way, vault, path })
    }

    /// Does [`Connection::to`] for the founder of a share. If the vault has an identity of its own
    /// and the user has another one, the vault is handed over first, so that members see the user.
    ///
    /// # Errors
    /// Those of [`Connection::to`] and of handing over, which is not possible while the vault is
    /// mounted.
    pub fn founding(given: &Path, args: &OpenArgs) -> Result<Connection, Failure> {
        let (vault, path, mount) = locate(given)?;
        if args.identity.is_some() || args.own_identity || !hand_over::is_due(&vault)? {
            return Connection::to(given, args, Purpose::Write);
        }
        if mount.is_some() {
            return Err(Error::NotHandedOver(vault).into());
        }
        let open = hand_over::open_for_user(&vault, args)?;
        Ok(Connection { way: Way::Here(open), vault, path })
    }

    /// Does [`Open::recording`] if the vault was opened here; a daemon has its own settings.
    pub fn recording(self, args: &MemoryArgs) -> Connection {
        let way = match self.way {
            Way::Here(open) => Way::Here(open.recording(args)),
            daemon => daemon,
        };
        Connection { way, ..self }
    }

    /// Performs an operation on the path.
    ///
    /// # Errors
    /// Those of the operation; the daemon has ended.
    fn ask(&self, what: What, progress: Progressed<'_>) -> Result<Reply, Failure> {
        let request = Request { path: self.path.clone(), what };
        match &self.way {
            Way::Here(open) => perform(&open.vault, &open.dir, &request, progress),
            Way::Daemon(socket) => over(socket, request, None, progress),
        }
    }

    /// Returns information about the share that contains the path.
    ///
    /// # Errors
    /// Those of the vault, as messages for people; the daemon has ended. The same holds for the
    /// following functions.
    pub fn share(&self) -> Result<ShareInfo, Failure> {
        answer!(self.ask(What::Info, &mut |_| {}), Info)
    }

    /// Returns the history of that share.
    pub fn log(&self) -> Result<Vec<LogEntry>, Failure> {
        answer!(self.ask(What::Log, &mut |_| {}), Log)
    }

    fn left(&self, what: What, progress: Progressed<'_>) -> Result<Pending, Failure> {
        answer!(self.ask(what, progress), Pending)
    }

    /// Returns what is still under older folder keys.
    pub fn pending(&self) -> Result<Pending, Failure> {
        self.left(What::Pending, &mut |_| {})
    }

    /// Reseals data under older folder keys, and returns what is left.
    pub fn reseal(&self, eager: bool, progress: Progressed<'_>) -> Result<Pending, Failure> {
        self.left(What::Reseal { eager }, progress)
    }

    /// Begins a new folder key.
    pub fn rekey(&self) -> Result<(), Failure> {
        self.ask(What::Rekey, &mut |_| {}).map(drop)
    }

    /// Adds members.
    pub fn add(&self, members: &[Member]) -> Result<(), Failure> {
        self.ask(What::Add(members.to_vec()), &mut |_| {}).map(drop)
    }

    /// Gives a member another role.
    pub fn set_role(&self, sign: &[u8; 32], role: Role) -> Result<(), Failure> {
        self.ask(What::SetRole(*sign, role), &mut |_| {}).map(drop)
    }

    /// Removes members; the returned progress counts what could not be read.
    pub fn remove(&self, signs: &[[u8; 32]]) -> Result<ShareProgress, Failure> {
        answer!(self.ask(What::Remove(signs.to_vec()), &mut |_| {}), Progress)
    }

    /// Turns the folder into a share. The returned progress has its size, with the name of the
    /// former folder if that was left beside it.
    pub fn create(
        &self,
        isolated: bool,
        name: &str,
        mode: u32,
        progress: Progressed<'_>,
    ) -> Result<(ShareProgress, Option<Vec<u8>>), Failure> {
        match self.ask(What::Create { isolated, name: name.to_owned(), mode }, progress)? {
            Reply::Made(progress, former) => Ok((progress, former)),
            _ => Err(other()),
        }
    }

    /// Resolves a fork in favour of a head.
    pub fn settle(&self, keep: &[u8; 32]) -> Result<(), Failure> {
        self.ask(What::Settle(*keep), &mut |_| {}).map(drop)
    }

    /// Returns a signed invitation.
    pub fn invite(&self, sign: &[u8; 32]) -> Result<Vec<u8>, Failure> {
        answer!(self.ask(What::Invite(*sign), &mut |_| {}), Invitation)
    }

    /// Closes the vault. Every command that has changed something calls this at its end.
    ///
    /// # Errors
    /// A write failed.
    pub fn close(&self) -> Result<(), Failure> {
        match &self.way {
            Way::Here(open) => open.close(),
            Way::Daemon(_) => Ok(()),
        }
    }
}

fn other() -> Failure {
    failed(io::Error::new(io::ErrorKind::InvalidData, "its answer does not match the question"))
}

fn failed(source: io::Error) -> Failure {
    Error::Os { op: "ask the daemon of the mount", source }.into()
}

/// Sends a request and receives the answer. Waits for each message for at most `patience`, or
/// without a limit if that is `None`.
fn over(
    socket: &Path,
    request: Request,
    patience: Option<Duration>,
    progress: Progressed<'_>,
) -> Result<Reply, Failure> {
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => failed(io::Error::new(
            error.kind(),
            "it has ended or is overloaded; run the command again to continue",
        )),
        io::ErrorKind::WouldBlock => {
            failed(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"))
        }
        _ => failed(error),
    };
    let mut stream = by_short_path(socket, |path| UnixStream::connect(path)).map_err(failed)?;
    check_peer(&stream).map_err(failed)?;
    stream.set_read_timeout(patience).map_err(failed)?;
    stream.set_write_timeout(patience).map_err(failed)?;
    send(&mut stream, &Question { version: VERSION, request }).map_err(ended)?;
    loop {
        match receive(&mut stream).map_err(ended)? {
            Answer::Progress(done) => progress(&done),
            Answer::Done(reply) => return Ok(reply),
            Answer::Failed { exit, message, hint } => {
                return Err(message::failure(exit, message, hint));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_missing_end_is_resolved_as_far_as_possible() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("a")).unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        assert_eq!(resolve(&root.join("link")), root.join("a"));
        assert_eq!(resolve(&root.join("link/new/folder")), root.join("a/new/folder"));
    }
}

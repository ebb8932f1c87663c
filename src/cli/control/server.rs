//! The daemon's side of the control socket.
//!
//! Rules that hold here
//! * Each request is answered in a thread of its own, so that none waits for a pass over a large
//!   share; only one pass runs at a time.
//! * A client that has exited or is slow delays nothing: progress that cannot be sent is dropped.
//! * At unmount the socket is removed first. A running operation is cancelled when the vault is
//!   closed, at its next step: it then fails, and the command prints how to continue it. The mount
//!   waits for that, because the operation holds keys.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use super::message::{Answer, Question, Reply, Request, Status, VERSION, What};
use super::perform::perform;
use super::wire::{by_short_path, check_peer, receive, send};
use crate::cli::daemon::patience::Pulse;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::vaults::paths;
use crate::crypto::stack;
use crate::fuse::Notifier;
use crate::vault::{ShareProgress, Usage, Vault};

/// Limit of concurrent requests. As many requests to lock the vault are answered besides, because
/// all others may wait for a store that does not answer.
const CLIENTS_MAX: usize = 16;
/// Timeout of a client for sending its request and receiving an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of a mount waits for cancelled operations. It is longer than the longest wait
/// within one step: that for another client's change of the members, which takes ten seconds.
const CANCEL_TAKES: Duration = Duration::from_secs(15);
/// Interval of progress messages.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// The socket of a mount.
pub struct Control {
    path: PathBuf,
    served: Arc<Served>,
}

impl Control {
    /// Returns a handle that shows whether a request is still running.
    pub fn watch(&self) -> Working {
        Working(self.served.clone())
    }

    /// Gives up the vault. From now on no request is performed, but commands that wait for the end
    /// of this process can still ask whether the store answers.
    pub fn end(self) -> Ended {
        self.served.vault.lock().take();
        Ended(self)
    }
}

/// The socket of a mount that has ended; removed on drop. Operations that began before may still
/// run.
pub struct Ended(Control);

impl Drop for Ended {
    fn drop(&mut self) {
        // A socket that remains is stale and is removed with the entry of its mount.
        let _ = std::fs::remove_file(&self.0.path);
    }
}

impl Ended {
    /// Waits, for a limited time, until no operation holds the vault. The caller closes the vault
    /// before, which cancels the operations.
    pub fn wait(&self) {
        let served = &self.0.served;
        let mut running = served.running.lock();
        let is_running = |running: &mut usize| *running > 0;
        if served.finished.wait_while_for(&mut running, is_running, CANCEL_TAKES).timed_out() {
            tracing::warn!("a command about a share is still running");
        }
    }
}

/// Shows whether a request over the socket is still running.
pub struct Working(Arc<Served>);

impl Working {
    /// Returns the current state.
    pub fn is_under_way(&self) -> bool {
        self.0.clients.load(Ordering::Acquire) > self.0.watchers.load(Ordering::Acquire)
    }
}

/// What the answers on the socket need of a mount, besides its vault.
pub struct Offer {
    /// Asks the vault's store whether it answers.
    pub pulse: Pulse,
    /// The vault's directory.
    pub dir: PathBuf,
    /// Invalidates what the kernel caches.
    pub notifier: Notifier,
    /// When the mount was last used.
    pub usage: Usage,
    /// Locks the vault.
    pub lock: Box<dyn Fn() + Send + Sync>,
}

struct Served {
    /// Taken when the mount ends, as a thread that waits for clients may outlive it.
    vault: Mutex<Option<Vault>>,
    offer: Offer,
    clients: AtomicUsize,
    /// Clients that only ask for the state, which is no use of the mount.
    watchers: AtomicUsize,
    /// Operations that hold the vault, or have not sent their answer yet.
    running: Mutex<usize>,
    /// Notified when one of them ends.
    finished: Condvar,
    /// Held by passes, which walk through a whole share and write to it.
    pass: Mutex<()>,
}

/// Answers requests about a vault on a socket at `path`.
///
/// # Errors
/// The socket cannot be created.
pub fn serve(path: PathBuf, vault: Vault, offer: Offer) -> io::Result<Control> {
    let listener = listen_at(&path)?;
    let served = Arc::new(Served {
        vault: Mutex::new(Some(vault)),
        offer,
        clients: AtomicUsize::new(0),
        watchers: AtomicUsize::new(0),
        running: Mutex::new(0),
        finished: Condvar::new(),
        pass: Mutex::new(()),
    });
    let control = Control { path, served: served.clone() };
    std::thread::Builder::new().name("kithfs-control".into()).spawn(move || {
        for client in listener.incoming() {
            match client {
                Ok(client) => welcome(&served, client),
                Err(error) if passes(&error) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => {
                    tracing::warn!("the control socket accepts no more requests: {error}");
                    return;
                }
            }
        }
    })?;
    Ok(control)
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    // A process with the same ID and start time may have left a socket before a reboot.
    let _ = std::fs::remove_file(path);
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Set before the socket has a name that others could reach: bind(2) uses the mode of the socket
    // for the name.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    by_short_path(path, |path| Ok(bind(&socket, &SocketAddrUnix::new(path)?)?))?;
    listen(&socket, 16)?;
    Ok(UnixListener::from(socket as OwnedFd))
}

/// Returns whether the next request may still be accepted: this one was aborted, or the process has
/// too many open files.
fn passes(error: &io::Error) -> bool {
    let passing =
        [libc::ECONNABORTED, libc::EINTR, libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}

fn welcome(served: &Arc<Served>, client: UnixStream) {
    if let Err(error) = check_peer(&client) {
        return tracing::warn!("a request over the control socket was refused: {error}");
    }
    let others = served.clients.fetch_add(1, Ordering::AcqRel);
    if others >= 2 * CLIENTS_MAX {
        served.clients.fetch_sub(1, Ordering::AcqRel);
        return; // the client takes this for the end of the daemon
    }
    let of_thread = served.clone();
    let answer = move || {
        if let Err(error) = of_thread.answer(client, others >= CLIENTS_MAX) {
            tracing::debug!("a client of the control socket has disconnected: {error}");
        }
        of_thread.clients.fetch_sub(1, Ordering::AcqRel);
    };
    if std::thread::Builder::new().name("kithfs-answer".into()).spawn(answer).is_err() {
        served.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts one operation as running until it is dropped.
struct Running<'a>(&'a Served);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // The process may end before this thread does.
        stack::wipe::<{ stack::DEPTH }>();
        *self.0.running.lock() -= 1;
        self.0.finished.notify_all();
    }
}

impl Served {
    fn begin(&self) -> Running<'_> {
        *self.running.lock() += 1;
        Running(self)
    }

    /// Answers a request. With `locks_only`, answers only a request to lock the vault.
    fn answer(&self, mut client: UnixStream, locks_only: bool) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let Question { version, request } = receive(&mut client)?;
        if locks_only && !matches!(request.what, What::Lock) {
            return Ok(());
        }
        let watches = usize::from(matches!(request.what, What::Status | What::Answers));
        self.watchers.fetch_add(watches, Ordering::AcqRel);
        let sent = self.answer_to(version, &request, &mut client);
        self.watchers.fetch_sub(watches, Ordering::AcqRel);
        sent?;
        if version == VERSION && matches!(request.what, What::Lock) {
            // After the answer, as this process may end before `lock` returns.
            (self.offer.lock)();
        }
        Ok(())
    }

    fn answer_to(
        &self,
        version: u32,
        request: &Request,
        client: &mut UnixStream,
    ) -> io::Result<()> {
        let _running = self.begin();
        let answer = match version {
            VERSION => self.perform(request, client),
            _ => Err(Failure::new(
                Exit::Failure,
                "the mount is served by a different version of kithfs",
            )
            .hint("unmount it and mount it again")),
        };
        send(client, &answer.map_or_else(Answer::from, Answer::Done))?;
        client.shutdown(Shutdown::Both)
    }

    fn perform(&self, request: &Request, client: &mut UnixStream) -> Result<Reply, Failure> {
        if matches!(request.what, What::Answers) {
            return Ok(Reply::Answers(self.offer.pulse.answers()));
        }
        let ended = || Failure::new(Exit::NotFound, "the mount has ended");
        let vault = self.vault.lock().clone().ok_or_else(ended)?;
        match request.what {
            What::Status => return Ok(Reply::Status(self.status(&vault))),
            What::Lock => return Ok(Reply::Done),
            _ => {}
        }
        let is_pass = matches!(request.what, What::Create { .. } | What::Reseal { .. });
        let _pass = match self.pass.try_lock() {
            Some(guard) => is_pass.then_some(guard),
            None if is_pass => {
                return Err(Failure::new(
                    Exit::InUse,
                    "another command is already resealing a share of this mount",
                )
                .hint("wait until it has finished"));
            }
            None => None,
        };
        if !matches!(request.what, What::Info | What::Log | What::Pending | What::Invite(_)) {
            tracing::info!("a change of a share was requested over the control socket");
        }
        let (mut told, mut listens) = (Instant::now(), true);
        let mut tell = |progress: &ShareProgress| {
            if listens && told.elapsed() >= TOLD_EVERY {
                listens = send(client, &Answer::Progress(*progress)).is_ok();
                told = Instant::now();
            }
        };
        let done = perform(&vault, &self.offer.dir, request, &mut tell);
        if matches!(request.what, What::Create { .. }) {
            self.show_anew(&vault, &request.path);
        }
        done
    }

    fn status(&self, vault: &Vault) -> Status {
        Status {
            idle: self.offer.usage.idle().as_secs(),
            unsynced_files: vault.activity().unsynced,
            unsynced_bytes: vault.uncommitted_bytes(),
            forks: vault.forks(),
        }
    }

    /// Invalidates the kernel's entry of a folder that was replaced.
    fn show_anew(&self, vault: &Vault, path: &[u8]) {
        let Some((parent, name)) = paths::split(path) else { return };
        let Ok(parent) = vault.resolve(parent) else { return };
        if let Err(error) = self.offer.notifier.inval_entry(parent.node, name) {
            tracing::warn!(
                "the kernel may show the former folder until its cache expires: {error}"
            );
        }
        vault.forget(parent.node, 1);
    }
}

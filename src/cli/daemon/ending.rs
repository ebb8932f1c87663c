//! Ends a mount: by an ordinary unmount at a signal, or at once when its vault is locked.
//!
//! Rules that hold here
//! * Everything that programs have written is committed before the mount ends. Locking waits for a
//!   slow store as long as that takes: keys that stay in memory are better than lost files.
//! * A store that does not answer is not waited for: the lock takes the mount away, reports that
//!   data was not written, and ends this process. No key is overwritten then, because threads that
//!   wait for the store use them; the kernel takes the memory back.
//! * A vault inside this mount is locked first, and waited for: its files are written through this
//!   mount.
//! * Locking also drops the pages and attributes of open files from the kernel's cache, and lets
//!   the kernel load none again. Otherwise programs could continue to read and write them without
//!   an error.
//! * Nothing here keeps keys alive: [`Ending::release`] gives the vault up.
//! * The log names the programs that lost their files by process and command, never by path.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use sd_notify::NotifyState;

use super::fork;
use super::patience::{Pulse, Silence};
use super::registry::Registered;
use super::signals::Signals;
use crate::cli::desktop::notify::{Notices, What};
use crate::cli::exit::Exit;
use crate::crypto::stack;
use crate::fuse::mounts::{self, Holder};
use crate::fuse::vaultfs::Closing;
use crate::fuse::{MountError, Mounted, Notifier, handover, place};
use crate::vault::Vault;

/// Ends one mount.
pub struct Ending {
    mounted: Arc<Mounted>,
    vault: Mutex<Option<Vault>>,
    pulse: Pulse,
    registered: Mutex<Option<Registered>>,
    kernel: Notifier,
    closing: Closing,
    /// Locks the vaults that are inside a mount point.
    lock_within: fn(&Path),
    /// The kernel caches what programs write.
    collects: bool,
    /// This process is a service: a stop must end it even while programs use the mount.
    is_service: bool,
    /// Why the vault was locked.
    locked: OnceLock<String>,
    /// Held while a lock is in progress.
    locking: Mutex<()>,
    notices: Notices,
    made_point: Option<PathBuf>,
}

/// The mount that is to be ended.
pub struct Of {
    /// The mount.
    pub mounted: Arc<Mounted>,
    /// What it serves.
    pub vault: Vault,
    /// Its entry in the list of mounts.
    pub registered: Option<Registered>,
    /// Drops pages from the kernel's cache.
    pub kernel: Notifier,
    /// Refuses requests of programs.
    pub closing: Closing,
    /// The kernel caches what programs write.
    pub collects: bool,
    /// Shows that the vault was locked.
    pub notices: Notices,
    /// The mount point, if it was created for the mount.
    pub made_point: Option<PathBuf>,
}

/// Tells the service manager about this process, if it was started by one.
pub fn tell_manager(state: &[NotifyState<'_>]) {
    if has_manager()
        && let Err(error) = sd_notify::notify(state)
    {
        tracing::warn!("the service manager cannot be notified: {error}");
    }
}

/// Returns whether a service manager waits for notifications of this process. A command that a
/// service has started inherits the variables, and is not that service.
pub fn has_manager() -> bool {
    let is_main =
        std::env::var("SYSTEMD_EXEC_PID").map_or(true, |pid| pid == std::process::id().to_string());
    is_main && std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// How often a lock checks whether the store answers.
const STORE_TICK: Duration = Duration::from_millis(200);
/// How long each last act of this process may take if the store does not answer.
const LAST_ACT: Duration = Duration::from_secs(3);

/// Returns the result of an act; `None` if that takes longer than [`LAST_ACT`].
fn within<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(act()));
    result.recv_timeout(LAST_ACT).ok()
}

/// Removes a mount point that was created for the mount, where this process ends without dropping
/// the value that does it otherwise. Programs would store unencrypted files in a mount point that
/// stayed.
fn remove(made_point: Option<&Path>) {
    if let Some(path) = made_point {
        // Fails if it is still mounted, or if a program has put a file there.
        let _ = place::remove(path);
    }
}

fn log_holders(what: &str, holders: &[Holder]) {
    for holder in holders {
        tracing::warn!("{what}: process {} ({}): {}", holder.pid, holder.name, holder.by);
    }
}

impl Ending {
    /// Creates the value for a mount that serves `vault`.
    pub fn new(of: Of, lock_within: fn(&Path), is_service: bool) -> Arc<Ending> {
        let Of { mounted, vault, registered, kernel, closing, collects, notices, made_point } = of;
        Arc::new(Ending {
            mounted,
            pulse: Pulse::of(vault.store()),
            vault: Mutex::new(Some(vault)),
            registered: Mutex::new(registered),
            kernel,
            closing,
            lock_within,
            collects,
            is_service,
            locked: OnceLock::new(),
            locking: Mutex::new(()),
            notices,
            made_point,
        })
    }

    /// Returns why the vault was locked, if it was.
    pub fn locked(&self) -> Option<&str> {
        self.locked.get().map(String::as_str)
    }

    /// Returns what asks the store of the mount whether it answers.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Gives up the vault and the entry of the mount, whose drop ends the registration. The thread
    /// that has locked the vault no longer uses any key then.
    pub fn release(&self) -> Option<Registered> {
        drop(self.locking.lock());
        self.vault.lock().take();
        self.registered.lock().take()
    }

    /// Unmounts. A busy mount of a service is locked. Any other busy mount is committed and
    /// detached, and ends when the programs release it.
    pub fn unmount(self: &Arc<Self>) {
        if self.is_service {
            tell_manager(&[NotifyState::Stopping]);
        }
        match self.mounted.unmount(false) {
            Ok(()) | Err(MountError::NotMounted { .. }) => {}
            Err(MountError::Busy { .. }) if self.is_service => self.lock("the service was stopped"),
            Err(MountError::Busy { holders, .. }) => {
                log_holders("busy", &holders);
                self.commit();
                if let Err(error) = self.mounted.unmount(true) {
                    tracing::error!("{error}");
                }
            }
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Commits what programs have written and takes the mount away, even while they use it. The
    /// process then stops to serve, and the keys are wiped. If the kernel does not end the
    /// connection, the process ends here.
    pub fn lock(self: &Arc<Self>, why: &str) {
        if self.locked.set(why.to_owned()).is_err() {
            return;
        }
        let _locking = self.locking.lock();
        tracing::info!("locking: {why}");
        self.watch_store();
        (self.lock_within)(&self.mounted.mountpoint);
        if self.collects
            && let Err(error) = handover::collect(&self.mounted)
        {
            tracing::warn!("the kernel keeps what it has collected: {error}");
        }
        self.commit();
        log_holders("locked while in use", &mounts::holders(self.mounted.device));
        self.closing.begin();
        self.drop_pages();
        // Once the mount is gone, the process may end before this thread does.
        stack::wipe::<{ stack::DEPTH }>();
        match self.mounted.take_away() {
            Ok(true) => {}
            Ok(false) => self.exit(),
            Err(error) => {
                tracing::error!("{error}");
                self.exit();
            }
        }
    }

    /// Ends this process if the store stops answering before the vault is released.
    fn watch_store(self: &Arc<Self>) {
        let ending = self.clone();
        let watch = move || {
            let mut silence = Silence::begin();
            loop {
                std::thread::sleep(STORE_TICK);
                if ending.vault.lock().is_none() {
                    return;
                }
                if let Some(patience) = silence.is_over(Some(ending.pulse.answers())) {
                    ending.abandon(patience);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("kithfs-store".into()).spawn(watch) {
            tracing::warn!("a store that does not answer will be waited for: {error}");
        }
    }

    /// Takes the mount away and ends this process without the data that the store does not take.
    fn abandon(self: &Arc<Self>, patience: Duration) -> ! {
        let vault = self.vault.lock().clone();
        let files = vault.and_then(|vault| within(move || vault.activity().unsynced));
        let files = files.map_or("files".to_owned(), |count| format!("{count} open files"));
        let message = format!(
            "the store has not answered for {} seconds; what was written to {files} since the last sync may be lost",
            patience.as_secs()
        );
        tracing::error!("{message}");
        // The entry stays until the mount is gone: with it, the command finds the failure.
        if let Some(registered) = &*self.registered.lock()
            && let Err(error) = registered.leave_failure(&message)
        {
            tracing::error!("cannot record the failure for `lock`: {error}");
        }
        let mounted = self.mounted.clone();
        match within(move || mounted.take_away()) {
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::error!("{error}"),
            None => tracing::error!("the kernel does not take the mount away"),
        }
        let point = self.made_point.clone();
        within(move || remove(point.as_deref()));
        let (notices, why) = (self.notices.clone(), self.locked().unwrap_or_default().to_owned());
        within(move || {
            notices.tell(What::Locked(format!("{why}; the store did not answer")));
            notices.finish();
        });
        drop(self.registered.lock().take());
        fork::end_now(Exit::Failure)
    }

    fn commit(&self) {
        let vault = self.vault.lock().clone();
        if let Some(vault) = vault {
            vault.commit_due(Duration::ZERO);
        }
    }

    /// Takes the pages of open files out of the kernel's cache.
    fn drop_pages(&self) {
        let vault = self.vault.lock().clone();
        for node in vault.map(|vault| vault.open_nodes()).unwrap_or_default() {
            if let Err(error) = self.kernel.inval_inode(node, 0, 0) {
                tracing::debug!("the kernel keeps pages of an open file: {error}");
            }
        }
    }

    /// Writes everything and ends the process, which ends the mount.
    fn exit(&self) -> ! {
        remove(self.made_point.as_deref());
        let vault = self.vault.lock().clone();
        let closed = vault.map_or(Ok(()), |vault| vault.close());
        let exit = match closed {
            Ok(()) => Exit::Ok,
            Err(error) => {
                tracing::error!("{error}");
                if let Some(registered) = &*self.registered.lock()
                    && let Err(error) = registered.leave_failure(&error.to_string())
                {
                    tracing::error!("cannot record the failure for `umount`: {error}");
                }
                Exit::Failure
            }
        };
        if let Some(why) = self.locked() {
            self.notices.tell(What::Locked(why.to_owned()));
        }
        self.notices.finish();
        std::process::exit(exit.code().into());
    }

    /// Ends the mount at a signal. If programs keep it busy, a second signal writes everything and
    /// ends the process.
    pub fn obey(self: Arc<Self>, signals: Signals) {
        let wait = move || {
            let mut asked = false;
            loop {
                match signals.wait() {
                    Ok(name) => tracing::info!("{name}: unmounting"),
                    Err(error) => return tracing::error!("cannot wait for signals: {error}"),
                }
                if asked {
                    self.exit();
                }
                self.unmount();
                asked = true;
            }
        };
        if let Err(error) = std::thread::Builder::new().name("kithfs-signals".into()).spawn(wait) {
            tracing::error!("signals are not handled: {error}");
        }
    }
}

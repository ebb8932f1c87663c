//! `kithfs mount`
//!
//! Order: checks that need no secret; the secret; the fork; keys, vault, mount, service; the report
//! that the mount is ready. The reasons are in `daemon::fork`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use super::lock;
use super::mount_point::{MountPoint, Ready};
use crate::cli::args::{self, LogLevel, Mount, MountSettings, Notify};
use crate::cli::control::{self, Control, Ended, Offer, Working};
use crate::cli::daemon::ending::{Ending, Of, has_manager, tell_manager};
use crate::cli::daemon::fork::{self, Background, Side};
use crate::cli::daemon::log::{self, Target};
use crate::cli::daemon::process::{ProcessId, in_user_namespace};
use crate::cli::daemon::registry::{Entry, Registered, Registry};
use crate::cli::daemon::signals::{self, Signals};
use crate::cli::desktop::events::LockOn;
use crate::cli::desktop::notify::{Notices, What};
use crate::cli::display;
use crate::cli::display::JsonPath;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, in_vault, note, warn};
use crate::cli::secrets::identity::{self, Asked, Locked};
use crate::cli::user::directories;
use crate::cli::user::rollback_memory;
use crate::cli::vaults::open::{self, Found, Open, Purpose};
use crate::cli::vaults::sync_folder;
use crate::fuse::abort::{self, Aborter};
use crate::fuse::handover::{self, HandOver};
use crate::fuse::idle::{self, Idle};
use crate::fuse::vaultfs::VaultFs;
use crate::fuse::{
    self, MountOptions, Mounted, Permissions, ServeOptions, Serving, Transport, held, uring,
};
use crate::roster::Role;
use crate::store::os::clear_umask;
use crate::store::{Dir, Stat};
use crate::vault::{Event, Events, Usage, Vault};

/// Readahead of the kernel for sequential reads, in KiB: some chunks of the default size.
const READAHEAD_KIB: u32 = 1024;

/// Everything known before the fork.
struct Plan<'a> {
    found: Found,
    secret: (Locked, Asked),
    point: MountPoint,
    options: MountOptions,
    serve: ServeOptions,
    lock_on: LockOn,
    notify: Notify,
    how: &'a MountSettings,
}

/// Mounts a vault.
pub fn run(args: &Mount, level: LogLevel) -> Result<Exit, Failure> {
    let lock_on = LockOn::from(&args.how.lock_on[..]);
    if lock_on != LockOn::default()
        && let Some(exit) = fork::try_in_child(|| lock_on.check())?
    {
        return Ok(exit);
    }
    let plan = Plan::make(args, lock_on)?;
    if args.foreground {
        log::start(level, Target::Stderr);
        return Service::start(plan, has_manager())?.run(None);
    }
    match fork::fork()? {
        Side::Front(front) => Ok(front.reporting_interrupts().wait()?),
        Side::Background(background) => {
            log::start(level, Target::Syslog);
            match Service::start(plan, false) {
                Ok(service) => service.run(Some(background)),
                Err(failure) => {
                    failure.print();
                    background.failed(failure.exit);
                    Ok(failure.exit)
                }
            }
        }
    }
}

impl Plan<'_> {
    fn make(args: &Mount, lock_on: LockOn) -> Result<Plan<'_>, Failure> {
        let how = &args.how;
        let mut options = MountOptions::default();
        how.options.iter().try_for_each(|list| options.parse(list))?;
        options.read_only |= how.read_only;
        options.shared |= how.shared;
        if let Some(idle) = how.idle {
            options.idle = idle.0;
        }
        if options.default_permissions.is_none() && in_user_namespace() {
            // There, the kernel shows ACLs only if it also enforces them.
            options.default_permissions = Some(true);
        }
        options.check()?;
        let mut found = open::find(&args.vault)?;
        found.access_times = !options.noatime;
        if options.allow_other
            && let Some(owner) = foreign_user(&found)?
        {
            let error = Error::ForeignStore { vault: found.dir.clone(), owner };
            if !options.allow_foreign_store {
                return Err(error.into());
            }
            warn(error);
        }
        let point = MountPoint::check(&args.mountpoint, &found.dir, options.nonempty, how.guard)?;
        check_fuse()?;
        if options.allow_other && !may_allow_other(Path::new("/etc/fuse.conf")) {
            return Err(Error::NoAllowOther.into());
        }
        let serve = serve_options(how.transport, &options)?;
        found.kernel_caches = serve.writeback;
        if !options.read_only && !options.shared && !found.is_shared() {
            found.refuse_mounted()?;
            found.wait_for_last_daemon();
        }
        let source = || found.dir.to_string_lossy().replace(['\n', '\0'], "?");
        options.fsname.get_or_insert_with(source);
        if !options.read_only && !found.description.synced && !found.is_shared() {
            sync_folder::hint(&found.dir);
        }
        let secret = found.ask(&how.open)?;
        Ok(Plan { found, secret, point, options, serve, lock_on, notify: how.notify, how })
    }
}

/// Describes the users, other than root and the mounting one, that own the store's root directory
/// or may write to it; `None` without any. Modes and owners in a mount are those of the store. Such
/// a user can store the ciphertext of any file there as a file of their own, or change its mode,
/// and then read it through the mount.
fn foreign_user(found: &Found) -> Result<Option<String>, Error> {
    let failed = |source| Error::Io { op: "check the owner of", path: found.dir.clone(), source };
    let Stat { uid, gid, perm, .. } = found.store.stat_self().map_err(failed)?;
    // A store without ACLs may refuse the query.
    let has_acl =
        || found.store.get_xattr_self(b"system.posix_acl_access").is_ok_and(|acl| acl.is_some());
    let is_own_group = gid == 0 || gid == rustix::process::getegid().as_raw();
    Ok(match perm {
        _ if !directories::is_trusted(uid) => {
            Some(format!("user {uid}, the owner of the vault's directory,"))
        }
        perm if perm & 0o002 != 0 => {
            Some("every user with write access to the vault's directory".to_owned())
        }
        perm if perm & 0o020 != 0 && (!is_own_group || has_acl()) => Some(format!(
            "group {gid}, or others by an ACL, with write access to the vault's directory"
        )),
        _ => None,
    })
}

/// Checks that FUSE is available, before the passphrase prompt.
fn check_fuse() -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file()) {
            return Err(Error::NoFusermount);
        }
    }
    fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map(drop)
        .map_err(Error::NoFuseDevice)
}

/// Returns whether `fusermount3` lets this user admit others, as far as its configuration can be
/// read here.
fn may_allow_other(configuration: &Path) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    fs::read_to_string(configuration)
        .map_or(true, |text| text.lines().any(|line| line.trim() == "user_allow_other"))
}

/// Returns how the mount is served. Fails before the passphrase prompt if io_uring was requested
/// and is not available.
fn serve_options(
    transport: Option<args::Transport>,
    options: &MountOptions,
) -> Result<ServeOptions, Error> {
    let transport = match (transport, options.uring) {
        (Some(args::Transport::Uring), _) => match uring::why_not() {
            None => Transport::Uring,
            Some(why) => return Err(Error::NoUring(why)),
        },
        (Some(args::Transport::Dev), _) | (None, Some(false)) => Transport::Dev,
        (Some(args::Transport::Auto), _) | (None, Some(true) | None) => Transport::Auto,
    };
    let permissions = options.permissions();
    let acls = options.view.is_plain();
    let mut serve = ServeOptions { transport, permissions, acls, ..ServeOptions::default() };
    if permissions == Permissions::Daemon && options.allow_other {
        // The kernel would let one user use directory entries that another user has looked up.
        (serve.entry_ttl, serve.negative_ttl) = (Duration::ZERO, Duration::ZERO);
    }
    if let Some(mib) = options.uring_memory {
        serve.uring_memory = mib as usize * (1 << 20);
    }
    Ok(serve)
}

/// Returns the options for an open vault: the kernel caches less of one that others may change.
fn serve_as(vault: &Vault, serve: ServeOptions) -> ServeOptions {
    match vault {
        vault if vault.is_shared() => serve.shared(),
        vault if vault.is_synced() => serve.synced(),
        _ => serve,
    }
}

/// A mount that serves requests.
struct Service {
    vault: Vault,
    dir: PathBuf,
    point: Ready,
    mounted: Arc<Mounted>,
    serving: Serving,
    signals: Signals,
    ending: Arc<Ending>,
    control: Option<Control>,
    /// Present if the kernel caches writes.
    handover: Option<HandOver>,
    aborter: Option<Aborter>,
    /// Present if the mount ends when it is unused.
    idle: Option<Idle>,
    notices: Notices,
}

/// Tells the user why a mount that was to be writable is read-only.
fn note_read_only(open: &Open, store_is_read_only: bool) {
    let why = match open.vault.role() {
        Role::Reader => "your role is reader",
        _ if store_is_read_only => "its filesystem is read-only",
        _ => "its list of members is uncertain; see `kithfs share list`",
    };
    note(format_args!("{} is mounted read-only: {why}", display::path(&open.dir)));
}

/// Tells the user if the options of an NFS mount are not those that concurrent mounts need.
fn note_late(open: &Open, is_late: bool) {
    if is_late && open.vault.is_shared() {
        note(format_args!(
            "{} is on an NFS mount that shows other machines' changes of names and sizes late; mount it with the option actimeo=0",
            display::path(&open.dir)
        ));
    }
}

fn note_unguarded(error: io::Error) {
    note(format_args!("the mount point is not guarded: {error}"));
}

/// Sets the kernel's readahead, which only root may do. A mount works without it.
fn set_readahead(mounted: &Mounted) {
    if rustix::process::geteuid().is_root()
        && let Err(error) = mounted.set_readahead(READAHEAD_KIB)
    {
        tracing::debug!("readahead stays as it is: {error}");
    }
}

/// Starts the helper that ends the mount if this process is killed. Without it, a thread of this
/// process that waits in the kernel can keep the mount, and programs in it wait.
fn start_aborter(mounted: &Mounted) -> Option<Aborter> {
    abort::start(mounted.device)
        .inspect_err(|error| {
            tracing::debug!("programs may wait if this process is killed: {error}")
        })
        .ok()
}

/// Starts to answer commands about this mount and its shares. The mount works without it.
fn serve_control(
    socket: PathBuf,
    open: &Open,
    serving: &Serving,
    usage: Usage,
    ending: Arc<Ending>,
) -> Option<Control> {
    let offer = Offer {
        pulse: ending.pulse(),
        dir: open.dir.clone(),
        notifier: serving.notifier(),
        usage,
        lock: Box::new(move || ending.lock("a command asked for it")),
    };
    control::serve(socket, open.vault.clone(), offer)
        .inspect_err(|error| tracing::warn!("commands cannot reach this mount: {error}"))
        .ok()
}

/// Starts to have the kernel write back early what programs have written. The mount works without
/// it.
fn start_handover(mounted: Arc<Mounted>, vault: Vault) -> Option<HandOver> {
    handover::start(mounted, vault)
        .inspect_err(|error| {
            tracing::warn!("written data may stay in the kernel's cache for half a minute: {error}")
        })
        .ok()
}

/// Unmounts a mount that no process serves, and returns the error. The unmount is lazy, as a
/// program may already be blocked in the mount.
fn not_served(mounted: &Mounted, point: &Path, source: io::Error) -> Error {
    if let Err(error) = mounted.unmount(true) {
        tracing::error!("{error}");
    }
    Error::Io { op: "serve the mount on", path: point.to_owned(), source }
}

/// Prepares the vault for writing. If it is open read-only, makes the mount read-only too.
fn prepare_vault(open: &Open, options: &mut MountOptions, store: &dyn Dir) {
    note_late(open, store.shows_changes_late());
    if open.vault.is_read_only() && !options.read_only {
        note_read_only(open, store.is_read_only().unwrap_or(false));
        options.read_only = true;
    }
    if let Err(error) = open.vault.prepare() {
        tracing::warn!("{error}; overwriting synced files will need free space");
    }
}

/// Prepares this process to serve a mount. Returns its signals, which are blocked from now on.
fn prepare_process() -> Result<Signals, Failure> {
    fork::keep_memory_private()?;
    clear_umask();
    fork::raise_open_files();
    signals::ignore_file_size_limit()
        .map_err(|source| Error::Os { op: "lift the limit on file sizes", source })?;
    Ok(Signals::block().map_err(|source| Error::Os { op: "block signals", source })?)
}

/// Returns how the vault is opened for a mount with these options.
fn purpose(options: &MountOptions) -> Purpose {
    match (options.read_only, options.shared) {
        (true, false) => Purpose::Read,
        (false, false) => Purpose::Write,
        (true, true) => Purpose::ReadShared,
        (false, true) => Purpose::WriteShared,
    }
}

/// Makes the vault tell the kernel which of the kernel's cached writes were refused.
fn tell_kernel(serving: &Serving, vault: &Vault) {
    match held::forgetting(serving.notifier()) {
        Ok(forget) => vault.tell_cache(forget),
        Err(error) => {
            tracing::warn!("refused writes may be visible until the file is reopened: {error}")
        }
    }
}

impl Service {
    fn start(plan: Plan<'_>, is_service: bool) -> Result<Service, Failure> {
        let Plan { mut found, secret, point, mut options, serve, lock_on, notify, how } = plan;
        let signals = prepare_process()?;
        let watch = lock_on.subscribe()?;
        let notices = Notices::start(notify, &found.dir);
        let told = notices.clone();
        found.events = Events::new(move |event| told.tell(What::In(event)));
        let share = found.description.share_id;
        let store = found.store.clone();
        let open = found.unlock(secret, &how.open, purpose(&options))?;
        if open.vault.forks() > 0 {
            notices.tell(What::In(Event::Forked));
        }
        if !how.memory.no_rollback_memory {
            let limit = how.memory.limit.rollback_memory;
            rollback_memory::begin(&open.vault, &share, true, limit);
        }
        prepare_vault(&open, &mut options, &*store);
        let serve = serve_as(&open.vault, serve);
        let point = point.prepare(options.nonempty)?;
        let (mounted, device) = fuse::mount(&point.path, &options)?;
        point.close_guard().unwrap_or_else(note_unguarded);
        let operations = Arc::new(VaultFs::new(open.vault.clone(), options.view));
        let (usage, closing) = (operations.usage(), operations.closing());
        let serving = fuse::serve(device, operations, &serve)
            .map_err(|source| not_served(&mounted, &point.path, source))?;
        if serve.writeback || open.vault.is_shared() {
            tell_kernel(&serving, &open.vault);
        }
        let is_over = serving.over_io_uring();
        if is_over {
            tracing::info!("requests come over io_uring");
        }
        set_readahead(&mounted);
        let registered = register(&open.dir, &mounted, options.read_only, is_over);
        let socket = registered.as_ref().map(Registered::socket);
        let mounted = Arc::new(mounted);
        let collects = serve.writeback && !options.read_only;
        let of = Of {
            mounted: mounted.clone(),
            vault: open.vault.clone(),
            registered,
            kernel: serving.notifier(),
            closing,
            collects,
            notices: notices.clone(),
            made_point: point.made(),
        };
        let ending = Ending::new(of, lock::lock_within, is_service);
        let control = socket.and_then(|socket| {
            serve_control(socket, &open, &serving, usage.clone(), ending.clone())
        });
        let locking = ending.clone();
        let unmounted = |op, source| {
            ending.unmount();
            Error::Os { op, source }
        };
        let watched = watch.start(Arc::new(move |why| locking.lock(why)));
        watched.map_err(|e| unmounted("watch for the events that lock the vault", e))?;
        let handover =
            collects.then(|| start_handover(mounted.clone(), open.vault.clone())).flatten();
        let is_working = control.as_ref().map(Control::watch);
        let is_working = move || is_working.as_ref().is_some_and(Working::is_under_way);
        let idle = options.idle.map(|after| idle::start(mounted.clone(), usage, is_working, after));
        let idle = idle.transpose().map_err(|e| unmounted("watch whether the mount is used", e))?;
        Ok(Service {
            vault: open.vault,
            dir: open.dir,
            point,
            aborter: start_aborter(&mounted),
            mounted,
            serving,
            signals,
            ending,
            control,
            handover,
            idle,
            notices,
        })
    }

    /// Serves until the mount ends, then writes everything.
    fn run(self, background: Option<Background>) -> Result<Exit, Failure> {
        let Service {
            vault,
            dir,
            point,
            mounted,
            serving,
            signals,
            ending,
            control,
            handover,
            aborter,
            idle,
            notices,
        } = self;
        match background.map(Background::serving) {
            None => tell_manager(&[NotifyState::Ready]),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                // The foreground command was killed, so nobody knows of this mount.
                tracing::error!("{error}");
                ending.unmount();
            }
        }
        tracing::info!(
            "serving the vault {} on {}",
            display::path(&dir),
            display::path(&mounted.mountpoint)
        );
        ending.clone().obey(signals);
        let served = serving.join();
        let was_unused = idle.is_some_and(Idle::end);
        // The mount point is removed before the vault is closed, which can take long.
        let control = control.map(Control::end);
        drop((handover, point, aborter));
        let closed = vault.close().map_err(|error| in_vault(error, &dir, None));
        control.iter().for_each(Ended::wait);
        let registered = ending.release();
        let is_wiped = vault.is_last();
        if let Some(why) = ending.locked() {
            notices.tell(What::Locked(why.to_owned()));
            let keys = if is_wiped { "wiped" } else { "gone when this process ends" };
            tracing::info!("locked the vault {}; its keys are {keys}", display::path(&dir));
        }
        if was_unused {
            notices.tell(What::Unused);
        }
        notices.finish();
        let result = match (served, closed) {
            (_, Err(failure)) => Err(failure),
            (Err(source), Ok(())) => {
                Err(Error::Io { op: "serve the vault", path: dir.clone(), source }.into())
            }
            (Ok(()), Ok(())) => Ok(Exit::Ok),
        };
        match &result {
            Ok(_) => tracing::info!("unmounted the vault {}", display::path(&dir)),
            Err(failure) => {
                tracing::error!("{}", failure.message);
                if let Some(registered) = &registered
                    && let Err(error) = registered.leave_failure(&failure.message)
                {
                    tracing::error!("cannot record the failure for `umount`: {error}");
                }
            }
        }
        result
    }
}

/// Registers the mount for `mounts` and `umount`. The mount works without it.
fn register(
    vault: &Path,
    mounted: &Mounted,
    read_only: bool,
    io_uring: bool,
) -> Option<Registered> {
    let add = || {
        let registry = Registry::open()?;
        registry.add(&Entry {
            vault: JsonPath(vault.to_owned()),
            mountpoint: JsonPath(mounted.mountpoint.clone()),
            process: ProcessId::current()?,
            since: identity::now(),
            read_only,
            io_uring,
        })
    };
    add()
        .inspect_err(|error| {
            tracing::warn!("the mount will not be listed by `kithfs mounts`: {error}")
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_users_need_a_line_to_admit_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fuse.conf");
        assert!(may_allow_other(&file), "without the file, fusermount3 decides");
        fs::write(&file, "# user_allow_other\nmount_max = 9\n").unwrap();
        assert_eq!(may_allow_other(&file), rustix::process::geteuid().is_root());
        fs::write(&file, "mount_max = 9\nuser_allow_other\n").unwrap();
        assert!(may_allow_other(&file));
    }
}

//! `kithfs umount`

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::cli::args::Umount;
use crate::cli::control;
use crate::cli::daemon::patience::Silence;
use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{self, Failure, note};
use crate::fuse::mount::unmount::unmount;
use crate::fuse::mounts::{Holder, MountEntry};
use crate::fuse::{MountError, Mounted, handover, mounts};

/// Time after which the wait for the daemon is reported.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the daemon is then asked whether its store answers.
const TICK: Duration = Duration::from_secs(1);

/// Unmounts, and waits until the daemon has written everything.
pub fn run(args: &Umount) -> Result<Exit, Failure> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            Failure::from(MountError::NotMounted { path: args.mountpoint.clone() })
        }
        _ => Error::Io { op: "umount", path: args.mountpoint.clone(), source }.into(),
    };
    let place = mounts::resolve(&args.mountpoint).map_err(failed)?;
    // An unreadable registry must not prevent an unmount.
    let registry =
        Registry::open().inspect_err(|error| tracing::warn!("list of mounts: {error}")).ok();
    let entry = registry.as_ref().and_then(|registry| registry.serving(&place).ok()).flatten();
    // This command must not keep the mount busy with its own working directory.
    let _ = std::env::set_current_dir("/");
    let was = mounts::mount_at(&place).ok().flatten();
    if let (Some(entry), Some(was), false) = (&entry, &was, args.lazy) {
        write_back(&place, entry, was)?;
    }
    // Only checked without a known daemon, as a stopped one would not answer.
    let is_dead = entry.is_none() && mounts::is_dead(&place);
    match (unmount(&place, None, args.lazy), &entry) {
        (Ok(()), _) if is_dead => {
            note("its daemon had already died: unsynced data may be missing");
            return Ok(Exit::Ok);
        }
        (Ok(()), _) => {}
        (Err(MountError::Busy { path, mut holders }), _) => {
            add_vaults_within(&place, registry.as_ref(), &mut holders);
            return Err(MountError::Busy { path, holders }.into());
        }
        // The vault was already unmounted, and its daemon is still writing.
        (Err(MountError::NotMounted { .. }), Some(_)) => {}
        (Err(error @ MountError::NotMounted { .. }), None) => {
            let live =
                registry.as_ref().and_then(|registry| registry.live().ok()).unwrap_or_default();
            let mount = live.into_iter().find(|entry| entry.vault.0 == place);
            let failure = Failure::from(error);
            return Err(match mount {
                Some(entry) => failure.hint(format_args!(
                    "this is a vault; unmount its mount point: kithfs umount {}",
                    shown(&entry.mountpoint.0)
                )),
                None => failure,
            });
        }
        (Err(error), _) => return Err(error.into()),
    }
    if args.lazy {
        return Ok(Exit::Ok);
    }
    let (Some(registry), Some(entry)) = (registry, entry) else {
        note("the mount is not on the list of your mounts; its daemon may still be writing");
        return Ok(Exit::Ok);
    };
    // The kernel reuses device numbers, and another mount may be at this mount point by now. Mounts
    // that another daemon is known to serve are excluded.
    let other_daemons = |other: &MountEntry| {
        registry
            .serving(&other.mountpoint)
            .is_ok_and(|found| found.is_some_and(|found| found.process != entry.process))
    };
    let fits = |other: &MountEntry| match &was {
        Some(was) => was.device == other.device,
        // The vault was already unmounted, by another user or an earlier call.
        None => other.mountpoint == place || other.source == entry.vault.0.as_os_str(),
    };
    let is_it = |other: &MountEntry| fits(other) && !other_daemons(other);
    wait(&place, &entry, is_it)?;
    match registry.take_failure(entry.process) {
        Some(message) => Err(Failure::new(
            Exit::Failure,
            format_args!("umount {}: some data was not written: {message}", shown(&place)),
        )),
        None => Ok(Exit::Ok),
    }
}

/// Adds daemons whose vault is inside the mount at `place`. Only root sees what they hold open, as
/// they keep their memory private.
fn add_vaults_within(place: &Path, registry: Option<&Registry>, holders: &mut Vec<Holder>) {
    let entries = registry.and_then(|registry| registry.live().ok()).unwrap_or_default();
    for entry in entries
        .into_iter()
        .filter(|entry| entry.vault.0.starts_with(place) && entry.mountpoint.0 != place)
    {
        holders.retain(|holder| holder.pid != entry.process.pid);
        holders.push(Holder {
            pid: entry.process.pid,
            name: "kithfs".into(),
            by: "a vault inside it is mounted on",
            path: Some(entry.mountpoint.0),
        });
    }
}

/// Has the kernel hand over what programs have written. The unmount would do it too, but could not
/// be interrupted, even by SIGKILL, if the store does not answer.
///
/// # Errors
/// The store does not answer.
fn write_back(place: &Path, entry: &Entry, was: &MountEntry) -> Result<(), Failure> {
    let mounted = Mounted::new(place.to_owned(), was.device);
    let mut silence = Silence::begin();
    let mut over = None;
    let goes_on = || {
        over = silence.is_over(control::answers(entry).ok());
        over.is_none()
    };
    // Another failure is no reason not to unmount.
    let _ = handover::collect_while(&mounted, goes_on);
    match over {
        Some(time) => Err(Failure::new(
            Exit::Failure,
            format_args!(
                "umount {}: the store has not answered for {} seconds; it is still mounted",
                shown(place),
                time.as_secs()
            ),
        )
        .hint(format_args!(
            "wait for the store; or `kithfs lock {}` takes the mount away, and gives up what the store does not take",
            shown(place)
        ))),
        None => Ok(()),
    }
}

/// Waits for the end of the daemon as long as its store answers, because files are not safe before.
/// But if the filesystem is still mounted at another mount point or in another mount namespace, the
/// daemon may run for ever, and the wait stops.
fn wait(place: &Path, entry: &Entry, is_it: impl Fn(&MountEntry) -> bool) -> Result<(), Failure> {
    let failed =
        |source| Error::Io { op: "wait for the daemon of", path: place.to_owned(), source };
    let process = entry.process;
    if process.wait_for_end(PATIENCE).map_err(failed)? {
        return Ok(());
    }
    let (places, holders) = (mounts::places(&is_it), mounts::elsewhere(&is_it));
    if !places.is_empty() || !holders.is_empty() {
        return Err(report::mounted_elsewhere(place, process.pid, &places, &holders));
    }
    note(format_args!(
        "unmounted {}; waiting for process {} to write the remaining data",
        shown(place),
        process.pid
    ));
    let mut silence = Silence::begin();
    while !process.wait_for_end(TICK).map_err(failed)? {
        if let Some(time) = silence.is_over(control::answers(entry).ok()) {
            return Err(Failure::new(
                Exit::Failure,
                format_args!(
                    "unmounted {}, but its store has not answered for {} seconds; process {} still has data that is not written",
                    shown(place),
                    time.as_secs(),
                    process.pid
                ),
            )
            .hint(format_args!(
                "it writes the data when the store answers; `kill -KILL {}` gives it up",
                process.pid
            )));
        }
    }
    Ok(())
}

//! `kithfs lock`

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::open_vaults::{each, mounted};
use crate::cli::args::named::Lock;
use crate::cli::control;
use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note};
use crate::cli::user::named;
use crate::fuse::mounts;

/// Locks the named vaults, or all open ones, and waits until their daemons have ended.
pub fn run(args: &Lock) -> Result<Exit, Failure> {
    let failed = |source| Error::Os { op: "read the list of mounts", source };
    let registry = Registry::open().map_err(failed)?;
    let live = registry.live().map_err(failed)?;
    let chosen = if args.names.is_empty() {
        live
    } else {
        args.names.iter().map(|name| find(name, &live)).collect::<Result<_, _>>()?
    };
    // All daemons are asked before the first wait, because one of them may wait for its store.
    let asked: Vec<_> = chosen.into_iter().map(|entry| (control::lock(&entry), entry)).collect();
    each(asked, |(asked, entry)| {
        asked.map_err(|failure| still_open(failure, &entry))?;
        wait(&registry, &entry)
    })
}

/// Finds an open vault by its name or its mount point.
fn find(name: &OsStr, live: &[Entry]) -> Result<Entry, Error> {
    if let Some(text) = name.to_str()
        && let Ok(found) = named::find(text)
    {
        return mounted(&found).ok_or(Error::NotOpen(found.mountpoint));
    }
    let place = mounts::resolve(Path::new(name)).unwrap_or_else(|_| name.into());
    let found = live.iter().find(|entry| entry.mountpoint.0 == place);
    found.cloned().ok_or(Error::NotOpen(name.into()))
}

/// Locks the vaults of this user that are inside a mount, and waits for their daemons: what they
/// write last goes through that mount.
pub fn lock_within(mountpoint: &Path) {
    let live = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    let within =
        |entry: &Entry| entry.vault.0.starts_with(mountpoint) && entry.mountpoint.0 != mountpoint;
    for entry in live.into_iter().filter(within) {
        let asked = control::lock(&entry);
        if let Err(failure) = asked {
            tracing::warn!("a vault inside the mount is not locked: {}", failure.message);
            continue;
        }
        // Waits without a time limit: what was written is not safe until the daemon has ended.
        while matches!(entry.process.wait_for_end(Duration::from_secs(3600)), Ok(false)) {}
    }
}

/// Waits until the daemon has ended: what was written is not safe before. A daemon whose store does
/// not answer records the failure and takes the mount away. The store may still keep it from
/// ending, so the wait stops at the recorded failure.
fn wait(registry: &Registry, entry: &Entry) -> Result<Exit, Failure> {
    const NOTE_AFTER: Duration = Duration::from_secs(5);
    const TICK: Duration = Duration::from_millis(500);
    let place = &entry.mountpoint.0;
    let failed = |source| Error::Io { op: "wait for the daemon of", path: place.clone(), source };
    let (begun, mut is_noted) = (Instant::now(), false);
    while !entry.process.wait_for_end(TICK).map_err(failed)? {
        if mounts::mount_at(place).is_ok_and(|found| found.is_none())
            && let Some(message) = registry.take_failure(entry.process)
        {
            return Err(not_written(place, &message));
        }
        if !is_noted && begun.elapsed() >= NOTE_AFTER {
            is_noted = true;
            let pid = entry.process.pid;
            note(format_args!("waiting for process {pid} to write the data of {}", shown(place)));
        }
    }
    match registry.take_failure(entry.process) {
        Some(message) => Err(not_written(place, &message)),
        None => Ok(Exit::Ok),
    }
}

fn still_open(failure: Failure, entry: &Entry) -> Failure {
    failure.hint(format_args!(
        "{} is still open; to end its daemon and lose what was not synced: kill -9 {}",
        shown(&entry.mountpoint.0),
        entry.process.pid
    ))
}

fn not_written(place: &Path, message: &str) -> Failure {
    Failure::new(
        Exit::Failure,
        format_args!("lock {}: some data was not written: {message}", shown(place)),
    )
}

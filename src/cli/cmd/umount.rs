//! `kithfs umount`

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::cli::args::Umount;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::process::ProcessId;
use crate::cli::registry::Registry;
use crate::cli::report::{self, Failure, note};
use crate::fuse::mount::unmount::unmount;
use crate::fuse::mounts::{Holder, MountEntry};
use crate::fuse::{MountError, mounts};

/// How long it is silent while the daemon writes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a mount, and waits until its daemon has written all.
pub fn run(args: &Umount) -> Result<Exit, Failure> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            Failure::from(MountError::NotMounted { path: args.mountpoint.clone() })
        }
        _ => Error::Io { op: "umount", path: args.mountpoint.clone(), source }.into(),
    };
    let place = mounts::resolve(&args.mountpoint).map_err(failed)?;
    // a registry that cannot be read must not keep anybody from unmounting
    let registry =
        Registry::open().inspect_err(|error| tracing::warn!("list of mounts: {error}")).ok();
    let entry = registry.as_ref().and_then(|registry| registry.serving(&place).ok()).flatten();
    // who stands in the mount does not keep it busy with this very command
    let _ = std::env::set_current_dir("/");
    let was = mounts::mount_at(&place).ok().flatten();
    // asked only where no daemon is known to run: one that is stopped would not answer
    let is_dead = entry.is_none() && mounts::is_dead(&place);
    match (unmount(&place, None, args.lazy), &entry) {
        (Ok(()), _) if is_dead => {
            note("its daemon had died before: what was not synced then may be missing");
            return Ok(Exit::Ok);
        }
        (Ok(()), _) => {}
        (Err(MountError::Busy { path, mut holders }), _) => {
            add_vaults_within(&place, registry.as_ref(), &mut holders);
            return Err(MountError::Busy { path, holders }.into());
        }
        // somebody else has unmounted it, and its daemon still writes
        (Err(MountError::NotMounted { .. }), Some(_)) => {}
        (Err(error @ MountError::NotMounted { .. }), None) => {
            let live =
                registry.as_ref().and_then(|registry| registry.live().ok()).unwrap_or_default();
            let mount = live.into_iter().find(|entry| entry.vault.0 == place);
            let failure = Failure::from(error);
            return Err(match mount {
                Some(entry) => failure.hint(format_args!(
                    "it is a vault, mounted elsewhere: kithfs umount {}",
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
        note(
            "the mount is not on the list of your mounts; whether its daemon has written all cannot be seen",
        );
        return Ok(Exit::Ok);
    };
    // a device number is given anew, and the place may have another mount by now: what another
    // daemon is known to serve is not it
    let other_daemons = |other: &MountEntry| {
        registry
            .serving(&other.mountpoint)
            .is_ok_and(|found| found.is_some_and(|found| found.process != entry.process))
    };
    let fits = |other: &MountEntry| match &was {
        Some(was) => was.device == other.device,
        // it was unmounted before, by somebody else or by a call like this one
        None => other.mountpoint == place || other.source == entry.vault.0.as_os_str(),
    };
    let is_it = |other: &MountEntry| fits(other) && !other_daemons(other);
    wait(&place, entry.process, is_it)?;
    match registry.take_failure(entry.process) {
        Some(message) => Err(Failure::new(
            Exit::Failure,
            format_args!("umount {}: not all was written: {message}", shown(&place)),
        )),
        None => Ok(Exit::Ok),
    }
}

/// Daemons of mounts of which the vault lies in the mount at `place`. Nobody but root sees what
/// they hold: they keep their memory private.
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
            by: "a vault in it is mounted on",
            path: Some(entry.mountpoint.0),
        });
    }
}

/// Waits for the daemon, however long it takes: until it has ended the files are not safe. Only
/// where the mount lives on, at another place or in another mount namespace, nobody can tell when
/// that will be.
fn wait(
    place: &Path,
    process: ProcessId,
    is_it: impl Fn(&MountEntry) -> bool,
) -> Result<(), Failure> {
    let failed =
        |source| Error::Io { op: "wait for the daemon of", path: place.to_owned(), source };
    if process.wait_for_end(PATIENCE).map_err(failed)? {
        return Ok(());
    }
    let (places, holders) = (mounts::places(&is_it), mounts::elsewhere(&is_it));
    if !places.is_empty() || !holders.is_empty() {
        return Err(report::mounted_elsewhere(place, process.pid, &places, &holders));
    }
    note(format_args!(
        "unmounted {}; waiting for process {} to write what is left",
        shown(place),
        process.pid
    ));
    while !process.wait_for_end(Duration::from_secs(3600)).map_err(failed)? {}
    Ok(())
}

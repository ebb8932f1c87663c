//! `kithfs umount`

use std::path::Path;
use std::time::Duration;

use crate::cli::args::Umount;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::process::ProcessId;
use crate::cli::registry::Registry;
use crate::cli::report::{Failure, note};
use crate::fuse::{MountError, mounts};

/// How long it is silent while the daemon writes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends a mount, and waits until its daemon has written all.
pub fn run(args: &Umount) -> Result<Exit, Failure> {
    let failed = |source| Error::Io { op: "umount", path: args.mountpoint.clone(), source };
    let place = mounts::resolve(&args.mountpoint).map_err(failed)?;
    // a registry that cannot be read must not keep anybody from unmounting
    let registry = Registry::open().inspect_err(|error| tracing::warn!("list of mounts: {error}")).ok();
    let entry = registry.as_ref().and_then(|registry| registry.serving(&place).ok()).flatten();
    match (mounts::unmount(&place, None, args.lazy), &entry) {
        (Ok(()), _) => {}
        // somebody else has unmounted it, and its daemon still writes
        (Err(MountError::NotMounted { .. }), Some(_)) => {}
        (Err(error), _) => return Err(error.into()),
    }
    if args.lazy {
        return Ok(Exit::Ok);
    }
    let (Some(registry), Some(entry)) = (registry, entry) else {
        note("the mount is not on the list of your mounts; whether its daemon has written all cannot be seen");
        return Ok(Exit::Ok);
    };
    wait(&place, entry.process)?;
    match registry.take_failure(entry.process) {
        Some(message) => Err(Failure::new(Exit::Failure, format_args!("umount {}: not all was written: {message}", shown(&place)))),
        None => Ok(Exit::Ok),
    }
}

/// Waits for the daemon, however long it takes: until it has ended the files are not safe.
fn wait(place: &Path, process: ProcessId) -> Result<(), Error> {
    let failed = |source| Error::Io { op: "wait for the daemon of", path: place.to_owned(), source };
    if process.wait_for_end(PATIENCE).map_err(failed)? {
        return Ok(());
    }
    note(format_args!("unmounted {}; waiting for process {} to write what is left", shown(place), process.pid));
    while !process.wait_for_end(Duration::from_secs(3600)).map_err(failed)? {}
    Ok(())
}

//! `kithfs mounts`

use crate::cli::args::Mounts;
use crate::cli::daemon::registry::Registry;
use crate::cli::display::{path as shown, utc};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;

/// Lists the mounts of this user.
pub fn run(args: &Mounts) -> Result<Exit, Failure> {
    let failed = |source: std::io::Error| {
        let is_refused = source.kind() == std::io::ErrorKind::PermissionDenied;
        let failure = Failure::from(Error::Os { op: "read the list of mounts", source });
        if is_refused {
            failure.hint("set XDG_RUNTIME_DIR to a directory that only this user can write to")
        } else {
            failure
        }
    };
    let entries = Registry::open().and_then(|registry| registry.live()).map_err(failed)?;
    Out::report(args.json, &entries, |out| {
        entries.iter().try_for_each(|entry| {
            let since = utc(entry.since);
            let read_only = if entry.read_only { ", read-only" } else { "" };
            let over = if entry.io_uring { ", over io_uring" } else { "" };
            let (vault, mountpoint) = (shown(&entry.vault.0), shown(&entry.mountpoint.0));
            out.text(format_args!(
                "{vault} on {mountpoint} since {since} (process {}{read_only}{over})\n",
                entry.process.pid
            ))
        })
    })
}

//! `kithfs status`

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::named::report_wrong_options;
use super::open_vaults::mounted;
use crate::cli::args::named::Status;
use crate::cli::control;
use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::display::{JsonPath, count, path as shown, utc};
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, warn};
use crate::cli::terminal::stdout::Out;
use crate::cli::user::named::{self, Named};
use crate::cli::user::rollback_memory;
use crate::cli::vaults::open;
use crate::format::name;
use crate::vault::Vault;

/// The state of a vault. The names of the fields are stable.
#[derive(Default, Serialize)]
struct Line {
    name: Option<String>,
    vault: Option<JsonPath>,
    mountpoint: Option<JsonPath>,
    /// `open`, `closed`, or `missing` if no vault can be read at the path.
    state: &'static str,
    since: Option<i64>,
    pid: Option<u32>,
    read_only: Option<bool>,
    idle_seconds: Option<u64>,
    unsynced_files: Option<usize>,
    unsynced_bytes: Option<usize>,
    forks: Option<usize>,
    rollback_alarms: Option<usize>,
    conflict_copies: Option<u64>,
}

/// Shows the named and the open vaults of this user.
pub fn run(args: &Status) -> Result<Exit, Failure> {
    let named = match &args.names[..] {
        [] => named::load()?,
        names => names.iter().map(|name| named::find(name)).collect::<Result<_, _>>()?,
    };
    report_wrong_options(&named);
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    for named in &named {
        let entry = mounted(named);
        seen.extend(entry.as_ref().map(|entry| entry.process.pid));
        lines.push(look(Some(named), entry));
    }
    if args.names.is_empty() {
        let live = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
        let others = live.into_iter().filter(|entry| !seen.contains(&entry.process.pid));
        lines.extend(others.map(|entry| look(None, Some(entry))));
    }
    Out::report(args.json, &lines, |out| {
        lines.iter().try_for_each(|line| out.text(format_args!("{}\n", line.text())))
    })
}

/// Collects what can be known of a vault without its keys, and what its daemon knows.
fn look(named: Option<&Named>, entry: Option<Entry>) -> Line {
    let vault: PathBuf = match (&entry, named) {
        (Some(entry), _) => entry.vault.0.clone(),
        (None, Some(named)) => named.vault.clone(),
        (None, None) => unreachable!("a vault is named or open"),
    };
    let found = open::find(&vault);
    let mut line = Line {
        name: named.map(|named| named.name.clone()),
        state: match (&entry, &found) {
            (Some(_), _) => "open",
            (None, Ok(_)) => "closed",
            (None, Err(_)) => "missing",
        },
        mountpoint: named.map(|named| JsonPath(named.mountpoint.clone())),
        ..Line::default()
    };
    if let Ok(found) = found {
        let memory = rollback_memory::path(&found.description.share_id);
        line.rollback_alarms = memory.and_then(|path| Vault::rollback_alarms(&path).ok());
        line.conflict_copies = Some(conflict_copies(&found.dir));
    }
    if let Some(entry) = entry {
        match control::status(&entry) {
            Ok(status) => {
                line.idle_seconds = Some(status.idle);
                line.unsynced_files = Some(status.unsynced_files);
                line.unsynced_bytes = Some(status.unsynced_bytes);
                line.forks = Some(status.forks);
            }
            Err(failure) => warn(failure.message),
        }
        line.since = Some(entry.since);
        line.pid = Some(entry.process.pid);
        line.read_only = Some(entry.read_only);
        line.mountpoint = Some(entry.mountpoint);
    }
    line.vault = Some(JsonPath(vault));
    line
}

/// Counts the conflict copies that a sync tool has made in a vault: stored names with the suffix of
/// a conflict copy. Directories that cannot be read are passed over.
fn conflict_copies(dir: &Path) -> u64 {
    let mut left = vec![dir.to_owned()];
    let mut count = 0;
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            count += u64::from(name::is_conflict_copy(entry.file_name().as_encoded_bytes()));
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
        }
    }
    count
}

impl Line {
    fn text(&self) -> String {
        let place = |path: &Option<JsonPath>| {
            path.as_ref().map(|path| shown(&path.0).to_string()).unwrap_or_default()
        };
        let (vault, mountpoint) = (place(&self.vault), place(&self.mountpoint));
        let name = self.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let mut parts = vec![match (self.since, self.pid) {
            (Some(since), Some(pid)) => {
                format!("open on {mountpoint} since {} (process {pid})", utc(since))
            }
            _ => self.state.to_owned(),
        }];
        if self.read_only == Some(true) {
            parts.push("read-only".into());
        }
        if let Some(idle) = self.idle_seconds {
            let idle = humantime::format_duration(Duration::from_secs(idle));
            parts.push(format!("unused for {idle}"));
        }
        let some = |number: u64, one| (number > 0).then(|| count(number, one));
        let many = |number: Option<usize>| number.unwrap_or(0) as u64;
        let files = some(many(self.unsynced_files), "file");
        parts.extend(files.map(|files| format!("{files} not yet synced to disk")));
        parts.extend(some(many(self.forks), "fork"));
        parts.extend(some(many(self.rollback_alarms), "rollback alarm"));
        parts.extend(some(self.conflict_copies.unwrap_or(0), "conflict copy"));
        format!("{name}{vault}: {}", parts.join(", "))
    }
}

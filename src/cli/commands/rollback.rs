//! `kithfs rollback` and `kithfs accept-rollback`

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::files::to_stream;
use crate::cli::args::check::{AcceptRollback, Rollback};
use crate::cli::args::{MemoryLimit, OpenArgs};
use crate::cli::display::{JsonPath, Shown, path as shown, utc};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::{self, Object};
use crate::cli::report::{Failure, note, warn};
use crate::cli::terminal::stdout::Out;
use crate::cli::user::rollback_memory;
use crate::cli::vaults::open::{Open, Purpose, find, open};
use crate::cli::vaults::paths;
use crate::vault::{Notice, NoticeKind, SurveyOptions, Vault};

/// A notice. The names of the fields are stable.
#[derive(Serialize)]
struct Line {
    path: JsonPath,
    /// `older`, `conflict`, `put back`, `exchanged`, `gone` or `not compared`.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_seen: Option<u64>,
    /// Seconds since 1970.
    seen: i64,
    noticed: i64,
    settled: bool,
    kept: bool,
    /// Another client may be the cause.
    perhaps_elsewhere: bool,
    /// This machine has written, removed or replaced the file since.
    written: bool,
}

impl Line {
    fn of(notice: &Notice) -> Line {
        let (kind, versions, perhaps_elsewhere) = match notice.kind {
            NoticeKind::Older { was, now } => ("older", Some((now, was)), false),
            NoticeKind::Conflict { was, now } => ("conflict", Some((now, was)), true),
            NoticeKind::PutBack { elsewhere } => ("put back", None, elsewhere),
            NoticeKind::Exchanged { elsewhere } => ("exchanged", None, elsewhere),
            NoticeKind::Gone { elsewhere } => ("gone", None, elsewhere),
            NoticeKind::NotCompared { elsewhere } => ("not compared", None, elsewhere),
        };
        Line {
            path: JsonPath::from_bytes(&notice.plain),
            kind,
            version: versions.map(|v| v.0),
            version_seen: versions.map(|v| v.1),
            seen: notice.seen,
            noticed: notice.first,
            settled: notice.due,
            kept: notice.silenced,
            perhaps_elsewhere,
            written: notice.written,
        }
    }

    fn text(&self) -> String {
        let seen = utc(self.seen);
        let what = match (self.kind, self.version, self.version_seen) {
            ("older", Some(now), Some(was)) if self.written => {
                format!(
                    "was version {now} when this machine changed it; version {was} was seen on {seen}"
                )
            }
            ("older", Some(now), Some(was)) => {
                format!("is version {now}; version {was} was seen on {seen}")
            }
            ("conflict", Some(now), Some(was)) => {
                format!(
                    "is version {now} of another machine; version {was}, seen on {seen}, lost the name in a conflict or was replaced here"
                )
            }
            ("put back", ..) if self.perhaps_elsewhere => {
                format!(
                    "is a file that was removed on {seen}; another machine may have kept it, or renamed it"
                )
            }
            ("put back", ..) if self.written => {
                format!(
                    "had reappeared when this machine changed it; it was replaced or removed on {seen}"
                )
            }
            ("put back", ..) => format!("has reappeared; it was replaced or removed on {seen}"),
            ("exchanged", ..) if self.perhaps_elsewhere => {
                format!(
                    "has exchanged contents with another file since {seen}; another machine may have renamed them"
                )
            }
            ("exchanged", ..) => {
                format!("has exchanged contents with another file since {seen}")
            }
            ("not compared", ..) if self.perhaps_elsewhere => {
                format!(
                    "cannot be read; the file that was last seen here on {seen} is under another name, and a sync tool may have copied it while it was written"
                )
            }
            ("not compared", ..) => {
                format!("cannot be compared, as it cannot be read; it was last seen on {seen}")
            }
            _ if self.perhaps_elsewhere => {
                format!(
                    "is gone; it was last seen on {seen} and may have been removed on another machine"
                )
            }
            _ => format!("is gone; it was last seen on {seen}"),
        };
        let path = self.path.0.as_os_str().as_bytes();
        let path = Shown(if path.is_empty() { b"." } else { path });
        format!(
            "{path}: {what}{}",
            if self.settled { "" } else { " (the store is still changing)" }
        )
    }
}

/// Opens the vault, mounted or not, and sets the limit of its rollback database if one is given.
/// Returns the vault and the path of the database.
fn open_remembered(
    vault: &Path,
    args: &OpenArgs,
    limit: &MemoryLimit,
) -> Result<(Open, PathBuf), Failure> {
    let share = find(vault)?.description.share_id;
    let memory = rollback_memory::path(&share)
        .ok_or_else(|| Error::Usage("neither XDG_STATE_HOME nor HOME is set".into()))?;
    let open = open(vault, args, Purpose::Beside)?;
    if let Some(limit) = limit.rollback_memory {
        Vault::limit_rollback_memory(&memory, limit).map_err(failed)?;
    }
    Ok((open, memory))
}

/// Compares the vault with its recorded state.
fn survey(open: &Open, memory: &Path, options: &SurveyOptions) -> Result<Vec<Notice>, Failure> {
    open.vault.survey(memory, options).map_err(failed)
}

fn failed(error: crate::vault::Error) -> Failure {
    Failure::new(Exit::Failure, error)
}

/// Lists the notices.
pub fn run(args: &Rollback) -> Result<Exit, Failure> {
    let options = SurveyOptions {
        settle: Duration::from_secs(args.settle),
        silence: args.keep,
        ..SurveyOptions::default()
    };
    if let Some(dir) = &args.export {
        local::check_can_make(dir).map_err(Error::io("export to", dir))?;
    }
    let (open, memory) = open_remembered(&args.vault, &args.open, &args.memory)?;
    let notices = survey(&open, &memory, &options)?;
    let lines: Vec<Line> =
        notices.iter().filter(|n| args.json || args.keep || !n.silenced).map(Line::of).collect();
    if let Some(dir) = &args.export {
        open.refuse_within("export to", dir)?;
        export(&open, &notices, dir)?;
    }
    open.close()?;
    Out::report(args.json, &lines, |out| {
        lines.iter().try_for_each(|line| out.text(format_args!("{}\n", line.text())))
    })?;
    let omitted = Vault::omitted_by_rollback_memory(&memory).map_err(failed)?;
    if omitted.entries > 0 {
        note(format_args!(
            "{} entries were not compared: the rollback database has reached its limit; raise it with --rollback-memory SIZE",
            omitted.entries
        ));
    }
    if omitted.notices > 0 {
        note(format_args!(
            "{} more of the same kinds were only counted; once those above are accepted or removed, run this again to list them",
            omitted.notices
        ));
    }
    // Changes that another client may have made are listed, but are not an alarm.
    let told = notices.iter().any(|n| n.due && !n.silenced && n.kind.is_alarm());
    if lines.is_empty() && !args.json {
        note(format_args!(
            "nothing in {} is older than this machine has seen it, or gone",
            shown(&args.vault)
        ));
    }
    if told && !args.json {
        note(
            "the vault stays usable; accept its current state with `kithfs accept-rollback`, copy the files with --export, or silence these notices with --keep",
        );
    }
    Ok(if told { Exit::RolledBack } else { Exit::Ok })
}

/// Accepts the current state of the vault.
pub fn accept(args: &AcceptRollback) -> Result<Exit, Failure> {
    let (vault, mut paths) = paths::several(&args.vault, &args.paths)?;
    if paths.is_empty() {
        paths.push(Vec::new());
    }
    let (open, memory) = open_remembered(&vault, &args.open, &args.memory)?;
    // A missing path may have a notice that it is gone; otherwise it is mistyped.
    if paths.iter().any(|path| open.vault.resolve(path).is_err()) {
        let noticed = survey(&open, &memory, &SurveyOptions::default())?;
        let is_known = |path: &[u8]| {
            open.vault.resolve(path).is_ok()
                || noticed.iter().any(|notice| is_at_or_below(&notice.plain, path))
        };
        if let Some(path) = paths.iter().find(|path| !is_known(path)) {
            let path = std::ffi::OsStr::from_bytes(path).into();
            return Err(Error::Io {
                op: "accept",
                path,
                source: std::io::Error::from_raw_os_error(libc::ENOENT),
            }
            .into());
        }
    }
    let left =
        survey(&open, &memory, &SurveyOptions { accept: paths, ..SurveyOptions::default() })?;
    open.close()?;
    note(format_args!("accepted; still noticed: {}", left.len()));
    Ok(Exit::Ok)
}

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Copies the files with a notice, in their current state, below `dir`. Nothing is overwritten.
fn export(open: &Open, notices: &[Notice], dir: &Path) -> Result<(), Failure> {
    let mut target = None;
    for notice in notices
        .iter()
        .filter(|n| !matches!(n.kind, NoticeKind::Gone { .. } | NoticeKind::NotCompared { .. }))
    {
        let target = match &mut target {
            Some(target) => target,
            none => none.insert(open.make_target("export to", dir)?),
        };
        let to = dir.join(std::ffi::OsStr::from_bytes(&notice.plain));
        if let Err(failure) = copy(open, &notice.plain, target, &to) {
            warn(failure.message);
        }
    }
    Ok(())
}

/// Copies the file at `plain` below `target`; `to` is the path for messages.
fn copy(open: &Open, plain: &[u8], target: &Object, to: &Path) -> Result<(), Failure> {
    let io = |source| Error::Io { op: "export to", path: to.to_owned(), source };
    let made = target.create_below(plain).map_err(io)?;
    let mut file = made.file.file();
    // A partial file would be mistaken for a complete one.
    to_stream(open, plain, |bytes| Ok(file.write_all(bytes).map_err(io)?))
        .inspect_err(|_| made.remove())
}

//! Removes control files to which nothing refers.
//!
//! Rules that hold here
//! * Only what this machine has found unused for some time is removed, by its own record and clock:
//!   the storage host can set the times of the store.
//! * Nothing is removed after an incomplete check, nor from a copy that lacks an entry that this
//!   machine has seen: the missing entry may refer to a control file.
//! * Every file is durable in the state directory before it is removed from the vault.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::report::Pruned;
use crate::cli::args::check::Fsck;
use crate::cli::display::{count, path as shown, size, utc, word};
use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::report::{Failure, note};
use crate::cli::secrets::identity;
use crate::cli::terminal::ask;
use crate::cli::user::{directories, rollback_memory};
use crate::cli::vaults::open::Open;
use crate::format::slots::is_file_name as is_block;
use crate::vault::{CheckReport, NoticeKind, SurveyOptions, UNUSED_MAX};

const DAY: i64 = 86_400;

/// When this machine first found each file unused.
struct Record {
    path: PathBuf,
    since: BTreeMap<Vec<u8>, i64>,
}

impl Record {
    fn read(share: &[u8; 32]) -> Result<Record, Error> {
        let path = directories::state()?.join("unused").join(hex::encode(share));
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::Io { op: "read", path, source }),
            Ok(text) => text,
        };
        let line = |line: &[u8]| {
            let at = line.iter().position(|b| *b == b' ')?;
            let since = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
            Some((line[at + 1..].to_vec(), since))
        };
        let since = text.split(|b| *b == b'\n').filter_map(line).collect();
        Ok(Record { path, since })
    }

    /// Keeps files that are still unused, and adds files that are unused now. A time in the future
    /// counts as now.
    fn update(&mut self, unused: &[Vec<u8>], now: i64) {
        let before = std::mem::take(&mut self.since);
        let since = |file: &Vec<u8>| before.get(file).map_or(now, |since| now.min(*since));
        self.since = unused.iter().map(|file| (file.clone(), since(file))).collect();
    }

    fn write(&self) -> Result<(), Failure> {
        let mut text = Vec::new();
        for (file, since) in &self.since {
            text.extend_from_slice(since.to_string().as_bytes());
            text.extend_from_slice(&[b" ", &file[..], b"\n"].concat());
        }
        directories::make_parent(&self.path)?;
        replace::<Failure>(&self.path, &text, |_| Ok(()))
    }
}

/// Where removed files are kept.
struct Kept {
    dir: PathBuf,
    bytes: u64,
}

impl Kept {
    fn begin(open: &Open, now: i64) -> Result<Kept, Error> {
        let all = directories::state()?.join("pruned").join(hex::encode(open.share));
        let dir = all.join(utc(now).replace([' ', ':'], "-"));
        let failed = |source| Error::Io { op: "make", path: dir.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&all).map_err(failed)?;
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let mut text = format!(
            "Control files of {} to which nothing referred on {}.\nTo put them back, while it is not mounted:\n",
            open.dir.display(),
            utc(now)
        );
        let _ = writeln!(text, "\n    {}", put_back(&dir, &open.dir));
        let beside = dir.with_extension("txt");
        let failed = |source| Error::Io { op: "write", path: beside.clone(), source };
        write_new(&beside, text.as_bytes()).map_err(failed)?;
        Ok(Kept { dir, bytes: 0 })
    }

    fn keep(&mut self, path: &[u8], bytes: &[u8]) -> io::Result<()> {
        let to = self.dir.join(std::ffi::OsStr::from_bytes(path));
        let parent = to.parent().expect("it is below the directory");
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        write_new(&to, bytes)?;
        // Makes the names durable, up to that of the directory of all shares.
        for dir in parent.ancestors().take_while(|dir| dir.starts_with(&self.dir)) {
            File::open(dir)?.sync_all()?;
        }
        for dir in self.dir.ancestors().skip(1).take(3) {
            File::open(dir)?.sync_all()?;
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the command that puts kept files back.
fn put_back(kept: &Path, vault: &Path) -> String {
    format!("cp -rn {}/. {}/", word(kept), word(vault))
}

/// Returns the reason why nothing may be removed; `None` if there is none.
fn obstacle(open: &Open, found: &CheckReport) -> Result<Option<String>, Failure> {
    if found.lists_alone && found.faults.is_empty() {
        return Ok(Some(
            "the vault has lists of extended attributes (+attr-*), and no entry has any attribute, as in a copy that was made without them. If that is right, give one file an attribute (setfattr -n user.kept -v 1 FILE in a mount), and run this again"
                .into(),
        ));
    }
    if found.unused.is_none() {
        return Ok(Some("the check found faults, or could not look at everything".into()));
    }
    let Some(memory) = rollback_memory::path(&open.share).filter(|path| path.exists()) else {
        return Ok(None);
    };
    let notices =
        open.vault.survey(&memory, &SurveyOptions::default()).map_err(open.failed(b""))?;
    let gone = notices.iter().filter(|n| matches!(n.kind, NoticeKind::Gone { .. })).count();
    Ok((gone > 0).then(|| {
        format!(
            "{} that this machine has seen is not in this copy of the vault, and may refer to them: see `kithfs rollback`, and accept with `kithfs accept-rollback` what was removed on purpose",
            count(gone as u64, "file or directory")
        )
    }))
}

/// Removes what is unused for long enough, if the user agrees. Returns what was removed.
pub(super) fn run(
    open: &Open,
    found: &CheckReport,
    args: &Fsck,
) -> Result<Option<Pruned>, Failure> {
    if let Some(why) = obstacle(open, found)? {
        note(format_args!("no unused control file is removed: {why}"));
        return Ok(None);
    }
    let now = identity::now();
    let mut record = Record::read(&open.share)?;
    record.update(&found.unused_files, now);
    let age = i64::from(args.unused_for) * DAY;
    let due: Vec<Vec<u8>> = (record.since.iter())
        .filter(|(_, since)| now - **since >= age)
        .map(|(file, _)| file.clone())
        .collect();
    let waiting = record.since.len() - due.len();
    if waiting > 0 {
        note(format_args!(
            "{} unused for less than {} by this machine's own record, and kept",
            count(waiting as u64, "control file"),
            count(u64::from(args.unused_for), "day")
        ));
    }
    if found.unused_files.len() == UNUSED_MAX {
        note("there may be more unused control files; run the same command again for them");
    }
    if args.dry_run {
        note(format_args!("{} would be removed", count(due.len() as u64, "control file")));
        return Ok(None);
    }
    record.write()?;
    if due.is_empty() {
        return Ok(None);
    }
    if due.iter().any(|file| is_block(file)) {
        note(
            "some of the control files are former lists of members: without them `kithfs share log` does not show who was added and removed",
        );
    }
    let question = format!(
        "remove {} to which nothing in this copy of the vault refers? Each copy has to be complete, and everything synced",
        count(due.len() as u64, "control file")
    );
    match ask::confirm(&question, args.yes) {
        Ok(()) => {}
        Err(Error::Declined) => return Ok(None),
        Err(Error::CannotAsk(_)) => {
            note("there is no terminal for the question, so nothing is removed; --yes removes it");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    }
    let mut kept = Kept::begin(open, now)?;
    let files = open
        .vault
        .prune(&due, &mut |path, bytes| kept.keep(path, bytes))
        .map_err(open.failed(b""))?;
    note(format_args!(
        "{} ({}) removed and kept in {}; to put back: {}",
        count(files, "control file"),
        size(kept.bytes),
        shown(&kept.dir),
        put_back(&kept.dir, &open.dir)
    ));
    Ok(Some(Pruned::new(files, kept.bytes, kept.dir)))
}

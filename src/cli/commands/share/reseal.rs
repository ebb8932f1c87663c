//! `kithfs share create`, `kithfs share rekey`: resealing the contents of a folder.
//!
//! Rules: the same command continues an interrupted pass, and no new key is begun while anything is
//! left under an older one.

use serde::Serialize;

use crate::cli::args::share::{ShareCreate, ShareRekey};
use crate::cli::control::Connection;
use crate::cli::daemon::signals::end_at_interrupt;
use crate::cli::display::{self, Shown, path as shown, word};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note, warn};
use crate::cli::terminal::progress::Progress;
use crate::cli::terminal::stdout::Out;
use crate::cli::user::own_name;
use crate::cli::vaults::nodes::new_dir_mode;
use crate::cli::vaults::open::Purpose;
use crate::vault::{Pending, ShareProgress};

/// The remaining work in JSON. The names of the fields are stable.
#[derive(Serialize)]
pub struct Left {
    #[serde(flatten)]
    left: Pending,
    percent: f64,
}

impl From<&Pending> for Left {
    fn from(left: &Pending) -> Left {
        Left { left: *left, percent: percent(left) }
    }
}

fn percent(left: &Pending) -> f64 {
    if left.bytes_total == 0 { 0.0 } else { left.bytes as f64 / left.bytes_total as f64 * 100.0 }
}

/// Describes the remaining work in one line.
pub fn in_words(left: &Pending) -> String {
    let Pending { files, bytes, names, headers, conflicts, skipped, .. } = *left;
    let mut line = format!(
        "{bytes} bytes in {files} files ({:.1}%), {names} names, {headers} headers and records under older keys",
        percent(left)
    );
    if conflicts > 0 {
        line += &format!("; {conflicts} names in conflict, which you need to rename or remove");
    }
    if skipped > 0 {
        line += &format!("; {skipped} invalid or unreadable, unchanged");
    }
    line
}

/// Returns a callback that shows the progress of a pass over the share.
fn shower() -> impl FnMut(&ShareProgress) {
    let mut progress = None;
    move |done| {
        let bar = progress.get_or_insert_with(|| Progress::new(Some(done.bytes_total)));
        bar.set(done.bytes, done.files);
    }
}

/// Reseals the remaining data. A pass leaves out an entry that gets another name or is replaced
/// before its turn, and the next pass finds it.
pub fn pass(connection: &Connection, eager: bool) -> Result<Pending, Failure> {
    let mut left = connection.reseal(eager, &mut shower())?;
    while !left.is_done(eager) && left.skipped == 0 {
        let before = (left.files, left.names, left.headers);
        left = connection.reseal(eager, &mut shower())?;
        if (left.files, left.names, left.headers) >= before {
            break;
        }
    }
    Ok(left)
}

/// Reports what a pass has left, and returns the exit code.
pub fn tell(left: &Pending, eager: bool) -> Exit {
    note(format_args!("{}", in_words(left)));
    if left.is_done(eager) && left.skipped == 0 {
        return Exit::Ok;
    }
    if left.skipped > 0 {
        warn("some data could not be resealed: see `kithfs fsck`, and the log");
    } else {
        let eager = if eager { " --eager" } else { "" };
        warn(format_args!(
            "some data was changed meanwhile and is not resealed: `kithfs share rekey{eager}` continues"
        ));
    }
    Exit::Failure
}

/// `share rekey`
pub fn rekey(args: &ShareRekey) -> Result<Exit, Failure> {
    end_at_interrupt(
        "share rekey",
        "what was sealed stays sealed; run the same command again, which continues (in a mounted vault, its daemon goes on by itself)",
    )?;
    let purpose = if args.status { Purpose::Beside } else { Purpose::Write };
    let path = super::place(&args.path, args.folder.as_deref());
    let (mut connection, _) = super::to_change(&path, &args.open, purpose)?;
    if !args.status {
        connection = connection.recording(&args.memory);
    }
    let mut left = connection.pending()?;
    if !args.status {
        if left.is_done(args.eager) {
            connection.rekey()?;
            note("began a new folder key");
        }
        left = pass(&connection, args.eager)?;
    }
    connection.close()?;
    if !args.status && !args.json {
        return Ok(tell(&left, args.eager));
    }
    let words = |out: &mut Out| out.text(format_args!("{}\n", in_words(&left)));
    Out::report(args.json, &Left::from(&left), words)?;
    Ok(if args.status || left.is_done(args.eager) && left.skipped == 0 {
        Exit::Ok
    } else {
        Exit::Failure
    })
}

/// `share create`
pub fn create(args: &ShareCreate) -> Result<Exit, Failure> {
    end_at_interrupt(
        "share create",
        "the folder is as it was; run the same command again, which continues (in a mounted vault, its daemon goes on by itself)",
    )?;
    let name = own_name::or_chosen(args.name.as_deref())?;
    own_name::check(&name)?;
    let path = super::place(&args.path, args.folder.as_deref());
    let connection = Connection::founding(&path, &args.open)?.recording(&args.memory);
    if connection.path.is_empty() {
        return Err(Error::Usage(format!(
            "share create {}: name a folder in the vault",
            shown(&path)
        ))
        .into());
    }
    let is_nameless = own_name::is_missing(args.name.as_deref())?;
    let (done, former) = connection.create(args.isolated, &name, new_dir_mode(), &mut shower())?;
    connection.close()?;
    if let Some(former) = former {
        warn(format_args!(
            "an interruption has left the former folder beside the share, as {}, with different contents: copy missing files from it, then remove it",
            Shown(&former)
        ));
    }
    note(format_args!(
        "{} is a share: {} {}, {}",
        shown(&path),
        done.files,
        if done.files == 1 { "file" } else { "files" },
        display::size(done.bytes)
    ));
    if is_nameless {
        note(format_args!(
            "members of this share see you as `{name}`; choose a name for later shares: kithfs identity name NAME"
        ));
    }
    note(format_args!("add members: kithfs share add {} NAME --role writer", word(path)));
    Ok(Exit::Ok)
}

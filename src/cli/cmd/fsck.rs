//! `kithfs fsck`

use serde::Serialize;

use crate::cli::args::Fsck;
use crate::cli::display::{JsonPath, Shown};
use crate::cli::exit::Exit;
use crate::cli::open::{Purpose, open};
use crate::cli::out::Out;
use crate::cli::paths::clean;
use crate::cli::progress::Progress;
use crate::cli::report::{Failure, note};
use crate::cli::size;
use crate::vault::CheckReport;

/// Outcome of a check. The names of the fields are stable.
#[derive(Serialize)]
struct Report {
    clean: bool,
    files: u64,
    dirs: u64,
    symlinks: u64,
    others: u64,
    bytes: u64,
    faults: Vec<Fault>,
}

#[derive(Serialize)]
struct Fault {
    plain: JsonPath,
    cipher: JsonPath,
    what: String,
}

impl From<CheckReport> for Report {
    fn from(CheckReport { seen, faults }: CheckReport) -> Report {
        let path = |bytes: &[u8]| JsonPath::from_bytes(bytes);
        Report {
            clean: faults.is_empty(),
            files: seen.files,
            dirs: seen.dirs,
            symlinks: seen.symlinks,
            others: seen.others,
            bytes: seen.bytes,
            faults: faults.into_iter().map(|f| Fault { plain: path(&f.plain), cipher: path(&f.cipher), what: f.what }).collect(),
        }
    }
}

/// Verifies a vault. Whatever keeps the check from running has the exit code that says so.
pub fn run(args: &Fsck) -> Result<Exit, Failure> {
    check(args).map_err(|failure| match failure.exit {
        Exit::Usage => failure,
        _ => failure.exit(Exit::CouldNotCheck),
    })
}

fn check(args: &Fsck) -> Result<Exit, Failure> {
    let start = clean(args.path.as_deref().unwrap_or_default())?;
    let open = open(&args.vault, &args.open, Purpose::Read)?;
    let progress = Progress::new(None);
    let mut show = |seen: &crate::vault::CheckProgress| progress.set(seen.bytes, seen.files);
    let report = open.vault.check(&start, &mut show).map_err(open.failed(&start))?;
    drop(progress);
    open.close()?;
    let report = Report::from(report);
    print(&report, args.json)?;
    Ok(if report.clean { Exit::Ok } else { Exit::FaultsFound })
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    let mut out = Out::stdout();
    if json {
        out.json(report)?;
    } else {
        for Fault { plain, cipher, what } in &report.faults {
            let bytes = |path: &JsonPath| path.0.as_os_str().as_encoded_bytes().to_vec();
            let (plain, cipher) = (bytes(plain), bytes(cipher));
            out.text(format_args!("{}: {} ({})\n", Shown(or_root(&plain)), Shown(what.as_bytes()), Shown(or_root(&cipher))))?;
        }
    }
    out.finish()?;
    if !json {
        let Report { files, dirs, symlinks, others, bytes, faults, .. } = report;
        let bytes = size::show(*bytes);
        let faults = faults.len();
        note(format_args!("{files} files, {dirs} directories, {symlinks} links, {others} others, {bytes} verified; {faults} faults"));
    }
    Ok(())
}

fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

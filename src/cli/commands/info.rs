//! `kithfs info`

use serde::Serialize;

use crate::cli::args::Info;
use crate::cli::daemon::registry::Registry;
use crate::cli::display::{self, JsonPath, path as shown, utc};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;
use crate::cli::vaults::open::{self, Found};
use crate::fuse::advice::{Advice, advice};
use crate::vault::{Kept, LockHolder};

/// The public facts of a vault. The names of the fields are stable.
#[derive(Serialize)]
struct Report {
    vault: JsonPath,
    format_version: u16,
    cipher: &'static str,
    chunk_size: u32,
    share_id: String,
    signed: bool,
    isolated: bool,
    founder: String,
    own_identity: bool,
    synced: bool,
    shared: bool,
    in_use_by: Option<Holder>,
    shared_by: Vec<Holder>,
    mounted_on: Vec<JsonPath>,
    over_io_uring: Vec<JsonPath>,
    advice: Vec<Advice>,
    kept_journals: Vec<Journals>,
}

#[derive(Serialize)]
struct Journals {
    folder: JsonPath,
    copy: JsonPath,
    refused: usize,
    waiting: usize,
}

#[derive(Serialize)]
struct Holder {
    host: String,
    pid: u32,
    since: i64,
}

impl From<LockHolder> for Holder {
    fn from(LockHolder { host, pid, since_unix: since }: LockHolder) -> Self {
        Holder { host, pid, since }
    }
}

impl From<Kept> for Journals {
    fn from(Kept { folder, path, refused, waiting }: Kept) -> Self {
        Journals { folder: JsonPath(folder), copy: JsonPath(path), refused, waiting }
    }
}

/// Prints the public facts of a vault, without a secret.
pub fn run(args: &Info) -> Result<Exit, Failure> {
    let report = Report::of(open::find(&args.vault)?);
    Out::report(args.json, &report, |out| report.print(out))
}

impl Report {
    fn of(found: Found) -> Report {
        let Found { dir, description, .. } = found;
        let mounts = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
        let (mut mounted_on, mut over_io_uring) = (Vec::new(), Vec::new());
        for entry in mounts.into_iter().filter(|entry| entry.vault.0 == dir) {
            over_io_uring.extend(entry.io_uring.then(|| entry.mountpoint.clone()));
            mounted_on.push(entry.mountpoint);
        }
        let kept = open::kept_journals(&dir, &description.share_id);
        Report {
            synced: description.synced,
            shared: description.shared,
            kept_journals: kept.into_iter().map(Journals::from).collect(),
            format_version: description.version,
            cipher: description.suite.name(),
            chunk_size: description.chunk_size,
            share_id: hex::encode(description.share_id),
            signed: description.signed,
            isolated: description.isolated,
            founder: description.founder.to_string(),
            own_identity: description.has_identity,
            in_use_by: description.locked_by.map(Holder::from),
            shared_by: description.shared_by.into_iter().map(Holder::from).collect(),
            advice: advice(!over_io_uring.is_empty()),
            mounted_on,
            over_io_uring,
            vault: JsonPath(dir),
        }
    }

    fn print(&self, out: &mut Out) -> Result<(), Error> {
        let yes = |yes| if yes { "yes" } else { "no" };
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            out.text(format_args!("{name:<15}{value}\n"))
        };
        line("vault", &shown(&self.vault.0))?;
        line("format version", &self.format_version)?;
        line("cipher", &self.cipher)?;
        line("chunk size", &display::size(self.chunk_size.into()))?;
        line("share id", &self.share_id)?;
        line("signed", &yes(self.signed))?;
        line("isolated", &yes(self.isolated))?;
        line("founder", &self.founder)?;
        line("own identity", &yes(self.own_identity))?;
        line("synced", &yes(self.synced))?;
        line("shared", &yes(self.shared))?;
        let alone = self.in_use_by.iter().map(|holder| ("in use", holder));
        for (name, Holder { host, pid, since }) in
            alone.chain(self.shared_by.iter().map(|holder| ("shared", holder)))
        {
            if *pid == 0 {
                line(name, &"by a process of another machine or container")?;
                continue;
            }
            let host = crate::cli::display::Shown(host.as_bytes());
            line(name, &format_args!("by process {pid} on {host} since {}", utc(*since)))?;
        }
        for place in &self.mounted_on {
            let is_over = self.over_io_uring.iter().any(|other| other.0 == place.0);
            let transport = if is_over { "io_uring" } else { "/dev/fuse" };
            line("mounted on", &format_args!("{}, over {transport}", shown(&place.0)))?;
        }
        for Journals { folder, copy, refused, waiting } in &self.kept_journals {
            let folder = shown(&folder.0);
            if *refused > 0 {
                let text = format_args!("{refused} with changes that did not fit, in {folder}");
                line("journals", &text)?;
            }
            if *waiting > 0 {
                let copy = shown(&copy.0);
                let text = format_args!("{waiting} of the copy that was at {copy}, in {folder}");
                line("journals", &text)?;
            }
        }
        for Advice { what, command } in &self.advice {
            line("would speed up", &format_args!("{what}: {command}"))?;
        }
        Ok(())
    }
}

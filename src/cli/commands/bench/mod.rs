//! `kithfs bench`
//!
//! Rules that hold here
//! * Each figure of ciphers and names is the best of many runs, as disturbances only slow a run
//!   down.
//! * The total is less than a minute. Each measurement of files runs once and has a time limit,
//!   after which the work done so far counts.
//! * The temporary vault is unmounted and removed, also after a signal.

mod cipher;
mod files;

pub use self::cipher::names_path;

use serde::Serialize;

use crate::cli::args::Bench;
use crate::cli::display::{JsonPath, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note};
use crate::cli::terminal::stdout::Out;
use crate::fuse::advice::{Advice, advice};

/// Cells of the longest bar.
const BAR: usize = 30;

/// The results. The names of the fields are stable.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    processors: usize,
    aead: &'static str,
    hctr2: &'static str,
    directory: JsonPath,
    quick: bool,
    ciphers: Vec<Figure>,
    names: Vec<Figure>,
    files: Vec<Pair>,
    /// Why nothing was mounted; `None` if the vault was.
    not_mounted: Option<String>,
    /// Whether the requests of the vault came over io_uring, not over /dev/fuse.
    io_uring: bool,
    advice: Vec<Advice>,
}

/// One result.
#[derive(Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
}

/// The result of the same measurement on both directories.
#[derive(Serialize)]
struct Pair {
    name: &'static str,
    unit: &'static str,
    plain: f64,
    vault: f64,
    /// `vault` divided by `plain`.
    ratio: f64,
}

/// Measures ciphers, names, and a temporary vault beside a plain directory.
pub fn run(args: &Bench) -> Result<Exit, Failure> {
    let directory = std::fs::canonicalize(&args.dir).map_err(Error::io("measure in", &args.dir))?;
    let (files, io_uring, not_mounted) = match files::measure(&directory, args.quick)? {
        Ok((pairs, io_uring)) => (pairs, io_uring, None),
        Err(why) => (Vec::new(), false, Some(why)),
    };
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        aead: crate::crypto::aead::ACTIVE,
        hctr2: cipher::names_path(),
        directory: JsonPath(directory),
        quick: args.quick,
        ciphers: cipher::ciphers(args.quick),
        names: cipher::names(args.quick),
        files,
        not_mounted,
        io_uring,
        advice: advice(io_uring),
    };
    Out::report(args.json, &report, |out| report.print(out))
}

impl Report {
    fn print(&self, out: &mut Out) -> Result<(), Error> {
        let Report { version, processors, aead, hctr2, .. } = self;
        out.text(format_args!(
            "kithfs {version}, {processors} processors, AEAD of {aead}, {hctr2} HCTR2\n"
        ))?;
        for (title, figures) in
            [("ciphers, one thread", &self.ciphers), ("names, one thread", &self.names)]
        {
            out.text(format_args!("\n{title}\n"))?;
            let most = figures.iter().map(|figure| figure.value).fold(0.0, f64::max);
            for Figure { name, value, unit } in figures {
                out.text(format_args!(
                    "  {name:<34}{:>10} {unit:<8} {}\n",
                    digits(*value),
                    bar(value / most)
                ))?;
            }
        }
        if let Some(why) = &self.not_mounted {
            note(format_args!("no vault was mounted, so files were not measured: {why}"));
            return Ok(());
        }
        out.text(format_args!(
            "\nfiles in {}{:>12}{:>12}\n",
            shown(&self.directory.0),
            "plain",
            "vault"
        ))?;
        for Pair { name, unit, plain, vault, ratio } in &self.files {
            let (plain, vault) = (digits(*plain), digits(*vault));
            out.text(format_args!(
                "  {name:<34}{plain:>10}{vault:>10} {unit:<8} {ratio:>6.2} {}\n",
                bar(*ratio)
            ))?;
        }
        let transport = if self.io_uring { "io_uring" } else { "/dev/fuse" };
        out.text(format_args!("\nthe vault was mounted over {transport}\n"))?;
        for Advice { what, command } in &self.advice {
            out.text(format_args!("would speed up {what}: {command}\n"))?;
        }
        Ok(())
    }
}

/// Formats a number with at least three digits.
fn digits(value: f64) -> String {
    let places = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}

/// Returns a bar for a ratio; above 1 it ends in an arrow.
fn bar(part: f64) -> String {
    let cells = (part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let end = if part > 1.0 { "▶" } else { "" };
    "█".repeat(cells) + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        assert_eq!(
            (bar(0.0).chars().count(), bar(0.5).chars().count(), bar(1.0).chars().count()),
            (0, 15, 30)
        );
        assert_eq!(bar(7.0).chars().count(), 31);
        assert_eq!((bar(f64::NAN).as_str(), bar(-1.0).as_str()), ("", ""));
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([1234.4, 123.4, 12.34, 1.234].map(digits), ["1234", "123", "12.3", "1.23"]);
    }
}

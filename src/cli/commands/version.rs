//! `kithfs --version --json`: what this program can do, on this machine.

use std::ffi::OsStr;
use std::fs::File;

use serde::Serialize;

use crate::cli::commands::bench::names_path;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;
use crate::fuse::{kernel, uring};

/// What this program can do. The names of the fields are stable.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// Versions of the vault format that are read.
    formats: &'static [u32],
    /// Optional features that are compiled in.
    features: &'static [&'static str],
    aead: &'static str,
    hctr2: &'static str,
    kernel: Kernel,
}

/// Facilities of the running kernel and of the machine.
#[derive(Serialize)]
struct Kernel {
    release: String,
    /// `/dev/fuse` can be opened.
    fuse: bool,
    /// `fusermount3` is in the PATH, so ordinary users can mount.
    fusermount3: bool,
    /// FUSE over io_uring is there and switched on.
    fuse_io_uring: bool,
    /// Attributes are set by descriptor (Linux 6.13), without a detour over /proc.
    xattrat: bool,
}

/// Returns whether the arguments ask for the version as JSON and for nothing else.
pub fn is_asked(mut arguments: impl Iterator<Item = impl AsRef<OsStr>>) -> bool {
    let (mut version, mut json) = (false, false);
    let is_known = arguments.all(|argument| {
        let is_version = ["--version", "-V"].iter().any(|known| argument.as_ref() == *known);
        version |= is_version;
        json |= argument.as_ref() == "--json";
        is_version || argument.as_ref() == "--json"
    });
    is_known && version && json
}

/// Prints the report.
pub fn run() -> Result<Exit, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        formats: &[1],
        features: if cfg!(feature = "aws-lc") { &["aws-lc"] } else { &[] },
        aead: crate::crypto::aead::ACTIVE,
        hctr2: names_path(),
        kernel: Kernel {
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            fuse: File::options().read(true).write(true).open("/dev/fuse").is_ok(),
            fusermount3: std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file()),
            fuse_io_uring: uring::why_not().is_none(),
            xattrat: kernel::is_since(6, 13),
        },
    };
    Out::print(|out| out.json(&report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_as_json_is_meant() {
        for (line, is_meant) in [
            ("--version --json", true),
            ("--json -V", true),
            ("--version", false),
            ("--json", false),
            ("mounts --json", false),
            ("--version --json mounts", false),
        ] {
            assert_eq!(is_asked(line.split(' ')), is_meant, "{line}");
        }
    }
}

//! `kithfs map`

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::cli::args::Map;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;
use crate::cli::vaults::open::{Purpose, open};
use crate::cli::vaults::paths;

/// Prints the cipher path of a plain one, or the plain path of a cipher one, relative to the vault.
/// The vault may be mounted: names are in the store as soon as they are created.
pub fn run(args: &Map) -> Result<Exit, Failure> {
    let (vault, path) = match &args.path {
        // Vault and path are not combined here: the directory of a nested share is a vault too, so
        // the combined path could be taken apart at another place.
        Some(path) if args.reverse => (args.vault.clone(), PathBuf::from(path)),
        path => {
            let (vault, path) = paths::one(&args.vault, path.as_deref())?;
            (vault, OsStr::from_bytes(&path).into())
        }
    };
    let open = open(&vault, &args.open, Purpose::Beside)?;
    let mapped = if args.reverse {
        // The path may begin with the vault, as a shell completes it, or be relative to the vault.
        let inside =
            path.strip_prefix(&open.dir).or_else(|_| path.strip_prefix(&vault)).unwrap_or(&path);
        let stored = paths::clean(inside.as_os_str())?;
        open.vault.plain_path(&stored).map_err(open.failed(&stored))?
    } else {
        let plain = path.as_os_str().as_bytes();
        open.vault.cipher_path(plain).map_err(open.failed(plain))?
    };
    Out::print(|out| {
        out.name(&mapped)?;
        out.text(format_args!("\n"))
    })?;
    open.close()?;
    Ok(Exit::Ok)
}

//! `kithfs map`

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::cli::args::Map;
use crate::cli::exit::Exit;
use crate::cli::paths::clean;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;
use crate::cli::vaults::open::{Purpose, open};

/// Prints the cipher path of a plain one, or the plain path of a cipher one, relative to the vault.
/// It may be mounted, as names are in the store as soon as they are created.
pub fn run(args: &Map) -> Result<Exit, Failure> {
    let open = open(&args.vault, &args.open, Purpose::Beside)?;
    let mapped = if args.reverse {
        // As completed by a shell, with the vault in front, or relative to the vault.
        let given = Path::new(&args.path);
        let inside = given
            .strip_prefix(&open.dir)
            .or_else(|_| given.strip_prefix(&args.vault))
            .unwrap_or(given);
        let stored = clean(inside.as_os_str())?;
        open.vault.plain_path(&stored).map_err(open.failed(&stored))?
    } else {
        let plain = clean(&args.path)?;
        open.vault.cipher_path(&plain).map_err(open.failed(args.path.as_bytes()))?
    };
    let mut out = Out::stdout();
    out.name(&mapped)?;
    out.text(format_args!("\n"))?;
    out.finish()?;
    open.close()?;
    Ok(Exit::Ok)
}

//! The program `kithfs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kithfs::cli::main()
}

//! The program `kithfs`.

use std::process::ExitCode;

use kithfs::crypto::heap::Wiping;

#[global_allocator]
static HEAP: Wiping = Wiping;

fn main() -> ExitCode {
    kithfs::cli::main()
}

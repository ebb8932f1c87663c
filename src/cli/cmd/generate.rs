//! `kithfs completion`, `kithfs man`, `kithfs exit-codes`: made from the definition of the command line.

use std::fs;

use clap::CommandFactory;
use clap_complete::Shell as Completed;

use crate::cli::args::{Cli, Completion, Man, Shell};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::out::Out;
use crate::cli::report::Failure;

/// Prints a completion script.
pub fn completion(args: &Completion) -> Result<Exit, Failure> {
    let shell = match args.shell {
        Shell::Bash => Completed::Bash,
        Shell::Zsh => Completed::Zsh,
        Shell::Fish => Completed::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kithfs", &mut script);
    print(&script)
}

/// Writes one manual page for each command.
pub fn man(args: &Man) -> Result<Exit, Failure> {
    let failed = |source| Error::Io { op: "write manual pages to", path: args.dir.clone(), source };
    fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)?;
    Ok(Exit::Ok)
}

/// Prints the table of exit codes.
pub fn exit_codes() -> Result<Exit, Failure> {
    print(Exit::markdown_table().as_bytes())
}

fn print(bytes: &[u8]) -> Result<Exit, Failure> {
    let mut out = Out::stdout();
    out.bytes(bytes)?;
    out.finish()?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_command_and_the_first_lists_the_exit_codes() {
        let dir = tempfile::tempdir().unwrap();
        man(&Man { dir: dir.path().join("man") }).unwrap();
        let page = |name: &str| fs::read_to_string(dir.path().join("man").join(name)).unwrap();
        assert!(page("kithfs.1").contains("the mount is busy"));
        assert!(page("kithfs-mount.1").contains("nosuid"));
        assert!(page("kithfs-passphrase-change.1").contains("recovery"));
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in [Completed::Bash, Completed::Zsh, Completed::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kithfs", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("umount"));
        }
    }
}

//! `kithfs completion`, `kithfs man`, `kithfs exit-codes`: generated from the command line's
//! definition.

use std::fs;

use clap::CommandFactory;
use clap_complete::Shell as Completed;

use crate::cli::args::{Cli, Completion, Man, Shell};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;

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
    let first = args.dir.join("kithfs.1");
    let page = fs::read_to_string(&first).map_err(failed)?;
    fs::write(&first, with_exit_status(&page)).map_err(failed)?;
    Ok(Exit::Ok)
}

/// Moves the exit codes of the first page to their usual section: clap_mangen puts the text after
/// the help in one filled paragraph below EXTRA.
fn with_exit_status(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else { return page.to_owned() };
    let after = rest.find("\n.SH ").map_or("", |at| &rest[at + 1..]);
    let entry =
        |exit: Exit| format!(".TP\n{}\n{}\n", exit.code(), exit.meaning().replace('-', "\\-"));
    format!("{before}.SH \"EXIT STATUS\"\n{}{after}", Exit::ALL.map(entry).concat())
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
        // All codes were in one filled paragraph, below a heading that manual pages do not have.
        let first = page("kithfs.1");
        assert!(
            first.contains(".SH \"EXIT STATUS\"\n.TP\n0\n")
                && first.contains(".TP\n13\nthe mount is busy"),
            "{first}"
        );
        assert!(!first.contains("EXTRA") && first.contains(".SH VERSION"));
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

//! Completion: the scripts that `kithfs completion` prints, and the command line that answers them.
//!
//! A script asks the program at each completion, as the program knows the options and the names of
//! the user's vaults. Files are completed by the shell, which knows how a name with a blank or a
//! quote is written, and what `~` and `$HOME` are: where a file is wanted, the answer is `//files`.

use clap::builder::ValueHint;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::cli::args::{Shell, help};

/// The answer that tells a script to complete a file. No option or name ends like this.
const FILES: &str = "//files";

/// Returns the script for a shell.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("completion.bash"),
        Shell::Zsh => include_str!("completion.zsh"),
        Shell::Fish => include_str!("completion.fish"),
    }
}

/// Returns the definition of the command line for completion.
pub fn command() -> clap::Command {
    leave_files_to_the_shell(help::command())
}

fn leave_files_to_the_shell(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_value_hint() {
            ValueHint::AnyPath => arg.add(ArgValueCompleter::new(|_: &std::ffi::OsStr| {
                vec![CompletionCandidate::new(FILES)]
            })),
            _ => arg,
        })
        .mut_subcommands(leave_files_to_the_shell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::COMPLETE;

    #[test]
    fn each_script_asks_the_program() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = script(shell);
            assert!(text.contains(&format!("{COMPLETE}=")) && text.contains(FILES), "{text}");
        }
    }
}

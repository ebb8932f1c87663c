//! What the README says, done: its sessions are run as they stand, and its tables are compared with
//! the program.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory;
use kithfs::cli::args::Cli;
use kithfs::cli::exit::Exit;

use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code, is_mounted};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The insides of the blocks marked `sh`.
fn sessions(page: &str) -> Vec<&str> {
    page.split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("a first part"))
        .collect()
}

/// Unmounts what a session that failed may have left.
struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            let _ = Command::new(KITHFS).args(["umount", "--lazy"]).arg(self.0).status();
        }
    }
}

#[test]
fn the_sessions_of_the_readme_run_as_they_stand() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::bare();
    let home = scratch.path().join("home");
    for dir in ["letters", "pictures/summer"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    fs::write(home.join("letters/ann.txt"), "dear Ann\n").unwrap();
    fs::write(home.join("pictures/summer/1.jpg"), vec![7; 300_000]).unwrap();
    let page = page("README.md");
    let script = sessions(&page).concat();
    assert!(script.lines().count() > 15, "the sessions were not found");
    let plain = home.join("plain");
    let _unmount = Unmount(&plain);
    let program = Path::new(KITHFS).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let output = expect_code(
        Command::new("bash")
            .args(["-euc", &script])
            .current_dir(&home)
            .env("HOME", &home)
            .env("PATH", path)
            .env("KITHFS_PASSPHRASE_FILE", scratch.passphrase()),
        0,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    for expected in ["ann.txt", "dear Ann", "recovery code", "key file"] {
        assert!(said.contains(expected), "{expected:?} is missing in {said}");
    }
    assert!(!is_mounted(&plain));
    assert_eq!(fs::read_to_string(home.join("list.txt")).unwrap(), "milk, bread\n");
    assert_eq!(fs::read(home.join("backup/pictures/summer/1.jpg")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read_to_string(home.join("backup/letters/ann.txt")).unwrap(), "dear Ann\n");
}

#[test]
fn the_table_of_exit_codes_is_that_of_the_program() {
    assert!(
        page("README.md").contains(&Exit::markdown_table()),
        "README.md: put the output of `kithfs exit-codes` under Exit codes"
    );
}

#[test]
fn the_table_of_commands_has_each_command_and_no_other() {
    let page = page("README.md");
    let table = page
        .split("\n## Commands\n")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the section");
    let mut listed: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `kithfs "))
        .map(|rest| rest.split([' ', '`']).next().expect("a word"))
        .collect();
    listed.sort();
    let command = Cli::command();
    let mut known: Vec<&str> = command.get_subcommands().map(|sub| sub.get_name()).collect();
    known.sort();
    assert_eq!(listed, known);
    for line in table.lines().filter(|line| line.starts_with("| `kithfs ")) {
        let name = line["| `kithfs ".len()..].split([' ', '`']).next().expect("a word");
        let sub = command.find_subcommand(name).expect("compared above");
        for option in line
            .split('`')
            .filter_map(|code| code.strip_prefix("--"))
            .map(|code| code.split(' ').next().expect("a word"))
        {
            assert!(
                sub.get_arguments().any(|a| a.get_long() == Some(option)),
                "kithfs {name} has no --{option}"
            );
        }
    }
}

//! Runs the commands of README.md and of the manual as they are printed, and compares the tables of
//! the pages with the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use kithfs::cli::args::Cli;
use kithfs::cli::exit::Exit;

use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code, is_mounted};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Creates identities whose passphrases take little time to check. The commands of a page open
/// vaults dozens of times, and by default each time takes a second.
const CHEAP: &str = r#"
kithfs() {
    case "$1 ${2-}" in
        "init "*) [ -e ~/.config/kithfs/identity ] || set -- "$@" --kdf-memory 32 --kdf-passes 1 ;;
        "identity new") set -- "$@" --kdf-memory 32 --kdf-passes 1 ;;
    esac
    command kithfs "$@"
}
"#;

/// Returns the blocks marked `sh` as one script. A block marked `sh bob` runs in Bob's home.
fn script(page: &str) -> String {
    let block = |marked: &str| {
        let (mark, rest) = marked.split_once('\n').expect("a line end");
        let block = rest.split("```").next().expect("a first part");
        match mark {
            "" => block.to_owned(),
            " bob" => format!("(export HOME=\"$BOB\"\ncd\n{block})\n"),
            _ => panic!("a block is marked sh{mark}"),
        }
    };
    page.split("```sh").skip(1).map(block).collect()
}

/// Unmounts the mounts of a session that failed.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new(KITHFS).args(["umount", "--lazy"]).arg(&self.0).status();
        }
    }
}

/// Runs the commands of a page in a new home, and passes that home and their output to `check`.
/// Bob's home has the same `sync` directory.
fn run_page(name: &str, check: impl FnOnce(&Path, &str)) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::bare();
    let [home, bob] = ["home", "bob"].map(|name| scratch.path().join(name));
    for dir in ["letters", "pictures/summer", "sync"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    fs::create_dir(&bob).unwrap();
    std::os::unix::fs::symlink(home.join("sync"), bob.join("sync")).unwrap();
    fs::write(home.join("letters/ann.txt"), "dear Ann\n").unwrap();
    fs::write(home.join("pictures/summer/1.jpg"), vec![7; 300_000]).unwrap();
    let script = script(&page(name));
    assert!(script.lines().count() >= 12, "{name}: the sessions were not found");
    let mounts = [home.join("plain"), bob.join("projects")].map(Unmount);
    let program = Path::new(KITHFS).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let output = expect_code(
        Command::new("bash")
            .args(["-euc", &format!("{CHEAP}{script}")])
            .current_dir(&home)
            .env("HOME", &home)
            .env("BOB", &bob)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env("PATH", path)
            .env("KITHFS_PASSPHRASE_FILE", scratch.passphrase()),
        0,
    );
    assert!(mounts.iter().all(|mount| !is_mounted(&mount.0)));
    check(&home, &String::from_utf8_lossy(&output.stdout));
}

fn assert_has(said: &str, expected: &[&str]) {
    for expected in expected {
        assert!(said.contains(expected), "{expected:?} is missing in {said}");
    }
}

#[test]
fn the_commands_of_the_readme_run_as_printed() {
    run_page("README.md", |home, said| {
        assert_has(said, &["ann.txt", "dear Ann"]);
        assert_eq!(fs::read_to_string(home.join("list.txt")).unwrap(), "milk, bread\n");
        assert!(home.join("vault-copy/+share").exists());
    });
}

#[test]
fn the_commands_of_the_manual_run_as_printed() {
    run_page("docs/MANUAL.md", |home, said| {
        assert_has(said, &["recovery code", "key file", "letters/ann.txt", "writer  verified"]);
        assert_eq!(said.matches("dear Ann").count(), 1, "Bob read the letter");
        assert_eq!(fs::read_to_string(home.join("list.txt")).unwrap(), "milk, bread\n");
        assert_eq!(fs::read(home.join("backup/pictures/summer/1.jpg")).unwrap(), vec![7; 300_000]);
        assert_eq!(fs::read_to_string(home.join("backup/letters/ann.txt")).unwrap(), "dear Ann\n");
    });
}

#[test]
fn troubleshooting_has_each_exit_code_as_the_program_prints_it() {
    let page = page("docs/TROUBLESHOOTING.md");
    for row in Exit::markdown_table().lines().skip(2) {
        assert!(page.contains(&format!("\n{row} ")), "docs/TROUBLESHOOTING.md has no row {row}");
    }
}

#[test]
fn the_table_of_commands_has_each_command_and_no_other() {
    let page = page("docs/MANUAL.md");
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

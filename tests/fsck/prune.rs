//! `kithfs fsck --prune` removes control files that nothing refers to, and keeps copies of them on
//! this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::mounted::{Scratch, can_mount, expect_code, shell};
use crate::support::terminal::Terminal;

/// The control files that are only ever added, by their paths in the vault.
fn added(vault: &Path) -> BTreeSet<String> {
    shell(
        vault,
        "find . -path './+long/*/*' -o -path './+moved/*/*' -o -name '+attr-*' -o -name '+link-*'",
    )
    .lines()
    .map(str::to_owned)
    .collect()
}

fn fsck(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = scratch.kithfs("fsck");
    command.args(args).arg(scratch.vault()).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pruned(command: &mut Command) -> serde_json::Value {
    serde_json::from_slice(&expect_code(command, 0).stdout).expect("JSON")
}

const LONG: usize = 200;

/// Sets an attribute so long that the vault stores the list in a control file.
fn give_list(path: &Path) {
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "user.long", &[7; 65_536], none).expect("set an attribute");
}

/// Returns a vault in which one control file of each kind is used and one is not, and the paths of
/// the used ones.
fn vault_with_residue() -> (Scratch, BTreeSet<String>) {
    let scratch = Scratch::new(&["--synced"]);
    let mount = scratch.mount(&[]);
    let at = |name: &str| scratch.point().join(name);
    let make = |which: &str| {
        fs::write(at(which), which).unwrap();
        give_list(&at(which));
        std::os::unix::fs::symlink("t".repeat(4000), at(&format!("{which}-link"))).unwrap();
        fs::write(at(&which.repeat(LONG / which.len())), which).unwrap();
        fs::create_dir(at(&format!("{which}-dir"))).unwrap();
        fs::write(at(&format!("{which}-dir/f")), which).unwrap();
        fs::rename(at(&format!("{which}-dir")), at(&format!("{which}-moved"))).unwrap();
    };
    make("used");
    mount.unmount();
    let used = added(&scratch.vault());
    let mount = scratch.mount(&[]);
    make("gone");
    shell(&scratch.point(), "rm -r gone*");
    mount.unmount();
    assert_eq!((used.len(), added(&scratch.vault()).len()), (4, 8), "{used:?}");
    (scratch, used)
}

fn state(scratch: &Scratch) -> PathBuf {
    scratch.path().join("state/kithfs")
}

/// Some control files were only ever added, so a vault grew with each rename and each long list of
/// attributes.
#[test]
fn unreferenced_files_are_removed_and_can_be_put_back() {
    if !can_mount() {
        return;
    }
    let (scratch, used) = vault_with_residue();
    let before = added(&scratch.vault());
    let image = shell(&scratch.vault(), "find . -type f | sort | xargs -d '\\n' sha256sum");
    // No terminal to ask at.
    let output = expect_code(&mut fsck(&scratch, &["--prune", "--unused-for", "0"]), 0);
    assert!(said(&output).contains("--yes removes it"), "{output:?}");
    let output = expect_code(&mut fsck(&scratch, &["--prune", "--unused-for", "0", "-n"]), 0);
    assert!(said(&output).contains("4 control files would be removed"), "{output:?}");
    assert_eq!(added(&scratch.vault()), before);

    let found = pruned(&mut fsck(&scratch, &["--prune", "--unused-for", "0", "--yes", "--json"]));
    assert_eq!((&found["pruned"]["files"], &found["unused"]["files"]), (&4.into(), &0.into()));
    assert_eq!(added(&scratch.vault()), used);
    // Everything in use is intact.
    let mount = scratch.mount(&[]);
    shell(
        &scratch.point(),
        "test \"$(cat used used-moved/f)\" = usedused; readlink used-link | grep -q tttt; ls | grep -q usedusedused",
    );
    let mut list = vec![0; 65_536];
    let read = rustix::fs::getxattr(scratch.point().join("used"), "user.long", &mut list[..]);
    assert_eq!(read, Ok(65_536));
    mount.unmount();

    // The note beside the kept files has the command that restores them.
    let kept = PathBuf::from(found["pruned"]["kept_in"].as_str().unwrap());
    assert!(kept.starts_with(state(&scratch)), "{}", kept.display());
    let note = fs::read_to_string(kept.with_extension("txt")).unwrap();
    let command = note.lines().find(|line| line.contains("cp -rn")).expect("a command");
    shell(scratch.path(), command);
    assert_eq!(shell(&scratch.vault(), "find . -type f | sort | xargs -d '\\n' sha256sum"), image);
}

/// The command asks at a terminal, and removes nothing without a yes. All other tests run it without a
/// terminal.
#[test]
fn nothing_is_removed_without_a_yes_at_the_terminal() {
    if !can_mount() {
        return;
    }
    let (scratch, used) = vault_with_residue();
    let before = added(&scratch.vault());
    for (answer, left) in [("", &before), ("n", &before), ("y", &used)] {
        let mut command = Command::new("setsid");
        let asked = fsck(&scratch, &["--prune", "--unused-for", "0"]);
        command.args(["--ctty", "--wait"]).arg(asked.get_program()).args(asked.get_args());
        command.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut terminal = Terminal::start(command);
        terminal.expect("remove 4 control files").expect("[y/N]").type_line(answer);
        let (code, said) = terminal.end();
        assert_eq!((code, &added(&scratch.vault())), (0, left), "{answer:?}: {said}");
        assert_eq!(said.contains("to put back: cp -rn"), answer == "y", "{said}");
    }
}

/// An entry that a sync tool delivers tomorrow may refer to a file that is unreferenced today. So a
/// file must have been unreferenced for some time. That time is taken from this machine's own
/// record, because the storage host can set the times of the store.
#[test]
fn recently_unused_files_are_kept_despite_old_store_times() {
    if !can_mount() {
        return;
    }
    let (scratch, used) = vault_with_residue();
    let before = added(&scratch.vault());
    shell(&scratch.vault(), "find . -exec touch -h -d 2001-01-01 {} +");
    let prune = ["--prune", "--unused-for", "10", "--yes", "--json"];
    let output = expect_code(&mut fsck(&scratch, &prune), 0);
    assert!(said(&output).contains("4 control files unused for less than 10 days"), "{output:?}");
    assert_eq!(added(&scratch.vault()), before);
    // Ten days later, by this machine's record. One of the files is used again, so its time begins
    // again.
    let record = fs::read_dir(state(&scratch).join("unused")).unwrap().next().unwrap().unwrap();
    let age = |days: i64| {
        let text = fs::read_to_string(record.path()).unwrap();
        let older = text.lines().map(|line| {
            let (since, file) = line.split_once(' ').unwrap();
            format!("{} {file}\n", since.parse::<i64>().unwrap() - days * 86_400)
        });
        fs::write(record.path(), older.collect::<String>()).unwrap();
    };
    age(9);
    let mount = scratch.mount(&[]);
    let long = scratch.point().join("gone".repeat(LONG / 4));
    fs::write(&long, "again").unwrap();
    mount.unmount();
    assert!(pruned(&mut fsck(&scratch, &prune)).get("pruned").is_none());
    let mount = scratch.mount(&[]);
    fs::remove_file(&long).unwrap();
    mount.unmount();
    age(2);
    assert_eq!(pruned(&mut fsck(&scratch, &prune))["pruned"]["files"], 3);
    let left: Vec<String> = added(&scratch.vault()).difference(&used).cloned().collect();
    assert!(left.len() == 1 && left[0].starts_with("./+long/"), "{left:?}");
}

/// In a copy with missing entries, as selective sync makes them, the files that these entries refer
/// to look unused.
#[test]
fn nothing_is_removed_from_an_incomplete_copy() {
    if !can_mount() {
        return;
    }
    let (scratch, _) = vault_with_residue();
    let prune = ["--prune", "--unused-for", "0", "--yes"];
    let before = added(&scratch.vault());
    let output = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("used-moved"), 0);
    let dir = scratch.vault().join(String::from_utf8(output.stdout).unwrap().trim());
    let aside = scratch.path().join("aside");
    fs::rename(&dir, &aside).unwrap();
    let output = expect_code(&mut fsck(&scratch, &prune), 0);
    assert!(said(&output).contains("that this machine has seen is not in this copy"), "{output:?}");
    assert_eq!(added(&scratch.vault()), before);
    fs::rename(&aside, &dir).unwrap();
    // Nothing is removed with a fault either.
    let file = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let output = expect_code(&mut fsck(&scratch, &prune), 20);
    assert!(said(&output).contains("the check found faults"), "{output:?}");
    assert_eq!(added(&scratch.vault()), before);
    fs::write(&file, &whole).unwrap();
    // Nor while it is mounted, nor in a part of it.
    let mount = scratch.mount(&[]);
    expect_code(&mut fsck(&scratch, &prune), 21);
    mount.unmount();
    expect_code(fsck(&scratch, &prune).arg("used"), 2);
    assert_eq!(added(&scratch.vault()), before);
    assert_eq!(
        pruned(&mut fsck(&scratch, &[&prune[..], &["--json"]].concat()))["pruned"]["files"],
        4
    );
}

/// If no entry has attributes any more, the vault looks like a copy that was made without
/// attributes, so `--prune` keeps the lists. It gave faults as the reason, although the check had
/// found none.
#[test]
fn lists_are_kept_if_no_entry_has_attributes() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&["--synced"]);
    let mount = scratch.mount(&[]);
    let file = scratch.point().join("file");
    fs::write(&file, "text").unwrap();
    give_list(&file);
    mount.unmount();
    let mount = scratch.mount(&[]);
    rustix::fs::removexattr(&file, "user.long").unwrap();
    mount.unmount();
    let prune = ["--prune", "--unused-for", "0", "--yes"];
    assert_eq!(added(&scratch.vault()).len(), 1);
    let output = expect_code(&mut fsck(&scratch, &prune), 0);
    assert!(said(&output).contains("no entry has any attribute"), "{output:?}");
    assert_eq!(added(&scratch.vault()).len(), 1, "the list is kept");
    let mount = scratch.mount(&[]);
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&file, "user.kept", b"1", none).unwrap();
    mount.unmount();
    expect_code(&mut fsck(&scratch, &prune), 0);
    assert!(added(&scratch.vault()).is_empty());
}

/// Each change of the members left the slot block of the former member list in the vault for ever.
/// `share log` reads these blocks, so the command reports which changes the log no longer shows.
#[test]
fn former_member_lists_are_removed_with_a_note_on_the_log() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let blocks = || shell(&scratch.vault(), "ls -A | grep -c '^+slots-'").trim().to_owned();
    for _ in 0..2 {
        expect_code(scratch.kithfs("share").arg("rekey").arg(scratch.vault()), 0);
    }
    assert_eq!(blocks(), "3");
    let output =
        expect_code(&mut fsck(&scratch, &["--prune", "--unused-for", "0", "--yes", "--json"]), 0);
    assert!(said(&output).contains("`kithfs share log` does not show"), "{output:?}");
    assert_eq!(blocks(), "1");
    expect_code(fsck(&scratch, &[]).stdout(Stdio::piped()), 0);
    let mount = scratch.mount(&[]);
    fs::write(scratch.point().join("file"), "text").unwrap();
    mount.unmount();
}

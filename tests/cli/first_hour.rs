//! The first hour with the program: what new users do. The messages that they meet are in
//! `messages`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::messages::{CHEAP, STRONG, at_terminal, may_mount, ordinary_user, run, words};
use crate::support::mounted::{can_mount, is_mounted};
use crate::support::people::{Person, key, knows, said, stderr, wait_until};

/// Makes a vault with an identity of its own, at a terminal.
fn init(person: &Person, vault: &str) {
    let mut terminal = at_terminal(person, &format!("init --own-identity {CHEAP} {vault}"));
    terminal.expect(&format!("New passphrase of the vault {vault}: ")).type_line(STRONG);
    terminal.expect("this passphrase is strong").expect("Repeat it").type_line(STRONG);
    terminal.expect("Have you written the recovery code down? [y/N] ").type_line("");
    terminal.expect("Have you written the recovery code down? [y/N] ").type_line("y");
    terminal.expect(&format!("mount it: kithfs mount {vault} plain"));
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
}

/// One mistyped letter ended `mount`, and every check before the prompt was repeated.
#[test]
fn a_typed_passphrase_has_three_attempts() {
    let ann = Person::new("ann");
    init(&ann, "vault");
    let prompt = "Passphrase of the vault ~/vault: ";
    let mut terminal = at_terminal(&ann, "ls vault");
    terminal.expect(prompt).type_line("wrong");
    terminal.expect("checking the passphrase");
    terminal.expect("wrong passphrase").expect("2 attempts left").expect(prompt).type_line("wrong");
    terminal.expect("1 attempt left").expect(prompt).type_line(STRONG);
    assert_eq!(terminal.end().0, 0);
    let mut terminal = at_terminal(&ann, "ls vault");
    for _ in 0..3 {
        terminal.expect(prompt).type_line("wrong");
    }
    let (code, said) = terminal.end();
    assert_eq!((code, said.matches(prompt).count()), (3, 3), "{said}");
    if !can_mount() {
        return;
    }
    // The daemon asks while it is still connected to the terminal.
    let mut terminal = at_terminal(&ann, "mount vault plain");
    terminal.expect(prompt).type_line("wrong").expect(prompt).type_line(STRONG);
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
    assert!(is_mounted(&ann.home().join("plain")));
    run(&ann, "umount plain", 0);
    assert!(!ann.home().join("plain").exists(), "what `mount` has made is removed");
}

/// Ctrl-C at a prompt left the terminal without echo, so that the user typed blindly afterwards; and
/// `mount` reported that its background process was "killed by signal 2". Other commands ended
/// without a message, although the manual promises one.
#[test]
fn ctrl_c_at_a_prompt_leaves_the_terminal_usable() {
    let ann = Person::new("ann");
    init(&ann, "vault");
    let prompt = "Passphrase of the vault ~/vault: ";
    let mut terminal = at_terminal(&ann, "ls vault");
    terminal.expect(prompt).expect_no_echo().type_line("\u{3}");
    let (said, has_echo) = terminal.end_with_echo();
    let told = "kithfs: interrupted; nothing was done\r\nhint: run the same command again";
    assert!(has_echo && said.contains(told), "{said}");
    if !can_mount() {
        return;
    }
    // The second question is asked by the background process.
    let mut terminal = at_terminal(&ann, "mount vault plain");
    terminal.expect(prompt).type_line("wrong");
    terminal.expect(prompt).expect_no_echo().type_line("\u{3}");
    let (said, has_echo) = terminal.end_with_echo();
    assert!(has_echo && said.contains("mount: interrupted; nothing is mounted"), "{said}");
    assert!(!said.contains("nothing was done"), "{said}");
}

#[test]
fn a_weak_passphrase_is_warned_of_and_taken() {
    let ann = Person::new("ann");
    let mut terminal = at_terminal(&ann, &format!("init {CHEAP} vault"));
    let prompt = "New passphrase of the vault vault: ";
    terminal.expect(prompt).type_line("hunter2").expect("this passphrase is weak");
    // Enter alone returns to the choice.
    terminal.expect("Repeat it (or press Enter to choose another one): ").type_line("");
    terminal.expect(prompt).type_line("hunter2").expect("Repeat it").type_line("hunter3");
    terminal.expect("the two passphrases differ; 2 attempts left");
    terminal.expect(prompt).type_line("hunter2").expect("Repeat it").type_line("hunter2");
    terminal.expect("making a key");
    // A user who has not written the code down is told how to get another one.
    for _ in 0..3 {
        terminal.expect("Have you written the recovery code down?").type_line("n");
    }
    terminal.expect("kithfs passphrase add --new-recovery-code --identity");
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
    // A passphrase from a file is rated too, and no question is asked.
    ann.write("weak", "hunter2\n");
    let all = run(&ann, &format!("init --passphrase-file weak {CHEAP} other"), 0);
    assert!(all.contains("this passphrase is weak") && !all.contains("written"), "{all}");
}

/// `identity new` followed by `init` made two unrelated identities: an invitation came from "a key
/// that belongs to none of your contacts", although its owner had been verified.
#[test]
fn an_owner_has_one_identity_and_members_know_it() {
    let (ann, bob) = (Person::new("ann"), Person::new("bob"));
    let mut terminal = at_terminal(&ann, &format!("identity new {CHEAP}"));
    terminal.expect("Your name, as members of your shares see it: ").type_line("Ann");
    terminal.expect("New passphrase of your identity (").type_line(STRONG);
    terminal.expect("Repeat it").type_line(STRONG);
    terminal.expect("Have you written the recovery code down?").type_line("y");
    assert_eq!(terminal.end().0, 0);
    ann.write("passphrase", STRONG);
    let mut terminal = at_terminal(&ann, "init vault");
    terminal.expect("Passphrase of your identity (Ann): ").type_line(STRONG);
    terminal.expect("it belongs to your identity (Ann)");
    assert_eq!(terminal.end().0, 0);
    assert!(!ann.home().join("vault/+identity").exists());
    run(&bob, &format!("identity new --name Bob {CHEAP}"), 0);
    knows(&ann, "Bob", &bob);
    knows(&bob, "Annie", &ann);
    run(&ann, "share create vault/projects", 0);
    run(&ann, "share add vault/projects Bob --role writer", 0);
    // Both spellings of the share.
    let again = run(&ann, "share add vault projects Bob --role admin", 0);
    assert!(again.contains("Bob is an admin of vault/projects"), "{again}");
    run(&ann, "share add vault/projects Bob --role writer", 0);
    run(&ann, "share invite vault projects Bob -o invitation", 0);
    let invitation = ann.home().join("invitation");
    assert_eq!(fs::metadata(&invitation).unwrap().permissions().mode() & 0o777, 0o644);
    fs::copy(&invitation, bob.home().join("invitation")).unwrap();
    let accepted = run(&bob, "accept invitation", 0);
    assert!(accepted.contains("accepted the invitation of Annie"), "{accepted}");
    let cipher = run(&ann, "map vault projects", 0);
    let copied =
        ann.shell(&format!("cp -a 'vault/{}' '{}/projects'", cipher.trim(), bob.home().display()));
    assert!(copied.0, "{}", copied.1);
    let listed = run(&bob, "share list projects", 0);
    assert!(listed.contains("verified") && listed.contains("  Annie\n"), "{listed}");
    let members = run(&bob, "share list --json projects", 0);
    assert!(members.contains(&key(&ann)), "{members}");
}

/// A vault that was made before its owner had an identity kept an owner whom no member knew.
#[test]
fn a_vault_is_handed_over_to_its_owner() {
    for signed in [false, true] {
        let ann = Person::new("ann");
        let signed = if signed { "--signed --name old " } else { "" };
        let code = said(&ann.ok(&words(&format!("init {signed}{CHEAP} vault"))));
        ann.write("code", &code);
        run(&ann, "share create --name old vault/early", 0);
        run(&ann, "share create --name old vault/early/inner", 0);
        fs::create_dir(ann.home().join("one")).unwrap();
        fs::write(ann.home().join("one/letter"), "dear").unwrap();
        run(&ann, "import one vault/early", 0);
        fs::rename(ann.home().join("passphrase"), ann.home().join("old")).unwrap();
        ann.write("passphrase", "the passphrase of Ann's identity\n");
        run(&ann, &format!("identity new --name Ann {CHEAP}"), 0);
        let adopted = run(&ann, "identity adopt --passphrase-file old vault", 0);
        assert!(adopted.contains("your identity (Ann) opens vault from now on"), "{adopted}");
        // One passphrase from here on, also for older files.
        assert_eq!(run(&ann, "cat vault/early/letter", 0), "dear");
        run(&ann, "put vault/early/inner/new one/letter", 0);
        run(&ann, "share create vault/late", 0);
        for share in ["early", "early/inner", "late"] {
            let listed = run(&ann, &format!("share list vault/{share}"), 0);
            let members: Vec<&str> =
                listed.lines().filter(|line| line.starts_with("admin")).collect();
            assert_eq!(members.len(), 1, "{share}: {listed}");
            assert!(members[0].contains("you") && members[0].ends_with("Ann"), "{listed}");
        }
        run(&ann, "fsck vault", 0);
        if signed.is_empty() {
            // The former secrets still work for users who ask for them.
            run(&ann, "ls --own-identity --recovery-code-file code vault", 0);
            run(&ann, "ls --own-identity --passphrase-file old vault", 0);
            let slots = run(&ann, "passphrase list vault", 0);
            assert!(slots.contains("opened by "), "{slots}");
        } else {
            assert!(!ann.home().join("vault/+identity").exists());
        }
        run(&ann, "ls --passphrase-file old vault", 3);
        let again = run(&ann, "identity adopt vault", if signed.is_empty() { 3 } else { 2 });
        assert!(!again.is_empty());
    }
}

/// A share that a sync tool had not delivered yet was passed over, and then the vault's own identity
/// was removed, which was its only member: nobody could ever read that share again. Where the
/// directory of a share was missing, the command stopped halfway, and could not be run again.
#[test]
fn a_vault_is_handed_over_with_all_its_shares() {
    for what in ["directory", "manifest"] {
        let ann = Person::new("ann");
        run(&ann, &format!("init --signed --name old {CHEAP} vault"), 0);
        run(&ann, "share create --isolated --name old vault/late", 0);
        run(&ann, "share create --name old vault/other", 0);
        fs::write(ann.home().join("letter"), "dear").unwrap();
        run(&ann, "put vault/late/letter letter", 0);
        let late = run(&ann, "map vault late", 0);
        let late = format!("vault/{}", late.trim());
        let (away, back) = match what {
            "directory" => (format!("mv '{late}' away"), format!("mv away '{late}'")),
            _ => (format!("mv '{late}'/+man* ."), format!("mv +man* '{late}'")),
        };
        assert!(ann.shell(&away).0);
        fs::rename(ann.home().join("passphrase"), ann.home().join("old")).unwrap();
        ann.write("passphrase", "the passphrase of Ann's identity\n");
        run(&ann, &format!("identity new --name Ann {CHEAP}"), 0);
        let refused = run(&ann, "identity adopt --passphrase-file old vault", 1);
        let named = if what == "directory" { "+junction-" } else { "late: " };
        for part in ["nothing was changed", named, "hint: wait until the sync tool"] {
            assert!(refused.contains(part), "{what}: {part:?} is missing in {refused}");
        }
        assert!(ann.shell(&back).0);
        run(&ann, "identity adopt --passphrase-file old vault", 0);
        assert_eq!(run(&ann, "cat vault/late/letter", 0), "dear", "{what}");
        let listed = run(&ann, "share list vault/late", 0);
        assert!(listed.contains("you") && !listed.contains("  old\n"), "{listed}");
    }
}

/// When a signed vault is handed over, no key is destroyed. Otherwise a share whose list of members
/// the storage host has withheld would have no reader.
#[test]
fn the_former_identity_of_a_signed_vault_is_kept() {
    let ann = Person::new("ann");
    let code = said(&ann.ok(&words(&format!("init --signed --name old {CHEAP} vault"))));
    ann.write("code", &code);
    fs::copy(ann.home().join("vault/+identity"), ann.home().join("before")).unwrap();
    fs::rename(ann.home().join("passphrase"), ann.home().join("old")).unwrap();
    ann.write("passphrase", "the passphrase of Ann's identity\n");
    run(&ann, &format!("identity new --name Ann {CHEAP}"), 0);
    let adopted = run(&ann, "identity adopt --passphrase-file old vault", 0);
    let kept = ann.home().join(".config/kithfs/former-identities");
    assert!(adopted.contains("former identity is kept in "), "{adopted}");
    let kept: Vec<_> = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(fs::read(&kept[0]).unwrap(), fs::read(ann.home().join("before")).unwrap());
    assert_eq!(fs::metadata(&kept[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let at = kept[0].to_str().unwrap();
    run(&ann, &format!("identity show --identity {at}"), 0);
}

/// `share create` in a vault with an identity of its own hands the vault over first: otherwise
/// members would see an owner whom they do not know.
#[test]
fn a_share_in_an_old_vault_belongs_to_the_user() {
    let ann = Person::with_identity("ann");
    run(&ann, "identity name Ann", 0);
    run(&ann, &format!("init --own-identity {CHEAP} vault"), 0);
    run(&ann, &format!("init --own-identity {CHEAP} other"), 0);
    let made = run(&ann, "share create vault/projects", 0);
    assert!(made.contains("your identity (Ann) opens vault from now on"), "{made}");
    assert!(run(&ann, "share list vault/projects", 0).contains("you"));
    run(&ann, "share create --own-identity other/projects", 0);
    let listed = run(&ann, "share list --own-identity other/projects", 0);
    assert!(listed.contains("you"), "{listed}");
    assert!(!listed.contains(&key(&ann)), "{listed}");
    if !can_mount() {
        return;
    }
    run(&ann, "mount --own-identity other plain", 0);
    let refused = run(&ann, "share create plain/more", 2);
    let unmounted = ann.shell(&format!("{} umount plain", env!("CARGO_BIN_EXE_kithfs"))).0;
    assert!(unmounted && refused.contains("kithfs identity adopt "), "{refused}");
}

/// The daemon of a mount makes a share of a new folder in a new directory: it failed with ESTALE,
/// because no program used that directory and the daemon had forgotten it.
#[test]
fn a_share_is_made_of_a_new_folder_while_the_vault_is_mounted() {
    if !can_mount() {
        return;
    }
    let ann = Person::with_identity("ann");
    run(&ann, "identity name Ann", 0);
    run(&ann, "init vault", 0);
    run(&ann, "mkdir -p vault new/deep", 0);
    run(&ann, "mount vault plain", 0);
    let made = run(&ann, "share create vault/new/folder", 0);
    let deeper = run(&ann, "share create vault/new/deep/folder", 0);
    let (is_written, _) = ann.shell("echo letter >plain/new/folder/note");
    let is_unmounted = ann.shell(&format!("{} umount plain", env!("CARGO_BIN_EXE_kithfs"))).0;
    assert!(is_unmounted && is_written);
    assert!(made.contains("vault/new/folder is a share"), "{made}");
    assert!(deeper.contains("vault/new/deep/folder is a share"), "{deeper}");
    assert_eq!(run(&ann, "cat vault/new/folder/note", 0), "letter\n");
}

/// The mount point that `mount` had made stayed if an ordinary user locked the vault while a program
/// used it: programs that came later stored their files in it, in plain.
#[test]
fn a_lock_removes_the_mount_point_that_was_made() {
    let Some(bob) = ordinary_user().filter(may_mount) else { return };
    run(&bob, "init vault", 0);
    run(&bob, "mount vault plain", 0);
    let mut program = bob.program("exec 7>plain/letter; echo open; read line");
    let mut user = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let locked = run(&bob, "lock plain", 0);
    let is_gone = !bob.home().join("plain").exists();
    drop(user.stdin.take());
    user.wait().unwrap();
    assert!(line == "open\n" && is_gone, "{line}{locked}");
}

#[test]
fn a_guarded_mount_point_takes_no_files_while_unmounted() {
    // A program that ran before the mount wrote its files into the mount point, in plain.
    let Some(bob) = ordinary_user().filter(may_mount) else { return };
    run(&bob, "init vault", 0);
    bob.shell("mkdir plain");
    let take = "echo secret > plain/letter";
    run(&bob, "mount --guard vault plain", 0);
    assert!(bob.shell(take).0, "the mount takes files");
    run(&bob, "umount plain", 0);
    assert!(!bob.shell(take).0, "the bare mount point takes none");
    // Also in a mount without the option, and after the daemon was killed.
    run(&bob, "mount vault plain", 0);
    let (fine, read) = bob.shell("cat plain/letter");
    assert!(fine && read == "secret\n", "{read}");
    let listed: serde_json::Value =
        serde_json::from_str(&run(&bob, "mounts --json", 0)).expect("JSON");
    let pid = listed[0]["pid"].as_u64().expect("a process");
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    wait_until("the daemon ends", || !Path::new(&format!("/proc/{pid}/fd/0")).exists());
    run(&bob, "umount plain", 0);
    assert!(!bob.shell(take).0, "the bare mount point takes none");
    assert!(bob.shell("chmod 700 plain && rmdir plain").0, "the mount point is not empty");
}

/// Root ignores modes, and is stopped by the immutable flag.
#[test]
fn root_writes_to_no_guarded_mount_point_either() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return println!("skipped: not root");
    }
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    ann.shell("mkdir plain");
    let point = fs::File::open(ann.home().join("plain")).unwrap();
    let release = scopeguard::guard(point, |point| {
        if let Ok(flags) = ioctl_getflags(&point) {
            let _ = ioctl_setflags(&point, flags - IFlags::IMMUTABLE);
        }
    });
    let mounted = run(&ann, "mount --guard vault plain", 0);
    let take = "echo secret > plain/letter";
    assert!(ann.shell(take).0, "the mount takes files");
    run(&ann, "umount plain", 0);
    if mounted.contains("the mount point is not guarded") {
        return println!("skipped: {mounted}");
    }
    assert!(!ann.shell(take).0, "the bare mount point takes none");
    run(&ann, "mount vault plain", 0);
    let (fine, read) = ann.shell("cat plain/letter");
    run(&ann, "umount plain", 0);
    assert!(fine && read == "secret\n" && !ann.shell(take).0, "{read}");
    drop(release);
    assert!(ann.shell("rmdir plain").0, "the mount point is not empty, or still guarded");
}

/// A FIFO in the place of a file of this user blocked every command that read it.
#[test]
fn a_fifo_blocks_no_command() {
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    ann.shell("mkfifo pipe; mkfifo .config/kithfs/contacts .config/kithfs/name");
    for line in ["contact list", "identity show", "share create vault/f", "who-can-read vault"] {
        let (_, all) = ann.shell(&format!(
            "timeout 20 {} {line} || echo ended with $?",
            env!("CARGO_BIN_EXE_kithfs")
        ));
        assert!(!all.contains("ended with 124"), "{line}: {all}");
    }
}

/// The folder of a conflict copy cannot become a share; the error was a bare "Invalid argument".
#[test]
fn a_conflict_copy_is_no_folder_for_a_share() {
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    run(&ann, "mkdir vault/f", 0);
    let stored = run(&ann, "map vault f", 0);
    let stored = stored.trim();
    assert!(ann.shell(&format!("cp -a 'vault/{stored}' 'vault/{stored} (1)'")).0);
    let listed = run(&ann, "ls vault", 0);
    let copy = listed.lines().find(|line| line.contains("(1)")).expect("the copy is listed");
    let output = ann.kithfs(&["share", "create", &format!("vault/{copy}")]).output().unwrap();
    let all = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{all}");
    assert!(all.contains("hint: a conflict copy") && all.contains("rename"), "{all}");
}

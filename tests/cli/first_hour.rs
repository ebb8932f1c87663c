//! The first hour with the program: its questions, its messages, and what it refuses before it
//! asks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::mounted::{can_mount, is_mounted};
use crate::support::people::{Person, key, knows, said, stderr, wait_until};
use crate::support::terminal::Terminal;

/// Makes a passphrase cheap to try.
const CHEAP: &str = "--kdf-memory 32 --kdf-passes 1";

/// A passphrase that is not called weak.
const STRONG: &str = "zebra lunar piano grave ticket mural";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn at_terminal(person: &Person, line: &str) -> Terminal {
    person.at_terminal(&words(line))
}

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

/// Runs a line of a table, and returns everything that was printed.
fn run(person: &Person, line: &str, code: i32) -> String {
    let output = person.kithfs(&words(line)).output().unwrap();
    let all = said(&output) + &stderr(&output);
    assert_eq!(output.status.code(), Some(code), "kithfs {line}:\n{all}");
    all
}

/// Mistakes that new users make: the command, its exit code, and required parts of the message. The
/// given passphrase file is missing, so these commands must fail before they ask for a passphrase.
const REFUSED_BEFORE_A_QUESTION: &[(&str, i32, &[&str])] = &[
    (
        "init a/b/vault",
        1,
        &["init a/b/vault: the directory above it", "hint: create it first: mkdir -p a/b"],
    ),
    (
        "init full",
        2,
        &["the directory is not empty", "an existing vault is opened with `kithfs mount`"],
    ),
    ("init --name Ann v", 2, &["--signed"]),
    ("init --kdf-memory 64 v", 2, &["it gets no passphrase", "--own-identity"]),
    ("init --identity pipe v", 3, &["it is not a regular file"]),
    ("identity new", 2, &["it already exists", "kithfs identity show"]),
    ("identity new --identity x --name \u{7}", 2, &["no control characters"]),
    ("mount none plain", 4, &["the vault does not exist", "`kithfs init` creates a new vault"]),
    ("mount full plain", 5, &["this is not a kithfs vault"]),
    ("mount vault a/b/plain", 7, &["No such file", "hint: create its parent first: mkdir -p a/b"]),
    ("mount vault nowhere", 7, &["No such file", "hint: it is a symbolic link to nothing"]),
    ("mount vault full", 7, &["the directory is not empty", "choose an empty directory"]),
    ("mount vault vault/in", 7, &["is inside the vault", "choose a directory outside the vault"]),
    ("mount vault file", 7, &["Not a directory"]),
    ("mount --guard vault none", 7, &["the directory does not exist", "hint: mkdir none"]),
    ("mount -o nonsense vault plain", 2, &["nonsense", "`kithfs help mount` lists the options"]),
    ("export vault file/x", 1, &["export to file/x: Not a directory"]),
    ("get vault x none/x", 1, &["write none/x: No such file"]),
    ("rollback --export file/x vault", 1, &["export to file/x: Not a directory"]),
    ("fsck --salvage file/x vault", 21, &["salvage to file/x: Not a directory"]),
    ("import none vault", 1, &["import none: No such file"]),
    ("put vault none none", 1, &["read none: No such file"]),
    ("put vault full full", 1, &["Is a directory", "copy a directory with `kithfs import`"]),
    ("cat vault", 2, &["cat needs a path in the vault vault"]),
    ("rm vault", 2, &["rm needs a path"]),
    (
        "share add vault/f Bob --role reader",
        12,
        &["there is no contact", "kithfs contact add Bob kith1..."],
    ),
    ("share invite vault/f Bob -o none/x", 1, &["write invitation none/x: No such file"]),
    ("passphrase add vault --new-key-file none", 3, &["read key file none: No such file"]),
    ("identity adopt vault", 2, &["the vault has no identity of its own", "shows its founder"]),
    ("ls --own-identity vault", 3, &["the vault has no identity of its own"]),
    ("contact add Bob kith1x", 2, &["read public key", "kithfs identity export"]),
];

/// Every check that needs no secret comes before the question for one: the passphrase file is
/// missing, so a command that asked first would report that.
#[test]
fn checks_come_before_questions() {
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    ann.shell("mkdir full; touch full/x file; mkfifo pipe; ln -s none/none nowhere; rm passphrase");
    for (line, code, says) in REFUSED_BEFORE_A_QUESTION {
        let all = run(&ann, line, *code);
        for part in *says {
            assert!(all.contains(part), "kithfs {line}: {part:?} is missing in\n{all}");
        }
        assert!(!all.contains("passphrase: No such file"), "kithfs {line}: asked first\n{all}");
    }
    assert!(!ann.home().join("a").exists() && !ann.home().join("v").exists());
    let Some(bob) = ordinary_user() else { return };
    run(&bob, "init vault", 0);
    bob.shell("mkdir plain shut; chmod 500 shut; rm passphrase");
    let may_allow = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    for (line, code, says) in REFUSED_FOR_AN_ORDINARY_USER {
        let needs_fuse = line.contains("mount");
        if needs_fuse && !can_mount() || line.contains("allow_other") && may_allow {
            println!("skipped: {line}");
            continue;
        }
        let all = run(&bob, line, *code);
        for part in *says {
            assert!(all.contains(part), "kithfs {line}: {part:?} is missing in\n{all}");
        }
        assert!(!all.contains("passphrase: No such file"), "kithfs {line}: asked first\n{all}");
    }
}

/// The same for a user whom the system allows less. `shut` is a directory without permission to
/// write.
const REFUSED_FOR_AN_ORDINARY_USER: &[(&str, i32, &[&str])] = &[
    ("init shut/vault", 1, &["init shut/vault: Permission denied"]),
    ("init shut", 1, &["init shut: Permission denied"]),
    ("identity new --identity shut/i", 1, &["make identity shut/i: Permission denied"]),
    ("mount vault shut", 7, &["mount on shut: Permission denied", "such as ~/plain"]),
    ("mount vault shut/plain", 7, &["shut/plain: Permission denied", "such as ~/plain"]),
    (
        "mount -o allow_other vault plain",
        8,
        &["allow_other", "hint: as root: echo user_allow_other >> /etc/fuse.conf"],
    ),
];

/// Returns a user other than root, with an identity; `None` if the test cannot create one.
fn ordinary_user() -> Option<Person> {
    let person = Person::user("bob", 1);
    let (_, uid) = person.shell("id -u");
    if uid.trim() == "0" {
        println!("skipped: there is no other user");
        return None;
    }
    Some(person)
}

/// Commands with the right passphrase, run in order: the command, its exit code, and required parts
/// of the output.
const WITH_A_VAULT: &[(&str, i32, &[&str])] = &[
    ("init vault", 0, &["it belongs to your identity (Ann)", "mount it: kithfs mount vault plain"]),
    ("mkdir vault a/b/c", 12, &["-p creates missing parents: kithfs mkdir -p ", "/vault a/b/c"]),
    ("mkdir -p vault/a/b/c", 0, &[]),
    ("mkdir vault a/x vault/a/y", 0, &[]),
    ("ls vault a", 0, &["b\nx\ny\n"]),
    ("ls vault/a", 0, &["b\nx\ny\n"]),
    ("ls vault/a b", 0, &["c\n"]),
    ("put vault a/one.txt one.txt", 0, &[]),
    ("put vault/a/two.txt one.txt", 0, &[]),
    ("put vault/a/x one.txt", 0, &[]),
    ("cat vault a/one.txt vault/a/two.txt", 0, &["one\none\n"]),
    ("cat vault/a/one.txt vault/a/two.txt", 0, &["one\none\n"]),
    ("get vault/a/x/one.txt out.txt", 0, &[]),
    ("get vault a/x/one.txt out2.txt", 0, &[]),
    ("get vault/a/one.txt", 0, &[]),
    ("map vault/a/x", 0, &["/"]),
    ("fsck vault/a", 0, &[]),
    ("export vault/a out", 0, &["3 copied"]),
    ("export vault a out", 0, &["3 already there"]),
    ("import out vault b", 0, &["3 copied"]),
    ("import out vault/b", 0, &["3 already there"]),
    ("rm vault/a/one.txt vault/a/two.txt", 0, &[]),
    ("rm vault/a", 1, &["-r removes a directory and its contents"]),
    ("rollback vault", 0, &["nothing in vault is older than this machine has seen it"]),
    ("accept-rollback vault/a", 0, &["accepted"]),
    ("mkdir vault/projects", 0, &[]),
    ("share create vault/projects", 0, &["vault/projects is a share"]),
    ("share list vault/projects", 0, &["admin   you", "  Ann\n"]),
    ("share list vault", 0, &["you"]),
    ("share create vault more", 0, &["vault/more is a share"]),
    ("share list vault more", 0, &["admin   you"]),
    ("share log vault more", 0, &["founded"]),
    ("share rekey --status vault more", 0, &["0 files"]),
    ("who-can-read vault more", 0, &["admin   you"]),
    ("identity name", 0, &["Ann\n"]),
];

#[test]
fn both_spellings_work_and_mistakes_get_a_hint() {
    let ann = Person::new("ann");
    let made = run(&ann, &format!("identity new --name Ann {CHEAP}"), 0);
    assert!(!made.contains("kithfs identity name NAME"), "a name was chosen: {made}");
    ann.write("one.txt", "one\n");
    for (line, code, says) in WITH_A_VAULT {
        let all = run(&ann, line, *code);
        for part in *says {
            assert!(all.contains(part), "kithfs {line}: {part:?} is missing in\n{all}");
        }
    }
    for file in ["out.txt", "out2.txt", "one.txt", "out/x/one.txt"] {
        assert_eq!(fs::read(ann.home().join(file)).unwrap(), b"one\n", "{file}");
    }
}

/// What the user is asked at the terminal: a command, its exit code, and what is printed, each with
/// the line that is typed then.
type Dialogue = (&'static str, i32, &'static [(&'static str, Option<&'static str>)]);

/// What a person types to make an identity, vaults and a share, in order.
const AT_A_TERMINAL: &[Dialogue] = &[
    (
        "identity new --kdf-memory 32 --kdf-passes 1",
        0,
        &[
            ("Your name, as members of your shares see it: ", Some("Ann")),
            ("New passphrase of your identity (", Some("hunter2")),
            ("this passphrase is weak", None),
            ("Repeat it (or press Enter to choose another one): ", Some("")),
            ("New passphrase of your identity (", Some(STRONG)),
            ("this passphrase is strong", None),
            ("Repeat it", Some(STRONG)),
            ("making a key", None),
            ("this recovery code opens the identity if the passphrase is lost", None),
            ("Have you written the recovery code down? [y/N] ", Some("y")),
        ],
    ),
    (
        "init mine",
        0,
        &[
            ("Passphrase of your identity (Ann): ", Some("wrong")),
            ("checking the passphrase", None),
            ("wrong passphrase", None),
            ("check caps lock and keyboard layout", None),
            ("2 attempts left", None),
            ("Passphrase of your identity (Ann): ", Some(STRONG)),
            ("it belongs to your identity (Ann)", None),
            ("mount it: kithfs mount mine plain", None),
        ],
    ),
    (
        "init --own-identity --kdf-memory 32 --kdf-passes 1 own",
        0,
        &[
            ("New passphrase of the vault own: ", Some("")),
            ("the passphrase is empty; 2 attempts left", None),
            ("New passphrase of the vault own: ", Some(STRONG)),
            ("Repeat it", Some(STRONG)),
            ("this recovery code opens the vault if the passphrase is lost", None),
            ("Have you written the recovery code down? [y/N] ", Some("y")),
            ("mount it: kithfs mount own plain", None),
        ],
    ),
    ("ls own", 0, &[("Passphrase of the vault ~/own: ", Some(STRONG))]),
    (
        "ls own",
        3,
        &[
            ("Passphrase of the vault ~/own: ", Some("wrong")),
            ("2 attempts left", None),
            ("Passphrase of the vault ~/own: ", Some("")),
            ("the passphrase is empty; 2 attempts left", None),
            ("Passphrase of the vault ~/own: ", Some("wrong")),
            ("1 attempt left", None),
            ("Passphrase of the vault ~/own: ", Some("wrong")),
            ("wrong passphrase", None),
        ],
    ),
    (
        "identity adopt own",
        0,
        &[
            ("Passphrase of the vault ~/own: ", Some(STRONG)),
            ("Passphrase of your identity (Ann): ", Some(STRONG)),
            ("your identity (Ann) opens own from now on", None),
        ],
    ),
    (
        "share create own/projects",
        0,
        &[("Passphrase of your identity (Ann): ", Some(STRONG)), ("own/projects is a share", None)],
    ),
];

#[test]
fn the_terminal_asks_for_what_it_names() {
    let ann = Person::new("ann");
    for (line, code, steps) in AT_A_TERMINAL {
        let mut terminal = at_terminal(&ann, line);
        for (printed, typed) in *steps {
            terminal.expect(printed);
            if let Some(typed) = typed {
                terminal.type_line(typed);
            }
        }
        let (ended, said) = terminal.end();
        assert_eq!(ended, *code, "kithfs {line}:\n{said}");
    }
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

/// Whatever a signed vault is handed over with, no key is destroyed: a share whose list of members
/// the storage host had withheld would have no reader.
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

#[test]
fn a_guarded_mount_point_takes_no_files_while_unmounted() {
    // A program that ran before the mount wrote its files into the mount point, in plain.
    let Some(bob) = ordinary_user() else { return };
    if !can_mount() {
        return;
    }
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
    assert!(bob.shell("chmod 700 plain && rmdir plain").0, "it is empty");
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
    assert!(ann.shell("rmdir plain").0, "it is empty, and free again");
}

/// A command that is interrupted reports what it has done and how to continue.
#[test]
fn an_interrupted_copy_says_how_to_continue() {
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    ann.shell("mkdir tree; for i in $(seq 40); do head -c 3000000 /dev/urandom > tree/$i; done");
    let mut import = ann.kithfs(&["import", "tree", "vault"]);
    import.stderr(std::process::Stdio::piped());
    let child = import.spawn().unwrap();
    let stored = || fs::read_dir(ann.home().join("vault")).unwrap().count();
    let before = stored();
    wait_until("a file is copied", || stored() > before + 2);
    // `setsid` has become the program.
    assert!(ann.shell(&format!("kill -INT {}", child.id())).0);
    let output = child.wait_with_output().unwrap();
    let all = stderr(&output);
    assert!(all.contains("import: interrupted") && all.contains("copied ("), "{all}");
    assert!(all.contains("run the same command again; it continues"), "{all}");
    assert_eq!(output.status.code(), Some(130), "{all}");
    let again = run(&ann, "import tree vault", 0);
    assert!(!again.contains(" 0 already there") && again.contains("0 failed"), "{again}");
    run(&ann, "fsck vault", 0);
}

/// A full disk produced one message for each remaining file.
#[test]
fn a_full_disk_stops_an_import_with_one_message() {
    let ann = Person::with_identity("ann");
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount a small disk");
    }
    let disk = ann.home().join("disk");
    fs::create_dir(&disk).unwrap();
    let (fine, why) = ann.shell("mount -t tmpfs -o size=8m none disk");
    if !fine {
        return println!("skipped: {why}");
    }
    let unmount = scopeguard::guard((), |()| drop(ann.shell("umount disk")));
    run(&ann, "init disk/vault", 0);
    ann.shell("mkdir tree; for i in $(seq 40); do head -c 1000000 /dev/urandom > tree/$i; done");
    let all = run(&ann, "import tree disk/vault", 1);
    assert_eq!(all.lines().filter(|line| line.starts_with("kithfs: ")).count(), 1, "{all}");
    assert!(all.contains("kithfs: import tree/"), "{all}");
    assert!(all.contains("no space is left on the vault's disk: "), "{all}");
    assert!(all.contains("MiB more are needed") && all.contains("make room"), "{all}");
    assert!(ann.shell("mount -o remount,size=80m disk").0);
    let again = run(&ann, "import tree disk/vault", 0);
    assert!(again.contains("0 failed"), "{again}");
    drop(unmount);
}

/// A member who cannot write to the store is told what is missing, and who can grant it.
#[test]
fn a_missing_permission_is_named_with_two_ways_to_grant_it() {
    let Some(bob) = ordinary_user() else { return };
    run(&bob, "init vault", 0);
    // Root owns the store here: if Bob owned it, kithfs would change its mode for the operation.
    let vault = bob.home().join("vault");
    std::os::unix::fs::chown(&vault, Some(0), Some(0)).unwrap();
    let mode = |bits| fs::set_permissions(&vault, fs::Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    let all = run(&bob, "mkdir vault new", 1);
    for part in ["no write permission on ", "/vault", "chmod g+s", "setfacl -R -m u:"] {
        assert!(all.contains(part), "{part:?} is missing in {all}");
    }
    mode(0o700);
    let all = run(&bob, "ls vault", 1);
    assert!(all.contains("no search permission on ") && all.contains("setfacl"), "{all}");
}

/// Errors, hints and states have colours on a terminal, and nowhere else.
#[test]
fn colours_are_for_people() {
    let ann = Person::new("ann");
    let red = "\u{1b}[1m\u{1b}[31mkithfs:";
    let (_, on_terminal) = at_terminal(&ann, "ls none").end();
    assert!(
        on_terminal.contains(red) && on_terminal.contains("\u{1b}[36mhint:"),
        "{on_terminal:?}"
    );
    assert!(!run(&ann, "ls none", 4).contains('\u{1b}'));
    assert!(run(&ann, "--color always ls none", 4).contains(red));
    let (_, never) = at_terminal(&ann, "ls --color never none").end();
    assert!(!never.contains('\u{1b}'), "{never:?}");
    let mut command = ann.terminal_command(&["ls", "none"]);
    command.env("NO_COLOR", "1");
    let (_, no_color) = Terminal::start(command).end();
    assert!(!no_color.contains('\u{1b}'), "{no_color:?}");
    let public = kithfs::roster::PublicIdentity { sign: [9; 32], exchange: [9; 32] };
    run(&ann, &format!("contact add Bob {public}"), 0);
    let listed = run(&ann, "--color=always contact list", 0);
    assert!(listed.contains("\u{1b}[33mnew"), "{listed:?}");
}

/// A FIFO in the place of a file of this user blocked every command that read it.
#[test]
fn a_fifo_holds_no_command() {
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

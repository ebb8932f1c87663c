//! The messages of the first hour: each one that new users meet is a row of a table here.
//!
//! | what users meet | table |
//! |---|---|
//! | one identity, its name, `identity adopt` | [`WITH_A_VAULT`], [`AT_A_TERMINAL`], [`MEMBER`] |
//! | prompts, attempts, strength, the recovery code | [`AT_A_TERMINAL`] |
//! | checks before questions | [`REFUSED_BEFORE_A_QUESTION`], [`REFUSED_FOR_AN_ORDINARY_USER`] |
//! | both spellings of a path, hints, `rollback` with nothing to report | [`WITH_A_VAULT`] |
//! | a full disk, Ctrl-C | [`FULL_DISK`], [`INTERRUPTED`] |
//! | an invitation, and permissions that a member lacks in the store | [`MEMBER`] |
//! | help, manual pages, colours | [`HELP`], [`COLOURS`] |
//! | mount points: created, removed, guarded | [`MOUNT_POINT`], [`GUARD_OF_ROOT`] |
//!
//! A command that fails prints one message and not several. At most one line begins with
//! `kithfs: `, and none if the parser of the command line reports the error.

use std::fs;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process, setpriority_process};

use crate::support::mounted::can_mount;
use crate::support::people::{Person, knows, said, stderr, wait_until};
use crate::support::terminal::Terminal;

/// Makes a passphrase cheap to try.
pub const CHEAP: &str = "--kdf-memory 32 --kdf-passes 1";

/// A passphrase that is not called weak.
pub const STRONG: &str = "zebra lunar piano grave ticket mural";

/// A command, its exit code, and required parts of what is printed. A part that begins with `!` must
/// be absent.
type Row = (&'static str, i32, &'static [&'static str]);

pub fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

pub fn at_terminal(person: &Person, line: &str) -> Terminal {
    person.at_terminal(&words(line))
}

/// Runs a line of a table, and returns everything that was printed.
pub fn run(person: &Person, line: &str, code: i32) -> String {
    all(line, &person.kithfs(&words(line)).output().unwrap(), code)
}

/// Returns everything that a command has printed. Panics if it did not end with `code`.
fn all(line: &str, output: &Output, code: i32) -> String {
    let all = said(output) + &stderr(output);
    assert_eq!(output.status.code(), Some(code), "{line}:\n{all}");
    all
}

/// Panics unless a command has printed the parts of its row, and at most one message, and none if
/// it succeeded.
fn check(line: &str, all: &str, code: i32, says: &[&str]) {
    for part in says {
        match part.strip_prefix('!') {
            Some(absent) => assert!(!all.contains(absent), "{line}: {absent:?} is in\n{all}"),
            None => assert!(all.contains(part), "{line}: {part:?} is missing in\n{all}"),
        }
    }
    let messages = all.lines().filter(|line| line.starts_with("kithfs: ")).count();
    assert!(messages <= 1 && (code != 0 || messages == 0), "{line}: {messages} messages in\n{all}");
}

/// Mistakes that new users make. The given passphrase file is missing, so these commands must fail
/// before they ask for a passphrase.
const REFUSED_BEFORE_A_QUESTION: &[Row] = &[
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
    (
        "init --identity pipe v",
        3,
        &["it is not a regular file", "hint: see what it is: ls -ld pipe"],
    ),
    ("identity new", 2, &["it already exists", "kithfs identity show"]),
    ("identity new --identity x --name \u{7}", 2, &["no control characters"]),
    ("mount none plain", 4, &["the vault does not exist", "`kithfs init` creates a new vault"]),
    ("mount full plain", 5, &["this is not a kithfs vault"]),
    ("mount vault a/b/plain", 7, &["No such file", "hint: create its parent first: mkdir -p a/b"]),
    ("mount vault nowhere", 7, &["No such file", "hint: it is a symbolic link to nothing"]),
    ("mount vault full", 7, &["the directory is not empty", "choose an empty directory"]),
    ("mount vault vault/in", 7, &["is inside the vault", "choose a directory outside the vault"]),
    ("mount vault file", 7, &["Not a directory"]),
    ("mount vault /proc/new", 7, &["mount on /proc/new: No such file"]),
    (
        "open away",
        4,
        &["the vault does not exist", "hint: connect its disk", "kithfs vaults set away --vault "],
    ),
    ("mount --guard vault none", 7, &["the directory does not exist", "hint: mkdir none"]),
    ("mount -o nonsense vault plain", 2, &["nonsense", "`kithfs help mount` lists the options"]),
    ("export vault file/x", 1, &["export to file/x: Not a directory"]),
    (
        "get vault x none/x",
        1,
        &["write none/x: No such file", "hint: create its directory first: mkdir -p none"],
    ),
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
    (
        "share invite vault/f Bob -o none/x",
        1,
        &[
            "write invitation none/x: No such file",
            "hint: create its directory first: mkdir -p none",
        ],
    ),
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
    run(&ann, "vaults add away disk/vault away", 0);
    ann.shell("mkdir full; touch full/x file; mkfifo pipe; ln -s none/none nowhere; rm passphrase");
    for (line, code, says) in REFUSED_BEFORE_A_QUESTION {
        let all = run(&ann, line, *code);
        check(line, &all, *code, says);
        assert!(!all.contains("passphrase: No such file"), "kithfs {line}: asked first\n{all}");
    }
    assert!(!ann.home().join("a").exists() && !ann.home().join("v").exists());
    let Some(bob) = ordinary_user() else { return };
    run(&bob, "init vault", 0);
    bob.shell("mkdir plain shut; chmod 500 shut; rm passphrase");
    let may_allow = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    for (line, code, says) in REFUSED_FOR_AN_ORDINARY_USER {
        let is_checked_last = line.contains("allow_other");
        if is_checked_last && (may_allow || !may_mount(&bob)) {
            println!("skipped: {line}");
            continue;
        }
        let all = run(&bob, line, *code);
        check(line, &all, *code, says);
        assert!(!all.contains("passphrase: No such file"), "kithfs {line}: asked first\n{all}");
    }
}

/// The same for a user whom the system allows less. `shut` is a directory without permission to
/// write.
const REFUSED_FOR_AN_ORDINARY_USER: &[Row] = &[
    ("init shut/vault", 1, &["init shut/vault: Permission denied", "hint: ", "such as ~/vault"]),
    ("init shut", 1, &["init shut: Permission denied", "hint: ", "such as ~/vault"]),
    (
        "identity new --identity shut/i",
        1,
        &["make identity shut/i: Permission denied", "hint: ", "--identity FILE"],
    ),
    ("mount vault shut", 7, &["mount on shut: Permission denied", "such as ~/plain"]),
    ("mount vault shut/plain", 7, &["shut/plain: Permission denied", "such as ~/plain"]),
    (
        "mount -o allow_other vault plain",
        8,
        &["allow_other", "hint: as root: echo user_allow_other >> /etc/fuse.conf"],
    ),
];

/// Returns whether a user may use FUSE; prints a message if not. A container may give the device to
/// root alone.
pub fn may_mount(person: &Person) -> bool {
    let (may, why) = person.shell(": <>/dev/fuse");
    if !may {
        println!("skipped: {why}");
    }
    may
}

/// Returns a user other than root, with an identity; `None` if the test cannot create one.
pub fn ordinary_user() -> Option<Person> {
    let person = Person::user("bob", 1);
    let (_, uid) = person.shell("id -u");
    if uid.trim() == "0" {
        println!("skipped: there is no other user");
        return None;
    }
    Some(person)
}

/// Commands with the right passphrase, run in order.
const WITH_A_VAULT: &[Row] = &[
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
    (
        "share create vault/projects",
        0,
        &["vault/projects is a share", "share add vault/projects NAME --role writer"],
    ),
    ("share list vault/projects", 0, &["admin   you", "  Ann\n"]),
    ("share list vault", 0, &["signed ", " by Ann\n", "admin   you", "  Ann\n", "!owner"]),
    ("share log vault", 0, &["Ann: founded", "!owner"]),
    ("who-can-read vault", 0, &["  Ann\n", "!owner"]),
    ("share create vault more", 0, &["vault/more is a share"]),
    ("share list vault more", 0, &["admin   you"]),
    ("share log vault more", 0, &["founded"]),
    ("share rekey --status vault more", 0, &["0 files"]),
    ("who-can-read vault more", 0, &["admin   you"]),
    ("share create vault/above/below", 0, &["vault/above/below is a share"]),
    ("share create vault/above", 1, &["Invalid argument", "a folder that contains a share"]),
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
        check(line, &all, *code, says);
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

/// What a row of a scene does. Scripts run in the home of the scene's person.
#[derive(Clone, Copy)]
enum Do {
    /// Runs the program.
    Run(&'static str),
    /// Runs the program, and interrupts it once it has read and written that many bytes.
    Interrupt(&'static str, u64),
    /// Runs the program at a terminal, with this value of NO_COLOR.
    Terminal(&'static str, Option<&'static str>),
    /// Runs a script.
    Shell(&'static str),
    /// Runs a script as the user of the test, who may change the store.
    Change(&'static str),
}
use Do::*;

/// Like [`Row`], for what is not only a command.
type Act = (Do, i32, &'static [&'static str]);

/// A situation in which rows run, in order.
struct Scene {
    person: Person,
    /// Ends mounts of the scene, whatever has happened.
    end: &'static str,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let mut end = Command::new("sh");
        let _ = end.args(["-c", self.end]).current_dir(self.person.home()).output();
    }
}

/// Returns how many bytes a process has read and written. Only root sees that of kithfs.
fn moved(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let count = |name| {
        let value = io.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    count("rchar:") + count("wchar:")
}

impl Scene {
    fn new(person: Person, end: &'static str) -> Scene {
        Scene { person, end }
    }

    /// Runs a script as the user of the test.
    fn change(&self, script: &str) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]).current_dir(self.person.home()).output().unwrap()
    }

    fn act(&self, (act, code, says): &Act) {
        let person = &self.person;
        let (line, all) = match *act {
            Run(line) => (line, run(person, line, *code)),
            Interrupt(line, bytes) => {
                let mut command = person.kithfs(&words(line));
                let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
                // On a busy machine the command could end before this thread looks at it again.
                setpriority_process(Some(Pid::from_child(&child)), 19).unwrap();
                wait_until("the command has begun", || moved(child.id()) > bytes);
                // `setsid` has become the program.
                kill_process(Pid::from_child(&child), Signal::INT).unwrap();
                (line, all(line, &child.wait_with_output().unwrap(), *code))
            }
            Terminal(line, no_color) => {
                let mut command = person.terminal_command(&words(line));
                no_color.map(|value| command.env("NO_COLOR", value));
                let (ended, all) = Terminal::start(command).end();
                assert_eq!(ended, *code, "{line}:\n{all}");
                (line, all)
            }
            Shell(line) => (line, all(line, &person.program(line).output().unwrap(), *code)),
            Change(line) => (line, all(line, &self.change(line), *code)),
        };
        check(line, &all, *code, says);
    }

    fn play(&self, acts: &[Act]) {
        acts.iter().for_each(|act| self.act(act));
    }
}

/// The disk of the vault, and that of the target of an export, are full. Each command continues
/// when there is room. (Formerly the message of a full target said that one more byte was needed,
/// and each of the remaining files had a message.)
const FULL_DISK: &[Act] = &[
    (
        Run("share rekey --eager disk/vault"),
        1,
        &["kithfs: reseal /", "o space", "hint: ", "free space on the vault's"],
    ),
    (
        Run("share create disk/vault/f"),
        1,
        &["kithfs: share f (/", "o space", "hint: ", "free space on the vault's"],
    ),
    (
        Run("export disk/vault/f small/out"),
        1,
        &["no space is left on the target's disk: 1.72 MiB more are needed", "make room"],
    ),
    (
        Run("import many disk/vault/g"),
        1,
        &[
            "kithfs: import many/",
            "no space is left on the vault's disk: ",
            "MiB more are needed, for ",
            "hint: make room, and run the same command again: it continues where it stopped",
        ],
    ),
    (Change("mount -o remount,size=90m disk; mount -o remount,size=90m small"), 0, &[]),
    (Run("import many disk/vault/g"), 0, &["0 failed"]),
    (Run("share rekey --eager disk/vault"), 0, &[]),
    (Run("share create disk/vault/f"), 0, &[]),
    (Run("export disk/vault/f small/out"), 0, &["0 failed"]),
    (Run("fsck disk/vault"), 0, &[]),
    (Shell("cmp tree/large small/out/large"), 0, &[]),
];

#[test]
fn a_full_disk_ends_a_command_with_one_message() {
    if !geteuid().is_root() {
        return println!("skipped: only root can mount a small disk");
    }
    let scene = Scene::new(Person::with_identity("ann"), "umount disk; umount small");
    let mounted = scene.change(
        "mkdir disk small; mount -t tmpfs -o size=10m none disk; mount -t tmpfs -o size=4m none small",
    );
    if !mounted.status.success() {
        return println!("skipped: {}", stderr(&mounted));
    }
    run(&scene.person, "init --signed --name Ann disk/vault", 0);
    scene.person.shell(
        "mkdir tree many; head -c 6000000 /dev/urandom > tree/large
         for i in $(seq 40); do head -c 1000000 /dev/urandom > many/$i; done",
    );
    run(&scene.person, "import tree disk/vault/f", 0);
    scene.play(FULL_DISK);
}

/// Ctrl-C in each long command: it reports what it has done and how to continue. When it is run
/// again, it continues.
const INTERRUPTED: &[Act] = &[
    (
        Interrupt("import tree vault/g", 60_000_000),
        130,
        &[
            "kithfs: import: interrupted",
            "copied (",
            "hint: run the same command again; it continues where it stopped",
        ],
    ),
    (Run("ls vault/g"), 0, &["!.kithfs-part-"]),
    (Run("import tree vault/g"), 0, &["! 0 already there", "0 failed"]),
    (
        Interrupt("export vault/f out", 60_000_000),
        130,
        &[
            "kithfs: export: interrupted",
            "copied (",
            "hint: run the same command again; it continues where it stopped",
        ],
    ),
    (Shell("ls -A out"), 0, &["!.kithfs-part-"]),
    (Run("export vault/f out"), 0, &["! 0 already there", "0 failed"]),
    (
        Interrupt("fsck vault", 8_000_000),
        130,
        &[
            "kithfs: fsck: interrupted",
            "hint: ",
            "nothing was changed, and nothing is known of the rest",
        ],
    ),
    (Run("fsck vault"), 0, &[]),
    (
        Interrupt("share rekey --eager vault", 8_000_000),
        130,
        &["kithfs: share rekey: interrupted", "hint: ", "what was sealed stays sealed"],
    ),
    (Run("share rekey --eager vault"), 0, &[]),
    (
        Interrupt("share create vault/f", 8_000_000),
        130,
        &["kithfs: share create: interrupted", "hint: ", "the folder is as it was"],
    ),
    (Run("share create vault/f"), 0, &[]),
    (Shell("diff -r tree out"), 0, &[]),
    (Run("fsck vault"), 0, &[]),
    (Run("export vault/f again"), 0, &["0 failed"]),
    (Shell("diff -r tree again"), 0, &[]),
];

#[test]
fn an_interrupted_command_says_how_to_continue() {
    if !geteuid().is_root() {
        return println!("skipped: only root sees how much a process of kithfs reads and writes");
    }
    let scene = Scene::new(Person::with_identity("ann"), "");
    run(&scene.person, "init --signed --name Ann vault", 0);
    let make = "mkdir tree; for i in $(seq 8); do head -c 12000000 /dev/urandom > tree/$i; done";
    scene.person.shell(make);
    run(&scene.person, "import tree vault/f", 0);
    scene.play(INTERRUPTED);
}

/// Bob is a member of a share whose store belongs to root, who is Ann. (If Bob owned the store,
/// kithfs would change its mode for the operation.)
const MEMBER: &[Act] = &[
    (Shell("stat -c %a invitation"), 0, &["644"]),
    (
        Run("accept invitation"),
        0,
        &["accepted the invitation of Ann", "note: once the directory of its ciphertext is here: "],
    ),
    (Run("share list projects"), 0, &["verified", "  Ann\n", "writer  you"]),
    (Run("cat projects/letter"), 0, &["dear Bob"]),
    (
        Run("put projects/answer passphrase"),
        1,
        &[
            "no write permission on ",
            "/team/",
            "hint: root can grant it",
            "chmod g+s",
            "setfacl -R -m u:",
        ],
    ),
    (
        Run("mkdir projects new"),
        1,
        &[
            "no write permission on ",
            "/team/",
            "hint: root can grant it",
            "chmod g+s",
            "setfacl -R -m u:",
        ],
    ),
    (Change("find team -type f -exec chmod 600 {} +; chmod 644 projects/+*"), 0, &[]),
    (
        Run("cat projects/letter"),
        1,
        &[
            "no read permission on ",
            "/team/",
            "hint: root can grant it",
            "chmod g+s",
            "setfacl -R -m u:",
        ],
    ),
    (Change("chmod 700 team"), 0, &[]),
    (
        Run("ls projects"),
        1,
        &[
            "no search permission on ",
            "/team",
            "hint: root can grant it",
            "chmod g+s",
            "setfacl -R -m u:",
        ],
    ),
];

#[test]
fn a_member_is_told_which_permission_is_missing() {
    let Some(bob) = ordinary_user() else { return };
    if !geteuid().is_root() {
        return println!("skipped: only root makes files of another user");
    }
    let ann = Person::with_identity("ann");
    knows(&ann, "Bob", &bob);
    knows(&bob, "Ann", &ann);
    let team = bob.home().join("team");
    let at = |path: &str| format!("{}/{path}", team.display());
    ann.write("letter", "dear Bob\n");
    ann.ok(&["init", team.to_str().unwrap()]);
    ann.ok(&["share", "create", &at("projects")]);
    let added = stderr(&ann.ok(&["share", "add", &at("projects"), "Bob", "--role", "writer"]));
    check("share add", &added, 0, &["/projects Bob -o Bob.invitation"]);
    ann.ok(&["put", &at("projects/letter"), "letter"]);
    let invitation = bob.home().join("invitation");
    let invite = ["share", "invite", &at("projects"), "Bob", "-o", invitation.to_str().unwrap()];
    let invited = stderr(&ann.ok(&invite));
    check("share invite", &invited, 0, &["see which: kithfs map ", "/team projects\n"]);
    let stored = said(&ann.ok(&["map", team.to_str().unwrap(), "projects"]));
    let scene = Scene::new(bob, "");
    let link = format!("chmod -R a+rX team; ln -s 'team/{}' projects", stored.trim());
    assert!(scene.change(&link).status.success());
    scene.play(MEMBER);
}

/// Help and manual pages.
const HELP: &[Act] = &[
    (
        Run("--help"),
        0,
        &["Make a vault and use it:", "Files without a mount:", "Share with others:", "Examples:"],
    ),
    (Run("help mount"), 0, &["Examples:\n  kithfs mount ~/vault ~/plain\n"]),
    (Run("share add --help"), 0, &["Examples:\n  kithfs share add "]),
    (Run("man pages"), 0, &[]),
    (
        Shell("cat pages/kithfs-mount.1"),
        0,
        &[".SH EXAMPLES\n.TP\n", ".SH FILES\n.TP\n", ".SH ENVIRONMENT\n.TP\n"],
    ),
];

/// Errors, hints and states have colours on a terminal, and nowhere else.
const COLOURS: &[Act] = &[
    (Terminal("ls none", None), 4, &["\u{1b}[1m\u{1b}[31mkithfs:", "\u{1b}[36mhint:"]),
    (Terminal("ls --color never none", None), 4, &["kithfs:", "!\u{1b}"]),
    (Terminal("ls none", Some("1")), 4, &["kithfs:", "!\u{1b}"]),
    (Terminal("ls --color always none", Some("1")), 4, &["\u{1b}[36mhint:"]),
    (Run("ls none"), 4, &["kithfs:", "!\u{1b}"]),
    (Run("--color always ls none"), 4, &["\u{1b}[1m\u{1b}[31mkithfs:", "\u{1b}[36mhint:"]),
    (Run("--color=always contact list"), 0, &["\u{1b}[33mnew"]),
    (Terminal("contact list", None), 0, &["\u{1b}[33mnew"]),
    (Run("contact list"), 0, &["new", "!\u{1b}"]),
];

#[test]
fn help_has_examples_and_colours_are_for_people() {
    let ann = Person::with_identity("ann");
    let public = kithfs::roster::PublicIdentity { sign: [9; 32], exchange: [9; 32] };
    run(&ann, &format!("contact add Bob {public}"), 0);
    let scene = Scene::new(ann, "");
    scene.play(HELP);
    scene.play(COLOURS);
}

/// A program that runs before the mount would write its files into the mount point, in plain.
const MOUNT_POINT: &[Act] = &[
    (Run("mount vault fresh"), 0, &[]),
    (Shell("touch fresh/letter"), 0, &[]),
    (Run("umount fresh"), 0, &[]),
    (Shell("test ! -e fresh"), 0, &[]),
    (Shell("mkdir plain"), 0, &[]),
    (Run("mount --guard vault plain"), 0, &[]),
    (Run("mount vault other"), 9, &["it is mounted on ", "hint: use the files in "]),
    (Run("mount vault plain"), 7, &["a vault is already mounted there"]),
    (Shell("touch plain/secret"), 0, &[]),
    (Run("umount plain"), 0, &[]),
    (Shell("touch plain/secret"), 1, &["Permission denied"]),
    // Also without the option.
    (Run("mount vault plain"), 0, &[]),
    (Shell("rm plain/secret"), 0, &[]),
    (Run("umount plain"), 0, &[]),
    (Shell("touch plain/secret"), 1, &["Permission denied"]),
];

/// Root ignores modes, and is stopped by the immutable flag, which some filesystems do not have.
const GUARD_OF_ROOT: &[Act] = &[
    (Run("mount --guard vault plain"), 0, &["!not guarded"]),
    (Shell("touch plain/letter"), 0, &[]),
    (Run("umount plain"), 0, &["!not guarded"]),
    (Shell("touch plain/secret"), 1, &["Operation not permitted"]),
    (Change("chattr -i plain"), 0, &[]),
    (Shell("touch plain/secret"), 0, &[]),
    (Run("mount --guard vault ram"), 0, &["note: the mount point is not guarded: "]),
    (Run("umount ram"), 0, &[]),
];

#[test]
fn a_bare_mount_point_takes_no_files() {
    if let Some(bob) = ordinary_user().filter(may_mount) {
        run(&bob, "init vault", 0);
        let end = "for at in fresh plain other; do umount -l $at; done";
        Scene::new(bob, end).play(MOUNT_POINT);
    }
    if !geteuid().is_root() || !can_mount() {
        return;
    }
    let ann = Person::with_identity("ann");
    run(&ann, "init vault", 0);
    let end = "umount -l plain; umount -l ram; umount ram; chattr -i plain";
    let scene = Scene::new(ann, end);
    let flags =
        scene.change("mkdir plain ram; mount -t ramfs none ram; chattr +i plain; chattr -i plain");
    if !flags.status.success() {
        return println!("skipped: {}", stderr(&flags));
    }
    scene.play(GUARD_OF_ROOT);
}

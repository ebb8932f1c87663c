//! Passphrases in the keyring of a session: a real gnome-keyring on a bus of its own.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

use crate::support::bus::{Bus, can_mock};
use crate::support::mounted::{can_mount, ends_within};
use crate::support::people::{Mounted, Person, has, refused, said, stderr, wait_until};

/// A session with a bus.
struct Session(Bus);

impl Session {
    fn start(ann: &Person) -> Session {
        Session(Bus::start(ann.home(), "bus"))
    }

    /// Starts a keyring that is unlocked with a password.
    fn start_keyring(&mut self, ann: &Person) {
        self.start_keyring_with(ann, &["--unlock"]);
    }

    fn start_keyring_with(&mut self, ann: &Person, options: &[&str]) {
        let runtime = ann.home().join("run");
        fs::create_dir_all(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        let password = ann.write("login", "login password");
        let mut keyring = Command::new("gnome-keyring-daemon");
        keyring
            .args(["--foreground", "--components=secrets"])
            .args(options)
            .env("DBUS_SESSION_BUS_ADDRESS", self.0.address())
            .env("HOME", ann.home())
            .env("XDG_DATA_HOME", ann.home().join("data"))
            .env("XDG_RUNTIME_DIR", &runtime)
            .stdin(fs::File::open(password).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.0.serve(&mut keyring, "org.freedesktop.secrets");
    }

    /// Runs the program in the session, without any other source of the passphrase.
    fn kithfs(&self, ann: &Person, args: &[&str]) -> Output {
        ann.kithfs(args)
            .env_remove("KITHFS_PASSPHRASE_FILE")
            .env("DBUS_SESSION_BUS_ADDRESS", self.0.address())
            .output()
            .unwrap()
    }

    fn lists(&self, ann: &Person) -> bool {
        let done = self.kithfs(ann, &["ls", "vault"]);
        done.status.success() && said(&done) == "letters\n"
    }
}

fn with_vault() -> Person {
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.ok(&["mkdir", "vault", "letters"]);
    ann
}

#[test]
fn a_remembered_passphrase_unlocks_until_it_is_forgotten() {
    if !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
    // Only a passphrase that unlocks is stored.
    ann.write("wrong", "another one");
    let wrong = ["passphrase", "remember", "vault", "--passphrase-file", "wrong"];
    refused(&bus.kithfs(&ann, &wrong), "wrong passphrase");
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
    let done =
        bus.kithfs(&ann, &["passphrase", "remember", "vault", "--passphrase-file", "passphrase"]);
    assert!(stderr(&done).contains("in the keyring"), "{}", stderr(&done));
    assert!(bus.lists(&ann));
    // Also in a mount, whose daemon asks the keyring after the fork.
    ann.shell("mkdir plain");
    let done = bus.kithfs(&ann, &["mount", "vault", "plain"]);
    assert!(done.status.success(), "{}", stderr(&done));
    let mounted = Mounted::of(&ann);
    assert!(ann.home().join("plain/letters").is_dir());
    drop(mounted);
    // The vault has moved: the item belongs to its keys, not to its path.
    fs::rename(ann.home().join("vault"), ann.home().join("moved")).unwrap();
    assert_eq!(said(&bus.kithfs(&ann, &["ls", "moved"])), "letters\n");
    fs::rename(ann.home().join("moved"), ann.home().join("vault")).unwrap();

    let done = bus.kithfs(&ann, &["passphrase", "forget", "vault"]);
    assert!(stderr(&done).contains("no longer"), "{}", stderr(&done));
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
    let done = bus.kithfs(&ann, &["passphrase", "forget", "vault"]);
    assert!(stderr(&done).contains("has no passphrase"), "{}", stderr(&done));
}

/// The passphrase of one identity is not tried for another one.
#[test]
fn each_identity_has_its_own_passphrase_in_the_keyring() {
    if !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    ann.write("second", "the second passphrase");
    let second = ["--passphrase-file", "second"];
    ann.ok(&[&["init", "--kdf-memory", "32", "--kdf-passes", "1", "other"], &second[..]].concat());
    let remember = |args: &[&str]| {
        let done = bus.kithfs(&ann, &[&["passphrase", "remember"], args].concat());
        assert!(done.status.success(), "{}", stderr(&done));
    };
    remember(&["vault", "--passphrase-file", "passphrase"]);
    let told = bus.kithfs(&ann, &["ls", "other"]);
    refused(&told, "no terminal");
    assert!(!stderr(&told).contains("in the keyring"), "{}", stderr(&told));
    remember(&["other", "--passphrase-file", "second"]);
    assert!(bus.lists(&ann));
    assert!(bus.kithfs(&ann, &["ls", "other"]).status.success());
    assert!(bus.kithfs(&ann, &["passphrase", "forget", "other"]).status.success());
    refused(&bus.kithfs(&ann, &["ls", "other"]), "no terminal");
    assert!(bus.lists(&ann), "the other one stays");
}

/// GNOME Keyring gives the items of a keyring another schema until the keyring is unlocked for the
/// first time since its start, as after a login without a password. They were not found: commands
/// asked for the passphrase at once, `forget` said that there was none, and `change` said nothing
/// of the old one that stayed. The keyring of this test has nothing by which it could ask for its
/// password.
#[test]
fn items_of_a_keyring_never_unlocked_are_found() {
    if !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    let remember = ["passphrase", "remember", "vault", "--passphrase-file", "passphrase"];
    assert!(bus.kithfs(&ann, &remember).status.success());
    drop(bus);
    let mut bus = Session(Bus::start(ann.home(), "next"));
    bus.start_keyring_with(&ann, &[]);
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "its question was declined");
    refused(&bus.kithfs(&ann, &["passphrase", "forget", "vault"]), "its question was declined");
    ann.write("second", "the second passphrase");
    let change = ["passphrase", "change", "vault", "--new-passphrase-file", "second"];
    let change = [&change[..], &["--passphrase-file", "passphrase"]].concat();
    let done = bus.kithfs(&ann, &change);
    assert!(done.status.success() && stderr(&done).contains("it is still there"), "{done:?}");
}

/// With `--remember`, a command asked for the passphrase even when the keyring had it: `mount
/// --remember` failed without a terminal where `ls` worked, and a named vault with `remember = true`
/// asked each time that it was opened.
#[test]
fn what_is_remembered_is_not_asked_for_again() {
    if !can_mount() || !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    refused(&bus.kithfs(&ann, &["ls", "vault", "--remember"]), "no terminal");
    let remember = ["passphrase", "remember", "vault"];
    let done = bus.kithfs(&ann, &[&remember[..], &["--passphrase-file", "passphrase"]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let done = bus.kithfs(&ann, &remember);
    assert!(done.status.success(), "{}", stderr(&done));
    ann.shell("mkdir plain");
    let done = bus.kithfs(&ann, &["mount", "vault", "plain", "--remember"]);
    assert!(done.status.success(), "{}", stderr(&done));
    drop(Mounted::of(&ann));
    ann.ok(&["vaults", "add", "letters", "vault", "plain", "--remember"]);
    for _ in 0..2 {
        let done = bus.kithfs(&ann, &["open", "letters"]);
        assert!(done.status.success(), "{}", stderr(&done));
        drop(Mounted::of(&ann));
    }
    // Another passphrase than the stored one takes its place.
    ann.write("second", "the second passphrase");
    ann.ok(&["passphrase", "change", "vault", "--new-passphrase-file", "second"]);
    let told = bus.kithfs(&ann, &remember);
    refused(&told, "does not match, and will be replaced");
    let done = bus.kithfs(&ann, &[&remember[..], &["--passphrase-file", "second"]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(bus.lists(&ann));
}

/// Returns whether the memory of a process has these bytes.
fn has_in_memory(pid: u32, bytes: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (first, last) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        let mut block = vec![0; (at(last) - at(first)) as usize];
        let len = memory.read_at(&mut block, at(first)).unwrap_or(0);
        block[..len].windows(bytes.len()).any(|there| there == bytes)
    })
}

/// The daemon of a mount asked the keyring itself. The messages of the bus stayed in its memory,
/// with the passphrase, for as long as the vault was open and after it was locked.
#[test]
fn a_passphrase_from_the_keyring_does_not_stay_in_the_daemon() {
    if !can_mount() || !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    ann.shell("mkdir plain");
    let by_file = ["--remember", "--passphrase-file", "passphrase"];
    for options in [&by_file[..], &[]] {
        let done = bus.kithfs(&ann, &[&["mount"], options, &["vault", "plain"]].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        let mounted = Mounted::of(&ann);
        let place = ann.home().join("plain");
        let listed: serde_json::Value =
            serde_json::from_str(&said(&ann.ok(&["mounts", "--json"]))).unwrap();
        let is_mine = |mount: &&serde_json::Value| mount["mountpoint"].as_str() == place.to_str();
        let mine = listed.as_array().unwrap().iter().find(is_mine).unwrap();
        let pid = mine["pid"].as_u64().unwrap() as u32;
        assert!(has_in_memory(pid, place.as_os_str().as_encoded_bytes()), "memory is read");
        assert!(!has_in_memory(pid, b"passphrase of ann"), "{options:?}");
        drop(mounted);
    }
}

#[test]
fn a_changed_passphrase_is_asked_for_and_replaces_the_old_one() {
    if !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    let done = bus.kithfs(&ann, &["ls", "vault", "--remember", "--passphrase-file", "passphrase"]);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    assert!(bus.lists(&ann));
    ann.write("second", "the second passphrase");
    ann.ok(&["passphrase", "change", "vault", "--new-passphrase-file", "second"]);
    let told = bus.kithfs(&ann, &["ls", "vault"]);
    refused(&told, "the passphrase in the keyring does not match");
    let done = bus.kithfs(&ann, &["ls", "vault", "--remember", "--passphrase-file", "second"]);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    assert!(bus.lists(&ann));
    for secret in ["--key-file", "--recovery-code-file", "--age-identity"] {
        let told = bus.kithfs(&ann, &["ls", "vault", "--remember", secret, "second"]);
        assert_eq!(told.status.code(), Some(2), "{}", stderr(&told));
    }
}

/// The keyring kept the old passphrase, which opened nothing any more, until the user ran
/// `passphrase remember` again.
#[test]
fn the_keyring_follows_a_change_of_the_passphrase() {
    if !has("dbus-daemon") || !has("gnome-keyring-daemon") {
        return;
    }
    let ann = with_vault();
    let mut bus = Session::start(&ann);
    bus.start_keyring(&ann);
    ann.write("second", "the second passphrase");
    ann.write("third", "the third passphrase");
    let passphrase = |args: &[&str]| {
        let done = bus.kithfs(&ann, &[&["passphrase"], args].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        stderr(&done)
    };
    // Without `remember` nothing is stored.
    let change = |from, to| {
        passphrase(&["change", "vault", "--passphrase-file", from, "--new-passphrase-file", to])
    };
    assert!(!change("passphrase", "second").contains("keyring"));
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
    passphrase(&["remember", "vault", "--passphrase-file", "second"]);
    let told = change("second", "third");
    assert!(told.contains("the keyring of your session has the new passphrase"), "{told}");
    assert!(bus.lists(&ann));
    // The user changes another passphrase. The stored one still opens the vault, and is kept.
    let add = ["add", "vault", "--passphrase-file", "third", "--new-passphrase-file", "second"];
    passphrase(&add);
    let told = change("second", "passphrase");
    assert!(!told.contains("keyring"), "{told}");
    assert!(bus.lists(&ann));
    // The slot of the stored passphrase is removed.
    let list = said(&bus.kithfs(&ann, &["passphrase", "list", "vault", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let is_passphrase = |slot: &&serde_json::Value| slot["kind"] == "passphrase";
    let mut slots: Vec<u64> = list
        .as_array()
        .unwrap()
        .iter()
        .filter(is_passphrase)
        .map(|slot| slot["slot"].as_u64().unwrap())
        .collect();
    slots.sort_unstable();
    // The third passphrase has the older of the two slots.
    let remove = ["remove", "vault", "--passphrase-file", "passphrase", "--slot"];
    let told = passphrase(&[&remove[..], &[&slots[0].to_string()]].concat());
    assert!(told.contains("the keyring of your session has no passphrase"), "{told}");
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
}

#[test]
fn without_a_keyring_everything_works_as_before() {
    if !has("dbus-daemon") {
        return;
    }
    let ann = with_vault();
    let bus = Session::start(&ann);
    ann.ok(&["ls", "vault"]);
    refused(&bus.kithfs(&ann, &["ls", "vault"]), "no terminal");
    let remember = ["passphrase", "remember", "vault", "--passphrase-file", "passphrase"];
    let told = bus.kithfs(&ann, &remember);
    assert_eq!(told.status.code(), Some(1));
    refused(&told, "the keyring of the session");
    let told = ann.fails(&["passphrase", "forget", "vault"], 1);
    refused(&told, "the keyring of the session");
}

/// kithfs waited for a session bus that accepted a connection and never answered. Each command
/// without another source of the passphrase hung, and so did the end of a mount with notifications.
#[test]
fn a_bus_that_hangs_is_not_waited_for() {
    let ann = with_vault();
    let socket = ann.home().join("bus");
    let _hanging = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let address = format!("unix:path={}", socket.display());
    let mut ls = ann.kithfs(&["ls", "vault"]);
    ls.env_remove("KITHFS_PASSPHRASE_FILE").env("DBUS_SESSION_BUS_ADDRESS", &address);
    let told = ends_within(30, &ls).output().unwrap();
    refused(&told, "no terminal");
    assert!(stderr(&told).contains("the bus does not answer"), "{}", stderr(&told));
    if !can_mount() {
        return;
    }
    ann.shell("mkdir plain");
    let mut mount = ann.kithfs(&["mount", "--notify=on", "vault", "plain"]);
    assert!(mount.env("DBUS_SESSION_BUS_ADDRESS", &address).status().unwrap().success());
    let mounted = Mounted::of(&ann);
    let locked = ends_within(30, &ann.kithfs(&["lock", "plain"])).output().unwrap();
    assert!(locked.status.success(), "{}", stderr(&locked));
    drop(mounted);
}

const SERVICE: &str = "org.freedesktop.secrets";
const QUESTION: &str = "/question";

/// Makes an object of a mock answer a method of a `org.freedesktop.Secret` interface by Python code.
fn answers(bus: &Bus, path: &str, (of, name, takes, returns, code): Answer) {
    let method = (format!("org.freedesktop.Secret.{of}"), name, takes, returns, code);
    bus.control::<()>(SERVICE, path, "AddMethod", &method);
}

/// Interface, method, types of the arguments and of the result, code.
type Answer<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

/// Starts a locked keyring with one item, whose question to its user runs `code`.
fn locked_keyring(session: &mut Session, code: &str) {
    let root = "/org/freedesktop/secrets";
    session.0.mock(&["--session", SERVICE, root, "org.freedesktop.Secret.Service"], SERVICE);
    for (path, of) in [(QUESTION, "Prompt"), ("/item", "Item")] {
        let none = std::collections::HashMap::<String, zbus::Variant<'_>>::new();
        let methods: Vec<(String, String, String, String)> = Vec::new();
        let object = (path, format!("org.freedesktop.Secret.{of}"), none, methods);
        session.0.control::<()>(SERVICE, root, "AddObject", &object);
    }
    let secret = "ret = ('/session', [], list(b'passphrase of ann'), 'text/plain')";
    for (path, answer) in [
        (root, ("Service", "OpenSession", "sv", "vo", "ret = ('', '/session')")),
        (root, ("Service", "SearchItems", "a{ss}", "aoao", "ret = ([], ['/item'])")),
        (root, ("Service", "Unlock", "ao", "aoo", "ret = ([], '/question')")),
        ("/item", ("Item", "GetSecret", "o", "(oayays)", secret)),
        (QUESTION, ("Prompt", "Prompt", "s", "", code)),
    ] {
        answers(&session.0, path, answer);
    }
}

/// A locked keyring gives nothing before its user has answered it, and nothing at all if they decline.
#[test]
fn a_locked_keyring_asks_its_user() {
    if !can_mock() {
        return;
    }
    let ann = with_vault();
    for is_declined in [true, false] {
        let mut session = Session::start(&ann);
        let dismissed = if is_declined { "True" } else { "False" };
        let completed = format!(
            "self.EmitSignal('org.freedesktop.Secret.Prompt', 'Completed', 'bv', [{dismissed}, ''])"
        );
        locked_keyring(&mut session, &completed);
        let done = session.kithfs(&ann, &["ls", "vault"]);
        if is_declined {
            refused(&done, "no terminal");
            assert!(stderr(&done).contains("its question was declined"), "{}", stderr(&done));
        } else {
            assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
        }
        fs::remove_file(ann.home().join("bus")).unwrap();
    }
}

/// kithfs waited without end for a keyring that had ended while it asked its user.
#[test]
fn a_keyring_that_ends_at_its_question_is_not_waited_for() {
    if !can_mock() {
        return;
    }
    let ann = with_vault();
    let mut session = Session::start(&ann);
    locked_keyring(&mut session, "");
    let bus = &session.0;
    let mut ls = ann.kithfs(&["ls", "vault"]);
    ls.env_remove("KITHFS_PASSPHRASE_FILE").env("DBUS_SESSION_BUS_ADDRESS", bus.address());
    let mut ls = ends_within(30, &ls);
    let waiting = ls.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_asked = || {
        let calls: Vec<(u64, Vec<zbus::OwnedVariant>)> =
            bus.control(SERVICE, QUESTION, "GetMethodCalls", &("Prompt",));
        !calls.is_empty()
    };
    wait_until("the keyring asks", is_asked);
    session.0.end_services();
    let told = waiting.wait_with_output().unwrap();
    refused(&told, "no terminal");
    assert!(stderr(&told).contains("it has ended"), "{}", stderr(&told));
}

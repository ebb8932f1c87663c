//! Notifications, as the notification daemon of python-dbusmock receives them on a bus of the test's
//! own.

use std::fs;
use std::process::Command;

use kithfs::roster::{IdentityFile, Secret};
use kithfs::store::os::OsDir;
use kithfs::vault::{OpenOptions, SurveyOptions, Vault};
use rustix::process::Pid;
use zbus::OwnedVariant;

use crate::support::bus::{Bus, can_mock};
use crate::support::mounted::{Stopped, can_mount};
use crate::support::people::{Mounted, Person, has, knows, said, wait_until};
use crate::support::turn;

const SERVICE: &str = "org.freedesktop.Notifications";
const PATH: &str = "/org/freedesktop/Notifications";

/// A session with a bus and a notification daemon.
struct Desktop(Bus);

impl Desktop {
    fn of(person: &Person) -> Desktop {
        let mut bus = Bus::start(person.home(), "bus");
        bus.mock(&["--session", "--template", "notification_daemon"], SERVICE);
        Desktop(bus)
    }

    /// Returns the title and the text of all notifications so far.
    fn shown(&self) -> Vec<(String, String)> {
        let calls: Vec<(u64, Vec<OwnedVariant>)> =
            self.0.control(SERVICE, PATH, "GetMethodCalls", &("Notify",));
        let text = |value: &OwnedVariant| String::try_from(value.try_clone().unwrap()).unwrap();
        calls.iter().map(|(_, call)| (text(&call[3]), text(&call[4]))).collect()
    }

    /// Waits for a notification with this title, and returns its text.
    fn waits_for(&self, title: &str) -> String {
        let found = || self.shown().into_iter().find(|(shown, _)| shown == title);
        wait_until(title, || found().is_some());
        found().unwrap().1
    }

    fn kithfs(&self, person: &Person, args: &[&str]) -> Command {
        let mut command = person.kithfs(args);
        command.env("DBUS_SESSION_BUS_ADDRESS", self.0.address());
        command
    }

    /// Mounts the person's vault in the background.
    fn mount<'a>(&self, person: &'a Person, options: &[&str]) -> Mounted<'a> {
        person.shell("mkdir -p plain");
        let args = [&["mount"], options, &["vault", "plain"]].concat();
        let done = self.kithfs(person, &args).output().unwrap();
        assert!(done.status.success(), "{}", crate::support::people::stderr(&done));
        Mounted::of(person)
    }
}

fn with_vault() -> Person {
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann
}

#[test]
fn a_lock_is_shown_with_names_only_if_the_user_wants_them() {
    if !can_mount() || !can_mock() {
        return;
    }
    let ann = with_vault();
    let desktop = Desktop::of(&ann);
    for (options, names) in
        [(&[][..], None), (&["--notify=on"], Some(false)), (&["--notify=names"], Some(true))]
    {
        let before = desktop.shown().len();
        let mounted = desktop.mount(&ann, options);
        ann.ok(&["lock", "plain"]);
        drop(mounted);
        let shown = desktop.shown().split_off(before);
        let Some(names) = names else {
            assert_eq!(shown, [], "nothing is sent unless it was asked for");
            continue;
        };
        let [(title, text)] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!(title, "Vault locked");
        assert_eq!(text.contains("/vault was locked: a command asked for it."), names, "{text}");
        assert_eq!(text.starts_with("A vault was locked"), !names, "{text}");
    }
}

/// Another person may have chosen the name, and a desktop shows bold text, links and images by markup.
#[test]
fn a_name_is_shown_without_markup() {
    if !can_mount() || !can_mock() {
        return;
    }
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "a<b>&"]);
    let desktop = Desktop::of(&ann);
    ann.shell("mkdir plain");
    let done =
        desktop.kithfs(&ann, &["mount", "--notify=names", "a<b>&", "plain"]).output().unwrap();
    assert!(done.status.success(), "{}", crate::support::people::stderr(&done));
    let mounted = Mounted::of(&ann);
    ann.ok(&["lock", "plain"]);
    drop(mounted);
    let text = desktop.waits_for("Vault locked");
    assert!(text.contains("a&lt;b&gt;&amp; was locked"), "{text}");
}

#[test]
fn a_vault_that_was_closed_unused_is_shown() {
    if !can_mount() || !can_mock() {
        return;
    }
    let ann = with_vault();
    let desktop = Desktop::of(&ann);
    let _mounted = desktop.mount(&ann, &["--idle=1", "--notify=on"]);
    assert!(desktop.waits_for("Vault closed").starts_with("A vault was closed"));
}

/// The option can be a setting of a named vault. Without a desktop, everything works as before.
#[test]
fn a_named_vault_notifies_by_a_setting() {
    if !can_mount() || !can_mock() {
        return;
    }
    let ann = with_vault();
    ann.ok(&["vaults", "add", "diary", "vault", "plain"]);
    ann.ok(&["vaults", "set", "diary", "--notify", "names"]);
    let desktop = Desktop::of(&ann);
    assert!(desktop.kithfs(&ann, &["open", "diary"]).status().unwrap().success());
    ann.ok(&["lock", "diary"]);
    assert!(desktop.waits_for("Vault locked").contains("/vault was locked"));
    ann.ok(&["open", "diary"]);
    ann.ok(&["lock", "diary"]);
    assert_eq!(desktop.shown().len(), 1);
}

/// Returns the daemon of the person's only mount.
fn daemon_of(person: &Person) -> Pid {
    let mounts: serde_json::Value =
        serde_json::from_str(&said(&person.ok(&["mounts", "--json"]))).unwrap();
    let place = person.home().join("plain");
    let is_theirs = |mount: &&serde_json::Value| mount["mountpoint"].as_str() == place.to_str();
    let mount = mounts.as_array().unwrap().iter().find(is_theirs).unwrap();
    Pid::from_raw(mount["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Bob has a copy of a share, in which Ann adds a member, and later Ann and Cem each add one at the
/// same time.
#[test]
fn new_members_and_forks_are_shown() {
    if !can_mount() || !can_mock() || !has("rsync") {
        return;
    }
    let [ann, bob, cem, dan, eve] = ["ann", "bob", "cem", "dan", "eve"].map(Person::with_identity);
    let copy = |from: &Person, to: &Person, options: &[&str]| {
        let of = |person: &Person| format!("{}/vault/", person.home().display());
        let mut rsync = Command::new("rsync");
        rsync.args(["-a", "--exclude=+lock"]).args(options).args([of(from), of(to)]);
        assert!(rsync.status().unwrap().success());
    };
    ann.ok(&["init", "--signed", "--name", "Ann", "vault"]);
    for (name, person, role) in [("Bob", &bob, "writer"), ("Cem", &cem, "admin")] {
        knows(&ann, name, person);
        knows(person, "Ann", &ann);
        ann.ok(&["share", "add", "--role", role, "vault", name]);
        ann.ok(&["share", "invite", "-o", "invitation", "vault", name]);
        std::fs::copy(ann.home().join("invitation"), person.home().join("invitation")).unwrap();
    }
    for person in [&bob, &cem] {
        copy(&ann, person, &["--delete"]);
        person.ok(&["accept", "invitation"]);
    }
    knows(&ann, "Dan", &dan);
    [&ann, &cem].into_iter().for_each(|admin| knows(admin, "Eve", &eve));
    let desktop = Desktop::of(&bob);
    let mounted = desktop.mount(&bob, &["--notify=names"]);
    ann.ok(&["share", "add", "--role", "reader", "vault", "Dan"]);
    [&bob, &cem].into_iter().for_each(|person| copy(&ann, person, &[]));
    let text = desktop.waits_for("New member");
    assert!(text.starts_with("Dan was added to a share of /"), "{text}");
    // Both conflicting lists arrive at once.
    ann.ok(&["share", "add", "--role", "reader", "vault", "Eve"]);
    cem.ok(&["share", "add", "--role", "writer", "vault", "Eve"]);
    let stopped = Stopped::stop(daemon_of(&bob));
    [&ann, &cem].into_iter().for_each(|person| copy(person, &bob, &[]));
    assert_eq!(desktop.shown().len(), 1);
    drop(stopped);
    assert!(desktop.waits_for("Conflicting members").contains("`kithfs share settle`"));
    drop(mounted);
    // Each further mount shows it.
    let before = desktop.shown().len();
    let _mounted = desktop.mount(&bob, &["--notify=on"]);
    wait_until("the fork is shown", || desktop.shown().len() > before);
    assert!(said(&bob.ok(&["share", "list", "vault"])).contains("FORKED"));
}

/// An alarm is shown after five minutes without changes of the store, or at the latest after an
/// hour. This machine noticed the older file longer ago: the test compares as a mount does, with an
/// earlier time.
#[test]
fn an_older_file_is_shown() {
    if !can_mount() || !can_mock() {
        return;
    }
    let ann = with_vault();
    let [vault, before] = ["vault", "before"].map(|name| ann.home().join(name));
    ann.write("letter", "first");
    ann.ok(&["put", "vault", "letter"]);
    let (copied, told) = ann.shell("cp -a vault before");
    assert!(copied, "{told}");
    ann.write("letter", "second");
    ann.ok(&["put", "vault", "letter"]);
    fs::remove_dir_all(&vault).unwrap();
    fs::rename(&before, &vault).unwrap();
    let seen = ann.home().join(".local/state/kithfs/seen");
    let mut files = fs::read_dir(seen).unwrap().map(|entry| entry.unwrap().path());
    let seen = files.find(|path| path.extension().is_some_and(|e| e == "redb")).unwrap();
    let identity = IdentityFile::decode(&fs::read(vault.join("+identity")).unwrap()).unwrap();
    let passphrase = b"passphrase of ann".to_vec();
    let identity = identity.unlock(&Secret::Passphrase(passphrase.into())).unwrap();
    let open =
        Vault::open(OsDir::open(&vault).unwrap(), &identity, OpenOptions::default()).unwrap();
    let now = SurveyOptions::default().now - 4000;
    let noticed = open.survey(&seen, &SurveyOptions { now, ..SurveyOptions::default() });
    assert_eq!(noticed.unwrap().len(), 1);
    open.close().unwrap();
    drop(open);
    let desktop = Desktop::of(&ann);
    let _mounted = desktop.mount(&ann, &["--notify=names"]);
    let text = desktop.waits_for("Older files in a vault");
    assert!(text.starts_with("1 files or directories of /") && text.contains("/vault"), "{text}");
}

/// Fills a vault in a filesystem of 8 MiB, three times.
const FULL: &str = r#"
mkdir small
mount -t tmpfs -o size=8m tmpfs small
"$KITHFS" init --kdf-memory 32 --kdf-passes 1 small/vault >/dev/null 2>&1
"$KITHFS" mount --notify=on small/vault plain
for _ in 1 2 3; do
    ! dd if=/dev/urandom of=plain/large bs=1M count=16 conv=fsync 2>/dev/null
done
rm plain/large
"$KITHFS" umount plain
"#;

#[test]
fn a_full_disk_is_shown_once() {
    let _alone = turn::alone();
    if !can_mount() || !can_mock() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let ann = with_vault();
    let desktop = Desktop::of(&ann);
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation", "slave", "bash", "-euc", FULL]);
    script
        .current_dir(ann.home())
        .env("HOME", ann.home())
        .env("KITHFS", env!("CARGO_BIN_EXE_kithfs"));
    script.env("KITHFS_PASSPHRASE_FILE", ann.home().join("passphrase"));
    script.env("DBUS_SESSION_BUS_ADDRESS", desktop.0.address());
    let done = script.output().unwrap();
    assert!(done.status.success(), "{}", crate::support::people::stderr(&done));
    let shown = desktop.shown();
    let [(title, text)] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(title, "No room left");
    assert!(text.contains("the disk is full"), "{text}");
}

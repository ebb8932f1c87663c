//! A vault with members, used by three people with homes, identities and copies of the ciphertext of their own, as three users where the
//! test runs as root. A sync tool is played by rsync.

#[path = "support/people.rs"]
mod people;

use std::fs;
use std::process::Command;

use people::{Person, refused, said, stderr};

fn can_run() -> bool {
    let usable = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable {
        println!("skipped: /dev/fuse cannot be opened");
    }
    let syncs = Command::new("rsync").arg("--version").output().is_ok();
    if !syncs {
        println!("skipped: rsync is not installed");
    }
    usable && syncs
}

/// Makes the copy of `to` like that of `from`, but for who has it open.
fn sync(from: &Person, to: &Person) {
    let of = |person: &Person| format!("{}/vault/", person.home().display());
    let status = Command::new("rsync").args(["-a", "--delete", "--exclude=+lock", &of(from), &of(to)]).status().expect("run rsync");
    assert!(status.success());
    to.own(&to.home().join("vault"));
}

/// A mount of a person's copy at `plain` in his home, taken down when it is dropped.
struct Mounted<'a>(&'a Person);

impl<'a> Mounted<'a> {
    fn new(person: &'a Person, options: &[&str]) -> Self {
        person.shell("mkdir -p plain");
        person.ok(&[&["mount"], options, &["vault", "plain"]].concat());
        Mounted(person)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let ended = self.0.kithfs(&["umount", "plain"]).output().is_ok_and(|output| output.status.success());
        if !ended {
            let _ = self.0.kithfs(&["umount", "--lazy", "plain"]).output();
        }
    }
}

fn key(person: &Person) -> String {
    said(&person.ok(&["identity", "export"])).trim().to_owned()
}

fn knows(person: &Person, name: &str, other: &Person) {
    person.ok(&["contact", "add", name, &key(other)]);
    person.ok(&["contact", "verify", name, "--yes"]);
}

/// Ann's vault with Bob, who writes, and Cem, who reads; both have accepted her invitation and hold copies.
fn three() -> (Person, Person, Person) {
    let (ann, bob, cem) = (Person::user("ann", 0), Person::user("bob", 1), Person::user("cem", 2));
    ann.ok(&["init", "--signed", "--name", "Ann", "--identity", ".config/kithfs/identity", "vault"]);
    for (name, person, role) in [("Bob", &bob, "writer"), ("Cem", &cem, "reader")] {
        knows(&ann, name, person);
        knows(person, "Ann", &ann);
        ann.ok(&["share", "add", "--role", role, "vault", name]);
        ann.ok(&["share", "invite", "-o", "invitation", "vault", name]);
        fs::create_dir(person.home().join("vault")).unwrap();
        fs::copy(ann.home().join("invitation"), person.home().join("invitation")).unwrap();
        person.own(person.home());
        refused(&person.fails(&["ls", "vault"], 5), "not a kithfs vault");
        sync(&ann, person);
        refused(&person.fails(&["ls", "vault"], 14), "nothing vouches for this share");
        person.ok(&["accept", "invitation"]);
    }
    sync(&ann, &bob);
    (ann, bob, cem)
}

fn holds(person: &Person, file: &str, text: &str) {
    let (fine, read) = person.shell(&format!("cat plain/{file}"));
    assert!(fine && read == text, "{file}: {read}");
}

#[test]
fn three_people_read_and_write_as_their_roles_say() {
    if !can_run() {
        return;
    }
    let (ann, bob, cem) = three();
    {
        let _mounted = Mounted::new(&ann, &[]);
        assert!(ann.shell("mkdir plain/projects; echo one > plain/projects/ann").0);
    }
    sync(&ann, &bob);
    {
        let _mounted = Mounted::new(&bob, &[]);
        holds(&bob, "projects/ann", "one\n");
        assert!(bob.shell("echo two > plain/projects/bob; echo more >> plain/projects/ann").0);
    }
    for person in [&ann, &cem] {
        sync(&bob, person);
        let _mounted = Mounted::new(person, &[]);
        holds(person, "projects/bob", "two\n");
        holds(person, "projects/ann", "one\nmore\n");
        if std::ptr::eq(person, &cem) {
            assert!(!cem.shell("echo forged > plain/projects/cem").0, "a reader has no key that others believe");
        }
    }
    // Ann under the name that Cem has given her, Bob, of whom he knows nothing else, under the one in the list of members
    for name in ["Ann", "Bob"] {
        refused(&cem.fails(&["share", "remove", "vault", name], 11), "not an admin");
    }
    refused(&ann.fails(&["share", "remove", "vault", "Dan"], 12), "no member Dan");
    // what a writer wrote stays valid when he is removed
    ann.ok(&["share", "remove", "vault", "Bob"]);
    sync(&ann, &cem);
    let _mounted = Mounted::new(&cem, &[]);
    holds(&cem, "projects/bob", "two\n");
}

#[test]
fn whoever_was_removed_reads_nothing_new_and_the_change_reaches_a_live_mount() {
    if !can_run() {
        return;
    }
    let (ann, _bob, cem) = three();
    let mounted = Mounted::new(&ann, &[]);
    assert!(ann.shell("echo before > plain/old; sync plain/old").0);
    sync(&ann, &cem);
    assert_eq!(said(&cem.ok(&["cat", "vault", "old"])), "before\n");
    // while it is mounted, by the path of the mount
    ann.ok(&["share", "remove", "plain", "Cem"]);
    let listed = said(&ann.ok(&["share", "list", "plain"]));
    assert!(listed.contains("epoch  2") && !listed.contains("Cem"), "{listed}");
    drop(mounted);
    {
        let _mounted = Mounted::new(&ann, &[]);
        assert!(ann.shell("echo after > plain/new").0);
    }
    // his old copy still opens: what he has read he has
    assert_eq!(said(&cem.ok(&["cat", "vault", "old"])), "before\n");
    sync(&ann, &cem);
    refused(&cem.fails(&["cat", "vault", "new"], 3), "not a member");
    // nor with the old list of members put back by whoever stores the vault
    let names = |person: &Person| -> Vec<String> {
        let entries = fs::read_dir(person.home().join("vault")).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).filter(|name| name.starts_with("+manifest-")).collect()
    };
    let newest = names(&ann).into_iter().find(|name| name.starts_with("+manifest-4-")).expect("the removal");
    fs::remove_file(cem.home().join("vault").join(&newest)).unwrap();
    assert!(!cem.kithfs(&["cat", "vault", "new"]).output().unwrap().status.success(), "it is sealed under a key that he never had");
    fs::rename(ann.home().join("vault").join(&newest), ann.home().join("newest")).unwrap();
    let refused_by_ann = ann.fails(&["ls", "vault"], 10);
    assert!(stderr(&refused_by_ann).contains("older than manifest 4"), "{}", stderr(&refused_by_ann));
    fs::rename(ann.home().join("newest"), ann.home().join("vault").join(&newest)).unwrap();
    let log = said(&ann.ok(&["share", "log", "vault"]));
    for what in ["founded, added Ann as admin", "added Bob as writer", "added Cem as reader", "removed Cem"] {
        assert!(log.contains(what), "{what} is missing in {log}");
    }
}

#[test]
fn two_admins_who_change_the_membership_at_the_same_time_make_a_fork_for_whoever_saw_neither() {
    if !can_run() {
        return;
    }
    let (ann, bob, cem) = three();
    ann.ok(&["share", "add", "--role", "admin", "vault", "Bob"]);
    sync(&ann, &bob);
    let (dan, eve) = (Person::with_identity("dan"), Person::with_identity("eve"));
    knows(&ann, "Dan", &dan);
    knows(&bob, "Eve", &eve);
    ann.ok(&["share", "add", "--role", "reader", "vault", "Dan"]);
    bob.ok(&["share", "add", "--role", "reader", "vault", "Eve"]);
    // the copies come together; Cem has seen neither change
    let status = Command::new("rsync")
        .args(["-a", &format!("{}/vault/", bob.home().display()), &format!("{}/vault/", ann.home().display())])
        .status()
        .unwrap();
    assert!(status.success());
    ann.own(&ann.home().join("vault"));
    sync(&ann, &cem);
    assert!(said(&cem.ok(&["share", "list", "vault"])).contains("FORKED"));
    refused(&cem.fails(&["share", "settle", "vault"], 2), "there are 2 heads");
    let listing: serde_json::Value = serde_json::from_str(&said(&ann.ok(&["share", "list", "--json", "vault"]))).unwrap();
    // Ann has seen her own change: what excludes it is a rival that does not bother her
    assert_eq!(listing["heads"].as_array().unwrap().len(), 1, "{listing}");
}

/// Kills the program, which stands where `setsid` was or is its child.
fn kill_program(started: &mut std::process::Child) {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", started.id())).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    let _ = started.kill();
    let _ = started.wait();
}

/// What `share rekey --status` says.
fn left(person: &Person) -> serde_json::Value {
    serde_json::from_str(&said(&person.ok(&["share", "rekey", "--status", "--json", "vault"]))).unwrap()
}

#[test]
fn after_a_pass_a_removed_member_opens_nothing_and_the_pass_survives_being_killed() {
    if !can_run() {
        return;
    }
    let (ann, bob, _cem) = three();
    {
        let _mounted = Mounted::new(&bob, &[]);
        assert!(bob.shell("mkdir plain/projects; echo two > plain/projects/bob; head -c 40000000 /dev/zero > plain/projects/large").0);
    }
    sync(&bob, &ann);
    let names = |person: &Person| -> Vec<String> {
        let entries = fs::read_dir(person.home().join("vault")).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    ann.ok(&["share", "remove", "vault", "Bob"]);
    let at_first = left(&ann);
    assert_eq!((&at_first["bytes"], &at_first["files"]), (&serde_json::json!(40_000_004), &serde_json::json!(2)), "{at_first}");
    {
        let _mounted = Mounted::new(&ann, &[]);
        refused(&ann.fails(&["share", "rekey", "--eager", "vault"], 9), "unmount first");
        refused(&ann.fails(&["share", "create", "plain/projects"], 9), "unmount first");
    }
    // killed as soon as it has begun
    let mut pass = ann.kithfs(&["share", "rekey", "--eager", "vault"]).spawn().unwrap();
    while left(&ann)["names"] == at_first["names"] && pass.try_wait().unwrap().is_none() {}
    kill_program(&mut pass);
    assert_eq!(said(&ann.ok(&["cat", "vault", "projects/bob"])), "two\n");
    ann.ok(&["share", "rekey", "--eager", "vault"]);
    let at_last = left(&ann);
    for field in ["bytes", "files", "names", "headers", "skipped", "conflicts"] {
        assert_eq!(at_last[field], 0, "{at_last}");
    }
    let listed = said(&ann.ok(&["share", "list", "vault"]));
    assert!(listed.contains("epoch  2") && listed.contains("0 bytes in 0 files (0.0%)"), "no other key was begun: {listed}");
    assert_eq!(said(&ann.ok(&["cat", "vault", "projects/bob"])), "two\n");
    // with the list of members from before Bob is in again, and nothing opens for the keys that he has
    sync(&ann, &bob);
    for name in names(&bob).iter().filter(|name| name.starts_with("+manifest-4-")) {
        fs::remove_file(bob.home().join("vault").join(name)).unwrap();
    }
    assert_eq!(said(&bob.ok(&["ls", "vault"])), "", "no name opens");
}

#[test]
fn a_folder_of_a_vault_becomes_a_share() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    ann.ok(&["mkdir", "vault", "projects"]);
    ann.ok(&["import", "/etc/default", "vault/projects"]);
    ann.ok(&["share", "create", "--name", "Ann", "vault/projects"]);
    let listed = said(&ann.ok(&["share", "list", "vault/projects"]));
    assert!(listed.contains("admin") && listed.contains("Ann"), "{listed}");
    ann.ok(&["share", "create", "vault/new/folder"]);
    ann.ok(&["fsck", "vault"]);
    ann.ok(&["share", "rekey", "--eager", "vault/projects"]);
    assert!(said(&ann.ok(&["share", "list", "vault/projects"])).contains("epoch  2"));
    refused(&ann.fails(&["share", "create", "vault"], 2), "name a folder");
}

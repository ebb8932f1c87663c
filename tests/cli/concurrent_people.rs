//! Three people, as three users if the test runs as root, who have one folder of a common disk
//! mounted at the same time; and what a modified client writes there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use kithfs::roster::{Identity, IdentityFile, Secret};
use kithfs::store::os::OsDir;
use kithfs::vault::Vault;

use crate::support::forger::{Forger, overwrite, read};
use crate::support::mounted::Stopped;
use crate::support::people::{Mounted, Person, holds, knows, refused, said, stderr, wait_until};

fn can_run() -> bool {
    let usable = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable {
        println!("skipped: /dev/fuse cannot be opened");
    }
    usable
}

fn mode(path: &Path, mode: &str) {
    assert!(Command::new("chmod").arg(mode).arg(path).status().unwrap().success());
}

/// Does [`three_in`] without the mark of shared vaults.
fn three() -> (Person, Person, Person, PathBuf) {
    three_in(&[])
}

/// Returns Ann, who has made a vault with these options and the folder `projects` in it; Bob, a
/// writer of that folder; Cem, a reader; and the path of the folder's ciphertext, which all can
/// access.
fn three_in(options: &[&str]) -> (Person, Person, Person, PathBuf) {
    let (ann, bob, cem) = (Person::user("ann", 0), Person::user("bob", 1), Person::user("cem", 2));
    ann.ok(&[&["init"], options, &["--identity", ".config/kithfs/identity", "vault"]].concat());
    ann.ok(&["mkdir", "vault", "projects"]);
    ann.ok(&["share", "create", "--name", "Ann", "vault/projects"]);
    let place = ann.home().join("vault").join(said(&ann.ok(&["map", "vault", "projects"])).trim());
    for (dir, bits) in [(ann.home(), "711"), (&ann.home().join("vault"), "711"), (&place, "777")] {
        mode(dir, bits);
    }
    for (name, person, role) in [("Bob", &bob, "writer"), ("Cem", &cem, "reader")] {
        knows(&ann, name, person);
        knows(person, "Ann", &ann);
        ann.ok(&["share", "add", "--role", role, "vault/projects", name]);
        ann.ok(&["share", "invite", "-o", "invitation", "vault/projects", name]);
        fs::copy(ann.home().join("invitation"), person.home().join("invitation")).unwrap();
        person.own(person.home());
        person.ok(&["accept", "invitation"]);
    }
    (ann, bob, cem, place)
}

/// Mounts `vault` in the foreground, with its log in the file `log` in the home.
fn mount_with_log<'a>(person: &'a Person, vault: &str) -> (Mounted<'a>, Child) {
    person.shell("mkdir -p plain");
    let log = fs::File::create(person.home().join("log")).unwrap();
    let daemon = person
        .kithfs(&["mount", "--foreground", "--shared", vault, "plain"])
        .stderr(log)
        .spawn()
        .unwrap();
    let point = person.home().join("plain").canonicalize().unwrap();
    let is_mounted = || {
        fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} ", point.display()))
    };
    wait_until("the vault is mounted", is_mounted);
    (Mounted::of(person), daemon)
}

fn identity(person: &Person) -> Identity {
    let file =
        IdentityFile::decode(&fs::read(person.home().join(".config/kithfs/identity")).unwrap())
            .unwrap();
    let passphrase = fs::read(person.home().join("passphrase")).unwrap();
    file.unlock(&Secret::Passphrase(passphrase.trim_ascii_end().to_vec().into())).unwrap()
}

#[test]
fn three_people_have_one_folder_mounted_at_the_same_time() {
    if !can_run() {
        return;
    }
    // No mount has an option: Ann has marked the vault once as one that several daemons use.
    let (ann, bob, cem, place) = three_in(&["--shared"]);
    let place = place.to_str().unwrap();
    let (anns, _bobs, _cems) = (
        Mounted::at(&ann, &[], "vault"),
        Mounted::at(&bob, &[], place),
        Mounted::at(&cem, &[], place),
    );
    // Commands work beside a mount, also one's own; a repair needs the vault alone.
    bob.ok(&["mkdir", place, "by-command"]);
    assert!(ann.shell("rmdir plain/projects/by-command").0);
    let repair = bob.fails(&["fsck", "--repair", place], 21);
    assert!(stderr(&repair).contains("it is mounted on"), "{}", stderr(&repair));

    // Different files: visible to all at once, also to people who looked for them before.
    for person in [&bob, &cem] {
        assert!(!person.shell("cat plain/by-ann").0);
    }
    assert!(ann.shell("umask 0; echo one > plain/projects/by-ann; mkdir plain/projects/dir").0);
    assert!(bob.shell("echo two > plain/by-bob; echo in > plain/dir/in").0);
    for (person, at) in [(&ann, "projects/"), (&bob, ""), (&cem, "")] {
        holds(person, &format!("{at}by-ann"), "one\n");
        holds(person, &format!("{at}by-bob"), "two\n");
        holds(person, &format!("{at}dir/in"), "in\n");
    }
    assert!(!cem.shell("echo x >> plain/by-ann").0);
    assert!(ann.shell("mv plain/projects/dir plain/projects/moved; rm plain/projects/by-bob").0);
    assert_eq!(cem.shell("ls plain; cat plain/moved/in").1, "by-ann\nmoved\nin\n");

    // The same file: one person writes at a time, and nothing of either is lost. (It is Ann's: Bob
    // cannot set its time, which once made Bob's journal keep its record for ever.)
    let append = |who: &str, at: &str| {
        format!(
            "i=0; for n in $(seq 60); do until echo {who} $n >> plain/{at}log; do i=$((i + 1)); test $i -lt 500; done; done"
        )
    };
    assert!(ann.shell("umask 0; : > plain/projects/log").0);
    let mut both = [
        ann.program(&append("ann", "projects/")).spawn().unwrap(),
        bob.program(&append("bob", "")).spawn().unwrap(),
    ];
    both.iter_mut().for_each(|program| assert!(program.wait().unwrap().success()));
    for (person, at) in [(&ann, "projects/"), (&bob, ""), (&cem, "")] {
        assert_eq!(
            person.shell(&format!("sort -u plain/{at}log | wc -l; wc -l < plain/{at}log")).1,
            "120\n120\n"
        );
    }
    let keeps = "exec 7>> plain/projects/log; touch holding; while ! test -e let-go; do sleep 0.02; done; echo last >&7";
    let mut keeper = ann.program(keeps).spawn().unwrap();
    wait_until("Ann has the file open", || ann.home().join("holding").exists());
    let (wrote, why) = bob.shell("echo refused >> plain/log");
    assert!(!wrote && why.contains("busy"), "{why}");
    assert_eq!(bob.shell("wc -l < plain/log").1, "120\n", "reading goes on");
    ann.write("let-go", "");
    assert!(keeper.wait().unwrap().success());
    assert!(
        bob.shell("echo bobs >> plain/log; tail -n 2 plain/log | tr '\\n' ' '")
            .1
            .ends_with("last bobs ")
    );

    // The members change while all have it mounted.
    let dan = Person::with_identity("dan");
    knows(&ann, "Dan", &dan);
    ann.ok(&["share", "add", "--role", "reader", "plain/projects", "Dan"]);
    assert!(said(&bob.ok(&["share", "list", "plain"])).contains("Dan"));
    ann.ok(&["share", "remove", "plain/projects", "Bob", "Dan"]);
    wait_until("Bob's mount knows that Bob may not write", || {
        !bob.shell("echo more > plain/more").0
    });
    // What Bob wrote after the removal, until the mount knew of it, is accepted by nobody.
    assert!(ann.shell("! cat plain/projects/more 2> /dev/null; rm -f plain/projects/more").0);
    holds(&bob, "by-ann", "one\n"); // a removed member keeps what was readable
    assert!(ann.shell("echo new > plain/projects/new").0);
    wait_until("Cem reads what is written under the new key", || {
        cem.shell("cat plain/new").1 == "new\n"
    });
    assert!(!bob.shell("cat plain/new").0, "and Bob does not");
    holds(&cem, "log", &ann.shell("cat plain/projects/log").1);
    drop(anns);
    drop((_bobs, _cems));
    ann.ok(&["fsck", "vault"]);
    assert!(!Path::new(place).join("+lock").exists(), "a local store needs no lock file");
}

/// Members who opened their folder on its own excluded each other, until somebody used an option or
/// set the mark.
#[test]
fn members_mount_their_folder_without_a_mark() {
    if !can_run() {
        return;
    }
    let (ann, bob, cem, place) = three();
    let place = place.to_str().unwrap();
    let (_anns, _bobs, _cems) = (
        Mounted::at(&ann, &[], place),
        Mounted::at(&bob, &[], place),
        Mounted::at(&cem, &[], place),
    );
    assert!(ann.shell("umask 0; echo anns > plain/file").0);
    assert_eq!(bob.shell("cat plain/file; echo bobs >> plain/file").1, "anns\n");
    for person in [&ann, &cem] {
        holds(person, "file", "anns\nbobs\n");
    }
    // The same person once more; and the vault around it, which its owner has alone by default.
    bob.shell("mkdir second");
    bob.ok(&["mount", place, "second"]);
    assert!(bob.shell("echo again >> second/file").0);
    holds(&ann, "file", "anns\nbobs\nagain\n");
    bob.ok(&["umount", "second"]);
    ann.shell("mkdir around");
    ann.ok(&["mount", "vault", "around"]);
    let (entered, why) = ann.shell("ls around/projects");
    assert!(!entered, "{why}");
    ann.ok(&["umount", "around"]);
}

/// In the folder of a sync tool each member has a copy, and mounted it as if it were on a common
/// disk.
#[test]
fn a_member_in_a_sync_folder_mounts_a_copy_alone() {
    if !can_run() {
        return;
    }
    let (ann, _bob, _cem, place) = three();
    let copy = ann.home().join("sync/projects");
    fs::create_dir_all(ann.home().join("sync/.stfolder")).unwrap();
    assert!(Command::new("cp").arg("-a").args([&place, &copy]).status().unwrap().success());
    let described = || Vault::describe(&OsDir::open(&copy).unwrap()).unwrap();
    let mounted = Mounted::at(&ann, &[], copy.to_str().unwrap());
    assert!(described().locked_by.is_some() && described().shared_by.is_empty());
    drop(mounted);
    ann.ok(&["set", "--shared", copy.to_str().unwrap()]);
    let _mounted = Mounted::at(&ann, &[], copy.to_str().unwrap());
    assert_eq!(described().shared_by.len(), 1, "the mark says that it is a common disk");
}

#[test]
fn a_refused_member_is_told_the_command_that_helps() {
    if !can_run() {
        return;
    }
    let (ann, bob, _cem, place) = three();
    let place = place.to_str().unwrap();
    bob.shell("mkdir plain");
    let anns = Mounted::at(&ann, &[], "vault");
    assert!(ann.shell("ls plain/projects").0);
    refused(&bob.fails(&["mount", place, "plain"], 9), "kithfs set --shared");
    refused(&bob.fails(&["mount", "--shared", place, "plain"], 9), "unmount it there");
    refused(&ann.fails(&["mkdir", place, "dir"], 9), "kithfs umount");
    ann.ok(&["set", "--shared", "vault"]);
    drop(anns);
    let _anns = Mounted::at(&ann, &[], "vault");
    assert!(ann.shell("ls plain/projects").0);
    let _bobs = Mounted::at(&bob, &[], place);
    assert!(bob.shell("echo bobs > plain/file").0);
    holds(&ann, "projects/file", "bobs\n");
    refused(&ann.fails(&["set", "--synced", "vault"], 2), "kithfs set --no-shared");
    refused(&ann.fails(&["set", "vault"], 2), "--shared");
}

/// A reader's modified client seals files with the folder key. Every honest mount refuses them.
#[test]
fn writes_of_a_readers_modified_client_are_refused() {
    if !can_run() {
        return;
    }
    let (ann, bob, cem, place) = three();
    let of_cem = identity(&cem);
    let store = OsDir::open(&place).unwrap();
    let mounts = [mount_with_log(&ann, "vault"), mount_with_log(&bob, place.to_str().unwrap())];
    assert!(ann.shell("umask 0; echo dear Bob > plain/projects/letter").0);
    holds(&bob, "letter", "dear Bob\n");
    let name = store
        .reopen()
        .unwrap()
        .read(0, 1 << 20)
        .unwrap()
        .into_iter()
        .find(|entry| entry.name[0] != b'+')
        .unwrap()
        .name;
    let honest = read(&*store, &name);
    // Cem has the folder key, like every reader, and may write to the disk, but has no signing key
    // that counts.
    let forged = Forger::of(&store, &of_cem).small(b"forged by Cem", &of_cem, &of_cem);
    overwrite(&*store, &name, &forged);
    for (person, at) in [(&ann, "projects/"), (&bob, "")] {
        let (read, why) = person.shell(&format!("cat plain/{at}letter"));
        assert!(!read && why.contains("Input/output error"), "{why}");
        let (wrote, why) = person.shell(&format!("echo on top of it >> plain/{at}letter"));
        assert!(!wrote && why.contains("Input/output error"), "{why}");
        let log = fs::read_to_string(person.home().join("log")).unwrap();
        assert!(
            log.contains("is signed by someone who may not write here") && !log.contains("letter"),
            "why, and no plain name: {log}"
        );
    }
    assert_eq!(read(&*store, &name), forged, "nothing planted is signed by an honest client");
    overwrite(&*store, &name, &honest);
    holds(&bob, "letter", "dear Bob\n");
    for (mounted, mut daemon) in mounts {
        drop(mounted);
        assert!(daemon.wait().unwrap().success());
    }
}

/// Returns the process ids that `info` lists for a vault that is open in several daemons.
fn sharers(person: &Person, vault: &str) -> Vec<i32> {
    let info: serde_json::Value =
        serde_json::from_str(&said(&person.ok(&["info", "--json", vault]))).unwrap();
    assert!(info["in_use_by"].is_null(), "{info}");
    info["shared_by"]
        .as_array()
        .unwrap()
        .iter()
        .map(|holder| holder["pid"].as_i64().unwrap() as i32)
        .collect()
}

#[test]
fn a_stopped_daemon_keeps_its_file_lock_and_loses_nothing() {
    // Ann's machine sleeps, for example. Another person who opens for writing what Ann has open is
    // refused, reads what is committed, and continues when Ann's machine does.
    if !can_run() {
        return;
    }
    let (ann, bob, _cem, place) = three();
    let place = place.to_str().unwrap();
    let anns = Mounted::at(&ann, &["--shared"], "vault");
    let [daemon] = sharers(&ann, "vault")[..] else { panic!("one daemon has the vault open") };
    let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
    assert!(
        ann.shell(
            "umask 0; echo committed > plain/projects/file; echo other > plain/projects/other"
        )
        .0
    );
    let _bobs = Mounted::at(&bob, &["--shared"], place);
    assert_eq!(
        sharers(&bob, place).len(),
        2,
        "Ann's daemon has the folder open too, and Bob's nothing else"
    );
    assert_eq!(sharers(&ann, "vault").len(), 1);
    let listed = said(&bob.ok(&["info", place]));
    assert_eq!(
        listed
            .lines()
            .filter(|line| line.starts_with("shared ") && line.contains("by process"))
            .count(),
        2,
        "{listed}"
    );

    let keeps = "exec 7>> plain/projects/file; echo dirty >&7; touch holding; while ! test -e let-go; do sleep 0.02; done";
    let mut keeper = ann.program(keeps).spawn().unwrap();
    wait_until("Ann has the file open", || ann.home().join("holding").exists());
    let stopped = Stopped::stop(daemon);
    let (wrote, why) = bob.shell("echo bobs >> plain/file");
    let (also, read) = (bob.shell("echo bobs >> plain/other"), bob.shell("cat plain/file").1);
    drop(stopped);
    assert!(!wrote && why.contains("busy"), "{why}");
    // Ann's daemon had the lease, which is taken over after some seconds without a sign of life.
    assert!(also.0, "Bob can write to a file that Ann does not have open: {}", also.1);
    assert!(["committed\n", "committed\ndirty\n"].contains(&&*read), "{read}");
    ann.write("let-go", "");
    assert!(keeper.wait().unwrap().success());
    assert!(bob.shell("echo bobs >> plain/file").0);
    for (person, at) in [(&ann, "projects/"), (&bob, "")] {
        holds(person, &format!("{at}file"), "committed\ndirty\nbobs\n");
        holds(person, &format!("{at}other"), "other\nbobs\n");
    }
    drop(anns);
    assert_eq!(sharers(&bob, place).len(), 1);
}

#[test]
fn a_daemon_out_of_descriptors_answers_later() {
    // When the daemon could not accept a connection once, it never accepted one again: no command
    // could query or change the share until it was mounted again.
    if !can_run() {
        return;
    }
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--signed", "--identity", ".config/kithfs/identity", "vault"]);
    let _anns = Mounted::at(&ann, &[], "vault");
    let info: serde_json::Value =
        serde_json::from_str(&said(&ann.ok(&["info", "--json", "vault"]))).unwrap();
    let daemon = info["in_use_by"]["pid"].as_i64().unwrap();
    let (state, host) = (
        ann.home().join(".local/state/kithfs"),
        rustix::system::uname().nodename().to_string_lossy().into_owned(),
    );
    let places = [PathBuf::from("/run/kithfs/mounts"), state.join(format!("mounts-{host}"))];
    let is_its = |name: &str| name.starts_with(&format!("{daemon}-")) && name.ends_with(".sock");
    let mut sockets = places
        .iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flatten()
        .map(|entry| entry.unwrap().path());
    let socket = sockets.find(|path| is_its(path.file_name().unwrap().to_str().unwrap())).unwrap();

    let limit_to = |limit| {
        let daemon = rustix::process::Pid::from_raw(daemon as i32);
        rustix::process::prlimit(daemon, rustix::process::Resource::Nofile, limit).unwrap()
    };
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let before = limit_to(rustix::process::Rlimit { current: Some(0), maximum: most });
    // A connection that waits for an answer has a descriptor already.
    let _first = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let mut asks = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    asks.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let heard = std::io::Read::read(&mut asks, &mut [0; 1]).map_err(|e| e.kind());
    limit_to(before);
    assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock), "the connection waits for its turn");
    drop(asks);
    let listed = said(&ann.ok(&["share", "list", "vault"]));
    assert!(listed.contains("admin"), "{listed}");
}

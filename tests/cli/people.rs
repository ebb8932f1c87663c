//! A vault with members, used by three people with homes, identities and copies of the ciphertext
//! of their own, as three users if the test runs as root. rsync plays the sync tool.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::people::{
    Mounted, Person, holds, key, knows, refused, said, stderr, wait_until,
};

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

/// Makes the copy of `to` equal to that of `from`, except for the locks of open daemons.
fn sync(from: &Person, to: &Person) {
    let of = |person: &Person| format!("{}/vault/", person.home().display());
    let status = Command::new("rsync")
        .args(["-a", "--delete", "--exclude=+lock", &of(from), &of(to)])
        .status()
        .expect("run rsync");
    assert!(status.success());
    to.own(&to.home().join("vault"));
}

/// Returns Ann's vault with Bob as a writer and Cem as a reader; both have accepted Ann's
/// invitation and hold copies.
fn three() -> (Person, Person, Person) {
    let (ann, bob, cem) = (Person::user("ann", 0), Person::user("bob", 1), Person::user("cem", 2));
    ann.ok(&[
        "init",
        "--signed",
        "--name",
        "Ann",
        "--identity",
        ".config/kithfs/identity",
        "vault",
    ]);
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

/// Bob's last version of a file had not arrived when Ann removed him. It replaced the version that
/// the removal had listed, on all machines, and was refused; nothing told how to read either.
#[test]
fn changes_that_arrive_after_a_removal_can_be_accepted() {
    if !can_run() {
        return;
    }
    let (ann, bob, _cem) = three();
    ann.ok(&["set", "--synced", "vault"]);
    sync(&ann, &bob);
    let write = |text: &str| {
        bob.write("text", text);
        bob.ok(&["put", "vault", "letter", "text"]);
    };
    write("early");
    sync(&bob, &ann);
    write("late");
    let told = stderr(&ann.ok(&["share", "remove", "vault", "Bob"]));
    assert!(told.contains("refused when it arrives"), "{told}");
    let stored = said(&ann.ok(&["map", "vault", "letter"])).trim().to_owned();
    let [hers, his] = [&ann, &bob].map(|person| person.home().join("vault").join(&stored));
    fs::copy(&his, &hers).unwrap();
    ann.own(&hers);
    refused(&ann.fails(&["cat", "vault", "letter"], 10), "share add --role writer");
    let checked = said(&ann.fails(&["fsck", "vault"], 20));
    assert!(checked.contains("share add --role writer"), "{checked}");

    ann.ok(&["share", "add", "--role", "writer", "vault", "Bob"]);
    assert_eq!(said(&ann.ok(&["cat", "vault", "letter"])), "late");
    let told = stderr(&ann.ok(&["share", "add", "--role", "reader", "vault", "Bob"]));
    assert!(told.contains("refused when it arrives"), "{told}");
    ann.ok(&["share", "remove", "vault", "Bob"]);
    assert_eq!(said(&ann.ok(&["cat", "vault", "letter"])), "late");
    ann.ok(&["fsck", "vault"]);
}

/// While one machine removed a share, an offline one changed a file in it. The file arrived, and the
/// keys of the share were gone on all machines.
#[test]
fn a_file_changed_while_its_share_was_removed_can_be_read() {
    let ann = Person::with_identity("ann");
    let run = |script: &str| {
        let (done, said) = ann.shell(script);
        assert!(done, "{script}: {said}");
    };
    ann.write("text", "early");
    ann.ok(&["init", "--synced", "vault"]);
    ann.ok(&["share", "create", "--name", "Ann", "vault/projects"]);
    ann.ok(&["put", "vault", "projects/letter", "text"]);
    run("cp -a vault offline");
    ann.write("text", "late");
    ann.ok(&["put", "offline", "projects/letter", "text"]);
    let stored = said(&ann.ok(&["map", "offline", "projects/letter"])).trim().to_owned();
    ann.ok(&["rm", "-r", "vault", "projects"]);
    let (dir, _) = stored.split_once('/').unwrap();
    run(&format!("mkdir 'vault/{dir}' && cp 'offline/{stored}' 'vault/{dir}/'"));

    let told = stderr(&ann.fails(&["fsck", "vault"], 20));
    let (_, command) = told.split_once("To read them: ").expect(&told);
    let command = command.lines().next().unwrap();
    let (copy, export) = command.split_once(" && kithfs ").expect(command);
    assert_eq!(export, "export removed-share DIR");
    run(copy);
    ann.ok(&["export", "removed-share", "found"]);
    assert_eq!(ann.shell("cat found/letter").1, "late");
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
            assert!(
                !cem.shell("echo forged > plain/projects/cem").0,
                "a reader has no key that others believe"
            );
        }
    }
    // Cem sees Ann under the name of the contact, and Bob, who is no contact, under the name in the
    // list of members.
    for name in ["Ann", "Bob"] {
        refused(&cem.fails(&["share", "remove", "vault", name], 11), "not an admin");
    }
    refused(&ann.fails(&["share", "remove", "vault", "Dan"], 12), "no member Dan");
    // What a writer wrote stays valid after the removal.
    ann.ok(&["share", "remove", "vault", "Bob"]);
    sync(&ann, &cem);
    let _mounted = Mounted::new(&cem, &[]);
    holds(&cem, "projects/bob", "two\n");
}

/// A removed member reads nothing new, and live mounts of the other members adopt the change.
#[test]
fn a_removed_member_reads_nothing_new_in_a_live_mount() {
    if !can_run() {
        return;
    }
    let (ann, _bob, cem) = three();
    let mounted = Mounted::new(&ann, &[]);
    assert!(ann.shell("echo before > plain/old; sync plain/old").0);
    sync(&ann, &cem);
    assert_eq!(said(&cem.ok(&["cat", "vault", "old"])), "before\n");
    // While it is mounted, by the path of the mount.
    ann.ok(&["share", "remove", "plain", "Cem"]);
    let listed = said(&ann.ok(&["share", "list", "plain"]));
    assert!(listed.contains("epoch  2") && !listed.contains("Cem"), "{listed}");
    drop(mounted);
    {
        let _mounted = Mounted::new(&ann, &[]);
        assert!(ann.shell("echo after > plain/new").0);
    }
    // Cem's old copy still opens: a member keeps what was readable.
    assert_eq!(said(&cem.ok(&["cat", "vault", "old"])), "before\n");
    sync(&ann, &cem);
    refused(&cem.fails(&["cat", "vault", "new"], 3), "not a member");
    // Cem cannot read it either if the storage host restores the old list of members.
    let names = |person: &Person| -> Vec<String> {
        let entries = fs::read_dir(person.home().join("vault")).unwrap();
        entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("+manifest-"))
            .collect()
    };
    let newest =
        names(&ann).into_iter().find(|name| name.starts_with("+manifest-4-")).expect("the removal");
    fs::remove_file(cem.home().join("vault").join(&newest)).unwrap();
    assert!(
        !cem.kithfs(&["cat", "vault", "new"]).output().unwrap().status.success(),
        "it is sealed under a key that Cem never had"
    );
    fs::rename(ann.home().join("vault").join(&newest), ann.home().join("newest")).unwrap();
    let refused_by_ann = ann.fails(&["ls", "vault"], 10);
    assert!(
        stderr(&refused_by_ann).contains("older than manifest 4"),
        "{}",
        stderr(&refused_by_ann)
    );
    fs::rename(ann.home().join("newest"), ann.home().join("vault").join(&newest)).unwrap();
    let log = said(&ann.ok(&["share", "log", "vault"]));
    for what in
        ["founded, added Ann as admin", "added Bob as writer", "added Cem as reader", "removed Cem"]
    {
        assert!(log.contains(what), "{what} is missing in {log}");
    }
}

/// Two admins change the members at the same time. Everybody sees a fork: the members who have seen
/// neither change, and the admins, who formerly kept to their own change and were not told of the
/// other.
#[test]
fn concurrent_changes_by_two_admins_are_shown_as_a_fork() {
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
    // The copies are merged; Cem has seen neither change.
    let status = Command::new("rsync")
        .args([
            "-a",
            &format!("{}/vault/", bob.home().display()),
            &format!("{}/vault/", ann.home().display()),
        ])
        .status()
        .unwrap();
    assert!(status.success());
    ann.own(&ann.home().join("vault"));
    sync(&ann, &cem);
    assert!(said(&cem.ok(&["share", "list", "vault"])).contains("FORKED"));
    refused(&cem.fails(&["share", "settle", "vault"], 2), "there are 2 heads");
    let told = cem.fails(&["share", "remove", "vault", "Bob"], 11);
    assert!(
        stderr(&told).contains("hint: settle it first: kithfs share settle"),
        "{}",
        stderr(&told)
    );
    assert!(
        !cem.kithfs(&["mkdir", "vault", "new"]).output().unwrap().status.success(),
        "nothing is written"
    );
    let listing: serde_json::Value =
        serde_json::from_str(&said(&ann.ok(&["share", "list", "--json", "vault"]))).unwrap();
    assert_eq!(listing["heads"].as_array().unwrap().len(), 2, "{listing}");
    refused(
        &ann.fails(&["share", "remove", "vault", "Bob"], 11),
        "hint: settle it first: kithfs share settle",
    );
}

/// Ann removes Bob while Bob, an admin, adds Dan. Bob cannot open Ann's list. `share list` showed
/// Bob no fork, and `share settle` said that there was nothing to settle; yet nothing could be
/// written.
#[test]
fn an_admin_whom_one_side_removed_is_shown_the_fork() {
    if !can_run() {
        return;
    }
    let (ann, bob, _cem) = three();
    ann.ok(&["share", "add", "--role", "admin", "vault", "Bob"]);
    sync(&ann, &bob);
    let dan = Person::with_identity("dan");
    knows(&bob, "Dan", &dan);
    ann.ok(&["share", "remove", "vault", "Bob"]);
    bob.ok(&["share", "add", "--role", "reader", "vault", "Dan"]);
    let of = |person: &Person| format!("{}/vault/", person.home().display());
    let merged = Command::new("rsync").args(["-a", &of(&ann), &of(&bob)]).status().unwrap();
    assert!(merged.success());
    bob.own(&bob.home().join("vault"));
    let told = said(&bob.ok(&["share", "list", "vault"]));
    assert!(told.contains("FORKED") && told.contains("are no member there"), "{told}");
    let listing = said(&bob.ok(&["share", "list", "--json", "vault"]));
    let listing: serde_json::Value = serde_json::from_str(&listing).unwrap();
    let heads = listing["heads"].as_array().unwrap();
    assert_eq!(heads.len(), 2, "{listing}");
    refused(&bob.fails(&["share", "settle", "vault"], 2), "there are 2 heads");
    for head in heads {
        let keep = head["hash"].as_str().unwrap();
        let told = bob.fails(&["share", "settle", "--keep", keep, "vault"], 10);
        refused(&told, "only an admin in each of the lists");
    }
    let told = bob.ok(&["who-can-read", "vault"]);
    assert!(stderr(&told).contains("one of its lists of members cannot be opened"));
    assert!(!bob.kithfs(&["mkdir", "vault", "new"]).output().unwrap().status.success());
}

#[test]
fn removing_a_contact_whose_key_differs_reports_no_removal() {
    // Bob's machine was stolen, and Bob had a new key. `share remove vault Bob` removed the new one
    // and reported that Bob was removed, while the old key could still read; without the new key
    // among the members nothing could name the old one.
    let (ann, bob, new) =
        (Person::with_identity("ann"), Person::with_identity("bob"), Person::with_identity("bob"));
    ann.ok(&[
        "init",
        "--signed",
        "--name",
        "Ann",
        "--identity",
        ".config/kithfs/identity",
        "vault",
    ]);
    knows(&ann, "Bob", &bob);
    ann.ok(&["share", "add", "--role", "writer", "vault", "Bob"]);
    let fingerprints = || -> Vec<String> {
        let members: serde_json::Value =
            serde_json::from_str(&said(&ann.ok(&["who-can-read", "--json", "vault"]))).unwrap();
        let bobs = members.as_array().unwrap().iter().filter(|member| member["name"] == "Bob");
        bobs.map(|member| member["fingerprint"].as_str().unwrap().to_owned()).collect()
    };
    let old = fingerprints().remove(0);
    assert_eq!(
        ann.kithfs(&["contact", "add", "Bob", &key(&new)]).status().unwrap().code(),
        Some(14),
        "another key is offered"
    );
    ann.ok(&["contact", "verify", "Bob", "--yes"]);
    refused(&ann.fails(&["share", "remove", "vault", "Bob"], 2), &old);
    ann.ok(&["share", "add", "--role", "writer", "vault", "Bob"]);
    let told = ann.fails(&["share", "remove", "vault", "Bob"], 2);
    refused(&told, "hint: the key differs from the contact's, or there are several members");
    let both = fingerprints();
    assert!(
        both.len() == 2 && both.iter().all(|fingerprint| stderr(&told).contains(&fingerprint[..])),
        "{}",
        stderr(&told)
    );
    // As a user might type it.
    ann.ok(&["share", "remove", "vault", &old.to_lowercase().replace('-', " ")]);
    assert!(fingerprints().len() == 1 && !fingerprints().contains(&old));
    ann.ok(&["share", "remove", "vault", "Bob"]);
    assert!(fingerprints().is_empty());
    // Two members of one name, neither of them a contact.
    ann.ok(&["share", "add", "--role", "reader", "vault", "Bob"]);
    ann.ok(&["contact", "remove", "Bob"]);
    knows(&ann, "Bob", &bob);
    ann.ok(&["share", "add", "--role", "reader", "vault", "Bob"]);
    ann.ok(&["contact", "remove", "Bob"]);
    refused(&ann.fails(&["share", "remove", "vault", "Bob"], 2), &old);
    ann.ok(&["share", "remove", "vault", &old]);
    ann.ok(&["share", "remove", "vault", "Bob"]);
    assert!(fingerprints().is_empty());
}

/// Kills the program, which has replaced `setsid` or is its child.
fn kill_program(started: &mut std::process::Child) {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", started.id()))
        .unwrap_or_default();
    for child in children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .filter_map(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    let _ = started.kill();
    let _ = started.wait();
}

/// Returns the output of `share rekey --status`.
fn left(person: &Person) -> serde_json::Value {
    serde_json::from_str(&said(&person.ok(&["share", "rekey", "--status", "--json", "vault"])))
        .unwrap()
}

/// After `share rekey --eager` a removed member opens nothing. A pass that was killed is continued
/// by the next one.
#[test]
fn an_eager_rekey_locks_out_a_removed_member_despite_kills() {
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
    assert_eq!(
        (&at_first["bytes"], &at_first["files"]),
        (&serde_json::json!(40_000_004), &serde_json::json!(2)),
        "{at_first}"
    );
    // Killed as soon as it has begun.
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
    assert!(
        listed.contains("epoch  2") && listed.contains("0 bytes in 0 files (0.0%)"),
        "no further epoch was begun: {listed}"
    );
    assert_eq!(said(&ann.ok(&["cat", "vault", "projects/bob"])), "two\n");
    // With the list of members from before, Bob is a member again, but Bob's keys open nothing.
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

/// `share list` counts what is sealed under older keys. It logged two lines for each entry that is
/// invalid, and a reader can add any number.
#[test]
fn invalid_entries_fill_no_log_of_share_list() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    assert!(ann.shell("mkdir many; for i in $(seq 150); do echo $i > many/$i; done").0);
    ann.ok(&["import", "many", "vault/projects"]);
    ann.ok(&["share", "create", "--name", "Ann", "vault/projects"]);
    ann.ok(&["share", "rekey", "--eager", "vault/projects"]);
    let (cut, why) = ann.shell("find vault -type f ! -path '*/+*' -exec truncate -s 100 {} +");
    assert!(cut, "{why}");
    let listed = ann.ok(&["share", "list", "vault/projects"]);
    assert!(said(&listed).contains("150 invalid"), "{}", said(&listed));
    let log = stderr(&listed);
    assert!(log.contains("50 more objects are left as they are"), "{log}");
    assert!(log.lines().count() <= 2 * 100 + 1, "{log}");
}

/// Anybody who may read a vault's directory can lock it. The hint was `kithfs set --shared`, which
/// does not help.
#[test]
fn a_lock_of_another_program_is_not_taken_for_a_mount() {
    use rustix::fs::{FlockOperation, flock};
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    for how in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
        let dir = fs::File::open(ann.home().join("vault")).unwrap();
        flock(&dir, how).unwrap();
        let output = ann.fails(&["mkdir", "vault", "dir"], 9);
        refused(&output, &format!("end process {}", std::process::id()));
        assert!(!stderr(&output).contains("set --shared"), "{}", stderr(&output));
    }
    ann.ok(&["mkdir", "vault", "dir"]);
}

/// Every command about shares works on a mounted vault while programs read in it.
#[test]
fn share_commands_work_in_a_live_mount_with_readers() {
    if !can_run() {
        return;
    }
    let (ann, bob) = (Person::user("ann", 0), Person::with_identity("bob"));
    let dan = Person::with_identity("dan");
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    knows(&ann, "Bob", &bob);
    knows(&ann, "Dan", &dan);
    let mounted = Mounted::new(&ann, &[]);
    assert!(
        ann.shell(
            "mkdir -p plain/projects/deep; head -c 3000000 /dev/urandom > plain/projects/large; echo text > plain/projects/deep/small"
        )
        .0
    );
    assert!(
        ann.shell(
            "cp plain/projects/large large; ln plain/projects/deep/small plain/projects/other"
        )
        .0
    );
    // No passphrase is available from here on: the daemon has the keys.
    fs::rename(ann.home().join("passphrase"), ann.home().join("hidden")).unwrap();

    // A program reads in the folder all the time and has a file of it open; it stops when told, and
    // reports whether everything was right. Its ls once failed with ESTALE, in one of seven runs
    // on a busy machine, when the folder became a share between its open and the following fstat(2)
    // or read.
    let reads = "exec 7< plain/projects/large; touch reading; while ! test -e stop; do cmp plain/projects/large large; \
        test \"$(cat plain/projects/deep/small)\" = text; ls plain/projects > /dev/null; done; cmp - large <&7; touch fine";
    let reader = ann.program(reads).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the program reads", || ann.home().join("reading").exists());
    ann.ok(&["share", "create", "--name", "Ann", "plain/projects"]);
    ann.ok(&["share", "add", "--role", "writer", "plain/projects", "Bob", "Dan"]);
    let listed = said(&ann.ok(&["share", "list", "plain/projects/deep"]));
    assert!(["Ann", "Bob", "Dan", "epoch  1"].iter().all(|what| listed.contains(what)), "{listed}");
    assert!(said(&ann.ok(&["who-can-read", "plain/projects/large"])).contains("Bob"));
    assert!(!said(&ann.ok(&["who-can-read", "plain"])).contains("Bob"));
    ann.ok(&["share", "invite", "-o", "invitation", "plain/projects", "Bob"]);
    ann.ok(&["share", "rekey", "--eager", "plain/projects"]);
    assert!(said(&ann.ok(&["share", "list", "plain/projects"])).contains("epoch  2"));
    ann.ok(&["share", "remove", "--eager", "plain/projects", "Bob"]);
    // Also by the path of the ciphertext.
    let status = said(&ann.ok(&["share", "rekey", "--status", "--json", "vault/projects"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert!(
        ["bytes", "names", "headers", "skipped"].iter().all(|field| status[field] == 0),
        "{status}"
    );
    let log = said(&ann.ok(&["share", "log", "plain/projects"]));
    for what in
        ["founded, added Ann as admin", "added Bob as writer", "new folder key", "removed Bob"]
    {
        assert!(log.contains(what), "{what} is missing in {log}");
    }
    ann.write("stop", "");
    let output = reader.wait_with_output().unwrap();
    assert!(
        output.status.success() && ann.home().join("fine").exists(),
        "a program that read meanwhile was disturbed: {}",
        stderr(&output)
    );

    // Refusals arrive with their exit codes.
    refused(
        &ann.fails(&["share", "remove", "plain/projects", "Bob"], 12),
        "no member has this key",
    );
    refused(&ann.fails(&["share", "create", "plain"], 2), "name a folder");
    refused(&ann.fails(&["share", "add", "--role", "reader", "plain", "Bob"], 2), "--signed");
    refused(&ann.fails(&["share", "settle", "plain/projects"], 2), "there is nothing to settle");
    // A new folder is created as mkdir(1) creates one.
    let (_, mask) = ann.shell("umask 027; mkdir plain/like; umask 027; stat -c %a plain/like");
    assert_eq!(mask.trim(), "750");
    ann.ok(&["share", "create", "plain/like/new"]);
    assert_eq!(ann.shell("stat -c %a plain/like/new").1, ann.shell("mkdir d; stat -c %a d").1);
    // A file that is open for writing is not taken away from its program.
    let writes = "mkdir plain/busy; exec 8> plain/busy/open; touch writing; while ! test -e end; do sleep 0.05; done; echo end >&8";
    let mut writer = ann.program(writes).spawn().unwrap();
    wait_until("the program writes", || ann.home().join("writing").exists());
    refused(&ann.fails(&["share", "create", "plain/busy"], 1), "busy");
    ann.write("end", "");
    assert!(writer.wait().unwrap().success());
    assert_eq!(ann.shell("cat plain/busy/open").1, "end\n");
    ann.ok(&["share", "create", "plain/busy"]);
    assert_eq!(ann.shell("cat plain/busy/open").1, "end\n");
    fs::rename(ann.home().join("hidden"), ann.home().join("passphrase")).unwrap();
    drop(mounted);
    ann.ok(&["fsck", "vault"]);
    assert_eq!(said(&ann.ok(&["cat", "vault", "projects/other"])), "text\n");
}

#[test]
fn moves_and_copies_across_a_share_boundary_are_complete() {
    // rename(2) and link(2) cannot cross a share's boundary, so mv(1) copies; it and cp(1) keep
    // everything that they keep elsewhere.
    if !can_run() {
        return;
    }
    let ann = Person::user("ann", 0);
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    let _mounted = Mounted::new(&ann, &[]);
    let looks = |dir: &str| {
        ann.shell(&format!("cd {dir} && find . -exec stat -c '%n %F %a %s %Y' {{}} + | sort; cat in/file; readlink link")).1
    };
    let make = "mkdir -p plain/projects plain/tree/in; head -c 300000 /dev/urandom | base64 > plain/tree/in/file; ln -s in/file plain/tree/link; \
        chmod 640 plain/tree/in/file; ln plain/tree/in/file plain/tree/hard; touch -d 2001-02-03 plain/tree/in/file plain/tree/in plain/tree";
    assert!(ann.shell(make).0);
    ann.ok(&["share", "create", "--name", "Ann", "plain/projects"]);
    let before = looks("plain/tree");
    let (linked, why) = ann.shell("ln plain/tree/in/file plain/projects/file");
    assert!(!linked && why.contains("cross-device"), "{why}");
    assert!(ann.shell("cp -a plain/tree plain/projects/copy").0);
    assert!(ann.shell("mv plain/tree plain/projects/moved").0);
    assert!(!ann.shell("test -e plain/tree").0);
    for copy in ["copy", "moved"] {
        assert_eq!(looks(&format!("plain/projects/{copy}")), before);
        assert_eq!(
            ann.shell(&format!("stat -c %h plain/projects/{copy}/hard")).1,
            "2\n",
            "hard links stay hard links"
        );
    }
    assert!(ann.shell("mv plain/projects/moved plain/back && rm -r plain/projects/copy").0);
    assert_eq!(looks("plain/back"), before);
    assert_eq!(ann.shell("ls plain/projects").1, "");
}

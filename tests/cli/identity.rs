//! Identities, contacts and invitations as people use them: what is printed, what is refused, and
//! with which exit code.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use kithfs::crypto::{IdentitySeed, Suite};
use kithfs::format::share::ShareDescriptor;
use kithfs::roster::{Identity, Invitation, Pin, PinnedShare};

use crate::support::mounted::can_mount;
use crate::support::people::{Mounted, Person, holds, refused, said, stderr};

/// Returns an identity whose seed a test knows.
fn known(seed: u8) -> Identity {
    Identity::from_seed(IdentitySeed::from_bytes([seed; 32]))
}

#[test]
fn an_identity_is_made_shown_exported_and_not_replaced() {
    let ann = Person::new("ann");
    let made = ann.ok(&["identity", "new", "--kdf-memory", "32", "--kdf-passes", "1"]);
    let code = said(&made);
    assert_eq!(code.trim().len(), 44, "a recovery code alone on stdout: {code}");
    let file = ann.home().join(".config/kithfs/identity");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = said(&ann.ok(&["identity", "export"]));
    assert!(key.starts_with("kith1") && key.len() == 116 && key.ends_with('\n'), "{key:?}");
    let public: kithfs::roster::PublicIdentity = key.parse().unwrap();
    assert_eq!(
        said(&ann.ok(&["identity", "show"])),
        format!(
            "identity     {}\npublic key   {key}fingerprint  {}\n",
            file.display(),
            public.fingerprint()
        )
    );
    assert!(stderr(&made).contains(&public.fingerprint()));
    let before = fs::read(&file).unwrap();
    refused(&ann.fails(&["identity", "new"], 2), "it already exists");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing stays behind");
}

#[test]
fn the_ways_into_an_identity_change_as_those_of_a_vault() {
    let ann = Person::with_identity("ann");
    ann.write("second", "another passphrase\n");
    ann.ok(&[
        "identity",
        "passphrase",
        "add",
        "--kdf-memory",
        "32",
        "--kdf-passes",
        "1",
        "--new-passphrase-file",
        "second",
    ]);
    let slots: serde_json::Value =
        serde_json::from_str(&said(&ann.ok(&["identity", "passphrase", "list", "--json"])))
            .unwrap();
    let kinds: Vec<&str> =
        slots.as_array().unwrap().iter().map(|slot| slot["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["passphrase", "recovery code", "passphrase"]);
    ann.ok(&["identity", "passphrase", "remove", "--slot", "1", "--passphrase-file", "second"]);
    refused(
        &ann.fails(&["identity", "passphrase", "add", "--new-recovery-code"], 3),
        "wrong passphrase",
    );
    ann.ok(&[
        "identity",
        "passphrase",
        "add",
        "--new-recovery-code",
        "--passphrase-file",
        "second",
    ]);
}

/// A vault that was created with a key file opens with the contents of that file, for commands and
/// for a mount. Other contents of the same length, and no file, open nothing.
#[test]
fn a_key_file_alone_opens_its_vault() {
    let ann = Person::new("ann");
    ann.write("key", &"k".repeat(64));
    ann.write("other", &format!("{}x", "k".repeat(63)));
    ann.write("short", "kkk");
    refused(&ann.fails(&["init", "--key-file", "short", "vault"], 2), "fewer than 32");
    ann.ok(&["init", "--key-file", "key", "vault"]);
    ann.write("letter", "contents");
    ann.ok(&["put", "--key-file", "key", "vault", "letter", "letter"]);
    assert_eq!(said(&ann.ok(&["ls", "--key-file", "key", "vault"])), "letter\n");
    assert_eq!(said(&ann.ok(&["cat", "--key-file", "key", "vault", "letter"])), "contents");
    // Without a key file, the passphrase file of the environment is tried.
    let wrong = [
        (&["--key-file", "other"][..], "wrong passphrase or key file"),
        (&[], "no passphrase slot"),
    ];
    for (wrong, message) in wrong {
        for args in [&["ls", "vault"][..], &["cat", "vault", "letter"]] {
            refused(&ann.fails(&[args, wrong].concat(), 3), message);
        }
    }
    if !can_mount() {
        return;
    }
    ann.shell("mkdir plain");
    refused(&ann.fails(&["mount", "--key-file", "other", "vault", "plain"], 3), "wrong passphrase");
    let _mounted = Mounted::new(&ann, &["--key-file", "key"]);
    holds(&ann, "letter", "contents");
}

#[test]
fn a_stored_public_key_is_proven_before_it_is_printed() {
    // The storage host could replace the owner's public keys by its own, and have folders shared
    // with itself.
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    let key = said(&ann.ok(&["identity", "export", "--identity", "vault/+identity"]));
    let file = ann.home().join("vault/+identity");
    let mut bytes = fs::read(&file).unwrap();
    bytes[12..76].copy_from_slice(&known(9).public().to_bytes());
    fs::write(&file, &bytes).unwrap();
    let output = ann.fails(&["identity", "export", "--identity", "vault/+identity"], 3);
    assert!(said(&output).is_empty() && key.starts_with("kith1"));
}

#[test]
fn identities_behind_links_or_writable_by_others_are_proven() {
    // Only the name of the path was checked. If the identity in the home was a link into a vault,
    // the storage host could put its own key there. The program printed that key as the user's own,
    // and others would have shared folders with it.
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    let own = ann.home().join(".config/kithfs/identity");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("../../vault/+identity", &own).unwrap();
    let key = said(&ann.ok(&["identity", "export"]));
    let file = ann.home().join("vault/+identity");
    let honest = fs::read(&file).unwrap();
    let public = known(9).public();
    let forged = [&honest[..12], &public.sign[..], &public.exchange[..], &honest[76..]].concat();
    fs::write(&file, &forged).unwrap();
    refused(&ann.fails(&["identity", "export"], 3), "wrong passphrase");
    refused(&ann.fails(&["identity", "show"], 3), "wrong passphrase");
    // The forged identity has another name in the vault's directory.
    fs::rename(&file, ann.home().join("vault/mine")).unwrap();
    refused(&ann.fails(&["identity", "export", "--identity", "vault/mine"], 3), "wrong passphrase");
    // The forged identity is in the home, and other users may write to it.
    fs::remove_file(&own).unwrap();
    fs::write(&own, &forged).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o660)).unwrap();
    refused(&ann.fails(&["identity", "export"], 3), "wrong passphrase");
    fs::write(&own, &honest).unwrap();
    assert_eq!(said(&ann.ok(&["identity", "export"])), key);
}

#[test]
fn a_slot_that_another_command_has_made_meanwhile_is_not_lost() {
    // Each of two commands read the identity, waited for a passphrase, and replaced the other one's
    // version by its own. A recovery code that had been printed did not open anything, and a slot
    // that had been removed was back.
    let ann = Person::with_identity("ann");
    let other = "kithfs identity passphrase add --new-recovery-code > code && echo another one"
        .replace("kithfs", env!("CARGO_BIN_EXE_kithfs"));
    let told = ann.fails(
        &[
            "identity",
            "passphrase",
            "add",
            "--kdf-memory",
            "32",
            "--kdf-passes",
            "1",
            "--new-passphrase-command",
            &other,
        ],
        1,
    );
    assert!(
        stderr(&told).contains("another command changed it at the same time"),
        "{}",
        stderr(&told)
    );
    ann.ok(&[
        "identity",
        "passphrase",
        "add",
        "--new-recovery-code",
        "--recovery-code-file",
        "code",
    ]);
    // If several commands run at the same time, each one that reports success has made its slot.
    let adds: Vec<_> = (0..6)
        .map(|_| {
            ann.kithfs(&["identity", "passphrase", "add", "--new-recovery-code"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut made = 0;
    for (i, add) in adds.into_iter().enumerate() {
        let output = add.wait_with_output().unwrap();
        if output.status.success() {
            made += 1;
            ann.write(&format!("code{i}"), &said(&output));
            ann.ok(&[
                "identity",
                "passphrase",
                "add",
                "--new-recovery-code",
                "--recovery-code-file",
                &format!("code{i}"),
            ]);
        }
    }
    assert!(made > 0);
}

/// Returns a shell script in which `kithfs` is the program under test.
fn script(text: &str) -> String {
    text.replace("kithfs ", &format!("{} ", env!("CARGO_BIN_EXE_kithfs")))
}

#[test]
fn an_identity_swapped_during_the_prompt_is_not_followed() {
    // The identity was checked, the passphrase asked for, and then the file opened by its path. A
    // storage host that put a link or a FIFO there meanwhile made the program read any file of the
    // user, or wait for ever.
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.ok(&["mkdir", "vault", "letters"]);
    fs::rename(ann.home().join("vault/+identity"), ann.home().join("honest")).unwrap();
    ann.write("private", "not for the storage host");
    for swap in ["ln -s ../private vault/+identity", "mkfifo vault/+identity"] {
        let prompt = format!("rm vault/+identity; {swap}; cat passphrase");
        let (done, told) = ann.shell(&script(&format!(
            "rm -f vault/+identity; cp honest vault/+identity; timeout 20 kithfs ls --passphrase-command '{prompt}' vault"
        )));
        assert!(done && told == "letters\n", "{swap}: {told}");
    }
}

#[test]
fn a_passphrase_change_replaces_nothing_through_a_link() {
    // `passphrase change` replaced the file to which the vault's identity led at that moment. A
    // storage host that put a link there while the new passphrase was typed could have a file
    // elsewhere in the home overwritten.
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    let honest = fs::read(ann.home().join("vault/+identity")).unwrap();
    let swap =
        "mv vault/+identity elsewhere; ln -s ../elsewhere vault/+identity; echo another passphrase";
    for args in [&["passphrase", "change"][..], &["passphrase", "add"]] {
        let told = ann.fails(
            &[
                args,
                &[
                    "--kdf-memory",
                    "32",
                    "--kdf-passes",
                    "1",
                    "--new-passphrase-command",
                    swap,
                    "vault",
                ],
            ]
            .concat(),
            1,
        );
        assert!(stderr(&told).contains("changed it at the same time"), "{}", stderr(&told));
        assert!(
            fs::read(ann.home().join("elsewhere")).unwrap() == honest,
            "a file outside of the vault was written to"
        );
        assert!(
            ann.home().join("vault/+identity").is_symlink(),
            "what was put there is left alone"
        );
        fs::rename(ann.home().join("elsewhere"), ann.home().join("vault/+identity")).unwrap();
    }
    // A link that the user names is different: its target is changed, and the link stays.
    std::os::unix::fs::symlink("vault/+identity", ann.home().join("mine")).unwrap();
    ann.ok(&["passphrase", "add", "--new-recovery-code", "--identity", "mine"]);
    assert!(
        ann.home().join("mine").is_symlink()
            && fs::read(ann.home().join("vault/+identity")).unwrap() != honest
    );
}

#[test]
fn an_identity_that_is_no_regular_file_is_refused_at_once() {
    // A FIFO given with `--identity`, or put in the place of a file, blocked the command until
    // somebody wrote to it.
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.shell("mkfifo pipe; ln -s pipe link; mkdir dir; mkdir -p .config/kithfs; mkfifo .config/kithfs/identity");
    for (args, what) in [
        ("ls --identity pipe vault", "not a regular file"),
        ("ls --identity link vault", "not a regular file"),
        ("ls --identity dir vault", "not a regular file"),
        ("identity show", "not a regular file"),
        ("init --identity pipe other", "not a regular file"),
        ("passphrase list --identity pipe", "not a regular file"),
        ("rm vault/+identity; mkfifo vault/+identity; ls vault", "not a regular file"),
    ] {
        let (before, args) = args.rsplit_once("; ").unwrap_or(("", args));
        let (_, told) = ann
            .shell(&script(&format!("{before}\n timeout 20 kithfs {args} || echo ended with $?")));
        assert!(told.contains(what) && told.contains("ended with 3"), "{args}: {told}");
    }
}

#[test]
fn a_cost_that_the_storage_host_has_set_is_asked_about() {
    // Before it is unlocked, nothing proves the passphrase costs in an identity file. A storage
    // host that wrote the highest costs made each command take four gibibytes of memory and minutes
    // of time.
    let ann = Person::new("ann");
    let code = said(&ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]));
    ann.write("code", &code);
    let file = ann.home().join("vault/+identity");
    let honest = fs::read(&file).unwrap();
    let with_cost = |memory_mib: u32, passes: u32| {
        let mut bytes = honest.clone();
        bytes[76 + 12..][..4].copy_from_slice(&(memory_mib << 10).to_le_bytes());
        bytes[76 + 16..][..4].copy_from_slice(&passes.to_le_bytes());
        fs::write(&file, bytes).unwrap();
    };
    for (memory_mib, passes) in [(513, 1), (256, 33)] {
        with_cost(memory_mib, passes);
        for command in [
            "ls",
            "info",
            "identity export --identity vault/+identity",
            "passphrase add --new-recovery-code",
        ] {
            let mut args: Vec<&str> = command.split(' ').collect();
            if !args.contains(&"--identity") {
                args.push("vault");
            }
            if command == "info" {
                ann.ok(&args); // needs no passphrase
                continue;
            }
            refused(&ann.fails(&args, 1), "KITHFS_ALLOW_KDF_COST=1");
        }
        ann.ok(&["ls", "--recovery-code-file", "code", "vault"]);
    }
    with_cost(512, 1);
    refused(&ann.fails(&["ls", "vault"], 3), "wrong passphrase");
    with_cost(513, 1);
    let (done, told) = ann.shell(&script("KITHFS_ALLOW_KDF_COST=1 kithfs ls vault"));
    assert!(!done && told.contains("wrong passphrase"), "{told}");
    // At a terminal the user is asked, and a "no" ends the command.
    let (_, told) = ann
        .shell(&script("echo n | script -qec 'kithfs ls vault' /dev/null || echo ended with $?"));
    assert!(told.contains("513 MiB") && told.contains("ended with 14"), "{told}");
    let (_, told) = ann
        .shell(&script("echo y | script -qec 'kithfs ls vault' /dev/null || echo ended with $?"));
    assert!(told.contains("wrong passphrase") && told.contains("ended with 3"), "{told}");
    // A user who chooses such a cost is warned.
    fs::write(&file, &honest).unwrap();
    let args = [
        "passphrase",
        "change",
        "--kdf-memory",
        "513",
        "--kdf-passes",
        "1",
        "--new-passphrase-file",
        "passphrase",
        "vault",
    ];
    assert!(stderr(&ann.ok(&args)).contains("KITHFS_ALLOW_KDF_COST=1"));
}

#[test]
fn a_command_that_unlocks_keeps_its_memory_to_itself() {
    // Only the daemon of a mount was protected: any program of the same user could trace `put` and
    // `cat` while they had the keys, and a crash of them left the keys in a core dump.
    let ann = Person::user("ann", 4);
    ann.ok(&["init", "--own-identity", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.write("asks", "echo ready >&2; read line; cat passphrase");
    let program =
        if ann.home().join("kithfs").exists() { "./kithfs" } else { env!("CARGO_BIN_EXE_kithfs") };
    for command in [
        "ls vault",
        "put vault file",
        "init --own-identity --kdf-memory 32 --kdf-passes 1 other",
        "mount vault none",
    ] {
        let script = format!(
            "ulimit -S -c $(ulimit -H -c); mkdir -p none; echo $$; exec {program} {command} --passphrase-command 'sh asks'"
        );
        let mut running = ann.program(&script);
        let mut running = running
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let line = |from: &mut dyn std::io::Read| {
            let mut line = String::new();
            std::io::BufReader::with_capacity(1, from).read_line(&mut line).unwrap();
            line.trim().to_owned()
        };
        let pid = line(running.stdout.as_mut().unwrap());
        assert_eq!(line(running.stderr.as_mut().unwrap()), "ready", "{command}");
        // In /proc, the files of a process that may not be dumped or traced belong to root.
        let owner = fs::metadata(format!("/proc/{pid}/mem")).unwrap().uid();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        // The command ends because it gets no passphrase.
        fs::remove_file(ann.home().join("passphrase")).unwrap();
        running.wait_with_output().unwrap();
        ann.write("passphrase", "passphrase of ann\n");
        assert_eq!((owner, core.split_whitespace().nth(4)), (0, Some("0")), "{command}: {core}");
    }
}

#[test]
fn init_keeps_the_identity_of_a_vault_that_arrives_meanwhile() {
    // The directory was empty when `init` looked. While `init` waited for a passphrase, a sync tool
    // or another `init` created a vault. The first `init` replaced the identity of that vault by its
    // own, then found the vault, and removed the identity. The vault could not be opened any more.
    let ann = Person::new("ann");
    fs::create_dir(ann.home().join("vault")).unwrap();
    let other = "kithfs init --kdf-memory 32 --kdf-passes 1 vault > code && echo x"
        .replace("kithfs", env!("CARGO_BIN_EXE_kithfs"));
    let told = ann.fails(
        &[
            "init",
            "--kdf-memory",
            "32",
            "--kdf-passes",
            "1",
            "--passphrase-command",
            &other,
            "vault",
        ],
        2,
    );
    assert!(stderr(&told).contains("vault") && said(&told).is_empty(), "{}", stderr(&told));
    ann.ok(&["ls", "vault"]);
    ann.ok(&["ls", "--recovery-code-file", "code", "vault"]);
    // A partial vault: its files are there, and its identity has not arrived.
    let identity = ann.home().join("vault/+identity");
    fs::remove_dir_all(ann.home().join("vault")).unwrap();
    fs::create_dir(ann.home().join("vault")).unwrap();
    let other = format!("{other} && mv vault/+identity late");
    ann.kithfs(&[
        "init",
        "--kdf-memory",
        "32",
        "--kdf-passes",
        "1",
        "--passphrase-command",
        &other,
        "vault",
    ])
    .output()
    .unwrap();
    assert!(!identity.exists(), "the place of the identity is free");
    fs::rename(ann.home().join("late"), &identity).unwrap();
    ann.ok(&["ls", "vault"]);
}

/// A vault without an identity is opened with the one in the user's home.
#[test]
fn a_vault_without_an_identity_opens_with_that_of_the_home() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--identity", ".config/kithfs/identity", "vault"]);
    ann.ok(&["mkdir", "vault", "letters"]);
    assert_eq!(said(&ann.ok(&["ls", "vault"])), "letters\n");
    fs::remove_file(ann.home().join(".config/kithfs/identity")).unwrap();
    refused(&ann.fails(&["ls", "vault"], 3), "--identity FILE");
}

/// A contact is new until its fingerprint was compared. A key that has changed is refused.
#[test]
fn a_contacts_changed_key_is_never_accepted_silently() {
    let ann = Person::new("ann");
    let (one, two) = (known(1).public(), known(2).public());
    let (key, print) = (one.to_string(), one.fingerprint());
    assert_eq!(said(&ann.ok(&["contact", "list"])), "");
    assert!(stderr(&ann.ok(&["contact", "add", "Bob", &key])).contains(&print));
    assert_eq!(said(&ann.ok(&["contact", "list"])), format!("new       {print}  Bob\n"));
    assert!(
        said(&ann.ok(&["contact", "add", "Bob", &key])).is_empty(),
        "the same once more changes nothing"
    );
    // A name with a Cyrillic letter was accepted without a warning, and listed as a second Bob.
    let warned = stderr(&ann.ok(&["contact", "add", "B\u{43e}b", &two.to_string()]));
    assert!(warned.contains("looks like the name of Bob"), "{warned}");
    ann.ok(&["contact", "remove", "B\u{43e}b"]);
    // No question can be asked.
    refused(&ann.fails(&["contact", "verify", "Bob"], 2), "--fingerprint");
    refused(
        &ann.fails(&["contact", "verify", "Bob", "--fingerprint", &two.fingerprint()], 14),
        "not the fingerprint that was given",
    );
    assert_eq!(said(&ann.ok(&["contact", "list"])), format!("new       {print}  Bob\n"));
    ann.ok(&["contact", "verify", "Bob", "--fingerprint", &print.to_lowercase().replace('-', " ")]);
    assert_eq!(said(&ann.ok(&["contact", "list"])), format!("verified  {print}  Bob\n"));
    // A different key for Bob is offered.
    refused(&ann.fails(&["contact", "add", "Bob", &two.to_string()], 14), "CHANGED");
    let both = format!("CHANGED   {print}  Bob\noffered   {}  Bob\n", two.fingerprint());
    assert_eq!(said(&ann.ok(&["contact", "list"])), both);
    let json: serde_json::Value =
        serde_json::from_str(&said(&ann.ok(&["contact", "list", "--json"]))).unwrap();
    let expected = serde_json::json!([{
        "name": "Bob", "state": "CHANGED", "fingerprint": print, "key": key,
        "offered_fingerprint": two.fingerprint(), "offered_key": two.to_string(),
    }]);
    assert_eq!(json, expected);
    ann.ok(&["contact", "add", "Bob", &key]);
    assert_eq!(
        said(&ann.ok(&["contact", "list"])),
        format!("verified  {print}  Bob\n"),
        "the old key is still the verified one"
    );
    ann.fails(&["contact", "add", "Bob", &two.to_string()], 14);
    ann.ok(&["contact", "verify", "Bob", "--yes"]);
    assert_eq!(
        said(&ann.ok(&["contact", "list"])),
        format!("verified  {}  Bob\n", two.fingerprint())
    );
    refused(&ann.fails(&["contact", "add", "Eve", &two.to_string()], 14), "known as that of Bob");
    refused(&ann.fails(&["contact", "add", "Eve", "kith1mistyped"], 2), "kithfs identity export");
    ann.ok(&["contact", "remove", "Bob"]);
    refused(&ann.fails(&["contact", "remove", "Bob"], 12), "kithfs contact list");
}

/// A list of contacts that other users may write to, or that is damaged, is refused.
#[test]
fn contacts_damaged_or_writable_by_others_are_refused() {
    let ann = Person::new("ann");
    ann.ok(&["contact", "add", "Bob", &known(1).public().to_string()]);
    let file = ann.home().join(".config/kithfs/contacts");
    let good = fs::read_to_string(&file).unwrap();
    assert!(good.starts_with("kithfs contacts 1\nnew kith1"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    refused(&ann.fails(&["contact", "list"], 14), "chmod go-w");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, good.replace("kith1q", "kith1p")).unwrap();
    refused(&ann.fails(&["contact", "add", "Cem", &known(2).public().to_string()], 1), "line 2");
    // The message named neither the line nor the way out.
    fs::write(&file, good.replace('\n', "\r\n")).unwrap();
    let said = ann.fails(&["contact", "list"], 1);
    refused(&said, "line 1: it ends in CR LF");
    let said = stderr(&said);
    let command = said.split_once("hint: remove the CRs: ").unwrap().1;
    assert!(ann.shell(command).0, "{command}");
    assert_eq!(fs::read_to_string(&file).unwrap(), good);
    ann.ok(&["contact", "list"]);
    fs::write(&file, good.trim_end()).unwrap();
    refused(&ann.fails(&["contact", "list"], 1), "line 2: it ends in no LF");
}

/// An identity file or a name file that cannot be used is reported. Such a name file was passed
/// over without a message, and members would have seen "owner".
#[test]
fn unusable_identity_and_name_files_are_reported() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "vault"]);
    let config = ann.home().join(".config/kithfs");
    for (wrong, part) in [
        ("mkdir name", "it is not a regular file"),
        ("mkfifo name", "it is not a regular file"),
        ("printf 'Ann\\377' >name", "it is not UTF-8"),
        ("printf '%065d' 0 >name", "a name has 1 to 64 bytes"),
        ("printf 'Ann\\nAnn' >name", "no control characters"),
        (">name", "a name has 1 to 64 bytes"),
    ] {
        assert!(ann.shell(&format!("cd {}; {wrong}", config.display())).0);
        refused(&ann.fails(&["identity", "name"], 1), part);
        refused(&ann.fails(&["share", "create", "vault/folder"], 1), part);
        refused(&ann.fails(&["init", "--signed", "other"], 1), part);
        let shown = ann.ok(&["identity", "show"]);
        assert!(said(&shown).contains("fingerprint"), "{wrong}");
        assert!(stderr(&shown).contains(part), "{wrong}: {}", stderr(&shown));
        // This command needs no name.
        ann.ok(&["ls", "vault"]);
        if wrong.starts_with("mk") {
            refused(&ann.fails(&["identity", "name", "Ann"], 1), part);
            let new = ["identity", "new", "--identity", "another", "--name", "Ann"];
            refused(&ann.fails(&new, 1), part);
            assert!(!ann.home().join("another").exists(), "{wrong}");
        } else {
            ann.ok(&["identity", "name", "Ann"]);
            assert_eq!(said(&ann.ok(&["identity", "name"])), "Ann\n");
        }
        assert!(ann.shell(&format!("rm -r {}/name", config.display())).0);
    }
    for wrong in ["mkdir identity", "mkfifo identity", "ln -s identity identity"] {
        assert!(ann.shell(&format!("cd {}; rm -rf identity; {wrong}", config.display())).0);
        for line in [&["identity", "show"][..], &["ls", "vault"], &["init", "other"]] {
            refused(&ann.fails(line, 3), "name yours with --identity FILE");
        }
    }
}

/// A user who had chosen no name was shown to the members of a new share as "owner", without a
/// message.
#[test]
fn a_founder_without_a_name_learns_what_members_see() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "vault"]);
    let note = |line: &[&str]| {
        let told = stderr(&ann.ok(line));
        let is_told = told.contains("see you as `owner`; choose a name for later");
        assert_eq!(is_told, told.contains(": kithfs identity name NAME"), "{told}");
        is_told
    };
    assert!(note(&["share", "create", "vault/projects"]));
    assert!(note(&["init", "--signed", "team"]));
    assert!(!note(&["share", "create", "--name", "Ann", "vault/named"]));
    assert!(!note(&["init", "other"]));
    ann.ok(&["identity", "name", "Ann"]);
    assert!(!note(&["share", "create", "vault/letters"]));
}

/// In a vault that became synced after a folder in it had become a share, a command warned that the
/// mark of the share "was removed", which it had never had.
#[test]
fn a_share_in_a_vault_that_becomes_synced_gets_the_mark() {
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "vault"]);
    ann.ok(&["share", "create", "vault/projects"]);
    ann.ok(&["set", "--synced", "vault"]);
    ann.ok(&["mkdir", "vault/projects/one"]);
    let told = stderr(&ann.ok(&["mkdir", "vault/projects/two"]));
    assert!(!told.contains("removed"), "{told}");
}

/// Returns an invitation for the person, signed by `by`, to a share that `by` founded, and what the
/// person's machine stores once it is accepted.
fn invitation(by: &Identity, to: &Person) -> (PinnedShare, Vec<u8>) {
    let public = said(&to.ok(&["identity", "export"])).parse().unwrap();
    let descriptor = ShareDescriptor {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        longest_name: 152,
        founder: by.public(),
        random: [7; 32],
    };
    let head = Pin { sequence: 2, hash: [8; 32] };
    let memory = PinnedShare {
        share: descriptor.share_id(),
        proof: kithfs::roster::Proof::Invitation(by.public()),
        head,
    };
    (memory, Invitation::sign(&descriptor, &head, by, &public, 1_700_000_000).unwrap())
}

fn remembered(person: &Person, share: &[u8; 32]) -> Option<PinnedShare> {
    let file = person.home().join(".local/state/kithfs/shares").join(PinnedShare::file_name(share));
    fs::read_to_string(file).ok().map(|text| PinnedShare::parse(&text).unwrap())
}

/// An invitation by a contact whose fingerprint was compared is accepted, and the share is pinned.
#[test]
fn an_invitation_by_a_verified_contact_pins_the_share() {
    let (bob, ann) = (Person::with_identity("bob"), known(1));
    let (memory, bytes) = invitation(&ann, &bob);
    fs::write(bob.home().join("invitation"), &bytes).unwrap();
    bob.ok(&["contact", "add", "Ann", &ann.public().to_string()]);
    refused(&bob.fails(&["accept", "invitation"], 2), "--fingerprint");
    assert_eq!(
        remembered(&bob, &memory.share),
        None,
        "a question that nobody could answer is no yes"
    );
    bob.ok(&["contact", "verify", "Ann", "--yes"]);
    let accepted = bob.ok(&["accept", "invitation"]);
    assert!(
        stderr(&accepted)
            .contains(&format!("accepted the invitation of Ann ({})", ann.public().fingerprint()))
    );
    assert_eq!(remembered(&bob, &memory.share), Some(memory));
    assert!(stderr(&bob.ok(&["accept", "invitation"])).contains("accepted"), "twice is no failure");
}

/// An invitation by a stranger is accepted only with their fingerprint, and never replaces the
/// members that were already seen.
#[test]
fn an_invitation_by_a_stranger_needs_their_fingerprint() {
    let (bob, ann) = (Person::with_identity("bob"), known(1));
    let (memory, bytes) = invitation(&ann, &bob);
    fs::write(bob.home().join("invitation"), &bytes).unwrap();
    let fails = |args: &[&str], what| {
        refused(&bob.fails(&[&["accept", "invitation"], args].concat(), 14), what)
    };
    fails(
        &["--fingerprint", &known(2).public().fingerprint()],
        "not the fingerprint that was given",
    );
    assert_eq!(remembered(&bob, &memory.share), None);
    bob.ok(&["accept", "invitation", "--fingerprint", &ann.public().fingerprint()]);
    assert_eq!(remembered(&bob, &memory.share), Some(memory));
    let further = PinnedShare { head: Pin { sequence: 9, hash: [1; 32] }, ..memory };
    let file =
        bob.home().join(".local/state/kithfs/shares").join(PinnedShare::file_name(&memory.share));
    fs::write(&file, further.to_text()).unwrap();
    assert!(
        stderr(&bob.ok(&["accept", "invitation", "--yes"])).contains("its record is unchanged")
    );
    assert_eq!(remembered(&bob, &memory.share), Some(further));
}

/// An invitation that was changed or cut off, or that is for another person, is refused.
#[test]
fn altered_or_misaddressed_invitations_are_refused() {
    let (bob, cem, ann) = (Person::with_identity("bob"), Person::with_identity("cem"), known(1));
    let (memory, bytes) = invitation(&ann, &bob);
    let mut changed = bytes.clone();
    changed[200] ^= 1;
    for (what, bytes) in [
        ("signature", &changed[..]),
        ("ends too early", &bytes[..300]),
        ("after its end", &[&bytes[..], &[0]].concat()),
    ] {
        fs::write(bob.home().join("invitation"), bytes).unwrap();
        refused(&bob.fails(&["accept", "invitation", "--yes"], 14), what);
    }
    fs::write(cem.home().join("invitation"), &bytes).unwrap();
    refused(&cem.fails(&["accept", "invitation", "--yes"], 14), "for another identity");
    assert_eq!((remembered(&bob, &memory.share), remembered(&cem, &memory.share)), (None, None));
    // The key of the inviting person has changed.
    fs::write(bob.home().join("invitation"), &bytes).unwrap();
    bob.ok(&["contact", "add", "Ann", &known(2).public().to_string()]);
    bob.fails(&["contact", "add", "Ann", &ann.public().to_string()], 14);
    refused(&bob.fails(&["accept", "invitation", "--yes"], 14), "which is CHANGED");
}

/// Two machines changed the passphrase of a synced vault at the same time. The sync tool kept one
/// file as `+identity` and the other one as a conflict copy. The passphrase that the second machine
/// had acknowledged then opened nothing, and `fsck` did not mention the copy.
#[test]
fn a_passphrase_opens_a_conflict_copy_of_the_identity() {
    let ann = Person::new("ann");
    let cost = ["--kdf-memory", "32", "--kdf-passes", "1"];
    for vault in ["vault", "other"] {
        ann.ok(&[&["init", "--synced"], &cost[..], &[vault]].concat());
    }
    ann.ok(&["mkdir", "vault", "letters"]);
    let file = |name: &str| ann.home().join(name);
    let change = |new: &str, vault: &str| {
        ann.write(new, &format!("{new} passphrase\n"));
        ann.ok(&[&["passphrase", "change", "--new-passphrase-file", new], &cost[..], &[vault]]
            .concat());
    };
    let before = fs::read(file("vault/+identity")).unwrap();
    change("second", "vault");
    let theirs = fs::read(file("vault/+identity")).unwrap();
    fs::write(file("vault/+identity"), &before).unwrap();
    change("first", "vault");
    change("third", "other");
    fs::copy(file("other/+identity"), file("vault/+identity (1)")).unwrap();
    fs::write(file("vault/+identity (2)"), "junk").unwrap();
    let ls = |by: &str| ["ls", "--passphrase-file", by, "vault"].map(str::to_owned);
    let refuses = |by: &str| {
        let args = ls(by);
        ann.fails(&args.each_ref().map(String::as_str), 3);
    };
    let opens = |by: &str| {
        let args = ls(by);
        let output = ann.ok(&args.each_ref().map(String::as_str));
        assert_eq!(said(&output), "letters\n");
        stderr(&output)
    };
    refuses("second");
    let copy = "+identity.sync-conflict-20260101-000000-AAAAAAA";
    fs::write(file(&format!("vault/{copy}")), theirs).unwrap();
    assert!(!opens("first").contains("conflict copy"));
    let told = opens("second");
    assert!(told.contains(copy) && told.contains("a conflict copy"), "{told}");
    refuses("passphrase");
    // A number of a slot in a copy may be that of another slot in `+identity`, so slots are changed
    // only with a secret of the file itself. A change opened by a copy replaced a passphrase that
    // was not the one that was typed.
    for change in [
        &["passphrase", "change", "--new-passphrase-file", "third"][..],
        &["passphrase", "remove", "--slot", "2"],
    ] {
        ann.fails(&[change, &["--passphrase-file", "second", "vault"]].concat(), 3);
    }
    opens("first");
    // The passphrase of another identity opens nothing here.
    refuses("third");
    let found = said(&ann.ok(&["fsck", "--passphrase-file", "first", "vault"]));
    assert!(
        found.contains(&format!("{copy}: is a conflict copy of the vault's identity")),
        "{found}"
    );
    // The user keeps one of the two.
    fs::rename(file(&format!("vault/{copy}")), file("vault/+identity")).unwrap();
    assert!(!opens("second").contains("conflict copy"));
    refuses("first");
    // The tool delivers the copy before the file itself, or a part of the file.
    fs::remove_file(file("vault/+identity (1)")).unwrap();
    fs::rename(file("vault/+identity"), file(&format!("vault/{copy}"))).unwrap();
    for _ in 0..2 {
        let told = opens("second");
        assert!(told.contains(copy) && told.contains("is missing or damaged"), "{told}");
        refuses("first");
        fs::write(file("vault/+identity"), "").unwrap();
    }
}

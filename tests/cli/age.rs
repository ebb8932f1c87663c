//! Age slots as people use them: native keys, SSH keys, plugins, and the real `age` tool.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use age::secrecy::ExposeSecret;
use kithfs::format::identity::{IdentityRecord, SlotRecord};
use kithfs::roster::IdentityFile;

use crate::support::people::{Mounted, Person, has, refused, said, stderr};
use crate::support::turn;

/// Returns a person with a vault that has a passphrase and a recovery code.
fn with_vault() -> Person {
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.ok(&["mkdir", "vault", "letters"]);
    ann
}

/// Writes a new native identity to the home, and returns its recipient.
fn native(ann: &Person, name: &str) -> String {
    let key = age::x25519::Identity::generate();
    ann.write(name, &format!("# a comment\n{}\n", key.to_string().expose_secret()));
    key.to_public().to_string()
}

/// Adds a slot; returns its number.
fn add(ann: &Person, recipient: &str, label: &str) -> String {
    let made =
        stderr(&ann.ok(&["passphrase", "add", "vault", "--age", recipient, "--label", label]));
    assert!(made.contains("(age recipient)") && made.contains("try the new slot"), "{made}");
    made.split("added slot ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

fn opens(ann: &Person, identity: &str) {
    let listed = said(&ann.ok(&["ls", "vault", "--age-identity", identity]));
    assert_eq!(listed, "letters\n");
}

/// Returns the directory of the plugin that speaks the real protocol and protects nothing.
fn plugins() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/plugins").to_owned()
}

#[test]
fn a_native_age_key_opens_the_vault_it_was_added_to() {
    let ann = with_vault();
    let (recipient, other) = (native(&ann, "key"), native(&ann, "other"));
    let slot = add(&ann, &recipient, "desk key");
    opens(&ann, "key");
    let listed = said(&ann.ok(&["passphrase", "list", "vault"]));
    assert!(listed.contains("age recipient") && listed.contains("desk key"), "{listed}");
    let listed = said(&ann.ok(&["passphrase", "list", "vault", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[2]["kind"], "age recipient");
    assert_eq!(listed[2]["label"], "desk key");
    refused(
        &ann.fails(&["ls", "vault", "--age-identity", "other"], 3),
        "opens none of its 1 age slots",
    );
    // Each slot is a fallback for the others, also in a background mount.
    add(&ann, &other, "");
    opens(&ann, "other");
    let mounted = Mounted::new(&ann, &["--age-identity", "key"]);
    assert!(ann.home().join("plain/letters").is_dir());
    drop(mounted);
    ann.ok(&["passphrase", "remove", "vault", "--slot", &slot, "--age-identity", "other"]);
    refused(&ann.fails(&["ls", "vault", "--age-identity", "key"], 3), "opens none of its 1 age");
    opens(&ann, "other");
    ann.ok(&["ls", "vault"]);
}

#[test]
fn the_variable_names_an_age_identity_where_a_slot_exists() {
    let ann = with_vault();
    let recipient = native(&ann, "key");
    let ls = |variables: &str| {
        let kithfs = env!("CARGO_BIN_EXE_kithfs");
        ann.shell(&format!("env -u KITHFS_PASSPHRASE_FILE {variables} {kithfs} ls vault"))
    };
    // Without an age slot the variable is ignored: it is set for all vaults of a person.
    let (done, told) = ls("KITHFS_AGE_IDENTITY=key");
    assert!(!done && told.contains("there is no terminal for a prompt"), "{told}");
    add(&ann, &recipient, "");
    assert_eq!(ls("KITHFS_AGE_IDENTITY=key"), (true, "letters\n".to_owned()));
    let (done, told) = ls("KITHFS_AGE_IDENTITY=missing");
    assert!(!done && told.contains("read age identity missing"), "{told}");
    // A passphrase file takes precedence.
    let (done, told) = ls("KITHFS_AGE_IDENTITY=missing KITHFS_PASSPHRASE_FILE=passphrase");
    assert!(done, "{told}");
}

#[test]
fn an_identity_outside_of_a_vault_takes_age_slots_too() {
    let ann = Person::with_identity("ann");
    let recipient = native(&ann, "key");
    ann.ok(&["identity", "passphrase", "add", "--age", &recipient]);
    let own = ann.home().join(".config/kithfs/identity");
    let own = own.to_str().unwrap();
    ann.ok(&["init", "--identity", own, "--age-identity", "key", "vault"]);
    ann.ok(&["mkdir", "vault", "letters", "--age-identity", "key"]);
    opens(&ann, "key");
    refused(
        &ann.fails(&["init", "--own-identity", "--age-identity", "key", "new"], 2),
        "opens an existing identity",
    );
}

#[test]
fn ssh_keys_are_recipients() {
    if !has("ssh-keygen") {
        return;
    }
    let ann = with_vault();
    for kind in ["ed25519", "rsa"] {
        let (done, told) = ann.shell(&format!("ssh-keygen -q -t {kind} -N '' -f {kind}"));
        assert!(done, "{told}");
        let public = fs::read_to_string(ann.home().join(format!("{kind}.pub"))).unwrap();
        add(&ann, public.trim(), kind);
        opens(&ann, kind);
    }
    // The passphrase of a key is asked for once, whatever the host has put into the vault.
    let (done, told) = ann.shell(
        "ssh-keygen -q -t ed25519 -N 'of the key' -f locked
         printf '#!/bin/sh\\necho \"$1\" >>asked; echo of the key\\n' >ask; chmod +x ask",
    );
    assert!(done, "{told}");
    let public = fs::read_to_string(ann.home().join("locked.pub")).unwrap();
    add(&ann, public.trim(), "locked");
    let mut ls = ann.kithfs(&["ls", "vault", "--age-identity", "locked"]);
    let opened = ls.env("KITHFS_PROMPT", ann.home().join("ask")).output().unwrap();
    assert_eq!(said(&opened), "letters\n", "{}", stderr(&opened));
    let asked = fs::read_to_string(ann.home().join("asked")).unwrap();
    assert_eq!(asked, "Passphrase of the SSH key locked\n");
    let path = ann.home().join("vault/+identity");
    let honest = fs::read(&path).unwrap();
    let mut record = IdentityRecord::decode(&honest).unwrap();
    let recipient: age::ssh::Recipient = public.trim().parse().unwrap();
    let all = std::iter::repeat_n(&recipient as &dyn age::Recipient, 40);
    let mut many = Vec::new();
    let sealed = age::Encryptor::with_recipients(all).unwrap().wrap_output(&mut many).unwrap();
    sealed.finish().unwrap();
    record.slots.last_mut().unwrap().age_file = many;
    fs::write(&path, record.encode()).unwrap();
    let mut ls = ann.kithfs(&["ls", "vault", "--age-identity", "locked"]);
    let told = ls.env("KITHFS_PROMPT", ann.home().join("ask")).output().unwrap();
    refused(&told, "opens none of its 3 age slots");
    let asked = fs::read_to_string(ann.home().join("asked")).unwrap();
    assert_eq!(asked.lines().count(), 2, "once for each command");
    fs::write(&path, honest).unwrap();
    refused(&ann.fails(&["ls", "vault", "--age-identity", "locked"], 3), "no terminal");
    let (done, told) = ann.shell("ssh-keygen -q -t ecdsa -N '' -f ecdsa");
    assert!(done, "{told}");
    let public = fs::read_to_string(ann.home().join("ecdsa.pub")).unwrap();
    refused(
        &ann.fails(&["passphrase", "add", "vault", "--age", public.trim()], 2),
        "Ed25519 and RSA",
    );
    refused(&ann.fails(&["ls", "vault", "--age-identity", "ecdsa"], 3), "Ed25519 and RSA");
    refused(&ann.fails(&["ls", "vault", "--age-identity", "ed25519.pub"], 3), "read age identity");
}

/// Returns a command with the plugin in its PATH. `does` is what the plugin does.
fn plugin_command(ann: &Person, does: &str, args: &[&str]) -> Command {
    let path = format!("{}:{}", plugins(), std::env::var("PATH").unwrap());
    let mut command = ann.kithfs(args);
    command
        .env("PATH", path)
        .env("KITHTEST_LOG", ann.home().join("log"))
        .env("KITHTEST_DOES", does);
    command
}

fn with_plugin(ann: &Person, does: &str, args: &[&str]) -> std::process::Output {
    plugin_command(ann, does, args).output().unwrap()
}

/// Makes an identity of the plugin in the file `token`; returns its recipient.
fn token(ann: &Person) -> String {
    let plugin = Path::new(&plugins()).join("age-plugin-kithtest");
    let made = said(&Command::new(plugin).arg("--generate").output().unwrap());
    let (recipient, identity) = made.trim().split_once('\n').unwrap();
    ann.write("token", identity);
    recipient.to_owned()
}

/// Returns how often the plugin was started.
fn starts(ann: &Person) -> usize {
    fs::read_to_string(ann.home().join("log")).map_or(0, |log| log.lines().count())
}

/// A plugin runs only where the user names its recipient or its identity: a storage host that puts
/// a stanza into the vault cannot make one run.
#[test]
fn a_plugin_wraps_and_unwraps_when_it_is_named() {
    if !has("python3") {
        return;
    }
    let ann = with_vault();
    let recipient = &token(&ann);
    let other = native(&ann, "key");
    add(&ann, &other, "");

    refused(
        &ann.fails(&["passphrase", "add", "vault", "--age", recipient], 2),
        "age-plugin-kithtest",
    );
    let added =
        with_plugin(&ann, "", &["passphrase", "add", "vault", "--age", recipient, "--label", "t"]);
    assert!(added.status.success(), "{}", stderr(&added));
    assert_eq!(starts(&ann), 1, "one run that wraps");
    for args in [
        &["ls", "vault"][..],
        &["ls", "vault", "--age-identity", "key"],
        &["passphrase", "list", "vault"],
        &["info", "vault"],
    ] {
        let done = with_plugin(&ann, "", args);
        assert!(done.status.success(), "{}", stderr(&done));
    }
    assert_eq!(starts(&ann), 1, "the identity was not named");

    let token = &["ls", "vault", "--age-identity", "token"][..];
    let done = with_plugin(&ann, "", token);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    assert!((2..=3).contains(&starts(&ann)), "one run for each age slot at most");

    refused(&with_plugin(&ann, "refuse", token), "the token was not touched");
    refused(&with_plugin(&ann, "die", token), "open age slot");
    // A PIN cannot be asked for without a terminal and a prompt program.
    refused(&with_plugin(&ann, "ask", token), "wrong PIN");
    for (pin, opens) in [("1234", true), ("4321", false)] {
        ann.shell(&format!("printf '#!/bin/sh\\necho {pin}\\n' >pin; chmod +x pin"));
        let mut command = plugin_command(&ann, "ask", token);
        let done = command.env("KITHFS_PROMPT", ann.home().join("pin")).output().unwrap();
        assert_eq!(done.status.success(), opens, "{}", stderr(&done));
    }
    // A plugin that fails for its slot does not keep another identity from opening one.
    let both = [token, &["--age-identity", "key"]].concat();
    let done = with_plugin(&ann, "refuse", &both);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    refused(&ann.fails(token, 3), "age-plugin-kithtest");
}

/// The plugin of one identity ended every attempt, also on the slots of other identities, if it
/// crashed, spoke another protocol or was not installed.
#[test]
fn a_broken_plugin_does_not_keep_another_identity_from_opening() {
    if !has("python3") {
        return;
    }
    let ann = with_vault();
    token(&ann);
    add(&ann, &native(&ann, "key"), "");
    let both = ["ls", "vault", "--age-identity", "token", "--age-identity", "key"];
    for does in ["crash", "babble"] {
        refused(&with_plugin(&ann, does, &both[..4]), "open age slot");
        let done = with_plugin(&ann, does, &both);
        assert_eq!(said(&done), "letters\n", "{does}: {}", stderr(&done));
    }
    let done = ann.ok(&both);
    assert_eq!(said(&done), "letters\n", "the plugin is not installed");
    assert!(stderr(&done).contains("age-plugin-kithtest"), "{}", stderr(&done));
    ann.ok(&["ls", "vault", "--age-identity", "missing", "--age-identity", "key"]);
    refused(
        &ann.fails(&["ls", "vault", "--age-identity", "missing", "--age-identity", "token"], 3),
        "note: read age identity missing",
    );
}

/// A damaged slot was reported as one that the age identity does not open, so its owner looked for
/// another key.
#[test]
fn a_damaged_age_slot_is_reported_as_such() {
    let ann = with_vault();
    let recipient = native(&ann, "key");
    add(&ann, &recipient, "");
    let path = ann.home().join("vault/+identity");
    let honest = IdentityRecord::decode(&fs::read(&path).unwrap()).unwrap();
    let len = honest.slots.last().unwrap().age_file.len();
    // In the MAC, the nonce and the contents. The last two take 64 bytes.
    for at in [len - 80, len - 60, len - 1] {
        let mut record = honest.clone();
        record.slots.last_mut().unwrap().age_file[at] ^= 1;
        fs::write(&path, record.encode()).unwrap();
        let told = ann.fails(&["ls", "vault", "--age-identity", "key"], 3);
        assert!(stderr(&told).contains("open age slot: it is damaged"), "{at}: {told:?}");
        ann.ok(&["ls", "vault"]);
    }
}

/// The storage host can put any age file into a slot: one that the user's key also opens, one that
/// needs an endless key stretching, one with many stanzas, and up to 32 of them. None of them
/// unlocks, a passphrase is asked for once, and the work stays small.
#[test]
fn age_files_of_a_hostile_host_open_nothing() {
    let ann = with_vault();
    let recipient = native(&ann, "key");
    add(&ann, &recipient, "");
    let path = ann.home().join("vault/+identity");
    let honest = IdentityRecord::decode(&fs::read(&path).unwrap()).unwrap();
    let recipient: age::x25519::Recipient = recipient.parse().unwrap();
    let sealed = |contents: &[u8]| age::encrypt(&recipient, contents).unwrap();
    let with_slots = |files: &[Vec<u8>]| {
        let mut record = honest.clone();
        let slot = record.slots.pop().unwrap();
        for (id, file) in (slot.id..).zip(files) {
            record.slots.push(SlotRecord { id, age_file: file.clone(), ..slot.clone() });
        }
        fs::write(&path, record.encode()).unwrap();
    };
    let refuses = |files: &[Vec<u8>], why: &str| {
        with_slots(files);
        let began = Instant::now();
        let told = ann.fails(&["ls", "vault", "--age-identity", "key"], 3);
        refused(&told, why);
        assert!(began.elapsed() < Duration::from_secs(60));
        ann.ok(&["ls", "vault"]);
    };
    let stretched = [
        b"age-encryption.org/v1\n-> scrypt bBjlhJVYZeE4aqUdmtRHfw 40\n",
        &[b'A'; 43][..],
        b"\n--- ",
        &[b'A'; 43],
        b"\n",
        &[0; 64],
    ]
    .concat();
    let stanza = format!("-> X25519 {}\n{}\n", "B".repeat(43), "A".repeat(43));
    let many = format!("age-encryption.org/v1\n{}--- {}\n", stanza.repeat(80), "A".repeat(43));
    let many = [many.as_bytes(), &[0; 64]].concat();
    for file in
        [sealed(&[7; 32]), sealed(&[7; 31]), sealed(&[7; 33]), sealed(&[0; 4000]), stretched]
    {
        refuses(&[file], "opens none of its 1 age slots");
    }
    refuses(&[b"age-encryption.org/v1\nand no more".to_vec()], "damaged");
    refuses(&vec![many; 30], "damaged");
    // A slot that does not open does not keep another one from being tried.
    let mut record = honest.clone();
    let slot = record.slots[2].clone();
    let first = SlotRecord { id: 1, age_file: sealed(&[7; 32]), ..slot };
    record.slots[0] = first;
    fs::write(&path, record.encode()).unwrap();
    opens(&ann, "key");
    fs::write(&path, honest.encode()).unwrap();
    opens(&ann, "key");
}

/// The last slot that has ever been opened cannot be removed. A slot for a token can be made
/// without the token, so it may be one that nothing opens: otherwise one mistyped recipient and
/// `passphrase remove` lose a vault.
#[test]
fn the_last_tried_slot_stays() {
    let ann = with_vault();
    let recipient = native(&ann, "key");
    add(&ann, &recipient, "");
    ann.ok(&["passphrase", "remove", "vault", "--slot", "2"]);
    let remove = ["passphrase", "remove", "vault", "--slot", "1"];
    refused(&ann.fails(&remove, 1), "none of them has been opened");
    ann.ok(&[&remove[..], &["--age-identity", "key"]].concat());
    opens(&ann, "key");
    refused(
        &ann.fails(&["passphrase", "remove", "vault", "--slot", "3", "--age-identity", "key"], 1),
        "the last",
    );
}

#[test]
fn an_invalid_recipient_is_refused_and_not_repeated() {
    let ann = with_vault();
    let before = fs::read(ann.home().join("vault/+identity")).unwrap();
    native(&ann, "key");
    let secret = fs::read_to_string(ann.home().join("key")).unwrap();
    let secret = secret.lines().last().unwrap();
    for (given, why) in [
        (secret, "must stay secret"),
        ("age1qqqq", "age1"),
        ("kith1abc", "age1"),
        ("ssh-ed25519 AAAA", "SSH"),
    ] {
        let told = ann.fails(&["passphrase", "add", "vault", "--age", given], 2);
        refused(&told, why);
        assert!(!stderr(&told).contains(secret));
    }
    refused(&ann.fails(&["ls", "vault", "--age-identity", "passphrase"], 3), "read age identity");
    assert_eq!(fs::read(ann.home().join("vault/+identity")).unwrap(), before);
}

/// The real age decrypts the file in a slot, and a key of the real age-keygen opens the vault.
#[test]
fn slots_are_files_of_the_age_tool() {
    if !has("age") {
        return;
    }
    let ann = with_vault();
    let (done, told) = ann.shell("age-keygen -o key 2>&1 && age-keygen -y key");
    assert!(done, "{told}");
    add(&ann, told.lines().last().unwrap(), "made by age-keygen");
    opens(&ann, "key");
    let file = fs::read(ann.home().join("vault/+identity")).unwrap();
    let file = IdentityFile::decode(&file).unwrap();
    let slot = file.slots().last().unwrap();
    fs::write(ann.home().join("slot.age"), slot.age_file).unwrap();
    let (done, told) = ann.shell("age -d -i key slot.age | wc -c");
    assert!(done && told.trim() == "32", "{told}");
}

/// Gives a program a TPM at /dev/tpmrm0, in a mount namespace of its own: a software TPM that speaks
/// over a terminal, as the plugin insists on a device.
const WITH_TPM: &str = r#"
import os, subprocess, sys, tty
master, slave = os.openpty()
tty.setraw(slave)
state, script = sys.argv[1:]
os.makedirs(state, exist_ok=True)
tpm = subprocess.Popen(["swtpm", "chardev", "--tpm2", "--tpmstate", "dir=" + state, "--fd", str(master), "--flags", "startup-clear"], pass_fds=[master])
prepare = """
mkdir -p overlay
mount -t tmpfs none overlay
mkdir overlay/upper overlay/dev
touch overlay/upper/tpmrm0
mount -t overlay -o lowerdir=overlay/upper:/dev overlay overlay/dev
mount --bind "$TPM" overlay/dev/tpmrm0
for device in null zero urandom; do mount --bind "/dev/$device" "overlay/dev/$device"; done
mount --rbind overlay/dev /dev
"""
done = subprocess.call(["unshare", "--mount", "--propagation", "slave", "bash", "-euc", prepare + script], env=dict(os.environ, TPM=os.ttyname(slave)))
tpm.terminate()
tpm.wait()
sys.exit(done)
"#;

#[test]
fn a_tpm_opens_the_vault_and_another_one_does_not() {
    let _alone = turn::alone();
    let is_there = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    if !is_there("age-plugin-tpm") || !is_there("swtpm") || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: needs root, swtpm, and age-plugin-tpm in the PATH");
    }
    let ann = with_vault();
    let with_tpm = |state: &str, script: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", WITH_TPM, state, script]).current_dir(ann.home());
        command.env("KITHFS", env!("CARGO_BIN_EXE_kithfs")).env("HOME", ann.home());
        let done = command.env_remove("KITHFS_PASSPHRASE_FILE").output().unwrap();
        (done.status.success(), said(&done), stderr(&done))
    };
    let make = r##"
        age-plugin-tpm --generate --tpm-recipient -o key 2>/dev/null
        recipient=$(sed -n 's/^# Recipient: //p' key)
        "$KITHFS" passphrase add vault --passphrase-file passphrase --age "$recipient"
    "##;
    let (done, _, told) = with_tpm("tpm", make);
    assert!(done, "{told}");
    // The machine was started again meanwhile.
    let open = r#""$KITHFS" ls vault --age-identity key"#;
    let (done, listed, told) = with_tpm("tpm", open);
    assert!(done && listed == "letters\n", "{told}");
    // The disk in another machine.
    let (done, listed, told) = with_tpm("other", open);
    assert!(!done && listed.is_empty(), "{told}");
    assert!(told.contains("kithfs: "), "{told}");
}

//! What commands print and leave behind, above all when they fail.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::process::{Command, Stdio};

use crate::support::mounted::{self, KITHFS, Scratch, can_mount, expect_code, shell};
use crate::support::turn;

/// Returns what a command that ends with `code` writes to stderr.
fn says(command: &mut Command, code: i32) -> String {
    String::from_utf8_lossy(&expect_code(command, code).stderr).into_owned()
}

#[test]
fn plain_files_are_not_written_into_the_ciphertext() {
    // `export VAULT VAULT/out` was refused only after `out` was created in the vault, which `fsck`
    // then reported as a fault. `get`, and the options --salvage and --export, wrote plain files
    // beside the ciphertext, where the storage host could read them.
    let scratch = Scratch::new(&[]);
    fs::write(scratch.path().join("file"), "secret").unwrap();
    expect_code(
        scratch.kithfs("put").arg(scratch.vault()).arg("file").arg(scratch.path().join("file")),
        0,
    );
    let before = shell(&scratch.vault(), "find . | sort");
    let out = scratch.vault().join("new/out");
    for command in [
        scratch.kithfs("export").arg(scratch.vault()).arg(&out),
        scratch.kithfs("export").arg("vault").arg("vault/out").current_dir(scratch.path()),
        scratch.kithfs("get").arg(scratch.vault()).arg("file").arg(scratch.vault()),
        scratch.kithfs("get").arg(scratch.vault()).arg("file").current_dir(scratch.vault()),
        scratch.kithfs("fsck").arg("--salvage").arg(&out).arg(scratch.vault()),
        scratch.kithfs("rollback").arg("--export").arg(&out).arg(scratch.vault()),
    ] {
        let said = says(command, 2);
        assert!(said.contains("is inside the vault"), "{said}");
    }
    assert_eq!(shell(&scratch.vault(), "find . | sort"), before);
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

#[test]
fn names_and_texts_of_the_store_forge_no_line() {
    // The name of a control file was logged unchanged. A line feed and a carriage return in it made
    // lines that looked like the program's own.
    let scratch = Scratch::new(&[]);
    let name = "+journal-x\nkithfs: all is lost\r ERROR forged";
    fs::write(scratch.vault().join(name), "no journal").unwrap();
    for command in
        [scratch.kithfs("ls").arg(scratch.vault()), scratch.kithfs("fsck").arg(scratch.vault())]
    {
        let output = command.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(r"x\x0akithfs: all is lost\x0d ERROR forged"), "{said}");
        assert!(
            !said.contains(|c: char| c.is_control() && c != '\n')
                && !said.contains("\nkithfs: all"),
            "{said}"
        );
    }
}

#[test]
fn others_enter_no_mount_of_a_foreign_store_unasked() {
    // Owners and modes are those of the store: with `allow_other` the store's owner could read a
    // file of mode 0600 after a chmod of the ciphertext, and no warning was given.
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a store away");
        return;
    }
    let scratch = Scratch::new(&[]);
    let (vault, point) = (scratch.vault(), scratch.point());
    let mount = |options: &str, code| {
        says(scratch.kithfs("mount").args(["-o", options]).arg(&vault).arg(&point), code)
    };
    let umount = || expect_code(scratch.kithfs("umount").arg(&point), 0);
    for (foreign, who) in [
        ("chown 1234 vault", "user 1234"),
        ("chmod 777 vault", "every user"),
        ("chgrp 1234 vault; chmod 770 vault", "group 1234"),
        ("chmod 700 vault; setfacl -m u:1234:rwx vault", "an ACL"),
    ] {
        shell(scratch.path(), &format!("chown 0:0 vault; chmod 700 vault; {foreign}"));
        let refused = mount("allow_other", 2);
        assert!(
            refused.contains(who) && refused.contains("allow_foreign_store"),
            "{foreign}: {refused}"
        );
        let warned = mount("allow_other,allow_foreign_store", 0);
        assert!(warned.contains(who), "{foreign}: {warned}");
        umount();
        assert_eq!(mount("ro", 0), "", "nobody else may enter");
        umount();
    }
    for own in ["setfacl -b vault; chown 0:0 vault; chmod 755 vault", "chmod 770 vault"] {
        shell(scratch.path(), own);
        assert_eq!(mount("allow_other", 0), "", "{own}");
        umount();
    }
}

#[test]
fn a_lost_recovery_code_is_reported_with_a_way_to_renew_it() {
    // `init > /dev/full` reported that stdout could not be written to, and `init | true` reported
    // nothing; the code that would open the vault one day was lost.
    let scratch = Scratch::new(&[]);
    let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    let nobody = || Stdio::from(std::io::pipe().unwrap().1);
    for (name, stdout) in [("full", full()), ("nobody", nobody())] {
        let vault = scratch.path().join(name);
        let mut init = scratch.kithfs("init");
        let said = says(
            init.args(["--kdf-memory", "32", "--kdf-passes", "1"]).arg(&vault).stdout(stdout),
            1,
        );
        let command = said
            .split("only that code is lost; create another: ")
            .nth(1)
            .and_then(|hint| hint.lines().next());
        let mut words = command.unwrap_or_else(|| panic!("{said}")).split(' ').skip(1);
        let code = expect_code(scratch.kithfs(words.next().unwrap()).args(words), 0).stdout;
        fs::write(scratch.path().join("code"), code).unwrap();
        let mut ls = scratch.kithfs("ls");
        expect_code(
            ls.env_remove("KITHFS_PASSPHRASE_FILE")
                .arg("--recovery-code-file")
                .arg(scratch.path().join("code"))
                .arg(&vault),
            0,
        );
    }
}

#[test]
fn a_file_whose_ciphertext_was_lengthened_comes_out_as_it_is() {
    // `get` asked for the size before it opened the file. The size then follows from the
    // ciphertext's length, which the storage host or a full disk can change. The copy had zeros
    // after the true bytes, and success was reported.
    let scratch = Scratch::new(&[]);
    for (name, len) in [("none", 0), ("small", 100), ("large", 10_000), ("chunks", 600_000)] {
        let (plain, out) = (scratch.path().join(name), scratch.path().join("out"));
        fs::write(&plain, vec![7; len]).unwrap();
        expect_code(scratch.kithfs("put").arg(scratch.vault()).arg(name).arg(&plain), 0);
        let stored = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg(name), 0).stdout;
        let stored = scratch.vault().join(String::from_utf8(stored).unwrap().trim_end());
        let longer = fs::metadata(&stored).unwrap().len() + 9000;
        fs::File::options().write(true).open(&stored).unwrap().set_len(longer).unwrap();
        expect_code(scratch.kithfs("get").arg(scratch.vault()).arg(name).arg(&out), 0);
        assert!(
            fs::read(&out).unwrap() == vec![7; len],
            "{name}: {} bytes",
            fs::metadata(&out).unwrap().len()
        );
    }
    let out = scratch.path().join("tree");
    expect_code(scratch.kithfs("export").arg(scratch.vault()).arg(&out), 0);
    assert_eq!(fs::metadata(out.join("large")).unwrap().len(), 10_000);
}

#[test]
fn a_pipe_or_a_link_that_a_file_is_copied_to_stays_what_it_is() {
    // `get VAULT FILE /dev/null`, by root, replaced the device by a regular file, and with
    // `/dev/stdout` it replaced the link.
    let scratch = Scratch::new(&[]);
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("plain"), "text").unwrap();
    expect_code(scratch.kithfs("put").arg(scratch.vault()).arg("file").arg(at("plain")), 0);
    shell(scratch.path(), "mkfifo pipe; touch other; ln -s other link; ln -s pipe link-to-pipe");
    for pipe in ["pipe", "link-to-pipe"] {
        // Opened for reading and writing, so that neither end waits for the other.
        let mut both = fs::File::options().read(true).write(true).open(at("pipe")).unwrap();
        expect_code(scratch.kithfs("get").arg(scratch.vault()).arg("file").arg(at(pipe)), 0);
        assert!(
            fs::metadata(at("pipe")).unwrap().file_type().is_fifo()
                && (pipe == "pipe" || at(pipe).is_symlink())
        );
        let mut read = [0; 4];
        both.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"text");
    }
    let around = fs::File::create(at("stdout")).unwrap();
    (&around).write_all(b"before ").unwrap();
    for stdout in ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
        expect_code(
            scratch
                .kithfs("get")
                .arg(scratch.vault())
                .arg("file")
                .arg(stdout)
                .stdout(around.try_clone().unwrap()),
            0,
        );
    }
    assert_eq!(fs::read(at("stdout")).unwrap(), b"before texttexttext");
    expect_code(scratch.kithfs("get").arg(scratch.vault()).arg("file").arg(at("link")), 0);
    assert!(at("link").is_symlink());
    assert_eq!(fs::read(at("other")).unwrap(), b"text");
}

#[test]
fn a_link_that_the_kernel_does_not_follow_is_not_followed() {
    // `get`, by root, followed a link that another user had put into a shared directory, and
    // replaced the file of that user's choice. The kernel refuses to follow such links if it is
    // told so; kithfs asked it for the link's target and went there itself.
    let is_told = fs::read_to_string("/proc/sys/fs/protected_symlinks")
        .is_ok_and(|value| value.trim() == "1");
    if !is_told || !rustix::process::geteuid().is_root() {
        println!("skipped: fs.protected_symlinks is off, or this is not root");
        return;
    }
    let scratch = Scratch::new(&[]);
    let at = |name: &str| scratch.path().join(name);
    shell(
        scratch.path(),
        "mkdir all; chmod 1777 all; chown 1 all; echo precious >victim; ln -s ../victim all/out; chown -h 2 all/out; echo text >plain",
    );
    expect_code(scratch.kithfs("put").arg(scratch.vault()).arg("file").arg(at("plain")), 0);
    says(scratch.kithfs("get").arg(scratch.vault()).arg("file").arg(at("all/out")), 1);
    assert_eq!(fs::read(at("victim")).unwrap(), b"precious\n");
}

#[test]
fn a_directory_with_conflict_copies_is_removed_whole() {
    // The name of `x (1)` became free when it was removed, and went to a copy of `x` that had been
    // listed under another name. The copy was not found, and stayed.
    let scratch = Scratch::new(&[]);
    let vault = scratch.vault();
    expect_code(scratch.kithfs("mkdir").args([vault.as_os_str(), "dir".as_ref()]), 0);
    for name in ["dir/x", "dir/x (1)", "dir/x (2)", "dir/y"] {
        expect_code(scratch.kithfs("put").arg(&vault).arg(name).stdin(Stdio::null()), 0);
    }
    let map = |plain: &str| {
        String::from_utf8(expect_code(scratch.kithfs("map").arg(&vault).arg(plain), 0).stdout)
            .unwrap()
    };
    let x = map("dir/x").trim_end().to_owned();
    for copy in ["(1)", "(2)", "(3)"] {
        fs::copy(vault.join(&x), vault.join(format!("{x} {copy}"))).unwrap();
    }
    expect_code(scratch.kithfs("rm").arg("-r").arg(&vault).arg("dir"), 0);
    expect_code(scratch.kithfs("ls").arg(&vault).arg("dir"), 12);
    // An entry without any name needs a repair; the message claimed that `-r`, which was given,
    // would remove it.
    expect_code(scratch.kithfs("mkdir").args([vault.as_os_str(), "other".as_ref()]), 0);
    fs::write(vault.join(map("other").trim_end()).join("A".repeat(30)), "").unwrap();
    let said = says(scratch.kithfs("rm").arg("-r").arg(&vault).arg("other"), 1);
    assert!(said.contains("kithfs fsck") && !said.contains("rm -r"), "{said}");
}

#[test]
fn a_local_file_that_is_missing_is_no_path_in_the_vault() {
    // A script that asked whether a path is in the vault got "no" (12) if its own passphrase file
    // was missing.
    let scratch = Scratch::new(&[]);
    let (vault, none) = (scratch.vault(), scratch.path().join("none/x"));
    expect_code(scratch.kithfs("ls").arg("--passphrase-file").arg(&none).arg(&vault), 3);
    expect_code(scratch.kithfs("ls").arg("--key-file").arg(&none).arg(&vault), 3);
    expect_code(scratch.kithfs("ls").arg("--identity").arg(&none).arg(&vault), 3);
    expect_code(scratch.kithfs("put").arg(&vault).arg("a").arg(&none), 1);
    expect_code(scratch.kithfs("import").arg(&none).arg(&vault), 1);
    expect_code(scratch.kithfs("init").arg(&none), 1);
    expect_code(scratch.kithfs("put").arg(&vault).arg("a").stdin(Stdio::null()), 0);
    let said = says(scratch.kithfs("get").arg(&vault).arg("a").arg(&none), 1);
    assert!(
        said.contains("none/x: No such file or directory (os error 2)\nhint: create its directory"),
        "and no name that was made up for it: {said}"
    );
    expect_code(scratch.kithfs("ls").arg(&vault).arg("none"), 12);
    expect_code(scratch.kithfs("umount").arg(&none), 12);
}

#[test]
fn an_error_names_the_path_that_was_given() {
    // `mkdir: a (/vault/Xy...): File exists` named the ciphertext of the parent directory.
    let scratch = Scratch::new(&[]);
    let vault = scratch.vault();
    expect_code(scratch.kithfs("mkdir").arg("-p").arg(&vault).arg("a/b"), 0);
    assert_eq!(
        says(scratch.kithfs("mkdir").arg(&vault).arg("a/b"), 1),
        "kithfs: mkdir a/b: File exists (os error 17)\n"
    );
    let said = says(scratch.kithfs("rm").arg(&vault).arg("a"), 1);
    assert_eq!(
        said,
        "kithfs: rmdir a: Directory not empty (os error 39)\nhint: -r removes a directory and its contents\n"
    );
}

#[test]
fn a_mount_whose_daemon_has_died_is_reported_as_such() {
    // After `kill -9` the next mount failed with "a vault is already mounted there", and `kithfs
    // mounts`, which its hint named, listed nothing.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let log = fs::File::create(scratch.path().join("log")).unwrap();
    let mut daemon = scratch
        .kithfs("mount")
        .arg("--foreground")
        .arg(scratch.vault())
        .arg(scratch.point())
        .stderr(log)
        .spawn()
        .unwrap();
    while !mounted::is_mounted(&scratch.point()) {
        assert_eq!(daemon.try_wait().unwrap(), None, "the daemon ended before it mounted");
        std::thread::yield_now();
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let said = says(scratch.kithfs("mount").arg(scratch.vault()).arg(scratch.point()), 7);
    assert!(said.contains("has died") && said.contains("kithfs umount"), "{said}");
    let said = says(Command::new(KITHFS).arg("umount").arg(scratch.point()), 0);
    assert!(said.contains("had already died"), "{said}");
    scratch.mount(&[]).unmount();
}

#[test]
fn a_vault_in_a_mount_is_named_as_what_keeps_it_busy() {
    // The message named "processes of other users" when the user's own daemon kept the mount busy;
    // and a user whose working directory was in the mount was told that the command itself kept it
    // busy.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let (inner, place) = (scratch.point().join("inner"), scratch.path().join("place"));
    fs::create_dir(&place).unwrap();
    expect_code(
        scratch.kithfs("init").args(["--kdf-memory", "32", "--kdf-passes", "1"]).arg(&inner),
        0,
    );
    expect_code(scratch.kithfs("mount").arg(&inner).arg(&place), 0);
    let said = says(
        Command::new(KITHFS).arg("umount").arg(scratch.point()).current_dir(scratch.point()),
        13,
    );
    expect_code(Command::new(KITHFS).arg("umount").arg(&place), 0);
    assert!(
        said.contains(&format!("a vault inside it is mounted on {}", place.display())),
        "{said}"
    );
    assert_eq!(said.matches("process ").count(), 1, "{said}");
    expect_code(Command::new(KITHFS).arg("umount").arg(".").current_dir(scratch.point()), 0);
    std::mem::forget(mount); // it is unmounted
}

#[test]
fn a_repeated_share_create_uses_the_latest_name() {
    // `share create` failed because a file was open; after a second call with --name Ann the
    // members still saw "owner".
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let folder = scratch.point().join("folder");
    fs::create_dir(&folder).unwrap();
    let open = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join("file"))
        .unwrap();
    let said = says(scratch.kithfs("share").arg("create").arg(&folder), 1);
    assert!(said.contains("hint: close all files that are open for writing"), "{said}");
    drop(open);
    expect_code(scratch.kithfs("share").args(["create", "--name", "Ann"]).arg(&folder), 0);
    let members = expect_code(scratch.kithfs("who-can-read").arg("--json").arg(&folder), 0);
    let members: serde_json::Value = serde_json::from_slice(&members.stdout).unwrap();
    assert_eq!(members[0]["name"], "Ann");
    mount.unmount();
}

#[test]
fn a_written_and_removed_file_fails_no_later_syncfs() {
    // The kernel sets the time of a written file when it drops the inode, even if the file has no
    // name any more. The error was kept for the whole filesystem: `sync -f` failed with ENOENT, and
    // so did `kithfs export` into a mount.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    for _ in 0..3 {
        fs::write(scratch.point().join("file"), "words").unwrap();
        fs::remove_file(scratch.point().join("file")).unwrap();
        shell(&scratch.point(), "sync -f .");
    }
    mount.unmount();
}

/// Collects the names of all fields of a value, and of its contents.
fn fields(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
        serde_json::Value::Object(object) => object.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            fields(value, found);
        }),
        _ => {}
    }
}

#[test]
fn json_output_has_the_fields_that_its_page_describes() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/JSON.md")).unwrap();
    let scratch = Scratch::new(&["--signed"]);
    let vault = scratch.vault();
    let contacts = scratch.path().join("config");
    let run = |words: &str, code: i32| -> serde_json::Value {
        let mut words = words.split(' ');
        let mut command = scratch.kithfs(words.next().expect("a command"));
        command.args(words).arg("--json").arg(&vault).env("XDG_CONFIG_HOME", &contacts);
        serde_json::from_slice(&expect_code(&mut command, code).stdout).expect("JSON")
    };
    // Each field of the value must be described below the heading. Some fields must occur.
    let compare = |heading: &str, value: &serde_json::Value, at_least: &[&str]| {
        let section = page
            .split("\n## ")
            .find(|section| section.lines().next() == Some(heading))
            .unwrap_or_else(|| panic!("no section {heading}"));
        let mut found = std::collections::BTreeSet::new();
        fields(value, &mut found);
        for field in at_least {
            assert!(found.contains(*field), "{heading}: no {field} in {value}");
        }
        // Fields that a section takes from others are described there.
        let all = if heading == "kithfs share list" { &page[..] } else { section };
        let missing: Vec<&String> =
            found.iter().filter(|field| !all.contains(&format!("`{field}`"))).collect();
        assert!(missing.is_empty(), "{heading} does not describe {missing:?}");
    };
    let member = &["name", "role", "state", "fingerprint", "key"];
    compare("kithfs who-can-read", &run("who-can-read", 0), member);
    compare(
        "kithfs share list",
        &run("share list", 0),
        &["share", "heads", "sequence", "members", "pending"],
    );
    compare("kithfs share rekey", &run("share rekey --status", 0), &["percent", "conflicts"]);
    compare(
        "kithfs passphrase list",
        &run("passphrase list", 0),
        &["slot", "kind", "created", "memory_kib", "passes", "lanes"],
    );
    compare(
        "kithfs info",
        &run("info", 0),
        &["share_id", "in_use_by", "shared_by", "mounted_on", "over_io_uring", "advice"],
    );
    let file = scratch.path().join("file");
    fs::write(&file, vec![1; 600_000]).unwrap();
    expect_code(scratch.kithfs("put").arg(&vault).arg("file").arg(&file), 0);
    let stored =
        String::from_utf8(expect_code(scratch.kithfs("map").arg(&vault).arg("file"), 0).stdout)
            .unwrap();
    let stored = vault.join(stored.trim_end());
    let was = fs::read(&stored).unwrap();
    let mut bytes = was.clone();
    bytes[300_000] ^= 1;
    fs::write(&stored, bytes).unwrap();
    compare(
        "kithfs fsck",
        &run("fsck", 20),
        &[
            "clean", "faults", "plain", "cipher", "what", "bad", "good", "remedy", "kept",
            "changing",
        ],
    );
    compare(
        "kithfs fsck",
        &run("fsck --repair --yes", 0),
        &["outcome", "moved_to", "kept_in", "left"],
    );
    compare("kithfs rollback", &run("rollback", 0), &[]);
    expect_code(scratch.kithfs("put").arg(&vault).arg("second").arg(&file), 0);
    let second =
        String::from_utf8(expect_code(scratch.kithfs("map").arg(&vault).arg("second"), 0).stdout)
            .unwrap();
    fs::remove_file(vault.join(second.trim_end())).unwrap();
    compare(
        "kithfs rollback",
        &run("rollback --settle 0", 22),
        &["path", "kind", "seen", "noticed", "settled", "kept", "perhaps_elsewhere"],
    );
    let key = expect_code(
        scratch.kithfs("identity").args(["export", "--identity"]).arg(vault.join("+identity")),
        0,
    )
    .stdout;
    let key = String::from_utf8(key).unwrap();
    expect_code(
        scratch
            .kithfs("contact")
            .args(["add", "Ann", key.trim_end()])
            .env("XDG_CONFIG_HOME", &contacts),
        0,
    );
    let list = expect_code(
        scratch.kithfs("contact").args(["list", "--json"]).env("XDG_CONFIG_HOME", &contacts),
        0,
    );
    compare(
        "kithfs contact list",
        &serde_json::from_slice(&list.stdout).unwrap(),
        &["name", "state", "key", "offered_key"],
    );
    let json = |command: &mut Command| -> serde_json::Value {
        command.env("XDG_CONFIG_HOME", &contacts);
        serde_json::from_slice(&expect_code(command, 0).stdout).expect("JSON")
    };
    expect_code(
        scratch
            .kithfs("vaults")
            .args(["add", "v", "--read-only"])
            .args([&vault, &scratch.point()])
            .env("XDG_CONFIG_HOME", &contacts),
        0,
    );
    let list = json(scratch.kithfs("vaults").args(["list", "--json"]));
    compare("kithfs vaults list", &list, &["name", "vault", "mountpoint", "options"]);
    let status = json(scratch.kithfs("status").args(["v", "--json"]));
    compare(
        "kithfs status",
        &status,
        &["name", "state", "since", "unsynced_files", "unsynced_bytes", "forks", "idle_seconds"],
    );
    let version = json(scratch.kithfs("--version").arg("--json"));
    compare("kithfs --version", &version, &["formats", "features", "kernel", "fuse_io_uring"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    if can_mount() {
        let mount = scratch.mount(&[]);
        let mounts: serde_json::Value = serde_json::from_slice(
            &expect_code(Command::new(KITHFS).args(["mounts", "--json"]), 0).stdout,
        )
        .unwrap();
        compare(
            "kithfs mounts",
            &mounts,
            &["vault", "mountpoint", "pid", "start_ticks", "since", "read_only", "io_uring"],
        );
        compare("kithfs info", &run("info", 0), &["host", "pid", "since"]);
        mount.unmount();
    }
    let bench =
        expect_code(scratch.kithfs("bench").args(["--quick", "--json"]).arg(scratch.path()), 0);
    compare(
        "kithfs bench",
        &serde_json::from_slice(&bench.stdout).unwrap(),
        &["ciphers", "names", "files", "ratio", "not_mounted", "io_uring", "advice"],
    );
}

#[test]
fn a_mounted_vault_says_where_it_is_mounted_and_maps_its_names() {
    // `umount VAULT` reported that nothing was mounted there, and `map` that the vault should be
    // unmounted first.
    let scratch = Scratch::new(&[]);
    if !mounted::can_mount() {
        return;
    }
    let mount = scratch.mount(&[]);
    fs::write(scratch.point().join("file"), b"x").unwrap();
    let stored = String::from_utf8(
        expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("file"), 0).stdout,
    )
    .unwrap();
    assert!(scratch.vault().join(stored.trim_end()).is_file(), "{stored}");
    let said = expect_code(scratch.kithfs("umount").arg(scratch.vault()), 12).stderr;
    let point = scratch.point().canonicalize().unwrap();
    assert!(
        String::from_utf8_lossy(&said).contains(&format!("kithfs umount {}", point.display())),
        "{}",
        String::from_utf8_lossy(&said)
    );
    mount.unmount();
}

#[test]
fn each_script_tells_how_it_is_used() {
    let _turn = turn::take();
    // `scripts/memory.sh --help` worked for minutes, `scripts/check.sh --help` ran all tests, and
    // `scripts/fuzz.sh --help` looked for a target of that name.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut told = 0;
    for entry in fs::read_dir(root.join("scripts")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // A script without such a line is sourced by others, not run.
        if !name.ends_with(".sh") || !fs::read_to_string(entry.path()).unwrap().starts_with("#!") {
            continue;
        }
        let path = format!("scripts/{name}");
        let output = expect_code(
            Command::new("bash").args([&path, "--help"]).current_dir(root).stdin(Stdio::null()),
            0,
        );
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&path) && !text.contains("\nset -"), "{path} --help says\n{text}");
        told += 1;
    }
    assert!(told > 10);
}

#[test]
fn a_mount_serves_more_open_files_than_a_shells_limit() {
    // The daemon had the limit of its shell, 1,024 on most systems, for the files of all programs
    // together. Beyond it nothing could be opened, listed or created in the mount, and each program
    // got the error for too many open files of its own.
    if !can_mount() {
        return;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|hard| hard < 500) {
        return println!("skipped: this process may not have 500 files open");
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount_after("ulimit -S -n 100");
    let open: Vec<fs::File> = (0..300)
        .map(|n| fs::File::create_new(scratch.point().join(n.to_string())).unwrap())
        .collect();
    assert_eq!(fs::read_dir(scratch.point()).unwrap().count(), open.len());
    drop(open);
    mount.unmount();
}

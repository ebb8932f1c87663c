//! `kithfs vaults`, `open`, `close` and `status`, and the completion of names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::messages::{may_mount, ordinary_user, run};
use crate::support::mounted::{
    KITHFS, Scratch, can_mount, ends_within, expect_code, is_mounted, shell,
};
use crate::support::people::has;

/// Returns `kithfs SUB` with a configuration directory of its own.
fn kithfs(scratch: &Scratch, sub: &str) -> Command {
    let mut command = scratch.kithfs(sub);
    command.env("XDG_CONFIG_HOME", scratch.path().join("config")).current_dir(scratch.path());
    command
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(expect_code(command, 0).stdout).unwrap()
}

fn stderr(command: &mut Command, code: i32) -> String {
    String::from_utf8(expect_code(command, code).stderr).unwrap()
}

/// Returns the entry of the vault `photos` in the JSON of `status`.
fn status(scratch: &Scratch) -> serde_json::Value {
    let all = stdout(kithfs(scratch, "status").args(["--json", "photos"]));
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    all[0].clone()
}

#[test]
fn a_name_stands_for_vault_mount_point_and_options() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let point = scratch.point();
    let add = ["add", "photos", "--idle", "1h", "-o", "noexec", "vault", "mnt"];
    expect_code(kithfs(&scratch, "vaults").args(add), 0);
    let root = scratch.path().display();
    assert_eq!(
        stdout(kithfs(&scratch, "vaults").arg("list")),
        format!("photos: {root}/vault on {root}/mnt -onoexec --idle=1h\n")
    );
    // From any directory, because paths are stored in full.
    expect_code(kithfs(&scratch, "open").arg("photos").current_dir("/"), 0);
    let options = shell(scratch.path(), "findmnt -nro VFS-OPTIONS mnt");
    fs::write(point.join("note"), "dear Ann").unwrap();
    let again = stderr(kithfs(&scratch, "open").arg("photos"), 0);
    let open = status(&scratch);
    expect_code(kithfs(&scratch, "close").arg("photos"), 0);
    assert!(options.contains("noexec"), "{options}");
    assert!(again.contains("photos is already open on"), "{again}");
    assert_eq!(open["state"], "open");
    assert_eq!(open["mountpoint"], point.to_str().unwrap());
    assert!(open["pid"].is_u64() && open["since"].is_i64() && open["read_only"] == false);
    assert!(!is_mounted(&point));
    // A given option takes precedence over the stored one.
    expect_code(kithfs(&scratch, "open").args(["photos", "-o", "ro"]), 0);
    let options = shell(scratch.path(), "findmnt -nro VFS-OPTIONS mnt");
    expect_code(kithfs(&scratch, "close").arg("photos"), 0);
    assert!(options.contains("ro,") && !options.contains("noexec"), "{options}");
    let closed = status(&scratch);
    assert_eq!(closed["state"], "closed");
    assert!(closed["pid"].is_null() && closed["idle_seconds"].is_null());
    assert_eq!(
        stdout(kithfs(&scratch, "status").arg("photos")),
        format!("photos: {root}/vault: closed\n")
    );
}

#[test]
fn a_name_is_changed_and_forgotten() {
    let scratch = Scratch::new(&[]);
    expect_code(kithfs(&scratch, "vaults").args(["add", "a", "vault", "mnt", "--read-only"]), 0);
    let file = scratch.path().join("config/kithfs/vaults.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("# mine\n{text}")).unwrap();
    let set = ["set", "a", "--unset", "read-only", "--key-file", "key", "--mountpoint", "other"];
    expect_code(kithfs(&scratch, "vaults").args(set), 0);
    let root = scratch.path().display();
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        format!(
            "# mine\n[a]\nvault = \"{root}/vault\"\nmountpoint = \"{root}/other\"\nkey-file = \"{root}/key\"\n"
        )
    );
    // A vault has one source of its secret.
    expect_code(kithfs(&scratch, "vaults").args(["set", "a", "--passphrase-command", "pass"]), 0);
    let list = stdout(kithfs(&scratch, "vaults").args(["list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list[0]["options"], serde_json::json!(["--passphrase-command=pass"]));
    expect_code(kithfs(&scratch, "vaults").args(["remove", "a"]), 0);
    assert_eq!(stdout(kithfs(&scratch, "vaults").arg("list")), "");
    assert!(scratch.vault().join("+share").exists(), "the vault stays");
}

#[test]
fn errors_about_names_are_reported() {
    let scratch = Scratch::new(&[]);
    let add = |name: &str| {
        let mut command = kithfs(&scratch, "vaults");
        command.args(["add", name, "vault", "mnt"]);
        command
    };
    expect_code(&mut add("a"), 0);
    assert!(stderr(&mut add("a"), 2).contains("hint: change it: kithfs vaults set a"));
    assert!(stderr(&mut add("a/b"), 2).contains("a name has at most 64 letters"));
    for sub in ["open", "close", "status", "lock"] {
        let said = stderr(kithfs(&scratch, sub).arg("b"), 12);
        assert!(said.contains("hint: "), "{said}");
    }
    let said = stderr(kithfs(&scratch, "close").arg("a"), 12);
    assert!(said.contains("nothing is mounted") || said.contains("no mount"), "{said}");
    expect_code(&mut kithfs(&scratch, "close"), 2);
    let file = scratch.path().join("config/kithfs/vaults.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}idel = \"5m\"\n")).unwrap();
    let said = stderr(kithfs(&scratch, "open").arg("a"), 2);
    assert!(said.contains("[a] idel is not an option of `kithfs mount`"), "{said}");
    fs::write(&file, "[a\n").unwrap();
    let said = stderr(kithfs(&scratch, "open").arg("a"), 2);
    assert!(said.contains("hint: correct the line: nano +1 "), "{said}");
    // A shell runs the passphrase-command in the file, so only its owner may write to it.
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(stderr(kithfs(&scratch, "open").arg("a"), 14).contains("other users may write to it"));
}

/// Two commands open one vault at once: one of them does, and the other one reports that it is
/// open. The vault can be closed at once.
#[test]
fn one_of_two_simultaneous_opens_wins() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    // Each of them would make the mount point, which does not exist, and remove it.
    let point = scratch.path().join("new");
    expect_code(kithfs(&scratch, "vaults").args(["add", "photos", "vault", "new"]), 0);
    for _ in 0..3 {
        let open = || {
            let mut open = kithfs(&scratch, "open");
            open.arg("photos").stderr(std::process::Stdio::piped()).spawn().unwrap()
        };
        let all = [open(), open()].map(|open| open.wait_with_output().unwrap());
        let codes = all.each_ref().map(|output| output.status.code().unwrap());
        let said = all.each_ref().map(|output| String::from_utf8_lossy(&output.stderr));
        let is_open = is_mounted(&point);
        let closed = expect_code(kithfs(&scratch, "close").arg("photos"), 0);
        assert!(is_open && codes.contains(&0), "{said:?}");
        let told = ["is already open", "it is in use by", "it is mounted on", "already mounted"];
        for (code, said) in codes.iter().zip(&said) {
            let is_told = told.iter().any(|told| said.contains(told));
            assert!(matches!(code, 0 | 7 | 9) && (*code == 0 || is_told), "{code}: {said}");
        }
        assert!(!is_mounted(&point) && !point.exists(), "{closed:?}");
    }
}

/// `vaults set` read the file before it took the lock. Of two simultaneous changes one was lost
/// without a message, and a name that was being removed came back.
#[test]
fn simultaneous_changes_of_names_are_all_kept() {
    let scratch = Scratch::new(&[]);
    let start = |words: &[&str]| {
        let mut command = kithfs(&scratch, "vaults");
        command.args(words).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    expect_code(kithfs(&scratch, "vaults").args(["add", "a", "vault", "mnt"]), 0);
    for round in 0..5 {
        let other = format!("other{round}");
        let started = [
            start(&["set", "a", "--idle", "5m"]),
            start(&["set", "a", "-o", "noexec"]),
            start(&["set", "a", "--read-only"]),
            start(&["add", &other, "vault", "mnt"]),
        ];
        for mut child in started {
            assert!(child.wait().unwrap().success());
        }
        let list = stdout(kithfs(&scratch, "vaults").arg("list"));
        let line = list.lines().next().unwrap();
        for option in ["--idle=5m", "-onoexec", "--read-only"] {
            assert!(line.contains(option), "{option} was lost: {line}");
        }
        assert!(list.contains(&other), "{list}");
        let unset = ["set", "a", "--unset", "idle", "--unset", "o", "--unset", "read-only"];
        expect_code(kithfs(&scratch, "vaults").args(unset), 0);
        let removed = [start(&["set", &other, "--idle", "5m"]), start(&["remove", &other])];
        for mut child in removed {
            child.wait().unwrap();
        }
        let list = stdout(kithfs(&scratch, "vaults").arg("list"));
        assert!(!list.contains(&other), "the removed name came back: {list}");
    }
}

/// Another program unmounted between the look at the mount table and the unmount. `close` then
/// printed the words of fusermount3, "not found in /etc/mtab".
#[test]
fn a_close_beside_an_unmount_is_no_error() {
    let Some(bob) = ordinary_user().filter(may_mount) else { return };
    run(&bob, "init vault", 0);
    run(&bob, "vaults add photos vault plain", 0);
    bob.shell("mkdir bin; cat > bin/fusermount3 <<'end'\n#!/bin/sh\nPATH=${PATH#*:}\nfusermount3 \"$@\"\nexec fusermount3 \"$@\"\nend\nchmod +x bin/fusermount3");
    run(&bob, "open photos", 0);
    let path = format!("{}/bin:{}", bob.home().display(), std::env::var("PATH").unwrap());
    let output = bob.kithfs(&["close", "photos"]).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_open = is_mounted(&bob.home().join("plain"));
    if is_open {
        run(&bob, "close photos", 0);
    }
    assert!(!is_open && output.status.success() && said.is_empty(), "{said}");
    assert!(!bob.home().join("plain").exists(), "the mount point stays");
}

/// Contents of vaults.toml, a command, its exit code, and required parts of its message.
type WrongFile = (&'static [u8], &'static str, i32, &'static [&'static str]);

const WRONG_FILES: &[WrongFile] = &[
    (b"# x\n[a\n", "open a", 2, &["vaults.toml: line 2: ", "nano +2 "]),
    (b"# x\r\n[a\r\n", "vaults list", 2, &["vaults.toml: line 2: ", "nano +2 "]),
    (b"[a]\n[a]\n", "status", 2, &["line 2: duplicate key", "nano +2 "]),
    (b"\na = 1\n", "close a", 2, &["line 2: a is no table", "nano +2 "]),
    (b"[\"a/b\"]\n", "vaults list", 2, &["line 1: `a/b` is no name for a vault", "nano +1 "]),
    (b"[a]\nvault = 5\n", "open a", 2, &["line 2: [a] has no path vault", "nano +2 "]),
    (
        b"[a]\nvault = \"/v\"\nmountpoint = \"m\"\n",
        "vaults add b v m",
        2,
        &["line 3: [a] mountpoint begins with neither", "nano +3 "],
    ),
    (b"[a]\nvault = \"\xff\"\n", "vaults list", 1, &["line 2: it is not UTF-8", "nano +2 "]),
    (&[b'#'; (1 << 20) + 1], "vaults list", 1, &["it is larger than 1048576 bytes", "hint: "]),
];

/// Lines below a valid vault and mount point, and what `open` prints about them.
const WRONG_OPTIONS: &[(&str, &[&str])] = &[
    ("idel = \"5m\"", &["line 4: [a] idel is not an option", "kithfs vaults set a --unset idel"]),
    ("idle = \"soon\"", &["line 4: [a] invalid value 'soon'", "--unset idle"]),
    ("read-only = \"yes\"", &["line 4: [a] unexpected value 'yes'", "--unset read-only"]),
    ("options = \"nonsense\"", &["line 4: [a] unknown mount option", "--unset options"]),
    ("help = true", &["line 4: [a] help is not an option", "--unset help"]),
    (
        "key-file = \"k\"\npassphrase-file = \"p\"",
        &["line 5: [a] the argument", "--unset passphrase-file"],
    ),
];

/// The message did not name the line, and an option that does not exist was noticed only after the
/// vault was found.
#[test]
fn a_wrong_file_of_names_is_reported_with_its_line() {
    let scratch = Scratch::new(&[]);
    let dir = scratch.path().join("config/kithfs");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("vaults.toml");
    let fails = |line: &str, code: i32, parts: &[&str]| {
        let mut words = line.split(' ');
        let mut command = kithfs(&scratch, words.next().unwrap());
        let said = stderr(command.args(words), code);
        assert!(said.contains("vaults.toml") && said.contains("\nhint: "), "{line}: {said}");
        for part in parts {
            assert!(said.contains(part), "{line}: {part:?} is missing in {said}");
        }
    };
    for (text, line, code, parts) in WRONG_FILES {
        fs::write(&file, text).unwrap();
        fails(line, *code, parts);
    }
    for (text, parts) in WRONG_OPTIONS {
        let text = format!("[a]\nvault = \"/v\"\nmountpoint = \"/m\"\n{text}\n");
        fs::write(&file, text + "[b]\nvault = \"/w\"\nmountpoint = \"/n\"\n").unwrap();
        fails("open a", 2, parts);
        // These commands reported nothing of an option that keeps the vault from being opened.
        for line in ["vaults list", "status"] {
            fails(line, 0, parts);
            let mut words = line.split(' ');
            let shown = stdout(kithfs(&scratch, words.next().unwrap()).args(words));
            let names = [shown.contains("a: /v"), shown.contains("b: /w")];
            assert_eq!(names, [true, true], "{line}: {shown}");
        }
    }
    fs::remove_file(&file).unwrap();
    shell(&dir, "mkdir vaults.toml");
    fails("vaults list", 1, &["it is not a regular file", "hint: see what it is: ls -ld "]);
    shell(&dir, "rmdir vaults.toml; mkfifo vaults.toml");
    fails("open a", 1, &["it is not a regular file", "hint: see what it is: ls -ld "]);
}

#[test]
fn a_name_survives_a_daemon_that_was_killed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    expect_code(kithfs(&scratch, "vaults").args(["add", "photos", "vault", "mnt"]), 0);
    expect_code(kithfs(&scratch, "open").arg("photos"), 0);
    let pid = status(&scratch)["pid"].to_string();
    shell(scratch.path(), &format!("kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do :; done"));
    let killed = status(&scratch);
    let refused = stderr(kithfs(&scratch, "open").arg("photos"), 7);
    let closed = stderr(kithfs(&scratch, "close").arg("photos"), 0);
    assert_eq!(killed["state"], "closed", "{killed}");
    assert!(refused.contains("has died") && refused.contains("hint: "), "{refused}");
    assert!(closed.contains("its daemon had already died"), "{closed}");
    expect_code(kithfs(&scratch, "open").arg("photos"), 0);
    expect_code(kithfs(&scratch, "close").arg("photos"), 0);
    // A second time, when the vault is not open.
    let again = stderr(kithfs(&scratch, "close").arg("photos"), 12);
    assert!(again.contains("nothing is mounted there"), "{again}");
}

#[test]
fn status_counts_what_needs_attention() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    expect_code(kithfs(&scratch, "vaults").args(["add", "photos", "vault", "mnt"]), 0);
    expect_code(kithfs(&scratch, "open").arg("photos"), 0);
    let point = scratch.point();
    let mut file = fs::File::create(point.join("note")).unwrap();
    std::io::Write::write_all(&mut file, b"dear Ann").unwrap();
    // A write that the kernel has handed over, without an fsync.
    let handed_over = Command::new("sync").arg("-f").arg(&point).status();
    let busy = status(&scratch);
    file.sync_all().unwrap();
    let synced = status(&scratch);
    let stored = shell(&scratch.vault(), "ls | grep -v '^+'");
    drop(file);
    expect_code(kithfs(&scratch, "close").arg("photos"), 0);
    assert!(handed_over.is_ok_and(|status| status.success()));
    assert!(busy["unsynced_files"].is_u64() && busy["forks"] == 0, "{busy}");
    assert_eq!(synced["unsynced_files"], 0, "{synced}");
    assert_eq!(synced["unsynced_bytes"], 0, "{synced}");
    // A sync tool keeps both versions of a file.
    let stored = scratch.vault().join(stored.trim());
    let copy = format!("{}.sync-conflict-20260101-120000-ABCDEFG", stored.display());
    fs::copy(&stored, copy).unwrap();
    let said = stdout(kithfs(&scratch, "status").arg("photos"));
    assert!(said.ends_with(": closed, 1 conflict copy\n"), "{said}");
    assert_eq!(status(&scratch)["rollback_alarms"], 0);
    fs::rename(scratch.vault(), scratch.path().join("away")).unwrap();
    assert_eq!(status(&scratch)["state"], "missing");
}

/// Creates two names of vaults, and files whose names have to be quoted.
fn to_complete() -> Scratch {
    let scratch = Scratch::new(&[]);
    for name in ["photos", "music.2026"] {
        expect_code(kithfs(&scratch, "vaults").args(["add", name, "vault", "mnt"]), 0);
    }
    fs::create_dir(scratch.path().join("my dir")).unwrap();
    for name in ["my dir/it's", "colon:one", "dollar$one", "quote\"one", "plain"] {
        fs::write(scratch.path().join(name), "").unwrap();
    }
    scratch
}

/// Returns the lines that a script of a shell prints. It runs in the directory of [`to_complete`],
/// with `kithfs` in the PATH.
fn lines_of(shell: &mut Command, scratch: &Scratch) -> Vec<String> {
    let path = format!(
        "{}:{}",
        Path::new(KITHFS).parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    shell.current_dir(scratch.path()).env("PATH", path).env("HOME", scratch.path());
    let said = stdout(shell.env("XDG_CONFIG_HOME", scratch.path().join("config")));
    said.lines().map(str::to_owned).collect()
}

/// The script inserted the names of files without quotes, and completed no value after `--color=`.
#[test]
fn bash_completes_commands_options_and_names() {
    let scratch = to_complete();
    // As readline does: passes the words of the line to the function that the script has
    // registered. `default` is readline's own completion of files.
    let script = r#"
        source <(kithfs completion bash)
        compopt() { echo -n "${@: -1} "; }
        complete_line() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9 COMPREPLY=()
            local IFS=' '
            COMP_LINE=${LINE-$*} COMP_POINT=${#COMP_LINE}
            local function
            function=$(complete -p kithfs | sed 's/.*-F \([^ ]*\) .*/\1/')
            "$function" kithfs "${@: -1}" 2>/dev/null
            echo "${COMPREPLY[*]}"
        }
        complete_line kithfs op
        complete_line kithfs open p
        complete_line kithfs close photos mu
        complete_line kithfs vaults set ph
        complete_line kithfs vaults remove ph
        complete_line kithfs open --idl
        complete_line kithfs get my
        complete_line kithfs mount vault ''
        complete_line kithfs cat vault pl
        LINE='kithfs --color=al' complete_line kithfs --color = al
        LINE='kithfs --color=' complete_line kithfs --color =
        LINE='kithfs mount --key-file=p' complete_line kithfs mount --key-file = p
    "#;
    assert_eq!(
        lines_of(Command::new("bash").args(["-c", script]), &scratch),
        [
            "open",
            "photos",
            "music.2026",
            "photos",
            "photos",
            "--idle",
            "default ",
            "default ",
            "",
            "always",
            "auto always never",
            "default ",
        ]
    );
}

/// Files in directories whose names have to be quoted, and files in the home directory, were not
/// completed.
#[test]
fn fish_completes_commands_options_names_and_files() {
    if !has("fish") {
        return;
    }
    let scratch = to_complete();
    let script = r#"
        kithfs completion fish | source
        for line in 'kithfs op' 'kithfs open p' 'kithfs close photos mu' 'kithfs vaults set ph' \
                'kithfs open --idl' 'kithfs --color=al' 'kithfs get my' 'kithfs get my\ dir/i' \
                'kithfs get "my dir/i' 'kithfs get ~/pl' 'kithfs get $HOME/pl' 'kithfs get col' \
                'kithfs mount --key-file=dol' 'kithfs cat vault pl'
            echo (complete -C $line | string replace -r '\t.*' '')
        end
    "#;
    assert_eq!(
        lines_of(Command::new("fish").args(["--no-config", "-c", script]), &scratch),
        [
            "open",
            "photos",
            "music.2026",
            "photos",
            "--idle",
            "--color=always",
            "my dir/",
            "my dir/it's",
            "my dir/it's",
            "~/plain",
            "$HOME/plain",
            "colon:one",
            "--key-file=dollar$one",
            "",
        ]
    );
}

/// The first completion of a shell did nothing if the script was in a directory of `$fpath`, and
/// files in directories whose names have to be quoted were not completed.
#[test]
fn zsh_completes_commands_options_names_and_files() {
    if !has("zsh") {
        return;
    }
    let scratch = to_complete();
    // Types each line in an interactive shell, then Tab, and has the shell print the line.
    let script = r#"
        zmodload zsh/zpty
        mkdir functions && kithfs completion zsh > functions/_kithfs
        mkfifo go
        zpty -b shell "TERM=dumb zsh -f -i"
        zpty -w shell 'fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -D -u'
        zpty -w shell 'show() { print -r -- "<$BUFFER>" >> shown; BUFFER=; : >> go }'
        zpty -w shell 'zle -N show; bindkey "^T" show; unsetopt list_beep; : >> go'
        read -t 30 < go
        for line in 'kithfs op' 'kithfs open p' 'kithfs close photos mu' 'kithfs vaults set ph' \
                'kithfs open --idl' 'kithfs --color=al' 'kithfs get my' 'kithfs get my\ dir/i' \
                'kithfs get "my dir/i' 'kithfs get ~/pl' 'kithfs get $HOME/pl' 'kithfs get col' \
                'kithfs mount --key-file=dol' 'kithfs cat vault pl'; do
            zpty -w -n shell "$line"$'\t\x14'
            read -t 30 < go
        done
        cat shown
    "#;
    let lines =
        lines_of(&mut ends_within(120, Command::new("zsh").args(["-f", "-c", script])), &scratch);
    assert_eq!(
        lines,
        [
            "<kithfs open >",
            "<kithfs open photos >",
            "<kithfs close photos music.2026 >",
            "<kithfs vaults set photos >",
            "<kithfs open --idle >",
            "<kithfs --color=always >",
            r"<kithfs get my\ dir/>",
            r"<kithfs get my\ dir/it\'s >",
            r#"<kithfs get "my dir/it's" >"#,
            "<kithfs get ~/plain >",
            "<kithfs get $HOME/plain >",
            "<kithfs get colon:one >",
            r"<kithfs mount --key-file=dollar\$one >",
            "<kithfs cat vault pl>",
        ]
    );
}

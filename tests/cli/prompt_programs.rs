//! Secrets from prompt programs, without a terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Output, Stdio};

use crate::support::mounted::ends_within;
use crate::support::people::{Person, has, key, refused, said, stderr, wait_until};
use crate::support::terminal::Terminal;

fn with_vault() -> Person {
    let ann = Person::new("ann");
    ann.ok(&["init", "--kdf-memory", "32", "--kdf-passes", "1", "vault"]);
    ann.ok(&["mkdir", "vault", "letters"]);
    ann
}

/// Writes a program to the home.
fn program(ann: &Person, name: &str, text: &str) -> String {
    let path = ann.write(name, &format!("#!/bin/sh\n{text}"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn ls(ann: &Person, prompt: &str) -> Output {
    let mut command = ann.kithfs(&["ls", "vault"]);
    command.env_remove("KITHFS_PASSPHRASE_FILE").env("KITHFS_PROMPT", prompt).output().unwrap()
}

#[test]
fn a_prompt_program_gets_the_question_and_prints_the_secret() {
    let ann = with_vault();
    let asks = program(&ann, "asks", "echo \"$1\" >asked; cat passphrase");
    let done = ls(&ann, &asks);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    let asked = fs::read_to_string(ann.home().join("asked")).unwrap();
    assert_eq!(asked, "Passphrase of the vault ~/vault\n");
    // What a program has printed before it fails is no passphrase.
    let told = ls(&ann, &program(&ann, "closed", "cat passphrase; exit 1"));
    refused(&told, "closed: it gave no passphrase, and ended with exit status: 1");
    assert_eq!(told.status.code(), Some(3));
    refused(&ls(&ann, &program(&ann, "silent", "exit 0")), "it gave no passphrase");
    refused(&ls(&ann, "/nowhere"), "run prompt program /nowhere");
    // A mistyped passphrase is asked for again, three times in all.
    let wrong = program(&ann, "wrong", "echo again >>count; echo wrong");
    let told = ls(&ann, &wrong);
    assert_eq!(told.status.code(), Some(3));
    assert_eq!(fs::read_to_string(ann.home().join("count")).unwrap().lines().count(), 3);
}

#[test]
fn a_pinentry_is_asked_by_its_protocol() {
    let ann = with_vault();
    let pinentry = program(
        &ann,
        "pinentry-test",
        r#"echo OK Pleased to meet you
while read -r command rest; do
    echo "$command $rest" >>heard
    case $command in
        GETPIN) printf 'D %s\n' "$(sed 's/ /%20/g' passphrase)"; echo OK ;;
        BYE) echo OK; exit 0 ;;
        *) echo OK ;;
    esac
done
"#,
    );
    let done = ls(&ann, &pinentry);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
    let heard = fs::read_to_string(ann.home().join("heard")).unwrap();
    assert!(heard.contains("SETDESC Passphrase of the vault ~/vault\n"), "{heard}");
    let closed = program(
        &ann,
        "pinentry-closed",
        "echo OK; while read -r c; do case $c in GETPIN) echo ERR 83886179 cancelled ;; *) echo OK ;; esac; done\n",
    );
    let told = ls(&ann, &closed);
    refused(&told, "pinentry-closed: it was cancelled");
    assert_eq!(told.status.code(), Some(3));
}

/// The real pinentry for terminals. It was told neither which terminal to ask at nor that the
/// question is UTF-8, so it asked nobody, and letters outside of ASCII were shown as two others. A
/// cancelled question was reported as "the answer was not yes".
#[test]
fn the_real_pinentry_asks_at_the_terminal_of_gpg() {
    if !has("pinentry-curses") {
        return;
    }
    let ann = with_vault();
    fs::rename(ann.home().join("vault"), ann.home().join("d\u{e9}j\u{e0}")).unwrap();
    let ask = || {
        let kithfs = env!("CARGO_BIN_EXE_kithfs");
        let mut command = ann.program(&format!("GPG_TTY=$(tty) exec {kithfs} ls d\u{e9}j\u{e0}"));
        command.env_remove("KITHFS_PASSPHRASE_FILE").env("KITHFS_PROMPT", "pinentry-curses");
        command.env("LC_ALL", "C.UTF-8");
        let mut terminal = Terminal::start(command);
        terminal.expect("d\u{e9}j\u{e0}").expect("<Cancel>");
        terminal
    };
    let mut terminal = ask();
    terminal.type_line("passphrase of ann\r").expect("letters");
    let (code, told) = terminal.end();
    assert_eq!(code, 0, "{told}");
    // Two tabs lead to the second button, which cancels.
    let mut terminal = ask();
    terminal.type_line("\t\t\r").expect("pinentry-curses: it was cancelled");
    assert_eq!(terminal.end().0, 3);
}

/// `--ssh FIFO` and others waited without end where no program wrote to the FIFO.
#[test]
fn a_fifo_is_read_and_is_not_waited_for_without_end() {
    let ann = with_vault();
    let script = |script: &str| {
        let mut command = ann.program("exec bash -euc \"$SCRIPT\"");
        command.env("SCRIPT", script).env("KITHFS", env!("CARGO_BIN_EXE_kithfs"));
        command
    };
    let mut done = script(
        "unset KITHFS_PASSPHRASE_FILE; \"$KITHFS\" ls vault --passphrase-file <(cat passphrase)",
    );
    assert_eq!(said(&done.output().unwrap()), "letters\n", "by process substitution");
    let (made, told) = ann.shell("mkfifo fifo");
    assert!(made, "{told}");
    let bob = Person::with_identity("bob");
    ann.ok(&["contact", "add", "Bob", &key(&bob)]);
    let fifo = ann.home().join("fifo");
    let waiting: Vec<_> = [
        &["contact", "verify", "Bob", "--ssh", "fifo", "--signature", "passphrase"][..],
        &["ls", "vault", "--age-identity", "fifo"],
        &["ls", "vault", "--passphrase-file", "fifo"],
    ]
    .into_iter()
    .map(|args| ann.kithfs(args))
    .chain([bob.kithfs(&["accept", fifo.to_str().unwrap()])])
    .map(|command| {
        let mut command = ends_within(60, &command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    })
    .collect();
    for command in waiting {
        refused(&command.wait_with_output().unwrap(), "no program writes to it");
    }
    refused(&ann.fails(&["ls", "vault", "--identity", "fifo"], 3), "read identity fifo");
}

/// A pinentry answers the command `BYE` too. Its output was closed as soon as it had given the
/// passphrase. Its answer to `BYE` then ended it by SIGPIPE, which was treated as a cancelled
/// question. This was a race, so the program in this test answers with more than a pipe holds.
#[test]
fn a_pinentry_may_answer_the_last_command() {
    let ann = with_vault();
    let pinentry = program(
        &ann,
        "pinentry-talks",
        r#"echo OK
while read -r command rest; do
    case $command in
        GETPIN) printf 'D %s\n' "$(sed 's/ /%20/g' passphrase)"; echo OK ;;
        BYE) printf '# %0200000d\n' 0; echo OK; exit 0 ;;
        *) echo OK ;;
    esac
done
"#,
    );
    let done = ls(&ann, &pinentry);
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
}

/// The real systemd-ask-password, with an agent like those of the desktop and the console.
#[test]
fn systemd_ask_password_asks_the_agents() {
    let is_root = rustix::process::geteuid().is_root();
    if !has("systemd-ask-password") || !is_root {
        eprintln!("SKIPPED: systemd-ask-password as root");
        return;
    }
    let ann = with_vault();
    let questions = std::path::Path::new("/run/systemd/ask-password");
    let before: Vec<_> = listed(questions);
    let kithfs = ann
        .kithfs(&["ls", "vault"])
        .env_remove("KITHFS_PASSPHRASE_FILE")
        .env("KITHFS_PROMPT", "systemd-ask-password")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ours = || {
        listed(questions).into_iter().filter(|name| !before.contains(name)).find_map(|name| {
            let text = fs::read_to_string(questions.join(name)).ok()?;
            let is_ours = text.contains("Passphrase of the vault");
            text.lines()
                .find_map(|line| line.strip_prefix("Socket="))
                .filter(|_| is_ours)
                .map(str::to_owned)
        })
    };
    wait_until("the question is asked", || ours().is_some());
    let agent = UnixDatagram::unbound().unwrap();
    agent.send_to(b"+passphrase of ann", ours().unwrap()).unwrap();
    let done = kithfs.wait_with_output().unwrap();
    assert_eq!(said(&done), "letters\n", "{}", stderr(&done));
}

fn listed(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("ask."))
        .collect()
}

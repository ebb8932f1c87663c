//! Secrets from prompt programs, without a terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Output, Stdio};

use crate::support::people::{Person, has, refused, said, stderr, wait_until};

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
    refused(&ls(&ann, &program(&ann, "closed", "exit 1")), "");
    refused(&ls(&ann, &program(&ann, "silent", "exit 0")), "");
    refused(&ls(&ann, "/nowhere"), "run prompt program /nowhere");
    // A mistyped passphrase is asked for again, three times in all.
    let wrong = program(&ann, "wrong", "echo again >>count; echo wrong");
    let told = ls(&ann, &wrong);
    assert_eq!(told.status.code(), Some(3));
    assert_eq!(fs::read_to_string(ann.home().join("count")).unwrap().lines().count(), 3);
}

#[test]
fn pinentry_is_spoken_to_in_its_protocol() {
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
    assert!(!told.status.success() && said(&told).is_empty());
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

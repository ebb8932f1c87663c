//! The rollback database as a user meets it: on a real mount, and after a restored backup.

use std::fs;
use std::process::Command;

use crate::support::mounted::{Scratch, can_mount, expect_code, shell};

fn told(scratch: &Scratch, code: i32) -> serde_json::Value {
    let output = expect_code(
        scratch.kithfs("rollback").args(["--json", "--settle", "0"]).arg(scratch.vault()),
        code,
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// An older version of a file that was put back in the store is reported. After a restored backup
/// one command accepts the older versions.
#[test]
fn a_rolled_back_file_is_reported_and_a_backup_accepted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let letter = scratch.point().join("letter");
    let mount = scratch.mount(&[]);
    fs::write(&letter, "first").unwrap();
    fs::write(scratch.point().join("other"), "other").unwrap();
    mount.unmount();
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    shell(scratch.path(), "cp -a vault backup");
    let mount = scratch.mount(&[]);
    shell(
        &scratch.point(),
        "echo second >> letter; mv other renamed; mkdir d; echo x > d/x; rm -r d",
    );
    mount.unmount();
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    shell(scratch.path(), "cp -a vault newer; rm -r vault; cp -a backup vault");

    let found = told(&scratch, 22);
    let kinds: Vec<(&str, &str)> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|n| (n["path"].as_str().unwrap(), n["kind"].as_str().unwrap()))
        .collect();
    assert!(kinds.contains(&("letter", "older")), "{found}");
    // The user is not locked out: the vault is mounted and read, and the program reports what it
    // has seen.
    let mount = scratch.mount(&[]);
    assert_eq!(fs::read_to_string(&letter).unwrap(), "first");
    // Beside a mount, too, an alarm waits until a sync that may be in progress has ended.
    expect_code(scratch.kithfs("rollback").arg(scratch.vault()), 0);
    mount.unmount();
    let out = scratch.path().join("out");
    expect_code(
        scratch
            .kithfs("rollback")
            .args(["--settle", "0", "--export"])
            .arg(&out)
            .arg(scratch.vault()),
        22,
    );
    assert_eq!(fs::read_to_string(out.join("letter")).unwrap(), "first");
    // A mistyped name was reported as accepted.
    let mistyped = expect_code(
        scratch.kithfs("accept-rollback").arg(scratch.vault()).args(["letter", "leter"]),
        1,
    );
    assert!(String::from_utf8_lossy(&mistyped.stderr).contains("accept leter"), "{mistyped:?}");
    assert_ne!(told(&scratch, 22), serde_json::json!([]));
    expect_code(scratch.kithfs("accept-rollback").arg(scratch.vault()), 0);
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    // The newer state is put back, with the times of its files, as rsync does. That is no rollback.
    shell(scratch.path(), "rm -r vault; cp -a newer vault");
    let found = told(&scratch, 0);
    assert_eq!(found, serde_json::json!([]));
}

#[test]
fn a_damaged_file_is_not_exported() {
    // The bytes before the first damaged one were left under the name of the file, and looked like a
    // complete file.
    let scratch = Scratch::new(&[]);
    let put = |byte: u8| {
        fs::write(scratch.path().join("plain"), vec![byte; 3 << 20]).unwrap();
        expect_code(
            scratch
                .kithfs("put")
                .arg(scratch.vault())
                .arg("file")
                .arg(scratch.path().join("plain")),
            0,
        );
    };
    put(1);
    shell(scratch.path(), "cp -a vault backup");
    put(2);
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    shell(scratch.path(), "rm -r vault; cp -a backup vault");
    let stored = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("file"), 0).stdout;
    let stored = scratch.vault().join(String::from_utf8(stored).unwrap().trim_end());
    let mut bytes = fs::read(&stored).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&stored, bytes).unwrap();
    let out = scratch.path().join("out");
    let output = expect_code(
        scratch
            .kithfs("rollback")
            .args(["--settle", "0", "--export"])
            .arg(&out)
            .arg(scratch.vault()),
        22,
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("file"), "{output:?}");
    assert!(!out.join("file").exists());
}

/// `--export` followed links below its directory, so a user who owned a part of it could choose
/// where root wrote.
#[test]
fn an_export_writes_through_no_link() {
    let scratch = Scratch::new(&[]);
    let put = |text: &str| {
        fs::write(scratch.path().join("plain"), text).unwrap();
        expect_code(
            scratch
                .kithfs("put")
                .arg(scratch.vault())
                .arg("letters/file")
                .arg(scratch.path().join("plain")),
            0,
        );
    };
    expect_code(scratch.kithfs("mkdir").arg(scratch.vault()).arg("letters"), 0);
    put("first");
    shell(scratch.path(), "cp -a vault backup");
    put("second");
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    shell(
        scratch.path(),
        "rm -r vault; cp -a backup vault; mkdir out outside; ln -s ../outside out/letters",
    );
    let out = scratch.path().join("out");
    let export = || {
        expect_code(
            scratch
                .kithfs("rollback")
                .args(["--settle", "0", "--export"])
                .arg(&out)
                .arg(scratch.vault()),
            22,
        )
    };
    let output = export();
    assert_eq!(fs::read_dir(scratch.path().join("outside")).unwrap().count(), 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("letters/file"), "{output:?}");
    fs::remove_file(out.join("letters")).unwrap();
    export();
    assert_eq!(fs::read_to_string(out.join("letters/file")).unwrap(), "first");
}

#[test]
fn without_rollback_memory_nothing_is_stored() {
    let scratch = Scratch::new(&[]);
    let put = |text: &str| {
        fs::write(scratch.path().join("text"), text).unwrap();
        let mut put = scratch.kithfs("put");
        put.arg("--no-rollback-memory")
            .arg(scratch.vault())
            .arg("letter")
            .arg(scratch.path().join("text"));
        expect_code(&mut put, 0);
    };
    put("first");
    assert!(!scratch.path().join("state").exists());
    let by_variable = |command: &mut Command| {
        expect_code(command.env("KITHFS_NO_ROLLBACK_MEMORY", "1"), 0);
    };
    by_variable(scratch.kithfs("mkdir").arg(scratch.vault()).arg("d"));
    assert!(!scratch.path().join("state").exists());
    expect_code(scratch.kithfs("mkdir").arg(scratch.vault()).arg("e"), 0);
    assert!(scratch.path().join("state/kithfs/seen").is_dir());
}

#[test]
fn a_file_that_is_gone_is_accepted_by_its_name() {
    let scratch = Scratch::new(&[]);
    let text = scratch.path().join("text");
    fs::write(&text, "bytes").unwrap();
    expect_code(scratch.kithfs("put").arg(scratch.vault()).arg("letter").arg(&text), 0);
    let stored = String::from_utf8(
        expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("letter"), 0).stdout,
    )
    .unwrap();
    fs::remove_file(scratch.vault().join(stored.trim_end())).unwrap();
    let found = told(&scratch, 22);
    assert_eq!(
        (&found[0]["path"], &found[0]["kind"]),
        (&"letter".into(), &"gone".into()),
        "{found}"
    );
    expect_code(scratch.kithfs("accept-rollback").arg(scratch.vault()).arg("lett"), 1);
    expect_code(scratch.kithfs("accept-rollback").arg(scratch.vault()).arg("letter"), 0);
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
}

/// All subdirectories of a directory were opened at once. Those for which there was no descriptor
/// were skipped, together with rollbacks in them.
#[test]
fn more_directories_than_descriptors_are_all_compared() {
    let scratch = Scratch::new(&[]);
    let import = |text: &str| {
        shell(
            scratch.path(),
            &format!(
                "mkdir plain; for n in $(seq 150); do mkdir -p plain/$n/below; echo {text} > plain/$n/below/file; done"
            ),
        );
        expect_code(
            scratch.kithfs("import").arg(scratch.path().join("plain")).arg(scratch.vault()),
            0,
        );
        shell(scratch.path(), "rm -r plain");
    };
    import("first");
    assert_eq!(told(&scratch, 0), serde_json::json!([]));
    shell(scratch.path(), "rm vault/[^+]*/*/*");
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    let rollback = scratch.kithfs("rollback");
    few.arg(rollback.get_program()).args(rollback.get_args());
    rollback.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(few.env(name, value)),
        None => drop(few.env_remove(name)),
    });
    let output = expect_code(few.args(["--json", "--settle", "0"]).arg(scratch.vault()), 22);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found.as_array().unwrap().len(), 150);
}

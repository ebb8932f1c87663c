//! `kithfs fsck` as a user runs it: repairs, unanswered questions, dry runs, reports, and a check
//! beside a mount.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::mounted::{Scratch, can_mount, expect_code, shell};

/// Returns the ciphertext of a plain path.
fn cipher(scratch: &Scratch, plain: &str) -> PathBuf {
    let output = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg(plain), 0);
    scratch.vault().join(String::from_utf8(output.stdout).unwrap().trim())
}

fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

/// Creates a vault in which one chunk of `letters/long` is damaged. Returns it with the true
/// contents of that file.
fn damaged() -> (Scratch, Vec<u8>) {
    let scratch = Scratch::new(&["--chunk-size", "4K"]);
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("letters")).unwrap();
    let whole: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(source.join("letters/long"), &whole).unwrap();
    fs::write(source.join("letters/good"), "good").unwrap();
    expect_code(scratch.kithfs("import").arg(&source).arg(scratch.vault()), 0);
    let layout = kithfs::format::layout::Layout::new(12, false).unwrap();
    flip(&cipher(&scratch, "letters/long"), layout.segment_offset(3, 0) + 10);
    (scratch, whole)
}

/// Returns names, modes, times and contents of the vault's directory.
fn image(scratch: &Scratch) -> String {
    shell(
        &scratch.vault(),
        "find . -printf '%p %m %s %T@\\n' | sort; find . -type f | sort | xargs -d '\\n' sha256sum",
    )
}

/// Returns names and contents of the files in the vault's directory.
fn files(scratch: &Scratch) -> String {
    shell(&scratch.vault(), "find . -type f | sort | xargs -d '\\n' sha256sum")
}

fn json(command: &mut Command, code: i32) -> serde_json::Value {
    serde_json::from_slice(&expect_code(command, code).stdout).expect("JSON")
}

/// A dry run changes nothing. A repair sets damaged files aside and reports them.
#[test]
fn a_dry_run_changes_nothing_and_a_repair_reports() {
    let (scratch, whole) = damaged();
    let fsck = || {
        let mut command = scratch.kithfs("fsck");
        command.stdin(std::process::Stdio::null());
        command
    };
    let (before, before_files) = (image(&scratch), files(&scratch));
    let found = json(fsck().args(["--json", "--repair", "--dry-run"]).arg(scratch.vault()), 20);
    assert_eq!(found["faults"][0]["plain"], "letters/long");
    assert_eq!(found["faults"][0]["bad"], serde_json::json!([[12288, 16384]]));
    assert_eq!(found["faults"][0]["good"], serde_json::json!([[0, 12288], [16384, 50000]]));
    assert_eq!(found["faults"][0]["remedy"], "move it to lost+found");
    let text = expect_code(fsck().args(["--repair", "-n"]).arg(scratch.vault()), 20);
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("bad: bytes 12288-16383 of 50000"),
        "{text:?}"
    );
    assert_eq!(image(&scratch), before);
    // No terminal to ask at: the damage stays as it is.
    let refused = expect_code(fsck().arg("--repair").arg(scratch.vault()), 20);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--yes"));
    assert_eq!(files(&scratch), before_files);
    // Another sub-tree has no faults.
    expect_code(fsck().args(["--repair", "--yes"]).arg(scratch.vault()).arg("letters/good"), 0);

    let out = scratch.path().join("out");
    let done = json(
        fsck()
            .args(["--json", "--repair", "--yes", "--salvage"])
            .arg(&out)
            .arg(scratch.vault())
            .arg("letters"),
        0,
    );
    assert_eq!(done["clean"], true);
    let kept = done["faults"][0]["moved_to"].as_str().unwrap().to_owned();
    assert!(kept.starts_with("lost+found/repair-2") && kept.ends_with("/long"), "{kept}");
    let salvaged = fs::read(out.join("letters/long")).unwrap();
    assert_eq!(salvaged.len(), whole.len());
    assert!(salvaged[..12288] == whole[..12288] && salvaged[16384..] == whole[16384..]);
    assert!(salvaged[12288..16384].iter().all(|b| *b == 0), "what is bad is a hole");
    // The report is in the vault, beside the objects that it describes; the vault is clean now and
    // keeps its contents.
    let report = format!("{}/report.json", kept.strip_suffix("/long").unwrap());
    let report = json(scratch.kithfs("cat").arg(scratch.vault()).arg(report), 0);
    assert_eq!(report["faults"][0]["bad"], serde_json::json!([[12288, 16384]]));
    let after = json(fsck().arg("--json").arg(scratch.vault()), 0);
    assert_eq!(
        (after["faults"].as_array().unwrap().len(), after["kept"].as_array().unwrap().len()),
        (0, 1)
    );
    assert!(cipher(&scratch, &kept).is_file());
}

/// `--salvage` followed links below its directory, so a user who owned a part of it chose where
/// root wrote.
#[test]
fn salvage_writes_through_no_link() {
    let (scratch, _) = damaged();
    let (out, outside) = (scratch.path().join("out"), scratch.path().join("outside"));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, out.join("letters")).unwrap();
    let done =
        expect_code(scratch.kithfs("fsck").arg("--salvage").arg(&out).arg(scratch.vault()), 20);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(String::from_utf8_lossy(&done.stderr).contains("salvage to"), "{done:?}");
}

/// If the target had no space left, `--repair --salvage` left a piece of the file there, with the
/// length of the whole file. It moved the damaged file to lost+found nevertheless, and reported
/// success.
#[test]
fn nothing_is_repaired_if_the_salvage_target_is_full() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount a small disk");
    }
    let (scratch, _) = damaged();
    let small = scratch.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=20k", "none"]).arg(&small).status();
    if !mount.is_ok_and(|status| status.success()) {
        return println!("skipped: no small disk can be mounted here");
    }
    let unmount = scopeguard::guard((), |()| {
        drop(Command::new("umount").arg(&small).status());
    });
    let before = image(&scratch);
    let repair = |to: &Path, code| {
        let mut fsck = scratch.kithfs("fsck");
        let done = fsck.args(["--repair", "--yes", "--salvage"]).arg(to).arg(scratch.vault());
        String::from_utf8(expect_code(done, code).stderr).unwrap()
    };
    let said = repair(&small.join("out"), 20);
    assert!(said.contains("salvage to ") && said.contains("out/letters/long: No space"), "{said}");
    assert!(said.contains("so damage is not repaired"), "{said}");
    assert!(!small.join("out/letters/long").exists());
    assert_eq!(image(&scratch), before);
    // With room, what is written is for the user alone.
    let out = scratch.path().join("out");
    repair(&out, 0);
    for (path, mode) in [("letters", 0o700), ("letters/long", 0o600)] {
        let kept = fs::metadata(out.join(path)).unwrap().permissions().mode();
        assert_eq!(kept & 0o777, mode, "{path}");
    }
    drop(unmount);
}

/// `fsck` verifies a mounted vault beside the mount and refuses to repair it.
#[test]
fn a_mounted_vault_is_verified_but_not_repaired() {
    if !can_mount() {
        return;
    }
    let (scratch, _) = damaged();
    let mount = scratch.mount(&[]);
    let writer = scratch.point().join("letters/good");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        // Also in a panic; otherwise the scope would wait for the writer for ever.
        scopeguard::defer! { stop.store(true, std::sync::atomic::Ordering::Release) }
        scope.spawn(|| {
            let mut n = 0u64;
            let log = fs::File::create(scratch.point().join("log")).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                fs::write(&writer, vec![n as u8; (n * 313 % 40_000) as usize]).unwrap();
                log.write_all_at(&vec![n as u8; 5000], n * 3000 % 200_000).unwrap();
                n += 1;
            }
        });
        json(scratch.kithfs("fsck").args(["--json", "--online"]).arg(scratch.vault()), 20)
    });
    let faults: Vec<&str> =
        found["faults"].as_array().unwrap().iter().map(|f| f["plain"].as_str().unwrap()).collect();
    assert_eq!(faults, ["letters/long"], "{found}");
    let refused =
        expect_code(scratch.kithfs("fsck").args(["--repair", "--yes"]).arg(scratch.vault()), 21);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mounted"), "{refused:?}");
    mount.unmount();
}

#[test]
fn a_check_reports_and_verifies_a_pending_journal() {
    // A check verified the journal records of a crash as part of the files. It did not report that
    // the files without the journal were older.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let path = scratch.point().join("file");
    fs::write(&path, vec![1; 50_000]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    // A copy of the store during a mount is the state after a crash. The journal is emptied after
    // an idle time, or its records may be in the file already; then the next round makes another
    // copy.
    let copy = scratch.path().join("copy");
    let mut found = serde_json::Value::Null;
    for n in 0..200u8 {
        file.write_all_at(&[n; 4096], 8192).unwrap();
        file.sync_all().unwrap();
        // First the file, then the journal's later state of it.
        shell(scratch.path(), "rm -rf copy; cp -a vault copy");
        file.write_all_at(&[n + 1; 4096], 8192).unwrap();
        file.sync_all().unwrap();
        shell(scratch.path(), "cp -a vault/+journal-* copy/");
        found = json(scratch.kithfs("fsck").arg("--json").arg(&copy), 0);
        if found["in_journal"] == 1 {
            break;
        }
    }
    assert_eq!(found["in_journal"], 1, "{found}");
    let said = expect_code(scratch.kithfs("fsck").arg(&copy), 0);
    assert!(
        String::from_utf8_lossy(&said.stderr).contains("the journal of an interrupted mount"),
        "{said:?}"
    );
    // A repair replays it, although nothing is damaged.
    expect_code(scratch.kithfs("fsck").args(["--repair", "--yes"]).arg(&copy), 0);
    assert!(json(scratch.kithfs("fsck").arg("--json").arg(&copy), 0).get("in_journal").is_none());
    drop(file);
    mount.unmount();
}

#[test]
fn missing_and_unused_attribute_lists_are_reported() {
    // A repair removed the reference to a list that a sync tool delivered only later. Unused lists
    // were not reported at all.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    for name in ["kept", "gone"] {
        fs::write(scratch.point().join(name), name).unwrap();
        let set = rustix::fs::setxattr(
            scratch.point().join(name),
            "user.long",
            &[7; 65_536],
            rustix::fs::XattrFlags::empty(),
        );
        set.unwrap();
    }
    fs::remove_file(scratch.point().join("gone")).unwrap();
    mount.unmount();
    let fsck = || {
        let mut command = scratch.kithfs("fsck");
        command.stdin(std::process::Stdio::null());
        command
    };
    let lists = || {
        shell(&scratch.vault(), "ls | grep ^+attr- || true")
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(lists().len(), 2);
    let found = json(fsck().arg("--json").arg(scratch.vault()), 0);
    assert_eq!(found["unused"]["files"], 1, "{found}");
    let told = expect_code(fsck().arg(scratch.vault()), 0);
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(
        said.contains("1 control files (") && said.contains("not referenced; they are harmless"),
        "{told:?}"
    );
    assert!(!said.contains("hint"), "no action is needed: {told:?}");

    for name in lists() {
        fs::rename(scratch.vault().join(&name), scratch.path().join(&name)).unwrap();
    }
    let left = expect_code(fsck().args(["--repair", "--yes"]).arg(scratch.vault()), 20);
    assert!(
        String::from_utf8_lossy(&left.stdout).contains("--forget-missing-attributes"),
        "{left:?}"
    );
    assert!(!String::from_utf8_lossy(&left.stderr).contains("not referenced"), "{left:?}");
    for name in shell(scratch.path(), "ls | grep ^+attr-").lines() {
        fs::copy(scratch.path().join(name), scratch.vault().join(name)).unwrap();
    }
    expect_code(fsck().arg(scratch.vault()), 0);
    for name in lists() {
        fs::remove_file(scratch.vault().join(name)).unwrap();
    }
    let done = json(
        fsck()
            .args(["--json", "--repair", "--yes", "--forget-missing-attributes"])
            .arg(scratch.vault()),
        0,
    );
    assert!(
        done["faults"][0]["moved_to"].as_str().unwrap().ends_with("/kept.attributes"),
        "{done}"
    );
    let mount = scratch.mount(&[]);
    assert_eq!(
        rustix::fs::setxattr(
            scratch.point().join("kept"),
            "user.new",
            b"value",
            rustix::fs::XattrFlags::empty()
        ),
        Ok(())
    );
    assert_eq!(fs::read(scratch.point().join("kept")).unwrap(), b"kept");
    mount.unmount();
}

#[test]
fn entries_of_a_sync_tool_are_no_faults() {
    // Syncthing keeps a marker in its folder, and unfinished files for a day. A file server keeps a
    // directory of its own in each directory. `fsck` reported all of them as faults, and a
    // directory of the vault that contained one of the file server could not be removed.
    let scratch = Scratch::new(&[]);
    expect_code(scratch.kithfs("mkdir").arg(scratch.vault()).arg("letters"), 0);
    expect_code(scratch.kithfs("put").arg(scratch.vault()).args(["letters/a", "/etc/passwd"]), 0);
    let letters = cipher(&scratch, "letters");
    fs::create_dir(scratch.vault().join(".stfolder")).unwrap();
    fs::write(letters.join(".syncthing.AbCd.tmp"), "half").unwrap();
    fs::write(letters.join("~syncthing~AbCd.tmp"), "").unwrap();
    fs::create_dir_all(letters.join("@eaDir/photo.jpg")).unwrap();
    fs::write(letters.join("@eaDir/photo.jpg/SYNOPHOTO_THUMB_M.jpg"), "small").unwrap();
    let found = json(scratch.kithfs("fsck").arg("--json").arg(scratch.vault()), 0);
    assert_eq!(
        (&found["strangers"], &found["faults"]),
        (&serde_json::json!(4), &serde_json::json!([]))
    );
    let text = expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
    assert!(
        String::from_utf8_lossy(&text.stderr).contains("4 entries not part of the vault"),
        "{text:?}"
    );
    // An unfinished file may be a copy of a file of the vault. A repair leaves all of these in
    // place.
    fs::copy(cipher(&scratch, "letters/a"), letters.join(".syncthing.AbCd.tmp")).unwrap();
    expect_code(scratch.kithfs("fsck").args(["--repair", "--yes"]).arg(scratch.vault()), 0);
    assert!(
        scratch.vault().join(".stfolder").exists() && letters.join(".syncthing.AbCd.tmp").exists()
    );
    // `rm -r` of a directory removes those in it.
    expect_code(scratch.kithfs("rm").arg("-r").arg(scratch.vault()).arg("letters"), 0);
    assert!(
        !letters.exists()
            && json(scratch.kithfs("fsck").arg("--json").arg(scratch.vault()), 0)["strangers"] == 1
    );
    // An unknown control file of the vault itself is a fault.
    fs::write(scratch.vault().join("+unheard-of"), "").unwrap();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 20);
}

/// After nearly every power cut `fsck` exited with 20, as for damage: it found empty files, or
/// bytes after the end of a file. Scripts could not distinguish such residue from damage, and a
/// repair asked about each piece of it.
#[test]
fn residue_of_a_crash_is_no_damage_and_is_cleared() {
    let scratch = Scratch::new(&[]);
    let long = format!("letters/{}", "n".repeat(200));
    expect_code(scratch.kithfs("mkdir").arg(scratch.vault()).arg("letters"), 0);
    for name in ["letters/whole", "letters/empty", &long, "letters/tail"] {
        expect_code(scratch.kithfs("put").arg(scratch.vault()).args([name, "/etc/passwd"]), 0);
    }
    let open = |plain: &str| fs::File::options().write(true).open(cipher(&scratch, plain)).unwrap();
    let leave = || {
        open("letters/empty").set_len(0).unwrap();
        open(&long).set_len(0).unwrap();
        let tail = open("letters/tail");
        tail.write_all_at(b"what an append has left", tail.metadata().unwrap().len()).unwrap();
        fs::write(scratch.vault().join("+tmp-000000000000"), "half").unwrap();
    };
    leave();
    let fsck = |arguments: &[&str], code: i32| {
        let mut command = unseen(&scratch, "fsck");
        command.stdin(std::process::Stdio::null()).arg("--json").args(arguments);
        json(command.arg(scratch.vault()), code)
    };
    let found = fsck(&[], 23);
    let faults = found["faults"].as_array().unwrap();
    assert!(faults.len() == 4 && faults.iter().all(|fault| fault["residue"] == true), "{found}");
    assert_eq!(found["clean"], false);
    let text = expect_code(unseen(&scratch, "fsck").arg(scratch.vault()), 23);
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("letters/empty: left by a crash: is empty"),
        "{text:?}"
    );
    assert!(
        String::from_utf8_lossy(&text.stderr).contains("0 faults, 4 things left by a crash"),
        "{text:?}"
    );
    fsck(&["--repair", "--dry-run"], 23);

    // No question is asked, so none is answered. Bytes that could be data are kept.
    let done = fsck(&["--repair"], 0);
    assert_eq!((&done["clean"], &done["left"]), (&serde_json::json!(true), &serde_json::json!([])));
    let moved = |done: &serde_json::Value| {
        done["faults"].as_array().unwrap().iter().filter(|f| f["moved_to"].is_string()).count()
    };
    assert_eq!(moved(&done), 2, "{done}");
    let listed = expect_code(scratch.kithfs("ls").arg(scratch.vault()).arg("letters"), 0);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "tail\nwhole\n");
    let kept = fsck(&[], 0)["kept"].as_array().unwrap().len();
    assert_eq!(kept, 1, "the unfinished control file");

    // Residue is also cleared if there is damage; the exit code is that of the damage.
    for name in ["letters/empty", &long] {
        expect_code(scratch.kithfs("put").arg(scratch.vault()).args([name, "/etc/passwd"]), 0);
    }
    leave();
    flip(&cipher(&scratch, "letters/whole"), 600);
    let found = fsck(&[], 20);
    assert_eq!(
        found["faults"].as_array().unwrap().iter().filter(|fault| fault["residue"] == true).count(),
        4
    );
    let left = fsck(&["--repair"], 20);
    assert_eq!(left["left"].as_array().unwrap().len(), 1);
    assert_eq!(left["left"][0]["plain"], "letters/whole");
}

/// In a power cut XFS keeps the length of a file that was never synced, and loses its bytes. `fsck`
/// reported such a file as damaged, and a repair asked about each. A file that this machine has
/// seen with contents still counts as damaged: the storage host can overwrite a file with zeros.
#[test]
fn a_file_of_zeros_is_residue_unless_it_was_seen_whole() {
    let scratch = Scratch::new(&[]);
    let source = scratch.path().join("source");
    fs::write(&source, vec![7; 300_000]).unwrap();
    expect_code(scratch.kithfs("put").arg(scratch.vault()).args(["small", "/etc/passwd"]), 0);
    for name in ["large", "torn"] {
        expect_code(scratch.kithfs("put").arg(scratch.vault()).arg(name).arg(&source), 0);
    }
    for name in ["small", "large", "torn"] {
        let file = fs::File::options().write(true).open(cipher(&scratch, name)).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        if name == "torn" {
            file.write_all_at(b"a byte that is not zero", len - 30).unwrap();
        }
    }
    let fsck = |mut command: Command, arguments: &[&str], code: i32| {
        command.stdin(std::process::Stdio::null()).arg("--json").args(arguments);
        json(command.arg(scratch.vault()), code)
    };
    let residue = |found: &serde_json::Value| {
        let faults = found["faults"].as_array().unwrap().iter();
        faults.filter(|fault| fault["residue"] == true).count()
    };

    // A check on the machine that has seen the files.
    let found = fsck(scratch.kithfs("fsck"), &[], 20);
    assert_eq!((found["faults"].as_array().unwrap().len(), residue(&found)), (3, 0), "{found}");
    assert!(found.to_string().contains("this machine has seen it"), "{found}");
    fsck(scratch.kithfs("fsck"), &["--repair"], 20);
    expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg("large"), 10);
    let mut rollback = scratch.kithfs("rollback");
    let told = expect_code(rollback.args(["--settle", "0"]).arg(scratch.vault()), 22);
    assert_eq!(String::from_utf8_lossy(&told.stdout).lines().count(), 3, "{told:?}");

    // A check on a machine that has not. The torn file counts as damaged there too.
    let found = fsck(unseen(&scratch, "fsck"), &[], 20);
    assert_eq!((found["faults"].as_array().unwrap().len(), residue(&found)), (3, 2), "{found}");
    fsck(unseen(&scratch, "fsck"), &["--repair"], 20);
    let listed = expect_code(scratch.kithfs("ls").arg(scratch.vault()), 0);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "lost+found\ntorn\n");
    expect_code(scratch.kithfs("rm").arg(scratch.vault()).arg("torn"), 0);
    expect_code(unseen(&scratch, "fsck").arg(scratch.vault()), 0);
}

/// Returns `kithfs SUB` on a machine that has seen nothing of the vault yet.
fn unseen(scratch: &Scratch, sub: &str) -> Command {
    let mut command = scratch.kithfs(sub);
    command.env("XDG_STATE_HOME", scratch.path().join("another state"));
    command
}

/// Returns the largest resident set of a command, in KiB.
fn peak(command: &mut Command) -> u64 {
    let measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); \
                   print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let mut python = Command::new("python3");
    python.args(["-c", measure]).arg(command.get_program()).args(command.get_args());
    python.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    String::from_utf8(expect_code(&mut python, 0).stdout).unwrap().trim().parse().unwrap()
}

/// A storage host that put a million entries into a directory made each command hold all of them:
/// 134 MiB for `ls`, and 800 MiB for `fsck`, which reported each. A command now holds a part of the
/// listing and the first 10,000 faults.
#[test]
fn memory_is_bounded_with_many_foreign_entries() {
    const ENTRIES: u64 = 100_000;
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let scratch = Scratch::new(&[]);
    expect_code(scratch.kithfs("mkdir").arg(scratch.vault()).arg("letters"), 0);
    let letters = cipher(&scratch, "letters");
    let peaks = || {
        let of = |sub: &str, arguments: &[&str]| {
            peak(scratch.kithfs(sub).arg(scratch.vault()).args(arguments))
        };
        [of("ls", &[]), of("fsck", &[]), of("fsck", &["letters"])]
    };
    let before = peaks();
    for n in 0..ENTRIES / 2 {
        // Names that could be the vault's but are not, and names of a sync tool.
        fs::File::create(letters.join(format!("entry-{n:030}"))).unwrap();
        fs::File::create(scratch.vault().join(format!(".entry-{n:030}"))).unwrap();
    }
    let after = peaks();
    println!("{before:?} {after:?} KiB");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + (8 << 10), "{before} KiB without them, {after} with them");
    }
    let found = json(scratch.kithfs("fsck").arg("--json").arg(scratch.vault()), 20);
    assert_eq!(found["faults"].as_array().unwrap().len(), 10_000);
    assert_eq!(
        found["more"],
        serde_json::json!({ "faults": ENTRIES / 2 - 10_000, "residue": 0, "kept": 0 })
    );
    assert_eq!(found["strangers"], ENTRIES / 2);
}

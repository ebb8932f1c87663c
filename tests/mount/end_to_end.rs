//! The program as a new user uses it: init, mount, real files in and out, unmount; and each way in
//! which that can fail.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::mounted::{
    KITHFS, Scratch, Stopped, can_mount, expect_code, is_mounted, shell,
};
use crate::support::turn;

/// Returns bytes in which every shift and every compression shows.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

#[test]
fn files_go_in_and_come_out_after_a_remount() {
    if !can_mount() {
        return;
    }
    for cipher in ["aes", "chacha"] {
        let scratch = Scratch::new(&["--cipher", cipher]);
        let mount = scratch.mount(&[]);
        let m = scratch.point();
        fs::create_dir(m.join("letters")).unwrap();
        for len in [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145, 3_000_000] {
            fs::write(m.join(format!("letters/{len}")), pattern(len, len as u64)).unwrap();
        }
        mount.unmount();
        let stored = shell(&scratch.vault(), "find . -type f -size +0 | xargs cat");
        assert!(!stored.contains("letters"));
        let mount = scratch.mount(&[]);
        for len in [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145, 3_000_000] {
            let path = m.join(format!("letters/{len}"));
            assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
            assert!(
                fs::read(&path).unwrap() == pattern(len, len as u64),
                "{len} bytes with {cipher}"
            );
        }
        mount.unmount();
        expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
    }
}

#[test]
fn a_background_mount_inherits_no_file_descriptors() {
    // The daemon kept the descriptors of the script that mounted. A reader of the script's output
    // through another descriptor waited until the unmount, a lock stayed locked, and a mount in
    // which the script had a file open stayed busy.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let lock = scratch.path().join("lock");
    let held = fs::File::create(&lock).unwrap();
    held.lock().unwrap();
    // The lock belongs to one open file, and ends when the last descriptor of that file is closed.
    // It is like a lock made in a shell with `exec 3>lock; flock 3`.
    let mut command = Command::new("bash");
    command.args([
        "-euc",
        "exec 3<&0 0</dev/null; exec \"$@\"",
        "bash",
        KITHFS,
        "mount",
        "--passphrase-file",
    ]);
    command
        .arg(scratch.path().join("passphrase"))
        .arg(scratch.vault())
        .arg(scratch.point())
        .stdin(Stdio::from(held));
    expect_code(&mut command, 0);
    drop(command);
    let is_free = fs::File::open(&lock).unwrap().try_lock().is_ok();
    expect_code(scratch.kithfs("umount").arg(scratch.point()), 0);
    assert!(is_free, "the daemon holds the lock");
}

#[test]
fn a_ciphertext_that_somebody_lengthened_reads_as_it_was() {
    // The kernel believed the size that follows from the ciphertext's length, and filled with zeros
    // what the vault refused.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let sizes = [100usize, 5_000, 10_000, 300_000];
    for size in sizes {
        fs::write(scratch.point().join(format!("{size}")), pattern(size, 3)).unwrap();
    }
    mount.unmount();
    for more in [1usize, 100, 4096] {
        for size in sizes {
            let stored =
                expect_code(scratch.kithfs("map").arg(scratch.vault()).arg(format!("{size}")), 0);
            let stored = scratch.vault().join(String::from_utf8(stored.stdout).unwrap().trim());
            fs::OpenOptions::new()
                .append(true)
                .open(&stored)
                .unwrap()
                .write_all(&pattern(more, 9))
                .unwrap();
        }
        for options in [&[][..], &["--read-only"]] {
            let mount = scratch.mount(options);
            for size in sizes {
                // Once with attributes that were looked up before, as a listing does, and once when
                // they are cached.
                let path = scratch.point().join(format!("{size}"));
                fs::metadata(&path).unwrap();
                for _ in 0..2 {
                    assert!(
                        fs::read(&path).unwrap() == pattern(size, 3),
                        "{size} bytes and {more} more"
                    );
                }
                assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
            }
            mount.unmount();
        }
    }
}

#[test]
fn names_of_every_length_and_of_any_bytes_survive() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let m = scratch.point();
    let names: Vec<Vec<u8>> = vec![
        b"a".to_vec(),
        vec![b'b'; 183],
        vec![b'c'; 184],
        vec![b'd'; 255],
        vec![0xff, 0xfe, b'\n', b' ', 0x80],
        "e\u{301}".into(),
        "\u{e9}".into(),
        b"+share".to_vec(),
        b"=looks-like-ours".to_vec(),
    ];
    for name in &names {
        fs::write(m.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    assert_eq!(
        fs::write(m.join("f".repeat(256)), "x").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    mount.unmount();
    let mount = scratch.mount(&[]);
    let mut listed: Vec<Vec<u8>> =
        fs::read_dir(&m).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    listed.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &names {
        assert_eq!(&fs::read(m.join(std::ffi::OsStr::from_bytes(name))).unwrap(), name);
    }
    mount.unmount();
}

#[test]
fn a_freed_name_stays_free_until_the_next_mount() {
    // A conflict copy got the name as soon as the file that really had it was removed or renamed,
    // and data that a program then wrote under the name went into the copy. The kernel remembers
    // for an hour where a name leads, so this is tested here and not only in tests/vault/names.rs.
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let m = scratch.point();
    for (name, text) in [("x", "first"), ("x (1)", "really named so")] {
        fs::write(m.join(name), text).unwrap();
        fs::create_dir(m.join(format!("d{name}"))).unwrap();
        fs::write(m.join(format!("d{name}/inside")), text).unwrap();
    }
    mount.unmount();
    let map = |name: &str| {
        let stored = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg(name), 0).stdout;
        String::from_utf8(stored).unwrap().trim_end().to_owned()
    };
    let [file, dir] = ["x", "dx"].map(|name| format!("{} (1)", map(name)));
    for copy in [&file, &dir] {
        shell(
            &scratch.vault(),
            &format!("cp -r -- '{}' '{copy}'", copy.strip_suffix(" (1)").unwrap()),
        );
    }
    // The names belong to the files that really have them; the copies have marks.
    let marked = |name: &str, stored: &str| {
        let mark = kithfs::format::suffix::mark_of(stored.as_bytes());
        let shown = kithfs::format::suffix::marked(name.as_bytes(), &mark);
        String::from_utf8(shown).unwrap()
    };
    let (file, dir) = (marked("x (1)", &file), marked("dx (1)", &dir));
    let mount = scratch.mount(&[]);
    let listed = || {
        let mut names: Vec<String> = fs::read_dir(&m)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let read = |name: &str| fs::read_to_string(m.join(name)).unwrap();
    let expected = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(), expected(&["x", "x (1)", "dx", "dx (1)", &file, &dir]));
    assert_eq!((read("x (1)"), read(&file)), ("really named so".into(), "first".into()));
    assert_eq!(
        (read("dx (1)/inside"), read(&format!("{dir}/inside"))),
        ("really named so".into(), "first".into())
    );
    // An open file stays the same; a new lookup returns what the listing shows.
    let mut open = fs::File::open(m.join("x (1)")).unwrap();
    fs::remove_file(m.join("x (1)")).unwrap();
    fs::remove_dir_all(m.join("dx (1)")).unwrap();
    assert_eq!(listed(), expected(&["x", "dx", &file, &dir]));
    assert_eq!((read(&file), read(&format!("{dir}/inside"))), ("first".into(), "first".into()));
    assert!(!m.join("x (1)").exists() && !m.join("dx (1)").exists());
    let mut before = String::new();
    open.read_to_string(&mut before).unwrap();
    assert_eq!(before, "really named so");
    drop(open);
    fs::write(m.join("x (1)"), "made anew").unwrap();
    fs::rename(m.join("x (1)"), m.join("backup")).unwrap();
    fs::write(m.join("x (1)"), "and again").unwrap();
    assert_eq!(
        (read("x (1)"), read("backup"), read(&file)),
        ("and again".into(), "made anew".into(), "first".into())
    );
    fs::remove_file(m.join("x (1)")).unwrap();
    fs::remove_file(m.join("backup")).unwrap();
    mount.unmount();
    let mount = scratch.mount(&[]);
    assert_eq!(listed(), expected(&["x", "x (1)", "dx", "dx (1)"]));
    assert_eq!((read("x (1)"), read("dx (1)/inside")), ("first".into(), "first".into()));
    // The names of the copies cannot be used for new files now.
    assert_eq!(
        fs::File::create_new(m.join("x (1)")).unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
    assert_eq!(
        fs::create_dir(m.join("dx (1)")).unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
    fs::write(m.join("x (1)"), "changed").unwrap();
    fs::write(m.join("dx (1)/more"), "more").unwrap();
    fs::rename(m.join("x (1)"), m.join("y")).unwrap();
    fs::rename(m.join("dx (1)"), m.join("dy")).unwrap();
    mount.unmount();
    let mount = scratch.mount(&[]);
    assert_eq!(listed(), expected(&["x", "y", "dx", "dy"]));
    assert_eq!((read("x"), read("y")), ("first".into(), "changed".into()));
    assert_eq!(
        (read("dy/inside"), read("dy/more"), read("dx/inside")),
        ("first".into(), "more".into(), "first".into())
    );
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

#[test]
fn a_file_of_three_gibibytes_and_a_sparse_one_of_a_tebibyte() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let m = scratch.point();
    let part = pattern(1 << 20, 77);
    let mut big = fs::File::create(m.join("big")).unwrap();
    for i in 0..3072u64 {
        let mut part = part.clone();
        part[..8].copy_from_slice(&i.to_le_bytes());
        big.write_all(&part).unwrap();
    }
    drop(big);
    let mut sparse = fs::File::create(m.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for at in [0u64, 512 << 30, (1 << 40) - 5] {
        sparse.seek(SeekFrom::Start(at)).unwrap();
        sparse.write_all(b"isle.").unwrap();
    }
    drop(sparse);
    mount.unmount();
    let mount = scratch.mount(&[]);
    let mut big = fs::File::open(m.join("big")).unwrap();
    assert_eq!(big.metadata().unwrap().len(), 3 << 30);
    let mut read = vec![0; 1 << 20];
    for i in 0..3072u64 {
        big.read_exact(&mut read).unwrap();
        assert_eq!(read[..8], i.to_le_bytes());
        assert!(read[8..] == part[8..]);
    }
    let mut sparse = fs::File::open(m.join("sparse")).unwrap();
    let meta = sparse.metadata().unwrap();
    assert_eq!(meta.len(), 1 << 40);
    assert!(meta.blocks() * 512 < 1 << 20, "a hole takes no space: {} blocks", meta.blocks());
    for at in [0u64, 512 << 30, (1 << 40) - 5] {
        let mut isle = [0; 5];
        sparse.seek(SeekFrom::Start(at)).unwrap();
        sparse.read_exact(&mut isle).unwrap();
        assert_eq!(&isle, b"isle.");
    }
    let mut zeros = [1; 4096];
    sparse.seek(SeekFrom::Start(77 << 30)).unwrap();
    sparse.read_exact(&mut zeros).unwrap();
    assert_eq!(zeros, [0; 4096]);
    drop((big, sparse));
    mount.unmount();
}

/// Prints type, mode, links, owner, size, time to the nanosecond, and link target of each entry;
/// for directories without the values that the filesystem chooses.
const METADATA: &str = r#"find . \( -type d -printf '%P d %m %u %g %T@\n' \) -o -printf '%P %y %m %n %u %g %s %T@ %l\n' | sort"#;

#[test]
fn a_tree_of_ten_thousand_files_is_the_same_after_a_remount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    // Real files as far as the machine has them, and ten thousand generated ones.
    shell(
        &source,
        "cp -a /usr/share/doc /usr/share/man /usr/include . 2>/dev/null || true
         for d in $(seq 40); do mkdir -p more/$d; for f in $(seq 250); do echo $d $f > more/$d/file-$f; done; done
         ln more/1/file-1 more/1/linked; ln -s ../nowhere more/link; mkfifo more/fifo; chmod 4755 more/2/file-2; touch -d '1965-03-01 12:00:00.123456789' more/3/file-3",
    );
    let count: usize = shell(&source, "find . -type f | wc -l").trim().parse().unwrap();
    assert!(count > 10_000);
    let mount = scratch.mount(&[]);
    let copy = scratch.point().join("copy");
    expect_code(Command::new("cp").arg("-a").arg(&source).arg(&copy), 0);
    mount.unmount();
    let mount = scratch.mount(&[]);
    expect_code(
        Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(source.join("more/1"))
            .arg(copy.join("more/1")),
        0,
    );
    shell(
        scratch.path(),
        "rm source/more/fifo mnt/copy/more/fifo && diff -r --no-dereference source mnt/copy",
    );
    let (was, is) = (shell(&source, METADATA), shell(&copy, METADATA));
    let differing: Vec<_> = was.lines().zip(is.lines()).filter(|(a, b)| a != b).take(5).collect();
    // The directory from which the FIFO was just removed has a new time on both sides.
    let differing: Vec<_> =
        differing.into_iter().filter(|(a, _)| !a.starts_with("more d ")).collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert_eq!(was.lines().count(), is.lines().count());
    mount.unmount();
}

#[test]
fn git_and_cargo_work_in_the_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    shell(
        scratch.path(),
        "git init -q origin && cd origin && git config user.email a@b && git config user.name a
         for i in $(seq 300); do echo $i > f$i; git add f$i; if [ $((i % 30)) = 0 ]; then git commit -qm $i; fi; done",
    );
    let mount = scratch.mount(&[]);
    let m = scratch.point();
    shell(
        &m,
        "git clone -q ../origin repo && cd repo && git fsck --strict 2>&1 && git gc -q && git fsck && git status --porcelain | wc -l",
    );
    shell(
        &m,
        "cargo new --quiet --vcs none hello && cd hello && cargo build --quiet --offline && ./target/debug/hello | grep -q Hello",
    );
    shell(
        &m,
        "cd hello && sed -i s/Hello/Servus/ src/main.rs && cargo build --quiet --offline && ./target/debug/hello | grep -q Servus",
    );
    mount.unmount();
    let mount = scratch.mount(&[]);
    shell(
        &m,
        "cd repo && git fsck --strict && git diff --exit-code && ../hello/target/debug/hello | grep -q Servus",
    );
    mount.unmount();
}

#[test]
fn attributes_links_and_special_files() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let m = scratch.point();
    shell(
        &m,
        "echo x > f; ln f g; test $(stat -c %h f) = 2; ln -s f s; test $(readlink s) = f; mkfifo p; test -p p
         setfattr -n user.colour -v blue f; test $(getfattr --only-values -n user.colour g) = blue
         chmod 4711 f; test $(stat -c %a f) = 4711; touch -d '2001-02-03 04:05:06.789012345' f
         test \"$(stat -c %y f | cut -c1-29)\" = '2001-02-03 04:05:06.789012345'
         mkdir d e; echo 1 > d/1; mv d e/; test $(cat e/d/1) = 1; mv e/d .; test $(cat d/1) = 1
         echo old > t; echo new > u; mv u t; test $(cat t) = new; df . > /dev/null",
    );
    let long = "x".repeat(4000);
    std::os::unix::fs::symlink(&long, m.join("longlink")).unwrap();
    mount.unmount();
    let mount = scratch.mount(&[]);
    assert_eq!(fs::read_link(m.join("longlink")).unwrap().as_os_str().len(), 4000);
    assert_eq!(fs::symlink_metadata(m.join("longlink")).unwrap().len(), 4000);
    shell(
        &m,
        "test $(stat -c %h f) = 2; test $(stat -c %i f) = $(stat -c %i g); test $(getfattr --only-values -n user.colour g) = blue
         test $(stat -c %a f) = 4711; test \"$(stat -c %y f | cut -c1-29)\" = '2001-02-03 04:05:06.789012345'
         test -p p; test $(cat d/1) = 1; test $(cat t) = new; rm -r d e f g s p t longlink; test -z \"$(ls -A)\"",
    );
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

#[test]
fn each_mistake_has_a_message_a_hint_and_a_code() {
    let scratch = Scratch::new(&[]);
    let said = |command: &mut Command, code: i32, words: &[&str]| {
        let output = expect_code(command, code);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for word in words.iter().chain(&["hint:"]) {
            assert!(text.contains(word), "{command:?} should say {word:?}:\n{text}");
        }
    };
    let wrong = scratch.path().join("wrong");
    fs::write(&wrong, "wrong\n").unwrap();
    let (vault, point) = (scratch.vault(), scratch.point());
    said(
        scratch.kithfs("mount").arg("--passphrase-file").arg(&wrong).arg(&vault).arg(&point),
        3,
        &["passphrase"],
    );
    said(scratch.kithfs("mount").arg(scratch.path().join("nowhere")).arg(&point), 4, &["nowhere"]);
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    said(scratch.kithfs("mount").arg(&empty).arg(&point), 5, &["not a kithfs vault"]);
    let newer = scratch.path().join("newer");
    shell(scratch.path(), "cp -r vault newer");
    let mut bytes = fs::read(newer.join("+share")).unwrap();
    bytes[8] = 9;
    fs::write(newer.join("+share"), bytes).unwrap();
    said(scratch.kithfs("mount").arg(&newer).arg(&point), 6, &["newer"]);
    let full = scratch.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("file"), "x").unwrap();
    said(scratch.kithfs("mount").arg(&vault).arg(&full), 7, &["empty"]);
    let inside = vault.join("inside");
    fs::create_dir(&inside).unwrap();
    said(scratch.kithfs("mount").arg(&vault).arg(&inside), 7, &["inside"]);
}

#[test]
fn a_second_mount_is_refused_and_names_the_first() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let other = scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    let output = expect_code(scratch.kithfs("mount").arg(scratch.vault()).arg(&other), 9);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mounts = expect_code(Command::new(KITHFS).args(["mounts", "--json"]), 0);
    let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
    let ours = mounts
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["mountpoint"] == scratch.point().to_str().unwrap())
        .expect("listed");
    assert!(text.contains(&ours["pid"].to_string()), "{text}");
    mount.unmount();
    assert!(!is_mounted(&scratch.point()));
    assert!(!scratch.vault().join("+lock").exists());
}

/// While the passphrase was typed, a user who owned a directory above the mount point could put a
/// link in its place. Root then mounted the vault on an empty directory of that user's choice.
#[test]
fn a_mount_follows_no_link_that_came_after_its_check() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    shell(scratch.path(), "mkdir -p theirs/mnt elsewhere/mnt");
    let there = scratch.path().canonicalize().unwrap().join("elsewhere/mnt");
    for point in ["theirs/mnt", "theirs/new"] {
        let answer = "mv theirs aside; ln -s elsewhere theirs; cat passphrase";
        let mut mount = scratch.kithfs("mount");
        mount.args(["--passphrase-command", answer]).arg(scratch.vault()).arg(point);
        mount.env_remove("KITHFS_PASSPHRASE_FILE").current_dir(scratch.path());
        let output = mount.output().unwrap();
        let places = [&there, &there.with_file_name("new")];
        let is_redirected = places.map(|place| {
            let is_there = is_mounted(place);
            if is_there {
                expect_code(scratch.kithfs("umount").arg(place), 0);
            }
            is_there || place.ends_with("new") && place.exists()
        });
        assert_eq!((is_redirected, output.status.success()), ([false; 2], false), "{output:?}");
        shell(scratch.path(), "rm theirs; mv aside theirs");
    }
}

#[test]
fn a_mount_waits_for_the_daemon_of_the_one_before() {
    // umount(8) does not wait until the daemon has ended, and a mount right after it was refused:
    // the vault was in use.
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let scratch = Scratch::new(&[]);
    let first = scratch.mount(&[]);
    let mounts = expect_code(scratch.kithfs("mounts").arg("--json"), 0);
    let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
    let point = scratch.point();
    let of_ours = mounts
        .as_array()
        .unwrap()
        .iter()
        .find(|mount| mount["mountpoint"].as_str() == point.to_str())
        .unwrap();
    let daemon = rustix::process::Pid::from_raw(of_ours["pid"].as_i64().unwrap() as i32).unwrap();
    let stopped = Stopped::stop(daemon);
    // Not umount(8), which first asks for the attributes of the mount point.
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
    let mut second = scratch.kithfs("mount").arg(scratch.vault()).arg(&point).spawn().unwrap();
    // It waits in poll(2), which has one of these numbers.
    let waits = || {
        let call =
            std::fs::read_to_string(format!("/proc/{}/syscall", second.id())).unwrap_or_default();
        ["7", "271", "73"].contains(&call.split(' ').next().unwrap_or_default())
    };
    while !waits() {
        let ended = std::fs::read_to_string(format!("/proc/{}/stat", second.id()))
            .unwrap()
            .contains(") Z ");
        assert!(!ended, "the second mount did not wait");
        std::thread::yield_now();
    }
    drop(stopped);
    assert!(second.wait().unwrap().success());
    assert!(is_mounted(&point));
    first.unmount();
}

#[test]
fn a_termination_signal_unmounts_cleanly() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut daemon = scratch
            .kithfs("mount")
            .arg("--foreground")
            .arg(scratch.vault())
            .arg(scratch.point())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until_mounted(&scratch.point(), &mut daemon);
        fs::write(scratch.point().join("last"), b"word").unwrap();
        // SAFETY: the child is ours and was not waited for, so its pid is still its own.
        unsafe { libc::kill(daemon.id() as i32, signal) };
        assert!(daemon.wait().unwrap().success());
        assert!(!is_mounted(&scratch.point()));
        let cat = expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg("last"), 0);
        assert_eq!(cat.stdout, b"word");
    }
}

#[test]
fn isatty_on_a_file_logs_nothing() {
    // Many language runtimes call isatty(3) for each file that they open. Each call logged a
    // warning, which took longer than creating the file.
    use std::os::fd::AsRawFd;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut mount = scratch.kithfs("mount");
    let mut daemon = mount
        .arg("--foreground")
        .arg(scratch.vault())
        .arg(scratch.point())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_mounted(&scratch.point(), &mut daemon);
    let file = fs::File::create(scratch.point().join("file")).unwrap();
    // SAFETY: asks about an open descriptor; writes nothing but errno.
    assert_eq!(unsafe { libc::isatty(file.as_raw_fd()) }, 0);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    let mut ready =
        libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    assert_eq!(unsafe { libc::poll(&mut ready, 1, -1) }, 1);
    drop(file);
    expect_code(Command::new(KITHFS).arg("umount").arg(scratch.point()), 0);
    let output = daemon.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && text.contains("unmounted") && !text.contains("WARN"),
        "{text}"
    );
}

/// Waits until `point` is mounted. Changes of the mount table are reported by poll(2).
fn wait_until_mounted(point: &Path, daemon: &mut std::process::Child) {
    use std::os::fd::AsRawFd;
    let table = fs::File::open("/proc/self/mounts").unwrap();
    loop {
        if is_mounted(point) {
            return;
        }
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon ended before it mounted");
        let mut poll = libc::pollfd { fd: table.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: one valid pollfd; the time-out only limits how long a failing daemon goes
        // unnoticed.
        unsafe { libc::poll(&mut poll, 1, 1000) };
    }
}

#[test]
fn a_mount_that_is_busy_for_a_moment_is_waited_for() {
    // A program was just ending, or just being started, and umount failed at once without a process
    // to name.
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };
    use std::os::fd::AsFd;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    // A file that is open in a message in transit is in no process's list of open files.
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let file = fs::File::create(scratch.point().join("held")).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&here, &[std::io::IoSlice::new(b"x")], &mut message, SendFlags::empty()).unwrap();
    drop(file);
    let output = expect_code(Command::new(KITHFS).arg("umount").arg(scratch.point()), 13);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("busy") && !text.contains("process "), "{text}");
    let umount = Command::new(KITHFS).arg("umount").arg(scratch.point()).spawn().unwrap();
    drop((here, there));
    let output = umount.wait_with_output().unwrap();
    assert!(output.status.success());
    drop(mount);
}

#[test]
fn umount_lists_the_programs_that_use_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let held = fs::File::create(scratch.point().join("held")).unwrap();
    let output = expect_code(Command::new(KITHFS).arg("umount").arg(scratch.point()), 13);
    assert!(String::from_utf8_lossy(&output.stderr).contains(&std::process::id().to_string()));
    drop(held);
    mount.unmount();
}

#[test]
fn umount_reports_a_mount_kept_by_another_namespace() {
    let _alone = turn::alone();
    // A container or a sandbox that was started beside a mount has a copy of it: `umount` waited
    // for the daemon for ever, and reported only that it was writing the remaining data.
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, for a mount namespace");
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    fs::write(scratch.point().join("file"), "text").unwrap();
    // The copies of other tests' mounts are unmounted, because those tests would have to wait.
    let script = "while read -r _ point _; do
        case $point in \"$1\") ;; \"$2\"/*) umount -l \"$point\" ;; esac
    done </proc/self/mounts; echo there; read line";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .args([scratch.point(), std::env::temp_dir()]);
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(other.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line, "there\n");
    for _ in 0..2 {
        let output = expect_code(Command::new(KITHFS).arg("umount").arg(scratch.point()), 13);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.contains(&format!("process {} (", other.id()))
                && text.contains("still mounted elsewhere"),
            "{text}"
        );
    }
    assert!(!is_mounted(&scratch.point()));
    // The mount ends with the last process of the namespace, and then the daemon, which has written
    // everything.
    drop(other.stdin.take());
    other.wait().unwrap();
    drop(mount);
    let again = scratch.mount(&[]);
    assert_eq!(fs::read_to_string(scratch.point().join("file")).unwrap(), "text");
    again.unmount();
}

#[test]
fn umount_reports_a_mount_kept_by_a_bind_mount() {
    // `mount --bind` shows it, or a directory of it, a second time: `umount` of the first place
    // waited for the daemon for ever, and reported that it was writing the remaining data.
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to bind a mount");
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    shell(scratch.path(), "mkdir mnt/sub second && mount --bind mnt/sub second");
    let second = scratch.path().join("second");
    scopeguard::defer!(drop(Command::new("umount").arg("--lazy").arg(&second).output()));
    for _ in 0..2 {
        let output = expect_code(Command::new(KITHFS).arg("umount").arg(scratch.point()), 13);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(&format!("mounted at {} as well", second.display())), "{text}");
    }
    fs::write(second.join("file"), "text").unwrap();
    shell(scratch.path(), "umount second");
    drop(mount);
    let again = scratch.mount(&[]);
    assert_eq!(fs::read_to_string(scratch.point().join("sub/file")).unwrap(), "text");
    again.unmount();
}

#[test]
fn the_vault_is_usable_without_a_mount() {
    let scratch = Scratch::new(&[]);
    let vault = scratch.vault();
    let tree = scratch.path().join("tree");
    shell(
        scratch.path(),
        "mkdir -p tree/sub; echo one > tree/1; echo two > tree/sub/2; ln -s 1 tree/link; truncate -s 10M tree/sparse; chmod 640 tree/1",
    );
    expect_code(scratch.kithfs("import").arg(&tree).arg(vault.join("photos")), 0);
    expect_code(scratch.kithfs("import").arg(&tree).arg(vault.join("photos")), 0);
    let list = expect_code(scratch.kithfs("ls").arg(&vault).arg("photos"), 0);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(["1", "sub", "link", "sparse"].iter().all(|name| list.contains(name)), "{list}");
    assert_eq!(
        expect_code(scratch.kithfs("cat").arg(&vault).arg("photos/sub/2"), 0).stdout,
        b"two\n"
    );
    expect_code(scratch.kithfs("mkdir").arg(&vault).arg("new"), 0);
    let mut put = scratch
        .kithfs("put")
        .arg(&vault)
        .arg("new/file")
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    put.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(
        expect_code(scratch.kithfs("get").arg(&vault).arg("new/file").arg("-"), 0).stdout,
        b"from a pipe"
    );
    let cipher = expect_code(scratch.kithfs("map").arg(&vault).arg("new/file"), 0);
    let cipher = String::from_utf8(cipher.stdout).unwrap().trim().to_string();
    assert!(vault.join(&cipher).exists() || Path::new(&cipher).exists(), "{cipher}");
    let plain =
        expect_code(scratch.kithfs("map").arg("--reverse").arg(&vault).arg("--").arg(&cipher), 0);
    assert_eq!(String::from_utf8(plain.stdout).unwrap().trim(), "new/file");
    let out = scratch.path().join("out");
    expect_code(scratch.kithfs("export").arg(vault.join("photos")).arg(&out), 0);
    shell(
        scratch.path(),
        "diff -r --no-dereference tree out && test $(stat -c %a out/1) = 640 && test $(stat -c %b out/sparse) -lt 100",
    );
    expect_code(scratch.kithfs("rm").arg(&vault).arg("new/file"), 0);
    expect_code(scratch.kithfs("cat").arg(&vault).arg("new/file"), 12);
    expect_code(scratch.kithfs("fsck").arg(&vault), 0);
    // fsck names a file with one flipped bit in its last byte, by its plain and its stored path.
    let stored = expect_code(scratch.kithfs("map").arg(&vault).arg("photos/sub/2"), 0);
    let stored = vault.join(String::from_utf8(stored.stdout).unwrap().trim());
    let mut bytes = fs::read(&stored).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&stored, bytes).unwrap();
    let found = expect_code(scratch.kithfs("fsck").arg(&vault), 20);
    let text = [found.stdout, found.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("photos/sub/2")
            && text.contains(stored.file_name().unwrap().to_str().unwrap()),
        "{text}"
    );
}

/// `init` prints a recovery code that opens the vault, and makes a directory that is its user's
/// alone.
#[test]
fn the_recovery_code_of_a_new_vault_opens_it() {
    let scratch = Scratch::bare();
    let output = expect_code(
        scratch
            .kithfs("init")
            .args(["--kdf-memory", "32", "--kdf-passes", "1"])
            .arg(scratch.vault()),
        0,
    );
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = stdout
        .lines()
        .map(str::trim)
        .find(|l| l.len() > 20 && l.contains('-'))
        .expect("a recovery code")
        .to_string();
    let code_file = scratch.path().join("code");
    fs::write(&code_file, &code).unwrap();
    expect_code(
        Command::new(KITHFS)
            .arg("ls")
            .arg("--recovery-code-file")
            .arg(&code_file)
            .arg(scratch.vault()),
        0,
    );
    let info = expect_code(Command::new(KITHFS).args(["info", "--json"]).arg(scratch.vault()), 0);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["chunk_size"], 262_144);
    assert_eq!(fs::metadata(scratch.vault()).unwrap().permissions().mode() & 0o777, 0o700);
}

/// The mount helper, installed where mount(8) looks for it; removed on drop.
struct Helper;

impl Helper {
    /// `None` without root, or if the machine has a helper of its own, which is not touched.
    fn install() -> Option<Self> {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 || fs::symlink_metadata("/sbin/mount.kithfs").is_ok() {
            println!("skipped: needs root and a machine on which kithfs is not installed");
            return None;
        }
        let mut install =
            Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/mount-helper/install.sh"));
        expect_code(install.args(["--program", KITHFS]), 0);
        Some(Helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/mount-helper/install.sh"))
            .arg("--uninstall")
            .output();
    }
}

#[test]
fn mount_8_and_fstab_know_the_type() {
    let _alone = turn::alone();
    if !can_mount() {
        return;
    }
    let Some(_helper) = Helper::install() else { return };
    let scratch = Scratch::new(&[]);
    let (vault, point) = (scratch.vault(), scratch.point());
    let option = format!("passphrase_file={}", scratch.passphrase().display());
    let fstab = scratch.path().join("fstab");
    fs::write(
        &fstab,
        format!("{} {} kithfs {option},noauto,nofail 0 0\n", vault.display(), point.display()),
    )
    .unwrap();
    let mut by_hand = Command::new("mount");
    by_hand.args(["-t", "kithfs"]).arg(&vault).arg(&point).args(["-o", &option]);
    let mut by_fstab = Command::new("mount");
    by_fstab.arg("-T").arg(&fstab).arg(&point);
    for (round, mut mount) in [by_hand, by_fstab].into_iter().enumerate() {
        expect_code(&mut mount, 0);
        assert!(is_mounted(&point));
        fs::write(point.join(format!("round {round}")), "here").unwrap();
        let mounts = expect_code(Command::new(KITHFS).args(["mounts", "--json"]), 0);
        let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
        let ours = mounts
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["mountpoint"] == point.to_str().unwrap())
            .expect("listed");
        let daemon = Ended::watch(ours["pid"].as_u64().unwrap() as i32);
        if round == 1 {
            // `remount,ro` removed nosuid and nodev too.
            expect_code(
                Command::new("mount").arg("-T").arg(&fstab).args(["-o", "remount,ro"]).arg(&point),
                0,
            );
            let options = shell(scratch.path(), "findmnt -nro VFS-OPTIONS mnt");
            assert!(
                ["ro", "nosuid", "nodev"]
                    .iter()
                    .all(|flag| options.trim().split(',').any(|has| has == *flag)),
                "{options}"
            );
        }
        expect_code(Command::new("umount").arg(&point), 0);
        daemon.wait();
        let cat = expect_code(scratch.kithfs("cat").arg(&vault).arg(format!("round {round}")), 0);
        assert_eq!(cat.stdout, b"here");
    }
}

/// A process that is not a child, and whose end can be awaited.
struct Ended(std::os::fd::OwnedFd);

impl Ended {
    fn watch(pid: i32) -> Self {
        Ended(
            rustix::process::pidfd_open(
                rustix::process::Pid::from_raw(pid).unwrap(),
                rustix::process::PidfdFlags::empty(),
            )
            .unwrap(),
        )
    }

    fn wait(self) {
        let mut fds = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(
            rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
            1,
            "the daemon has not ended"
        );
    }
}

//! A vault in a folder that a sync tool keeps equal, mounted for writing on several machines.
//!
//! A machine is a state directory and a copy of the vault.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::support::mounted::{Mount, Scratch, can_mount, expect_code};

/// A mount that began before the vault's directory was renamed excludes a second mount under the
/// new name.
#[test]
fn a_renamed_directory_has_one_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let (moved, other) = (scratch.path().join("moved"), scratch.path().join("other"));
    fs::rename(scratch.vault(), &moved).unwrap();
    fs::create_dir(&other).unwrap();
    let output = expect_code(scratch.kithfs("mount").arg(&moved).arg(&other), 9);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let info = expect_code(scratch.kithfs("info").arg("--json").arg(&moved), 0);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    let pid = info["in_use_by"]["pid"].as_u64().expect("the kernel lists the holder");
    assert!(said.contains(&format!("process {pid} on ")), "{said}");
    fs::write(mount.point.join("file"), "written under the new name").unwrap();
    mount.unmount();
    let name_of = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    for name in fs::read_dir(&moved).unwrap().map(|entry| name_of(entry.unwrap())) {
        assert!(
            !["+lock", "+lease", "+wanted"].iter().any(|lock| name.starts_with(lock)),
            "{name}"
        );
    }
    expect_code(scratch.kithfs("mount").arg(&moved).arg(&other), 0);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"written under the new name");
    expect_code(scratch.kithfs("umount").arg(&other), 0);
}

/// Shorter than the ten seconds for which a vault that is not synced may hide an arriving file, and
/// than the eight after which it commits. A busy machine can miss this, so a test tries several
/// times.
const QUICK: Duration = Duration::from_secs(6);
/// How long an event that must come is waited for, on a machine however busy.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a test tries to see something within [`QUICK`].
const TRIES: usize = 5;

/// Panics unless one of [`TRIES`] calls of `happens` returns a time below [`QUICK`].
fn is_quick(what: &str, mut happens: impl FnMut(usize) -> Duration) {
    let mut took = Vec::new();
    let is_any = (0..TRIES).any(|n| {
        took.push(happens(n));
        took[n] < QUICK
    });
    assert!(is_any, "{what}: took {took:?}");
}

/// Waits until `ready` returns something, and returns that and the time that it took; panics after
/// [`LIMIT`].
fn wait<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> (T, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(done) = ready() {
            return (done, begun.elapsed());
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A machine with its own state directory and its own copy of the vault of a [`Scratch`].
struct Machine<'a> {
    scratch: &'a Scratch,
    dir: PathBuf,
}

impl Machine<'_> {
    fn new<'a>(scratch: &'a Scratch, name: &str) -> Machine<'a> {
        let dir = scratch.path().join(name);
        fs::create_dir_all(dir.join("mnt")).unwrap();
        let machine = Machine { scratch, dir };
        fs::create_dir(machine.vault()).unwrap();
        deliver(&scratch.vault(), &machine.vault());
        machine
    }

    fn vault(&self) -> PathBuf {
        self.dir.join("vault")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join("mnt").join(name)
    }

    fn kithfs(&self, sub: &str) -> Command {
        let mut command = self.scratch.kithfs(sub);
        command.env("XDG_STATE_HOME", self.dir.join("state"));
        command
    }

    fn mount(&self) -> Mount {
        expect_code(self.kithfs("mount").arg(self.vault()).arg(self.dir.join("mnt")), 0);
        Mount::at(self.dir.join("mnt"))
    }

    fn info(&self) -> serde_json::Value {
        let info = expect_code(self.kithfs("info").arg("--json").arg(self.vault()), 0);
        serde_json::from_slice(&info.stdout).unwrap()
    }

    /// Kills the daemon, and removes the dead mount.
    fn kill(&self, mount: Mount) {
        let pid = self.info()["in_use_by"]["pid"].as_i64().unwrap() as i32;
        let daemon = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        wait("the daemon has ended", || self.info()["in_use_by"].is_null().then_some(()));
        drop(mount);
    }
}

/// Delivers files that the other copy lacks, or has with another time, as a sync tool does: whole
/// files, first under another name.
fn deliver(from: &Path, to: &Path) {
    deliver_if(from, to, &|known, changed| known != changed);
}

/// Does [`deliver`] for files whose times in the two copies satisfy `wanted`.
fn deliver_if(from: &Path, to: &Path, wanted: &dyn Fn(SystemTime, SystemTime) -> bool) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, there) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            if !there.exists() {
                fs::create_dir(&there).unwrap();
            }
            deliver_if(&entry.path(), &there, wanted);
        } else if kind.is_file() {
            let changed = entry.metadata().unwrap().modified().unwrap();
            let known = fs::metadata(&there).and_then(|file| file.modified()).ok();
            if known.is_none_or(|known| wanted(known, changed)) {
                let temporary = to.join("~syncthing~arriving.tmp");
                fs::copy(entry.path(), &temporary).unwrap();
                let file = fs::File::options().write(true).open(&temporary).unwrap();
                file.set_modified(changed).unwrap();
                fs::rename(&temporary, &there).unwrap();
            }
        }
    }
}

/// Returns the paths of the control files in a vault, at any depth.
fn controls(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_name().as_encoded_bytes().starts_with(b"+") {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(controls(&entry.path()));
        }
    }
    found
}

/// A name was looked up before the file arrived, and was then missing for an hour.
#[test]
fn a_file_that_arrives_is_visible_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&["--synced"]);
    let [one, two] = ["one", "two"].map(|name| Machine::new(&scratch, name));
    let [first, second] = [one.mount(), two.mount()];
    let hand_over = || deliver(&one.vault(), &two.vault());
    fs::create_dir(one.file("dir")).unwrap();
    let name = |dir: &str, n: usize| format!("{dir}file-{n}");
    let text = |n: usize, more: &str| format!("from one, {n}{more}");
    for dir in ["", "dir/"] {
        is_quick("a new file", |n| {
            let (file, text) = (name(dir, n), text(n, ""));
            let err = fs::metadata(two.file(&file)).unwrap_err();
            assert_eq!(err.kind(), std::io::ErrorKind::NotFound);
            fs::write(one.file(&file), &text).unwrap();
            hand_over();
            let (bytes, took) = wait(&file, || fs::read(two.file(&file)).ok());
            assert_eq!(bytes, text.as_bytes(), "{file}");
            assert_eq!(fs::metadata(two.file(&file)).unwrap().len(), text.len() as u64);
            took
        });
        // The size after a change.
        let file = name(dir, 0);
        is_quick("the new size", |n| {
            let text = text(n, &" and longer".repeat(n + 1));
            fs::metadata(two.file(&file)).unwrap();
            fs::write(one.file(&file), &text).unwrap();
            hand_over();
            let ((), took) = wait(&file, || {
                (fs::metadata(two.file(&file)).unwrap().len() == text.len() as u64).then_some(())
            });
            assert_eq!(fs::read(two.file(&file)).unwrap(), text.as_bytes());
            took
        });
    }
    // The new name of a renamed file.
    is_quick("the new name", |n| {
        let to = format!("renamed-{n}");
        let from = if n == 0 { name("", 0) } else { format!("renamed-{}", n - 1) };
        fs::metadata(two.file(&to)).unwrap_err();
        fs::rename(one.file(&from), one.file(&to)).unwrap();
        hand_over();
        wait("the new name", || fs::metadata(two.file(&to)).ok()).1
    });
    [first, second].into_iter().for_each(Mount::unmount);
}

/// In a vault that is not synced an arriving file may be hidden for ten seconds, not for an hour.
#[test]
fn a_file_that_arrives_is_not_hidden_for_long() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let [one, two] = ["one", "two"].map(|name| Machine::new(&scratch, name));
    let [first, second] = [one.mount(), two.mount()];
    assert!(fs::metadata(two.file("file")).is_err());
    fs::write(one.file("file"), "from one").unwrap();
    deliver(&one.vault(), &two.vault());
    wait("file", || fs::read(two.file("file")).ok());
    [first, second].into_iter().for_each(Mount::unmount);
}

/// Data that a program has written and not synced reaches the other machines soon. Until it is in
/// the store, a sync tool sees no change, and may replace the file.
#[test]
fn a_change_is_committed_soon_without_fsync() {
    if !can_mount() {
        return;
    }
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new(&["--synced"]);
    let [one, two] = ["one", "two"].map(|name| Machine::new(&scratch, name));
    let [first, second] = [one.mount(), two.mount()];
    let mut open = fs::File::create(one.file("log")).unwrap();
    let arrives = |text: &str| {
        let arrived = wait(text, || {
            deliver(&one.vault(), &two.vault());
            let there = fs::read_to_string(two.file("log")).unwrap_or_default();
            there.ends_with(text).then_some(())
        });
        arrived.1
    };
    for kind in ["first", "later"] {
        is_quick(kind, |n| {
            let line = format!("{kind} line {n}\n");
            open.write_all(line.as_bytes()).unwrap();
            arrives(&line)
        });
    }
    // The kernel sends the time of a write after its contents. The store got the time first, and
    // the contents at the commit; a tool that compares sizes and times missed them.
    let end = open.metadata().unwrap().len() - 7;
    for kind in ["UPPER", "OTHER"] {
        is_quick(kind, |n| {
            let line = format!("{kind}{n}\n");
            open.write_all_at(line.as_bytes(), end).unwrap();
            arrives(&line)
        });
    }
    drop(open);
    [first, second].into_iter().for_each(Mount::unmount);
}

/// Another machine is active, or has crashed: no mount is refused, the vault has no lock file and
/// no journal for the tool to copy, and what was synced is there.
#[test]
fn machines_that_are_active_or_crashed_refuse_no_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&["--synced"]);
    let [one, two] = ["one", "two"].map(|name| Machine::new(&scratch, name));
    let sync_and_check = |what: &str| {
        let is_newer = |known, changed| known < changed;
        deliver_if(&one.vault(), &two.vault(), &is_newer);
        deliver_if(&two.vault(), &one.vault(), &is_newer);
        for machine in [&one, &two] {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            for path in controls(&machine.vault()) {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(!name.contains(&host), "{what}: {name} names a machine");
                assert!(fs::metadata(&path).unwrap().len() > 0, "{what}: {name} is empty");
                for mutable in ["+lock", "+lease", "+wanted", "+journal", "+created", "+refused"] {
                    assert!(!name.starts_with(mutable), "{what}: {name}");
                }
            }
        }
    };
    let write = |machine: &Machine, name: &str, text: &str| {
        use std::io::Write;
        let mut file =
            fs::File::options().create(true).append(true).open(machine.file(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
        file
    };
    let first = one.mount();
    let open = write(&one, "of-one", "synced\n");
    sync_and_check("while one is active");
    let second = two.mount();
    let held = write(&two, "of-two", "synced\n");
    write(&two, "of-one", "and by two\n");
    sync_and_check("while both are active");
    drop(open);
    one.kill(first);
    sync_and_check("after one has crashed");
    two.kill(second);
    drop(held);
    sync_and_check("after both have crashed");
    let [first, second] = [one.mount(), two.mount()];
    for machine in [&one, &two] {
        assert_eq!(fs::read_to_string(machine.file("of-two")).unwrap(), "synced\n");
        let of_one = fs::read_to_string(machine.file("of-one")).unwrap();
        assert_eq!(of_one, "synced\nand by two\n");
        assert_eq!(machine.info()["kept_journals"], serde_json::json!([]));
        assert_eq!(machine.info()["synced"], true);
    }
    [first, second].into_iter().for_each(Mount::unmount);
    for machine in [&one, &two] {
        expect_code(machine.kithfs("fsck").arg(machine.vault()), 0);
    }
}

/// `set` marks an existing vault, without a secret and permanently; a mount of it respects that.
#[test]
fn an_existing_vault_is_marked_as_synced() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let vault = scratch.vault();
    fs::create_dir(scratch.path().join(".stfolder")).unwrap();
    let mut mount = scratch.kithfs("mount");
    let said = expect_code(mount.arg(&vault).arg(scratch.point()), 0).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("Syncthing") && said.contains("kithfs set --synced"), "{said}");
    let set = || {
        let mut set = scratch.kithfs("set");
        set.env_remove("KITHFS_PASSPHRASE_FILE").args(["--synced"]).arg(&vault);
        String::from_utf8_lossy(&expect_code(&mut set, 0).stderr).into_owned()
    };
    let said = set();
    assert!(said.contains("mount it again"), "{said}");
    assert!(set().contains("before"));
    expect_code(scratch.kithfs("umount").arg(scratch.point()), 0);
    assert_eq!(fs::read(vault.join("+synced")).unwrap(), b"kithfs synced\n");
    let mount = scratch.mount(&[]);
    fs::write(mount.point.join("file"), "x").unwrap();
    let journals = controls(&vault);
    assert!(!journals.iter().any(|path| path.to_str().unwrap().contains("+journal")));
    mount.unmount();
    expect_code(scratch.kithfs("set").arg(&vault), 2);
}

/// A sync tool removed a file whose name the kernel knew for another second. A program that
/// appended to the file, and would have created it if missing, failed with ENOENT. In a plain
/// directory that does not happen.
#[test]
fn a_file_that_was_just_removed_can_be_created_again() {
    use std::io::Write;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&["--synced"]);
    let mount = scratch.mount(&[]);
    let file = mount.point.join("f");
    let append = |text: &str| {
        let mut opened = fs::OpenOptions::new().append(true).create(true).open(&file)?;
        opened.write_all(text.as_bytes())?;
        opened.sync_all()
    };
    append("before").unwrap();
    let output = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("f"), 0);
    let stored = scratch.vault().join(String::from_utf8(output.stdout).unwrap().trim());
    for n in 0..10 {
        fs::metadata(&file).unwrap();
        fs::remove_file(&stored).unwrap();
        append(&n.to_string()).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(fs::read_to_string(&file).unwrap(), n.to_string());
    }
    // A name that is only read is missing, as it should be.
    fs::remove_file(&stored).unwrap();
    assert_eq!(fs::read(&file).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    mount.unmount();
}

/// The suffix that each of these tools gives a conflict copy, and whether it is shown unchanged.
const SUFFIXES: [(&str, &str, bool); 9] = [
    ("Syncthing", ".sync-conflict-20260131-101010-ABCDEFG", true),
    ("Dropbox", " (Ann's conflicted copy 2026-01-31)", true),
    ("Dropbox in German", " (In Konflikt stehende Kopie von Ann 2026-01-31)", false),
    ("Nextcloud", " (conflicted copy 2026-01-31 101010)", true),
    ("ownCloud", "_conflict-20260131-101010", true),
    ("OneDrive", "-DESKTOP-1AB2", true),
    ("Google Drive", " (1)", true),
    ("Resilio", ".Conflict", true),
    ("Unison", " (copy: conflict 1 on 2026-01-31)", true),
];

const TEXT: &str = "as it was written";

/// Makes a file with this name and a directory with a similar one. Returns the path of each, and
/// the name of its entry in the store.
fn make_pair(scratch: &Scratch, name: &str) -> [(PathBuf, String); 2] {
    let entries = || -> std::collections::BTreeSet<String> {
        let listed = fs::read_dir(scratch.vault()).unwrap();
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let of_dir = format!("d{}", name.strip_suffix(char::is_alphanumeric).unwrap_or(name));
    [(name, false), (&of_dir, true)].map(|(name, is_dir)| {
        let before = entries();
        let path = scratch.point().join(name);
        if is_dir {
            fs::create_dir(&path).unwrap();
        }
        let file = if is_dir { path.join("inside") } else { path.clone() };
        fs::write(&file, TEXT).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        let stored = entries().into_iter().find(|it| !it.starts_with('+') && !before.contains(it));
        (path, stored.expect("an entry"))
    })
}

/// Conflict copies as tools name them are files and directories like all others, also of long names
/// and of names in other scripts. Formerly only the names were tested, without a mount.
#[test]
fn conflict_copies_of_all_tools_work_in_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&["--synced"]);
    let mount = scratch.mount(&[]);
    let file = |path: &Path| if path.is_dir() { path.join("inside") } else { path.to_owned() };
    let names = ["letter.txt", "письмо 🙂", &"文".repeat(85), &"l".repeat(99), &"l".repeat(255)];
    for name in names {
        for (path, stored) in make_pair(&scratch, name) {
            for (tool, suffix, is_known) in SUFFIXES {
                let copy = format!("{stored}{suffix}");
                let [from, to] = [&stored, &copy].map(|name| scratch.vault().join(name));
                expect_code(Command::new("cp").arg("-a").args([from, to]), 0);
                let plain = path.file_name().unwrap().to_str().unwrap();
                let readable = match is_known {
                    true => format!("{plain}{suffix}"),
                    false => format!("{plain} (conflict copy {suffix})"),
                };
                // A name has up to 255 bytes.
                let shown = if readable.len() <= 255 { readable } else { copy };
                let at = scratch.point().join(&shown);
                let what = format!("{tool}: {shown}");
                wait(&what, || at.exists().then_some(()));
                let listed = fs::read_dir(scratch.point()).unwrap();
                assert!(listed.map(|entry| entry.unwrap().path()).any(|it| it == at), "{what}");
                assert_eq!(fs::read_to_string(file(&at)).unwrap(), TEXT, "{what}");
                fs::write(file(&at), "changed").unwrap();
                let renamed = scratch.point().join("renamed");
                fs::rename(&at, &renamed).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(!at.exists(), "{what}");
                assert_eq!(fs::read_to_string(file(&renamed)).unwrap(), "changed", "{what}");
                assert_eq!(fs::read_to_string(file(&path)).unwrap(), TEXT, "{what}");
                match renamed.is_dir() {
                    true => fs::remove_dir_all(&renamed).unwrap(),
                    false => fs::remove_file(&renamed).unwrap(),
                }
                assert!(!renamed.exists(), "{what}");
            }
        }
    }
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

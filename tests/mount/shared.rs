//! A vault that two daemons have mounted for writing at the same time: what their kernels cache.
//!
//! Both mounts are of one user on one machine, so each change can be looked for in the other mount
//! at once.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::Pid;

use crate::support::locker::Locker;
use crate::support::mounted::{Mount, Scratch, Stopped, can_mount, expect_code, shell};

/// Longer than the time for which a lease counts as contended, and shorter than the time after
/// which kernels forget by themselves.
const QUIET: Duration = Duration::from_millis(1400);
/// How long an event that must come is waited for, on a machine however busy.
const LIMIT: Duration = Duration::from_secs(60);

fn mount(scratch: &Scratch, name: &str) -> Mount {
    let point = scratch.path().join(name);
    fs::create_dir_all(&point).unwrap();
    expect_code(scratch.kithfs("mount").arg("--shared").arg(scratch.vault()).arg(&point), 0);
    Mount::at(point)
}

/// Returns the daemons that have the vault open, the earliest first.
fn daemons(scratch: &Scratch) -> Vec<Pid> {
    let info = expect_code(scratch.kithfs("info").arg("--json").arg(scratch.vault()), 0);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    let holders = info["shared_by"].as_array().unwrap();
    holders.iter().map(|it| Pid::from_raw(it["pid"].as_i64().unwrap() as i32).unwrap()).collect()
}

/// Returns everything that programs can know of a small tree: names, attributes, contents.
fn known(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let stat = fs::symlink_metadata(&path).unwrap();
        let what = if stat.is_symlink() {
            fs::read_link(&path).unwrap().to_string_lossy().into_owned()
        } else if stat.is_dir() {
            known(&path).join(" ")
        } else {
            String::from_utf8(fs::read(&path).unwrap()).unwrap()
        };
        all.push(format!("{name} {:o} {} [{what}]", stat.permissions().mode(), stat.len()));
    }
    all.sort();
    all
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether the kernel shows the attributes of a file while the daemons are stopped. (An
/// open always asks the daemon.)
pub fn is_cached(daemons: &[Pid], path: &Path) -> bool {
    let stopped: Vec<Stopped> = daemons.iter().copied().map(Stopped::stop).collect();
    let mut limited = Command::new("timeout");
    limited.args(["--signal=KILL", "0.5", "stat"]).arg(path).stdout(Stdio::null());
    let status = limited.stderr(Stdio::null()).status();
    drop(stopped);
    status.unwrap().success()
}

/// A daemon that shares a vault with others let its kernel cache nothing, even if the others did
/// nothing.
#[test]
fn a_daemon_that_works_alone_lets_its_kernel_cache() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    let all = daemons(&scratch);
    assert_eq!(all.len(), 2);
    for mount in [&anns, &bobs] {
        let file = mount.point.join("file");
        fs::write(&file, "contents").unwrap();
        wait_until("attributes are cached", || {
            assert_eq!(fs::read(&file).unwrap(), b"contents");
            is_cached(&all, &file)
        });
    }
    // Both may cache if nobody writes.
    wait_until("both have cached attributes", || {
        let files = [anns.point.join("file"), bobs.point.join("file")];
        files.iter().for_each(|file| assert_eq!(fs::read(file).unwrap(), b"contents"));
        files.iter().all(|file| is_cached(&all, file))
    });
}

/// Each kind of change is looked for at once in another mount, whose kernel has cached what was
/// there before: names that exist and that do not, attributes, contents, links, listings. A
/// descriptor from before shows the new contents too.
#[test]
fn a_change_ends_what_another_kernel_has_cached() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    let (there, here) = (anns.point.clone(), bobs.point.clone());
    fs::create_dir_all(there.join("dir/below")).unwrap();
    fs::write(there.join("file"), "before").unwrap();
    fs::write(there.join("dir/other"), "other").unwrap();
    symlink("file", there.join("link")).unwrap();
    type Change = fn(&Path);
    let changes: [(&str, Change); 10] = [
        ("a new file", |dir| fs::write(dir.join("new"), "new").unwrap()),
        ("the same size", |dir| fs::write(dir.join("file"), "after.").unwrap()),
        ("longer", |dir| fs::write(dir.join("file"), "after that").unwrap()),
        ("shorter", |dir| {
            let file = OpenOptions::new().write(true).open(dir.join("file")).unwrap();
            file.set_len(5).unwrap();
        }),
        ("renamed", |dir| fs::rename(dir.join("new"), dir.join("dir/moved")).unwrap()),
        ("replaced", |dir| fs::rename(dir.join("dir/moved"), dir.join("file")).unwrap()),
        ("another mode", |dir| {
            fs::set_permissions(dir.join("dir"), fs::Permissions::from_mode(0o711)).unwrap();
        }),
        ("another link", |dir| {
            fs::remove_file(dir.join("link")).unwrap();
            symlink("dir", dir.join("link")).unwrap();
        }),
        ("a directory moved", |dir| fs::rename(dir.join("dir/below"), dir.join("up")).unwrap()),
        ("removed", |dir| fs::remove_dir(dir.join("up")).unwrap()),
    ];
    let absent = ["new", "dir/moved", "up"];
    let was_open = File::open(here.join("dir/other")).unwrap();
    for (round, (what, change)) in changes.into_iter().enumerate() {
        let begun = Instant::now();
        while begun.elapsed() < QUIET {
            known(&here);
            absent.iter().for_each(|name| drop(fs::metadata(here.join(name))));
        }
        change(&there);
        assert_eq!(known(&here), known(&there), "{what}");
        for name in absent {
            assert_eq!(here.join(name).exists(), there.join(name).exists(), "{what}: {name}");
        }
        let text = format!("text{round:04}");
        fs::write(there.join("dir/other"), &text).unwrap();
        let mut seen = [0; 16];
        let len = was_open.read_at(&mut seen, 0).unwrap();
        assert_eq!(std::str::from_utf8(&seen[..len]), Ok(&*text), "{what}");
    }
}

/// Starts a program that maps a file, and answers each line with the first bytes of the mapping. A
/// line with text is written there first. Returns the program, and a function that sends it a line.
fn mapping(file: &Path) -> (Child, impl FnMut(&str) -> String + use<>) {
    let program = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR if sys.argv[2] == 'w' else os.O_RDONLY)
m = mmap.mmap(f, 4, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if sys.argv[2] == 'w' else 0))
if sys.argv[2] == 'r': os.close(f)
for line in sys.stdin:
    if line.strip(): m[:4] = line.strip().encode(); m.flush()
    print(bytes(m[:4]).decode(), flush=True)
";
    let how = if file.ends_with("anns") { "w" } else { "r" };
    let mut child = Command::new("python3")
        .args(["-c", program])
        .arg(file)
        .arg(how)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    let ask = move |text: &str| {
        writeln!(to, "{text}").unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    (child, ask)
}

/// Shared mappings failed with `ENODEV`. Now one that is written reaches the other mounts like a
/// write, and one that is read shows within a second what others have committed.
#[test]
fn shared_mappings_follow_what_others_write() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "one"), mount(&scratch, "two"));
    let file = |mount: &Mount, name: &str| -> PathBuf { mount.point.join(name) };
    fs::write(file(&anns, "anns"), "old.").unwrap();
    fs::write(file(&anns, "read"), "old.").unwrap();
    let (mut reader, mut read) = mapping(&file(&bobs, "read"));
    let (mut writer, mut write) = mapping(&file(&anns, "anns"));
    for text in ["one.", "two.", "thre"] {
        assert_eq!(write(text), text);
        assert_eq!(fs::read(file(&bobs, "anns")).unwrap(), text.as_bytes());
        // The file is not truncated first: a process that reads a mapping past the end gets SIGBUS.
        let written = OpenOptions::new().write(true).open(file(&anns, "read")).unwrap();
        written.write_all_at(text.as_bytes(), 0).unwrap();
        drop(written);
        wait_until("the mapping shows it", || read("") == text);
    }
    // While a file is mapped for writing, the other mount cannot open it for writing.
    let error = OpenOptions::new().write(true).open(file(&bobs, "anns")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    drop(read);
    drop(write);
    assert!(reader.wait().unwrap().success() && writer.wait().unwrap().success());
    fs::write(file(&bobs, "anns"), "bobs.").unwrap();
    assert_eq!(fs::read(file(&anns, "anns")).unwrap(), b"bobs.");
}

/// A page of a mapping is written through any descriptor that can write. Through one that was opened to
/// append, it was appended: the file grew by 4096 bytes, and what the program had written was lost.
#[test]
fn pages_of_a_mapping_are_not_appended() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    fs::write(anns.point.join("file"), "12345678").unwrap();
    let mut program = Locker::start(&anns.point);
    for command in ["open f file app", "map f 8", "put f mapped..", "fill f 0 5 added"] {
        program.done(command);
    }
    program.done("sync f");
    for point in [&anns.point, &bobs.point] {
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "mapped..added");
    }
}

/// What was written to a file without a name was committed by neither a close nor an unlock, so a
/// descriptor in the other mount kept the older contents.
#[test]
fn a_removed_file_shows_what_another_mount_commits() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    for ends in ["flock f un", "close f"] {
        fs::write(anns.point.join("file"), "before").unwrap();
        let mut writer = Locker::start(&anns.point);
        let mut reader = Locker::start(&bobs.point);
        writer.done("open f file old");
        reader.done("open f file r");
        fs::remove_file(anns.point.join("file")).unwrap();
        writer.done("fill f 0 6 behind");
        writer.done(ends);
        assert_eq!(reader.run("read f 0 9"), "behind", "{ends}");
    }
}

/// A killed daemon leaves bytes in the store that it has not committed. The other mounts, and the next
/// one, showed a size that counts these bytes, also of a file that they had opened.
#[test]
fn an_uncommitted_tail_does_not_count_once_a_file_was_open() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let bobs = mount(&scratch, "bobs");
    let file = bobs.point.join("file");
    fs::write(&file, "committed").unwrap();
    let stored = fs::read_dir(scratch.vault()).unwrap().map(|entry| entry.unwrap());
    let stored: Vec<_> =
        stored.filter(|it| !it.file_name().to_string_lossy().starts_with('+')).collect();
    let [stored] = &stored[..] else { panic!("{stored:?}") };
    let stored = OpenOptions::new().append(true).open(stored.path()).unwrap();
    let size = || shell(&bobs.point, "stat --cached=never -c %s file");
    for tail in [70_000, 1] {
        (&stored).write_all(&vec![1; tail]).unwrap();
        assert_ne!(size(), "9\n", "without an open the size follows from the stored length");
        let open = File::open(&file).unwrap();
        assert_eq!(open.metadata().unwrap().len(), 9);
        drop(open);
        assert_eq!(size(), "9\n");
    }
    assert_eq!(fs::read(&file).unwrap(), b"committed");
}

/// A mount in which a program had written to a file showed the time of that write until the file was
/// closed, also after the other mount had set another time.
#[test]
fn a_time_set_in_another_mount_is_shown() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    let mut writer = Locker::start(&anns.point);
    writer.done("open f file new");
    for command in ["write f 0 text", "sync f", "time f 900000000"] {
        writer.done(command);
    }
    shell(&bobs.point, "touch -d @1000000000 file");
    assert_eq!(writer.run("stat f"), "600 1 4 1000000000");
    writer.done("close f");
    assert_eq!(shell(&bobs.point, "stat -c %Y file"), "1000000000\n");
}

/// The storage host may remove the file whose lock is the lease, or hold that lock.
#[test]
fn a_removed_or_foreign_lease_costs_only_time() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    fs::write(anns.point.join("file"), "0").unwrap();
    let lease = scratch.vault().join("+lease");
    let read = || fs::read(bobs.point.join("file")).unwrap();
    let wait_for_lease = || {
        wait_until("a daemon takes the lease again", || {
            read();
            lease.exists()
        });
    };
    for round in 1..=5 {
        let begun = Instant::now();
        while begun.elapsed() < QUIET {
            read();
        }
        wait_for_lease();
        fs::remove_file(&lease).unwrap();
        fs::write(anns.point.join("file"), round.to_string()).unwrap();
        wait_until("the other mount shows it", || read() == round.to_string().as_bytes());
    }
    // A process that holds the lock, and is no daemon, gives no sign of life.
    wait_for_lease();
    // Locks of `fcntl`, as those of the daemons.
    let lock = |file: &File, how| fcntl_lock(file, how).is_ok();
    let mut wants = OpenOptions::new();
    wants.create(true).read(true).append(true);
    let wants = wants.open(lease.with_file_name("+wanted")).unwrap();
    wait_until("the lock of +wanted is taken", || {
        lock(&wants, FlockOperation::NonBlockingLockShared)
    });
    let held = OpenOptions::new().read(true).write(true).open(&lease).unwrap();
    wait_until("the daemons release the lease", || {
        lock(&held, FlockOperation::NonBlockingLockExclusive)
    });
    drop(wants);
    fs::write(anns.point.join("file"), "taken over").unwrap();
    assert_eq!(fs::read(bobs.point.join("file")).unwrap(), b"taken over");
}

/// Programs use a descriptor whose file the other mount has renamed, replaced or removed.
/// `ftruncate` failed with `ESTALE`: a change of the size opened the file once more by its old name.
#[test]
fn descriptors_outlive_the_names_that_others_change() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let (anns, bobs) = (mount(&scratch, "anns"), mount(&scratch, "bobs"));
    fs::create_dir(anns.point.join("dir")).unwrap();
    let changes: [(&str, u32, &str); 6] = [
        ("renamed", 1, "mv file other"),
        ("moved", 1, "mv file dir/other"),
        ("renamed, and its name used again", 1, "mv file other; echo new >file"),
        ("in a directory that was renamed", 1, "mv file dir; mv dir dir2; mkdir dir"),
        ("replaced", 0, "echo new >new; mv new file"),
        ("removed", 0, "rm file"),
    ];
    for (what, links, change) in changes {
        for (flags, locks) in [("rw", false), ("rw", true), ("r", false)] {
            fs::write(anns.point.join("file"), "12345678").unwrap();
            let mut program = Locker::start(&anns.point);
            program.done(&format!("open f file {flags}"));
            if locks {
                program.done("lock f ex 0 0");
                program.done("lock f un 0 0");
            }
            shell(&bobs.point, change);
            let what = format!("{what}, {flags}, {locks}");
            let mut size = 8;
            if flags == "rw" {
                for (command, len) in [
                    ("truncate f 5", 5),
                    ("write f 5 678", 8),
                    ("truncate f 7", 7),
                    ("allocate f 0 20", 20),
                    ("truncate f 0", 0),
                    ("sync f", 0),
                    ("write f 0 12345678", 8),
                    ("sync f", 8),
                ] {
                    assert_eq!(program.run(command), "ok", "{what}: {command}");
                    size = len;
                }
            }
            for command in ["mode f 640", "time f 1000000000"] {
                assert_eq!(program.run(command), "ok", "{what}: {command}");
            }
            assert_eq!(program.run("stat f"), format!("640 {links} {size} 1000000000"), "{what}");
            assert_eq!(program.run("attribute f user.a b"), "b", "{what}");
            assert_eq!(program.run("read f 0 99"), "12345678", "{what}");
            program.done("close f");
            drop(program);
            shell(&bobs.point, "rm -rf file other new dir dir2; mkdir dir");
        }
    }
    assert_eq!(known(&anns.point), known(&bobs.point));
}

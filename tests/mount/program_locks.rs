//! Locks of programs (`fcntl`, `flock`) in two mounts of one vault: see `docs/SHARED.md`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::shared::is_cached;
use crate::support::locker::Locker;
use crate::support::mounted::{Mount, Scratch, can_mount, expect_code, shell};

/// A vault that is mounted twice.
struct Two {
    scratch: Scratch,
    mounts: Vec<Mount>,
}

impl Two {
    fn new() -> Option<Two> {
        if !can_mount() {
            return None;
        }
        let scratch = Scratch::new(&[]);
        std::fs::create_dir(scratch.path().join("other")).unwrap();
        let mut two = Two { scratch, mounts: Vec::new() };
        two.mounts = [two.point(0), two.point(1)].map(|point| two.mount(&point)).into();
        Some(two)
    }

    fn point(&self, which: usize) -> PathBuf {
        self.scratch.path().join(["mnt", "other"][which])
    }

    fn mount(&self, point: &Path) -> Mount {
        let mut command = self.scratch.kithfs("mount");
        expect_code(command.arg("--shared").arg(self.scratch.vault()).arg(point), 0);
        Mount::at(point.to_owned())
    }

    /// Returns a program in each mount, which has `file` open.
    fn lockers(&self, file: &str, flags: &str) -> (Locker, Locker) {
        let start = |which| {
            let mut locker = Locker::start(&self.point(which));
            locker.done(&format!("open f {file} {flags}"));
            locker
        };
        // A lock that was given back lets the other mount open the file for writing.
        let mut first = start(0);
        first.done("lock f sh 0 1");
        first.done("lock f un 0 1");
        (first, start(1))
    }

    fn daemon(&self, which: usize) -> rustix::process::Pid {
        let list = self.scratch.kithfs("mounts").arg("--json").output().unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let point = self.point(which);
        let is_it = |mount: &&serde_json::Value| mount["mountpoint"].as_str() == point.to_str();
        let mount = list.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{list}"));
        let pid = mount["pid"].as_i64().expect("a process");
        rustix::process::Pid::from_raw(pid as i32).unwrap()
    }
}

#[test]
fn ranges_exclude_programs_in_the_other_mount() {
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("lock f ex 10 20");
    b.refused("lock f ex 29 1");
    b.refused("lock f sh 0 0");
    b.done("lock f ex 30 10");
    a.refused("lock f ex 0 31");
    assert_eq!(b.run("get f sh 0 100"), format!("{} 10 20 0", libc::F_WRLCK));
    assert_eq!(b.run("get f sh 0 10").split(' ').next(), Some(&*libc::F_UNLCK.to_string()));
    // A part of a lock can be given back, and another part become a shared one.
    a.done("lock f un 15 5");
    a.done("lock f sh 20 5");
    b.done("lock f ex 15 5");
    b.done("lock f sh 20 5");
    a.refused("lock f ex 20 1");
    b.refused("lock f sh 25 1");
    b.done("lock f un 20 5");
    a.done("lock f ex 20 5");
    b.refused("lock f sh 24 1");
    // Up to the end of all offsets.
    b.done("lock f ex 1000 0");
    a.refused("lock f sh 4611686018427387904 1");
    // Two programs in one mount exclude each other as well.
    let mut c = Locker::start(&two.point(0));
    c.done("open f file rw");
    c.refused("lock f sh 10 1");
    // A close of any descriptor of the file drops all locks of the program.
    a.done("open other file r");
    a.done("close other");
    c.done("lock f ex 10 5");
    b.done("lock f ex 20 10");
    // So does its end.
    c.kill();
    b.done("lock f ex 0 0");
}

#[test]
fn flock_excludes_programs_in_the_other_mount() {
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("flock f sh");
    b.done("flock f sh");
    b.refused("flock f ex");
    // The failed conversion has dropped the former lock, as flock(2) says.
    a.done("flock f ex");
    b.refused("flock f sh");
    // It is another kind of lock than that of fcntl.
    b.done("lock f ex 0 0");
    a.done("dup f copy");
    a.done("close f");
    b.refused("flock f sh");
    a.done("close copy");
    b.begin("flock f ex wait"); // the kernel does not wait for the daemon at a close
    assert_eq!(b.answer(), "ok");
    let mut reader = Locker::start(&two.point(0));
    reader.done("open f file r");
    reader.refused("flock f sh");
    b.kill();
    reader.begin("flock f ex wait");
    assert_eq!(reader.answer(), "ok", "also through a descriptor for reading");
}

#[test]
fn a_program_that_waits_gets_the_lock_from_the_other_mount() {
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    for (take, give) in [("lock f ex 0 0", "lock f un 0 0"), ("flock f ex", "flock f un")] {
        for _ in 0..5 {
            a.done(take);
            b.begin(&format!("{take} wait"));
            b.until_it_waits();
            a.done(give);
            assert_eq!(b.answer(), "ok");
            a.refused(take);
            b.done(give);
        }
    }
    // While many programs wait, the mount is usable, also for the program that ends their wait.
    a.done("lock f ex 0 0");
    let mut waiting: Vec<Locker> = (0..4).map(|_| Locker::start(&two.point(0))).collect();
    for locker in &mut waiting {
        locker.done("open f file rw");
        locker.begin("lock f sh 0 0 wait");
        locker.until_it_waits();
    }
    a.done("write f 0 text");
    a.done("lock f un 0 0");
    for locker in &mut waiting {
        assert_eq!(locker.answer(), "ok");
        assert_eq!(locker.run("read f 0 4"), "text");
    }
}

#[test]
fn a_wait_for_a_lock_can_be_interrupted() {
    // The transport of mounts without locks tells the kernel that it knows no interrupts. With it,
    // a program that waited for a lock could not even be killed.
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("lock f ex 0 0");
    a.done("flock f ex");
    for take in ["lock f ex 0 0 wait", "flock f sh wait"] {
        b.begin(take);
        b.until_it_waits();
        b.signal(Signal::USR1);
        assert_eq!(b.answer(), "EINTR");
    }
    b.begin("lock f ex 0 0 wait");
    b.until_it_waits();
    b.kill();
    // Nothing is left of the killed program's wait.
    a.done("lock f un 0 0");
    let mut c = Locker::start(&two.point(1));
    c.done("open f file rw");
    c.done("lock f ex 0 0");
}

#[test]
fn the_locks_of_a_killed_daemon_are_gone() {
    let Some(mut two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("lock f ex 0 0");
    a.done("flock f ex");
    a.done("write f 0 lost");
    for take in ["lock f ex 0 0", "flock f ex"] {
        b.begin(&format!("{take} wait"));
        b.until_it_waits();
        b.signal(Signal::USR1);
        assert_eq!(b.answer(), "EINTR");
    }
    b.begin("lock f ex 0 0 wait");
    kill_process(two.daemon(0), Signal::KILL).unwrap();
    assert_eq!(b.answer(), "ok");
    b.done("flock f ex");
    b.done("write f 0 kept");
    b.done("lock f un 0 0");
    a.kill();
    two.mounts.remove(0);
    shell(two.scratch.path(), "fusermount3 -u -z mnt 2>/dev/null || true");
    assert_eq!(b.run("read f 0 10"), "kept");
}

#[test]
fn locks_order_what_both_mounts_write() {
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    let mut wanted = String::new();
    for round in 0..20 {
        for (program, name) in [(&mut a, "a"), (&mut b, "b")] {
            program.done("lock f ex 0 0 wait");
            assert_eq!(program.run("read f 0 9999"), wanted);
            let text = format!("{name}{round}.");
            program.done(&format!("append f {text}"));
            wanted += &text;
            program.done("lock f un 0 0");
        }
    }
    // What was written before the unlock is committed, whatever happens to the daemon then.
    a.done("lock f ex 0 0");
    a.done(&format!("write f {} end", wanted.len()));
    a.done("lock f un 0 0");
    kill_process(two.daemon(0), Signal::KILL).unwrap();
    assert_eq!(b.run("read f 0 9999"), wanted + "end");
}

#[test]
fn programs_write_their_records_in_both_mounts() {
    // Each program has its own range locked all the time, so neither gives the file back by itself.
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("lock f ex 0 8");
    b.done("lock f ex 8 8");
    let begun = Instant::now();
    let mut round = 10_000_000;
    while begun.elapsed() < Duration::from_secs(4) {
        round += 1;
        // One program does not pause between its writes.
        for _ in 0..50 {
            a.done(&format!("write f 0 {round}"));
        }
        b.done(&format!("write f 8 {round}"));
    }
    a.done("sync f");
    b.done("sync f");
    for program in [&mut a, &mut b] {
        assert_eq!(program.run("read f 0 16"), format!("{round}{round}"));
    }
}

#[test]
fn without_locks_a_file_has_one_writer() {
    let Some(two) = Two::new() else { return };
    let mut a = Locker::start(&two.point(0));
    let mut b = Locker::start(&two.point(1));
    a.done("open f file rw");
    a.done("write f 0 text");
    assert_eq!(b.run("open f file rw"), "EBUSY");
    b.done("open f file r");
    // A lock that is only taken changes nothing; one that is given back lets others in.
    a.done("flock f ex");
    assert_eq!(b.run("open g file rw"), "EBUSY");
    a.done("flock f un");
    assert_eq!(b.run("read f 0 9"), "text");
    b.done("open g file rw");
    // A write without a lock holds the file until it is committed.
    a.done("write f 0 next");
    b.done("write g 4 more");
    b.done("sync g");
    assert_eq!(a.run("read f 0 9"), "nextmore");
}

#[test]
fn sqlite_keeps_every_row_of_two_mounts() {
    let Some(two) = Two::new() else { return };
    let sqlite = r#"
import sqlite3, sys
who, count = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect("rows.db", timeout=120, isolation_level=None)
for n in range(count):
    db.execute("insert into rows values (?, ?)", (who, n))
    if n % 5 == 0:
        db.execute("begin immediate")
        last, = db.execute("select value from counter").fetchone()
        db.execute("update counter set value = ?", (last + 1,))
        db.execute("commit")
print("done")
"#;
    let setup = "import sqlite3; db = sqlite3.connect('rows.db'); \
        db.execute('create table rows (who, n)'); db.execute('create table counter (value)'); \
        db.execute('insert into counter values (0)'); db.commit()";
    expect_code(Command::new("python3").args(["-c", setup]).current_dir(two.point(0)), 0);
    let start = |which: usize, name: &str| {
        Command::new("python3")
            .args(["-c", sqlite, name, "40"])
            .current_dir(two.point(which))
            .spawn()
            .unwrap()
    };
    let writers = [start(0, "a"), start(1, "b"), start(0, "c"), start(1, "d")];
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let check = "import sqlite3; db = sqlite3.connect('rows.db'); \
        print(db.execute('pragma integrity_check').fetchone()[0], \
        db.execute('select count(*) from (select distinct who, n from rows)').fetchone()[0], \
        db.execute('select value from counter').fetchone()[0])";
    for which in [0, 1] {
        let mut check = {
            let mut command = Command::new("python3");
            command.args(["-c", check]).current_dir(two.point(which));
            command
        };
        let output = expect_code(&mut check, 0);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok 160 32\n");
    }
}

#[test]
fn git_commits_of_two_mounts_are_one_history() {
    let Some(two) = Two::new() else { return };
    let init = "git init -q repo && cd repo && git config user.name n && git config user.email e \
        && git config core.fsync none && git commit -q --allow-empty -m first";
    shell(&two.point(0), init);
    // On any filesystem, a commit may write an index that it has read before it locked it. What the
    // other program has added is then missing, so each adds its file again.
    let commit = |which: usize, name: &str| {
        let script = format!(
            "cd repo; for n in 1 2 3 4 5 6; do echo $n >{name}$n; \
             until git add {name}$n 2>/dev/null \
             && git commit -q -m {name}$n -- {name}$n 2>/dev/null; do :; done; done"
        );
        Command::new("timeout")
            .args(["300", "bash", "-euc", &script])
            .current_dir(two.point(which))
            .spawn()
            .unwrap()
    };
    let writers = [commit(0, "a"), commit(1, "b")];
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let check = "cd repo && git fsck --strict --no-dangling 2>&1 && git log --format=%s | sort | tr '\\n' ' ' \
        && git status --porcelain";
    let wanted = "a1 a2 a3 a4 a5 a6 b1 b2 b3 b4 b5 b6 first ";
    for which in [0, 1] {
        assert_eq!(shell(&two.point(which), check), wanted);
    }
}

#[test]
fn a_removed_file_can_be_locked_and_written() {
    // The lock that a write needs was taken by the file's name.
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    std::fs::remove_file(two.point(1).join("file")).unwrap();
    for program in [&mut a, &mut b] {
        program.done("lock f ex 0 0");
        program.done("write f 0 text");
        assert_eq!(program.run("read f 0 9"), "text");
        program.done("lock f un 0 0");
        program.done("flock f ex");
        program.done("flock f un");
    }
}

/// The kernel caches for a descriptor that was opened under the lease as long as it is open. Before
/// it uses its pages, it compares only size and time of the file, so it returned those from before
/// the lock.
#[test]
fn a_granted_lock_ends_older_pages() {
    let Some(two) = Two::new() else { return };
    let daemons = [0, 1].map(|which| two.daemon(which));
    let path = two.point(0).join("file");
    std::fs::write(&path, "text0000").unwrap();
    let begun = Instant::now();
    while !is_cached(&daemons, &path) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no lease");
        std::fs::read(&path).unwrap();
    }
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("map f 8");
    for round in 1..20 {
        let text = format!("text{round:04}");
        b.done("lock f ex 0 0 wait");
        b.done(&format!("write f 0 {text}"));
        b.done("time f 1000000000");
        if round % 2 == 0 {
            a.begin("lock f sh 0 0 wait");
            a.until_it_waits();
            b.done("lock f un 0 0");
            assert_eq!(a.answer(), "ok");
        } else {
            b.done("lock f un 0 0");
            a.done("lock f sh 0 0");
        }
        assert_eq!(a.run("read f 0 8"), text);
        assert_eq!(a.run("peek f 8"), text);
        a.done("lock f un 0 0");
    }
}

/// Programs in two mounts may map a file if both daemons take its guard on demand. The daemon takes
/// the guard when the kernel writes back what was written through the mapping.
#[test]
fn pages_of_a_mapping_arrive_beside_locks() {
    let Some(two) = Two::new() else { return };
    let (mut a, mut b) = two.lockers("file", "rw");
    a.done("write f 0 00000000");
    a.done("sync f");
    for program in [&mut a, &mut b] {
        program.done("map f 8");
    }
    for round in 0..10 {
        for (writer, reader) in [(0, 1), (1, 0)] {
            let programs = [&mut a, &mut b];
            let text = format!("{writer}{round:07}");
            programs[writer].done("lock f ex 0 0 wait");
            programs[writer].done(&format!("put f {text}"));
            programs[writer].done("lock f un 0 0");
            programs[reader].done("lock f sh 0 0 wait");
            assert_eq!(programs[reader].run("peek f 8"), text);
            assert_eq!(programs[reader].run("read f 0 8"), text);
            programs[reader].done("lock f un 0 0");
        }
    }
}

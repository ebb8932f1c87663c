//! The daemon is killed under load, and the machine's disk is copied under load; what was
//! acknowledged must exist afterwards.
//!
//! A round mounts, starts processes that work in the mount and record what was acknowledged, kills
//! the daemon with SIGKILL at a random moment (or copies the disk beneath in one step), mounts
//! again and compares. `load.rs` contains the loads.
//!
//! `KITHFS_CRASH_ROUNDS` sets the number of rounds of each test, `KITHFS_CRASH_SEED` the moments.
//! `scripts/crash.sh --full` runs them all.

mod load;

use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code, is_mounted, shell};

/// Rounds of each test, unless the environment sets another number.
const ROUNDS: u64 = 12;
/// The ordinary user of the tests that root runs.
const USER: u32 = 65534;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

/// A vault with its mount point, used by one user.
struct Bed {
    dir: tempfile::TempDir,
    vault: PathBuf,
    user: Option<u32>,
    /// The state of the generator of random moments.
    moments: u64,
}

impl Bed {
    fn new(user: Option<u32>) -> Bed {
        let dir = tempfile::Builder::new().prefix("kithfs-crash-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let bed = Bed {
            vault: dir.path().join("home/vault"),
            dir,
            user,
            moments: number("KITHFS_CRASH_SEED", 1),
        };
        for sub in ["home", "mnt", "run"] {
            let path = bed.dir.path().join(sub);
            std::fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, user, user).unwrap();
        }
        std::fs::write(bed.dir.path().join("passphrase"), "correct horse\n").unwrap();
        bed
    }

    fn init(&self) {
        expect_code(
            self.command(KITHFS)
                .args(["init", "--own-identity", "--kdf-memory", "32", "--kdf-passes", "1"])
                .arg(&self.vault),
            0,
        );
    }

    fn point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn acknowledged(&self) -> PathBuf {
        self.dir.path().join("run/acknowledged")
    }

    /// Returns a program run by the user of this bed.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("KITHFS_PASSPHRASE_FILE", self.dir.path().join("passphrase"))
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"));
        command.env("HOME", self.dir.path().join("home"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn mount(&self, vault: &Path) -> Daemon {
        let child = self
            .command(KITHFS)
            .args(["mount", "--foreground", "--log-level", "warn"])
            .arg(vault)
            .arg(self.point())
            .spawn();
        let mut daemon = Daemon { child: child.unwrap(), point: self.point() };
        daemon.wait_until_mounted();
        daemon
    }

    /// Starts the loads of one round in `place` of the mount. They end when the mount ends, or when
    /// they are killed.
    fn start(&self, place: &str, extra: &[(&str, &str)]) -> Child {
        let _ = std::fs::remove_file(self.acknowledged());
        let me = std::env::current_exe().unwrap();
        let mut command = self.command(me.to_str().unwrap());
        command
            .args(["--exact", "crash::load::works_while_the_mount_does", "--nocapture"])
            .env("KITHFS_CRASH_LOAD", self.point().join(place));
        command.env("KITHFS_CRASH_ACKNOWLEDGED", self.acknowledged()).envs(extra.iter().copied());
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    /// Compares `place` of the mount with the acknowledgements.
    fn verify(&self, place: &str, acknowledged: &Path, what: &str) {
        let me = std::env::current_exe().unwrap();
        let mut command = self.command(me.to_str().unwrap());
        command
            .args(["--exact", "crash::load::finds_what_was_acknowledged", "--nocapture"])
            .env("KITHFS_CRASH_VERIFY", self.point().join(place));
        let output = command.env("KITHFS_CRASH_ACKNOWLEDGED", acknowledged).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}:\n{text}");
    }

    /// Returns a time between 40 and 400 ms.
    fn moment(&mut self) -> Duration {
        self.moments = self
            .moments
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(40 + (self.moments >> 33) % 360)
    }

    fn lines(&self) -> usize {
        std::fs::read(self.acknowledged())
            .map_or(0, |text| text.iter().filter(|b| **b == b'\n').count())
    }

    /// Waits until all loads have begun: from here on any moment is suitable.
    fn wait_for_load(&self, load: &mut Child) {
        while !std::fs::read_to_string(self.acknowledged())
            .is_ok_and(|text| load::all_have_begun(&text))
        {
            assert!(load.try_wait().unwrap().is_none(), "the load ended before it was under way");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asserts that the vault has only the damage that a crash may leave.
    fn check(&self, vault: &Path) {
        let mut command = self.command(KITHFS);
        // The machine has seen the vault after the copy was made. A real power cut would take back
        // what it remembers, too.
        command.env("XDG_STATE_HOME", self.dir.path().join("another state"));
        let output = command.arg("fsck").arg(vault).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 23)), "{output:?}: {text}");
    }
}

/// A mounted vault, served by a child; unmounted on drop.
struct Daemon {
    child: Child,
    point: PathBuf,
}

impl Daemon {
    fn wait_until_mounted(&mut self) {
        use std::os::fd::AsRawFd;
        let table = std::fs::File::open("/proc/self/mounts").unwrap();
        while !is_mounted(&self.point) {
            assert!(self.child.try_wait().unwrap().is_none(), "the daemon ended before it mounted");
            let mut poll =
                libc::pollfd { fd: table.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
            // SAFETY: one valid pollfd; the time-out only limits how long a failing daemon goes
            // unnoticed.
            unsafe { libc::poll(&mut poll, 1, 200) };
        }
    }

    /// Kills the daemon with SIGKILL, and removes the dead mount.
    fn kill(self) {
        drop(self);
    }

    fn unmount(mut self) {
        expect_code(Command::new(KITHFS).arg("umount").arg(&self.point), 0);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if is_mounted(&self.point) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.point).status();
        }
    }
}

/// Kills the daemon in each round, mounts again, and compares.
fn killed(user: Option<u32>, extra: &[(&str, &str)]) {
    let rounds = number("KITHFS_CRASH_ROUNDS", ROUNDS);
    let mut bed = Bed::new(user);
    bed.init();
    let mut acknowledged = 0;
    let mut daemon = bed.mount(&bed.vault);
    for round in 0..rounds {
        let place = format!("round {round}");
        let mut load = bed.start(&place, extra);
        bed.wait_for_load(&mut load);
        std::thread::sleep(bed.moment());
        daemon.kill();
        let _ = load.wait();
        acknowledged += bed.lines();
        daemon = bed.mount(&bed.vault);
        bed.verify(&place, &bed.acknowledged(), &place);
    }
    daemon.unmount();
    bed.check(&bed.vault);
    println!("{rounds} kills, {acknowledged} acknowledgements");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_acknowledged() {
    if can_mount() {
        killed(None, &[]);
    }
}

/// Does [`a_killed_daemon_loses_nothing_that_was_acknowledged`] with the daemon of an ordinary user
/// and files of modes 0444 and 0000, which that user may not open for writing.
#[test]
fn a_killed_user_daemon_keeps_acknowledged_read_only_files() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let may_mount = Command::new("test")
        .args(["-r", "/dev/fuse", "-a", "-w", "/dev/fuse"])
        .uid(USER)
        .gid(USER)
        .status();
    if !may_mount.is_ok_and(|status| status.success()) {
        println!("skipped: user {USER} may not open /dev/fuse");
        return;
    }
    killed(Some(USER), &[("KITHFS_CRASH_MODES", "yes")]);
}

#[test]
fn databases_survive_the_kills() {
    if !can_mount() {
        return;
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        println!("skipped: there is no sqlite3");
        return;
    }
    killed(None, &[("KITHFS_CRASH_SQLITE", "yes")]);
}

/// A power cut within half a second of the creation of `-shm` left its name without a byte. SQLite
/// could not open the database then, until that file was deleted. SQLite first truncates it to
/// three bytes, which begins the file anew.
#[test]
fn sqlite_opens_a_database_whose_shm_has_no_bytes() {
    if !can_mount() {
        return;
    }
    if Command::new("sqlite3").arg("--version").output().is_err() {
        println!("skipped: there is no sqlite3");
        return;
    }
    let scratch = Scratch::new(&[]);
    for options in [&[][..], &["-o", "uring"]] {
        let mount = scratch.mount(&[]);
        // A killed process leaves the files of the write-ahead log behind, as a power cut does.
        let rows = "PRAGMA journal_mode=wal; CREATE TABLE t(i); INSERT INTO t VALUES (1), (2);";
        let mut program = Command::new("sqlite3")
            .arg(scratch.point().join("db"))
            .arg(rows)
            .args(["-cmd", ".output /dev/null"])
            .arg(".shell kill -9 $PPID")
            .spawn()
            .unwrap();
        program.wait().unwrap();
        let map = expect_code(scratch.kithfs("map").arg(scratch.vault()).arg("db-shm"), 0);
        let shm = scratch.vault().join(String::from_utf8(map.stdout).unwrap().trim());
        mount.unmount();
        std::fs::File::options().write(true).open(&shm).unwrap().set_len(0).unwrap();
        // This machine has seen the file at the unmount, which a power cut would have prevented.
        let mut fsck = scratch.kithfs("fsck");
        fsck.env("XDG_STATE_HOME", scratch.path().join("another state"));
        expect_code(fsck.arg(scratch.vault()), 23);

        let mount = scratch.mount(options);
        let shm = scratch.point().join("db-shm");
        // A program that does not truncate gets the error at once, and the file stays unchanged.
        assert_eq!(std::fs::read(&shm).map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)));
        let mut file = std::fs::File::options().read(true).append(true).open(&shm).unwrap();
        assert_eq!(file.write_all(b"more").map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)));
        assert_eq!(
            file.read_to_end(&mut Vec::new()).map_err(|e| e.raw_os_error()),
            Err(Some(libc::EIO))
        );
        drop(file);
        let more = "INSERT INTO t VALUES (3); SELECT sum(i) FROM t; PRAGMA integrity_check;";
        assert_eq!(shell(&scratch.point(), &format!("sqlite3 db '{more}'")), "6\nok\n");
        mount.unmount();
        expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
        expect_code(scratch.kithfs("rm").arg(scratch.vault()).arg("db"), 0);
    }
}

/// A loop device with a mounted filesystem; both are removed on drop.
struct Disk {
    point: PathBuf,
}

impl Disk {
    fn mount(image: &Path, point: &Path, options: &str) -> Option<Disk> {
        std::fs::create_dir_all(point).unwrap();
        let output =
            Command::new("mount").args(["-o", options]).arg(image).arg(point).output().unwrap();
        if !output.status.success() {
            println!("mount: {}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success().then(|| Disk { point: point.to_owned() })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).status();
    }
}

/// The disk is copied in one step while programs write, as a power cut would leave it.
#[test]
fn a_snapshot_of_the_disk_holds_all_acknowledged_data() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new(None);
    let work = bed.dir.path().to_owned();
    let Some(disks) = Copied::make(&mut bed) else { return };
    let rounds = number("KITHFS_CRASH_ROUNDS", ROUNDS);
    let mut acknowledged = 0;
    for round in 0..rounds {
        let place = format!("round {round}");
        let daemon = bed.mount(&bed.vault);
        let mut load = bed.start(&place, &[]);
        bed.wait_for_load(&mut load);
        std::thread::sleep(bed.moment());
        // First the current acknowledgements, then the disk of a moment later.
        let before = work.join("before");
        std::fs::copy(bed.acknowledged(), &before).unwrap();
        shell(&work, "cp --reflink=always xfs/disk xfs/copy");
        let _ = load.kill();
        let _ = load.wait();
        daemon.unmount();
        acknowledged += std::fs::read(&before).unwrap().iter().filter(|b| **b == b'\n').count();
        {
            let _copy = Disk::mount(&work.join("xfs/copy"), &work.join("copy"), "loop")
                .expect("mount the copy");
            let vault = work.join("copy/vault");
            let daemon = bed.mount(&vault);
            bed.verify(&place, &before, &place);
            daemon.unmount();
            bed.check(&vault);
        }
        shell(&work, &format!("rm -rf xfs/copy 'ext4/{place}'"));
        // Room for the next round.
        let daemon = bed.mount(&bed.vault);
        // By a child: a process that another test just forks would keep a directory that is open here.
        shell(&work, &format!("rm -r 'mnt/{place}'"));
        daemon.unmount();
    }
    println!("{rounds} copies, {acknowledged} acknowledgements");
    drop(disks);
}

/// Returns the state, as in /proc, of the process with which a daemon calls `syncfs`, while it
/// exists. It exists for a few milliseconds, so only the daemon's children are looked at.
fn state_of_helper(daemon: u32) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{daemon}/task")).ok()?.flatten();
    let children =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    children.collect::<String>().split_whitespace().find_map(|child| {
        let process = Path::new("/proc").join(child);
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        let state = stat.rsplit(')').next()?.split_whitespace().next()?.to_owned();
        let line = std::fs::read(process.join("cmdline")).ok()?;
        line.starts_with(b"kithfs-syncfs\0").then_some(state)
    })
}

#[test]
fn a_daemon_killed_during_writeback_leaves_no_hung_mount() {
    // A caller of `syncfs` waits in the kernel for answers of the daemon, and no signal ends that.
    // It was a thread of the daemon, so a daemon that was killed in that moment never released the
    // FUSE device: every program in the mount hung for ever, and so did `umount`.
    if !can_mount() {
        return;
    }
    let bed = Bed::new(None);
    bed.init();
    let mut daemon = bed.mount(&bed.vault);
    let file = std::fs::File::create(bed.point().join("file")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scopeguard::defer!(stop.store(true, Ordering::Release));
        scope.spawn(|| {
            for n in 0u64.. {
                let at = n.wrapping_mul(6_364_136_223_846_793_005) >> 38;
                if stop.load(Ordering::Acquire) || file.write_all_at(&[1; 100], at).is_err() {
                    break;
                }
            }
        });
        // Kills in the middle of the call, if the kernel waits there at all. The first call is
        // after ten seconds; it takes a few milliseconds and may not be seen.
        let (since, mut seen) = (Instant::now(), false);
        loop {
            let state = state_of_helper(daemon.child.id());
            seen |= state.is_some();
            if state.as_deref() == Some("D") || seen && since.elapsed() > Duration::from_secs(40) {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(300), "no process calls `syncfs`");
            std::thread::sleep(Duration::from_micros(200)); // leaves the processors to the others
        }
        daemon.child.kill().unwrap();
        // This wait never ended.
        daemon.child.wait().unwrap();
    });
    drop(file);
    assert_eq!(std::fs::metadata(bed.point()).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    expect_code(bed.command(KITHFS).arg("umount").arg(bed.point()), 0);
}

/// Length of a record, which is written to a recording each half second. All bytes of record `n`,
/// from 0, are `n + 1`.
const RECORD: usize = 512;

/// Checks the records that were found of a recording, which must include all of its first `whole`
/// half seconds.
fn check_recording(path: &Path, whole: usize, what: &str) {
    let found = std::fs::read(path).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (n, record) in found.chunks(RECORD).enumerate() {
        assert!(
            record.iter().all(|byte| *byte == n as u8 + 1),
            "{what}: record {n} of {}",
            found.len() / RECORD
        );
    }
    assert!(
        found.len() >= whole * RECORD,
        "{what}: {} records, and {whole} were written long before",
        found.len() / RECORD
    );
}

#[test]
fn an_unsynced_recording_loses_only_its_last_seconds() {
    // Data that a program wrote little by little stayed in the kernel for half a minute, and was
    // lost when the daemon died. After a power cut, a file that was never synced could be unreadable
    // as a whole, however long ago it was created.
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new(None);
    let work = bed.dir.path().to_owned();
    let disks = Copied::make(&mut bed);
    if disks.is_none() {
        bed.init();
    }
    let daemon = bed.mount(&bed.vault);
    // The copier is started before the recording: a new process inherits open descriptors for a
    // moment, and closing that of the recording would flush it.
    let copier = disks.as_ref().map(|_| {
        let mut copier = Command::new("bash");
        copier
            .args(["-euc", "read -r; cp --reflink=always xfs/disk xfs/copy"])
            .current_dir(&work)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut recording = std::fs::File::create(bed.point().join("recording")).unwrap();
    // 24 seconds: the promise with a reserve for a busy machine. Without the daemon's flushes, the
    // kernel would hold the data back for longer.
    const HALF_SECONDS: u8 = 48;
    for n in 0..HALF_SECONDS {
        recording.write_all(&[n + 1; RECORD]).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    if let Some(mut copier) = copier {
        copier.stdin.take().unwrap().write_all(b"now\n").unwrap();
        assert!(copier.wait().unwrap().success());
    }
    daemon.kill();
    drop(recording);
    let daemon = bed.mount(&bed.vault);
    check_recording(&bed.point().join("recording"), 16, "after the kill");
    daemon.unmount();
    if disks.is_some() {
        let _copy = Disk::mount(&work.join("xfs/copy"), &work.join("copy"), "loop")
            .expect("mount the copy");
        let daemon = bed.mount(&work.join("copy/vault"));
        check_recording(&bed.point().join("recording"), 16, "in the copy");
        daemon.unmount();
    }
}

/// An ext4 with the vault of a bed on it, in an image on an XFS, which clones files in one step:
/// the copy is what a power cut would have left.
struct Copied {
    _inner: Disk,
    _outer: Disk,
}

impl Copied {
    /// Creates both disks and the vault; returns `None`, with a message, if that is not possible.
    fn make(bed: &mut Bed) -> Option<Copied> {
        let work = bed.dir.path().to_owned();
        let made = Command::new("mkfs.xfs")
            .args(["-q", "-d", "size=1g,file,name=outer"])
            .current_dir(&work)
            .output();
        if !is_root() || !made.is_ok_and(|output| output.status.success()) {
            println!("skipped: it needs root and mkfs.xfs");
            return None;
        }
        let Some(outer) = Disk::mount(&work.join("outer"), &work.join("xfs"), "loop") else {
            println!("skipped: loop devices cannot be mounted");
            return None;
        };
        shell(&work, "truncate -s 96M xfs/disk && mkfs.ext4 -q -F xfs/disk");
        let inner = Disk::mount(&work.join("xfs/disk"), &work.join("ext4"), "loop")
            .expect("mount the inner disk");
        bed.vault = work.join("ext4/vault");
        bed.init();
        Some(Copied { _inner: inner, _outer: outer })
    }
}

/// Mounts an ext4 of 64 MiB on a loop device; returns `None`, with a message, if that is not
/// possible.
fn small_disk(work: &Path) -> Option<Disk> {
    let made = is_root()
        && Command::new("mkfs.ext4")
            .args(["-q", "-F", "disk", "64M"])
            .current_dir(work)
            .status()
            .is_ok_and(|s| s.success());
    let disk = made.then(|| Disk::mount(&work.join("disk"), &work.join("small"), "loop")).flatten();
    if disk.is_none() {
        println!("skipped: it needs root, mkfs.ext4 and loop devices");
    }
    disk
}

#[test]
fn a_full_disk_damages_nothing_and_the_mount_recovers() {
    // A last segment that grew needed a block that was requested from the store only after the
    // record was durable, and then nothing else in the vault could be overwritten either. Besides,
    // when data was refused at the close, the kernel kept the length of the file with that data.
    // For pages that it had dropped it showed zeros.
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new(None);
    let work = bed.dir.path().to_owned();
    let Some(disk) = small_disk(&work) else { return };
    bed.vault = work.join("small/vault");
    bed.init();
    let daemon = bed.mount(&bed.vault);
    // Another file takes all but about 3 MiB.
    shell(
        &work,
        "free=$(($(stat -f -c '%a * %S' small) / 1048576)); fallocate -l $((free - 3))M small/ballast",
    );
    let full = bed.acknowledged().with_extension("full");
    let _ = std::fs::remove_file(&full);
    let mut load = bed.start("full", &[]);
    // Writes that need space are refused in the end; overwrites do not need any.
    let ended = || std::fs::read_to_string(&full).unwrap_or_default();
    while !["append", "replace", "create"].iter().all(|load| ended().contains(load)) {
        assert!(load.try_wait().unwrap().is_none(), "the load ended: {}", ended());
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = bed.lines();
    while bed.lines() < lines + 20 {
        assert!(
            load.try_wait().unwrap().is_none() && !ended().contains("overwrite"),
            "overwriting ended in a full disk"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = load.kill();
    let _ = load.wait();
    bed.verify("full", &bed.acknowledged(), "while the disk is full");
    std::fs::remove_file(work.join("small/ballast")).unwrap();
    let mut load = bed.start("again", &[]);
    bed.wait_for_load(&mut load);
    let _ = load.kill();
    let _ = load.wait();
    bed.verify("again", &bed.acknowledged(), "once the disk has space");
    daemon.unmount();
    bed.check(&bed.vault);
    drop(disk);
}

/// A vault on a filesystem that is mounted read-only is mounted for reading, and the program
/// reports that.
#[test]
fn a_read_only_store_is_mounted_read_only_with_a_message() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new(None);
    let work = bed.dir.path().to_owned();
    let Some(disk) = small_disk(&work) else { return };
    bed.vault = work.join("small/vault");
    bed.init();
    let daemon = bed.mount(&bed.vault);
    std::fs::write(bed.point().join("file"), "words").unwrap();
    daemon.unmount();
    shell(&work, "mount -o remount,ro small");
    let said = std::fs::File::create(work.join("said")).unwrap();
    let mut command = bed.command(KITHFS);
    let child = command
        .args(["mount", "--foreground"])
        .arg(&bed.vault)
        .arg(bed.point())
        .stderr(said)
        .spawn()
        .unwrap();
    let mut daemon = Daemon { child, point: bed.point() };
    daemon.wait_until_mounted();
    assert_eq!(std::fs::read_to_string(bed.point().join("file")).unwrap(), "words");
    let refused = std::fs::write(bed.point().join("file"), "other").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    daemon.unmount();
    let said = std::fs::read_to_string(work.join("said")).unwrap();
    assert!(said.contains("is mounted read-only: its filesystem is read-only"), "{said}");
    drop(disk);
}

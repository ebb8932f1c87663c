//! FUSE over io_uring: its particular behaviour. `scripts/check-uring.sh` runs the other tests over
//! it.
//!
//! Skipped with a message if the kernel has no FUSE over io_uring, or if it is switched off and the
//! test does not run as root.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kithfs::fuse::{MountOptions, Mounted, ServeOptions, Serving, Transport, mount, serve};

use crate::support::holes;
use crate::support::memfs::MemFs;
use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code, is_mounted};
use crate::support::people::wait_until;
use crate::support::turn;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch, set for one test and then restored.
struct Switch {
    before: String,
    _turn: turn::Turn,
}

impl Switch {
    /// Switches io_uring on; `None`, with the reason, if that is impossible.
    fn on() -> Option<Switch> {
        let turn = turn::alone();
        if !can_mount() {
            return None;
        }
        let Ok(before) = fs::read_to_string(SWITCH) else {
            println!("skipped: this kernel has no FUSE over io_uring");
            return None;
        };
        if before.trim() != "Y" && fs::write(SWITCH, "Y").is_err() {
            println!("skipped: FUSE over io_uring is switched off, and only root can switch it on");
            return None;
        }
        Some(Switch { before, _turn: turn })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

/// A mounted [`MemFs`]; dropping it unmounts.
struct Mount {
    mounted: Mounted,
    serving: Option<Serving>,
    ops: Arc<MemFs>,
    _dir: tempfile::TempDir,
}

impl Mount {
    fn new(transport: Transport) -> io::Result<Mount> {
        Mount::serve_as(&ServeOptions { transport, ..ServeOptions::default() })
    }

    fn serve_as(options: &ServeOptions) -> io::Result<Mount> {
        let dir = tempfile::tempdir()?;
        let (mounted, fd) = mount(dir.path(), &MountOptions::default()).expect("mounting");
        let ops = Arc::new(MemFs::new());
        let mut mount = Mount { mounted, serving: None, ops: ops.clone(), _dir: dir };
        mount.serving = Some(serve(fd, ops, options)?);
        Ok(mount)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.mountpoint.join(name)
    }

    fn over_io_uring(&self) -> bool {
        self.serving.as_ref().expect("served").over_io_uring()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.ops.open_gate();
        if self.mounted.unmount(false).is_err() {
            let _ = self.mounted.unmount(true);
            return;
        }
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            assert!(thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

/// Keeps this thread on the first processor that it may use.
fn pin() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the processors of this thread");
    let first = (0..rustix::thread::CpuSet::MAX_CPU)
        .find(|&cpu| allowed.is_set(cpu))
        .expect("at least one");
    let mut one = rustix::thread::CpuSet::new();
    one.set(first);
    rustix::thread::sched_setaffinity(None, &one).expect("pinning");
}

/// Requests come over io_uring where the kernel offers it, unless the user chooses /dev/fuse.
#[test]
fn io_uring_is_used_where_the_kernel_offers_it() {
    let Some(_switch) = Switch::on() else { return };
    for (transport, expected) in
        [(Transport::Dev, false), (Transport::Auto, true), (Transport::Uring, true)]
    {
        let mount = Mount::new(transport).unwrap();
        assert_eq!(mount.over_io_uring(), expected, "{transport:?}");
        fs::write(mount.path("f"), b"text").unwrap();
        assert_eq!(fs::read(mount.path("f")).unwrap(), b"text");
    }
    if fs::write(SWITCH, "N").is_err() {
        println!("skipped: only root can switch FUSE over io_uring off");
        return;
    }
    let mount = Mount::new(Transport::Auto).unwrap();
    assert!(!mount.over_io_uring());
    fs::write(mount.path("f"), b"text").unwrap();
    drop(mount);
    assert!(Mount::new(Transport::Uring).is_err());
    let scratch = Scratch::new(&[]);
    let refused = expect_code(
        scratch
            .kithfs("mount")
            .args(["--transport", "uring"])
            .arg(scratch.vault())
            .arg(scratch.point()),
        8,
    );
    assert!(String::from_utf8_lossy(&refused.stderr).contains("hint: "));
    assert!(!is_over_io_uring(&scratch, &[]));
    fs::write(SWITCH, "Y").unwrap();
    for (options, expected) in [
        (&[][..], true),
        (&["-o", "nouring"], false),
        (&["--transport", "auto"], true),
        (&["-o", "uring"], true),
        (&["-o", "uring,nouring"], false),
        (&["--transport", "dev", "-o", "uring"], false),
        (&["--transport", "auto", "-o", "nouring"], true),
    ] {
        assert_eq!(is_over_io_uring(&scratch, options), expected, "{options:?}");
    }
}

/// Mounts with these options for a moment. Returns whether `kithfs mounts` reports io_uring;
/// `kithfs info` must agree.
fn is_over_io_uring(scratch: &Scratch, options: &[&str]) -> bool {
    let mut command = scratch.kithfs("mount");
    command.env_remove("KITHFS_TRANSPORT").args(options);
    let mounted = expect_code(command.arg(scratch.vault()).arg(scratch.point()), 0);
    assert!(
        !String::from_utf8_lossy(&mounted.stderr).contains("io_uring"),
        "no message about io_uring"
    );
    let mounts = expect_code(Command::new(KITHFS).args(["mounts", "--json"]), 0);
    let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
    let point = scratch.point();
    let ours = |entry: &&serde_json::Value| entry["mountpoint"] == point.to_str().unwrap();
    let entry = mounts.as_array().unwrap().iter().find(ours).expect("listed");
    let io_uring = entry["io_uring"].as_bool().unwrap();
    let info = expect_code(Command::new(KITHFS).arg("info").arg(scratch.vault()), 0);
    let transport = if io_uring { "over io_uring" } else { "over /dev/fuse" };
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.contains(&format!("{}, {transport}\n", point.display())), "{info}");
    expect_code(Command::new(KITHFS).arg("umount").arg(&point), 0);
    io_uring
}

/// A mount that merely preferred io_uring failed if its rings or their memory could not be made,
/// as on a machine that forbids io_uring (`kernel.io_uring_disabled`).
#[test]
fn auto_uses_the_device_if_rings_cannot_be_made() {
    let Some(_switch) = Switch::on() else { return };
    let serve_with = |transport| {
        let none = ServeOptions { transport, uring_memory: 0, ..ServeOptions::default() };
        Mount::serve_as(&none)
    };
    let mount = serve_with(Transport::Auto).unwrap();
    assert!(!mount.over_io_uring());
    fs::write(mount.path("f"), b"text").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"text");
    drop(mount);
    assert!(serve_with(Transport::Uring).is_err());
}

/// After a processor had gone offline and come back, the thread of its queue ran anywhere, and small
/// operations from that processor were as slow as over the device until the vault was mounted again.
#[test]
fn a_queue_that_lost_its_processor_returns_to_it() {
    let Some(_switch) = Switch::on() else { return };
    let allowed = rustix::thread::sched_getaffinity(None).expect("the processors of this thread");
    if !(allowed.is_set(0) && allowed.is_set(1)) {
        println!("skipped: needs the processors 0 and 1");
        return;
    }
    let only = |cpu| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        set
    };
    let mount = Mount::new(Transport::Uring).unwrap();
    let queue = thread_named("kithfs-queue-0");
    // A test cannot take a processor offline, but it can move the thread as the kernel then does.
    rustix::thread::sched_setaffinity(Some(queue), &only(1)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            fs::write(mount.path("f"), b"text").unwrap();
        });
    });
    let now = rustix::thread::sched_getaffinity(Some(queue)).unwrap();
    assert!(now.is_set(0) && now.count() == 1, "{now:?}");
}

/// Returns the thread of this process with this name.
fn thread_named(name: &str) -> rustix::thread::Pid {
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let comm = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let task = tasks.find(|task| comm(task).is_ok_and(|comm| comm.trim() == name));
    let task = task.expect("a thread with this name");
    let id = task.file_name().to_str().and_then(|id| id.parse().ok());
    id.and_then(rustix::thread::Pid::from_raw).expect("a number")
}

#[test]
fn what_waits_for_the_disk_does_not_hold_up_its_processor() {
    // A request that blocks a queue's thread stops everything from that processor, including what
    // it waits for.
    let Some(_switch) = Switch::on() else { return };
    let mount = Mount::new(Transport::Uring).unwrap();
    let files: Vec<File> =
        (0..3).map(|n| File::create(mount.path(&format!("f{n}"))).unwrap()).collect();
    mount.ops.shut_gate();
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                pin();
                file.sync_all().unwrap();
            });
        }
        assert!(mount.ops.wait_at_gate(3), "three wait in fsync");
        let path = mount.path("g");
        let other = scope.spawn(move || {
            pin();
            fs::write(&path, b"text").unwrap();
            fs::read_dir(path.parent().unwrap()).unwrap().count()
        });
        assert_eq!(other.join().unwrap(), 4);
        mount.ops.open_gate();
    });
}

#[test]
fn quick_flushes_run_inline_until_one_takes_long() {
    // Each fsync was passed to another thread, and 4 KiB writes with one each were twice as slow
    // over io_uring as over the device, with the store in memory.
    let Some(_switch) = Switch::on() else { return };
    let mount = Mount::new(Transport::Uring).unwrap();
    let file = File::create(mount.path("f")).unwrap();
    let flush = |times: usize| {
        thread::scope(|scope| {
            let flushing = scope.spawn(|| {
                pin();
                (0..times).for_each(|_| file.sync_all().unwrap());
            });
            flushing.join().unwrap();
        });
        mount.ops.flushed_by()
    };
    let is_pool = |name: &String| name == "kithfs-pool";
    // A machine that stalls for a moment makes any of them slow: then the count begins again.
    let mut by = flush(40);
    assert!(is_pool(&by[0]), "the first is not trusted: {by:?}");
    for _ in 0..20 {
        if !is_pool(by.last().unwrap()) {
            break;
        }
        by = flush(40);
    }
    assert!(!is_pool(by.last().unwrap()), "{by:?}");

    mount.ops.shut_gate();
    thread::scope(|scope| {
        let slow = scope.spawn(|| flush(1));
        assert!(mount.ops.wait_at_gate(1));
        thread::sleep(Duration::from_millis(5)); // that is what makes it slow
        mount.ops.open_gate();
        slow.join().unwrap();
    });
    assert!(is_pool(&flush(1)[0]));
}

#[test]
fn more_requests_than_entries_all_get_their_turn() {
    let Some(_switch) = Switch::on() else { return };
    let mount = Mount::new(Transport::Uring).unwrap();
    let files: Vec<File> =
        (0..40).map(|n| File::create(mount.path(&format!("f{n}"))).unwrap()).collect();
    mount.ops.shut_gate();
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                pin();
                file.sync_all().unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert!(mount.ops.wait_at_gate(2));
        mount.ops.open_gate();
    });
    assert_eq!(done.load(Ordering::SeqCst), 40);
}

#[test]
fn concurrent_seeks_for_holes_do_not_hang() {
    // LSEEK waits until the kernel has sent pages. If all entries of a queue waited for that, there
    // would be none for the pages.
    let Some(_switch) = Switch::on() else { return };
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&["--transport", "uring"]);
    let file = File::create_new(scratch.point().join("one")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 4096], 81920).unwrap();
    if holes::kernel_sends() {
        assert_eq!(holes::data(&file), vec![81920..86016; 1]);
    }
    drop(file);
    // This many at once are more than a queue can let wait: from then on everything counts as data.
    holes::many_at_once(&scratch.point(), false);
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// Returns the process id of the daemon that serves `point`.
fn daemon(point: &Path) -> i32 {
    let mounts = expect_code(Command::new(KITHFS).args(["mounts", "--json"]), 0);
    let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
    let ours = mounts
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["mountpoint"] == point.to_str().unwrap())
        .expect("listed");
    ours["process"]["pid"].as_i64().or(ours["pid"].as_i64()).expect("a number") as i32
}

#[test]
fn a_daemon_that_is_killed_leaves_nobody_hanging() {
    let Some(_switch) = Switch::on() else { return };
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&["--transport", "uring"]);
    let file = scratch.point().join("f");
    fs::write(&file, vec![7; 100_000]).unwrap();
    let open = File::open(&file).unwrap();
    let pid = daemon(&scratch.point());
    // SAFETY: kill(2) touches no memory, and the process is the daemon of this test.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    // Whether or not the kernel has noticed by now, each call ends, and soon all of them fail.
    let gone = |result: io::Result<()>| {
        result.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    };
    let other = scratch.point().join("other");
    wait_until("all calls fail", || gone(fs::metadata(&other).map(drop)));
    drop(open);
    drop(mount);
    assert!(!is_mounted(&scratch.point()));
    // The connection ends before the process has closed its other files, and with them the vault's lock.
    wait_until("the daemon ends", || !Path::new(&format!("/proc/{pid}/fd/0")).exists());
    let mount = scratch.mount(&["--transport", "uring"]);
    fs::write(&file, b"again").unwrap();
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// With the least memory for io_uring, one entry of 128 KiB for each processor, requests are no
/// larger than an entry, and data is intact.
///
/// The test passed if the mount used the device, or requests of any size.
#[test]
fn minimal_memory_for_io_uring_makes_requests_smaller() {
    const ENTRY: usize = 128 << 10;
    let Some(_switch) = Switch::on() else { return };
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    // SAFETY: sysconf(3) only returns a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize;
    let largest = |uring_memory| {
        let transport = Transport::Uring;
        let options = ServeOptions { transport, uring_memory, ..ServeOptions::default() };
        let mount = Mount::serve_as(&options).unwrap();
        assert!(mount.over_io_uring());
        fs::write(mount.path("f"), &data).unwrap();
        File::open(mount.path("f")).unwrap().sync_all().unwrap();
        assert!(fs::read(mount.path("f")).unwrap() == data);
        mount.ops.largest_write()
    };
    assert_eq!(largest(online * ENTRY), ENTRY);
    let by_default = largest(ServeOptions::default().uring_memory);
    // A machine with more processors has smaller requests by default too.
    assert!(by_default > ENTRY || online > 64, "{by_default}");
    assert!(
        Mount::serve_as(&ServeOptions {
            transport: Transport::Uring,
            uring_memory: online * ENTRY - 1,
            ..ServeOptions::default()
        })
        .is_err()
    );
}

/// A vault that is mounted with the least memory that the option can name is intact.
#[test]
fn a_vault_is_intact_with_one_mib_for_io_uring() {
    let Some(_switch) = Switch::on() else { return };
    let scratch = Scratch::new(&[]);
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    // With more than eight processors one MiB is too little, and the mount uses the device.
    let options = ["--transport", "auto", "-o", "uring_memory=1"];
    let mount = scratch.mount(&options);
    fs::write(scratch.point().join("f"), &data).unwrap();
    mount.unmount();
    let mount = scratch.mount(&options);
    assert!(fs::read(scratch.point().join("f")).unwrap() == data);
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Random reads, writes, truncations and fsyncs of one file until `end`, each read compared with
/// the expected contents.
fn work(path: &Path, seed: u64, end: Instant) -> u64 {
    const SIZE: u64 = 8 << 20;
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let mut expected: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 200_000];
    let mut rounds = 0;
    while Instant::now() < end {
        let most = if random.below(4) == 0 { 200_000 } else { 5_000 };
        let (at, len) = (random.below(SIZE), 1 + random.below(most) as usize);
        match random.below(100) {
            0 => {
                file.set_len(at).unwrap();
                expected.resize(at as usize, 0);
            }
            1..=3 => file.sync_all().unwrap(),
            4..=50 => {
                let part = &mut buffer[..len];
                part.fill(random.below(255) as u8 + 1);
                file.write_all_at(part, at).unwrap();
                expected.resize(expected.len().max(at as usize + len), 0);
                expected[at as usize..at as usize + len].copy_from_slice(part);
            }
            _ => {
                let read = file.read_at(&mut buffer[..len], at).unwrap();
                let start = (at as usize).min(expected.len());
                let want = &expected[start..(start + len).min(expected.len())];
                assert!(
                    read <= want.len() && (read > 0 || want.is_empty()),
                    "{read} of {}",
                    want.len()
                );
                assert!(buffer[..read] == want[..read], "{} at {at}", path.display());
            }
        }
        rounds += 1;
    }
    drop(file);
    assert!(fs::read(path).unwrap() == expected);
    rounds
}

/// `scripts/stress.sh --random` does such work for longer, with little memory and with kills.
#[test]
fn random_work_with_writeback_and_fsync_does_not_hang() {
    let Some(_switch) = Switch::on() else { return };
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&["--transport", "uring"]);
    let end = Instant::now() + Duration::from_secs(3);
    let point = scratch.point();
    let rounds: u64 = thread::scope(|scope| {
        let workers: Vec<_> = (1..=6)
            .map(|n| {
                let path = point.join(format!("f{n}"));
                scope.spawn(move || work(&path, n, end))
            })
            .collect();
        let names = scope.spawn(|| {
            let mut rounds = 0;
            while Instant::now() < end {
                let (a, b) = (point.join("a"), point.join("b"));
                fs::write(&a, rounds.to_string()).unwrap();
                fs::rename(&a, &b).unwrap();
                assert_eq!(fs::read_to_string(&b).unwrap(), rounds.to_string());
                assert!(fs::read_dir(&point).unwrap().count() >= 1);
                fs::remove_file(&b).unwrap();
                rounds += 1;
            }
            rounds
        });
        workers.into_iter().chain([names]).map(|worker| worker.join().expect("a worker")).sum()
    });
    assert!(rounds > 100, "{rounds} rounds");
    mount.unmount();
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

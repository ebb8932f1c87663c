//! The mounts of one store, the programs that use them, and the twin directory: a plain one, in
//! which a twin of each program does the same.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, RenameFlags, fallocate, fcntl_lock, renameat_with,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::holes::kernel_is_since;
use crate::support::locker::Locker;
use crate::support::mounted::{Mount, Scratch, Stopped, expect_code, shell};

/// How long an event that must come is waited for, on a machine however busy.
pub const SOON: Duration = Duration::from_secs(60);

/// A mount point. It has no daemon between a kill and the next mount.
struct Mounted {
    point: PathBuf,
    /// Lists the mount. The programs do not do that themselves: each close of a file that was
    /// listed would drop their locks on it.
    watcher: Option<Locker>,
    up: Option<(Mount, Pid)>,
}

/// A program in a mount, and its twin.
struct Program {
    mount: usize,
    pair: Option<(Locker, Locker)>,
}

/// Everything that runs. The fields are dropped in this order: a stopped daemon is resumed first.
pub struct World {
    stopped: Option<(usize, Stopped)>,
    programs: Vec<Program>,
    mounts: Vec<Mounted>,
    watcher: Locker,
    /// The vault as each mount sees it, in turn.
    vaults: Vec<PathBuf>,
    /// The store can exchange two names.
    pub exchanges: bool,
    /// The store can open a file again whose name another client has removed.
    pub reopens: bool,
    /// The store can allocate space.
    pub allocates: bool,
    /// The kernel can map a file whose pages it may not keep.
    pub maps: bool,
    pub scratch: Scratch,
}

/// Makes a vault: in the scratch directory, or in the first of the directories that `KITHFS_STORES`
/// names. Returns it as it is seen through each of them.
fn make_vaults(scratch: &Scratch) -> Vec<PathBuf> {
    let stores = std::env::var_os("KITHFS_STORES").unwrap_or_default();
    let name = scratch.path().file_name().unwrap();
    let mut vaults: Vec<PathBuf> = std::env::split_paths(&stores)
        .filter(|store| store.is_absolute())
        .map(|store| store.join(name))
        .collect();
    if vaults.is_empty() {
        vaults.push(scratch.vault());
    }
    let mut init = scratch.kithfs("init");
    init.args(["--kdf-memory", "32", "--kdf-passes", "1", "--shared"]);
    expect_code(init.arg(&vaults[0]), 0);
    vaults
}

fn exchanges(vault: &Path) -> bool {
    let pair = ["one", "other"].map(|end| vault.with_extension(end));
    pair.iter().for_each(|file| fs::write(file, "").unwrap());
    let tried = renameat_with(CWD, &pair[0], CWD, &pair[1], RenameFlags::EXCHANGE);
    pair.iter().for_each(|file| fs::remove_file(file).unwrap());
    tried.is_ok()
}

/// Removes the file through the last client: NFS keeps a name of what its own client removes. The
/// client opens the file once more before it notices.
fn reopens(vaults: &[PathBuf]) -> bool {
    let file = File::create(vaults[0].with_extension("nameless")).unwrap();
    fs::remove_file(vaults.last().unwrap().with_extension("nameless")).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_open = || OpenOptions::new().read(true).write(true).open(&path).is_ok();
    is_open() && is_open()
}

fn allocates(vault: &Path) -> bool {
    let path = vault.with_extension("allocated");
    let tried = fallocate(File::create(&path).unwrap(), FallocateFlags::KEEP_SIZE, 0, 4096);
    fs::remove_file(&path).unwrap();
    tried.is_ok()
}

impl World {
    /// Mounts a new vault `mounts` times, and starts `programs` programs, in turn in each mount.
    pub fn new(mounts: usize, programs: usize) -> World {
        let scratch = Scratch::bare();
        let vaults = make_vaults(&scratch);
        let twin = scratch.path().join("twin");
        fs::create_dir(&twin).unwrap();
        let watcher = Locker::start(&twin);
        let mut world = World {
            stopped: None,
            programs: Vec::new(),
            mounts: Vec::new(),
            watcher,
            exchanges: exchanges(&vaults[0]),
            reopens: reopens(&vaults),
            allocates: allocates(&vaults[0]),
            maps: kernel_is_since(6, 6),
            vaults,
            scratch,
        };
        for number in 0..mounts {
            let point = world.scratch.path().join(format!("mount{number}"));
            fs::create_dir(&point).unwrap();
            world.mounts.push(Mounted { point, watcher: None, up: None });
        }
        let places = (0..programs).map(|program| program % mounts);
        world.programs = places.map(|mount| Program { mount, pair: None }).collect();
        (0..mounts).for_each(|mount| world.mount(mount));
        world
    }

    pub fn point(&self, mount: usize) -> &Path {
        &self.mounts[mount].point
    }

    pub fn twin(&self) -> PathBuf {
        self.scratch.path().join("twin")
    }

    /// Mounts, and starts the programs of the mount.
    pub fn mount(&mut self, mount: usize) {
        let point = self.mounts[mount].point.clone();
        let vault = &self.vaults[mount % self.vaults.len()];
        expect_code(self.scratch.kithfs("mount").arg(vault).arg(&point), 0);
        let daemon = self.daemon_at(&point);
        self.mounts[mount].up = Some((Mount::at(point.clone()), daemon));
        self.mounts[mount].watcher = Some(Locker::start(&point));
        let twin = self.twin();
        for program in self.programs.iter_mut().filter(|it| it.mount == mount) {
            program.pair = Some((Locker::start(&point), Locker::start(&twin)));
        }
    }

    fn daemon_at(&self, point: &Path) -> Pid {
        let list = expect_code(self.scratch.kithfs("mounts").arg("--json"), 0);
        let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        let all = list.as_array().unwrap();
        let found = all.iter().find(|it| it["mountpoint"].as_str() == point.to_str()).unwrap();
        Pid::from_raw(found["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Kills the daemon of a mount, its programs and their twins.
    pub fn kill(&mut self, mount: usize) {
        self.kill_daemon(mount);
        self.mounts[mount].watcher = None;
        self.programs.iter_mut().filter(|it| it.mount == mount).for_each(|it| it.pair = None);
        self.detach(mount);
    }

    /// Kills the daemon of a mount, whose programs go on.
    pub fn kill_daemon(&mut self, mount: usize) {
        let (gone, daemon) = self.mounts[mount].up.take().unwrap();
        kill_process(daemon, Signal::KILL).unwrap();
        let stat = format!("/proc/{}/stat", daemon.as_raw_nonzero());
        // It holds its locks until it has ended.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(gone); // `kithfs umount` has nothing to ask
    }

    /// Removes a mount whose daemon was killed.
    pub fn detach(&self, mount: usize) {
        let point = &self.mounts[mount].point;
        shell(point.parent().unwrap(), &format!("fusermount3 -u -z {}", point.display()));
    }

    pub fn stop(&mut self, mount: usize) {
        let daemon = self.mounts[mount].up.as_ref().unwrap().1;
        self.stopped = Some((mount, Stopped::stop(daemon)));
    }

    pub fn resume(&mut self) {
        self.stopped = None;
    }

    /// Returns whether a mount answers.
    pub fn is_up(&self, mount: usize) -> bool {
        let is_stopped = self.stopped.as_ref().is_some_and(|it| it.0 == mount);
        self.mounts[mount].up.is_some() && !is_stopped
    }

    pub fn all_up(&self) -> Vec<usize> {
        (0..self.mounts.len()).filter(|&mount| self.is_up(mount)).collect()
    }

    /// Returns the programs whose mount answers.
    pub fn programs(&self) -> Vec<usize> {
        (0..self.programs.len()).filter(|&it| self.is_up(self.programs[it].mount)).collect()
    }

    pub fn mount_of(&self, program: usize) -> usize {
        self.programs[program].mount
    }

    /// Runs a command in a program.
    pub fn run(&mut self, program: usize, command: &str) -> String {
        self.programs[program].pair.as_mut().unwrap().0.run(command)
    }

    /// Runs a command in the twin of a program.
    pub fn run_twin(&mut self, program: usize, command: &str) -> String {
        self.programs[program].pair.as_mut().unwrap().1.run(command)
    }

    /// Lists a mount, or the twin directory.
    pub fn tree(&mut self, mount: Option<usize>) -> String {
        match mount {
            Some(mount) => self.mounts[mount].watcher.as_mut().unwrap().run("tree ."),
            None => self.watcher.run("tree ."),
        }
    }

    /// Removes a lock file from the store; returns whether it was there. The daemons notice that
    /// within a second. For a little longer, each mount must show what the others write.
    pub fn remove_lock_file(&mut self, name: &str) -> bool {
        let removed = fs::remove_file(self.vaults[0].join(name)).is_ok();
        let begun = Instant::now();
        while removed && begun.elapsed() < Duration::from_millis(1200) {
            for from in self.all_up() {
                let text = format!("{from} {:?}", begun.elapsed());
                fs::write(self.point(from).join("probe"), &text).unwrap();
                for to in self.all_up() {
                    let file = self.point(to).join("probe");
                    let asked = Instant::now();
                    while fs::read_to_string(&file).ok().as_ref() != Some(&text) {
                        assert!(asked.elapsed() < SOON, "{to} does not show what {from} wrote");
                    }
                }
                fs::remove_file(self.point(from).join("probe")).unwrap();
            }
        }
        removed
    }

    /// Holds the lock of the lease, as a process that is no daemon, while `act` runs.
    pub fn hold_lease(&mut self, act: impl FnOnce(&mut World)) {
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).read(true).write(true);
            options.open(self.vaults[0].join(name)).unwrap()
        };
        let lock = |file: &File, how| {
            let begun = Instant::now();
            while fcntl_lock(file, how).is_err() {
                assert!(begun.elapsed() < SOON, "the lock is not free");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let wanted = open("+wanted");
        lock(&wanted, FlockOperation::NonBlockingLockShared);
        let lease = open("+lease");
        lock(&lease, FlockOperation::NonBlockingLockExclusive);
        drop(wanted);
        act(self);
        drop(lease);
    }

    /// Ends all programs and mounts, and verifies the vault.
    pub fn check_the_vault(&mut self) {
        self.programs.clear();
        for mut mounted in std::mem::take(&mut self.mounts) {
            mounted.watcher = None;
            if let Some((mount, _)) = mounted.up.take() {
                let begun = Instant::now();
                // A program that was killed at its start may have left a process that is about to
                // end, with its working directory there.
                while !self.scratch.kithfs("umount").arg(&mount.point).status().unwrap().success() {
                    assert!(begun.elapsed() < SOON, "{} is busy", mount.point.display());
                    std::thread::sleep(Duration::from_millis(50));
                }
                std::mem::forget(mount); // unmounted
            }
        }
        let fsck = self.scratch.kithfs("fsck").arg(&self.vaults[0]).output().unwrap();
        // A daemon that was killed may have left bytes beyond the end of a file.
        assert!(matches!(fsck.status.code(), Some(0 | 23)), "{fsck:?}");
        fs::remove_dir_all(&self.vaults[0]).unwrap();
    }
}

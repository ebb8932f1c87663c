//! A temporary vault, mounted by this program, beside a plain directory on the same filesystem.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Pair;
use crate::cli::daemon::registry::Registry;
use crate::cli::daemon::signals::Signals;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;

/// The amount of work.
struct Sizes {
    /// Bytes of the large file, a multiple of [`BLOCK`].
    file: u64,
    /// Random reads and writes.
    random: usize,
    /// Small files.
    small: usize,
    /// Time limit of a measurement.
    limit: Duration,
}

const FULL: Sizes =
    Sizes { file: 128 << 20, random: 8000, small: 2000, limit: Duration::from_millis(1800) };
const QUICK: Sizes =
    Sizes { file: 4 << 20, random: 100, small: 30, limit: Duration::from_millis(300) };

/// Bytes per large read or write.
const BLOCK: usize = 1 << 20;
/// Bytes per small read or write, and of a small file.
const SMALL: usize = 4096;

/// The measurements, in order: name, unit, whether the vault is mounted again first, and the step.
/// Each uses the files of the previous ones.
const STEPS: [(&str, &str, bool, Step); 11] = [
    ("write a new file, fsync", "MB/s", false, |b| b.stream(true)),
    ("write over it, fsync", "MB/s", false, |b| b.stream(false)),
    ("read it, first time", "MB/s", true, Bench::read),
    ("read it again", "MB/s", false, Bench::read),
    ("4 KiB random reads", "per s", true, |b| b.random(false)),
    ("4 KiB random writes, fsync", "per s", false, |b| b.random(true)),
    ("make 4 KiB files", "per s", false, Bench::make),
    ("stat them", "per s", true, |b| b.each(|path| std::fs::metadata(path).map(drop))),
    ("open and read them", "per s", true, |b| b.each(|path| std::fs::read(path).map(drop))),
    ("list them", "per s", true, Bench::list),
    ("remove them", "per s", false, |b| b.each(std::fs::remove_file)),
];

type Step = fn(&mut Bench) -> io::Result<f64>;

/// One of the two directories.
struct Bench {
    dir: PathBuf,
    sizes: &'static Sizes,
    block: Vec<u8>,
    /// Number of small files that exist.
    made: usize,
    interrupted: Arc<AtomicBool>,
}

/// A mounted vault; dropping it unmounts.
struct Mount {
    program: PathBuf,
    store: PathBuf,
    point: PathBuf,
    passphrase: PathBuf,
    up: bool,
}

/// Measures both directories; returns the pairs and whether the vault was mounted over io_uring, or
/// why nothing could be mounted.
///
/// # Errors
/// The directory cannot be used, or a measurement failed.
pub fn measure(
    directory: &Path,
    quick: bool,
) -> Result<Result<(Vec<Pair>, bool), String>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let signals = Signals::block().map_err(|source| Error::Os { op: "block signals", source })?;
    let flag = interrupted.clone();
    std::thread::spawn(move || {
        // A second signal during the cleanup changes nothing.
        while signals.wait().is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    let failed =
        |op: &'static str| move |source| Error::Io { op, path: directory.to_owned(), source };
    let scratch = tempfile::Builder::new()
        .prefix("kithfs-bench-")
        .tempdir_in(directory)
        .map_err(failed("measure in"))?;
    let at = |name: &str| scratch.path().join(name);
    for name in ["plain", "mnt"] {
        std::fs::create_dir(at(name)).map_err(failed("measure in"))?;
    }
    std::fs::write(at("passphrase"), "a vault for a minute").map_err(failed("measure in"))?;

    let program =
        std::env::current_exe().map_err(|source| Error::Os { op: "find this program", source })?;
    let mut mount = Mount {
        program,
        store: at("store"),
        point: at("mnt"),
        passphrase: at("passphrase"),
        up: false,
    };
    let measured = match mount.make().and_then(|()| mount.mount()) {
        Err(why) => Ok(Err(why)),
        Ok(()) => {
            let io_uring = mount.is_over_io_uring();
            let sizes = if quick { &QUICK } else { &FULL };
            let pairs = pairs(&at("plain"), &mut mount, sizes, &interrupted);
            pairs.map(|pairs| Ok((pairs, io_uring)))
        }
    };
    if let Err(why) = mount.unmount() {
        // Mounted files must not be removed through the mount.
        let left = scratch.keep();
        return Err(Failure::new(
            Exit::Failure,
            format_args!("unmount {}: {why}", left.join("mnt").display()),
        ));
    }
    scratch.close().map_err(failed("remove the temporary directory"))?;
    measured
}

fn pairs(
    plain: &Path,
    mount: &mut Mount,
    sizes: &'static Sizes,
    interrupted: &Arc<AtomicBool>,
) -> Result<Vec<Pair>, Failure> {
    let mut block = vec![0; BLOCK];
    getrandom::fill(&mut block)
        .map_err(|source| Error::Os { op: "get random bytes", source: source.into() })?;
    let bench = |dir: &Path| Bench {
        dir: dir.to_owned(),
        sizes,
        block: block.clone(),
        made: 0,
        interrupted: interrupted.clone(),
    };
    let (mut plain, mut vault) = (bench(plain), bench(&mount.point.clone()));
    let mut pairs = Vec::with_capacity(STEPS.len());
    for (name, unit, anew, step) in STEPS {
        let run = |bench: &mut Bench| {
            if bench.interrupted.load(Ordering::Relaxed) {
                return Err(Failure::new(Exit::Failure, "interrupted"));
            }
            step(bench).map_err(|source| {
                Failure::new(
                    Exit::Failure,
                    format_args!("{name} in {}: {source}", bench.dir.display()),
                )
            })
        };
        if anew {
            let again = mount.unmount().and_then(|()| mount.mount());
            again.map_err(|why| {
                Failure::new(
                    Exit::Failure,
                    format_args!("mount {} again: {why}", mount.point.display()),
                )
            })?;
        }
        let (plain, vault) = (run(&mut plain)?, run(&mut vault)?);
        pairs.push(Pair { name, unit, plain, vault, ratio: vault / plain });
    }
    Ok(pairs)
}

impl Bench {
    fn large(&self) -> PathBuf {
        self.dir.join("large")
    }

    fn small(&self, i: usize) -> PathBuf {
        self.dir.join(format!("small file {i}"))
    }

    /// Calls `work` with 0, 1, ... up to `count` or the time limit, then `end`; returns calls per
    /// second.
    fn rate(
        &self,
        count: usize,
        mut work: impl FnMut(usize) -> io::Result<()>,
        end: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<f64> {
        let (start, mut done) = (Instant::now(), 0);
        while done < count && start.elapsed() < self.sizes.limit {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            work(done)?;
            done += 1;
        }
        end()?;
        Ok(done as f64 / start.elapsed().as_secs_f64().max(1e-9))
    }

    fn blocks(&self) -> usize {
        (self.sizes.file / BLOCK as u64) as usize
    }

    fn stream(&self, new: bool) -> io::Result<f64> {
        let file = OpenOptions::new().write(true).create(new).truncate(false).open(self.large())?;
        let rate =
            self.rate(self.blocks(), |_| (&file).write_all(&self.block), || file.sync_all())?;
        Ok(rate * BLOCK as f64 / 1e6)
    }

    fn read(&mut self) -> io::Result<f64> {
        let (mut file, mut buf) = (File::open(self.large())?, vec![0; BLOCK]);
        let blocks = (file.metadata()?.len() / BLOCK as u64) as usize;
        let rate = self.rate(blocks, |_| file.read_exact(&mut buf), || Ok(()))?;
        if buf != self.block {
            return Err(io::Error::other("the bytes differ from those written"));
        }
        Ok(rate * BLOCK as f64 / 1e6)
    }

    fn random(&self, write: bool) -> io::Result<f64> {
        let file = OpenOptions::new().read(true).write(write).open(self.large())?;
        let pages = (file.metadata()?.len() / SMALL as u64).max(1);
        let (mut state, mut buf) = (0x9e37_79b9_7f4a_7c15_u64, [0; SMALL]);
        let work = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state % pages * SMALL as u64;
            if write {
                file.write_all_at(&self.block[..SMALL], at)
            } else {
                file.read_exact_at(&mut buf, at)
            }
        };
        self.rate(self.sizes.random, work, || if write { file.sync_all() } else { Ok(()) })
    }

    fn make(&mut self) -> io::Result<f64> {
        let mut made = 0;
        let rate = self.rate(
            self.sizes.small,
            |i| {
                std::fs::write(self.small(i), &self.block[..SMALL])?;
                made = i + 1;
                Ok(())
            },
            || Ok(()),
        );
        self.made = made;
        rate
    }

    fn each(&self, work: impl Fn(PathBuf) -> io::Result<()>) -> io::Result<f64> {
        self.rate(self.made, |i| work(self.small(i)), || Ok(()))
    }

    fn list(&mut self) -> io::Result<f64> {
        let start = Instant::now();
        let mut listed = 0;
        for entry in std::fs::read_dir(&self.dir)? {
            entry?.metadata()?;
            listed += 1;
        }
        if listed < self.made {
            return Err(io::Error::other("the listing is incomplete"));
        }
        Ok(f64::from(listed as u32) / start.elapsed().as_secs_f64().max(1e-9))
    }
}

impl Mount {
    /// Runs this program. On failure, returns what it wrote to stderr.
    fn program(&self, command: &str, secret: bool, paths: &[&Path]) -> Result<(), String> {
        let mut program = Command::new(&self.program);
        program.args(["--log-level", "off", command]).stdin(Stdio::null()).stdout(Stdio::null());
        // The daemon keeps this stderr, so it must not be a pipe that is read to its end.
        let said = tempfile::tempfile().map_err(|error| error.to_string())?;
        program.stderr(said.try_clone().map_err(|error| error.to_string())?);
        if command == "init" {
            program.args(["--own-identity", "--kdf-memory", "32", "--kdf-passes", "1"]);
        }
        if secret {
            program.arg("--passphrase-file").arg(&self.passphrase);
        }
        let status = program.args(paths).status().map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(());
        }
        let mut why = vec![0; 4096];
        let len = said.read_at(&mut why, 0).unwrap_or(0);
        let why = String::from_utf8_lossy(&why[..len]).trim().replace('\n', "; ");
        Err(if why.is_empty() { status.to_string() } else { why })
    }

    fn make(&self) -> Result<(), String> {
        self.program("init", true, &[&self.store])
    }

    fn mount(&mut self) -> Result<(), String> {
        self.program("mount", true, &[&self.store, &self.point])?;
        self.up = true;
        Ok(())
    }

    /// Returns whether requests come over io_uring, as the daemon has registered.
    fn is_over_io_uring(&self) -> bool {
        let entry = Registry::open().and_then(|registry| registry.serving(&self.point));
        entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.io_uring))
    }

    fn unmount(&mut self) -> Result<(), String> {
        if self.up {
            self.program("umount", false, &[&self.point])?;
            self.up = false;
        }
        Ok(())
    }
}

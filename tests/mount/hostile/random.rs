//! A host that changes the ciphertext at random moments, while programs read, map and append.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Length of an appended record, and a divisor of every version's length: no record crosses a page.
const RECORD: usize = 64;

/// Sizes of the versions, around the ends of the small form, of a page, and of a chunk.
const VERSIONS: [usize; 6] = [0, 64, 4096, 4160, 24_000 / 64 * 64, 300_032];

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

fn version(number: usize) -> Vec<u8> {
    pattern(VERSIONS[number], 100 + number as u64)
}

fn record() -> [u8; RECORD] {
    *b"a record that a program has appended, of sixty-four bytes in all"
}

/// Returns whether a file may have these contents: one whole version, followed by whole records.
fn is_possible(contents: &[u8], versions: &[Vec<u8>]) -> bool {
    versions.iter().any(|version| {
        contents.strip_prefix(&version[..]).is_some_and(|appended| {
            appended.len() % RECORD == 0 && appended.chunks(RECORD).all(|part| part == record())
        })
    })
}

/// Reads a file through a mapping. A page that cannot be read makes `write` fail with EFAULT;
/// touching it would end the process.
fn read_mapped(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(Vec::new());
    }
    let copy = rustix::fs::memfd_create("copy", rustix::fs::MemfdFlags::CLOEXEC)?;
    // SAFETY: the mapping is passed to the kernel alone, which checks each page of it, and is
    // unmapped below.
    unsafe {
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        let at = rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, &file, 0)?;
        let mut written = 0;
        let outcome = loop {
            if written == len {
                break Ok(());
            }
            match libc::write(
                std::os::fd::AsRawFd::as_raw_fd(&copy),
                at.cast::<u8>().add(written).cast(),
                len - written,
            ) {
                ..=0 => break Err(io::Error::last_os_error()),
                done => written += done as usize,
            }
        };
        rustix::mm::munmap(at, len)?;
        outcome?;
    }
    let mut contents = vec![0; len];
    File::from(copy).read_exact_at(&mut contents, 0)?;
    Ok(contents)
}

struct Storage<'a> {
    host: &'a Host,
    kept: Vec<Vec<u8>>,
    dice: Dice,
}

impl Storage<'_> {
    fn step(&mut self) {
        let pick = self.dice.roll(self.kept.len());
        let kept = self.kept[pick].clone();
        let name = self.host.stored.file_name().unwrap().to_str().unwrap();
        let copy = self.host.stored.with_file_name(format!("{name} (1)"));
        match self.dice.roll(8) {
            0 | 1 => self.host.overwrite(&kept),
            2 | 3 => self.host.replace(&kept),
            4 => {
                let file = File::options().write(true).open(&self.host.stored).unwrap();
                let len = file.metadata().unwrap().len() as usize;
                file.set_len(self.dice.roll(len + 8_000) as u64).unwrap();
            }
            5 => {
                let _ = fs::remove_file(&copy);
                let _ = fs::hard_link(&self.host.stored, &copy);
            }
            6 => {
                let _ = fs::remove_file(&copy);
            }
            // The result of the programs' work is a version that may come back.
            _ => {
                let now = self.host.keep();
                if self.kept.len() < 60 {
                    self.kept.push(now);
                }
            }
        }
    }
}

fn run(init: &[&str], options: &[&str], seed: u64, steps: usize) {
    let versions: Vec<Vec<u8>> = (0..VERSIONS.len()).map(version).collect();
    let host = Host::new(init, &versions[0]);
    let mut kept = vec![host.keep()];
    for contents in &versions[1..] {
        host.put(contents);
        kept.push(host.keep());
    }
    let whole = kept.clone();
    let mount = host.mount(options);
    let over = AtomicBool::new(false);
    let (mut read, mut refused, mut appended) = (0, 0, 0);
    std::thread::scope(|scope| {
        let programs: Vec<_> = (0..3)
            .map(|program| {
                let (over, versions, host) = (&over, &versions, &host);
                scope.spawn(move || {
                    let mut dice = Dice(seed * 31 + program + 1);
                    let (mut read, mut refused, mut appended) = (0, 0, 0);
                    while !over.load(Ordering::Acquire) {
                        let path = if dice.roll(4) == 0 {
                            host.scratch.point().join("f (1)")
                        } else {
                            host.plain()
                        };
                        let outcome = match dice.roll(5) {
                            0 => fs::read(&path),
                            1 => read_by(&path, 1 + dice.roll(9000)),
                            2 => read_mapped(&path),
                            3 => fs::metadata(&path).and_then(|_| read_by(&path, 4096)),
                            _ => append(&path, &record()).map(|()| {
                                appended += 1;
                                versions[0].clone()
                            }),
                        };
                        match outcome {
                            Ok(contents) => {
                                assert!(
                                    is_possible(&contents, versions),
                                    "seed {seed}: {} bytes that are no version",
                                    contents.len()
                                );
                                read += 1;
                            }
                            Err(_) => refused += 1,
                        }
                    }
                    (read, refused, appended)
                })
            })
            .collect();
        let mut storage = Storage { host: &host, kept, dice: Dice(seed + 77) };
        for _ in 0..steps {
            storage.step();
            std::thread::sleep(std::time::Duration::from_micros(storage.dice.roll(4000) as u64));
        }
        over.store(true, Ordering::Release);
        for program in programs {
            let (r, f, a) = program.join().unwrap();
            (read, refused, appended) = (read + r, refused + f, appended + a);
        }
    });
    println!(
        "seed {seed}, {init:?} {options:?}: {read} reads and appends, {appended} appends, {refused} refused"
    );
    assert!(read > 20, "seed {seed}: nothing could be read");
    // The stored file is one version with the programs' own records, or cannot be read.
    mount.unmount();
    let output = host.scratch.kithfs("cat").arg(host.scratch.vault()).arg("f").output().unwrap();
    if output.status.success() {
        assert!(
            is_possible(&output.stdout, &versions),
            "seed {seed}: {} sealed bytes that are no version",
            output.stdout.len()
        );
    }
    // A whole version repairs everything.
    host.replace(&whole[3]);
    assert!(host.cat() == versions[3]);
}

/// Number of steps of each run; `KITHFS_HOSTILE_STEPS` sets it by hand.
fn steps() -> usize {
    std::env::var("KITHFS_HOSTILE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(250)
}

#[test]
fn programs_read_whole_versions_from_a_hostile_store() {
    if !can_mount() {
        return;
    }
    let base =
        std::env::var("KITHFS_HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (n, (init, options)) in [
        (&[][..], &[][..]),
        (&["--signed"], &[]),
        (&[], &["--read-only"]),
        (&["--cipher", "chacha"], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        run(init, options, base + n as u64, steps());
    }
}

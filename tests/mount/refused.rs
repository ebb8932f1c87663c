//! What programs see on a real mount when the store is full, or refuses data that the kernel has
//! already accepted.
//!
//! Skipped with a message if nothing can be mounted. KITHFS_TRANSPORT=uring asks for io_uring.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kithfs::crypto::Suite;
use kithfs::fuse::vaultfs::VaultFs;
use kithfs::fuse::{
    MountOptions, Mounted, ServeOptions, Serving, Transport, View, held, kernel, mount, serve,
};
use kithfs::store::Call;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::vault::{OpenOptions as VaultOptions, Vault};

use crate::support::mounted;
use crate::support::turn;
use crate::support::vaults::{self, Seeded, pattern};

const MIB: usize = 1 << 20;

/// A mounted vault in a store whose calls can be made to fail; dropping it unmounts.
struct Mount {
    store: MemStore,
    plan: Arc<FaultPlan>,
    vault: Vault,
    mounted: Mounted,
    serving: Option<Serving>,
    _dir: tempfile::TempDir,
    _turn: turn::Turn,
}

impl Mount {
    /// `None`, with a message, if nothing can be mounted.
    fn new() -> Option<Mount> {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 18);
        Mount::of(store)
    }

    fn of(store: MemStore) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let turn = turn::take();
        let plan = FaultPlan::new();
        let options = VaultOptions { caller_caches: true, ..VaultOptions::default() };
        let vault =
            Vault::open(FaultStore::wrap(store.root(), plan.clone()), &vaults::owner(), options)
                .expect("open the vault");
        vault.prepare().expect("a journal");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mounted, fd) = mount(dir.path(), &MountOptions::default()).expect("mounting");
        let uring = std::env::var("KITHFS_TRANSPORT").is_ok_and(|transport| transport == "uring");
        let transport = if uring { Transport::Uring } else { Transport::Dev };
        let ops = Arc::new(VaultFs::new(vault.clone(), View::default()));
        let serving = serve(fd, ops, &ServeOptions { transport, ..ServeOptions::default() })
            .expect("serving");
        vault.tell_cache(held::forgetting(serving.notifier()).expect("a thread"));
        Some(Mount { store, plan, vault, mounted, serving: Some(serving), _dir: dir, _turn: turn })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.mountpoint.join(name)
    }

    /// Leaves this much room in the store.
    fn leave(&self, bytes: usize) {
        self.store.set_capacity(None);
        let space = self.vault.space().unwrap();
        self.store
            .set_capacity(Some((space.blocks - space.free) * space.block_size + bytes as u64));
    }

    /// Makes these calls to the store fail, and no others.
    fn fail(&self, calls: Calls, when: When, errno: i32) {
        self.plan.reset();
        self.plan.add(Fault { calls, when, errno, short: false });
    }

    /// Mounts again, with a new daemon.
    fn again(self) -> Option<Mount> {
        let store = self.store.clone();
        drop(self);
        Mount::of(store)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.plan.heal();
        if self.mounted.unmount(false).is_err() {
            let _ = self.mounted.unmount(true);
            return;
        }
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
        let _ = self.vault.close();
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Writes parts of `part` bytes until that fails, or `most` bytes are written. Returns the bytes
/// that write(2) has accepted, and the error that ended it.
fn write_on(mut file: &File, part: usize, most: usize) -> (Vec<u8>, Option<i32>) {
    let mut taken = Vec::new();
    while taken.len() < most {
        let bytes = pattern(taken.len() as u64, part);
        match file.write(&bytes) {
            Ok(written) => taken.extend_from_slice(&bytes[..written]),
            Err(error) => return (taken, error.raw_os_error()),
        }
    }
    (taken, None)
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(bytes, offset)?;
    file.sync_all()
}

/// Waits until `holds`: the kernel reports a close a moment after it.
fn comes_about(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not within 20 seconds: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_full_store_says_so_to_write_and_keeps_what_it_took() {
    // Programs that check only write() wrote 20 MB to a store with 8 MB free and succeeded. The
    // file then had 20 MB of which none could be read, and was empty some seconds later.
    let Some(mount) = Mount::new() else { return };
    mount.leave(8 * MIB);
    for (n, part) in [777, 4096, 65_536, MIB].into_iter().enumerate() {
        let path = mount.path(&format!("file {n}"));
        let (taken, why) = write_on(&File::create(&path).unwrap(), part, 20 * MIB);
        assert_eq!(why, Some(libc::ENOSPC), "{part}");
        assert!(taken.len() > 6 * MIB, "{part}: {}", taken.len());
        assert!(fs::read(&path).unwrap() == taken, "{part}: the accepted data is not there");
        comes_about("the size is that of the accepted data", || {
            fs::metadata(&path).unwrap().size() == taken.len() as u64
        });
        // There is room again in the same mount.
        fs::remove_file(&path).unwrap();
        comes_about("there is room", || mount.vault.space().unwrap().free > 1800);
    }
    fs::write(mount.path("last"), pattern(1, 3 * MIB)).unwrap();
    let mount = mount.again().unwrap();
    assert!(fs::read(mount.path("last")).unwrap() == pattern(1, 3 * MIB));
}

#[test]
fn an_open_file_gets_enospc_and_continues_later() {
    // The kernel accepts written data into its pages. When there is little room, it asks the daemon
    // first, which refuses.
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("log");
    let file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    (&file).write_all(&pattern(7, MIB)).unwrap();
    mount.leave(8 * MIB);
    // Another program's write reveals that there is little room, once the known value is too old.
    comes_about("the daemon knows that there is little room", || {
        fs::write(mount.path("other"), b"something").unwrap();
        mount.vault.is_low()
    });
    let (taken, why) = write_on(&file, 50_000, 20 * MIB);
    assert_eq!(why, Some(libc::ENOSPC));
    assert!(taken.len() > 4 * MIB, "{}", taken.len());
    file.sync_all().unwrap();
    let all = [pattern(7, MIB), taken].concat();
    assert!(fs::read(&path).unwrap() == all);
    mount.leave(20 * MIB);
    (&file).write_all(b"there is room").unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(&path).unwrap() == [&all[..], b"there is room"].concat());
    drop(file);
    let mount = mount.again().unwrap();
    assert!(fs::read(mount.path("log")).unwrap() == [&all[..], b"there is room"].concat());
}

#[test]
fn a_refusal_without_warning_keeps_a_prefix_and_is_reported() {
    // The kernel has accepted far more than there is room for when the store first refuses. What
    // fits is kept; the next write() fails, and the file is as long as the kept data.
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    mount.leave(8 * MIB);
    (&file).write_all(&pattern(1, 20 * MIB)).expect("the kernel takes it all");
    let why = errno(file.sync_all());
    assert_eq!(why, Some(libc::ENOSPC), "{:?}, {:?}", mount.vault.space(), file.metadata());
    assert_eq!(errno((&file).write(b"more")), Some(libc::ENOSPC));
    // A program that has it open is not shown bytes that are stored nowhere.
    let mut last = [0; 4096];
    comes_about("the pages are dropped", || {
        file.read_at(&mut last, 20 * MIB as u64 - 4096).is_err()
    });
    let kept = fs::read(&path).unwrap();
    // How much depends on the order in which the kernel sends it.
    assert!(
        kept.len() >= MIB && pattern(1, 20 * MIB).starts_with(&kept),
        "{} bytes are kept",
        kept.len()
    );
    assert_eq!(fs::metadata(&path).unwrap().size(), kept.len() as u64);
    drop(file);
    assert!(fs::read(&path).unwrap() == kept);
    let mount = mount.again().unwrap();
    assert!(fs::read(mount.path("file")).unwrap() == kept);
}

/// A quota refuses without reporting less room beforehand: the store reports much free space.
#[test]
fn a_quota_is_reported_to_write_and_keeps_what_was_there() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    (&file).write_all(&pattern(1, MIB)).unwrap();
    file.sync_all().unwrap();
    mount.fail(Calls::Changes, When::From(1), libc::EDQUOT);
    (&file).write_all(&pattern(2, MIB)).expect("the kernel takes it");
    assert_eq!(errno(file.sync_all()), Some(libc::EDQUOT));
    assert_eq!(errno((&file).write(b"more")), Some(libc::EDQUOT));
    mount.plan.heal();
    drop(file);
    let kept = fs::read(&path).unwrap();
    let all = [pattern(1, MIB), pattern(2, MIB)].concat();
    assert!(kept.len() >= MIB && all.starts_with(&kept), "{} bytes are kept", kept.len());
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"goes on").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [&kept[..], b"goes on"].concat());
}

#[test]
fn a_limit_on_the_length_of_files_is_reported_to_write() {
    // The daemon may make no file longer than 8 MiB (RLIMIT_FSIZE), less than the room that the
    // store reports. A quota behaves like this.
    if !mounted::can_mount() {
        return;
    }
    let scratch = mounted::Scratch::new(&[]);
    let mount = scratch.mount_after("ulimit -f 16384");
    for name in ["first", "second"] {
        let path = mount.point.join(name);
        let (taken, why) = write_on(&File::create(&path).unwrap(), 65_536, 1 << 30);
        assert_eq!(why, Some(libc::EFBIG), "{name}: after {} bytes", taken.len());
        let kept = fs::read(&path).unwrap();
        assert!(
            kept.len() >= MIB && taken.starts_with(&kept),
            "{name}: {} of {}",
            kept.len(),
            taken.len()
        );
        assert!(name == "first" || kept == taken, "the limit should have been known");
        comes_about("the size is that of the kept data", || {
            fs::metadata(&path).unwrap().size() == kept.len() as u64
        });
    }
    mount.unmount();
    mounted::expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

#[test]
fn a_store_that_turns_read_only_is_reported_to_write() {
    // The kernel accepted data that was written to an open file, and only fsync and close reported
    // that nothing of it was kept.
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    (&file).write_all(&pattern(1, 30_000)).unwrap();
    file.sync_all().unwrap();
    mount.fail(Calls::Changes, When::From(1), libc::EROFS);
    (&file).write_all(&pattern(2, 30_000)).expect("the kernel takes it");
    assert_eq!(errno(file.sync_all()), Some(libc::EROFS));
    assert_eq!(errno((&file).write(b"more")), Some(libc::EROFS));
    assert_eq!(fs::read(&path).unwrap(), pattern(1, 30_000));
    mount.plan.heal();
    drop(file);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"goes on").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [&pattern(1, 30_000)[..], b"goes on"].concat());
}

#[test]
fn a_refused_write_is_not_shown_nor_kept_in_part() {
    // The kernel continued to show the pages that the store had refused. One byte that was
    // later written into such a page sent that page to the daemon, and not the one before it: a
    // mixture, and fsync succeeded.
    for stays_open in [false, true] {
        let Some(mount) = Mount::new() else { return };
        let path = mount.path("file");
        let old = pattern(1, 11_808);
        fs::write(&path, &old).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let reader = stays_open.then(|| File::open(&path).unwrap());
        mount.fail(Calls::Changes, When::From(1), libc::EIO);
        assert_eq!(errno(write_at(&path, &pattern(2, 5000), 3000)), Some(libc::EIO));
        mount.plan.heal();
        assert!(fs::read(&path).unwrap() == old, "with another descriptor: {stays_open}");
        write_at(&path, b"x", 4100).unwrap();
        let mut wanted = old;
        wanted[4100] = b'x';
        assert!(fs::read(&path).unwrap() == wanted);
        drop(reader);
        let mount = mount.again().unwrap();
        assert!(fs::read(mount.path("file")).unwrap() == wanted, "after another mount");
    }
}

#[test]
fn a_file_that_was_cut_by_half_is_not_shown_at_its_old_length() {
    // The kernel sends the modification time with the new size. If the size was set and the time
    // was not, the program got an error, and the kernel showed the old length with zeros in the
    // place of the bytes.
    for call in [Call::SetTimes, Call::SetLen, Call::Write, Call::Stat] {
        for nth in 1..4 {
            let Some(mount) = Mount::new() else { return };
            let path = mount.path("file");
            let old = pattern(1, 30_000);
            fs::write(&path, &old).unwrap();
            let held = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            held.sync_all().unwrap();
            mount.fail(Calls::Of(call), When::Nth(nth), libc::EIO);
            let cut = held.set_len(9000);
            mount.plan.heal();
            // Without these pages, the contents that are read come from the daemon.
            rustix::fs::fadvise(&held, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let wanted = |bytes: &[u8]| bytes == &old[..9000] || cut.is_err() && bytes == old;
            let shown =
                fs::read(&path).unwrap_or_else(|error| panic!("{call:?} {nth}: {error}, {cut:?}"));
            assert!(wanted(&shown), "{call:?} {nth}: {} bytes, {cut:?}", shown.len());
            let mut there = vec![0; 40_000];
            let mut read = 0;
            // Also through the old descriptor, if it returns anything.
            while let Ok(more @ 1..) = held.read_at(&mut there[read..], read as u64) {
                read += more;
            }
            assert!(old.starts_with(&there[..read]), "{call:?} {nth}: {read} bytes");
        }
    }
}

#[test]
fn what_is_shown_after_any_failure_is_what_was_there() {
    // Random calls, of which some fail in the store. A program that then opens the file finds a
    // complete state that it had, and what was synced stays. KITHFS_RUNS sets the number of runs,
    // KITHFS_SEED the first one.
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, runs) = (number("KITHFS_SEED", 1), number("KITHFS_RUNS", 12));
    let mut failures = 0;
    for seed in first..first + runs {
        let Some(mut mount) = Mount::new() else { return };
        let random = Seeded::new(seed);
        let below = |n: usize| random.below(n as u64) as usize;
        let open = |mount: &Mount| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(mount.path("file"))
        };
        let mut file = Some(open(&mount).unwrap());
        // States that it may have; a program would expect the last one.
        let mut states: Vec<Vec<u8>> = vec![Vec::new()];
        let mut log = Vec::new();
        for _ in 0..60 {
            let mut new = states.last().unwrap().clone();
            let faulty = below(4) == 0;
            if faulty {
                let calls = [
                    Calls::Changes,
                    Calls::Of(Call::Write),
                    Calls::Of(Call::SyncData),
                    Calls::Of(Call::SetTimes),
                ][below(4)];
                let when =
                    if below(3) == 0 { When::From(1) } else { When::Nth(below(6) as u64 + 1) };
                mount.fail(calls, when, libc::EIO);
                log.push(format!("{calls:?} {when:?}"));
            }
            let Some(now) = &file else { unreachable!("it is opened after each failure") };
            let mut synced = false;
            let done = match below(10) {
                0..4 => {
                    let (offset, len) = (below(new.len() + 6000), below(20_000) + 1);
                    new.resize(new.len().max(offset + len), 0);
                    let bytes = pattern(random.below(1 << 30), len);
                    new[offset..offset + len].copy_from_slice(&bytes);
                    states.push(new.clone());
                    log.push(format!("write {len} at {offset}"));
                    now.write_all_at(&bytes, offset as u64)
                }
                4 => {
                    let size = below(new.len() + 3000);
                    new.resize(size, 0);
                    states.push(new.clone());
                    log.push(format!("cut to {size}"));
                    now.set_len(size as u64)
                }
                5..8 => {
                    synced = true;
                    log.push("sync".to_owned());
                    now.sync_all()
                }
                _ => {
                    log.push("open anew".to_owned());
                    file = None;
                    open(&mount).map(|again| file = Some(again))
                }
            };
            mount.plan.heal();
            let at = format!("run {seed}, {done:?}: {log:#?}");
            if let Err(error) = &done {
                log.push(format!("{error}"));
                failures += 1;
                // The descriptor may be of no more use; it shows a state, or nothing.
                file = None;
            }
            let mut shown = Vec::new();
            let mut there = File::open(mount.path("file"))
                .unwrap_or_else(|error| panic!("open: {error}, {at}"));
            let read = there.read_to_end(&mut shown);
            drop(there);
            match read {
                Ok(_) if faulty => assert!(states.contains(&shown), "{} bytes, {at}", shown.len()),
                Ok(_) => assert!(
                    done.is_err() && states.contains(&shown) || states.last() == Some(&shown),
                    "{} bytes, {at}",
                    shown.len()
                ),
                Err(error) => panic!("{error}, {at}"),
            }
            if file.is_none() {
                file = Some(open(&mount).unwrap_or_else(|error| panic!("{error}, {at}")));
            }
            if synced && done.is_ok() {
                states = vec![shown.clone()];
            } else if states.last() != Some(&shown) {
                states.push(shown);
            }
            if below(40) == 0 {
                drop(file.take());
                mount = mount.again().unwrap();
                let shown = fs::read(mount.path("file")).unwrap();
                assert!(
                    states.contains(&shown),
                    "{} bytes after another mount, run {seed}: {log:#?}",
                    shown.len()
                );
                states = vec![shown];
                file = Some(open(&mount).unwrap());
            }
        }
    }
    assert!(failures as u64 > runs, "{failures} calls failed");
}

#[test]
fn a_file_written_with_little_room_has_its_mtime_and_maps() {
    // The kernel keeps the times of files, and does not change them for data that it does not hold
    // back.
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("file");
    fs::write(&path, b"old").unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    OpenOptions::new().write(true).open(&path).unwrap().set_modified(then).unwrap();
    comes_about("the file has the old time", || {
        fs::metadata(&path).unwrap().mtime() == 1_000_000_000
    });
    mount.leave(8 * MIB);
    comes_about("the daemon knows that there is little room", || {
        fs::write(mount.path("other"), b"something").unwrap();
        mount.vault.is_low()
    });
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b" and new").unwrap();
    comes_about("the file has the present time", || {
        fs::metadata(&path).unwrap().mtime() > 1_600_000_000
    });
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    if kernel::is_since(6, 6) {
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        // SAFETY: the file lives and is longer than the range that is read, and is unmapped at the
        // end.
        unsafe {
            let map = mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
            .unwrap();
            std::slice::from_raw_parts_mut(map.cast::<u8>(), 3).copy_from_slice(b"OLD");
            msync(map, 4096, MsyncFlags::SYNC).unwrap();
            munmap(map, 4096).unwrap();
        }
        let mut text = String::new();
        (&file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "OLD and new");
    }
}

/// With little room, each close retired the file's node. A later rename did not reach the node, so
/// the new name did not exist for `stat` and `link`, and `git init` failed. Processes that wrote to
/// one file in turn got ESTALE.
#[test]
fn names_and_links_work_with_little_room() {
    let Some(mount) = Mount::new() else { return };
    mount.leave(8 * MIB);
    comes_about("the daemon knows that there is little room", || {
        fs::write(mount.path("other"), b"something").unwrap();
        mount.vault.is_low()
    });
    let (first, second, third) = (mount.path("first"), mount.path("second"), mount.path("third"));
    for round in 0..20 {
        fs::write(&first, format!("of round {round}")).unwrap();
        fs::rename(&first, &second).unwrap();
        assert_eq!(
            fs::symlink_metadata(&second).unwrap().len(),
            format!("of round {round}").len() as u64
        );
        fs::hard_link(&second, &third).unwrap();
        fs::remove_file(&second).unwrap();
        assert_eq!(fs::metadata(&third).unwrap().nlink(), 1);
        fs::rename(&third, &second).unwrap();
        OpenOptions::new().append(true).open(&second).unwrap().write_all(b", more").unwrap();
        fs::metadata(&second).unwrap();
        fs::rename(&second, &third).unwrap();
        assert_eq!(fs::read(&third).unwrap(), format!("of round {round}, more").as_bytes());
        fs::remove_file(&third).unwrap();
        assert!(!third.exists() && !second.exists());
    }
    let shared = mount.path("shared");
    fs::write(&shared, pattern(1, 100_000)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..200u64 {
                    let file = OpenOptions::new().write(true).open(&shared).unwrap();
                    file.write_all_at(b"overwritten", n * 400).unwrap();
                }
            });
        }
    });
}

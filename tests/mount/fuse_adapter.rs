//! The adapter over a real mount: a filesystem in memory is mounted and used through system calls.
//!
//! Each test mounts its own filesystem, and unmounts it when it ends or fails. Without /dev/fuse or
//! the right to mount, the tests print that they skip.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kithfs::fuse::listing::Listing;
use kithfs::fuse::mounts;
use kithfs::fuse::{
    MountError, MountOptions, Mounted, Notifier, Operations, ServeOptions, Serving, Transport,
    mount, serve,
};
use kithfs::vault::ROOT;
use tempfile::TempDir;

use crate::support::memfs::{INO_OFFSET, MemFs};
use crate::support::turn;

/// Returns io_uring if KITHFS_TRANSPORT requests it, otherwise /dev/fuse.
fn transport() -> Transport {
    match std::env::var("KITHFS_TRANSPORT").as_deref() {
        Ok("uring") => Transport::Uring,
        _ => Transport::Dev,
    }
}

/// A mounted [`MemFs`]; dropping it unmounts.
struct Mount {
    mounted: Mounted,
    serving: Option<Serving>,
    ops: Arc<MemFs>,
    _dir: TempDir,
    _turn: turn::Turn,
}

impl Mount {
    /// `None`, with a message, if this machine has no FUSE.
    fn new(list: &str) -> Option<Mount> {
        Mount::serving(list, &ServeOptions { transport: transport(), ..ServeOptions::default() })
    }

    /// Does the same with these options of serving.
    fn serving(list: &str, serve_options: &ServeOptions) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let turn = turn::take();
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut options = MountOptions::default();
        options.parse(list).expect("options of a test");
        let (mounted, fd) = match mount(dir.path(), &options) {
            Ok(done) => done,
            Err(error @ (MountError::NoDevice(_) | MountError::NoFusermount)) => {
                println!("skipped: {error}");
                return None;
            }
            Err(MountError::Fusermount { message, .. }) if message.contains("/dev/fuse") => {
                println!("skipped: {message}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let ops = Arc::new(MemFs::new());
        let mut mount = Mount { mounted, serving: None, ops: ops.clone(), _dir: dir, _turn: turn };
        mount.serving = Some(
            serve(fd, ops, &ServeOptions { permissions: options.permissions(), ..*serve_options })
                .expect("serving"),
        );
        Some(mount)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.mountpoint.join(name)
    }

    fn notifier(&self) -> Notifier {
        self.serving.as_ref().expect("served").notifier()
    }
}

/// Returns whether a filesystem is the topmost mount at its mount point.
fn is_mounted(mounted: &Mounted) -> bool {
    mounts::mount_at(&mounted.mountpoint)
        .is_ok_and(|entry| entry.is_some_and(|entry| entry.device == mounted.device))
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Checked before unmounting: afterwards the kernel sends no RELEASE any more.
        let closed =
            std::thread::panicking() || self.serving.is_none() || self.ops.wait_until_closed();
        if is_mounted(&self.mounted)
            && let Err(error) = self.mounted.unmount(false)
        {
            eprintln!("{error}; unmounting lazily");
            let _ = self.mounted.unmount(true);
            return; // this test itself may keep the mount busy, so joining could wait for ever
        }
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            if !std::thread::panicking() {
                ended.expect("the session ends without an error");
                assert!(closed, "every handle is released");
            }
        }
    }
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn contents_names_and_links() {
    let Some(mount) = Mount::new("") else { return };
    fs::create_dir(mount.path("d")).unwrap();
    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    fs::write(mount.path("d/f"), &data).unwrap();
    assert_eq!(fs::read(mount.path("d/f")).unwrap(), data);

    fs::hard_link(mount.path("d/f"), mount.path("g")).unwrap();
    let (one, other) =
        (fs::metadata(mount.path("d/f")).unwrap(), fs::metadata(mount.path("g")).unwrap());
    assert_eq!((one.ino(), one.nlink(), other.nlink()), (other.ino(), 2, 2));
    assert!(one.ino() > INO_OFFSET, "stat shows the inode number and not the node");

    fs::rename(mount.path("d/f"), mount.path("h")).unwrap();
    assert_eq!(errno(fs::metadata(mount.path("d/f"))), Some(libc::ENOENT));
    fs::write(mount.path("i"), b"replaced").unwrap();
    fs::rename(mount.path("i"), mount.path("h")).unwrap();
    assert_eq!(fs::read(mount.path("h")).unwrap(), b"replaced");
    assert_eq!(fs::metadata(mount.path("g")).unwrap().nlink(), 1, "the other name was replaced");

    symlink("../somewhere", mount.path("l")).unwrap();
    assert_eq!(fs::read_link(mount.path("l")).unwrap(), Path::new("../somewhere"));
    assert_eq!(errno(fs::remove_dir(mount.path("h"))), Some(libc::ENOTDIR));
    fs::remove_dir(mount.path("d")).unwrap();
    fs::remove_file(mount.path("h")).unwrap();
    assert_eq!(errno(fs::create_dir(mount.path(&"n".repeat(256)))), Some(libc::ENAMETOOLONG));
    fs::write(mount.path(&"n".repeat(255)), b"long").unwrap();
}

/// Where kithfs's own loop served a mount with cached writes, as it does if the kernel refuses io_uring,
/// the pages that the kernel held were not requested before a write: a store could run full with them.
#[test]
fn the_own_loop_requests_pages_before_a_write() {
    if !kithfs::fuse::kernel::is_since(6, 16) {
        return println!("skipped: older kernels send no pages when they are told to");
    }
    let own = ServeOptions { locks: true, transport: Transport::Dev, ..ServeOptions::default() };
    let Some(mount) = Mount::serving("", &own) else { return };
    let file = File::create(mount.path("f")).unwrap();
    let node = file.metadata().unwrap().ino() - INO_OFFSET;
    file.write_all_at(b"first", 0).unwrap();
    assert_eq!(mount.ops.largest_write(), 0, "the kernel holds it");
    mount.ops.fill_up();
    // So that the kernel asks for the attributes before the next write.
    mount.notifier().inval_inode(node, -1, 0).unwrap();
    file.write_all_at(b"second", 8192).unwrap();
    assert!(mount.ops.largest_write() > 0, "the kernel holds it still");
}

/// A daemon that takes its mount away did that by the number of the mount. If the mount was gone already,
/// another one had that number, and all calls of programs there failed.
#[test]
fn a_mount_that_is_gone_takes_no_other_one_away() {
    let Some(first) = Mount::new("") else { return };
    let gone = first.mounted.clone();
    drop(first);
    for _ in 0..50 {
        let other = Mount::new("").unwrap();
        if other.mounted.device == gone.device {
            gone.take_away().unwrap();
            fs::write(other.path("f"), b"text").unwrap();
            return;
        }
    }
    println!("skipped: the kernel does not give the number to another mount");
}

#[test]
fn rename_with_flags() {
    let Some(mount) = Mount::new("") else { return };
    fs::write(mount.path("a"), b"a").unwrap();
    fs::write(mount.path("b"), b"b").unwrap();
    let rename = |flags| {
        let (a, b) = (c_path(&mount.path("a")), c_path(&mount.path("b")));
        // SAFETY: both are strings that live during the call.
        match unsafe {
            libc::renameat2(libc::AT_FDCWD, a.as_ptr(), libc::AT_FDCWD, b.as_ptr(), flags)
        } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    assert_eq!(errno(rename(libc::RENAME_NOREPLACE)), Some(libc::EEXIST));
    let both = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
    assert_eq!(errno(rename(both)), Some(libc::EINVAL));
    rename(libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(mount.path("a")).unwrap(), fs::read(mount.path("b")).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
}

#[test]
fn a_listing_of_five_thousand_is_complete_and_agrees_with_stat() {
    let Some(mount) = Mount::new("") else { return };
    let names: BTreeSet<String> =
        (0..5000).map(|i| format!("{i:04}-{}", "x".repeat(i % 60))).collect();
    for name in &names {
        File::create(mount.path(name)).unwrap();
    }
    let mut listed = BTreeSet::new();
    for entry in fs::read_dir(mount.path("")).unwrap() {
        let entry = entry.unwrap();
        // DirEntryExt::ino is d_ino, metadata is from READDIRPLUS or LOOKUP.
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), entry.metadata().unwrap().ino());
        assert!(listed.insert(entry.file_name().into_string().unwrap()), "listed twice");
    }
    assert_eq!(listed, names);
    for name in &names {
        fs::remove_file(mount.path(name)).unwrap();
    }
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0);
}

/// A directory stream of the C library, whose positions are those of the kernel.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &Path) -> Stream {
        let path = c_path(path);
        // SAFETY: a string that lives during the call.
        let dir = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!dir.is_null());
        Stream(dir)
    }

    fn next(&mut self) -> Option<(Vec<u8>, u64, i64)> {
        // SAFETY: the stream is open; what readdir returns is valid until its next call.
        unsafe {
            let entry = libc::readdir(self.0);
            entry.as_ref().map(|entry| {
                (
                    CStr::from_ptr(entry.d_name.as_ptr()).to_bytes().to_vec(),
                    entry.d_ino,
                    entry.d_off,
                )
            })
        }
    }

    fn seek(&mut self, position: i64) {
        // SAFETY: the stream is open.
        unsafe { libc::seekdir(self.0, position) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used again.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_listing_can_be_resumed_at_every_position() {
    let Some(mount) = Mount::new("") else { return };
    fs::create_dir(mount.path("d")).unwrap();
    for i in 0..40 {
        File::create(mount.path(&format!("d/{i}"))).unwrap();
    }
    let mut stream = Stream::open(&mount.path("d"));
    let all: Vec<_> = std::iter::from_fn(|| stream.next()).collect();
    assert_eq!(all.len(), 42);
    assert_eq!((all[0].0.as_slice(), all[1].0.as_slice()), (&b"."[..], &b".."[..]));
    assert_eq!(all[0].1, fs::metadata(mount.path("d")).unwrap().ino());
    assert_eq!(all[1].1, fs::metadata(mount.path("")).unwrap().ino());
    assert_eq!(
        all.iter().map(|entry| entry.2).collect::<BTreeSet<_>>().len(),
        42,
        "every position is its own"
    );
    for at in 0..all.len() {
        stream.seek(all[at].2);
        assert_eq!(stream.next(), all.get(at + 1).cloned());
    }
    stream.seek(0);
    assert_eq!(stream.next().as_ref(), all.first());
}

#[test]
fn a_listing_counts_exactly_the_nodes_that_it_hands_out() {
    let ops = MemFs::new();
    for i in 0..300 {
        ops.plant(format!("name {i}").as_bytes(), b"");
    }
    let handle = ops.opendir(ROOT).unwrap().handle;
    for size in [4096, 10_000, 65_536] {
        let ttl = Duration::from_secs(1);
        let listing = Listing {
            ops: &ops,
            node: ROOT,
            handle,
            plus: true,
            with_nodes: true,
            generation: 0,
            entry_ttl: ttl,
            attr_ttl: ttl,
        };
        let mut out = Vec::new();
        let counted = listing.fill(0, size, &mut out).unwrap();
        assert!(out.len() <= size && !counted.is_empty());
        assert_eq!(counted.len() as u64, ops.lookups(), "what did not fit was not looked up");
        for node in counted {
            ops.forget(node, 1);
        }
        assert_eq!(ops.lookups(), 0);
    }
    ops.releasedir(handle);
}

#[test]
fn what_is_not_there_is_remembered_until_the_kernel_is_told() {
    let Some(mount) = Mount::new("") else { return };
    assert_eq!(errno(fs::metadata(mount.path("late"))), Some(libc::ENOENT));
    let node = mount.ops.plant(b"late", b"old");
    assert_eq!(
        errno(fs::metadata(mount.path("late"))),
        Some(libc::ENOENT),
        "negative entries are cached"
    );
    mount.notifier().inval_entry(ROOT, b"late").unwrap();
    assert_eq!(fs::read(mount.path("late")).unwrap(), b"old");

    mount.ops.rewrite(node, b"new");
    assert_eq!(fs::read(mount.path("late")).unwrap(), b"old", "pages outlive the close");
    mount.notifier().inval_inode(node, 0, 0).unwrap();
    assert_eq!(fs::read(mount.path("late")).unwrap(), b"new");
    mount.notifier().inval_entry(ROOT, b"never heard of").unwrap();
}

/// Runs a script in a mount as another user, and returns whether it succeeds. The temporary directory
/// is closed to others, so the script begins in the mount instead of walking there.
fn as_nobody(mount: &Mount, script: &str) -> bool {
    let mut shell = Command::new("setpriv");
    shell
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script])
        .current_dir(mount.path(""));
    shell.stderr(std::process::Stdio::null()).status().unwrap().success()
}

#[test]
fn a_file_that_exists_after_all_opens_with_permission() {
    // The kernel believes that the file is missing and requests its creation. Another program has
    // created the file meanwhile, and its mode decides who may open it.
    for options in ["", "default_permissions"] {
        let Some(mount) = Mount::new(options) else { return };
        assert_eq!(errno(fs::metadata(mount.path("late"))), Some(libc::ENOENT));
        mount.ops.plant(b"late", b"old");
        let open =
            || OpenOptions::new().write(true).create(true).truncate(false).open(mount.path("late"));
        open().unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(mount.path("late")).unwrap(), b"new");
        assert_eq!(
            errno(OpenOptions::new().write(true).create_new(true).open(mount.path("late"))),
            Some(libc::EEXIST)
        );
    }
    if is_root() {
        let Some(mount) = Mount::new("allow_other,no_default_permissions") else { return };
        let as_nobody = |script: &str| as_nobody(&mount, script);
        fs::set_permissions(mount.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(errno(fs::metadata(mount.path("late"))), Some(libc::ENOENT));
        mount.ops.plant(b"late", b"root's");
        assert!(!as_nobody("printf x >> late"));
        assert!(as_nobody("test \"$(cat late)\" = \"root's\" && printf x > new && rm new"));
    }
}

#[test]
fn nobody_opens_a_file_while_the_kernel_is_given_its_contents() {
    // Contents that were read before a program's write, and passed to the kernel after it, reverted
    // the write.
    if !kithfs::fuse::kernel::is_since(6, 16) {
        println!("skipped: contents are given to Linux 6.16 and later");
        return;
    }
    let Some(mount) = Mount::new("") else { return };
    mount.ops.plant(b"f", b"old");
    mount.ops.shut_gate_to_reads();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(mount.path("f")).unwrap());
        let is_given = mount.ops.wait_at_gate(1);
        let (written, has_written) = std::sync::mpsc::channel();
        let path = mount.path("f");
        let write = move || {
            OpenOptions::new().write(true).open(path).unwrap().write_all(b"new").unwrap();
            let _ = written.send(());
        };
        let writer = scope.spawn(write);
        // The write must not end while the read waits at the gate. With a correct daemon the test
        // passes for any time limit; a longer one only makes the fault more likely to show.
        let early = has_written.recv_timeout(Duration::from_millis(300)).is_ok();
        mount.ops.open_gate();
        writer.join().unwrap();
        let seen = reader.join().unwrap();
        assert!(is_given, "the contents were read before the program asked for them");
        assert!(!early, "the file was opened meanwhile");
        assert!(seen == b"old" || seen == b"new");
    });
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"new");
}

#[test]
fn extended_attributes() {
    let Some(mount) = Mount::new("") else { return };
    fs::write(mount.path("f"), b"").unwrap();
    let path = mount.path("f");
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    let get = |name: &str| {
        let mut value = vec![0; 65536];
        getxattr(&path, name, &mut value).map(|len| value[..len].to_vec())
    };
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(
        setxattr(&path, "user.b", b"2", XattrFlags::REPLACE),
        Err(rustix::io::Errno::NODATA)
    );
    let large = vec![7; 60_000];
    setxattr(&path, "user.b", &large, XattrFlags::empty()).unwrap();
    assert_eq!((get("user.a").unwrap(), get("user.b").unwrap()), (b"1".to_vec(), large));
    let mut small = [0; 10];
    assert_eq!(getxattr(&path, "user.b", &mut small), Err(rustix::io::Errno::RANGE));
    let mut names = [0; 64];
    let len = listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.a\0user.b\0");
    removexattr(&path, "user.a").unwrap();
    assert_eq!(get("user.a"), Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_panic_is_answered_with_an_error_and_costs_no_thread() {
    let Some(mount) = Mount::new("") else { return };
    fs::write(mount.path("f"), b"x").unwrap();
    let mut value = [0; 10];
    for _ in 0..20 {
        assert_eq!(
            rustix::fs::getxattr(mount.path("f"), "user.panic", &mut value),
            Err(rustix::io::Errno::IO)
        );
    }
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
}

#[test]
fn sizes_holes_and_space() {
    let Some(mount) = Mount::new("") else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(8_000).unwrap();
    let mut data = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut data).unwrap();
    assert_eq!((data.len(), data.iter().filter(|&&b| b == 1).count()), (8_000, 5_000));

    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4_096).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 9_000).unwrap();
    assert_eq!(
        fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4_096),
        Err(rustix::io::Errno::OPNOTSUPP)
    );
    let data = fs::read(mount.path("f")).unwrap();
    assert_eq!((data.len(), data.iter().filter(|&&b| b == 1).count()), (9_000, 5_000 - 4_096));

    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(9_000));
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(9_000)),
        Err(rustix::io::Errno::NXIO)
    );

    let copy = File::create(mount.path("copy")).unwrap();
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut 4_000), &copy, Some(&mut 10), 1_000).unwrap();
    assert_eq!(copied, 1_000);
    assert_eq!(fs::read(mount.path("copy")).unwrap()[10..], data[4_000..5_000]);

    let space = rustix::fs::statvfs(mount.path("").as_path()).unwrap();
    assert_eq!(
        (space.f_blocks, space.f_bfree, space.f_bavail, space.f_frsize, space.f_namemax),
        (1000, 600, 500, 4096, 255)
    );
    assert_eq!((space.f_files, space.f_ffree), (400, 300));
}

#[test]
fn a_file_that_is_unlinked_while_open_lives_on() {
    let Some(mount) = Mount::new("") else { return };
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(mount.path("f")).unwrap();
    file.write_all_at(b"after", 6).unwrap();
    file.sync_all().unwrap();
    let mut data = [0; 11];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"beforeafter");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(errno(fs::metadata(mount.path("f"))), Some(libc::ENOENT));
}

#[test]
fn partial_pages_through_a_handle_for_writing_only() {
    let Some(mount) = Mount::new("") else { return };
    fs::write(mount.path("f"), [1; 9_000]).unwrap();
    mount
        .notifier()
        .inval_inode(fs::metadata(mount.path("f")).unwrap().ino() - INO_OFFSET, 0, 0)
        .unwrap();
    let file = OpenOptions::new().write(true).open(mount.path("f")).unwrap();
    file.write_all_at(&[2; 10], 5_000).unwrap();
    drop(file);
    let data = fs::read(mount.path("f")).unwrap();
    assert_eq!(
        (data.len(), data[4_999], data[5_000], data[5_009], data[5_010]),
        (9_000, 1, 2, 2, 1)
    );
    let mut log = OpenOptions::new().append(true).open(mount.path("f")).unwrap();
    log.write_all(b"end").unwrap();
    drop(log);
    assert_eq!(fs::read(mount.path("f")).unwrap()[8_999..], *b"\x01end");
}

/// fuser 0.18 reads -1.5 s, which is (-2 s, 500,000,000 ns), as -2.5 s.
#[test]
fn times_before_1970_keep_their_fractions() {
    let Some(mount) = Mount::new("") else { return };
    fs::write(mount.path("f"), b"").unwrap();
    let path = c_path(&mount.path("f"));
    let set = |atime: (i64, i64), mtime: (i64, i64)| {
        let times = [atime, mtime].map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
        // SAFETY: path and times live during the call.
        assert_eq!(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) }, 0);
        // Read back from the filesystem and not from the kernel's cache.
        let node = fs::metadata(mount.path("f")).unwrap().ino() - INO_OFFSET;
        mount.notifier().inval_inode(node, -1, 0).unwrap();
        let found = fs::metadata(mount.path("f")).unwrap();
        ((found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec()))
    };
    for time in [
        (-2, 500_000_000),
        (-1, 999_999_999),
        (-1, 0),
        (0, 1),
        (1_700_000_000, 123_456_789),
        (-5_000_000_000, 1),
    ] {
        assert_eq!(set(time, (7, 9)), (time, (7, 9)));
        assert_eq!(set((3, 4), time), ((3, 4), time));
    }
    assert_eq!(set((0, libc::UTIME_OMIT), (11, 12)), ((3, 4), (11, 12)));
    assert!(set((0, libc::UTIME_NOW), (0, libc::UTIME_OMIT)).0.0 > 1_700_000_000);
}

#[test]
fn special_files() {
    let Some(mount) = Mount::new("") else { return };
    rustix::fs::mknodat(
        rustix::fs::CWD,
        mount.path("fifo"),
        rustix::fs::FileType::Fifo,
        0o640.into(),
        0,
    )
    .unwrap();
    let found = fs::metadata(mount.path("fifo")).unwrap();
    assert!(found.file_type().is_fifo());
    let _socket = std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap();
    assert!(fs::metadata(mount.path("socket")).unwrap().file_type().is_socket());
    if is_root() {
        let device = rustix::fs::makedev(259, 0x12345);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            mount.path("dev"),
            rustix::fs::FileType::BlockDevice,
            0o600.into(),
            device,
        )
        .unwrap();
        assert_eq!(fs::metadata(mount.path("dev")).unwrap().rdev(), device);
    }
}

/// With HANDLE_KILLPRIV_V2 the filesystem has to clear suid and sgid, and fuser passes on only
/// WRITE's flag.
#[test]
fn suid_and_sgid_are_cleared_as_on_other_filesystems() {
    if !is_root() {
        println!("skipped: needs root to act as another user");
        return;
    }
    let Some(mount) = Mount::new("allow_other,suid") else { return };
    let mode = |name: &str| fs::metadata(mount.path(name)).unwrap().mode() & 0o7777;
    let make = |name: &str, bits| {
        fs::write(mount.path(name), b"1234567890").unwrap();
        fs::set_permissions(mount.path(name), fs::Permissions::from_mode(bits)).unwrap();
    };
    let as_nobody = |script: &str| assert!(as_nobody(&mount, script), "{script}");
    for (name, script) in [
        ("write", "printf x 1<>write"),
        ("truncate", "truncate -s 3 truncate"),
        ("open", ": > open"),
    ] {
        make(name, 0o6777);
        as_nobody(script);
        assert_eq!(mode(name), 0o777, "{name} by another user");
    }
    make("mandatory", 0o6767);
    as_nobody("printf x 1<>mandatory");
    assert_eq!(
        mode("mandatory"),
        0o767,
        "sgid without execution by the group goes as well where the writer is not in the group"
    );
    for name in ["write", "truncate", "open"] {
        make(name, 0o6777);
    }
    fs::OpenOptions::new().write(true).open(mount.path("write")).unwrap().write_all(b"x").unwrap();
    fs::OpenOptions::new().write(true).open(mount.path("truncate")).unwrap().set_len(3).unwrap();
    File::create(mount.path("open")).unwrap();
    for name in ["write", "truncate", "open"] {
        assert_eq!(mode(name), 0o6777, "{name} by root");
    }
    std::os::unix::fs::chown(mount.path("open"), Some(1), None).unwrap();
    assert_eq!(mode("open"), 0o777, "a new owner, also by root");
    fs::create_dir(mount.path("dir")).unwrap();
    fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o2777)).unwrap();
    std::os::unix::fs::chown(mount.path("dir"), Some(1), None).unwrap();
    assert_eq!(mode("dir"), 0o2777, "directories keep theirs");
}

#[test]
fn the_mount_table_shows_what_was_asked_for_and_nothing_more() {
    let Some(mount) = Mount::new(r"fsname=/a vault\,suid\,dev\\,ro,noexec,default_permissions")
    else {
        return;
    };
    let entry = mounts::mount_at(&mount.mounted.mountpoint).unwrap().unwrap();
    assert!(entry.is_kithfs());
    assert_eq!(entry.source, r"/a vault,suid,dev\");
    let options: BTreeSet<&str> = entry.options.split(',').collect();
    for expected in ["ro", "nosuid", "nodev", "noexec", "default_permissions"] {
        assert!(options.contains(expected), "{expected} in {options:?}");
    }
    assert!(!options.contains("allow_other"));
    assert_eq!(errno(File::create(mount.path("f"))), Some(libc::EROFS));
    let again = kithfs::fuse::mount(&mount.mounted.mountpoint, &MountOptions::default());
    assert!(matches!(again, Err(MountError::AlreadyMounted(_))));
}

/// A child that ends when its standard input is closed.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_busy_mount_lists_its_users_and_stays() {
    let Some(mount) = Mount::new("") else { return };
    let child = Command::new("cat")
        .current_dir(mount.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("cat can be run");
    let child = Child(child);
    match mount.mounted.unmount(false) {
        Err(MountError::Busy { holders, .. }) => {
            let holder = holders
                .iter()
                .find(|holder| holder.pid == child.0.id())
                .expect("the child is named");
            assert_eq!(holder.by, "working directory");
            assert_eq!(holder.path.as_deref(), Some(mount.mounted.mountpoint.as_path()));
        }
        other => panic!("{other:?}"),
    }
    assert!(is_mounted(&mount.mounted));
    fs::write(mount.path("still"), b"served").unwrap();
    drop(child);

    let wrong = mounts::DeviceId { major: 0, minor: u32::MAX };
    assert!(matches!(
        kithfs::fuse::mount::unmount::unmount(&mount.mounted.mountpoint, Some(wrong), false),
        Err(MountError::NotOurs { .. })
    ));
}

#[test]
fn a_lazy_unmount_lets_open_files_finish() {
    let Some(mut mount) = Mount::new("") else { return };
    let mut file = File::create(mount.path("f")).unwrap();
    mount.mounted.unmount(true).unwrap();
    assert!(!is_mounted(&mount.mounted));
    file.write_all(b"finished").unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.serving.take().unwrap().join().unwrap();
    assert!(matches!(mount.mounted.unmount(false), Err(MountError::NotMounted { .. })));
}

#[test]
fn many_threads_at_once() {
    let Some(mount) = Mount::new("") else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mount = &mount;
            scope.spawn(move || {
                let dir = mount.path(&format!("{thread}"));
                fs::create_dir(&dir).unwrap();
                for i in 0..100 {
                    let (from, to) =
                        (dir.join(format!("{i}")), mount.path(&format!("{thread}-{i}")));
                    fs::write(&from, vec![thread as u8; 100 * i]).unwrap();
                    fs::rename(&from, &to).unwrap();
                    assert_eq!(fs::read(&to).unwrap(), vec![thread as u8; 100 * i]);
                }
                fs::remove_dir(&dir).unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 800);
}

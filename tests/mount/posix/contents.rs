//! Reading and writing in every way: flags of open, mappings, vectors, locks, pipes, notifications.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::ptr;

use super::{Posix, errno};

fn open(posix: &Posix, name: &str, flags: i32) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(posix.at(name))
        .unwrap()
}

/// A mapping, unmapped when it is dropped.
struct Map(*mut u8, usize);

impl Map {
    fn new(file: &File, len: usize, kind: i32) -> Map {
        // SAFETY: a new mapping, whose address the kernel chooses.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Map(at.cast(), len)
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: within the mapping, which is still mapped.
        unsafe { ptr::read_volatile(self.0.add(at)) }
    }

    fn put(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping, which is still mapped and writable.
        unsafe { ptr::write_volatile(self.0.add(at), byte) }
    }

    fn sync(&self) {
        // SAFETY: the whole mapping, which is still mapped.
        assert_eq!(errno(unsafe { libc::msync(self.0.cast(), self.1, libc::MS_SYNC) }), 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

#[test]
fn appends_of_several_processes_all_arrive_whole() {
    let Some(mut posix) = Posix::new() else { return };
    posix.shell(
        "for p in a b c d; do (for i in $(seq 500); do echo \"$p $i $p$p$p$p\" >> log; done) & done; wait
         test $(wc -l < log) = 2000; for p in a b c d; do test \"$(grep -c \"^$p [0-9]* $p$p$p$p\\$\" log)\" = 500; grep \"^$p\" log | cut -d' ' -f2 | sort -nc; done",
    );
    posix.remount();
    posix.shell("test $(wc -l < log) = 2000; test $(sort -u log | wc -l) = 2000");
    posix.finish();
}

#[test]
fn flags_of_open_mean_what_they_say() {
    let Some(posix) = Posix::new() else { return };
    open(&posix, "f", 0).write_all(b"0123456789").unwrap();
    assert_eq!(
        File::options()
            .write(true)
            .create_new(true)
            .open(posix.at("f"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EEXIST)
    );
    for flags in [libc::O_SYNC, libc::O_DSYNC, libc::O_NOATIME, libc::O_NONBLOCK] {
        let file = open(&posix, "f", flags);
        file.write_all_at(b"x", 3).unwrap();
    }
    assert_eq!(fs::read(posix.at("f")).unwrap(), b"012x456789");
    File::create(posix.at("f")).unwrap();
    assert_eq!(fs::metadata(posix.at("f")).unwrap().len(), 0);
    assert_eq!(
        File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(posix.at("f"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ENOTDIR)
    );
    std::os::unix::fs::symlink("f", posix.at("l")).unwrap();
    assert_eq!(
        File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(posix.at("l"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ELOOP)
    );
    posix.finish();
}

#[test]
fn direct_and_cached_access_see_each_other() {
    let Some(posix) = Posix::new() else { return };
    let (direct, cached) = (open(&posix, "f", libc::O_DIRECT), open(&posix, "f", 0));
    let layout = std::alloc::Layout::from_size_align(1 << 20, 4096).unwrap();
    // SAFETY: the buffer is of this layout, fully initialised, and freed below.
    let buffer =
        unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), 1 << 20) };
    for round in 0..5u8 {
        buffer.fill(round + 1);
        direct.write_all_at(buffer, 0).unwrap();
        cached.write_all_at(&[100 + round; 5000], 300_000).unwrap();
        let mut read = vec![0; 1 << 20];
        cached.read_exact_at(&mut read, 0).unwrap();
        assert!(
            read[..300_000].iter().all(|b| *b == round + 1)
                && read[305_000..].iter().all(|b| *b == round + 1)
        );
        direct.read_exact_at(buffer, 0).unwrap();
        assert!(buffer == &read[..], "round {round}");
    }
    // SAFETY: allocated above with this layout, and not used any more.
    unsafe { std::alloc::dealloc(buffer.as_mut_ptr(), layout) };
    drop((direct, cached));
    posix.finish();
}

#[test]
fn mappings_and_calls_see_the_same_bytes() {
    let Some(mut posix) = Posix::new() else { return };
    const LEN: usize = 700_000;
    let file = open(&posix, "f", 0);
    file.write_all_at(&[1; LEN], 0).unwrap();
    let (shared, private) =
        (Map::new(&file, LEN, libc::MAP_SHARED), Map::new(&file, LEN, libc::MAP_PRIVATE));
    for at in (0..LEN).step_by(9973) {
        shared.put(at, 2);
        assert_eq!(private.get(at), 2);
        private.put(at, 3);
    }
    let mut read = vec![0; LEN];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.iter().enumerate().all(|(at, b)| *b == if at % 9973 == 0 { 2 } else { 1 }));
    file.write_all_at(&[4; 1000], 5000).unwrap();
    assert_eq!((shared.get(5500), shared.get(6001)), (4, 1));
    shared.sync();
    // A mapping outlives its descriptor.
    drop(file);
    shared.put(LEN - 1, 9);
    drop((shared, private));
    posix.remount();
    let stored = fs::read(posix.at("f")).unwrap();
    assert_eq!((stored[LEN - 1], stored[5500], stored[9973 * 3], stored[1]), (9, 4, 2, 1));
    posix.finish();
}

#[test]
fn vectors_flags_pipes_and_sendfile() {
    let Some(posix) = Posix::new() else { return };
    let (a, b) = (open(&posix, "a", 0), open(&posix, "b", 0));
    let (one, two) = ([1u8; 3000], [2u8; 7000]);
    let write = [
        libc::iovec { iov_base: one.as_ptr() as *mut _, iov_len: one.len() },
        libc::iovec { iov_base: two.as_ptr() as *mut _, iov_len: two.len() },
    ];
    let mut read = vec![0u8; 10_000];
    let into = [libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: read.len() }];
    // SAFETY: all buffers live through the calls and have the given lengths.
    unsafe {
        assert_eq!(libc::pwritev2(a.as_raw_fd(), write.as_ptr(), 2, 0, libc::RWF_DSYNC), 10_000);
        assert_eq!(libc::pwritev2(a.as_raw_fd(), write.as_ptr(), 2, 0, libc::RWF_APPEND), 10_000);
        assert_eq!(libc::preadv2(a.as_raw_fd(), into.as_ptr(), 1, 10_000, libc::RWF_HIPRI), 10_000);
        // Cached data is returned at once; other data may be refused; FUSE has no such reads at
        // all.
        let at_once = libc::preadv2(a.as_raw_fd(), into.as_ptr(), 1, 0, libc::RWF_NOWAIT);
        assert!(at_once > 0 || matches!(errno(at_once as i64), libc::EAGAIN | libc::EOPNOTSUPP));
        assert_eq!(libc::preadv2(a.as_raw_fd(), into.as_ptr(), 1, 10_000, 0), 10_000);
    }
    assert!(read[..3000] == one && read[3000..] == two);
    let mut pipe = [0; 2];
    // SAFETY: plain calls on descriptors that live, with buffers that live.
    unsafe {
        let mut at = 0;
        assert_eq!(libc::sendfile(b.as_raw_fd(), a.as_raw_fd(), &mut at, 20_000), 20_000);
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let (mut from, mut to) = (100, 30_000);
        assert_eq!(libc::splice(a.as_raw_fd(), &mut from, pipe[1], ptr::null_mut(), 4000, 0), 4000);
        assert_eq!(libc::splice(pipe[0], ptr::null_mut(), b.as_raw_fd(), &mut to, 4000, 0), 4000);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    drop((a, b));
    let (a, b) = (fs::read(posix.at("a")).unwrap(), fs::read(posix.at("b")).unwrap());
    assert!(
        b[..20_000] == a[..]
            && b[30_000..] == a[100..4100]
            && b[20_000..30_000].iter().all(|b| *b == 0)
    );
    posix.finish();
}

#[test]
fn locks_of_each_kind_exclude_other_holders() {
    let Some(posix) = Posix::new() else { return };
    let (a, b) = (open(&posix, "f", 0), open(&posix, "f", 0));
    let flock = |file: &File, how| {
        // SAFETY: a plain call on a descriptor that lives.
        errno(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
    };
    assert_eq!(flock(&a, libc::LOCK_EX), 0);
    assert_eq!(flock(&b, libc::LOCK_SH), libc::EWOULDBLOCK);
    assert_eq!(flock(&a, libc::LOCK_UN), 0);
    assert_eq!(flock(&b, libc::LOCK_SH), 0);
    let ofd = |file: &File, kind, start| {
        // SAFETY: all zeros is a valid flock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, 10);
        // SAFETY: the structure lives through the call.
        errno(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
    };
    assert_eq!(ofd(&a, libc::F_WRLCK, 0), 0);
    assert_eq!(ofd(&b, libc::F_WRLCK, 10), 0);
    assert_eq!(ofd(&b, libc::F_RDLCK, 5), libc::EAGAIN);
    assert_eq!(ofd(&a, libc::F_UNLCK, 0), 0);
    assert_eq!(ofd(&b, libc::F_RDLCK, 5), 0);
    drop((a, b));
    // fcntl's own kind belongs to processes.
    let file = open(&posix, "f", 0);
    let other = |expected: i32| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "posix::contents::other_process_locks"])
            .env(LOCKED, format!("{expected} {}", posix.at("f").display()));
        super::mounted::expect_code(&mut child, 0);
    };
    assert_eq!(process_lock(&file, libc::F_WRLCK), 0);
    other(libc::EAGAIN);
    assert_eq!(process_lock(&file, libc::F_UNLCK), 0);
    other(0);
    drop(file);
    posix.finish();
}

const LOCKED: &str = "KITHFS_TEST_LOCKED";

fn process_lock(file: &File, kind: i32) -> i32 {
    // SAFETY: all zeros is a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    // SAFETY: the structure lives through the call.
    errno(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) })
}

/// Not a test: the other process of the test above.
#[test]
fn other_process_locks() {
    let Ok(task) = std::env::var(LOCKED) else { return };
    let (expected, path) = task.split_once(' ').unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert_eq!(process_lock(&file, libc::F_WRLCK), expected.parse::<i32>().unwrap());
}

#[test]
fn changes_are_notified() {
    let Some(posix) = Posix::new() else { return };
    // SAFETY: plain calls; the descriptor is closed at the end.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK) };
    let path = super::c(&posix.scratch.point());
    let mask = libc::IN_CREATE
        | libc::IN_DELETE
        | libc::IN_MOVED_FROM
        | libc::IN_MOVED_TO
        | libc::IN_CLOSE_WRITE
        | libc::IN_MODIFY;
    // SAFETY: the path is NUL-terminated and lives through the call.
    assert!(unsafe { libc::inotify_add_watch(fd, path.as_ptr(), mask) } >= 0);
    posix.shell("echo x > a; mv a b; rm b; mkdir d");
    let mut buffer = [0u8; 4096];
    // SAFETY: the buffer lives and has the given length.
    let len = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    assert!(len > 0);
    let (mut at, mut seen) = (0, 0);
    while at < len as usize {
        seen |= u32::from_ne_bytes(buffer[at + 4..at + 8].try_into().unwrap());
        at += 16 + u32::from_ne_bytes(buffer[at + 12..at + 16].try_into().unwrap()) as usize;
    }
    assert_eq!(seen & mask, mask);
    // SAFETY: the descriptor is ours, and is not used any more.
    unsafe { libc::close(fd) };
    posix.finish();
}

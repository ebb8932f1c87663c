//! A program that reads and writes by io_uring: the kernel makes the calls itself, and they reach
//! the mount from threads that are not the program's.
//!
//! The program is a process of its own. The kernel releases a ring's files at some time after the
//! ring is closed, and certainly before its process has ended; only then can the mount be ended.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::mounted::expect_code;
use super::{Posix, c};

const CLIENT: &str = "KITHFS_TEST_RING";
const SKIPPED: &str = "skipped: no io_uring for programs here";

/// Runs one of the programs below as a process of its own, on the mount. Returns false if the
/// program was skipped, because it cannot have a ring here.
fn client(posix: &Posix, program: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "posix::uring_client::program", "--nocapture"])
        .env(CLIENT, program)
        .current_dir(posix.scratch.point());
    let output = expect_code(&mut child, 0);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    assert!(said.contains("test result: ok. 1 passed"), "the program has another name: {said}");
    !said.contains(SKIPPED)
}

/// Not a test: the program that the tests below run.
#[test]
fn program() {
    let Ok(program) = std::env::var(CLIENT) else { return };
    let Some(ring) = ring(64) else { return };
    match program.as_str() {
        "many" => many(ring),
        "chains" => chains(ring),
        "direct" => direct(ring),
        other => panic!("{other}"),
    }
}

/// `None`, with a message, if the kernel or a sandbox forbids rings.
fn ring(entries: u32) -> Option<IoUring> {
    match IoUring::new(entries) {
        Ok(ring) => Some(ring),
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES)) =>
        {
            println!("{SKIPPED}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Submits all of `entries` at once and returns their results in the order of the entries.
fn run(ring: &mut IoUring, entries: Vec<Entry>) -> Vec<i32> {
    let count = entries.len();
    for (i, entry) in entries.into_iter().enumerate() {
        // SAFETY: the callers keep all buffers and paths until the results are there, which is
        // before this function returns.
        unsafe { ring.submission().push(&entry.user_data(i as u64)).unwrap() };
    }
    let mut results = vec![i32::MIN; count];
    let mut missing = count;
    while missing > 0 {
        // A signal ends the wait early, and so does the freezer of a container.
        match ring.submit_and_wait(missing) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => panic!("{error}"),
            _ => {}
        }
        for done in ring.completion() {
            results[done.user_data() as usize] = done.result();
            missing -= 1;
        }
    }
    results
}

#[test]
fn many_requests_at_once_arrive_where_they_belong() {
    let Some(mut posix) = Posix::new() else { return };
    if client(&posix, "many") {
        posix.remount();
        let stored = fs::read(posix.at("f")).unwrap();
        assert_eq!(stored.len(), PARTS * PART);
        assert!((0..PARTS).all(|i| stored[place(i) as usize..][..PART] == part(i)[..]));
    }
    posix.finish();
}

const PARTS: usize = 48;
/// Not aligned, and several chunks in all.
const PART: usize = 70_001;

fn part(i: usize) -> Vec<u8> {
    (0..PART).map(|at| (at as u8).wrapping_mul(31) ^ i as u8).collect()
}

/// Returns the offset at which part `i` is written. The offsets are not in order.
fn place(i: usize) -> u64 {
    ((i * 29 % PARTS) * PART) as u64
}

fn many(mut ring: IoUring) {
    let file = File::options().read(true).write(true).create_new(true).open("f").unwrap();
    let fd = types::Fd(file.as_raw_fd());
    let parts: Vec<_> = (0..PARTS).map(part).collect();
    let write = |(i, part): (usize, &Vec<u8>)| {
        opcode::Write::new(fd, part.as_ptr(), PART as u32).offset(place(i)).build()
    };
    assert_eq!(run(&mut ring, parts.iter().enumerate().map(write).collect()), [PART as i32; PARTS]);
    let mut read = vec![vec![0u8; PART]; PARTS];
    let entries = read.iter_mut().enumerate();
    let entries = entries
        .map(|(i, buf)| {
            opcode::Read::new(fd, buf.as_mut_ptr(), PART as u32).offset(place(i)).build()
        })
        .collect();
    assert_eq!(run(&mut ring, entries), [PART as i32; PARTS]);
    assert!(read == parts);
}

#[test]
fn chains_registered_buffers_and_the_calls_of_names() {
    let Some(posix) = Posix::new() else { return };
    client(&posix, "chains");
    posix.finish();
}

fn chains(mut ring: IoUring) {
    let (from, to) = (c(Path::new("from")), c(Path::new("to")));
    let at = types::Fd(libc::AT_FDCWD);
    let create = opcode::OpenAt::new(at, from.as_ptr())
        .flags(libc::O_CREAT | libc::O_RDWR)
        .mode(0o640)
        .build();
    let fd = run(&mut ring, vec![create])[0];
    assert!(fd >= 0, "{fd}");
    let file = types::Fd(fd);
    // Write, make durable and read back, in one chain: each request waits for the previous one. The
    // buffers are pinned by the kernel.
    let mut buffers = [vec![7u8; 300_000], vec![0u8; 300_000]];
    let pinned = buffers
        .each_mut()
        .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() });
    // SAFETY: the buffers outlive the ring's use of them: they are unregistered below.
    unsafe { ring.submitter().register_buffers(&pinned).unwrap() };
    let chain = vec![
        opcode::WriteFixed::new(file, pinned[0].iov_base.cast(), 300_000, 0)
            .offset(5000)
            .build()
            .flags(Flags::IO_LINK),
        opcode::Fsync::new(file).build().flags(Flags::IO_LINK),
        opcode::Fallocate::new(file, 10_000)
            .offset(20_000)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build()
            .flags(Flags::IO_LINK),
        opcode::ReadFixed::new(file, pinned[1].iov_base.cast(), 300_000, 1)
            .offset(5000)
            .build()
            .flags(Flags::IO_LINK),
        opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    ];
    assert_eq!(run(&mut ring, chain), [300_000, 0, 0, 300_000, 0]);
    ring.submitter().unregister_buffers().unwrap();
    assert!(
        buffers[1]
            .iter()
            .enumerate()
            .all(|(at, b)| *b == if (15_000..25_000).contains(&at) { 0 } else { 7 })
    );
    // Vectors, and bytes after the end.
    let (mut one, mut two) = ([1u8; 10], [2u8; 20]);
    let mut vectors = [(&mut one[..]), (&mut two[..])]
        .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() });
    assert_eq!(
        run(
            &mut ring,
            vec![opcode::Writev::new(file, vectors.as_ptr(), 2).offset(305_000).build()]
        ),
        [30]
    );
    assert_eq!(
        run(
            &mut ring,
            vec![opcode::Readv::new(file, vectors.as_mut_ptr(), 2).offset(305_010).build()]
        ),
        [20]
    );
    assert!(one == [2; 10] && two[..10] == [2; 10]);
    let names = vec![
        opcode::RenameAt::new(at, from.as_ptr(), at, to.as_ptr()).build().flags(Flags::IO_LINK),
        opcode::Close::new(file).build().flags(Flags::IO_LINK),
        opcode::UnlinkAt::new(at, from.as_ptr()).build(),
    ];
    assert_eq!(run(&mut ring, names), [0, 0, -libc::ENOENT]);
    let mut head = [9; 6000];
    File::open("to").unwrap().read_exact_at(&mut head, 0).unwrap();
    assert!(head[..5000] == [0; 5000] && head[5000..] == [7; 1000]);
    assert_eq!(fs::metadata("to").unwrap().len(), 305_030);
}

#[test]
fn direct_io_writes_are_seen_by_later_cached_reads() {
    // The kernel kept pages that a reader brought into its cache during an asynchronous direct
    // write: a later copy of a disk image had contents from before the write.
    let Some(posix) = Posix::new() else { return };
    client(&posix, "direct");
    posix.finish();
}

fn direct(mut ring: IoUring) {
    const LEN: usize = 640 << 10;
    let path = Path::new("image");
    fs::write(path, vec![0; LEN]).unwrap();
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let layout = std::alloc::Layout::from_size_align(LEN, 4096).unwrap();
    // SAFETY: the buffer is of this layout, fully initialised, and freed below.
    let buffer = unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), LEN) };
    let done = AtomicBool::new(false);
    let stale = std::thread::scope(|scope| {
        // Also in a panic; otherwise the scope would wait for the readers for ever.
        scopeguard::defer! { done.store(true, Ordering::Relaxed) }
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::read(path).unwrap();
                }
            });
        }
        let mut stale = None;
        for round in 0..1000u32 {
            buffer.fill(round as u8);
            let write =
                opcode::Write::new(types::Fd(direct.as_raw_fd()), buffer.as_ptr(), LEN as u32)
                    .build();
            assert_eq!(run(&mut ring, vec![write]), [LEN as i32]);
            let read = fs::read(path).unwrap();
            if let Some(at) = read.iter().position(|b| *b != round as u8) {
                stale = Some((round, at));
                break;
            }
        }
        stale
    });
    assert_eq!(stale, None, "round, and where old bytes were read");
    // SAFETY: allocated above with this layout, and not used any more.
    unsafe { std::alloc::dealloc(buffer.as_mut_ptr(), layout) };
}

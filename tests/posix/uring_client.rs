//! A program that reads and writes by io_uring: the calls are the kernel's own, and reach the mount from threads that are not the program's.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::{Posix, c};

/// `None`, with a word about it, where the kernel or a sandbox forbids rings.
fn ring(entries: u32) -> Option<IoUring> {
    match IoUring::new(entries) {
        Ok(ring) => Some(ring),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES)) => {
            println!("skipped: no io_uring for programs here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Submits all of `entries` at once and gives their results in the order of the entries.
fn run(ring: &mut IoUring, entries: Vec<Entry>) -> Vec<i32> {
    let count = entries.len();
    for (i, entry) in entries.into_iter().enumerate() {
        // SAFETY: the callers keep all buffers and paths until the results are there, which is before this returns.
        unsafe { ring.submission().push(&entry.user_data(i as u64)).unwrap() };
    }
    ring.submit_and_wait(count).unwrap();
    let mut results = vec![i32::MIN; count];
    for done in ring.completion() {
        results[done.user_data() as usize] = done.result();
    }
    assert!(!results.contains(&i32::MIN));
    results
}

#[test]
fn many_requests_at_once_arrive_where_they_belong() {
    let Some(mut posix) = Posix::new() else { return };
    let Some(mut ring) = ring(64) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(posix.at("f")).unwrap();
    let fd = types::Fd(file.as_raw_fd());
    // Neither aligned nor in order, and across chunks.
    const LEN: usize = 70_001;
    let parts: Vec<Vec<u8>> = (0..48u8).map(|i| (0..LEN).map(|at| (at as u8).wrapping_mul(31) ^ i).collect()).collect();
    let place = |i: usize| ((i * 29 % 48) * LEN) as u64;
    let write = |(i, part): (usize, &Vec<u8>)| opcode::Write::new(fd, part.as_ptr(), LEN as u32).offset(place(i)).build();
    assert_eq!(run(&mut ring, parts.iter().enumerate().map(write).collect()), [LEN as i32; 48]);
    let mut read = vec![vec![0u8; LEN]; 48];
    let entries = read.iter_mut().enumerate();
    let entries = entries.map(|(i, buf)| opcode::Read::new(fd, buf.as_mut_ptr(), LEN as u32).offset(place(i)).build()).collect();
    assert_eq!(run(&mut ring, entries), [LEN as i32; 48]);
    assert!(read == parts);
    drop((ring, file));
    posix.remount();
    let stored = fs::read(posix.at("f")).unwrap();
    assert_eq!(stored.len(), 48 * LEN);
    assert!(parts.iter().enumerate().all(|(i, part)| stored[place(i) as usize..][..LEN] == part[..]));
    posix.finish();
}

#[test]
fn chains_registered_buffers_and_the_calls_of_names() {
    let Some(posix) = Posix::new() else { return };
    let Some(mut ring) = ring(16) else { return };
    let (from, to) = (c(&posix.at("from")), c(&posix.at("to")));
    let at = types::Fd(libc::AT_FDCWD);
    let create = opcode::OpenAt::new(at, from.as_ptr()).flags(libc::O_CREAT | libc::O_RDWR).mode(0o640).build();
    let fd = run(&mut ring, vec![create])[0];
    assert!(fd >= 0, "{fd}");
    let file = types::Fd(fd);
    // Written, made durable, read back, in one chain of which each link waits for the one before; through buffers that the kernel has pinned.
    let mut buffers = [vec![7u8; 300_000], vec![0u8; 300_000]];
    let pinned = buffers.each_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() });
    // SAFETY: the buffers outlive the ring's use of them: they are unregistered below.
    unsafe { ring.submitter().register_buffers(&pinned).unwrap() };
    let chain = vec![
        opcode::WriteFixed::new(file, pinned[0].iov_base.cast(), 300_000, 0).offset(5000).build().flags(Flags::IO_LINK),
        opcode::Fsync::new(file).build().flags(Flags::IO_LINK),
        opcode::Fallocate::new(file, 10_000)
            .offset(20_000)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build()
            .flags(Flags::IO_LINK),
        opcode::ReadFixed::new(file, pinned[1].iov_base.cast(), 300_000, 1).offset(5000).build().flags(Flags::IO_LINK),
        opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    ];
    assert_eq!(run(&mut ring, chain), [300_000, 0, 0, 300_000, 0]);
    ring.submitter().unregister_buffers().unwrap();
    assert!(buffers[1].iter().enumerate().all(|(at, b)| *b == if (15_000..25_000).contains(&at) { 0 } else { 7 }));
    // Vectors, and bytes behind the end.
    let (mut one, mut two) = ([1u8; 10], [2u8; 20]);
    let mut vectors = [(&mut one[..]), (&mut two[..])].map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() });
    assert_eq!(run(&mut ring, vec![opcode::Writev::new(file, vectors.as_ptr(), 2).offset(305_000).build()]), [30]);
    assert_eq!(run(&mut ring, vec![opcode::Readv::new(file, vectors.as_mut_ptr(), 2).offset(305_010).build()]), [20]);
    assert!(one == [2; 10] && two[..10] == [2; 10]);
    let names = vec![
        opcode::RenameAt::new(at, from.as_ptr(), at, to.as_ptr()).build().flags(Flags::IO_LINK),
        opcode::Close::new(file).build().flags(Flags::IO_LINK),
        opcode::UnlinkAt::new(at, from.as_ptr()).build(),
    ];
    assert_eq!(run(&mut ring, names), [0, 0, -libc::ENOENT]);
    let mut head = [9; 6000];
    File::open(posix.at("to")).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert!(head[..5000] == [0; 5000] && head[5000..] == [7; 1000]);
    assert_eq!(fs::metadata(posix.at("to")).unwrap().len(), 305_030);
    posix.finish();
}

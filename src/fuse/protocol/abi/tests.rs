//! Compares the tables of [`super`] with the kernel's header, if the system has it.

use std::collections::HashMap;
use std::fs;

use super::*;

type Table = (&'static str, &'static [(&'static str, usize)]);

const TABLES: &[Table] = &[
    in_header::TABLE,
    init_in::TABLE,
    init_out::TABLE,
    forget_in::TABLE,
    batch_forget_in::TABLE,
    forget_one::TABLE,
    getattr_in::TABLE,
    setattr_in::TABLE,
    mknod_in::TABLE,
    mkdir_in::TABLE,
    rename_in::TABLE,
    rename2_in::TABLE,
    link_in::TABLE,
    open_in::TABLE,
    create_in::TABLE,
    read_in::TABLE,
    write_in::TABLE,
    release_in::TABLE,
    flush_in::TABLE,
    fsync_in::TABLE,
    getxattr_in::TABLE,
    access_in::TABLE,
    interrupt_in::TABLE,
    file_lock::TABLE,
    lk_in::TABLE,
    fallocate_in::TABLE,
    lseek_in::TABLE,
    copy_in::TABLE,
    statfs_out::TABLE,
    ring_in_out::TABLE,
];

/// Operations by their names in the header.
const OPERATIONS: &[(&str, u32)] = &[
    ("FUSE_LOOKUP", opcode::LOOKUP),
    ("FUSE_FORGET", opcode::FORGET),
    ("FUSE_GETATTR", opcode::GETATTR),
    ("FUSE_SETATTR", opcode::SETATTR),
    ("FUSE_READLINK", opcode::READLINK),
    ("FUSE_SYMLINK", opcode::SYMLINK),
    ("FUSE_MKNOD", opcode::MKNOD),
    ("FUSE_MKDIR", opcode::MKDIR),
    ("FUSE_UNLINK", opcode::UNLINK),
    ("FUSE_RMDIR", opcode::RMDIR),
    ("FUSE_RENAME", opcode::RENAME),
    ("FUSE_LINK", opcode::LINK),
    ("FUSE_OPEN", opcode::OPEN),
    ("FUSE_READ", opcode::READ),
    ("FUSE_WRITE", opcode::WRITE),
    ("FUSE_STATFS", opcode::STATFS),
    ("FUSE_RELEASE", opcode::RELEASE),
    ("FUSE_FSYNC", opcode::FSYNC),
    ("FUSE_SETXATTR", opcode::SETXATTR),
    ("FUSE_GETXATTR", opcode::GETXATTR),
    ("FUSE_LISTXATTR", opcode::LISTXATTR),
    ("FUSE_REMOVEXATTR", opcode::REMOVEXATTR),
    ("FUSE_FLUSH", opcode::FLUSH),
    ("FUSE_INIT", opcode::INIT),
    ("FUSE_OPENDIR", opcode::OPENDIR),
    ("FUSE_READDIR", opcode::READDIR),
    ("FUSE_RELEASEDIR", opcode::RELEASEDIR),
    ("FUSE_FSYNCDIR", opcode::FSYNCDIR),
    ("FUSE_GETLK", opcode::GETLK),
    ("FUSE_SETLK", opcode::SETLK),
    ("FUSE_SETLKW", opcode::SETLKW),
    ("FUSE_ACCESS", opcode::ACCESS),
    ("FUSE_CREATE", opcode::CREATE),
    ("FUSE_INTERRUPT", opcode::INTERRUPT),
    ("FUSE_DESTROY", opcode::DESTROY),
    ("FUSE_NOTIFY_REPLY", opcode::NOTIFY_REPLY),
    ("FUSE_BATCH_FORGET", opcode::BATCH_FORGET),
    ("FUSE_FALLOCATE", opcode::FALLOCATE),
    ("FUSE_READDIRPLUS", opcode::READDIRPLUS),
    ("FUSE_RENAME2", opcode::RENAME2),
    ("FUSE_LSEEK", opcode::LSEEK),
    ("FUSE_COPY_FILE_RANGE", opcode::COPY_FILE_RANGE),
];

/// Flags by their names in the header.
const FLAGS: &[(&str, u64)] = &[
    ("FUSE_ASYNC_READ", init_flag::ASYNC_READ),
    ("FUSE_POSIX_LOCKS", init_flag::POSIX_LOCKS),
    ("FUSE_FLOCK_LOCKS", init_flag::FLOCK_LOCKS),
    ("FUSE_LK_FLOCK", LK_FLOCK as u64),
    ("FUSE_ATOMIC_O_TRUNC", init_flag::ATOMIC_O_TRUNC),
    ("FUSE_EXPORT_SUPPORT", init_flag::EXPORT_SUPPORT),
    ("FUSE_BIG_WRITES", init_flag::BIG_WRITES),
    ("FUSE_DONT_MASK", init_flag::DONT_MASK),
    ("FUSE_POSIX_ACL", init_flag::POSIX_ACL),
    ("FUSE_DO_READDIRPLUS", init_flag::DO_READDIRPLUS),
    ("FUSE_READDIRPLUS_AUTO", init_flag::READDIRPLUS_AUTO),
    ("FUSE_WRITEBACK_CACHE", init_flag::WRITEBACK_CACHE),
    ("FUSE_DIRECT_IO_ALLOW_MMAP", init_flag::DIRECT_IO_ALLOW_MMAP),
    ("FUSE_AUTO_INVAL_DATA", init_flag::AUTO_INVAL_DATA),
    ("FUSE_PARALLEL_DIROPS", init_flag::PARALLEL_DIROPS),
    ("FUSE_MAX_PAGES", init_flag::MAX_PAGES),
    ("FUSE_CACHE_SYMLINKS", init_flag::CACHE_SYMLINKS),
    ("FUSE_HANDLE_KILLPRIV_V2", init_flag::HANDLE_KILLPRIV_V2),
    ("FUSE_INIT_EXT", init_flag::INIT_EXT),
    ("FUSE_OVER_IO_URING", init_flag::OVER_IO_URING),
    ("FATTR_MODE", fattr::MODE as u64),
    ("FATTR_UID", fattr::UID as u64),
    ("FATTR_GID", fattr::GID as u64),
    ("FATTR_SIZE", fattr::SIZE as u64),
    ("FATTR_ATIME", fattr::ATIME as u64),
    ("FATTR_MTIME", fattr::MTIME as u64),
    ("FATTR_ATIME_NOW", fattr::ATIME_NOW as u64),
    ("FATTR_MTIME_NOW", fattr::MTIME_NOW as u64),
    ("FATTR_KILL_SUIDGID", fattr::KILL_SUIDGID as u64),
    ("FUSE_OPEN_KILL_SUIDGID", OPEN_KILL_SUIDGID as u64),
    ("FUSE_WRITE_KILL_SUIDGID", WRITE_KILL_SUIDGID as u64),
    ("FUSE_FSYNC_FDATASYNC", FSYNC_FDATASYNC as u64),
    ("FOPEN_KEEP_CACHE", FOPEN_KEEP_CACHE as u64),
    ("FOPEN_CACHE_DIR", FOPEN_CACHE_DIR as u64),
];

/// Returns the kernel's header without its comments. If the system has none, prints a line and
/// returns `None`.
fn header() -> Option<String> {
    let Ok(text) = fs::read_to_string("/usr/include/linux/fuse.h") else {
        println!("skipped: there is no /usr/include/linux/fuse.h (package linux-libc-dev)");
        return None;
    };
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    Some(plain + rest)
}

/// Returns the fields of each structure that consists of plain numbers, in order, with their
/// lengths in bytes.
fn structures(header: &str) -> HashMap<&str, Vec<(String, usize)>> {
    let mut found = HashMap::new();
    for part in header.split("\nstruct ").skip(1) {
        let Some((name, body)) = part.split_once(" {") else { continue };
        let body = body.split_once("\n};").map_or("", |(body, _)| body);
        let fields = body.split(';').map(str::trim).filter(|line| !line.is_empty()).map(|line| {
            let (kind, field) = line.rsplit_once([' ', '\t'])?;
            let one = match kind.trim() {
                "uint64_t" | "int64_t" => 8,
                "uint32_t" | "int32_t" => 4,
                "uint16_t" => 2,
                "struct fuse_file_lock" => 24,
                _ => return None,
            };
            let (field, times) = match field.split_once('[') {
                Some((field, times)) => (field, times.trim_end_matches(']').parse().ok()?),
                None => (field, 1),
            };
            Some((field.to_owned(), one * times))
        });
        if let Some(fields) = fields.collect::<Option<Vec<_>>>() {
            found.insert(name, fields);
        }
    }
    found
}

/// Returns the value of `#define NAME (1 << N)`, `(1ULL << N)` or an enumerator `NAME = N`.
fn number(header: &str, name: &str) -> Option<u64> {
    header.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(|word| word.trim_matches(['(', ')', ',']));
        match (words.next()?, words.next()?, words.next()?, words.next(), words.next()) {
            ("#define", found, _one, Some("<<"), Some(shift)) if found == name => {
                Some(1 << shift.parse::<u64>().ok()?)
            }
            (found, "=", value, ..) if found == name => value.parse().ok(),
            _ => None,
        }
    })
}

#[test]
fn structures_are_those_of_the_kernel() {
    let Some(header) = header() else { return };
    let known = structures(&header);
    let mut compared = 0;
    for (name, fields) in TABLES {
        // A header of an older kernel lacks the newest structures.
        let Some(theirs) = known.get(name) else { continue };
        let ours: Vec<(String, usize)> =
            fields.iter().map(|(field, len)| (field.replace("r#", ""), *len)).collect();
        assert_eq!(&ours, theirs, "{name}");
        compared += 1;
    }
    assert!(compared >= TABLES.len() - 1, "only {compared} structures were found in the header");
}

#[test]
fn numbers_are_those_of_the_kernel() {
    let Some(header) = header() else { return };
    for (name, ours) in OPERATIONS {
        assert_eq!(number(&header, name), Some(u64::from(*ours)), "{name}");
    }
    let old: &[&str] = &["FUSE_DIRECT_IO_ALLOW_MMAP", "FUSE_OVER_IO_URING"];
    for (name, ours) in FLAGS {
        match number(&header, name) {
            Some(theirs) => assert_eq!(*ours, theirs, "{name}"),
            None => assert!(old.contains(name), "{name} is not in the header"),
        }
    }
}

#[test]
fn fixed_parts_of_requests_fit_the_header_of_a_ring_entry() {
    assert_eq!(
        (in_header::LEN, init_in::LEN, init_out::LEN, statfs_out::LEN, ring_in_out::LEN),
        (40, 64, 64, 80, 32)
    );
    assert!((0..=100).all(|operation| fixed_len(operation) <= URING_HEADER));
}

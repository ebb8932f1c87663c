//! The first request of a session, INIT, in which the kernel and the daemon agree on capabilities and
//! limits. `fuser` negotiates by itself and takes only the capabilities that are wanted from here.
//!
//! Rules that hold here
//! * The kernel offers capabilities, and the daemon accepts those that it wants. A capability that
//!   the kernel does not offer is not used.

use crate::fuse::ops::{Errno, Result};
use crate::fuse::protocol::abi::{self, init_flag, init_in, init_out, put, u32_at};
use crate::fuse::settings::{Permissions, ServeOptions};

/// Capabilities that are requested if the kernel has them. Not requested are:
/// * `SETXATTR_EXT`, which is not needed, and makes `fuser` 0.18 panic;
/// * `NO_OPENDIR_SUPPORT`, because listings need a handle;
/// * `ASYNC_DIO`: under it the kernel (6.18) keeps pages that were read into its cache during an
///   asynchronous O_DIRECT write. Programs that copied the file later read the data from before the
///   write.
const WANTED: u64 = init_flag::ASYNC_READ
    | init_flag::EXPORT_SUPPORT
    | init_flag::BIG_WRITES
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::PARALLEL_DIROPS
    | init_flag::DO_READDIRPLUS
    | init_flag::READDIRPLUS_AUTO
    | init_flag::HANDLE_KILLPRIV_V2
    | init_flag::MAX_PAGES
    | init_flag::DIRECT_IO_ALLOW_MMAP
    | init_flag::INIT_EXT;

/// Size of a page in the protocol's `max_pages`.
pub const PAGE: u32 = 4096;

/// The agreed terms of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Capabilities, both words in one.
    pub flags: u64,
    /// Largest WRITE in bytes; a READ is no larger.
    pub max_write: u32,
}

impl Terms {
    /// Returns whether requests come over io_uring once all queues are registered.
    pub fn over_io_uring(&self) -> bool {
        self.flags & init_flag::OVER_IO_URING != 0
    }
}

/// Returns the capabilities to request over any transport. Not among them: locks, which `fuser` does
/// not tell apart, and whose waits cannot be interrupted with it (see `device.rs`).
pub fn wanted(options: &ServeOptions) -> u64 {
    let chosen = [
        (init_flag::WRITEBACK_CACHE, options.writeback),
        // Without a writeback cache the kernel drops pages of a file whose time or size has changed,
        // even for a descriptor that was opened before.
        (init_flag::AUTO_INVAL_DATA, !options.writeback),
        (init_flag::CACHE_SYMLINKS, !options.attr_ttl.is_zero()),
        // With ACLs the daemon applies the umask, because a directory's default ACL replaces it.
        (init_flag::DONT_MASK, options.acls),
        (init_flag::POSIX_ACL, options.acls && options.permissions == Permissions::Kernel),
    ];
    chosen.iter().filter(|(_, on)| *on).fold(WANTED, |wanted, (flag, _)| wanted | flag)
}

/// Answers INIT with the body `body`. Returns the terms and the body of the answer. `uring` requests
/// io_uring.
///
/// # Errors
/// `EPROTO` if the kernel's protocol has another major version or is older than 7.31 (Linux 5.4), or
/// if the kernel lacks a writeback cache that is wanted.
pub fn answer(
    body: &[u8],
    options: &ServeOptions,
    uring: bool,
) -> Result<(Terms, [u8; init_out::LEN])> {
    const OLDEST: u32 = 31;
    let word = |at: usize| if body.len() >= at + 4 { u32_at(body, at) } else { 0 };
    let (major, minor) = (word(init_in::major), word(init_in::minor));
    if major != abi::MAJOR || minor < OLDEST {
        return Err(Errno::new(libc::EPROTO));
    }
    let mut offered = u64::from(word(init_in::flags));
    if offered & init_flag::INIT_EXT != 0 {
        offered |= u64::from(word(init_in::flags2)) << 32;
    }
    // The vault relies on it: whether the kernel or the vault maintains modification times is fixed
    // before the session begins. Every kernel since 3.15 offers it.
    if options.writeback && offered & init_flag::WRITEBACK_CACHE == 0 {
        return Err(Errno::new(libc::EPROTO));
    }
    let mut wanted = wanted(options);
    for (flag, on) in [
        (init_flag::OVER_IO_URING, uring),
        // Otherwise the kernel handles locks by itself.
        (init_flag::POSIX_LOCKS | init_flag::FLOCK_LOCKS, options.locks),
    ] {
        wanted |= if on { flag } else { 0 };
    }
    let flags = offered & wanted;
    // Without MAX_PAGES a request has at most 32 pages.
    let most = if flags & init_flag::MAX_PAGES != 0 {
        options.max_write
    } else {
        options.max_write.min(32 * PAGE)
    };
    let max_write = most.max(PAGE) / PAGE * PAGE;
    let terms = Terms { minor: minor.min(abi::MINOR), flags, max_write };

    let mut out = [0; init_out::LEN];
    let words = [
        (init_out::major, abi::MAJOR),
        (init_out::minor, terms.minor),
        (init_out::max_readahead, options.max_readahead.min(word(init_in::max_readahead))),
        (init_out::flags, flags as u32),
        (init_out::max_write, max_write),
        (init_out::time_gran, 1),
        (init_out::flags2, (flags >> 32) as u32),
    ];
    for (at, word) in words {
        put(&mut out, at, &word.to_ne_bytes());
    }
    let background = options.max_background;
    let pages = u16::try_from(max_write / PAGE).unwrap_or(u16::MAX);
    for (at, half) in [
        (init_out::max_background, background),
        (init_out::congestion_threshold, background / 4 * 3),
        (init_out::max_pages, pages),
    ] {
        put(&mut out, at, &half.to_ne_bytes());
    }
    Ok((terms, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn offer(minor: u32, flags: u64) -> Vec<u8> {
        let words = [7, minor, 128 << 10, flags as u32, (flags >> 32) as u32];
        let mut body: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        body.resize(init_in::LEN, 0);
        body
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let options = ServeOptions::default();
        let (terms, out) = answer(&offer(45, u64::MAX), &options, true).unwrap();
        assert!(terms.over_io_uring() && terms.flags & init_flag::WRITEBACK_CACHE != 0);
        assert_eq!((terms.minor, terms.max_write), (42, 1 << 20));
        assert_eq!(
            (u32_at(&out, init_out::flags2), u16_at(&out, init_out::max_pages)),
            (1 << 9 | 1 << 4, 256)
        );
        assert_eq!(u32_at(&out, init_out::max_readahead), 128 << 10);
        assert!(!answer(&offer(45, u64::MAX), &options, false).unwrap().0.over_io_uring());
        // The upper word is ignored if the kernel does not announce one.
        let (terms, _) =
            answer(&offer(31, !(init_flag::INIT_EXT | init_flag::MAX_PAGES)), &options, true)
                .unwrap();
        assert!(!terms.over_io_uring());
        assert_eq!(terms.max_write, 128 << 10);
    }

    #[test]
    fn other_protocols_are_refused() {
        assert!(answer(&offer(30, 0), &ServeOptions::default(), false).is_err());
        assert!(answer(&[], &ServeOptions::default(), false).is_err());
        assert!(
            answer(&[7, 0, 0, 0, 31, 0, 0, 0], &ServeOptions::default().shared(), false).is_ok()
        );
        assert!(answer(&[7, 0, 0, 0, 31, 0, 0, 0], &ServeOptions::default(), false).is_err());
    }

    #[test]
    fn a_vault_that_others_change_gets_no_cache_of_writes() {
        let (terms, _) =
            answer(&offer(42, u64::MAX), &ServeOptions::default().shared(), false).unwrap();
        let either = init_flag::WRITEBACK_CACHE | init_flag::AUTO_INVAL_DATA;
        assert_eq!(terms.flags & either, init_flag::AUTO_INVAL_DATA);
        let locks = init_flag::POSIX_LOCKS | init_flag::FLOCK_LOCKS;
        assert_eq!(terms.flags & locks, locks);
        let (terms, _) = answer(&offer(42, u64::MAX), &ServeOptions::default(), false).unwrap();
        assert_eq!(terms.flags & either, init_flag::WRITEBACK_CACHE);
        assert_eq!(terms.flags & locks, 0);
    }
}

//! Reading a directory by the kernel's own position cookies (`d_off` of `getdents64`).
//!
//! Rules that hold here
//! * `position` is the cookie of the next entry to return. The kernel's position may be further on;
//!   the entries in between are buffered in `ahead`. Continuing from `position` needs no `lseek`;
//!   any other cookie drops `ahead` and seeks.
//! * Cookies are never computed or compared by order: on some filesystems they are hashes.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use rustix::io::{Errno, Result};

use super::attr;
use crate::store::DirEntry;

/// Bytes requested from the kernel at a time: several hundred entries, as in `readdir` of the C
/// library.
const BUFFER: usize = 32 * 1024;

/// The position of the listing of one handle.
#[derive(Default)]
pub(super) struct Listing {
    position: i64,
    begun: bool,
    ahead: VecDeque<DirEntry>,
    buffer: Vec<u8>,
}

impl Listing {
    /// Returns entries from `cookie` on; see [`crate::store::Dir::read`].
    pub(super) fn read(
        &mut self,
        dir: BorrowedFd<'_>,
        cookie: i64,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        // Cookie 0 needs a seek even if no entry was returned yet: the kernel's position may be
        // behind `.` and `..`.
        if cookie != self.position || (cookie == 0 && self.begun) {
            self.ahead.clear();
            // The kernel expects the cookie as the signed number that it returned.
            seek(dir, SeekFrom::Start(cookie as u64))?;
            self.position = cookie;
            self.begun = false;
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        loop {
            while let Some(entry) = self.ahead.front() {
                bytes += entry.name.len();
                if bytes > limit && !entries.is_empty() {
                    return Ok(entries);
                }
                self.position = entry.next;
                entries.extend(self.ahead.pop_front());
            }
            if bytes >= limit && !entries.is_empty() {
                return Ok(entries);
            }
            match self.fill(dir) {
                Ok(true) => {}
                Ok(false) => return Ok(entries),
                // Entries that were read are returned first; the next call meets the error again.
                Err(_) if !entries.is_empty() => return Ok(entries),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one `getdents64` into `ahead`; returns false at the end of the directory.
    fn fill(&mut self, dir: BorrowedFd<'_>) -> Result<bool> {
        self.begun = true;
        self.buffer.clear();
        self.buffer.reserve(BUFFER);
        let mut raw = RawDir::new(dir, self.buffer.spare_capacity_mut());
        let mut more = false;
        while let Some(entry) = raw.next() {
            let entry = match entry {
                // A directory that was removed while it is open has no entries.
                Err(Errno::NOENT) => break,
                other => other?,
            };
            more = true;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.ahead.push_back(DirEntry {
                    name: name.into(),
                    ino: entry.ino(),
                    kind: match entry.file_type() {
                        FileType::Unknown => None,
                        known => attr::kind(known),
                    },
                    next: entry.next_entry_cookie() as i64,
                });
            }
            if raw.is_buffer_empty() {
                break;
            }
        }
        if !more {
            self.buffer = Vec::new();
        }
        Ok(more)
    }
}

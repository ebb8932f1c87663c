//! Reads the intact parts of a damaged file.

use std::ops::Range;

use crate::store::Access;
use crate::vault::core::Core;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::{Load, OpenFile};
use crate::vault::types::ROOT;

/// Size in bytes of the pieces that are passed on.
const PART: u64 = 1 << 20;

impl Core {
    /// Passes the bytes of `ranges` of the file at a stored path to `take`, with their offsets.
    /// Every byte is authentic.
    pub fn salvage(
        &self,
        cipher: &[u8],
        ranges: &[Range<u64>],
        take: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
    ) -> Inner<()> {
        let (dir, stored) = self.open_parent(cipher)?;
        let open = OpenFile::load(
            ROOT,
            self.journal.overlay(dir.open_file(stored, Access::Read)?)?,
            &self.context(),
            self.next_serial(),
            Load::Read,
        )?;
        let mut buf = zeroize::Zeroizing::new(vec![0; PART as usize]);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let part = &mut buf[..(range.end - at).min(PART) as usize];
                let read = open.read(&self.context(), at, part)?;
                if read == 0 {
                    return Err(Fault::Corrupt(Corruption::Other("is shorter than it was")));
                }
                take(at, &part[..read]).map_err(Fault::Io)?;
                at += read as u64;
            }
        }
        Ok(())
    }
}

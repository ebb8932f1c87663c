//! The bytes of one file: the visible ones, the durable ones, and the changes in between.
//!
//! Rules that hold here
//! * `live` is `durable` with all of `pending` applied to it, in order, except for the blocks in
//!   `lost`.
//! * At a power cut each pending write or punch is kept, lost, or torn at sector boundaries,
//!   independently of the others. The length is one field of the inode: the disk has one of its
//!   versions, and a version that came from truncating the file also has its bytes cut.
//! * A flush that fails may lose written data ([`Data::lose`]), as on Linux: the data stays
//!   visible, and no later flush writes it to the disk until the block is written again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::content::{BLOCK, Content};
use super::tree::Tick;

/// Unit that a disk writes atomically.
pub(super) const SECTOR: u64 = 512;

#[derive(Clone)]
enum Pending {
    Write { offset: u64, bytes: Arc<[u8]> },
    Punch { offset: u64, len: u64 },
    Reserve { offset: u64, len: u64 },
    Version(Version),
}

/// A version of the inode's fields about the data.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) len: u64,
    /// When it was made, which is also the time of modification.
    pub(super) tick: Tick,
}

/// Bytes with their durability.
#[derive(Clone, Default)]
pub(super) struct Data {
    pub(super) live: Content,
    durable: Content,
    pending: Vec<Pending>,
    /// Blocks that have visible bytes which a failed flush has dropped.
    lost: BTreeSet<u64>,
}

impl Data {
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64, now: Tick) {
        self.live.write(bytes, offset);
        self.live.len = self.live.len.max(offset + bytes.len() as u64);
        for block in blocks_of(offset, bytes.len() as u64).filter(|block| self.lost.remove(block)) {
            // The whole page is dirty again.
            let mut page = vec![0; BLOCK as usize];
            let len = self.live.read(&mut page, block * BLOCK);
            self.pending.push(Pending::Write { offset: block * BLOCK, bytes: page[..len].into() });
        }
        self.pending.push(Pending::Write { offset, bytes: bytes.into() });
        self.version(now);
    }

    /// Records a failed flush: data that was written since the last flush stays visible, and is not
    /// dirty any more.
    pub(super) fn lose(&mut self) {
        let lost = &mut self.lost;
        self.pending.retain(|pending| match pending {
            Pending::Write { offset, bytes } => {
                lost.extend(blocks_of(*offset, bytes.len() as u64));
                false
            }
            _ => true,
        });
    }

    /// Models memory pressure: lost data is not visible any more either.
    pub(super) fn evict(&mut self) {
        for block in std::mem::take(&mut self.lost) {
            self.live.take_block(block, &self.durable);
        }
        self.live.cut(self.live.len);
    }

    pub(super) fn set_len(&mut self, len: u64, now: Tick) {
        self.lost.split_off(&len.div_ceil(BLOCK));
        self.live.cut(len);
        self.version(now);
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64, now: Tick) {
        self.lost.retain(|block| block * BLOCK < offset || (block + 1) * BLOCK > offset + len);
        self.live.punch(offset, len);
        self.pending.push(Pending::Punch { offset, len });
        self.version(now);
    }

    pub(super) fn reserve(&mut self, offset: u64, len: u64) {
        self.live.reserve(offset, len);
        self.pending.push(Pending::Reserve { offset, len });
    }

    fn version(&mut self, tick: Tick) {
        self.pending.push(Pending::Version(Version { len: self.live.len, tick }));
    }

    /// Makes everything durable except the lost blocks; returns the last pending version.
    pub(super) fn sync(&mut self) -> Option<Version> {
        let last = self.pending.iter().rev().find_map(|pending| match pending {
            Pending::Version(version) => Some(*version),
            _ => None,
        });
        let mut durable = self.live.clone();
        for &block in &self.lost {
            durable.take_block(block, &self.durable);
        }
        self.durable = durable;
        self.pending.clear();
        last
    }

    /// Makes bytes and length durable, and leaves the last modification time to chance.
    pub(super) fn sync_data(&mut self) {
        self.pending = self.sync().map(Pending::Version).into_iter().collect();
    }

    /// Returns a possible state after a power cut. `choice(n)` is less than `n`; always 0 loses as
    /// much as possible, always `n - 1` keeps everything that is pending.
    pub(super) fn crash(
        &self,
        choice: &mut dyn FnMut(usize) -> usize,
    ) -> (Content, Option<Version>) {
        let versions =
            self.pending.iter().filter(|pending| matches!(pending, Pending::Version(_))).count();
        let mut versions_left = if versions == 0 { 0 } else { choice(versions + 1) };
        let (mut content, mut version) = (self.durable.clone(), None);
        for pending in &self.pending {
            match pending {
                Pending::Write { offset, bytes } => {
                    for kept in survivors(*offset, bytes.len() as u64, choice) {
                        let part = (kept.start - offset) as usize..(kept.end - offset) as usize;
                        content.write(&bytes[part], kept.start);
                    }
                }
                Pending::Punch { offset, len } => {
                    for kept in survivors(*offset, *len, choice) {
                        content.punch(kept.start, kept.end - kept.start);
                    }
                }
                Pending::Reserve { offset, len } => {
                    if choice(2) == 1 {
                        content.reserve(*offset, *len);
                    }
                }
                Pending::Version(next) if versions_left > 0 => {
                    versions_left -= 1;
                    // Reserved blocks beyond the end stay if the length grows or stays.
                    if next.len < content.len {
                        content.cut(next.len)
                    } else {
                        content.len = next.len
                    }
                    version = Some(*next);
                }
                Pending::Version(_) => {}
            }
        }
        content.clip();
        (content, version)
    }

    /// Returns data that is all durable, as after a power cut.
    pub(super) fn settled(content: Content) -> Data {
        Data { live: content.clone(), durable: content, ..Data::default() }
    }
}

fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK..(offset + len).div_ceil(BLOCK)
}

/// Returns the parts of a write of this range that survive, as runs of whole sectors (except at its
/// two ends).
fn survivors(offset: u64, len: u64, choice: &mut dyn FnMut(usize) -> usize) -> Vec<Range<u64>> {
    let end = offset + len;
    match choice(3) {
        0 => Vec::new(),
        1 => {
            let mut kept: Vec<Range<u64>> = Vec::new();
            let mut at = offset;
            while at < end {
                let next = ((at / SECTOR + 1) * SECTOR).min(end);
                if choice(2) == 1 {
                    match kept.last_mut() {
                        Some(run) if run.end == at => run.end = next,
                        _ => kept.push(at..next),
                    }
                }
                at = next;
            }
            kept
        }
        _ => std::iter::once(offset..end).collect(),
    }
}

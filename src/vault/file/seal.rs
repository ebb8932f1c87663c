//! Sealing of segments, which needs no lock of the file.
//!
//! Rules that hold here
//! * A salt is drawn for a chunk that is sealed ahead, and used for nothing else: an unused chunk
//!   is dropped with its salt.
//! * Before such a chunk is used, its epoch is compared with the current one, and its file id with
//!   the file's, which may have changed since the open.
//! * The buffer of the plain text is sealed in place, so it need not be wiped.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::crypto::{Plain, SegmentKey};
use crate::format::layout::SEGMENT;
use crate::format::table::{Segment, Table, segment_aad, segment_hash};
use crate::vault::file::{Context, DirtyChunk, FileState};

/// Sealed segments that follow each other in a chunk.
pub(crate) struct Sealed {
    /// All segments, each of [`SEGMENT`] bytes but the last.
    pub bytes: Bytes,
    /// The table entry of each, with its hash in a signed share.
    pub entries: Vec<(Segment, Option<[u8; 32]>)>,
}

/// Seals `plain` (whole segments, the last one may be short) as the segments of chunk `k` from
/// `first` on, under the key of a chunk of `epoch`.
pub(crate) fn seal(
    context: &Context,
    file_id: &[u8; 32],
    k: u64,
    epoch: u32,
    key: &SegmentKey,
    first: usize,
    mut plain: Plain,
) -> Sealed {
    let mut nonces = vec![[0u8; 12]; plain.len().div_ceil(SEGMENT)];
    context.random.fill(nonces.as_flattened_mut());
    let signed = context.keys.layout.signed();
    let mut entries = Vec::with_capacity(nonces.len());
    for ((part, nonce), s) in plain.chunks_mut(SEGMENT).zip(nonces).zip(first..) {
        let len = part.len() as u16;
        let aad =
            segment_aad(&context.keys.share, file_id, k, s as u32, len, epoch, context.keys.suite);
        let tag = key.seal(&nonce, &aad, part);
        entries.push((Segment { nonce, tag, len }, signed.then(|| segment_hash(part))));
    }
    // The buffer is ciphertext by now and needs no wiping.
    Sealed { bytes: std::mem::take(&mut *plain).into(), entries }
}

/// Whole chunks of one write, sealed before the file is locked, so that two threads can seal the
/// data of one stream.
#[derive(Default)]
pub(crate) struct Ready {
    file_id: [u8; 32],
    chunks: BTreeMap<u64, (DirtyChunk, Sealed)>,
}

impl Ready {
    /// Seals the chunks that `data` at `offset` fills completely.
    pub fn seal(context: &Context, file_id: &[u8; 32], offset: u64, data: &[u8]) -> Ready {
        let chunk = context.keys.layout.chunk();
        let (first, end) =
            (offset.div_ceil(chunk), offset.saturating_add(data.len() as u64) / chunk);
        let epoch = context.keys.current();
        let mut chunks = BTreeMap::new();
        for k in first..end {
            let at = (k * chunk - offset) as usize;
            let plain = Plain::new(data[at..at + chunk as usize].to_vec());
            let salt = FileState::new_salt(context);
            let key = context.keys.chunk_keys(epoch, file_id).derive(&salt);
            let sealed = seal(context, file_id, k, epoch.number, &key, 0, plain);
            let table = Table::empty(&context.keys.layout, salt, epoch.number);
            let (live, pending) = (Box::default(), BTreeMap::new());
            chunks.insert(
                k,
                (DirtyChunk { table, key, epoch: epoch.commitment, live, pending }, sealed),
            );
        }
        Ready { file_id: *file_id, chunks }
    }

    /// Removes and returns chunk `k`, if it was sealed from `len` bytes, for the file with this id,
    /// and its epoch is still the current one. Its live segments are not known yet.
    pub fn take(
        &mut self,
        context: &Context,
        file_id: &[u8; 32],
        k: u64,
        len: usize,
    ) -> Option<(DirtyChunk, Sealed)> {
        let current = context.keys.current();
        let (chunk, sealed) = self.chunks.remove(&k)?;
        let fits = sealed.bytes.len() == len
            && self.file_id == *file_id
            && (chunk.table.epoch, chunk.epoch) == (current.number, current.commitment);
        fits.then_some((chunk, sealed))
    }
}

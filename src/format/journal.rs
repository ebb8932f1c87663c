//! The records of the redo journal: the writes of a commit, made durable before they are done in
//! place.
//!
//! Rules that hold here
//! * A record is a set of byte patches for one ciphertext file. Applying it again changes nothing.
//! * It contains the file's path, id and birth time, and the hashes of the header before and after
//!   it. It applies only to a file that has one of these headers, or one that was torn by this record.
//! * It begins with its kind. A reader refuses an unknown kind and leaves the journal unchanged: an
//!   authentic record does not mark the end of the journal.
//! * It is sealed under the journal key of the mounting identity, bound to journal, generation and
//!   sequence number.
//!
//! ```text
//! journal file   0    magic "kithjrnl" 8, version 2, suite 1, flags 1, reserved 4, share id 32, journal id 16, owner 16, birth times of journal and root 24; zeros to 4096
//!                4096 records, each padded to a multiple of 512
//! record         magic "KREC" 4, length of the sealed part 4, generation 8, sequence 8, sealed part
//! ```
//! A generation begins at 4096 with sequence 0. It ends at the first record that is not of this
//! generation, not next in sequence or not authentic. A torn record was never acknowledged.

use std::borrow::Cow;

use zeroize::Zeroizing;

use super::cursor::{Reader, Writer};
use super::error::{FormatError, FormatErrorKind};
use crate::crypto::{RECORD_OVERHEAD, Random, RecordCipher, Suite};

/// First bytes of a journal file.
pub const MAGIC: &[u8; 8] = b"kithjrnl";
/// Version that this program reads and writes.
pub const VERSION: u16 = 1;
/// Offset of the first record.
pub const RECORDS_AT: u64 = 4096;
/// Records begin at multiples of this.
pub const ALIGN: usize = 512;
/// Bytes of a record before its sealed part.
pub const RECORD_HEAD: usize = 4 + 4 + 8 + 8;
/// Longest sealed part that a reader accepts: bounds memory.
pub const RECORD_MAX: usize = 64 << 20;

/// Kind of a record that holds the changed bytes themselves. The others are reserved.
const WHOLE: u8 = 0;

/// The nanoseconds of a birth time that the store does not have.
const UNBORN: u32 = u32::MAX;

/// Birth time of a file or directory in the store: seconds and nanoseconds. `None` if the store has
/// none, or none that lasts.
pub type Birth = Option<(i64, u32)>;

const RECORD_MAGIC: &[u8; 4] = b"KREC";
const WHAT: &str = "journal";
const WHAT_RECORD: &str = "journal record";

/// The head of a journal file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Suite under which the records are sealed.
    pub suite: Suite,
    /// Share to which the journal belongs.
    pub share: [u8; 32],
    /// Random id, bound into every record.
    pub id: [u8; 16],
    /// Keyed hash of `id` under the owner's journal key: only the owner can recognize the journal
    /// as theirs.
    pub owner: [u8; 16],
    /// Of the journal file, and of the share's root. In a copy of either they are others, and those in
    /// the records tell nothing.
    pub births: [Birth; 2],
}

impl JournalHead {
    /// Returns the [`RECORDS_AT`] bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .u8(0)
            .zeros(4)
            .bytes(&self.share)
            .bytes(&self.id)
            .bytes(&self.owner);
        for birth in self.births {
            w.bytes(&encode_birth(birth));
        }
        w.zeros(RECORDS_AT as usize - w.len());
        w.into_vec()
    }

    /// Reads a head.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named(WHAT, bytes);
        r.magic(MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        let flags = r.u8()?;
        if flags != 0 {
            return Err(r.error(FormatErrorKind::Flags(flags as u32)));
        }
        r.zeros(4)?;
        let (share, id, owner) = (r.array()?, r.array()?, r.array()?);
        let births = [decode_birth(&mut r)?, decode_birth(&mut r)?];
        let head = JournalHead { suite, share, id, owner, births };
        r.zeros(RECORDS_AT as usize - HEAD_USED)?;
        r.finish()?;
        Ok(head)
    }
}

const HEAD_USED: usize = 8 + 2 + 1 + 1 + 4 + 32 + 16 + 16 + 2 * 12;

fn encode_birth(birth: Birth) -> [u8; 12] {
    let (secs, nanos) = birth.unwrap_or((0, UNBORN));
    let mut out = [0; 12];
    out[..8].copy_from_slice(&secs.to_le_bytes());
    out[8..].copy_from_slice(&nanos.to_le_bytes());
    out
}

fn decode_birth(r: &mut Reader<'_>) -> Result<Birth, FormatError> {
    match (r.u64()? as i64, r.u32()?) {
        (0, UNBORN) => Ok(None),
        (secs, nanos) if nanos < 1_000_000_000 => Ok(Some((secs, nanos))),
        _ => Err(r.error(FormatErrorKind::Range)),
    }
}

/// Bytes to be written at an offset of the ciphertext file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch<'a> {
    /// Offset.
    pub offset: u64,
    /// Bytes.
    pub bytes: Cow<'a, [u8]>,
}

/// One commit of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord<'a> {
    /// Stored path relative to the share's root, components separated by `/`.
    pub path: Vec<u8>,
    /// Id of the file.
    pub file_id: [u8; 32],
    /// Of the file in the store: other versions of it, and copies, have other ones.
    pub born: Birth,
    /// BLAKE3 of the header bytes that the commit replaces.
    pub base: [u8; 32],
    /// BLAKE3 of the header bytes after the commit.
    pub result: [u8; 32],
    /// Ciphertext length after the commit.
    pub cipher_len: u64,
    /// Modification time after the commit: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// The writes; the header comes last.
    pub patches: Vec<Patch<'a>>,
}

/// Returns the BLAKE3 hash of a header's bytes (the first `Layout::header()` bytes of a file).
pub fn header_hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

fn aad(head: &JournalHead, generation: u64, sequence: u64) -> [u8; 68] {
    let mut aad = [0; 68];
    aad[..4].copy_from_slice(RECORD_MAGIC);
    aad[4..36].copy_from_slice(&head.share);
    aad[36..52].copy_from_slice(&head.id);
    aad[52..60].copy_from_slice(&generation.to_le_bytes());
    aad[60..68].copy_from_slice(&sequence.to_le_bytes());
    aad
}

impl JournalRecord<'_> {
    /// Returns the number of bytes that the record takes in the journal.
    pub fn encoded_len(&self) -> usize {
        let body = 1
            + 2
            + self.path.len()
            + 96
            + 12
            + 8
            + 12
            + 4
            + self.patches.iter().map(|p| 12 + p.bytes.len()).sum::<usize>();
        (RECORD_HEAD + RECORD_OVERHEAD + body).next_multiple_of(ALIGN)
    }

    /// Seals the record into `out`, which is cleared first, and pads it to [`ALIGN`]. The caller
    /// passes the buffer because a record can be megabytes long, and touching new memory costs more
    /// than sealing.
    pub fn seal(
        &self,
        out: &mut Vec<u8>,
        head: &JournalHead,
        cipher: &RecordCipher,
        generation: u64,
        sequence: u64,
        random: &dyn Random,
    ) {
        let mut nonce = [0; 24];
        random.fill(&mut nonce);
        out.clear();
        out.reserve(self.encoded_len());
        out.extend_from_slice(RECORD_MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&nonce);
        let body = out.len();
        out.push(WHOLE);
        out.extend_from_slice(&(self.path.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.path);
        out.extend_from_slice(&self.file_id);
        out.extend_from_slice(&encode_birth(self.born));
        out.extend_from_slice(&self.base);
        out.extend_from_slice(&self.result);
        out.extend_from_slice(&self.cipher_len.to_le_bytes());
        out.extend_from_slice(&self.mtime.0.to_le_bytes());
        out.extend_from_slice(&self.mtime.1.to_le_bytes());
        out.extend_from_slice(&(self.patches.len() as u32).to_le_bytes());
        for patch in &self.patches {
            out.extend_from_slice(&patch.offset.to_le_bytes());
            out.extend_from_slice(&(patch.bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&patch.bytes);
        }
        let tag = cipher.seal(&nonce, &aad(head, generation, sequence), &mut out[body..]);
        out.extend_from_slice(&tag);
        let sealed = (out.len() - RECORD_HEAD) as u32;
        out[4..8].copy_from_slice(&sealed.to_le_bytes());
        out.resize(out.len().next_multiple_of(ALIGN), 0);
    }

    fn decode(body: &[u8]) -> Result<JournalRecord<'static>, FormatError> {
        let mut r = Reader::named(WHAT_RECORD, body);
        let kind = r.u8()?;
        if kind != WHOLE {
            return Err(r.error(FormatErrorKind::Flags(kind.into())));
        }
        let path_len = r.u16()? as usize;
        let path = r.bytes(path_len)?.to_vec();
        let (file_id, born) = (r.array()?, decode_birth(&mut r)?);
        let (base, result) = (r.array()?, r.array()?);
        let cipher_len = r.u64()?;
        let mtime = (r.u64()? as i64, r.u32()?);
        let count = r.u32()? as usize;
        let mut patches = Vec::with_capacity(count.min(r.remaining() / 12));
        for _ in 0..count {
            let offset = r.u64()?;
            let len = r.u32()? as usize;
            patches.push(Patch { offset, bytes: Cow::Owned(r.bytes(len)?.to_vec()) });
        }
        r.finish()?;
        if mtime.1 >= 1_000_000_000
            || patches.iter().any(|p| {
                p.offset.checked_add(p.bytes.len() as u64).is_none_or(|end| end > cipher_len)
            })
        {
            return Err(FormatError::new(WHAT_RECORD, FormatErrorKind::Range));
        }
        Ok(JournalRecord { path, file_id, born, base, result, cipher_len, mtime, patches })
    }
}

/// Parses generation, sequence number and length of the sealed part from the bytes before it;
/// `None` if they are not the head of a record.
pub fn record_head(bytes: &[u8; RECORD_HEAD]) -> Option<(u64, u64, usize)> {
    let mut r = Reader::named(WHAT_RECORD, bytes);
    r.magic(RECORD_MAGIC).ok()?;
    let len = r.u32().ok()? as usize;
    let (generation, sequence) = (r.u64().ok()?, r.u64().ok()?);
    (RECORD_OVERHEAD..=RECORD_MAX).contains(&len).then_some((generation, sequence, len))
}

/// Opens the sealed part of a record.
///
/// # Errors
/// [`FormatErrorKind::Unauthentic`] if it is not of this place in this journal; another one for an
/// authentic record that this version does not understand.
pub fn open_record(
    head: &JournalHead,
    cipher: &RecordCipher,
    generation: u64,
    sequence: u64,
    sealed: &[u8],
) -> Result<JournalRecord<'static>, FormatError> {
    let body: Zeroizing<Vec<u8>> = cipher
        .open_record(&aad(head, generation, sequence), sealed)
        .map_err(|_| FormatError::new(WHAT_RECORD, FormatErrorKind::Unauthentic))?;
    JournalRecord::decode(&body)
}

//! The header of a ciphertext file: the file's identity, its size, and the root of the tree that
//! authenticates its chunks.
//!
//! Rules that hold here
//! * The first [`PUBLIC`] bytes are in the clear and are authenticated as associated data; the body
//!   is sealed as one record.
//! * In a signed share author, signer and signature are sealed before the body. The signature is
//!   over the file's attributes (ids, size, version, author, root), not over the bytes of the
//!   header. [`Header::open`] verifies it before it returns anything of the header. A caller of
//!   [`Header::unseal`] gets the header with an unverified [`Claim`], and must verify that itself.
//! * A small file (at most one segment) is sealed *with* its header: one read opens it, one write
//!   creates it.
//! * Unknown versions, suites, flags and types, and reserved bytes that are not zero, are rejected
//!   before anything is decrypted.
//!
//! ```text
//! 0    magic "kithfile"     8
//! 8    version              2
//! 10   suite                1
//! 11   flags                1   bit 0 signed, bit 1 small
//! 12   type                 1   1 = regular file
//! 13   log2 of chunk size   1
//! 14   length of the data   2   small form; else 0
//! 16   epoch                4
//! 20   commitment of the epoch's folder key, first 8 bytes
//! 28   file id             32
//! 60   nonce               24
//! 84   reserved            12
//! 96   tag                 16
//! 112  (signed shares: author 32, signer 32, signature 64)
//!      body               400   sealed
//!      data                     sealed, small form only
//! ```

use super::layout::{HEADER_SIGNED, Layout, SIZE_MAX, SMALL_MAX};
use super::table::{Hash, small_hash};
use crate::crypto::{Plain, Random, RecordCipher, Suite, Tag, labels};
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};
use crate::format::signature::{Authorship, Claim, Sign, TRAILER_LEN};

/// First bytes of every file header.
pub const MAGIC: &[u8; 8] = b"kithfile";
/// Format version that this program reads and writes.
pub const VERSION: u16 = 1;
/// Length of the part in the clear.
pub const PUBLIC: usize = 96;
/// Offset of the nonce. From here on, each piece of 16 bytes differs in any two headers.
pub const NONCE_AT: usize = 60;
/// Offset of the tag.
pub const TAG_AT: usize = PUBLIC;
/// Offset of the sealed part, which is the body, in a signed share behind the trailer.
pub const BODY_AT: usize = TAG_AT + 16;
/// Bytes of the body.
pub const BODY: usize = 400;

const FLAG_SIGNED: u8 = 1;
const FLAG_SMALL: u8 = 2;
const TYPE_FILE: u8 = 1;
const WHAT: &str = "file header";

const _: () = assert!(
    BODY_AT + BODY == super::layout::HEADER && BODY_AT + TRAILER_LEN + BODY == HEADER_SIGNED
);

/// The name of a file when it was last committed: a hint for a check that restores a lost name,
/// never trusted for access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The tag sealed in the file's stored name.
    pub tag: Tag,
    /// Plain name, 1 to 255 bytes; empty if it is not known.
    pub name: Vec<u8>,
}

/// The part in the clear, which can be read without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicHeader {
    /// Cipher suite.
    pub suite: Suite,
    /// Length of the data in the small form, `None` in the large one. It is in the clear because
    /// bytes that a crash leaves after the data do not belong to the file, and must not keep it
    /// from being opened.
    pub small: Option<u16>,
    /// Epoch under which the header is sealed.
    pub epoch: u32,
    /// First 8 bytes of the commitment to that epoch's folder key.
    pub commitment: [u8; 8],
    /// Random id of the file, from which its key derives.
    pub file_id: [u8; 32],
}

/// A header, opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The part in the clear.
    pub public: PublicHeader,
    /// Plain size in bytes.
    pub size: u64,
    /// Counts the commits of this file.
    pub version: u64,
    /// Hash of the table (one chunk) or of the topmost index block; [`super::table::HOLE`] if
    /// nothing was written, and in the small form.
    pub root: Hash,
    /// Oldest epoch under which a chunk of the file may still be sealed.
    pub oldest_epoch: u32,
    /// The file's name at its last commit.
    pub hint: Hint,
}

/// A header, the data of a small file, and in a signed share the verified authorship.
pub type OpenedParts = (Header, Plain, Option<Authorship>);

/// A header, the data of a small file, and in a signed share a claim that is still to be verified.
pub type UnsealedParts = (Header, Plain, Option<Claim>);

/// The parameters that the headers of one share and epoch have in common.
pub struct HeaderContext<'a> {
    /// Share id.
    pub share: &'a [u8; 32],
    /// Arithmetic of the share.
    pub layout: Layout,
    /// Cipher under the epoch's header key.
    pub cipher: &'a RecordCipher,
}

impl PublicHeader {
    /// Reads the part in the clear; `layout` is the share's. `bytes` may be longer.
    pub fn decode(layout: &Layout, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named(WHAT, bytes);
        r.magic(MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        let flags = r.u8()?;
        if flags & !(FLAG_SIGNED | FLAG_SMALL) != 0 || (flags & FLAG_SIGNED != 0) != layout.signed()
        {
            return Err(r.error(FormatErrorKind::Flags(flags as u32)));
        }
        if r.u8()? != TYPE_FILE || r.u8()? != layout.chunk_log2() {
            return Err(r.error(FormatErrorKind::Range));
        }
        let small_len = r.u16()?;
        if small_len as u64 > SMALL_MAX || (flags & FLAG_SMALL == 0 && small_len != 0) {
            return Err(r.error(FormatErrorKind::Range));
        }
        let epoch = r.u32()?;
        let commitment = r.array()?;
        let file_id = r.array()?;
        r.bytes(24)?;
        r.zeros(12)?;
        Ok(PublicHeader {
            suite,
            small: (flags & FLAG_SMALL != 0).then_some(small_len),
            epoch,
            commitment,
            file_id,
        })
    }

    /// Writes the part in the clear, with room for the rest and `data_len` bytes.
    fn encode(&self, layout: &Layout, nonce: &[u8; 24], data_len: usize) -> Writer {
        let flags = if layout.signed() { FLAG_SIGNED } else { 0 }
            | if self.small.is_some() { FLAG_SMALL } else { 0 };
        let mut w = Writer::with_capacity(layout.header() + data_len);
        w.bytes(MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .u8(flags)
            .u8(TYPE_FILE)
            .u8(layout.chunk_log2())
            .u16(self.small.unwrap_or(0));
        w.u32(self.epoch).bytes(&self.commitment).bytes(&self.file_id).bytes(nonce).zeros(12);
        w
    }
}

fn aad(share: &[u8; 32], public: &[u8]) -> [u8; 4 + 32 + PUBLIC] {
    let mut aad = [0; 4 + 32 + PUBLIC];
    aad[..4].copy_from_slice(b"KHDR");
    aad[4..36].copy_from_slice(share);
    aad[36..].copy_from_slice(public);
    aad
}

impl Header {
    /// Seals the header, in the small form with `data` (whose length is `size`), with a fresh
    /// nonce. Returns `header + data` bytes. `sign` is required in a signed share, and only there.
    pub fn seal(
        &self,
        context: &HeaderContext,
        data: &[u8],
        sign: Option<Sign<'_>>,
        random: &dyn Random,
    ) -> Vec<u8> {
        debug_assert_eq!(data.len(), self.public.small.unwrap_or(0) as usize);
        debug_assert_eq!(sign.is_some(), context.layout.signed());
        let mut nonce = [0; 24];
        random.fill(&mut nonce);
        let mut w = self.public.encode(&context.layout, &nonce, data.len());
        let aad = aad(context.share, w.as_slice());
        w.zeros(BODY_AT - TAG_AT);
        if let Some(sign) = sign {
            w.bytes(&sign.trailer(
                &labels::FILE_SIGNATURE,
                &self.signed_message(context, &sign.by.author, data),
            ));
        }
        let body_at = w.len();
        w.u64(self.size).u64(self.version).bytes(&self.root).u32(self.oldest_epoch).zeros(12);
        w.bytes(&self.hint.tag).u8(self.hint.name.len() as u8).bytes(&self.hint.name);
        w.zeros(body_at + BODY - w.len()).bytes(data);
        let mut out = w.into_vec();
        let tag = context.cipher.seal(&nonce, &aad, &mut out[BODY_AT..]);
        out[TAG_AT..BODY_AT].copy_from_slice(&tag);
        out
    }

    /// Returns the message that the signer of a file signs.
    fn signed_message(&self, context: &HeaderContext, author: &[u8; 32], data: &[u8]) -> Vec<u8> {
        let flags = FLAG_SIGNED | if self.public.small.is_some() { FLAG_SMALL } else { 0 };
        let root = if self.public.small.is_some() { small_hash(data) } else { self.root };
        let mut w = Writer::with_capacity(3 * 32 + 64);
        w.bytes(context.share)
            .bytes(&self.public.file_id)
            .u8(TYPE_FILE)
            .u8(self.public.suite.as_byte())
            .u8(flags);
        w.u8(context.layout.chunk_log2())
            .u32(self.public.epoch)
            .bytes(&self.public.commitment)
            .u64(self.size)
            .u64(self.version);
        w.bytes(author).bytes(&root);
        w.into_vec()
    }

    /// Opens a header. `bytes` begins at the start of the file and contains at least the header and
    /// in the small form the data; further bytes are ignored. Returns the data of a small file, and
    /// in a signed share its verified authorship. The caller decides whether the signer may write.
    pub fn open(context: &HeaderContext, bytes: &[u8]) -> Result<OpenedParts, FormatError> {
        let (header, data, claim) = Self::unseal(context, bytes)?;
        Ok((header, data, claim.map(|claim| claim.verify()).transpose()?))
    }

    /// Opens a header as [`Header::open`] does, but leaves the signature to the caller. Until it is
    /// verified, all of this is a claim that anyone with the folder key could have made, and every
    /// reader has that key.
    pub fn unseal(context: &HeaderContext, bytes: &[u8]) -> Result<UnsealedParts, FormatError> {
        let public = PublicHeader::decode(&context.layout, bytes)?;
        let fail = |kind| Err(FormatError::new(WHAT, kind));
        let Some(sealed) = bytes.get(BODY_AT..) else { return fail(FormatErrorKind::Truncated) };
        let nonce: &[u8; 24] = bytes[60..84].try_into().expect("24 bytes");
        let tag: &[u8; 16] = bytes[TAG_AT..BODY_AT].try_into().expect("16 bytes");
        let trailer = if context.layout.signed() { TRAILER_LEN } else { 0 };
        let end = trailer + BODY + public.small.unwrap_or(0) as usize;
        let Some(sealed) = sealed.get(..end) else { return fail(FormatErrorKind::Truncated) };
        let mut body = Plain::new(sealed.to_vec());
        if context
            .cipher
            .open(nonce, &aad(context.share, &bytes[..PUBLIC]), &mut body, tag)
            .is_err()
        {
            return fail(FormatErrorKind::Unauthentic);
        }
        let mut r = Reader::named(WHAT, &body[trailer..trailer + BODY]);
        let size = r.u64()?;
        let version = r.u64()?;
        let root = r.array()?;
        let oldest_epoch = r.u32()?;
        r.zeros(12)?;
        let tag = r.array()?;
        let name_len = r.u8()? as usize;
        let name = r.bytes(name_len)?.to_vec();
        r.zeros(r.remaining())?;
        let data = Plain::new(body[trailer + BODY..].to_vec());
        let fits = if public.small.is_some() {
            size == data.len() as u64
        } else {
            (SMALL_MAX + 1..=SIZE_MAX).contains(&size)
        };
        if !fits {
            return fail(FormatErrorKind::Range);
        }
        let header = Header { public, size, version, root, oldest_epoch, hint: Hint { tag, name } };
        let message = |author: &[u8; 32]| header.signed_message(context, author, &data);
        let claim = match trailer {
            0 => None,
            _ => Some(Claim::decode(WHAT, &labels::FILE_SIGNATURE, &body[..trailer], message)?),
        };
        Ok((header, data, claim))
    }
}

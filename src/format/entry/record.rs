//! The sealed records of directory entries: symbolic links, extended attributes, junctions, rename
//! evidence.
//!
//! Rules that hold here
//! * Each record begins with version, suite, flags (1: signed), epoch and 16 random bytes, its id,
//!   in the clear. These bytes, the share, the kind and the object that the record is bound to are
//!   associated data.
//! * Symbolic links and attributes are bound to no place, so link and rename leave them unchanged.
//! * Junctions are bound to their place. Rename evidence is bound to nothing: it is named by the
//!   hash of its bytes. Its id and nonce are derived, not random, so that the same rename leaves
//!   the same bytes.
//! * The signed message of a target can be the same as that of a reference. A reader refuses such a
//!   target: see [`reads_as_reference`].
//! * In a signed share, every record that determines a name or a destination is signed: all kinds
//!   except attributes. A junction is signed in any share.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::crypto::{Label, RECORD_OVERHEAD, Random, RecordCipher, Suite, labels};
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};
use crate::format::signature::{Authorship, Claim, Sign, TRAILER_LEN};

/// Record version that this program reads and writes.
pub const VERSION: u8 = 1;
/// Bytes before the sealed part, in the clear: version, suite, flags, reserved, epoch, id.
pub const CLEAR: usize = 4 + 4 + 16;
/// Bytes that sealing adds to the contents of a record.
pub const OVERHEAD: usize = CLEAR + RECORD_OVERHEAD;
/// Longest symbolic link target.
pub const TARGET_MAX: usize = 4095;
/// Longest target whose record fits the store's own symbolic link in a share that is not signed; a
/// longer one is stored in a control file.
pub const TARGET_INLINE_MAX: usize = 4095 / 4 * 3 - OVERHEAD;
/// As [`TARGET_INLINE_MAX`], in a signed share.
pub const TARGET_INLINE_MAX_SIGNED: usize = TARGET_INLINE_MAX - TRAILER_LEN;
/// First byte of a link text, or of a blob of attributes, that refers to a control file. No record
/// begins with it.
pub const OVERFLOW: u8 = b'+';
/// Longest list of attributes that fits the store's own attribute (the kernel's limit for one
/// value). A longer list, or one that the store has no space for, is stored in a control file.
pub const XATTRS_MAX: usize = 65536 - OVERHEAD;
/// Longest list of attributes.
pub const XATTRS_LONG_MAX: usize = 1 << 20;

/// The kinds of record; the word is part of the associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Target of a symbolic link.
    Symlink,
    /// Target of a symbolic link that is stored in a control file.
    LongSymlink,
    /// Extended attributes of an inode.
    Xattrs,
    /// The share whose root is at a place.
    Junction,
    /// Rename evidence.
    Moved,
}

/// Flag of a record that ends with author, signer and signature.
const FLAG_SIGNED: u8 = 1;

impl RecordKind {
    fn word(self) -> &'static [u8; 4] {
        match self {
            RecordKind::Symlink => b"KSYM",
            RecordKind::LongSymlink => b"KLSY",
            RecordKind::Xattrs => b"KXAT",
            RecordKind::Junction => b"KJNC",
            RecordKind::Moved => b"KMOV",
        }
    }

    fn what(self) -> &'static str {
        match self {
            RecordKind::Symlink | RecordKind::LongSymlink => "symbolic link",
            RecordKind::Xattrs => "extended attributes",
            RecordKind::Junction => "junction",
            RecordKind::Moved => "rename evidence",
        }
    }

    /// Returns the label under which a record of this kind is signed; `None` if it is never signed.
    fn label(self) -> Option<&'static Label> {
        match self {
            RecordKind::Symlink | RecordKind::LongSymlink => Some(&labels::SYMLINK_SIGNATURE),
            RecordKind::Xattrs => None,
            RecordKind::Junction => Some(&labels::JUNCTION_SIGNATURE),
            RecordKind::Moved => Some(&labels::MOVED_SIGNATURE),
        }
    }

    /// Returns whether a record of this kind is signed, given whether its share is.
    pub fn is_signed(self, share_is_signed: bool) -> bool {
        self == RecordKind::Junction || share_is_signed && self.label().is_some()
    }
}

/// The parameters that the records of one share and epoch have in common.
pub struct RecordContext<'a> {
    /// Share id.
    pub share: &'a [u8; 32],
    /// Suite of the share.
    pub suite: Suite,
    /// Whether the share is signed.
    pub signed: bool,
    /// Epoch of `cipher`.
    pub epoch: u32,
    /// Cipher under the epoch's records key.
    pub cipher: &'a RecordCipher,
}

fn aad(share: &[u8; 32], kind: RecordKind, clear: &[u8], bound: &[u8]) -> Vec<u8> {
    [kind.word(), &share[..], clear, bound].concat()
}

/// Returns the epoch of a record, to choose the key with.
pub fn epoch_of(kind: RecordKind, bytes: &[u8]) -> Result<u32, FormatError> {
    let mut r = Reader::named(kind.what(), bytes);
    let version = r.u8()?;
    if version != VERSION {
        return Err(r.error(FormatErrorKind::Version(version as u16)));
    }
    let suite = r.u8()?;
    if Suite::from_byte(suite).is_none() {
        return Err(r.error(FormatErrorKind::Suite(suite)));
    }
    let flags = r.u8()?;
    if flags & !FLAG_SIGNED != 0 {
        return Err(r.error(FormatErrorKind::Flags(flags as u32)));
    }
    r.zeros(1)?;
    r.u32()
}

/// Returns the message that the signer of a record signs.
fn message(aad: &[u8], author: &[u8; 32], plain: &[u8]) -> Vec<u8> {
    [aad, author, plain].concat()
}

/// Length of a reference to a control file: the bytes that a record holds in place of a target or a
/// list of attributes that does not fit.
pub const REFERENCE_LEN: usize = 16;

/// Returns whether the message to sign for a link's target could also be parsed as the message for
/// a reference: `+`, its author, 16 bytes. Anyone with the folder key could then present a member's
/// signed reference as such a target. If the author is the signer it cannot be a reference: the
/// author's key would have to consist of `+` bytes only.
#[must_use]
pub fn reads_as_reference(kind: RecordKind, bound: &[u8], by: &Authorship, plain: &[u8]) -> bool {
    let is_target = kind == RecordKind::Symlink && bound.is_empty();
    is_target
        && plain.len() == REFERENCE_LEN + 1
        && by.author[0] == OVERFLOW
        && by.author != by.signer
}

impl RecordContext<'_> {
    /// Seals `plain` as a record of `kind`, bound to `bound`, under an id and a nonce from `random`.
    /// `sign` must be given exactly if [`RecordKind::is_signed`].
    pub fn seal(
        &self,
        kind: RecordKind,
        bound: &[u8],
        plain: &[u8],
        sign: Option<Sign<'_>>,
        random: &dyn Random,
    ) -> Vec<u8> {
        debug_assert_eq!(sign.is_some(), kind.is_signed(self.signed));
        let mut id = [0; 16];
        random.fill(&mut id);
        let flags = if sign.is_some() { FLAG_SIGNED } else { 0 };
        let mut w = Writer::with_capacity(OVERHEAD + plain.len() + TRAILER_LEN);
        w.u8(VERSION).u8(self.suite.as_byte()).u8(flags).u8(0).u32(self.epoch).bytes(&id);
        let aad = aad(self.share, kind, w.as_slice(), bound);
        let sealed = match (sign, kind.label()) {
            (Some(sign), Some(label)) => {
                let trailer = sign.trailer(label, &message(&aad, &sign.by.author, plain));
                let whole = Zeroizing::new([plain, &trailer].concat());
                self.cipher.seal_record(random, &aad, &whole)
            }
            _ => self.cipher.seal_record(random, &aad, plain),
        };
        w.bytes(&sealed);
        w.into_vec()
    }

    /// Opens a record. If it is signed, the signature is verified. The caller decides whether its
    /// signer may write.
    pub fn open(
        &self,
        kind: RecordKind,
        bound: &[u8],
        bytes: &[u8],
    ) -> Result<(Zeroizing<Vec<u8>>, Option<Authorship>), FormatError> {
        let fail = |kind_| FormatError::new(kind.what(), kind_);
        let epoch = epoch_of(kind, bytes)?;
        let flags = if kind.is_signed(self.signed) { FLAG_SIGNED } else { 0 };
        if bytes[2] != flags {
            return Err(fail(FormatErrorKind::Flags(bytes[2] as u32)));
        }
        if epoch != self.epoch || bytes[1] != self.suite.as_byte() {
            return Err(fail(FormatErrorKind::Unauthentic));
        }
        let (clear, sealed) =
            bytes.split_at_checked(CLEAR).ok_or(fail(FormatErrorKind::Truncated))?;
        let aad = aad(self.share, kind, clear, bound);
        let mut plain = self
            .cipher
            .open_record(&aad, sealed)
            .map_err(|_| fail(FormatErrorKind::Unauthentic))?;
        let Some(label) = kind.label().filter(|_| flags == FLAG_SIGNED) else {
            return Ok((plain, None));
        };
        let end = plain.len().checked_sub(TRAILER_LEN).ok_or(fail(FormatErrorKind::Truncated))?;
        let by = Claim::decode(kind.what(), label, &plain[end..], |author| {
            message(&aad, author, &plain[..end])
        })?
        .verify()?;
        plain.truncate(end);
        if reads_as_reference(kind, bound, &by, &plain) {
            return Err(fail(FormatErrorKind::Unauthentic));
        }
        Ok((plain, Some(by)))
    }
}

/// Returns the text of the store's link for a sealed target.
pub fn link_text(record: &[u8]) -> Vec<u8> {
    URL_SAFE_NO_PAD.encode(record).into_bytes()
}

/// Returns the record in the text of the store's link.
pub fn link_record(text: &[u8]) -> Result<Vec<u8>, FormatError> {
    let fail = FormatError::new("symbolic link", FormatErrorKind::Encoding);
    URL_SAFE_NO_PAD.decode(text).map_err(|_| fail)
}

/// Returns the length of the target whose link text is `len` bytes long. The text must not begin
/// with [`OVERFLOW`].
pub fn link_target_len(len: u64, signed: bool) -> u64 {
    (len * 3 / 4).saturating_sub((OVERHEAD + if signed { TRAILER_LEN } else { 0 }) as u64)
}

/// Extended attributes of an inode: names with their namespace, and values, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattrs(pub std::collections::BTreeMap<Vec<u8>, Vec<u8>>);

impl Xattrs {
    /// Returns the bytes of the list: for each attribute u16 length of the name, u32 length of the
    /// value, name, value.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        for (name, value) in &self.0 {
            w.u16(name.len() as u16).u32(value.len() as u32).bytes(name).bytes(value);
        }
        w.into_vec()
    }

    /// Reads what [`Xattrs::encode`] writes; names must ascend.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("extended attributes", bytes);
        let mut map = std::collections::BTreeMap::new();
        while r.remaining() > 0 {
            let name_len = r.u16()? as usize;
            let value_len = r.u32()? as usize;
            let name = r.bytes(name_len)?.to_vec();
            let value = r.bytes(value_len)?.to_vec();
            if map.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(r.error(FormatErrorKind::Order));
            }
            map.insert(name, value);
        }
        Ok(Xattrs(map))
    }
}

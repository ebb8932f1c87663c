//! Names of directory entries: from plain bytes to the stored name and back.
//!
//! Rules that hold here
//! * A stored name is base64url (no padding) of HCTR2(plain ‖ zero bytes), tweaked by the
//!   directory's id: at least 8 zero bytes, at least 16 bytes in all. The zero bytes reveal a
//!   changed name.
//! * A name of more than [`SHORT_MAX`] bytes is stored as `=` and the base64url of its keyed hash;
//!   a sidecar holds the sealed name.
//! * A name whose first byte is outside base64url is a control file, unless that byte is `=`.
//! * A sync tool's conflict copy is shown with its suffix, never hidden; only the grammars of known
//!   tools are recognized.

use base64ct::{Base64UrlUnpadded, Encoding};

use crate::crypto::{Hctr2, NamesKey, Tweak, long_name_hash};

/// Longest plain name.
pub const NAME_MAX: usize = 255;
/// Longest plain name that is stored in the entry itself: base64url of 191 bytes is 255.
pub const SHORT_MAX: usize = 183;
/// Zero bytes behind a name.
pub const ZEROS: usize = 8;
/// First byte of a long-named entry.
pub const LONG: u8 = b'=';
/// First bytes of the sidecar of a long-named entry.
pub const SIDECAR: &[u8] = b"+name-";
/// The record of a directory that was renamed.
pub const DIRECTORY_RECORD: &[u8] = b"+dir";
const HASH_TEXT: usize = 43;
/// Letters of the shortest stored name: those of 16 bytes.
const SHORTEST_TEXT: usize = 22;

/// How a plain name is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    /// In the entry itself.
    Short(Vec<u8>),
    /// As a hash, with the sealed name in a sidecar.
    Long {
        /// Name of the entry.
        entry: Vec<u8>,
        /// Name of the control file that holds the sealed name.
        sidecar: Vec<u8>,
        /// The keyed hash, which the sidecar's seal binds.
        hash: [u8; 32],
    },
}

impl StoredName {
    /// Returns the name of the directory entry.
    pub fn entry(&self) -> &[u8] {
        match self {
            StoredName::Short(entry) | StoredName::Long { entry, .. } => entry,
        }
    }
}

/// The meaning of a stored name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A name, with a conflict suffix if it has one.
    Plain(Vec<u8>),
    /// A long-named entry: the sidecar holds the plain name.
    Long {
        /// Name of the sidecar.
        sidecar: Vec<u8>,
        /// The hash that the entry holds.
        hash: [u8; 32],
        /// Conflict suffix, often empty.
        suffix: Vec<u8>,
    },
    /// A control file of kithfs.
    Control,
    /// Not a name of this directory under this key.
    Foreign,
}

/// The names of one directory under one epoch's key.
pub struct NameCipher<'a> {
    hctr2: &'a Hctr2,
    key: &'a NamesKey,
    directory: &'a [u8; 32],
    tweak: Tweak,
}

impl<'a> NameCipher<'a> {
    /// Names of the directory with the id `directory`.
    pub fn new(hctr2: &'a Hctr2, key: &'a NamesKey, directory: &'a [u8; 32]) -> Self {
        NameCipher { hctr2, key, directory, tweak: hctr2.tweak(directory) }
    }

    /// Returns the stored name; `None` if `name` is empty, too long, `.`, `..` or contains `/` or
    /// NUL.
    pub fn encode(&self, name: &[u8]) -> Option<StoredName> {
        if !is_valid(name) {
            return None;
        }
        if name.len() > SHORT_MAX {
            let hash = long_name_hash(self.key, self.directory, name);
            let text = Base64UrlUnpadded::encode_string(&hash);
            return Some(StoredName::Long {
                entry: [&[LONG], text.as_bytes()].concat(),
                sidecar: [SIDECAR, text.as_bytes()].concat(),
                hash,
            });
        }
        let mut buf = name.to_vec();
        buf.resize((name.len() + ZEROS).max(16), 0);
        self.hctr2.encrypt(&self.tweak, &mut buf).expect("16 bytes or more");
        Some(StoredName::Short(Base64UrlUnpadded::encode_string(&buf).into_bytes()))
    }

    /// Returns the meaning of `stored` in this directory.
    pub fn decode(&self, stored: &[u8]) -> Decoded {
        match stored.first() {
            None => return Decoded::Foreign,
            Some(&LONG) => {
                let Some((text, suffix)) = stored[1..].split_at_checked(HASH_TEXT) else {
                    return Decoded::Foreign;
                };
                let mut hash = [0; 32];
                let decoded =
                    Base64UrlUnpadded::decode(text, &mut hash).is_ok_and(|h| h.len() == 32);
                if !decoded || !(suffix.is_empty() || is_conflict_suffix(suffix)) {
                    return Decoded::Foreign;
                }
                return Decoded::Long {
                    sidecar: [SIDECAR, text].concat(),
                    hash,
                    suffix: suffix.to_vec(),
                };
            }
            Some(b) if !is_alphabet(*b) => return Decoded::Control,
            _ => {}
        }
        if let Some(plain) = self.decode_text(stored) {
            return Decoded::Plain(plain);
        }
        for at in conflict_splits(stored) {
            let (text, suffix) = stored.split_at(at);
            if let Some(mut plain) = self.decode_text(text)
                && plain.len() + suffix.len() <= NAME_MAX
            {
                plain.extend_from_slice(suffix);
                return Decoded::Plain(plain);
            }
        }
        Decoded::Foreign
    }

    /// Decodes each of `stored` as [`NameCipher::decode`] does, but faster for the many names of a
    /// listing.
    pub fn decode_many<'n>(&self, stored: impl IntoIterator<Item = &'n [u8]>) -> Vec<Decoded> {
        let mut sealed: Vec<(&[u8], Option<Vec<u8>>)> =
            stored.into_iter().map(|name| (name, sealed_text(name))).collect();
        let mut bufs: Vec<&mut [u8]> =
            sealed.iter_mut().filter_map(|(_, buf)| buf.as_deref_mut()).collect();
        self.hctr2.decrypt_many(&self.tweak, &mut bufs).expect("16 bytes or more");
        // Names that do not decode as a plain short name take the slow path.
        sealed
            .into_iter()
            .map(|(name, buf)| {
                buf.and_then(without_zeros).map_or_else(|| self.decode(name), Decoded::Plain)
            })
            .collect()
    }

    fn decode_text(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut buf = sealed_text(text)?;
        self.hctr2.decrypt(&self.tweak, &mut buf).ok()?;
        without_zeros(buf)
    }

    /// Returns the stored names that a conflict copy of the plain name `name` may have: the prefix
    /// encoded, the suffix unchanged. Empty if the name does not look like one.
    pub fn conflict_candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let mut candidates = Vec::new();
        for at in conflict_splits(name) {
            if let Some(stored) = self.encode(&name[..at]) {
                candidates.push([stored.entry(), &name[at..]].concat());
            }
        }
        candidates
    }
}

/// Returns the bytes that a stored short name encodes, or `None` if it cannot be one.
fn sealed_text(text: &[u8]) -> Option<Vec<u8>> {
    let buf = Base64UrlUnpadded::decode_vec(std::str::from_utf8(text).ok()?).ok()?;
    (16..=SHORT_MAX + ZEROS).contains(&buf.len()).then_some(buf)
}

/// Removes the zero bytes that were sealed with a name. Returns `None` if the name was changed.
fn without_zeros(mut buf: Vec<u8>) -> Option<Vec<u8>> {
    let end = buf.iter().rposition(|b| *b != 0)? + 1;
    let zeros = buf.len() - end;
    // One name has one stored form: more than 8 zero bytes only if 16 bytes require them.
    if zeros < ZEROS || (buf.len() > 16 && zeros != ZEROS) || !is_valid(&buf[..end]) {
        return None;
    }
    buf.truncate(end);
    Some(buf)
}

/// Returns whether `name` is allowed as the name of a directory entry.
pub fn is_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| *b == b'/' || *b == 0)
}

/// Returns whether a stored name is a control file.
pub fn is_control(stored: &[u8]) -> bool {
    stored.first().is_some_and(|b| !is_alphabet(*b) && *b != LONG)
}

/// Returns whether a stored name belongs to no vault: sync tools and file managers leave such files
/// (`.stfolder`, `.DS_Store`).
pub fn is_of_others(stored: &[u8]) -> bool {
    is_control(stored) && !stored.starts_with(b"+")
}

/// Returns the part that the stored name of an entry and those of its conflict copies have in
/// common: a stored name itself contains no dot and no blank.
pub fn without_suffix(stored: &[u8]) -> &[u8] {
    stored.split(|b| matches!(b, b'.' | b' ')).next().unwrap_or(stored)
}

/// Returns whether a stored name that does not decode in this directory may be a name of another
/// directory, and so is not a foreign file.
pub fn may_be_sealed(stored: &[u8]) -> bool {
    let text = without_suffix(stored);
    let text = text.strip_prefix(b"=").unwrap_or(text);
    text.len() >= SHORTEST_TEXT && text.iter().all(|b| is_alphabet(*b))
}

fn is_alphabet(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
}

/// Returns whether a stored name is that of a sync tool's conflict copy of an entry.
pub fn is_conflict_copy(stored: &[u8]) -> bool {
    let suffix = &stored[without_suffix(stored).len()..];
    may_be_sealed(stored) && is_conflict_suffix(suffix)
}

/// Returns whether a plain name ends with a possible suffix of a sync tool.
pub fn may_be_copy(name: &[u8]) -> bool {
    conflict_splits(name).next().is_some()
}

/// Grammars of conflict suffixes: Syncthing's `.sync-conflict-...`, Dropbox's, Nextcloud's and
/// others' ` (... conflict...)`, and the plain ` (2)` of copies.
fn is_conflict_suffix(suffix: &[u8]) -> bool {
    if suffix.starts_with(b".sync-conflict-") {
        return true;
    }
    let Some(inner) = suffix.strip_prefix(b" (").and_then(|s| s.strip_suffix(b")")) else {
        return false;
    };
    let lower = inner.to_ascii_lowercase();
    lower.windows(8).any(|w| w == b"conflict")
        || (!inner.is_empty() && inner.iter().all(u8::is_ascii_digit))
}

/// Returns the positions at which `name` may be split into a prefix and a conflict suffix, in
/// ascending order.
fn conflict_splits(name: &[u8]) -> impl Iterator<Item = usize> + '_ {
    (1..name.len())
        .filter(|at| matches!(name[*at], b'.' | b' ') && is_conflict_suffix(&name[*at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_decoded_as_its_names_are_one_by_one() {
        let (key, directory) = (NamesKey::from_bytes([1; 32]), [2; 32]);
        let hctr2 = Hctr2::new(&key);
        let cipher = NameCipher::new(&hctr2, &key, &directory);
        let mut stored: Vec<Vec<u8>> = (1..=NAME_MAX)
            .map(|len| cipher.encode(&vec![b'n'; len]).expect("a valid name").entry().to_vec())
            .collect();
        let conflict = [&stored[40][..], b".sync-conflict-1"].concat();
        let mut changed = stored[30].clone();
        changed[3] ^= 1;
        let cut = stored[20][1..].to_vec();
        stored.extend([
            conflict,
            changed,
            cut,
            b"+dir".to_vec(),
            Vec::new(),
            vec![0xff; 30],
            b"AAAA".to_vec(),
            vec![b'A'; 255],
        ]);
        let many = cipher.decode_many(stored.iter().map(Vec::as_slice));
        let single: Vec<Decoded> = stored.iter().map(|name| cipher.decode(name)).collect();
        assert_eq!(many, single);
        let count =
            |what: fn(&Decoded) -> bool| many.iter().filter(|decoded| what(decoded)).count();
        assert_eq!(count(|d| matches!(d, Decoded::Plain(_))), SHORT_MAX + 1);
        assert_eq!(count(|d| matches!(d, Decoded::Long { .. })), NAME_MAX - SHORT_MAX);
        // A name that does not begin as base64url is a control name, however odd it is.
        assert_eq!((count(|d| *d == Decoded::Control), count(|d| *d == Decoded::Foreign)), (2, 5));
    }
}

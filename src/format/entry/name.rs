//! Names of directory entries: from plain bytes to the stored name and back.
//!
//! Rules that hold here
//! * A stored name is the text of HCTR2(tag of the directory ‖ plain ‖ zero bytes): at least 8 zero
//!   bytes, at least 24 bytes in all. The zero bytes reveal a changed name. The keys of the share
//!   alone open it, wherever the entry is.
//! * Where that text would be longer than the share allows, the entry is `=` and the text of the
//!   hash of the sealed name, and a control file at the share's root holds the sealed name.
//! * The text ends before the first byte that is not in its alphabet. The rest is the suffix of a
//!   sync tool's conflict copy.
//! * A name whose first byte is neither a letter nor `=` is a control file, and so are the few names
//!   in `OF_OTHERS`.

use super::text::{self, HASH_LETTERS, is_letter};
use crate::crypto::{Hctr2, TAG_LEN, Tag, Tweak};

/// Longest plain name.
pub const NAME_MAX: usize = 255;
/// Zero bytes behind a name.
pub const ZEROS: usize = 8;
/// Least number of bytes of a sealed name.
pub const SEALED_MIN: usize = 24;
/// Greatest number of bytes of a sealed name.
pub const SEALED_MAX: usize = TAG_LEN + NAME_MAX + ZEROS;
/// First byte of a long-named entry.
pub const LONG: u8 = b'=';
/// Names that file servers and file managers give to files of their own in any directory, and
/// whose first byte is a letter. All are too short to be the name of an entry.
const OF_OTHERS: [&str; 6] =
    ["@eaDir", "@Recycle", "desktop.ini", "lost+found", "System Volume Information", "Thumbs.db"];
/// The directory of the sealed long names, at the root of a share.
pub const LONG_DIRECTORY: &[u8] = b"+long";

/// How a plain name is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    /// In the entry itself.
    Short(Vec<u8>),
    /// As a hash, with the sealed name in a control file.
    Long {
        /// Name of the entry.
        entry: Vec<u8>,
        /// The hash of `sealed`.
        hash: [u8; 32],
        /// Contents of the control file.
        sealed: Vec<u8>,
    },
}

impl StoredName {
    /// Returns the name of the directory entry alone.
    pub fn into_entry(self) -> Vec<u8> {
        match self {
            StoredName::Short(entry) | StoredName::Long { entry, .. } => entry,
        }
    }

    /// Returns the name of the directory entry.
    pub fn entry(&self) -> &[u8] {
        match self {
            StoredName::Short(entry) | StoredName::Long { entry, .. } => entry,
        }
    }
}

/// The parts of a stored name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// A sealed name and the suffix of a conflict copy, often empty.
    Short {
        /// The sealed name.
        sealed: Vec<u8>,
        /// The suffix as stored.
        suffix: &'a [u8],
    },
    /// A long-named entry: a control file holds the sealed name.
    Long {
        /// The hash of the sealed name.
        hash: [u8; 32],
        /// The suffix as stored.
        suffix: &'a [u8],
    },
    /// A control file.
    Control,
    /// Not a name of an entry.
    Foreign,
}

/// The contents of a sealed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Tag of the directory in which the name was created.
    pub tag: Tag,
    /// Plain name.
    pub name: Vec<u8>,
}

/// Takes a stored name apart; `longest` is the share's longest stored name without a suffix.
pub fn parse(stored: &[u8], longest: usize) -> Parts<'_> {
    let (text, suffix) = split(stored);
    if let Some(hash) = text.strip_prefix(&[LONG]) {
        return match text::decode_hash(hash) {
            Some(hash) => Parts::Long { hash, suffix },
            None => Parts::Foreign,
        };
    }
    if is_control(stored) {
        return Parts::Control;
    }
    match text::decode(text).filter(|sealed| sealed.len() >= SEALED_MIN) {
        Some(sealed) if text.len() <= longest => Parts::Short { sealed, suffix },
        _ => Parts::Foreign,
    }
}

/// Splits a stored name into its text, with a leading `=` if there is one, and the suffix.
fn split(stored: &[u8]) -> (&[u8], &[u8]) {
    let is_text = |(at, b): (usize, &u8)| is_letter(*b) || (at == 0 && *b == LONG);
    let end = stored.iter().enumerate().position(|part| !is_text(part));
    stored.split_at(end.unwrap_or(stored.len()))
}

/// Returns the part that the stored name of an entry and those of its conflict copies have in
/// common.
pub fn without_suffix(stored: &[u8]) -> &[u8] {
    split(stored).0
}

/// The names of one share under one epoch's key.
pub struct NameCipher<'a> {
    hctr2: &'a Hctr2,
    tweak: &'a Tweak,
    longest: usize,
}

impl<'a> NameCipher<'a> {
    /// Creates the cipher; `longest` is the share's longest stored name without a suffix.
    pub fn new(hctr2: &'a Hctr2, longest: usize) -> Self {
        NameCipher { hctr2, tweak: hctr2.untweaked(), longest }
    }

    /// Returns the stored name of `name` for the directory with the tag `tag`; `None` if `name` is
    /// empty, too long, `.`, `..` or contains `/` or NUL.
    pub fn encode(&self, tag: &Tag, name: &[u8]) -> Option<StoredName> {
        if !is_valid(name) {
            return None;
        }
        let len = (TAG_LEN + name.len() + ZEROS).max(SEALED_MIN);
        let mut sealed = Vec::with_capacity(len);
        sealed.extend_from_slice(tag);
        sealed.extend_from_slice(name);
        sealed.resize(len, 0);
        self.hctr2.encrypt(self.tweak, &mut sealed).expect("16 bytes or more");
        if text::letters(sealed.len()) <= self.longest {
            return Some(StoredName::Short(text::encode(&sealed)));
        }
        let hash = *blake3::hash(&sealed).as_bytes();
        Some(StoredName::Long { entry: [&[LONG], &text::encode(&hash)[..]].concat(), hash, sealed })
    }

    /// Opens a sealed name; `None` if it was not sealed under this key.
    pub fn open(&self, sealed: &[u8]) -> Option<Opened> {
        let mut buf = sealed.to_vec();
        self.hctr2.decrypt(self.tweak, &mut buf).ok()?;
        opened(buf)
    }

    /// Opens each of `sealed` as [`NameCipher::open`] does, but faster for the many names of a
    /// listing. All have at least [`SEALED_MIN`] bytes.
    pub fn open_many(&self, mut sealed: Vec<Vec<u8>>) -> Vec<Option<Opened>> {
        let mut parts: Vec<&mut [u8]> = sealed.iter_mut().map(Vec::as_mut_slice).collect();
        self.hctr2.decrypt_many(self.tweak, &mut parts).expect("16 bytes or more");
        sealed.into_iter().map(opened).collect()
    }
}

/// Returns the contents of a decrypted name; `None` if it was changed, or if it is not encoded in
/// the only valid way.
fn opened(mut buf: Vec<u8>) -> Option<Opened> {
    let (tag, rest) = buf.split_first_chunk()?;
    let (tag, end) = (*tag, rest.iter().rposition(|b| *b != 0)? + 1);
    let is_padded = buf.len() == (TAG_LEN + end + ZEROS).max(SEALED_MIN);
    if !is_padded || !is_valid(&rest[..end]) {
        return None;
    }
    buf.truncate(TAG_LEN + end);
    buf.drain(..TAG_LEN);
    Some(Opened { tag, name: buf })
}

/// Returns whether these may be the contents of the control file of a long name: its hash is
/// `hash`, and the entry itself has no room for them.
pub fn is_long(sealed: &[u8], hash: &[u8; 32], longest: usize) -> bool {
    text::letters(sealed.len()) > longest
        && sealed.len() >= SEALED_MIN
        && blake3::hash(sealed).as_bytes() == hash
}

/// Returns where the sealed name with this hash is, in [`LONG_DIRECTORY`]: directory and file. The
/// directory is the first byte in hexadecimal and not the first letters of the text: stores that
/// ignore case (exFAT, macOS) would make one directory of `Ab` and `aB`, under either name.
pub fn long_path(hash: &[u8; 32]) -> (Vec<u8>, Vec<u8>) {
    (format!("{:02x}", hash[0]).into_bytes(), text::encode(hash))
}

/// Returns the hash that names a file of [`LONG_DIRECTORY`]; `None` if it is not in the directory
/// `group` or has no such name.
pub fn long_hash(group: &[u8], file: &[u8]) -> Option<[u8; 32]> {
    text::decode_hash(file).filter(|hash| long_path(hash).0 == group)
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
    stored.first().is_some_and(|b| !is_letter(*b) && *b != LONG)
        || OF_OTHERS.iter().any(|name| stored.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns whether a stored name is a control file whose name does not begin with `+`: sync tools
/// and file managers leave such files (`.stfolder`, `.DS_Store`, `@eaDir`).
pub fn is_of_others(stored: &[u8]) -> bool {
    is_control(stored) && !stored.starts_with(b"+")
}

/// Returns whether a name may be a stored name.
pub fn may_be_sealed(stored: &[u8]) -> bool {
    let text = without_suffix(stored);
    match text.strip_prefix(&[LONG]) {
        Some(hash) => hash.len() == HASH_LETTERS,
        None => text.len() >= text::letters(SEALED_MIN),
    }
}

/// Returns whether a stored name is that of a sync tool's conflict copy of an entry.
pub fn is_conflict_copy(stored: &[u8]) -> bool {
    may_be_sealed(stored) && without_suffix(stored).len() < stored.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::NamesKey;
    use proptest::prelude::*;

    const LONGEST: usize = 152;
    /// Longest plain name of a short stored name.
    const SHORT_MAX: usize = 98;

    fn with<T>(longest: usize, act: impl FnOnce(&NameCipher) -> T) -> T {
        let hctr2 = Hctr2::new(&NamesKey::from_bytes([1; 32]));
        act(&NameCipher::new(&hctr2, longest))
    }

    /// Opens a stored name as a reader does; `long` holds the sealed long names.
    fn read(cipher: &NameCipher, stored: &[u8], long: &[Vec<u8>]) -> Option<(Opened, Vec<u8>)> {
        match parse(stored, cipher.longest) {
            Parts::Short { sealed, suffix } => Some((cipher.open(&sealed)?, suffix.to_vec())),
            Parts::Long { hash, suffix } => {
                let sealed = long.iter().find(|sealed| is_long(sealed, &hash, cipher.longest))?;
                Some((cipher.open(sealed)?, suffix.to_vec()))
            }
            Parts::Control | Parts::Foreign => None,
        }
    }

    fn long_of(stored: &StoredName) -> Vec<Vec<u8>> {
        match stored {
            StoredName::Long { sealed, .. } => vec![sealed.clone()],
            StoredName::Short(_) => Vec::new(),
        }
    }

    #[test]
    fn names_of_all_lengths_come_back_at_each_limit() {
        for (longest, short_max) in [(64, 32), (LONGEST, SHORT_MAX), (200, 134)] {
            with(longest, |cipher| {
                for len in 1..=NAME_MAX {
                    let name = vec![b'n'; len];
                    let stored = cipher.encode(&[7; 8], &name).expect("a valid name");
                    assert_eq!(matches!(stored, StoredName::Short(_)), len <= short_max, "{len}");
                    assert!(stored.entry().len() <= longest);
                    for suffix in [&b""[..], b".sync-conflict-1", b"~", b" (1)", b"-HOST"] {
                        let entry = [stored.entry(), suffix].concat();
                        let read = read(cipher, &entry, &long_of(&stored));
                        let opened = Opened { tag: [7; 8], name: name.clone() };
                        assert_eq!(read, Some((opened, suffix.to_vec())));
                        assert_eq!(without_suffix(&entry), stored.entry());
                        assert!(may_be_sealed(&entry));
                    }
                }
                assert_eq!(cipher.encode(&[7; 8], &[b'n'; NAME_MAX + 1]), None);
            });
        }
    }

    #[test]
    fn a_changed_name_and_a_second_spelling_do_not_open() {
        with(LONGEST, |cipher| {
            let stored = cipher.encode(&[7; 8], b"letter.txt").expect("a valid name");
            let entry = stored.entry();
            for at in 0..entry.len() {
                for letter in [b'A', b',', b'@', b'9'] {
                    let mut changed = entry.to_vec();
                    changed[at] = letter;
                    assert!(changed == entry || read(cipher, &changed, &[]).is_none());
                }
            }
            assert_eq!(parse(&entry[1..], LONGEST), Parts::Foreign);
            // More zero bytes than the one encoding has, and fewer.
            for (len, sealed_len) in [(10, 27), (10, 25), (8, 25), (1, 32)] {
                let mut sealed = [&[7; 8][..], &vec![b'n'; len]].concat();
                sealed.resize(sealed_len, 0);
                cipher.hctr2.encrypt(cipher.tweak, &mut sealed).unwrap();
                assert_eq!(cipher.open(&sealed), None, "{len} in {sealed_len}");
            }
            // A name that fits into the entry is not stored by its hash, and a longer one is never
            // stored in the entry.
            let Parts::Short { sealed, .. } = parse(entry, LONGEST) else { panic!("a short name") };
            assert!(!is_long(&sealed, blake3::hash(&sealed).as_bytes(), LONGEST));
            let long = cipher.encode(&[7; 8], &[b'n'; SHORT_MAX + 1]).unwrap();
            assert_eq!(parse(&text::encode(&long_of(&long)[0]), LONGEST), Parts::Foreign);
        });
    }

    #[test]
    fn control_files_and_foreign_names_are_told_apart() {
        for (stored, parts) in [
            (&b"+share"[..], Parts::Control),
            (b".stfolder", Parts::Control),
            (b"-x", Parts::Control),
            (b"_x", Parts::Control),
            (b"AAAA", Parts::Foreign),
            (b"", Parts::Foreign),
            (&[b'A'; 31], Parts::Foreign),
            (&[b'A'; 153], Parts::Foreign),
            (b"=AAAA", Parts::Foreign),
            (&[0xff; 30], Parts::Control),
        ] {
            assert_eq!(parse(stored, LONGEST), parts, "{}", stored.escape_ascii());
        }
        let hash = text::encode(&[9; 32]);
        let entry = [b"=", &hash[..], b" (1)"].concat();
        assert_eq!(parse(&entry, LONGEST), Parts::Long { hash: [9; 32], suffix: b" (1)" });
        let (group, file) = long_path(&[9; 32]);
        assert_eq!(long_hash(&group, &file), Some([9; 32]));
        assert_eq!(group, b"09");
        assert_eq!(long_hash(b"9", &file), None);
        assert_eq!(long_hash(b"08", &file), None);
        assert_eq!(long_hash(&group[..1], &file), None);
    }

    /// The directories in `+long` were once the first two letters of the text. exFAT made one of
    /// `UI` and `ui`, and the check took every second long name for a changed one.
    #[test]
    fn directories_of_long_names_do_not_differ_in_case_alone() {
        let groups: std::collections::BTreeSet<Vec<u8>> =
            (0..=u8::MAX).map(|first| long_path(&[first; 32]).0.to_ascii_lowercase()).collect();
        assert_eq!(groups.len(), 256);
        assert!(
            groups
                .iter()
                .all(|group| long_hash(group, &text::encode(&[group_byte(group); 32])).is_some())
        );
    }

    fn group_byte(group: &[u8]) -> u8 {
        u8::from_str_radix(std::str::from_utf8(group).unwrap(), 16).unwrap()
    }

    proptest! {
        #[test]
        fn a_listing_is_opened_as_its_names_are_one_by_one(names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..255), 0..40), broken in any::<u64>()) {
            with(LONGEST, |cipher| {
                let sealed: Vec<Vec<u8>> = names.iter().enumerate().filter_map(|(n, name)| {
                    let mut sealed = match cipher.encode(&[n as u8; 8], name)? {
                        StoredName::Short(entry) => text::decode(&entry)?,
                        StoredName::Long { sealed, .. } => sealed,
                    };
                    sealed[n % 24] ^= (broken >> (n % 64)) as u8 & 1;
                    Some(sealed)
                }).collect();
                let single: Vec<_> = sealed.iter().map(|sealed| cipher.open(sealed)).collect();
                prop_assert_eq!(cipher.open_many(sealed), single);
                Ok(())
            })?;
        }

        #[test]
        fn any_stored_name_has_one_reading(stored in "[-A-Za-z0-9,@=+. ()~_]{0,60}") {
            let stored = stored.as_bytes();
            if let Parts::Short { sealed, suffix } = parse(stored, LONGEST) {
                prop_assert_eq!([&text::encode(&sealed)[..], suffix].concat(), stored);
            }
            prop_assert_eq!(parse(stored, LONGEST) == Parts::Control, is_control(stored));
        }
    }
}

//! The key hierarchy below a folder key.
//!
//! ```text
//! folder key, share id --extract--> epoch secret --expand, by label, epoch and suite--> names, content, headers, records, ...
//! content key --expand, file id--> file key            names key --expand, tag and name--> hash of a place
//! first folder key, share id --extract, expand--> directory key --HMAC, sealed tag and name--> tag of a directory
//! ```

use super::kdf::{expand, extract, hmac};
use crate::crypto::keys::{
    ContentKey, DirectoryKey, FileKey, FolderKey, HeaderKey, HistoryKey, NamesKey, RecordsKey,
};
use crate::crypto::labels::{self, Label};
use crate::crypto::suite::Suite;

/// The keys of one share in one epoch.
pub struct EpochKeys {
    /// For names.
    pub names: NamesKey,
    /// For file keys.
    pub content: ContentKey,
    /// For file headers.
    pub headers: HeaderKey,
    /// For records.
    pub records: RecordsKey,
    /// For earlier folder keys.
    pub history: HistoryKey,
    /// Public commitment to the folder key: it reveals nothing about the key, and no other key has
    /// the same commitment.
    pub commitment: [u8; 32],
}

impl EpochKeys {
    /// Derives all keys of `epoch` of the share with the id `share`.
    #[must_use]
    pub fn derive(folder: &FolderKey, share: &[u8; 32], epoch: u32, suite: Suite) -> Self {
        let secret = extract(share, folder.expose());
        let key =
            |label: &Label| *expand(&secret, label, &[&epoch.to_le_bytes(), &[suite.as_byte()]]);
        EpochKeys {
            names: NamesKey::from_bytes(key(&labels::NAMES)),
            content: ContentKey::from_bytes(key(&labels::CONTENT)),
            headers: HeaderKey::from_bytes(key(&labels::HEADERS)),
            records: RecordsKey::from_bytes(key(&labels::RECORDS)),
            history: HistoryKey::from_bytes(key(&labels::HISTORY)),
            commitment: key(&labels::COMMITMENT),
        }
    }
}

/// Number of bytes of the tag of a directory.
pub const TAG_LEN: usize = 8;

/// The tag of a directory: it is sealed in the stored names of the directory's entries.
pub type Tag = [u8; TAG_LEN];

/// Derives the key of the tags of a share's directories from the folder key of its first epoch.
#[must_use]
pub fn directory_key(first_epoch: &FolderKey, share: &[u8; 32]) -> DirectoryKey {
    let secret = extract(share, first_epoch.expose());
    DirectoryKey::from_bytes(*expand(&secret, &labels::DIRECTORIES, &[]))
}

/// Derives the key of the file with this random id.
#[must_use]
pub fn file_key(content: &ContentKey, file_id: &[u8; 32]) -> FileKey {
    FileKey::from_bytes(*expand(content.expose(), &labels::FILE, &[file_id]))
}

fn tag(key: &DirectoryKey, parts: &[&[u8]]) -> Tag {
    *hmac(key.expose(), parts).first_chunk().expect("32 is more than 8")
}

/// Returns the tag of the root directory of a share.
#[must_use]
pub fn root_tag(key: &DirectoryKey, share: &[u8; 32]) -> Tag {
    tag(key, &[labels::ROOT_TAG.as_bytes(), share])
}

/// Returns the tag of a directory in whose stored name the tag `sealed` and this plain name are
/// sealed. A name has at most 255 bytes.
#[must_use]
pub fn directory_tag(key: &DirectoryKey, sealed: &Tag, name: &[u8]) -> Tag {
    tag(key, &[labels::TAG.as_bytes(), sealed, name])
}

/// Returns the tag of a directory whose stored name contains the hash of a long name.
#[must_use]
pub fn long_directory_tag(key: &DirectoryKey, hash: &[u8; 32]) -> Tag {
    tag(key, &[labels::LONG_TAG.as_bytes(), hash])
}

/// Derives the keys of the local rollback database of a share: one for hashes, and one that seals
/// its contents.
#[must_use]
pub fn rollback_keys(key: &DirectoryKey) -> [zeroize::Zeroizing<[u8; 32]>; 2] {
    [b"hashes", b"sealed"].map(|purpose| expand(key.expose(), &labels::ROLLBACK_MEMORY, &[purpose]))
}

/// Returns the hash of the place of a name in the directory with the tag `directory`. A name has at
/// most 255 bytes.
#[must_use]
pub fn place_hash(names: &NamesKey, directory: &Tag, name: &[u8]) -> [u8; 32] {
    *expand(names.expose(), &labels::PLACE, &[directory, name])
}

/// Returns the name under which the evidence of renames to the directory with the tag `to` is
/// found.
#[must_use]
pub fn moved_place(names: &NamesKey, to: &Tag) -> [u8; 32] {
    *expand(names.expose(), &labels::MOVED, &[to])
}

/// Returns the id and the nonce of a record of rename evidence. They depend on everything that
/// determines the record's plain bytes, so one nonce never seals two different records; `by` is
/// author and signer, empty in a share that is not signed.
#[must_use]
pub fn moved_record(records: &RecordsKey, from: &Tag, to: &Tag, by: &[u8]) -> ([u8; 16], [u8; 24]) {
    let part =
        |purpose: &[u8]| expand(records.expose(), &labels::MOVED_RECORD, &[purpose, from, to, by]);
    let (id, nonce) = (part(b"id"), part(b"nonce"));
    (
        *id.first_chunk().expect("32 is more than 16"),
        *nonce.first_chunk().expect("32 is more than 24"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn all(folder: [u8; 32], share: [u8; 32], epoch: u32, suite: Suite) -> [[u8; 32]; 6] {
        let keys = EpochKeys::derive(&FolderKey::from_bytes(folder), &share, epoch, suite);
        [
            *keys.names.expose(),
            *keys.content.expose(),
            *keys.headers.expose(),
            *keys.records.expose(),
            *keys.history.expose(),
            keys.commitment,
        ]
    }

    #[test]
    fn keys_depend_on_folder_key_share_epoch_suite_and_label() {
        let mut seen = HashSet::new();
        for folder in [[1; 32], [2; 32]] {
            for share in [[1; 32], [2; 32]] {
                for epoch in [1, 2, 256] {
                    for suite in Suite::ALL {
                        seen.extend(all(folder, share, epoch, suite));
                    }
                }
                seen.insert(*directory_key(&FolderKey::from_bytes(folder), &share).expose());
            }
        }
        assert_eq!(seen.len(), 2 * 2 * (3 * 2 * 6 + 1));
        assert_eq!(
            all([1; 32], [2; 32], 3, Suite::Aes256Gcm),
            all([1; 32], [2; 32], 3, Suite::Aes256Gcm)
        );
    }

    #[test]
    fn tags_and_hashes_depend_on_all_that_they_name() {
        let (key, names) = (DirectoryKey::from_bytes([1; 32]), NamesKey::from_bytes([1; 32]));
        let records = RecordsKey::from_bytes([1; 32]);
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        for (wide, tag) in [([1; 32], [1; 8]), ([2; 32], [2; 8])] {
            seen.insert(root_tag(&key, &wide).into());
            seen.insert(long_directory_tag(&key, &wide).into());
            seen.insert(file_key(&ContentKey::from_bytes([1; 32]), &wide).expose().to_vec());
            seen.insert(moved_place(&names, &tag).into());
            for name in [&b"a"[..], b"b", b"ab", b""] {
                seen.insert(directory_tag(&key, &tag, name).into());
                seen.insert(place_hash(&names, &tag, name).into());
                let (id, nonce) = moved_record(&records, &tag, &[1; 8], name);
                seen.extend([id.to_vec(), nonce.to_vec()]);
                assert_ne!(id, nonce[..16]);
            }
        }
        assert_eq!(seen.len(), 2 * (4 + 4 * 4));
        assert_ne!(
            moved_record(&records, &[1; 8], &[2; 8], b""),
            moved_record(&records, &[2; 8], &[1; 8], b"")
        );
    }
}

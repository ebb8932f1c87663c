//! The key hierarchy below a folder key.
//!
//! ```text
//! folder key, share id --extract--> epoch secret --expand, by label, epoch and suite--> names, content, headers, records, ...
//! content key --expand, file id--> file key            names key --expand, directory id and name--> hash of a long name
//! first folder key, share id --extract, expand--> directory key --HMAC, parent's id and name--> directory id
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
    /// For the folder key of the previous epoch.
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

/// Derives the key of a share's directory ids from the folder key of its first epoch.
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

/// Returns the id of the root directory of a share.
#[must_use]
pub fn root_directory_id(key: &DirectoryKey, share: &[u8; 32]) -> [u8; 32] {
    hmac(key.expose(), &[labels::ROOT_DIRECTORY.as_bytes(), share])
}

/// Returns the id of the directory that was created with this name in the directory `parent`. A
/// name has at most 255 bytes.
#[must_use]
pub fn directory_id(key: &DirectoryKey, parent: &[u8; 32], name: &[u8]) -> [u8; 32] {
    hmac(key.expose(), &[labels::DIRECTORY.as_bytes(), parent, name])
}

/// Derives the keys of the local rollback database of a share: one for hashes, one for sealed
/// names.
#[must_use]
pub fn rollback_keys(key: &DirectoryKey) -> [zeroize::Zeroizing<[u8; 32]>; 2] {
    [b"hashes", b"sealed"].map(|purpose| expand(key.expose(), &labels::ROLLBACK_MEMORY, &[purpose]))
}

/// Returns the hash under which a name is stored that is too long for a directory entry of the
/// store. A name has at most 255 bytes.
#[must_use]
pub fn long_name_hash(names: &NamesKey, directory: &[u8; 32], name: &[u8]) -> [u8; 32] {
    *expand(names.expose(), &labels::LONG_NAME, &[directory, name])
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
    fn ids_and_hashes_depend_on_all_that_they_name() {
        let (key, names) = (DirectoryKey::from_bytes([1; 32]), NamesKey::from_bytes([1; 32]));
        let mut seen = HashSet::new();
        for place in [[1; 32], [2; 32]] {
            seen.insert(root_directory_id(&key, &place));
            seen.insert(*file_key(&ContentKey::from_bytes([1; 32]), &place).expose());
            for name in [&b"a"[..], b"b", b"ab", b""] {
                seen.insert(directory_id(&key, &place, name));
                seen.insert(long_name_hash(&names, &place, name));
            }
        }
        assert_eq!(seen.len(), 2 * (2 + 4 * 2));
    }
}

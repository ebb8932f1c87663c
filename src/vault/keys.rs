//! The keys of an open share, as the ciphers that the vault works with.

use std::sync::Arc;

use super::error::{Fault, Inner};
use crate::crypto::{
    ChunkKeys, ContentKey, DirectoryKey, EpochKeys, FolderKey, Hctr2, NamesKey, RecordCipher, Suite, directory_id, directory_key, file_key,
    root_directory_id,
};
use crate::format::header::HeaderContext;
use crate::format::layout::Layout;
use crate::format::name::NameCipher;
use crate::format::record::{self, RecordContext, RecordKind};

/// Id of a directory.
pub(crate) type DirectoryId = [u8; 32];

/// Ciphers of one epoch.
pub(crate) struct Epoch {
    pub number: u32,
    pub commitment: [u8; 8],
    names: NamesKey,
    hctr2: Hctr2,
    content: ContentKey,
    headers: RecordCipher,
    records: RecordCipher,
}

/// Keys of an open share, every epoch of them.
pub(crate) struct ShareKeys {
    pub share: [u8; 32],
    pub suite: Suite,
    pub layout: Layout,
    directories: DirectoryKey,
    epochs: Vec<Epoch>,
}

impl ShareKeys {
    /// From the folder keys of all epochs with their numbers, first one first.
    pub fn new(share: [u8; 32], suite: Suite, layout: Layout, folder_keys: &[(u32, &FolderKey)]) -> Arc<Self> {
        let epochs = folder_keys
            .iter()
            .map(|&(number, folder)| {
                let keys = EpochKeys::derive(folder, &share, number, suite);
                Epoch {
                    number,
                    commitment: keys.commitment[..8].try_into().expect("8 of 32 bytes"),
                    hctr2: Hctr2::new(&keys.names),
                    names: keys.names,
                    content: keys.content,
                    headers: RecordCipher::new(suite, keys.headers.expose()),
                    records: RecordCipher::new(suite, keys.records.expose()),
                }
            })
            .collect();
        Arc::new(ShareKeys { share, suite, layout, directories: directory_key(folder_keys[0].1, &share), epochs })
    }

    /// The epoch under which new bytes are sealed.
    pub fn current(&self) -> &Epoch {
        self.epochs.last().expect("a share has at least one epoch")
    }

    /// An epoch by number.
    pub fn epoch(&self, number: u32) -> Inner<&Epoch> {
        self.epochs
            .iter()
            .rev()
            .find(|e| e.number == number)
            .ok_or(Fault::Corrupt("is sealed under an epoch that this share does not have"))
    }

    /// Keys of a file's chunks under an epoch.
    pub fn chunk_keys(&self, epoch: u32, file_id: &[u8; 32]) -> Inner<ChunkKeys> {
        Ok(ChunkKeys::new(self.suite, &file_key(&self.epoch(epoch)?.content, file_id)))
    }

    /// What is needed to seal or open headers of an epoch.
    pub fn header_context<'a>(&'a self, epoch: &'a Epoch) -> HeaderContext<'a> {
        HeaderContext { share: &self.share, layout: self.layout, cipher: &epoch.headers }
    }

    /// What is needed to seal records.
    pub fn record_context(&self) -> RecordContext<'_> {
        self.record_context_of(self.current())
    }

    fn record_context_of<'a>(&'a self, epoch: &'a Epoch) -> RecordContext<'a> {
        RecordContext { share: &self.share, suite: self.suite, epoch: epoch.number, cipher: &epoch.records }
    }

    /// Opens a record under the epoch that it names.
    pub fn open_record(&self, kind: RecordKind, bound: &[u8], bytes: &[u8]) -> Inner<zeroize::Zeroizing<Vec<u8>>> {
        let epoch = self.epoch(record::epoch_of(kind, bytes)?)?;
        Ok(self.record_context_of(epoch).open(kind, bound, bytes)?)
    }

    /// Names of a directory under the current epoch.
    pub fn names<'a>(&'a self, directory: &'a DirectoryId) -> NameCipher<'a> {
        let epoch = self.current();
        NameCipher::new(&epoch.hctr2, &epoch.names, directory)
    }

    /// Keys of the hashes and of the sealed names in a client's memory of the share.
    pub fn memory_keys(&self) -> [zeroize::Zeroizing<[u8; 32]>; 2] {
        crate::crypto::memory_keys(&self.directories)
    }

    /// Id of the share's root directory.
    pub fn root_directory(&self) -> DirectoryId {
        root_directory_id(&self.directories, &self.share)
    }

    /// Id of the directory that stands at (`parent`, `name`), unless a record in it says otherwise.
    pub fn derived_directory(&self, parent: &DirectoryId, name: &[u8]) -> DirectoryId {
        directory_id(&self.directories, parent, name)
    }
}

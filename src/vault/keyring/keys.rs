//! The keys of an open share, as ciphers for the vault, and the signatures that count in it.
//!
//! Rules that hold here
//! * Epochs are added while the share is open, never removed: references to them stay valid.
//! * No header and no record is returned unless its signature counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use zeroize::Zeroizing;

use crate::crypto::{
    ChunkKeys, ContentKey, DirectoryKey, EpochKeys, Hctr2, NamesKey, Random, RecordCipher, Suite,
    directory_id, directory_key, file_key, long_name_hash, root_directory_id,
};
use crate::format::header::{Header, HeaderContext, PublicHeader};
use crate::format::layout::Layout;
use crate::format::name::NameCipher;
use crate::format::record::{self, RecordContext, RecordKind};
use crate::format::signature::Authorship;
use crate::roster::{EpochKey, FolderKeys};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::keyring::signing::Signing;

/// Id of a directory.
pub(crate) type DirectoryId = [u8; 32];

/// Number of the next generation of keys, in whichever share: a share that is opened again has
/// another one.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(0);

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

impl Epoch {
    fn new(key: &EpochKey, share: &[u8; 32], suite: Suite) -> Self {
        let keys = EpochKeys::derive(&key.key, share, key.epoch, suite);
        Epoch {
            number: key.epoch,
            commitment: keys.commitment[..8].try_into().expect("8 of 32 bytes"),
            hctr2: Hctr2::new(&keys.names),
            names: keys.names,
            content: keys.content,
            headers: RecordCipher::new(suite, keys.headers.expose()),
            records: RecordCipher::new(suite, keys.records.expose()),
        }
    }
}

/// A header, opened and verified.
pub(crate) struct OpenedHeader {
    pub header: Header,
    /// Contents in the small form.
    pub data: Zeroizing<Vec<u8>>,
    /// Its author and signer, in a signed share.
    pub by: Option<Authorship>,
}

/// Keys of an open share, for every epoch.
pub(crate) struct ShareKeys {
    pub share: [u8; 32],
    pub suite: Suite,
    pub layout: Layout,
    pub signing: Signing,
    directories: DirectoryKey,
    epochs: boxcar::Vec<Epoch>,
    current: AtomicUsize,
    generation: AtomicU64,
}

impl ShareKeys {
    /// Derives the keys from the folder keys of all epochs.
    pub fn new(
        share: [u8; 32],
        suite: Suite,
        layout: Layout,
        folder_keys: &FolderKeys,
        signing: Signing,
    ) -> Arc<Self> {
        let directories = directory_key(&folder_keys.first().key, &share);
        let (epochs, current, generation) =
            (boxcar::Vec::new(), AtomicUsize::new(usize::MAX), AtomicU64::default());
        let keys =
            ShareKeys { share, suite, layout, signing, directories, epochs, current, generation };
        keys.adopt(folder_keys);
        keys.renew_generation();
        Arc::new(keys)
    }

    /// Returns a number that changes with each change of the keys, or of the signatures that count.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Called once such a change is complete.
    pub fn renew_generation(&self) {
        self.generation.store(NEXT_GENERATION.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    fn find(&self, key: &EpochKey) -> Option<usize> {
        let same =
            |(_, e): &(usize, &Epoch)| e.number == key.epoch && e.commitment == key.commitment[..8];
        self.epochs.iter().find(same).map(|(at, _)| at)
    }

    /// Adds keys for reading.
    pub fn know(&self, folder_keys: &FolderKeys) {
        for key in folder_keys.all().filter(|key| self.find(key).is_none()) {
            self.epochs.push(Epoch::new(key, &self.share, self.suite));
        }
    }

    /// Adopts the keys of a new head: its epoch becomes the current one.
    pub fn adopt(&self, folder_keys: &FolderKeys) {
        self.know(folder_keys);
        if let Some(current) = self.find(folder_keys.current()) {
            self.current.store(current, Ordering::Release);
        }
    }

    /// Returns whether files and names are signed.
    pub fn signed(&self) -> bool {
        self.layout.signed()
    }

    /// Returns the epoch under which new bytes are sealed.
    pub fn current(&self) -> &Epoch {
        self.epochs.get(self.current.load(Ordering::Acquire)).expect("a share has a current epoch")
    }

    /// Returns all epochs but the current one, the highest numbers first; of equal numbers, which a
    /// fork can cause, by the commitment.
    pub fn older(&self) -> Vec<&Epoch> {
        let current = self.current.load(Ordering::Acquire);
        let mut older: Vec<&Epoch> =
            self.epochs.iter().filter(|(at, _)| *at != current).map(|(_, epoch)| epoch).collect();
        older.sort_by_key(|epoch| (std::cmp::Reverse(epoch.number), epoch.commitment));
        older
    }

    /// Returns the epochs with this number: one, unless both sides of a settled fork began one.
    pub fn numbered(&self, number: u32) -> impl Iterator<Item = &Epoch> {
        self.epochs.iter().map(|(_, epoch)| epoch).filter(move |epoch| epoch.number == number)
    }

    /// Returns the epoch that a header names.
    fn named(&self, public: &PublicHeader) -> Option<&Epoch> {
        self.numbered(public.epoch).find(|epoch| epoch.commitment == public.commitment)
    }

    /// Returns the keys of a file's chunks under an epoch.
    pub fn chunk_keys(&self, epoch: &Epoch, file_id: &[u8; 32]) -> ChunkKeys {
        ChunkKeys::new(self.suite, &file_key(&epoch.content, file_id))
    }

    /// Returns the context for sealing or opening headers of an epoch.
    pub fn header_context<'a>(&'a self, epoch: &'a Epoch) -> HeaderContext<'a> {
        HeaderContext { share: &self.share, layout: self.layout, cipher: &epoch.headers }
    }

    /// Opens the header at the beginning of `bytes`, which must contain any small data completely.
    pub fn open_header(&self, bytes: &[u8]) -> Inner<OpenedHeader> {
        let public = PublicHeader::decode(&self.layout, bytes)?;
        if public.suite != self.suite {
            return Err(Fault::Corrupt(Corruption::Other(
                "names another suite than this share has",
            )));
        }
        let Some(epoch) = self.named(&public) else {
            return Err(Fault::Corrupt(Corruption::UnknownKey));
        };
        let (header, data, claim) = Header::unseal(&self.header_context(epoch), bytes)?;
        let by = claim.map(|claim| self.signing.verify(&claim)).transpose()?;
        if let Some(by) = &by {
            self.signing.check(by, &bytes[..self.layout.header()])?;
        }
        Ok(OpenedHeader { header, data, by })
    }

    /// Returns whether the header, which names this file, cannot be opened under a known epoch,
    /// whoever the signer is: it was torn by a crash, or damaged.
    pub fn is_torn_header(&self, bytes: &[u8], file_id: &[u8; 32]) -> bool {
        let Ok(public) = PublicHeader::decode(&self.layout, bytes) else { return false };
        let Some(epoch) = self.named(&public) else { return false };
        public.file_id == *file_id && Header::open(&self.header_context(epoch), bytes).is_err()
    }

    /// Seals a header under the epoch that it names, which was just the current one; in a signed
    /// share with this identity or `author` as the author.
    pub fn seal_header(
        &self,
        header: &Header,
        data: &[u8],
        author: Option<[u8; 32]>,
        random: &dyn Random,
    ) -> Vec<u8> {
        // Not the epoch that is current now: another may have begun since, and its key would not
        // match the epoch that the header names.
        let context = self.header_context(
            self.named(&header.public).expect("a header names an epoch that is known"),
        );
        if self.signed() {
            self.signing.sign(author, |sign| header.seal(&context, data, Some(sign), random))
        } else {
            header.seal(&context, data, None, random)
        }
    }

    fn record_context<'a>(&'a self, epoch: &'a Epoch) -> RecordContext<'a> {
        RecordContext {
            share: &self.share,
            suite: self.suite,
            signed: self.signed(),
            epoch: epoch.number,
            cipher: &epoch.records,
        }
    }

    /// Seals a record under the current epoch; if its kind is signed, with this identity or
    /// `author` as the author. Not with `author` if the signed bytes would also be valid as a
    /// reference.
    pub fn seal_record_of(
        &self,
        author: Option<[u8; 32]>,
        kind: RecordKind,
        bound: &[u8],
        plain: &[u8],
        random: &dyn Random,
    ) -> Vec<u8> {
        let context = self.record_context(self.current());
        if kind.is_signed(self.signed()) {
            let signer = self.signing.own();
            let author = author.filter(|author| {
                !record::reads_as_reference(
                    kind,
                    bound,
                    &Authorship { author: *author, signer },
                    plain,
                )
            });
            self.signing.sign(author, |sign| context.seal(kind, bound, plain, Some(sign), random))
        } else {
            context.seal(kind, bound, plain, None, random)
        }
    }

    /// Like [`ShareKeys::seal_record_of`], with this identity as the author.
    pub fn seal_record(
        &self,
        kind: RecordKind,
        bound: &[u8],
        plain: &[u8],
        random: &dyn Random,
    ) -> Vec<u8> {
        self.seal_record_of(None, kind, bound, plain, random)
    }

    /// Opens a record under the epoch that it names.
    pub fn open_record(
        &self,
        kind: RecordKind,
        bound: &[u8],
        bytes: &[u8],
    ) -> Inner<Zeroizing<Vec<u8>>> {
        Ok(self.open_record_by(kind, bound, bytes)?.0)
    }

    /// Opens a record under the epoch that it names, and returns its author and signer if it is
    /// signed.
    pub fn open_record_by(
        &self,
        kind: RecordKind,
        bound: &[u8],
        bytes: &[u8],
    ) -> Inner<(Zeroizing<Vec<u8>>, Option<Authorship>)> {
        let number = record::epoch_of(kind, bytes)?;
        let mut opened = Err(Fault::Corrupt(Corruption::Other(
            "is sealed under an epoch that is unknown in this share",
        )));
        for epoch in self.numbered(number) {
            opened = self.record_context(epoch).open(kind, bound, bytes).map_err(Fault::from);
            if opened.is_ok() {
                break;
            }
        }
        let (plain, by) = opened?;
        match &by {
            Some(by) if kind == RecordKind::Junction => self.signing.check_admin(by, bytes)?,
            Some(by) => self.signing.check(by, bytes)?,
            None => {}
        }
        Ok((plain, by))
    }

    /// Returns the name cipher of a directory under the current epoch.
    pub fn names<'a>(&'a self, directory: &'a DirectoryId) -> NameCipher<'a> {
        self.names_of(self.current(), directory)
    }

    /// Returns the name cipher of a directory under an epoch.
    pub fn names_of<'a>(&self, epoch: &'a Epoch, directory: &'a DirectoryId) -> NameCipher<'a> {
        NameCipher::new(&epoch.hctr2, &epoch.names, directory)
    }

    /// Returns the hash of a name of any length under the current epoch, the same as for long
    /// names.
    pub fn place_hash(&self, directory: &DirectoryId, name: &[u8]) -> [u8; 32] {
        long_name_hash(&self.current().names, directory, name)
    }

    /// Returns [`ShareKeys::place_hash`] under all epochs, the current one first.
    pub fn place_hashes(&self, directory: &DirectoryId, name: &[u8]) -> Vec<[u8; 32]> {
        std::iter::once(self.current())
            .chain(self.older())
            .map(|epoch| long_name_hash(&epoch.names, directory, name))
            .collect()
    }

    /// Returns the keys of the hashes and of the sealed names in a client's rollback memory.
    pub fn memory_keys(&self) -> [zeroize::Zeroizing<[u8; 32]>; 2] {
        crate::crypto::rollback_keys(&self.directories)
    }

    /// Returns the id of the share's root directory.
    pub fn root_directory(&self) -> DirectoryId {
        root_directory_id(&self.directories, &self.share)
    }

    /// Returns the id of the directory at (`parent`, `name`), unless a record in it contains
    /// another.
    pub fn derived_directory(&self, parent: &DirectoryId, name: &[u8]) -> DirectoryId {
        directory_id(&self.directories, parent, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;
    use crate::format::header::Hint;
    use crate::format::slots::slice_reader;
    use crate::format::table::HOLE;
    use crate::roster::{Acting, FoundParams, Identity, found};
    use crate::vault::keyring::signing::Rights;

    #[test]
    fn a_header_that_was_made_before_an_epoch_began_can_be_read_after_it() {
        // The background adopted a new epoch between the construction of a header and its sealing.
        // The header named the old epoch and was sealed under the key of the new one, so the file
        // could not be opened any more.
        let random = Seeded::new(1);
        let ann = Arc::new(Identity::generate(&random));
        for signed in [false, true] {
            let params = FoundParams {
                suite: Suite::Aes256Gcm,
                signed,
                isolated: false,
                chunk_log2: 14,
                name: "Ann",
                others: &[],
            };
            let founded = found(&ann, &params, &random, 0).unwrap();
            let members = founded
                .roster
                .members(&founded.keys, &mut |_, at, buf| {
                    slice_reader(&founded.change.slots)(at, buf)
                })
                .unwrap();
            let rights = Rights::new([(members.clone(), Vec::new())].into_iter(), false);
            let signing = Signing::new(ann.clone(), rights);
            let layout = Layout::new(14, signed).unwrap();
            let keys = ShareKeys::new(
                *founded.roster.share_id(),
                Suite::Aes256Gcm,
                layout,
                &founded.keys,
                signing,
            );
            let current = keys.current();
            let public = PublicHeader {
                suite: keys.suite,
                small: Some(4),
                epoch: current.number,
                commitment: current.commitment,
                file_id: [7; 32],
            };
            let hint = Hint { directory: [0; 32], name: Vec::new() };
            let header = Header { public, size: 4, version: 1, root: HOLE, oldest_epoch: 1, hint };

            let acting = Acting {
                by: &ann,
                keys: &founded.keys,
                members: &members,
                random: &random,
                now: 0,
            };
            let change = founded.roster.rekey(&acting).unwrap();
            let next = founded.roster.extend(&change.manifest).unwrap();
            keys.adopt(
                &next.open(&ann, &mut |_, at, buf| slice_reader(&change.slots)(at, buf)).unwrap(),
            );
            assert_eq!(keys.current().number, 2);
            let opened =
                keys.open_header(&keys.seal_header(&header, b"data", None, &random)).unwrap();
            assert_eq!((&opened.data[..], opened.header), (&b"data"[..], header));
        }
    }
}

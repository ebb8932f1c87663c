//! The keys of an open share, as ciphers for the vault, and the signatures that count in it.
//!
//! Rules that hold here
//! * Epochs are added while the share is open, never removed: references to them stay valid.
//! * No header and no record is returned unless its signature counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::crypto::{
    ChunkKeys, ContentKey, DirectoryKey, EpochKeys, Hctr2, NamesKey, Plain, Random, RecordCipher,
    RecordsKey, Suite, Tag, directory_key, directory_tag, file_key, long_directory_tag,
    moved_place, moved_record, place_hash, root_tag,
};
use crate::format::header::{Header, HeaderContext, PublicHeader, UnsealedParts};
use crate::format::layout::{Layout, SMALL_MAX};
use crate::format::moved::{self, Moved};
use crate::format::name::NameCipher;
use crate::format::record::{self, RecordContext, RecordKind};
use crate::format::signature::{Authorship, Claim, Sign};
use crate::roster::{EpochKey, FolderKeys};
use crate::store::File;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::keyring::signing::Signing;

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
    /// The key of `records`, for the ids and nonces of rename evidence.
    moved: RecordsKey,
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
            moved: keys.records,
        }
    }
}

/// A header, opened and verified.
pub(crate) struct OpenedHeader {
    pub header: Header,
    /// Contents in the small form.
    pub data: Plain,
    /// Its author and signer, in a signed share.
    pub by: Option<Authorship>,
}

/// Keys of an open share, for every epoch.
pub(crate) struct ShareKeys {
    pub share: [u8; 32],
    pub suite: Suite,
    pub layout: Layout,
    /// Length of the longest stored name without a suffix.
    pub longest_name: usize,
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
        longest_name: u8,
        folder_keys: &FolderKeys,
        signing: Signing,
    ) -> Arc<Self> {
        let directories = directory_key(&folder_keys.first().key, &share);
        let (epochs, current, generation) =
            (boxcar::Vec::new(), AtomicUsize::new(usize::MAX), AtomicU64::default());
        let longest_name = longest_name.into();
        let keys = ShareKeys {
            share,
            suite,
            layout,
            longest_name,
            signing,
            directories,
            epochs,
            current,
            generation,
        };
        keys.adopt(folder_keys);
        keys.renew_generation();
        Arc::new(keys)
    }

    /// Returns a number that changes with each change of the keys, or of the signatures that count.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Changes that number. Called once the new keys and rights are adopted.
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

    /// Returns the epochs with this number: at most one, unless both sides of a fork began one.
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

    /// Opens the header at the beginning of `bytes`, which must contain the data of a small file
    /// completely. In a signed share its signature must count.
    pub fn open_header(&self, bytes: &[u8]) -> Inner<OpenedHeader> {
        let (header, data, claim) = self.unseal_header(bytes)?;
        let by = claim.map(|claim| self.vouched_for(&claim, bytes)).transpose()?;
        Ok(OpenedHeader { header, data, by })
    }

    /// Returns the authenticated header of a file of the store; in a signed share its signature
    /// must count.
    pub fn read_header(&self, file: &dyn File) -> Inner<Header> {
        let mut bytes = vec![0; self.layout.header() + SMALL_MAX as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        if read == 0 {
            return Err(Fault::Corrupt(Corruption::NeverCommitted));
        }
        Ok(self.open_header(&bytes)?.header)
    }

    /// Opens a header under the epoch that it names, and verifies no signature.
    fn unseal_header(&self, bytes: &[u8]) -> Inner<UnsealedParts> {
        let public = PublicHeader::decode(&self.layout, bytes)?;
        if public.suite != self.suite {
            return Err(Fault::Corrupt(Corruption::Other(
                "names another suite than this share has",
            )));
        }
        let Some(epoch) = self.named(&public) else {
            return Err(Fault::Corrupt(Corruption::UnknownKey));
        };
        Ok(Header::unseal(&self.header_context(epoch), bytes)?)
    }

    /// Returns whether a header opens and one of these members has signed it, with a signature that
    /// counts. Other signatures are not verified.
    pub fn is_header_of(&self, bytes: &[u8], signers: &[[u8; 32]]) -> bool {
        let Ok((.., Some(claim))) = self.unseal_header(bytes) else { return false };
        signers.contains(&claim.said().signer) && self.vouched_for(&claim, bytes).is_ok()
    }

    /// Verifies the signature of a header and that it counts.
    fn vouched_for(&self, claim: &Claim, bytes: &[u8]) -> Inner<Authorship> {
        let by = self.signing.verify(claim)?;
        self.signing.check(&by, &bytes[..self.layout.header()])?;
        Ok(by)
    }

    /// Returns whether the header names this file and a known epoch, but does not open, or has a
    /// wrong signature: it was torn by a crash, or damaged. Whether the signer may write does not
    /// matter.
    pub fn is_torn_header(&self, bytes: &[u8], file_id: &[u8; 32]) -> bool {
        let Ok(public) = PublicHeader::decode(&self.layout, bytes) else { return false };
        let Some(epoch) = self.named(&public) else { return false };
        public.file_id == *file_id && Header::open(&self.header_context(epoch), bytes).is_err()
    }

    /// Seals a header under the epoch that it names. That epoch is known: it was the current one
    /// when the header was made. In a signed share the author is `author`, or this identity.
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

    /// Seals a record under the current epoch. If its kind is signed, the author is `author`, or
    /// this identity. This identity is used too if the signed bytes with `author` would also be
    /// valid as a reference.
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

    /// Returns all epochs, the current one first.
    pub fn all_epochs(&self) -> impl Iterator<Item = &Epoch> {
        // The older ones are sorted only if needed.
        std::iter::once(self.current()).chain(std::iter::once_with(|| self.older()).flatten())
    }

    /// Returns the cipher of names under an epoch.
    pub fn names_of<'a>(&self, epoch: &'a Epoch) -> NameCipher<'a> {
        NameCipher::new(&epoch.hctr2, self.longest_name)
    }

    /// Returns the hash of a place under the current epoch.
    pub fn place_hash(&self, directory: &Tag, name: &[u8]) -> [u8; 32] {
        place_hash(&self.current().names, directory, name)
    }

    /// Returns [`ShareKeys::place_hash`] under all epochs, the current one first.
    pub fn place_hashes(&self, directory: &Tag, name: &[u8]) -> Vec<[u8; 32]> {
        self.all_epochs().map(|epoch| place_hash(&epoch.names, directory, name)).collect()
    }

    /// Returns the names of the directories in which evidence of renames to the directory with this
    /// tag may be, the current epoch's first.
    pub fn moved_places(&self, to: &Tag) -> Vec<Vec<u8>> {
        let place = |epoch: &Epoch| moved::place_name(&moved_place(&epoch.names, to));
        self.all_epochs().map(place).collect()
    }

    /// Seals rename evidence under the current epoch, with this identity or `author` as the author:
    /// always the same bytes.
    pub fn seal_moved(&self, moved: &Moved, author: Option<[u8; 32]>) -> Vec<u8> {
        let epoch = self.current();
        let (context, plain) = (self.record_context(epoch), moved.encode());
        let seal = |sign: Option<Sign>| {
            let by = sign.map(|sign| [sign.by.author, sign.by.signer].concat()).unwrap_or_default();
            let (id, nonce) = moved_record(&epoch.moved, &moved.from, &moved.to, &by);
            let fixed = Fixed(Mutex::new([&id[..], &nonce].concat()));
            context.seal(RecordKind::Moved, b"", &plain, sign, &fixed)
        };
        if self.signed() { self.signing.sign(author, |sign| seal(Some(sign))) } else { seal(None) }
    }

    /// Returns the keys of the hashes and of the sealed names in a client's rollback database.
    pub fn memory_keys(&self) -> [zeroize::Zeroizing<[u8; 32]>; 2] {
        crate::crypto::rollback_keys(&self.directories)
    }

    /// Returns the tag of the share's root directory.
    pub fn root_tag(&self) -> Tag {
        root_tag(&self.directories, &self.share)
    }

    /// Returns the tag of a directory with a short name.
    pub fn directory_tag(&self, sealed: &Tag, name: &[u8]) -> Tag {
        directory_tag(&self.directories, sealed, name)
    }

    /// Returns the tag of a directory with a long name.
    pub fn long_directory_tag(&self, hash: &[u8; 32]) -> Tag {
        long_directory_tag(&self.directories, hash)
    }
}

/// Returns these bytes in place of random ones.
struct Fixed(Mutex<Vec<u8>>);

impl Random for Fixed {
    fn fill(&self, buf: &mut [u8]) {
        let mut bytes = self.0.lock();
        buf.copy_from_slice(&bytes[..buf.len()]);
        bytes.drain(..buf.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;
    use crate::format::header::Hint;
    use crate::format::share::LONGEST_NAME_DEFAULT;
    use crate::format::slots::slice_reader;
    use crate::format::table::HOLE;
    use crate::roster::{Acting, FoundParams, Identity, found};
    use crate::vault::keyring::signing::Rights;

    #[test]
    fn a_header_from_before_an_epoch_can_be_read_after_it() {
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
                LONGEST_NAME_DEFAULT,
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
            let hint = Hint { tag: [0; 8], name: Vec::new() };
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

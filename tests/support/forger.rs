//! A modified client: it has the keys that every member of a share has, and signs and seals
//! whatever it likes.

use std::sync::Arc;

use kithfs::crypto::hierarchy::EpochKeys;
use kithfs::crypto::{Label, RecordCipher, Suite};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::layout::Layout;
use kithfs::format::manifest::Manifest;
use kithfs::format::share::ShareDescriptor;
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::slots;
use kithfs::format::table::HOLE;
use kithfs::roster::{FolderKeys, Identity, Roster, VerifiedRoster};
use kithfs::store::{Access, Dir};

use super::vaults::Seeded;

/// Reads a whole file of the store.
pub fn read(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Overwrites a file of the store with these bytes.
pub fn overwrite(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    let file = dir.open_file(name, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// Returns the verified roster of the share in `root`, which must have one head.
pub fn roster(root: &Arc<dyn Dir>) -> VerifiedRoster {
    let descriptor = ShareDescriptor::decode(&read(&**root, b"+share")).unwrap();
    let mut manifests = Vec::new();
    for entry in root.reopen().unwrap().read(0, 1 << 20).unwrap() {
        if entry.name.starts_with(b"+manifest-") {
            manifests.push(Manifest::decode(&read(&**root, &entry.name)).unwrap());
        }
    }
    manifests.sort_by_key(|m| m.sequence);
    let chain: Vec<Vec<u8>> = manifests.iter().map(Manifest::encode).collect();
    Roster::verify(&descriptor, &chain).unwrap()
}

/// Returns the folder keys that the slot of `who` opens.
pub fn folder_keys(roster: &VerifiedRoster, who: &Identity, root: &Arc<dyn Dir>) -> FolderKeys {
    roster
        .open(who, &mut |block, offset, buf| {
            root.open_file(slots::file_name(&block.root).as_bytes(), Access::Read)?
                .read_at(buf, offset)
                .map(|_| ())
        })
        .unwrap()
}

/// The keys of a member, with which a modified client seals what it likes.
pub struct Forger {
    pub share: [u8; 32],
    pub suite: Suite,
    pub epoch: u32,
    pub keys: EpochKeys,
    pub layout: Layout,
}

impl Forger {
    /// Takes the keys of the current epoch that `who` has as a member of the share in `root`.
    pub fn of(root: &Arc<dyn Dir>, who: &Identity) -> Forger {
        let roster = roster(root);
        let descriptor = *roster.descriptor();
        let folder = folder_keys(&roster, who, root);
        let keys = EpochKeys::derive(
            &folder.current().key,
            roster.share_id(),
            folder.current().epoch,
            descriptor.suite,
        );
        let layout = Layout::new(descriptor.chunk_log2, true).unwrap();
        Forger {
            share: *roster.share_id(),
            suite: descriptor.suite,
            epoch: folder.current().epoch,
            keys,
            layout,
        }
    }

    /// Returns a header of a file that never existed.
    pub fn header(
        &self,
        size: u64,
        small: Option<u16>,
        file_id: [u8; 32],
        root: [u8; 32],
    ) -> Header {
        let commitment = self.keys.commitment[..8].try_into().unwrap();
        let public =
            PublicHeader { suite: self.suite, small, epoch: self.epoch, commitment, file_id };
        let hint = Hint { tag: [0; 8], name: Vec::new() };
        Header { public, size, version: 77, root, oldest_epoch: self.epoch, hint }
    }

    /// Seals the header, with the data of a small file and a signature that `sign` makes.
    pub fn seal(
        &self,
        header: &Header,
        data: &[u8],
        by: Authorship,
        sign: &dyn Fn(&Label, &[u8]) -> [u8; 64],
    ) -> Vec<u8> {
        let cipher = RecordCipher::new(self.suite, self.keys.headers.expose());
        let context = HeaderContext { share: &self.share, layout: self.layout, cipher: &cipher };
        header.seal(&context, data, Some(Sign { by, sign }), &Seeded::new(5))
    }

    /// Returns a small sealed file that names `author` as its author and is signed by `signer`.
    pub fn small(&self, data: &[u8], author: &Identity, signer: &Identity) -> Vec<u8> {
        let by = Authorship { author: author.public().sign, signer: signer.public().sign };
        let header = self.header(data.len() as u64, Some(data.len() as u16), [7; 32], HOLE);
        self.seal(&header, data, by, &|label, message| signer.sign(label, message))
    }
}

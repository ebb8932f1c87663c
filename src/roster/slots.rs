//! Sealing a folder key to many public keys at once, and opening one's own slot.
//!
//! ```text
//! dh      = X25519(ephemeral secret, recipient)                       zero is refused
//! prk     = HKDF-Extract("roster slot" ‖ share id, dh)
//! context = suite, ephemeral key, recipient's signing key, recipient's exchange key, epoch
//! tag     = HKDF-Expand(prk, "roster slot tag", context)[..16]        finds the slot
//! key     = HKDF-Expand(prk, "roster slot key", context)
//! slot    = tag ‖ AEAD(key, nonce of zeros, associated data = tag, folder key)
//! ```
//!
//! Rules: an ephemeral key is used for one block and then dropped, so a slot key seals exactly one
//! message and its nonce may be zero. Every part of the context is bound, so a slot is useless in
//! another share, epoch, suite or block, and to another recipient.

use rayon::prelude::*;
use zeroize::Zeroizing;

use super::error::RosterError;
use super::identity::Identity;
use crate::crypto::exchange::{ExchangeSecret, ZeroShared};
use crate::crypto::hierarchy::EpochKeys;
use crate::crypto::kdf::{expand, extract};
use crate::crypto::keys::{FolderKey, RecordsKey, SlotKey};
use crate::crypto::labels;
use crate::crypto::random::Random;
use crate::crypto::record::RecordCipher;
use crate::crypto::suite::Suite;
use crate::format::identity::PublicIdentity;
use crate::format::members::{self, Member};
use crate::format::slots::{self, ReadAt, Slot, SlotHeader, TAG_LEN};

/// Nonce of the one message under a slot key.
const NONCE: [u8; 24] = [0; 24];

/// The share, suite and epoch of a block.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub share: &'a [u8; 32],
    pub suite: Suite,
    pub epoch: u32,
}

fn secrets(
    place: Place<'_>,
    ephemeral: &[u8; 32],
    recipient: &PublicIdentity,
    dh: &[u8; 32],
) -> ([u8; TAG_LEN], SlotKey) {
    let prk = extract(&[labels::ROSTER_SLOT.as_bytes(), place.share].concat(), dh);
    let (suite, epoch) = ([place.suite.as_byte()], place.epoch.to_le_bytes());
    let context: [&[u8]; 5] = [&suite, ephemeral, &recipient.sign, &recipient.exchange, &epoch];
    let mut tag = [0; TAG_LEN];
    tag.copy_from_slice(&expand(&prk, &labels::ROSTER_SLOT_TAG, &context)[..TAG_LEN]);
    (tag, SlotKey::from_bytes(*expand(&prk, &labels::ROSTER_SLOT_KEY, &context)))
}

fn seal_slot(
    place: Place<'_>,
    ephemeral: &[u8; 32],
    to: &PublicIdentity,
    dh: &[u8; 32],
    folder: &FolderKey,
) -> Slot {
    let (tag, key) = secrets(place, ephemeral, to, dh);
    let mut sealed = Zeroizing::new(*folder.expose());
    let mac = RecordCipher::new(place.suite, key.expose()).seal(&NONCE, &tag, &mut *sealed);
    let mut slot = [0; slots::SLOT_LEN];
    slot[..TAG_LEN].copy_from_slice(&tag);
    slot[TAG_LEN..TAG_LEN + 32].copy_from_slice(&*sealed);
    slot[TAG_LEN + 32..].copy_from_slice(&mac);
    slot
}

/// Derives the key of the member list, which is different in each block, from the records key of
/// the epoch.
fn members_cipher(place: Place<'_>, records: &RecordsKey, ephemeral: &[u8; 32]) -> RecordCipher {
    RecordCipher::new(place.suite, &expand(records.expose(), &labels::MEMBERS, &[ephemeral]))
}

/// Makes a block with a slot for each member, on all threads of the pool. `list` must be sorted by
/// signing key and not be empty.
pub(super) fn seal_block(
    place: Place<'_>,
    folder: &FolderKey,
    list: &[Member],
    random: &dyn Random,
) -> Result<(SlotHeader, Vec<u8>), RosterError> {
    let mut seed = Zeroizing::new([0; 32]);
    random.fill(&mut *seed);
    let secret = ExchangeSecret::from_bytes(&seed);
    let (ephemeral, many) = (secret.public(), secret.for_many());
    let sealed_slots = list
        .par_iter()
        .map(|member| {
            let dh = many.diffie_hellman(&member.public.exchange)?;
            Ok(seal_slot(place, &ephemeral, &member.public, &dh, folder))
        })
        .collect::<Result<Vec<Slot>, ZeroShared>>()?;
    let count = u32::try_from(list.len()).map_err(|_| RosterError::TooMany("members"))?;
    let header = SlotHeader {
        suite: place.suite,
        epoch: place.epoch,
        share: *place.share,
        ephemeral,
        count,
        members_len: 0,
        tree_top: [0; 32],
        members_digest: [0; 32],
    };
    let keys = EpochKeys::derive(folder, place.share, place.epoch, place.suite);
    let plain = Zeroizing::new(members::encode(list));
    let sealed_list = members_cipher(place, &keys.records, &ephemeral).seal_record(
        random,
        &header.associated_data(),
        &plain,
    );
    Ok(slots::build(header, sealed_slots, &sealed_list)?)
}

/// Reads the header of the block with this root and checks that it is of this share, epoch and
/// suite and has `count` slots.
pub(super) fn read_header(
    place: Place<'_>,
    root: &[u8; 32],
    count: u32,
    read: &mut ReadAt<'_>,
) -> Result<SlotHeader, RosterError> {
    let header = SlotHeader::read(root, read)?;
    if header.share != *place.share
        || header.suite != place.suite
        || header.epoch != place.epoch
        || header.count != count
    {
        return Err(RosterError::BadMembers);
    }
    Ok(header)
}

/// Opens the slot of `identity`; `None` if it has none in this block. The caller must still compare
/// the key with its commitment.
pub(super) fn open_slot(
    place: Place<'_>,
    header: &SlotHeader,
    identity: &Identity,
    read: &mut ReadAt<'_>,
) -> Result<Option<FolderKey>, RosterError> {
    let dh = identity.diffie_hellman(&header.ephemeral)?;
    let (tag, key) = secrets(place, &header.ephemeral, &identity.public(), &dh);
    let Some(slot) = header.find(&tag, read)? else { return Ok(None) };
    let (sealed, mac) = slot[TAG_LEN..].split_at(32);
    let mut folder = Zeroizing::new([0; 32]);
    folder.copy_from_slice(sealed);
    let mut mac_bytes = [0; 16];
    mac_bytes.copy_from_slice(mac);
    let opened =
        RecordCipher::new(place.suite, key.expose()).open(&NONCE, &tag, &mut *folder, &mac_bytes);
    opened.map_err(|_| RosterError::WrongFolderKey(place.epoch))?;
    Ok(Some(FolderKey::from_bytes(*folder)))
}

/// Opens the member list of a block.
pub(super) fn open_members(
    place: Place<'_>,
    header: &SlotHeader,
    records: &RecordsKey,
    read: &mut ReadAt<'_>,
) -> Result<Vec<Member>, RosterError> {
    let sealed = header.read_members(read)?;
    let cipher = members_cipher(place, records, &header.ephemeral);
    let plain = cipher
        .open_record(&header.associated_data(), &sealed)
        .map_err(|_| RosterError::BadMembers)?;
    let list = members::decode(&plain)?;
    if list.len() != header.count as usize {
        return Err(RosterError::BadMembers);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;
    use crate::format::members::Role;
    use crate::format::slots::slice_reader;

    const SHARE: [u8; 32] = [7; 32];

    fn place(epoch: u32) -> Place<'static> {
        Place { share: &SHARE, suite: Suite::Aes256Gcm, epoch }
    }

    fn people(n: usize, random: &Seeded) -> (Vec<Identity>, Vec<Member>) {
        let mut people: Vec<Identity> = (0..n).map(|_| Identity::generate(random)).collect();
        people.sort_by_key(|identity| identity.public().sign);
        let list = people
            .iter()
            .map(|identity| Member {
                public: identity.public(),
                role: Role::Reader,
                name: "x".into(),
            })
            .collect();
        (people, list)
    }

    #[test]
    fn each_recipient_opens_one_slot_and_others_none() {
        let random = Seeded::new(1);
        let (people, list) = people(40, &random);
        let folder = FolderKey::from_bytes([9; 32]);
        let (header, bytes) = seal_block(place(3), &folder, &list, &random).unwrap();
        let mut read = slice_reader(&bytes);
        let header = read_header(place(3), &header.root(), 40, &mut read).unwrap();
        for identity in &people {
            assert_eq!(
                open_slot(place(3), &header, identity, &mut read).unwrap().unwrap().expose(),
                folder.expose()
            );
        }
        assert!(
            open_slot(place(3), &header, &Identity::generate(&random), &mut read)
                .unwrap()
                .is_none()
        );
        let keys = EpochKeys::derive(&folder, &SHARE, 3, Suite::Aes256Gcm);
        assert_eq!(open_members(place(3), &header, &keys.records, &mut read).unwrap(), list);
        let other = EpochKeys::derive(&FolderKey::from_bytes([8; 32]), &SHARE, 3, Suite::Aes256Gcm);
        assert!(matches!(
            open_members(place(3), &header, &other.records, &mut read),
            Err(RosterError::BadMembers)
        ));
    }

    #[test]
    fn a_block_of_another_epoch_share_suite_or_count_is_not_taken() {
        let random = Seeded::new(2);
        let (_, list) = people(2, &random);
        let (header, bytes) =
            seal_block(place(3), &FolderKey::from_bytes([9; 32]), &list, &random).unwrap();
        let refused = |place: Place<'_>, count| {
            matches!(
                read_header(place, &header.root(), count, &mut slice_reader(&bytes)),
                Err(RosterError::BadMembers)
            )
        };
        assert!(
            refused(place(4), 2)
                && refused(Place { share: &[8; 32], ..place(3) }, 2)
                && refused(place(3), 1)
        );
        assert!(
            refused(Place { suite: Suite::ChaCha20Poly1305, ..place(3) }, 2)
                && !refused(place(3), 2)
        );
    }

    #[test]
    fn all_zero_ephemeral_and_all_zero_recipient_are_refused() {
        let random = Seeded::new(3);
        let (people, mut list) = people(2, &random);
        let (header, bytes) =
            seal_block(place(1), &FolderKey::from_bytes([9; 32]), &list, &random).unwrap();
        let forged = SlotHeader { ephemeral: [0; 32], ..header };
        let opened = open_slot(place(1), &forged, &people[0], &mut slice_reader(&bytes));
        assert!(matches!(opened, Err(RosterError::WeakKey(_))));
        list[0].public.exchange = [0; 32];
        let sealed = seal_block(place(1), &FolderKey::from_bytes([9; 32]), &list, &random);
        assert!(matches!(sealed, Err(RosterError::WeakKey(_))));
    }

    #[test]
    fn two_blocks_for_the_same_people_have_no_slot_in_common() {
        let random = Seeded::new(4);
        let (_, list) = people(5, &random);
        let folder = FolderKey::from_bytes([9; 32]);
        let tags = |bytes: &[u8]| -> Vec<Vec<u8>> {
            bytes[slots::HEADER_LEN..]
                .chunks(slots::SLOT_LEN)
                .take(5)
                .map(|slot| slot[..TAG_LEN].to_vec())
                .collect()
        };
        let (a, b) = (
            seal_block(place(1), &folder, &list, &random).unwrap().1,
            seal_block(place(1), &folder, &list, &random).unwrap().1,
        );
        assert!(tags(&a).iter().all(|tag| !tags(&b).contains(tag)));
    }
}

//! The identity file: unlocking it, and changing its locks.
//!
//! Rules: a new slot is opened again before it counts; the last slot cannot be removed; a wrong
//! secret and a damaged file are different errors; the public half is trusted only after the seed
//! of a slot has produced the same keys.

use zeroize::Zeroizing;

use super::error::IdentityError;
use super::identity::Identity;
use super::recovery::RecoveryCode;
use crate::crypto::kdf::{expand, extract};
use crate::crypto::keys::{IdentitySeed, SlotKey};
use crate::crypto::labels::{self, Label};
use crate::crypto::password::{Argon2Params, stretch};
use crate::crypto::random::Random;
use crate::crypto::record::RecordCipher;
use crate::crypto::suite::Suite;
use crate::format::identity::{
    AGE_MAGIC, IdentityRecord, MAX_AGE_FILE, MAX_LABEL, MAX_SLOTS, PublicIdentity, SEALED_SEED_LEN,
    SlotKind, SlotRecord, label_allowed,
};

/// Shortest key file, in bytes.
pub const MIN_KEY_FILE: usize = 32;

/// A secret that unlocks an identity.
pub enum Secret {
    /// A passphrase, byte for byte.
    Passphrase(Zeroizing<Vec<u8>>),
    /// A recovery code.
    RecoveryCode(RecoveryCode),
    /// The whole content of a key file.
    KeyFile(Zeroizing<Vec<u8>>),
    /// The secret in one age file. The caller encrypts and decrypts the age file.
    Age {
        /// The age file, which the slot stores.
        file: Vec<u8>,
        /// Its contents.
        secret: Zeroizing<[u8; 32]>,
    },
}

impl Secret {
    /// Returns the kind of secret, in a word or two.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::RecoveryCode(_) => "recovery code",
            Self::KeyFile(_) => "key file",
            Self::Age { .. } => "age recipient",
        }
    }

    /// Derives the key of a slot; `None` if the slot is of another kind, or has another age file.
    fn slot_key(&self, slot: &SlotRecord) -> Result<Option<SlotKey>, IdentityError> {
        let salt = &slot.salt;
        let direct = |label: &Label, secret: &[u8]| {
            SlotKey::from_bytes(*expand(&extract(salt, secret), label, &[]))
        };
        Ok(match (self, slot.kind) {
            (Self::Passphrase(bytes), SlotKind::Passphrase(params)) => {
                Some(stretch(&params, salt, bytes)?)
            }
            // None of the following secrets is stretched: they are random, and a key file is meant
            // to be.
            (Self::RecoveryCode(code), SlotKind::RecoveryCode) => {
                Some(direct(&labels::RECOVERY_CODE, code.expose()))
            }
            (Self::KeyFile(content), SlotKind::KeyFile) => Some(direct(&labels::KEY_FILE, content)),
            (Self::Age { file, secret }, SlotKind::Age) if *file == slot.age_file => {
                Some(direct(&labels::AGE_RECIPIENT, &**secret))
            }
            _ => None,
        })
    }

    fn check(&self) -> Result<(), IdentityError> {
        match self {
            Self::Passphrase(bytes) if bytes.is_empty() => Err(IdentityError::EmptyPassphrase),
            Self::KeyFile(content) if content.len() < MIN_KEY_FILE => {
                Err(IdentityError::ShortKeyFile { len: content.len(), min: MIN_KEY_FILE })
            }
            Self::Age { file, .. } if file.len() > MAX_AGE_FILE || !file.starts_with(AGE_MAGIC) => {
                Err(IdentityError::BadAgeFile { len: file.len(), max: MAX_AGE_FILE })
            }
            _ => Ok(()),
        }
    }
}

/// A slot to add.
pub struct NewSlot<'a> {
    /// The secret that will open it.
    pub secret: &'a Secret,
    /// How a passphrase is stretched; not used for the other kinds.
    pub params: Argon2Params,
    /// The owner's label, at most 64 bytes.
    pub label: &'a str,
    /// The time, in seconds since 1970.
    pub created: u64,
}

/// The public part of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo<'a> {
    /// Its id, unique in the file.
    pub id: u16,
    /// Its lock.
    pub kind: SlotKind,
    /// The owner's label.
    pub label: &'a str,
    /// When it was created, in seconds since 1970.
    pub created: u64,
    /// The age file of an age slot; empty for the other kinds.
    pub age_file: &'a [u8],
}

/// An identity file, locked.
pub struct IdentityFile {
    record: IdentityRecord,
}

impl IdentityFile {
    /// Creates a file for `identity` with its first slot.
    ///
    /// # Errors
    /// Those of [`IdentityFile::add_slot`].
    pub fn new(
        suite: Suite,
        identity: &Identity,
        first: &NewSlot<'_>,
        random: &dyn Random,
    ) -> Result<Self, IdentityError> {
        let mut file =
            Self { record: IdentityRecord { suite, public: identity.public(), slots: Vec::new() } };
        file.add_slot(identity, first, random)?;
        Ok(file)
    }

    /// Returns the file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.record.encode()
    }

    /// Parses a file; nothing in it is verified yet.
    ///
    /// # Errors
    /// [`IdentityError::Format`].
    pub fn decode(bytes: &[u8]) -> Result<Self, IdentityError> {
        Ok(Self { record: IdentityRecord::decode(bytes)? })
    }

    /// Returns the public half in the file. It is verified only once the file was unlocked.
    pub fn public(&self) -> PublicIdentity {
        self.record.public
    }

    /// Returns the slots in ascending order of id.
    pub fn slots(&self) -> impl Iterator<Item = SlotInfo<'_>> {
        self.record.slots.iter().map(|slot| SlotInfo {
            id: slot.id,
            kind: slot.kind,
            label: &slot.label,
            created: slot.created,
            age_file: &slot.age_file,
        })
    }

    /// Tries the secret on each slot of its kind.
    ///
    /// # Errors
    /// [`WrongSecret`](IdentityError::WrongSecret), [`NoSuchKind`](IdentityError::NoSuchKind),
    /// [`PublicMismatch`](IdentityError::PublicMismatch), or Argon2 could not allocate its memory.
    pub fn unlock(&self, secret: &Secret) -> Result<Identity, IdentityError> {
        self.unlock_with_slot(secret).map(|(identity, _)| identity)
    }

    /// As [`IdentityFile::unlock`]; also returns the id of the slot that opened.
    ///
    /// # Errors
    /// As [`IdentityFile::unlock`].
    pub fn unlock_with_slot(&self, secret: &Secret) -> Result<(Identity, u16), IdentityError> {
        let mut refused = IdentityError::NoSuchKind(secret.kind_name());
        for slot in &self.record.slots {
            match self.open_slot(slot, secret) {
                Ok(Some(identity)) => return Ok((identity, slot.id)),
                Ok(None) => {}
                Err(wrong @ IdentityError::WrongSecret(_)) => refused = wrong,
                Err(other) => return Err(other),
            }
        }
        Err(refused)
    }

    fn open_slot(
        &self,
        slot: &SlotRecord,
        secret: &Secret,
    ) -> Result<Option<Identity>, IdentityError> {
        let Some(key) = secret.slot_key(slot)? else { return Ok(None) };
        let aad = slot.associated_data(self.record.suite, &self.record.public);
        let opened =
            RecordCipher::new(self.record.suite, key.expose()).open_record(&aad, &slot.sealed);
        let seed = opened.map_err(|_| IdentityError::WrongSecret(secret.kind_name()))?;
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(&seed);
        let identity = Identity::from_seed(IdentitySeed::from_bytes(*bytes));
        if identity.public() == self.record.public {
            Ok(Some(identity))
        } else {
            Err(IdentityError::PublicMismatch)
        }
    }

    /// Adds a slot and returns its id. The slot is opened again with the same secret before it
    /// counts.
    ///
    /// # Errors
    /// A file of another identity, a full file, a label, passphrase or key file that cannot be
    /// used, or Argon2 parameters out of bounds. The file is then unchanged.
    pub fn add_slot(
        &mut self,
        identity: &Identity,
        new: &NewSlot<'_>,
        random: &dyn Random,
    ) -> Result<u16, IdentityError> {
        let slot = self.make_slot(identity, new, random)?;
        self.put(None, slot)
    }

    /// Removes a slot.
    ///
    /// # Errors
    /// [`NoSuchSlot`](IdentityError::NoSuchSlot), [`LastSlot`](IdentityError::LastSlot).
    pub fn remove_slot(&mut self, id: u16) -> Result<(), IdentityError> {
        let at = self.position(id)?;
        if self.record.slots.len() == 1 {
            return Err(IdentityError::LastSlot(id));
        }
        self.record.slots.remove(at);
        Ok(())
    }

    /// Replaces slot `old` with a new slot of any kind, and returns the new id. The old slot is
    /// removed only after the new one was opened. This works on a full file too.
    ///
    /// # Errors
    /// Those of [`IdentityFile::add_slot`], and [`NoSuchSlot`](IdentityError::NoSuchSlot). The file
    /// is then unchanged.
    pub fn change_passphrase(
        &mut self,
        identity: &Identity,
        old: u16,
        new: &NewSlot<'_>,
        random: &dyn Random,
    ) -> Result<u16, IdentityError> {
        let at = self.position(old)?;
        let slot = self.make_slot(identity, new, random)?;
        self.put(Some(at), slot)
    }

    fn position(&self, id: u16) -> Result<usize, IdentityError> {
        self.record.slots.iter().position(|slot| slot.id == id).ok_or(IdentityError::NoSuchSlot(id))
    }

    /// Returns the highest id plus one, or the lowest free one if there is none above.
    fn free_id(&self) -> u16 {
        let highest = self.record.slots.last().map_or(0, |slot| slot.id);
        let free = |id: &u16| self.record.slots.iter().all(|slot| slot.id != *id);
        highest
            .checked_add(1)
            .or_else(|| (1..=u16::MAX).find(free))
            .expect("there are far fewer slots than ids")
    }

    /// Seals a slot under an unused id, and opens it again.
    fn make_slot(
        &self,
        identity: &Identity,
        new: &NewSlot<'_>,
        random: &dyn Random,
    ) -> Result<SlotRecord, IdentityError> {
        if identity.public() != self.record.public {
            return Err(IdentityError::OtherIdentity);
        }
        if !label_allowed(new.label, MAX_LABEL) {
            return Err(IdentityError::BadLabel);
        }
        new.secret.check()?;
        let mut age_file = Vec::new();
        let kind = match new.secret {
            Secret::Passphrase(_) => {
                new.params.validate()?;
                SlotKind::Passphrase(new.params)
            }
            Secret::RecoveryCode(_) => SlotKind::RecoveryCode,
            Secret::KeyFile(_) => SlotKind::KeyFile,
            Secret::Age { file, .. } => {
                age_file.clone_from(file);
                SlotKind::Age
            }
        };
        let mut salt = [0; 32];
        random.fill(&mut salt);
        let sealed = [0; SEALED_SEED_LEN];
        let mut slot = SlotRecord {
            id: self.free_id(),
            kind,
            label: new.label.to_owned(),
            created: new.created,
            salt,
            sealed,
            age_file,
        };
        let key =
            new.secret.slot_key(&slot)?.ok_or(IdentityError::NoSuchKind(new.secret.kind_name()))?;
        let aad = slot.associated_data(self.record.suite, &self.record.public);
        slot.sealed.copy_from_slice(
            &RecordCipher::new(self.record.suite, key.expose()).seal_record(
                random,
                &aad,
                identity.seed().expose(),
            ),
        );
        self.open_slot(&slot, new.secret)?;
        Ok(slot)
    }

    /// Inserts a slot, in the place of the one at `old` if that is given. Nothing changes if a
    /// limit would be exceeded.
    fn put(&mut self, old: Option<usize>, slot: SlotRecord) -> Result<u16, IdentityError> {
        let (id, mut slots) = (slot.id, self.record.slots.clone());
        if let Some(at) = old {
            slots.remove(at);
        }
        if slots.len() >= MAX_SLOTS {
            return Err(IdentityError::TooManySlots);
        }
        slots.insert(slots.partition_point(|other| other.id < id), slot);
        let record = IdentityRecord { slots, ..self.record.clone() };
        if !record.work_is_bounded() {
            return Err(IdentityError::TooMuchWork);
        }
        self.record = record;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;

    const NOW: u64 = 1_700_000_000;

    fn passphrase(text: &str) -> Secret {
        Secret::Passphrase(Zeroizing::new(text.as_bytes().to_vec()))
    }

    fn key_file(byte: u8, len: usize) -> Secret {
        Secret::KeyFile(Zeroizing::new(vec![byte; len]))
    }

    fn age(text: &str, byte: u8) -> Secret {
        let file = [AGE_MAGIC, text.as_bytes()].concat();
        Secret::Age { file, secret: Zeroizing::new([byte; 32]) }
    }

    fn slot<'a>(secret: &'a Secret, label: &'a str) -> NewSlot<'a> {
        NewSlot { secret, params: Argon2Params::MIN, label, created: NOW }
    }

    fn with_key_file(suite: Suite) -> (IdentityFile, Identity, Seeded) {
        let random = Seeded::new(7);
        let identity = Identity::generate(&random);
        let file =
            IdentityFile::new(suite, &identity, &slot(&key_file(1, 32), "stick"), &random).unwrap();
        (file, identity, random)
    }

    #[test]
    fn every_kind_of_slot_unlocks_the_same_identity() {
        for suite in Suite::ALL {
            let (mut file, identity, random) = with_key_file(suite);
            let code = RecoveryCode::generate(&random);
            let written = code.text().to_lowercase();
            assert_eq!(
                file.add_slot(&identity, &slot(&passphrase("open"), "p"), &random).unwrap(),
                2
            );
            assert_eq!(
                file.add_slot(&identity, &slot(&Secret::RecoveryCode(code), ""), &random).unwrap(),
                3
            );
            assert_eq!(file.add_slot(&identity, &slot(&age("a", 4), "token"), &random).unwrap(), 4);
            let file = IdentityFile::decode(&file.encode()).unwrap();
            let code = Secret::RecoveryCode(RecoveryCode::parse(&written).unwrap());
            for (secret, id) in
                [(key_file(1, 32), 1), (passphrase("open"), 2), (code, 3), (age("a", 4), 4)]
            {
                let (opened, slot) = file.unlock_with_slot(&secret).unwrap();
                assert_eq!((opened.public(), slot), (identity.public(), id));
                assert_eq!(opened.seed().expose(), identity.seed().expose());
            }
            let listed: Vec<_> = file
                .slots()
                .map(|slot| (slot.id, slot.kind.name(), slot.label.to_owned(), slot.created))
                .collect();
            let expected = [
                (1, "key file", "stick"),
                (2, "passphrase", "p"),
                (3, "recovery code", ""),
                (4, "age recipient", "token"),
            ];
            assert_eq!(listed, expected.map(|(id, kind, label)| (id, kind, label.to_owned(), NOW)));
        }
    }

    #[test]
    fn wrong_secret_missing_kind_and_damage_are_distinct_errors() {
        let (mut file, identity, random) = with_key_file(Suite::Aes256Gcm);
        assert!(matches!(
            file.unlock(&passphrase("x")),
            Err(IdentityError::NoSuchKind("passphrase"))
        ));
        assert!(matches!(
            file.unlock(&key_file(2, 32)),
            Err(IdentityError::WrongSecret("key file"))
        ));
        file.add_slot(&identity, &slot(&passphrase("right"), ""), &random).unwrap();
        assert!(matches!(
            file.unlock(&passphrase("wrong")),
            Err(IdentityError::WrongSecret("passphrase"))
        ));
        assert!(matches!(IdentityFile::decode(&file.encode()[1..]), Err(IdentityError::Format(_))));
    }

    /// The storage host can put any age file into a slot: one that a token opens too, but that
    /// contains another secret, or one whose ciphertext it has changed.
    #[test]
    fn an_age_slot_opens_only_with_its_own_age_file() {
        let (mut file, identity, random) = with_key_file(Suite::Aes256Gcm);
        file.add_slot(&identity, &slot(&age("one", 1), ""), &random).unwrap();
        file.add_slot(&identity, &slot(&age("two", 2), ""), &random).unwrap();
        assert_eq!(file.unlock_with_slot(&age("two", 2)).unwrap().1, 3);
        for wrong in [age("one", 2), age("two", 1)] {
            assert!(matches!(
                file.unlock(&wrong),
                Err(IdentityError::WrongSecret("age recipient"))
            ));
        }
        assert!(matches!(
            file.unlock(&age("three", 1)),
            Err(IdentityError::NoSuchKind("age recipient"))
        ));
        let mut record = file.record.clone();
        record.slots[1].age_file.push(b'x');
        let file = IdentityFile { record };
        assert!(matches!(file.unlock(&age("onex", 1)), Err(IdentityError::WrongSecret(_))));
    }

    #[test]
    fn bit_flips_never_unlock_as_something_else() {
        let (file, identity, _) = with_key_file(Suite::Aes256Gcm);
        let bytes = file.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(file) = IdentityFile::decode(&flipped) else { continue };
            assert!(file.unlock(&key_file(1, 32)).is_err(), "bit {bit}");
        }
        assert_eq!(file.unlock(&key_file(1, 32)).unwrap().public(), identity.public());
    }

    #[test]
    fn public_half_replaced_with_the_attackers_is_refused() {
        let (file, _, random) = with_key_file(Suite::ChaCha20Poly1305);
        let attacker = Identity::generate(&random);
        // With only the file changed, the slot no longer authenticates. An attacker who knows the
        // secret and reseals it is detected by the keys.
        let mut record = IdentityRecord { public: attacker.public(), ..file.record.clone() };
        let file = IdentityFile { record: record.clone() };
        assert!(matches!(file.unlock(&key_file(1, 32)), Err(IdentityError::WrongSecret(_))));
        let key = key_file(1, 32).slot_key(&record.slots[0]).unwrap().unwrap();
        let aad = record.slots[0].associated_data(record.suite, &record.public);
        let sealed =
            RecordCipher::new(record.suite, key.expose()).seal_record(&random, &aad, &[5; 32]);
        record.slots[0].sealed.copy_from_slice(&sealed);
        assert!(matches!(
            IdentityFile { record }.unlock(&key_file(1, 32)),
            Err(IdentityError::PublicMismatch)
        ));
    }

    #[test]
    fn a_slot_moved_to_another_id_label_or_file_does_not_open() {
        let (file, _, random) = with_key_file(Suite::Aes256Gcm);
        let refused = |change: &dyn Fn(&mut IdentityRecord)| {
            let mut record = file.record.clone();
            change(&mut record);
            assert!(matches!(
                IdentityFile { record }.unlock(&key_file(1, 32)),
                Err(IdentityError::WrongSecret(_))
            ));
        };
        refused(&|r| r.slots[0].id = 2);
        refused(&|r| r.slots[0].label = "Stick".into());
        refused(&|r| r.slots[0].created += 1);
        refused(&|r| r.suite = Suite::ChaCha20Poly1305);
        let other = Identity::generate(&random);
        let other =
            IdentityFile::new(Suite::Aes256Gcm, &other, &slot(&key_file(1, 32), "stick"), &random)
                .unwrap();
        refused(&|r| r.slots = other.record.slots.clone());
    }

    #[test]
    fn slots_come_and_go_but_the_last_one_stays() {
        let (mut file, identity, random) = with_key_file(Suite::Aes256Gcm);
        assert!(matches!(file.remove_slot(1), Err(IdentityError::LastSlot(1))));
        assert!(matches!(file.remove_slot(9), Err(IdentityError::NoSuchSlot(9))));
        let id =
            file.change_passphrase(&identity, 1, &slot(&key_file(2, 40), "new"), &random).unwrap();
        assert_eq!(id, 2, "a new slot does not take the id of the one that goes");
        assert!(matches!(file.unlock(&key_file(1, 32)), Err(IdentityError::WrongSecret(_))));
        assert!(file.unlock(&key_file(2, 40)).is_ok());
        for n in 3..=33 {
            file.add_slot(&identity, &slot(&key_file(n, 32), ""), &random).unwrap();
        }
        assert!(matches!(
            file.add_slot(&identity, &slot(&key_file(99, 32), ""), &random),
            Err(IdentityError::TooManySlots)
        ));
        file.change_passphrase(&identity, 2, &slot(&key_file(99, 32), ""), &random).unwrap();
        assert_eq!(IdentityFile::decode(&file.encode()).unwrap().slots().count(), MAX_SLOTS);
    }

    #[test]
    fn what_cannot_be_a_slot_is_refused_and_changes_nothing() {
        let (mut file, identity, random) = with_key_file(Suite::Aes256Gcm);
        let before = file.encode();
        for bad in [vec![], b"-----BEGIN AGE ENCRYPTED FILE-----".to_vec(), {
            let mut long = AGE_MAGIC.to_vec();
            long.resize(MAX_AGE_FILE + 1, 0);
            long
        }] {
            let bad = Secret::Age { file: bad, secret: Zeroizing::new([0; 32]) };
            assert!(matches!(
                file.add_slot(&identity, &slot(&bad, ""), &random),
                Err(IdentityError::BadAgeFile { .. })
            ));
        }
        let stranger = Identity::generate(&random);
        let open = passphrase("x");
        let hostile = NewSlot {
            params: Argon2Params { memory_kib: 8, ..Argon2Params::MIN },
            ..slot(&open, "")
        };
        assert!(matches!(
            file.add_slot(&identity, &hostile, &random),
            Err(IdentityError::Password(_))
        ));
        assert!(matches!(
            file.add_slot(&stranger, &slot(&key_file(1, 32), ""), &random),
            Err(IdentityError::OtherIdentity)
        ));
        assert!(matches!(
            file.add_slot(&identity, &slot(&key_file(1, 31), ""), &random),
            Err(IdentityError::ShortKeyFile { len: 31, min: MIN_KEY_FILE })
        ));
        assert!(matches!(
            file.add_slot(&identity, &slot(&passphrase(""), ""), &random),
            Err(IdentityError::EmptyPassphrase)
        ));
        assert!(matches!(
            file.add_slot(&identity, &slot(&key_file(1, 32), "a\u{1b}[0m"), &random),
            Err(IdentityError::BadLabel)
        ));
        assert!(matches!(
            file.change_passphrase(&identity, 5, &slot(&key_file(1, 32), ""), &random),
            Err(IdentityError::NoSuchSlot(5))
        ));
        assert_eq!(file.encode(), before);
    }
}

//! The identity file (`+identity` in a vault, `~/.config/kithfs/identity`): a public half, and
//! slots that each wrap the same secret seed under a different lock. Layout only; `roster` opens
//! the locks, and the age file of an age slot is opaque here.
//!
//! Rules: at most [`MAX_SLOTS`] slots, in ascending order of their ids; one encoding for each
//! value. Argon2 parameters out of bounds are rejected here, before a passphrase is stretched with
//! them, and so is a file whose slots *together* would stall an unlock.

use serde::{Deserialize, Serialize};

use super::cursor::{Reader, Writer};
use super::error::{FormatError, FormatErrorKind};
use crate::crypto::labels;
use crate::crypto::password::Argon2Params;
use crate::crypto::record::RECORD_OVERHEAD;
use crate::crypto::suite::Suite;

/// First bytes of an identity file.
pub const MAGIC: [u8; 8] = *b"kithiden";
/// The version that this program writes and reads.
pub const VERSION: u16 = 1;
/// Most slots in a file.
pub const MAX_SLOTS: usize = 32;
/// Longest label of a slot, in bytes of UTF-8.
pub const MAX_LABEL: usize = 64;

/// Length of both public keys.
pub const PUBLIC_LEN: usize = 32 + 32;
const SUITE_AT: usize = MAGIC.len() + 2;
const COUNT_AT: usize = SUITE_AT + 1;
const PUBLIC_AT: usize = COUNT_AT + 1;
/// Length of the part before the first slot: 76.
pub const HEADER_LEN: usize = PUBLIC_AT + PUBLIC_LEN;

const SLOT_KIND_AT: usize = 2;
const SLOT_LABEL_LEN_AT: usize = SLOT_KIND_AT + 1;
const SLOT_CREATED_AT: usize = SLOT_LABEL_LEN_AT + 1;
const SLOT_PARAMS_AT: usize = SLOT_CREATED_AT + 8;
const SLOT_SALT_AT: usize = SLOT_PARAMS_AT + 3 * 4;
const SLOT_SEALED_AT: usize = SLOT_SALT_AT + 32;
/// Length of a sealed seed: 72.
pub const SEALED_SEED_LEN: usize = RECORD_OVERHEAD + 32;
/// Length of a slot without its label and age file: 128.
pub const SLOT_LEN: usize = SLOT_SEALED_AT + SEALED_SEED_LEN;
/// First line of an age file in its binary form.
pub const AGE_MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// Longest age file of a slot, in bytes. A post-quantum recipient needs about 1,800, a hardware
/// token a few hundred.
pub const MAX_AGE_FILE: usize = 8192;
/// Longest identity file.
pub const MAX_LEN: usize = HEADER_LEN + MAX_SLOTS * (SLOT_LEN + MAX_LABEL + MAX_AGE_FILE);

/// The public half of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PublicIdentity {
    /// Ed25519 public key: verifies what this identity signs.
    pub sign: [u8; 32],
    /// X25519 public key: seals slots to this identity.
    pub exchange: [u8; 32],
}

impl PublicIdentity {
    /// Returns the signing key followed by the exchange key.
    pub fn to_bytes(&self) -> [u8; PUBLIC_LEN] {
        let mut bytes = [0; PUBLIC_LEN];
        bytes[..32].copy_from_slice(&self.sign);
        bytes[32..].copy_from_slice(&self.exchange);
        bytes
    }

    /// Reads both keys. The unused top bit of the exchange key must be clear, so that one key has
    /// one spelling.
    ///
    /// # Errors
    /// `Truncated`, or `Encoding` for that bit.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let public = Self { sign: r.array()?, exchange: r.array()? };
        if public.exchange[31] & 0x80 != 0 {
            return Err(r.error(FormatErrorKind::Encoding));
        }
        Ok(public)
    }
}

/// The kind of lock that a slot is under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// A passphrase, stretched by Argon2id with these parameters.
    Passphrase(Argon2Params),
    /// A recovery code of 160 random bits.
    RecoveryCode,
    /// The content of a key file.
    KeyFile,
    /// The secret in an age file, whose recipients are native keys, SSH keys or keys of plugins.
    Age,
}

impl SlotKind {
    /// Returns the byte of the kind.
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Passphrase(_) => 1,
            Self::RecoveryCode => 2,
            Self::KeyFile => 3,
            Self::Age => 4,
        }
    }

    /// Returns the kind in a word or two, for lists and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::RecoveryCode => "recovery code",
            Self::KeyFile => "key file",
            Self::Age => "age recipient",
        }
    }
}

/// One slot as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRecord {
    /// Unique within the file, not zero.
    pub id: u16,
    /// The lock.
    pub kind: SlotKind,
    /// The owner's label: at most [`MAX_LABEL`] bytes of UTF-8 without control characters.
    pub label: String,
    /// When it was created, in seconds since 1970.
    pub created: u64,
    /// Random, for the derivation of the slot's key.
    pub salt: [u8; 32],
    /// The seed, sealed as a record under the slot's key.
    pub sealed: [u8; SEALED_SEED_LEN],
    /// For [`SlotKind::Age`], the age file that contains the slot's secret; otherwise empty.
    pub age_file: Vec<u8>,
}

/// Returns whether `text` is allowed as a label or a name: at most `max` bytes, no control
/// characters.
pub fn label_allowed(text: &str, max: usize) -> bool {
    text.len() <= max && !text.chars().any(char::is_control)
}

impl SlotRecord {
    fn write_clear(&self, w: &mut Writer) {
        w.u16(self.id).u8(self.kind.as_byte()).u8(self.label.len() as u8).u64(self.created);
        match self.kind {
            SlotKind::Passphrase(p) => w.u32(p.memory_kib).u32(p.passes).u32(p.lanes),
            SlotKind::RecoveryCode | SlotKind::KeyFile => w.zeros(3 * 4),
            SlotKind::Age => w.u32(self.age_file.len() as u32).zeros(2 * 4),
        };
        w.bytes(&self.salt);
    }

    /// Returns the associated data of this slot: the label of slots; magic, version, suite and
    /// public half of the file; and everything of the slot except the sealed seed.
    /// The number of slots is not included, so adding one leaves the others valid.
    pub fn associated_data(&self, suite: Suite, public: &PublicIdentity) -> Vec<u8> {
        let mut w = Writer::with_capacity(HEADER_LEN + SLOT_LEN + MAX_LABEL + self.age_file.len());
        w.bytes(labels::IDENTITY_SLOT.as_bytes());
        w.bytes(&MAGIC).u16(VERSION).u8(suite.as_byte()).bytes(&public.to_bytes());
        self.write_clear(&mut w);
        w.bytes(self.label.as_bytes()).bytes(&self.age_file);
        w.into_vec()
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (id, kind, label_len, created) = (r.u16()?, r.u8()?, usize::from(r.u8()?), r.u64()?);
        if id == 0 || label_len > MAX_LABEL {
            return Err(r.error(FormatErrorKind::Range));
        }
        let mut age_len = None;
        let kind = match kind {
            1 => {
                let params =
                    Argon2Params { memory_kib: r.u32()?, passes: r.u32()?, lanes: r.u32()? };
                params.validate().map_err(|_| r.error(FormatErrorKind::Range))?;
                SlotKind::Passphrase(params)
            }
            2 | 3 => {
                r.zeros(3 * 4)?;
                if kind == 2 { SlotKind::RecoveryCode } else { SlotKind::KeyFile }
            }
            4 => {
                let len = r.u32()? as usize;
                r.zeros(2 * 4)?;
                if !(AGE_MAGIC.len()..=MAX_AGE_FILE).contains(&len) {
                    return Err(r.error(FormatErrorKind::Range));
                }
                age_len = Some(len);
                SlotKind::Age
            }
            unknown => return Err(r.error(FormatErrorKind::Flags(u32::from(unknown)))),
        };
        let (salt, sealed) = (r.array()?, r.array()?);
        let label = std::str::from_utf8(r.bytes(label_len)?)
            .map_err(|_| r.error(FormatErrorKind::Encoding))?;
        if !label_allowed(label, MAX_LABEL) {
            return Err(r.error(FormatErrorKind::Encoding));
        }
        let label = label.to_owned();
        let age_file = r.bytes(age_len.unwrap_or(0))?.to_vec();
        if age_len.is_some() && !age_file.starts_with(AGE_MAGIC) {
            return Err(r.error(FormatErrorKind::Magic));
        }
        Ok(Self { id, kind, label, created, salt, sealed, age_file })
    }
}

/// An identity file, parsed but not unlocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRecord {
    /// Suite of the slots' sealing.
    pub suite: Suite,
    /// The public half, unproven until a slot was opened.
    pub public: PublicIdentity,
    /// One to [`MAX_SLOTS`] slots in ascending order of id.
    pub slots: Vec<SlotRecord>,
}

/// Returns memory times passes of all passphrase slots together, in KiB.
fn total_work(slots: &[SlotRecord]) -> u64 {
    let work = |slot: &SlotRecord| match slot.kind {
        SlotKind::Passphrase(params) => params.work(),
        SlotKind::RecoveryCode | SlotKind::KeyFile | SlotKind::Age => 0,
    };
    slots.iter().map(work).sum()
}

impl IdentityRecord {
    /// Returns whether all passphrase slots together require no more work than one slot may: a
    /// wrong passphrase is tried on each.
    pub fn work_is_bounded(&self) -> bool {
        total_work(&self.slots) <= Argon2Params::MAX.work()
    }

    /// Returns the file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(HEADER_LEN + self.slots.len() * (SLOT_LEN + MAX_LABEL));
        w.bytes(&MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .u8(self.slots.len() as u8)
            .bytes(&self.public.to_bytes());
        for slot in &self.slots {
            slot.write_clear(&mut w);
            w.bytes(&slot.sealed).bytes(slot.label.as_bytes()).bytes(&slot.age_file);
        }
        w.into_vec()
    }

    /// Parses a file.
    ///
    /// # Errors
    /// Every deviation from the one encoding, and Argon2 parameters out of bounds (`Range`).
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("identity file", bytes);
        r.magic(&MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        let count = usize::from(r.u8()?);
        if !(1..=MAX_SLOTS).contains(&count) {
            return Err(r.error(FormatErrorKind::Range));
        }
        let public = PublicIdentity::read(&mut r)?;
        let mut slots: Vec<SlotRecord> = Vec::with_capacity(count);
        for _ in 0..count {
            let slot = SlotRecord::read(&mut r)?;
            if slots.last().is_some_and(|before| before.id >= slot.id) {
                return Err(r.error(FormatErrorKind::Order));
            }
            slots.push(slot);
        }
        let record = Self { suite, public, slots };
        if !record.work_is_bounded() {
            return Err(r.error(FormatErrorKind::Range));
        }
        r.finish()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(id: u16, kind: SlotKind, label: &str) -> SlotRecord {
        SlotRecord {
            id,
            kind,
            label: label.to_owned(),
            created: 1_700_000_000,
            salt: [7; 32],
            sealed: [8; SEALED_SEED_LEN],
            age_file: if kind == SlotKind::Age { age_file(40) } else { Vec::new() },
        }
    }

    fn age_file(len: usize) -> Vec<u8> {
        let mut file = AGE_MAGIC.to_vec();
        file.resize(len, b'x');
        file
    }

    fn sample() -> IdentityRecord {
        IdentityRecord {
            suite: Suite::ChaCha20Poly1305,
            public: PublicIdentity { sign: [1; 32], exchange: [2; 32] },
            slots: vec![
                slot(1, SlotKind::Passphrase(Argon2Params::MIN), "at home"),
                slot(2, SlotKind::RecoveryCode, ""),
                slot(9, SlotKind::KeyFile, "stick, grün"),
                slot(10, SlotKind::Age, "token"),
            ],
        }
    }

    #[test]
    fn layout_is_as_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(
            (HEADER_LEN, SLOT_LEN, SLOT_PARAMS_AT, SLOT_SALT_AT, SLOT_SEALED_AT),
            (76, 128, 12, 24, 56)
        );
        assert_eq!(bytes.len(), HEADER_LEN + 4 * SLOT_LEN + 7 + "stick, grün".len() + 5 + 40);
        assert_eq!(IdentityRecord::decode(&bytes).unwrap(), sample());
        assert!(bytes.len() <= MAX_LEN);
    }

    #[test]
    fn each_deviation_has_its_kind() {
        let kind = |change: &dyn Fn(&mut IdentityRecord)| {
            let mut record = sample();
            change(&mut record);
            IdentityRecord::decode(&record.encode()).unwrap_err().kind()
        };
        assert_eq!(kind(&|r| r.slots.clear()), FormatErrorKind::Range);
        assert_eq!(kind(&|r| r.slots.swap(0, 1)), FormatErrorKind::Order);
        assert_eq!(kind(&|r| r.slots[1].id = 1), FormatErrorKind::Order);
        assert_eq!(kind(&|r| r.slots[0].id = 0), FormatErrorKind::Range);
        assert_eq!(kind(&|r| r.slots[0].label = "a\nb".into()), FormatErrorKind::Encoding);
        assert_eq!(kind(&|r| r.slots[0].label = "x".repeat(MAX_LABEL + 1)), FormatErrorKind::Range);
        assert_eq!(
            kind(&|r| r.slots[3].age_file = age_file(MAX_AGE_FILE + 1)),
            FormatErrorKind::Range
        );
        assert_eq!(
            kind(&|r| r.slots[3].age_file.truncate(AGE_MAGIC.len() - 1)),
            FormatErrorKind::Range
        );
        assert_eq!(kind(&|r| r.slots[3].age_file[0] ^= 1), FormatErrorKind::Magic);
        assert_eq!(kind(&|r| r.public.exchange[31] |= 0x80), FormatErrorKind::Encoding);
        assert_eq!(
            kind(&|r| r.slots = (1..=33).map(|id| slot(id, SlotKind::KeyFile, "")).collect()),
            FormatErrorKind::Range
        );
        let bytes = sample().encode();
        for n in 0..bytes.len() {
            assert_eq!(
                IdentityRecord::decode(&bytes[..n]).unwrap_err().kind(),
                FormatErrorKind::Truncated,
                "cut at {n}"
            );
        }
        let longer = [bytes, vec![0]].concat();
        assert_eq!(IdentityRecord::decode(&longer).unwrap_err().kind(), FormatErrorKind::Trailing);
    }

    #[test]
    fn hostile_argon2_parameters_are_refused_by_the_parser() {
        let refused = |params: Argon2Params| {
            let mut record = sample();
            record.slots[0].kind = SlotKind::Passphrase(params);
            assert_eq!(
                IdentityRecord::decode(&record.encode()).unwrap_err().kind(),
                FormatErrorKind::Range,
                "{params:?}"
            );
        };
        let (min, max) = (Argon2Params::MIN, Argon2Params::MAX);
        refused(Argon2Params { memory_kib: min.memory_kib - 1, ..min });
        refused(Argon2Params { passes: 0, ..min });
        refused(Argon2Params { lanes: 0, ..min });
        refused(Argon2Params { memory_kib: max.memory_kib + 1, ..max });
        refused(Argon2Params { passes: max.passes + 1, ..max });
        refused(Argon2Params { lanes: max.lanes + 1, ..max });
        refused(Argon2Params { memory_kib: u32::MAX, passes: u32::MAX, lanes: u32::MAX });
    }

    #[test]
    fn slots_together_cannot_stall_an_unlock() {
        let mut record = sample();
        record.slots = vec![slot(1, SlotKind::Passphrase(Argon2Params::MAX), "")];
        assert!(IdentityRecord::decode(&record.encode()).is_ok());
        record.slots.push(slot(2, SlotKind::Passphrase(Argon2Params::MIN), ""));
        assert_eq!(
            IdentityRecord::decode(&record.encode()).unwrap_err().kind(),
            FormatErrorKind::Range
        );
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = IdentityRecord::decode(&bytes);
            let mut headed = sample().encode()[..HEADER_LEN].to_vec();
            headed.extend_from_slice(&bytes);
            if let Ok(record) = IdentityRecord::decode(&headed) {
                prop_assert_eq!(record.encode(), headed);
            }
        }
    }
}

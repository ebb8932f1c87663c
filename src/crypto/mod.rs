//! Ciphers, key derivation and keys. Pure: bytes in, bytes out; the caller passes randomness in.
//!
//! Rules that hold here
//! * One type per key ([`keys`]): zeroized on drop, without `Debug`, `Clone` or `Copy`.
//! * Every label of a derivation, MAC, hash or signature is in [`labels`], and nowhere else.
//! * A failed decryption leaves zeros in the buffer, never unauthenticated plaintext.
//! * Secrets and tags are compared with [`equal`] or inside the primitive, in constant time.
//!
//! The primitives come from `aws-lc-rs`, `ring` and the RustCrypto and dalek crates. This module
//! implements HCTR2 ([`hctr2`]) and the sub-key step of XAES-256-GCM ([`xaes`]);
//! `tests/format/crypto_vectors` checks both against the official vectors.

mod cipher;
mod derive;

pub mod digest;
pub mod exchange;
pub mod hctr2;
pub mod heap;
pub mod keys;
pub mod labels;
pub mod plain;
pub mod random;
pub mod signature;
pub mod stack;
pub mod suite;

pub use cipher::{aead, record, segment, xaes};
pub use derive::{hierarchy, kdf, password};
pub use hctr2::{polyhash, xctr};

pub use aead::Aead;
pub use digest::{digest, digest_stream};
pub use exchange::{ExchangeSecret, ZeroShared};
pub use hctr2::{Hctr2, TooShort, Tweak};
pub use hierarchy::{
    EpochKeys, TAG_LEN, Tag, directory_key, directory_tag, file_key, long_directory_tag,
    moved_place, moved_record, place_hash, rollback_keys, root_tag,
};
pub use kdf::{expand, extract, hmac};
pub use keys::{
    ContentKey, DirectoryKey, FileKey, FolderKey, HeaderKey, HistoryKey, IdentitySeed, JournalKey,
    NamesKey, RecordsKey, SlotKey, equal,
};
pub use labels::Label;
pub use password::{Argon2Params, PasswordError, stretch};
pub use plain::Plain;
pub use random::Random;
pub use record::{RECORD_OVERHEAD, RecordCipher};
pub use segment::{ChunkKeys, SegmentKey};
pub use signature::{BadSignature, SigningKey, verify};
pub use suite::{Suite, Unauthentic};

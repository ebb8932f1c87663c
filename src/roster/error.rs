//! Errors of identity files and rosters. They are typed, so that `cli` can add hints.

use crate::crypto::exchange::ZeroShared;
use crate::crypto::password::PasswordError;
use crate::format::error::FormatError;
use crate::format::slots::BlockError;

/// What can be wrong with an identity file, its slots or a secret for them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file is damaged, or not an identity file.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There are slots of this kind, and the secret opens none of them (a slot that was changed
    /// looks the same).
    #[error("wrong {0}")]
    WrongSecret(&'static str),
    /// There is no slot that such a secret could open.
    #[error("identity has no {0} slot")]
    NoSuchKind(&'static str),
    /// A slot opened, and the public keys of its seed are not those in the file.
    #[error("identity file is damaged: its public keys are not those of its secret")]
    PublicMismatch,
    /// No slot has this id.
    #[error("identity has no slot {0}")]
    NoSuchSlot(u16),
    /// The last slot cannot be removed.
    #[error("slot {0} is the last one of the identity")]
    LastSlot(u16),
    /// The file is full.
    #[error("identity has {max} slots already, the maximum", max = crate::format::identity::MAX_SLOTS)]
    TooManySlots,
    /// All passphrase slots together would require more work than an unlock may take.
    #[error("passphrase slots of the identity would together take too much work to unlock")]
    TooMuchWork,
    /// A label is too long or has control characters.
    #[error("label of a slot must have at most {max} bytes and no control characters", max = crate::format::identity::MAX_LABEL)]
    BadLabel,
    /// An empty passphrase.
    #[error("passphrase is empty")]
    EmptyPassphrase,
    /// A key file that is too short.
    #[error("key file has {len} bytes, fewer than {min}")]
    ShortKeyFile {
        /// Bytes in the file.
        len: usize,
        /// Fewest bytes that a key file may have.
        min: usize,
    },
    /// An age file that is too long, or not in the binary form.
    #[error(
        "age file of {len} bytes cannot be a slot: it must be in the binary form and have at most {max} bytes"
    )]
    BadAgeFile {
        /// Bytes in the file.
        len: usize,
        /// Most bytes that an age file may have.
        max: usize,
    },
    /// Argon2 could not be run.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// The file is of another identity.
    #[error("identity file belongs to another identity")]
    OtherIdentity,
}

/// What can be wrong with a roster, or with a change of it. Numbers are those of manifests, except
/// in [`RosterError::Forked`] and [`RosterError::WrongFolderKey`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// A descriptor, manifest or member list does not parse.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A slot block cannot be parsed or read, or is not the signed one.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// There is no manifest at all.
    #[error("share has no manifest")]
    Empty,
    /// More manifests than a roster can have.
    #[error("roster has too many manifests")]
    TooLong,
    /// The manifest is of another share.
    #[error("manifest {0} belongs to another share")]
    OtherShare(u32),
    /// The chain has a gap or is out of order here.
    #[error("manifest {found} was found where manifest {expected} was expected")]
    Sequence {
        /// The expected number.
        expected: u32,
        /// The number that was found.
        found: u32,
    },
    /// The manifest does not name the one before it.
    #[error("manifest {0} does not continue the previous one")]
    BrokenChain(u32),
    /// The signer was not an admin before, or not the founder in the first manifest.
    #[error("signer of manifest {0} was not an admin")]
    SignerNotAdmin(u32),
    /// The signature does not verify.
    #[error("signature of manifest {0} is not valid")]
    BadSignature(u32),
    /// Epoch, commitment and history do not follow from those of the previous manifest; or those, or
    /// the number, of a settling manifest do not follow from both branches.
    #[error("epoch of manifest {0} does not follow from the previous one")]
    BadEpoch(u32),
    /// An unsigned share has one owner, the founder.
    #[error("share is not signed and has one owner; it cannot have members")]
    OwnerOnly,
    /// The roster is older than the one that was seen before.
    #[error("roster ends at manifest {found}, older than manifest {pinned}, which was seen before")]
    RolledBack {
        /// The last number in the roster.
        found: u32,
        /// The number that was seen.
        pinned: u32,
    },
    /// The roster does not descend from the head that was seen before.
    #[error("roster does not descend from manifest {0}, which was seen before")]
    NotDescended(u32),
    /// Two or more heads count.
    #[error("roster has {0} conflicting heads")]
    Forked(usize),
    /// This identity has no slot.
    #[error("identity is not a member of the share")]
    NotMember,
    /// The slot was found and does not open, or its key is not the one that the manifest commits
    /// to.
    #[error("folder key of epoch {0} is not the one that its manifest commits to")]
    WrongFolderKey(u32),
    /// A slot block or its member list does not agree with the manifest, or the list does not open.
    #[error("member list does not agree with its manifest")]
    BadMembers,
    /// Another change was made at the same time, excludes this one, and takes precedence.
    #[error(
        "another change of the members was made at the same time and takes precedence; this one does not count"
    )]
    Overtaken,
    /// Keys or members of another head were passed in.
    #[error("keys or members are not those of the roster's head")]
    Stale,
    /// Only admins change the membership.
    #[error("identity is not an admin of the share")]
    NotAdmin,
    /// A key is in the share already.
    #[error("{0} is a member already")]
    AlreadyMember(String),
    /// A key is not in the share.
    #[error("no member has this key")]
    NoSuchMember,
    /// No admin would be left to change the membership.
    #[error("share would have no admin")]
    NoAdmin,
    /// A limit on members, admins, epochs or history is reached.
    #[error("share has reached its largest number of {0}")]
    TooMany(&'static str),
    /// A name is too long or has control characters.
    #[error("name of a member must have at most {max} bytes and no control characters", max = crate::format::members::MAX_NAME)]
    BadName,
    /// A public key whose shared secret is known to everyone.
    #[error("public key is weak: {0}")]
    WeakKey(#[from] ZeroShared),
    /// The head to settle is of another share, or on one branch with this one.
    #[error("this branch is not part of a fork")]
    NoFork,
    /// A head that counts cannot be opened, and so cannot be settled.
    #[error("one of the roster's heads cannot be opened")]
    UnopenedHead,
    /// A chunk size out of range.
    #[error("chunk size is out of range")]
    ChunkSize,
}

impl RosterError {
    /// Returns the number of the manifest that is wrong; `None` if the error is not about one.
    pub fn manifest(&self) -> Option<u32> {
        match *self {
            RosterError::OtherShare(number)
            | RosterError::Sequence { found: number, .. }
            | RosterError::BrokenChain(number)
            | RosterError::SignerNotAdmin(number)
            | RosterError::BadSignature(number)
            | RosterError::BadEpoch(number)
            | RosterError::RolledBack { found: number, .. } => Some(number),
            _ => None,
        }
    }
}

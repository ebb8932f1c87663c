//! What can be wrong with an identity file or a roster. Typed, so that advice can be added by
//! whoever talks to people.

use crate::crypto::exchange::ZeroShared;
use crate::crypto::password::PasswordError;
use crate::format::error::FormatError;
use crate::format::slots::BlockError;

/// What can be wrong with an identity file, its slots or a secret for them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file is damaged, or none.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There are slots of this kind, and the secret opens none of them (or somebody changed the
    /// slot, which looks the same).
    #[error("wrong {0}")]
    WrongSecret(&'static str),
    /// There is no slot that such a secret could open.
    #[error("identity has no {0} slot")]
    NoSuchKind(&'static str),
    /// A slot opened, and the seed in it does not belong to the public half in the file.
    #[error("identity file is damaged: its public keys are not those of its secret")]
    PublicMismatch,
    /// No slot has this id.
    #[error("identity has no slot {0}")]
    NoSuchSlot(u16),
    /// The last slot cannot go.
    #[error("slot {0} is the last one of the identity")]
    LastSlot(u16),
    /// The file is full.
    #[error("identity has {max} slots, the most that it can have", max = crate::format::identity::MAX_SLOTS)]
    TooManySlots,
    /// All passphrase slots together would ask for more work than an unlock may take.
    #[error("passphrase slots of the identity would take too much work together")]
    TooMuchWork,
    /// A label is too long or has control characters.
    #[error("label of a slot must have at most {max} bytes and no control characters", max = crate::format::identity::MAX_LABEL)]
    BadLabel,
    /// An empty passphrase.
    #[error("passphrase is empty")]
    EmptyPassphrase,
    /// A key file with too little in it.
    #[error("key file has {len} bytes, fewer than {min}")]
    ShortKeyFile {
        /// Bytes in the file.
        len: usize,
        /// Fewest bytes that a key file may have.
        min: usize,
    },
    /// Argon2 could not be run.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// The identity is not the one whose file this is.
    #[error("identity is not the one of this file")]
    OtherIdentity,
}

/// What can be wrong with a roster, or with what is asked of it. Numbers are those of manifests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// A descriptor, manifest or member list does not parse.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A slot block does not parse, is not the signed one, or cannot be read.
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
    /// The chain is cut or out of order here.
    #[error("manifest {found} stands where manifest {expected} belongs")]
    Sequence {
        /// The number that has to come.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// The manifest does not name the one before it.
    #[error("manifest {0} does not continue the one before it")]
    BrokenChain(u32),
    /// The signer was no admin before, or of the first manifest not the founder.
    #[error("manifest {0} is signed by somebody who was not an admin")]
    SignerNotAdmin(u32),
    /// The signature does not verify.
    #[error("signature of manifest {0} is not valid")]
    BadSignature(u32),
    /// Epoch, commitment and history do not go with those of the manifest before.
    #[error("epoch of manifest {0} does not follow from the one before it")]
    BadEpoch(u32),
    /// An unsigned share has one owner, the founder.
    #[error("share is not signed and has one owner; it cannot have members")]
    OwnerOnly,
    /// What is there is older than what was seen before.
    #[error("roster ends at manifest {found}, older than manifest {pinned} which was seen before")]
    RolledBack {
        /// The last number that is there.
        found: u32,
        /// The number that was seen.
        pinned: u32,
    },
    /// What is there does not descend from what was seen before.
    #[error("roster does not descend from manifest {0}, which was seen before")]
    NotDescended(u32),
    /// Two or more heads descend from what was seen before.
    #[error("roster has {0} heads that exclude each other")]
    Forked(usize),
    /// This identity has no slot.
    #[error("identity is not a member of the share")]
    NotMember,
    /// The slot was found and does not open, or its key is not the one that the manifest commits
    /// to.
    #[error("folder key of epoch {0} is not the one that its manifest commits to")]
    WrongFolderKey(u32),
    /// The sealed member list does not open, or does not agree with the manifest.
    #[error("member list does not agree with its manifest")]
    BadMembers,
    /// A change was made at the same time as another one that excludes it, and which was seen
    /// first.
    #[error("somebody has changed the members at the same time, and this change does not count")]
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
    /// Nobody could change the membership any more.
    #[error("share would have no admin")]
    NoAdmin,
    /// A bound on members, admins, epochs or history is reached.
    #[error("share has reached its largest number of {0}")]
    TooMany(&'static str),
    /// A name is too long or has control characters.
    #[error("name of a member must have at most {max} bytes and no control characters", max = crate::format::members::MAX_NAME)]
    BadName,
    /// A public key that everybody knows the secret of.
    #[error("public key is weak: {0}")]
    WeakKey(#[from] ZeroShared),
    /// The branch that was to be settled is not one.
    #[error("there is no fork to settle with this branch")]
    NoFork,
    /// A head that counts cannot be opened, so that it cannot be settled either.
    #[error("one of the roster's heads cannot be opened")]
    UnopenedHead,
    /// A chunk size out of range.
    #[error("chunk size is out of range")]
    ChunkSize,
}

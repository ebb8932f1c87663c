//! Identities, rosters and slots. Pure: bytes in, bytes out; the caller passes randomness and the
//! time in.
//!
//! Rules that hold here
//! * The contents of a roster are used only through [`VerifiedRoster`], which only verification
//!   creates.
//! * A folder key is used only after it was compared with the commitment in a verified manifest. So
//!   [`FolderKeys`] comes only from [`VerifiedRoster::open`], or from founding a share.
//! * Every operation on a roster returns a *new* manifest and a *new* slot block; none is ever
//!   rewritten.

pub mod base32;
pub mod chain;
pub mod change;
pub mod contacts;
pub mod error;
pub mod identity;
pub mod identity_file;
pub mod invitation;
pub mod keys;

pub mod pinned_share;
pub mod public;
pub mod recovery;
pub mod slots;

pub use crate::format::identity::PublicIdentity;
pub use crate::format::members::{Member, Role};
pub use chain::{Assembly, Pin, Roster, Standing, VerifiedRoster};
pub use change::{Acting, Change, FoundParams, Founded, Inventory, found};
pub use contacts::{Contact, ContactError, Contacts};
pub use error::{IdentityError, RosterError};
pub use identity::Identity;
pub use identity_file::{IdentityFile, NewSlot, Secret, SlotInfo};
pub use invitation::{Invitation, InvitationError};
pub use keys::{EpochKey, FolderKeys, Members};
pub use pinned_share::{PinnedShare, Proof};
pub use public::PublicTextError;
pub use recovery::{RecoveryCode, RecoveryTextError};

//! The evidence that a share is the intended one.
//!
//! Rules that hold here
//! * A share is entered for one of four reasons: its founder is the identity that opens it; the
//!   trust store has it (an accepted invitation, an earlier visit); a signed junction in its parent
//!   leads to it; or the user decided so. Otherwise the storage host could plant a share with a
//!   slot for the victim, and wait for secrets to be copied into it.
//! * The highest head of a share is remembered. A roster without that manifest is refused: the
//!   storage host shows an older one, or another one.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::roster::Pin;

/// The trust store: the caller's record of shares. It is used for nested shares too, when they are
/// first entered, from any thread.
pub trait Pins: Send + Sync {
    /// Returns the highest head of a share that was seen, or that an accepted invitation names;
    /// `None` for an unknown share.
    ///
    /// # Errors
    /// The share has a record that cannot be read. Then the share is not entered: ignoring
    /// the loss of a record would let an old roster pass.
    fn get(&self, share: &[u8; 32]) -> io::Result<Option<Pin>>;
    /// Returns the signer of the invitation that the head of [`Pins::get`] comes from, who must be
    /// an admin in that manifest. `None` if this client has seen the head itself.
    ///
    /// # Errors
    /// As [`Pins::get`].
    fn inviter(&self, share: &[u8; 32]) -> io::Result<Option<[u8; 32]>>;
    /// Records a head that was verified and descends from the one that [`Pins::get`] returned.
    ///
    /// # Errors
    /// The reason why it cannot be recorded: it is logged, and the share is used all the
    /// same.
    fn put(&self, share: &[u8; 32], head: Pin) -> io::Result<()>;
}

/// Decides which shares may be entered.
#[derive(Clone, Default)]
pub struct Trust {
    /// The trust store.
    pub pins: Option<Arc<dyn Pins>>,
    /// Enters the opened share even if nothing vouches for it: an explicit decision of the user.
    /// Its nested shares still need a junction.
    pub first_use: bool,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("pins", &self.pins.is_some())
            .field("first_use", &self.first_use)
            .finish()
    }
}

impl Trust {
    /// Returns the recorded head of a share.
    pub(crate) fn pin(&self, share: &[u8; 32]) -> io::Result<Option<Pin>> {
        self.pins.as_ref().map_or(Ok(None), |pins| pins.get(share))
    }

    /// Returns the signer of the invitation that the recorded head comes from.
    pub(crate) fn inviter(&self, share: &[u8; 32]) -> io::Result<Option<[u8; 32]>> {
        self.pins.as_ref().map_or(Ok(None), |pins| pins.inviter(share))
    }

    /// Records a head.
    pub(crate) fn remember(&self, share: &[u8; 32], head: Pin) {
        if let Some(pins) = &self.pins
            && pins.get(share).ok().flatten() != Some(head)
            && let Err(e) = pins.put(share, head)
        {
            tracing::warn!("the head of a share cannot be recorded in the trust store: {e}");
        }
    }
}

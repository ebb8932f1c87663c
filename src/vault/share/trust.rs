//! Why a share is taken for the one that was meant.
//!
//! Rules that hold here
//! * A share is entered because its founder is the identity that opens it, because the caller
//!   remembers it (an accepted invitation, an earlier visit), because a signed junction in its
//!   parent leads to it, or because the user said so. Otherwise whoever stores the ciphertext could
//!   plant a share with a slot for the victim, and wait for secrets to be copied in.
//! * What is remembered of a share is its highest head. Heads that do not descend from it do not
//!   count.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::roster::Pin;

/// The caller's memory of shares. It is asked for nested shares too, when they are first entered,
/// from any thread.
pub trait Pins: Send + Sync {
    /// The highest head of a share that was seen, or that an accepted invitation names; `None` for
    /// a share that is not known.
    ///
    /// # Errors
    /// There is a memory of the share which cannot be read. The share is then not entered: a memory
    /// that is lost in silence would let an old roster pass.
    fn get(&self, share: &[u8; 32]) -> io::Result<Option<Pin>>;
    /// Who signed the invitation that the head of [`Pins::get`] comes from: he must be an admin in
    /// that manifest. `None` where the head was seen by ourselves.
    ///
    /// # Errors
    /// As [`Pins::get`].
    fn inviter(&self, share: &[u8; 32]) -> io::Result<Option<[u8; 32]>>;
    /// Remembers a head that was verified and descends from what [`Pins::get`] gave.
    ///
    /// # Errors
    /// What kept it from being remembered: it goes to the log, the share is used all the same.
    fn put(&self, share: &[u8; 32], head: Pin) -> io::Result<()>;
}

/// Which shares are entered.
#[derive(Clone, Default)]
pub struct Trust {
    /// What the caller remembers.
    pub pins: Option<Arc<dyn Pins>>,
    /// Enter the share that is opened even where nothing vouches for it: an explicit decision of
    /// the user. Shares within it need a junction.
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
    /// What is remembered of a share.
    pub(crate) fn pin(&self, share: &[u8; 32]) -> io::Result<Option<Pin>> {
        self.pins.as_ref().map_or(Ok(None), |pins| pins.get(share))
    }

    /// Whose invitation the pin comes from.
    pub(crate) fn inviter(&self, share: &[u8; 32]) -> io::Result<Option<[u8; 32]>> {
        self.pins.as_ref().map_or(Ok(None), |pins| pins.inviter(share))
    }

    /// Remembers a head.
    pub(crate) fn remember(&self, share: &[u8; 32], head: Pin) {
        if let Some(pins) = &self.pins
            && pins.get(share).ok().flatten() != Some(head)
            && let Err(e) = pins.put(share, head)
        {
            tracing::warn!("the head of a share cannot be remembered: {e}");
        }
    }
}

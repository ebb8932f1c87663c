//! The events that lock a vault, and what happens on the buses that announce them.

use std::sync::Arc;

use crate::cli::args::LockEvent;

/// Locks the vault, for the reason that is given.
pub type Lock = Arc<dyn Fn(&str) + Send + Sync>;

/// The events that lock a vault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockOn {
    /// The machine is about to sleep.
    pub suspend: bool,
    /// The screen or the session was locked.
    pub screen: bool,
    /// The session has ended.
    pub logout: bool,
}

impl From<&[LockEvent]> for LockOn {
    fn from(events: &[LockEvent]) -> LockOn {
        LockOn {
            suspend: events.contains(&LockEvent::Suspend),
            screen: events.contains(&LockEvent::Screen),
            logout: events.contains(&LockEvent::Logout),
        }
    }
}

/// A message on a bus to which the mount reacts.
pub enum Happened {
    /// The vault has to be locked, for this reason.
    Lock(&'static str),
    /// The connection is lost.
    Lost,
}

//! How a vault is opened, and the randomness that it is opened with.

use std::fmt;
use std::sync::Arc;

use crate::crypto::Random;
use crate::roster::Identity;
use crate::vault::share::synced::Local;
use crate::vault::share::trust::Trust;
use crate::vault::types::{Events, Usage};

/// The kernel's random number generator.
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, buf: &mut [u8]) {
        getrandom::fill(buf).expect("the kernel returns random bytes");
    }
}

/// Locking mode: which other openers are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// As the vault says: shared if it is not synced, and is marked as shared or has other members
    /// (see [`OpenOptions::in_sync_folder`]); otherwise exclusive.
    AsMarked,
    /// No other opener.
    Exclusive,
    /// Other shared openers, in other processes and on other machines that see each other's locks.
    /// See `docs/SHARED.md`.
    Shared,
    /// No locking: for reading a vault that may be changing.
    None,
}

/// The identity of a person whose vault is opened by the vault's own identity. Nested shares are
/// entered and founded with the person's identity, so that members see the person.
#[derive(Clone)]
pub struct Person(pub Arc<Identity>);

impl fmt::Debug for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Person")
    }
}

/// Options for opening a vault.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Nothing is changed, not even by a replay.
    pub read_only: bool,
    /// Reading a file updates its access time, if the store's own mount does.
    pub access_times: bool,
    /// The caller caches sizes, contents and modification times, as the kernel does with its
    /// writeback cache. It maintains modification times itself. An open fails with `ESTALE` if the
    /// authenticated header differs from what the caller caches of the node.
    pub caller_caches: bool,
    /// Limit in bytes for the caches, and the same again for uncommitted changes (at least 1 MiB).
    pub cache_bytes: usize,
    /// Locking mode.
    pub lock: LockMode,
    /// Decides which shares may be entered.
    pub trust: Trust,
    /// The identity for nested shares, if it is not the one that opens the vault. The latter still
    /// enters those of which the person is no member.
    pub person: Option<Person>,
    /// Where this machine keeps the journals of a vault that is synced; without it they are in the
    /// vault.
    pub local: Option<Local>,
    /// The vault seems to be in the folder of a sync tool: other members have copies of their own,
    /// so [`LockMode::AsMarked`] does not count them.
    pub in_sync_folder: bool,
    /// Receives what happens in the vault.
    pub events: Events,
    /// The caller records there when programs use the vault.
    pub usage: Usage,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            access_times: true,
            caller_caches: false,
            cache_bytes: 64 << 20,
            lock: LockMode::Exclusive,
            trust: Trust::default(),
            person: None,
            local: None,
            in_sync_folder: false,
            events: Events::default(),
            usage: Usage::default(),
        }
    }
}

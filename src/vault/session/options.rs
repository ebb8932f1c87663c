//! How a vault is opened, and the randomness that it is opened with.

use crate::crypto::Random;
use crate::vault::share::trust::Trust;

/// The kernel's randomness.
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, buf: &mut [u8]) {
        getrandom::fill(buf).expect("the kernel gives randomness");
    }
}

/// Who may have the vault open beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Nobody.
    Exclusive,
    /// Others who say the same, in other processes and on other machines that see each other's
    /// locks. See `docs/SHARED.md`.
    Shared,
    /// Not asked: for reading what may be changing.
    None,
}

/// How a vault is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Nothing is changed, not even by a recovery.
    pub read_only: bool,
    /// Reading a file changes its time of access, where the store's own mount has it so.
    pub access_times: bool,
    /// The caller caches sizes, contents and modification times, as the kernel does with its
    /// writeback cache: it sets modification times by itself, and an open whose authenticated
    /// header does not agree with what the caller caches of the node fails with `ESTALE`.
    pub caller_caches: bool,
    /// Bytes that the caches may take, and as many again what was changed and is not committed (at
    /// least 1 MiB).
    pub cache_bytes: usize,
    /// Lock.
    pub lock: LockMode,
    /// Which shares are entered.
    pub trust: Trust,
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
        }
    }
}

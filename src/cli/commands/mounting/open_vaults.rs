//! Finding and ending vaults that are open.

use std::path::Path;

use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::user::named::Named;

/// Returns the live mount of a named vault.
pub fn mounted(named: &Named) -> Option<Entry> {
    let live = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    // Resolves the path only if it must: the store may not answer.
    let find = |vault: &Path| live.iter().find(|entry| entry.vault.0 == vault).cloned();
    find(&named.vault).or_else(|| find(&named.vault.canonicalize().ok()?))
}

/// Calls `act` for each of several vaults, also after a failure. Returns the last failure and
/// prints the earlier ones.
pub fn each<T>(
    all: Vec<T>,
    mut act: impl FnMut(T) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mut result = Ok(Exit::Ok);
    for one in all {
        if let Err(failure) = act(one)
            && let Err(before) = std::mem::replace(&mut result, Err(failure))
        {
            before.print();
        }
    }
    result
}

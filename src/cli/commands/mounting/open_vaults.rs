//! Finding and ending vaults that are open.

use std::path::Path;

use crate::cli::daemon::registry::{Entry, Registry};
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::user::named::Named;

/// Returns the live mount of a named vault.
pub fn mounted(named: &Named) -> Option<Entry> {
    let live = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    // Asks the store only if it must: it may not answer.
    let find = |vault: &Path| live.iter().find(|entry| entry.vault.0 == vault).cloned();
    find(&named.vault).or_else(|| find(&named.vault.canonicalize().ok()?))
}

/// Does something for each of several vaults. All are tried, and the last failure is returned.
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

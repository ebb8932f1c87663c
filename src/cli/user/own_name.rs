//! The name that this user has chosen to be seen under, by the members of their shares.
//!
//! It is one line in a file beside the identity. It is not a secret and proves nothing.

use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::user::contacts::read_own;
use crate::cli::user::directories;
use crate::format::identity::label_allowed;
use crate::format::members::MAX_NAME;

/// The name of a founder who has chosen none.
pub const NONE_CHOSEN: &str = "owner";

/// Returns the chosen name. A file that cannot be used counts as none.
pub fn chosen() -> Option<String> {
    let text = read_own(&directories::own_name().ok()?, MAX_NAME + 1).ok()??;
    Some(text.trim_end_matches('\n').to_owned()).filter(|name| is_allowed(name))
}

/// Returns the name that members see: the given one, else the chosen one, else [`NONE_CHOSEN`].
pub fn or_chosen(given: Option<&str>) -> String {
    given.map(str::to_owned).or_else(chosen).unwrap_or_else(|| NONE_CHOSEN.to_owned())
}

/// Returns whether a list of members can hold this name.
pub fn is_allowed(name: &str) -> bool {
    !name.is_empty() && label_allowed(name, MAX_NAME)
}

/// Refuses a name that no list of members can hold.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(name: &str) -> Result<(), Error> {
    if is_allowed(name) {
        return Ok(());
    }
    Err(Error::Usage(format!("a name has 1 to {MAX_NAME} bytes and no control characters")))
}

/// Stores the name.
///
/// # Errors
/// It is not allowed; those of writing the file.
pub fn choose(name: &str) -> Result<(), Error> {
    check(name)?;
    let path = directories::own_name()?;
    directories::make_parent(&path)?;
    let text = format!("{name}\n");
    replace(&path, text.as_bytes(), |written| {
        if written == text.as_bytes() { Ok(()) } else { Err(Error::NotReadBack(path.clone())) }
    })
}

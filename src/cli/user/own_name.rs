//! The name that this user has chosen, under which members of their shares see them.
//!
//! It is one line in a file beside the identity. It is not a secret and proves nothing.

use std::io::ErrorKind;

use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::user::contacts::read_own;
use crate::cli::user::directories;
use crate::format::identity::label_allowed;
use crate::format::members::MAX_NAME;

/// The name of a founder without a name of their own choice.
pub const NONE_CHOSEN: &str = "owner";

/// Describes the names that a list of members can hold.
fn rule() -> String {
    format!("a name has 1 to {MAX_NAME} bytes and no control characters")
}

/// Returns the chosen name, if there is one.
///
/// # Errors
/// Its file cannot be used.
pub fn chosen() -> Result<Option<String>, Error> {
    // Without a home directory, no name can have been stored.
    let Ok(path) = directories::own_name() else { return Ok(None) };
    let unusable = |what| Error::OwnName { path: path.clone(), what };
    let text = match read_own(&path, MAX_NAME + 1) {
        Err(Error::OwnFile { kind: ErrorKind::FileTooLarge, .. }) => return Err(unusable(rule())),
        Err(Error::OwnFile { kind: ErrorKind::InvalidData, .. }) => {
            return Err(unusable("it is not UTF-8".to_owned()));
        }
        read => read?,
    };
    let Some(text) = text else { return Ok(None) };
    let name = text.strip_suffix('\n').unwrap_or(&text);
    if is_allowed(name) { Ok(Some(name.to_owned())) } else { Err(unusable(rule())) }
}

/// Returns the chosen name for a prompt. A file that cannot be used counts as none.
pub fn for_prompt() -> Option<String> {
    chosen().unwrap_or_default()
}

/// Returns the name that members see: the given one, else the chosen one, else [`NONE_CHOSEN`].
///
/// # Errors
/// Those of [`chosen`]: members would see another name than the user has chosen.
pub fn or_chosen(given: Option<&str>) -> Result<String, Error> {
    match given {
        Some(name) => Ok(name.to_owned()),
        None => Ok(chosen()?.unwrap_or_else(|| NONE_CHOSEN.to_owned())),
    }
}

/// Returns whether members see [`NONE_CHOSEN`], as no name was given and none was chosen.
///
/// # Errors
/// Those of [`chosen`].
pub fn is_missing(given: Option<&str>) -> Result<bool, Error> {
    Ok(given.is_none() && chosen()?.is_none())
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
    Err(Error::Usage(rule()))
}

/// Refuses to replace a directory or another object that is not the file with the name.
///
/// # Errors
/// [`Error::OwnFile`].
pub fn check_place() -> Result<(), Error> {
    let path = directories::own_name()?;
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let (what, kind) = ("it is not a regular file".to_owned(), ErrorKind::InvalidInput);
        return Err(Error::OwnFile { path, line: None, what, kind });
    }
    Ok(())
}

/// Stores the name.
///
/// # Errors
/// The name is not allowed; those of writing the file.
pub fn choose(name: &str) -> Result<(), Error> {
    check(name)?;
    check_place()?;
    let path = directories::own_name()?;
    directories::make_parent(&path)?;
    let text = format!("{name}\n");
    replace(&path, text.as_bytes(), |written| {
        if written == text.as_bytes() { Ok(()) } else { Err(Error::NotReadBack(path.clone())) }
    })
}

//! The file of contacts. It is read, changed under a lock, and replaced as a whole.
//!
//! The file is neither signed nor sealed. Anybody who can write to it could as well replace the
//! program that reads it. A file that other users may write to is refused, and checksums protect
//! the keys against accidents.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use unicode_security::MixedScript;
use unicode_security::confusable_detection::skeleton;

use crate::cli::display::Shown;
use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::report::Failure;
use crate::cli::user::directories;
use crate::roster::contacts::MAX_LEN;
use crate::roster::{ContactError, Contacts};

/// Reads the contacts of this user; none if there is no file.
///
/// # Errors
/// The file cannot be read, is damaged, or other users may write to it.
pub fn load() -> Result<Contacts, Failure> {
    Ok(read(&directories::contacts()?)?)
}

/// Changes the contacts of this user under a lock. Returns the result of `change` once it is
/// durable.
///
/// # Errors
/// Those of reading, of writing and of `change`; the file is then unchanged, unless only the sync
/// of its directory failed.
pub fn update<T>(change: impl FnOnce(&mut Contacts) -> Result<T, Failure>) -> Result<T, Failure> {
    let path = directories::contacts()?;
    directories::make_parent(&path)?;
    let _lock = lock(&path)?;
    let mut contacts = read(&path)?;
    let before = contacts.clone();
    let outcome = change(&mut contacts)?;
    if contacts != before {
        replace(&path, contacts.to_text().as_bytes(), |written| {
            let read_back = std::str::from_utf8(written).ok().map(Contacts::parse);
            if read_back == Some(Ok(contacts.clone())) {
                Ok(())
            } else {
                Err(Failure::from(Error::NotReadBack(path.clone())))
            }
        })?;
    }
    Ok(outcome)
}

/// Locks a file beside `path` until the returned handle is dropped. The file at `path` is replaced
/// by changes, so it cannot carry the lock.
pub fn lock(path: &Path) -> Result<File, Error> {
    let path = path.with_extension("lock");
    let failed = |source| Error::Io { op: "lock", path: path.clone(), source };
    // An open of a FIFO of that name would wait for its reader.
    let mut how = File::options();
    how.create(true).truncate(false).write(true).custom_flags(libc::O_NONBLOCK);
    how.mode(0o600); // a daemon has no umask
    let file = how.open(&path).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

/// Reads a text file of this user, at most `max` bytes; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, is too large or no text, or other users may write to it.
pub fn read_own(path: &Path, max: usize) -> Result<Option<String>, Error> {
    let unusable =
        |line, kind, what: String| Error::OwnFile { path: path.to_owned(), line, what, kind };
    let failed = |source: io::Error| unusable(None, source.kind(), source.to_string());
    // The open of a FIFO of that name would block the command.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let what = "it is not a regular file".to_owned();
        return Err(unusable(None, io::ErrorKind::InvalidInput, what));
    }
    directories::check_private(path, &metadata)?;
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max {
        let what = format!("it is larger than {max} bytes");
        return Err(unusable(None, io::ErrorKind::FileTooLarge, what));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        unusable(Some(line), io::ErrorKind::InvalidData, format!("line {line}: it is not UTF-8"))
    })?;
    Ok(Some(text))
}

fn read(path: &Path) -> Result<Contacts, Error> {
    match read_own(path, MAX_LEN)? {
        Some(text) => Contacts::parse(&text)
            .map_err(|source| Error::Contacts { path: path.to_owned(), source }),
        None => Ok(Contacts::default()),
    }
}

/// Returns why a name could be mistaken for another one: it mixes scripts, or a contact has a name
/// that looks the same.
pub fn look_alike(contacts: &Contacts, name: &str) -> Option<String> {
    let looks = |name: &str| skeleton(name).collect::<String>();
    let same = contacts
        .all()
        .iter()
        .find(|contact| contact.name != name && looks(&contact.name) == looks(name));
    match same {
        Some(contact) => Some(format!(
            "it looks like the name of {}, another contact",
            Shown(contact.name.as_bytes())
        )),
        None if !name.is_single_script() => {
            Some("it mixes letters of several scripts, some of which look alike".to_owned())
        }
        None => None,
    }
}

/// Adds the path of the contacts file to an error about contacts.
pub fn failed(error: ContactError) -> Error {
    match directories::contacts() {
        Ok(path) => Error::Contacts { path, source: error },
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::PublicIdentity;

    /// A daemon in the background has the umask 0, so it left lock files that every user could
    /// open, and hold a lock on.
    #[test]
    fn only_the_user_may_open_a_lock_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let held = lock(&folder.path().join("contacts")).unwrap();
        assert_eq!(held.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_name_that_could_be_taken_for_another_is_found() {
        let mut contacts = Contacts::default();
        for (index, name) in ["Bob", "Anna Müller"].into_iter().enumerate() {
            contacts
                .add(name, &PublicIdentity { sign: [index as u8; 32], exchange: [index as u8; 32] })
                .unwrap();
        }
        // with letters of Cyrillic and Greek
        for (name, like) in
            [("B\u{43e}b", "Bob"), ("\u{391}nna Müller", "Anna"), ("Ey\u{435}", "several scripts")]
        {
            let why = look_alike(&contacts, name);
            assert!(why.as_deref().is_some_and(|why| why.contains(like)), "{name}: {why:?}");
        }
        for name in ["Bob", "Bob 2", "Боб", "田中さん", "Ελένη", "O'Neill-Öz, ann@example.org"]
        {
            assert_eq!(look_alike(&contacts, name), None, "{name}");
        }
    }
}

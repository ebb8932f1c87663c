//! Paths inside a vault, as given on the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cli::error::Error;

/// Returns a path from the vault's root without `.` and empty components; the root is empty.
///
/// # Errors
/// The path contains `..`, which has no meaning as symlinks are not followed.
pub fn clean(given: &OsStr) -> Result<Vec<u8>, Error> {
    let components: Vec<&[u8]> = given
        .as_bytes()
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty() && *component != b".")
        .collect();
    if components.contains(&&b".."[..]) {
        return Err(Error::Usage(format!(
            "path {} has a component `..`",
            crate::cli::display::Shown(given.as_bytes())
        )));
    }
    Ok(components.join(&b'/'))
}

/// Splits a clean path into parent and last component; `None` for the root.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    })
}

/// Appends a component to a path.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Splits `VAULT[/PATH]` at the deepest directory that contains a vault's descriptor. A plain path
/// is never found in the ciphertext, as stored names are not plain ones. Without such a directory,
/// returns the whole path as the vault.
///
/// # Errors
/// The rest contains `..`.
pub fn split_vault(given: &Path) -> Result<(PathBuf, Vec<u8>), Error> {
    for vault in given.ancestors() {
        let here = if vault.as_os_str().is_empty() { Path::new(".") } else { vault };
        if here.join(DESCRIPTOR).symlink_metadata().is_ok() {
            let rest = given.strip_prefix(vault).expect("an ancestor is a prefix");
            return Ok((here.to_owned(), clean(rest.as_os_str())?));
        }
    }
    // The message that this is no vault then names the whole path.
    Ok((given.to_owned(), Vec::new()))
}

/// Returns the vault and the path in it that `VAULT PATH` or `VAULT/PATH` names; without a path the
/// root.
///
/// # Errors
/// Those of [`split_vault`].
pub fn one(vault: &Path, path: Option<&OsStr>) -> Result<(PathBuf, Vec<u8>), Error> {
    let (dir, base) = split_vault(vault)?;
    let path = match path {
        Some(path) => inside(&dir, &base, path)?,
        None => base,
    };
    Ok((dir, path))
}

/// Does [`one`] for commands with several paths: `VAULT PATH...`, or `VAULT/PATH` for each. With
/// `VAULT/DIR PATH...`, the paths are relative to that directory.
///
/// # Errors
/// Those of [`split_vault`].
pub fn several(vault: &Path, paths: &[OsString]) -> Result<(PathBuf, Vec<Vec<u8>>), Error> {
    let (dir, base) = split_vault(vault)?;
    let spelled_out = |path: &OsString| in_vault(&dir, path).is_some();
    let mut found = Vec::new();
    if !base.is_empty() && (paths.is_empty() || paths.iter().all(spelled_out)) {
        found.push(base.clone());
    }
    for path in paths {
        found.push(inside(&dir, &base, path)?);
    }
    Ok((dir, found))
}

/// Returns the path in the vault `dir` that `path` names. It is relative to `base`, unless it
/// begins with the path of the vault.
fn inside(dir: &Path, base: &[u8], path: &OsStr) -> Result<Vec<u8>, Error> {
    if let Some(path) = in_vault(dir, path) {
        return Ok(path);
    }
    let path = clean(path)?;
    Ok(match (base.is_empty(), path.is_empty()) {
        (true, _) => path,
        (false, true) => base.to_vec(),
        (false, false) => join(base, &path),
    })
}

/// Returns the rest of a path that begins with the vault `dir` and goes on; else `None`.
fn in_vault(dir: &Path, path: &OsStr) -> Option<Vec<u8>> {
    let (vault, rest) = split_vault(Path::new(path)).ok()?;
    let is_it = !rest.is_empty() && vault.canonicalize().ok()? == dir.canonicalize().ok()?;
    is_it.then_some(rest)
}

/// The file that every vault contains.
const DESCRIPTOR: &str = "+share";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        for (given, cleaned) in
            [("", ""), ("/", ""), ("a", "a"), ("/a//b/./c/", "a/b/c"), (".", ""), ("..a", "..a")]
        {
            assert_eq!(clean(given.as_ref()).unwrap(), cleaned.as_bytes());
        }
        assert!(clean("a/../b".as_ref()).is_err());
        assert_eq!(clean(OsStr::from_bytes(b"\xff/x")).unwrap(), b"\xff/x");
    }

    #[test]
    fn the_last_component() {
        assert_eq!(split(b""), None);
        assert_eq!(split(b"a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split(b"a/b/c"), Some((&b"a/b"[..], &b"c"[..])));
        assert_eq!(join(b"", b"a"), b"a");
        assert_eq!(join(b"a/b", b"c"), b"a/b/c");
    }

    #[test]
    fn the_vault_is_the_part_with_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let vault = dir.path().join("v");
        std::fs::create_dir(&vault).unwrap();
        std::fs::write(vault.join(DESCRIPTOR), "").unwrap();
        assert_eq!(split_vault(&vault).unwrap(), (vault.clone(), vec![]));
        assert_eq!(split_vault(&vault.join("a/b")).unwrap(), (vault.clone(), b"a/b".to_vec()));
        assert_eq!(split_vault(&dir.path().join("x/y")).unwrap(), (dir.path().join("x/y"), vec![]));
        assert!(split_vault(&vault.join("a/../b")).is_err());
    }

    #[test]
    fn both_spellings_name_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let vault = dir.path().join("v");
        std::fs::create_dir(&vault).unwrap();
        std::fs::write(vault.join(DESCRIPTOR), "").unwrap();
        let at = |path: &str| vault.join(path);
        let one =
            |given: &Path, path: Option<&str>| super::one(given, path.map(OsStr::new)).unwrap().1;
        assert_eq!(one(&vault, None), b"");
        assert_eq!(one(&vault, Some("a/b")), b"a/b");
        assert_eq!(one(&at("a/b"), None), b"a/b");
        assert_eq!(one(&at("a"), Some("b")), b"a/b");
        assert_eq!(one(&vault, Some(at("a/b").to_str().unwrap())), b"a/b");
        let several = |given: &Path, paths: &[&Path]| -> Vec<String> {
            let paths: Vec<OsString> = paths.iter().map(|path| path.as_os_str().into()).collect();
            let found = super::several(given, &paths).unwrap().1;
            found.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
        };
        assert_eq!(several(&vault, &["a".as_ref(), "b/c".as_ref()]), ["a", "b/c"]);
        assert_eq!(several(&at("a"), &[]), ["a"]);
        assert_eq!(several(&at("a"), &[&at("b")]), ["a", "b"]);
        assert_eq!(several(&at("a"), &["b".as_ref()]), ["a/b"]);
        assert!(several(&vault, &[]).is_empty());
    }
}

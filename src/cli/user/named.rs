//! Named vaults: `vaults.toml` in the configuration directory, one table for each name.
//!
//! ```toml
//! [photos]
//! vault = "/home/ann/vault"
//! mountpoint = "/home/ann/photos"
//! idle = "10m"
//! options = "noatime"
//! ```
//!
//! Rules that hold here
//! * Apart from `vault` and `mountpoint`, a key is the long name of an option of `kithfs mount`,
//!   and `options` is what follows its `-o`. The command line checks them when they are used.
//! * Paths are absolute, or begin with `~/`.
//! * The file may name a command that is run, so it is refused if other users may write to it.
//! * Comments and unknown keys survive a change.

use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::user::contacts::{lock, read_own};
use crate::cli::user::directories;

/// Length limit of the file, in bytes.
const MAX_LEN: usize = 1 << 20;
/// Length limit of a name, in bytes: it is part of file names and unit names.
const NAME_MAX: usize = 64;

/// The key of the options that follow `-o`.
pub const OPTIONS: &str = "options";

/// An option of `kithfs mount` by its long name, with its values; a switch has none.
pub type Setting = (String, Vec<String>);

/// A named vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The vault.
    pub vault: PathBuf,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The options of `kithfs mount`.
    pub settings: Vec<Setting>,
}

impl Named {
    fn write(&self, into: &mut DocumentMut) {
        let table = into.entry(&self.name).or_insert_with(|| Item::Table(Table::new()));
        let mut set = |key: &str, value: Value| match table.get_mut(key) {
            // Keeps a comment on the line.
            Some(Item::Value(old)) => {
                let decor = old.decor().clone();
                *old = value;
                *old.decor_mut() = decor;
            }
            _ => table[key] = Item::Value(value),
        };
        let path = |path: &Path| Value::from(path.to_string_lossy().into_owned());
        set("vault", path(&self.vault));
        set("mountpoint", path(&self.mountpoint));
        for (key, values) in &self.settings {
            match &values[..] {
                [] => set(key, true.into()),
                [value] => set(key, value.into()),
                values => set(key, values.iter().collect::<Array>().into()),
            }
        }
    }
}

/// Returns whether a vault can have this name.
fn is_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=NAME_MAX).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name.chars().all(is_valid)
}

/// Returns a path as it is stored: absolute, whether it exists or not.
///
/// # Errors
/// There is no working directory.
pub fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::Io { op: "find", path: path.to_owned(), source };
    std::path::absolute(path).map_err(failed)
}

/// Returns a path as text.
///
/// # Errors
/// It is not UTF-8, which the file cannot hold.
pub fn checked(path: &Path) -> Result<String, Error> {
    let not_text = || Error::Usage(format!("{}: only a path of UTF-8 can be stored", shown(path)));
    path.to_str().map(str::to_owned).ok_or_else(not_text)
}

/// Returns all named vaults, in the order of the file.
///
/// # Errors
/// The file cannot be read, other users may write to it, or an entry is invalid.
pub fn load() -> Result<Vec<Named>, Error> {
    let path = directories::vaults()?;
    parse(&read(&path)?, &path)
}

/// Returns the vault with this name.
///
/// # Errors
/// Those of [`load`]; there is none.
pub fn find(name: &str) -> Result<Named, Error> {
    let found = load()?.into_iter().find(|named| named.name == name);
    found.ok_or_else(|| Error::NoSuchVault(name.to_owned()))
}

/// Adds a vault or, if its name is known and `replaces` is set, changes it.
///
/// # Errors
/// Those of [`load`] and of writing; the name is invalid, or known and not to be changed.
pub fn put(named: &Named, replaces: bool) -> Result<(), Error> {
    if !is_name(&named.name) {
        return Err(Error::VaultName(named.name.clone()));
    }
    checked(&named.vault)?;
    checked(&named.mountpoint)?;
    change(|document, _| {
        if !replaces && document.contains_key(&named.name) {
            return Err(Error::VaultNameTaken(named.name.clone()));
        }
        if let Some(table) = document.get_mut(&named.name).and_then(Item::as_table_like_mut) {
            let stays = |key: &str| named.settings.iter().any(|(other, _)| other == key);
            let keys: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
            for key in keys.iter().filter(|key| !stays(key)) {
                if !matches!(key.as_str(), "vault" | "mountpoint") {
                    table.remove(key);
                }
            }
        }
        named.write(document);
        Ok(())
    })
}

/// Removes names.
///
/// # Errors
/// Those of [`load`] and of writing; a name is not known.
pub fn remove(names: &[String]) -> Result<(), Error> {
    change(|document, _| {
        for name in names {
            document.remove(name).ok_or_else(|| Error::NoSuchVault(name.clone()))?;
        }
        Ok(())
    })
}

fn read(path: &Path) -> Result<DocumentMut, Error> {
    let text = read_own(path, MAX_LEN)?.unwrap_or_default();
    text.parse().map_err(|error: toml_edit::TomlError| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.unwrap_or_default().matches('\n').count() + 1;
        let what =
            format!("line {line}: {}", error.message().lines().collect::<Vec<_>>().join(", "));
        Error::NamedVaults { path: path.to_owned(), what }
    })
}

fn change(change: impl FnOnce(&mut DocumentMut, &Path) -> Result<(), Error>) -> Result<(), Error> {
    let path = directories::vaults()?;
    directories::make_parent(&path)?;
    let _lock = lock(&path)?;
    let mut document = read(&path)?;
    change(&mut document, &path)?;
    let text = document.to_string();
    replace(&path, text.as_bytes(), |written| {
        let is_same = written == text.as_bytes();
        if is_same { Ok(()) } else { Err(Error::NotReadBack(path.clone())) }
    })
}

fn parse(document: &DocumentMut, path: &Path) -> Result<Vec<Named>, Error> {
    let invalid = |what: String| Error::NamedVaults { path: path.to_owned(), what };
    let mut all = Vec::new();
    for (name, item) in document.iter() {
        if !is_name(name) {
            return Err(invalid(format!("[{}] is no name for a vault", Shown(name.as_bytes()))));
        }
        let table = item.as_table_like().ok_or_else(|| invalid(format!("{name} is no table")))?;
        let place = |key: &str| {
            let value = table.get(key).and_then(Item::as_str).map(expand);
            let path = value.ok_or_else(|| invalid(format!("[{name}] has no path {key}")))?;
            // From another directory it would be another vault, or a mount point that is created.
            let is_usable = path.is_absolute();
            is_usable
                .then_some(path)
                .ok_or_else(|| invalid(format!("[{name}] {key} begins with neither `/` nor `~/`")))
        };
        let (vault, mountpoint) = (place("vault")?, place("mountpoint")?);
        let mut settings = Vec::new();
        for (key, item) in table.iter().filter(|(key, _)| !matches!(*key, "vault" | "mountpoint")) {
            let values = match item.as_value() {
                Some(Value::Boolean(is_set)) if !is_set.value() => continue,
                Some(Value::Boolean(_)) => Vec::new(),
                Some(Value::Array(array)) => array.iter().filter_map(text).collect(),
                value => value.and_then(text).into_iter().collect(),
            };
            let is_switch = item.as_bool() == Some(true);
            if values.is_empty() && !is_switch {
                return Err(invalid(format!(
                    "[{name}] {key} is neither a text, a number, true, false nor a list of texts"
                )));
            }
            settings.push((key.to_owned(), values));
        }
        all.push(Named { name: name.to_owned(), vault, mountpoint, settings });
    }
    Ok(all)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        _ => None,
    }
}

/// Resolves `~/` in a path that a person wrote into the file.
fn expand(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Vec<Named>, String> {
        let document = text.parse::<DocumentMut>().unwrap();
        parse(&document, Path::new("/vaults.toml")).map_err(|error| error.to_string())
    }

    fn setting(key: &str, values: &[&str]) -> Setting {
        (key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())
    }

    #[test]
    fn a_table_becomes_settings() {
        let text = r#"
            [photos]
            vault = "/v"
            mountpoint = "/m"
            read-only = true
            shared = false
            idle = 600
            options = ["noatime", "nodev"]
            passphrase-command = "pass show v"
        "#;
        let named = parse_text(text).unwrap().pop().unwrap();
        assert_eq!((&*named.name, named.vault.as_path()), ("photos", Path::new("/v")));
        let expected = [
            setting("read-only", &[]),
            setting("idle", &["600"]),
            setting("options", &["noatime", "nodev"]),
            setting("passphrase-command", &["pass show v"]),
        ];
        assert_eq!(named.settings, expected);
    }

    #[test]
    fn an_invalid_table_is_named() {
        for (text, what) in [
            ("a = 1", "a is no table"),
            ("[a]\nvault = '/v'", "[a] has no path mountpoint"),
            // A relative path led to another place from each directory.
            ("[a]\nvault = 'v'\nmountpoint = '/m'", "[a] vault begins with neither"),
            ("[a]\nvault = '/v'\nmountpoint = ''", "[a] mountpoint begins with neither"),
            // A name was printed as it was, with its control characters.
            ("[\"a\\u001b[31m\"]\nvault = '/v'\nmountpoint = '/m'", "is no name for a vault"),
            ("['--all']\nvault = '/v'\nmountpoint = '/m'", "is no name for a vault"),
            ("[a]\nvault = '/v'\nmountpoint = '/m'\nidle = 1.5", "[a] idle is neither"),
            ("[a]\nvault = '/v'\nmountpoint = '/m'\nidle = []", "[a] idle is neither"),
        ] {
            let said = parse_text(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn a_change_keeps_comments_and_the_order() {
        let text = "# mine\n[b]\nvault = \"/v\" # the disk\nmountpoint = \"/m\"\n\n[a]\nvault = \"/w\"\nmountpoint = \"/n\"\n";
        let mut document = text.parse::<DocumentMut>().unwrap();
        let mut named = parse(&document, Path::new("/x")).unwrap().remove(0);
        named.vault = "/new".into();
        named.settings.push(setting("idle", &["5m"]));
        named.write(&mut document);
        let changed = document.to_string();
        assert!(changed.starts_with("# mine\n[b]\nvault = \"/new\" # the disk\n"), "{changed}");
        assert!(changed.contains("idle = \"5m\"\n\n[a]"), "{changed}");
    }
}

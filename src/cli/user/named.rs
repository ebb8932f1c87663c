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
//! * A change keeps the comments, the order, and the entries of other names.

use std::path::{Path, PathBuf};

use toml_edit::{Array, Document, DocumentMut, Item, Table, TableLike, Value};

use crate::cli::display::path as shown;
use crate::cli::error::{Error, NAME_RULE};
use crate::cli::local::replace::replace;
use crate::cli::report::Failure;
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
    let text = read(&path)?;
    parse(&document(&text, &path)?, &path)
}

/// Returns the vault with this name.
///
/// # Errors
/// Those of [`load`]; no vault has the name.
pub fn find(name: &str) -> Result<Named, Error> {
    take(load()?, name)
}

fn take(all: Vec<Named>, name: &str) -> Result<Named, Error> {
    let found = all.into_iter().find(|named| named.name == name);
    found.ok_or_else(|| Error::NoSuchVault(name.to_owned()))
}

/// Returns the error of a setting that is stored in the file and has no valid value.
///
/// # Errors
/// Those of reading the file.
pub fn invalid_setting(name: &str, key: &str, what: String) -> Result<Error, Error> {
    let path = directories::vaults()?;
    let text = read(&path)?;
    let document = document(&text, &path)?;
    let item = document.get(name);
    let table = item.and_then(Item::as_table_like);
    // A setting that was only given on the command line is on no line of the file.
    let span = table.and_then(|table| table.key(key)).and_then(toml_edit::Key::span);
    let span = span.or_else(|| item.and_then(Item::span));
    let line = line_of(&text, span.unwrap_or_default().start);
    Ok(Error::NamedVaultOption { path, line, name: name.to_owned(), key: key.to_owned(), what })
}

/// Adds a vault.
///
/// # Errors
/// Those of [`load`] and of writing; the name is invalid, or a vault has it.
pub fn add(named: &Named) -> Result<(), Failure> {
    if !is_name(&named.name) {
        return Err(Error::VaultName(named.name.clone()).into());
    }
    change(|document, _| {
        if document.contains_key(&named.name) {
            return Err(Error::VaultNameTaken(named.name.clone()).into());
        }
        put(named, document)
    })
}

/// Changes the vault with this name. The file is locked meanwhile, so that no change of another
/// command is lost.
///
/// # Errors
/// Those of [`load`], of writing and of `alter`; there is no such vault.
pub fn update(
    name: &str,
    alter: impl FnOnce(&mut Named) -> Result<(), Failure>,
) -> Result<(), Failure> {
    change(|document, all| {
        let mut named = take(all, name)?;
        alter(&mut named)?;
        if let Some(table) = document.get_mut(name).and_then(Item::as_table_like_mut) {
            let stays = |key: &str| named.settings.iter().any(|(other, _)| other == key);
            let keys: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
            for key in keys.iter().filter(|key| !stays(key)) {
                if !matches!(key.as_str(), "vault" | "mountpoint") {
                    table.remove(key);
                }
            }
        }
        put(&named, document)
    })
}

fn put(named: &Named, document: &mut DocumentMut) -> Result<(), Failure> {
    checked(&named.vault)?;
    checked(&named.mountpoint)?;
    named.write(document);
    Ok(())
}

/// Removes names. A name whose entry is invalid can be removed too.
///
/// # Errors
/// Those of reading and of writing; a name is not known.
pub fn remove(names: &[String]) -> Result<(), Failure> {
    rewrite(|document, _| {
        for name in names {
            document.remove(name).ok_or_else(|| Error::NoSuchVault(name.clone()))?;
        }
        Ok(())
    })
}

fn read(path: &Path) -> Result<String, Error> {
    Ok(read_own(path, MAX_LEN)?.unwrap_or_default())
}

/// Parses the file. The result has the position of each entry in the text.
fn document<'a>(text: &'a str, path: &Path) -> Result<Document<&'a str>, Error> {
    Document::parse(text).map_err(|error| Error::NamedVaults {
        path: path.to_owned(),
        line: line_of(text, error.span().unwrap_or_default().start),
        what: error.message().lines().collect::<Vec<_>>().join(", "),
    })
}

/// Returns the number of the line, from 1, on which this byte is.
fn line_of(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1
}

/// Changes the file under its lock. `change` also gets its vaults.
fn change(
    change: impl FnOnce(&mut DocumentMut, Vec<Named>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    rewrite(|document, text| {
        let path = directories::vaults()?;
        let all = parse(&self::document(text, &path)?, &path)?;
        change(document, all)
    })
}

/// Rewrites the file under its lock. `change` also gets its text.
fn rewrite(
    change: impl FnOnce(&mut DocumentMut, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let path = directories::vaults()?;
    directories::make_parent(&path)?;
    let _lock = lock(&path)?;
    let before = read(&path)?;
    let mut document = document(&before, &path)?.into_mut();
    change(&mut document, &before)?;
    let text = document.to_string();
    replace(&path, text.as_bytes(), |written| {
        let is_same = written == text.as_bytes();
        if is_same { Ok(()) } else { Err(Error::NotReadBack(path.clone()).into()) }
    })
}

fn parse(document: &Document<&str>, path: &Path) -> Result<Vec<Named>, Error> {
    let mut all = Vec::new();
    for (name, item) in document.iter() {
        let start = |span: Option<std::ops::Range<usize>>| span.unwrap_or_default().start;
        let header = start(document.key(name).and_then(toml_edit::Key::span).or(item.span()));
        let invalid = |at: usize, what: String| Error::NamedVaults {
            path: path.to_owned(),
            line: line_of(document.raw(), at),
            what,
        };
        if !is_name(name) {
            return Err(invalid(header, format!("`{name}` is no name for a vault: {NAME_RULE}")));
        }
        let table = item
            .as_table_like()
            .ok_or_else(|| invalid(header, format!("{name} is no table, such as [{name}]")))?;
        let at = |key: &str| table.key(key).map_or(header, |key| start(key.span()));
        let place = |key: &str| {
            let value = table.get(key).and_then(Item::as_str).map(expand);
            let path =
                value.ok_or_else(|| invalid(at(key), format!("[{name}] has no path {key}")))?;
            // A relative path would be another vault or mount point in each working directory.
            let is_usable = path.is_absolute();
            is_usable.then_some(path).ok_or_else(|| {
                invalid(at(key), format!("[{name}] {key} begins with neither `/` nor `~/`"))
            })
        };
        let (vault, mountpoint) = (place("vault")?, place("mountpoint")?);
        let settings = settings(table).map_err(|key| {
            let what = "is neither a text, a number, true, false nor a list of texts";
            invalid(at(key), format!("[{name}] {key} {what}"))
        })?;
        all.push(Named { name: name.to_owned(), vault, mountpoint, settings });
    }
    Ok(all)
}

/// Returns the settings in a table, or the key of one that has no usable value.
fn settings(table: &dyn TableLike) -> Result<Vec<Setting>, &str> {
    let mut settings = Vec::new();
    for (key, item) in table.iter().filter(|(key, _)| !matches!(*key, "vault" | "mountpoint")) {
        let values = match item.as_value() {
            Some(Value::Boolean(is_set)) if !is_set.value() => continue,
            Some(Value::Boolean(_)) => Some(Vec::new()),
            Some(Value::Array(array)) => array.iter().map(text).collect(),
            value => value.and_then(text).map(|text| vec![text]),
        };
        let is_switch = item.as_bool() == Some(true);
        let values = values.filter(|values| is_switch || !values.is_empty()).ok_or(key)?;
        settings.push((key.to_owned(), values));
    }
    Ok(settings)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(match expand(text.value()).into_os_string().into_string() {
            Ok(path) => path,
            Err(_) => text.value().clone(),
        }),
        Value::Integer(number) => Some(number.value().to_string()),
        _ => None,
    }
}

/// Resolves `~/` at the beginning of a value that a person wrote into the file, as a shell does.
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
        let path = Path::new("/vaults.toml");
        let parsed = document(text, path).and_then(|document| parse(&document, path));
        parsed.map_err(|error| error.to_string())
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
            ("# x\na = 1", "line 2: a is no table"),
            ("\n[[a]]\nvault = '/v'\nmountpoint = '/m'", "line 2: a is no table"),
            ("[a]\nvault = '/v'", "line 1: [a] has no path mountpoint"),
            ("[a]\nvault = 5\nmountpoint = '/m'", "line 2: [a] has no path vault"),
            // A relative path led to another place from each directory.
            ("[a]\nvault = 'v'\nmountpoint = '/m'", "line 2: [a] vault begins with neither"),
            ("[a]\nvault = '/v'\nmountpoint = ''", "line 3: [a] mountpoint begins with neither"),
            // A name was printed as it was, with its control characters.
            ("[\"a\\u001b[31m\"]\nvault = '/v'\nmountpoint = '/m'", "line 1: `a\\x1b[31m` is no"),
            ("\n['--all']\nvault = '/v'\nmountpoint = '/m'", "line 2: `--all` is no name"),
            ("['a/b']\nvault = '/v'\nmountpoint = '/m'", "line 1: `a/b` is no name"),
            ("[a]\nvault = '/v'\nmountpoint = '/m'\nidle = 1.5", "line 4: [a] idle is neither"),
            ("[a]\nvault = '/v'\nmountpoint = '/m'\nidle = []", "line 4: [a] idle is neither"),
            // What is no text in a list was left out without a message.
            (
                "[a]\nvault = '/v'\nmountpoint = '/m'\noptions = ['ro', 1.5]",
                "line 4: [a] options is",
            ),
            ("[a]\r\nvault = '/v'\r\nmountpoint = /m\r\n", "line 3: "),
            ("[a]\nvault = '/v'\nmountpoint = '/m'\n\n[a]\n", "line 5: duplicate key"),
        ] {
            let said = parse_text(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn a_change_keeps_comments_and_the_order() {
        let text = "# mine\n[b]\nvault = \"/v\" # the disk\nmountpoint = \"/m\"\n\n[a]\nvault = \"/w\"\nmountpoint = \"/n\"\n";
        let parsed = document(text, Path::new("/x")).unwrap();
        let mut named = parse(&parsed, Path::new("/x")).unwrap().remove(0);
        let mut document = parsed.into_mut();
        named.vault = "/new".into();
        named.settings.push(setting("idle", &["5m"]));
        named.write(&mut document);
        let changed = document.to_string();
        assert!(changed.starts_with("# mine\n[b]\nvault = \"/new\" # the disk\n"), "{changed}");
        assert!(changed.contains("idle = \"5m\"\n\n[a]"), "{changed}");
    }

    /// Only the vault and the mount point could begin with `~/`; a key file could not.
    #[test]
    fn every_path_may_begin_with_the_home_directory() {
        let home = std::env::var("HOME").unwrap();
        let text = "[photos]\nvault = '~/v'\nmountpoint = '~/m'\nkey-file = '~/k'\n\
                    age-identity = ['~/a', '/b']\nlabel = 'a~/b'\n";
        let [photos] = &parse_text(text).unwrap()[..] else { panic!() };
        assert_eq!(photos.vault, Path::new(&home).join("v"));
        let of_home = |name: &str| format!("{home}/{name}");
        assert_eq!(
            photos.settings,
            [
                setting("key-file", &[&of_home("k")]),
                setting("age-identity", &[&of_home("a"), "/b"]),
                setting("label", &["a~/b"]),
            ]
        );
    }
}

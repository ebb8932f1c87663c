//! `expected.txt`: the contents of a frozen vault.

use std::collections::BTreeMap;

/// One entry. Equal entries have equal contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `dir`, `file`, `symlink` or `fifo`.
    pub kind: String,
    /// Plain size of a file or a link.
    pub size: u64,
    /// BLAKE3 of a file's contents, or a link's target in hexadecimal; otherwise `-`.
    pub contents: String,
    /// Extended attributes: name and value.
    pub attributes: BTreeMap<String, String>,
}

/// The contents of `expected.txt`.
#[derive(Debug, Default)]
pub struct Expected {
    pub passphrase: String,
    pub recovery_code: String,
    pub key_file: Vec<u8>,
    /// An age identity, in its text form.
    pub age_identity: String,
    pub share_id: String,
    pub identity: String,
    pub fingerprint: String,
    /// By path, its components in hexadecimal.
    pub entries: BTreeMap<String, Entry>,
    /// Stored paths of FIFOs.
    pub store_fifos: Vec<String>,
    /// Stored path and value of the store's attribute.
    pub store_xattrs: Vec<(String, Vec<u8>)>,
}

impl Expected {
    pub fn parse(text: &str) -> Self {
        let mut expected = Expected::default();
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap();
            match word {
                "passphrase" => expected.passphrase = rest.to_owned(),
                "recovery-code" => expected.recovery_code = rest.to_owned(),
                "key-file" => expected.key_file = hex::decode(rest).unwrap(),
                "age-identity" => expected.age_identity = rest.to_owned(),
                "share-id" => expected.share_id = rest.to_owned(),
                "identity" => expected.identity = rest.to_owned(),
                "fingerprint" => expected.fingerprint = rest.to_owned(),
                "store-fifo" => expected.store_fifos.push(rest.to_owned()),
                "store-xattr" => {
                    let (path, value) = rest.split_once(' ').unwrap();
                    expected.store_xattrs.push((path.to_owned(), hex::decode(value).unwrap()));
                }
                "xattr" => {
                    let parts: Vec<&str> = rest.split(' ').collect();
                    let entry = expected
                        .entries
                        .get_mut(parts[0])
                        .expect("the entry comes before its attributes");
                    entry.attributes.insert(parts[1].to_owned(), parts[2].to_owned());
                }
                kind => {
                    let parts: Vec<&str> = rest.split(' ').collect();
                    let [path, size, contents] = parts[..] else { panic!("{line:?}") };
                    let entry = Entry {
                        kind: kind.to_owned(),
                        size: size.parse().unwrap(),
                        contents: contents.to_owned(),
                        attributes: BTreeMap::new(),
                    };
                    assert!(
                        expected.entries.insert(path.to_owned(), entry).is_none(),
                        "{path} is listed twice"
                    );
                }
            }
        }
        expected
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "passphrase {}\nrecovery-code {}\nkey-file {}\nage-identity {}\nshare-id {}\nidentity {}\nfingerprint {}\n",
            self.passphrase,
            self.recovery_code,
            hex::encode(&self.key_file),
            self.age_identity,
            self.share_id,
            self.identity,
            self.fingerprint
        );
        for (path, entry) in &self.entries {
            text.push_str(&format!("{} {path} {} {}\n", entry.kind, entry.size, entry.contents));
            for (name, value) in &entry.attributes {
                text.push_str(&format!("xattr {path} {name} {value}\n"));
            }
        }
        for path in &self.store_fifos {
            text.push_str(&format!("store-fifo {path}\n"));
        }
        for (path, value) in &self.store_xattrs {
            text.push_str(&format!("store-xattr {path} {}\n", hex::encode(value)));
        }
        text
    }
}

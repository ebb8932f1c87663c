//! Contacts: the public keys of people, and how certain each one is.
//!
//! ```text
//! kithfs contacts 1
//! new kith1... - Bob               nobody has compared the key's fingerprint with its owner
//! verified kith1... - Cem          its fingerprint was compared with its owner
//! verified kith1... kith1... Dan   CHANGED: another key was offered under the name; neither is used until the user decides
//! ```
//!
//! Rules: a key that is offered under a known name never replaces the known key by itself; each
//! signing key and each exchange key occurs under one name only; the text has one spelling, in
//! ascending order of names.

use std::collections::HashMap;

use super::public::PublicTextError;
use crate::format::identity::{PublicIdentity, label_allowed};
use crate::format::members::MAX_NAME;

const FIRST_LINE: &str = "kithfs contacts 1";
/// Longest text that is read, in bytes.
pub const MAX_LEN: usize = 4 << 20;

/// How certain it is that a key is its owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Nobody has compared the fingerprint.
    New,
    /// The fingerprint was compared with its owner.
    Verified,
    /// A second key was offered under the same name.
    Changed,
}

impl Trust {
    /// Returns the word that people see.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Verified => "verified",
            Self::Changed => "CHANGED",
        }
    }
}

/// A person and their key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// The user's name for the person.
    pub name: String,
    /// The person's key, as far as is known.
    pub public: PublicIdentity,
    /// Whether its fingerprint was compared.
    pub verified: bool,
    /// Another key that was offered under this name.
    pub offered: Option<PublicIdentity>,
}

impl Contact {
    /// Returns how certain the key is.
    pub fn trust(&self) -> Trust {
        match (self.offered, self.verified) {
            (Some(_), _) => Trust::Changed,
            (None, true) => Trust::Verified,
            (None, false) => Trust::New,
        }
    }

    /// Returns the key that `verify` is about: the offered one if there is one, otherwise the known
    /// one.
    pub fn in_question(&self) -> &PublicIdentity {
        self.offered.as_ref().unwrap_or(&self.public)
    }
}

/// The result of adding a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The name is new.
    New,
    /// The key was already there.
    Known,
    /// The name has another key: both are kept, and neither is used until the user decides.
    Changed,
    /// The key is the known one, and another one had been offered since: the offer is dropped.
    OfferDropped,
}

/// What is wrong with a contact or with the file's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContactError {
    /// The text does not begin as a list of contacts does.
    #[error("line 1: it is not `{FIRST_LINE}`, so this is not a list of contacts")]
    NotAList,
    /// A newer program wrote it.
    #[error("was written by a newer kithfs")]
    Newer,
    /// A line does not end in a line feed alone.
    #[error("line {line}: it ends in {}", if *.is_crlf { "CR LF, as text files of Windows do, and not in LF" } else { "no LF" })]
    LineEnd {
        /// Its number, from 1.
        line: usize,
        /// There is a carriage return before the line feed.
        is_crlf: bool,
    },
    /// A line cannot be parsed.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A name that is not allowed.
    #[error("a name has 1 to {max} bytes, no control characters, and no space at its ends", max = MAX_NAME)]
    BadName,
    /// The signing key or the exchange key is another contact's.
    #[error("this key, or half of it, is known as that of {0}")]
    KeyOfOther(String),
    /// There is no such contact.
    #[error("there is no contact {0}")]
    Unknown(String),
}

/// All contacts of a user, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contacts {
    list: Vec<Contact>,
}

fn name_allowed(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && label_allowed(name, MAX_NAME)
}

fn overlap(a: &PublicIdentity, b: &PublicIdentity) -> bool {
    a.sign == b.sign || a.exchange == b.exchange
}

impl Contacts {
    /// Returns all contacts, in ascending order of their names.
    pub fn all(&self) -> &[Contact] {
        &self.list
    }

    /// Returns the contact of this name.
    pub fn get(&self, name: &str) -> Option<&Contact> {
        self.position(name).ok().map(|at| &self.list[at])
    }

    /// Returns the contact whose known key this is.
    pub fn by_key(&self, public: &PublicIdentity) -> Option<&Contact> {
        self.list.iter().find(|contact| contact.public == *public)
    }

    /// Returns the contact whose known signing key this is.
    pub fn by_signing_key(&self, sign: &[u8; 32]) -> Option<&Contact> {
        self.list.iter().find(|contact| contact.public.sign == *sign)
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.list.binary_search_by(|contact| contact.name.as_str().cmp(name))
    }

    /// Returns a contact of another name than `name` with the same signing key or exchange key.
    fn other_owner(&self, name: &str, public: &PublicIdentity) -> Option<&Contact> {
        let holds = |contact: &Contact| {
            overlap(&contact.public, public)
                || contact.offered.is_some_and(|offered| overlap(&offered, public))
        };
        self.list.iter().find(|contact| contact.name != name && holds(contact))
    }

    /// Adds a key under a name. If the name has another key, the result is [`Added::Changed`], and
    /// the known key stays.
    ///
    /// # Errors
    /// [`BadName`](ContactError::BadName), [`KeyOfOther`](ContactError::KeyOfOther).
    pub fn add(&mut self, name: &str, public: &PublicIdentity) -> Result<Added, ContactError> {
        if !name_allowed(name) {
            return Err(ContactError::BadName);
        }
        if let Some(other) = self.other_owner(name, public) {
            return Err(ContactError::KeyOfOther(other.name.clone()));
        }
        Ok(match self.position(name) {
            Err(at) => {
                self.list.insert(
                    at,
                    Contact {
                        name: name.to_owned(),
                        public: *public,
                        verified: false,
                        offered: None,
                    },
                );
                Added::New
            }
            Ok(at) => {
                let contact = &mut self.list[at];
                match (contact.public == *public, contact.offered) {
                    (true, None) => Added::Known,
                    (true, Some(_)) => {
                        contact.offered = None;
                        Added::OfferDropped
                    }
                    (false, _) => {
                        contact.offered = Some(*public);
                        Added::Changed
                    }
                }
            }
        })
    }

    /// Notes that the key in question was compared with its owner: it is now the known key, and
    /// verified.
    ///
    /// # Errors
    /// [`Unknown`](ContactError::Unknown).
    pub fn verify(&mut self, name: &str) -> Result<&Contact, ContactError> {
        let at = self.position(name).map_err(|_| ContactError::Unknown(name.to_owned()))?;
        let contact = &mut self.list[at];
        contact.public = contact.offered.take().unwrap_or(contact.public);
        contact.verified = true;
        Ok(contact)
    }

    /// Forgets a contact.
    ///
    /// # Errors
    /// [`Unknown`](ContactError::Unknown).
    pub fn remove(&mut self, name: &str) -> Result<Contact, ContactError> {
        let at = self.position(name).map_err(|_| ContactError::Unknown(name.to_owned()))?;
        Ok(self.list.remove(at))
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for contact in &self.list {
            text.push_str(&line_of(contact));
            text.push('\n');
        }
        text
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// The number of the line that cannot be parsed; a name or key that occurs twice; names out of
    /// order.
    pub fn parse(text: &str) -> Result<Self, ContactError> {
        // The last part is empty if the text ends in a line feed.
        let mut lines = text.split('\n');
        let last = lines.next_back().unwrap_or_default();
        match lines.next().unwrap_or(last).trim_end_matches('\r') {
            FIRST_LINE => {}
            first if first.starts_with("kithfs contacts ") => return Err(ContactError::Newer),
            _ => return Err(ContactError::NotAList),
        }
        let crlf = text.split_inclusive('\n').position(|line| line.ends_with("\r\n"));
        if let Some(at) = crlf {
            return Err(ContactError::LineEnd { line: at + 1, is_crlf: true });
        }
        if !last.is_empty() || !text.ends_with('\n') {
            let line = text.split('\n').count();
            return Err(ContactError::LineEnd { line, is_crlf: false });
        }
        let mut list: Vec<Contact> = Vec::new();
        let mut owners: HashMap<[u8; 32], String> = HashMap::new();
        for (at, line) in lines.enumerate() {
            let failed = |what: &str| ContactError::Line { line: at + 2, what: what.to_owned() };
            let contact = parse_line(line).map_err(|what| failed(&what))?;
            if list.last().is_some_and(|last| last.name >= contact.name) {
                return Err(failed("the names are not in ascending order"));
            }
            let keys = [Some(contact.public), contact.offered].into_iter().flatten();
            for half in keys.flat_map(|key| [key.sign, key.exchange]) {
                match owners.insert(half, contact.name.clone()) {
                    Some(other) if other != contact.name => {
                        return Err(failed(&ContactError::KeyOfOther(other).to_string()));
                    }
                    _ => {}
                }
            }
            // For example a second spelling of a key.
            if line_of(&contact) != line {
                return Err(failed("it is not spelled as kithfs writes it"));
            }
            list.push(contact);
        }
        Ok(Self { list })
    }
}

fn line_of(Contact { name, public, verified, offered }: &Contact) -> String {
    let trust = if *verified { "verified" } else { "new" };
    let offered = offered.map_or_else(|| "-".to_owned(), |offered| offered.to_string());
    format!("{trust} {public} {offered} {name}")
}

fn parse_line(line: &str) -> Result<Contact, String> {
    let (trust, rest) = line.split_once(' ').ok_or("there is no key")?;
    let verified = match trust {
        "verified" => true,
        "new" => false,
        _ => return Err("it begins with neither new nor verified".to_owned()),
    };
    let (public, rest) = rest.split_once(' ').ok_or("there is no name")?;
    let key = |text: &str| {
        text.parse::<PublicIdentity>().map_err(|error: PublicTextError| error.to_string())
    };
    let public = key(public)?;
    let (offered, name) = rest.split_once(' ').ok_or("there is no name")?;
    let offered = if offered == "-" { None } else { Some(key(offered)?) };
    if !name_allowed(name) {
        return Err(ContactError::BadName.to_string());
    }
    if offered == Some(public) {
        return Err("the key that was offered is the known one".to_owned());
    }
    Ok(Contact { name: name.to_owned(), public, verified, offered })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> PublicIdentity {
        PublicIdentity { sign: [n; 32], exchange: [n ^ 0x40; 32] }
    }

    #[test]
    fn a_new_key_is_new_until_its_fingerprint_was_compared() {
        let mut contacts = Contacts::default();
        assert_eq!(contacts.add("Bob", &key(1)), Ok(Added::New));
        assert_eq!(contacts.add("Bob", &key(1)), Ok(Added::Known));
        assert_eq!(contacts.get("Bob").unwrap().trust(), Trust::New);
        assert_eq!(contacts.verify("Bob").unwrap().trust(), Trust::Verified);
        assert_eq!(contacts.by_key(&key(1)).unwrap().name, "Bob");
        assert_eq!(contacts.verify("Cem"), Err(ContactError::Unknown("Cem".into())));
        assert_eq!(contacts.remove("Bob").unwrap().name, "Bob");
        assert!(contacts.all().is_empty());
    }

    #[test]
    fn a_swapped_key_does_not_replace_the_known_one() {
        let mut contacts = Contacts::default();
        contacts.add("Bob", &key(1)).unwrap();
        contacts.verify("Bob").unwrap();
        assert_eq!(contacts.add("Bob", &key(2)), Ok(Added::Changed));
        let bob = contacts.get("Bob").unwrap();
        assert_eq!((bob.trust(), bob.public, bob.in_question()), (Trust::Changed, key(1), &key(2)));
        assert!(contacts.by_key(&key(2)).is_none(), "nothing is sealed to what was only offered");
        assert_eq!(contacts.add("Bob", &key(1)), Ok(Added::OfferDropped));
        assert_eq!(
            contacts.get("Bob").unwrap().trust(),
            Trust::Verified,
            "the old key was compared, and still is"
        );
        contacts.add("Bob", &key(2)).unwrap();
        let bob = contacts.verify("Bob").unwrap();
        assert_eq!((bob.trust(), bob.public, bob.offered), (Trust::Verified, key(2), None));
    }

    #[test]
    fn half_a_key_of_somebody_else_is_refused() {
        let mut contacts = Contacts::default();
        contacts.add("Bob", &key(1)).unwrap();
        for public in [
            key(1),
            PublicIdentity { sign: [1; 32], ..key(2) },
            PublicIdentity { exchange: key(1).exchange, ..key(2) },
        ] {
            assert_eq!(contacts.add("Eve", &public), Err(ContactError::KeyOfOther("Bob".into())));
        }
        let half = PublicIdentity { exchange: key(2).exchange, ..key(1) };
        assert_eq!(
            contacts.add("Bob", &half),
            Ok(Added::Changed),
            "under its own name it is a changed key"
        );
        assert_eq!(Contacts::parse(&contacts.to_text()), Ok(contacts.clone()));
        assert_eq!(contacts.add("Eve", &key(2)), Err(ContactError::KeyOfOther("Bob".into())));
    }

    #[test]
    fn names_that_do_not_fit_a_line_are_refused() {
        for name in ["", " Bob", "Bob ", "a\nb", "a\u{85}b", &"x".repeat(MAX_NAME + 1)] {
            assert_eq!(
                Contacts::default().add(name, &key(1)),
                Err(ContactError::BadName),
                "{name:?}"
            );
        }
    }

    #[test]
    fn the_text_is_as_it_is_described_and_every_other_is_refused() {
        let mut contacts = Contacts::default();
        contacts.add("Bob", &key(1)).unwrap();
        contacts.add("Ann Lee", &key(2)).unwrap();
        contacts.verify("Ann Lee").unwrap();
        contacts.add("Ann Lee", &key(3)).unwrap();
        let text = contacts.to_text();
        assert_eq!(
            text,
            format!(
                "kithfs contacts 1\nverified {} {} Ann Lee\nnew {} - Bob\n",
                key(2),
                key(3),
                key(1)
            )
        );
        assert_eq!(Contacts::parse(&text), Ok(contacts));
        for (from, to) in [
            ("contacts 1", "contacts 2"),
            ("kithfs", "age"),
            ("verified ", "trusted "),
            (" - Bob", " -  Bob"),
            (" - Bob", ""),
            ("Ann Lee", "Zoe"),
            ("Ann Lee", "Bob"),
            ("\nnew", "\n\nnew"),
            ("Bob\n", "Bob"),
            ("Bob\n", "Bob\n\n"),
            ("\n", "\r\n"),
        ] {
            assert!(Contacts::parse(&text.replacen(from, to, 1)).is_err(), "{from:?} -> {to:?}");
        }
        assert_eq!(Contacts::parse("kithfs contacts 2\n"), Err(ContactError::Newer));
        let line = |text: &str| match Contacts::parse(text) {
            Err(ContactError::Line { line, .. } | ContactError::LineEnd { line, .. }) => line,
            other => panic!("{other:?}"),
        };
        let twice = text.replace(&key(1).to_string(), &key(2).to_string());
        assert_eq!(line(&twice), 3, "one key under two names");
        let capitals = text.replace(&key(1).to_string(), &key(1).to_string().to_uppercase());
        assert_eq!(line(&capitals), 3, "a second spelling of a key");
        assert_eq!(line(&text.replace("Ann Lee\n", "Ann Lee\r\n")), 2);
        assert_eq!(line(&text.replace('\n', "\r\n")), 1);
        assert_eq!(line(text.trim_end()), 3);
        assert_eq!(line("kithfs contacts 1"), 1);
        let Err(ContactError::Line { line: 3, .. }) =
            Contacts::parse(&text.replace(" - Bob", "x - Bob"))
        else {
            panic!("a mistyped key")
        };
    }

    proptest! {
        #[test]
        fn no_name_reads_as_something_else(names in proptest::collection::vec("\\PC{1,20}|kith1x|-|- -|CHANGED kith1 a", 1..6)) {
            let mut contacts = Contacts::default();
            for (n, name) in (1..).zip(&names) {
                let _ = contacts.add(name, &key(n));
            }
            prop_assert_eq!(Contacts::parse(&contacts.to_text()), Ok(contacts));
        }
    }
}

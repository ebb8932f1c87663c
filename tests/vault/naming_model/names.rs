//! Tags, stored names, conflict suffixes, and the rule by which a name belongs to an entry.
//!
//! A stored name consists of the sealed parts and the suffix of a sync tool. Whether a machine can
//! open it depends on its epochs and long names.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

pub type Tag = u64;
pub type Epoch = u8;

/// The longest plain name that is stored whole; longer ones are stored as a hash.
const LONGEST_SHORT: usize = 98;
/// The longest name that can be shown to a program.
const LONGEST: usize = 255;

pub fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Stored {
    pub epoch: Epoch,
    pub tag: Tag,
    pub name: String,
    pub suffix: String,
}

impl Stored {
    pub fn is_long(&self) -> bool {
        self.name.len() > LONGEST_SHORT
    }

    /// The value that an entry and its sealed long name share.
    pub fn seal(&self) -> u64 {
        hash((self.epoch, self.tag, &self.name))
    }

    pub fn text(&self) -> String {
        let equals = if self.is_long() { "=" } else { "" };
        format!("{equals}{:016x}{}", self.seal(), self.suffix)
    }

    /// Returns the mark of this entry, one of only eight, so that marks collide often.
    fn mark(&self) -> String {
        format!(" (moved {:02x})", hash(self.text()) % 8)
    }

    /// The tag of a directory with this name. It depends only on the sealed part.
    pub fn tag_of_directory(&self) -> Tag {
        if self.is_long() {
            hash(("long tag", self.seal()))
        } else {
            hash(("tag", self.tag, &self.name))
        }
    }
}

pub fn root_tag() -> Tag {
    hash("root tag")
}

fn is_known_form(suffix: &str) -> bool {
    if suffix.starts_with(".sync-conflict-") || suffix.starts_with("_conflict-") {
        return true;
    }
    if let Some(machine) = suffix.strip_prefix('-') {
        return machine.bytes().any(|b| b.is_ascii_uppercase())
            && machine.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    }
    let Some(inner) = suffix.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')')) else {
        return false;
    };
    let digits = !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_digit());
    // The last condition: otherwise two suffixes would be shown alike.
    digits || inner.contains("conflict") && !inner.starts_with("conflict copy ")
}

/// Returns a suffix as it is shown.
fn shown_suffix(suffix: &str) -> String {
    if suffix.is_empty() || is_known_form(suffix) {
        suffix.to_owned()
    } else {
        format!(" (conflict copy {suffix})")
    }
}

/// Splits a shown name: returns each pair of a plain name and a stored suffix that could produce
/// it, from the left; at one position a suffix of a known form first.
fn splits(name: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in name.char_indices().skip(1) {
        let (left, right) = name.split_at(at);
        if is_known_form(right) {
            found.push((left, right));
        }
        if let Some(suffix) =
            right.strip_prefix(" (conflict copy ").and_then(|rest| rest.strip_suffix(')'))
            && !suffix.is_empty()
            && !is_known_form(suffix)
        {
            found.push((left, suffix));
        }
    }
    found
}

/// What a machine knows of the share.
pub trait Knowledge {
    /// The epochs whose keys it has, the current one first.
    fn epochs(&self) -> &[Epoch];
    /// Whether it has the sealed name of this long name.
    fn has_long(&self, seal: u64) -> bool;
    /// The tags that evidence under an epoch that it knows explains in a directory with the tag
    /// `to`.
    fn evidence_to(&self, to: Tag) -> Vec<Tag>;
}

/// Returns all tags that the evidence explains in the directory with the tag `own`, without its
/// own.
pub fn explained(knowledge: &impl Knowledge, own: Tag) -> BTreeSet<Tag> {
    let mut found = BTreeSet::new();
    let mut next = vec![own];
    while let Some(to) = next.pop() {
        for from in knowledge.evidence_to(to) {
            if from != own && found.insert(from) {
                next.push(from);
            }
        }
    }
    found
}

/// A directory as a machine sees it: the stored names in it, the names that were taken from their
/// entries while the vault is open, and the tags that belong here.
pub struct Directory<'a, K> {
    pub knowledge: &'a K,
    pub own: Tag,
    pub explained: BTreeSet<Tag>,
    pub entries: BTreeSet<&'a Stored>,
    pub vacated: &'a BTreeSet<String>,
}

impl<'a, K: Knowledge> Directory<'a, K> {
    /// Whether the entry opens under a key that this machine has.
    pub fn opens(&self, entry: &Stored) -> bool {
        self.knowledge.epochs().contains(&entry.epoch)
    }

    fn has_name(&self, entry: &Stored) -> bool {
        !entry.is_long() || self.knowledge.has_long(entry.seal())
    }

    pub fn is_explained(&self, entry: &Stored) -> bool {
        entry.tag == self.own || self.explained.contains(&entry.tag)
    }

    /// Returns the plain name with the suffix as it is shown.
    pub fn plain(entry: &Stored) -> String {
        format!("{}{}", entry.name, shown_suffix(&entry.suffix))
    }

    fn first_claim(&self, entry: &Stored) -> Option<String> {
        let name = Self::plain(entry);
        (self.has_name(entry) && self.is_explained(entry) && name.len() <= LONGEST).then_some(name)
    }

    fn second_claim(&self, entry: &Stored) -> Option<String> {
        let name = format!("{}{}", Self::plain(entry), entry.mark());
        (self.has_name(entry) && name.len() <= LONGEST).then_some(name)
    }

    fn fourth_claim(entry: &Stored) -> Option<String> {
        let name = format!("{}{}", entry.text(), entry.mark());
        (name.len() <= LONGEST).then_some(name)
    }

    /// Returns the first of these names that exists, under the directory's own tag and the
    /// explained ones, each under every epoch.
    fn sealed_as(&self, name: &str, suffix: &str) -> Option<&'a Stored> {
        std::iter::once(&self.own).chain(&self.explained).find_map(|&tag| {
            self.knowledge.epochs().iter().find_map(|&epoch| {
                let suffix = suffix.to_owned();
                let wanted = Stored { epoch, tag, name: name.to_owned(), suffix };
                self.entries.get(&wanted).copied()
            })
        })
    }

    /// Rules (a) to (c).
    fn plain_owner(&self, name: &str) -> Option<&'a Stored> {
        if self.vacated.contains(name) {
            let (epoch, suffix) = (self.knowledge.epochs()[0], String::new());
            let wanted = Stored { epoch, tag: self.own, name: name.to_owned(), suffix };
            return self.entries.get(&wanted).copied();
        }
        self.sealed_as(name, "").or_else(|| {
            splits(name).into_iter().find_map(|(left, suffix)| self.sealed_as(left, suffix))
        })
    }

    /// Returns the first entry, in the order of the stored names, that claims `name` by `claim` and
    /// has no earlier one of its claims.
    fn marked_owner(
        &self,
        name: &str,
        claim: impl Fn(&Stored) -> Option<String>,
        has_earlier: impl Fn(&Stored) -> bool,
    ) -> Option<&'a Stored> {
        if self.vacated.contains(name) || !name.contains(" (moved ") {
            return None;
        }
        self.entries.iter().copied().find(|entry| {
            self.opens(entry) && claim(entry).as_deref() == Some(name) && !has_earlier(entry)
        })
    }

    fn has_first(&self, entry: &Stored) -> bool {
        self.first_claim(entry).is_some_and(|name| self.plain_owner(&name) == Some(entry))
    }

    fn second_owner(&self, name: &str) -> Option<&'a Stored> {
        let second = |entry: &Stored| self.second_claim(entry);
        self.plain_owner(name)
            .or_else(|| self.marked_owner(name, second, |entry| self.has_first(entry)))
    }

    fn has_second(&self, entry: &Stored) -> bool {
        self.has_first(entry)
            || self.second_claim(entry).is_some_and(|name| self.second_owner(&name) == Some(entry))
    }

    /// Rules (a) to (e).
    fn third_owner(&self, name: &str) -> Option<&'a Stored> {
        self.second_owner(name).or_else(|| {
            let is_it = |entry: &&Stored| self.opens(entry) && entry.text() == name;
            self.entries.iter().copied().find(is_it).filter(|entry| !self.has_second(entry))
        })
    }

    fn has_third(&self, entry: &Stored) -> bool {
        self.has_second(entry) || self.third_owner(&entry.text()) == Some(entry)
    }

    /// Returns the entry that owns a name.
    pub fn lookup(&self, name: &str) -> Option<&'a Stored> {
        self.third_owner(name)
            .or_else(|| self.marked_owner(name, Self::fourth_claim, |entry| self.has_third(entry)))
    }

    /// Returns the name with which an entry is shown.
    pub fn shown(&self, entry: &Stored) -> Option<String> {
        if !self.opens(entry) {
            return None;
        }
        [
            self.first_claim(entry),
            self.second_claim(entry),
            Some(entry.text()),
            Self::fourth_claim(entry),
        ]
        .into_iter()
        .flatten()
        .find(|name| self.lookup(name) == Some(entry))
    }

    /// Returns the entries that have a name, by name.
    pub fn list(&self) -> BTreeMap<String, &'a Stored> {
        let mut shown = BTreeMap::new();
        for &entry in &self.entries {
            if let Some(name) = self.shown(entry) {
                assert!(shown.insert(name.clone(), entry).is_none(), "two entries are {name:?}");
            }
        }
        shown
    }
}

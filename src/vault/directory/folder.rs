//! A folder: a directory of the store with its tag. It converts plain names to stored ones and
//! back.
//!
//! Rules that hold here
//! * Listings and lookups follow one rule, so that each entry is found under the name with which it
//!   is shown, and under no other. An entry claims up to four names, in this order, until it has
//!   one:
//!   1. its plain name with a sync tool's suffix, if its tag is the directory's own, or evidence of
//!      a rename explains it;
//!   2. that name with a mark;
//!   3. its stored name;
//!   4. its stored name with a mark.
//! * Of several entries that claim a name as their first one, the first in the order of
//!   [`Folder::claims`] has it. If no entry does, those that claim it with a mark follow, in the
//!   order of the bytes of their stored names; then the entry whose stored name it is. An entry
//!   without a name is reported like one that no key opens.
//! * A name that was taken from its entry here goes to no other existing entry that claims it,
//!   until it is given to an entry again or the vault is closed; see
//!   [`crate::vault::core::vacated`].
//! * An entry with the directory's own tag, sealed under the current epoch's key, without a suffix
//!   has the first claim to its name; no search is needed to know that.
//! * Names under the directory's own tag are looked for in the store. Where more than [`TRIED_MAX`]
//!   tags are explained, and for marks, names under other tags are looked for only if the census
//!   shows that an entry may have them. So the time of a listing does not grow with entries times
//!   tags. The search for a name that is not found is repeated under all explained tags that the
//!   census shows, unless the census is certain to be current: so an entry that has arrived under
//!   one of these tags is found at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::crypto::Tag;
use crate::format::name::{NAME_MAX, Parts, StoredName, is_valid, may_be_sealed, parse};
use crate::format::suffix::{self, Mark, mark_of, marked, split_mark};
use crate::store::{Dir, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::core::known_names::Census;
use crate::vault::directory::census::Counted;
use crate::vault::directory::names::{Meaning, Sealed};
use crate::vault::error::{Fault, Inner};
use crate::vault::keyring::keys::{Epoch, ShareKeys};
use crate::vault::types::{NodeId, ROOT};

/// Up to this many explained tags are tried one by one. Of more, only those that the census shows.
const TRIED_MAX: usize = 8;

fn check_name(name: &[u8]) -> Inner<()> {
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ENAMETOOLONG));
    }
    if !is_valid(name) {
        return Err(Fault::Os(libc::EINVAL));
    }
    Ok(())
}

/// An existing stored name, with its `stat` if the search needed one.
type Found = Option<(Vec<u8>, Option<Stat>)>;

/// A plain name and a suffix as stored.
type Split<'a> = (&'a [u8], &'a [u8]);

/// What determines a stored name: the tag and the epoch under which a name is sealed, and the name.
type Seal<'e, 'n> = (Tag, &'e Epoch, Split<'n>);

/// Returns the ways to take a shown name apart into a plain name and a suffix, the one without a
/// suffix first.
fn splits(name: &[u8]) -> impl Iterator<Item = Split<'_>> {
    std::iter::once((name, &b""[..])).chain(suffix::splits(name))
}

/// The tags, beside the directory's own, under which a name is looked for.
enum Others {
    /// All of these.
    All(Arc<[Tag]>),
    /// Those among these with which the census shows the name.
    Shown(Arc<[Tag]>, Arc<Census>),
}

/// A directory of the store with its tag, to look up and list names.
pub(crate) struct Folder<'a> {
    pub(in crate::vault) core: &'a Core,
    pub(in crate::vault) node: NodeId,
    pub(in crate::vault) dir: Arc<dyn Dir>,
    pub(in crate::vault) tag: Tag,
}

impl Folder<'_> {
    pub fn keys(&self) -> &ShareKeys {
        &self.core.keys
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &dyn Dir {
        &*self.dir
    }

    /// Returns the stored name of a new entry.
    pub fn encode(&self, name: &[u8]) -> Inner<StoredName> {
        check_name(name)?;
        let keys = self.keys();
        keys.names_of(keys.current()).encode(&self.tag, name).ok_or(Fault::Os(libc::EINVAL))
    }

    /// Returns the stored name of `name`, with its `stat`.
    pub(in crate::vault) fn find(&self, name: &[u8]) -> Inner<(Vec<u8>, Stat)> {
        let stored = self.encode(name)?;
        match self.dir.stat(stored.entry()) {
            Ok(stat) => return Ok((stored.into_entry(), stat)),
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e.into()),
            Err(_) => {}
        }
        match self.found_besides(name)? {
            Some((stored, Some(stat))) => Ok((stored, stat)),
            _ => Err(Fault::Os(libc::ENOENT)),
        }
    }

    /// Returns the entry that has `name`, if it is not the current epoch's entry with the
    /// directory's own tag and without a suffix.
    fn found_besides(&self, name: &[u8]) -> Inner<Found> {
        if !self.is_vacated(name)
            && let Some(found) = self.first_besides(name)?
        {
            return Ok(Some(found));
        }
        if let Some(stored) = self.has_mark(name, None)? {
            return Ok(self.there(&stored)?.map(|stat| (stored, Some(stat))));
        }
        self.has_stored(name)
    }

    /// Returns the entry that has `name` as its first name, with the same exception. If the census
    /// may not be current, all explained tags that it shows are tried too.
    fn first_besides(&self, name: &[u8]) -> Inner<Found> {
        let others = self.others()?;
        let is_tried = matches!(others, Others::All(_));
        // The first claim is that of the excepted entry.
        let found = self.first_of(self.claims(name, others, None).skip(1), None)?;
        if found.is_some() || is_tried || self.census()?.is_certain {
            return Ok(found);
        }
        self.first_of(self.claims(name, Others::All(self.shown_tags()?), None), None)
    }

    fn is_vacated(&self, name: &[u8]) -> bool {
        self.core.namespace.vacated.has(&self.tag, name)
    }

    /// Notes that `name` was taken from its entry: no other entry that claims the name gets it,
    /// because a program may be about to create a new entry under it.
    pub(in crate::vault) fn vacate(&self, name: &[u8]) {
        if !matches!(self.found_besides(name), Ok(None)) {
            self.core.namespace.vacated.note(&self.tag, name);
        }
    }

    /// Notes that an entry was created with `name`, or renamed to it.
    pub(in crate::vault) fn occupy(&self, name: &[u8]) {
        self.core.namespace.vacated.take(&self.tag, name);
    }

    /// Returns the `stat` of the entry `stored`, if it exists.
    fn there(&self, stored: &[u8]) -> Inner<Option<Stat>> {
        match self.dir.stat(stored) {
            Ok(stat) => Ok(Some(stat)),
            // The last three: the store cannot have such a name. After any other error the owner of
            // the name is unknown.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ENOENT | libc::ENAMETOOLONG | libc::EINVAL | libc::EILSEQ)
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the explained tags of entries that may be here.
    fn shown_tags(&self) -> Inner<Arc<[Tag]>> {
        let explained = self.core.explained(&self.tag)?;
        if explained.len() <= TRIED_MAX {
            return Ok(explained);
        }
        let Counted { census, .. } = self.census()?;
        let shown = |tag: &&Tag| explained.binary_search(tag).is_ok();
        Ok(census.tags().iter().filter(shown).copied().collect())
    }

    /// Returns the tags that entries here may have: the directory's own, then explained ones.
    fn tags(&self) -> Inner<Vec<Tag>> {
        Ok([&[self.tag], &*self.shown_tags()?].concat())
    }

    fn others(&self) -> Inner<Others> {
        let explained = self.core.explained(&self.tag)?;
        if explained.len() <= TRIED_MAX {
            return Ok(Others::All(explained));
        }
        Ok(Others::Shown(explained, self.census()?.census))
    }

    /// Returns the tags under which a name is looked for, the directory's own first, in the order of
    /// their claims. `known` is an entry that exists and claims the name.
    fn tags_of(&self, (plain, suffix): Split, among: &Others, known: Option<&Sealed>) -> Vec<Tag> {
        let (explained, census) = match among {
            Others::All(tags) => return [&[self.tag], &**tags].concat(),
            Others::Shown(explained, census) => (explained, census),
        };
        let belongs = |tag: &&Tag| explained.binary_search(tag).is_ok();
        let shown = census.tags_of((plain, suffix), None).filter(belongs);
        let mut tags: BTreeSet<Tag> = shown.copied().collect();
        tags.extend(known.filter(|s| (&*s.plain, &*s.suffix) == (plain, suffix)).map(|s| s.tag));
        if !census.lost.is_empty() {
            let is_lost = |stored: StoredName| match stored {
                StoredName::Long { hash, .. } => census.lost.has(&hash),
                StoredName::Short(_) => false,
            };
            let may_be = |tag: &&Tag| self.encodings(tag, plain).any(is_lost);
            let is_long = matches!(self.encode(plain), Ok(StoredName::Long { .. }));
            tags.extend(explained.iter().filter(|_| is_long).filter(may_be));
        }
        tags.remove(&self.tag);
        std::iter::once(self.tag).chain(tags).collect()
    }

    /// Returns whether an entry with this tag belongs here.
    fn is_explained(&self, tag: &Tag) -> Inner<bool> {
        Ok(*tag == self.tag || self.core.explained(&self.tag)?.binary_search(tag).is_ok())
    }

    /// Returns whether an entry has its plain name in any case, so that no search is needed.
    pub(in crate::vault) fn is_plain(&self, sealed: &Sealed) -> bool {
        sealed.tag == self.tag && !sealed.is_old && sealed.suffix.is_empty()
    }

    /// Returns the stored names of a plain name for the directory with this tag, under each epoch's
    /// key.
    pub(in crate::vault) fn encodings(
        &self,
        tag: &Tag,
        plain: &[u8],
    ) -> impl Iterator<Item = StoredName> {
        let encode = |epoch| self.keys().names_of(epoch).encode(tag, plain);
        self.keys().all_epochs().filter_map(encode)
    }

    /// Returns the stored names of one way to take a name apart, under these tags.
    fn entries(&self, tags: Vec<Tag>, split: Split) -> impl Iterator<Item = Vec<u8>> {
        self.seals(tags, split).filter_map(|seal| self.entry(seal))
    }

    /// Returns the seals of one way to take a name apart, under these tags and every epoch's key.
    fn seals<'n>(&self, tags: Vec<Tag>, split: Split<'n>) -> impl Iterator<Item = Seal<'_, 'n>> {
        let epochs = move |tag| self.keys().all_epochs().map(move |epoch| (tag, epoch, split));
        tags.into_iter().flat_map(epochs)
    }

    fn entry(&self, (tag, epoch, (plain, suffix)): Seal) -> Option<Vec<u8>> {
        let mut entry = self.keys().names_of(epoch).encode(&tag, plain)?.into_entry();
        entry.extend_from_slice(suffix);
        Some(entry)
    }

    /// Returns the seals of the entries that claim `name` as their first name, in the order of
    /// their claims: the whole name under the directory's own tag and then under the explained
    /// ones, each under every epoch's key; then the name split before each possible suffix.
    fn claims<'n>(
        &self,
        name: &'n [u8],
        others: Others,
        known: Option<&Sealed>,
    ) -> impl Iterator<Item = Seal<'_, 'n>> {
        splits(name).flat_map(move |split| self.seals(self.tags_of(split, &others, known), split))
    }

    /// Returns the entry that has `name` as its first name. `known` is an entry known to exist.
    fn has_first(&self, name: &[u8], known: Option<(&[u8], &Sealed)>) -> Inner<Found> {
        let count = if self.is_vacated(name) { 1 } else { usize::MAX };
        let (entry, sealed) = known.unzip();
        self.first_of(self.claims(name, self.others()?, sealed).take(count), entry)
    }

    /// Returns the first entry of these claims that exists. `known` is an entry known to exist.
    fn first_of<'a>(
        &self,
        claims: impl Iterator<Item = Seal<'a, 'a>>,
        known: Option<&[u8]>,
    ) -> Inner<Found> {
        let entries = claims.filter_map(|seal| self.entry(seal));
        // A name that is too long for any store is not looked up.
        for entry in entries.filter(|entry| entry.len() <= NAME_MAX) {
            if known == Some(&*entry) {
                return Ok(Some((entry, None)));
            }
            if let Some(stat) = self.there(&entry)? {
                return Ok(Some((entry, Some(stat))));
            }
        }
        Ok(None)
    }

    /// Returns the entry that has `name` because of the mark at its end, for callers that know that
    /// no entry has it as its first name. `known` is an entry that exists and claims `name`.
    fn has_mark(&self, name: &[u8], known: Option<&[u8]>) -> Inner<Option<Vec<u8>>> {
        let Some((rest, mark)) = split_mark(name) else { return Ok(None) };
        if self.is_vacated(name) {
            return Ok(None);
        }
        for stored in self.with_mark(rest, &mark, known)? {
            if known == Some(&*stored) {
                return Ok(Some(stored));
            }
            if self.there(&stored)?.is_none() {
                continue;
            }
            let Some(meaning) = self.core.read_name(&stored)? else { continue };
            if let Meaning::Name(sealed) = &meaning
                && sealed.name().as_deref() == Some(rest)
                && self.first_name(&stored, sealed)?.is_none()
            {
                return Ok(Some(stored));
            }
            if stored == rest && self.name_before_mark(&stored, &meaning)?.is_none() {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// Returns the stored names of entries that may claim `rest` with this mark, in the order of
    /// their bytes. The entries need not exist.
    fn with_mark(
        &self,
        rest: &[u8],
        mark: &Mark,
        known: Option<&[u8]>,
    ) -> Inner<BTreeSet<Vec<u8>>> {
        let Counted { census, .. } = self.census()?;
        let sealed = splits(rest).flat_map(|split| {
            let others = census.tags_of(split, Some(*mark));
            self.entries(std::iter::once(&self.tag).chain(others).copied().collect(), split)
        });
        let stored = may_be_sealed(rest).then(|| rest.to_vec());
        let marked = sealed.chain(stored).filter(|stored| mark_of(stored) == *mark);
        Ok(marked.chain(known.map(<[u8]>::to_vec)).collect())
    }

    /// Returns the entry whose stored name is `name`, if it has neither its first nor its second
    /// name.
    fn has_stored(&self, name: &[u8]) -> Inner<Found> {
        if !may_be_sealed(name) {
            return Ok(None);
        }
        let Some(meaning) = self.core.read_name(name)? else { return Ok(None) };
        let Some(stat) = self.there(name)? else { return Ok(None) };
        let has_another = match &meaning {
            Meaning::Name(sealed) => self.sealed_name(name, sealed)?.is_some(),
            Meaning::Lost => false,
        };
        Ok((!has_another).then(|| (name.to_vec(), Some(stat))))
    }

    pub(in crate::vault) fn exists(&self, name: &[u8]) -> Inner<bool> {
        match self.find(name) {
            Ok(_) => Ok(true),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Returns whether another entry has the name of an entry to be created.
    pub(in crate::vault) fn is_taken(&self, name: &[u8]) -> Inner<bool> {
        Ok(self.found_besides(name)?.is_some())
    }

    /// Returns the name with which the entry `stored` is shown; `None` for control files, for
    /// entries that no key opens, and if other entries have all names that it claims.
    pub fn decode(&self, stored: &[u8]) -> Inner<Option<Vec<u8>>> {
        match self.core.read_name(stored)? {
            Some(meaning) => self.shown(stored, &meaning),
            None => Ok(None),
        }
    }

    /// Returns the name with which the existing entry `stored` is shown; `None` if others have all
    /// that it claims.
    pub(in crate::vault) fn shown(
        &self,
        stored: &[u8],
        meaning: &Meaning,
    ) -> Inner<Option<Vec<u8>>> {
        if let Some(name) = self.name_before_mark(stored, meaning)? {
            return Ok(Some(name));
        }
        let name = marked(stored, &mark_of(stored));
        let is_owner = name.len() <= NAME_MAX && self.is_owner_of_mark(stored, &name)?;
        Ok(is_owner.then_some(name))
    }

    /// Returns the first, second or third name of an entry, whichever it has.
    fn name_before_mark(&self, stored: &[u8], meaning: &Meaning) -> Inner<Option<Vec<u8>>> {
        if let Meaning::Name(sealed) = meaning
            && let Some(name) = self.sealed_name(stored, sealed)?
        {
            return Ok(Some(name));
        }
        let is_free = stored.len() <= NAME_MAX
            && self.has_first(stored, None)?.is_none()
            && self.has_mark(stored, None)?.is_none();
        Ok(is_free.then(|| stored.to_vec()))
    }

    /// Returns the first name of an entry, if it has it.
    fn first_name(&self, stored: &[u8], sealed: &Sealed) -> Inner<Option<Vec<u8>>> {
        // A conflict copy of a long name may have no room for its suffix.
        let Some(name) = sealed.name() else { return Ok(None) };
        if self.is_plain(sealed) {
            return Ok(Some(name)); // nothing has an earlier claim
        }
        let has = self.is_explained(&sealed.tag)?
            && self
                .has_first(&name, Some((stored, sealed)))?
                .is_some_and(|(entry, _)| entry == stored);
        Ok(has.then_some(name))
    }

    /// Returns the first or second name of an entry, whichever it has.
    fn sealed_name(&self, stored: &[u8], sealed: &Sealed) -> Inner<Option<Vec<u8>>> {
        if let Some(name) = self.first_name(stored, sealed)? {
            return Ok(Some(name));
        }
        let Some(name) = sealed.name() else { return Ok(None) };
        let name = marked(&name, &mark_of(stored));
        let has = name.len() <= NAME_MAX && self.is_owner_of_mark(stored, &name)?;
        Ok(has.then_some(name))
    }

    fn is_owner_of_mark(&self, stored: &[u8], name: &[u8]) -> Inner<bool> {
        Ok(self.has_first(name, None)?.is_none()
            && self.has_mark(name, Some(stored))?.as_deref() == Some(stored))
    }

    pub(in crate::vault) fn link(&self, stored: &[u8], name: &[u8]) -> Link {
        Link::new(self.node, stored, name)
    }

    /// Returns the stored name of `name`; the entry need not exist.
    pub fn stored(&self, name: &[u8]) -> Inner<Vec<u8>> {
        match self.find(name) {
            Ok((stored, _)) => Ok(stored),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(self.encode(name)?.into_entry()),
            Err(fault) => Err(fault),
        }
    }

    // ---- places

    /// Returns the plain name of the place of the entry `stored`, shown as `name`: without the
    /// suffix of a conflict copy. `None` if the entry is not at a place of this directory, because
    /// no evidence explains its tag, or if its name is lost and `name` is not the lost one.
    pub(in crate::vault) fn place_name(
        &self,
        stored: &[u8],
        name: &[u8],
    ) -> Inner<Option<Vec<u8>>> {
        match self.core.read_name(stored)? {
            Some(Meaning::Name(sealed)) => {
                Ok(self.is_explained(&sealed.tag)?.then_some(sealed.plain))
            }
            // The hash shows whether the lost name is the one by which the entry was found.
            Some(Meaning::Lost) => {
                let Parts::Long { suffix, .. } = parse(stored, self.keys().longest_name) else {
                    return Ok(None);
                };
                let entry = &stored[..stored.len() - suffix.len()];
                let plain = name.strip_suffix(&*suffix::shown(suffix)).unwrap_or(name);
                let is_it = self.keys().is_stored_name(entry, &self.tags()?, plain);
                Ok(is_it.then(|| plain.to_vec()))
            }
            None => Ok(None),
        }
    }

    /// Returns whether an entry other than `stored` has the place `place`: then the junction there
    /// belongs to that entry. `stored` need not exist.
    pub(in crate::vault) fn is_place_of_another(&self, stored: &[u8], place: &[u8]) -> Inner<bool> {
        for other in self.entries(self.tags()?, (place, b"")) {
            if other != stored && self.there(&other)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the tags that a directory at the place `name` may have.
    pub(in crate::vault) fn tags_at(&self, name: &[u8]) -> Inner<Vec<Tag>> {
        let stored = self.entries(self.tags()?, (name, b""));
        Ok(stored.filter_map(|stored| self.keys().tag_of(&stored)).collect())
    }

    /// Returns the tags under which a junction of this directory may be stored, its own first.
    pub(in crate::vault) fn junction_tags(&self) -> Inner<Vec<Tag>> {
        let explained = self.core.explained(&self.tag)?;
        let is_none = explained.len() > TRIED_MAX && self.census()?.census.junctions.is_empty();
        let others = if is_none { &[] } else { &*explained };
        Ok([&[self.tag], others].concat())
    }

    /// Returns where the junction of a place may be: the tags of the directory, its own first, each
    /// with the hash of the place. If there are many tags, places that a certain census does not
    /// show are left out, except those under its own tag.
    pub(in crate::vault) fn junction_places(&self, place: &[u8]) -> Inner<Vec<(Tag, [u8; 32])>> {
        let tags = self.junction_tags()?;
        let counted = if tags.len() > 1 + TRIED_MAX { Some(self.census()?) } else { None };
        let census = counted.filter(|c| c.is_certain).map(|c| c.census);
        let may_be = |tag: &Tag, hash: &[u8; 32]| {
            *tag == self.tag || census.as_ref().is_none_or(|census| census.junctions.has(hash))
        };
        let hashes = |tag: &Tag| self.keys().place_hashes(tag, place);
        let places = tags.iter().flat_map(|tag| hashes(tag).into_iter().map(|hash| (*tag, hash)));
        Ok(places.filter(|(tag, hash)| may_be(tag, hash)).collect())
    }
}

impl Core {
    /// Returns the tag of a directory of this share.
    ///
    /// # Errors
    /// [`Fault::Boundary`] if it is the root of a nested share.
    pub fn directory_tag(&self, node: NodeId) -> Inner<Tag> {
        if let Some(tag) = self.nodes.directory(node) {
            if self.has_moved(node)? {
                return Err(Fault::Os(libc::ESTALE));
            }
            return self.check_not_shared_since(node).map(|()| tag);
        }
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        let dir = self.dir(node)?;
        let place = parent.place_name(link.stored(), link.name())?;
        parent.check_boundary(&*dir, place.as_deref())?;
        let tag = self.keys.tag_of(link.stored()).ok_or(Fault::Os(libc::ESTALE))?;
        if self.has_moved(node)? {
            return Err(Fault::Os(libc::ESTALE));
        }
        self.nodes.set_directory(node, Some(tag));
        Ok(tag)
    }

    /// Rejects a directory of a synced vault that was made a share on another machine after its
    /// lookup here: a sync tool may have put the share into the directory that was there.
    fn check_not_shared_since(&self, node: NodeId) -> Inner<()> {
        if !self.mode.synced || node == ROOT {
            return Ok(());
        }
        // A directory without a name takes no entries.
        let (Ok(link), Ok(dir)) = (self.nodes.link(node), self.dir(node)) else { return Ok(()) };
        let Some(tag) = self.nodes.directory(link.parent) else { return Ok(()) };
        let parent = Folder { core: self, node: link.parent, dir: self.dir(link.parent)?, tag };
        // Most directories are shown under the name that their stored name contains. For these no
        // evidence is read: a lookup that follows would not read it again for a while.
        let place = match self.read_name(link.stored())? {
            Some(Meaning::Name(sealed)) if sealed.plain == link.name() => Some(sealed.plain),
            _ => parent.place_name(link.stored(), link.name())?,
        };
        parent.check_boundary(&*dir, place.as_deref()).inspect_err(|_| {
            self.nodes.set_directory(node, None);
        })
    }

    /// Returns whether another daemon has renamed or removed a directory since its lookup here. A
    /// renamed one has another tag.
    fn has_moved(&self, node: NodeId) -> Inner<bool> {
        if !self.mode.writers.share_names() || node == ROOT {
            return Ok(false);
        }
        let link = self.nodes.link(node)?;
        let stat = self.dir(link.parent)?.stat(link.stored());
        Ok(!stat.is_ok_and(|stat| self.nodes.is(node, &stat)))
    }

    /// Returns the folder of a directory of the store, for a walk that has no nodes.
    pub fn folder_at(&self, dir: Arc<dyn Dir>, tag: Tag) -> Folder<'_> {
        Folder { core: self, node: ROOT, dir, tag }
    }

    /// Returns the folder of a node; `ENOTDIR` if it is no directory.
    pub fn folder(&self, node: NodeId) -> Inner<Folder<'_>> {
        if self.nodes.kind(node)? != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let tag = self.directory_tag(node)?;
        Ok(Folder { core: self, node, dir: self.dir(node)?, tag })
    }
}

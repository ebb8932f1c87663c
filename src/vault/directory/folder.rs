//! A directory whose names are in use: from plain names to stored ones and back.
//!
//! Rules that hold here
//! * A long name's sidecar is durable before its entry exists, and is removed after it.
//! * Listings and lookups follow one rule, so that each entry is found under the name with which it
//!   is shown, and under no other. An entry claims up to three names, in this order, until it has
//!   one:
//!   1. the sealed name, with a sync tool's suffix;
//!   2. if its epoch is not the current one, that name with the epoch's number;
//!   3. its stored name.
//! * Of several entries that claim a name as their first one, the first in the order of
//!   [`ShareKeys::claims`] has it. If there is none, the first of those that claim it as their
//!   second; then the one that claims it as its third. An entry without a name is reported like an
//!   unreadable one.
//! * A name that was removed from its entry here goes to no other entry that claims it, as long as
//!   the vault is open; see [`crate::vault::core::vacated`].
//! * An entry sealed under the current epoch's key without a suffix has the first claim to its
//!   name; no search is needed to know that.

use std::sync::Arc;

use crate::format::junction::Junction;
use crate::format::name::{
    DIRECTORY_RECORD, Decoded, NAME_MAX, StoredName, is_valid, may_be_sealed, without_suffix,
};
use crate::format::record::{DirectoryRecord, RecordKind};
use crate::store::{Dir, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::directory::names::{Said, Sealed, shown, split_epoch};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::keyring::keys::{DirectoryId, ShareKeys};
use crate::vault::share::control_files::{read_control, write_control};
use crate::vault::types::{NodeId, ROOT};

/// Maximum length in bytes of a sidecar that is read.
const SIDECAR_MAX: usize = 4096;

fn check_name(name: &[u8]) -> Inner<()> {
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ENAMETOOLONG));
    }
    if !is_valid(name) {
        return Err(Fault::Os(libc::EINVAL));
    }
    Ok(())
}

/// An existing stored name, with its `stat` if requested.
type Found = Option<(Vec<u8>, Option<Stat>)>;

/// A directory whose names are in use.
pub(crate) struct Folder<'a> {
    pub(in crate::vault) core: &'a Core,
    pub(in crate::vault) node: NodeId,
    pub(in crate::vault) dir: Arc<dyn Dir>,
    pub(in crate::vault) id: DirectoryId,
}

impl Folder<'_> {
    pub fn keys(&self) -> &ShareKeys {
        &self.core.keys
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &dyn Dir {
        &*self.dir
    }

    pub fn encode(&self, name: &[u8]) -> Inner<StoredName> {
        check_name(name)?;
        self.core.keys.names(&self.id).encode(name).ok_or(Fault::Os(libc::EINVAL))
    }

    /// Returns the stored name of `name`, with its `stat`.
    pub(in crate::vault) fn find(&self, name: &[u8]) -> Inner<(Vec<u8>, Stat)> {
        let stored = self.encode(name)?;
        match self.dir.stat(stored.entry()) {
            Ok(stat) => return Ok((stored.entry().to_vec(), stat)),
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e.into()),
            Err(_) => {}
        }
        match self.found_besides(name)? {
            Some((stored, Some(stat))) => Ok((stored, stat)),
            _ => Err(Fault::Os(libc::ENOENT)),
        }
    }

    /// Returns the entry that has `name`, if it is not the current epoch's entry without a suffix.
    fn found_besides(&self, name: &[u8]) -> Inner<Found> {
        if self.is_vacated(name) {
            return Ok(None);
        }
        if let Some(found) = self.first_there(self.keys().other_claims(&self.id, name), None)? {
            return Ok(Some(found));
        }
        match self.has_second(name, None)? {
            Some(found) => Ok(Some(found)),
            None => self.has_third(name),
        }
    }

    fn is_vacated(&self, name: &[u8]) -> bool {
        self.core.namespace.vacated.has(&self.id, name)
    }

    /// Notes that `name` was removed from its entry: no other entry gets the name, because the
    /// program that removed it may be about to create one of its own.
    pub(in crate::vault) fn vacate(&self, name: &[u8]) {
        if !matches!(self.found_besides(name), Ok(None)) {
            self.core.namespace.vacated.note(&self.id, name);
        }
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

    /// Returns the first of the entries that exists; `known` is known to exist.
    fn first_there(
        &self,
        entries: impl IntoIterator<Item = Vec<u8>>,
        known: Option<&[u8]>,
    ) -> Inner<Found> {
        for entry in entries {
            if known == Some(&*entry) {
                return Ok(Some((entry, None)));
            }
            if let Some(stat) = self.there(&entry)? {
                return Ok(Some((entry, Some(stat))));
            }
        }
        Ok(None)
    }

    /// Returns the entry that has `name` as its first one. `known` is one that exists.
    fn has_first(&self, name: &[u8], known: Option<&[u8]>) -> Inner<Found> {
        let has_own = || self.keys().names(&self.id).encode(name).is_some();
        let count = if self.is_vacated(name) { usize::from(has_own()) } else { usize::MAX };
        self.first_there(self.keys().claims(&self.id, name).take(count), known)
    }

    /// Returns the entry that has `name` as its second one, if none has it as its first.
    fn has_second(&self, name: &[u8], known: Option<&[u8]>) -> Inner<Found> {
        let Some((plain, claims)) = self.keys().second_claims(&self.id, name) else {
            return Ok(None);
        };
        if self.is_vacated(name) {
            return Ok(None);
        }
        let mut claims = claims.peekable();
        let first = match claims.peek() {
            Some(_) => self.has_first(plain, known)?.map(|(entry, _)| entry),
            None => None,
        };
        self.first_there(claims.filter(|entry| Some(entry) != first.as_ref()), known)
    }

    /// Returns the entry that has `name` as its third one, if none has it as its first or second.
    fn has_third(&self, name: &[u8]) -> Inner<Found> {
        if !may_be_sealed(name) || self.is_vacated(name) {
            return Ok(None);
        }
        let decoded = self.keys().names(&self.id).decode(name);
        let is_none = match decoded {
            Decoded::Control => true,
            Decoded::Foreign => self.keys().said_under_older(&self.id, name).is_none(),
            Decoded::Plain(_) | Decoded::Long { .. } => false,
        };
        if is_none {
            return Ok(None);
        }
        let Some(stat) = self.there(name)? else { return Ok(None) };
        let has_another = match self.said(name, decoded)? {
            Some(Said::Name(sealed)) => self.sealed_name(name, &sealed)?.is_some(),
            _ => false,
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

    /// Returns the name that determines the place of the entry `stored`, shown as `name`: without
    /// the suffix of a conflict copy, because the tool copied data sealed for the place of the
    /// original. The stored name if the name is lost.
    pub(in crate::vault) fn place_name(&self, stored: &[u8], name: &[u8]) -> Inner<Vec<u8>> {
        Ok(self.known_place(stored, name)?.unwrap_or_else(|| stored.to_vec()))
    }

    /// Like [`Folder::place_name`], `None` if the name is lost.
    fn known_place(&self, stored: &[u8], name: &[u8]) -> Inner<Option<Vec<u8>>> {
        let decoded = self.keys().names(&self.id).decode(stored);
        if let Decoded::Long { suffix, .. } = &decoded {
            // Its hash shows whether it is the name, so the sidecar need not be read.
            let entry = without_suffix(stored);
            let unnumbered = split_epoch(name).map(|(plain, _)| plain);
            let plain = [Some(name), unnumbered]
                .into_iter()
                .flatten()
                .filter_map(|name| name.strip_suffix(&**suffix));
            if let Some(plain) =
                plain.into_iter().find(|plain| self.keys().is_long_entry(&self.id, entry, plain))
            {
                return Ok(Some(plain.to_vec()));
            }
        }
        Ok(match self.said(stored, decoded)? {
            Some(Said::Name(sealed)) => Some(sealed.plain),
            Some(Said::Lost) => None,
            None => Some(name.to_vec()),
        })
    }

    /// Returns place, id and record of the directory `inside`, whose entry here is `stored` and is
    /// shown as `name`.
    pub(in crate::vault) fn identify(
        &self,
        inside: &dyn Dir,
        stored: &[u8],
        name: &[u8],
    ) -> Inner<(Vec<u8>, DirectoryId, Option<DirectoryRecord>)> {
        let known = self.known_place(stored, name)?;
        let is_lost = known.is_none();
        let place = known.unwrap_or_else(|| stored.to_vec());
        let (id, record) = self.core.identify(inside, &self.id, &place)?;
        if is_lost && record.is_none() {
            // Entries created in it under an id derived from the rest of the name could not be read
            // once the name is restored.
            return Err(Fault::Corrupt(Corruption::LostDirectory));
        }
        Ok((place, id, record))
    }

    /// Returns whether an entry other than `stored`, which need not exist, has the place `place`:
    /// the junction there belongs to that entry.
    pub(in crate::vault) fn is_place_of_another(&self, stored: &[u8], place: &[u8]) -> Inner<bool> {
        let whole = self.keys().place_entries(&self.id, place);
        Ok(self.first_there(whole.filter(|entry| entry != stored), None)?.is_some())
    }

    pub(in crate::vault) fn sidecar_bound(&self, hash: &[u8; 32]) -> Vec<u8> {
        [&self.id[..], hash].concat()
    }

    /// Makes a long name's sidecar durable, before its entry is created.
    pub fn prepare(&self, stored: &StoredName, name: &[u8]) -> Inner<()> {
        if let StoredName::Long { sidecar, hash, .. } = stored {
            if let Ok(Some(there)) = self.read_sidecar(sidecar, hash)
                && there == name
            {
                return Ok(());
            }
            let sealed = self.core.keys.seal_record(
                RecordKind::Name,
                &self.sidecar_bound(hash),
                name,
                &*self.core.random,
            );
            write_control(&*self.dir, &*self.core.random, sidecar, &sealed)?;
            self.dir.sync()?;
        }
        Ok(())
    }

    pub(in crate::vault) fn read_sidecar(
        &self,
        sidecar: &[u8],
        hash: &[u8; 32],
    ) -> Inner<Option<Vec<u8>>> {
        let Some(bytes) = read_control(&*self.dir, sidecar, SIDECAR_MAX)? else { return Ok(None) };
        let name = self
            .core
            .keys
            .open_record(RecordKind::Name, &self.sidecar_bound(hash), &bytes)?
            .to_vec();
        if is_valid(&name) {
            Ok(Some(name))
        } else {
            Err(Fault::Corrupt(Corruption::Other("has a sealed name that is not valid")))
        }
    }

    /// Removes the sidecar of a long name whose entry is removed, unless a conflict copy needs it.
    /// The caller has excluded concurrent creation of that name.
    pub(in crate::vault) fn tidy(&self, stored: &[u8]) {
        let Decoded::Long { sidecar, suffix, .. } = self.core.keys.names(&self.id).decode(stored)
        else {
            return;
        };
        let entry = &stored[..stored.len() - suffix.len()];
        let tidied = (|| {
            let is_copy = !suffix.is_empty();
            let has_copies = || {
                self.core.namespace.long_copies.are_there(
                    (self.node, self.id),
                    &*self.dir,
                    entry,
                    is_copy,
                )
            };
            // The entry of which this was a copy, or which was created again.
            if self.there(entry)?.is_some() || has_copies()? {
                return Ok(());
            }
            match self.dir.unlink(&sidecar) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => Ok::<_, Fault>(other?),
            }
        })();
        if let Err(fault) = tidied {
            // The entry is removed, as requested; the sidecar is residue that a check reports.
            tracing::warn!(errno = fault.errno(), "sidecar {} left behind", shown(&sidecar));
        }
    }

    /// Returns the name with which the entry `stored` is shown; `None` for control files, for
    /// entries that are not a name of this directory, and if other entries have all names that it
    /// claims.
    pub fn decode(&self, stored: &[u8]) -> Inner<Option<Vec<u8>>> {
        match self.read(stored)? {
            Some(said) => self.shown(stored, &said),
            None => Ok(None),
        }
    }

    /// Decodes a stored name; `None` for control files and entries that are not a name of this
    /// directory.
    pub(in crate::vault) fn read(&self, stored: &[u8]) -> Inner<Option<Said>> {
        self.said(stored, self.keys().names(&self.id).decode(stored))
    }

    /// Completes [`Folder::read`] from the result of the current epoch's cipher.
    pub(in crate::vault) fn said(&self, stored: &[u8], decoded: Decoded) -> Inner<Option<Said>> {
        match decoded {
            Decoded::Plain(name) => Ok(Some(ShareKeys::said(stored, name, None))),
            Decoded::Control => Ok(None),
            Decoded::Foreign => Ok(self.keys().said_under_older(&self.id, stored)),
            Decoded::Long { sidecar, hash, suffix } => match self.read_sidecar(&sidecar, &hash) {
                Ok(Some(plain)) => Ok(Some(self.keys().said_long(&self.id, stored, suffix, plain))),
                Err(Fault::Io(e)) => Err(Fault::Io(e)),
                Ok(None) | Err(_) => Ok(Some(Said::Lost)),
            },
        }
    }

    /// Returns the name with which the existing entry `stored`, decoded as `said`, is shown; `None`
    /// if others have all that it claims.
    pub(in crate::vault) fn shown(&self, stored: &[u8], said: &Said) -> Inner<Option<Vec<u8>>> {
        if let Said::Name(sealed) = said
            && let Some(name) = self.sealed_name(stored, sealed)?
        {
            return Ok(Some(name));
        }
        let is_free = || -> Inner<bool> {
            Ok(self.has_first(stored, None)?.is_none() && self.has_second(stored, None)?.is_none())
        };
        Ok((stored.len() <= NAME_MAX && !self.is_vacated(stored) && is_free()?)
            .then(|| stored.to_vec()))
    }

    /// Returns the first or second name of an entry, whichever it has.
    fn sealed_name(&self, stored: &[u8], sealed: &Sealed) -> Inner<Option<Vec<u8>>> {
        let is_it = |found: Found| found.is_some_and(|(entry, _)| entry == stored);
        // A conflict copy of a long name may have no room for its suffix.
        let Some(name) = sealed.name() else { return Ok(None) };
        // Nothing has an earlier claim.
        if sealed.older.is_none() && sealed.suffix.is_empty()
            || is_it(self.has_first(&name, Some(stored))?)
        {
            return Ok(Some(name));
        }
        let Some(beside) = sealed.beside() else { return Ok(None) };
        let has = self.has_first(&beside, None)?.is_none()
            && is_it(self.has_second(&beside, Some(stored))?);
        Ok(has.then_some(beside))
    }

    pub(in crate::vault) fn link(&self, stored: &[u8], name: &[u8]) -> Link {
        Link { parent: self.node, stored: stored.into(), name: name.into() }
    }

    /// Returns the stored name of `name`; the entry need not exist.
    pub fn stored(&self, name: &[u8]) -> Inner<Vec<u8>> {
        match self.find(name) {
            Ok((stored, _)) => Ok(stored),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(self.encode(name)?.entry().to_vec()),
            Err(fault) => Err(fault),
        }
    }
}

impl Core {
    /// Returns the id of a directory: the recorded one if it was renamed, otherwise the one derived
    /// from its place.
    pub fn directory_id(&self, node: NodeId) -> Inner<DirectoryId> {
        if let Some(id) = self.nodes.directory(node) {
            return Ok(id);
        }
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        let dir = self.dir(node)?;
        let place = parent.place_name(&link.stored, &link.name)?;
        self.check_boundary(&*dir, &*parent.dir, &parent.id, &place)?;
        let id = match parent.identify(&*dir, &link.stored, &link.name) {
            // Another daemon has renamed it since its lookup here.
            Err(Fault::Corrupt(Corruption::MovedDirectory))
                if self.mode.writers.share_names() && !self.stands_at(node, &link) =>
            {
                return Err(Fault::Os(libc::ESTALE));
            }
            identified => identified?.1,
        };
        self.nodes.set_directory(node, Some(id));
        Ok(id)
    }

    /// Returns whether the store has a node at the place in the node table.
    fn stands_at(&self, node: NodeId, link: &Link) -> bool {
        let stat = self.dir(link.parent).and_then(|dir| Ok(dir.stat(&link.stored)?));
        stat.is_ok_and(|stat| self.nodes.is(node, &stat))
    }

    /// Returns the id of the directory `dir` at (`parent`, `name`), and its record if it has one.
    pub fn identify(
        &self,
        dir: &dyn Dir,
        parent: &DirectoryId,
        name: &[u8],
    ) -> Inner<(DirectoryId, Option<DirectoryRecord>)> {
        let Some(bytes) = read_control(dir, DIRECTORY_RECORD, 4096)? else {
            return Ok((self.keys.derived_directory(parent, name), None));
        };
        let plain = self.keys.open_record(RecordKind::Directory, b"", &bytes)?;
        let record = DirectoryRecord::decode(&plain)?;
        if !record.is_at(parent, name) {
            return Err(Fault::Corrupt(Corruption::MovedDirectory));
        }
        Ok((record.id, Some(record)))
    }

    /// Returns a directory of the store whose id is known, for a walk without nodes: names can be
    /// encoded, decoded and prepared.
    pub fn folder_at(&self, dir: Arc<dyn Dir>, id: DirectoryId) -> Folder<'_> {
        Folder { core: self, node: ROOT, dir, id }
    }

    /// Returns a directory for the use of its names.
    pub fn folder(&self, node: NodeId) -> Inner<Folder<'_>> {
        if self.nodes.kind(node)? != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let id = self.directory_id(node)?;
        Ok(Folder { core: self, node, dir: self.dir(node)?, id })
    }

    /// Returns the junction that leads to the share in a directory, by the directory's node.
    pub fn junction_at(&self, node: NodeId) -> Inner<Option<Junction>> {
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        self.junction(&*parent.dir, &parent.id, &parent.place_name(&link.stored, &link.name)?)
    }
}

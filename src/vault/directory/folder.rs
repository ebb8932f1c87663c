//! A directory in which names are being worked on: from plain names to stored ones and back.
//!
//! Rules that hold here
//! * A long name's sidecar is durable before its entry is there, and goes after it.
//! * Whoever lists a directory and whoever looks a name up follow one rule, so that each entry is
//!   found under the name that it is shown with, and nothing else is. An entry claims up to three
//!   names, one after the other, until it has one: what was sealed, with a sync tool's suffix; if
//!   its epoch is not the current one, that with the epoch's number; its stored name. Of those that
//!   claim a name as their first one the first has it, in the order of [`ShareKeys::claims`]; if
//!   there are none, the first of those that claim it as their second one, then the one that claims
//!   it as its third. What gets none is told of as what cannot be read is.
//! * A name that was taken from its entry here goes to no other that claims it, as long as the
//!   vault is open; see [`crate::vault::core::vacated`].
//! * What is sealed under the current epoch's key and has no suffix is the first to claim its name,
//!   which costs nothing to know.

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
use crate::vault::error::{Fault, Inner};
use crate::vault::keyring::keys::{DirectoryId, ShareKeys};
use crate::vault::share::control_files::{read_control, write_control};
use crate::vault::types::{NodeId, ROOT};

/// Of a directory whose record names another place.
const MOVED: &str = "is a directory that was moved here by somebody without the key";
/// What is wrong with a directory that stands nowhere.
pub(in crate::vault) const LOST_DIRECTORY: &str =
    "has lost its long name, on which depends what is in it";
/// Longest sidecar that is read.
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

/// A stored name that is there, with its `stat` if it was asked for.
type Found = Option<(Vec<u8>, Option<Stat>)>;

/// A directory in which names are being worked on.
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

    /// The directory of the store.
    pub fn dir(&self) -> &dyn Dir {
        &*self.dir
    }

    pub fn encode(&self, name: &[u8]) -> Inner<StoredName> {
        check_name(name)?;
        self.core.keys.names(&self.id).encode(name).ok_or(Fault::Os(libc::EINVAL))
    }

    /// The stored name under which `name` stands, with its `stat`.
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

    /// The entry that has `name`, if that is not the one of the current epoch as it stands.
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

    /// The entry that had `name` is gone from it: no other one gets the name, for whoever took it
    /// away may be about to make one of his own.
    pub(in crate::vault) fn vacate(&self, name: &[u8]) {
        if !matches!(self.found_besides(name), Ok(None)) {
            self.core.namespace.vacated.note(&self.id, name);
        }
    }

    /// The entry at `stored`, if one is there.
    fn there(&self, stored: &[u8]) -> Inner<Option<Stat>> {
        match self.dir.stat(stored) {
            Ok(stat) => Ok(Some(stat)),
            // The last three: of a name that this store can give to nothing. After anything else
            // nobody knows whose the name is.
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

    /// The first of the entries that is there; of `known` that is certain.
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

    /// The entry that has `name` as its first one. `known` is one that is there.
    fn has_first(&self, name: &[u8], known: Option<&[u8]>) -> Inner<Found> {
        let has_own = || self.keys().names(&self.id).encode(name).is_some();
        let count = if self.is_vacated(name) { usize::from(has_own()) } else { usize::MAX };
        self.first_there(self.keys().claims(&self.id, name).take(count), known)
    }

    /// The entry that has `name` as its second one, if none has it as its first.
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

    /// The entry that has `name` as its third one, if none has it as its first or second.
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

    /// Whether another entry has the name than that which is to be made.
    pub(in crate::vault) fn is_taken(&self, name: &[u8]) -> Inner<bool> {
        Ok(self.found_besides(name)?.is_some())
    }

    /// The name that says where the entry `stored` stands, which is shown as `name`: without the
    /// suffix of a conflict copy, because the tool copied what was sealed for the place of the
    /// original. The stored name where the name is lost.
    pub(in crate::vault) fn place_name(&self, stored: &[u8], name: &[u8]) -> Inner<Vec<u8>> {
        Ok(self.known_place(stored, name)?.unwrap_or_else(|| stored.to_vec()))
    }

    /// [`Folder::place_name`], `None` where the name is lost.
    fn known_place(&self, stored: &[u8], name: &[u8]) -> Inner<Option<Vec<u8>>> {
        let decoded = self.keys().names(&self.id).decode(stored);
        if let Decoded::Long { suffix, .. } = &decoded {
            // Its hash says whether it is the name, which need not be read then.
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

    /// Place, id and record of the directory `inside` that stands here as `stored` and is shown as
    /// `name`.
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
            // What is made in it under an id that follows from what is left of the name could not
            // be read once the name is there again.
            return Err(Fault::Corrupt(LOST_DIRECTORY));
        }
        Ok((place, id, record))
    }

    /// Whether another entry than `stored`, which need not be there, has the place `place`: what
    /// leads to that is its own.
    pub(in crate::vault) fn is_place_of_another(&self, stored: &[u8], place: &[u8]) -> Inner<bool> {
        let whole = self.keys().place_entries(&self.id, place);
        Ok(self.first_there(whole.filter(|entry| entry != stored), None)?.is_some())
    }

    pub(in crate::vault) fn sidecar_bound(&self, hash: &[u8; 32]) -> Vec<u8> {
        [&self.id[..], hash].concat()
    }

    /// Makes a long name's sidecar durable, before its entry is made.
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
            Err(Fault::Corrupt("has a sealed name that none can have"))
        }
    }

    /// Removes the sidecar of a long name whose entry is gone, unless a conflict copy of the entry
    /// has its name from it. Nobody else makes an entry of that name meanwhile.
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
            // The entry: of which this was a copy, or which somebody has made anew.
            if self.there(entry)?.is_some() || has_copies()? {
                return Ok(());
            }
            match self.dir.unlink(&sidecar) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => Ok::<_, Fault>(other?),
            }
        })();
        if let Err(fault) = tidied {
            // The entry is gone, as was asked; what is left is residue that a check names.
            tracing::warn!(errno = fault.errno(), "sidecar {} left behind", shown(&sidecar));
        }
    }

    /// The name with which the entry `stored` is shown; `None` for control files, for what is not a
    /// name of this directory, and where other entries have all names that it claims.
    pub fn decode(&self, stored: &[u8]) -> Inner<Option<Vec<u8>>> {
        match self.read(stored)? {
            Some(said) => self.shown(stored, &said),
            None => Ok(None),
        }
    }

    /// What a stored name says; `None` for control files and what is not a name of this directory.
    pub(in crate::vault) fn read(&self, stored: &[u8]) -> Inner<Option<Said>> {
        self.said(stored, self.keys().names(&self.id).decode(stored))
    }

    /// [`Folder::read`], once the cipher of the current epoch has said what `stored` is.
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

    /// The name with which the entry `stored`, which is there and says `said`, is shown; `None`
    /// where others have all that it claims.
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

    /// The first or second name of an entry, whichever it has.
    fn sealed_name(&self, stored: &[u8], sealed: &Sealed) -> Inner<Option<Vec<u8>>> {
        let is_it = |found: Found| found.is_some_and(|(entry, _)| entry == stored);
        // A conflict copy of a long name may have no room for its suffix.
        let Some(name) = sealed.name() else { return Ok(None) };
        // Nothing claims it before the first.
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

    /// Stored name of `name`, which need not be there.
    pub fn stored(&self, name: &[u8]) -> Inner<Vec<u8>> {
        match self.find(name) {
            Ok((stored, _)) => Ok(stored),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(self.encode(name)?.entry().to_vec()),
            Err(fault) => Err(fault),
        }
    }
}

impl Core {
    /// Id of a directory: the recorded one where it has been renamed, else the one that follows
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
            // Another daemon has renamed it since we looked it up here.
            Err(Fault::Corrupt(MOVED)) if self.mode.shared && !self.stands_at(node, &link) => {
                return Err(Fault::Os(libc::ESTALE));
            }
            identified => identified?.1,
        };
        self.nodes.set_directory(node, Some(id));
        Ok(id)
    }

    /// Whether the store has a node where our table has it.
    fn stands_at(&self, node: NodeId, link: &Link) -> bool {
        let stat = self.dir(link.parent).and_then(|dir| Ok(dir.stat(&link.stored)?));
        stat.is_ok_and(|stat| self.nodes.is(node, &stat))
    }

    /// Id of the directory `dir` that stands at (`parent`, `name`), and its record if it has one.
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
            return Err(Fault::Corrupt(MOVED));
        }
        Ok((record.id, Some(record)))
    }

    /// A directory of the store whose id is known, for whoever walks the store without nodes: names
    /// can be encoded, decoded and prepared.
    pub fn folder_at(&self, dir: Arc<dyn Dir>, id: DirectoryId) -> Folder<'_> {
        Folder { core: self, node: ROOT, dir, id }
    }

    /// A directory, ready for its names.
    pub fn folder(&self, node: NodeId) -> Inner<Folder<'_>> {
        if self.nodes.kind(node)? != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let id = self.directory_id(node)?;
        Ok(Folder { core: self, node, dir: self.dir(node)?, id })
    }

    /// The junction that leads to the share in a directory, by the directory's node.
    pub fn junction_at(&self, node: NodeId) -> Inner<Option<Junction>> {
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        self.junction(&*parent.dir, &parent.id, &parent.place_name(&link.stored, &link.name)?)
    }
}

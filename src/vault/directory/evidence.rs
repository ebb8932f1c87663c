//! Rename evidence: which directories an entry may be in, apart from the one in which its name was
//! created.
//!
//! Rules that hold here
//! * Evidence is durable before the directory is renamed, and is never changed or removed.
//! * A record counts only if its hash, seal and signature are right and it leads to the directory
//!   in question. The names of files and directories prove nothing.
//! * A record that this process may not read counts as withheld: entries that need it are marked.
//!   After any other error of the store it is unknown what belongs to the directory, and the
//!   operation fails.
//! * Evidence that was read counts as current for [`TRUSTED`], or for longer if reading it took
//!   long. After that, and always with concurrent writers, it is read again unless the times of its
//!   directories show no change.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::crypto::Tag;
use crate::format::moved::{DIRECTORY, Moved, file_name};
use crate::format::record::{RecordKind, epoch_of};
use crate::format::signature::Authorship;
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::core::known_names::{Asked, Closure, Freshness, TRUSTED};
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{
    entries, is_forbidden, is_missing, read_control, write_control,
};
use crate::vault::share::seen::Times;

/// Maximum length in bytes of a record that is read.
pub(in crate::vault) const RECORD_MAX: usize = 1024;
/// Maximum number of tags that evidence adds to a directory; a member could write any number.
const TAGS_MAX: usize = 1 << 16;

/// Opens a directory of control files, which is created and made durable if it does not exist.
/// Users who may create entries in its parent may also create them in it: members of a share may be
/// other users of the machine.
pub(in crate::vault) fn make_dir(parent: &Arc<dyn Dir>, name: &[u8]) -> Inner<Arc<dyn Dir>> {
    match parent.open_dir(name) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
        other => return Ok(other?),
    }
    match parent.mkdir(name, parent.stat_self()?.perm & 0o3777) {
        Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(e.into()),
        _ => parent.sync()?,
    }
    Ok(parent.open_dir(name)?)
}

fn is_absent<T>(result: &std::io::Result<T>) -> bool {
    result.as_ref().is_err_and(is_missing)
}

/// What was read of the evidence that leads to a directory.
struct Found {
    tags: Arc<[Tag]>,
    asked: Asked,
    /// Whether this process was permitted to read every file.
    is_whole: bool,
    /// When the oldest part was read, if a part comes from the cache.
    since: Option<Instant>,
}

/// A valid record of evidence.
pub(in crate::vault) struct Record {
    pub moved: Moved,
    /// The epoch under which it is sealed.
    pub epoch: u32,
    /// Its author and signer, in a signed share.
    pub by: Option<Authorship>,
    /// The hash of its bytes.
    pub hash: [u8; 32],
}

impl Core {
    /// Returns the explained tags of the directory with the tag `to`, in ascending order.
    pub fn explained(&self, to: &Tag) -> Inner<Arc<[Tag]>> {
        let (evidence, shared) = (&self.namespace.evidence, self.mode.writers.share_names());
        if let Some(none) = *evidence.none.lock()
            && !shared
            && none.elapsed() < TRUSTED
        {
            return Ok(Arc::default());
        }
        let known = self.closure(to);
        if let Some(Closure { tags, fresh, .. }) = &known
            && (fresh.is_trusted(shared) || fresh.rests(shared))
        {
            return Ok(tags.clone());
        }
        let (generation, now) = (self.keys.generation(), Instant::now());
        let Some(all) = self.readable(self.root.open_dir(DIRECTORY), &[DIRECTORY])? else {
            *evidence.none.lock() = Some(now);
            return Ok(Arc::default());
        };
        if let Some(Closure { tags, fresh, .. }) = &known {
            let times: Inner<Asked> = fresh
                .times
                .iter()
                .map(|(name, _)| Ok((name.clone(), self.times_of(&*all, name)?)))
                .collect();
            if fresh.is_valid(&times?, shared) {
                return Ok(tags.clone());
            }
        }
        let Found { tags, asked, is_whole, since } = self.read_evidence(&*all, to)?;
        // If a record could not be read, the times are no proof: granting the permission later
        // changes no time of the directories.
        let before = known.as_ref().map(|known| &*known.fresh).filter(|_| is_whole);
        let fresh = Freshness::new(asked, before, now).read_at(since);
        let closure = Closure { tags: tags.clone(), generation, fresh: fresh.into(), is_whole };
        evidence.closures.lock().keep(*to, closure);
        Ok(tags)
    }

    /// Returns the cached closure of a directory, if it was read with the present keys.
    fn closure(&self, to: &Tag) -> Option<Closure> {
        let generation = self.keys.generation();
        let mut closures = self.namespace.evidence.closures.lock();
        closures.get(to).filter(|closure| closure.generation == generation).cloned()
    }

    /// Returns what `read` has found; `None` if that is missing or, with a line in the log, if this
    /// process may not read it.
    fn readable<T>(&self, read: std::io::Result<T>, path: &[&[u8]]) -> Inner<Option<T>> {
        match read {
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) if is_forbidden(&e) => {
                self.namespace.unreadable.tell(path);
                Ok(None)
            }
            other => Ok(Some(other?)),
        }
    }

    fn times_of(&self, all: &dyn Dir, place: &[u8]) -> Inner<Option<Times>> {
        let stat = self.readable(all.stat(place), &[DIRECTORY])?;
        Ok(stat.map(|stat| (stat.mtime, stat.ctime)))
    }

    /// Reads all evidence that leads to a directory, breadth first. For a directory on the way a
    /// trusted closure from the cache is used: otherwise a directory that is renamed again and
    /// again would take a time that grows with the square of the renames. Equal times of a
    /// directory of evidence are kept once, because directories may lead to each other.
    fn read_evidence(&self, all: &dyn Dir, to: &Tag) -> Inner<Found> {
        let shared = self.mode.writers.share_names();
        let (mut tags, mut todo) = (BTreeSet::new(), VecDeque::from([*to]));
        let mut asked = BTreeSet::new();
        let (mut is_whole, mut since, top) = (true, None, *to);
        while let Some(to) = todo.pop_front() {
            if to != top
                && let Some(known) = self.closure(&to).filter(|k| k.fresh.is_trusted(shared))
                && tags.len() + known.tags.len() <= TAGS_MAX
            {
                tags.extend(known.tags.iter().copied());
                asked.extend(known.fresh.times.iter().cloned());
                is_whole &= known.is_whole;
                since =
                    Some(since.map_or(known.fresh.read, |at: Instant| at.min(known.fresh.read)));
                continue;
            }
            for place in self.keys.moved_places(&to) {
                let times = self.times_of(all, &place)?;
                let is_there = times.is_some();
                asked.insert((place.clone(), times));
                if !is_there {
                    continue;
                }
                let Some(dir) = self.readable(all.open_dir(&place), &[DIRECTORY, &place])? else {
                    continue;
                };
                for entry in entries(&*dir)? {
                    let file = entry?.name;
                    let moved = match self.evidence_in(&*dir, &file) {
                        Ok(Some(found)) => found.moved,
                        Ok(None) => continue,
                        Err(Fault::Io(e)) if is_forbidden(&e) => {
                            self.namespace.unreadable.tell(&[DIRECTORY, &place, &file]);
                            is_whole = false;
                            continue;
                        }
                        Err(fault) => return Err(fault),
                    };
                    if moved.to == to && tags.len() < TAGS_MAX && tags.insert(moved.from) {
                        todo.push_back(moved.from);
                    }
                }
            }
        }
        tags.remove(to);
        let (tags, asked) = (tags.into_iter().collect(), asked.into_iter().collect());
        Ok(Found { tags, asked, is_whole, since })
    }

    /// Reads a record in a directory of evidence; `None` if it is missing or not valid.
    pub fn evidence_in(&self, dir: &dyn Dir, file: &[u8]) -> Inner<Option<Record>> {
        let bytes = match read_control(dir, file, RECORD_MAX) {
            Err(Fault::Io(e)) if !is_missing(&e) => return Err(e.into()),
            Ok(Some(bytes)) if file_name(&bytes) == file => bytes,
            _ => return Ok(None),
        };
        let opened = self.keys.open_record_by(RecordKind::Moved, b"", &bytes).and_then(|opened| {
            let (moved, epoch) = (Moved::decode(&opened.0)?, epoch_of(RecordKind::Moved, &bytes)?);
            Ok(Record { moved, epoch, by: opened.1, hash: *blake3::hash(&bytes).as_bytes() })
        });
        match opened {
            Ok(record) => Ok(Some(record)),
            Err(fault) => {
                drop(fault.at("read", || shown(file).into()));
                Ok(None)
            }
        }
    }

    /// Calls `act` with each file in the sub-directories of a control directory at the root: the
    /// sub-directory, its name, and the name of the file. Skips objects that are not directories. A
    /// sub-directory that cannot be opened is passed as an error, with its name.
    pub fn each_file(
        &self,
        of: &[u8],
        mut act: impl FnMut(Inner<&dyn Dir>, &[u8], &[u8]) -> Inner<()>,
    ) -> Inner<()> {
        let all = self.root.open_dir(of);
        if is_absent(&all) {
            return Ok(());
        }
        let all = all?;
        for group in entries(&*all)? {
            let group = group?.name;
            match all.open_dir(&group) {
                Err(e) if is_missing(&e) => {}
                Err(e) => act(Err(e.into()), &group, b"")?,
                Ok(dir) => {
                    for file in entries(&*dir)? {
                        act(Ok(&*dir), &group, &file?.name)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Calls `act` with each valid record of evidence, and with the error of each that cannot be
    /// read.
    pub fn each_evidence(&self, mut act: impl FnMut(Inner<Record>) -> Inner<()>) -> Inner<()> {
        let read = |dir: Inner<&dyn Dir>, file: &[u8]| self.evidence_in(dir?, file);
        self.each_file(DIRECTORY, |dir, _, file| match read(dir, file) {
            Ok(None) => Ok(()),
            Ok(Some(found)) => act(Ok(found)),
            Err(fault) => act(Err(fault)),
        })
    }

    /// Returns whether there is valid evidence of a rename under the current epoch.
    pub fn has_current_evidence(&self, moved: &Moved) -> Inner<bool> {
        let place = self.keys.moved_places(&moved.to).swap_remove(0);
        let dir = self.root.open_dir(DIRECTORY).and_then(|all| all.open_dir(&place));
        if is_absent(&dir) {
            return Ok(false);
        }
        let dir = dir?;
        let current = self.keys.current().number;
        for entry in entries(&*dir)? {
            let found = match self.evidence_in(&*dir, &entry?.name) {
                Err(Fault::Io(e)) if is_forbidden(&e) => continue,
                other => other?,
            };
            if found.is_some_and(|found| found.moved == *moved && found.epoch == current) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the evidence of a rename durable, unless it follows from existing evidence.
    pub fn record_move(&self, from: &Tag, to: &Tag) -> Inner<()> {
        if from == to {
            return Ok(());
        }
        self.forget_evidence(to);
        if self.explained(to)?.binary_search(from).is_ok() {
            return Ok(());
        }
        let moved = Moved { from: *from, to: *to };
        self.write_evidence(&moved, &self.keys.seal_moved(&moved, None))?;
        // The closure of the new tag contains that of the former one. Keeping both would take
        // memory that grows with the square of the renames.
        if self.explained(to).is_ok() {
            self.namespace.evidence.closures.lock().remove(from);
        }
        Ok(())
    }

    /// Makes a record durable that is sealed under the current epoch.
    pub fn write_evidence(&self, moved: &Moved, record: &[u8]) -> Inner<()> {
        let place = self.keys.moved_places(&moved.to).swap_remove(0);
        let dir = make_dir(&make_dir(&self.root, DIRECTORY)?, &place)?;
        let file = file_name(record);
        if !read_control(&*dir, &file, RECORD_MAX)
            .is_ok_and(|there| there.as_deref() == Some(record))
        {
            write_control(&*dir, &*self.random, &file, record)?;
        }
        dir.sync()?;
        self.forget_evidence(&moved.to);
        Ok(())
    }

    /// Makes the next query read again the evidence that leads to this tag, or to a directory whose
    /// entries may have it.
    fn forget_evidence(&self, to: &Tag) {
        *self.namespace.evidence.none.lock() = None;
        let mut closures = self.namespace.evidence.closures.lock();
        let leads = |(of, known): (&Tag, &Closure)| {
            (of == to || known.tags.binary_search(to).is_ok()).then_some(*of)
        };
        let stale: Vec<Tag> = closures.iter().filter_map(leads).collect();
        stale.iter().for_each(|of| closures.remove(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::Suite;
    use crate::roster::Identity;
    use crate::store::mem::MemStore;
    use crate::vault::{Caller, CreateOptions, OpenOptions, OsRandom, ROOT, RenameMode, Vault};

    /// If evidence led in a circle, a closure kept the times of each directory of evidence anew
    /// each time that it was read with the help of the others. A storage host that changed these
    /// times caused two million entries, and as many calls for each lookup.
    #[test]
    fn evidence_that_leads_in_a_circle_is_asked_for_once() {
        let (store, owner) = (MemStore::new(), Identity::generate(&OsRandom));
        let options = CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 };
        Vault::create(&store.root(), &options, &owner).expect("create");
        let vault = Vault::open(store.root(), &owner, OpenOptions::default()).expect("open");
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let names = [&b"a"[..], b"b", b"c", b"d"];
        let dir = vault.mkdir(&caller, ROOT, names[0], 0o755).expect("mkdir").node;
        vault.mkdir(&caller, dir, b"inside", 0o755).expect("mkdir");
        for n in 0..names.len() {
            let (from, to) = (names[n], names[(n + 1) % names.len()]);
            vault.rename(ROOT, from, ROOT, to, RenameMode::NoReplace).expect("rename");
        }
        let core = vault.shares().root.clone();
        let tags: Vec<Tag> = (names.iter())
            .map(|name| core.keys.tag_of(&vault.cipher_path(name).expect("map")).expect("a tag"))
            .collect();
        let all = core.root.open_dir(DIRECTORY).expect("evidence");
        for _ in 0..8 {
            for to in &tags {
                let found = core.read_evidence(&*all, to).expect("read");
                assert_eq!(found.tags.len(), names.len() - 1);
                assert!(found.asked.len() <= names.len(), "{} entries", found.asked.len());
                let fresh = Freshness::new(found.asked, None, Instant::now()).into();
                let (tags, is_whole) = (found.tags, found.is_whole);
                let closure = Closure { tags, generation: core.keys.generation(), fresh, is_whole };
                core.namespace.evidence.closures.lock().keep(*to, closure);
            }
        }
        vault.close().expect("close");
    }
}

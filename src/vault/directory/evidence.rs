//! Rename evidence: which directories an entry may be in beside the one in which its name was
//! created.
//!
//! Rules that hold here
//! * Evidence is durable before the directory is renamed, and is never changed or removed.
//! * A record counts only if its hash, seal and signature are right and it leads to the directory
//!   in question. The names of files and directories prove nothing.
//! * It is read only if an entry with another tag is met or a name is not found, and read again
//!   after at most [`TRUSTED`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::crypto::Tag;
use crate::format::moved::{DIRECTORY, Moved, file_name};
use crate::format::record::{RecordKind, epoch_of};
use crate::format::signature::Authorship;
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::core::known_names::{Asked, CLOSURES_MAX, Closure, Freshness, TRUSTED, Times};
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{entries, is_missing, read_control, write_control};

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

/// A valid record.
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
    /// Returns the tags, in ascending order, that entries of the directory with the tag `to` may
    /// have beside this one.
    pub fn explained(&self, to: &Tag) -> Inner<Arc<[Tag]>> {
        let evidence = &self.namespace.evidence;
        if let Some(none) = *evidence.none.lock()
            && !self.mode.writers.share_names()
            && none.elapsed() < TRUSTED
        {
            return Ok(Arc::default());
        }
        let generation = self.keys.generation();
        let known = evidence.closures.lock().get(to).and_then(|closure| {
            (closure.generation == generation)
                .then(|| (closure.tags.clone(), closure.fresh.clone()))
        });
        if let Some((tags, fresh)) = &known
            && fresh.is_trusted(self.mode.writers.share_names())
        {
            return Ok(tags.clone());
        }
        let now = Instant::now();
        let all = self.root.open_dir(DIRECTORY);
        if is_absent(&all) {
            *evidence.none.lock() = Some(now);
            return Ok(Arc::default());
        }
        let all = all?;
        if let Some((tags, fresh)) = &known {
            let times: Inner<Asked> = fresh
                .times
                .iter()
                .map(|(name, _)| Ok((name.clone(), times_of(&*all, name)?)))
                .collect();
            if fresh.is_valid(&times?, self.mode.writers.share_names()) {
                return Ok(tags.clone());
            }
        }
        let (tags, asked) = self.read_evidence(&*all, to)?;
        let fresh = Freshness::new(asked, known.as_ref().map(|(_, fresh)| fresh));
        let mut closures = evidence.closures.lock();
        closures.put(*to, Closure { tags: tags.clone(), generation, fresh });
        while closures.len() > CLOSURES_MAX {
            closures.pop_lru();
        }
        Ok(tags)
    }

    /// Reads all evidence that leads to a directory, breadth first.
    fn read_evidence(&self, all: &dyn Dir, to: &Tag) -> Inner<(Arc<[Tag]>, Asked)> {
        let (mut tags, mut todo, mut asked) = (BTreeSet::new(), VecDeque::from([*to]), Vec::new());
        while let Some(to) = todo.pop_front() {
            for place in self.keys.moved_places(&to) {
                let times = times_of(all, &place)?;
                let is_there = times.is_some();
                asked.push((place.clone(), times));
                if !is_there {
                    continue;
                }
                let dir = all.open_dir(&place);
                if is_absent(&dir) {
                    continue;
                }
                let dir = dir?;
                for entry in entries(&*dir)? {
                    let Some(found) = self.evidence_in(&*dir, &entry?.name)? else { continue };
                    let moved = found.moved;
                    if moved.to == to && tags.len() < TAGS_MAX && tags.insert(moved.from) {
                        todo.push_back(moved.from);
                    }
                }
            }
        }
        tags.remove(to);
        Ok((tags.into_iter().collect(), asked))
    }

    /// Returns a record of a directory of evidence; `None` if it is not valid.
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
    /// sub-directory, its name, and the name of the file. What is no directory is passed over.
    pub fn each_file(
        &self,
        of: &[u8],
        mut act: impl FnMut(&dyn Dir, &[u8], &[u8]) -> Inner<()>,
    ) -> Inner<()> {
        let all = self.root.open_dir(of);
        if is_absent(&all) {
            return Ok(());
        }
        let all = all?;
        for group in entries(&*all)? {
            let group = group?.name;
            let dir = all.open_dir(&group);
            if is_absent(&dir) {
                continue;
            }
            let dir = dir?;
            for file in entries(&*dir)? {
                act(&*dir, &group, &file?.name)?;
            }
        }
        Ok(())
    }

    /// Calls `act` with each valid record of evidence, and its file.
    pub fn each_evidence(
        &self,
        mut act: impl FnMut(Record, &dyn Dir, &[u8]) -> Inner<()>,
    ) -> Inner<()> {
        self.each_file(DIRECTORY, |dir, _, file| match self.evidence_in(dir, file)? {
            Some(found) => act(found, dir, file),
            None => Ok(()),
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
            let found = self.evidence_in(&*dir, &entry?.name)?;
            if found.is_some_and(|found| found.moved == *moved && found.epoch == current) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the evidence of a rename durable, unless there is enough already.
    pub fn record_move(&self, from: &Tag, to: &Tag) -> Inner<()> {
        if from == to {
            return Ok(());
        }
        self.forget_evidence();
        if self.explained(to)?.binary_search(from).is_ok() {
            return Ok(());
        }
        let moved = Moved { from: *from, to: *to };
        self.write_evidence(&moved, &self.keys.seal_moved(&moved, None))
    }

    /// Writes a record of the current epoch.
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
        self.forget_evidence();
        Ok(())
    }

    /// Makes the next query read the evidence again.
    fn forget_evidence(&self) {
        *self.namespace.evidence.none.lock() = None;
        self.namespace.evidence.closures.lock().clear();
    }
}

fn times_of(dir: &dyn Dir, name: &[u8]) -> Inner<Option<Times>> {
    let stat = dir.stat(name);
    if is_absent(&stat) { Ok(None) } else { Ok(stat.map(|stat| Some((stat.mtime, stat.ctime)))?) }
}

//! The part of the rollback database in memory: keys, and local changes that are not written yet.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::crypto::{RecordCipher, Tag};
use crate::vault::core::{Core, DEPTH_MAX, NameChange};
use crate::vault::error::{Fault, Inner};
use crate::vault::rollback::blocks::Sealer;
use crate::vault::rollback::places::Places;
use crate::vault::rollback::rows::{EntryKey, Id, KEY, NameTag, PREFIX, short};
use crate::vault::types::{NodeId, ROOT};
use zeroize::Zeroizing;

/// Maximum number of local changes (names, directories and files) held in memory; beyond it they
/// are recorded at once.
pub(super) const HELD_MAX: usize = if cfg!(test) { 50 } else { 50_000 };
/// Number of local changes beyond which each further one waits while changes are recorded: on a
/// store that reads slower than programs write, they would take more and more memory, and the end
/// of the mount more and more time.
pub(super) const WAITS_FROM: usize = 4 * HELD_MAX;
/// How long one change waits, at most. Locks are held meanwhile that recording might need.
pub(super) const WAIT: Duration = Duration::from_millis(100);
/// Associated data of names in the database.
pub(super) const SEALED: &[u8] = b"KMEM";

/// Identifies a directory: derived from its tag, its name and the place of its parent, because
/// tags are not unique.
pub(super) type PlaceId = [u8; 32];

/// A directory with local changes since they were last recorded: a name in it was changed, or a
/// file was committed.
#[derive(Clone, Default)]
pub(super) struct Touched {
    /// Names that were created, removed or replaced.
    pub(super) names: HashMap<Vec<u8>, Done>,
    /// Files that were written, by their names, until they are compared with what was seen.
    pub(super) bases: HashMap<Vec<u8>, Base>,
    /// Names of files that were committed, and the number of the last commit.
    pub(super) written: HashMap<Vec<u8>, u64>,
    /// Number of the last operation.
    pub(super) number: u64,
}

impl Touched {
    /// Returns whether all changes are recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.names.is_empty() && self.bases.is_empty() && self.written.is_empty()
    }

    /// Returns the names of all entries that may have changed.
    pub(super) fn noted(&self) -> BTreeSet<&[u8]> {
        let names = self.names.keys().chain(self.bases.keys()).chain(self.written.keys());
        names.map(Vec::as_slice).collect()
    }
}

/// Returns the part of their keys that all entries of a directory share.
pub(super) fn prefix(place: &PlaceId) -> [u8; PREFIX] {
    place[..PREFIX].try_into().expect("16 of 32 bytes")
}

/// A local change of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) change: NameChange,
    /// Id and version of the last file that this client put under the name, if they are known.
    pub(super) put: Option<(Id, u64)>,
    /// Distinguishes one operation from the next.
    pub(super) number: u64,
}

/// The version of a file in the store on which a local commit was built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) id: Id,
    pub(super) version: u64,
    /// The commit was made, under this name.
    pub(super) is_written: bool,
    /// When it began, in seconds since 1970.
    pub(super) at: i64,
}

/// Local changes since they were last recorded.
#[derive(Default)]
pub(super) struct Held {
    pub(super) touched: HashMap<PlaceId, Touched>,
    /// These directories, and those above them.
    pub(super) places: Places,
    /// Number of names, and of directories with changes.
    pub(super) len: usize,
    /// Number of operations noted.
    pub(super) count: u64,
    /// Ids of files that were committed since changes were last recorded, and their versions.
    pub(super) files: HashMap<Id, u64>,
    /// Those of the time before: a commit may have been on its way while they were recorded.
    pub(super) files_before: Arc<HashMap<Id, u64>>,
}

impl Held {
    pub(super) fn is_full(&self) -> bool {
        self.size() > HELD_MAX
    }

    fn size(&self) -> usize {
        self.len + self.places.len() + self.files.len()
    }

    pub(super) fn done(&self, place: &PlaceId, name: &[u8]) -> Option<Done> {
        self.touched.get(place)?.names.get(name).copied()
    }

    /// Drops recorded changes, unless they were made again meanwhile.
    pub(super) fn forget(&mut self, learnt: &HashMap<PlaceId, Touched>) {
        self.touched.retain(|place, touched| {
            let Some(learnt) = learnt.get(place) else { return true };
            touched.names.retain(|name, done| learnt.names.get(name) != Some(done));
            touched.written.retain(|name, number| learnt.written.get(name) != Some(number));
            // A written one that is left was not compared, as its name has no entry.
            let is_over =
                |name: &[u8], base: &Base| base.is_written && learnt.bases.get(name) == Some(base);
            touched.bases.retain(|name, base| !is_over(name, base));
            touched.number != learnt.number || !touched.is_recorded()
        });
        self.places.keep(self.touched.keys());
        let len = |touched: &Touched| {
            1 + touched.names.len() + touched.bases.len() + touched.written.len()
        };
        self.len = self.touched.values().map(len).sum();
    }
}

/// The rollback database of one vault, and the changes not recorded yet.
pub(crate) struct Memory {
    pub(super) path: PathBuf,
    pub(super) hashes: Zeroizing<[u8; 32]>,
    pub(super) sealer: Arc<Sealer>,
    pub(super) held: Mutex<Held>,
    /// Tells that changes were recorded.
    pub(super) recorded: Condvar,
    /// Changes could not be recorded at the last attempt, so nothing waits for the next one.
    pub(super) has_failed: AtomicBool,
    pub(super) stop: AtomicBool,
    /// A finding was made while local changes were recorded.
    pub(super) has_found: AtomicBool,
    pub(super) wake: (Mutex<()>, Condvar),
    /// Start time of an earlier session that was interrupted.
    pub(super) interrupted: Mutex<Option<i64>>,
}

impl Memory {
    pub(super) fn new(core: &Core, path: PathBuf) -> Memory {
        let [hashes, names] = core.keys.memory_keys();
        let cipher = RecordCipher::new(core.keys.suite, &names);
        Memory {
            path,
            hashes,
            sealer: Arc::new(Sealer { cipher, random: core.random.clone() }),
            held: Mutex::new(Held::default()),
            recorded: Condvar::new(),
            has_failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            has_found: AtomicBool::new(false),
            wake: (Mutex::new(()), Condvar::new()),
            interrupted: Mutex::new(None),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns whether there are so many local changes that they have to be recorded.
    pub(super) fn is_full(&self) -> bool {
        self.held.lock().is_full()
    }

    /// Returns what is held, for a further change, see [`WAITS_FROM`].
    pub(super) fn held_in_time(&self) -> MutexGuard<'_, Held> {
        let mut held = self.held.lock();
        if held.size() > WAITS_FROM
            && !self.is_stopped()
            && !self.has_failed.load(Ordering::Acquire)
        {
            self.wake.1.notify_all();
            self.recorded.wait_for(&mut held, WAIT);
        }
        held
    }

    /// Waits for that long, or until the thread is stopped or there are many local changes.
    pub(super) fn wait(&self, time: Duration) {
        let mut guard = self.wake.0.lock();
        if !self.is_stopped() {
            self.wake.1.wait_for(&mut guard, time);
        }
    }

    pub(super) fn hash(&self, directory: &[u8], name: &[u8]) -> [u8; 32] {
        crate::crypto::hmac(&self.hashes, &[directory, name])
    }

    /// Returns the hash of a directory's tag.
    pub(super) fn directory_id(&self, tag: &Tag) -> Id {
        short(&self.hash(tag, b""))
    }

    /// Returns the hash of a plain path.
    pub(super) fn path_id(&self, plain: &[u8]) -> Id {
        short(&self.hash(b"path", plain))
    }

    /// Returns the place of a directory; `hash` is that of its tag.
    pub(super) fn place(&self, parent: &PlaceId, name: &[u8], hash: &Id) -> PlaceId {
        crate::crypto::hmac(&self.hashes, &[parent, name, hash])
    }

    /// Returns the place of a directory by its node.
    pub(super) fn place_of(&self, core: &Core, node: NodeId) -> Inner<PlaceId> {
        // Up to the nearest known directory, and down again: users choose the depth, so this must
        // not recurse.
        let moves = core.nodes.moves();
        let (mut at, mut below) = (node, Vec::new());
        let mut place = loop {
            if at == ROOT {
                break self.root_place(core);
            }
            if let Some(place) = core.nodes.place(at) {
                break place;
            }
            if below.len() >= DEPTH_MAX {
                return Err(Fault::Os(libc::ELOOP));
            }
            let link = core.nodes.link(at)?;
            let above = link.parent;
            below.push((at, link));
            at = above;
        };
        while let Some((node, link)) = below.pop() {
            place = self.place(&place, link.name(), &self.directory_id(&core.directory_tag(node)?));
            core.nodes.set_place(node, moves, place);
        }
        Ok(place)
    }

    /// Returns the place of the root.
    pub(super) fn root_place(&self, core: &Core) -> PlaceId {
        self.hash(&core.keys.root_tag(), b"")
    }

    pub(super) fn key(&self, place: &PlaceId, name: &[u8]) -> EntryKey {
        let mut key = [0; KEY];
        key[..PREFIX].copy_from_slice(&prefix(place));
        key[PREFIX..].copy_from_slice(&self.tag(place, name));
        key
    }

    pub(super) fn seal(&self, name: &[u8]) -> Vec<u8> {
        self.sealer.seal(SEALED, name)
    }

    pub(super) fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        Some(self.sealer.open(SEALED, sealed)?.to_vec())
    }

    /// Returns the hash of a name at a place.
    pub(super) fn tag(&self, place: &PlaceId, name: &[u8]) -> NameTag {
        self.hash(place, name)[..8].try_into().expect("8 of 32 bytes")
    }

    pub(super) fn is_ours(&self, place: &PlaceId, name: &[u8]) -> bool {
        self.held.lock().done(place, name).is_some()
    }

    /// Returns whether the object with this name was removed or renamed locally.
    pub(super) fn has_left(&self, place: &PlaceId, name: &[u8]) -> bool {
        self.held.lock().done(place, name).is_some_and(|done| done.change == NameChange::Left)
    }

    /// Returns whether an object was put under this name locally.
    pub(super) fn is_taken(&self, place: &PlaceId, name: &[u8]) -> bool {
        let is_taken = |done: Done| matches!(done.change, NameChange::Taken(_));
        self.held.lock().done(place, name).is_some_and(is_taken)
    }

    /// Returns id and version of the file that was last put under this name locally, if they are
    /// known. It may have left the name since.
    pub(super) fn put_there(&self, place: &PlaceId, name: &[u8]) -> Option<(Id, u64)> {
        self.held.lock().done(place, name)?.put
    }

    /// Returns whether this client has committed a file lately.
    pub(super) fn is_committed(&self, id: &Id) -> bool {
        let held = self.held.lock();
        held.files.contains_key(id) || held.files_before.contains_key(id)
    }

    pub(super) fn is_touched(&self, place: &PlaceId) -> bool {
        self.held.lock().touched.get(place).is_some_and(|touched| !touched.is_recorded())
    }
}

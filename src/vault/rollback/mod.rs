//! The rollback memory: what this client has seen of a vault, so that an older state of it is
//! noticed.
//!
//! Storage that cannot forge anything can still give back what was true once. Nothing in the vault
//! tells that; only somebody who remembers can. So each client keeps, outside of the vault, the
//! highest version of every file and which file stood under which name.
//!
//! Rules that hold here
//! * A memory warns and never refuses: reading goes on, and a memory that is lost or locked is only
//!   less to compare with.
//! * It never runs ahead of the store (see `survey`), so a crash between the two is no alarm. What
//!   an interrupted session may have removed counts as removed by it.
//! * A sync tool delivers in any order: what is noticed is told only when the store has come to
//!   rest for a while.
//! * What is under a name never goes backwards, whatever is beside it. Two versions that were seen
//!   side by side may lose one of them.
//! * Everything remembered that could not be compared is noticed as well.
//! * Nothing here is on the path of an operation but one entry in a set.

mod database;
mod survey;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use self::survey::Survey;
use crate::crypto::{Random, RecordCipher};
use crate::vault::core::{Core, DEPTH_MAX};
use crate::vault::error::{Fault, Inner};
use crate::vault::fsck::check::join;
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::rollback::database::{Db, EntryKey, NameTag, NoticeRow, PREFIX};
use crate::vault::types::{NodeId, ROOT};
use zeroize::Zeroizing;

/// How long a store must have been at rest before what was noticed is told.
pub const SETTLE: Duration = Duration::from_secs(300);
/// How often what was changed here is learnt.
const LEARN_EVERY: Duration = Duration::from_secs(30);
/// Names changed and directories touched here that are held in memory; beyond that they are learnt
/// at once.
const HELD_MAX: usize = if cfg!(test) { 50 } else { 50_000 };
/// Associated data of names in the database.
const SEALED: &[u8] = b"KMEM";

/// What is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// The file is an older version of itself.
    Older {
        /// Highest version that was seen.
        was: u64,
        /// The version that is there.
        now: u64,
    },
    /// A file is there again that was replaced or removed.
    PutBack {
        /// It has another name than it had, and another machine may have renamed it before it heard
        /// of the removal.
        elsewhere: bool,
    },
    /// Two files have exchanged their names.
    Exchanged,
    /// A file, or a directory that was not empty, is gone.
    Gone {
        /// Somebody else with the vault's keys has changed something since, and may have removed
        /// it; or an older version of it is still there that was seen beside it.
        elsewhere: bool,
    },
    /// A file that cannot be read, or a directory that cannot be listed: it was not compared.
    NotCompared,
}

impl NoticeKind {
    fn encode(&self) -> (u8, u64, u64) {
        match *self {
            NoticeKind::Older { was, now } => (1, was, now),
            NoticeKind::PutBack { elsewhere } => (2, elsewhere.into(), 0),
            NoticeKind::Exchanged => (3, 0, 0),
            NoticeKind::Gone { elsewhere } => (4, elsewhere.into(), 0),
            NoticeKind::NotCompared => (5, 0, 0),
        }
    }

    /// `None` where all was as it had been.
    fn decode(row: &NoticeRow) -> Option<NoticeKind> {
        match row.what {
            0 => None,
            1 => Some(NoticeKind::Older { was: row.was, now: row.now }),
            2 => Some(NoticeKind::PutBack { elsewhere: row.was != 0 }),
            3 => Some(NoticeKind::Exchanged),
            4 => Some(NoticeKind::Gone { elsewhere: row.was != 0 }),
            _ => Some(NoticeKind::NotCompared),
        }
    }

    /// Whether another machine's work does not explain it, as far as this one can tell. The rest
    /// are notes.
    pub fn is_alarm(&self) -> bool {
        !matches!(
            self,
            NoticeKind::Gone { elsewhere: true } | NoticeKind::PutBack { elsewhere: true }
        )
    }
}

/// Something that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Plain path.
    pub plain: Vec<u8>,
    /// What.
    pub kind: NoticeKind,
    /// When the newer state was seen last, seconds since 1970.
    pub seen: i64,
    /// When this was noticed first.
    pub first: i64,
    /// The store has been at rest since: it is not a sync tool that has not finished.
    pub due: bool,
    /// It was to be kept in mind and not told again.
    pub silenced: bool,
}

/// How a vault is compared with the memory.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// The present, seconds since 1970.
    pub now: i64,
    /// See [`SETTLE`].
    pub settle: Duration,
    /// Plain paths at and below which everything is accepted as it is; the empty path is the whole
    /// vault.
    pub accept: Vec<Vec<u8>>,
    /// What is noticed is not to be told again.
    pub silence: bool,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs() as i64);
        SurveyOptions { now, settle: SETTLE, accept: Vec::new(), silence: false }
    }
}

impl SurveyOptions {
    fn accepts(&self, plain: &[u8]) -> bool {
        let is_below = |top: &Vec<u8>| {
            top.is_empty()
                || plain == top.as_slice()
                || plain.strip_prefix(&top[..]).is_some_and(|r| r[0] == b'/')
        };
        self.accept.iter().any(is_below)
    }
}

/// What a directory is known by: made of its id, its name and the place of its parent, because ids
/// are not unique.
type PlaceId = [u8; 32];

/// A directory in which something was done here since it was learnt last: a name in it was changed,
/// or a file was committed.
#[derive(Clone)]
struct Touched {
    id: DirectoryId,
    /// Stored and plain path.
    cipher: Vec<u8>,
    plain: Vec<u8>,
    chain: Chain,
    /// Names that were made, removed or replaced.
    names: HashMap<Vec<u8>, Done>,
    /// The last operation.
    number: u64,
}

impl Touched {
    /// What it counts for without its names: its paths and its chain take memory for each directory
    /// above it.
    fn weight(&self) -> usize {
        1 + self.chain.len() / 16
    }
}

/// The way from the root to a directory: names, and hashes of the ids of the directories that have
/// them.
type Chain = Vec<(Vec<u8>, [u8; 32])>;

/// The part of their keys that all entries of a directory share.
fn prefix(place: &PlaceId) -> [u8; PREFIX] {
    place[..PREFIX].try_into().expect("16 of 32 bytes")
}

/// What was done here to a name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Done {
    /// What had the name was removed or renamed, and nothing has taken the name since.
    left: bool,
    /// Tells one operation from the next.
    number: u64,
}

/// What was done here since it was learnt last.
#[derive(Default)]
struct Held {
    touched: HashMap<PlaceId, Touched>,
    /// How many names and directories there are, those that are deep counted as several.
    len: usize,
    /// How many operations were noted.
    count: u64,
}

impl Held {
    fn is_full(&self) -> bool {
        self.len > HELD_MAX
    }

    fn done(&self, place: &PlaceId, name: &[u8]) -> Option<Done> {
        self.touched.get(place)?.names.get(name).copied()
    }

    /// Forgets what was learnt, unless it was done again meanwhile.
    fn forget(&mut self, learnt: &HashMap<PlaceId, Touched>) {
        self.touched.retain(|place, touched| {
            let Some(learnt) = learnt.get(place) else { return true };
            touched.names.retain(|name, done| learnt.names.get(name) != Some(done));
            touched.number != learnt.number || !touched.names.is_empty()
        });
        self.len =
            self.touched.values().map(|touched| touched.weight() + touched.names.len()).sum();
    }
}

/// The memory of one vault.
pub(crate) struct Memory {
    path: PathBuf,
    hashes: Zeroizing<[u8; 32]>,
    names: RecordCipher,
    random: Arc<dyn Random>,
    held: Mutex<Held>,
    stop: AtomicBool,
    wake: (Mutex<()>, Condvar),
    /// Since when an earlier session went on that was interrupted.
    interrupted: Mutex<Option<i64>>,
}

/// A directory that was renamed here: where it was and where it is, each by the directory around it
/// and its plain name there.
pub(crate) struct Move<'a> {
    pub from: (NodeId, &'a [u8]),
    pub to: (NodeId, &'a [u8]),
    /// Its stored path now.
    pub cipher: Vec<u8>,
}

/// The thread of a memory.
pub(crate) struct Keeper {
    memory: Arc<Memory>,
    thread: Option<JoinHandle<()>>,
}

impl Memory {
    fn new(core: &Core, path: PathBuf) -> Memory {
        let [hashes, names] = core.keys.memory_keys();
        Memory {
            path,
            hashes,
            names: RecordCipher::new(core.keys.suite, &names),
            random: core.random.clone(),
            held: Mutex::new(Held::default()),
            stop: AtomicBool::new(false),
            wake: (Mutex::new(()), Condvar::new()),
            interrupted: Mutex::new(None),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// So much was done here that it is to be learnt.
    fn is_full(&self) -> bool {
        self.held.lock().is_full()
    }

    /// Waits for that long, or until the memory is stopped or much was changed here.
    fn wait(&self, time: Duration) {
        let mut guard = self.wake.0.lock();
        if !self.is_stopped() {
            self.wake.1.wait_for(&mut guard, time);
        }
    }

    fn hash(&self, directory: &[u8; 32], name: &[u8]) -> [u8; 32] {
        crate::crypto::hmac(&self.hashes, &[directory, name])
    }

    /// The place of a directory, `hash` being that of its id.
    fn place(&self, parent: &PlaceId, name: &[u8], hash: &[u8; 32]) -> PlaceId {
        crate::crypto::hmac(&self.hashes, &[parent, name, hash])
    }

    /// The place of a directory by its node; that of the root is its id.
    fn place_of(&self, core: &Core, node: NodeId) -> Inner<PlaceId> {
        // Up to the nearest one that is known, and down again: depth is somebody else's choice and
        // must not be that of our stack.
        let moves = core.nodes.moves();
        let (mut at, mut below) = (node, Vec::new());
        let mut place = loop {
            if at == ROOT {
                break core.directory_id(ROOT)?;
            }
            if let Some(place) = core.nodes.place(at) {
                break place;
            }
            if below.len() >= DEPTH_MAX {
                return Err(Fault::Os(libc::ELOOP));
            }
            let link = core.nodes.link(at)?;
            below.push((at, link.name));
            at = link.parent;
        };
        while let Some((node, name)) = below.pop() {
            place = self.place(&place, &name, &self.hash(&core.directory_id(node)?, b""));
            core.nodes.set_place(node, moves, place);
        }
        Ok(place)
    }

    fn key(&self, place: &PlaceId, name: &[u8]) -> EntryKey {
        let mut key = [0; 48];
        key[..PREFIX].copy_from_slice(&prefix(place));
        key[PREFIX..].copy_from_slice(&self.hash(place, name));
        key
    }

    fn seal(&self, name: &[u8]) -> Vec<u8> {
        self.names.seal_record(&*self.random, SEALED, name)
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        Some(self.names.open_record(SEALED, sealed).ok()?.to_vec())
    }

    /// A name at a place, for what is remembered of removed files.
    fn tag(&self, place: &PlaceId, name: &[u8]) -> NameTag {
        self.hash(place, name)[..16].try_into().expect("16 of 32 bytes")
    }

    fn is_ours(&self, place: &PlaceId, name: &[u8]) -> bool {
        self.held.lock().done(place, name).is_some()
    }

    /// What had this name was removed or renamed here.
    fn has_left(&self, place: &PlaceId, name: &[u8]) -> bool {
        self.held.lock().done(place, name).is_some_and(|done| done.left)
    }

    fn is_touched(&self, place: &PlaceId) -> bool {
        self.held.lock().touched.contains_key(place)
    }

    /// The way to a directory, by its node.
    fn chain_of(&self, core: &Core, mut node: NodeId) -> Inner<Chain> {
        let mut chain = Vec::new();
        while node != ROOT {
            let link = core.nodes.link(node)?;
            chain.push((link.name.to_vec(), self.hash(&core.directory_id(node)?, b"")));
            node = link.parent;
        }
        chain.reverse();
        Ok(chain)
    }

    fn place_at(&self, core: &Core, chain: &Chain) -> PlaceId {
        chain
            .iter()
            .fold(core.keys.root_directory(), |place, (name, hash)| self.place(&place, name, hash))
    }

    /// Notes that this client changes the name `name` in a directory, or commits a file in it. With
    /// `left` it has removed or renamed what had the name.
    fn note(&self, core: &Core, directory: NodeId, name: Option<&[u8]>, left: bool) {
        let (Ok(id), Ok(place)) = (core.directory_id(directory), self.place_of(core, directory))
        else {
            return;
        };
        let mut held = self.held.lock();
        let Held { touched, len, count } = &mut *held;
        *count += 1;
        let touched = match touched.entry(place) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let Some((cipher, plain)) =
                    core.nodes.stored_path(directory).zip(core.nodes.plain_path(directory))
                else {
                    return;
                };
                let Ok(chain) = self.chain_of(core, directory) else { return };
                let new = Touched { id, cipher, plain, chain, names: HashMap::new(), number: 0 };
                *len += new.weight();
                free.insert(new)
            }
        };
        touched.number = *count;
        if let Some(name) = name {
            let done = Done { left, number: *count };
            *len += usize::from(touched.names.insert(name.to_vec(), done).is_none());
        }
        if held.is_full() {
            self.wake.1.notify_all();
        }
    }

    /// Directories were renamed here that keep their ids: what was done in them follows.
    fn follow(&self, core: &Core, moves: &[Move]) {
        let chains = |one: &Move| {
            Some((self.chain_of(core, one.from.0).ok()?, self.chain_of(core, one.to.0).ok()?))
        };
        let chains: Vec<_> = moves.iter().map(chains).collect();
        let mut held = self.held.lock();
        let mut moved = Vec::new();
        for (one, chains) in moves.iter().zip(chains) {
            let Some((from, to)) = chains else { continue };
            let depth = from.len();
            let is_below = |chain: &Chain| {
                chain.len() > depth && chain[..depth] == from && chain[depth].0 == one.from.1
            };
            for (_, mut touched) in held.touched.extract_if(|_, touched| is_below(&touched.chain)) {
                let below = touched.cipher.split(|b| *b == b'/').skip(depth + 1);
                touched.cipher = below.fold(one.cipher.to_vec(), |path, name| join(&path, name));
                touched.chain.splice(
                    ..=depth,
                    to.iter()
                        .cloned()
                        .chain([(one.to.1.to_vec(), touched.chain[depth].1)])
                        .collect::<Vec<_>>(),
                );
                touched.plain =
                    touched.chain.iter().fold(Vec::new(), |path, (name, _)| join(&path, name));
                moved.push((self.place_at(core, &touched.chain), touched));
            }
        }
        for (place, touched) in moved {
            match held.touched.entry(place) {
                Entry::Occupied(mut there) => {
                    there.get_mut().number = touched.number.max(there.get().number);
                    there.get_mut().names.extend(touched.names);
                }
                Entry::Vacant(free) => drop(free.insert(touched)),
            }
        }
    }

    /// Learns what was changed here.
    fn learn(&self, core: &Core, db: &Db) -> Inner<()> {
        let touched = self.held.lock().touched.clone();
        if touched.is_empty() {
            return Ok(());
        }
        Survey::new(core, self, db, &SurveyOptions::default(), None)?.learn(&touched)?;
        self.held.lock().forget(&touched);
        Ok(())
    }

    fn keep(&self, core: &Core, survey: bool) {
        let mut next_survey = survey.then(Instant::now);
        let mut told: HashSet<Vec<u8>> = HashSet::new();
        loop {
            if next_survey.is_some_and(|at| at <= Instant::now()) {
                let options = SurveyOptions::default();
                let interrupted = *self.interrupted.lock();
                let found = Db::open(&self.path).and_then(|db| {
                    Survey::new(core, self, &db, &options, interrupted)?.in_background().run()
                });
                next_survey = None;
                match found {
                    Ok(Some(notices)) => {
                        *self.interrupted.lock() = None;
                        tell(&notices, &mut told);
                        if notices.iter().any(|n| !n.due) {
                            next_survey = Some(Instant::now() + options.settle);
                        }
                    }
                    Ok(None) => return,
                    Err(fault) => tracing::warn!(
                        "the rollback memory cannot be compared with the vault: {fault:?}"
                    ),
                }
            }
            self.wait(LEARN_EVERY);
            if self.is_stopped() {
                return;
            }
            if let Err(fault) = self.learn_now(core) {
                tracing::warn!("the rollback memory cannot be written: {fault:?}");
            }
        }
    }

    /// See [`Vault::learn`](crate::vault::Vault::learn).
    pub fn learn_now(&self, core: &Core) -> Inner<()> {
        if self.held.lock().touched.is_empty() {
            return Ok(());
        }
        self.learn(core, &Db::open(&self.path)?)
    }
}

/// Logs what is new to `told`; plain paths only where names may be logged.
fn tell(notices: &[Notice], told: &mut HashSet<Vec<u8>>) {
    let due: Vec<_> = notices.iter().filter(|n| n.due && !n.silenced).collect();
    let (mut fresh, mut elsewhere) = (0, 0);
    for notice in &due {
        if told.insert(notice.plain.clone()) {
            if notice.kind.is_alarm() {
                fresh += 1
            } else {
                elsewhere += 1
            }
            tracing::debug!(
                "rollback: {}: {:?}",
                String::from_utf8_lossy(&notice.plain),
                notice.kind
            );
        }
    }
    if fresh > 0 {
        tracing::warn!(
            "{fresh} files or directories of the vault are older than they were, gone, or cannot be compared"
        );
    }
    if elsewhere > 0 {
        tracing::info!(
            "{elsewhere} files or directories are gone or back, perhaps by another machine"
        );
    }
}

impl Keeper {
    /// Begins to remember `core` in the database at `path`, with a comparison in the background
    /// where `survey` says so.
    pub fn start(core: &Arc<Core>, path: PathBuf, survey: bool) -> Inner<(Keeper, usize)> {
        let memory = Arc::new(Memory::new(core, path));
        let db = Db::open(&memory.path)?;
        *memory.interrupted.lock() = db.session()?;
        if !core.read_only {
            db.set_session(Some(SurveyOptions::default().now))?;
        }
        let options = SurveyOptions::default();
        let counts = |row: &NoticeRow| {
            NoticeKind::decode(row).is_some_and(|kind| kind.is_alarm())
                && !row.silenced
                && options.now - row.first >= options.settle.as_secs() as i64
        };
        let noticed = db.notices()?.values().filter(|row| counts(row)).count();
        drop(db);
        let _ = core.memory.set(memory.clone());
        let (core, kept) = (core.clone(), memory.clone());
        let thread = std::thread::Builder::new()
            .name("kithfs-memory".into())
            .spawn(move || kept.keep(&core, survey))?;
        Ok((Keeper { memory, thread: Some(thread) }, noticed))
    }

    /// Ends the thread.
    pub fn stop(&mut self) {
        {
            let _guard = self.memory.wake.0.lock();
            self.memory.stop.store(true, Ordering::Release);
            self.memory.wake.1.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Learns the last changes, once all is committed.
    pub fn finish(&self, core: &Core) {
        let finished = Db::open(&self.memory.path).and_then(|db| {
            self.memory.learn(core, &db)?;
            // Where an interrupted session was not compared to the end, that is still to be done.
            if core.read_only || self.memory.interrupted.lock().is_some() {
                Ok(())
            } else {
                db.set_session(None)
            }
        });
        if let Err(fault) = finished {
            tracing::warn!("the rollback memory cannot be written: {fault:?}");
        }
    }
}

impl Core {
    /// Notes a change of a name for the memory, before it is made.
    pub fn remember_name(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, Some(name), false);
        }
    }

    /// Notes for the memory that what had a name was removed or renamed, after that was done.
    pub fn remember_left(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, Some(name), true);
        }
    }

    /// Notes for the memory that directories were renamed that keep their ids.
    pub fn remember_moves(&self, moves: &[Move]) {
        if let Some(memory) = self.memory.get()
            && !moves.is_empty()
        {
            memory.follow(self, moves);
        }
    }

    /// Notes a commit for the memory.
    pub fn remember_commit(&self, node: NodeId) {
        if let Some(memory) = self.memory.get()
            && let Ok(link) = self.nodes.link(node)
        {
            memory.note(self, if node == ROOT { ROOT } else { link.parent }, None, false);
        }
    }

    /// Compares the vault with the memory at `path`, now.
    pub fn survey(&self, path: PathBuf, options: &SurveyOptions) -> Inner<Vec<Notice>> {
        let memory = Memory::new(self, path);
        let db = Db::open(&memory.path)?;
        let session = db.session()?;
        let is_live = session.is_some() && crate::vault::core::vault_lock::is_held(&self.root)?;
        if is_live && options.accept.is_empty() {
            // A mount is changing the vault and has not told yet what it did; what it has noticed
            // itself stands.
            let mut notices = db.notices()?;
            if options.silence {
                notices.values_mut().for_each(|notice| notice.silenced = true);
                db.set_notices(&notices)?;
            }
            return Ok(memory.shown(&notices, options, i64::MIN));
        }
        let interrupted = session.filter(|_| !is_live);
        let notices =
            Survey::new(self, &memory, &db, options, interrupted)?.run()?.unwrap_or_default();
        if interrupted.is_some() {
            db.set_session(None)?;
        }
        Ok(notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::Suite;
    use crate::roster::Identity;
    use crate::store::Call;
    use crate::store::fault::{Calls, FaultPlan, FaultStore};
    use crate::store::mem::MemStore;
    use crate::vault::{Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, Vault};

    #[test]
    fn what_is_done_during_a_comparison_is_learnt_before_it_fills_the_memory() {
        // Nothing was learnt until the comparison had ended, which takes hours on a slow disk,
        // while names without limit were held.
        let (store, owner, plan) =
            (MemStore::new(), Identity::generate(&OsRandom), FaultPlan::new());
        Vault::create(
            &store.root(),
            &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
            &owner,
        )
        .expect("a vault");
        let vault = Vault::open(
            FaultStore::wrap(store.root(), plan.clone()),
            &owner,
            OpenOptions::default(),
        )
        .expect("open");
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let flags =
            OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };
        let directories = 100;
        for n in 0..directories {
            let made = vault
                .mkdir(&caller, ROOT, format!("directory {n}").as_bytes(), 0o755)
                .expect("mkdir");
            let (_, opened) =
                vault.create_file(&caller, made.node, b"file", 0o644, flags).expect("create");
            vault.release(opened.handle).expect("release");
        }
        let folder = tempfile::tempdir().expect("a directory");
        plan.slow_down(Call::List, Duration::from_millis(10));
        let before = plan.count(Calls::Of(Call::List));
        vault.remember(&folder.path().join("memory"), true).expect("remember");
        for n in 0..2 * HELD_MAX {
            vault.mkdir(&caller, ROOT, format!("more {n}").as_bytes(), 0o755).expect("mkdir");
        }
        while !vault.core().memory.get().expect("a memory").held.lock().touched.is_empty() {
            assert!(
                plan.count(Calls::Of(Call::List)) - before < directories,
                "they were held until the comparison had ended"
            );
            std::thread::yield_now();
        }
        vault.close().expect("close");
    }
}

//! The rollback memory: what this client has seen of a vault, so that an older state of it is noticed.
//!
//! Storage that cannot forge anything can still give back what was true once. Nothing in the vault tells that; only somebody who remembers
//! can. So each client keeps, outside of the vault, the highest version of every file and which file stood under which name.
//!
//! Rules that hold here
//! * A memory warns and never refuses: reading goes on, and a memory that is lost or locked is only less to compare with.
//! * It never runs ahead of the store (see `survey`), so a crash between the two is no alarm. What an interrupted session may have removed
//!   counts as removed by it.
//! * A sync tool delivers in any order: what is noticed is told only when the store has come to rest for a while.
//! * Nothing here is on the path of an operation but one entry in a set.

mod db;
mod survey;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use self::db::{Db, EntryKey, NoticeRow, PREFIX};
use self::survey::Survey;
use super::core::{Core, DEPTH_MAX};
use super::error::{Fault, Inner};
use super::keys::DirectoryId;
use super::types::{NodeId, ROOT};
use crate::crypto::{Random, RecordCipher};
use zeroize::Zeroizing;

/// How long a store must have been at rest before what was noticed is told.
pub const SETTLE: Duration = Duration::from_secs(300);
/// How often what was changed here is learnt.
const LEARN_EVERY: Duration = Duration::from_secs(30);
/// Names changed and directories touched here that are held in memory; beyond that they are learnt at once.
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
    PutBack,
    /// Two files have exchanged their names.
    Exchanged,
    /// A file, or a directory that was not empty, is gone.
    Gone {
        /// Somebody else with the vault's keys has changed something since, and may have removed it.
        elsewhere: bool,
    },
}

impl NoticeKind {
    fn encode(&self) -> (u8, u64, u64) {
        match *self {
            NoticeKind::Older { was, now } => (1, was, now),
            NoticeKind::PutBack => (2, 0, 0),
            NoticeKind::Exchanged => (3, 0, 0),
            NoticeKind::Gone { elsewhere } => (4, elsewhere.into(), 0),
        }
    }

    fn decode(what: u8, was: u64, now: u64) -> NoticeKind {
        match what {
            1 => NoticeKind::Older { was, now },
            2 => NoticeKind::PutBack,
            3 => NoticeKind::Exchanged,
            _ => NoticeKind::Gone { elsewhere: was != 0 },
        }
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

/// See [`SurveyOptions::entries_max`].
const ENTRIES_MAX: usize = 16_384;

/// How a vault is compared with the memory.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// The present, seconds since 1970.
    pub now: i64,
    /// See [`SETTLE`].
    pub settle: Duration,
    /// Plain paths at and below which everything is accepted as it is; the empty path is the whole vault.
    pub accept: Vec<Vec<u8>>,
    /// What is noticed is not to be told again.
    pub silence: bool,
    /// Directories of more entries are left out, with what is below them: all entries of a directory are held in memory.
    pub entries_max: usize,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        SurveyOptions { now, settle: SETTLE, accept: Vec::new(), silence: false, entries_max: ENTRIES_MAX }
    }
}

impl SurveyOptions {
    fn accepts(&self, plain: &[u8]) -> bool {
        let is_below =
            |top: &Vec<u8>| top.is_empty() || plain == top.as_slice() || plain.strip_prefix(&top[..]).is_some_and(|r| r[0] == b'/');
        self.accept.iter().any(is_below)
    }
}

/// What a directory is known by: made of its id, its name and the place of its parent, because ids are not unique.
type PlaceId = [u8; 32];

/// A directory in which something was done.
#[derive(Clone)]
struct Touched {
    id: DirectoryId,
    cipher: Vec<u8>,
    plain: Vec<u8>,
}

/// The part of their keys that all entries of a directory share.
fn prefix(place: &PlaceId) -> [u8; PREFIX] {
    place[..PREFIX].try_into().expect("16 of 32 bytes")
}

/// What was done here since it was learnt last.
#[derive(Default)]
struct Held {
    /// Names that were made, removed or replaced.
    ours: HashSet<EntryKey>,
    /// Directories with such names or with files that were committed: stored and plain path.
    touched: HashMap<PlaceId, Touched>,
    prefixes: HashSet<[u8; PREFIX]>,
}

impl Held {
    fn is_full(&self) -> bool {
        self.ours.len() + self.touched.len() > HELD_MAX
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
    /// An earlier session was interrupted.
    forgiving: AtomicBool,
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
            forgiving: AtomicBool::new(false),
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
        // Up to the nearest one that is known, and down again: depth is somebody else's choice and must not be that of our stack.
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

    fn is_ours(&self, key: &EntryKey) -> bool {
        self.held.lock().ours.contains(key)
    }

    fn is_touched(&self, place: &PlaceId) -> bool {
        self.held.lock().touched.contains_key(place)
    }

    fn is_touched_key(&self, key: &EntryKey) -> bool {
        self.held.lock().prefixes.contains(&key[..PREFIX])
    }

    /// Notes that this client is about to change the name `name` in a directory, or has committed a file in it.
    fn note(&self, core: &Core, directory: NodeId, name: Option<&[u8]>) {
        let (Ok(id), Ok(place)) = (core.directory_id(directory), self.place_of(core, directory)) else { return };
        let key = name.map(|name| self.key(&place, name));
        let mut held = self.held.lock();
        held.ours.extend(key);
        if !held.touched.contains_key(&place) {
            let paths = core.nodes.stored_path(directory).zip(core.nodes.plain_path(directory));
            held.touched.extend(paths.map(|(cipher, plain)| (place, Touched { id, cipher, plain })));
            held.prefixes.insert(prefix(&place));
        }
        if held.is_full() {
            self.wake.1.notify_all();
        }
    }

    /// Learns what was changed here.
    fn learn(&self, core: &Core, db: &Db) -> Inner<()> {
        let (ours, touched) = {
            let held = self.held.lock();
            (held.ours.clone(), held.touched.clone())
        };
        if touched.is_empty() {
            return Ok(());
        }
        Survey::new(core, self, db, &SurveyOptions::default(), false).learn(&touched)?;
        let mut held = self.held.lock();
        // What was changed again meanwhile is learnt again, which changes nothing.
        held.ours.retain(|key| !ours.contains(key));
        held.touched.retain(|id, _| !touched.contains_key(id));
        let prefixes = held.touched.keys().map(prefix).collect();
        held.prefixes = prefixes;
        Ok(())
    }

    fn keep(&self, core: &Core, survey: bool) {
        let mut next_survey = survey.then(Instant::now);
        let mut told: HashSet<Vec<u8>> = HashSet::new();
        loop {
            if next_survey.is_some_and(|at| at <= Instant::now()) {
                let options = SurveyOptions::default();
                let forgiving = self.forgiving.load(Ordering::Acquire);
                let found = Db::open(&self.path).and_then(|db| Survey::new(core, self, &db, &options, forgiving).in_background().run());
                next_survey = None;
                match found {
                    Ok(Some(notices)) => {
                        self.forgiving.store(false, Ordering::Release);
                        tell(&notices, &mut told);
                        if notices.iter().any(|n| !n.due) {
                            next_survey = Some(Instant::now() + options.settle);
                        }
                    }
                    Ok(None) => return,
                    Err(fault) => tracing::warn!("the rollback memory cannot be compared with the vault: {fault:?}"),
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

    /// See [`Vault::learn`](super::Vault::learn).
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
            match notice.kind {
                NoticeKind::Gone { elsewhere: true } => elsewhere += 1,
                _ => fresh += 1,
            }
            tracing::debug!("rollback: {}: {:?}", String::from_utf8_lossy(&notice.plain), notice.kind);
        }
    }
    if fresh > 0 {
        tracing::warn!("{fresh} files or directories of the vault are older than they were, or gone");
    }
    if elsewhere > 0 {
        tracing::info!("{elsewhere} files or directories are gone, perhaps removed on another machine");
    }
}

impl Keeper {
    /// Begins to remember `core` in the database at `path`, with a comparison in the background where `survey` says so.
    pub fn start(core: &Arc<Core>, path: PathBuf, survey: bool) -> Inner<(Keeper, usize)> {
        let memory = Arc::new(Memory::new(core, path));
        let db = Db::open(&memory.path)?;
        if db.session()?.is_some() {
            memory.forgiving.store(true, Ordering::Release);
        }
        if !core.read_only {
            db.set_session(Some(SurveyOptions::default().now))?;
        }
        let options = SurveyOptions::default();
        let counts = |row: &NoticeRow| {
            let is_alarm = !matches!(NoticeKind::decode(row.what, row.was, row.now), NoticeKind::Gone { elsewhere: true });
            is_alarm && !row.silenced && options.now - row.first >= options.settle.as_secs() as i64
        };
        let noticed = db.notices()?.values().filter(|row| counts(row)).count();
        drop(db);
        let _ = core.memory.set(memory.clone());
        let (core, kept) = (core.clone(), memory.clone());
        let thread = std::thread::Builder::new().name("kithfs-memory".into()).spawn(move || kept.keep(&core, survey))?;
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
            if core.read_only || self.memory.forgiving.load(Ordering::Acquire) { Ok(()) } else { db.set_session(None) }
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
            memory.note(self, directory, Some(name));
        }
    }

    /// Notes a commit for the memory.
    pub fn remember_commit(&self, node: NodeId) {
        if let Some(memory) = self.memory.get()
            && let Ok(link) = self.nodes.link(node)
        {
            memory.note(self, if node == ROOT { ROOT } else { link.parent }, None);
        }
    }

    /// Compares the vault with the memory at `path`, now.
    pub fn survey(&self, path: PathBuf, options: &SurveyOptions) -> Inner<Vec<Notice>> {
        let memory = Memory::new(self, path);
        let db = Db::open(&memory.path)?;
        let is_open = db.session()?.is_some();
        let is_live = is_open && super::lock::is_held(&self.root)?;
        if is_live && options.accept.is_empty() {
            // A mount is changing the vault and has not told yet what it did; what it has noticed itself stands.
            let mut notices = db.notices()?;
            if options.silence {
                notices.values_mut().for_each(|notice| notice.silenced = true);
                db.set_notices(&notices)?;
            }
            return Ok(memory.shown(&notices, options, i64::MIN));
        }
        let notices = Survey::new(self, &memory, &db, options, is_open && !is_live).run()?.unwrap_or_default();
        if is_open && !is_live {
            db.set_session(None)?;
        }
        Ok(notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Call;
    use crate::backing::fault::{Calls, FaultPlan, FaultStore};
    use crate::backing::mem::MemStore;
    use crate::crypto::Suite;
    use crate::sharing::Identity;
    use crate::vault::{Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, Vault};

    #[test]
    fn what_is_done_during_a_comparison_is_learnt_before_it_fills_the_memory() {
        // Nothing was learnt until the comparison had ended, which takes hours on a slow disk, while names without limit were held.
        let (store, owner, plan) = (MemStore::new(), Identity::generate(&OsRandom), FaultPlan::new());
        Vault::create(&store.root(), &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 }, &owner).expect("a vault");
        let vault = Vault::open(FaultStore::wrap(store.root(), plan.clone()), &owner, OpenOptions::default()).expect("open");
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let flags = OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };
        let directories = 100;
        for n in 0..directories {
            let made = vault.mkdir(&caller, ROOT, format!("directory {n}").as_bytes(), 0o755).expect("mkdir");
            let (_, opened) = vault.create_file(&caller, made.node, b"file", 0o644, flags).expect("create");
            vault.release(opened.handle).expect("release");
        }
        let folder = tempfile::tempdir().expect("a directory");
        plan.slow_down(Call::List, Duration::from_millis(10));
        let before = plan.count(Calls::Of(Call::List));
        vault.remember(&folder.path().join("memory"), true).expect("remember");
        for n in 0..2 * HELD_MAX {
            vault.mkdir(&caller, ROOT, format!("more {n}").as_bytes(), 0o755).expect("mkdir");
        }
        while !vault.core().memory.get().expect("a memory").held.lock().ours.is_empty() {
            assert!(plan.count(Calls::Of(Call::List)) - before < directories, "they were held until the comparison had ended");
            std::thread::yield_now();
        }
        vault.close().expect("close");
    }
}

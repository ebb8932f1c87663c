//! Keeps the rollback database of an open share: records local changes, and compares the store with
//! what was recorded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::database::Db;
use super::memory::{Base, Done, Held, Memory, Touched};
use super::notice::{Notice, Omitted, SETTLE, SurveyOptions};
use super::places::Place;
use super::rows::{NoticeRow, short};
use super::survey::Survey;
use crate::vault::core::{Core, Move, NameChange, Witness};
use crate::vault::error::Inner;
use crate::vault::types::{Event, NodeId};

/// Interval at which local changes are recorded.
const LEARN_EVERY: Duration = Duration::from_secs(30);

/// The thread of the rollback database.
pub(crate) struct Keeper {
    memory: Arc<Memory>,
    thread: Option<JoinHandle<()>>,
}

impl Memory {
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
                        let alarms = tell(&notices, &mut told);
                        if alarms > 0 {
                            core.events.tell(Event::RolledBack(alarms));
                        }
                        if notices.iter().any(|n| !n.due) {
                            next_survey = Some(Instant::now() + options.settle);
                        }
                    }
                    Ok(None) => return,
                    Err(fault) => tracing::warn!(
                        "the rollback database cannot be compared with the vault: {fault:?}"
                    ),
                }
            }
            self.wait(LEARN_EVERY);
            if self.is_stopped() {
                return;
            }
            if let Err(fault) = self.learn_now(core) {
                tracing::warn!("the rollback database cannot be written: {fault:?}");
            }
            if survey && self.has_found.swap(false, Ordering::AcqRel) {
                next_survey.get_or_insert(Instant::now() + SETTLE);
            }
        }
    }
}

impl Witness for Memory {
    /// Notes that this client changes the name `name` in a directory, or commits its file.
    fn note(&self, core: &Core, directory: NodeId, name: &[u8], change: NameChange) {
        let mut held = self.held_in_time();
        let Ok(place) = self.hold(core, &mut held.places, directory) else { return };
        let Held { touched, len, count, .. } = &mut *held;
        *count += 1;
        let touched = touched.entry(place).or_insert_with(|| {
            *len += 1;
            Touched::default()
        });
        touched.number = *count;
        let done = touched.names.get(name);
        let put = match change {
            NameChange::Taken(file) => file.map(|(id, version)| (short(&id), version)),
            // Something may be about to take a name that is free.
            NameChange::Any => {
                done.filter(|done| done.change != NameChange::Left).and_then(|done| done.put)
            }
            NameChange::Left | NameChange::Written => done.and_then(|done| done.put),
        };
        let is_new = match change {
            NameChange::Written => touched.written.insert(name.to_vec(), *count).is_none(),
            _ => {
                let done = Done { change, put, number: *count };
                touched.names.insert(name.to_vec(), done).is_none()
            }
        };
        *len += usize::from(is_new);
        if held.is_full() {
            self.wake.1.notify_all();
        }
    }

    fn note_file(&self, id: &[u8; 32], version: u64) {
        let mut held = self.held.lock();
        let noted = held.files.entry(short(id)).or_default();
        *noted = version.max(*noted);
    }

    fn note_base(&self, core: &Core, directory: NodeId, name: &[u8], id: &[u8; 32], version: u64) {
        let Ok(place) = self.place_of(core, directory) else { return };
        let mut held = self.held.lock();
        let Some(touched) = held.touched.get_mut(&place) else { return };
        let at = SurveyOptions::default().now;
        let base = Base { id: short(id), version, is_written: false, at };
        match touched.bases.get_mut(name) {
            // The first one is not compared yet.
            Some(first) if first.id == base.id && first.version <= version => {}
            Some(first) => *first = base,
            None => {
                touched.bases.insert(name.to_vec(), base);
                held.len += 1;
            }
        }
    }

    fn note_written(&self, core: &Core, directory: NodeId, name: &[u8], is_written: bool) {
        let Ok(place) = self.place_of(core, directory) else { return };
        let mut held = self.held.lock();
        let Held { touched, count, .. } = &mut *held;
        let Some(touched) = touched.get_mut(&place) else { return };
        let Some(base) = touched.bases.get_mut(name) else { return };
        if is_written {
            base.is_written = true;
            *count += 1;
            touched.number = *count;
        } else if !base.is_written {
            touched.bases.remove(name);
        }
    }

    /// Moves noted changes along with directories that were renamed locally.
    fn follow(&self, core: &Core, moves: &[Move]) {
        let mut held = self.held.lock();
        let Held { touched, places, .. } = &mut *held;
        let mut moved = Vec::new();
        for one in moves {
            // A directory's tag follows from its stored name, so the renamed one has another tag.
            // The directories below keep their stored names.
            let tag_of = |stored| core.keys.tag_of(stored);
            let Some((before, tag)) = tag_of(one.stored.0).zip(tag_of(one.stored.1)) else {
                continue;
            };
            let Ok(from) = self.place_of(core, one.from.0) else { continue };
            let top = self.place(&from, one.from.1, &self.directory_id(&before));
            if !places.contains(&top) {
                continue;
            }
            let Ok(parent) = self.hold(core, places, one.to.0) else { continue };
            let renamed = Place { parent, name: one.to.1.into(), stored: one.stored.1.into(), tag };
            let mut ids = HashMap::new();
            for (old, place) in places.take(&top) {
                let place = match ids.get(&place.parent) {
                    Some(parent) => Place { parent: *parent, ..place },
                    None => renamed.clone(),
                };
                let id = self.place(&place.parent, &place.name, &self.directory_id(&place.tag));
                ids.insert(old, id);
                moved.push((id, place, touched.remove(&old)));
            }
        }
        for (id, place, changes) in moved {
            places.add(id, place);
            let Some(changes) = changes else { continue };
            match touched.entry(id) {
                Entry::Occupied(mut there) => {
                    there.get_mut().number = changes.number.max(there.get().number);
                    there.get_mut().names.extend(changes.names);
                    there.get_mut().bases.extend(changes.bases);
                    there.get_mut().written.extend(changes.written);
                }
                Entry::Vacant(free) => drop(free.insert(changes)),
            }
        }
    }

    /// See [`Vault::learn`](crate::vault::Vault::learn).
    fn learn_now(&self, core: &Core) -> Inner<()> {
        if self.held.lock().touched.values().all(Touched::is_recorded) {
            return Ok(());
        }
        let learnt = Db::open(&self.path).and_then(|db| self.learn(core, &db));
        self.has_failed.store(learnt.is_err(), Ordering::Release);
        learnt
    }
}

/// Logs notices that are not in `told` yet; plain paths only if names may be logged. Returns how
/// many of them are alarms.
fn tell(notices: &[Notice], told: &mut HashSet<Vec<u8>>) -> usize {
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
            "{elsewhere} files or directories are gone or back, perhaps through another machine"
        );
    }
    fresh
}

/// Counts the alarms in the database at `path` that are due and not silenced; 0 if it does not
/// exist.
pub(in crate::vault) fn alarms(path: &Path) -> Inner<usize> {
    if path.exists() { due_alarms(&Db::open(path)?) } else { Ok(0) }
}

/// Limits the length in bytes of the database at `path`.
pub(in crate::vault) fn set_limit(path: &Path, bytes: u64) -> Inner<()> {
    Db::open(path)?.set_limit(bytes)
}

/// Returns what the last comparison with the database at `path` has omitted.
pub(in crate::vault) fn omitted(path: &Path) -> Inner<Omitted> {
    Db::open(path)?.omitted()
}

fn due_alarms(db: &Db) -> Inner<usize> {
    let options = SurveyOptions::default();
    let counts = |row: &NoticeRow| {
        row.is_alarm()
            && !row.silenced
            && options.now - row.first >= options.settle.as_secs() as i64
    };
    Ok(db.notices()?.values().filter(|row| counts(row)).count())
}

impl Keeper {
    /// Opens the rollback database of `core` at `path`, and starts its thread, which begins with a
    /// comparison if `survey` is set. Also returns the number of alarms that are due.
    pub fn start(core: &Arc<Core>, path: PathBuf, survey: bool) -> Inner<(Keeper, usize)> {
        let memory = Arc::new(Memory::new(core, path));
        let db = Db::open(&memory.path)?;
        *memory.interrupted.lock() = db.session()?;
        if !core.mode.read_only {
            db.set_session(Some(SurveyOptions::default().now))?;
        }
        let noticed = due_alarms(&db)?;
        drop(db);
        let _ = core.memory.set(memory.clone());
        let (core, kept) = (core.clone(), memory.clone());
        let thread = std::thread::Builder::new()
            .name("kithfs-memory".into())
            .spawn(move || kept.keep(&core, survey))?;
        Ok((Keeper { memory, thread: Some(thread) }, noticed))
    }

    /// Returns whether an earlier session was interrupted, and the vault was not compared since.
    pub fn is_after_interruption(&self) -> bool {
        self.memory.interrupted.lock().is_some()
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

    /// Records the last changes, after everything is committed.
    pub fn finish(&self, core: &Core) {
        let finished = Db::open(&self.memory.path).and_then(|db| {
            self.memory.learn(core, &db)?;
            // If the comparison after an interrupted session has not ended, it is still due.
            if !core.mode.read_only && self.memory.interrupted.lock().is_none() {
                db.set_session(None)?;
            }
            db.tidy();
            Ok(())
        });
        if let Err(fault) = finished {
            tracing::warn!("the rollback database cannot be written: {fault:?}");
        }
    }
}

impl Core {
    /// Compares the vault with the rollback database at `path`, now.
    pub fn survey(&self, path: PathBuf, options: &SurveyOptions) -> Inner<Vec<Notice>> {
        let memory = Memory::new(self, path);
        let db = Db::open(&memory.path)?;
        let session = db.session()?;
        let is_live = session.is_some() && crate::vault::core::vault_lock::is_held(&self.root)?;
        if is_live && options.accept.is_empty() {
            // A mount is changing the vault and has not recorded its changes yet; its own notices
            // are valid.
            let mut notices = db.notices()?;
            if options.silence {
                notices.values_mut().for_each(|notice| notice.silenced = true);
                db.set_notices(&notices)?;
            }
            // Nothing was compared now, so the last notice tells when the vault last changed.
            let latest = notices.values().map(|row| row.first).max().unwrap_or(i64::MIN);
            return Ok(memory.shown(&notices, options, latest));
        }
        let interrupted = session.filter(|_| !is_live);
        let notices =
            Survey::new(self, &memory, &db, options, interrupted)?.run()?.unwrap_or_default();
        if interrupted.is_some() {
            db.set_session(None)?;
        }
        db.tidy();
        Ok(notices)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{HELD_MAX, WAIT, WAITS_FROM};
    use super::*;
    use crate::crypto::Suite;
    use crate::roster::Identity;
    use crate::store::Call;
    use crate::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
    use crate::store::mem::MemStore;
    use crate::vault::{
        Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, ROOT, RenameMode, Vault,
    };
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// Returns a vault in memory, and the plan that counts the calls to its store.
    fn vault_with_plan() -> (Vault, Arc<FaultPlan>) {
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
        (vault, plan)
    }

    const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
    const FLAGS: OpenFlags =
        OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };

    /// While a mount ends, its comparison went on for up to 5 ms, and then read all rows of the
    /// directory that it was in: for one with a million files that took most of a second.
    #[test]
    fn a_comparison_stops_before_the_next_entry() {
        let (files, last) = (200, 20);
        let (vault, plan) = vault_with_plan();
        for n in 0..files {
            let name = format!("file {n}");
            let (_, opened) =
                vault.create_file(&CALLER, ROOT, name.as_bytes(), 0o644, FLAGS).expect("create");
            vault.release(opened.handle).expect("release");
        }
        let (folder, core) =
            (tempfile::tempdir().expect("a directory"), vault.shares().root.clone());
        let memory = Arc::new(Memory::new(&core, folder.path().join("memory")));
        let db = Db::open(&memory.path).expect("a database");
        let options = SurveyOptions::default();
        let survey = || Survey::new(&core, &memory, &db, &options, None).expect("a comparison");
        plan.reset();
        assert!(survey().run().expect("compare").is_some());
        assert!(plan.count(Calls::Of(Call::Stat)) >= files);

        plan.reset();
        let (stopped, seen) = (memory.clone(), AtomicUsize::new(0));
        plan.before(Call::Stat, move || {
            if seen.fetch_add(1, Ordering::Relaxed) == last {
                stopped.stop.store(true, Ordering::Release);
            }
        });
        assert!(survey().in_background().run().expect("compare").is_none());
        let calls = plan.count(Calls::Of(Call::Stat));
        assert!(calls <= last as u64 + 4, "{calls} calls until it had stopped");
        drop(db);
        vault.close().expect("close");
    }

    /// The rows of a renamed directory are moved in several transactions. After a crash between two
    /// of them, those that were left behind would have counted as files of the vault for ever.
    #[test]
    fn rows_are_moved_on_after_a_crash() {
        let (vault, plan) = vault_with_plan();
        let create = |directory, n: usize| {
            let name = format!("file {n}");
            let (_, opened) = vault
                .create_file(&CALLER, directory, name.as_bytes(), 0o644, FLAGS)
                .expect("create");
            vault.release(opened.handle).expect("release");
        };
        let top = vault.mkdir(&CALLER, ROOT, b"top", 0o755).expect("mkdir").node;
        for n in 0..10 {
            let below = format!("below {n}");
            let below = vault.mkdir(&CALLER, top, below.as_bytes(), 0o755).expect("mkdir").node;
            (0..30).for_each(|n| create(below, n));
        }
        let (folder, core) =
            (tempfile::tempdir().expect("a directory"), vault.shares().root.clone());
        let path = folder.path().join("memory");
        let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
        let compared = || core.survey(path.clone(), &options).expect("compare");
        let room = || Db::open(&path).expect("open").room().expect("read");
        Db::open(&path).expect("open").set_limit(1 << 30).expect("a limit");
        assert_eq!(compared(), []);
        let before = room();

        // How many writes a comparison makes depends on the ages of the directories.
        let (names, mut interrupted) = ([b"first", b"moved"], 0);
        vault.rename(ROOT, b"top", ROOT, names[0], RenameMode::NoReplace).expect("rename");
        for nth in 1..=6 {
            let [from, to] = [nth + 1, nth].map(|n: u64| names[n as usize % 2]);
            vault.rename(ROOT, from, ROOT, to, RenameMode::NoReplace).expect("rename");
            plan.reset();
            let memory = Memory::new(&core, path.clone());
            let (calls, when) = (Calls::Of(Call::SyncDir), When::Nth(nth));
            plan.add(Fault { calls, when, errno: libc::EIO, short: false });
            {
                let db = Db::open(&path).expect("open");
                let survey = Survey::new(&core, &memory, &db, &options, None).expect("a survey");
                let is_failed = survey.run().is_err();
                interrupted += u32::from(is_failed && !db.moves().expect("read").is_empty());
            }
            plan.heal();
            assert_eq!(compared(), []);
            assert_eq!(room(), before);
            assert!(Db::open(&path).expect("open").moves().expect("read").is_empty());
        }
        assert!(interrupted > 0, "no failure while rows were moved");
        vault.close().expect("close");
    }

    /// The comparison that a mount begins with was at work for half of the time, also while
    /// programs used the vault.
    #[test]
    fn a_comparison_takes_a_twentieth_of_the_time_in_use() {
        let (vault, _) = vault_with_plan();
        let (folder, core) =
            (tempfile::tempdir().expect("a directory"), vault.shares().root.clone());
        let memory = Memory::new(&core, folder.path().join("memory"));
        let db = Db::open(&memory.path).expect("a database");
        let options = SurveyOptions::default();
        let survey = Survey::new(&core, &memory, &db, &options, None).expect("a comparison");
        let (done, worked) = (AtomicBool::new(false), Duration::from_millis(20));
        vault.usage().mark();
        let paused = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    vault.usage().mark();
                    std::thread::yield_now();
                }
            });
            let began = Instant::now();
            survey.pause(worked);
            done.store(true, Ordering::Relaxed);
            began.elapsed()
        });
        assert!(worked + paused >= 20 * worked, "{paused:?} after {worked:?} of work");
        vault.close().expect("close");
    }

    /// Ten million files were created faster than the store was read again to record them. What was
    /// still to be recorded took more and more memory, the database grew to nine times its length
    /// while it was written, and the unmount had not ended after 21 minutes.
    #[test]
    fn changes_wait_for_those_that_are_being_recorded() {
        let (vault, _) = vault_with_plan();
        let (folder, core) =
            (tempfile::tempdir().expect("a directory"), vault.shares().root.clone());
        let path = folder.path().join("memory");
        let (mut keeper, _) = Keeper::start(&core, path.clone(), false).expect("remember");
        let mut names = (0..).map(|n| format!("directory {n}"));
        let mut make = || {
            let name = names.next().expect("a name");
            vault.mkdir(&CALLER, ROOT, name.as_bytes(), 0o755).expect("mkdir");
        };
        // Another process has the database open.
        let turn = std::fs::File::open(path.with_extension("lock")).expect("the lock file");
        rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).expect("lock");
        while keeper.memory.held.lock().len <= WAITS_FROM {
            make();
        }
        let (began, changes) = (Instant::now(), 5);
        (0..changes).for_each(|_| make());
        assert!(began.elapsed() >= WAIT * changes);
        drop(turn);
        while !keeper.memory.held.lock().touched.is_empty() {
            std::thread::yield_now();
        }
        keeper.stop();
        keeper.finish(&core);
        vault.close().expect("close");
    }

    #[test]
    fn changes_during_a_comparison_are_recorded_in_time() {
        // Nothing was recorded until the comparison had ended, which takes hours on a slow disk,
        // while an unlimited number of names was held.
        let (vault, plan) = vault_with_plan();
        let directories = 100;
        for n in 0..directories {
            let made = vault
                .mkdir(&CALLER, ROOT, format!("directory {n}").as_bytes(), 0o755)
                .expect("mkdir");
            let (_, opened) =
                vault.create_file(&CALLER, made.node, b"file", 0o644, FLAGS).expect("create");
            vault.release(opened.handle).expect("release");
        }
        let folder = tempfile::tempdir().expect("a directory");
        plan.slow_down(Call::List, Duration::from_millis(10));
        let before = plan.count(Calls::Of(Call::List));
        let core = vault.shares().root.clone();
        let (mut keeper, _) =
            Keeper::start(&core, folder.path().join("memory"), true).expect("remember");
        for n in 0..2 * HELD_MAX {
            vault.mkdir(&CALLER, ROOT, format!("more {n}").as_bytes(), 0o755).expect("mkdir");
        }
        while !keeper.memory.held.lock().touched.is_empty() {
            assert!(
                plan.count(Calls::Of(Call::List)) - before < directories,
                "they were held until the comparison had ended"
            );
            std::thread::yield_now();
        }
        keeper.stop();
        keeper.finish(&core);
        vault.close().expect("close");
    }
}

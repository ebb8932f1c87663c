//! Random workloads under failing calls, killed daemons and power cuts, several of them in one run:
//! with hard links, several handles of one file, renames of directories, long names, copies and
//! times.
//!
//! What is checked
//! * Synced data is complete, in the synced or a later state, after every failed call, kill and
//!   power cut, even in the middle of an operation. So is a time that was set and synced.
//! * A read returns only what was written: after a failed call each byte is the old or the new one,
//!   and after a crash the contents are one of the states since the last sync.
//! * A rename that fails leaves every name with one of the files that it could have.
//!
//! After a crash the session continues with what it finds. `KITHFS_RUNS` sets the number of runs,
//! `KITHFS_SEED` the first seed, `KITHFS_STEPS` the number of steps of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, SetTime, Timestamp};
use kithfs::vault::{Error, Fallocate, OpenFlags, OpenOptions, RenameMode, SetAttr, Vault};
use parking_lot::Mutex;

use crate::support::vaults::{self, READ_WRITE, Seeded, at, get, pattern};

const LONG: &[u8] = &{
    let mut name = [b'l'; 202];
    (name[0], name[1]) = (b'p', b'/');
    name
};
const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"p/a", LONG, b"q/a", b"q/c", b"p/b"];
const DIRS: [&[u8]; 3] = [b"", b"p", b"q"];
const DIR_RENAMES: [(&[u8], &[u8]); 2] = [(b"p", b"r"), (b"r", b"p")];

/// A file, whatever its names.
#[derive(Default, Clone)]
struct Obj {
    handles: Vec<u64>,
    /// The contents that a read returns now.
    view: Vec<u8>,
    /// States that a crash may leave: the last synced one, and all since.
    states: Vec<Vec<u8>>,
    /// A crash may lose it: it was never synced, or truncated to zero since the last sync.
    fragile: bool,
    /// The modification time that was set last, if nothing has changed it since.
    mtime: Option<i64>,
    /// The same time, if it was synced.
    synced_mtime: Option<i64>,
}

struct Run {
    store: MemStore,
    plan: Arc<FaultPlan>,
    vault: Vault,
    objs: Vec<Obj>,
    names: BTreeMap<Vec<u8>, usize>,
    /// The objects that each name may have after a power cut; `None`: the name may be missing.
    possible: BTreeMap<Vec<u8>, BTreeSet<Option<usize>>>,
    random: Seeded,
    what: String,
    log: Vec<String>,
    errors: usize,
    cuts: usize,
    /// A call has failed since the vault was opened: data that a flush has lost may be in the
    /// kernel's memory alone.
    failed: bool,
}

fn open(store: &MemStore, plan: &Arc<FaultPlan>) -> Result<Vault, Error> {
    Vault::open(
        FaultStore::wrap(store.root(), plan.clone()),
        &vaults::owner(),
        OpenOptions::default(),
    )
}

/// Returns another vault, which takes the place of a closed vault in a variable. So the closed one
/// is dropped, with all its locks, before it is opened again.
fn dummy() -> Vault {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    vaults::open(store.root()).unwrap()
}

impl Obj {
    /// Returns whether the file may have these bytes: one of its states, or the beginning of one if
    /// no more of it had room at the last commit. That is never less than the shortest state.
    fn may_be(&self, bytes: &[u8]) -> bool {
        let is_part = |state: &Vec<u8>| {
            state.starts_with(bytes) && self.states.iter().any(|least| least.len() <= bytes.len())
        };
        self.states.iter().any(|state| state == bytes || is_part(state))
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let store = MemStore::new();
        vaults::create_by_seed(&store.root(), seed);
        let plan = FaultPlan::new();
        plan.lose_what_is_not_flushed();
        let vault = open(&store, &plan).unwrap();
        for d in &DIRS[1..] {
            vaults::mkdir(&vault, d).unwrap();
        }
        let mut run = Run {
            store,
            plan,
            vault,
            objs: Vec::new(),
            names: BTreeMap::new(),
            possible: BTreeMap::new(),
            random: Seeded::new(seed),
            what: format!("run {seed}"),
            log: Vec::new(),
            errors: 0,
            cuts: 0,
            failed: false,
        };
        run.sync_dirs();
        run
    }

    fn random_below(&self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn fail(&self, what: String) -> ! {
        panic!("{}: {what}\n{}", self.what, self.log.join("\n"));
    }

    fn log_result<T>(&mut self, what: &str, r: Result<T, Error>) -> Option<T> {
        self.errors += usize::from(r.is_err());
        self.log.push(format!(
            "   {what}: {}",
            r.as_ref().err().map_or("ok".into(), |e| format!("{e}"))
        ));
        r.ok()
    }

    fn sync_dirs(&mut self) -> bool {
        let mut all = true;
        for d in [&b""[..], b"p", b"q", b"r"] {
            let r = at(&self.vault, d, |n| {
                let h = self.vault.open_dir(n)?;
                let s = self.vault.sync_dir(h);
                self.vault.release_dir(h);
                s
            });
            match r {
                Err(e) if e.errno() == libc::ENOENT => {}
                other => all &= other.is_ok(),
            }
        }
        if all {
            self.possible =
                self.names.iter().map(|(p, o)| (p.clone(), [Some(*o)].into())).collect();
        }
        all
    }

    fn paths(&self) -> Vec<Vec<u8>> {
        let mut v: Vec<Vec<u8>> = NAMES.iter().map(|n| n.to_vec()).collect();
        v.extend([b"r/a".to_vec(), b"r/b".to_vec(), [b"r", &LONG[1..]].concat()]);
        v
    }

    fn set_name(&mut self, path: &[u8], obj: Option<usize>) {
        let before = self.names.get(path).copied();
        self.possible.entry(path.to_vec()).or_insert_with(|| [before].into()).insert(obj);
        match obj {
            Some(o) => {
                self.names.insert(path.to_vec(), o);
            }
            None => {
                self.names.remove(path);
            }
        }
    }

    /// Updates `names` from the vault, after an operation on names that may have failed. `before`
    /// has the object of each inode number.
    fn relearn(&mut self, before: &BTreeMap<u64, usize>) {
        self.plan.heal();
        for path in self.paths() {
            let found = match self.vault.resolve(&path) {
                Ok(attr) => {
                    self.vault.forget(attr.node, 1);
                    Some(attr.ino)
                }
                Err(e) if [libc::ENOENT, libc::ENOTDIR].contains(&e.errno()) => None,
                Err(e) => self.fail(format!("resolve {}: {e}", path.escape_ascii())),
            };
            let obj = found.map(|ino| {
                *before.get(&ino).unwrap_or_else(|| {
                    self.fail(format!("unknown inode at {}", path.escape_ascii()))
                })
            });
            if self.names.get(&path).copied() != obj {
                self.set_name(&path, obj);
            }
        }
    }

    fn inos(&self) -> BTreeMap<u64, usize> {
        self.names
            .iter()
            .map(|(p, o)| {
                let attr = self
                    .vault
                    .resolve(p)
                    .unwrap_or_else(|e| self.fail(format!("resolve {}: {e}", p.escape_ascii())));
                self.vault.forget(attr.node, 1);
                (attr.ino, *o)
            })
            .collect()
    }

    fn read(&self, o: usize) -> Option<Result<Vec<u8>, Error>> {
        if let Some(&h) = self.objs[o].handles.first() {
            let mut bytes = vec![0; self.objs[o].view.len() + 100_000];
            return Some(self.vault.read(h, 0, &mut bytes).map(|n| {
                bytes.truncate(n);
                bytes
            }));
        }
        let path = self.names.iter().find(|(_, x)| **x == o)?.0;
        Some(get(&self.vault, path))
    }

    /// Asserts that `may` allows the present contents, and notes them as the view and a state.
    fn look(&mut self, o: usize, how: &str, may: &dyn Fn(&Obj, &[u8]) -> bool) {
        self.plan.heal();
        match self.read(o) {
            None => {}
            Some(Ok(bytes)) => {
                if !may(&self.objs[o], &bytes) {
                    self.fail(format!(
                        "{how}: object {o} holds {} bytes, view {} states {:?}",
                        bytes.len(),
                        self.objs[o].view.len(),
                        self.objs[o].states.iter().map(Vec::len).collect::<Vec<_>>()
                    ));
                }
                let obj = &mut self.objs[o];
                if obj.view != bytes {
                    (obj.mtime, obj.synced_mtime) = (None, None);
                }
                if !obj.states.contains(&bytes) {
                    obj.states.push(bytes.clone());
                }
                obj.view = bytes;
            }
            Some(Err(e)) if !self.objs[o].fragile => self.fail(format!("{how}: object {o}: {e}")),
            Some(Err(_)) => {}
        }
    }

    fn reset(&mut self) {
        self.failed |= self.plan.failed() > 0;
        self.plan.reset();
    }

    /// Lets one call of the next operation, or all from one on, fail in three cases of ten.
    fn arm(&mut self) {
        self.reset();
        if self.random_below(100) < 70 {
            return;
        }
        let calls = match self.random_below(8) {
            0 | 1 => Calls::Changes,
            2 => Calls::All,
            3 | 4 => Calls::Of(Call::SyncData),
            5 => Calls::Of(Call::SyncAll),
            6 => Calls::Of(Call::Write),
            _ => Calls::Of(Call::SetLen),
        };
        let n = self.random_below(if matches!(calls, Calls::Of(_)) { 4 } else { 14 }) as u64 + 1;
        let when = if self.random_below(5) == 0 { When::From(n) } else { When::Nth(n) };
        let errno = if self.random_below(4) == 0 { libc::ENOSPC } else { libc::EIO };
        let fault = Fault { calls, when, errno, short: self.random_below(3) == 0 };
        self.log.push(format!("   arm {fault:?}"));
        self.plan.add(fault);
    }

    fn dirty(&mut self, o: usize) {
        let obj = &mut self.objs[o];
        obj.mtime = None;
        obj.synced_mtime = None;
    }

    fn synced(&mut self, o: usize) {
        self.plan.heal();
        if self.objs[o].fragile && self.read(o).is_some_and(|read| read.is_err()) {
            return; // the file was lost before
        }
        let obj = &mut self.objs[o];
        obj.states = vec![obj.view.clone()];
        obj.fragile = false;
        obj.synced_mtime = obj.mtime;
        let paths: Vec<_> =
            self.names.iter().filter(|(_, x)| **x == o).map(|(p, _)| p.clone()).collect();
        // The sync has made the name durable too, if it is the only one and no other file may have
        // it.
        if let [one] = &paths[..]
            && self.possible.get(one).is_none_or(|m| m.iter().flatten().all(|x| *x == o))
        {
            self.possible.insert(one.clone(), [Some(o)].into());
        }
    }

    /// Changes the contents to `new` if the change succeeded, otherwise to a mixture of old and new
    /// bytes.
    fn change(&mut self, o: usize, ok: bool, new: Vec<u8>, how: &str) {
        self.dirty(o);
        let view = self.objs[o].view.clone();
        self.objs[o].states.push(new.clone());
        self.look(o, how, &|obj, bytes| {
            if ok {
                return bytes == new;
            }
            let mix = bytes.len() >= view.len().min(new.len())
                && bytes.len() <= view.len().max(new.len())
                && bytes.iter().enumerate().all(|(i, b)| {
                    view.get(i) == Some(b) || new.get(i) == Some(b) || *b == 0 && i >= view.len()
                });
            mix || obj.handles.is_empty() && obj.states.iter().any(|s| s == bytes)
        });
    }

    fn release(&mut self, o: usize) {
        let Some(h) = self.objs[o].handles.pop() else { return };
        let r = self.vault.release(h);
        self.log_result(&format!("release {o}"), r);
        if self.objs[o].handles.is_empty() && self.names.values().any(|x| *x == o) {
            self.look(o, "after the last close", &Obj::may_be);
        }
    }

    /// Cuts the power, or kills the daemon, and continues with what is found.
    fn crash(&mut self, cut: bool) {
        self.crash_of(self.store.clone(), cut);
    }

    fn crash_of(&mut self, store: MemStore, cut: bool) {
        self.store.on_event(Box::new(|_| {}));
        self.store = store;
        self.cuts += 1;
        self.reset();
        let cut = cut || self.failed;
        self.failed = false;
        let seed = self.random.next();
        let crashed = if cut {
            let random = Seeded::new(seed);
            let style = seed % 4;
            self.store.crash(&mut |n| match style {
                0 => 0,
                1 => n - 1,
                _ => {
                    if n == 3 && random.below(2) == 0 {
                        1
                    } else {
                        random.below(n as u64) as usize
                    }
                }
            })
        } else {
            self.store.snapshot()
        };
        self.log.push(format!("crash, cut {cut}"));
        let plan = FaultPlan::new();
        plan.lose_what_is_not_flushed();
        let vault = open(&crashed, &plan)
            .unwrap_or_else(|e| self.fail(format!("open after the crash: {e}")));
        (self.store, self.plan, self.vault) = (crashed, plan, vault);
        let mut objs: Vec<Obj> = Vec::new();
        let mut names = BTreeMap::new();
        let mut inos = BTreeMap::new();
        for path in self.paths() {
            let may = self.possible.get(&path).cloned().unwrap_or_else(|| [None].into());
            let attr = match self.vault.resolve(&path) {
                Ok(attr) => {
                    self.vault.forget(attr.node, 1);
                    attr
                }
                Err(e) if [libc::ENOENT, libc::ENOTDIR].contains(&e.errno()) => {
                    if !may.contains(&None) {
                        self.fail(format!("{} is gone", path.escape_ascii()));
                    }
                    continue;
                }
                Err(e) => self.fail(format!("{}: {e}", path.escape_ascii())),
            };
            let known: Vec<&Obj> = may.iter().flatten().map(|o| &self.objs[*o]).collect();
            match get(&self.vault, &path) {
                Ok(bytes) => {
                    let fits: Vec<&&Obj> = known.iter().filter(|obj| obj.may_be(&bytes)).collect();
                    if fits.is_empty() {
                        self.fail(format!(
                            "{} holds {} bytes; may be {:?}",
                            path.escape_ascii(),
                            bytes.len(),
                            known
                                .iter()
                                .map(|o| (
                                    o.fragile,
                                    o.states.iter().map(Vec::len).collect::<Vec<_>>()
                                ))
                                .collect::<Vec<_>>()
                        ));
                    }
                    if let [one] = known[..]
                        && let Some(t) = one.synced_mtime
                        && attr.mtime.secs != t
                    {
                        self.fail(format!(
                            "{} has the time {} and not {t}",
                            path.escape_ascii(),
                            attr.mtime.secs
                        ));
                    }
                    let mtime = if let [one] = known[..] { one.synced_mtime } else { None };
                    let states = if cut {
                        vec![bytes.clone()]
                    } else {
                        let mut all: Vec<Vec<u8>> =
                            fits.iter().flat_map(|o| o.states.clone()).collect();
                        all.push(bytes.clone());
                        all
                    };
                    let fragile = !cut && fits.iter().any(|o| o.fragile);
                    let o = *inos.entry(attr.ino).or_insert_with(|| {
                        objs.push(Obj {
                            view: bytes,
                            states,
                            fragile,
                            mtime,
                            synced_mtime: mtime,
                            ..Obj::default()
                        });
                        objs.len() - 1
                    });
                    names.insert(path, o);
                }
                Err(e) => {
                    if !known.iter().any(|o| o.fragile) {
                        self.fail(format!(
                            "{}: {e}; may be {:?}",
                            path.escape_ascii(),
                            known
                                .iter()
                                .map(|o| (
                                    o.fragile,
                                    o.states.iter().map(Vec::len).collect::<Vec<_>>()
                                ))
                                .collect::<Vec<_>>()
                        ));
                    }
                    let (parent, name) = vaults::split(&path);
                    at(&self.vault, parent, |p| self.vault.unlink(p, name))
                        .unwrap_or_else(|e| self.fail(format!("unlink: {e}")));
                }
            }
        }
        for f in self
            .vault
            .check(b"", &mut |_| {})
            .unwrap_or_else(|e| self.fail(format!("check: {e}")))
            .faults
        {
            if !f.residue && !f.what.contains("is a journal with changes") {
                self.fail(format!("{f:?}"));
            }
        }
        (self.objs, self.names) = (objs, names);
        if cut {
            self.possible =
                self.names.iter().map(|(p, o)| (p.clone(), [Some(*o)].into())).collect();
            for d in &DIRS[1..] {
                match vaults::mkdir(&self.vault, d) {
                    Ok(()) => {}
                    Err(e) if e.errno() == libc::EEXIST => {}
                    Err(e) => self.fail(format!("mkdir: {e}")),
                }
            }
        }
        if !self.sync_dirs() {
            self.fail("sync of directories after a crash".into())
        }
    }

    /// Performs a step; in the middle of some, the power is cut.
    fn step(&mut self) {
        if self.random_below(12) > 0 {
            return self.step_whole();
        }
        let (moment, seen, taken) =
            (self.random_below(25), AtomicUsize::new(0), Arc::new(Mutex::new(None)));
        let (watched, into) = (self.store.clone(), taken.clone());
        self.store.on_event(Box::new(move |_| {
            if seen.fetch_add(1, Ordering::Relaxed) == moment {
                *into.lock() = Some(watched.snapshot());
            }
        }));
        let (before, mut may, crashes) = (self.objs.clone(), self.possible.clone(), self.cuts);
        let names = self.names.clone();
        self.step_whole();
        self.store.on_event(Box::new(|_| {}));
        let Some(store) = taken.lock().take() else { return };
        if self.cuts != crashes {
            return;
        }
        self.log.push(format!("cut at event {moment} of that"));
        for (obj, was) in self.objs.iter_mut().zip(before) {
            obj.fragile |= was.fragile;
            for state in was.states {
                if !obj.states.contains(&state) {
                    obj.states.push(state);
                }
            }
            if obj.synced_mtime != was.synced_mtime {
                obj.synced_mtime = None;
            }
        }
        for path in self.paths() {
            let of = |may: &BTreeMap<Vec<u8>, BTreeSet<Option<usize>>>,
                      names: &BTreeMap<Vec<u8>, usize>| {
                may.get(&path).cloned().unwrap_or_else(|| [names.get(&path).copied()].into())
            };
            let all: BTreeSet<Option<usize>> =
                of(&may, &names).union(&of(&self.possible, &self.names)).copied().collect();
            may.insert(path, all);
        }
        self.possible = may;
        self.crash_of(store, true);
    }

    fn step_whole(&mut self) {
        let name: Vec<u8> = NAMES[self.random_below(NAMES.len())].to_vec();
        let o = self.names.get(&name).copied();
        let seed = self.random.next();
        let len = {
            let m = [200, 5000, 14_000, 60_000][self.random_below(4)];
            self.random_below(m) + 1
        };
        let choice = self.random_below(200);
        self.log.push(format!("step {choice} {} obj {o:?} len {len}", name.escape_ascii()));
        let with_handle = o.filter(|o| !self.objs[*o].handles.is_empty());
        let handle = with_handle.map(|o| {
            let n = self.random_below(self.objs[o].handles.len());
            self.objs[o].handles[n]
        });
        match (choice, o) {
            (0..30, _) if o.is_none_or(|o| self.objs[o].handles.len() < 3) => {
                let truncate = seed.is_multiple_of(9);
                let parent_there = name.len() == 1
                    || self
                        .vault
                        .resolve(vaults::split(&name).0)
                        .map(|a| self.vault.forget(a.node, 1))
                        .is_ok();
                if !parent_there {
                    return;
                }
                let inos = self.inos();
                self.arm();
                let r = vaults::open_or_create(
                    &self.vault,
                    &name,
                    OpenFlags { truncate, ..READ_WRITE },
                );
                let h = self.log_result("open", r);
                match (o, h) {
                    (Some(o), h) => {
                        let ok = h.is_some();
                        self.objs[o].handles.extend(h);
                        if truncate {
                            self.objs[o].fragile = true;
                            self.change(o, ok, Vec::new(), "open with truncation");
                        }
                    }
                    (None, Some(h)) => {
                        self.objs.push(Obj {
                            handles: vec![h],
                            states: vec![Vec::new()],
                            fragile: true,
                            ..Obj::default()
                        });
                        let o = self.objs.len() - 1;
                        self.set_name(&name, Some(o));
                    }
                    (None, None) => {
                        self.plan.heal();
                        if let Ok(attr) = self.vault.resolve(&name) {
                            self.vault.forget(attr.node, 1);
                            if inos.contains_key(&attr.ino) {
                                self.fail("a created file has the inode of an existing one".into());
                            }
                            self.objs.push(Obj {
                                states: vec![Vec::new()],
                                fragile: true,
                                ..Obj::default()
                            });
                            let o = self.objs.len() - 1;
                            self.set_name(&name, Some(o));
                            let (parent, last) = vaults::split(&name);
                            at(&self.vault, parent, |p| self.vault.unlink(p, last)).unwrap();
                            self.set_name(&name, None);
                        } else {
                            // The name may come back after a cut.
                            self.objs.push(Obj {
                                states: vec![Vec::new()],
                                fragile: true,
                                ..Obj::default()
                            });
                            let o = self.objs.len() - 1;
                            self.set_name(&name, Some(o));
                            self.set_name(&name, None);
                        }
                    }
                }
            }
            (30..80, Some(o)) if handle.is_some() => {
                let view = self.objs[o].view.clone();
                let offset = if seed.is_multiple_of(3) {
                    view.len()
                } else {
                    self.random_below(view.len() + 5000)
                };
                let data = pattern(seed, len);
                let mut new = view.clone();
                new.resize(new.len().max(offset + len), 0);
                new[offset..offset + len].copy_from_slice(&data);
                self.arm();
                let r = self.vault.write(handle.unwrap(), offset as u64, &data, false);
                let ok = self.log_result(&format!("write {o} at {offset}"), r).is_some();
                self.change(o, ok, new, "write");
            }
            (80..105, Some(o)) if handle.is_some() => {
                self.arm();
                let r = self.vault.fsync(handle.unwrap(), false);
                if self.log_result(&format!("fsync {o}"), r).is_some() {
                    self.synced(o);
                }
            }
            (105..110, Some(o)) if handle.is_some() => {
                self.arm();
                let r = self.vault.flush(handle.unwrap());
                self.log_result(&format!("flush {o}"), r);
            }
            (110..130, Some(o)) if handle.is_some() => {
                self.arm();
                self.release(o);
            }
            (130..138, Some(o)) => {
                let mut new = self.objs[o].view.clone();
                let size =
                    if seed.is_multiple_of(4) { 0 } else { self.random_below(new.len() + 3000) };
                new.resize(size, 0);
                if size == 0 {
                    self.objs[o].fragile = true;
                }
                self.arm();
                let r = at(&self.vault, &name, |n| {
                    self.vault
                        .setattr(n, &SetAttr { size: Some(size as u64), ..SetAttr::default() })
                });
                let ok = self.log_result(&format!("truncate {o} to {size}"), r).is_some();
                self.change(o, ok, new, "truncate");
            }
            (138..144, Some(o)) => {
                let t = 1000 + seed as u32 as i64 / 1000;
                self.arm();
                self.dirty(o);
                let r = at(&self.vault, &name, |n| {
                    self.vault.setattr(
                        n,
                        &SetAttr {
                            mtime: SetTime::At(Timestamp { secs: t, nanos: 0 }),
                            ..SetAttr::default()
                        },
                    )
                });
                if self.log_result(&format!("time of {o}"), r).is_some() {
                    self.objs[o].mtime = Some(t);
                }
            }
            (144..150, Some(o)) if handle.is_some() && !self.objs[o].view.is_empty() => {
                let mut new = self.objs[o].view.clone();
                let offset = self.random_below(new.len());
                let end = new.len().min(offset + len);
                new[offset..end].fill(0);
                self.arm();
                let r = self.vault.fallocate(
                    handle.unwrap(),
                    offset as u64,
                    len as u64,
                    Fallocate::PunchHole,
                );
                let ok = self.log_result(&format!("punch {o} at {offset}"), r).is_some();
                self.change(o, ok, new, "punch");
            }
            (150..156, Some(o)) if handle.is_some() => {
                let others: Vec<usize> = self
                    .names
                    .values()
                    .copied()
                    .filter(|x| !self.objs[*x].handles.is_empty() && *x != o)
                    .collect();
                if others.is_empty() {
                    return;
                }
                let from = others[self.random_below(others.len())];
                let source = self.objs[from].view.clone();
                let at_from = self.random_below(source.len() + 1);
                let part = &source[at_from..source.len().min(at_from + len)];
                let mut new = self.objs[o].view.clone();
                let offset = self.random_below(new.len() + 1);
                if !part.is_empty() {
                    new.resize(new.len().max(offset + part.len()), 0);
                    new[offset..offset + part.len()].copy_from_slice(part);
                }
                self.arm();
                let r = self.vault.copy_range(
                    self.objs[from].handles[0],
                    at_from as u64,
                    handle.unwrap(),
                    offset as u64,
                    len as u64,
                );
                let ok = self.log_result(&format!("copy {from} to {o}"), r).is_some();
                self.change(o, ok, new, "copy");
            }
            (156..162, Some(_)) => {
                let to: Vec<u8> = NAMES[self.random_below(NAMES.len())].to_vec();
                let inos = self.inos();
                self.arm();
                let (parent, last) = vaults::split(&to);
                let r = at(&self.vault, &name, |n| {
                    at(&self.vault, parent, |p| {
                        let a = self.vault.link(n, p, last)?;
                        self.vault.forget(a.node, 1);
                        Ok(())
                    })
                });
                self.log_result(&format!("link to {}", to.escape_ascii()), r);
                self.relearn(&inos);
            }
            (162..168, Some(_)) => {
                let inos = self.inos();
                self.arm();
                let (parent, last) = vaults::split(&name);
                let r = at(&self.vault, parent, |p| self.vault.unlink(p, last));
                self.log_result("unlink", r);
                self.relearn(&inos);
            }
            (168..176, Some(_)) => {
                let to: Vec<u8> = NAMES[self.random_below(NAMES.len())].to_vec();
                let inos = self.inos();
                self.arm();
                let mode = if seed.is_multiple_of(4) && self.names.contains_key(&to) {
                    RenameMode::Exchange
                } else {
                    RenameMode::Replace
                };
                let r = vaults::rename(&self.vault, &name, &to, mode);
                self.log_result(&format!("rename to {} {mode:?}", to.escape_ascii()), r);
                self.relearn(&inos);
            }
            (176..179, _) => {
                let (from, to) = DIR_RENAMES[self.random_below(2)];
                let inos = self.inos();
                self.arm();
                let r = vaults::rename(&self.vault, from, to, RenameMode::Replace);
                self.log_result(
                    &format!("rename {} to {}", from.escape_ascii(), to.escape_ascii()),
                    r,
                );
                self.relearn(&inos);
            }
            (179..184, _) => {
                self.arm();
                self.vault.commit_due(Duration::ZERO);
            }
            (184..187, _) => {
                self.arm();
                self.vault.flush_due(Duration::ZERO);
            }
            (187..193, _) => {
                self.arm();
                self.sync_dirs();
            }
            (193..195, _) => {
                if self.random_below(2) == 0 {
                    for o in 0..self.objs.len() {
                        while !self.objs[o].handles.is_empty() {
                            self.release(o);
                        }
                    }
                }
                self.arm();
                let r = self.vault.close();
                let closed = self.log_result("close", r).is_some();
                self.reset();
                if !closed {
                    return self.crash(true);
                }
                self.failed = false;
                for o in &mut self.objs {
                    o.handles.clear();
                }
                self.vault = dummy();
                self.vault = open(&self.store, &self.plan)
                    .unwrap_or_else(|e| self.fail(format!("open: {e}")));
                for o in 0..self.objs.len() {
                    self.look(o, "opened again", &|obj, bytes| {
                        obj.states.iter().any(|s| s == bytes)
                    });
                }
            }
            (195..198, _) => self.crash(true),
            (198.., _) => self.crash(false),
            _ => {}
        }
        self.reset();
        for o in self.names.values().copied().collect::<BTreeSet<_>>() {
            let view = self.objs[o].view.clone();
            let fragile = self.objs[o].fragile;
            self.look(o, "after the step", &|obj, bytes| {
                bytes == view
                    || obj.handles.is_empty() && fragile && obj.states.iter().any(|s| s == bytes)
            });
        }
    }
}

#[test]
fn what_was_synced_outlives_any_failure_and_any_cut() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, runs, steps) =
        (number("KITHFS_SEED", 1), number("KITHFS_RUNS", 60), number("KITHFS_STEPS", 200));
    let (mut errors, mut cuts) = (0, 0);
    for seed in first..first + runs {
        let mut run = Run::new(seed);
        (0..steps).for_each(|_| run.step());
        (errors, cuts) = (errors + run.errors as u64, cuts + run.cuts as u64);
    }
    println!("{errors} errors, {cuts} crashes");
    assert!(errors > runs && cuts > runs);
}

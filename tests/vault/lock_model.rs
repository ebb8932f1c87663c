//! The locks of the table of open files, in a model whose threads shuttle runs in thousands of
//! orders: no thread waits for ever, and what a program wrote is stored after the last close.
//!
//! The model has the locks of `vault/core/mod.rs` under their names, taken in the same order:
//! `files` (the table), the `state` of each file, `paths`. It leaves out what does not take part:
//! names, the journal's own lock, sealing. A change of the order there must be made here too.
//!
//! Rules that hold there and are shown here
//! * While `files` is held, a `state` may be tried (`try_read`) but not waited for.
//! * `paths` is taken after a `state`; a thread that holds `paths` for writing waits for no
//!   `state`.
//! * The last close commits while the file is still in the table, and then checks the state again:
//!   another opener may have written and closed meanwhile. That was not the last close, so it did
//!   not commit.

use std::collections::HashMap;

use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread;

/// How the last close decides that it is done.
#[derive(Clone, Copy, PartialEq)]
enum LastClose {
    /// It looks at the state again before it removes the file from the table.
    LooksAgain,
    /// It commits once and assumes that nothing was written meanwhile.
    CommitsOnce,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    changed: bool,
}

struct Shared {
    state: Arc<RwLock<State>>,
    handles: usize,
}

/// The parts of the vault's `Core` that an open file needs.
struct Core {
    files: Mutex<HashMap<u64, Shared>>,
    paths: RwLock<()>,
    /// The contents of the ciphertext store.
    store: Mutex<HashMap<u64, Vec<u8>>>,
    last_close: LastClose,
}

impl Core {
    fn new(last_close: LastClose) -> Arc<Core> {
        let store = Mutex::new(HashMap::from([(1, vec![0; 3]), (2, vec![0; 3])]));
        Arc::new(Core {
            files: Mutex::new(HashMap::new()),
            paths: RwLock::new(()),
            store,
            last_close,
        })
    }

    fn acquire(&self, node: u64) -> Arc<RwLock<State>> {
        let mut files = self.files.lock().unwrap();
        let shared = files.entry(node).or_insert_with(|| {
            let bytes = self.store.lock().unwrap()[&node].clone();
            Shared { state: Arc::new(RwLock::new(State { bytes, changed: false })), handles: 0 }
        });
        shared.handles += 1;
        shared.state.clone()
    }

    fn write(&self, state: &RwLock<State>, at: usize, byte: u8) {
        let mut state = state.write().unwrap();
        state.bytes[at] = byte;
        state.changed = true;
    }

    fn commit(&self, node: u64, state: &RwLock<State>) {
        let mut state = state.write().unwrap();
        let _paths = self.paths.read().unwrap();
        if state.changed {
            self.store.lock().unwrap().insert(node, state.bytes.clone());
            state.changed = false;
        }
    }

    fn release(&self, node: u64, state: &Arc<RwLock<State>>) {
        let mut committed = false;
        loop {
            let mut files = self.files.lock().unwrap();
            let shared = files.get_mut(&node).expect("a handle is open until its release");
            if shared.handles == 1 {
                let changed = match self.last_close {
                    LastClose::CommitsOnce => false,
                    LastClose::LooksAgain => match state.try_read() {
                        Ok(state) => state.changed,
                        Err(_) => {
                            drop(files);
                            drop(state.read().unwrap());
                            continue;
                        }
                    },
                };
                if !committed || changed {
                    drop(files);
                    self.commit(node, state);
                    committed = true;
                    continue;
                }
            }
            shared.handles -= 1;
            if shared.handles == 0 {
                files.remove(&node);
            }
            return;
        }
    }

    /// The background thread.
    fn commit_due(&self) {
        let open: Vec<_> = self
            .files
            .lock()
            .unwrap()
            .iter()
            .map(|(node, shared)| (*node, shared.state.clone()))
            .collect();
        for (node, state) in open {
            let due = state.try_read().is_ok_and(|state| state.changed);
            if due {
                self.commit(node, &state);
            }
        }
    }

    /// A rename: paths change, and then the open file is informed.
    fn rename(&self, node: u64) {
        drop(self.paths.write().unwrap());
        let open = self.files.lock().unwrap().get(&node).map(|shared| shared.state.clone());
        if let Some(state) = open {
            state.write().unwrap().changed = true;
        }
    }

    /// `stat` of a node, as a lookup does it: the size comes from the open file if there is one.
    fn stat(&self, node: u64) -> usize {
        let open = self.files.lock().unwrap().get(&node).map(|shared| shared.state.clone());
        match open {
            Some(state) => state.read().unwrap().bytes.len(),
            None => self.store.lock().unwrap()[&node].len(),
        }
    }
}

/// Three openers of one file, each with its own byte, concurrent with a rename, a lookup and the
/// background thread.
fn everybody(last_close: LastClose) {
    let core = Core::new(last_close);
    let mut threads: Vec<_> = (0..3usize)
        .map(|at| {
            let core = core.clone();
            thread::spawn(move || {
                let state = core.acquire(1);
                core.write(&state, at, at as u8 + 1);
                core.release(1, &state);
                assert_eq!(core.stat(1), 3);
            })
        })
        .collect();
    let other = core.clone();
    threads.push(thread::spawn(move || {
        other.commit_due();
        other.rename(1);
        let state = other.acquire(2);
        other.write(&state, 0, 9);
        other.release(2, &state);
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(core.files.lock().unwrap().is_empty());
    let store = core.store.lock().unwrap();
    assert_eq!((&store[&1], &store[&2]), (&vec![1, 2, 3], &vec![9, 0, 0]), "a change was lost");
}

#[test]
fn no_order_of_threads_loses_a_change_or_waits_for_ever() {
    shuttle::check_random(|| everybody(LastClose::LooksAgain), 2_000);
    shuttle::check_pct(|| everybody(LastClose::LooksAgain), 2_000, 4);
}

#[test]
#[should_panic(expected = "a change was lost")]
fn the_model_finds_the_change_that_one_last_commit_loses() {
    // The last close committed, let another opener open, write and close, and removed the file from
    // the table with that change in it.
    shuttle::check_pct(|| everybody(LastClose::CommitsOnce), 20_000, 4);
}

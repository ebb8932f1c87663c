//! One test at a time, in the binaries whose tests start programs and use mounts.
//!
//! A child that another thread has just forked holds a copy of every open descriptor until it calls
//! `exec`. An unmount in that moment fails with EBUSY, an `exec` of a script that was just written
//! fails with ETXTBSY, and a lock on a file stays held.
//!
//! Processes of such tests run beside one another, except for tests that have the machine alone.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};

static ONE_AT_A_TIME: ReentrantMutex<()> = ReentrantMutex::new(());

/// The lock of the test whose turn it is, which all its turns share: a second lock could wait for a
/// process that waits for the first one.
static MACHINE: Mutex<Weak<Machine>> = Mutex::new(Weak::new());

/// The turn of one test; dropping it lets the next test begin.
pub struct Turn {
    _machine: Arc<Machine>,
    _process: ReentrantMutexGuard<'static, ()>,
}

/// Waits until no other test of this process has its turn, and no test of another process has the
/// machine alone. A test may take its own turn more than once.
pub fn take() -> Turn {
    turn(false)
}

/// Waits until no other test has its turn in any process. A test that needs this takes it before any
/// other turn, if it
/// * has a mount namespace of its own, which begins with copies of all mounts of the machine: such a
///   mount does not end when it is unmounted elsewhere, unless the mounts of the machine are shared
/// * changes a switch of the kernel, or drops its caches
/// * leaves a process that cannot be inspected, for which a search for users of a mount waits.
pub fn alone() -> Turn {
    turn(true)
}

fn turn(alone: bool) -> Turn {
    let process = ONE_AT_A_TIME.lock();
    let mut shared = MACHINE.lock();
    let machine = shared.upgrade().unwrap_or_else(|| Arc::new(Machine::lock(alone)));
    assert!(machine.alone || !alone, "a test takes `alone` before any other turn");
    *shared = Arc::downgrade(&machine);
    Turn { _machine: machine, _process: process }
}

/// A lock on the program under test, which all processes of one build share.
struct Machine {
    alone: bool,
    _lock: File,
}

impl Machine {
    fn lock(alone: bool) -> Machine {
        let program = Path::new(env!("CARGO_BIN_EXE_kithfs"));
        // Locks are not granted in the order of their requests: without this queue, a test that
        // needs the machine alone might wait as long as two processes have tests.
        let queue = File::open(program.parent().expect("a directory")).expect("open it");
        let lock = File::open(program).expect("open the program");
        let take = if alone { File::lock } else { File::lock_shared };
        take(&queue).and_then(|()| take(&lock)).expect("lock the program");
        Machine { alone, _lock: lock }
    }
}

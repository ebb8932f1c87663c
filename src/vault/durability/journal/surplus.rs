//! Files for which the store has refused a write. Bytes that it accepted before may be stored
//! beyond their ends; they are cut when the vault is closed.
//!
//! Rules that hold here
//! * Nothing is cut while a record in the journal could refer to it, nor while the kernel goes on
//!   with a length that it has seen.
//! * Only bytes that an authentic header does not count are cut, whatever has happened to the file
//!   meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::state::Inode;

/// Maximum number of files that are noted.
const FILES_MAX: usize = 4096;

/// Stored paths of the files.
#[derive(Default)]
pub(crate) struct Surplus {
    pub(super) paths: Mutex<HashMap<Inode, Vec<u8>>>,
    any: AtomicBool,
}

impl Surplus {
    pub fn note(&self, inode: Inode, path: Vec<u8>) {
        let mut paths = self.paths.lock();
        if paths.len() < FILES_MAX || paths.contains_key(&inode) {
            paths.insert(inode, path);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Returns whether no file is noted; then paths need not be tracked.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Notes that the file or directory at the first path of each pair is now at the second one.
    pub fn have_moved(&self, moves: &[(Vec<u8>, Vec<u8>)]) {
        for path in self.paths.lock().values_mut() {
            let rest = |from: &Vec<u8>| {
                path.strip_prefix(&**from).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            if let Some((to, rest)) = moves.iter().find_map(|(from, to)| Some((to, rest(from)?))) {
                *path = [to, rest].concat();
            }
        }
    }
}

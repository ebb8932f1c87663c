//! Files of which the store has refused something: what it took before may stand behind their ends,
//! and goes when the vault is closed.
//!
//! Rules that hold here
//! * Nothing is cut before nothing is in the journal that could refer to it, nor while the kernel
//!   goes on with a length that it has seen.
//! * What is cut is what an authentic header does not count, whatever has become of the file
//!   meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::state::Inode;

/// Files that are noted at the most.
const FILES_MAX: usize = 4096;

/// Stored paths of the files.
#[derive(Default)]
pub(crate) struct Refused {
    pub(super) paths: Mutex<HashMap<Inode, Vec<u8>>>,
    any: AtomicBool,
}

impl Refused {
    /// Notes a file.
    pub fn note(&self, inode: Inode, path: Vec<u8>) {
        let mut paths = self.paths.lock();
        if paths.len() < FILES_MAX || paths.contains_key(&inode) {
            paths.insert(inode, path);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Whether any file is noted: else there are no paths to be followed.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// What stood at the first path of each pair, a file or a directory, stands at the second one.
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

//! What programs have open: files and directories by their handles.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use crate::crypto::Tag;
use crate::store::Dir;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::OpenFile;
use crate::vault::file::mtime::ExactStore;
use crate::vault::types::{Handle, NodeId, OpenFlags};

/// Maximum number of inodes whose size is remembered because it cannot be derived from the
/// ciphertext's length.
const SIZES_MAX: usize = 4096;

/// The object of a handle.
#[derive(Clone)]
pub(crate) enum Open {
    File {
        file: Arc<OpenFile>,
        flags: OpenFlags,
        /// The handle bypasses the page cache (`FOPEN_DIRECT_IO`).
        direct: bool,
    },
    /// `unread` is set once a listing has met an entry whose long name is lost, or has omitted an
    /// entry; `missing`, once it has omitted an entry whose name may be a stored name.
    Dir {
        node: NodeId,
        dir: Arc<dyn Dir>,
        directory: Tag,
        unread: Arc<AtomicBool>,
        missing: Arc<AtomicBool>,
    },
}

/// An open file and its number of handles.
pub(crate) struct OpenEntry {
    pub file: Arc<OpenFile>,
    pub handles: usize,
    /// The number of these that are open for writing.
    pub writers: usize,
}

/// The files and directories that programs have open in one share.
pub(crate) struct OpenTable {
    pub files: Mutex<HashMap<NodeId, OpenEntry>>,
    pub handles: RwLock<HashMap<Handle, Open>>,
    /// Inodes whose ciphertext is longer than their authenticated size requires: that length, and
    /// the size.
    pub sizes: Mutex<LruCache<(u64, u64), (u64, u64)>>,
    next_handle: AtomicU64,
    /// Number of calls of `write`.
    pub writes: AtomicU64,
    /// The store cannot exchange two files.
    pub no_exchange: AtomicBool,
    pub exact_store: ExactStore,
}

impl OpenTable {
    pub fn new() -> Self {
        OpenTable {
            files: Mutex::new(HashMap::new()),
            handles: RwLock::new(HashMap::new()),
            sizes: Mutex::new(LruCache::new(NonZeroUsize::new(SIZES_MAX).expect("not zero"))),
            next_handle: AtomicU64::new(1),
            writes: AtomicU64::new(0),
            no_exchange: AtomicBool::new(false),
            exact_store: ExactStore::default(),
        }
    }

    pub fn put_handle(&self, open: Open) -> Handle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(handle, open);
        handle
    }

    pub fn handle(&self, handle: Handle) -> Inner<Open> {
        self.handles.read().get(&handle).cloned().ok_or(Fault::Os(libc::EBADF))
    }

    pub fn file_handle(&self, handle: Handle) -> Inner<(Arc<OpenFile>, OpenFlags)> {
        match self.handle(handle)? {
            Open::File { file, flags, .. } => Ok((file, flags)),
            Open::Dir { .. } => Err(Fault::Os(libc::EISDIR)),
        }
    }

    /// Returns the handle of the store for a directory that a program has open.
    pub fn listed_dir(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.handles.read().values().find_map(|open| match open {
            Open::Dir { node: listed, dir, .. } if *listed == node => Some(dir.clone()),
            _ => None,
        })
    }
}

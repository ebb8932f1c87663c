//! What programs have open: files and directories by their handles.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::store::Dir;
use crate::vault::file::OpenFile;
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::types::{NodeId, OpenFlags};

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Open {
    File {
        file: Arc<OpenFile>,
        flags: OpenFlags,
        /// Each write of the program comes at once.
        direct: bool,
    },
    /// `unread` is set when a listing came upon an entry whose name cannot be read as yet,
    /// `missing` where that is why it is not listed.
    Dir {
        node: NodeId,
        dir: Arc<dyn Dir>,
        directory: DirectoryId,
        unread: Arc<AtomicBool>,
        missing: Arc<AtomicBool>,
    },
}

/// An open file and how many handles it has.
pub(crate) struct Shared {
    pub file: Arc<OpenFile>,
    pub handles: usize,
    pub writers: usize,
}

//! The entries of a folder, as they are copied and compared.

use crate::vault::core::Core;
use crate::vault::error::Inner;
use crate::vault::types::{Attr, NodeId};

/// Maximum depth of directories in a folder to be converted: copying holds a stack frame, and the
/// last check a handle, for each level.
pub(super) const DEPTH_MAX: usize = 256;

/// Size in bytes of the pieces that are copied or compared.
pub(super) const PART: usize = 1 << 20;

/// Entries by plain name; each holds one lookup count of its node.
pub(super) type Entries = Vec<(Vec<u8>, Attr)>;

/// Returns the entries of a directory, and whether there are more whose names cannot be read.
pub(super) fn read_children(core: &Core, node: NodeId) -> Inner<(Entries, bool)> {
    let handle = core.open_dir(node)?;
    let listed = (|| {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            core.check_open()?;
            let entries = core.read_dir(handle, cookie, 1 << 16)?;
            let Some(last) = entries.last() else { break };
            cookie = last.next;
            for entry in &entries {
                all.push((entry.name.to_vec(), core.lookup(node, &entry.name)?));
            }
        }
        Ok((all, core.misses_entries(handle)))
    })();
    core.release_handle(handle)?;
    listed
}

//! Fills the reply to READDIR and READDIRPLUS, for any transport.
//!
//! Rules that hold here
//! * Position 0 is before `.`, 1 before `..`, and 2 before the first entry. The store's positions are
//!   moved up by two, so that they differ from these, whatever they are (63-bit hashes on ext4, small
//!   numbers elsewhere). See [`to_kernel`].
//! * In READDIRPLUS each entry with a node counts one lookup, but never `.` and `..`. A node is
//!   looked up only when its entry is known to fit, so no lookup has to be undone when the buffer is
//!   full.

use std::time::Duration;

use crate::fuse::ops::{NodeId, Operations, Result};
use crate::fuse::protocol::wire::{self, ENTRY_OUT};
use crate::vault::Handle;

/// Position before `..`.
const AFTER_DOT: i64 = 1;
/// Position before the first entry of the store: [`to_kernel`] of the store's 0.
const AFTER_DOTS: i64 = 2;

/// Longest name of an entry in bytes.
const LONGEST_NAME: usize = 255;
/// Length in bytes that [`Listing::batch`] assumes for a stored name: half the shortest one (24 sealed
/// bytes, 32 in Base64).
const SHORTEST_STORED: usize = 16;

/// Returns the kernel's position for a position of the store.
///
/// The three highest positions become one, which [`to_store`] maps to the highest: the end of a
/// directory on ext4 and Btrfs. No filesystem uses the two positions below it. Negative positions are
/// not changed: the kernel continues reading from them, but does not seek to them.
pub fn to_kernel(store: i64) -> i64 {
    if store < 0 { store } else { store.saturating_add(AFTER_DOTS) }
}

/// Returns the store's position for a position of the kernel other than 0 and 1.
pub fn to_store(kernel: i64) -> i64 {
    if kernel < 0 || kernel == i64::MAX { kernel } else { kernel - AFTER_DOTS }
}

/// The directory to list, and the form of the listing.
pub struct Listing<'a> {
    /// The filesystem.
    pub ops: &'a dyn Operations,
    /// The directory.
    pub node: NodeId,
    /// Its handle.
    pub handle: Handle,
    /// Entries have room for nodes and attributes (READDIRPLUS).
    pub plus: bool,
    /// Entries contain nodes and attributes.
    pub with_nodes: bool,
    /// The generation of all nodes but the root.
    pub generation: u32,
    /// How long the kernel may keep an entry.
    pub entry_ttl: Duration,
    /// How long the kernel may keep attributes.
    pub attr_ttl: Duration,
}

impl Listing<'_> {
    /// Appends the entries after the kernel's position `offset` to `out`, at most `size` bytes, and
    /// returns the nodes that were counted. An error after some entries ends the listing; the next
    /// call meets the error again and returns it.
    pub fn fill(&self, offset: i64, size: usize, out: &mut Vec<u8>) -> Result<Vec<NodeId>> {
        let mut counted = Vec::new();
        let mut at = offset;
        while at == 0 || at == AFTER_DOT {
            let (name, next, node): (&[u8], _, _) = if at == 0 {
                (b".", AFTER_DOT, self.node)
            } else {
                (b"..", AFTER_DOTS, self.ops.parent(self.node))
            };
            if !self.fits(name, size, out) {
                return Ok(counted);
            }
            // A directory that was removed while it was open has no attributes; its listing still
            // begins like any other.
            let ino = self.ops.getattr(node).map_or(node, |attr| attr.ino);
            self.put_without_node(out, ino, next, libc::S_IFDIR, name);
            at = next;
        }
        loop {
            if out.len() + self.overhead() + wire::dirent_len(LONGEST_NAME) > size
                && !out.is_empty()
            {
                return Ok(counted);
            }
            let entries =
                match self.ops.readdir(self.handle, to_store(at), self.batch(size - out.len())) {
                    Ok(entries) => entries,
                    Err(_) if !out.is_empty() => return Ok(counted),
                    Err(error) => return Err(error),
                };
            if entries.is_empty() {
                return Ok(counted);
            }
            for entry in &entries {
                if !self.fits(&entry.name, size, out) {
                    return Ok(counted);
                }
                at = to_kernel(entry.next);
                let attr = if self.with_nodes {
                    self.ops.lookup_entry(self.handle, entry).ok().flatten()
                } else {
                    None
                };
                match attr {
                    Some(attr) => {
                        let Listing { generation, entry_ttl, attr_ttl, .. } = *self;
                        wire::put_entry(out, &attr, generation, entry_ttl, attr_ttl);
                        wire::put_dirent(
                            out,
                            attr.ino,
                            at,
                            wire::type_bits(attr.kind),
                            &entry.name,
                        );
                        counted.push(attr.node);
                    }
                    None => self.put_without_node(
                        out,
                        entry.ino,
                        at,
                        entry.kind.map_or(0, wire::type_bits),
                        &entry.name,
                    ),
                }
            }
        }
    }

    fn put_without_node(&self, out: &mut Vec<u8>, ino: u64, next: i64, mode: u32, name: &[u8]) {
        if self.plus {
            wire::put_no_entry(out, ino, mode, Duration::ZERO);
        }
        wire::put_dirent(out, ino, next, mode, name);
    }

    fn fits(&self, name: &[u8], size: usize, out: &[u8]) -> bool {
        out.len() + self.overhead() + wire::dirent_len(name.len()) <= size
    }

    fn overhead(&self) -> usize {
        if self.plus { ENTRY_OUT } else { 0 }
    }

    /// Returns how many bytes of stored names to read for `room`. That many short names always fit. Of
    /// long names, whose stored form is shorter, some may have to be read again, after seeking back in
    /// the store's directory.
    fn batch(&self, room: usize) -> usize {
        (room / (self.overhead() + wire::dirent_len(SHORTEST_STORED)) * SHORTEST_STORED)
            .max(SHORTEST_STORED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_at_the_edges() {
        assert_eq!(to_kernel(0), AFTER_DOTS);
        assert_eq!(to_store(AFTER_DOTS), 0);
        assert_eq!(to_kernel(i64::MAX), i64::MAX);
        assert_eq!(to_store(i64::MAX), i64::MAX);
        assert_eq!(to_store(to_kernel(i64::MAX - 3)), i64::MAX - 3);
        assert_eq!(to_store(to_kernel(-1)), -1);
        assert_eq!(to_store(to_kernel(i64::MIN)), i64::MIN);
    }

    proptest! {
        #[test]
        fn no_position_of_the_store_is_lost_or_taken_for_ours(store in i64::MIN..=i64::MAX - 3) {
            let kernel = to_kernel(store);
            prop_assert!(kernel != 0 && kernel != AFTER_DOT);
            prop_assert_eq!(to_store(kernel), store);
        }
    }
}

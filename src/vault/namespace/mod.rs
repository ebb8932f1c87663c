//! Entries and what hangs on them: make, remove, rename, list, links, extended attributes.

mod attributes;
pub(super) mod entries;
pub(super) mod listing;
pub(super) mod rename;
mod set_attributes;
pub(super) mod symlink;
pub(super) mod xattr;

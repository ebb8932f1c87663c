//! Entries and what hangs on them: make, remove, rename, list, links, extended attributes.

pub(super) mod entries;
pub(super) mod listing;
pub(super) mod overflow;
pub(super) mod rename;
pub(super) mod symlink;
pub(super) mod trash;
pub(super) mod xattr;

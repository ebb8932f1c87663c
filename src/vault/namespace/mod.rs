//! Operations on entries: create, remove, rename, list, link, extended attributes.

mod attributes;
pub(super) mod entries;
pub(super) mod listing;
pub(super) mod rename;
mod set_attributes;
pub(super) mod symlink;
pub(super) mod xattr;

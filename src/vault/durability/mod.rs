//! How changes of files reach the store: the order of a commit, and the journal.

pub(super) mod commit;
pub(super) mod journal;
pub(super) mod lease;
pub(super) mod lock_files;
pub(super) mod replacement;
pub(super) mod writers;

//! The rollback memory: what this client has seen of a vault, so that an older state of it is
//! noticed.
//!
//! Storage that cannot forge anything can still give back what was true once. Nothing in the vault
//! tells that; only somebody who remembers can. So each client keeps, outside of the vault, the
//! highest version of every file and which file stood under which name.
//!
//! Rules that hold here
//! * A memory warns and never refuses: reading goes on, and a memory that is lost or locked is only
//!   less to compare with.
//! * It never runs ahead of the store (see `survey`), so a crash between the two is no alarm. What
//!   an interrupted session may have removed counts as removed by it.
//! * A sync tool delivers in any order: what is noticed is told only when the store has come to
//!   rest for a while.
//! * What is under a name never goes backwards, whatever is beside it. Two versions that were seen
//!   side by side may lose one of them.
//! * Everything remembered that could not be compared is noticed as well.
//! * Nothing here is on the path of an operation but one entry in a set.

mod database;
pub(super) mod keeper;
mod memory;
pub(super) mod notice;
mod survey;

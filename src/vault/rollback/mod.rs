//! The rollback database: remembers the state of a vault that this client has seen, to detect an
//! older state.
//!
//! Storage that cannot forge anything can still return an earlier state. The vault itself does not
//! show that; only a client that remembers can detect it. So each client keeps, outside of the
//! vault, the highest version of every file and which file had which name.
//!
//! Rules that hold here
//! * It warns and never refuses: reading goes on, and a lost or locked database only means that
//!   there is less to compare with.
//! * It never runs ahead of the store (see `survey`), so a crash between the two causes no alarm.
//!   Objects that an interrupted session may have removed count as removed by it.
//! * A sync tool delivers files in any order: notices are shown only after the store has been
//!   unchanged for a while.
//! * A name that shows an older version of its file gets a notice, whatever is beside it. If two
//!   versions were seen at the same time, one of them may vanish.
//! * A remembered object that could not be compared gets a notice as well.
//! * A commit raises the version of a file. The version that it was built on is compared before the
//!   new one counts. A finding about it ends only if the user accepts it (see `survey/written`).
//! * The only cost on the path of an operation is one entry in a set, unless there are more changes
//!   than can be recorded in time: then operations wait for a moment.

mod blocks;
mod database;
pub(super) mod keeper;
mod memory;
pub(super) mod notice;
mod places;
pub(super) mod recall;
mod rows;
mod survey;

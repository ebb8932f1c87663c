//! Bytes to types and back: every on-disk structure. Pure: no system calls, no clocks, no
//! randomness of its own.
//!
//! Rules that hold here
//! * Integers are little-endian. Unknown versions, suites, flags, and bytes after the end are
//!   errors.
//! * Lengths are checked before anything is decrypted; memory is bounded by the input that the
//!   caller passed.

mod entry;
mod file;
mod membership;

pub mod cursor;
pub mod error;
pub mod identity;
pub mod journal;
pub mod signature;

pub use entry::{junction, moved, name, record, suffix, text};
pub use file::{header, layout, table};
pub use membership::{inventory, invitation, manifest, members, share, slots};

pub use cursor::{Reader, Writer};
pub use error::{FormatError, FormatErrorKind};
pub use layout::Layout;

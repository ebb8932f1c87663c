//! Bytes to types and back: everything that stands on the disk. PURE: no system calls, no clocks,
//! no randomness of its own.
//!
//! Rules that hold here
//! * Integers are little-endian. Unknown versions, suites, flags, and bytes after the end are
//!   errors.
//! * Lengths are checked before anything is decrypted; memory is bounded by what the caller handed
//!   in.

pub mod cursor;
pub mod error;
pub mod header;
pub mod identity;
pub mod inventory;
pub mod invitation;
pub mod journal;
pub mod junction;
pub mod layout;
pub mod manifest;
pub mod members;
pub mod name;
pub mod record;
pub mod share;
pub mod signature;
pub mod slots;
pub mod table;

pub use cursor::{Reader, Writer};
pub use error::{FormatError, FormatErrorKind};
pub use layout::Layout;

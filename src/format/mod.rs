//! Bytes to types and back. PURE.

pub mod cursor;
pub mod error;
pub mod identity;
pub mod manifest;
pub mod members;
pub mod share;
pub mod slots;

pub use cursor::{Reader, Writer};
pub use error::{FormatError, FormatErrorKind};

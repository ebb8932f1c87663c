//! Bytes to types and back. PURE.

pub mod cursor;
pub mod error;

pub use cursor::{Reader, Writer};
pub use error::{FormatError, FormatErrorKind};

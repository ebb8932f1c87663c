//! The error type of every parser in `format`.
//!
//! Rules: a parser reports *which* structure was wrong (`what`) and *how* (`kind`), and nothing
//! else; the error contains no plaintext and no secret.

use std::fmt;

/// How a structure failed to parse. Golden vectors name the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FormatErrorKind {
    /// The bytes end before the structure does.
    Truncated,
    /// Bytes are left over after the structure.
    Trailing,
    /// The first bytes are not those of this kind of structure.
    Magic,
    /// A format version that this program does not know.
    Version(u16),
    /// A cipher suite that this program does not know.
    Suite(u8),
    /// An unknown flag, kind or role, flags that are not allowed together, or a reserved byte that
    /// is not zero.
    Flags(u32),
    /// A number or length outside its allowed range.
    Range,
    /// A list that must be sorted is not, or contains an item twice.
    Order,
    /// Text or bytes that are not in their only allowed spelling, or are not valid text.
    Encoding,
    /// The structure was sealed, and its contents cannot be authenticated.
    Unauthentic,
}

impl fmt::Display for FormatErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("ends too early"),
            Self::Trailing => f.write_str("has bytes after its end"),
            Self::Magic => f.write_str("begins with the wrong bytes"),
            Self::Version(v) => write!(f, "has the unknown format version {v}"),
            Self::Suite(s) => write!(f, "has the unknown cipher suite {s}"),
            Self::Flags(bits) => {
                write!(f, "has unknown or forbidden flags {bits:#x}")
            }
            Self::Range => f.write_str("has a field out of range"),
            Self::Order => f.write_str("has unsorted or duplicate entries"),
            Self::Encoding => f.write_str("has a field that is not in canonical form"),
            Self::Unauthentic => f.write_str("cannot be authenticated"),
        }
    }
}

/// A structure that could not be parsed: `what` was expected, and `kind` is the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {kind}")]
pub struct FormatError {
    what: &'static str,
    kind: FormatErrorKind,
}

impl FormatError {
    /// `what` is the structure's name in lower case ("file header", "slot block").
    pub const fn new(what: &'static str, kind: FormatErrorKind) -> Self {
        Self { what, kind }
    }

    /// Returns how it failed.
    pub fn kind(&self) -> FormatErrorKind {
        self.kind
    }
}

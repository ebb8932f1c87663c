//! A bounded little-endian reader and writer, with which the modules of `format` parse and build.
//!
//! Rules: no read goes past the end, no length is used before it has been compared with the bytes
//! that are left, and a parser ends with [`Reader::finish`], so bytes that it did not read are an
//! error.

use super::error::{FormatError, FormatErrorKind};

/// Parses a slice from its front. Every method names the structure in its error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

macro_rules! read_integer {
    ($($name:ident)*) => {$(
        /// Reads one little-endian integer.
        pub fn $name(&mut self) -> Result<$name, FormatError> {
            Ok($name::from_le_bytes(self.array()?))
        }
    )*};
}

impl<'a> Reader<'a> {
    /// Creates a reader over `bytes` whose errors name `what`.
    pub fn named(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Returns an error of `kind` about the structure that is being read.
    pub fn error(&self, kind: FormatErrorKind) -> FormatError {
        FormatError::new(self.what, kind)
    }

    /// Returns the bytes that have not been read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Reads the next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) =
            self.rest.split_at_checked(n).ok_or(self.error(FormatErrorKind::Truncated))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(self.error(FormatErrorKind::Truncated))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    read_integer! { u16 u32 u64 }

    /// Requires the next bytes to be `magic`. A structure shorter than its magic fails with
    /// `Truncated` if the magic begins with its bytes, otherwise with `Magic`.
    pub fn magic(&mut self, magic: &[u8]) -> Result<(), FormatError> {
        let there = &self.rest[..self.rest.len().min(magic.len())];
        if there != &magic[..there.len()] {
            return Err(self.error(FormatErrorKind::Magic));
        }
        self.bytes(magic.len()).map(|_| ())
    }

    /// Requires a u16 version to be `known`.
    pub fn version(&mut self, known: u16) -> Result<(), FormatError> {
        match self.u16()? {
            v if v == known => Ok(()),
            v => Err(self.error(FormatErrorKind::Version(v))),
        }
    }

    /// Requires the next `n` bytes to be zero (reserved space to which a later version may give a
    /// meaning).
    pub fn zeros(&mut self, n: usize) -> Result<(), FormatError> {
        if self.bytes(n)?.iter().any(|b| *b != 0) {
            return Err(self.error(FormatErrorKind::Flags(0)));
        }
        Ok(())
    }

    /// Ends the parse. Bytes that are left are an error.
    pub fn finish(self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error(FormatErrorKind::Trailing)) }
    }
}

/// Builds a structure; the counterpart of [`Reader`].
#[derive(Debug, Default, Clone)]
pub struct Writer {
    out: Vec<u8>,
}

macro_rules! write_integer {
    ($($name:ident)*) => {$(
        /// Appends one little-endian integer.
        pub fn $name(&mut self, value: $name) -> &mut Self {
            self.bytes(&value.to_le_bytes())
        }
    )*};
}

impl Writer {
    /// Creates an empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty writer with room for `n` bytes.
    pub fn with_capacity(n: usize) -> Self {
        Self { out: Vec::with_capacity(n) }
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Appends `n` zero bytes.
    pub fn zeros(&mut self, n: usize) -> &mut Self {
        self.out.resize(self.out.len() + n, 0);
        self
    }

    write_integer! { u8 u16 u32 u64 }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns the bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.out
    }

    /// Returns the finished structure.
    pub fn into_vec(self) -> Vec<u8> {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_and_nothing_is_left() {
        let mut w = Writer::with_capacity(40);
        w.bytes(b"MAGI")
            .u16(1)
            .u8(7)
            .u16(0x0102)
            .u32(0x0304_0506)
            .u64(0x0708_090a_0b0c_0d0e)
            .zeros(3)
            .bytes(b"end");
        assert_eq!(w.len(), 4 + 2 + 1 + 2 + 4 + 8 + 3 + 3);
        let bytes = w.into_vec();
        assert_eq!(bytes[7..9], [2, 1], "little-endian");
        let mut r = Reader::named("thing", &bytes);
        r.magic(b"MAGI").unwrap();
        r.version(1).unwrap();
        assert_eq!(
            (r.u8(), r.u16(), r.u32(), r.u64()),
            (Ok(7), Ok(0x0102), Ok(0x0304_0506), Ok(0x0708_090a_0b0c_0d0e))
        );
        r.zeros(3).unwrap();
        assert_eq!(r.array::<3>().unwrap(), *b"end");
        r.finish().unwrap();
    }

    #[test]
    fn each_failure_has_its_kind() {
        use FormatErrorKind::*;
        let reader = |bytes: &'static [u8]| Reader::named("structure", bytes);
        assert_eq!(reader(&[1]).u16().unwrap_err().kind(), Truncated);
        assert_eq!(reader(&[1]).bytes(usize::MAX).unwrap_err().kind(), Truncated);
        assert_eq!(reader(&[1]).finish().unwrap_err().kind(), Trailing);
        assert_eq!(reader(b"MA").magic(b"MAGI").unwrap_err().kind(), Truncated);
        assert_eq!(reader(b"MX").magic(b"MAGI").unwrap_err().kind(), Magic);
        assert_eq!(reader(&[2, 1]).version(1).unwrap_err().kind(), Version(258));
        assert_eq!(reader(&[0, 1]).zeros(2).unwrap_err().kind(), Flags(0));
        assert_eq!(
            Reader::named("file header", &[1]).finish().unwrap_err().to_string(),
            "file header has bytes after its end"
        );
    }

    #[test]
    fn a_failed_read_takes_nothing() {
        let mut r = Reader::named("structure", &[1, 2, 3]);
        assert!(r.u32().is_err());
        assert_eq!(r.remaining(), 3);
        assert_eq!(r.bytes(3).unwrap(), &[1, 2, 3]);
    }
}

//! Bytes to types and back. PURE.

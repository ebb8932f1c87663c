//! Ciphers, key derivation and keys. PURE: bytes in, bytes out; randomness is passed in.

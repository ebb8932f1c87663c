//! The keys of a share: folder keys by epoch, the right to sign, signatures that were verified.

pub(super) mod keys;
pub(super) mod signing;
pub(super) mod verified;

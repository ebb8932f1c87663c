//! The keys of a share: folder keys by epoch, the right to sign, the verified-signature cache.

pub(super) mod keys;
pub(super) mod signing;
pub(super) mod verified;

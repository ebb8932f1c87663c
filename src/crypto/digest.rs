//! The labelled hash of public data: share ids, hashes of manifests and slot blocks, fingerprints.
//!
//! Rule: no two uses share a label, and parts are length-prefixed, so hashes of different things
//! never coincide.

use sha2::{Digest, Sha256};

use super::labels::Label;

/// Computes SHA-256 over `u16 length ‖ label`, then for each part `u64 length ‖ part`
/// (little-endian). Not for secrets: use [`hmac`](super::kdf::hmac) or
/// [`extract`](super::kdf::extract) for those.
pub fn digest(label: &Label, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let label = label.as_bytes();
    hash.update((label.len() as u16).to_le_bytes());
    hash.update(label);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Computes the [`digest`] of one part of `len` bytes. `read` is passed an offset and a buffer,
/// fills the buffer from its start and returns the number of bytes. Returns `None` if the part ends
/// early.
///
/// # Errors
/// Those of `read`.
pub fn digest_stream<E>(
    label: &Label,
    len: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<Option<[u8; 32]>, E> {
    let mut hash = Sha256::new();
    let label = label.as_bytes();
    hash.update((label.len() as u16).to_le_bytes());
    hash.update(label);
    hash.update(len.to_le_bytes());
    let (mut at, mut buf) = (0, vec![0; len.min(1 << 16) as usize]);
    while at < len {
        let want = (len - at).min(buf.len() as u64) as usize;
        let got = read(at, &mut buf[..want])?;
        if got == 0 {
            return Ok(None);
        }
        hash.update(&buf[..got]);
        at += got as u64;
    }
    Ok(Some(hash.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::labels;

    #[test]
    fn where_one_part_ends_matters() {
        let one = digest(&labels::SHARE_ID, &[b"ab", b"c"]);
        assert_ne!(one, digest(&labels::SHARE_ID, &[b"a", b"bc"]));
        assert_ne!(one, digest(&labels::SHARE_ID, &[b"abc"]));
        assert_ne!(one, digest(&labels::MANIFEST_HASH, &[b"ab", b"c"]));
    }
}

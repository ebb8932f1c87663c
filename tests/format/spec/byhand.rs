//! The notation of SPEC.md section 1, from primitives alone: labels are spelled out here and not
//! taken from the program.

use hmac::{Hmac, KeyInit, Mac};
use kithfs::crypto::kdf::expand_raw;
use sha2::{Digest, Sha256};

pub use kithfs::crypto::kdf::extract;

pub fn label(purpose: &str) -> Vec<u8> {
    format!("kithfs v1 {purpose}\0").into_bytes()
}

fn parts_u16(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u16).to_le_bytes()[..], part].concat()).collect()
}

pub fn expand(key: &[u8; 32], purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut out = [0; 32];
    expand_raw(key, &[&label(purpose), &parts_u16(parts)], &mut out).unwrap();
    out
}

/// `hmac(key, label, parts...)`.
pub fn labelled_hmac(key: &[u8; 32], purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let label = label(purpose);
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(&parts_u16(&[&[&label[..]], parts].concat()));
    mac.finalize().into_bytes().into()
}

pub fn digest(purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let label = label(purpose);
    hash.update((label.len() as u16).to_le_bytes());
    hash.update(label);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

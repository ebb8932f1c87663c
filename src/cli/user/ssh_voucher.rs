//! An SSH key that has been known for long vouches for a public key: its owner has signed the key
//! with `ssh-keygen -Y sign`.
//!
//! Rules that hold here
//! * A file of SSH keys has plain public keys only. Names and options, as in `authorized_keys` and
//!   `allowed_signers`, are refused: a line of another person must not vouch.
//! * The signature has the namespace `kithfs`, so that one made for another purpose is not
//!   accepted.

use ssh_key::public::KeyData;
use ssh_key::{Fingerprint, HashAlg, PublicKey, SshSig};

use crate::roster::PublicIdentity;

/// Namespace of the signature (`ssh-keygen -n`).
pub const NAMESPACE: &str = "kithfs";

/// Why an SSH key does not vouch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VoucherError {
    /// A line is no public key.
    #[error("line {0} of the SSH keys is not a plain public key")]
    Line(usize),
    /// There is no key.
    #[error("there is no SSH key")]
    NoKey,
    /// The signature does not parse.
    #[error("it is not a signature of ssh-keygen")]
    NotASignature,
    /// The signature was made for another purpose.
    #[error("the signature was made for another purpose")]
    Namespace,
    /// The signature was made with another key.
    #[error("the signature was made with another SSH key, {0}")]
    OtherKey(Fingerprint),
    /// The signature is for something else.
    #[error("the signature is not for this public key")]
    NotForThisKey,
}

/// Returns the fingerprint of the SSH key that has signed the public key.
///
/// # Errors
/// None of the keys has signed it, or a text does not parse.
pub fn vouching_key(
    keys: &str,
    signature: &[u8],
    public: &PublicIdentity,
) -> Result<Fingerprint, VoucherError> {
    let keys = parse_keys(keys)?;
    let signature = SshSig::from_pem(signature).map_err(|_| VoucherError::NotASignature)?;
    let signer = signature.public_key().fingerprint(HashAlg::Sha256);
    if signature.namespace() != NAMESPACE {
        return Err(VoucherError::Namespace);
    }
    let key = keys
        .into_iter()
        .find(|key| key == signature.public_key())
        .ok_or(VoucherError::OtherKey(signer))?;
    let key = PublicKey::new(key, "");
    // The signed text may end with a newline, as `kithfs identity export` prints it, or without
    // one, as some editors store it.
    let text = public.to_string();
    let is_signed = [format!("{text}\n"), text]
        .iter()
        .any(|text| key.verify(NAMESPACE, text.as_bytes(), &signature).is_ok());
    if is_signed { Ok(signer) } else { Err(VoucherError::NotForThisKey) }
}

fn parse_keys(text: &str) -> Result<Vec<KeyData>, VoucherError> {
    let mut keys = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = PublicKey::from_openssh(line).map_err(|_| VoucherError::Line(at + 1))?;
        keys.push(key.key_data().clone());
    }
    if keys.is_empty() { Err(VoucherError::NoKey) } else { Ok(keys) }
}

//! Who vouches for something sealed in a signed share: author, signer and signature, sealed with what they vouch for.
//!
//! Rules: the *author* is whose contents these are, the *signer* who sealed them, the author himself or who sealed them anew for him; the
//! signature is the signer's, over a labelled message that names the author too. Whether a signer may write is not decided here.

use super::cursor::Reader;
use super::error::{FormatError, FormatErrorKind};
use crate::crypto::{Label, verify};

/// Length of author, signer and signature.
pub const TRAILER_LEN: usize = 32 + 32 + 64;

/// Whose something is, by public signing keys. Made by verification or by who signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorship {
    /// Whose contents these are.
    pub author: [u8; 32],
    /// Who sealed and signed them.
    pub signer: [u8; 32],
}

/// How something is signed while it is sealed.
#[derive(Clone, Copy)]
pub struct Sign<'a> {
    /// What will be said of it.
    pub by: Authorship,
    /// Gives the signer's signature over label and message.
    pub sign: &'a dyn Fn(&Label, &[u8]) -> [u8; 64],
}

impl Sign<'_> {
    /// The [`TRAILER_LEN`] bytes.
    pub fn trailer(&self, label: &Label, message: &[u8]) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..32].copy_from_slice(&self.by.author);
        bytes[32..64].copy_from_slice(&self.by.signer);
        bytes[64..].copy_from_slice(&(self.sign)(label, message));
        bytes
    }
}

/// Takes a trailer apart whose signature is over what `message` gives for its author.
///
/// # Errors
/// `unauthentic` where the signature is not the signer's.
pub fn verify_trailer(
    what: &'static str,
    label: &Label,
    trailer: &[u8],
    message: impl FnOnce(&[u8; 32]) -> Vec<u8>,
) -> Result<Authorship, FormatError> {
    let mut r = Reader::named(what, trailer);
    let by = Authorship { author: r.array()?, signer: r.array()? };
    let signature = r.array()?;
    r.finish()?;
    verify(&by.signer, &[label.as_bytes(), &message(&by.author)].concat(), &signature)
        .map_err(|_| FormatError::new(what, FormatErrorKind::Unauthentic))?;
    Ok(by)
}

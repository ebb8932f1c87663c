//! Who vouches for something sealed in a signed share: author, signer and signature, sealed with
//! what they vouch for.
//!
//! Rules: the *author* is whose contents these are, the *signer* who sealed them, the author
//! himself or who sealed them anew for him; the signature is the signer's, over a labelled message
//! that names the author too. Whether a signer may write is not decided here. What a trailer says
//! is a [`Claim`] until somebody has verified it, and only then an [`Authorship`] to go by.

use super::cursor::Reader;
use super::error::{FormatError, FormatErrorKind};
use crate::crypto::{Label, verify};

/// Length of author, signer and signature.
pub const TRAILER_LEN: usize = 32 + 32 + 64;

/// Whose something is, by public signing keys. Made by verification or by who signs; otherwise what
/// a [`Claim`] says.
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

/// What a trailer says, not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    what: &'static str,
    by: Authorship,
    /// With its label.
    message: Vec<u8>,
    signature: [u8; 64],
}

impl Claim {
    /// Takes a trailer apart whose signature is to be over what `message` gives for its author.
    ///
    /// # Errors
    /// The trailer has another length.
    pub fn decode(
        what: &'static str,
        label: &Label,
        trailer: &[u8],
        message: impl FnOnce(&[u8; 32]) -> Vec<u8>,
    ) -> Result<Claim, FormatError> {
        let mut r = Reader::named(what, trailer);
        let by = Authorship { author: r.array()?, signer: r.array()? };
        let signature = r.array()?;
        r.finish()?;
        Ok(Claim {
            what,
            by,
            message: [label.as_bytes(), &message(&by.author)].concat(),
            signature,
        })
    }

    /// What a trailer will say of `message` that somebody has just signed so.
    #[must_use]
    pub fn made(by: Authorship, label: &Label, message: &[u8], signature: [u8; 64]) -> Claim {
        Claim { what: "signature", by, message: [label.as_bytes(), message].concat(), signature }
    }

    /// What tells this claim from every other one: a hash of all that is verified. What has the
    /// same digest is valid if this is.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        // All but the last part have a fixed length.
        hash.update(&self.by.author)
            .update(&self.by.signer)
            .update(&self.signature)
            .update(&self.message);
        hash.finalize().into()
    }

    /// What it says, for whoever knows otherwise that it is valid.
    #[must_use]
    pub fn said(&self) -> &Authorship {
        &self.by
    }

    /// Verifies the signature.
    ///
    /// # Errors
    /// `unauthentic` where it is not the signer's.
    pub fn verify(&self) -> Result<Authorship, FormatError> {
        verify(&self.by.signer, &self.message, &self.signature)
            .map_err(|_| FormatError::new(self.what, FormatErrorKind::Unauthentic))?;
        Ok(self.by)
    }
}

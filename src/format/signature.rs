//! The authorship of signed data: author, signer and signature, sealed together with the data.
//!
//! Rules: the contents are the *author's*. The *signer* sealed them: the author, or a member who
//! resealed them for the author. The signature is the signer's, over a labelled message that names
//! the author too. This module does not decide whether a signer may write. A trailer is a [`Claim`]
//! until its signature was verified, and only then an [`Authorship`] to rely on.

use super::cursor::Reader;
use super::error::{FormatError, FormatErrorKind};
use crate::crypto::{Label, verify};

/// Length of author, signer and signature.
pub const TRAILER_LEN: usize = 32 + 32 + 64;

/// Author and signer, by public signing keys. Except inside a [`Claim`], it comes from verification
/// or from the signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorship {
    /// The author of the contents.
    pub author: [u8; 32],
    /// The identity that sealed and signed them.
    pub signer: [u8; 32],
}

/// How something is signed while it is sealed.
#[derive(Clone, Copy)]
pub struct Sign<'a> {
    /// The authorship to state.
    pub by: Authorship,
    /// Returns the signer's signature over label and message.
    pub sign: &'a dyn Fn(&Label, &[u8]) -> [u8; 64],
}

impl Sign<'_> {
    /// Signs `message` under `label` and returns the trailer.
    pub fn trailer(&self, label: &Label, message: &[u8]) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..32].copy_from_slice(&self.by.author);
        bytes[32..64].copy_from_slice(&self.by.signer);
        bytes[64..].copy_from_slice(&(self.sign)(label, message));
        bytes
    }
}

/// The contents of a trailer, not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    what: &'static str,
    by: Authorship,
    /// The signed message, behind its label.
    message: Vec<u8>,
    signature: [u8; 64],
}

impl Claim {
    /// Parses a trailer that claims to sign the message that `message` returns for its author.
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

    /// Builds the claim of a trailer for `message` that was just signed with this authorship.
    #[must_use]
    pub fn made(by: Authorship, label: &Label, message: &[u8], signature: [u8; 64]) -> Claim {
        Claim { what: "signature", by, message: [label.as_bytes(), message].concat(), signature }
    }

    /// Returns a hash of everything that is verified, which identifies this claim. A claim with the
    /// same digest as a valid one is valid.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        // All except the last part have a fixed length.
        hash.update(&self.by.author)
            .update(&self.by.signer)
            .update(&self.signature)
            .update(&self.message);
        hash.finalize().into()
    }

    /// Returns the claimed authorship, which is not verified.
    #[must_use]
    pub fn said(&self) -> &Authorship {
        &self.by
    }

    /// Verifies the signature.
    ///
    /// # Errors
    /// `Unauthentic` if it is not the signer's.
    pub fn verify(&self) -> Result<Authorship, FormatError> {
        verify(&self.by.signer, &self.message, &self.signature)
            .map_err(|_| FormatError::new(self.what, FormatErrorKind::Unauthentic))?;
        Ok(self.by)
    }
}

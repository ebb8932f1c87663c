//! Invitations: an admin's statement of which share is meant, what its roster's head was, and who
//! is invited.
//!
//! Rules: only verification creates a verified [`Invitation`]. It proves what the holder of the
//! admin's key signed, and not who that is: the caller compares the fingerprint, or uses a verified
//! contact.

use super::chain::Pin;
use super::identity::Identity;
use crate::crypto::labels;
use crate::format::error::FormatError;
use crate::format::identity::PublicIdentity;
use crate::format::invitation::InvitationRecord;
use crate::format::share::ShareDescriptor;

/// Why an invitation does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// It does not parse.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The signature does not verify: the invitation was changed on the way, or the admin that it
    /// names did not sign it.
    #[error("signature of the invitation is not valid")]
    BadSignature,
    /// It is for another identity.
    #[error("invitation is for another identity")]
    OtherPerson,
    /// A share without signatures has one owner.
    #[error("share is not signed and has one owner; nobody can be invited to it")]
    OwnerOnly,
}

/// An invitation whose signature was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    record: InvitationRecord,
}

impl Invitation {
    /// Signs an invitation for `invited` to the share of `descriptor`, whose head is `head`, and
    /// returns its bytes. `by` must be an admin at that head; otherwise the share is not entered
    /// with the invitation.
    ///
    /// # Errors
    /// [`OwnerOnly`](InvitationError::OwnerOnly).
    pub fn sign(
        descriptor: &ShareDescriptor,
        head: &Pin,
        by: &Identity,
        invited: &PublicIdentity,
        now: u64,
    ) -> Result<Vec<u8>, InvitationError> {
        if !descriptor.signed {
            return Err(InvitationError::OwnerOnly);
        }
        let mut record = InvitationRecord {
            descriptor: *descriptor,
            sequence: head.sequence,
            head: head.hash,
            admin: by.public(),
            invited: *invited,
            time: now,
            signature: [0; 64],
        };
        record.signature = by.sign(&labels::INVITATION_SIGNATURE, &record.signed_bytes());
        Ok(record.encode())
    }

    /// Parses an invitation for `me` and verifies its signature.
    ///
    /// # Errors
    /// All of [`InvitationError`] except [`OwnerOnly`](InvitationError::OwnerOnly).
    pub fn verify(bytes: &[u8], me: &PublicIdentity) -> Result<Self, InvitationError> {
        let record = InvitationRecord::decode(bytes)?;
        let signed = record.admin.verify(
            &labels::INVITATION_SIGNATURE,
            &record.signed_bytes(),
            &record.signature,
        );
        signed.map_err(|_| InvitationError::BadSignature)?;
        if record.invited == *me { Ok(Self { record }) } else { Err(InvitationError::OtherPerson) }
    }

    /// Returns the share's id.
    pub fn share_id(&self) -> [u8; 32] {
        self.record.descriptor.share_id()
    }

    /// Returns the head of the roster when the admin signed.
    pub fn head(&self) -> Pin {
        Pin { sequence: self.record.sequence, hash: self.record.head }
    }

    /// Returns the inviting admin.
    pub fn admin(&self) -> &PublicIdentity {
        &self.record.admin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::keys::IdentitySeed;
    use crate::crypto::suite::Suite;
    use crate::format::error::FormatErrorKind;

    fn person(n: u8) -> Identity {
        Identity::from_seed(IdentitySeed::from_bytes([n; 32]))
    }

    fn descriptor(signed: bool) -> ShareDescriptor {
        ShareDescriptor {
            suite: Suite::Aes256Gcm,
            signed,
            isolated: false,
            chunk_log2: 18,
            longest_name: 152,
            founder: person(1).public(),
            random: [5; 32],
        }
    }

    const HEAD: Pin = Pin { sequence: 3, hash: [8; 32] };

    #[test]
    fn what_was_signed_is_what_is_accepted() {
        let (ann, bob) = (person(1), person(2));
        let bytes = Invitation::sign(&descriptor(true), &HEAD, &ann, &bob.public(), 7).unwrap();
        let invitation = Invitation::verify(&bytes, &bob.public()).unwrap();
        assert_eq!(
            (invitation.share_id(), invitation.head(), invitation.record.time),
            (descriptor(true).share_id(), HEAD, 7)
        );
        assert_eq!(
            (invitation.admin(), invitation.record.descriptor),
            (&ann.public(), descriptor(true))
        );
    }

    #[test]
    fn no_bit_of_it_can_be_changed_on_its_way() {
        let (ann, bob) = (person(1), person(2));
        let bytes = Invitation::sign(&descriptor(true), &HEAD, &ann, &bob.public(), 7).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Invitation::verify(&changed, &bob.public()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_invitation_with_another_recipient_or_sender_is_refused() {
        let (ann, bob, mallory) = (person(1), person(2), person(3));
        let bytes = Invitation::sign(&descriptor(true), &HEAD, &ann, &bob.public(), 7).unwrap();
        assert_eq!(
            Invitation::verify(&bytes, &mallory.public()),
            Err(InvitationError::OtherPerson)
        );
        let mut record = InvitationRecord::decode(
            &Invitation::sign(&descriptor(true), &HEAD, &mallory, &bob.public(), 7).unwrap(),
        )
        .unwrap();
        record.admin = ann.public();
        assert_eq!(
            Invitation::verify(&record.encode(), &bob.public()),
            Err(InvitationError::BadSignature)
        );
        // half of a key swapped: Ann's signature is valid, and the exchange key is another's
        record = InvitationRecord::decode(&bytes).unwrap();
        record.admin.exchange = mallory.public().exchange;
        assert_eq!(
            Invitation::verify(&record.encode(), &bob.public()),
            Err(InvitationError::BadSignature)
        );
    }

    #[test]
    fn there_is_no_invitation_to_a_share_with_one_owner() {
        let (ann, bob) = (person(1), person(2));
        let refused = Invitation::sign(&descriptor(false), &HEAD, &ann, &bob.public(), 7);
        assert_eq!(refused, Err(InvitationError::OwnerOnly));
        let mut forged =
            Invitation::sign(&descriptor(true), &HEAD, &ann, &bob.public(), 7).unwrap();
        forged[21] = 0;
        let Err(InvitationError::Format(error)) = Invitation::verify(&forged, &bob.public()) else {
            panic!("it is accepted")
        };
        assert_eq!(error.kind(), FormatErrorKind::Flags(0));
    }
}

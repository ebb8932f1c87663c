//! An invitation: an admin of a share hands it to a new member over any channel, so that they know
//! which share is meant. Layout only; `roster` signs and verifies it.
//!
//! Rules: the length is fixed. It contains no secret and no name, only public keys and the
//! share's id. It is for one person. A share that is not signed has one owner, so there is no
//! invitation to it.

use super::share::{DESCRIPTOR_LEN, ShareDescriptor};
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};
use crate::format::identity::{PUBLIC_LEN, PublicIdentity};

/// First bytes of an invitation.
pub const MAGIC: [u8; 8] = *b"kithinvi";
/// The version that this program writes and reads.
pub const VERSION: u16 = 1;

const DESCRIPTOR_AT: usize = MAGIC.len() + 2;
const SEQUENCE_AT: usize = DESCRIPTOR_AT + DESCRIPTOR_LEN;
const HEAD_AT: usize = SEQUENCE_AT + 4;
const ADMIN_AT: usize = HEAD_AT + 32;
const INVITED_AT: usize = ADMIN_AT + PUBLIC_LEN;
const TIME_AT: usize = INVITED_AT + PUBLIC_LEN;
const SIGNATURE_AT: usize = TIME_AT + 8;
/// Length of an invitation in bytes: 358.
pub const INVITATION_LEN: usize = SIGNATURE_AT + 64;

/// An invitation, parsed; its signature is not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvitationRecord {
    /// The whole share descriptor: the share's id is its hash.
    pub descriptor: ShareDescriptor,
    /// Number of the manifest that was the head when the admin signed, from 1.
    pub sequence: u32,
    /// Its hash.
    pub head: [u8; 32],
    /// The inviting admin, at that head.
    pub admin: PublicIdentity,
    /// The invited identity.
    pub invited: PublicIdentity,
    /// When it was signed, in seconds since 1970. No decision depends on it.
    pub time: u64,
    /// The admin's signature over all bytes before it.
    pub signature: [u8; 64],
}

impl InvitationRecord {
    /// Returns the bytes that the admin signs: all except the signature.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(INVITATION_LEN);
        w.bytes(&MAGIC)
            .u16(VERSION)
            .bytes(&self.descriptor.encode())
            .u32(self.sequence)
            .bytes(&self.head);
        w.bytes(&self.admin.to_bytes()).bytes(&self.invited.to_bytes()).u64(self.time);
        w.into_vec()
    }

    /// Returns the invitation's bytes, [`INVITATION_LEN`] of them.
    pub fn encode(&self) -> Vec<u8> {
        [&self.signed_bytes()[..], &self.signature].concat()
    }

    /// Parses an invitation.
    ///
    /// # Errors
    /// Every deviation from the one encoding; `Flags` for a share that is not signed, `Range` for
    /// manifest 0.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("invitation", bytes);
        r.magic(&MAGIC)?;
        r.version(VERSION)?;
        let descriptor = ShareDescriptor::decode(r.bytes(DESCRIPTOR_LEN)?)?;
        if !descriptor.signed {
            return Err(r.error(FormatErrorKind::Flags(0)));
        }
        let (sequence, head) = (r.u32()?, r.array()?);
        if sequence == 0 {
            return Err(r.error(FormatErrorKind::Range));
        }
        let (admin, invited) = (PublicIdentity::read(&mut r)?, PublicIdentity::read(&mut r)?);
        let (time, signature) = (r.u64()?, r.array()?);
        r.finish()?;
        Ok(Self { descriptor, sequence, head, admin, invited, time, signature })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::suite::Suite;

    fn sample() -> InvitationRecord {
        let public = |n: u8| PublicIdentity { sign: [n; 32], exchange: [n + 1; 32] };
        let descriptor = ShareDescriptor {
            suite: Suite::Aes256Gcm,
            signed: true,
            isolated: false,
            chunk_log2: 18,
            longest_name: 152,
            founder: public(3),
            random: [5; 32],
        };
        let (admin, invited) = (public(7), public(9));
        InvitationRecord {
            descriptor,
            sequence: 2,
            head: [6; 32],
            admin,
            invited,
            time: 11,
            signature: [12; 64],
        }
    }

    #[test]
    fn the_layout_is_as_the_table_says() {
        let bytes = sample().encode();
        assert_eq!((bytes.len(), INVITATION_LEN), (358, 358));
        assert_eq!(
            (SEQUENCE_AT, HEAD_AT, ADMIN_AT, INVITED_AT, TIME_AT, SIGNATURE_AT),
            (122, 126, 158, 222, 286, 294)
        );
        assert_eq!(InvitationRecord::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn each_deviation_has_its_kind() {
        let kind = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = sample().encode();
            change(&mut bytes);
            InvitationRecord::decode(&bytes).unwrap_err().kind()
        };
        assert_eq!(kind(&|b| b[0] ^= 1), FormatErrorKind::Magic);
        assert_eq!(kind(&|b| b[8] = 2), FormatErrorKind::Version(2));
        assert_eq!(kind(&|b| b[DESCRIPTOR_AT + 11] = 0), FormatErrorKind::Flags(0));
        assert_eq!(kind(&|b| b[SEQUENCE_AT] = 0), FormatErrorKind::Range);
        assert_eq!(kind(&|b| b[INVITED_AT + 63] |= 0x80), FormatErrorKind::Encoding);
        assert_eq!(kind(&|b| b.push(0)), FormatErrorKind::Trailing);
        for n in 0..INVITATION_LEN {
            assert_eq!(kind(&|b| b.truncate(n)), FormatErrorKind::Truncated, "cut at {n}");
        }
    }
}

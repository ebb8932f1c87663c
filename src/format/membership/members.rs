//! The list of members in a slot block, sealed so that only members can read it.
//!
//! Rules: sorted by signing key, each key once; one encoding for each list; the count is bounded
//! before anything is allocated.

use serde::{Deserialize, Serialize};

use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};
use crate::format::identity::{PUBLIC_LEN, PublicIdentity, label_allowed};

/// Most members of a share.
pub const MAX_MEMBERS: usize = 1 << 16;
/// Longest name of a member, in bytes of UTF-8.
pub const MAX_NAME: usize = 64;
/// Length of the list before its first member.
pub const LIST_HEADER_LEN: usize = 4;
/// Length of a member without the name.
pub const MEMBER_LEN: usize = PUBLIC_LEN + 1 + 1;

/// A member's permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Role {
    /// Reads; honest clients reject anything that this member writes.
    Reader = 1,
    /// Reads and writes.
    Writer = 2,
    /// Reads, writes and changes the membership.
    Admin = 3,
}

impl Role {
    /// Returns the role's byte.
    pub fn as_byte(self) -> u8 {
        self as u8
    }

    /// Returns the role of a byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Reader, Self::Writer, Self::Admin].into_iter().find(|role| role.as_byte() == byte)
    }

    /// Returns "reader", "writer" or "admin".
    pub fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Admin => "admin",
        }
    }

    /// Returns whether files signed in this role count.
    pub fn may_write(self) -> bool {
        self >= Self::Writer
    }
}

/// One member of a share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Both public keys.
    pub public: PublicIdentity,
    /// The member's permissions.
    pub role: Role,
    /// The name given by the admin who added the member: at most [`MAX_NAME`] bytes of UTF-8
    /// without control characters.
    pub name: String,
}

/// Returns the list's bytes. `members` must be sorted by signing key.
pub fn encode(members: &[Member]) -> Vec<u8> {
    let mut w = Writer::with_capacity(LIST_HEADER_LEN + members.len() * (MEMBER_LEN + 16));
    w.u32(members.len() as u32);
    for member in members {
        w.bytes(&member.public.to_bytes())
            .u8(member.role.as_byte())
            .u8(member.name.len() as u8)
            .bytes(member.name.as_bytes());
    }
    w.into_vec()
}

/// Parses a list.
///
/// # Errors
/// Every deviation from the one encoding.
pub fn decode(bytes: &[u8]) -> Result<Vec<Member>, FormatError> {
    let mut r = Reader::named("member list", bytes);
    let count = r.u32()? as usize;
    if count > MAX_MEMBERS {
        return Err(r.error(FormatErrorKind::Range));
    }
    if count > r.remaining() / MEMBER_LEN {
        return Err(r.error(FormatErrorKind::Truncated));
    }
    let mut members: Vec<Member> = Vec::with_capacity(count);
    for _ in 0..count {
        let public = PublicIdentity::read(&mut r)?;
        let role = r.u8()?;
        let role = Role::from_byte(role).ok_or(r.error(FormatErrorKind::Flags(u32::from(role))))?;
        let len = usize::from(r.u8()?);
        if len > MAX_NAME {
            return Err(r.error(FormatErrorKind::Range));
        }
        let name =
            std::str::from_utf8(r.bytes(len)?).map_err(|_| r.error(FormatErrorKind::Encoding))?;
        if !label_allowed(name, MAX_NAME) {
            return Err(r.error(FormatErrorKind::Encoding));
        }
        if members.last().is_some_and(|before| before.public.sign >= public.sign) {
            return Err(r.error(FormatErrorKind::Order));
        }
        members.push(Member { public, role, name: name.to_owned() });
    }
    r.finish()?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(key: u8, role: Role, name: &str) -> Member {
        Member {
            public: PublicIdentity { sign: [key; 32], exchange: [key / 2; 32] },
            role,
            name: name.into(),
        }
    }

    #[test]
    fn lists_come_back_and_deviations_have_their_kind() {
        let list = [
            member(1, Role::Admin, "Ann"),
            member(2, Role::Reader, ""),
            member(9, Role::Writer, "Cem Ç"),
        ];
        let bytes = encode(&list);
        assert_eq!(bytes.len(), LIST_HEADER_LEN + 3 * MEMBER_LEN + 3 + 6);
        assert_eq!(decode(&bytes).unwrap(), list);
        for n in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..n]).unwrap_err().kind(),
                FormatErrorKind::Truncated,
                "cut at {n}"
            );
        }
        let kind = |list: &[Member]| decode(&encode(list)).unwrap_err().kind();
        assert_eq!(
            kind(&[member(2, Role::Admin, ""), member(1, Role::Admin, "")]),
            FormatErrorKind::Order
        );
        assert_eq!(
            kind(&[member(2, Role::Admin, ""), member(2, Role::Reader, "")]),
            FormatErrorKind::Order
        );
        assert_eq!(kind(&[member(2, Role::Admin, "a\u{7}")]), FormatErrorKind::Encoding);
        assert_eq!(kind(&[member(2, Role::Admin, &"x".repeat(65))]), FormatErrorKind::Range);
        assert_eq!(
            decode(&[0xff; 4]).unwrap_err().kind(),
            FormatErrorKind::Range,
            "a hostile count allocates nothing"
        );
        assert_eq!(
            decode(&[bytes, vec![0]].concat()).unwrap_err().kind(),
            FormatErrorKind::Trailing
        );
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic_and_have_one_encoding(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), count in 0u8..4) {
            if bytes.len() >= 4 { bytes[..4].copy_from_slice(&[count, 0, 0, 0]); }
            if let Ok(list) = decode(&bytes) { prop_assert_eq!(encode(&list), bytes); }
        }
    }
}

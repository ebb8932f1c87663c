//! POSIX access control lists, as the kernel writes them into an extended attribute
//! (`linux/posix_acl_xattr.h`), and what they allow.
//!
//! Rules that hold here
//! * The order of checks is that of acl(5), "access check algorithm": first named users, then groups,
//!   then others. One group that grants all bits is enough. Owners are not checked here: their bits
//!   are in the mode.

/// Attribute with the ACL of an object.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute with the default ACL: new objects in the directory start with it.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Returns whether an extended attribute is one of the two.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

const VERSION: u32 = 2;
const ENTRY: usize = 8;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<(Tag, u32)>);

impl Acl {
    /// Parses the value of the attribute: a version and entries of tag, bits and number, all
    /// little-endian. Returns `None` if it is not valid.
    pub fn parse(value: &[u8]) -> Option<Acl> {
        let (version, entries) = value.split_first_chunk()?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY != 0 {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let bits = u32::from(u16::from_le_bytes([bytes[2], bytes[3]]));
            let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let tag = match u16::from_le_bytes([bytes[0], bytes[1]]) {
                0x01 => Tag::Owner,
                0x02 => Tag::User(id),
                0x04 => Tag::OwningGroup,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return None,
            };
            (bits <= 7).then_some((tag, bits))
        };
        entries.chunks_exact(ENTRY).map(entry).collect::<Option<_>>().map(Acl)
    }

    /// Returns whether all bits of `want` are granted to a user other than the owner.
    /// `owning_group` is the object's group; `is_of` returns whether the user is in a group.
    pub fn allows(
        &self,
        uid: u32,
        owning_group: u32,
        is_of: impl Fn(u32) -> bool,
        want: u32,
    ) -> bool {
        let has = |bits: u32| bits & want == want;
        let bits_of =
            |wanted: Tag| self.0.iter().find_map(|&(tag, bits)| (tag == wanted).then_some(bits));
        let mask = bits_of(Tag::Mask).unwrap_or(7);
        if let Some(bits) = bits_of(Tag::User(uid)) {
            return has(bits & mask);
        }
        let mut is_member = false;
        for &(tag, bits) in &self.0 {
            let group = match tag {
                Tag::OwningGroup => owning_group,
                Tag::Group(group) => group,
                _ => continue,
            };
            if is_of(group) {
                is_member = true;
                if has(bits & mask) {
                    return true;
                }
            }
        }
        !is_member && bits_of(Tag::Other).is_some_and(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for &(tag, bits, id) in entries {
            value.extend([&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        value
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn users_come_before_groups_and_groups_before_others() {
        let list = [
            (1, 7, NONE),
            (2, 6, 10),
            (4, 1, NONE),
            (8, 4, 20),
            (8, 2, 21),
            (0x10, 5, NONE),
            (0x20, 7, NONE),
        ];
        let acl = Acl::parse(&value(&list)).unwrap();
        let allows =
            |uid, groups: &[u32], want| acl.allows(uid, 30, |group| groups.contains(&group), want);
        assert!(allows(10, &[], 4));
        assert!(
            !allows(10, &[21], 2),
            "the mask removes the bit, and a named user's groups do not count"
        );
        assert!(allows(11, &[20], 4) && !allows(11, &[20], 1));
        assert!(!allows(11, &[20, 30], 5), "no single group grants both");
        assert!(!allows(11, &[21], 2), "a member without permissions is not one of the others");
        assert!(allows(11, &[], 7), "the mask is not for others");
        let plain = Acl::parse(&value(&[(1, 7, NONE), (4, 6, NONE), (0x20, 0, NONE)])).unwrap();
        assert!(
            plain.allows(11, 30, |group| group == 30, 6) && !plain.allows(11, 30, |_| false, 4)
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            &[][..],
            &[2, 0, 0],
            &[3, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0, 7, 0],
            &value(&[(3, 7, NONE)]),
            &value(&[(1, 8, NONE)]),
        ] {
            assert_eq!(Acl::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Acl::parse(&value(&[])), Some(Acl(Vec::new())));
    }
}

//! What is a name in the store: the check that every implementation makes before anything else.

use rustix::io::Errno;

/// Longest name that a store takes, in bytes (`NAME_MAX` of Linux).
pub(super) const NAME_MAX: usize = 255;

/// Refuses with `EINVAL` what is not a single component, so that no name can lead out of its
/// directory, and with `ENAMETOOLONG` what no store holds.
pub(super) fn check(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|&byte| byte == b'/' || byte == 0)
    {
        return Err(Errno::INVAL);
    }
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_components_are_names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(check(bad), Err(Errno::INVAL), "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b".a", b"\xff", &[b'x'; NAME_MAX]] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        assert_eq!(check(&[b'x'; NAME_MAX + 1]), Err(Errno::NAMETOOLONG));
    }
}

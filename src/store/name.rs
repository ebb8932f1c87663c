//! Names in the store: the check that every implementation makes first.

use rustix::io::Errno;

/// Longest name that a store takes, in bytes (`NAME_MAX` of Linux).
pub(super) const NAME_MAX: usize = 255;

/// Fails with `EINVAL` unless the name is a single component, so no name can lead out of its
/// directory, and with `ENAMETOOLONG` if it is too long for any store.
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

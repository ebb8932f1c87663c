//! The name of this machine.

use crate::crypto::{hmac, labels};

/// Returns the name of this machine, for people: letters, digits, `-` and `_` only.
pub(super) fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut clean: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_')
        .take(32)
        .collect();
    if clean.is_empty() {
        clean.push_str("host");
    }
    clean
}

/// Returns the name of this machine for the names of journals in a share: [`host`], and a hash that
/// distinguishes two machines of one name. The hash is of the system's machine id, keyed by the
/// share, so that it reveals nothing elsewhere. Without a machine id, the name is used alone.
pub(crate) fn machine(share: &[u8; 32]) -> String {
    machine_of(&host(), id().as_deref(), share)
}

/// Returns the name of this machine for the names of journals that are kept on it: the hash alone,
/// so that they are found again if the machine gets another host name. Without a machine id, the
/// name is that of [`host`].
pub(crate) fn local_machine(share: &[u8; 32]) -> String {
    id().map_or_else(host, |id| hash_of(&id, share))
}

fn id() -> Option<Vec<u8>> {
    let ids = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    ids.iter().find_map(|path| std::fs::read(path).ok().filter(|id| id.len() >= 32))
}

fn machine_of(host: &str, id: Option<&[u8]>, share: &[u8; 32]) -> String {
    id.map_or(host.to_owned(), |id| format!("{host}-{}", hash_of(id, share)))
}

fn hash_of(id: &[u8], share: &[u8; 32]) -> String {
    let hash = hmac(share, &[labels::MACHINE.as_bytes(), id.trim_ascii()]);
    hex::encode(&hash[..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_of_one_name_are_two() {
        // Two machines called "debian" took each other's journals for their own: they replayed and
        // removed journals that were in use.
        let of = |id: &[u8], share: u8| machine_of("debian", Some(id), &[share; 32]);
        let (one, two) = (
            of(b"0123456789abcdef0123456789abcdef\n", 1),
            of(b"fedcba98765432100123456789abcdef\n", 1),
        );
        assert_ne!(one, two);
        assert_eq!(one, of(b"0123456789abcdef0123456789abcdef", 1), "always the same");
        assert_ne!(one, of(b"0123456789abcdef0123456789abcdef", 2), "another one in another share");
        assert!(one.starts_with("debian-") && one.len() == "debian-".len() + 8, "{one}");
        assert_eq!(machine_of("debian", None, &[1; 32]), "debian");
    }
}

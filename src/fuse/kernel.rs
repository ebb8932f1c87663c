//! Abilities of the running kernel that the protocol does not report.

/// Returns whether the kernel is Linux `major.minor` or later.
pub fn is_since(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    name.release().to_str().is_ok_and(|release| release_is_since(release, (major, minor)))
}

fn release_is_since(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    matches!(version, (Some(major), Some(minor)) if (major, minor) >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_their_first_two_numbers() {
        for (release, since) in [
            ("6.18.44-fc", true),
            ("6.16.0", true),
            ("6.16-rc1", true),
            ("7.0.1", true),
            ("10.1", true),
            ("6.15.9", false),
            ("6.9.0", false),
            ("5.19.0", false),
            ("6", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(release_is_since(release, (6, 16)), since, "{release}");
        }
    }
}

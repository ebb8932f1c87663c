//! What sync tools append to a name, and how it is shown; and the mark of an entry that does not
//! own its plain name.
//!
//! Rules that hold here
//! * A suffix is everything behind the text of a stored name. It is in clear and not authenticated.
//! * A suffix S in one of the known forms is shown as it is; any other as ` (conflict copy S)`, so
//!   that a shown name can be taken apart again.

use std::borrow::Cow;

use super::text::is_letter;

/// Beginning and end of a suffix in no known form, as shown.
const OTHER: (&[u8], &[u8]) = (b" (conflict copy ", b")");
/// Beginning and end of a mark.
const MARK: (&[u8], &[u8]) = (b" (moved ", b")");
/// Longest name of a machine that OneDrive appends.
const MACHINE_MAX: usize = 15;

/// Returns whether a suffix has one of the known forms:
/// * Syncthing: `.sync-conflict-20260131-101010-ABCDEFG`;
/// * Dropbox, Nextcloud, Seafile and others: ` (Ann's conflicted copy 2026-01-31)`;
/// * Google Drive, iCloud and file managers: ` (2)`;
/// * ownCloud: `_conflict-20260131-101010`;
/// * Resilio, MEGA: `.Conflict`, with anything behind it;
/// * OneDrive: `-MACHINE`, capital letters, digits and hyphens.
fn is_known(suffix: &[u8]) -> bool {
    // Otherwise two suffixes would be shown alike.
    if suffix.starts_with(OTHER.0) {
        return false;
    }
    if suffix.starts_with(b".sync-conflict-") || suffix.starts_with(b"_conflict-") {
        return true;
    }
    if suffix.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b".conflict")) {
        return true;
    }
    if let Some(machine) = suffix.strip_prefix(b"-") {
        return machine.len() <= MACHINE_MAX
            && machine.iter().any(u8::is_ascii_uppercase)
            && machine.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'-');
    }
    let Some(inner) = suffix.strip_prefix(b" (").and_then(|s| s.strip_suffix(b")")) else {
        return false;
    };
    (!inner.is_empty() && inner.iter().all(u8::is_ascii_digit))
        || inner.windows(8).any(|word| word.eq_ignore_ascii_case(b"conflict"))
}

/// Returns a suffix as it is shown.
pub fn shown(suffix: &[u8]) -> Cow<'_, [u8]> {
    if suffix.is_empty() || is_known(suffix) {
        Cow::Borrowed(suffix)
    } else {
        Cow::Owned([OTHER.0, suffix, OTHER.1].concat())
    }
}

/// Returns the ways in which a shown name may consist of a plain name and a suffix, from the left:
/// the plain name, and the suffix as stored.
pub fn splits(name: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let may_begin = |at: &usize| matches!(name[*at], b'.' | b' ' | b'_' | b'-');
    (1..name.len()).filter(may_begin).flat_map(move |at| {
        let (plain, suffix) = name.split_at(at);
        let other = suffix
            .strip_prefix(OTHER.0)
            .and_then(|rest| rest.strip_suffix(OTHER.1))
            .filter(|rest| rest.first().is_some_and(|b| !is_letter(*b)) && !is_known(rest));
        is_known(suffix)
            .then_some((plain, suffix))
            .into_iter()
            .chain(other.map(|other| (plain, other)))
    })
}

/// The part of a mark that tells entries of one plain name apart.
pub type Mark = [u8; 4];

/// Returns the mark of the entry with this stored name.
pub fn mark_of(stored: &[u8]) -> Mark {
    *blake3::hash(stored).as_bytes().first_chunk().expect("32 is more than 4")
}

/// Returns a name with a mark behind it.
pub fn marked(name: &[u8], mark: &Mark) -> Vec<u8> {
    let hex = format!("{:08x}", u32::from_be_bytes(*mark));
    [name, MARK.0, hex.as_bytes(), MARK.1].concat()
}

/// Splits a name that ends with a mark; `None` if it does not.
pub fn split_mark(name: &[u8]) -> Option<(&[u8], Mark)> {
    let (rest, hex) = name.strip_suffix(MARK.1)?.split_last_chunk::<8>()?;
    let plain = rest.strip_suffix(MARK.0).filter(|plain| !plain.is_empty())?;
    let mark = u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?.to_be_bytes();
    (marked(plain, &mark) == name).then_some((plain, mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes_of_known_tools_are_shown_as_they_are() {
        for known in [
            ".sync-conflict-20260131-101010-ABCDEFG",
            " (Ann's conflicted copy 2026-01-31)",
            " (conflicted copy 2026-01-31 101010)",
            " (SFConflict ann@example.org 2026-01-31-10-10-10)",
            " (1)",
            "_conflict-20260131-101010",
            ".Conflict",
            ".conflict2",
            "-DESKTOP-1AB2",
        ] {
            assert_eq!(&*shown(known.as_bytes()), known.as_bytes());
            let name = format!("a name{known}");
            assert!(
                splits(name.as_bytes()).any(|split| split == (b"a name", known.as_bytes())),
                "{known}"
            );
        }
        for other in
            ["~", "-Ann's laptop", ".orig", " 2", " ()", "-2", "--", ".", " (conflict copy ~)"]
        {
            assert_eq!(*shown(other.as_bytes()), *format!(" (conflict copy {other})").as_bytes());
        }
        for ordinary in ["letter.txt", "a-b-c", "v-2", "report (draft)", "a_b", "a (moved 1)"] {
            assert_eq!(splits(ordinary.as_bytes()).count(), 0, "{ordinary}");
        }
    }

    #[test]
    fn a_mark_is_read_back_and_nothing_else_is() {
        let name = marked(b"a (1)", &[0x0a, 0xbc, 0, 1]);
        assert_eq!(name, b"a (1) (moved 0abc0001)");
        assert_eq!(split_mark(&name), Some((&b"a (1)"[..], [0x0a, 0xbc, 0, 1])));
        for other in [
            &b" (moved 0abc0001)"[..],
            b"a (moved 0ABC0001)",
            b"a (moved 0abc001)",
            b"a (moved 0abc00011)",
            b"a (moved 0abc000g)",
            b"a (moved 0abc0001",
            b"a(moved 0abc0001)",
        ] {
            assert_eq!(split_mark(other), None, "{}", other.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn a_shown_name_can_be_taken_apart(plain in "[a-z .()-]{1,12}", suffix in "[-~. _(#][ -.0-~]{0,20}") {
            let name = [plain.as_bytes(), &shown(suffix.as_bytes())].concat();
            prop_assert!(splits(&name).any(|split| split == (plain.as_bytes(), suffix.as_bytes())));
            for (plain, suffix) in splits(&name) { prop_assert_eq!([plain, &*shown(suffix)].concat(), name.clone()); }
        }
    }
}

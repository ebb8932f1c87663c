//! How bytes, paths, times and modes are shown.
//!
//! Rules that hold here
//! * Output to a terminal or a log contains no control characters: a file name must not move the
//!   cursor, change colours or begin a line. Names are shown with [`Shown`]. Messages, output and
//!   log lines are escaped with [`Line`] when they are written, whatever they contain.
//! * Times are UTC, so that output is the same on each machine.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::store::{Kind, Timestamp};

/// Bytes as text for people: UTF-8 unchanged, but control characters, invisible ones and bytes that
/// are not UTF-8 as `\xNN`, and a backslash as `\\`.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' { f.write_str("\\\\")? } else { write_visible(f, c)? }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// A text as one line for people: control characters and invisible ones as `\xNN`. Backslashes
/// stay, as names in the text are already [`Shown`].
pub struct Line<'a>(pub &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| write_visible(f, c))
    }
}

/// Escapes JSON without changing its value: control characters except newlines, and invisible ones,
/// become `\uNNNN`. They occur only in strings.
pub fn json(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        if c == '\n' || !is_hidden(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
        text
    })
}

/// Returns whether a character is not visible as itself.
fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Writes a character, or its bytes as `\xNN` if it is hidden.
fn write_visible(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    if !is_hidden(c) {
        return f.write_char(c);
    }
    let mut bytes = [0; 4];
    c.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

/// Returns whether a character changes the direction of a line or is invisible, so that one name
/// looks like another. These are Unicode's default-ignorable characters and blank letters, except
/// U+FE0F, which is in the names of many emoji.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0e}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Shows a path.
pub fn path(path: &Path) -> Shown<'_> {
    Shown(path.as_os_str().as_bytes())
}

/// Shows a path below the user's home directory as `~/...`, as the user would type it.
pub fn short_path(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    match home.as_deref().and_then(|home| path.strip_prefix(home).ok()) {
        Some(rest) if !rest.as_os_str().is_empty() => format!("~/{}", self::path(rest)),
        _ => self::path(path).to_string(),
    }
}

/// Returns a path or name as one word of a command line, for hints that users copy: quoted if a
/// shell needs it. A name that cannot be shown unchanged is shown with [`Shown`], and cannot be
/// copied.
pub fn word(text: impl AsRef<OsStr>) -> String {
    let bytes = text.as_ref().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(byte);
    let shown = Shown(bytes).to_string();
    match bytes.first() {
        Some(first) if *first != b'-' && bytes.iter().all(is_plain) => shown,
        _ if shown.as_bytes() == bytes => format!("'{}'", shown.replace('\'', r"'\''")),
        _ => shown,
    }
}

/// A path in JSON: a string if it is UTF-8, else `{"hex": "..."}` with all of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(pub PathBuf);

impl JsonPath {
    /// Returns a path of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        JsonPath(PathBuf::from(OsString::from_vec(bytes.to_vec())))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonPathForm {
    Text(String),
    #[serde(rename_all = "lowercase")]
    Bytes {
        hex: String,
    },
}

impl Serialize for JsonPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => JsonPathForm::Text(text.to_owned()),
            None => JsonPathForm::Bytes { hex: hex::encode(self.0.as_os_str().as_bytes()) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match JsonPathForm::deserialize(deserializer)? {
            JsonPathForm::Text(text) => Ok(JsonPath(PathBuf::from(text))),
            JsonPathForm::Bytes { hex } => hex::decode(hex)
                .map(|bytes| JsonPath::from_bytes(&bytes))
                .map_err(serde::de::Error::custom),
        }
    }
}

/// Returns a number with a noun: `1 file`, `2 files`, `2 directories`.
pub fn count(number: impl Into<u64>, one: &str) -> String {
    let is_vowel = |stem: &str| stem.ends_with(['a', 'e', 'i', 'o', 'u']);
    match (number.into(), one.strip_suffix('y').filter(|stem| !is_vowel(stem))) {
        (1, _) => format!("1 {one}"),
        (number, Some(stem)) => format!("{number} {stem}ies"),
        (number, None) if one.ends_with('s') => format!("{number} {one}es"),
        (number, None) => format!("{number} {one}s"),
    }
}

/// Returns how many attempts are left, in words.
pub fn left(attempts: u32) -> String {
    format!("{} left", count(attempts, "attempt"))
}

/// Returns a number of bytes for people: `512 B`, `1.50 KiB`, `20.00 MiB`.
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Returns a time as `2026-11-21 04:19:03Z`; 0 is `1970-01-01 00:00:00Z`.
pub fn utc(secs: i64) -> String {
    let (days, rest) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Returns the day of the proleptic Gregorian calendar for days since 1970-01-01. Years start in
/// March, so that the leap day is a year's last (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

/// Returns [`utc`] of a timestamp, to the second.
pub fn time(at: Timestamp) -> String {
    utc(at.secs)
}

/// Returns a mode as `ls -l` shows it: `drwxr-xr-x`, `-rwsr-x--T`.
pub fn mode(kind: Kind, perm: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::BlockDevice => 'b',
        Kind::CharDevice => 'c',
    });
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_not_many() {
        assert_eq!(
            ["file", "directory", "pass"].map(|one| count(1u64, one)),
            ["1 file", "1 directory", "1 pass"]
        );
        assert_eq!(
            ["file", "directory", "pass"].map(|one| count(0u64, one)),
            ["0 files", "0 directories", "0 passes"]
        );
    }

    #[test]
    fn names_cannot_reach_the_terminal() {
        assert_eq!(Shown(b"plain name.txt").to_string(), "plain name.txt");
        assert_eq!(Shown("Grüße".as_bytes()).to_string(), "Grüße");
        assert_eq!(Shown(b"\x1b[2Jx\n").to_string(), "\\x1b[2Jx\\x0a");
        assert_eq!(Shown(b"a\\b\xff\xfe").to_string(), "a\\\\b\\xff\\xfe");
        assert_eq!(Shown("\u{202e}txt.exe".as_bytes()).to_string(), "\\xe2\\x80\\xaetxt.exe");
        assert_eq!(Shown("\u{9b}2J".as_bytes()).to_string(), "\\xc2\\x9b2J");
    }

    #[test]
    fn a_line_is_one_line_and_keeps_what_is_escaped() {
        let name = Shown(b"a\nb\\").to_string();
        assert_eq!(Line(&name).to_string(), name);
        assert_eq!(
            Line("host\r\nkithfs: forged \x1b[2J\u{202e}").to_string(),
            "host\\x0d\\x0akithfs: forged \\x1b[2J\\xe2\\x80\\xae"
        );
    }

    #[test]
    fn json_keeps_its_value_and_shows_nothing_hidden() {
        let value = serde_json::json!({ "host": "a\u{9b}2J\u{7f}\u{202e}\u{e0041}\r\n\"\\ü" });
        let shown = json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(shown.chars().all(|c| c == '\n' || !is_hidden(c)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn a_name_that_looks_like_another_one_is_told_from_it() {
        // A member "Ann" with an invisible letter at the end looked like Ann in lists.
        for invisible in [
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{200d}',
            '\u{2064}',
            '\u{206f}',
            '\u{3164}',
            '\u{ffa0}',
            '\u{e0041}',
            '\u{fe00}',
        ] {
            let shown = Shown(format!("Ann{invisible}").as_bytes()).to_string();
            assert!(shown.starts_with("Ann\\x") && shown.is_ascii(), "{shown}");
        }
        assert_eq!(Shown("❤\u{fe0f}.txt".as_bytes()).to_string(), "❤\u{fe0f}.txt");
    }

    #[test]
    fn a_word_of_a_hint_can_be_copied() {
        // The hint for a mount point "my plain" was `mkdir my plain`, which creates two
        // directories.
        for (given, shown) in [
            ("/a/b-c.d", "/a/b-c.d"),
            ("my plain", "'my plain'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
            ("-x", "'-x'"),
            ("ü", "'ü'"),
        ] {
            assert_eq!(word(given), shown);
        }
        assert_eq!(word("a\nb"), "a\\x0ab", "no line break reaches the terminal");
    }

    #[test]
    fn json_keeps_paths_that_are_not_utf8() {
        for bytes in [&b"/tmp/a b"[..], b"/tmp/\xff\x00x", b""] {
            let path = JsonPath::from_bytes(bytes);
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<JsonPath>(&text).unwrap(), path, "{text}");
        }
        assert_eq!(serde_json::to_string(&JsonPath::from_bytes(b"/v")).unwrap(), "\"/v\"");
        assert_eq!(
            serde_json::to_string(&JsonPath::from_bytes(b"\xff")).unwrap(),
            "{\"hex\":\"ff\"}"
        );
        assert!(serde_json::from_str::<JsonPath>("{\"hex\":\"f\"}").is_err());
        assert!(serde_json::from_str::<JsonPath>("{\"hex\":\"+f\"}").is_err());
    }

    #[test]
    fn dates_agree_with_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (951_868_799, "2000-02-29 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
            (-2_208_988_800, "1900-01-01 00:00:00Z"),
            (1_700_000_000, "2023-11-14 22:13:20Z"),
        ] {
            assert_eq!(utc(secs), text);
        }
    }

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode(Kind::Dir, 0o755), "drwxr-xr-x");
        assert_eq!(mode(Kind::File, 0o640), "-rw-r-----");
        assert_eq!(mode(Kind::File, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode(Kind::File, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode(Kind::Dir, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(Kind::Dir, 0o1770), "drwxrwx--T");
    }
}

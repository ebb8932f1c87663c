//! An estimate of how long a new passphrase withstands guessing. A weak one is reported and never
//! refused.
//!
//! The estimate looks for words, names, dates and patterns. It copies the passphrase to memory that
//! is not wiped; only the commands that set a passphrase do that, and they end soon afterwards.

use zxcvbn::zxcvbn;

use crate::cli::display;
use crate::cli::report::note;

/// The processors of the attacker in messages. Each guesses once a second, as [`super::kdf`]
/// chooses the cost of a guess.
const PROCESSORS: f64 = 1000.0;

/// Seconds that such an attacker needs at least for a passphrase that is not weak: a hundred years.
const WEAK: f64 = 100.0 * YEAR;

const YEAR: f64 = 365.0 * 24.0 * 3600.0;

/// Words that an attacker tries first.
const KNOWN: &[&str] = &["kithfs", "vault", "identity"];

/// Returns the seconds for which the passphrase is expected to withstand guessing; `None` if it is
/// not text, because the estimate needs text.
fn withstands(passphrase: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(passphrase).ok()?;
    Some(10f64.powf(zxcvbn(text, KNOWN).guesses_log10()) / PROCESSORS)
}

/// Describes a time in one number and a unit, as precise as the estimate.
fn in_words(seconds: f64) -> String {
    if seconds < 1.0 {
        return "less than a second".to_owned();
    }
    let units = [("year", YEAR), ("day", 24.0 * 3600.0), ("hour", 3600.0), ("minute", 60.0)];
    let (unit, size) =
        units.into_iter().find(|(_, size)| seconds >= *size).unwrap_or(("second", 1.0));
    let number = seconds / size;
    // Beyond that only the order of magnitude means anything.
    if number >= 1e6 {
        "millions of years".to_owned()
    } else {
        format!("about {}", display::count(number as u64, unit))
    }
}

fn weak(seconds: f64) -> String {
    format!(
        "this passphrase is weak: an attacker with the files and a thousand processors needs {}. Five or more words chosen at random are better",
        in_words(seconds)
    )
}

/// Warns if the passphrase is weak.
pub fn warn_if_weak(passphrase: &[u8]) {
    if let Some(seconds) = withstands(passphrase).filter(|seconds| *seconds < WEAK) {
        note(weak(seconds));
    }
}

/// Reports the strength of a passphrase that was just typed.
pub fn report(passphrase: &[u8]) {
    match withstands(passphrase) {
        Some(seconds) if seconds < WEAK => note(weak(seconds)),
        Some(seconds) => note(format_args!(
            "this passphrase is strong: a thousand processors need {}",
            in_words(seconds)
        )),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_patterns_are_weak_and_random_words_are_not() {
        for weak in ["password", "kithfs", "hunter2", "Summer2026!", "qwertyuiop"] {
            assert!(withstands(weak.as_bytes()).unwrap() < WEAK, "{weak}");
        }
        for strong in ["zebra lunar piano grave ticket mural", "q9V!x2#Lm7@Rt5z"] {
            assert!(withstands(strong.as_bytes()).unwrap() >= WEAK, "{strong}");
        }
        assert_eq!(withstands(b"\xff\xfe"), None);
    }

    #[test]
    fn a_very_long_passphrase_does_not_hold_up_the_command() {
        let start = std::time::Instant::now();
        assert!(withstands("a long text ".repeat(5000).as_bytes()).is_some());
        assert!(start.elapsed().as_secs() < 20);
    }

    #[test]
    fn times_are_told_in_the_largest_unit() {
        for (seconds, told) in [
            (0.2, "less than a second"),
            (5.0, "about 5 seconds"),
            (60.0, "about 1 minute"),
            (7200.5, "about 2 hours"),
            (3.0 * 86_400.0, "about 3 days"),
            (250.0 * YEAR, "about 250 years"),
            (1e9 * YEAR, "millions of years"),
        ] {
            assert_eq!(in_words(seconds), told);
        }
    }
}

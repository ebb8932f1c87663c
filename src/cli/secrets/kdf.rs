//! Chooses the cost of guessing a new passphrase: by default about one second on this machine.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cli::args::KdfArgs;
use crate::cli::display::path as shown;
use crate::cli::error::{ALLOW_COST_VARIABLE, Error};
use crate::cli::report::{Failure, note};
use crate::cli::terminal::ask::confirm;
use crate::crypto::password::{self, Argon2Params};
use crate::format::identity::SlotKind;
use crate::roster::IdentityFile;

/// Time that an unlock with a new passphrase should take.
const WANTED: Duration = Duration::from_secs(1);

/// Lower bound of a measured cost, in KiB times passes: two passes over the default memory. A slow
/// or busy machine would choose a cost that is too low for as long as the passphrase is in use. The
/// bound is well above RFC 9106's recommendation for small memory, three passes over 64 MiB.
const FLOOR: u64 = 2 * Argon2Params::DEFAULT.memory_kib as u64;

/// Upper bound of a measured cost, in KiB times passes: 16 passes over the default memory, which
/// take about a second on a large machine.
const CEILING: u64 = 16 * Argon2Params::DEFAULT.memory_kib as u64;

/// Returns the cost for a new passphrase: the given parts, the rest tuned to this machine.
///
/// # Errors
/// The memory is not available.
pub fn choose(args: &KdfArgs) -> Result<Argon2Params, Failure> {
    let memory_kib =
        args.kdf_memory.map_or_else(|| default_memory_kib(available_kib()), |mib| mib << 10);
    let one_pass = Argon2Params { memory_kib, passes: 1, ..Argon2Params::DEFAULT };
    let passes = match args.kdf_passes {
        Some(passes) => passes,
        None => passes_for(time_of(&one_pass)?)
            .min(most_passes(memory_kib))
            .max(least_passes(memory_kib)),
    };
    Ok(Argon2Params { passes, ..one_pass })
}

/// The cost of one passphrase attempt on an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// The most memory of one slot, in KiB.
    memory_kib: u32,
    /// KiB times passes of all slots, as a wrong passphrase is tried on each.
    work: u64,
}

impl Cost {
    fn of(file: &IdentityFile) -> Cost {
        file.slots().fold(Cost { memory_kib: 0, work: 0 }, |cost, slot| match slot.kind {
            SlotKind::Passphrase(params) => Cost {
                memory_kib: cost.memory_kib.max(params.memory_kib),
                work: cost.work.saturating_add(params.work()),
            },
            SlotKind::RecoveryCode | SlotKind::KeyFile | SlotKind::Age => cost,
        })
    }

    /// Returns whether it is at most twice what a large machine chooses for a new passphrase.
    fn is_usual(self) -> bool {
        self.memory_kib <= 2 * Argon2Params::DEFAULT.memory_kib && self.work <= 2 * CEILING
    }
}

/// Permits a passphrase attempt on an identity, unless the file makes it cost more than kithfs
/// itself would choose. Nothing in the file is authenticated before it is unlocked, and the storage
/// host may have set the cost. The user is then asked, or has allowed it in advance.
///
/// # Errors
/// [`Error::CostlyIdentity`] without a terminal, and those of [`confirm`].
pub fn allow(file: &IdentityFile, path: &Path) -> Result<(), Failure> {
    let cost = Cost::of(file);
    if cost.is_usual() || is_allowed(std::env::var_os(ALLOW_COST_VARIABLE).as_deref()) {
        return Ok(());
    }
    // Measured only now, so that other unlocks do not wait for it.
    let seconds = time_of(&Argon2Params::MIN)?.as_secs_f64() * cost.work as f64
        / Argon2Params::MIN.work() as f64;
    let (mib, seconds) = (cost.memory_kib >> 10, seconds.round() as u64);
    let question = format!(
        "One passphrase attempt on {} takes {mib} MiB of memory and about {seconds} s. kithfs chooses far less; the storage host may have set that. Continue?",
        shown(path)
    );
    confirm(&question, false).map_err(|error| match error {
        Error::CannotAsk(_) => Error::CostlyIdentity { path: path.to_owned(), mib, seconds }.into(),
        error => error.into(),
    })
}

/// Returns whether a passphrase attempt on all of these files costs no more than is permitted for
/// one without a question.
pub fn is_usual<'a>(files: impl IntoIterator<Item = &'a IdentityFile>) -> bool {
    let costs = files.into_iter().map(Cost::of);
    let all = costs.fold(Cost { memory_kib: 0, work: 0 }, |all, one| Cost {
        memory_kib: all.memory_kib.max(one.memory_kib),
        work: all.work.saturating_add(one.work),
    });
    all.is_usual()
}

/// Notes that the chosen cost makes every unlock ask the user.
pub fn note_cost(file: &IdentityFile) {
    if !Cost::of(file).is_usual() {
        note(format_args!(
            "one passphrase attempt costs so much that each command asks first; without a terminal, {ALLOW_COST_VARIABLE}=1 allows it"
        ));
    }
}

/// Returns whether the variable is set to anything but a no.
fn is_allowed(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| {
        !["", "0", "n", "no", "f", "false", "off"].iter().any(|no| value.eq_ignore_ascii_case(no))
    })
}

/// Returns 256 MiB, or a quarter of the free memory if less than four times as much is free, but
/// never less than the minimum.
fn default_memory_kib(available_kib: Option<u64>) -> u32 {
    let most = Argon2Params::DEFAULT.memory_kib;
    let Some(available) = available_kib else { return most };
    let quarter = u32::try_from(available / 4).unwrap_or(u32::MAX);
    quarter.clamp(Argon2Params::MIN.memory_kib, most)
}

/// Returns the passes that take about [`WANTED`].
fn passes_for(one_pass: Duration) -> u32 {
    let passes = WANTED.as_secs_f64() / one_pass.as_secs_f64().max(1e-6);
    (passes.round() as u32).clamp(Argon2Params::MIN.passes, Argon2Params::MAX.passes)
}

/// Returns the passes over `memory_kib` that make up [`FLOOR`].
fn least_passes(memory_kib: u32) -> u32 {
    within_bounds(FLOOR.div_ceil(u64::from(memory_kib.max(1))))
}

/// Returns the passes over `memory_kib` that make up [`CEILING`].
fn most_passes(memory_kib: u32) -> u32 {
    within_bounds(CEILING / u64::from(memory_kib.max(1)))
}

fn within_bounds(passes: u64) -> u32 {
    u32::try_from(passes)
        .unwrap_or(u32::MAX)
        .clamp(Argon2Params::MIN.passes, Argon2Params::MAX.passes)
}

/// Returns the better of two runs. The first one pays for the first use of the memory, and a busy
/// moment must not make every guess cheaper for good.
fn time_of(params: &Argon2Params) -> Result<Duration, Failure> {
    let run = || -> Result<Duration, Failure> {
        let start = Instant::now();
        password::stretch(params, &[0; 32], b"a passphrase to measure with")?;
        Ok(start.elapsed())
    };
    Ok(run()?.min(run()?))
}

/// Reads `MemAvailable` of proc_meminfo(5).
fn available_kib() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_256_mib_unless_it_is_short() {
        let mib = |mib: u64| Some(mib << 10);
        assert_eq!(default_memory_kib(None), 256 << 10);
        assert_eq!(default_memory_kib(mib(16_000)), 256 << 10);
        assert_eq!(default_memory_kib(mib(1024)), 256 << 10);
        assert_eq!(default_memory_kib(mib(400)), 100 << 10);
        assert_eq!(default_memory_kib(mib(64)), 32 << 10);
        assert_eq!(default_memory_kib(Some(u64::MAX)), 256 << 10);
    }

    #[test]
    fn passes_fill_a_second_within_bounds() {
        assert_eq!(passes_for(Duration::from_millis(330)), 3);
        assert_eq!(passes_for(Duration::from_secs(5)), 1);
        assert_eq!(passes_for(Duration::ZERO), 64);
    }

    #[test]
    fn a_busy_machine_does_not_make_a_passphrase_cheap() {
        // One pass that took five seconds under load must not result in a single pass for good.
        for (memory_mib, least) in [(256, 2), (128, 4), (32, 16), (200, 3), (512, 1), (4096, 1)] {
            let memory_kib = memory_mib << 10;
            assert_eq!(
                passes_for(Duration::from_secs(5)).max(least_passes(memory_kib)),
                least,
                "{memory_mib} MiB"
            );
            let chosen = Argon2Params { memory_kib, passes: least, ..Argon2Params::DEFAULT };
            chosen.validate().unwrap();
            assert!(
                u64::from(memory_kib) * u64::from(least) > 2 * 3 * (64 << 10),
                "above RFC 9106's three passes over 64 MiB"
            );
        }
    }

    #[test]
    fn a_new_passphrases_cost_is_unlocked_without_a_question() {
        // Without this bound a fast machine chose 64 passes, a cost that another machine asks
        // about.
        for memory_mib in [32, 100, 256] {
            let memory_kib = memory_mib << 10;
            let passes = passes_for(Duration::ZERO)
                .min(most_passes(memory_kib))
                .max(least_passes(memory_kib));
            let work = 2 * Argon2Params { memory_kib, passes, lanes: 4 }.work();
            assert!(
                Cost { memory_kib, work }.is_usual(),
                "two passphrases of {memory_mib} MiB and {passes} passes"
            );
        }
        let dear = |memory_mib: u32, passes: u64| Cost {
            memory_kib: memory_mib << 10,
            work: (u64::from(memory_mib) << 10) * passes,
        };
        assert!(
            dear(512, 16).is_usual()
                && !dear(513, 1).is_usual()
                && !dear(256, 33).is_usual()
                && !dear(32, 257).is_usual()
        );
    }

    #[test]
    fn the_variable_allows_unless_it_says_no() {
        for (value, allowed) in [
            (None, false),
            (Some(""), false),
            (Some("0"), false),
            (Some("No"), false),
            (Some("1"), true),
            (Some("yes"), true),
        ] {
            assert_eq!(is_allowed(value.map(OsStr::new)), allowed, "{value:?}");
        }
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let args = KdfArgs { kdf_memory: Some(32), kdf_passes: Some(2) };
        assert_eq!(
            choose(&args).unwrap(),
            Argon2Params { memory_kib: 32 << 10, passes: 2, lanes: 4 }
        );
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(
            parse_available("MemTotal:  10 kB\nMemAvailable:    24000000 kB\n"),
            Some(24_000_000)
        );
        assert_eq!(parse_available("MemTotal: 10 kB\n"), None);
    }
}

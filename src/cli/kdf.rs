//! How dear a guess at a new passphrase is made: by default about one second on this machine.

use std::time::{Duration, Instant};

use super::args::KdfArgs;
use super::report::Failure;
use crate::crypto::password::{self, Argon2Params};

/// How long an unlock is to take.
const WANTED: Duration = Duration::from_secs(1);

/// What a measurement must not go below, in KiB times passes: two passes over the default memory. A machine that is slow or busy at the
/// moment would choose a cost that protects for as long as the passphrase is in use. It is well above what RFC 9106 recommends where
/// memory is short, three passes over 64 MiB.
const FLOOR: u64 = 2 * Argon2Params::DEFAULT.memory_kib as u64;

/// The cost for a new passphrase: what was asked for, the rest tuned to this machine.
///
/// # Errors
/// The memory cannot be had.
pub fn choose(args: &KdfArgs) -> Result<Argon2Params, Failure> {
    let memory_kib = args.kdf_memory.map_or_else(|| default_memory_kib(available_kib()), |mib| mib << 10);
    let one_pass = Argon2Params { memory_kib, passes: 1, ..Argon2Params::DEFAULT };
    let passes = match args.kdf_passes {
        Some(passes) => passes,
        None => passes_for(time_of(&one_pass)?).max(least_passes(memory_kib)),
    };
    Ok(Argon2Params { passes, ..one_pass })
}

/// 256 MiB; where less than four times as much is free, a quarter of it, but never less than the minimum.
fn default_memory_kib(available_kib: Option<u64>) -> u32 {
    let most = Argon2Params::DEFAULT.memory_kib;
    let Some(available) = available_kib else { return most };
    let quarter = u32::try_from(available / 4).unwrap_or(u32::MAX);
    quarter.clamp(Argon2Params::MIN.memory_kib, most)
}

/// As many passes as take about [`WANTED`].
fn passes_for(one_pass: Duration) -> u32 {
    let passes = WANTED.as_secs_f64() / one_pass.as_secs_f64().max(1e-6);
    (passes.round() as u32).clamp(Argon2Params::MIN.passes, Argon2Params::MAX.passes)
}

/// The passes over `memory_kib` that make up [`FLOOR`].
fn least_passes(memory_kib: u32) -> u32 {
    let passes = FLOOR.div_ceil(u64::from(memory_kib.max(1)));
    u32::try_from(passes).unwrap_or(u32::MAX).clamp(Argon2Params::MIN.passes, Argon2Params::MAX.passes)
}

/// The better of two runs: the first one pays for memory that is touched for the first time, and a busy moment must not make every guess
/// cheaper for good.
fn time_of(params: &Argon2Params) -> Result<Duration, Failure> {
    let run = || -> Result<Duration, Failure> {
        let start = Instant::now();
        password::stretch(params, &[0; 32], b"a passphrase to measure with")?;
        Ok(start.elapsed())
    };
    Ok(run()?.min(run()?))
}

/// `MemAvailable` of proc_meminfo(5).
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
        // One pass that took five seconds, because other work was in the way, gave a single pass for good.
        for (memory_mib, least) in [(256, 2), (128, 4), (32, 16), (200, 3), (512, 1), (4096, 1)] {
            let memory_kib = memory_mib << 10;
            assert_eq!(passes_for(Duration::from_secs(5)).max(least_passes(memory_kib)), least, "{memory_mib} MiB");
            let chosen = Argon2Params { memory_kib, passes: least, ..Argon2Params::DEFAULT };
            chosen.validate().unwrap();
            assert!(u64::from(memory_kib) * u64::from(least) > 2 * 3 * (64 << 10), "above RFC 9106's three passes over 64 MiB");
        }
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        let args = KdfArgs { kdf_memory: Some(32), kdf_passes: Some(2) };
        assert_eq!(choose(&args).unwrap(), Argon2Params { memory_kib: 32 << 10, passes: 2, lanes: 4 });
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(parse_available("MemTotal:  10 kB\nMemAvailable:    24000000 kB\n"), Some(24_000_000));
        assert_eq!(parse_available("MemTotal: 10 kB\n"), None);
    }
}

//! Sizes on the command line: `4096`, `4K`, `256KiB`, `4M`, `1G`. Suffixes are powers of 1024,
//! upper or lower case.

/// Why a size was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no number, or the suffix is unknown.
    #[error("not a size; write for example 65536, 64K or 1M")]
    NotASize,
    /// More than 64 bits.
    #[error("too large")]
    TooLarge,
    /// A chunk size that is not a power of two between 4 KiB and 4 MiB.
    #[error("a chunk size is a power of two from 4K to 4M")]
    NotAChunkSize,
    /// A cache size out of bounds.
    #[error("a cache size is from 4M to 64G")]
    NotACacheSize,
    /// A limit of the rollback database below 8 MiB.
    #[error("a limit of the rollback database is at least 8M")]
    NotAMemorySize,
}

/// Reads a number of bytes with an optional suffix: `B`, or `K`, `M`, `G` or `T`, each of which may
/// be followed by `iB` or `B`.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::NotASize);
    }
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::NotASize),
    };
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

/// Reads a chunk size and returns its binary logarithm, 12 to 22.
pub fn parse_chunk_log2(text: &str) -> Result<u8, SizeError> {
    let size = parse(text)?;
    if !size.is_power_of_two() || !(1 << 12..=1 << 22).contains(&size) {
        return Err(SizeError::NotAChunkSize);
    }
    Ok(size.trailing_zeros() as u8)
}

/// Reads the size of a cache, 4 MiB to 64 GiB.
pub fn parse_cache(text: &str) -> Result<usize, SizeError> {
    let size = parse(text)?;
    if !(4 << 20..=64 << 30).contains(&size) {
        return Err(SizeError::NotACacheSize);
    }
    usize::try_from(size).map_err(|_| SizeError::NotACacheSize)
}

/// Reads the limit of a rollback database, 8 MiB or more.
pub fn parse_memory(text: &str) -> Result<u64, SizeError> {
    let size = parse(text)?;
    if size < 8 << 20 { Err(SizeError::NotAMemorySize) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024_in_either_case() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("256KiB", 262_144),
            ("4M", 1 << 22),
            ("2gib", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "K", "-1", "+1", "4 K", "4KK", "4.5M", "0x10", " 4", "4Ki"] {
            assert_eq!(parse(text), Err(SizeError::NotASize), "{text}");
        }
        assert_eq!(parse("18446744073709551616"), Err(SizeError::TooLarge));
        assert_eq!(parse("18014398509481984K"), Err(SizeError::TooLarge));
    }

    #[test]
    fn chunk_sizes_are_powers_of_two_within_bounds() {
        assert_eq!(parse_chunk_log2("4K"), Ok(12));
        assert_eq!(parse_chunk_log2("262144"), Ok(18));
        assert_eq!(parse_chunk_log2("4M"), Ok(22));
        for text in ["2K", "8M", "5000", "0", "96K"] {
            assert_eq!(parse_chunk_log2(text), Err(SizeError::NotAChunkSize), "{text}");
        }
    }

    #[test]
    fn cache_sizes_are_bounded() {
        assert_eq!(parse_cache("64M"), Ok(64 << 20));
        assert_eq!(parse_cache("3M"), Err(SizeError::NotACacheSize));
        assert_eq!(parse_cache("65G"), Err(SizeError::NotACacheSize));
    }

    #[test]
    fn limits_of_the_rollback_database_have_a_minimum() {
        assert_eq!(parse_memory("8M"), Ok(8 << 20));
        assert_eq!(parse_memory("8191K"), Err(SizeError::NotAMemorySize));
    }
}

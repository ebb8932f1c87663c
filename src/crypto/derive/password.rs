//! Argon2id (RFC 9106, version 0x13): derives a slot key from a passphrase.
//!
//! The cost parameters are stored in a file that an attacker may have written. Parameters outside
//! fixed bounds are rejected, so the file can neither make a passphrase cheap to guess nor make an
//! unlock exhaust memory or run for ever.

use crate::crypto::keys::SlotKey;
use argon2::{Algorithm, Argon2, Params, Version};
use zeroize::Zeroizing;

/// What one guess of a passphrase costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Params {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, which can be filled in parallel.
    pub lanes: u32,
}

/// Why a passphrase could not be stretched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// A parameter is below [`Argon2Params::MIN`].
    #[error("passphrase cost is below the minimum: {0} is {1}, at least {2} is required")]
    TooCheap(&'static str, u32, u32),
    /// A parameter is above [`Argon2Params::MAX`].
    #[error("passphrase cost is above the maximum: {0} is {1}, at most {2} is allowed")]
    TooDear(&'static str, u32, u32),
    /// The salt is shorter than 16 or longer than 64 bytes.
    #[error("salt of a passphrase has {0} bytes, 16 to 64 are required")]
    Salt(usize),
    /// The passphrase is longer than 2^32 - 1 bytes.
    #[error("passphrase is too long")]
    TooLong,
    /// There is not enough memory for the given cost.
    #[error("not enough memory to stretch a passphrase: {0} KiB are needed")]
    Memory(u32),
}

impl Argon2Params {
    /// The least that is accepted: 32 MiB, 1 pass, 1 lane.
    pub const MIN: Argon2Params = Argon2Params { memory_kib: 32 << 10, passes: 1, lanes: 1 };
    /// The most that is accepted: 4 GiB, 64 passes, 16 lanes.
    pub const MAX: Argon2Params = Argon2Params { memory_kib: 4 << 20, passes: 64, lanes: 16 };
    /// For new slots: 256 MiB, 3 passes, 4 lanes.
    pub const DEFAULT: Argon2Params = Argon2Params { memory_kib: 256 << 10, passes: 3, lanes: 4 };

    /// Returns memory times passes, in KiB: the time of a guess is proportional to it.
    pub fn work(&self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    /// Checks each parameter against [`Argon2Params::MIN`] and [`Argon2Params::MAX`].
    ///
    /// # Errors
    /// [`PasswordError::TooCheap`] or [`PasswordError::TooDear`] for the first that is outside.
    pub fn validate(&self) -> Result<(), PasswordError> {
        let (min, max) = (Self::MIN, Self::MAX);
        for (name, value, min, max) in [
            ("memory in KiB", self.memory_kib, min.memory_kib, max.memory_kib),
            ("passes", self.passes, min.passes, max.passes),
            ("lanes", self.lanes, min.lanes, max.lanes),
        ] {
            if value < min {
                return Err(PasswordError::TooCheap(name, value, min));
            }
            if value > max {
                return Err(PasswordError::TooDear(name, value, max));
            }
        }
        Ok(())
    }
}

impl Default for Argon2Params {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Stretches a passphrase with a salt of 16 to 64 random bytes. Validates `params` first, then uses
/// the time and memory that they state.
///
/// # Errors
/// [`PasswordError`] if `params` or the salt are out of bounds, or the memory cannot be allocated.
pub fn stretch(
    params: &Argon2Params,
    salt: &[u8],
    passphrase: &[u8],
) -> Result<SlotKey, PasswordError> {
    params.validate()?;
    if !(16..=64).contains(&salt.len()) {
        return Err(PasswordError::Salt(salt.len()));
    }
    let cost = Params::new(params.memory_kib, params.passes, params.lanes, Some(32))
        .expect("these bounds are within those of Argon2");
    let mut key = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, cost)
        .hash_password_into(passphrase, salt, &mut *key)
        .map_err(|error| match error {
            argon2::Error::PwdTooLong => PasswordError::TooLong,
            _ => PasswordError::Memory(params.memory_kib),
        })?;
    Ok(SlotKey::from_bytes(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(params: Argon2Params) -> PasswordError {
        let refused = params.validate().unwrap_err();
        assert_eq!(stretch(&params, &[0; 16], b"passphrase").err(), Some(refused));
        refused
    }

    #[test]
    fn costs_outside_the_bounds_are_refused_both_ways() {
        for good in [Argon2Params::MIN, Argon2Params::DEFAULT, Argon2Params::MAX] {
            good.validate().unwrap();
        }
        let (min, max) = (Argon2Params::MIN, Argon2Params::MAX);
        for memory_kib in [0, 8, min.memory_kib - 1] {
            assert!(matches!(
                refusal(Argon2Params { memory_kib, ..min }),
                PasswordError::TooCheap(..)
            ));
        }
        assert!(matches!(
            refusal(Argon2Params { passes: 0, ..min }),
            PasswordError::TooCheap("passes", 0, 1)
        ));
        assert!(matches!(
            refusal(Argon2Params { lanes: 0, ..min }),
            PasswordError::TooCheap("lanes", 0, 1)
        ));
        for memory_kib in [max.memory_kib + 1, u32::MAX] {
            assert!(matches!(
                refusal(Argon2Params { memory_kib, ..min }),
                PasswordError::TooDear(..)
            ));
        }
        assert!(matches!(
            refusal(Argon2Params { passes: 65, ..min }),
            PasswordError::TooDear("passes", 65, 64)
        ));
        assert!(matches!(
            refusal(Argon2Params { lanes: 17, ..min }),
            PasswordError::TooDear("lanes", 17, 16)
        ));
    }

    #[test]
    fn salts_outside_the_bounds_are_refused() {
        for len in [0, 8, 15, 65] {
            assert_eq!(
                stretch(&Argon2Params::MIN, &vec![1; len], b"x").err(),
                Some(PasswordError::Salt(len))
            );
        }
    }

    #[test]
    fn the_key_is_that_of_another_implementation() {
        // From OpenSSL: Argon2id, salt 00..0f, 1 pass, 32 MiB, output of 32 bytes.
        let salt: [u8; 16] = std::array::from_fn(|i| i as u8);
        for (lanes, expected) in [
            (1, "bb1877fa0a23c7677085990de0c65682eabb466ea27fca21f9404173f0b05bd8"),
            (4, "a984e77cfedddfeba70c0cb7e897d67bc6d056b44da7744ca641e882932024e4"),
        ] {
            let key =
                stretch(&Argon2Params { lanes, ..Argon2Params::MIN }, &salt, b"correct horse")
                    .unwrap();
            assert_eq!(hex::encode(key.expose()), expected);
        }
    }
}

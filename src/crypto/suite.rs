//! The ciphers of a vault. `init` chooses the suite; every header contains it, and the derivation
//! of every key includes it.

/// A cipher suite. The discriminant is the byte in the formats.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-256-GCM under the sub-keys of XAES-256-GCM (C2SP); XAES-256-GCM for records.
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305 under the sub-keys of HChaCha20; XChaCha20-Poly1305 for records.
    ChaCha20Poly1305 = 2,
}

impl Suite {
    /// All suites, in the order of their bytes.
    pub const ALL: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

    /// Returns the suite of a byte in a format, or `None` if it is unknown.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.as_byte() == byte)
    }

    /// Returns the byte of the suite in the formats.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        self as u8
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes256Gcm => "aes",
            Suite::ChaCha20Poly1305 => "chacha",
        }
    }

    /// Returns the suite for a new vault. Without hardware support AES is slow, or leaks its key
    /// through the cache.
    #[must_use]
    pub const fn preferred(aes_hw: bool) -> Suite {
        if aes_hw { Suite::Aes256Gcm } else { Suite::ChaCha20Poly1305 }
    }
}

/// Returns whether this processor has instructions for AES and carry-less multiplication.
#[must_use]
pub fn aes_in_hardware() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// A ciphertext was changed, or was opened under another key, nonce or context than it was sealed
/// under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot be authenticated")]
pub struct Unauthentic;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_means_one_suite() {
        let known: Vec<u8> = (0..=255).filter(|byte| Suite::from_byte(*byte).is_some()).collect();
        assert_eq!(known, [1, 2]);
        for suite in Suite::ALL {
            assert_eq!(Suite::from_byte(suite.as_byte()), Some(suite));
        }
        assert_eq!(
            (Suite::preferred(true), Suite::preferred(false)),
            (Suite::Aes256Gcm, Suite::ChaCha20Poly1305)
        );
    }
}

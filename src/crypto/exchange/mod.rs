//! X25519 (RFC 7748), which rejects all-zero results as its section 6.1 allows.
//!
//! The dalek crate does single exchanges. [`ForMany`] is for a secret that is combined with
//! thousands of public keys. It takes eight at a time on processors with AVX-512 IFMA (`wide`). On
//! other processors it takes one at a time: with `aws-lc-rs` in half of dalek's time (the default
//! feature `fast-exchange`), otherwise with dalek. Wycheproof, random input and the fuzzer compare
//! the three.

#[cfg(feature = "fast-exchange")]
mod fast;
#[cfg(target_arch = "x86_64")]
mod wide;

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// The other side's public key has a small order, so the result is zero for every secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("public key yields a shared secret of zero")]
pub struct ZeroShared;

/// An X25519 secret, long-lived or ephemeral; wiped on drop.
pub struct ExchangeSecret(StaticSecret);

impl ZeroizeOnDrop for ExchangeSecret {}

impl ExchangeSecret {
    /// Takes 32 random bytes as the secret; they are clamped at use.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        ExchangeSecret(StaticSecret::from(*bytes))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.0).to_bytes()
    }

    /// Returns the secret shared with the holder of `public`. Do not use it as a key: derive one,
    /// and bind both public keys into the derivation.
    ///
    /// # Errors
    /// [`ZeroShared`] if the result is zero.
    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Shared {
        let shared = self.0.diffie_hellman(&PublicKey::from(*public));
        if shared.was_contributory() {
            Ok(Zeroizing::new(shared.to_bytes()))
        } else {
            Err(ZeroShared)
        }
    }

    /// Prepares the same secret for many exchanges.
    #[must_use]
    pub fn for_many(&self) -> ForMany {
        ForMany {
            #[cfg(feature = "fast-exchange")]
            one: fast::Fast::new(self.0.as_bytes()),
            #[cfg(not(feature = "fast-exchange"))]
            one: ExchangeSecret(self.0.clone()),
            #[cfg(target_arch = "x86_64")]
            wide: wide::Wide::new(self.0.as_bytes()),
        }
    }
}

/// A secret that is combined with many public keys, from any thread; wiped on drop.
pub struct ForMany {
    #[cfg(feature = "fast-exchange")]
    one: fast::Fast,
    #[cfg(not(feature = "fast-exchange"))]
    one: ExchangeSecret,
    /// Present if the processor supports it.
    #[cfg(target_arch = "x86_64")]
    wide: Option<wide::Wide>,
}

/// The secret shared with the holder of one public key.
pub type Shared = Result<Zeroizing<[u8; 32]>, ZeroShared>;

impl ForMany {
    /// Number of public keys that [`ForMany::each`] takes at a time; pass multiples of it.
    pub const AT_ONCE: usize = 8;

    /// Returns the same as [`ExchangeSecret::diffie_hellman`] for this secret.
    ///
    /// # Errors
    /// [`ZeroShared`] if the result is zero.
    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Shared {
        self.one.diffie_hellman(public)
    }

    /// Calls `take` with the result of [`ForMany::diffie_hellman`] for each of `publics` and its
    /// index, in order. The result is borrowed: a returned list would leave copies on the heap when
    /// it moves or grows, which nothing wipes.
    pub fn each(
        &self,
        publics: &[[u8; 32]],
        mut take: impl FnMut(usize, Result<&[u8; 32], ZeroShared>),
    ) {
        for (n, some) in publics.chunks(Self::AT_ONCE).enumerate() {
            self.some(some, |i, shared| take(n * Self::AT_ONCE + i, shared));
        }
    }

    /// At most [`ForMany::AT_ONCE`] keys.
    fn some(
        &self,
        publics: &[[u8; 32]],
        mut take: impl FnMut(usize, Result<&[u8; 32], ZeroShared>),
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = &self.wide
            // Eight at a time take as long as two single exchanges.
            && publics.len() > 2
        {
            let mut lanes = [[0; 32]; wide::LANES];
            lanes[..publics.len()].copy_from_slice(publics);
            let shared = wide.eight(&lanes);
            for (i, shared) in shared[..publics.len()].iter().enumerate() {
                take(i, if *shared == [0; 32] { Err(ZeroShared) } else { Ok(shared) });
            }
            return;
        }
        for (i, public) in publics.iter().enumerate() {
            take(i, self.diffie_hellman(public).as_deref().map_err(|zero| *zero));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(many: &ForMany, publics: &[[u8; 32]]) -> Vec<Shared> {
        let mut all = Vec::new();
        many.each(publics, |i, shared| {
            assert_eq!(i, all.len());
            all.push(shared.map(|shared| Zeroizing::new(*shared)));
        });
        all
    }

    #[test]
    fn both_sides_get_the_same_secret() {
        let (a, b) = (ExchangeSecret::from_bytes(&[1; 32]), ExchangeSecret::from_bytes(&[2; 32]));
        assert_eq!(
            *a.diffie_hellman(&b.public()).unwrap(),
            *b.diffie_hellman(&a.public()).unwrap()
        );
    }

    #[test]
    fn points_of_small_order_are_refused() {
        let hex = |text: &str| <[u8; 32]>::try_from(hex::decode(text).unwrap()).unwrap();
        let secret = ExchangeSecret::from_bytes(&[1; 32]);
        // Both of order 8, then 0, 1, -1 and the values that reduce to them modulo 2^255 - 19.
        for point in [
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ] {
            assert_eq!(secret.diffie_hellman(&hex(point)).err(), Some(ZeroShared), "{point}");
            assert_eq!(
                secret.for_many().diffie_hellman(&hex(point)).err(),
                Some(ZeroShared),
                "{point}, for many"
            );
            let mut eight = [[9; 32]; 8];
            eight[5] = hex(point);
            let refused: Vec<bool> =
                collected(&secret.for_many(), &eight).iter().map(Result::is_err).collect();
            assert_eq!(
                refused,
                [false, false, false, false, false, true, false, false],
                "{point}, among others"
            );
        }
    }

    #[test]
    fn for_many_agrees_with_single_exchanges() {
        // Points of the curve and of its twist, with the ignored bit set and not, and numbers from
        // 2^255 - 19 on.
        let mut publics: Vec<[u8; 32]> =
            (0..=255u8).map(|i| *blake3::hash(&[i]).as_bytes()).collect();
        publics.extend((0xed..=0xff).map(|low| {
            let mut public = [0xff; 32];
            public[0] = low;
            public
        }));
        for i in 0..4 {
            let secret = ExchangeSecret::from_bytes(blake3::hash(&[b's', i]).as_bytes());
            let many = secret.for_many();
            let each = collected(&many, &publics);
            assert_eq!(each.len(), publics.len());
            for (public, shared) in publics.iter().zip(each) {
                assert_eq!(
                    many.diffie_hellman(public),
                    secret.diffie_hellman(public),
                    "{}",
                    hex::encode(public)
                );
                assert_eq!(
                    shared,
                    secret.diffie_hellman(public),
                    "{}, among others",
                    hex::encode(public)
                );
            }
            for len in 0..20 {
                let expected: Vec<Shared> =
                    publics[..len].iter().map(|public| secret.diffie_hellman(public)).collect();
                assert_eq!(collected(&many, &publics[..len]), expected, "{len} at a time");
            }
        }
    }
}

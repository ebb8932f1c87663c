//! Speed of the ciphers alone, in one thread.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Figure;
use crate::crypto::{ExchangeSecret, Hctr2, NamesKey, SegmentKey, Suite};

/// Bytes of a sealed name; names usually have 24 to 40 bytes.
const NAME_LEN: usize = 40;
/// Names opened per batch.
const NAMES: usize = 512;

/// Returns the implementation of name encryption on this processor.
pub fn names_path() -> &'static str {
    if Hctr2::wide(&NamesKey::from_bytes([0; 32])).is_some() { "wide" } else { "portable" }
}

/// Returns the seconds that a call of `work` takes, by the fastest batch of calls.
fn best(quick: bool, mut work: impl FnMut()) -> f64 {
    let end = Instant::now() + Duration::from_millis(if quick { 5 } else { 250 });
    let (mut least, mut calls) = (f64::INFINITY, 1u32);
    loop {
        let start = Instant::now();
        for _ in 0..calls {
            work();
        }
        let taken = start.elapsed();
        least = least.min(taken.as_secs_f64() / f64::from(calls));
        // Such a batch is short enough to be undisturbed sometimes, and long enough for the clock.
        if taken < Duration::from_micros(50) {
            calls *= 2;
        }
        if Instant::now() >= end {
            return least.max(1e-12);
        }
    }
}

/// Measures sealing contents.
pub fn ciphers(quick: bool) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (suite, name) in
        [(Suite::Aes256Gcm, "AES-256-GCM"), (Suite::ChaCha20Poly1305, "ChaCha20-Poly1305")]
    {
        let key = SegmentKey::new(suite, &[1; 32]);
        let mut chunk = vec![0u8; 256 << 10];
        let segment = 4096;
        let took = best(quick, || {
            black_box(key.seal(&[2; 12], b"context", &mut chunk[..segment]));
        });
        figures.push(Figure {
            name: format!("{name}, seal 4 KiB"),
            value: segment as f64 / took / 1e9,
            unit: "GB/s",
        });
        let took = best(quick, || {
            for segment in chunk.chunks_mut(segment) {
                black_box(key.seal(&[2; 12], b"context", segment));
            }
        });
        figures.push(Figure {
            name: format!("{name}, seal a chunk of 256 KiB"),
            value: chunk.len() as f64 / took / 1e9,
            unit: "GB/s",
        });
    }
    figures
}

/// Measures encrypting one name, decrypting a listing of names, and X25519 for a member of a share.
pub fn names(quick: bool) -> Vec<Figure> {
    let key = NamesKey::from_bytes([1; 32]);
    let mut figures = Vec::new();
    let mut push = |name: String, seconds: f64| {
        figures.push(Figure { name, value: 1e-6 / seconds, unit: "per us" })
    };
    for (path, cipher) in [("portable", Some(Hctr2::portable(&key))), ("wide", Hctr2::wide(&key))] {
        let Some(cipher) = cipher else { continue };
        let (tweak, mut name) = (cipher.tweak(&[2; 32]), [0; NAME_LEN]);
        let took = best(quick, || {
            black_box(cipher.encrypt(&tweak, black_box(&mut name))).expect("long enough");
        });
        push(format!("HCTR2, {path}, a name"), took);
        let mut names = vec![[0; NAME_LEN]; NAMES];
        let mut names: Vec<&mut [u8]> = names.iter_mut().map(|name| &mut name[..]).collect();
        let took = best(quick, || {
            black_box(cipher.decrypt_many(&tweak, black_box(&mut names))).expect("long enough");
        });
        push(format!("HCTR2, {path}, a listing, each"), took / NAMES as f64);
    }
    let secret = ExchangeSecret::from_bytes(&[1; 32]).for_many();
    let public = ExchangeSecret::from_bytes(&[2; 32]).public();
    let took = best(quick, || {
        let _ = black_box(secret.diffie_hellman(black_box(&public)));
    });
    push("X25519, a member".to_owned(), took);
    figures
}

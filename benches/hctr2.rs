//! HCTR2 of names: the portable and the wide path, with a fresh tweak, with a cached tweak, and
//! with many names at once; compared with the crate `hctr2-rs`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kithfs::crypto::{Hctr2, NamesKey};
use std::hint::black_box;

/// Lengths of sealed names in bytes, and a large block.
const SIZES: [usize; 6] = [16, 32, 64, 128, 255, 8192];
/// Names that are opened at once.
const NAMES: usize = 1000;

fn paths(c: &mut Criterion, path: &str, cipher: &Hctr2) {
    let tweak = cipher.tweak(&[2; 32]);
    let mut group = c.benchmark_group(format!("hctr2/{path}"));
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let mut buf = vec![0; size];
        group.bench_function(BenchmarkId::new("fresh tweak", size), |b| {
            b.iter(|| cipher.encrypt(&cipher.tweak(black_box(&[2; 32])), black_box(&mut buf)));
        });
        group.bench_function(BenchmarkId::new("cached tweak", size), |b| {
            b.iter(|| cipher.encrypt(&tweak, black_box(&mut buf)))
        });
        group.bench_function(BenchmarkId::new("cached tweak, decrypt", size), |b| {
            b.iter(|| cipher.decrypt(&tweak, black_box(&mut buf)));
        });
    }
    // The time of one name is a thousandth of this.
    for size in &SIZES[..5] {
        group.throughput(Throughput::Elements(NAMES as u64));
        let mut names = vec![vec![0; *size]; NAMES];
        let mut bufs: Vec<&mut [u8]> = names.iter_mut().map(Vec::as_mut_slice).collect();
        group.bench_function(BenchmarkId::new("1000 at once", size), |b| {
            b.iter(|| cipher.decrypt_many(&tweak, black_box(&mut bufs)))
        });
    }
    group.finish();
}

fn hctr2(c: &mut Criterion) {
    let key = NamesKey::from_bytes([1; 32]);
    paths(c, "portable", &Hctr2::portable(&key));
    match Hctr2::wide(&key) {
        Some(cipher) => paths(c, "wide", &cipher),
        None => println!("hctr2/wide: this processor lacks VAES, VPCLMULQDQ or AVX-512"),
    }
    let other = hctr2_rs::Hctr2_256::new(&[1; 32]);
    let mut group = c.benchmark_group("hctr2/hctr2-rs");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let (plain, mut buf) = (vec![0; size], vec![0; size]);
        group.bench_function(BenchmarkId::new("fresh tweak", size), |b| {
            b.iter(|| other.encrypt(black_box(&plain), &[2; 32], &mut buf))
        });
    }
    group.finish();
}

criterion_group!(benches, hctr2);
criterion_main!(benches);

//! Sealing and opening of segments and chunks, and what a fresh sub-key or a record costs.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kithfs::crypto::{ChunkKeys, FileKey, RecordCipher, SegmentKey, Suite};
use std::hint::black_box;

/// From a page to a large request, in bytes.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 256 << 10, 1 << 20];

fn segments(c: &mut Criterion) {
    for suite in Suite::ALL {
        let key = SegmentKey::new(suite, &[1; 32]);
        let mut group = c.benchmark_group(format!("segment/{}", suite.name()));
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            let mut buf = vec![0; size];
            group.bench_function(BenchmarkId::new("seal", size), |b| b.iter(|| key.seal(&[2; 12], b"context", black_box(&mut buf))));
            let (mut ciphertext, nonce) = (vec![0; size], [2; 12]);
            let tag = key.seal(&nonce, b"context", &mut ciphertext);
            // Opening is in place, so each round begins with a copy, as a read from the store does.
            group.bench_function(BenchmarkId::new("copy and open", size), |b| {
                b.iter(|| {
                    buf.copy_from_slice(&ciphertext);
                    key.open(&nonce, b"context", black_box(&mut buf), &tag).unwrap();
                });
            });
        }
        group.finish();
    }
}

fn keys(c: &mut Criterion) {
    for suite in Suite::ALL {
        let mut group = c.benchmark_group(format!("keys/{}", suite.name()));
        let file = FileKey::from_bytes([1; 32]);
        group.bench_function("file", |b| b.iter(|| ChunkKeys::new(suite, black_box(&file))));
        let chunks = ChunkKeys::new(suite, &file);
        group.bench_function("chunk", |b| b.iter(|| chunks.derive(black_box(&[3; 16]))));
        let (cipher, mut record) = (RecordCipher::new(suite, &[1; 32]), [0; 128]);
        group.bench_function("record of 128 bytes", |b| b.iter(|| cipher.seal(&[4; 24], b"context", black_box(&mut record))));
        group.finish();
    }
}

criterion_group!(benches, segments, keys);
criterion_main!(benches);

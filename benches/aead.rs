//! Sealing and opening of segments and chunks, and the cost of a fresh sub-key and of a record.
//!
//!     cargo bench --bench aead                     the figures of criterion
//!     cargo bench --bench aead -- --buffers [MIB]  buffers from 32 KiB to 1 GiB (or MIB), and files from 1 MiB on, as a table: the
//!                                                  output that scripts/bench-aead.sh compares with Python libraries

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use kithfs::crypto::{ChunkKeys, FileKey, RecordCipher, SegmentKey, Suite};
use std::hint::black_box;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// From a page to a large request, in bytes.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 256 << 10, 1 << 20];

fn segments(c: &mut Criterion) {
    for suite in Suite::ALL {
        let key = SegmentKey::new(suite, &[1; 32]);
        let mut group = c.benchmark_group(format!("segment/{}", suite.name()));
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            let mut buf = vec![0; size];
            group.bench_function(BenchmarkId::new("seal", size), |b| {
                b.iter(|| key.seal(&[2; 12], b"context", black_box(&mut buf)))
            });
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
        group.bench_function("record of 128 bytes", |b| {
            b.iter(|| cipher.seal(&[4; 24], b"context", black_box(&mut record)))
        });
        group.finish();
    }
}

const CHUNK: usize = 256 << 10;
const SEGMENT: usize = 4096;

/// Seals a buffer as a file's content: chunks of 256 KiB with a sub-key each, segments of 4 KiB
/// with a nonce each.
fn seal_chunks(keys: &ChunkKeys, buf: &mut [u8]) -> Vec<[u8; 16]> {
    let mut tags = Vec::with_capacity(buf.len().div_ceil(SEGMENT));
    for (n, chunk) in buf.chunks_mut(CHUNK).enumerate() {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&(n as u64).to_le_bytes());
        let key = keys.derive(&salt);
        for (i, segment) in chunk.chunks_mut(SEGMENT).enumerate() {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&(i as u64).to_le_bytes());
            tags.push(key.seal(&nonce, b"share, file, chunk, segment, epoch", segment));
        }
    }
    tags
}

fn open_chunks(keys: &ChunkKeys, buf: &mut [u8], tags: &[[u8; 16]]) {
    let mut tags = tags.iter();
    for (n, chunk) in buf.chunks_mut(CHUNK).enumerate() {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&(n as u64).to_le_bytes());
        let key = keys.derive(&salt);
        for (i, segment) in chunk.chunks_mut(SEGMENT).enumerate() {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&(i as u64).to_le_bytes());
            key.open(
                &nonce,
                b"share, file, chunk, segment, epoch",
                segment,
                tags.next().expect("a tag each"),
            )
            .expect("our own");
        }
    }
}

/// Returns the best and the median time of 3 to 2,000 calls, in seconds; the larger the size, the
/// fewer calls.
fn times(size: usize, mut work: impl FnMut()) -> (f64, f64) {
    timed(size, || {
        let start = Instant::now();
        work();
        start.elapsed()
    })
}

/// As [`times`], for work that measures its own time.
fn timed(size: usize, mut work: impl FnMut() -> Duration) -> (f64, f64) {
    let calls = ((256usize << 20) / size).clamp(3, 2000);
    let mut times: Vec<f64> = (0..calls).map(|_| work().as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[calls / 2])
}

/// Prints one line per measurement, separated by tabs: name, bytes, best and median in seconds.
fn print(what: &str, size: usize, (best, median): (f64, f64)) {
    println!("kithfs\t{what}\t{size}\t{best:.9}\t{median:.9}");
}

fn buffers(most: usize) {
    let keys = ChunkKeys::new(Suite::Aes256Gcm, &FileKey::from_bytes([1; 32]));
    let sizes = (15..=30).map(|log2| 1usize << log2).filter(|size| *size <= most);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let sealed_file = tempfile::NamedTempFile::new().expect("a temporary file");
    for size in sizes {
        let mut buf = vec![7u8; size];
        print(
            "seal",
            size,
            times(size, || drop(black_box(seal_chunks(&keys, black_box(&mut buf))))),
        );
        let plain = vec![7u8; size];
        buf.copy_from_slice(&plain);
        let tags = seal_chunks(&keys, &mut buf);
        let sealed = buf.clone();
        // A read from the store leaves the ciphertext in the buffer that is opened, so copying it
        // there is not timed.
        print(
            "open",
            size,
            timed(size, || {
                buf.copy_from_slice(&sealed);
                let start = Instant::now();
                open_chunks(&keys, black_box(&mut buf), &tags);
                start.elapsed()
            }),
        );
        assert!(buf == plain, "opened to other bytes");
        if size < 1 << 20 {
            continue;
        }
        std::fs::write(file.path(), &plain).expect("written");
        // Read a chunk, seal it, write it, as in the tables of the other libraries; nothing is
        // flushed.
        print(
            "encrypt a file",
            size,
            times(size, || {
                let mut from = std::fs::File::open(file.path()).expect("opened");
                let mut to = std::fs::File::create(sealed_file.path()).expect("made");
                let mut chunk = vec![0; CHUNK];
                for _ in 0..size / CHUNK {
                    from.read_exact(&mut chunk).expect("read");
                    let tags = seal_chunks(&keys, &mut chunk);
                    to.write_all(&chunk).expect("written");
                    to.write_all(tags.as_flattened()).expect("written");
                }
            }),
        );
    }
}

criterion_group!(benches, segments, keys);

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--buffers").skip(1);
    if std::env::args().any(|argument| argument == "--buffers") {
        let most = arguments
            .next()
            .and_then(|mib| mib.parse::<usize>().ok())
            .map_or(1 << 30, |mib| mib << 20);
        buffers(most);
    } else {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}

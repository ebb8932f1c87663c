//! The parts that every file and folder is made of: a chunk, a name, a block of an index, a roster. For comparing two commits, see
//! `scripts/bench-commits.sh`.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kithfs::crypto::{ChunkKeys, FileKey, Hctr2, NamesKey, Random, Suite};
use kithfs::format::layout::{CHUNK_LOG2_DEFAULT, INDEX_BLOCK, Layout, SEGMENT};
use kithfs::format::name::NameCipher;
use kithfs::format::share::ShareDescriptor;
use kithfs::format::table::{IndexBlock, Segment, Table, index_hash, segment_aad, table_hash};
use kithfs::sharing::{FoundParams, Identity, Member, Role, Roster, found};

/// Reproducible bytes.
struct Seeded(AtomicU64);

impl Random for Seeded {
    fn fill(&self, buf: &mut [u8]) {
        blake3::Hasher::new().update(&self.0.fetch_add(1, Ordering::Relaxed).to_le_bytes()).finalize_xof().fill(buf);
    }
}

/// Sealing a whole chunk, and its table.
fn chunk(c: &mut Criterion) {
    let layout = Layout::new(CHUNK_LOG2_DEFAULT, false).expect("the default");
    let mut group = c.benchmark_group("chunk");
    for suite in Suite::ALL {
        let keys = ChunkKeys::new(suite, &FileKey::from_bytes([1; 32]));
        let mut buf = vec![7; layout.chunk() as usize];
        group.throughput(Throughput::Bytes(layout.chunk()));
        group.bench_function(BenchmarkId::new("seal", suite.name()), |b| {
            b.iter(|| {
                let key = keys.derive(black_box(&[0; 16]));
                let mut table = Table::empty(&layout, [0; 16], 1);
                for (i, segment) in buf.chunks_mut(SEGMENT).enumerate() {
                    let aad = segment_aad(&[1; 32], &[2; 32], 3, i as u32, SEGMENT as u16, 1, suite);
                    let tag = key.seal(&[i as u8; 12], &aad, segment);
                    table.segments[i] = Segment { nonce: [i as u8; 12], tag, len: SEGMENT as u16 };
                }
                table_hash(&table.encode(&layout))
            });
        });
    }
    let table = Table::empty(&layout, [0; 16], 1).encode(&layout);
    group.throughput(Throughput::Elements(1));
    group.bench_function("table", |b| b.iter(|| Table::decode(&layout, Suite::Aes256Gcm, black_box(&table))));
    group.finish();
}

/// Names as an entry has them: to base64 and back, one by one, and a listing.
fn name(c: &mut Criterion) {
    let (key, directory) = (NamesKey::from_bytes([1; 32]), [2; 32]);
    let hctr2 = Hctr2::new(&key);
    let cipher = NameCipher::new(&hctr2, &key, &directory);
    let names: Vec<Vec<u8>> = (0..1000).map(|i| format!("a photograph of {i}.jpeg").into_bytes()).collect();
    let stored: Vec<Vec<u8>> = names.iter().map(|name| cipher.encode(name).expect("valid").entry().to_vec()).collect();
    let mut group = c.benchmark_group("name");
    group.bench_function("encode", |b| b.iter(|| cipher.encode(black_box(&names[7]))));
    group.bench_function("decode", |b| b.iter(|| cipher.decode(black_box(&stored[7]))));
    group.bench_function("directory and encode", |b| {
        b.iter(|| NameCipher::new(&hctr2, &key, black_box(&directory)).encode(&names[7]));
    });
    group.throughput(Throughput::Elements(stored.len() as u64));
    group.bench_function("decode 1000", |b| b.iter(|| cipher.decode_many(stored.iter().map(Vec::as_slice))));
    group.finish();
}

/// A block of an index: read, changed, hashed.
fn index(c: &mut Criterion) {
    let bytes = [7; INDEX_BLOCK];
    c.bench_function("index/change and hash", |b| {
        b.iter(|| {
            let mut block = IndexBlock::decode(black_box(&bytes));
            block.0[5] = [9; 32];
            index_hash(1, &block.encode())
        });
    });
}

/// A roster of a hundred.
fn roster(c: &mut Criterion) {
    let random = Seeded(AtomicU64::new(0));
    let founder = Identity::generate(&random);
    let identities: Vec<Identity> = (0..99).map(|_| Identity::generate(&random)).collect();
    let member = |identity: &Identity| Member { public: identity.public(), role: Role::Reader, name: "a name".to_owned() };
    let others: Vec<Member> = identities.iter().map(member).collect();
    let params = FoundParams { suite: Suite::Aes256Gcm, signed: true, isolated: false, chunk_log2: 18, name: "f", others: &others };
    let founded = found(&founder, &params, &random, 1).expect("founded");
    let descriptor = ShareDescriptor::decode(&founded.descriptor).expect("our own");
    let mut group = c.benchmark_group("roster");
    group.bench_function("found 100", |b| b.iter(|| found(&founder, &params, &random, 1)));
    group.bench_function("verify", |b| b.iter(|| Roster::verify(&descriptor, &[black_box(&founded.change.manifest)])));
    let verified = Roster::verify(&descriptor, &[&founded.change.manifest]).expect("our own");
    let block = &founded.change.slots;
    group.bench_function("open", |b| {
        b.iter(|| {
            let mut read = |_: &_, at: u64, buf: &mut [u8]| {
                buf.copy_from_slice(&block[at as usize..at as usize + buf.len()]);
                Ok(())
            };
            verified.open(&identities[50], &mut read)
        });
    });
    group.finish();
}

criterion_group!(benches, chunk, name, index, roster);
criterion_main!(benches);

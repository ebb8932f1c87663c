//! The parts of files and shares: a chunk, a name, an index block, a roster, a signed header. To
//! compare two commits, see `scripts/bench-commits.sh`.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kithfs::crypto::{
    ChunkKeys, FileKey, Hctr2, Label, NamesKey, Random, RecordCipher, Suite, TAG_LEN,
};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::layout::{CHUNK_LOG2_DEFAULT, INDEX_BLOCK, Layout, SEGMENT};
use kithfs::format::name::{NameCipher, Parts, parse};
use kithfs::format::share::{LONGEST_NAME_DEFAULT, ShareDescriptor};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::table::{
    IndexBlock, Segment, Table, index_hash, segment_aad, segment_hash, table_hash,
};
use kithfs::roster::{FoundParams, Identity, Member, Role, Roster, found};

/// Reproducible bytes.
struct Seeded(AtomicU64);

impl Random for Seeded {
    fn fill(&self, buf: &mut [u8]) {
        blake3::Hasher::new()
            .update(&self.0.fetch_add(1, Ordering::Relaxed).to_le_bytes())
            .finalize_xof()
            .fill(buf);
    }
}

/// Seals a whole chunk with its table, and parses a table.
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
                    let aad =
                        segment_aad(&[1; 32], &[2; 32], 3, i as u32, SEGMENT as u16, 1, suite);
                    let tag = key.seal(&[i as u8; 12], &aad, segment);
                    table.segments[i] = Segment { nonce: [i as u8; 12], tag, len: SEGMENT as u16 };
                }
                table_hash(&table.encode(&layout))
            });
        });
    }
    let table = Table::empty(&layout, [0; 16], 1).encode(&layout);
    group.throughput(Throughput::Elements(1));
    group.bench_function("table", |b| {
        b.iter(|| Table::decode(&layout, Suite::Aes256Gcm, black_box(&table)))
    });
    group.finish();
}

/// Seals and opens names one by one, and opens those of a listing.
fn name(c: &mut Criterion) {
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([1; 32]));
    let (tag, longest) = ([2; TAG_LEN], usize::from(LONGEST_NAME_DEFAULT));
    let cipher = NameCipher::new(&hctr2, longest);
    let names: Vec<Vec<u8>> =
        (0..1000).map(|i| format!("a photograph of {i}.jpeg").into_bytes()).collect();
    let stored: Vec<Vec<u8>> = names
        .iter()
        .map(|name| cipher.encode(&tag, name).expect("valid").entry().to_vec())
        .collect();
    let sealed = |stored: &[u8]| match parse(stored, longest) {
        Parts::Short { sealed, .. } => sealed,
        parts => panic!("not a short name: {parts:?}"),
    };
    let mut group = c.benchmark_group("name");
    group.bench_function("encode", |b| b.iter(|| cipher.encode(&tag, black_box(&names[7]))));
    group.bench_function("decode", |b| b.iter(|| cipher.open(&sealed(black_box(&stored[7])))));
    group.throughput(Throughput::Elements(stored.len() as u64));
    group.bench_function("decode 1000", |b| {
        b.iter(|| {
            let sealed: Vec<Vec<u8>> = stored.iter().map(|name| sealed(name)).collect();
            cipher.open_many(sealed)
        })
    });
    group.finish();
}

/// Reads, changes and hashes an index block.
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

/// A roster with a hundred members.
fn roster(c: &mut Criterion) {
    let random = Seeded(AtomicU64::new(0));
    let founder = Identity::generate(&random);
    let identities: Vec<Identity> = (0..99).map(|_| Identity::generate(&random)).collect();
    let member = |identity: &Identity| Member {
        public: identity.public(),
        role: Role::Reader,
        name: "a name".to_owned(),
    };
    let others: Vec<Member> = identities.iter().map(member).collect();
    let params = FoundParams {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        name: "f",
        others: &others,
    };
    let founded = found(&founder, &params, &random, 1).expect("founded");
    let descriptor = ShareDescriptor::decode(&founded.descriptor).expect("our own");
    let mut group = c.benchmark_group("roster");
    group.bench_function("found 100", |b| b.iter(|| found(&founder, &params, &random, 1)));
    group.bench_function("verify", |b| {
        b.iter(|| Roster::verify(&descriptor, &[black_box(&founded.change.manifest)]))
    });
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

/// The additional cost of a signed share: the hashes of a chunk's segments, and the signature of a
/// header.
fn signed(c: &mut Criterion) {
    let mut group = c.benchmark_group("signed");
    let chunk = vec![7; 1 << CHUNK_LOG2_DEFAULT];
    group.throughput(Throughput::Bytes(chunk.len() as u64));
    group.bench_function("hash of segments", |b| {
        b.iter(|| {
            black_box(&chunk).chunks(SEGMENT).map(segment_hash).fold(0, |all, hash| all ^ hash[0])
        })
    });
    group.bench_function("hash of the whole chunk", |b| b.iter(|| segment_hash(black_box(&chunk))));
    group.throughput(Throughput::Elements(1));
    let (random, suite) = (Seeded(AtomicU64::new(1)), Suite::Aes256Gcm);
    let (identity, cipher) = (Identity::generate(&random), RecordCipher::new(suite, &[1; 32]));
    let by = Authorship { author: identity.public().sign, signer: identity.public().sign };
    let sign = |label: &Label, message: &[u8]| identity.sign(label, message);
    for signed in [false, true] {
        let layout = Layout::new(CHUNK_LOG2_DEFAULT, signed).expect("the default");
        let context = HeaderContext { share: &[2; 32], layout, cipher: &cipher };
        let public =
            PublicHeader { suite, small: None, epoch: 1, commitment: [3; 8], file_id: [4; 32] };
        let hint = Hint { tag: [5; TAG_LEN], name: b"name".to_vec() };
        let header =
            Header { public, size: 2 << 20, version: 1, root: [6; 32], oldest_epoch: 1, hint };
        let seal =
            || header.seal(&context, &[], signed.then_some(Sign { by, sign: &sign }), &random);
        let sealed = seal();
        let of = if signed { "signed" } else { "unsigned" };
        group.bench_function(BenchmarkId::new("seal a header", of), |b| b.iter(seal));
        group.bench_function(BenchmarkId::new("open a header", of), |b| {
            b.iter(|| Header::open(&context, black_box(&sealed)))
        });
    }
    group.finish();
}

criterion_group!(benches, chunk, name, index, roster, signed);
criterion_main!(benches);

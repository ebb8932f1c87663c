//! Every parser of hostile bytes, as a function of bytes that must hold for all of them.
//!
//! Rules that hold in every target
//! * No panic and no arithmetic overflow, whatever comes.
//! * What is accepted has one encoding: encoding it again gives the input.
//! * What was sealed or signed and is accepted is the original.
//! * Memory stays within the target's bound plus a multiple of the input's length.
//! * Seeds are made by code, the same each time (but for the random bytes inside of whole vaults).

mod ciphers;
mod clear;
mod membership;
mod roster;
mod sealed;
mod shares;
mod vault;

use std::sync::atomic::{AtomicU64, Ordering};

use kithfs::crypto::Random;

use super::memory;

/// A target.
pub struct Target {
    pub name: &'static str,
    /// Panics where something does not hold.
    pub check: fn(&[u8]),
    /// Valid inputs, from which mutation starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Bytes that a run may have allocated at a time, beside [`PER_BYTE`] for each byte of the
    /// input.
    pub memory: usize,
    /// Mutated inputs in the smoke test.
    #[allow(dead_code, reason = "only one of the two drivers runs a fixed number")]
    pub smoke_runs: u64,
}

/// Bytes of memory for each byte of the input: parsed copies, and growth by doubling.
const PER_BYTE: usize = 32;

impl Target {
    /// Runs the target on one input.
    pub fn run(&self, data: &[u8]) {
        let peak = memory::peak_of(|| (self.check)(data));
        let allowed = self.memory + PER_BYTE * data.len();
        assert!(
            peak <= allowed,
            "{} took {peak} bytes for {} bytes of input, {allowed} are allowed",
            self.name,
            data.len()
        );
    }
}

macro_rules! targets {
    ($($module:ident::$name:ident, seeds $seeds:ident, memory $memory:expr, runs $runs:expr;)+) => {
        /// All targets.
        pub const ALL: &[Target] = &[$(Target {
            name: stringify!($name),
            check: $module::$name,
            seeds: $module::$seeds,
            memory: $memory,
            smoke_runs: $runs,
        }),+];
    };
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

targets! {
    ciphers::hctr2_paths, seeds hctr2_paths_seeds, memory 64 * KIB, runs 5000;
    ciphers::x25519_paths, seeds x25519_paths_seeds, memory 64 * KIB, runs 500;
    clear::layout, seeds layout_seeds, memory KIB, runs 20_000;
    clear::header_public, seeds header_public_seeds, memory 64 * KIB, runs 5000;
    clear::table, seeds table_seeds, memory 128 * KIB, runs 5000;
    clear::index_block, seeds index_block_seeds, memory 32 * KIB, runs 1000;
    clear::stored_name, seeds stored_name_seeds, memory 256 * KIB, runs 5000;
    clear::journal_head, seeds journal_head_seeds, memory 32 * KIB, runs 2000;
    membership::share_descriptor, seeds share_descriptor_seeds, memory 16 * KIB, runs 5000;
    membership::invitation, seeds invitation_seeds, memory 16 * KIB, runs 3000;
    membership::people_text, seeds people_text_seeds, memory 64 * KIB, runs 5000;
    membership::manifest, seeds manifest_seeds, memory 64 * KIB, runs 5000;
    membership::slot_block, seeds slot_block_seeds, memory 256 * KIB, runs 2000;
    membership::member_list, seeds member_list_seeds, memory 16 * KIB, runs 5000;
    membership::identity_file, seeds identity_file_seeds, memory 64 * KIB, runs 2000;
    membership::public_key_text, seeds public_key_text_seeds, memory 16 * KIB, runs 5000;
    membership::recovery_text, seeds recovery_text_seeds, memory 16 * KIB, runs 5000;
    sealed::header_sealed, seeds header_sealed_seeds, memory 64 * KIB, runs 2000;
    sealed::header_body, seeds header_body_seeds, memory 64 * KIB, runs 2000;
    sealed::record_sealed, seeds record_sealed_seeds, memory 64 * KIB, runs 5000;
    sealed::link_text, seeds link_text_seeds, memory 64 * KIB, runs 5000;
    sealed::xattrs, seeds xattrs_seeds, memory 64 * KIB, runs 5000;
    sealed::evidence, seeds evidence_seeds, memory 64 * KIB, runs 5000;
    sealed::journal_sealed, seeds journal_sealed_seeds, memory 64 * KIB, runs 2000;
    sealed::journal_body, seeds journal_body_seeds, memory 64 * KIB, runs 5000;
    roster::roster_bag, seeds roster_bag_seeds, memory MIB, runs 300;
    roster::roster_open, seeds roster_open_seeds, memory MIB, runs 300;
    shares::signed_header, seeds signed_header_seeds, memory 64 * KIB, runs 2000;
    shares::junction_sealed, seeds junction_sealed_seeds, memory 64 * KIB, runs 3000;
    shares::junction, seeds junction_seeds, memory 16 * KIB, runs 5000;
    shares::inventory_list, seeds inventory_list_seeds, memory 64 * KIB, runs 3000;
    vault::vault_aes, seeds vault_aes_seeds, memory 16 * MIB, runs 150;
    vault::vault_chacha, seeds vault_chacha_seeds, memory 16 * MIB, runs 150;
    vault::vault_journal, seeds vault_journal_seeds, memory 32 * MIB, runs 100;
    vault::vault_path, seeds vault_path_seeds, memory MIB, runs 2000;
}

/// Randomness that is the same each time.
struct Seeded(u64, AtomicU64);

impl Seeded {
    fn new(seed: u64) -> Self {
        Seeded(seed, AtomicU64::new(0))
    }
}

impl Random for Seeded {
    fn fill(&self, buf: &mut [u8]) {
        let n = self.1.fetch_add(1, Ordering::Relaxed);
        blake3::Hasher::new()
            .update(&self.0.to_le_bytes())
            .update(&n.to_le_bytes())
            .finalize_xof()
            .fill(buf);
    }
}

/// "Randomness" that gives the same bytes again: to seal something under the nonce that a hostile
/// input has.
struct Repeat<'a>(&'a [u8]);

impl Random for Repeat<'_> {
    fn fill(&self, buf: &mut [u8]) {
        buf.copy_from_slice(&self.0[..buf.len()]);
    }
}

/// `choice` as the first byte before each of `inputs`.
fn chosen(choice: u8, input: &[u8]) -> Vec<u8> {
    [&[choice], input].concat()
}

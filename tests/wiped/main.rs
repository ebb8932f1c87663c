//! What is left on the heap after a folder key is sealed to many members.
//!
//! A binary of its own: its global allocator looks for secrets in every block that any thread
//! frees, and the keys of other tests come from the same seeds.

#[path = "../support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kithfs::crypto::exchange::ExchangeSecret;
use kithfs::crypto::{Random, Suite};
use kithfs::roster::{FoundParams, Founded, Member, Role, found};
use support::members::{member, person};
use support::vaults::Seeded;

/// Secrets that must not be in freed memory.
static SECRETS: OnceLock<Vec<[u8; 32]>> = OnceLock::new();
static LOOKING: AtomicBool = AtomicBool::new(false);
/// Number of secrets found, and of bytes searched.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);

struct Looking;

/// Counts the secrets in a block that is being freed.
fn look(block: *const u8, len: usize) {
    let Some(secrets) = SECRETS.get() else { return };
    // SAFETY: the block is still allocated. It need not be initialised, so it is read as the bytes
    // that are there; any value is acceptable.
    let at = |i: usize| unsafe { block.add(i).read_volatile() };
    for start in 0..(len + 1).saturating_sub(32) {
        let is_here =
            |secret: &&[u8; 32]| secret.iter().enumerate().all(|(i, byte)| at(start + i) == *byte);
        if secrets.iter().find(is_here).is_some() {
            LEFT.fetch_add(1, Ordering::Relaxed);
        }
    }
    LOOKED_AT.fetch_add(len, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged; the additional code allocates
// nothing. A block that grows is freed here, too, because `realloc` is the trait's default.
unsafe impl GlobalAlloc for Looking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if LOOKING.load(Ordering::Acquire) {
            look(ptr, layout.size());
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Looking = Looking;

/// Records the random bytes that were drawn.
struct Noted(Seeded, parking_lot::Mutex<Vec<Vec<u8>>>);

impl Random for Noted {
    fn fill(&self, buf: &mut [u8]) {
        self.0.fill(buf);
        self.1.lock().push(buf.to_vec());
    }
}

#[test]
fn no_secret_of_a_slot_stays_in_memory_that_was_given_back() {
    // The shared secret of a slot block's ephemeral key and a member's key, which opens the
    // member's slot, was put into lists that were moved: a copy for each member stayed in freed
    // memory.
    let ann = person(1);
    let others: Vec<Member> =
        (2..42).map(|n| member(&person(n), Role::Reader, &n.to_string())).collect();
    let make = |random: &dyn Random| -> Founded {
        let params = FoundParams {
            suite: Suite::Aes256Gcm,
            signed: true,
            isolated: false,
            chunk_log2: 14,
            name: "Ann",
            others: &others,
        };
        found(&ann, &params, random, 0).unwrap()
    };
    let noted = Noted(Seeded::new(1), parking_lot::Mutex::default());
    let first = make(&noted);
    // The first number drawn is the public one of the descriptor; the folder key and the ephemeral
    // secret follow.
    let drawn: Vec<[u8; 32]> =
        noted.1.into_inner().iter().filter_map(|drawn| drawn[..].try_into().ok()).collect();
    assert!(drawn.len() == 3 && first.descriptor.ends_with(&drawn[0]));
    let ephemeral = ExchangeSecret::from_bytes(&drawn[2]);
    let shared =
        others.iter().map(|other| *ephemeral.diffie_hellman(&other.public.exchange).unwrap());
    SECRETS.set(shared.chain([drawn[1], drawn[2]]).collect()).unwrap();

    LOOKING.store(true, Ordering::Release);
    let again = make(&Seeded::new(1));
    let slots = again.change.slots == first.change.slots;
    drop(again);
    LOOKING.store(false, Ordering::Release);
    assert!(slots, "the same was drawn, so the secrets were the same");
    assert!(LOOKED_AT.load(Ordering::Relaxed) > 1000, "memory was given back and looked at");
    assert_eq!(LEFT.load(Ordering::Relaxed), 0, "secrets were left in it");
    // A copy would be found.
    let copy = vec![drawn[1]; 2];
    LOOKING.store(true, Ordering::Release);
    drop(copy);
    LOOKING.store(false, Ordering::Release);
    assert_eq!(LEFT.load(Ordering::Relaxed), 2);
}

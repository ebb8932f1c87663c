//! A folder key for thousands of people: founding the share, opening one's own slot, adding one
//! member, removing one. Compared with the crate `rgp`, which encrypts content to as many people,
//! and the crate `ecies`, which encrypts to one.
//!
//!     cargo bench --bench recipients [-- PEOPLE [RUNS]]            20,000 people and 5 runs, unless told otherwise
//!
//! Times are the best and the median of the runs, and the least processor time of all threads,
//! which is the most reliable figure on a busy machine. Memory is the peak of allocated bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use kithfs::crypto::{Random, Suite};
use kithfs::format::share::ShareDescriptor;
use kithfs::roster::{Acting, FoundParams, Identity, Member, Role, Roster, found};

/// The system's allocator, with counters.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reproducible bytes, from a generator that is fast enough not to affect the measurement.
struct Seeded(AtomicU64);

impl Random for Seeded {
    fn fill(&self, buf: &mut [u8]) {
        blake3::Hasher::new()
            .update(&self.0.fetch_add(1, Relaxed).to_le_bytes())
            .finalize_xof()
            .fill(buf);
    }
}

/// Content that `rgp` encrypts, in bytes.
const CONTENT: usize = 8 << 20;
const TIME: u64 = 1_700_000_000;

/// Returns the processor time of all threads so far, in milliseconds; proc_pid_schedstat(5) has it
/// in nanoseconds.
fn processors() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(of).sum::<f64>() / 1e6
}

/// Runs `work` and prints a row; returns the least processor time in milliseconds.
fn row<T>(
    what: &str,
    runs: usize,
    bytes: impl Fn(&T) -> usize,
    mut work: impl FnMut() -> T,
) -> f64 {
    let mut times = Vec::with_capacity(runs);
    let (mut len, mut peak, mut least) = (0, 0, f64::INFINITY);
    for _ in 0..runs {
        let before = NOW.load(Relaxed);
        PEAK.store(before, Relaxed);
        let (start, taken) = (Instant::now(), processors());
        let done = std::hint::black_box(work());
        times.push(start.elapsed().as_secs_f64() * 1e3);
        least = least.min(processors() - taken);
        (len, peak) = (bytes(&done), PEAK.load(Relaxed) - before);
    }
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[runs / 2]);
    println!(
        "| {what} | {best:.3} | {median:.3} | {least:.3} | {len} | {:.1} |",
        peak as f64 / f64::from(1 << 20)
    );
    least
}

/// Measures the crates to compare with. Returns the least processor time that `rgp` needs to encrypt
/// to `others` and the founder, in milliseconds.
fn peers(others: &[Member], founder: [u8; 32], runs: usize) -> f64 {
    let (secret, _) = rgp::generate_exchange_keys();
    let (fingerprint, _) = rgp::signature::generate_fingerprint();
    let publics: Vec<[u8; 32]> =
        others.iter().map(|member| member.public.exchange).chain([founder]).collect();
    let content = vec![7; CONTENT];
    let rgp = row(&format!("rgp: encrypt {} MiB to all", CONTENT >> 20), runs, Vec::len, || {
        rgp::content::encrypt(fingerprint, content.clone(), secret, &publics).expect("encrypted")
    });
    let public = others[0].public.exchange;
    row("ecies: encrypt 32 bytes to one", 200, Vec::len, || {
        ecies::encrypt(&public, &[7; 32]).expect("encrypted")
    });
    rgp
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let people = numbers.first().copied().unwrap_or(20_000).max(2);
    let runs = numbers.get(1).copied().unwrap_or(5).max(1);
    let random = Seeded(AtomicU64::new(0));

    let founder = Identity::generate(&random);
    let member = |i: usize| {
        let identity = Identity::generate(&random);
        (
            Member { public: identity.public(), role: Role::Reader, name: format!("person {i}") },
            identity,
        )
    };
    let (others, identities): (Vec<Member>, Vec<Identity>) = (1..people).map(member).unzip();
    let (one_more, _) = member(people);
    let params = FoundParams {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        name: "founder",
        others: &others,
    };

    println!("{people} people, {} threads, {runs} runs\n", rayon::current_num_threads());
    println!(
        "| | best, ms | median, ms | processors, ms | bytes written or read | memory, MiB |\n|---|---:|---:|---:|---:|---:|"
    );
    let written = |change: &kithfs::roster::Change| change.slots.len() + change.manifest.len();
    let create = row(
        "create",
        runs,
        |founded: &kithfs::roster::Founded| written(&founded.change),
        || found(&founder, &params, &random, TIME).expect("founded"),
    );

    let founded = found(&founder, &params, &random, TIME).expect("founded");
    let block = &founded.change.slots;
    let descriptor = ShareDescriptor::decode(&founded.descriptor).expect("our own");
    let roster = Roster::verify(&descriptor, &[&founded.change.manifest]).expect("our own");
    let read = |at: u64, buf: &mut [u8]| {
        let at = usize::try_from(at).expect("a position");
        buf.copy_from_slice(&block[at..at + buf.len()]);
    };
    let mut next = 0;
    row(
        "open one's own slot",
        200,
        |bytes| *bytes,
        || {
            let mut bytes = 0;
            next = (next + 7919) % identities.len();
            let opened = roster.open(&identities[next], &mut |_, at, buf| {
                read(at, buf);
                bytes += buf.len();
                Ok(())
            });
            opened.expect("a member");
            bytes
        },
    );
    let mut whole = |_: &_, at: u64, buf: &mut [u8]| {
        read(at, buf);
        Ok(())
    };
    let keys = roster.open(&founder, &mut whole).expect("a member");
    let members = roster.members(&keys, &mut whole).expect("readable");
    let acting =
        Acting { by: &founder, keys: &keys, members: &members, random: &random, now: TIME };
    row("add one", runs, written, || {
        roster.add_members(&acting, std::slice::from_ref(&one_more)).expect("added")
    });
    let gone = [others[0].public.sign];
    row("remove one", runs, written, || {
        roster.remove_members(&acting, &gone, None).expect("removed")
    });

    let rgp = peers(&others, founder.public().exchange, runs);
    println!("\ncreate / rgp = {:.2} in time of processors", create / rgp);
}

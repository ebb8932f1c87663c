//! Measures whether the time of X25519 depends on the secret, as far as a clock can show.
//!
//!     cargo bench --bench constant_time [-- SECONDS]               ten seconds for each line, unless told otherwise
//!
//! After "dude, is my code constant time?" (Reparaz, Balasch, Verbauwhede, DATE 2017). Secrets of
//! two kinds are drawn at random, and their times are compared by Welch's t-test: over all
//! measurements, and over those below each of several percentiles, since interrupts make long
//! tails. The largest |t| is printed. Above 10 there is a difference; below 4.5 none was seen. The
//! leaking line shows the sensitivity of the test: it counts the bits of each secret with a branch
//! for each.
//!
//! The result holds for this machine, this build and these kinds of secrets. Run it on an idle
//! machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kithfs::crypto::exchange::ExchangeSecret;

/// Secrets of each kind to draw from.
const POOL: usize = 64;
/// Measurements that determine the percentiles.
const TRIAL: usize = 4000;
const PERCENTILES: [f64; 6] = [0.2, 0.5, 0.75, 0.9, 0.97, 1.0];

/// Mean and variance of a stream of values (Welford).
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn push(&mut self, value: f64) {
        self.count += 1.0;
        let apart = value - self.mean;
        self.mean += apart / self.count;
        self.squares += apart * (value - self.mean);
    }

    /// Returns Welch's t of two samples; 0 if there are too few values.
    fn t(&self, other: &Moments) -> f64 {
        if self.count < 100.0 || other.count < 100.0 {
            return 0.0;
        }
        let part = |of: &Moments| of.squares / (of.count - 1.0) / of.count;
        let spread = (part(self) + part(other)).sqrt();
        if spread == 0.0 { 0.0 } else { (self.mean - other.mean) / spread }
    }
}

/// Measures `run` on the result of `prepare` for inputs of the two kinds, and prints a row. The
/// input is prepared each time, in the same memory, or the caches would reveal its kind.
fn row<T, R>(
    what: &str,
    length: Duration,
    kinds: &[Vec<T>; 2],
    prepare: impl Fn(&T) -> R,
    run: impl Fn(&R),
) {
    let mut lots = blake3::Hasher::new().update(what.as_bytes()).finalize_xof();
    let mut measure = || {
        let mut lot = [0; 2];
        lots.fill(&mut lot);
        let kind = usize::from(lot[0] & 1);
        let ready = prepare(black_box(&kinds[kind][usize::from(lot[1]) % POOL]));
        let start = Instant::now();
        run(black_box(&ready));
        (kind, start.elapsed().as_nanos() as f64)
    };
    let mut trial: Vec<f64> = (0..TRIAL).map(|_| measure().1).collect();
    trial.sort_by(f64::total_cmp);
    let limits = PERCENTILES
        .map(|part| if part < 1.0 { trial[(part * TRIAL as f64) as usize] } else { f64::INFINITY });
    let mut moments = [[Moments::default(); 2]; PERCENTILES.len()];
    let (begun, mut count) = (Instant::now(), 0u64);
    while begun.elapsed() < length {
        let (kind, took) = measure();
        count += 1;
        for (limit, moments) in limits.iter().zip(&mut moments) {
            if took <= *limit {
                moments[kind].push(took);
            }
        }
    }
    let t = moments.iter().map(|[a, b]| a.t(b).abs()).fold(0.0, f64::max);
    let verdict = if t > 10.0 {
        "differs"
    } else if t > 4.5 {
        "perhaps"
    } else {
        "no difference seen"
    };
    let [a, b] = moments[PERCENTILES.len() - 1];
    println!(
        "| {what} | {count} | {:.1} | {:.1} | {t:.1} | {verdict} |",
        a.mean / 1e3,
        b.mean / 1e3
    );
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(10.0);
    let length = Duration::from_secs_f64(seconds);
    let drawn = |i: usize| *blake3::hash(&[b's', i as u8]).as_bytes();
    // After clamping, zeros have a single bit set, and 0xff bytes have all bits that can be set.
    let secrets: [(&str, [Vec<[u8; 32]>; 2]); 3] = [
        ("few bits / drawn", [vec![[0; 32]; POOL], (0..POOL).map(drawn).collect()]),
        ("all bits / drawn", [vec![[0xff; 32]; POOL], (0..POOL).map(drawn).collect()]),
        ("one drawn / another drawn", [vec![drawn(200); POOL], vec![drawn(201); POOL]]),
    ];
    println!(
        "| | measurements | first kind, us | second kind, us | largest abs(t) | |\n|---|---:|---:|---:|---:|---|"
    );
    for (kinds, secrets) in &secrets {
        let public = drawn(100);
        let ready = |bytes: &[u8; 32]| ExchangeSecret::from_bytes(bytes).for_many();
        row(kinds, length, secrets, ready, |secret| {
            let _ = black_box(secret.diffie_hellman(&public));
        });
    }
    let secret = ExchangeSecret::from_bytes(&drawn(1)).for_many();
    let mut base = [0; 32];
    base[0] = 9;
    row(
        "the point 9 / drawn",
        length,
        &[vec![base; POOL], vec![drawn(3); POOL]],
        |public| *public,
        |public| {
            let _ = black_box(secret.diffie_hellman(public));
        },
    );
    let (_, few_and_drawn) = &secrets[0];
    row(
        "leaking: a branch for each bit",
        length,
        few_and_drawn,
        |secret| *secret,
        |secret| {
            let mut count = 0u64;
            for bit in 0..256 {
                if black_box(secret)[bit / 8] >> (bit % 8) & 1 == 1 {
                    count = black_box(count + 1);
                }
            }
            black_box(count);
        },
    );
}

//! Enumeration of all choices of a power cut.

/// Enumerates every possible sequence of choices for [`MemStore::crash`](super::MemStore::crash),
/// for tests that can afford all of them. Each run uses one sequence.
///
/// ```
/// use kithfs::store::mem::{Exhaustive, MemStore};
///
/// let store = MemStore::new();
/// store.root().mkdir(b"a", 0o755)?;
/// store.root().mkdir(b"b", 0o755)?;
/// let mut seen = Vec::new();
/// let mut choices = Exhaustive::new();
/// while choices.next_run() {
///     let after = store.crash(&mut |n| choices.choose(n)).root();
///     seen.push((after.stat(b"a").is_ok(), after.stat(b"b").is_ok()));
/// }
/// assert_eq!(seen, [(false, false), (true, false), (true, true)]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Exhaustive {
    /// The choice and the number of options, in the order of the calls.
    digits: Vec<(usize, usize)>,
    asked: usize,
    started: bool,
}

impl Exhaustive {
    /// Creates the state before the first run.
    pub fn new() -> Exhaustive {
        Exhaustive::default()
    }

    /// Advances to the next run; returns false after the last one. The first run has only zeros.
    pub fn next_run(&mut self) -> bool {
        self.asked = 0;
        if !self.started {
            self.started = true;
            return true;
        }
        while let Some((chosen, of)) = self.digits.pop() {
            if chosen + 1 < of {
                self.digits.push((chosen + 1, of));
                return true;
            }
        }
        false
    }

    /// Returns the choice of this run, a number less than `n`.
    pub fn choose(&mut self, n: usize) -> usize {
        if self.asked == self.digits.len() {
            self.digits.push((0, n));
        }
        let (chosen, of) = self.digits[self.asked];
        assert_eq!(of, n, "what is asked must depend on the choices so far alone");
        self.asked += 1;
        chosen
    }
}

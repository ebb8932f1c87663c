//! Going through all choices of a power cut.

/// Gives, run by run, every sequence of choices that there is: for
/// [`MemStore::crash`](super::MemStore::crash), where a test can afford all of them.
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
    /// What was chosen of how many, in the order of asking.
    digits: Vec<(usize, usize)>,
    asked: usize,
    started: bool,
}

impl Exhaustive {
    /// Before the first run.
    pub fn new() -> Exhaustive {
        Exhaustive::default()
    }

    /// Goes on to the next run; false after the last one. The first run has only zeros.
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

    /// The choice of this run where the power cut asks for a number less than `n`.
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

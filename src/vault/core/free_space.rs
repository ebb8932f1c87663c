//! How much room the store has, as of the last measurement.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::Dir;
use crate::vault::types::{Forget, NodeId};

/// Free bytes of the store below which there is little room: more than the dirty pages that the
/// kernel was seen to hold for one mount.
const LOW: u64 = 64 << 20;

/// How long a measurement of the free space is valid.
const BELIEVED: Duration = Duration::from_secs(1);

/// For how long after a refusal the store is treated as almost full, whatever it reports: the cause
/// may be a quota, or a limit on the length of files.
const WARY: Duration = Duration::from_secs(30);

/// Free space of the store.
pub(crate) struct Room {
    began: Instant,
    /// Milliseconds since `began` at which the store is to be measured again.
    ask_at: AtomicU64,
    /// Milliseconds since `began` until which a refusal counts.
    wary_until: AtomicU64,
    /// Free bytes at the last measurement, less what was written since.
    left: AtomicU64,
    /// The room is low, and the kernel was told to ask before it accepts more data.
    pub announced: AtomicBool,
    /// Tells the kernel what to drop of a node.
    pub kernel: OnceLock<Box<dyn Fn(NodeId, Forget) + Send + Sync>>,
}

impl Room {
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Room {
            began: Instant::now(),
            ask_at: zero(),
            wary_until: zero(),
            left: zero(),
            announced: AtomicBool::new(false),
            kernel: OnceLock::new(),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Measures the free bytes of the store; `u64::MAX` if the store does not report them.
    pub fn measure(&self, root: &dyn Dir, is_root_user: bool) -> u64 {
        let left = match root.space() {
            Ok(space) if space.blocks > 0 => {
                let blocks = if is_root_user { space.free } else { space.available };
                blocks.saturating_mul(space.block_size)
            }
            _ => u64::MAX,
        };
        self.left.store(left, Ordering::Relaxed);
        self.ask_at.store(self.now() + BELIEVED.as_millis() as u64, Ordering::Relaxed);
        left
    }

    pub fn is_low(&self, root: &dyn Dir, is_root_user: bool) -> bool {
        let now = self.now();
        let left = if now >= self.ask_at.load(Ordering::Relaxed) {
            self.measure(root, is_root_user)
        } else {
            self.left.load(Ordering::Relaxed)
        };
        left < LOW || now < self.wary_until.load(Ordering::Relaxed)
    }

    /// Subtracts written bytes from the measured free space.
    pub fn take(&self, bytes: u64) {
        let less = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(bytes));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that the store has refused a write.
    pub fn note_refusal(&self) {
        self.wary_until.store(self.now() + WARY.as_millis() as u64, Ordering::Relaxed);
    }
}

//! Computes the number of queues and the memory of each.
//!
//! Rules that hold here
//! * The kernel needs a queue for each *possible* processor before it sends any request over
//!   io_uring. A queue of an offline processor has a single entry, whose memory is not touched.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use crate::fuse::protocol::init::PAGE;

/// Maximum number of entries of a queue: one in progress on its thread, and some in the pool.
const MOST_ENTRIES: usize = 8;
/// Requests are made smaller before a queue gets fewer entries than this.
const FEW_ENTRIES: usize = 4;
/// Minimum size to which requests are reduced.
const LEAST_PAYLOAD: u32 = 128 << 10;

/// Parses a list of numbers such as `0-3,7`.
fn numbers(list: &str) -> Option<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(found)
}

/// The processors of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    possible: BTreeSet<usize>,
    online: BTreeSet<usize>,
}

/// The layout of all queues' memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Entries of each queue, and whether its processor is online.
    pub queues: Vec<(usize, bool)>,
    /// Bytes for names and data of an entry, which is also the largest WRITE.
    pub payload: u32,
}

impl Cpus {
    /// Reads the processors from the system.
    ///
    /// # Errors
    /// /sys is missing or cannot be parsed.
    pub fn read() -> io::Result<Cpus> {
        let read = |name: &str| {
            let list = fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))?;
            numbers(&list).ok_or_else(|| {
                io::Error::other(format!("list of processors that are {name} is not understood"))
            })
        };
        Ok(Cpus { possible: read("possible")?, online: read("online")? })
    }

    /// Returns a layout in which all queues of online processors take at most `memory` bytes.
    /// Returns `None` if that is too little even for one entry each of the smallest size.
    pub fn plan(&self, memory: usize, max_write: u32) -> Option<Plan> {
        let online = self.online.len().max(1);
        let mut payload = max_write.max(2 * PAGE);
        while payload / 2 >= LEAST_PAYLOAD && memory / (online * payload as usize) < FEW_ENTRIES {
            payload /= 2;
        }
        let payload = payload / PAGE * PAGE;
        let entries = (memory / (online * payload as usize)).min(MOST_ENTRIES);
        (entries > 0).then(|| {
            let queue = |cpu| if self.online.contains(&cpu) { (entries, true) } else { (1, false) };
            Plan { queues: (0..self.possible.len()).map(queue).collect(), payload }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(possible: usize, online: usize) -> Cpus {
        Cpus { possible: (0..possible).collect(), online: (0..online).collect() }
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(numbers("0\n"), Some([0].into()));
        assert_eq!(numbers("0-2,5,7-8"), Some([0, 1, 2, 5, 7, 8].into()));
        assert_eq!(numbers("x"), None);
        assert!(!Cpus::read().unwrap().possible.is_empty());
    }

    #[test]
    fn memory_is_capped_by_fewer_entries_then_by_smaller_requests() {
        const MIB: usize = 1 << 20;
        let plan = |cpus: &Cpus| {
            cpus.plan(64 * MIB, MIB as u32).map(|plan| (plan.queues[0].0, plan.payload))
        };
        assert_eq!(plan(&cpus(2, 2)), Some((8, 1 << 20)));
        assert_eq!(plan(&cpus(16, 16)), Some((4, 1 << 20)));
        assert_eq!(plan(&cpus(64, 64)), Some((4, 256 << 10)));
        assert_eq!(plan(&cpus(500, 500)), Some((1, 128 << 10)));
        assert_eq!(plan(&cpus(1000, 1000)), None);
        for online in 1..=512 {
            let plan = cpus(512, online).plan(64 * MIB, MIB as u32).unwrap();
            assert!(online * plan.queues[0].0 * plan.payload as usize <= 64 * MIB);
            assert_eq!(plan.queues.len(), 512);
            assert_eq!(plan.queues.iter().filter(|queue| queue.1).count(), online);
        }
    }
}

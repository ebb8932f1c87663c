//! Handles of directories on a path from a root down.
//!
//! Rules that hold here
//! * The storage host can make the path as deep as it likes, so the number of handles is limited.
//! * All of the last [`LAST`] directories are held; of those above them, one in each interval of
//!   equal length. So a walk down a path and up again opens each directory at most twice, as long
//!   as the intervals are not longer than [`LAST`], that is up to 4,096 levels.

/// Number of the last directories, all of which are held.
const LAST: usize = 64;
/// Maximum number of the directories above them that are held. Most systems allow a program 1,024
/// descriptors.
const ABOVE: usize = 64;

/// See the module. The root has depth 0.
pub struct PathHandles<T> {
    root: T,
    /// Depths and handles, from the root down.
    held: Vec<(usize, T)>,
    /// Above the last directories, only those are held whose depth is a multiple of this.
    interval: usize,
}

impl<T> PathHandles<T> {
    /// Begins at a root.
    pub fn new(root: T) -> PathHandles<T> {
        PathHandles { root, held: Vec::new(), interval: 1 }
    }

    /// Returns the root.
    pub fn root(&self) -> &T {
        &self.root
    }

    /// Returns the handle of the directory at a depth, if it is held.
    pub fn get(&self, depth: usize) -> Option<&T> {
        match depth {
            0 => Some(&self.root),
            _ => self.place(depth).map(|at| &self.held[at].1),
        }
    }

    /// Returns the deepest handle, and its depth.
    pub fn deepest(&self) -> (usize, &T) {
        self.held.last().map_or((0, &self.root), |(depth, handle)| (*depth, handle))
    }

    /// Adds the handle of a directory below the deepest one.
    pub fn put(&mut self, depth: usize, handle: T) {
        debug_assert!(depth > self.deepest().0);
        self.held.push((depth, handle));
        let Some(left) = depth.checked_sub(LAST) else { return };
        if let Some(at) = self.place(left).filter(|_| !left.is_multiple_of(self.interval)) {
            self.held.remove(at);
        }
        while self.held.partition_point(|(depth, _)| *depth <= left) > ABOVE {
            self.interval *= 2;
            self.held.retain(|(depth, _)| *depth > left || depth.is_multiple_of(self.interval));
        }
    }

    /// Drops the handles of all directories that are deeper than this.
    pub fn cut(&mut self, depth: usize) {
        self.held.truncate(self.held.partition_point(|(held, _)| *held <= depth));
    }

    /// Returns where the directory at a depth is held.
    fn place(&self, depth: usize) -> Option<usize> {
        self.held.binary_search_by_key(&depth, |(depth, _)| *depth).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If only the last 128 directories were held, all directories would be opened again from the
    /// root each time that none of those is left on the way up. Then 1,000 levels would take four
    /// times as many calls as 500.
    #[test]
    fn a_walk_down_and_up_opens_each_directory_twice() {
        for levels in [1, LAST, 500, 1000, LAST * ABOVE] {
            let mut handles = PathHandles::new(0);
            let mut opened = 0;
            for level in (1..=levels).chain((1..levels).rev()) {
                handles.cut(level);
                let (held, handle) = handles.deepest();
                assert_eq!(*handle, held);
                for depth in held + 1..=level {
                    opened += 1;
                    handles.put(depth, depth);
                    assert!(handles.held.len() <= LAST + ABOVE, "{levels} {level}");
                }
                assert_eq!(handles.get(level), Some(&level));
            }
            assert!(opened <= 2 * levels, "{opened} of {levels}");
        }
    }
}

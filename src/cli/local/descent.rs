//! The path from the root of a local tree down to a directory in it.
//!
//! Rules that hold here
//! * Other users choose the depth, so only some of the directories are held by descriptors. Others
//!   are opened again from the nearest one above them.
//! * A directory is used only where it was entered. If it was moved or replaced since, an error
//!   is returned.

use std::io;
use std::rc::Rc;

use super::object::{Id, Object};
use crate::store::PathHandles;

/// A directory of a local tree, and the way to it from the root.
pub struct Descent {
    steps: Vec<Step>,
    held: PathHandles<Rc<Object>>,
    /// How many directories were opened.
    #[cfg(test)]
    opened: usize,
}

struct Step {
    name: Box<[u8]>,
    id: Id,
}

impl Descent {
    /// Starts at the root of a tree.
    pub fn new(root: Object) -> Descent {
        Descent {
            steps: Vec::new(),
            held: PathHandles::new(Rc::new(root)),
            #[cfg(test)]
            opened: 0,
        }
    }

    /// Returns the root.
    pub fn root(&self) -> &Object {
        self.held.root()
    }

    /// Returns the path from the root to the current directory.
    pub fn path(&self) -> Vec<u8> {
        self.steps.iter().map(|step| &*step.name).collect::<Vec<_>>().join(&b'/')
    }

    /// Returns the current directory.
    ///
    /// # Errors
    /// It was moved or replaced since it was entered.
    pub fn here(&mut self) -> io::Result<Rc<Object>> {
        let depth = self.steps.len();
        let Some(step) = self.steps.last() else { return Ok(self.held.root().clone()) };
        let (name, id) = (step.name.clone(), step.id);
        let (above, here) = (self.held_at(depth - 1)?, self.held_at(depth)?);
        match above.entry(&name)?.map(|found| found.id()).transpose()? {
            Some(found) if found == id => Ok(here),
            _ => Err(moved()),
        }
    }

    /// Enters the directory `name`.
    ///
    /// # Errors
    /// It is not a directory, or is a symlink.
    pub fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let dir = self.here()?.dir(name)?;
        self.steps.push(Step { name: name.into(), id: dir.id()? });
        self.put(dir);
        Ok(())
    }

    /// Returns to the parent directory.
    pub fn leave(&mut self) {
        self.steps.pop();
        self.held.cut(self.steps.len());
    }

    /// Returns the directory at a depth, and opens it again if it is not held.
    fn held_at(&mut self, depth: usize) -> io::Result<Rc<Object>> {
        if let Some(dir) = self.held.get(depth) {
            return Ok(dir.clone());
        }
        self.held.cut(depth);
        loop {
            let (held, dir) = self.held.deepest();
            if held == depth {
                return Ok(dir.clone());
            }
            let step = &self.steps[held];
            let dir = dir.dir(&step.name)?;
            if dir.id()? != step.id {
                return Err(moved());
            }
            self.put(dir);
        }
    }

    /// Holds the directory below the deepest one that is held.
    fn put(&mut self, dir: Object) {
        #[cfg(test)]
        {
            self.opened += 1;
        }
        self.held.put(self.held.deepest().0 + 1, Rc::new(dir));
    }
}

fn moved() -> io::Error {
    io::Error::other("it was moved or replaced while it was copied")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// On the way up all directories were opened again from the root, each time that none of the
    /// last 128 was left: an import of 1,000 levels took more than twice as many calls as one of
    /// 500.
    #[test]
    fn each_directory_of_a_deep_tree_is_opened_twice() {
        let temp = tempfile::tempdir().unwrap();
        let mut descent = Descent::new(Object::open_root(temp.path()).unwrap());
        const DEPTH: usize = 3000;
        for _ in 0..DEPTH {
            descent.here().unwrap().mkdir(b"d", 0o700).unwrap();
            descent.enter(b"d").unwrap();
        }
        for n in (0..DEPTH).rev() {
            let id = descent.here().unwrap().id().unwrap();
            assert_eq!(id, descent.steps[n].id);
            descent.leave();
            let above = descent.here().unwrap();
            rustix::fs::unlinkat(&*above, "d", rustix::fs::AtFlags::REMOVEDIR).unwrap();
        }
        assert!(descent.opened <= 2 * DEPTH + 2 * DEPTH / 64, "{}", descent.opened);
    }

    #[test]
    fn a_directory_that_was_moved_or_exchanged_is_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("root/a/b")).unwrap();
        let mut descent = Descent::new(Object::open_root(&at("root")).unwrap());
        descent.enter(b"a").unwrap();
        descent.enter(b"b").unwrap();
        fs::rename(at("root/a"), at("elsewhere")).unwrap();
        descent.leave();
        assert!(descent.here().is_err(), "it is gone");
        symlink(at("elsewhere"), at("root/a")).unwrap();
        assert!(descent.here().is_err(), "a link has taken its place");
        fs::remove_file(at("root/a")).unwrap();
        fs::create_dir(at("root/a")).unwrap();
        assert!(descent.here().is_err(), "another directory has taken its place");
        descent.leave();
        assert!(descent.here().is_ok());
    }
}

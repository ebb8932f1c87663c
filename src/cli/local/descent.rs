//! The path from the root of a local tree down to a directory in it.
//!
//! Rules that hold here
//! * Other users choose the depth: only the last few directories are held by descriptors. Others
//!   are opened again from the root.
//! * A directory is used only where it was entered. If it was moved or replaced since, an error
//!   is returned.

use std::io;
use std::rc::Rc;

use super::object::{Id, Object};

/// Number of directories held open. Most systems allow a program 1,024 descriptors.
const HELD: usize = 128;

/// See the module.
pub struct Descent {
    root: Rc<Object>,
    steps: Vec<Step>,
}

struct Step {
    name: Box<[u8]>,
    id: Id,
    dir: Option<Rc<Object>>,
}

impl Descent {
    /// Starts at the root of a tree.
    pub fn new(root: Object) -> Descent {
        Descent { root: Rc::new(root), steps: Vec::new() }
    }

    /// Returns the root.
    pub fn root(&self) -> &Object {
        &self.root
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
        let is_held = |step: &Step| step.dir.is_some();
        if !self.steps.iter().rev().take(2).all(is_held) {
            self.reopen()?;
        }
        let Some(step) = self.steps.last() else { return Ok(self.root.clone()) };
        let above =
            self.steps.iter().rev().nth(1).and_then(|step| step.dir.as_ref()).unwrap_or(&self.root);
        let found = above.entry(&step.name)?.map(|found| found.id()).transpose()?;
        match &step.dir {
            Some(dir) if found == Some(step.id) => Ok(dir.clone()),
            _ => Err(moved()),
        }
    }

    /// Enters the directory `name`.
    ///
    /// # Errors
    /// It is not a directory, or is a symlink.
    pub fn enter(&mut self, name: &[u8]) -> io::Result<()> {
        let dir = self.here()?.dir(name)?;
        self.steps.push(Step { name: name.into(), id: dir.id()?, dir: Some(Rc::new(dir)) });
        if let Some(far) = self.steps.len().checked_sub(HELD + 1) {
            self.steps[far].dir = None;
        }
        Ok(())
    }

    /// Returns to the parent directory.
    pub fn leave(&mut self) {
        self.steps.pop();
    }

    /// Opens the last directories again.
    fn reopen(&mut self) -> io::Result<()> {
        let first = self.steps.len().saturating_sub(HELD);
        let mut dir = self.root.clone();
        for (n, step) in self.steps.iter_mut().enumerate() {
            dir = Rc::new(dir.dir(&step.name)?);
            if n >= first {
                if dir.id()? != step.id {
                    return Err(moved());
                }
                step.dir = Some(dir.clone());
            }
        }
        Ok(())
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

    #[test]
    fn a_deep_tree_takes_few_descriptors_and_little_time() {
        let temp = tempfile::tempdir().unwrap();
        let mut descent = Descent::new(Object::open_root(temp.path()).unwrap());
        const DEPTH: usize = 3000;
        for n in 0..DEPTH {
            descent.here().unwrap().mkdir(b"d", 0o700).unwrap();
            descent.enter(b"d").unwrap();
            assert!(descent.steps.iter().filter(|step| step.dir.is_some()).count() <= HELD, "{n}");
        }
        for n in (0..DEPTH).rev() {
            let id = descent.here().unwrap().id().unwrap();
            assert_eq!(id, descent.steps[n].id);
            descent.leave();
            let above = descent.here().unwrap();
            rustix::fs::unlinkat(&*above, "d", rustix::fs::AtFlags::REMOVEDIR).unwrap();
        }
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

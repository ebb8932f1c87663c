//! Concurrent access: two processes on one file, several threads on many names, each compared with
//! its own actions.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dice, Posix};

/// Multiplies the usual amount of work: `KITHFS_STRESS=20` for a long run.
fn times(n: u64) -> u64 {
    n * std::env::var("KITHFS_STRESS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

const HAMMERED: &str = "KITHFS_TEST_HAMMERED";

/// Not a test: the two processes of the next one.
#[test]
fn hammer() {
    let Ok(task) = std::env::var(HAMMERED) else { return };
    let (id, path) = task.split_once(' ').unwrap();
    let id: u8 = id.parse().unwrap();
    let mut dice = Dice::new(id.into());
    let file = File::options().read(true).write(true).open(path).unwrap();
    for round in 0..times(1500) {
        match dice.below(10) {
            0 => file.set_len(dice.below(600_000)).unwrap(),
            1 => file.sync_data().unwrap(),
            2..5 => {
                let mut read = vec![0; dice.below(100_000) as usize];
                let len = file.read_at(&mut read, dice.below(600_000)).unwrap();
                assert!(
                    read[..len].iter().all(|b| *b <= 2),
                    "round {round}: a byte that nobody wrote"
                );
            }
            5 => {
                // Opened and closed in between, so that the last close of one meets the writes of
                // the other.
                let again = File::options().write(true).open(path).unwrap();
                again
                    .write_all_at(&vec![id; dice.below(3000) as usize], dice.below(500_000))
                    .unwrap();
            }
            _ => file
                .write_all_at(&vec![id; 1 + dice.below(60_000) as usize], dice.below(540_000))
                .unwrap(),
        }
    }
}

#[test]
fn two_processes_on_one_file_never_see_torn_segments_or_errors() {
    let Some(mut posix) = Posix::new() else { return };
    let path = posix.at("file");
    File::create(&path).unwrap();
    let me = std::env::current_exe().unwrap();
    let start = |id: u8| {
        let mut child = Command::new(&me);
        child
            .args(["--exact", "posix::stress::hammer", "--nocapture"])
            .env(HAMMERED, format!("{id} {}", path.display()));
        child.spawn().unwrap()
    };
    let children = [start(1), start(2)];
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let now = fs::read(&path).unwrap();
    assert!(now.iter().all(|b| *b <= 2));
    posix.remount();
    assert!(fs::read(&path).unwrap() == now);
    // Whole overwrites by several threads: the last one wins completely.
    std::thread::scope(|scope| {
        for id in 1..=4u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..times(30) {
                    let file = File::options().write(true).open(path).unwrap();
                    file.write_all_at(&vec![id; 300_001], 7).unwrap();
                }
            });
        }
    });
    let last = fs::read(&path).unwrap();
    assert!(last[7..300_008].iter().all(|b| *b == last[7]) && last[7] >= 1, "parts of two writes");
    posix.remount();
    assert!(fs::read(&path).unwrap() == last);
    posix.finish();
}

/// What one thread knows of its own names: contents of files, targets of links, directories.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Made {
    File(Vec<u8>),
    Link(String),
    Dir,
}

/// One thread's names in directories that all threads share.
struct Worker {
    id: u64,
    root: PathBuf,
    dice: Dice,
    made: BTreeMap<String, Made>,
}

const SHARED_DIRS: u64 = 4;

impl Worker {
    fn name(&mut self) -> String {
        // Sometimes a name so long that its sealed form is in a file of `+long`.
        let long = if self.dice.below(8) == 0 { "l".repeat(200) } else { String::new() };
        format!("d{}/t{}-{}{long}", self.dice.below(SHARED_DIRS), self.id, self.dice.below(12))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn is_bare(&self, dir: &str) -> bool {
        !self.made.keys().any(|name| name.starts_with(&format!("{dir}/")))
    }

    /// Returns a name that only this worker uses: in a shared directory, or in one of its own.
    fn any_name(&mut self) -> String {
        let dirs: Vec<String> = self
            .made
            .iter()
            .filter(|(_, made)| **made == Made::Dir)
            .map(|(name, _)| name.clone())
            .collect();
        if !dirs.is_empty() && self.dice.below(3) == 0 {
            let dir = &dirs[self.dice.below(dirs.len() as u64) as usize];
            if dir.len() < 600 {
                return format!("{dir}/{}", self.dice.below(5));
            }
        }
        self.name()
    }

    fn step(&mut self) {
        let name = self.any_name();
        let (path, there) = (self.at(&name), self.made.get(&name).cloned());
        match (self.dice.below(9), there) {
            (0..=2, None | Some(Made::File(_))) => {
                let data = vec![self.dice.below(256) as u8; self.dice.below(9000) as usize];
                fs::write(&path, &data).unwrap();
                self.made.insert(name, Made::File(data));
            }
            (3, None) => {
                fs::create_dir(&path).unwrap();
                self.made.insert(name, Made::Dir);
            }
            (4, None) => {
                let target = format!("to {}", self.dice.below(1000));
                std::os::unix::fs::symlink(&target, &path).unwrap();
                self.made.insert(name, Made::Link(target));
            }
            (3 | 4, Some(_)) => {
                assert_eq!(fs::create_dir(&path).unwrap_err().raw_os_error(), Some(libc::EEXIST))
            }
            (5, Some(Made::Dir)) => match fs::remove_dir(&path) {
                Ok(()) => {
                    assert!(self.is_bare(&name), "{name} was not empty");
                    self.made.remove(&name);
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
                    assert!(!self.is_bare(&name), "{name} was empty");
                }
            },
            (5, Some(_)) => {
                fs::remove_file(&path).unwrap();
                self.made.remove(&name);
            }
            (6 | 7, Some(from)) => self.rename(&name, from),
            (8, Some(made)) => self.check(&name, &made),
            (_, None) => assert_eq!(
                fs::symlink_metadata(&path).unwrap_err().raw_os_error(),
                Some(libc::ENOENT)
            ),
            _ => {}
        }
    }

    fn rename(&mut self, name: &str, from: Made) {
        let to = self.any_name();
        let below = to.starts_with(&format!("{name}/"));
        let renamed = fs::rename(self.at(name), self.at(&to));
        let errno = renamed.err().and_then(|e| e.raw_os_error()).unwrap_or(0);
        let expected = match (&from, self.made.get(&to)) {
            _ if to == name => 0,
            _ if below => libc::EINVAL,
            // Above itself: the target is a directory that contains it.
            (_, Some(Made::Dir)) if name.starts_with(&format!("{to}/")) => libc::ENOTEMPTY,
            (Made::Dir, Some(Made::Dir)) if !self.is_bare(&to) => libc::ENOTEMPTY,
            (Made::Dir, Some(Made::File(_) | Made::Link(_))) => libc::ENOTDIR,
            (Made::File(_) | Made::Link(_), Some(Made::Dir)) => libc::EISDIR,
            _ => 0,
        };
        let also =
            if expected == libc::ENOTEMPTY && from != Made::Dir { libc::EISDIR } else { expected };
        assert!(
            errno == expected || errno == also,
            "rename {name} to {to}: {errno}, not {expected}"
        );
        if errno != 0 || to == name {
            return;
        }
        let prefix = format!("{name}/");
        let inside: Vec<String> =
            self.made.keys().filter(|n| n.starts_with(&prefix)).cloned().collect();
        for old in inside {
            let made = self.made.remove(&old).unwrap();
            self.made.insert(format!("{to}/{}", &old[prefix.len()..]), made);
        }
        self.made.remove(name);
        self.made.insert(to, from);
    }

    fn check(&self, name: &str, made: &Made) {
        let path = self.at(name);
        match made {
            Made::File(data) => assert!(fs::read(path).unwrap() == *data, "{name}"),
            Made::Link(target) => assert_eq!(fs::read_link(path).unwrap(), Path::new(target)),
            Made::Dir => assert!(fs::symlink_metadata(path).unwrap().is_dir()),
        }
    }
}

/// Collects the paths of all entries below `dir`, relative to the mount.
fn walk(dir: &Path, prefix: &str, all: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &format!("{name}/"), all);
        }
        all.push(name);
    }
}

/// Threads create, rename and remove entries in the same directories. In the end exactly those
/// entries exist that each thread expects.
#[test]
fn threads_in_shared_directories_match_a_model() {
    let Some(mut posix) = Posix::new() else { return };
    for i in 0..SHARED_DIRS {
        fs::create_dir(posix.at(&format!("d{i}"))).unwrap();
    }
    let mut workers: Vec<Worker> = (0..4)
        .map(|id| Worker {
            id,
            root: posix.scratch.point(),
            dice: Dice::new(100 + id),
            made: BTreeMap::new(),
        })
        .collect();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(move || (0..times(1500)).for_each(|_| worker.step()));
            }
        });
        for mounted in ["before", "after"] {
            let mut expected: Vec<String> =
                workers.iter().flat_map(|w| w.made.keys().cloned()).collect();
            expected.extend((0..SHARED_DIRS).map(|i| format!("d{i}")));
            expected.sort();
            let mut found = Vec::new();
            walk(&posix.scratch.point(), "", &mut found);
            found.sort();
            assert_eq!(found, expected, "{mounted} the remount");
            for worker in &workers {
                worker.made.iter().for_each(|(name, made)| worker.check(name, made));
            }
            if mounted == "before" {
                posix.remount();
            }
        }
    }
    posix.finish();
}

//! Three daemons that share a vault, compared with a model of its files: what one daemon commits,
//! by whatever way, the others read, also through handles that were opened before. `SEEDS=n` runs
//! more.

use std::collections::HashMap;

use kithfs::store::SetTime;
use kithfs::vault::{Fallocate, OpenFlags, RenameMode, SetAttr, Vault};

use crate::support::members::ShareOfPath;
use crate::support::members::{together, with_bob};
use crate::support::vaults::{
    READ, READ_WRITE, Seeded, at, faults, get, open_or_create, pattern, rename,
};

const SIZES: [usize; 8] = [0, 10, 4096, 5000, 16_384, 20_000, 40_000, 70_000];
const OFFSETS: [usize; 5] = [0, 100, 4096, 16_384, 30_000];

struct Held {
    by: usize,
    handle: u64,
    file: usize,
    writes: bool,
}

struct Model {
    vaults: Vec<Vault>,
    random: Seeded,
    names: HashMap<&'static str, usize>,
    contents: Vec<Vec<u8>>,
    held: Vec<Held>,
    /// The steps so far, printed on a failure.
    done: Vec<String>,
}

impl Model {
    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize]
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        pattern(self.random.next(), len)
    }

    /// Returns whether a daemon other than `by` has the file open for writing, so that `by` cannot.
    fn is_kept(&self, by: usize, file: Option<&usize>) -> bool {
        self.held.iter().any(|held| held.writes && held.by != by && Some(&held.file) == file)
    }

    /// Returns a random handle that is open for writing, as `(daemon, handle, file)`.
    fn writer(&self) -> Option<(usize, u64, usize)> {
        let writers: Vec<_> = self
            .held
            .iter()
            .filter(|held| held.writes)
            .map(|held| (held.by, held.handle, held.file))
            .collect();
        (!writers.is_empty()).then(|| self.pick(&writers))
    }

    fn put(&mut self, by: usize, name: &'static str) {
        let bytes = self.bytes(self.pick(&SIZES));
        let vault = &self.vaults[by];
        let handle =
            open_or_create(vault, name.as_bytes(), OpenFlags { truncate: true, ..READ_WRITE })
                .unwrap();
        if !bytes.is_empty() {
            vault.write(handle, 0, &bytes, false).unwrap();
        }
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        let next = self.contents.len();
        let file = *self.names.entry(name).or_insert(next);
        self.contents.resize(self.contents.len().max(file + 1), Vec::new());
        self.contents[file] = bytes;
    }

    fn open(&mut self, by: usize, name: &'static str, file: usize) {
        let writes = self.random.below(2) == 0 && !self.is_kept(by, Some(&file));
        let flags = if writes { READ_WRITE } else { READ };
        let vault = &self.vaults[by];
        let handle =
            at(vault, name.as_bytes(), |node| Ok(vault.open_file(node, flags)?.handle)).unwrap();
        self.held.push(Held { by, handle, file, writes });
    }

    fn write(&mut self) {
        let Some((by, handle, file)) = self.writer() else { return };
        let (offset, bytes) = (self.pick(&OFFSETS), self.bytes(self.pick(&SIZES[1..])));
        self.vaults[by].write(handle, offset as u64, &bytes, false).unwrap();
        self.vaults[by].fsync(handle, false).unwrap();
        let contents = &mut self.contents[file];
        contents.resize(contents.len().max(offset + bytes.len()), 0);
        contents[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }

    fn punch(&mut self) {
        let Some((by, handle, file)) = self.writer() else { return };
        let (offset, len) = (self.random.below(40_000), 1 + self.random.below(30_000));
        self.vaults[by].fallocate(handle, offset, len, Fallocate::PunchHole).unwrap();
        self.vaults[by].fsync(handle, false).unwrap();
        let contents = &mut self.contents[file];
        let end = contents.len().min((offset + len) as usize);
        contents[(offset as usize).min(end)..end].fill(0);
    }

    fn truncate(&mut self, by: usize, name: &'static str, file: usize) {
        let (vault, size) = (&self.vaults[by], self.pick(&SIZES));
        let set = SetAttr {
            size: Some(size as u64),
            atime: SetTime::Omit,
            mtime: SetTime::Omit,
            ..SetAttr::default()
        };
        at(vault, name.as_bytes(), |node| vault.setattr(node, &set)).unwrap();
        for held in self.held.iter().filter(|held| held.writes && held.file == file) {
            vault.fsync(held.handle, false).unwrap();
        }
        self.contents[file].resize(size, 0);
    }

    fn new_key(&mut self) {
        self.vaults[0].share_at(b"").unwrap().rekey().unwrap();
        // Names under a key that a daemon has not seen yet do not exist for it.
        self.vaults.iter().for_each(|vault| drop(vault.refresh()));
    }

    fn step(&mut self) {
        let (by, name) = (self.random.below(3) as usize, self.pick(&["one", "two", "three"]));
        let file = self.names.get(name).copied();
        let free = !self.is_kept(by, file.as_ref());
        let what = self.random.below(16);
        self.done.push(format!("{by}: {what} {name} {file:?}"));
        match (what, file) {
            (0..3, _) if free => self.put(by, name),
            (3..6, Some(file)) if self.held.len() < 7 => self.open(by, name, file),
            (6, _) if !self.held.is_empty() => {
                let held =
                    self.held.swap_remove(self.random.below(self.held.len() as u64) as usize);
                self.vaults[held.by].release(held.handle).unwrap();
            }
            (7..10, _) => self.write(),
            (10, _) => self.punch(),
            (11, Some(file)) if free => self.truncate(by, name, file),
            (12, Some(file)) if free => {
                let to = self.pick(&["one", "two", "three"]);
                if to != name && !self.is_kept(by, self.names.get(to)) {
                    rename(&self.vaults[by], name.as_bytes(), to.as_bytes(), RenameMode::Replace)
                        .unwrap();
                    self.names.remove(name);
                    self.names.insert(to, file);
                }
            }
            (13, Some(_)) if free => {
                let vault = &self.vaults[by];
                at(vault, b"", |root| vault.unlink(root, name.as_bytes())).unwrap();
                self.names.remove(name);
            }
            (14, _) if self.random.below(3) == 0 => self.new_key(),
            (15, _) if self.held.iter().all(|held| !held.writes) => {
                let left = self.vaults[by].reseal(b"", true, &mut |_| {}).unwrap();
                assert!(left.is_done(true) && left.skipped == 0, "{left:?}");
            }
            _ => {}
        }
    }

    fn compare(&self) {
        for vault in &self.vaults {
            for (name, &file) in &self.names {
                assert!(get(vault, name.as_bytes()).unwrap() == self.contents[file], "{name}");
                assert_eq!(
                    at(vault, name.as_bytes(), |node| vault.getattr(node)).unwrap().size,
                    self.contents[file].len() as u64
                );
            }
        }
        let mut buf = vec![0; 200_000];
        for held in &self.held {
            let read = self.vaults[held.by].read(held.handle, 0, &mut buf).unwrap();
            assert!(buf[..read] == self.contents[held.file], "a handle of {}", held.by);
        }
    }
}

/// Prints the steps on a failure.
impl Drop for Model {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.done.join("\n"));
        }
    }
}

#[test]
fn commits_of_one_of_three_openers_are_read_by_all() {
    let seeds = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        let (store, ann, bob) = with_bob();
        let vaults = [&ann, &bob, &ann].map(|who| together(&store, who).unwrap()).into();
        let random = Seeded::new(seed + 1);
        let mut model = Model {
            vaults,
            random,
            names: HashMap::new(),
            contents: Vec::new(),
            held: Vec::new(),
            done: vec![format!("seed {seed}")],
        };
        for _ in 0..150 {
            model.step();
            model.compare();
        }
        for held in std::mem::take(&mut model.held) {
            model.vaults[held.by].release(held.handle).unwrap();
        }
        assert_eq!(faults(&model.vaults[0]), [""; 0]);
    }
}

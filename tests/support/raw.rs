//! The storage host's view of a vault: directories of ciphertext, to be read and changed.

use std::sync::Arc;

use kithfs::store::{Access, Dir, Kind};

/// Names of all entries.
pub fn names(dir: &dyn Dir) -> Vec<Vec<u8>> {
    dir.reopen().unwrap().read(0, 1 << 20).unwrap().into_iter().map(|e| e.name.to_vec()).collect()
}

/// Names that begin with `prefix`, sorted.
pub fn named(dir: &dyn Dir, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> =
        names(dir).into_iter().filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// A whole file.
pub fn read(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Makes these bytes those of a file, which need not be there.
pub fn write(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    let file =
        dir.open_file(name, Access::ReadWrite).or_else(|_| dir.create_file(name, 0o600)).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// A directory below another, by its stored path.
pub fn beneath(dir: &Arc<dyn Dir>, path: &[u8]) -> Arc<dyn Dir> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty())
        .fold(dir.clone(), |dir, name| dir.open_dir(name).unwrap())
}

/// Brings the control files of one copy's roster to another copy.
pub fn merge(from: &dyn Dir, to: &dyn Dir) {
    let have = names(to);
    for name in names(from) {
        if [&b"+manifest-"[..], b"+slots-", b"+inventory-"].iter().any(|p| name.starts_with(p))
            && !have.contains(&name)
        {
            write(to, &name, &read(from, &name));
        }
    }
}

/// Copies the files of a directory, and those of its directories.
pub fn copy(from: &dyn Dir, to: &dyn Dir) {
    for name in names(from) {
        if from.stat(&name).unwrap().kind == Kind::Dir {
            to.mkdir(&name, 0o755).unwrap();
            copy(&*from.open_dir(&name).unwrap(), &*to.open_dir(&name).unwrap());
        } else {
            write(to, &name, &read(from, &name));
        }
    }
}

//! The storage host's view of a vault: directories of ciphertext, to be read and changed.

use std::sync::Arc;

use kithfs::store::{Access, Dir, Kind, RenameMode};

/// Returns the names of all entries.
pub fn names(dir: &dyn Dir) -> Vec<Vec<u8>> {
    dir.reopen().unwrap().read(0, 1 << 20).unwrap().into_iter().map(|e| e.name.to_vec()).collect()
}

/// Returns the names that begin with `prefix`, sorted.
pub fn named(dir: &dyn Dir, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> =
        names(dir).into_iter().filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Reads a whole file.
pub fn read(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Writes a file, which is created if it is missing.
pub fn write(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    let file =
        dir.open_file(name, Access::ReadWrite).or_else(|_| dir.create_file(name, 0o600)).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// Puts a new file in place of `name`, as a sync tool does.
pub fn replace(dir: &dyn Dir, name: &[u8], bytes: &[u8]) {
    write(dir, b".new", bytes);
    dir.rename(b".new", dir, name, RenameMode::Replace).unwrap();
}

/// Opens a directory below another, by its stored path.
pub fn beneath(dir: &Arc<dyn Dir>, path: &[u8]) -> Arc<dyn Dir> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty())
        .fold(dir.clone(), |dir, name| dir.open_dir(name).unwrap())
}

/// Returns the files of the sealed long names, with the directory of each.
pub fn long_names(root: &Arc<dyn Dir>) -> Vec<(Arc<dyn Dir>, Vec<u8>)> {
    nested(root, b"+long")
}

/// Returns the records of rename evidence, with the directory of each.
pub fn evidence(root: &Arc<dyn Dir>) -> Vec<(Arc<dyn Dir>, Vec<u8>)> {
    nested(root, b"+moved")
}

fn nested(root: &Arc<dyn Dir>, name: &[u8]) -> Vec<(Arc<dyn Dir>, Vec<u8>)> {
    let Ok(all) = root.open_dir(name) else { return Vec::new() };
    let mut groups = names(&*all);
    groups.sort();
    let inside = groups.into_iter().flat_map(|group| {
        let dir = all.open_dir(&group).unwrap();
        named(&*dir, b"").into_iter().map(move |file| (dir.clone(), file))
    });
    inside.collect()
}

/// Returns the file with the sealed long name of the stored name `entry`.
pub fn long_name(root: &Arc<dyn Dir>, entry: &[u8]) -> (Arc<dyn Dir>, Vec<u8>) {
    let is_it = |(_, file): &(_, Vec<u8>)| entry[1..].starts_with(file);
    long_names(root).into_iter().find(is_it).expect("a sealed long name")
}

/// Copies files that one directory has and another lacks.
pub fn add(from: &dyn Dir, to: &dyn Dir) {
    for name in names(from) {
        if from.stat(&name).unwrap().kind == Kind::Dir {
            let _ = to.mkdir(&name, 0o755);
            add(&*from.open_dir(&name).unwrap(), &*to.open_dir(&name).unwrap());
        } else if to.stat(&name).is_err() {
            write(to, &name, &read(from, &name));
        }
    }
}

/// Copies the control files of roster, long names and rename evidence that another copy lacks.
pub fn merge(from: &dyn Dir, to: &dyn Dir) {
    for shared in [&b"+long"[..], b"+moved"] {
        if let Ok(from) = from.open_dir(shared) {
            let _ = to.mkdir(shared, 0o755);
            add(&*from, &*to.open_dir(shared).unwrap());
        }
    }
    let have = names(to);
    for name in names(from) {
        if [&b"+manifest-"[..], b"+slots-", b"+inventory-"].iter().any(|p| name.starts_with(p))
            && !have.contains(&name)
        {
            write(to, &name, &read(from, &name));
        }
    }
}

/// Copies the files of a directory, and those of its subdirectories.
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

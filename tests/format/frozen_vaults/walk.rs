//! Reads all of an open vault.

use std::collections::BTreeMap;

use kithfs::store::Kind;
use kithfs::vault::{NodeId, OpenFlags, ROOT, Vault};

use super::expected::Entry;

/// Returns every entry, by path with its components in hexadecimal.
pub fn entries(vault: &Vault) -> BTreeMap<String, Entry> {
    let mut all = BTreeMap::new();
    directory(vault, ROOT, "", &mut all);
    all
}

fn directory(vault: &Vault, node: NodeId, path: &str, all: &mut BTreeMap<String, Entry>) {
    let handle = vault.open_dir(node).unwrap();
    let mut cookie = 0;
    loop {
        let part = vault.read_dir(handle, cookie, 4096).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.next;
        for entry in &part {
            let attr = vault.lookup(node, &entry.name).unwrap();
            let name = hex::encode(&entry.name);
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let (kind, size, contents) = match attr.kind {
                Kind::Dir => {
                    directory(vault, attr.node, &path, all);
                    ("dir", 0, "-".to_owned())
                }
                Kind::File => ("file", attr.size, contents(vault, attr.node, attr.size)),
                Kind::Symlink => {
                    let target = vault.readlink(attr.node).unwrap();
                    assert_eq!(target.len() as u64, attr.size, "{path}: size of the link");
                    ("symlink", attr.size, hex::encode(target))
                }
                Kind::Fifo => ("fifo", 0, "-".to_owned()),
                other => panic!("{path} is {other:?}"),
            };
            let mut attributes = BTreeMap::new();
            if matches!(attr.kind, Kind::Dir | Kind::File) {
                for name in vault.list_xattr(attr.node).unwrap() {
                    attributes.insert(
                        hex::encode(&name),
                        hex::encode(vault.get_xattr(attr.node, &name).unwrap()),
                    );
                }
            }
            vault.forget(attr.node, 1);
            let entry = Entry { kind: kind.to_owned(), size, contents, attributes };
            assert!(all.insert(path.clone(), entry).is_none(), "{path} is listed twice");
        }
    }
    vault.release_dir(handle);
}

/// Returns BLAKE3 of the whole file, read in pieces of an odd length.
fn contents(vault: &Vault, node: NodeId, size: u64) -> String {
    let file = vault.open_file(node, OpenFlags { read: true, ..OpenFlags::default() }).unwrap();
    let (mut hasher, mut offset, mut buf) = (blake3::Hasher::new(), 0, vec![0; 70_001]);
    loop {
        let read = vault.read(file.handle, offset, &mut buf).unwrap();
        if read == 0 {
            break;
        }
        hasher.update(&buf[..read]);
        offset += read as u64;
    }
    vault.release(file.handle).unwrap();
    assert_eq!(offset, size, "a file is as long as its attributes say");
    hasher.finalize().to_hex().to_string()
}

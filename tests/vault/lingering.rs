//! Nodes that the kernel has forgotten and finds again by their number, for file handles.

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::vault::{CreateShare, NodeId, OpenOptions, ROOT, RenameMode, Vault};

use crate::support::members::quiet;
use crate::support::vaults::{self, mkdir, owner, put, rename};

/// The number of nodes that may linger in the vaults below.
const LIMIT: usize = 256;

/// Makes a vault and opens it as a mount does.
fn made() -> Vault {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let options = OpenOptions { cache_bytes: LIMIT * 4096, ..OpenOptions::default() };
    let vault = Vault::open(store.root(), &owner(), options).unwrap();
    vault.let_nodes_linger();
    vault
}

/// Looks a path up and forgets its nodes from the last to the first, as the kernel does. Returns
/// the last node.
fn seen(vault: &Vault, path: &[&[u8]]) -> NodeId {
    let mut nodes = vec![ROOT];
    for name in path {
        nodes.push(vault.lookup(*nodes.last().unwrap(), name).unwrap().node);
    }
    nodes[1..].iter().rev().for_each(|node| vault.forget(*node, 1));
    *nodes.last().unwrap()
}

/// Looks a node up by its number, and forgets it again. Returns the error number, or 0.
fn again(vault: &Vault, node: NodeId) -> i32 {
    match vault.lookup_again(node) {
        Ok(attr) => {
            assert_eq!(attr.node, node);
            vault.forget(node, 1);
            0
        }
        Err(error) => error.errno(),
    }
}

#[test]
fn a_node_is_found_again_by_its_number() {
    let vault = made();
    mkdir(&vault, b"dir").unwrap();
    mkdir(&vault, b"dir/below").unwrap();
    put(&vault, b"dir/below/file", b"contents").unwrap();
    let path: [&[u8]; 3] = [b"dir", b"below", b"file"];
    let [dir, below, file] = [1, 2, 3].map(|depth| seen(&vault, &path[..depth]));
    assert_eq!([dir, below, file].map(|node| again(&vault, node)), [0; 3]);
    assert_eq!(seen(&vault, &path), file, "a lookup by name finds the same node");
    let parent = |node| {
        let attr = vault.lookup_parent(node).unwrap();
        vault.forget(attr.node, 1);
        attr.node
    };
    assert_eq!([parent(below), parent(dir), parent(ROOT)], [dir, ROOT, ROOT]);

    rename(&vault, b"dir/below/file", b"moved", RenameMode::Replace).unwrap();
    rename(&vault, b"dir", b"renamed", RenameMode::Replace).unwrap();
    assert_eq!([dir, below, file].map(|node| again(&vault, node)), [0; 3]);
    assert_eq!(seen(&vault, &[b"moved"]), file);
    vault.unlink(ROOT, b"moved").unwrap();
    put(&vault, b"moved", b"another file").unwrap();
    assert_eq!(again(&vault, file), libc::ESTALE);
    assert_eq!(again(&vault, 1 << 30), libc::ESTALE);
    assert_eq!(again(&vault, 7 << 40 | 2), libc::ESTALE, "no such share");
    vault.close().unwrap();
}

/// What the kernel has forgotten takes a limited amount of memory, in whichever order it forgets.
#[test]
fn a_limited_number_of_nodes_lingers() {
    let vault = made();
    mkdir(&vault, b"dir").unwrap();
    let names: Vec<String> = (0..2 * LIMIT).map(|n| format!("file{n}")).collect();
    let mut nodes = Vec::new();
    for name in &names {
        put(&vault, format!("dir/{name}").as_bytes(), b"").unwrap();
        nodes.push(seen(&vault, &[b"dir", name.as_bytes()]));
    }
    assert!(vault.node_count() <= LIMIT + 2, "{}", vault.node_count());
    assert_eq!(again(&vault, nodes[0]), libc::ESTALE);
    assert_eq!(again(&vault, nodes[2 * LIMIT - 1]), 0);
    // A node that is forgotten again and again drives no other out.
    let first = nodes[LIMIT + 10];
    (0..2 * LIMIT).for_each(|_| assert_eq!(again(&vault, nodes[2 * LIMIT - 1]), 0));
    assert_eq!(again(&vault, first), 0);
    let other = vault.lookup(ROOT, b"dir").unwrap().node;
    for name in &names[..LIMIT] {
        vault.forget(vault.lookup(other, name.as_bytes()).unwrap().node, 1);
    }
    vault.forget(other, 1);
    assert_eq!(again(&vault, first), libc::ESTALE, "other nodes were forgotten later");
    assert!(vault.node_count() <= LIMIT + 2, "{}", vault.node_count());
    vault.close().unwrap();
}

/// A node keeps the directories above it, which were not counted. So a client of an NFS server that
/// used deep files again and again made the daemon keep all directories above them.
#[test]
fn directories_that_only_lingering_nodes_keep_count() {
    let vault = made();
    let (trees, depth) = (20, 50);
    let mut paths: Vec<Vec<Vec<u8>>> = Vec::new();
    for tree in 0..trees {
        let names: Vec<Vec<u8>> =
            (0..depth).map(|n| format!("dir{tree}.{n}").into_bytes()).collect();
        (1..=depth).for_each(|n| mkdir(&vault, &names[..n].join(&b'/')).unwrap());
        put(&vault, &[&names.join(&b'/')[..], b"/file"].concat(), b"").unwrap();
        paths.push([names, vec![b"file".to_vec()]].concat());
    }
    let mut files: Vec<NodeId> = Vec::new();
    for path in &paths {
        let names: Vec<&[u8]> = path.iter().map(|name| &name[..]).collect();
        files.push(seen(&vault, &names));
        files.retain(|file| again(&vault, *file) == 0);
    }
    assert!(files.len() >= LIMIT / (depth + 2), "{} are found", files.len());
    assert!(vault.node_count() <= LIMIT + 2, "{}", vault.node_count());
    vault.close().unwrap();
}

/// A node with many names counted as one, although each name takes memory.
#[test]
fn each_name_of_a_lingering_node_counts() {
    let vault = made();
    let names = 8;
    let mut nodes = Vec::new();
    for n in 0..LIMIT {
        let first = format!("{n}.0").into_bytes();
        put(&vault, &first, b"").unwrap();
        let node = vault.lookup(ROOT, &first).unwrap().node;
        for other in 1..names {
            vault.link(node, ROOT, format!("{n}.{other}").as_bytes()).unwrap();
        }
        vault.forget(node, names as u64);
        nodes.push(node);
    }
    assert!(vault.node_count() <= LIMIT / names + 2, "{}", vault.node_count());
    let found = nodes.iter().filter(|node| again(&vault, **node) == 0).count();
    assert_eq!(found, LIMIT / names);
    vault.close().unwrap();
}

#[test]
fn nodes_of_nested_shares_are_found_again() {
    let vault = made();
    mkdir(&vault, b"share").unwrap();
    put(&vault, b"share/file", b"contents").unwrap();
    let before = seen(&vault, &[b"share", b"file"]);
    let options = CreateShare { name: "Ann".into(), ..CreateShare::default() };
    vault.create_share(b"share", &options, &mut quiet()).unwrap();
    assert_eq!(again(&vault, before), libc::ESTALE, "the file is in the share now");
    let share = seen(&vault, &[b"share"]);
    let file = seen(&vault, &[b"share", b"file"]);
    assert_eq!([share, file].map(|node| again(&vault, node)), [0; 2]);
    rename(&vault, b"share", b"renamed", RenameMode::Replace).unwrap();
    assert_eq!([share, file].map(|node| again(&vault, node)), [0; 2]);
    assert_eq!(vault.lookup_parent(share).unwrap().node, ROOT);
    vault.unlink(share, b"file").unwrap();
    vault.rmdir(ROOT, b"renamed").unwrap();
    assert_eq!([share, file].map(|node| again(&vault, node)), [libc::ESTALE; 2]);
    vault.close().unwrap();
}

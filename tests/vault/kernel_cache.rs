//! When a vault makes the kernel drop what it has cached of files that other openers change.

use std::sync::mpsc::{Receiver, channel};

use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Lock, Span};
use kithfs::vault::{Forget, NodeId, Vault};
use parking_lot::Mutex;

use crate::support::members::{together, with_bob};
use crate::support::vaults::{READ, put};

/// Returns whether a daemon has the lease.
fn has_lease(store: &MemStore) -> bool {
    let file = store.root().open_file(b"+lease", Access::ReadWrite).unwrap();
    let whole = Span { first: 0, last: Span::END };
    file.find_lock(Lock::Exclusive, whole).unwrap().is_some()
}

/// Returns a receiver of the nodes whose pages the kernel is told to drop, except for those that it
/// is told to drop before the lease is given up.
fn dropped(vault: &Vault, store: &MemStore) -> Receiver<NodeId> {
    let (tell, told) = channel();
    let forgets_all = Mutex::new(false);
    let store = store.clone();
    vault.tell_cache(move |node, what| match what {
        Forget::Names => *forgets_all.lock() = true,
        Forget::Done(done) => {
            assert!(has_lease(&store), "the lease is given up before the pages are dropped");
            *forgets_all.lock() = false;
            let _ = done.send(());
        }
        Forget::Pages if !*forgets_all.lock() => tell.send(node).unwrap(),
        _ => {}
    });
    told
}

fn open(vault: &Vault, path: &[u8]) -> NodeId {
    let node = vault.resolve(path).unwrap().node;
    vault.open_file(node, READ).unwrap();
    node
}

/// A descriptor showed the new bytes of a file that another mount had replaced, but only as many as
/// the file had before, and sometimes the old bytes. The kernel asks for the attributes before the
/// read. If the daemon, because of another daemon's commit, tells it to drop the file's pages at
/// that moment, the kernel ignores the answer. The notification is not needed either: by the
/// answer, the kernel drops the pages itself.
#[test]
fn a_kernel_that_has_asked_is_told_to_drop_nothing() {
    let (store, ann, bob) = with_bob();
    let (ann, bob) = (together(&store, &ann).unwrap(), together(&store, &bob).unwrap());
    let change = |round: usize| {
        put(&bob, b"asked", &vec![1; 5000 + round]).unwrap();
        put(&bob, b"other", &vec![2; 5000 + round]).unwrap();
    };
    change(0);
    let (asked, other) = (open(&ann, b"asked"), open(&ann, b"other"));
    ann.getattr(asked).unwrap();
    let dropped = dropped(&ann, &store);
    for round in 1..5 {
        change(round);
        assert_eq!(ann.getattr(asked).unwrap().size, 5000 + round as u64);
        dropped.try_iter().for_each(drop); // between the two changes
        // The kernel may have pages of the other file in a mapping.
        assert_eq!(dropped.recv(), Ok(other));
    }
    assert_eq!(dropped.try_iter().find(|node| *node == asked), None);
}

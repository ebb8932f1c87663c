//! Changes of the members while daemons of the members work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kithfs::roster::Role;
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Lock, Span};
use kithfs::vault::{Error, RenameMode, Vault};

use crate::support::members::{beside, key, person, quiet, root_share, together, with_bob};
use crate::support::vaults::{READ_WRITE, at, faults, get, mkdir, put, rename, tree, write_at};

/// Returns whether a daemon waits for the lease.
fn is_wanted(store: &MemStore) -> bool {
    let all = Span { first: 0, last: Span::END };
    let file = store.root().open_file(b"+wanted", Access::Read);
    file.is_ok_and(|file| file.find_lock(Lock::Exclusive, all).unwrap().is_some())
}

fn errno(result: Result<(), Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

/// Lets Bob lose the right to write. When the first file of the change is written, after the last walk
/// for its inventory, `act` begins in Bob's daemon. Returns its result.
fn while_bob_loses_rights(
    store: &MemStore,
    ann: &Vault,
    demotes: bool,
    act: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> i32 {
    let (acted, acts) = std::sync::mpsc::channel();
    let (watched, act) = (store.clone(), parking_lot::Mutex::new(Some(act)));
    store.on_event(Box::new(move |event| {
        // The inventory, the slot block and the manifest get their names when they are whole.
        let is_first = event.name.is_some_and(|name| name.starts_with(b"+tmp-"));
        let Some(act) = act.lock().take_if(|_| event.call == Call::CreateFile && is_first) else {
            return;
        };
        let (acted, is_done) = (acted.clone(), Arc::new(AtomicBool::new(false)));
        let done = is_done.clone();
        std::thread::spawn(move || {
            let result = errno(act());
            done.store(true, Ordering::Release);
            let _ = acted.send(result);
        });
        // Until Bob's daemon has written, or waits for the lease.
        while !is_done.load(Ordering::Acquire) && !is_wanted(&watched) {
            std::thread::yield_now();
        }
    }));
    let (share, bob) = (root_share(ann), key(&person(2)));
    if demotes {
        share.set_role(&bob, Role::Reader, &mut quiet()).unwrap();
    } else {
        share.remove(&[bob], &mut quiet()).unwrap();
    }
    let result = acts.recv_timeout(Duration::from_secs(60)).unwrap();
    store.on_event(Box::new(|_| {}));
    result
}

/// Bob's program wrote to Ann's file after the last walk for the inventory of what he had signed. His
/// daemon committed in place, and the whole file was unreadable for everybody. It did so also after the
/// manifest, for up to half a second.
#[test]
fn a_removal_leaves_files_readable_that_are_written() {
    for (demotes, by_command) in [(false, false), (true, false), (false, true), (true, true)] {
        let (store, ann_id, bob_id) = with_bob();
        let (ann, bob) = (together(&store, &ann_id).unwrap(), together(&store, &bob_id).unwrap());
        put(&ann, b"log", &[1; 10_000]).unwrap();
        write_at(&bob, b"log", 0, b"before").unwrap();
        put(&ann, b"other", &[1; 10_000]).unwrap();
        let mut wanted = vec![1; 10_000];
        wanted[..6].copy_from_slice(b"before");
        let handles = [&b"log"[..], b"other"].map(|name| {
            at(&bob, name, |node| Ok(bob.open_file(node, READ_WRITE)?.handle)).unwrap()
        });
        handles.iter().for_each(|handle| bob.write(*handle, 5000, b"late", false).unwrap());
        let command = by_command.then(|| beside(&store, &ann_id));
        let his = bob.clone();
        let result =
            while_bob_loses_rights(&store, command.as_ref().unwrap_or(&ann), demotes, move || {
                handles.map(|handle| his.fsync(handle, false)).into_iter().collect()
            });
        assert_eq!(result, libc::EROFS, "{demotes} {by_command}");
        handles.iter().for_each(|handle| drop(bob.release(*handle)));
        assert!(get(&ann, b"log").unwrap() == wanted);
        assert_eq!(get(&ann, b"other").unwrap(), [1; 10_000]);
        assert_eq!(faults(&ann), [""; 0]);
        write_at(&ann, b"log", 0, b"after").unwrap();
    }
}

/// The same for the evidence of a rename, without which the files in a directory count as moved by
/// somebody without the key.
#[test]
fn a_removal_leaves_a_directory_that_is_being_renamed() {
    let (store, ann_id, bob_id) = with_bob();
    let (ann, bob) = (together(&store, &ann_id).unwrap(), together(&store, &bob_id).unwrap());
    mkdir(&ann, b"dir").unwrap();
    put(&ann, b"dir/file", b"hers").unwrap();
    let before = tree(&ann).unwrap();
    let his = bob.clone();
    let result = while_bob_loses_rights(&store, &ann, false, move || {
        rename(&his, b"dir", b"renamed", RenameMode::Replace)
    });
    assert_eq!(result, libc::EROFS);
    assert_eq!(tree(&ann).unwrap(), before);
    assert_eq!(faults(&ann), [""; 0]);
}

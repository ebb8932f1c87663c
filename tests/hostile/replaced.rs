//! A sync tool replaces or removes a file in the store that programs in the mount have open.

use super::*;

/// The table of open files did not look whether the name still led to the open file: bytes that another program appended and flushed went
/// into an inode without a name, and nobody was told.
#[test]
fn an_append_after_a_replacement_reaches_the_new_file() {
    if !can_mount() {
        return;
    }
    for writable in [false, true] {
        for in_place in [false, true] {
            let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
            let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
            let mount = host.mount(&[]);
            let held = File::options().read(true).write(writable).open(host.plain()).unwrap();
            if in_place {
                host.overwrite(&old_stored)
            } else {
                host.replace(&old_stored)
            }
            append(&host.plain(), b"line\n").unwrap();
            let expected = [&old[..], b"line\n"].concat();
            assert!(fs::read(host.plain()).unwrap() == expected);
            drop(held);
            append(&host.plain(), b"more\n").unwrap();
            mount.unmount();
            assert!(host.cat() == [&expected[..], b"more\n"].concat(), "writable: {writable}, in place: {in_place}");
        }
    }
}

/// What a program had written through a descriptor from before the replacement was acknowledged and dropped with the inode.
#[test]
fn fsync_of_a_replaced_or_removed_file_fails() {
    if !can_mount() {
        return;
    }
    type Change = fn(&Host, &[u8]);
    let changes: [(&str, Change); 3] = [
        ("replaced", |host, old| host.replace(old)),
        ("overwritten", |host, old| host.overwrite(old)),
        ("removed", |host, _| fs::remove_file(&host.stored).unwrap()),
    ];
    for (what, change) in changes {
        let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        let held = File::options().read(true).write(true).open(host.plain()).unwrap();
        held.write_all_at(b"written before", 10).unwrap();
        change(&host, &old_stored);
        held.write_all_at(b"written after", 100).unwrap();
        assert!(held.sync_all().is_err(), "{what}");
        drop(held);
        if what == "removed" {
            assert!(fs::read(host.plain()).is_err());
        } else {
            assert!(fs::read(host.plain()).unwrap() == old, "{what}");
        }
        mount.unmount();
        if what != "removed" {
            assert!(host.cat() == old, "{what}");
        }
    }
}

/// The same for a file that a program truncates and writes anew through a descriptor from before.
#[test]
fn fsync_of_a_truncated_replaced_file_fails() {
    if !can_mount() {
        return;
    }
    for made_here in [false, true] {
        let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        if made_here {
            // Never durable, so its commits go straight to their places.
            fs::remove_file(host.plain()).unwrap();
            fs::write(host.plain(), &new).unwrap();
        }
        let held = File::options().read(true).write(true).open(host.plain()).unwrap();
        host.replace(&old_stored);
        held.set_len(0).and_then(|()| held.write_all_at(b"anew", 0)).and_then(|()| held.sync_all()).unwrap_err();
        drop(held);
        assert!(fs::read(host.plain()).unwrap() == old, "made here: {made_here}");
        mount.unmount();
        assert!(host.cat() == old, "made here: {made_here}");
    }
}

/// Syncthing renames the local file to a conflict copy when another one arrives. What a program writes through its descriptor is kept there.
#[test]
fn writes_follow_a_file_that_was_renamed_in_the_store() {
    if !can_mount() {
        return;
    }
    let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
    let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
    let mount = host.mount(&[]);
    let held = File::options().read(true).write(true).open(host.plain()).unwrap();
    let name = host.stored.file_name().unwrap().to_str().unwrap();
    fs::rename(&host.stored, host.stored.with_file_name(format!("{name}.sync-conflict-20260101-120000-ABCDEFG"))).unwrap();
    host.replace(&old_stored);
    held.write_all_at(b"written after", 100).unwrap();
    held.sync_all().unwrap();
    drop(held);
    assert!(fs::read(host.plain()).unwrap() == old);
    mount.unmount();
    let mut expected = new;
    expected[100..113].copy_from_slice(b"written after");
    let mount = host.mount(&[]);
    let copy = fs::read_dir(host.scratch.point()).unwrap().map(|entry| entry.unwrap().path()).find(|path| *path != host.plain()).unwrap();
    assert!(fs::read(&copy).unwrap() == expected);
    mount.unmount();
}

/// A file that only programs in the mount removed goes on as a file without a name.
#[test]
fn a_file_that_a_program_removed_can_still_be_written() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], &pattern(10_000, 1));
    let mount = host.mount(&[]);
    let held = File::options().read(true).write(true).open(host.plain()).unwrap();
    fs::remove_file(host.plain()).unwrap();
    held.write_all_at(b"written", 20_000).unwrap();
    held.sync_all().unwrap();
    let mut buf = [0; 7];
    held.read_exact_at(&mut buf, 20_000).unwrap();
    assert_eq!(&buf, b"written");
    drop(held);
    mount.unmount();
}

/// A sync tool may deliver the very bytes that are there already, as a new file. Its name no longer leads to the file that is open.
#[test]
fn an_append_after_an_echo_reaches_the_new_file() {
    if !can_mount() {
        return;
    }
    let contents = pattern(23_893, 2);
    let host = Host::new(&[], &contents);
    let mount = host.mount(&[]);
    let held = File::open(host.plain()).unwrap();
    host.replace(&host.keep());
    append(&host.plain(), b"line\n").unwrap();
    drop(held);
    mount.unmount();
    assert!(host.cat() == [&contents[..], b"line\n"].concat());
}

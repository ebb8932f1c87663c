//! A sync tool replaces or removes a file in the store that programs in the mount have open.

use super::*;

/// The table of open files did not check whether the name still led to the open file. Bytes that
/// another program appended and flushed went into an inode without a name, and no error was
/// reported.
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
            assert!(
                host.cat() == [&expected[..], b"more\n"].concat(),
                "writable: {writable}, in place: {in_place}"
            );
        }
    }
}

/// What a program had written through a descriptor from before the replacement was acknowledged and
/// dropped with the inode; a later `fsync` failed. With plain files the sync tool keeps both
/// versions.
#[test]
fn changes_to_a_replaced_or_removed_file_are_kept() {
    if !can_mount() {
        return;
    }
    for removed in [false, true] {
        let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        let held = File::options().read(true).write(true).open(host.plain()).unwrap();
        held.write_all_at(b"written before", 10).unwrap();
        if removed {
            fs::remove_file(&host.stored).unwrap();
        } else {
            host.replace(&old_stored);
        }
        held.write_all_at(b"written after", 100).unwrap();
        held.sync_all().unwrap();
        // The descriptor continues in the kept copy.
        held.write_all_at(b"and later", 200).unwrap();
        held.sync_all().unwrap();
        let mut ours = new;
        ours[10..24].copy_from_slice(b"written before");
        ours[100..113].copy_from_slice(b"written after");
        ours[200..209].copy_from_slice(b"and later");
        let mut all = vec![0; ours.len()];
        held.read_exact_at(&mut all, 0).unwrap();
        assert!(all == ours, "removed: {removed}");
        drop(held);
        let expected = if removed { (ours, vec![]) } else { (old, vec![ours]) };
        assert!(host.files() == expected, "removed: {removed}");
        mount.unmount();
        let mount = host.mount(&[]);
        assert!(host.files() == expected, "removed: {removed}");
        mount.unmount();
    }
}

/// Another program overwrites a file's ciphertext in place: the rest of the version that was open
/// is not enough for a copy, and `fsync` fails.
#[test]
fn fsync_of_an_overwritten_file_fails() {
    if !can_mount() {
        return;
    }
    let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
    let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
    let mount = host.mount(&[]);
    let held = File::options().read(true).write(true).open(host.plain()).unwrap();
    held.write_all_at(b"written before", 10).unwrap();
    host.overwrite(&old_stored);
    held.write_all_at(b"written after", 100).unwrap();
    assert!(held.sync_all().is_err());
    drop(held);
    assert!(host.files() == (old.clone(), vec![]));
    mount.unmount();
    assert!(host.cat() == old);
}

/// A program cannot truncate a replaced file through a descriptor from before. A truncation names
/// the inode and not the descriptor, so it might be meant for the new file.
#[test]
fn a_truncation_of_a_replaced_file_fails() {
    if !can_mount() {
        return;
    }
    for made_here in [false, true] {
        let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        if made_here {
            // Never durable, so its commits are written in place directly.
            fs::remove_file(host.plain()).unwrap();
            fs::write(host.plain(), &new).unwrap();
        }
        let held = File::options().read(true).write(true).open(host.plain()).unwrap();
        host.replace(&old_stored);
        held.set_len(0)
            .and_then(|()| held.write_all_at(b"anew", 0))
            .and_then(|()| held.sync_all())
            .unwrap_err();
        drop(held);
        assert!(host.files() == (old.clone(), vec![]), "made here: {made_here}");
        mount.unmount();
        assert!(host.cat() == old, "made here: {made_here}");
    }
}

/// Syncthing renames the local file to a conflict copy when another one arrives. Data that a
/// program writes through its descriptor is kept there.
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
    fs::rename(
        &host.stored,
        host.stored.with_file_name(format!("{name}.sync-conflict-20260101-120000-ABCDEFG")),
    )
    .unwrap();
    host.replace(&old_stored);
    held.write_all_at(b"written after", 100).unwrap();
    held.sync_all().unwrap();
    drop(held);
    assert!(fs::read(host.plain()).unwrap() == old);
    mount.unmount();
    let mut expected = new;
    expected[100..113].copy_from_slice(b"written after");
    let mount = host.mount(&[]);
    let copy = fs::read_dir(host.scratch.point())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| *path != host.plain())
        .unwrap();
    assert!(fs::read(&copy).unwrap() == expected);
    mount.unmount();
}

/// If another program writes to such a conflict copy by its name, the descriptor from before is
/// refused; nothing is mixed or silently dropped.
#[test]
fn a_conflict_copy_that_was_written_refuses_old_writers() {
    if !can_mount() {
        return;
    }
    let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
    let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
    let mount = host.mount(&[]);
    let held = File::options().read(true).write(true).open(host.plain()).unwrap();
    let name = host.stored.file_name().unwrap().to_str().unwrap();
    fs::rename(&host.stored, host.stored.with_file_name(format!("{name} (1)"))).unwrap();
    host.replace(&old_stored);
    assert!(fs::read(host.plain()).unwrap() == old);
    let copy = host.scratch.point().join("f (1)");
    append(&copy, b"line\n").unwrap();
    held.write_all_at(b"by descriptor", 100).and_then(|()| held.sync_all()).unwrap_err();
    drop(held);
    assert!(fs::read(&copy).unwrap() == [&new[..], b"line\n"].concat());
    mount.unmount();
    assert!(host.cat() == old);
}

/// Syncthing moves the old version into a directory that is not the vault's. Data written through a
/// descriptor went there, and was acknowledged. For a file that was created in the mount it was
/// acknowledged even if the tool had moved it out of the vault.
#[test]
fn changes_to_a_file_that_left_the_vault_are_kept_in_it() {
    if !can_mount() {
        return;
    }
    for made_here in [false, true] {
        for inside in [false, true] {
            let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
            let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
            let mount = host.mount(&[]);
            if made_here {
                fs::remove_file(host.plain()).unwrap();
                fs::write(host.plain(), &new).unwrap();
            }
            let held = File::options().read(true).write(true).open(host.plain()).unwrap();
            let versions = if inside {
                host.scratch.vault().join(".stversions")
            } else {
                host.scratch.path().join("versions")
            };
            fs::create_dir(&versions).unwrap();
            fs::rename(&host.stored, versions.join("f~20260101-120000")).unwrap();
            host.replace(&old_stored);
            held.write_all_at(b"written after", 100).unwrap();
            held.sync_all().unwrap();
            drop(held);
            let mut ours = new.clone();
            ours[100..113].copy_from_slice(b"written after");
            let kept = host.files() == (old, vec![ours]);
            assert!(kept, "made here: {made_here}, inside: {inside}");
            mount.unmount();
        }
    }
}

/// A hard link that was never looked up is replaced after the other name was removed: the file has
/// lost its last name, and not by a program.
#[test]
fn fsync_of_a_file_whose_last_link_was_replaced_fails() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], &pattern(30_000, 1));
    let other = host.keep();
    let mount = host.mount(&[]);
    let (first, second) = (host.scratch.point().join("first"), host.scratch.point().join("second"));
    let before: Vec<PathBuf> =
        fs::read_dir(host.scratch.vault()).unwrap().map(|entry| entry.unwrap().path()).collect();
    fs::write(&second, pattern(20_000, 2)).unwrap();
    let entries = fs::read_dir(host.scratch.vault()).unwrap().map(|entry| entry.unwrap().path());
    let stored = entries
        .into_iter()
        .find(|path| !before.contains(path) && !path.to_str().unwrap().contains('+'))
        .unwrap();
    fs::hard_link(&second, &first).unwrap();
    mount.unmount();
    let mount = host.mount(&[]);
    let held = File::options().read(true).write(true).open(&first).unwrap();
    fs::remove_file(&first).unwrap();
    let new = host.scratch.path().join("arriving");
    fs::write(&new, &other).unwrap();
    fs::rename(&new, &stored).unwrap();
    held.write_all_at(b"written after", 100).unwrap();
    assert!(held.sync_all().is_err());
    drop(held);
    mount.unmount();
}

/// A sync tool replaces, moves away or removes a whole directory. Data that a program appended by
/// the name of a file in it went to the old one, and was acknowledged, as long as the kernel had
/// the name cached. What it wrote through a descriptor was lost, and fsync failed; now it is kept
/// in a conflict copy.
#[test]
fn no_append_goes_into_a_replaced_directory() {
    if !can_mount() {
        return;
    }
    for replaced in [true, false] {
        let host = Host::new(&[], b"");
        let mount = host.mount(&[]);
        let plain = host.scratch.point().join("d/e/f");
        fs::create_dir_all(plain.parent().unwrap()).unwrap();
        fs::write(&plain, pattern(23_893, 1)).unwrap();
        mount.unmount();
        let map = expect_code(host.scratch.kithfs("map").arg(host.scratch.vault()).arg("d"), 0);
        let stored = host.scratch.vault().join(String::from_utf8(map.stdout).unwrap().trim());
        let new = host.scratch.path().join("arriving");
        expect_code(std::process::Command::new("cp").arg("-a").arg(&stored).arg(&new), 0);
        let mount = host.mount(&[]);
        assert!(fs::read(&plain).unwrap() == pattern(23_893, 1));
        let held = File::options().read(true).write(true).open(&plain).unwrap();
        fs::rename(&stored, host.scratch.path().join("trash")).unwrap();
        if replaced {
            fs::rename(&new, &stored).unwrap();
            append(&plain, b"line\n").unwrap();
        } else {
            append(&plain, b"line\n").unwrap_err();
        }
        held.write_all_at(b"written after", 100).unwrap();
        held.sync_all().unwrap();
        drop(held);
        let mut ours = pattern(23_893, 1);
        ours[100..113].copy_from_slice(b"written after");
        let mut dirs = vec![host.scratch.point()];
        let mut copies = Vec::new();
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
                let name = entry.file_name().into_string().unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else if name.starts_with("f (conflict ") {
                    copies.push(fs::read(entry.path()).unwrap());
                }
            }
        }
        assert!(copies == [ours], "replaced: {replaced}, {} copies", copies.len());
        mount.unmount();
        if replaced {
            let contents =
                expect_code(host.scratch.kithfs("cat").arg(host.scratch.vault()).arg("d/e/f"), 0)
                    .stdout;
            assert!(contents == [&pattern(23_893, 1)[..], b"line\n"].concat());
        }
    }
}

/// A file that only programs in the mount removed continues as a file without a name.
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

/// A sync tool may deliver the very bytes that exist already, as a new file. Its name no longer
/// leads to the file that is open.
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

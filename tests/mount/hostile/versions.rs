//! The host puts another version of a file, or another length, beneath a mount that has seen the
//! first one.

use super::*;

const SIZES: [(usize, usize); 4] =
    [(3_893, 23_893), (23_893, 3_893), (300_000, 40_000), (5_000, 5_000)];

/// Returns each variant of a vault, and of the options of a mount in which the kernel caches.
fn variants() -> impl Iterator<Item = (&'static [&'static str], &'static [&'static str])> {
    let inits: [&[&str]; 2] = [&[], &["--signed"]];
    inits.into_iter().flat_map(|init| [(init, &[][..]), (init, &["--read-only"][..])])
}

/// Asserts that the contents are one of the two versions, whole.
#[track_caller]
fn assert_whole(read: io::Result<Vec<u8>>, versions: [&[u8]; 2]) {
    if let Ok(read) = read {
        assert!(versions.contains(&&read[..]), "{} bytes that are no version", read.len());
    }
}

/// The kernel keeps the first size that it learned for a node. The daemon compared the header's
/// size with the ciphertext's length only at the open, so old bytes were followed by the tail of
/// the newer version.
#[test]
fn an_older_version_in_place_is_read_whole() {
    if !can_mount() {
        return;
    }
    for (init, options) in variants() {
        for (old_len, new_len) in SIZES {
            let (old, new) = (pattern(old_len, 1), pattern(new_len, 2));
            let (host, old_stored, _) = Host::keep_both(&old, &new, init);
            let mount = host.mount(options);
            assert!(fs::read(host.plain()).unwrap() == new);
            host.overwrite(&old_stored);
            for _ in 0..2 {
                // The kernel repeats the lookup, so a program notices nothing.
                assert!(
                    fs::read(host.plain()).unwrap() == old,
                    "{old_len} after {new_len}, {options:?}"
                );
                assert_eq!(fs::metadata(host.plain()).unwrap().len(), old_len as u64);
            }
            mount.unmount();
        }
    }
}

/// An append after such a change sealed a mixture of two versions, with zeros in between, and fsck
/// reported no fault.
#[test]
fn an_append_after_a_change_in_place_seals_no_mixture() {
    if !can_mount() {
        return;
    }
    for (old_len, new_len) in SIZES {
        let (old, new) = (pattern(old_len, 1), pattern(new_len, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        assert!(fs::read(host.plain()).unwrap() == new);
        host.overwrite(&old_stored);
        append(&host.plain(), b"line\n").unwrap();
        let expected = [&old[..], b"line\n"].concat();
        assert!(fs::read(host.plain()).unwrap() == expected);
        mount.unmount();
        assert!(host.cat() == expected, "{old_len} after {new_len}");
        expect_code(host.scratch.kithfs("fsck").arg(host.scratch.vault()), 0);
    }
}

/// The ciphertext was longer, or shorter, when a program asked for the attributes, and was restored
/// before the open: the file was read with zeros after its end, and an append went into its middle.
#[test]
fn a_length_that_was_wrong_at_stat_is_not_believed_at_open() {
    if !can_mount() {
        return;
    }
    for lengthen in [true, false] {
        let contents = pattern(60_000, 1);
        let host = Host::new(&[], &contents);
        let right = host.keep();
        let mount = host.mount(&[]);
        let wrong = if lengthen {
            [&right[..], &pattern(50_000, 3)].concat()
        } else {
            right[..20_000].to_vec()
        };
        host.overwrite(&wrong);
        fs::metadata(host.plain()).unwrap();
        host.overwrite(&right);
        assert!(fs::read(host.plain()).unwrap() == contents, "lengthened: {lengthen}");
        append(&host.plain(), b"line\n").unwrap();
        mount.unmount();
        assert!(host.cat() == [&contents[..], b"line\n"].concat(), "lengthened: {lengthen}");
    }
}

/// When a node was replaced, only the name that was opened led to the new node. Its other names still
/// led to the old node with the old size.
#[test]
fn a_second_name_sees_one_version_too() {
    if !can_mount() {
        return;
    }
    let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
    let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
    // The host makes a conflict copy that is a hard link, and a program makes a hard link.
    let copy = host
        .stored
        .with_file_name(format!("{} (1)", host.stored.file_name().unwrap().to_str().unwrap()));
    fs::hard_link(&host.stored, &copy).unwrap();
    let mount = host.mount(&[]);
    let names: Vec<PathBuf> =
        fs::read_dir(host.scratch.point()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 2);
    let linked = host.scratch.point().join("linked");
    fs::hard_link(host.plain(), &linked).unwrap();
    let names = [names, vec![linked]].concat();
    for name in &names {
        assert!(fs::read(name).unwrap() == new);
    }
    host.overwrite(&old_stored);
    for name in &names {
        assert!(fs::read(name).unwrap() == old, "{}", name.display());
    }
    for name in &names {
        append(name, b"line\n").unwrap();
    }
    mount.unmount();
    assert!(host.cat() == [&old[..], b"line\nline\nline\n"].concat());
}

/// A descriptor opened with O_PATH kept the inode of the former version.
#[test]
fn a_descriptor_of_a_path_opens_no_mixture() {
    use std::os::fd::AsRawFd;
    if !can_mount() {
        return;
    }
    let (old, new) = (pattern(3_893, 1), pattern(23_893, 2));
    let (host, old_stored, new_stored) = Host::keep_both(&old, &new, &[]);
    let mount = host.mount(&[]);
    assert!(fs::read(host.plain()).unwrap() == new);
    let path = rustix::fs::open(host.plain(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
        .unwrap();
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", path.as_raw_fd()));
    assert!(fs::read(&by_descriptor).unwrap() == new);
    host.overwrite(&old_stored);
    assert_whole(fs::read(&by_descriptor), [&old, &new]);
    assert!(fs::read(host.plain()).unwrap() == old);
    let appended = append(&by_descriptor, b"line\n");
    host.overwrite(&new_stored);
    assert_whole(fs::read(&by_descriptor), [&old, &new]);
    assert!(fs::read(host.plain()).unwrap() == new);
    assert!(appended.is_err(), "no node leads from the descriptor to the version that is stored");
    drop(path);
    mount.unmount();
    assert!(host.cat() == new);
}

/// A file that is open or mapped keeps its version; an open by name gets the stored one.
#[test]
fn an_open_and_a_mapped_file_keep_their_version() {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        let (old, new) = (pattern(40_000, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        let held = File::open(host.plain()).unwrap();
        // SAFETY: a private mapping for reading, of which every page is in the page cache before
        // the store changes.
        let mapping = unsafe {
            let (protection, flags) = (
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::POPULATE,
            );
            let at = rustix::mm::mmap(std::ptr::null_mut(), new.len(), protection, flags, &held, 0)
                .unwrap();
            std::slice::from_raw_parts(at.cast::<u8>(), new.len())
        };
        assert!(mapping == new);
        if in_place {
            host.overwrite(&old_stored)
        } else {
            host.replace(&old_stored)
        }
        assert!(fs::read(host.plain()).unwrap() == old, "in place: {in_place}");
        assert!(mapping == new);
        let mut again = vec![0; new.len()];
        if held.read_exact_at(&mut again, 0).is_ok() {
            assert!(again == new);
        }
        // SAFETY: nothing uses the mapping any more.
        unsafe { rustix::mm::munmap(mapping.as_ptr() as *mut _, mapping.len()).unwrap() };
        drop(held);
        assert!(fs::read(host.plain()).unwrap() == old);
        mount.unmount();
    }
}

/// A program's change of the length was applied to the version that the kernel did not have.
#[test]
fn a_truncation_after_a_change_in_place_cuts_one_version() {
    if !can_mount() {
        return;
    }
    for len in [0usize, 1_000, 3_893, 50_000] {
        let (old, new) = (pattern(30_000, 1), pattern(23_893, 2));
        let (host, old_stored, _) = Host::keep_both(&old, &new, &[]);
        let mount = host.mount(&[]);
        assert!(fs::read(host.plain()).unwrap() == new);
        host.overwrite(&old_stored);
        let path = std::ffi::CString::new(host.plain().to_str().unwrap()).unwrap();
        // SAFETY: a string that ends with a zero. The call truncates by path, without an open
        // before it.
        assert_eq!(
            unsafe { libc::truncate(path.as_ptr(), len as libc::off_t) },
            0,
            "{}",
            io::Error::last_os_error()
        );
        let mut expected = old.clone();
        expected.resize(len, 0);
        assert!(fs::read(host.plain()).unwrap() == expected, "{len}");
        mount.unmount();
        assert!(host.cat() == expected, "{len}");
    }
}

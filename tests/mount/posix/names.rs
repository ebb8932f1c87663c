//! Names, links, special files, open files without a name, listings.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use super::{Posix, c, errno};

fn rename2(from: &std::path::Path, to: &std::path::Path, flags: u32) -> i32 {
    let (from, to) = (c(from), c(to));
    // SAFETY: both strings are NUL-terminated and live through the call.
    errno(unsafe {
        libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
    })
}

#[test]
fn rename_replaces_refuses_and_exchanges() {
    let Some(mut posix) = Posix::new() else { return };
    let (file, other, dir) = (posix.at("file"), posix.at("other"), posix.at("dir"));
    fs::write(&file, "file").unwrap();
    fs::write(&other, "other").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("inside"), "inside").unwrap();
    assert_eq!(rename2(&file, &other, libc::RENAME_NOREPLACE), libc::EEXIST);
    assert_eq!(rename2(&file, &posix.at("fresh"), libc::RENAME_NOREPLACE), 0);
    assert_eq!(rename2(&posix.at("fresh"), &posix.at("none"), libc::RENAME_EXCHANGE), libc::ENOENT);
    assert_eq!(rename2(&posix.at("fresh"), &other, libc::RENAME_EXCHANGE), 0);
    assert_eq!(fs::read(&other).unwrap(), b"file");
    // A file and a directory with contents change places.
    assert_eq!(rename2(&other, &dir, libc::RENAME_EXCHANGE), 0);
    assert_eq!(fs::read(&dir).unwrap(), b"file");
    assert_eq!(fs::read(other.join("inside")).unwrap(), b"inside");
    assert_eq!(rename2(&other, &other.join("below"), 0), libc::EINVAL);
    assert_eq!(rename2(&other, &dir, libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), libc::EINVAL);
    posix.remount();
    assert_eq!(fs::read(other.join("inside")).unwrap(), b"inside");
    assert_eq!(fs::read(posix.at("fresh")).unwrap(), b"other");
    posix.finish();
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    let Some(mut posix) = Posix::new() else { return };
    // The sealed form of a long name is in a file of `+long`.
    let long = "n".repeat(255);
    for name in ["file", &long] {
        fs::write(posix.at(name), name).unwrap();
        fs::write(posix.at("target"), "replaced").unwrap();
        assert_eq!(rename2(&posix.at(name), &posix.at("target"), libc::RENAME_WHITEOUT), 0);
        assert_eq!(fs::read(posix.at("target")).unwrap(), name.as_bytes());
    }
    fs::create_dir(posix.at("dir")).unwrap();
    fs::write(posix.at("dir/inside"), "inside").unwrap();
    assert_eq!(rename2(&posix.at("dir"), &posix.at("moved"), libc::RENAME_WHITEOUT), 0);
    for _ in 0..2 {
        for name in ["file", &long, "dir"] {
            let device = fs::symlink_metadata(posix.at(name)).unwrap();
            assert!(device.file_type().is_char_device(), "{name}");
            assert_eq!((device.rdev(), device.mode() & 0o7777), (0, 0), "{name}");
            assert_eq!(
                fs::File::create_new(posix.at(name)).unwrap_err().raw_os_error(),
                Some(libc::EEXIST)
            );
        }
        assert_eq!(fs::read(posix.at("moved/inside")).unwrap(), b"inside");
        posix.remount();
    }
    for name in ["file", &long, "dir"] {
        fs::remove_file(posix.at(name)).unwrap();
        fs::write(posix.at(name), "again").unwrap();
    }
    posix.finish();
}

/// The upper layer of a container: files of the lower layer are replaced, removed and renamed.
#[test]
fn an_overlay_has_its_upper_layer_in_a_vault() {
    let Some(mut posix) = Posix::new() else { return };
    let lower = posix.below();
    fs::create_dir_all(lower.join("dir")).unwrap();
    for (path, content) in [("kept", "kept"), ("removed", "r"), ("changed", "c"), ("dir/a", "a")] {
        fs::write(lower.join(path), content).unwrap();
    }
    for dir in ["upper", "work", "merged"] {
        fs::create_dir(posix.at(dir)).unwrap();
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        posix.at("upper").display(),
        posix.at("work").display()
    );
    for turn in 0..2 {
        let script = format!(
            "mount -t overlay overlay -o {layers} merged && trap 'cd / && umount {}' EXIT && cd merged && {}",
            posix.at("merged").display(),
            match turn {
                0 => {
                    "rm removed && echo new >changed && mv kept renamed && cp -a dir copy && rm -r dir \
                     && mkdir dir && echo b >dir/b && mv renamed dir/kept"
                }
                _ => "find . -type f | LC_ALL=C sort && cat changed dir/kept",
            }
        );
        let said = posix.shell(&script);
        if turn == 1 {
            assert_eq!(said, "./changed\n./copy/a\n./dir/b\n./dir/kept\nnew\nkept");
        }
        posix.remount();
    }
    posix.finish();
}

/// What an overlay writes into its upper layer: whiteouts, opaque and redirected directories, and
/// files of which only the metadata are there. The kernel refuses an upper layer without whiteouts,
/// types in listings or attributes, and turns off what else it misses.
#[test]
fn an_overlay_finds_whiteouts_and_redirects_again() {
    const CHANGE: &str = "rm removed && mv dir moved && mkdir dir && echo new >dir/fresh \
        && echo more >>moved/sub/file && chmod 600 large";
    const LIST: &str = "find . -mindepth 1 | LC_ALL=C sort && cat dir/fresh moved/a moved/sub/file \
        && stat -c '%a %s' large && cmp large ../../below/large && test ! -e removed";
    const LISTED: &str = "./dir\n./dir/fresh\n./large\n./moved\n./moved/a\n./moved/sub\n\
        ./moved/sub/file\nnew\na\nb\nmore\n600 100000\n";
    let Some(mut posix) = Posix::new() else { return };
    let lower = posix.below();
    fs::create_dir_all(lower.join("dir/sub")).unwrap();
    for (path, content) in [("removed", "r\n"), ("dir/a", "a\n"), ("dir/sub/file", "b\n")] {
        fs::write(lower.join(path), content).unwrap();
    }
    fs::write(lower.join("large"), vec![7; 100_000]).unwrap();
    for (options, key) in
        [("redirect_dir=on,metacopy=on", "trusted.overlay"), ("userxattr", "user.overlay")]
    {
        posix.shell("rm -rf upper work merged && mkdir upper work merged");
        let point = posix.scratch.point();
        let mount = format!(
            "mount -t overlay overlay -o lowerdir={},upperdir={1}/upper,workdir={1}/work,{options} \
             merged && trap 'cd / && umount {1}/merged' EXIT && cd merged",
            lower.display(),
            point.display()
        );
        posix.shell(&format!("{mount} && {CHANGE}"));
        posix.remount();
        let mounted = posix.shell(&format!("{mount} && grep -F \"$PWD overlay\" /proc/mounts"));
        for option in options.split(',') {
            assert!(mounted.contains(option), "{mounted}");
        }
        assert_eq!(posix.shell(&format!("{mount} && {LIST}")), LISTED, "{options}");

        let whiteout = fs::symlink_metadata(posix.at("upper/removed")).unwrap();
        assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0, "{options}");
        let value = |name: &str, of: &str| {
            posix.shell(&format!("getfattr --only-values -n {key}.{name} upper/{of}"))
        };
        assert_eq!(value("opaque", "dir"), "y", "{options}");
        if options.contains("redirect_dir") {
            assert_eq!(value("redirect", "moved"), "dir");
            assert_eq!(value("metacopy", "large"), "");
        }
    }
    posix.finish();
}

#[test]
fn hard_links_share_everything_across_handles_and_mounts() {
    let Some(mut posix) = Posix::new() else { return };
    let (a, b) = (posix.at("a"), posix.at("sub/b"));
    fs::create_dir(posix.at("sub")).unwrap();
    let mut open = File::create(&a).unwrap();
    fs::hard_link(&a, &b).unwrap();
    assert_eq!((open.metadata().unwrap().nlink(), fs::metadata(&b).unwrap().nlink()), (2, 2));
    open.write_all(b"by the first name").unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"by the first name");
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    fs::remove_file(&a).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 1);
    open.write_all(b", and on").unwrap();
    drop(open);
    fs::hard_link(&b, &a).unwrap();
    let ino = fs::metadata(&a).unwrap().ino();
    posix.remount();
    assert_eq!((fs::metadata(&a).unwrap().nlink(), fs::metadata(&b).unwrap().ino()), (2, ino));
    assert_eq!(fs::read(&a).unwrap(), b"by the first name, and on");
    assert_eq!(
        fs::hard_link(posix.at("sub"), posix.at("dir")).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
    posix.finish();
}

#[test]
fn a_file_of_many_names_is_reached_by_each_of_them() {
    // A node forgot the oldest of many names, and when the others were removed the kernel's entry
    // for the oldest failed with ENOENT for ever.
    let Some(posix) = Posix::new() else { return };
    let first = posix.at("first");
    fs::write(&first, "kept").unwrap();
    let ino = fs::metadata(&first).unwrap().ino();
    let dir = posix.at("names");
    fs::create_dir(&dir).unwrap();
    for round in 0..3 {
        for each in 0..100 {
            fs::hard_link(&first, dir.join(each.to_string())).unwrap();
        }
        for each in 0..100 {
            fs::remove_file(dir.join(each.to_string())).unwrap();
        }
        match round {
            0 => fs::set_permissions(&first, fs::Permissions::from_mode(0o640)).unwrap(),
            1 => fs::rename(&first, posix.at("away"))
                .and_then(|()| fs::rename(posix.at("away"), &first))
                .unwrap(),
            _ => assert_eq!(fs::read(&first).unwrap(), b"kept"),
        }
        let meta = fs::metadata(&first).unwrap();
        assert_eq!((meta.ino(), meta.nlink(), meta.mode() & 0o777), (ino, 1, 0o640));
    }
    fs::remove_file(&first).unwrap();
    assert_eq!(fs::metadata(&first).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    posix.finish();
}

#[test]
fn symbolic_links_of_every_length() {
    let Some(mut posix) = Posix::new() else { return };
    let lengths = [1, 100, 3004, 3005, 3006, 4000, 4095];
    for len in lengths {
        std::os::unix::fs::symlink("x".repeat(len), posix.at(&format!("link-{len}"))).unwrap();
    }
    assert_eq!(
        std::os::unix::fs::symlink("x".repeat(4096), posix.at("long")).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    posix.remount();
    for len in lengths {
        let link = posix.at(&format!("link-{len}"));
        assert_eq!(fs::symlink_metadata(&link).unwrap().len(), len as u64);
        assert_eq!(fs::read_link(&link).unwrap().as_os_str().len(), len);
        fs::remove_file(link).unwrap();
    }
    posix.finish();
}

#[test]
fn special_files_of_every_kind_work() {
    let Some(mut posix) = Posix::new() else { return };
    posix.shell(
        "mkfifo fifo; mknod null c 1 3; mknod full c 1 7; mknod block b 7 200
         (echo through > fifo) & test \"$(cat fifo)\" = through; wait
         echo away > null; test -z \"$(cat null)\"; ! echo x > full 2>/dev/null",
    );
    let listener = UnixListener::bind(posix.at("socket")).unwrap();
    let mut client = UnixStream::connect(posix.at("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    drop(listener);
    posix.remount();
    posix.shell("test -p fifo; test -S socket; test \"$(stat -c %F:%t:%T block)\" = 'block special file:7:c8'; test -c null; rm *");
    posix.finish();
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    let Some(posix) = Posix::new() else { return };
    let path = posix.at("gone");
    let mut open = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    open.write_all(b"still").unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    open.write_all(&[7; 300_000]).unwrap();
    open.sync_all().unwrap();
    let stat = open.metadata().unwrap();
    assert_eq!((stat.nlink(), stat.len()), (0, 300_005));
    open.set_len(5).unwrap();
    open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut read = String::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_string(&mut read).unwrap();
    assert_eq!((read.as_str(), open.metadata().unwrap().mode() & 0o777), ("still", 0o600));
    assert_eq!(fs::read(&path).unwrap(), b"another");
    drop(open);
    posix.finish();
}

#[test]
fn a_removed_entry_stays_usable_through_open_handles() {
    // fstat of a directory that was removed or renamed over failed with ENOENT, and so did that of
    // a FIFO or of a descriptor opened for its path.
    let Some(posix) = Posix::new() else { return };
    let script = "
        mkdir d e full fresh; mkdir full/x; rmdir full/x; mkfifo p; touch f; ln -s away l; mknod n c 1 3; touch two; ln two three
        exec 3<d 4<e 5<full 6<>p 7<n; rmdir d full; mv -T fresh e; rm p n
        for fd in 3 4 5 6 7; do stat -L -c '%F %h %a %u:%g' /proc/self/fd/$fd; done
        test -z \"$(ls -A /proc/self/fd/3/)\"; code touch /proc/self/fd/3/new; code mkdir /proc/self/fd/4/new
        mkdir here; cd here; rmdir ../here; stat -c '%F %h' .; code touch x; cd ..; mkdir d; rmdir d; test ! -e d";
    posix.same_as_below(script);
    for (name, nlink) in [("f", 0), ("l", 0), ("two", 1)] {
        let [here, below] = [posix.at(name), posix.below().join(name)].map(|path| {
            let held = File::options()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
                .open(&path)
                .unwrap();
            fs::remove_file(&path).unwrap();
            let meta = held.metadata().unwrap();
            (meta.file_type(), meta.nlink(), meta.mode(), meta.len())
        });
        assert_eq!(here, below);
        assert_eq!(here.1, nlink, "{name}");
    }
    posix.finish();
}

#[test]
fn a_nameless_file_is_made_or_refused_as_programs_expect() {
    // open(2) documents EOPNOTSUPP for a filesystem without O_TMPFILE, and programs then create a
    // file with a name.
    let Some(posix) = Posix::new() else { return };
    match File::options().write(true).custom_flags(libc::O_TMPFILE).open(posix.scratch.point()) {
        Ok(file) => file.write_at(b"nameless", 0).map(drop).unwrap(),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
    }
    posix.shell("python3 -c 'import tempfile; tempfile.TemporaryFile(dir=\".\").write(b\"x\")' 2>&1 || ! command -v python3");
    assert_eq!(posix.shell("ls -A"), "");
    posix.finish();
}

/// While entries come and go, a listing shows every entry that stays exactly once, and can continue
/// at each earlier position.
#[test]
fn seekdir_works_while_entries_come_and_go() {
    let Some(posix) = Posix::new() else { return };
    let dir = posix.at("dir");
    fs::create_dir(&dir).unwrap();
    let kept: BTreeSet<String> = (0..2000).map(|i| format!("kept-{i}")).collect();
    for name in &kept {
        File::create(dir.join(name)).unwrap();
        File::create(dir.join(format!("goes-{name}"))).unwrap();
    }
    let mut seen = Vec::new();
    for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if i % 3 == 0 {
            let _ = fs::remove_file(dir.join(format!("goes-kept-{}", i / 3)));
            File::create(dir.join(format!("comes-{i}"))).unwrap();
        }
        if name.starts_with("kept-") {
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), kept.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), kept);
    // telldir and seekdir.
    let path = c(&dir);
    // SAFETY: the stream is opened and closed here, and each entry is read before the next call.
    unsafe {
        let stream = libc::opendir(path.as_ptr());
        let name = || {
            let entry = libc::readdir(stream);
            assert!(!entry.is_null());
            std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned()
        };
        let mut places = Vec::new();
        for _ in 0..3000 {
            let place = libc::telldir(stream);
            places.push((place, name()));
        }
        for (place, expected) in places.iter().rev().step_by(97) {
            libc::seekdir(stream, *place);
            assert_eq!(name(), *expected);
        }
        libc::closedir(stream);
    }
    posix.finish();
}

#[test]
fn paths_and_names_up_to_their_limits() {
    let Some(posix) = Posix::new() else { return };
    posix.shell(
        // 15 x 255 and a rest, relative to the mount: 4,095 bytes with all slashes.
        "long=$(printf 'n%.0s' $(seq 255)); path=; for i in $(seq 15); do path=$path$long/; done
         mkdir -p $path; path=$path$(printf 'r%.0s' $(seq 255)); test ${#path} = 4095; echo deep > $path; test $(cat $path) = deep
         ! echo x > ${path}x 2>/dev/null
         printf x > $'e\\xcc\\x81'; printf y > $'\\xc3\\xa9'; printf z > $'\\xff\\xfe'; test $(cat $'e\\xcc\\x81')$(cat $'\\xc3\\xa9')$(cat $'\\xff\\xfe') = xyz
         test $(ls -A | wc -l) = 4; rm -r n*; rm -- *",
    );
    posix.finish();
}

//! Times and extended attributes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{
    AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, lgetxattr, lsetxattr,
    utimensat,
};
use rustix::io::Errno;

use super::Posix;

fn set(path: &std::path::Path, atime: (i64, i64), mtime: (i64, i64)) {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    utimensat(
        CWD,
        path,
        &Timestamps { last_access: spec(atime), last_modification: spec(mtime) },
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
}

#[test]
fn times_to_the_nanosecond_from_before_1970_to_after_2038() {
    let Some(mut posix) = Posix::new() else { return };
    std::os::unix::fs::symlink("nowhere", posix.at("link")).unwrap();
    fs::create_dir(posix.at("dir")).unwrap();
    File::create(posix.at("file")).unwrap();
    let times =
        [(-2_000_000_000, 1), (-1, 999_999_999), (-1, 0), (0, 0), (0, 1), (1 << 32, 123_456_789)];
    for (i, time) in times.into_iter().enumerate() {
        for name in ["file", "dir", "link"] {
            let path = posix.at(name);
            set(&path, times[(i + 1) % times.len()], time);
            let stat = fs::symlink_metadata(&path).unwrap();
            assert_eq!((stat.mtime(), stat.mtime_nsec()), time, "{name}");
            assert_eq!((stat.atime(), stat.atime_nsec()), times[(i + 1) % times.len()], "{name}");
        }
    }
    // NOW and OMIT.
    let before = fs::metadata(posix.at("file")).unwrap();
    set(&posix.at("file"), (0, UTIME_OMIT), (0, UTIME_NOW));
    let after = fs::metadata(posix.at("file")).unwrap();
    assert_eq!((after.atime(), after.atime_nsec()), (before.atime(), before.atime_nsec()));
    assert!(after.mtime() > 1_600_000_000 && after.mtime() < 1 << 32);
    set(&posix.at("file"), (-5, 5), (-7, 7));
    posix.remount();
    let stat = fs::metadata(posix.at("file")).unwrap();
    assert_eq!((stat.atime(), stat.atime_nsec(), stat.mtime(), stat.mtime_nsec()), (-5, 5, -7, 7));
    posix.finish();
}

#[test]
fn times_out_of_range_are_clamped_as_the_store_does() {
    // The time i64::MIN ended a thread of the daemon, and each further one another thread, until
    // the mount hung.
    let Some(mut posix) = Posix::new() else { return };
    // Without nanoseconds: see docs/conformance.md.
    let times = [("least", i64::MIN), ("low", i64::MIN + 1), ("most", i64::MAX)];
    for (name, secs) in times {
        for dir in [posix.scratch.point(), posix.below()] {
            let open = File::create(dir.join(name)).unwrap();
            set(&dir.join(name), (secs, 0), (secs, 0));
            drop(open);
        }
    }
    // The kernel cannot be told what the store can hold, and shows the set value as long as it
    // remembers it.
    posix.remount();
    for (name, _) in times {
        let (here, below) = (
            fs::metadata(posix.at(name)).unwrap(),
            fs::metadata(posix.below().join(name)).unwrap(),
        );
        assert_eq!(
            (here.mtime(), here.mtime_nsec()),
            (below.mtime(), below.mtime_nsec()),
            "{name}"
        );
        assert_eq!(
            (here.atime(), here.atime_nsec()),
            (below.atime(), below.atime_nsec()),
            "{name}"
        );
    }
    posix.finish();
}

#[test]
fn no_caller_sees_a_time_change_it_did_not_make() {
    let Some(mut posix) = Posix::new() else { return };
    // A deferred commit, the last close and a remount write to the store after the program has set
    // its time.
    posix.shell("head -c 3000000 /dev/urandom > f; echo small > s; touch -d '2001-02-03 04:05:06.7' f s; stat -c '%y' f s > ../times");
    posix.shell("cat f s > /dev/null; stat -c '%y' f s | diff ../times -; sync -f .; stat -c '%y' f s | diff ../times -");
    posix.shell("exec 3>>f; head -c 5000 /dev/zero >&3; touch -d '2001-02-03 04:05:06.7' f; exec 3>&-; stat -c '%y' f s | diff ../times -; stat -c '%i' f s > ../inodes");
    posix.remount();
    posix.shell("stat -c '%y' f s | diff ../times -; cat f s > /dev/null; stat -c '%y' f s | diff ../times -; stat -c '%i' f s | diff ../inodes -");
    posix.finish();
}

#[test]
fn extended_attributes_of_every_namespace_and_kind_of_file() {
    let Some(mut posix) = Posix::new() else { return };
    // Only attributes that the filesystem below returns unchanged.
    let script = "touch f; mkdir d; ln -s x l; mkfifo p
         setfattr -n user.a -v 1 f; setfattr -n user.dir -v 2 d; setfattr -n trusted.b -v 3 f; setfattr -n security.c -v 4 f
         setfattr -h -n trusted.l -v 5 l; setfattr -n trusted.p -v 6 p
         code setfattr -h -n user.l -v x l; code setfattr -n user.p -v x p; code setfattr -n other.x -v x f; code setfattr -x user.none f
         setfattr -n user.empty f";
    posix.same_as_below(script);
    let show = "chmod 755 .; chmod 644 f; for o in f d l p; do getfattr -h -d -m - $o 2>&1 | sort; done; as 1234 1234 getfattr -d -m - f | sort";
    let shown = posix.same_as_below(show);
    assert!(
        shown.contains("trusted.l") && shown.contains("trusted.p") && shown.contains("security.c"),
        "{shown}"
    );
    posix.remount();
    assert_eq!(posix.same_as_below(show), shown);

    // Limits.
    let (file, value) = (posix.at("f"), vec![7; 70_000]);
    assert_eq!(lsetxattr(&file, "user.huge", &value, XattrFlags::empty()), Err(Errno::TOOBIG));
    assert_eq!(
        lsetxattr(&file, "user.large", &value[..65_536], XattrFlags::empty()),
        Ok(()),
        "the greatest length that the kernel lets through"
    );
    let mut read = vec![0; 65_536];
    assert_eq!(lgetxattr(&file, "user.large", &mut read), Ok(65_536));
    assert_eq!(read, value[..65_536]);
    assert_eq!(
        lsetxattr(&file, format!("user.{}", "n".repeat(250)), &value[..3], XattrFlags::empty()),
        Ok(())
    );
    assert_eq!(
        lsetxattr(&file, format!("user.{}", "n".repeat(251)), &value[..3], XattrFlags::empty()),
        Err(Errno::RANGE)
    );
    assert_eq!(lsetxattr(&file, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(lsetxattr(&file, "user.z", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    let mut none = [0; 8];
    assert_eq!(lgetxattr(&file, "user.a", &mut none), Ok(1));
    assert_eq!(lgetxattr(&file, "user.none", &mut none), Err(Errno::NODATA));
    // `ls -l` asked for the label of every file, one request each. If it learns that there are
    // none, it asks once.
    let label = "security.selinux";
    if fs::read_dir("/sys/fs/selinux").is_ok_and(|mut entries| entries.next().is_some()) {
        eprintln!("skipped: labels, which this kernel answers itself");
    } else {
        assert_eq!(lgetxattr(&file, label, &mut none), Err(Errno::OPNOTSUPP));
        lsetxattr(&file, label, b"a_t", XattrFlags::empty()).unwrap();
        assert_eq!(
            (lgetxattr(&file, label, &mut none), &none[..3]),
            (Ok(3), &b"a_t"[..]),
            "one that was set is kept"
        );
        rustix::fs::lremovexattr(&file, label).unwrap();
        assert_eq!(lgetxattr(&file, label, &mut none), Err(Errno::OPNOTSUPP));
    }
    // By a descriptor of a file that has no name any more.
    let open = File::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    rustix::fs::fsetxattr(&open, "user.late", b"late", XattrFlags::empty()).unwrap();
    let mut late = [0; 4];
    assert_eq!(rustix::fs::fgetxattr(&open, "user.late", &mut late), Ok(4));
    assert_eq!(&late, b"late");
    drop(open);
    posix.finish();
}

/// File capabilities are copied with a file, and a change of the contents removes them.
#[test]
fn file_capabilities_survive_a_copy_and_end_with_a_write() {
    let Some(mut posix) = Posix::new() else { return };
    if std::process::Command::new("setcap").arg("-h").output().is_err() {
        println!("skipped: no setcap");
        return;
    }
    posix.shell(
        "mkdir from; cp /bin/true from/t; setcap cap_net_raw+ep from/t; chown 1234:1234 from/t; setcap cap_net_raw+ep from/t; chmod 6755 from/t; setcap cap_net_raw+ep from/t
         rsync -aHAX from/ to/; getcap to/t | grep -q cap_net_raw=ep; test $(stat -c %u:%a to/t) = 1234:6755; cp -a from/t copy; getcap copy | grep -q cap_net_raw",
    );
    posix.remount();
    posix.same_as_below(
        "for act in 'echo x >> t' ': > t' 'truncate -s 3 t' 'chown 5 t' 'fallocate -l 9999 t' 'chmod 700 t' 'setfacl -m u:1:r t'; do
             rm -f t; cp /bin/true t; setcap cap_net_raw+ep t; eval \"$act\"; echo \"$act: $(getcap t)\"; done",
    );
    posix.shell("getcap to/t | grep -q cap_net_raw=ep");
    posix.finish();
}

#[test]
fn reading_in_a_noatime_mount_keeps_access_times() {
    // The option `noatime` reached only the kernel, which leaves the times of a FUSE filesystem to
    // the daemon. Each read of a file changed its access time.
    let Some(mut posix) = Posix::new() else { return };
    let age = "echo x > f; touch -a -d @1000000000 f";
    let reread =
        "cat f > /dev/null; test $(stat -c %X f) -gt 1000000000 && echo changed || echo kept";
    posix.same_as_below(&format!("{age}; {reread}"));
    posix.mount.take().unwrap().unmount();
    posix.mount = Some(posix.scratch.mount(&["-o", "allow_other,noatime"]));
    assert_eq!(posix.shell(&format!("{age}; {reread}")), "kept\n");
    assert_eq!(
        posix.shell("head -c 300000 /dev/zero > f; touch -a -d @1000000000 f; exec 3<>f; head -c 9 <&3 > /dev/null; stat -c %X f"),
        "1000000000\n"
    );
    posix.finish();
}

#[test]
fn no_time_changes_unless_a_program_changes_it() {
    // The daemon changed the time of a new file when it committed the file. Programs saw the changed
    // time as soon as the kernel had forgotten the file. This happened to every empty file, and on
    // kernels whose clock is no finer than its ticks to every new file that was written.
    let Some(mut posix) = Posix::new() else { return };
    let write = |name: &str, parts: &[&[u8]]| {
        for (i, part) in parts.iter().enumerate() {
            let mut file = File::options().append(true).create(true).open(posix.at(name)).unwrap();
            file.write_all(part).unwrap();
            if i % 2 == 1 {
                file.sync_all().unwrap();
            }
        }
    };
    for i in 0..40 {
        File::create(posix.at(&format!("empty {i}"))).unwrap();
        write(&format!("small {i}"), &[b"abc"]);
        write(&format!("large {i}"), &[&[1; 300_000], b"more", b"and more"]);
        write(&format!("cut {i}"), &[&[1; 5000]]);
        File::create(posix.at(&format!("cut {i}"))).unwrap();
        write(&format!("set {i}"), &[b"abc", b"def"]);
        set(&posix.at(&format!("set {i}")), (1_000_000, 1), (1_000_000 + i, 7));
    }
    // Written within the tick of their creation, and held open: the daemon gets the data late.
    let make = |i| {
        let mut file = File::create(posix.at(&format!("held {i}"))).unwrap();
        file.write_all(&[1; 5000]).unwrap();
        file
    };
    let held: Vec<File> = (0..40).map(make).collect();
    // Long enough that creation and commit have different times on every clock. There is no event
    // to wait for.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(held);
    let times = |posix: &Posix| {
        let entries = fs::read_dir(posix.scratch.point()).unwrap().map(|entry| entry.unwrap());
        let time = |path: &std::path::Path| {
            fs::symlink_metadata(path).map(|stat| (stat.mtime(), stat.mtime_nsec())).unwrap()
        };
        entries
            .map(|entry| (entry.file_name(), time(&entry.path())))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = times(&posix);
    posix.remount();
    assert_eq!(times(&posix), before);
    // A file from before the mount that is written now gets a new time, and keeps it.
    let begun = std::time::SystemTime::now();
    fs::write(posix.at("set 1"), b"new").unwrap();
    let file = File::options().write(true).open(posix.at("set 2")).unwrap();
    file.write_at(b"x", 1).unwrap();
    drop(file);
    let written = times(&posix);
    for name in ["set 1", "set 2"] {
        let modified = fs::metadata(posix.at(name)).unwrap().modified().unwrap();
        // Files get the time of the last tick of the clock.
        assert!(modified + std::time::Duration::from_secs(1) > begun, "{name}: {modified:?}");
    }
    posix.remount();
    assert_eq!(times(&posix), written);
    posix.finish();
}

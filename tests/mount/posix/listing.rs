//! Listings that the kernel caches must show the entries that exist.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::Posix;
use super::mounted::shell;

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Makes the kernel cache listings. The daemon allows that once a directory was unchanged for some
/// seconds. No event shows that moment, so this waits. The next reading is then cached.
fn keep<const N: usize>(dirs: [&Path; N]) -> [BTreeSet<String>; N] {
    let (first, begun) = (dirs.map(names), Instant::now());
    while begun.elapsed() < Duration::from_secs(4) {
        thread::sleep(Duration::from_millis(100));
    }
    let all = dirs.map(names);
    assert_eq!(dirs.map(names), all);
    assert_eq!(first, all);
    all
}

#[test]
fn a_kept_listing_shows_what_is_there() {
    let Some(posix) = Posix::new() else { return };
    let [streams, changed, store] = ["streams", "changed", "store"].map(|name| posix.at(name));
    let made: BTreeSet<String> = (0..3000).map(|i| format!("entry-{i}")).collect();
    for dir in [&streams, &changed, &store] {
        fs::create_dir(dir).unwrap();
        for name in &made {
            File::create(dir.join(name)).unwrap();
        }
    }
    assert!(keep([&streams, &changed, &store]).iter().all(|listed| *listed == made));

    // Two streams, and the entry at the first stream's position is removed: the second stream,
    // which lists the directory again meanwhile, must not make the first one lose the rest.
    let order: Vec<String> = fs::read_dir(&streams)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut first = fs::read_dir(&streams)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(first.by_ref().take(1000).eq(order[..1000].iter().cloned()));
    for name in &order[..2500] {
        fs::remove_file(streams.join(name)).unwrap();
    }
    let rest: BTreeSet<_> = order[2500..].iter().cloned().collect();
    assert_eq!(keep([&streams])[0], rest);
    let seen: BTreeSet<_> = first.collect();
    assert!(seen.is_superset(&rest), "an entry that was there all the time is missing");

    // Each change through the mount is visible at once.
    File::create(changed.join("new")).unwrap();
    assert!(names(&changed).contains("new"));
    fs::rename(changed.join("new"), streams.join("moved")).unwrap();
    assert_eq!(names(&changed), made);
    assert!(names(&streams).contains("moved"));

    // So is each change that another program, such as a sync tool, makes in the store.
    let victim = made.first().unwrap();
    let inode = fs::metadata(store.join(victim)).unwrap().ino();
    let found = shell(&posix.scratch.vault(), &format!("find \"$PWD\" -inum {inode}"));
    let stored = Path::new(found.trim_end());
    let aside = posix.scratch.path().join("aside");
    fs::rename(stored, &aside).unwrap();
    assert_eq!(names(&store), made.iter().skip(1).cloned().collect());
    fs::rename(&aside, stored).unwrap();
    assert_eq!(names(&store), made);
    posix.finish();
}

#[test]
fn a_kept_listing_does_not_hide_a_long_name_that_comes_later() {
    // A sync tool had delivered the file with a long name empty, and filled it in place.
    // Neither the directory nor the keys of its names had changed, so the kernel continued to show
    // the hash in the place of the name.
    let Some(mut posix) = Posix::new() else { return };
    let dir = posix.at("dir");
    fs::create_dir(&dir).unwrap();
    let name = "long".repeat(50);
    File::create(dir.join(&name)).unwrap();
    let found = shell(&posix.scratch.vault(), "find \"$PWD/+long\" -type f");
    let sidecar = Path::new(found.trim_end());
    let sealed = fs::read(sidecar).unwrap();
    assert!(!sealed.is_empty());
    fs::write(sidecar, b"").unwrap();
    // Remounts, because a daemon remembers the names that it has written.
    posix.remount();
    let [hash] = keep([&dir]);
    assert!(hash.len() == 1 && !hash.contains(&name), "{hash:?}");
    assert_eq!(names(&dir), hash);
    fs::write(sidecar, &sealed).unwrap();
    assert_eq!(names(&dir), BTreeSet::from([name]));
    posix.finish();
}

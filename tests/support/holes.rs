//! Lists the data of sparse files, as lseek(2) reports it.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const PAGE: u64 = 4096;

/// Returns whether the kernel is Linux `major.minor` or later.
pub fn kernel_is_since(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Returns whether the kernel writes its dirty pages back when the daemon requests it.
pub fn kernel_sends() -> bool {
    let sends = kernel_is_since(6, 16);
    if !sends {
        println!(
            "skipped in part: holes of a file that is open for writing are not known before Linux 6.16"
        );
    }
    sends
}

/// Returns the ranges of `file` that have data.
pub fn data(file: &File) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(start) => {
                at = seek(file, SeekFrom::Hole(start)).unwrap();
                assert!(at > start, "{start} is data and a hole");
                found.push(start..at);
            }
            Err(Errno::NXIO) => return found,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the ranges of these pages.
fn ranges(pages: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for page in pages {
        let (start, end) = (page * PAGE, (page + 1) * PAGE);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Several threads write single pages, each into its own file in `dir`, and never sync. After every
/// six pages a thread checks that all pages written so far are reported as data. With `exact`,
/// nothing else may be reported as data.
pub fn many_at_once(dir: &Path, exact: bool) {
    const THREADS: u64 = 16;
    const ROUNDS: u64 = 12;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let path = dir.join(format!("sparse-{thread}"));
                let file =
                    File::options().read(true).write(true).create_new(true).open(path).unwrap();
                file.set_len(512 * PAGE).unwrap();
                let (mut pages, mut seed) = (BTreeSet::new(), thread + 1);
                for round in 0..ROUNDS {
                    for _ in 0..6 {
                        seed = seed
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        // From the second round on also beyond the end.
                        let page = (seed >> 33) % (512 + 64 * round);
                        file.write_all_at(&[thread as u8 + 1; PAGE as usize], page * PAGE).unwrap();
                        pages.insert(page);
                    }
                    let (found, written) = (data(&file), ranges(&pages));
                    if exact {
                        assert_eq!(found, written, "file {thread}, round {round}");
                    } else {
                        let covered = |range: &Range<u64>| {
                            found
                                .iter()
                                .any(|data| data.start <= range.start && range.end <= data.end)
                        };
                        assert!(
                            written.iter().all(covered),
                            "file {thread}, round {round}: {found:?} lacks some of {written:?}"
                        );
                    }
                }
                for page in 0..file.metadata().unwrap().len() / PAGE {
                    let mut read = [0; PAGE as usize];
                    file.read_exact_at(&mut read, page * PAGE).unwrap();
                    let byte = if pages.contains(&page) { thread as u8 + 1 } else { 0 };
                    assert!(read.iter().all(|b| *b == byte), "file {thread}, page {page}");
                }
            });
        }
    });
}

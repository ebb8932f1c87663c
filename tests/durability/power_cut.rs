//! The power is cut at every call that changes the store, in several ways each; promises made
//! before must hold afterwards.
//!
//! The sessions here are scripted; `support/cuts.rs` contains what is checked after each cut.

use kithfs::store::mem::MemStore;

use crate::support::cuts::{Session, cut_everywhere, cut_some, cut_synced};
use crate::support::vaults::{READ_WRITE, Seeded, pattern, set_xattr};

fn both_chunk_sizes(session: impl Fn(&mut Session, &MemStore)) {
    cut_everywhere(12, &session);
    cut_everywhere(18, &session);
    cut_synced(12, 3, &session);
}

#[test]
fn created_and_synced() {
    both_chunk_sizes(|s, _| {
        for (name, len) in
            [("empty", 0), ("small", 100), ("full", 4096), ("large", 4097), ("chunks", 600_000)]
        {
            s.create(name.as_bytes(), &pattern(len as u64, len));
        }
    });
}

#[test]
fn overwritten_in_small_and_large_files() {
    both_chunk_sizes(|s, _| {
        s.create(b"small", &pattern(1, 3000));
        s.create(b"large", &pattern(2, 400_000));
        s.overwrite(b"small", 100, &pattern(3, 50));
        s.overwrite(b"large", 8192, &pattern(4, 4096));
        s.overwrite(b"large", 260_000, &pattern(5, 9000));
        s.overwrite(b"large", 8192, &pattern(6, 4096));
        s.overwrite(b"small", 0, &pattern(7, 3000));
    });
}

#[test]
fn many_commits_of_one_handle() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 50_000));
        let handle = s.open(b"file", READ_WRITE);
        for round in 0..4 {
            s.write_on(handle, b"file", 4096 * round, &pattern(round as u64, 4096));
            s.write_on(handle, b"file", 30_000, &pattern(10 + round as u64, 5000));
            s.fsync(handle, b"file");
        }
        s.write_on(handle, b"file", 0, &pattern(77, 20_000));
        s.commit();
        s.vault.release(handle).unwrap();
    });
}

#[test]
fn single_segments_all_over_a_tree_of_several_levels() {
    // The records of such commits contain only the changes of tables and index blocks, several of
    // the same block from record to record.
    for chunk_log2 in [12, 14, 18] {
        cut_some(chunk_log2, 3, |s, _| {
            s.create(b"file", &pattern(1, 700_000));
            let handle = s.open(b"file", READ_WRITE);
            for (round, segment) in [3, 130, 4, 170, 3, 0, 127].into_iter().enumerate() {
                s.write_on(handle, b"file", 4096 * segment, &pattern(10 + round as u64, 4096));
                s.fsync(handle, b"file");
                if round % 2 == 1 {
                    s.flush();
                }
            }
            s.vault.release(handle).unwrap();
        });
    }
}

#[test]
fn appended_in_small_and_large_parts() {
    both_chunk_sizes(|s, _| {
        s.create(b"log", b"");
        let mut len = 0;
        for (round, part) in
            [100, 5000, 100, 4096, 70_000, 200_000, 10, 300_000].into_iter().enumerate()
        {
            s.overwrite(b"log", len, &pattern(round as u64, part));
            len += part;
        }
    });
}

#[test]
fn truncated_and_grown_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 300_000));
        s.overwrite(b"file", 20_000, &pattern(2, 8192));
        s.truncate(b"file", 10_000);
        s.overwrite(b"file", 9000, &pattern(3, 30_000));
        s.truncate(b"file", 100);
        s.fsync_path(b"file");
        s.overwrite(b"file", 50, &pattern(4, 100_000));
        s.truncate(b"file", 0);
        s.overwrite(b"file", 0, &pattern(5, 40_000));
        s.overwrite(b"file", 4096, &pattern(6, 4096));
        s.truncate(b"file", 0);
        s.fsync_path(b"file");
    });
}

#[test]
fn punched_and_filled_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 100_000));
        s.overwrite(b"file", 8192, &pattern(2, 8192));
        s.punch(b"file", 4096, 20_000);
        s.fsync_path(b"file");
        // More than fits into a record: it is written in place.
        s.overwrite(b"file", 4096, &pattern(3, 80_000));
        s.punch(b"file", 0, 100_000);
        s.overwrite(b"file", 8192, &pattern(4, 4096));
    });
}

#[test]
fn replaced_by_rename() {
    both_chunk_sizes(|s, _| {
        s.create(b"target", &pattern(1, 20_000));
        s.overwrite(b"target", 0, &pattern(2, 4096));
        for round in 0..2 {
            // Not synced by the program: the rename over a durable file must not lose both.
            s.may_break(b"new");
            s.may(b"new", Some(b""));
            let handle = s.open(b"new", READ_WRITE);
            s.write_on(handle, b"new", 0, &pattern(10 + round, 30_000));
            if round == 0 {
                s.vault.release(handle).unwrap();
            }
            s.rename(b"new", b"target");
            if round == 1 {
                s.vault.release(handle).unwrap();
            }
            s.overwrite(b"target", 4096, &pattern(20 + round, 4096));
        }
    });
}

#[test]
fn directories_renamed() {
    both_chunk_sizes(|s, _| {
        s.mkdir(b"a");
        s.mkdir(b"a/b");
        s.create(b"a/b/file", &pattern(1, 20_000));
        s.overwrite(b"a/b/file", 0, &pattern(2, 4096));
        s.rename_dir(b"a", b"c");
        let handle = s.open(b"c/b/file", READ_WRITE);
        s.write_on(handle, b"c/b/file", 4096, &pattern(3, 4096));
        s.vault.fsync(handle, false).unwrap();
        // Fsynced data is found under the old path or the new one: checked by the promise that one
        // of the two has it.
        s.sync_dir(b"");
        s.must(b"c/b/file");
        s.must(b"a/b/file");
        s.vault.release(handle).unwrap();
        s.rename_dir(b"c/b", b"d");
        s.overwrite(b"d/file", 8192, &pattern(4, 4096));
    });
}

#[test]
fn a_directory_renamed_over_an_emptied_one() {
    // A power cut in the middle left the replaced empty directory under the old name, where it
    // could not be opened, and fsck reported it.
    both_chunk_sizes(|s, _| {
        s.mkdir(b"was");
        s.create(b"was/file", &pattern(1, 100));
        s.rename_dir(b"was", b"to");
        s.unlink(b"to/file");
        s.mkdir(b"from");
        s.create(b"from/file", &pattern(2, 5000));
        s.sync_dir(b"");
        s.must(b"from/file");
        s.rename_dir(b"from", b"to");
        s.sync_dir(b"");
        s.must(b"to/file");
    });
}

#[test]
fn long_names() {
    let (one, two) = ("o".repeat(200).into_bytes(), "t".repeat(255).into_bytes());
    both_chunk_sizes(|s, _| {
        s.create(&one, &pattern(1, 5000));
        s.overwrite(&one, 0, &pattern(2, 100));
        s.rename(&one, &two);
        s.sync_dir(b"");
        s.must(&one);
        s.must(&two);
        s.overwrite(&two, 10, &pattern(3, 100));
        s.create(&one, &pattern(4, 100));
        s.unlink(&two);
        s.sync_dir(b"");
        s.must(&two);
    });
}

#[test]
fn unlinked_and_made_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        s.overwrite(b"file", 4096, &pattern(2, 4096));
        s.unlink(b"file");
        s.create(b"file", &pattern(3, 9000));
        s.overwrite(b"file", 0, &pattern(4, 100));
    });
}

#[test]
fn written_to_when_their_names_are_gone() {
    // A synced file was unlinked, or replaced by a rename, and written through the handle that was
    // still open. No record names a file without a path, so it was overwritten in place. A power
    // cut restored the name, which had not been durably removed, with a file that was neither old
    // nor new.
    both_chunk_sizes(|s, _| {
        for (n, len) in [3000, 50_000].into_iter().enumerate() {
            let other = [b'o', n as u8 + b'0'];
            s.create(b"file", &pattern(1, len));
            s.create(&other, &pattern(2, len));
            for (round, replaced) in [false, true].into_iter().enumerate() {
                let handle = s.open(b"file", READ_WRITE);
                if replaced {
                    s.rename(&other, b"file");
                } else {
                    s.unlink(b"file");
                }
                s.vault.write(handle, 100, &pattern(3, 9000), false).unwrap();
                s.commit();
                s.vault.write(handle, 0, &pattern(4, 9000), false).unwrap();
                s.vault.fsync(handle, false).unwrap();
                s.vault.release(handle).unwrap();
                if round == 0 {
                    s.create(b"file", &pattern(5, len));
                }
            }
        }
    });
}

#[test]
fn closed_and_opened_again() {
    both_chunk_sizes(|s, store| {
        // The first mount syncs nothing, the second one overwrites data that may not be on the disk
        // yet.
        s.may(b"file", Some(b""));
        s.may_break(b"file");
        let handle = s.open(b"file", READ_WRITE);
        s.write_on(handle, b"file", 0, &pattern(1, 50_000));
        s.vault.release(handle).unwrap();
        s.reopen(store);
        s.overwrite(b"file", 4096, &pattern(2, 4096));
        s.reopen(store);
        s.overwrite(b"file", 8192, &pattern(3, 4096));
    });
}

#[test]
fn attributes_and_times_between_overwrites() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        s.overwrite(b"file", 0, &pattern(2, 4096));
        set_xattr(&s.vault, b"file", b"user.x", b"value").unwrap();
        s.overwrite(b"file", 4096, &pattern(3, 4096));
        s.create(b"other", &pattern(4, 100));
        s.overwrite(b"other", 0, &pattern(5, 10));
        s.overwrite(b"file", 8192, &pattern(6, 4096));
    });
}

#[test]
fn written_for_long_without_an_fsync() {
    // A recording of hours that no program synced was written in place at each commit, as long as
    // it was open. A power cut in the middle of one, or of the kernel's writeback, left all of it
    // unreadable, not only the last seconds.
    both_chunk_sizes(|s, _| {
        for (name, len) in [(&b"small"[..], 300), (b"large", 30_000)] {
            s.may(name, Some(b""));
            s.may_break(name);
            let handle = s.open(name, READ_WRITE);
            s.write_on(handle, name, 0, &pattern(1, len));
            s.commit();
            s.write_on(handle, name, len, &pattern(2, len));
            s.commit();
            s.made_durable(name);
            for round in 2..5 {
                s.write_on(handle, name, round * len, &pattern(10 + round as u64, len));
                s.write_on(handle, name, 100, &pattern(20 + round as u64, 50));
                s.commit();
            }
            // In the middle of uncommitted data.
            s.write_on(handle, name, 5 * len, &pattern(30, 80_000));
            s.vault.flush_due(std::time::Duration::ZERO);
            s.write_on(handle, name, 5 * len + 80_000, &pattern(31, 5000));
            s.commit();
            s.vault.release(handle).unwrap();
        }
    });
}

#[test]
fn random_sessions() {
    for seed in 0..12u64 {
        let chunk_log2 = if seed % 2 == 0 { 12 } else { 14 };
        cut_some(chunk_log2, 3, |s, store| {
            let random = Seeded::new(seed + 1000);
            let below = |n: usize| random.below(n as u64) as usize;
            let paths = [&b"one"[..], b"two"];
            for (path, len) in paths.iter().zip([below(6000), below(40_000)]) {
                s.create(path, &pattern(seed, len));
            }
            let mut handle: Option<(u64, &[u8])> = None;
            for round in 0..14 {
                let path = paths[below(2)];
                let len = s.now[path].len();
                match below(9) {
                    0 | 1 => s.overwrite(
                        path,
                        below(len + 1),
                        &pattern(seed * 100 + round, [1, 100, 4096, 9000][below(4)]),
                    ),
                    2 => s.overwrite(
                        path,
                        len,
                        &pattern(seed * 100 + round, [100, 5000, 70_000][below(3)]),
                    ),
                    3 => s.truncate(path, below(len + 5000)),
                    4 => s.punch(path, below(len + 1) / 4096 * 4096, 4096 * (1 + below(5))),
                    5 => s.fsync_path(path),
                    6 => {
                        if let Some((handle, _)) = handle.take() {
                            s.vault.release(handle).unwrap();
                        }
                        handle = Some((s.open(path, READ_WRITE), path));
                    }
                    7 => s.commit(),
                    _ if below(4) == 0 && handle.is_none() => s.reopen(store),
                    _ => {
                        if let Some((handle, path)) = handle {
                            s.write_on(
                                handle,
                                path,
                                below(30_000),
                                &pattern(seed * 100 + round, 1 + below(20_000)),
                            );
                        }
                    }
                }
            }
            if let Some((handle, path)) = handle {
                s.fsync(handle, path);
                s.vault.release(handle).unwrap();
            }
        });
    }
}

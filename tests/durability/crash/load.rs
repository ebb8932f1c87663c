//! The loads that work in a mount until its daemon is killed or its disk is copied, and the
//! comparison of their files with what was acknowledged.
//!
//! Each load records what is durable: one line in a file outside of the mount, written after the
//! corresponding `fsync` has returned. Contents follow from the line alone.
//!
//! | load | does | afterwards |
//! |---|---|---|
//! | append | append, fsync | all acknowledged records in order; any after them in order too, the last perhaps in part |
//! | overwrite | 4 KiB somewhere, fsync | the effect of every write up to some number, which is not below the acknowledged one |
//! | replace | write a new file, fsync, rename it over the old one, fsync the directory | one version, whole, not older than acknowledged |
//! | create | a file in a new directory, fsync | every acknowledged one, whole |
//! | sqlite | a transaction, `synchronous=FULL`, in both kinds of journal | integrity_check is clean, every acknowledged row is there |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 48;
const RECORD: usize = 300;

/// Returns the bytes of the n-th object of a kind.
fn contents(kind: &str, number: u64, len: usize) -> Vec<u8> {
    let mut state = kind.bytes().fold(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, |s, b| {
        s.rotate_left(9) ^ u64::from(b)
    });
    let mut bytes = number.to_le_bytes().to_vec();
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn version_len(version: u64) -> usize {
    5000 + (version * 3701 % 20_000) as usize
}

/// Records acknowledgements.
struct Notes(File);

impl Notes {
    fn add(&self, line: String) {
        // One call, so that lines of several loads do not mix.
        (&self.0).write_all(format!("{line}\n").as_bytes()).expect("note an acknowledgement");
    }
}

fn open_notes() -> Notes {
    let path = std::env::var_os("KITHFS_CRASH_ACKNOWLEDGED").expect("the test sets it");
    Notes(File::options().create(true).append(true).open(path).expect("open the notes"))
}

/// Opens the file in which a load records that it ended because the disk was full.
fn notes_of_full() -> Notes {
    let path =
        PathBuf::from(std::env::var_os("KITHFS_CRASH_ACKNOWLEDGED").expect("the test sets it"))
            .with_extension("full");
    Notes(File::options().create(true).append(true).open(path).expect("open the notes"))
}

/// Returns whether every load has recorded something.
pub fn all_have_begun(text: &str) -> bool {
    let begun = |kind: &str| text.lines().any(|line| line.starts_with(kind));
    begun("sqlite wal") && begun("sqlite delete")
        || ["append", "overwrite", "replace", "create"].into_iter().all(begun)
}

/// Gives the file a mode that keeps its owner out, if the test asks for that.
fn keep_out(file: &File, mode: u32) -> io::Result<()> {
    if std::env::var_os("KITHFS_CRASH_MODES").is_some() {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn append(dir: &Path, notes: &Notes) -> io::Result<()> {
    let file = File::options().create_new(true).append(true).open(dir.join("append"))?;
    keep_out(&file, 0o444)?;
    for n in 0.. {
        (&file).write_all(&contents("append", n, RECORD))?;
        file.sync_all()?;
        notes.add(format!("append {n}"));
    }
    Ok(())
}

fn overwrite(dir: &Path, notes: &Notes) -> io::Result<()> {
    let file =
        File::options().create_new(true).read(true).write(true).open(dir.join("overwrite"))?;
    for block in 0..BLOCKS {
        file.write_all_at(&contents("overwrite", block, BLOCK), block * BLOCK as u64)?;
    }
    file.sync_all()?;
    keep_out(&file, 0)?;
    (0..BLOCKS).for_each(|n| notes.add(format!("overwrite {n}")));
    for n in BLOCKS.. {
        let block = place_of(n);
        file.write_all_at(&contents("overwrite", n, BLOCK), block * BLOCK as u64)?;
        file.sync_all()?;
        notes.add(format!("overwrite {n}"));
    }
    Ok(())
}

/// Returns the block to which the n-th write goes.
fn place_of(n: u64) -> u64 {
    if n < BLOCKS { n } else { n.wrapping_mul(0x9E37_79B9) % BLOCKS }
}

fn replace(dir: &Path, notes: &Notes) -> io::Result<()> {
    for version in 0.. {
        let temporary = dir.join("replace.new");
        let file = File::create(&temporary)?;
        (&file).write_all(&contents("replace", version, version_len(version)))?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join("replace"))?;
        File::open(dir)?.sync_all()?;
        notes.add(format!("replace {version}"));
    }
    Ok(())
}

fn create(dir: &Path, notes: &Notes) -> io::Result<()> {
    for n in 0.. {
        let sub = dir.join(format!("new {n}"));
        fs::create_dir(&sub)?;
        let file = File::create(sub.join("file"))?;
        (&file).write_all(&contents("create", n, (n % 7) as usize * 1000 + 8))?;
        file.sync_all()?;
        notes.add(format!("create {n}"));
    }
    Ok(())
}

fn sqlite(dir: &Path, notes: &Notes, mode: &str) -> io::Result<()> {
    let mut shell = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .arg(dir.join(mode))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (mut input, mut output) =
        (shell.stdin.take().expect("piped"), BufReader::new(shell.stdout.take().expect("piped")));
    let ended = (|| {
        let mut line = String::new();
        writeln!(
            input,
            "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL; CREATE TABLE t(n INTEGER PRIMARY KEY, b BLOB);"
        )?;
        for n in 1.. {
            writeln!(
                input,
                "BEGIN; INSERT INTO t VALUES({n}, randomblob({})); COMMIT; SELECT 'row', {n};",
                100 + n % 9 * 900
            )?;
            loop {
                line.clear();
                if output.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if line.trim_end() == format!("row|{n}") {
                    break;
                }
            }
            notes.add(format!("sqlite {mode} {n}"));
        }
        Ok(())
    })();
    drop(input);
    let _ = shell.kill();
    let _ = shell.wait();
    ended
}

/// Runs the loads of a round, in a process of its own; does nothing as a test of the suite.
#[test]
fn works_while_the_mount_does() {
    let Some(dir) = std::env::var_os("KITHFS_CRASH_LOAD").map(PathBuf::from) else { return };
    fs::create_dir(&dir).expect("make the round's directory");
    File::open(dir.parent().expect("the mount"))
        .and_then(|parent| parent.sync_all())
        .expect("sync the mount");
    let notes = open_notes();
    // Each ends at the first error: the mount is gone, or the disk is full.
    let until_full = |name: &str, ended: io::Result<()>| {
        if ended.is_err_and(|e| e.raw_os_error() == Some(libc::ENOSPC)) {
            notes_of_full().add(name.to_string());
        }
    };
    std::thread::scope(|scope| {
        if std::env::var_os("KITHFS_CRASH_SQLITE").is_some() {
            scope.spawn(|| sqlite(&dir, &notes, "wal"));
            scope.spawn(|| sqlite(&dir, &notes, "delete"));
            return;
        }
        scope.spawn(|| until_full("append", append(&dir, &notes)));
        scope.spawn(|| until_full("overwrite", overwrite(&dir, &notes)));
        scope.spawn(|| until_full("replace", replace(&dir, &notes)));
        scope.spawn(|| until_full("create", create(&dir, &notes)));
    });
}

/// Reads a file of any mode.
fn read(path: &Path) -> Vec<u8> {
    let mode = fs::metadata(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .permissions()
        .mode();
    if mode & 0o400 == 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("make it readable");
    }
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares the files with the notes, in a process of its own; does nothing as a test of the suite.
#[test]
fn finds_what_was_acknowledged() {
    let Some(dir) = std::env::var_os("KITHFS_CRASH_VERIFY").map(PathBuf::from) else { return };
    let notes = std::env::var_os("KITHFS_CRASH_ACKNOWLEDGED").expect("the test sets it");
    let text = fs::read_to_string(notes).expect("read the notes");
    // The last line may be incomplete: it does not count.
    let lines = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
    let mut acknowledged: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in lines.lines() {
        let (kind, number) = line.rsplit_once(' ').expect("kind and number");
        acknowledged.entry(kind).or_default().push(number.parse().expect("a number"));
    }
    for (kind, numbers) in &acknowledged {
        let last = *numbers.last().expect("not empty");
        match *kind {
            "append" => verify_append(&read(&dir.join("append")), last),
            "overwrite" => verify_overwrite(&read(&dir.join("overwrite")), last),
            "replace" => {
                let bytes = read(&dir.join("replace"));
                let version = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                assert!(version >= last, "version {version} came back, {last} was acknowledged");
                assert!(
                    bytes == contents("replace", version, version_len(version)),
                    "version {version} is not whole"
                );
            }
            "create" => {
                for n in numbers {
                    let bytes = read(&dir.join(format!("new {n}/file")));
                    assert!(
                        bytes == contents("create", *n, (n % 7) as usize * 1000 + 8),
                        "file {n}"
                    );
                }
            }
            sqlite => {
                verify_sqlite(&dir, sqlite.strip_prefix("sqlite ").expect("a known load"), last)
            }
        }
    }
}

fn verify_append(bytes: &[u8], last: u64) {
    let count = (bytes.len() / RECORD) as u64;
    assert!(count > last, "{count} records are there, number {last} was acknowledged");
    for (n, record) in (0..).zip(bytes.chunks(RECORD)) {
        assert!(contents("append", n, RECORD).starts_with(record), "record {n} of {count}");
    }
}

fn verify_overwrite(bytes: &[u8], last: u64) {
    assert_eq!(bytes.len(), BLOCK * BLOCKS as usize);
    let found: Vec<u64> = bytes
        .chunks(BLOCK)
        .map(|block| u64::from_le_bytes(block[..8].try_into().expect("8 bytes")))
        .collect();
    // Each write began when the previous one was durable: whichever is the newest, all earlier ones
    // exist.
    let newest = *found.iter().max().expect("there are blocks");
    assert!(newest >= last, "the newest write is {newest}, {last} was acknowledged");
    for (place, block) in (0..).zip(bytes.chunks(BLOCK)) {
        let wanted =
            (0..=newest).rev().find(|n| place_of(*n) == place).expect("every block was written");
        let there = found[place as usize];
        assert!(
            there == wanted,
            "block {place} holds write {there} and not {wanted}, {last} was acknowledged, {newest} is the newest"
        );
        assert!(block == contents("overwrite", there, BLOCK), "block {place} is not whole");
    }
}

fn verify_sqlite(dir: &Path, mode: &str, last: u64) {
    let output = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .arg(dir.join(mode))
        .arg("PRAGMA integrity_check; SELECT count(*), max(n) FROM t;")
        .output()
        .expect("run sqlite3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{mode}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("ok"), "{mode}: {text}");
    let (count, max) = lines.next().and_then(|line| line.split_once('|')).expect("two numbers");
    assert_eq!(count, max, "{mode}: rows are missing in the middle");
    assert!(
        max.parse::<u64>().expect("a number") >= last,
        "{mode}: {max} rows are there, {last} was acknowledged"
    );
}

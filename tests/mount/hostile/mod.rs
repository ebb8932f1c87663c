//! The storage host changes ciphertext beneath a live mount, while programs read, append and map.
//! Every byte that a program reads is from one authenticated version of the file, or the program
//! gets an error. Every file that is sealed afterwards is the result of the programs' own writes to
//! one such version. `scripts/check-uring.sh` runs these tests over io_uring too.

mod acknowledged;
mod honest;
mod random;
mod replaced;
mod versions;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::mounted::{Mount, Scratch, can_mount, expect_code};

/// Returns contents that show where each byte is from.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |i: usize| (seed << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

/// The storage host of a vault with a file `f`, whose ciphertext it reads and changes.
struct Host {
    scratch: Scratch,
    /// The ciphertext of the file `f`.
    stored: PathBuf,
}

impl Host {
    /// Creates a vault with a file `f` that has these contents.
    fn new(init: &[&str], contents: &[u8]) -> Host {
        let scratch = Scratch::new(init);
        let mut host = Host { scratch, stored: PathBuf::new() };
        host.put(contents);
        let map = expect_code(host.scratch.kithfs("map").arg(host.scratch.vault()).arg("f"), 0);
        host.stored = host.scratch.vault().join(String::from_utf8(map.stdout).unwrap().trim());
        host
    }

    /// Stores another version of `f` while nothing is mounted.
    fn put(&self, contents: &[u8]) {
        let file = self.scratch.path().join("contents");
        fs::write(&file, contents).unwrap();
        expect_code(self.scratch.kithfs("put").arg(self.scratch.vault()).arg("f").arg(&file), 0);
    }

    /// Returns the current ciphertext.
    fn keep(&self) -> Vec<u8> {
        fs::read(&self.stored).unwrap()
    }

    /// Stores each of two versions and returns their ciphertexts; the second one stays.
    fn keep_both(first: &[u8], second: &[u8], init: &[&str]) -> (Host, Vec<u8>, Vec<u8>) {
        let host = Host::new(init, first);
        let old = host.keep();
        host.put(second);
        let new = host.keep();
        (host, old, new)
    }

    fn mount(&self, options: &[&str]) -> Mount {
        self.scratch.mount(options)
    }

    /// Path of `f` in the mount.
    fn plain(&self) -> PathBuf {
        self.scratch.point().join("f")
    }

    /// Returns the contents of `f`, and of all other files, in the mount.
    fn files(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let others = fs::read_dir(self.scratch.point())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| *path != self.plain())
            .map(|path| fs::read(path).unwrap())
            .collect();
        (fs::read(self.plain()).unwrap(), others)
    }

    /// Returns the contents of `f` by a command, while nothing is mounted.
    fn cat(&self) -> Vec<u8> {
        expect_code(self.scratch.kithfs("cat").arg(self.scratch.vault()).arg("f"), 0).stdout
    }

    /// Overwrites the ciphertext in the same inode.
    fn overwrite(&self, ciphertext: &[u8]) {
        let file = File::options().write(true).open(&self.stored).unwrap();
        file.write_all_at(ciphertext, 0).unwrap();
        file.set_len(ciphertext.len() as u64).unwrap();
    }

    /// Replaces the ciphertext by a rename, as a sync tool does.
    fn replace(&self, ciphertext: &[u8]) {
        let new = self.scratch.path().join("arriving");
        fs::write(&new, ciphertext).unwrap();
        fs::rename(&new, &self.stored).unwrap();
    }
}

fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    file.write_all(line)?;
    file.sync_all()
}

/// Reads a file in pieces of `piece` bytes.
fn read_by(path: &Path, piece: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut all, mut buf) = (Vec::new(), vec![0; piece]);
    loop {
        match file.read(&mut buf)? {
            0 => return Ok(all),
            read => all.extend_from_slice(&buf[..read]),
        }
    }
}

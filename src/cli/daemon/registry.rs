//! The mounts of this user: one small file for each, from which `mounts` and `umount` find the
//! daemon of a mount.
//!
//! Rules that hold here
//! * The files are hints and prove nothing. A mount is live only if the process of its entry runs
//!   (ID and start time) and kithfs is mounted at its mount point. Entries of processes that have
//!   ended are stale and are removed. A daemon that still writes after the unmount keeps its entry.
//! * The directory belongs to the user, and no other user can write to it; otherwise it is not
//!   used.
//!
//! Path: `/run/kithfs/mounts` for root, `$XDG_RUNTIME_DIR/kithfs/mounts` for others. Without that
//! variable, it is `mounts-HOST` in the state directory, which several machines may share. The path
//! is never in a directory in which another user could have taken the name first.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::daemon::process::{ProcessId, in_user_namespace};
use crate::cli::display::{JsonPath, path as shown};
use crate::cli::error::Error;
use crate::cli::user::directories;
use crate::fuse::mounts::{self, MountEntry};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The vault.
    pub vault: JsonPath,
    /// The mount point.
    pub mountpoint: JsonPath,
    /// The daemon.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Time of the mount, in seconds since 1970.
    pub since: i64,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// Whether requests come over io_uring, not over /dev/fuse.
    #[serde(default)]
    pub io_uring: bool,
}

/// Length limit of an entry, in bytes: two paths of maximal length in hexadecimal, and some
/// reserve.
const ENTRY_MAX: u64 = 32 * 1024;

/// Extension of the file in which a daemon reports that its last writes failed.
const FAILED: &str = "failed";
/// Extension of the control socket of a daemon.
const SOCKET: &str = "sock";

/// The directory of the entries.
pub struct Registry {
    dir: PathBuf,
}

/// An entry of a mount that this process serves; removed on drop.
pub struct Registered {
    path: PathBuf,
}

impl Registered {
    /// Returns the path of this process's control socket.
    pub fn socket(&self) -> PathBuf {
        self.path.with_extension(SOCKET)
    }

    /// Tells the command that waits for this process that some writes failed.
    pub fn leave_failure(&self, message: &str) -> io::Result<()> {
        std::fs::write(self.path.with_extension(FAILED), message)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A file that remains is stale and is removed by the next reader.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Registry {
    /// Opens the registry of this user, and creates it if it is missing.
    ///
    /// # Errors
    /// Those of creating the directory; it belongs to another user or other users can write to it.
    pub fn open() -> io::Result<Registry> {
        let uid = rustix::process::geteuid().as_raw();
        let is_of_machine = uid == 0 && !in_user_namespace();
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let place = place(is_of_machine, runtime_dir, directories::state, &host())
            .map_err(|error| io::Error::other(error.to_string()))?;
        Registry::open_at(&place, uid)
    }

    /// Opens the registry in `dir`. This directory and the one above it must belong to the user
    /// `uid` and be writable for no other user; missing ones are created.
    fn open_at(dir: &Path, uid: u32) -> io::Result<Registry> {
        if let Some(parent) = dir.parent() {
            directories::make_parent(parent)
                .map_err(|error| io::Error::other(error.to_string()))?;
            make_private(parent, uid)?;
        }
        make_private(dir, uid)?;
        Ok(Registry { dir: dir.to_owned() })
    }

    /// Adds an entry for a mount of this process.
    pub fn add(&self, entry: &Entry) -> io::Result<Registered> {
        let path = self.path_of(entry.process);
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(&serde_json::to_vec(entry)?)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(Registered { path })
    }

    fn path_of(&self, process: ProcessId) -> PathBuf {
        self.dir.join(format!("{}-{}.json", process.pid, process.start_ticks))
    }

    /// Returns the path of a daemon's control socket.
    pub fn socket_of(&self, process: ProcessId) -> PathBuf {
        self.path_of(process).with_extension(SOCKET)
    }

    /// Returns the latest entry of `mountpoint` whose process runs, either mounted or still writing
    /// after the unmount.
    pub fn serving(&self, mountpoint: &Path) -> io::Result<Option<Entry>> {
        let mut entries = self.entries()?;
        entries.retain(|entry| entry.mountpoint.0 == mountpoint && entry.process.is_running());
        Ok(entries.into_iter().max_by_key(|entry| (entry.since, entry.process.start_ticks)))
    }

    /// Returns the failure that a process has reported at its end, once.
    pub fn take_failure(&self, process: ProcessId) -> Option<String> {
        let path = self.path_of(process).with_extension(FAILED);
        let message = read_bounded(&path).ok()??;
        let _ = std::fs::remove_file(&path);
        Some(String::from_utf8_lossy(&message).into_owned())
    }

    /// Returns the entries of all processes that run, mounted or not. Removes invalid entries, and
    /// those of processes that have ended.
    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for item in std::fs::read_dir(&self.dir)? {
            let path = item?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read_entry(&path) {
                Ok(Some(entry)) if entry.process.is_running() => entries.push(entry),
                Ok(_) => {
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::remove_file(path.with_extension(SOCKET));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// Returns the live mounts, oldest first, and removes stale entries.
    pub fn live(&self) -> io::Result<Vec<Entry>> {
        self.live_among(&mounts::mounts()?)
    }

    /// Returns the daemons of a vault that were unmounted and are still writing.
    pub fn writing(&self, vault: &Path) -> io::Result<Vec<ProcessId>> {
        let live = self.live()?;
        let mut entries = self.entries()?;
        entries.retain(|entry| {
            entry.vault.0 == vault
                && !entry.read_only
                && !live.iter().any(|other| other.process == entry.process)
        });
        Ok(entries.into_iter().map(|entry| entry.process).collect())
    }

    fn live_among(&self, mounts: &[MountEntry]) -> io::Result<Vec<Entry>> {
        let mut live = self.entries()?;
        // A daemon that was unmounted and is still writing keeps its entry, so that another
        // `umount` can wait for it.
        live.retain(|entry| {
            mounts.iter().any(|mount| mount.mountpoint == entry.mountpoint.0 && mount.is_kithfs())
        });
        live.sort_by_key(|entry| (entry.since, entry.process.pid));
        Ok(live)
    }
}

/// Reads an entry; `None` if the file is invalid.
fn read_entry(path: &Path) -> io::Result<Option<Entry>> {
    Ok(read_bounded(path)?.and_then(|text| serde_json::from_slice(&text).ok()))
}

/// Reads a small file; `None` if it is larger. Never follows a symlink and never blocks on a FIFO.
fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let mut text = Vec::new();
    file.take(ENTRY_MAX + 1).read_to_end(&mut text)?;
    Ok((text.len() as u64 <= ENTRY_MAX).then_some(text))
}

/// Returns the directory of a user's registry. `is_of_machine`: the user is root of the machine,
/// and not only of a user namespace, where `/run` can be that of the machine.
fn place(
    is_of_machine: bool,
    runtime_dir: Option<PathBuf>,
    state: impl FnOnce() -> Result<PathBuf, Error>,
    host: &str,
) -> Result<PathBuf, Error> {
    match runtime_dir {
        _ if is_of_machine => Ok(PathBuf::from("/run/kithfs/mounts")),
        Some(dir) if dir.is_absolute() && dir.is_dir() => Ok(dir.join("kithfs/mounts")),
        _ => Ok(state()?.join(format!("mounts-{host}"))),
    }
}

/// Returns the name of this machine as part of a file name.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Creates a directory of mode 0700, or checks that an existing one belongs to this user only: in a
/// shared runtime directory, another user may have created it first.
fn make_private(dir: &Path, uid: u32) -> io::Result<()> {
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", shown(dir)));
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let stat = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !stat.is_dir() || stat.uid() != uid || stat.mode() & 0o022 != 0 {
        let why = "is not a directory that only this user can write to";
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn registry() -> (tempfile::TempDir, Registry) {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open_at(&dir.path().join("kithfs/mounts"), me()).unwrap();
        (dir, registry)
    }

    fn entry(mountpoint: &str, process: ProcessId) -> Entry {
        Entry {
            vault: JsonPath("/v".into()),
            mountpoint: JsonPath(mountpoint.into()),
            process,
            since: 5,
            read_only: false,
            io_uring: false,
        }
    }

    fn mount(at: &str, fstype: &str) -> MountEntry {
        let device = mounts::DeviceId { major: 0, minor: 9 };
        MountEntry {
            device,
            mountpoint: at.into(),
            fstype: fstype.into(),
            source: "v".into(),
            options: String::new(),
        }
    }

    #[test]
    fn a_live_mount_is_listed_until_it_is_dropped() {
        let (_dir, registry) = registry();
        let entry = entry("/m", ProcessId::current().unwrap());
        let mounts = [mount("/m", "fuse.kithfs")];
        let registered = registry.add(&entry).unwrap();
        assert_eq!(registry.live_among(&mounts).unwrap(), [entry]);
        drop(registered);
        assert_eq!(registry.live_among(&mounts).unwrap(), []);
    }

    #[test]
    fn an_entry_needs_its_process_and_its_mount() {
        let (_dir, registry) = registry();
        let me = ProcessId::current().unwrap();
        let mounts = [mount("/m", "fuse.kithfs"), mount("/other", "ext4")];
        let kept = registry.add(&entry("/other", me)).unwrap();
        assert_eq!(registry.live_among(&mounts).unwrap(), [], "another filesystem is there");
        assert!(kept.path.exists(), "its process still runs");
        let stale = registry
            .add(&entry("/m", ProcessId { start_ticks: me.start_ticks + 1, ..me }))
            .unwrap();
        assert_eq!(registry.live_among(&mounts).unwrap(), [], "the number was used again");
        assert!(!stale.path.exists(), "it was removed");
    }

    #[test]
    fn a_daemon_that_still_writes_is_found_and_leaves_word() {
        let (_dir, registry) = registry();
        let me = ProcessId::current().unwrap();
        let registered = registry.add(&entry("/m", me)).unwrap();
        assert_eq!(
            registry.serving(Path::new("/m")).unwrap(),
            Some(entry("/m", me)),
            "mounted or not"
        );
        assert_eq!(registry.serving(Path::new("/n")).unwrap(), None);
        assert_eq!(registry.take_failure(me), None);
        registered.leave_failure("disk full").unwrap();
        drop(registered);
        assert_eq!(registry.take_failure(me).as_deref(), Some("disk full"));
        assert_eq!(registry.take_failure(me), None, "it is told once");
    }

    #[test]
    fn garbage_is_removed() {
        let (_dir, registry) = registry();
        let file = registry.dir.join("1-2.json");
        for garbage in [&b"{"[..], b"[]", b"", &vec![b' '; 1 << 20]] {
            std::fs::write(&file, garbage).unwrap();
            assert_eq!(registry.live_among(&[]).unwrap(), []);
            assert!(!file.exists());
        }
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("kithfs");
        let open = |base: &Path, uid| Registry::open_at(&base.join("mounts"), uid);
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        assert!(open(&base, me()).is_err(), "all can write to it");
        std::fs::set_permissions(&base, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        assert!(open(&base, me() + 1).is_err(), "it belongs to another");
        assert!(open(&base, me()).is_ok());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert!(open(&link, me()).is_err(), "a link can be turned elsewhere");
    }

    #[test]
    fn each_user_has_a_place() {
        // Without a runtime directory the path was /tmp/kithfs-UID, which another user could take
        // first; then mounts were not found.
        let run = tempfile::tempdir().unwrap();
        let place = |is_of_machine, runtime_dir| {
            place(is_of_machine, runtime_dir, || Ok("/home/ann/.local/state/kithfs".into()), "desk")
        };
        assert_eq!(place(true, Some(run.path().into())).unwrap(), Path::new("/run/kithfs/mounts"));
        assert_eq!(
            place(false, Some(run.path().into())).unwrap(),
            run.path().join("kithfs/mounts"),
            "not that of the machine's root"
        );
        for none in [None, Some("relative".into()), Some("/no/such/directory".into())] {
            assert_eq!(
                place(false, none).unwrap(),
                Path::new("/home/ann/.local/state/kithfs/mounts-desk")
            );
        }
        assert!(super::place(false, None, || Err(Error::NoHome), "desk").is_err());
        assert!(host().chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{}", host());
    }
}

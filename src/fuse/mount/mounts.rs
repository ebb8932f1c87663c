//! The mount table, and the processes that use a mount.
//!
//! Rules that hold here
//! * Nothing here sends a request to the mounted filesystem, because its daemon may be dead, or be
//!   this process. The exception is [`is_dead`].
//! * No other process is waited for without end. The kernel locks the memory of a process that waits
//!   for a filesystem, and its command line and its mapped files cannot be read meanwhile.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::options::SUBTYPE;

/// The name under which the program is run as the helper that calls `syncfs`, and the name of its
/// process. No command of a user has this name.
pub const ASKER: &str = "kithfs-syncfs";

/// Number of a mounted filesystem, as in `st_dev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    /// Major number; 0 for FUSE.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The number of the filesystem.
    pub device: DeviceId,
    /// Type, such as `fuse.kithfs`.
    pub fstype: OsString,
    /// Source, such as the path of the vault.
    pub source: OsString,
    /// Options of the mount and of the filesystem, with commas.
    pub options: String,
}

impl MountEntry {
    /// Returns whether the mount is served by kithfs.
    pub fn is_kithfs(&self) -> bool {
        self.fstype.as_bytes().strip_prefix(b"fuse.") == Some(SUBTYPE.as_bytes())
    }
}

/// Returns the mount table of this process, lowest first: of two mounts at one place the later one
/// is on top.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    const TABLE: &str = "/proc/self/mountinfo";
    // The error is changed so that it names the mount table. Otherwise it would look like an error
    // of the mount point that the caller has asked about.
    let table =
        fs::read(TABLE).map_err(|error| io::Error::other(format!("read {TABLE}: {error}")))?;
    Ok(parse(&table))
}

/// Returns the topmost mount at `mountpoint`, which must be absolute and free of symbolic links.
pub fn mount_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|entry| entry.mountpoint == mountpoint))
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// Parses a line such as `36 35 0:45 / /mnt rw,nosuid shared:1 - fuse.kithfs /vault rw,user_id=0`.
/// Returns `None` for a line of another form.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|&field| field == b"-")?;
    let device = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(MountEntry {
        mountpoint: unescape(fields.get(4)?).into(),
        device: DeviceId { major: device.0.parse().ok()?, minor: device.1.parse().ok()? },
        fstype: unescape(fields.get(dash + 1)?),
        source: unescape(fields.get(dash + 2)?),
        options: format!("{},{}", text(fields.get(5)?), text(fields.get(dash + 3)?)),
    })
}

/// Replaces the kernel's escapes, such as `\040` for a space.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let byte = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                rest = &tail[3..];
                (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
            }
            _ => {
                rest = tail;
                *first
            }
        };
        out.push(byte);
    }
    OsString::from_vec(out)
}

/// Returns `path` without symbolic links. Sends no request to a filesystem that is mounted there,
/// because its daemon may be dead.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.components().next_back()) {
        (Some(parent), Some(std::path::Component::Normal(name))) => {
            let place = fs::canonicalize(parent)?.join(name);
            // A place in the mount table is final; anything else may be a symbolic link to one.
            if mount_at(&place)?.is_some() { Ok(place) } else { fs::canonicalize(&place) }
        }
        _ => fs::canonicalize(&absolute),
    }
}

/// Returns whether the daemon of the filesystem at `place` has died. If it is alive, it gets a
/// request.
pub fn is_dead(place: &Path) -> bool {
    fs::metadata(place).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

/// A process that keeps a filesystem busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// How it uses the filesystem: `working directory`, `root directory`, `program`, `open file`,
    /// `mapped file`, or another text to be followed by the path.
    pub by: &'static str,
    /// The file or directory, if it has a name.
    pub path: Option<PathBuf>,
}

/// Maximum duration of [`holders`], which takes milliseconds unless a process is stuck.
const SEARCH: Duration = Duration::from_secs(3);

/// Returns the processes that use an object on `device`, each with the first such object. Only root
/// can see what processes of other users have open.
///
/// If a process is stuck, processes that have only mapped a file may be missing.
pub fn holders(device: DeviceId) -> Vec<Holder> {
    let (sender, found) = mpsc::channel();
    let send = move |holder| sender.send(holder).is_ok();
    let search = move || {
        // What may have to wait for a process comes last.
        let _ = processes(|process| by_link(process, device)).all(&send)
            && processes(|process| by_mapping(process, device)).all(&send);
    };
    let mut holders = BTreeMap::new();
    match std::thread::Builder::new().name("kithfs-holders".into()).spawn(search) {
        Ok(_) => {
            let end = Instant::now() + SEARCH;
            loop {
                match found.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(holder) => drop(holders.entry(holder.pid).or_insert(holder)),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        tracing::warn!(
                            "a process of this machine is stuck: others that use the mount may not be named"
                        );
                        break;
                    }
                }
            }
        }
        Err(error) => tracing::warn!("cannot search for processes that use the mount: {error}"),
    }
    // The daemon's own helper runs only for a moment, and no user can end it.
    holders.into_values().filter(|holder| holder.name != ASKER).collect()
}

/// Returns the mount points in this process's mount namespace of each kithfs for which `is_it`
/// returns true. `mount --bind` can make several of one filesystem.
pub fn places(is_it: impl Fn(&MountEntry) -> bool) -> Vec<PathBuf> {
    mounts()
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.is_kithfs() && is_it(entry))
        .map(|entry| entry.mountpoint)
        .collect()
}

/// Returns one process for each other mount namespace with a kithfs for which `is_it` returns true.
/// A namespace begins as a copy of another one, and keeps mounts that are unmounted there. Only
/// root can see the mounts of other users' processes.
pub fn elsewhere(is_it: impl Fn(&MountEntry) -> bool) -> Vec<Holder> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    processes(|process| {
        if !seen.insert(namespace(process)?) {
            return None;
        }
        let table = parse(&fs::read(process.join("mountinfo")).ok()?);
        let found = table.into_iter().find(|entry| entry.is_kithfs() && is_it(entry))?;
        Some(("mounted in its own mount namespace at", Some(found.mountpoint)))
    })
    .collect()
}

/// Returns the processes for which `look` returns a value.
fn processes(
    mut look: impl FnMut(&Path) -> Option<(&'static str, Option<PathBuf>)>,
) -> impl Iterator<Item = Holder> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let (by, path) = look(&process.path())?;
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(Holder { pid, name: name.trim_end().to_owned(), by, path })
    })
}

fn by_link(process: &Path, device: DeviceId) -> Option<(&'static str, Option<PathBuf>)> {
    for (link, by) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")]
    {
        let link = process.join(link);
        if is_on(&link, device) {
            return Some((by, fs::read_link(link).ok()));
        }
    }
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let open = descriptors.map(|entry| entry.path()).find(|link| is_on(link, device))?;
    Some(("open file", fs::read_link(open).ok()))
}

fn by_mapping(process: &Path, device: DeviceId) -> Option<(&'static str, Option<PathBuf>)> {
    let maps = fs::read(process.join("maps")).ok()?;
    let path = maps.split(|&b| b == b'\n').find_map(|line| mapped_from(line, device))?;
    Some(("mapped file", path))
}

/// Returns whether a link leads to an object on `device`. The kernel knows the device of every
/// object, and with `DONT_SYNC` it sends no GETATTR.
fn is_on(link: &Path, device: DeviceId) -> bool {
    statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).is_ok_and(|stat| {
        DeviceId { major: stat.stx_dev_major, minor: stat.stx_dev_minor } == device
    })
}

/// Parses a line such as `7f00-7f01 r--p 00000000 00:2d 12     /mnt/file`. Returns the path if the
/// line maps a file of `device`.
fn mapped_from(line: &[u8], device: DeviceId) -> Option<Option<PathBuf>> {
    let mut fields = line.splitn(6, |&b| b == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(3)?).ok()?.split_once(':')?;
    let found = DeviceId {
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
    };
    let path = fields.nth(1).map_or(&b""[..], <[u8]>::trim_ascii_start);
    (found == device).then(|| (!path.is_empty()).then(|| OsStr::from_bytes(path).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = br"22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
36 22 0:45 / /mnt/with\040space rw,nosuid,nodev - fuse.kithfs /vault\054\134 rw,user_id=0
37 22 0:46 / /mnt/with\040space rw - fuse.gocryptfs /cipher rw
no table line
";

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 3);
        assert_eq!(table[1].mountpoint, Path::new("/mnt/with space"));
        assert_eq!(table[1].source, r"/vault,\");
        assert_eq!(table[1].device, DeviceId { major: 0, minor: 45 });
        assert_eq!(table[1].options, "rw,nosuid,nodev,rw,user_id=0");
        assert_eq!(
            table.iter().map(MountEntry::is_kithfs).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(unescape(br"\0409\04"), r" 9\04");
    }

    #[test]
    fn a_mapping_names_its_device_in_hex() {
        let line =
            b"7f0000000000-7f0000001000 r--p 00000000 00:2d 12                         /mnt/a file";
        assert_eq!(
            mapped_from(line, DeviceId { major: 0, minor: 45 }),
            Some(Some(PathBuf::from("/mnt/a file")))
        );
        assert_eq!(mapped_from(line, DeviceId { major: 0, minor: 46 }), None);
        assert_eq!(
            mapped_from(
                b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ",
                DeviceId { major: 0, minor: 0 }
            ),
            Some(None)
        );
        assert_eq!(mapped_from(b"", DeviceId { major: 0, minor: 0 }), None);
    }

    #[test]
    fn this_process_holds_the_filesystem_of_its_program() {
        let exe = std::env::current_exe().unwrap();
        let stat = statx(CWD, &exe, AtFlags::empty(), StatxFlags::empty()).unwrap();
        let device = DeviceId { major: stat.stx_dev_major, minor: stat.stx_dev_minor };
        assert!(holders(device).iter().any(|holder| holder.pid == std::process::id()));
    }
}

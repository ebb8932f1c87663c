//! What is mounted, who uses it, and unmounting: only what is ours.
//!
//! Rules that hold here
//! * Nothing is unmounted before the mount table says that the topmost mount at that very place is
//!   a kithfs (and, where the caller knows it, the one with his device number).
//! * Nothing here asks the mounted filesystem for anything: its daemon may be dead or be the
//!   caller.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::UnmountFlags;

use super::handover;
use super::mount::MountError;
use super::options::SUBTYPE;

/// How long unmounting is tried where nobody is seen who keeps the mount busy, and after which time
/// each time.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(2);
const UNSEEN_STEP: Duration = Duration::from_millis(20);

/// Number of a mounted filesystem, as `st_dev` has it.
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
    /// Where.
    pub mountpoint: PathBuf,
    /// Which.
    pub device: DeviceId,
    /// Type, such as `fuse.kithfs`.
    pub fstype: OsString,
    /// Source, such as the path of the vault.
    pub source: OsString,
    /// Options of the mount and of the filesystem, with commas.
    pub options: String,
}

impl MountEntry {
    /// True for a mount that is served by kithfs.
    pub fn is_kithfs(&self) -> bool {
        self.fstype.as_bytes().strip_prefix(b"fuse.") == Some(SUBTYPE.as_bytes())
    }
}

/// The mount table of this process, lowest first: of two mounts at one place the later one is on
/// top.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    const TABLE: &str = "/proc/self/mountinfo";
    // Not as it is: who asked about a mount point would take it for the kind of error that the
    // mount point has.
    let table =
        fs::read(TABLE).map_err(|error| io::Error::other(format!("read {TABLE}: {error}")))?;
    Ok(parse(&table))
}

/// The topmost mount at `mountpoint`, which must be absolute and free of symbolic links.
pub fn mount_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|entry| entry.mountpoint == mountpoint))
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 0:45 / /mnt rw,nosuid shared:1 - fuse.kithfs /vault rw,user_id=0`; lines of another shape
/// are passed over.
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

/// Takes back the kernel's `\040` for a space and its like.
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

/// `path` without symbolic links, found without asking what is mounted there: its daemon may be
/// dead.
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

/// Whether the daemon of what is mounted at `place` has died. Asks that daemon, where it lives.
pub fn is_dead(place: &Path) -> bool {
    fs::metadata(place).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

/// A process that keeps a filesystem busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// By what: `working directory`, `root directory`, `program`, `open file`, `mapped file`, or
    /// what else it is that a path follows.
    pub by: &'static str,
    /// The file or directory, where it has a name.
    pub path: Option<PathBuf>,
}

/// The processes that have something open on `device`, each with the first thing found. Of other
/// users' processes only root sees what they hold.
pub fn holders(device: DeviceId) -> Vec<Holder> {
    processes(|process| held(process, device))
}

/// Where in this process's own mount namespace a kithfs is mounted of which `is_it` is true: by
/// `mount --bind` it can be in several places.
pub fn places(is_it: impl Fn(&MountEntry) -> bool) -> Vec<PathBuf> {
    mounts()
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.is_kithfs() && is_it(entry))
        .map(|entry| entry.mountpoint)
        .collect()
}

/// The processes, one for each mount namespace other than this one's, in which a kithfs of which
/// `is_it` is true is mounted: such a namespace began as a copy of another one, and keeps what is
/// unmounted there. Of other users' processes only root sees the mounts.
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
}

/// The processes for which `look` has an answer, by number.
fn processes(
    mut look: impl FnMut(&Path) -> Option<(&'static str, Option<PathBuf>)>,
) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut holders: Vec<Holder> = processes
        .flatten()
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let (by, path) = look(&process.path())?;
            let name = fs::read_to_string(process.path().join("comm"))
                .unwrap_or_default()
                .trim_end()
                .to_owned();
            Some(Holder { pid, name, by, path })
        })
        .collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

fn held(process: &Path, device: DeviceId) -> Option<(&'static str, Option<PathBuf>)> {
    // Of the daemon's own for a moment, which nobody can be told to end.
    if fs::read(process.join("cmdline"))
        .is_ok_and(|line| line.split(|&b| b == 0).next() == Some(handover::ASKER.as_bytes()))
    {
        return None;
    }
    for (link, by) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")]
    {
        let link = process.join(link);
        if is_on(&link, device) {
            return Some((by, fs::read_link(link).ok()));
        }
    }
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    if let Some(open) = descriptors.map(|entry| entry.path()).find(|link| is_on(link, device)) {
        return Some(("open file", fs::read_link(open).ok()));
    }
    let maps = fs::read(process.join("maps")).ok()?;
    maps.split(|&b| b == b'\n')
        .find_map(|line| mapped_from(line, device))
        .map(|path| ("mapped file", path))
}

/// Asks for nothing but the device, which no filesystem is asked for: `DONT_SYNC` keeps the kernel
/// from sending GETATTR.
fn is_on(link: &Path, device: DeviceId) -> bool {
    statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).is_ok_and(|stat| {
        DeviceId { major: stat.stx_dev_major, minor: stat.stx_dev_minor } == device
    })
}

/// `7f00-7f01 r--p 00000000 00:2d 12     /mnt/file`: the path where the line maps a file of
/// `device`.
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

/// Unmounts the kithfs at `mountpoint`: as root by umount2(2), else through `fusermount3 -u`.
///
/// `expected` is the device number where the caller knows which filesystem he means. A lazy one
/// disappears from the tree at once and ends when nobody uses it any more.
///
/// Where nobody is seen who keeps it busy it is tried for two seconds.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::NotOurs`], [`MountError::Busy`] with the processes
/// that keep it busy, and those of the calls.
pub fn unmount(
    mountpoint: &Path,
    expected: Option<DeviceId>,
    lazy: bool,
) -> Result<(), MountError> {
    let since = Instant::now();
    loop {
        match unmount_once(mountpoint, expected, lazy) {
            // Who was about to end, or a file that was about to be closed, is gone in a moment.
            Err(MountError::Busy { holders, .. })
                if holders.is_empty() && since.elapsed() < UNSEEN_PATIENCE =>
            {
                thread::sleep(UNSEEN_STEP);
            }
            result => return result,
        }
    }
}

fn unmount_once(
    mountpoint: &Path,
    expected: Option<DeviceId>,
    lazy: bool,
) -> Result<(), MountError> {
    let failed = |op| move |source| MountError::Io { op, path: mountpoint.to_owned(), source };
    let place = resolve(mountpoint).map_err(failed("find mount point"))?;
    let found = mount_at(&place).map_err(failed("read mount table"))?;
    let entry = found.ok_or_else(|| MountError::NotMounted { path: place.clone() })?;
    if !entry.is_kithfs() || expected.is_some_and(|expected| expected != entry.device) {
        return Err(MountError::NotOurs { path: place, fstype: entry.fstype });
    }
    if rustix::process::geteuid().is_root() {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, lazy);
        match rustix::mount::unmount(&place, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => {
                Err(MountError::Busy { path: place, holders: holders(entry.device) })
            }
            Err(error) => Err(MountError::Io { op: "unmount", path: place, source: error.into() }),
        }
    } else {
        unmount_as_user(&place, entry.device, lazy)
    }
}

fn unmount_as_user(place: &Path, device: DeviceId, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.env("LC_ALL", "C").arg("-u").args(lazy.then_some("-z")).arg("--").arg(place);
    let output = command.output().map_err(MountError::fusermount_start)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr)
        .trim()
        .trim_start_matches("fusermount3: ")
        .to_owned();
    if message.contains("busy") {
        return Err(MountError::Busy { path: place.to_owned(), holders: holders(device) });
    }
    Err(MountError::Fusermount { path: place.to_owned(), message })
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

    /// fuser 0.18 looked only whether *something* was mounted and, with the check upside down,
    /// unmounted filesystems of others.
    #[test]
    fn what_is_not_ours_is_not_unmounted() {
        assert!(matches!(unmount(Path::new("/proc"), None, true), Err(MountError::NotOurs { .. })));
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(dir.path(), None, true), Err(MountError::NotMounted { .. })));
    }
}

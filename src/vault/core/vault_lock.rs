//! The vault lock: the control file `+lock`, locked as long as its owner lives, names the process
//! that has the vault open.
//!
//! Rules that hold here
//! * The lock is a kernel lock (`flock`), so a crash frees it. The text in the file is for people
//!   only: host, process, start time.
//! * Concurrent openers hold a shared lock. Each also has a *card*, a file of its own with the same
//!   text, locked exclusively as long as its owner lives. A card is informative only.
//! * If another program removes the lock file, another daemon can open the vault. The holder polls
//!   for that, and stops writing if another daemon got in.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::crypto::{Random, hmac, labels};
use crate::store::{Access, Dir, File, Lock};
use crate::vault::core::name_lock::lock_perm;
use crate::vault::error::{Inner, LockHolder, is_no_space};
use crate::vault::share::control_files::entries;

/// Name of the lock file.
pub(crate) const LOCK_FILE: &[u8] = b"+lock";

/// Prefix of the names of cards.
const CARD: &[u8] = b"+lock-";

/// A held lock.
pub(crate) struct VaultLock {
    root: Arc<dyn Dir>,
    file: Arc<dyn File>,
    how: Lock,
    /// The card of this process, if the lock is shared.
    card: Option<(Vec<u8>, Arc<dyn File>)>,
}

/// How long an attempt to take a shared lock retries while other openers come or go, and the poll
/// interval.
const SHARED_TAKES: Duration = Duration::from_secs(1);
const SHARED_ASKED: Duration = Duration::from_millis(5);

/// Outcome of an attempt.
pub(crate) enum Attempt {
    Held(VaultLock),
    /// Another process holds it.
    Taken(LockHolder),
}

/// Takes the lock for this process, exclusively or shared.
pub(crate) fn take(root: &Arc<dyn Dir>, how: Lock, random: &dyn Random) -> Inner<Attempt> {
    let begun = Instant::now();
    let perm = if how == Lock::Shared { lock_perm(&**root)? } else { 0o600 };
    loop {
        let file = match root.open_file(LOCK_FILE, Access::ReadWrite) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                match root.create_file(LOCK_FILE, perm) {
                    Err(e) if e.raw_os_error() == Some(libc::EEXIST) => continue,
                    other => other?,
                }
            }
            other => other?,
        };
        if !file.try_lock(how)? {
            if how == Lock::Shared && begun.elapsed() < SHARED_TAKES {
                std::thread::sleep(SHARED_ASKED); // an opener that leaves holds it exclusively for a moment
                continue;
            }
            return Ok(Attempt::Taken(read_holder(&*file)?));
        }
        // The last owner may have removed the file between the open and the lock: then this lock
        // protects nothing.
        if !is_there(&**root, &*file)? {
            continue;
        }
        let text = text();
        file.set_len(0)?;
        match file.write_at(text.as_bytes(), 0) {
            // A full store is opened all the same; otherwise nothing in it could be deleted. The
            // lock is the kernel's; only its text is missing.
            Err(e) if is_no_space(e.raw_os_error().unwrap_or(0)) => {}
            other => other?,
        }
        let card = if how == Lock::Shared { card(&**root, perm, &text, random) } else { None };
        return Ok(Attempt::Held(VaultLock { root: root.clone(), file, how, card }));
    }
}

/// Returns the text that names this process.
fn text() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{}\n{}\n{since}\n", host(), std::process::id())
}

/// Returns whether the open file is the one that other processes find.
fn is_there(root: &dyn Dir, file: &dyn File) -> Inner<bool> {
    match root.stat(LOCK_FILE) {
        Ok(stat) => Ok(stat.ino == file.stat()?.ino),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Creates this process's card. It is informative, so its absence causes no error.
fn card(
    root: &dyn Dir,
    perm: u32,
    text: &str,
    random: &dyn Random,
) -> Option<(Vec<u8>, Arc<dyn File>)> {
    remove_left_cards(root);
    let mut id = [0; 8];
    random.fill(&mut id);
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let name = [CARD, hex.as_bytes()].concat();
    let made = root.create_file(&name, perm).and_then(|file| {
        file.try_lock(Lock::Exclusive)?;
        file.write_at(text.as_bytes(), 0)?;
        Ok(file)
    });
    made.inspect_err(|e| tracing::debug!("cannot create the card of this process: {e}"))
        .ok()
        .map(|file| (name, file))
}

/// Removes cards whose owners are gone. A card without text may be in creation.
fn remove_left_cards(root: &dyn Dir) {
    let Ok(entries) = entries(root) else { return };
    for entry in entries.filter_map(Inner::ok).filter(|entry| entry.name.starts_with(CARD)) {
        let left = root
            .open_file(&entry.name, Access::ReadWrite)
            .and_then(|file| Ok(file.stat()?.size > 0 && file.try_lock(Lock::Exclusive)?));
        if left.unwrap_or(false) {
            let _ = root.unlink(&entry.name);
        }
    }
}

/// Returns whether any process holds the lock now, exclusively or shared.
pub(crate) fn is_held(root: &Arc<dyn Dir>) -> Inner<bool> {
    Ok(holder(root)?.is_some() || !sharers(&**root)?.is_empty())
}

/// Returns the process that holds the lock exclusively now, if any.
pub(crate) fn holder(root: &Arc<dyn Dir>) -> Inner<Option<LockHolder>> {
    let file = match root.open_file(LOCK_FILE, Access::Read) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        other => other?,
    };
    if file.try_lock(Lock::Shared)? { Ok(None) } else { Ok(Some(read_holder(&*file)?)) }
}

/// Returns the processes that hold the lock shared now, the longest-held first.
pub(crate) fn sharers(root: &dyn Dir) -> Inner<Vec<LockHolder>> {
    let mut sharers = Vec::new();
    for entry in entries(root)? {
        let entry = entry?;
        if !entry.name.starts_with(CARD) {
            continue;
        }
        let file = match root.open_file(&entry.name, Access::Read) {
            // Removed by now, or not readable by this user.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EACCES)) => continue,
            other => other?,
        };
        if !file.try_lock(Lock::Shared)? {
            sharers.push(read_holder(&*file)?);
        }
    }
    sharers.sort_by(|a, b| (a.since_unix, &a.host, a.pid).cmp(&(b.since_unix, &b.host, b.pid)));
    Ok(sharers)
}

impl VaultLock {
    /// Takes the lock again if another program has removed its file. Returns `None` if the file is
    /// there, or if the store does not tell.
    pub fn taken_anew(&self, random: &dyn Random) -> Option<Inner<Attempt>> {
        match is_there(&*self.root, &*self.file) {
            Ok(false) => Some(take(&self.root, self.how, random)),
            _ => None,
        }
    }
}

/// Returns the name of this machine, for people: letters, digits, `-` and `_` only.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut clean: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_')
        .take(32)
        .collect();
    if clean.is_empty() {
        clean.push_str("host");
    }
    clean
}

/// Returns the name of this machine for the names of journals in a share: [`host`], and a hash that
/// distinguishes two machines of one name. The hash is of the system's machine id, keyed by the
/// share, so that it reveals nothing elsewhere. Without a machine id, the name is used alone.
pub(crate) fn machine(share: &[u8; 32]) -> String {
    let ids = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let id = ids.iter().find_map(|path| std::fs::read(path).ok().filter(|id| id.len() >= 32));
    machine_of(&host(), id.as_deref(), share)
}

fn machine_of(host: &str, id: Option<&[u8]>, share: &[u8; 32]) -> String {
    let Some(id) = id else { return host.to_owned() };
    let hash = hmac(share, &[labels::MACHINE.as_bytes(), id.trim_ascii()]);
    hash[..4].iter().fold(format!("{host}-"), |name, byte| format!("{name}{byte:02x}"))
}

fn read_holder(file: &dyn File) -> Inner<LockHolder> {
    let mut bytes = [0; 256];
    let read = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or("").to_string();
    Ok(LockHolder {
        host: next(),
        pid: next().parse().unwrap_or(0),
        since_unix: next().parse().unwrap_or(0),
    })
}

impl Drop for VaultLock {
    fn drop(&mut self) {
        if let Some((name, _)) = &self.card {
            let _ = self.root.unlink(name);
        }
        // Removed while it is locked exclusively, so that it is neither another process's nor
        // shared. If another program has removed it already, the file there now belongs to another
        // process.
        if self.file.try_lock(Lock::Exclusive).is_ok_and(|alone| alone)
            && is_there(&*self.root, &*self.file).unwrap_or(false)
        {
            let _ = self.root.unlink(LOCK_FILE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_of_one_name_are_two() {
        // Two machines called "debian" took each other's journals for their own, and replayed and
        // removed journals that were in use.
        let of = |id: &[u8], share: u8| machine_of("debian", Some(id), &[share; 32]);
        let (one, two) = (
            of(b"0123456789abcdef0123456789abcdef\n", 1),
            of(b"fedcba98765432100123456789abcdef\n", 1),
        );
        assert_ne!(one, two);
        assert_eq!(one, of(b"0123456789abcdef0123456789abcdef", 1), "always the same");
        assert_ne!(one, of(b"0123456789abcdef0123456789abcdef", 2), "another one in another share");
        assert!(one.starts_with("debian-") && one.len() == "debian-".len() + 8, "{one}");
        assert_eq!(machine_of("debian", None, &[1; 32]), "debian");
    }
}

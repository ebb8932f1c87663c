//! Attributes of inodes in memory, as `stat`, `chmod`, `chown`, `utimensat` and the xattr calls use
//! them.
//!
//! Rules that hold here
//! * Every change is a step of the journal.

use rustix::io::{Errno, Result};

use super::content::BLOCK;
use super::state::State;
use super::tree::{Change, Ino, Tick, Tree, time};
use crate::store::name::NAME_MAX;
use crate::store::{Kind, SetTime, Stat, Timestamp};

/// `st_dev` of every store in memory, so a store after a power cut is the same device as before.
const DEVICE: u64 = 0x6b69_7468;

pub(super) fn stat(state: &State, ino: Ino) -> Result<Stat> {
    let inode = state.get(ino)?;
    let (size, blocks) = match inode.kind {
        Kind::File => {
            let content = state.content(ino)?;
            (content.len, content.allocated() * (BLOCK / 512))
        }
        Kind::Dir => (BLOCK, BLOCK / 512),
        Kind::Symlink => (inode.target.len() as u64, 0),
        _ => (0, 0),
    };
    Ok(Stat {
        dev: DEVICE,
        ino,
        btime: state.has_births.then_some(inode.btime),
        kind: inode.kind,
        perm: inode.perm,
        nlink: Tree::nlink(inode),
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size,
        blocks,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
    })
}

pub(super) fn chmod(state: &mut State, ino: Ino, perm: u32) -> Result<()> {
    if state.get(ino)?.kind == Kind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    state.commit(vec![Change::Perm(ino, perm & 0o7777)]);
    Ok(())
}

pub(super) fn chown(state: &mut State, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    state.commit(vec![Change::Owner(ino, uid, gid)]);
    Ok(())
}

pub(super) fn set_times(state: &mut State, ino: Ino, atime: SetTime, mtime: SetTime) -> Result<()> {
    let now: Tick = state.now();
    let convert = |set: SetTime| -> Result<Option<Timestamp>> {
        match set {
            SetTime::Omit => Ok(None),
            SetTime::Now => Ok(Some(time(now))),
            SetTime::At(at) if at.nanos < 1_000_000_000 => Ok(Some(at)),
            SetTime::At(_) => Err(Errno::INVAL),
        }
    };
    let change = Change::Times(ino, convert(atime)?, convert(mtime)?);
    state.commit(vec![change]);
    Ok(())
}

/// Fails if the key is invalid, or if this kind of inode cannot have the attribute.
fn check_key(kind: Kind, key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    match key.split(|&byte| byte == b'.').next() {
        Some(b"user") if !matches!(kind, Kind::File | Kind::Dir) => Err(Errno::PERM),
        Some(b"user" | b"trusted" | b"security" | b"system") => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

pub(super) fn get_xattr(state: &State, ino: Ino, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let inode = state.get(ino)?;
    match check_key(inode.kind, key) {
        Err(Errno::PERM) => Ok(None),
        other => other.map(|()| inode.xattrs.get(key).map(|value| value.to_vec())),
    }
}

pub(super) fn set_xattr(state: &mut State, ino: Ino, key: &[u8], value: &[u8]) -> Result<()> {
    check_key(state.get(ino)?.kind, key)?;
    if value.len() > 65536 {
        return Err(Errno::TOOBIG);
    }
    state.commit(vec![Change::Xattr(ino, key.into(), Some(value.into()))]);
    Ok(())
}

pub(super) fn remove_xattr(state: &mut State, ino: Ino, key: &[u8]) -> Result<bool> {
    let inode = state.get(ino)?;
    check_key(inode.kind, key)?;
    let existed = inode.xattrs.contains_key(key);
    if existed {
        state.commit(vec![Change::Xattr(ino, key.into(), None)]);
    }
    Ok(existed)
}

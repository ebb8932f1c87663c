//! A filesystem in memory: the least that exercises every method of the adapter.
//!
//! Its inode numbers differ from its node numbers and its directory positions are 63-bit hashes, as
//! on ext4, so that code that confuses them fails.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kithfs::fuse::ops::{
    Attr, Caller, DirCache, Entry, Errno, Fallocate, FileRange, NodeId, OpenRequest, Opened,
    OpenedDir, Operations, RenameMode, Result, SetAttr, SetXattr, Sought,
};
use kithfs::fuse::wire::kind_of_mode;
use kithfs::store::{Kind, Lock, Seek, SetTime, Space, Span, Timestamp};
use kithfs::vault::{ALONE, Handle, LockRequest, ROOT};

/// Difference between a node number and its inode number.
pub const INO_OFFSET: u64 = 1_000_000;

struct Inode {
    attr: Attr,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Name and node of each entry, by the position that continues after it.
    entries: BTreeMap<i64, (Box<[u8]>, NodeId)>,
    parent: NodeId,
    lookups: u64,
    opens: u64,
    was_open: bool,
}

#[derive(Default)]
struct State {
    inodes: HashMap<NodeId, Inode>,
    handles: HashMap<Handle, NodeId>,
    last: u64,
}

/// The filesystem.
pub struct MemFs {
    state: Mutex<State>,
    closed: Condvar,
    gate: Mutex<Gate>,
    gate_changed: Condvar,
    flushed_by: Mutex<Vec<String>>,
    largest_write: AtomicUsize,
    has_little_room: AtomicBool,
}

/// Holds up fsync or reads, as a slow disk would.
#[derive(Default)]
struct Gate {
    shut: bool,
    shut_to_reads: bool,
    waiting: usize,
}

fn no(number: i32) -> Errno {
    Errno::new(number)
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Timestamp { secs: now.as_secs() as i64, nanos: now.subsec_nanos() }
}

impl State {
    fn node(&mut self, node: NodeId) -> Result<&mut Inode> {
        self.inodes.get_mut(&node).ok_or(no(libc::ESTALE))
    }

    fn file(&mut self, handle: Handle) -> Result<&mut Inode> {
        let node = *self.handles.get(&handle).ok_or(no(libc::EBADF))?;
        self.node(node)
    }

    fn find(&mut self, parent: NodeId, name: &[u8]) -> Result<Option<(i64, NodeId)>> {
        let parent = self.node(parent)?;
        let hash = position(name);
        let found = parent
            .entries
            .range(hash..)
            .take_while(|(at, _)| **at < hash + 16)
            .find(|(_, (entry, _))| **entry == *name);
        Ok(found.map(|(at, (_, node))| (*at, *node)))
    }

    fn insert(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<()> {
        let parent = self.node(parent)?;
        let mut at = position(name);
        while parent.entries.contains_key(&at) {
            at += 1;
        }
        parent.entries.insert(at, (name.into(), node));
        parent.attr.mtime = now();
        Ok(())
    }

    fn make(
        &mut self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        perm: u32,
        data: Vec<u8>,
    ) -> Result<Attr> {
        if name.len() > 255 {
            return Err(no(libc::ENAMETOOLONG));
        }
        if self.find(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let node = self.last;
        let mut inode = inode(node, kind, perm & !caller.umask, parent);
        (inode.attr.uid, inode.attr.gid, inode.attr.size) =
            (caller.uid, caller.gid, data.len() as u64);
        inode.data = data;
        inode.lookups = 1;
        let attr = inode.attr;
        self.inodes.insert(node, inode);
        self.insert(parent, name, node)?;
        Ok(attr)
    }

    fn remove(&mut self, parent: NodeId, name: &[u8], directory: bool) -> Result<()> {
        let (at, node) = self.find(parent, name)?.ok_or(Errno::ENOENT)?;
        let inode = self.node(node)?;
        match (inode.attr.kind == Kind::Dir, directory) {
            (true, false) => return Err(no(libc::EISDIR)),
            (false, true) => return Err(no(libc::ENOTDIR)),
            (true, true) if !inode.entries.is_empty() => return Err(no(libc::ENOTEMPTY)),
            _ => inode.attr.nlink -= if directory { 2 } else { 1 },
        }
        self.node(parent)?.entries.remove(&at);
        self.collect(node);
        Ok(())
    }

    fn collect(&mut self, node: NodeId) {
        if self
            .inodes
            .get(&node)
            .is_some_and(|inode| inode.lookups == 0 && inode.opens == 0 && inode.attr.nlink == 0)
        {
            self.inodes.remove(&node);
        }
    }

    fn open(&mut self, node: NodeId) -> Result<Handle> {
        self.last += 1;
        let handle = self.last;
        self.node(node)?.opens += 1;
        self.handles.insert(handle, node);
        Ok(handle)
    }

    fn close(&mut self, handle: Handle) -> Result<()> {
        let node = self.handles.remove(&handle).ok_or(no(libc::EBADF))?;
        self.node(node)?.opens -= 1;
        self.collect(node);
        Ok(())
    }
}

fn inode(node: NodeId, kind: Kind, perm: u32, parent: NodeId) -> Inode {
    let time = now();
    let nlink = if kind == Kind::Dir { 2 } else { 1 };
    let (ino, uid, gid) = (node + INO_OFFSET, 0, 0);
    let attr = Attr {
        node,
        ino,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
    };
    Inode {
        attr,
        data: Vec::new(),
        xattrs: BTreeMap::new(),
        entries: BTreeMap::new(),
        parent,
        lookups: 0,
        opens: 0,
        was_open: false,
    }
}

/// Returns a hash of the name, positive and below the topmost positions.
fn position(name: &[u8]) -> i64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() >> 1) as i64 & !0xff | 1
}

impl Inode {
    fn resize(&mut self, size: usize) {
        self.data.resize(size, 0);
        self.attr.size = size as u64;
        self.attr.blocks = (size as u64).div_ceil(512);
        self.attr.mtime = now();
    }

    fn kill_suid_sgid(&mut self) {
        if self.attr.kind != Kind::Dir {
            self.attr.perm &= if self.attr.perm & 0o010 != 0 { !0o6000 } else { !0o4000 };
        }
    }
}

impl MemFs {
    /// Creates an empty filesystem, owned by root, that everybody may use.
    pub fn new() -> MemFs {
        let inodes = HashMap::from([(ROOT, inode(ROOT, Kind::Dir, 0o777, ROOT))]);
        MemFs {
            state: Mutex::new(State { inodes, handles: HashMap::new(), last: ROOT }),
            closed: Condvar::new(),
            gate: Mutex::default(),
            gate_changed: Condvar::new(),
            flushed_by: Mutex::default(),
            largest_write: AtomicUsize::new(0),
            has_little_room: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no operation panics")
    }

    /// Returns the number of lookups that were not forgotten, of all nodes together.
    pub fn lookups(&self) -> u64 {
        self.state().inodes.values().map(|inode| inode.lookups).sum()
    }

    /// Waits until no file or directory is open, which the kernel reports some time after the last
    /// close(2); returns false after a minute.
    pub fn wait_until_closed(&self) -> bool {
        let wait = self.closed.wait_timeout_while(self.state(), Duration::from_secs(60), |state| {
            !state.handles.is_empty()
        });
        !wait.expect("no operation panics").1.timed_out()
    }

    /// Returns the names of the threads that have begun an fsync since the last call.
    pub fn flushed_by(&self) -> Vec<String> {
        std::mem::take(&mut self.flushed_by.lock().expect("no operation panics"))
    }

    /// Returns the size of the largest write request so far, in bytes.
    pub fn largest_write(&self) -> usize {
        self.largest_write.load(Ordering::Relaxed)
    }

    /// Has little room from now on: what the kernel holds is needed before each write.
    pub fn fill_up(&self) {
        self.has_little_room.store(true, Ordering::Relaxed);
    }

    /// Makes fsync wait from now on.
    pub fn shut_gate(&self) {
        self.gate.lock().expect("no operation panics").shut = true;
    }

    /// Makes reads wait from now on.
    pub fn shut_gate_to_reads(&self) {
        self.gate.lock().expect("no operation panics").shut_to_reads = true;
    }

    /// Releases all waiting threads.
    pub fn open_gate(&self) {
        let mut gate = self.gate.lock().expect("no operation panics");
        (gate.shut, gate.shut_to_reads) = (false, false);
        drop(gate);
        self.gate_changed.notify_all();
    }

    fn pass(&self, is_shut: impl Fn(&Gate) -> bool) {
        let mut gate = self.gate.lock().expect("no operation panics");
        gate.waiting += 1;
        self.gate_changed.notify_all();
        let mut gate =
            self.gate_changed.wait_while(gate, |gate| is_shut(gate)).expect("no operation panics");
        gate.waiting -= 1;
    }

    /// Waits until this many threads wait at the gate. After a minute it releases those that
    /// came, for which a failing test would wait, and returns false.
    pub fn wait_at_gate(&self, waiting: usize) -> bool {
        let gate = self.gate.lock().expect("no operation panics");
        let wait = self
            .gate_changed
            .wait_timeout_while(gate, Duration::from_secs(60), |gate| gate.waiting < waiting);
        let came = !wait.expect("no operation panics").1.timed_out();
        if !came {
            self.open_gate();
        }
        came
    }

    /// Creates a file in the root without the kernel's knowledge.
    pub fn plant(&self, name: &[u8], data: &[u8]) -> NodeId {
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let mut state = self.state();
        let attr =
            state.make(&caller, ROOT, name, Kind::File, 0o644, data.to_vec()).expect("planting");
        state.node(attr.node).expect("just made").lookups = 0;
        attr.node
    }

    /// Changes contents without the kernel's knowledge.
    pub fn rewrite(&self, node: NodeId, data: &[u8]) {
        let mut state = self.state();
        let inode = state.node(node).expect("exists");
        inode.data = data.to_vec();
        inode.attr.size = data.len() as u64;
    }
}

impl Operations for MemFs {
    fn caching(&self, _node: NodeId) -> Option<u64> {
        Some(ALONE)
    }

    fn lookup_again(&self, _node: NodeId) -> Result<Attr> {
        Err(Errno::new(libc::ESTALE))
    }

    fn lookup_parent(&self, _node: NodeId) -> Result<Attr> {
        Err(Errno::new(libc::ESTALE))
    }

    fn write_pages(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Result<()> {
        self.write(handle, offset, data, kill_suid_sgid)
    }

    fn before_write(&self, _handle: Handle) -> Result<bool> {
        Ok(self.has_little_room.load(Ordering::Relaxed))
    }

    fn lock(&self, _handle: Handle, _request: &LockRequest) -> Result<bool> {
        Err(Errno::ENOSYS)
    }

    fn find_lock(&self, _handle: Handle, _request: &LockRequest) -> Result<Option<(Lock, Span)>> {
        Err(Errno::ENOSYS)
    }

    fn unlock_owner(&self, _handle: Handle, _owner: u64) {}

    fn pages_to_drop(&self, _handle: Handle) -> Option<[u8; 32]> {
        None
    }

    fn pages_dropped(&self, _handle: Handle, _older: [u8; 32]) {}

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        let mut state = self.state();
        let (_, node) = state.find(parent, name)?.ok_or(Errno::ENOENT)?;
        let inode = state.node(node)?;
        inode.lookups += 1;
        Ok(inode.attr)
    }

    fn forget(&self, node: NodeId, count: u64) {
        let mut state = self.state();
        if let Ok(inode) = state.node(node) {
            inode.lookups =
                inode.lookups.checked_sub(count).expect("never more forgotten than counted");
            state.collect(node);
        }
    }

    fn getattr(&self, node: NodeId) -> Result<Attr> {
        Ok(self.state().node(node)?.attr)
    }

    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        let mut state = self.state();
        let inode = state.node(node)?;
        if let Some(size) = set.size {
            inode.resize(usize::try_from(size).map_err(|_| no(libc::EFBIG))?);
        }
        if set.kill_suid_sgid {
            inode.kill_suid_sgid();
        }
        inode.attr.perm = set.perm.unwrap_or(inode.attr.perm);
        inode.attr.uid = set.uid.unwrap_or(inode.attr.uid);
        inode.attr.gid = set.gid.unwrap_or(inode.attr.gid);
        for (time, set) in [(&mut inode.attr.atime, set.atime), (&mut inode.attr.mtime, set.mtime)]
        {
            match set {
                SetTime::Omit => {}
                SetTime::Now => *time = now(),
                SetTime::At(at) => *time = at,
            }
        }
        Ok(inode.attr)
    }

    fn clear_sgid(&self, node: NodeId) -> Result<()> {
        self.state().node(node)?.attr.perm &= !0o2000;
        Ok(())
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        Ok(self.state().node(node)?.data.clone())
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        let kind = kind_of_mode(mode).ok_or(Errno::EINVAL)?;
        let mut state = self.state();
        let attr = state.make(caller, parent, name, kind, mode & 0o7777, Vec::new())?;
        let inode = state.node(attr.node)?;
        inode.attr.rdev = rdev;
        Ok(inode.attr)
    }

    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Result<Attr> {
        self.state().make(caller, parent, name, Kind::Dir, perm, Vec::new())
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.state().remove(parent, name, false)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.state().remove(parent, name, true)
    }

    fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.state().make(caller, parent, name, Kind::Symlink, 0o777, target.to_vec())
    }

    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let mut state = self.state();
        let (at, node) = state.find(parent, name)?.ok_or(Errno::ENOENT)?;
        let target = state.find(new_parent, new_name)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some((new_at, other))) => {
                state.node(parent)?.entries.insert(at, (name.into(), other));
                state.node(new_parent)?.entries.insert(new_at, (new_name.into(), node));
                state.node(other)?.parent = parent;
            }
            (_, target) => {
                if let Some((_, other)) = target {
                    let directory = state.node(other)?.attr.kind == Kind::Dir;
                    state.remove(new_parent, new_name, directory)?;
                }
                state.node(parent)?.entries.remove(&at);
                state.insert(new_parent, new_name, node)?;
            }
        }
        state.node(node)?.parent = new_parent;
        Ok(())
    }

    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let mut state = self.state();
        if state.find(new_parent, new_name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        state.insert(new_parent, new_name, node)?;
        let inode = state.node(node)?;
        inode.attr.nlink += 1;
        inode.lookups += 1;
        Ok(inode.attr)
    }

    fn open(&self, node: NodeId, request: OpenRequest) -> Result<Opened> {
        let mut state = self.state();
        let inode = state.node(node)?;
        if request.flags.truncate {
            inode.resize(0);
        }
        if request.kill_suid_sgid {
            inode.kill_suid_sgid();
        }
        // The kernel has cached nothing of a file that was never opened.
        let unknown = (!inode.was_open).then_some(inode.data.len() as u64);
        inode.was_open = true;
        Ok(Opened {
            handle: state.open(node)?,
            keep_cache: unknown.is_none(),
            alone: unknown,
            direct: false,
        })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        request: OpenRequest,
    ) -> Result<(Attr, Opened)> {
        if !request.exclusive
            && let Ok(attr) = self.lookup(parent, name)
        {
            return Ok((attr, Operations::open(self, attr.node, request)?));
        }
        let mut state = self.state();
        let attr = state.make(caller, parent, name, Kind::File, perm, Vec::new())?;
        state.node(attr.node)?.was_open = true;
        Ok((
            attr,
            Opened { handle: state.open(attr.node)?, keep_cache: true, alone: None, direct: false },
        ))
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let copied = self.state().file(handle)?.data.clone();
        self.pass(|gate| gate.shut_to_reads);
        let data = &copied;
        let rest = data.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8], kill_suid_sgid: bool) -> Result<()> {
        self.largest_write.fetch_max(data.len(), Ordering::Relaxed);
        let mut state = self.state();
        let inode = state.file(handle)?;
        let end = offset as usize + data.len();
        if inode.data.len() < end {
            inode.resize(end);
        }
        inode.data[offset as usize..end].copy_from_slice(data);
        if kill_suid_sgid {
            inode.kill_suid_sgid();
        }
        Ok(())
    }

    fn flush(&self, handle: Handle) -> Result<()> {
        self.state().file(handle).map(|_| ())
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.state().close(handle)?;
        self.closed.notify_all();
        Ok(())
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        let by = std::thread::current().name().unwrap_or_default().to_owned();
        self.flushed_by.lock().expect("no operation panics").push(by);
        self.pass(|gate| gate.shut);
        self.state().file(handle).map(|_| ())
    }

    fn opendir(&self, node: NodeId) -> Result<OpenedDir> {
        Ok(OpenedDir { handle: self.state().open(node)?, cache: DirCache::No })
    }

    fn readdir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>> {
        let mut state = self.state();
        let entries: Vec<_> = state
            .file(handle)?
            .entries
            .range(cookie + 1..)
            .map(|(next, (name, node))| (*next, name.clone(), *node))
            .collect();
        let mut room = limit;
        let mut listed = Vec::new();
        for (next, name, node) in entries {
            if !listed.is_empty() && name.len() > room {
                break;
            }
            room = room.saturating_sub(name.len());
            let attr = state.node(node)?.attr;
            listed.push(Entry { name, ino: attr.ino, kind: Some(attr.kind), next });
        }
        Ok(listed)
    }

    fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Option<Attr>> {
        let parent = *self.state().handles.get(&handle).ok_or(no(libc::EBADF))?;
        self.lookup(parent, &entry.name).map(Some)
    }

    fn parent(&self, node: NodeId) -> NodeId {
        self.state().node(node).map_or(ROOT, |inode| inode.parent)
    }

    fn releasedir(&self, handle: Handle) {
        self.release(handle).expect("only what was opened is closed");
    }

    fn fsyncdir(&self, handle: Handle, _data_only: bool) -> Result<()> {
        self.state().file(handle).map(|_| ())
    }

    fn statfs(&self) -> Result<Space> {
        Ok(Space {
            block_size: 4096,
            blocks: 1000,
            free: 600,
            available: 500,
            files: 400,
            files_free: 300,
            name_max: 255,
        })
    }

    fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
        _kill_sgid: bool,
    ) -> Result<()> {
        let mut state = self.state();
        let xattrs = &mut state.node(node)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Errno::EEXIST),
            (SetXattr::Replace, false) => return Err(no(libc::ENODATA)),
            _ => xattrs.insert(name.to_vec(), value.to_vec()),
        };
        Ok(())
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        assert_ne!(name, b"user.panic", "the test of panics reads this attribute");
        self.state().node(node)?.xattrs.get(name).cloned().ok_or(no(libc::ENODATA))
    }

    fn listxattr(&self, node: NodeId, _privileged: bool) -> Result<Vec<Vec<u8>>> {
        Ok(self.state().node(node)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.state().node(node)?.xattrs.remove(name).map(|_| ()).ok_or(no(libc::ENODATA))
    }

    fn fallocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: Fallocate,
        _kill_suid_sgid: bool,
    ) -> Result<()> {
        let mut state = self.state();
        let inode = state.file(handle)?;
        let end = (offset + len) as usize;
        if matches!(
            mode,
            Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }
        ) && inode.data.len() < end
        {
            inode.resize(end);
        }
        if !matches!(mode, Fallocate::Allocate { .. }) {
            let len = inode.data.len();
            inode.data[(offset as usize).min(len)..end.min(len)].fill(0);
        }
        Ok(())
    }

    fn lseek(&self, handle: Handle, offset: u64, what: Seek, _sent: Range<u64>) -> Result<Sought> {
        let len = self.state().file(handle)?.data.len() as u64;
        match what {
            _ if offset >= len => Err(no(libc::ENXIO)),
            Seek::Data => Ok(Sought::At(offset)),
            Seek::Hole => Ok(Sought::At(len)),
        }
    }

    fn copy_file_range(
        &self,
        from: FileRange,
        to: FileRange,
        len: u64,
        _kill_suid_sgid: bool,
    ) -> Result<u64> {
        let mut state = self.state();
        let data = &state.file(from.handle)?.data;
        let start = (from.offset as usize).min(data.len());
        let part = data[start..(start + len as usize).min(data.len())].to_vec();
        drop(state);
        self.write(to.handle, to.offset, &part, false)?;
        Ok(part.len() as u64)
    }
}

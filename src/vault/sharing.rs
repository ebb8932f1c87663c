//! Making a share of a folder: its contents are sealed anew into a share beside it, which then takes its place at once.
//!
//! Rules that hold here
//! * Until the exchange the folder is what it was, and can be read and changed; after it, the share is whole and durable. There is no state
//!   between, whenever the process or the machine stops: the exchange is one rename, and the junction is there before it.
//! * What was copied before an interruption is not copied again: a file that has the size and the time of the original is compared with it
//!   instead. The time is set last, after its contents are durable.
//! * Nothing is left behind: what changed while it was being copied is noticed at the end, with all names held, and copied again.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cache::BlockCache;
use super::commit::Durability;
use super::core::{Core, Open, Shared, list};
use super::error::{Error, Fault, Inner, Result};
use super::share::{self, CreateShare, Vouched};
use super::trust::Trust;
use super::types::{Attr, Caller, NodeId, OpenFlags, ROOT, SetAttr, SetXattr};
use super::{LockMode, OpenOptions, OsRandom, Vault};
use crate::backing::{Dir, Kind, RenameMode, Seek, SetTime, Stat};
use crate::format::junction::{self, Junction};
use crate::format::name::is_control;
use crate::sharing::{FoundParams, Member, Role};

/// A share that is being made, by the hash of the name whose place it will take.
const COMING: &[u8] = b"+moving-";
/// A directory that was brought up to be removed.
const BROUGHT: &str = "+removed-";
/// Levels of directories that a folder may have, of which a share is made: copying holds a frame, and the last look a handle, for each.
const DEPTH_MAX: usize = 256;
/// Bytes that are copied at a time.
const PART: usize = 1 << 20;
/// How often what changed meanwhile is copied again before the caller is told that the folder is busy.
const ROUNDS: usize = 4;

/// How long listings of the former folder may take, and how often they are asked for.
const LISTINGS_TAKE: Duration = Duration::from_secs(5);
const LISTINGS_ASKED: Duration = Duration::from_millis(10);

/// How far the making of a share, or a pass over it, has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareProgress {
    /// Files that are done.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files in all.
    pub files_total: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Files and directories that could not be looked into for want of permission, and were passed over.
    pub unread: u64,
}

/// What an object of the store looked like when it was copied.
type Seen = HashMap<(u64, u64), (u64, crate::backing::Timestamp, crate::backing::Timestamp)>;

fn look(stat: &Stat) -> (u64, crate::backing::Timestamp, crate::backing::Timestamp) {
    (stat.size, stat.mtime, stat.ctime)
}

struct Copy<'a> {
    from: &'a Core,
    to: &'a Core,
    /// Nodes in the share of inodes with several names.
    links: HashMap<u64, NodeId>,
    seen: Seen,
    /// As of the round before.
    before: Seen,
    done: ShareProgress,
    progress: &'a mut dyn FnMut(&ShareProgress),
}

/// All entries of a directory, by plain name, each node counted once.
fn children(core: &Core, node: NodeId) -> Inner<Vec<(Vec<u8>, Attr)>> {
    let handle = core.open_dir(node)?;
    let listed = (|| {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let entries = core.read_dir(handle, cookie, 1 << 16)?;
            let Some(last) = entries.last() else { return Ok(all) };
            cookie = last.next;
            for entry in &entries {
                all.push((entry.name.to_vec(), core.lookup(node, &entry.name)?));
            }
        }
    })();
    core.release_handle(handle)?;
    listed
}

/// `ESHUTDOWN` once the vault is closed.
fn is_open(core: &Core) -> Inner<()> {
    if core.closed.load(Ordering::Acquire) { Err(Fault::Os(libc::ESHUTDOWN)) } else { Ok(()) }
}

fn caller(attr: &Attr) -> Caller {
    Caller { uid: attr.uid, gid: attr.gid, umask: 0 }
}

impl Copy<'_> {
    fn count(&mut self, node: NodeId) -> Inner<()> {
        let mut left = vec![(node, 0)];
        while let Some((at, depth)) = left.pop() {
            if depth > DEPTH_MAX {
                left.push((at, depth));
                left.iter().filter(|(at, _)| *at != node).for_each(|(at, _)| self.from.nodes.forget(*at, 1));
                return Err(Fault::Os(libc::ELOOP));
            }
            let below = children(self.from, at);
            if at != node {
                self.from.nodes.forget(at, 1); // those below keep it
            }
            for (_, attr) in below? {
                match attr.kind {
                    Kind::Dir => {
                        left.push((attr.node, depth + 1));
                        continue;
                    }
                    Kind::File => {
                        self.done.files_total += 1;
                        self.done.bytes_total += attr.size;
                    }
                    _ => {}
                }
                self.from.nodes.forget(attr.node, 1);
            }
        }
        Ok(())
    }

    /// Makes the directory `to` of the share what the directory `from` is.
    fn directory(&mut self, from: NodeId, to: NodeId) -> Inner<()> {
        // Looked at before it is read: a later change shows.
        let stat = self.from.dir(from)?.stat_self()?;
        self.seen.insert((stat.dev, stat.ino), look(&stat));
        let entries = children(self.from, from)?;
        let names: HashSet<&[u8]> = entries.iter().map(|(name, _)| &name[..]).collect();
        for (name, attr) in children(self.to, to)? {
            if !names.contains(&name[..]) {
                self.remove(to, &name, &attr)?;
            }
            self.to.nodes.forget(attr.node, 1);
        }
        for (name, attr) in &entries {
            let copied = self.entry(from, to, name, attr);
            self.from.nodes.forget(attr.node, 1);
            copied?;
        }
        self.attributes(from, to, &self.from.stat(from)?)?;
        Ok(self.to.dir(to)?.sync()?)
    }

    fn remove(&self, parent: NodeId, name: &[u8], attr: &Attr) -> Inner<()> {
        if attr.kind != Kind::Dir {
            return self.to.unlink(parent, name);
        }
        for (name, child) in children(self.to, attr.node)? {
            self.remove(attr.node, &name, &child)?;
            self.to.nodes.forget(child.node, 1);
        }
        self.to.rmdir(parent, name)
    }

    fn entry(&mut self, from_parent: NodeId, to_parent: NodeId, name: &[u8], attr: &Attr) -> Inner<()> {
        is_open(self.from)?;
        let link = self.from.nodes.link_in(attr.node, from_parent, name)?;
        let stat = self.from.dir(from_parent)?.stat(&link.stored)?;
        self.seen.insert((stat.dev, stat.ino), look(&stat));
        let mut there = match self.to.lookup(to_parent, name) {
            Ok(there) => Some(there),
            Err(fault) if fault.errno() == libc::ENOENT => None,
            Err(fault) => return Err(fault),
        };
        if let Some(other) = there.filter(|there| there.kind != attr.kind) {
            self.remove(to_parent, name, &other)?;
            self.to.nodes.forget(other.node, 1);
            there = None;
        }
        if attr.nlink > 1
            && attr.kind != Kind::Dir
            && let Some(&node) = self.links.get(&attr.ino)
        {
            if let Some(there) = there {
                self.to.nodes.forget(there.node, 1);
                if there.node == node {
                    return self.tell(attr, 0);
                }
                self.to.unlink(to_parent, name)?;
            }
            let linked = self.to.link(node, to_parent, name)?;
            self.to.nodes.forget(linked.node, 1);
            return self.tell(attr, 0);
        }
        let node = match attr.kind {
            Kind::Dir => {
                let made = there.map_or_else(|| self.to.mkdir(&caller(attr), to_parent, name, attr.perm | 0o700), Ok)?;
                self.directory(attr.node, made.node)?;
                made.node
            }
            Kind::File => self.file(to_parent, name, attr, there)?,
            Kind::Symlink => {
                let target = self.from.readlink(attr.node)?;
                let made = match there {
                    Some(there) if self.to.readlink(there.node)? == target => there,
                    Some(there) => {
                        self.to.nodes.forget(there.node, 1);
                        self.to.unlink(to_parent, name)?;
                        self.to.symlink(&caller(attr), to_parent, name, &target)?
                    }
                    None => self.to.symlink(&caller(attr), to_parent, name, &target)?,
                };
                self.attributes(attr.node, made.node, attr)?;
                made.node
            }
            other => {
                let make = || self.to.mknod(&caller(attr), to_parent, name, other, attr.perm, attr.rdev);
                let made = there.map_or_else(make, Ok)?;
                self.attributes(attr.node, made.node, attr)?;
                made.node
            }
        };
        if attr.nlink > 1 && attr.kind != Kind::Dir {
            self.links.insert(attr.ino, node); // counted on until the end
        } else {
            self.to.nodes.forget(node, 1);
        }
        Ok(())
    }

    fn tell(&mut self, attr: &Attr, bytes: u64) -> Inner<()> {
        if attr.kind == Kind::File {
            self.done.files += 1;
            self.done.bytes += bytes;
            (self.progress)(&self.done);
        }
        Ok(())
    }

    fn file(&mut self, to_parent: NodeId, name: &[u8], attr: &Attr, there: Option<Attr>) -> Inner<NodeId> {
        if let Some(there) = there
            && (there.size, there.mtime) == (attr.size, attr.mtime)
            && (self.is_known(attr)? || self.is_same(attr, &there)?)
        {
            self.tell(attr, attr.size)?;
            return Ok(there.node);
        }
        let flags = OpenFlags { read: true, write: true, truncate: true, ..OpenFlags::default() };
        let (node, to) = match there {
            Some(there) => (there.node, self.to.open_file(there.node, flags)?.handle),
            None => {
                let (made, handle) = self.to.create_file(&caller(attr), to_parent, name, 0o600, flags)?;
                (made.node, handle)
            }
        };
        let copied = (|| {
            let from = self.from.open_file(attr.node, OpenFlags { read: true, ..OpenFlags::default() })?.handle;
            let copied = self.contents(from, to, attr);
            self.from.release_handle(from)?;
            copied?;
            self.to.fsync(to, false)
        })();
        self.to.release_handle(to)?;
        copied?;
        self.attributes(attr.node, node, attr)?;
        self.done.files += 1;
        (self.progress)(&self.done);
        Ok(node)
    }

    /// Whether the file looks as it did when an earlier round copied it.
    fn is_known(&self, attr: &Attr) -> Inner<bool> {
        let link = self.from.nodes.link(attr.node)?;
        let stat = self.from.dir(link.parent)?.stat(&link.stored)?;
        Ok(self.before.get(&(stat.dev, stat.ino)) == Some(&look(&stat)))
    }

    /// Whether what an earlier call copied is what the file holds: a time can be set by anybody.
    fn is_same(&self, from: &Attr, to: &Attr) -> Inner<bool> {
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        let a = self.from.open_file(from.node, read)?.handle;
        let compared = self.to.open_file(to.node, read).map(|opened| opened.handle).and_then(|b| {
            let (mut left, mut right) = (zeroize::Zeroizing::new(vec![0; PART]), zeroize::Zeroizing::new(vec![0; PART]));
            let mut at = 0;
            let same = loop {
                let (l, r) = (self.from.read(a, at, &mut left)?, self.to.read(b, at, &mut right));
                match r {
                    Ok(r) if left[..l] != right[..r] => break false,
                    Ok(_) if l == 0 => break true,
                    Ok(_) => at += l as u64,
                    Err(Fault::Corrupt(_) | Fault::Format(_)) => break false, // a crash left half of it
                    Err(fault) => return Err(fault),
                }
            };
            self.to.release_handle(b)?;
            Ok(same)
        });
        self.from.release_handle(a)?;
        match compared {
            Err(Fault::Corrupt(_) | Fault::Format(_)) => Ok(false),
            other => other,
        }
    }

    fn contents(&mut self, from: u64, to: u64, attr: &Attr) -> Inner<()> {
        let mut buf = zeroize::Zeroizing::new(vec![0; PART]);
        let mut at = 0;
        loop {
            at = match self.from.seek_data_hole(from, at, Seek::Data) {
                Ok(data) => data,
                Err(Fault::Os(libc::ENXIO)) => break,
                Err(fault) => return Err(fault),
            };
            is_open(self.from)?;
            let read = self.from.read(from, at, &mut buf)?;
            if read == 0 {
                break;
            }
            self.to.write(to, at, &buf[..read], false)?;
            at += read as u64;
            self.done.bytes += read as u64;
            (self.progress)(&self.done);
        }
        let (file, _) = self.to.file_handle(to)?;
        let size = file.state.read().size;
        let size_now = self.from.file_handle(from)?.0.state.read().size.max(attr.size);
        if size < size_now {
            let node = file.node;
            self.to.setattr(node, &SetAttr { size: Some(size_now), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Owner, mode, attributes, and the times last.
    fn attributes(&self, from: NodeId, to: NodeId, attr: &Attr) -> Inner<()> {
        let names = self.from.list_xattr(from)?;
        for name in self.to.list_xattr(to)?.into_iter().filter(|name| !names.contains(name)) {
            self.to.remove_xattr(to, &name)?;
        }
        for name in names {
            let value = self.from.get_xattr(from, &name)?;
            self.to.set_xattr(to, &name, &value, SetXattr::Any)?;
        }
        let now = self.to.stat(to)?;
        let owner = (now.uid, now.gid) != (attr.uid, attr.gid);
        let perm = (attr.kind != Kind::Symlink && (owner || now.perm != attr.perm)).then_some(attr.perm);
        let (uid, gid) = (owner.then_some(attr.uid), owner.then_some(attr.gid));
        self.to.setattr(to, &SetAttr { uid, gid, ..SetAttr::default() })?;
        self.to.setattr(to, &SetAttr { perm, ..SetAttr::default() })?;
        self.to.setattr(to, &SetAttr { atime: SetTime::At(attr.atime), mtime: SetTime::At(attr.mtime), ..SetAttr::default() })?;
        Ok(())
    }
}

/// Gives those who are listing a directory that another one has taken the place of time to end, before its entries go.
fn wait_for_listings(core: &Core) {
    let listed = || core.handles.read().values().any(|open| matches!(open, Open::Dir { node, .. } if core.nodes.is_moved_away(*node)));
    let end = Instant::now() + LISTINGS_TAKE;
    while listed() && Instant::now() < end {
        std::thread::sleep(LISTINGS_ASKED);
    }
}

/// Whether everything in the store below `dir` looks as it did when it was copied. Nothing here takes a lock of the vault.
fn unchanged(dir: &dyn Dir, seen: &Seen) -> Inner<bool> {
    let same = |stat: &Stat| seen.get(&(stat.dev, stat.ino)) == Some(&look(stat));
    if !same(&dir.stat_self()?) {
        return Ok(false);
    }
    for entry in list(dir)?.iter().filter(|entry| !is_control(&entry.name)) {
        let stat = dir.stat(&entry.name)?;
        if stat.kind == Kind::Dir {
            if !unchanged(&*dir.open_dir(&entry.name)?, seen)? {
                return Ok(false);
            }
        } else if !same(&stat) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a directory of the store with all that is in it. What is deeper is brought up to its top first: whoever filled it could have made
/// it deeper than our stack, and than there are handles.
fn remove_all(parent: &dyn Dir, name: &[u8]) -> Inner<()> {
    let top = parent.open_dir(name)?;
    let mut brought = 0u64;
    loop {
        let mut deeper = false;
        for entry in list(&*top)? {
            if top.stat(&entry.name)?.kind != Kind::Dir {
                top.unlink(&entry.name)?;
                continue;
            }
            let dir = top.open_dir(&entry.name)?;
            for inner in list(&*dir)? {
                if dir.stat(&inner.name)?.kind != Kind::Dir {
                    dir.unlink(&inner.name)?;
                    continue;
                }
                deeper = true;
                // An interrupted call may have left such names.
                loop {
                    let free = format!("{BROUGHT}{brought}");
                    brought += 1;
                    match dir.rename(&inner.name, &*top, free.as_bytes(), RenameMode::NoReplace) {
                        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
                        other => break other?,
                    }
                }
            }
            top.rmdir(&entry.name)?;
        }
        if !deeper {
            return Ok(parent.rmdir(name)?);
        }
    }
}

impl Vault {
    /// Makes a share of the folder at `path`, with the parent's admins in it unless it is isolated, and gives its id. Called again after an
    /// interruption it goes on; on a folder that is a share already it ends what an interruption left.
    ///
    /// # Errors
    /// `EPERM` for who is no admin of the share that the folder is in, `EBUSY` while files in it are open for writing or change all the time, and where the vault is open with others, `ESHUTDOWN` where the vault was closed meanwhile, `EINVAL`
    /// for the vault's root and for a folder with a share in it, `ELOOP` for one with more than 256 levels of directories; whatever reading and writing can fail with.
    pub fn create_share(&self, path: &[u8], options: &CreateShare, progress: &mut dyn FnMut(&ShareProgress)) -> Result<[u8; 32]> {
        const OP: &str = "share";
        let attr = self.resolve(path)?;
        let made = (|| {
            if attr.node == ROOT {
                return Err(Error::Os { op: OP, errno: libc::EINVAL });
            }
            let at = self.shares().raw(attr.node).map_err(|fault| fault.at(OP, PathBuf::new))?;
            let explain = |fault: Fault| self.shares().explain(OP, &at, fault);
            at.core.check_writable().map_err(explain)?;
            if at.core.shared {
                // What other daemons have open in the folder is not seen here.
                return Err(explain(Fault::Os(libc::EBUSY)));
            }
            if at.core.keys.signing.role() != Role::Admin {
                return Err(explain(Fault::Os(libc::EPERM)));
            }
            let link = at.core.nodes.link(at.local).map_err(explain)?;
            let place = Place::of(&at.core, &link.stored, &link.name, link.parent).map_err(explain)?;
            if place.name[..] != link.name[..] {
                // A conflict copy: the junction of its place would be that of the original.
                return Err(explain(Fault::Os(libc::EINVAL)));
            }
            match at.core.directory_id(at.local) {
                Ok(_) => {}
                Err(Fault::Boundary) => {
                    place.tidy(&at.core).map_err(explain)?;
                    let junction = at.core.junction_at(at.local).map_err(explain)?;
                    return junction.map(|junction| junction.share).ok_or(explain(Fault::Os(libc::EACCES)));
                }
                Err(fault) => return Err(explain(fault)),
            }
            let staged = self.staged_share(&at.core, &place, &attr, options)?;
            let copied = place.fill_and_exchange(&at.core, at.local, staged.clone(), progress);
            let closed = super::close_core(&staged);
            copied.map_err(explain)?;
            closed?;
            Ok(staged.keys.share)
        })();
        self.forget(attr.node, 1);
        made
    }

    /// The share that will take the place: founded now, or by an earlier call. One of an earlier call is gone on with only if the junction
    /// of the place names it and its members are those that it is to have: whoever stores the vault could have put another share of ours
    /// there, with somebody else in it. It is not remembered yet: a share that we have been in is not one that is being made.
    fn staged_share(&self, core: &Arc<Core>, place: &Place, attr: &Attr, options: &CreateShare) -> Result<Arc<Core>> {
        let at = |fault: Fault| fault.at("share", PathBuf::new);
        let identity = core.keys.signing.identity();
        let parent = &*place.parent;
        let others = self.other_members(core, options)?;
        if let Some(staging) = place.staging(core).map_err(at)? {
            let junction = core.junction(parent, &place.parent_id, &place.name).map_err(at)?.filter(|junction| junction.coming);
            let vouched = Vouched { share: junction.map(|junction| junction.share), head: None };
            let store = parent.open_dir(&staging).map_err(|e| at(e.into()))?;
            if vouched.share.is_some()
                && let Ok(entered) = share::enter(&*store, identity, &Trust::default(), &vouched, &PathBuf::new())
                && !entered.forked
                && entered.descriptor.isolated == options.isolated
                && has_members(entered.heads[0].members.all(), &others, &identity.public().sign)
            {
                return self.open_staged(store, &entered);
            }
            remove_all(parent, &staging).map_err(at)?;
        }
        let staging = place.new_staging(core);
        parent.mkdir(&staging, attr.perm | 0o700).map_err(|e| at(e.into()))?;
        let store = parent.open_dir(&staging).map_err(|e| at(e.into()))?;
        let params = FoundParams {
            suite: core.keys.suite,
            signed: true,
            isolated: options.isolated,
            chunk_log2: core.keys.layout.chunk_log2(),
            name: &options.name,
            others: &others,
        };
        let share = *share::found_in(&*store, identity, &params, &OsRandom)?.roster.share_id();
        let coming = Junction { share, isolated: options.isolated, coming: true, name: place.name.clone() };
        core.write_junction(parent, &place.parent_id, &coming).map_err(at)?;
        let vouched = Vouched { share: Some(share), head: None };
        let entered = share::enter(&*store, identity, &Trust::default(), &vouched, &PathBuf::new())?;
        self.open_staged(store, &entered)
    }

    fn open_staged(&self, store: Arc<dyn Dir>, entered: &share::Entered) -> Result<Arc<Core>> {
        let options = OpenOptions { lock: LockMode::Exclusive, ..OpenOptions::default() };
        let cache = Some(Arc::new(BlockCache::new(4 << 20)));
        let identity = self.core().keys.signing.identity().clone();
        Ok(Arc::new(super::open_core(store, entered, identity, &options, cache, &PathBuf::new())?))
    }

    /// Who is to be in the new share besides us: whom the caller names, and the parent's admins unless it is isolated.
    fn other_members(&self, core: &Core, options: &CreateShare) -> Result<Vec<Member>> {
        let identity = core.keys.signing.identity();
        let mut others = options.others.clone();
        if !options.isolated && core.keys.signed() {
            let vouched = Vouched { share: Some(core.keys.share), head: core.seen.lock().head };
            let parent = share::enter(&*core.root, identity, self.shares().trust(), &vouched, &PathBuf::new())?;
            for admin in parent.heads[0].members.all().iter().filter(|m| m.role == Role::Admin) {
                others.retain(|other| other.public.sign != admin.public.sign);
                others.push(admin.clone());
            }
        }
        let own = identity.public().sign;
        others.retain(|other| other.public.sign != own);
        Ok(others)
    }
}

/// Whether these are the members: ourselves as admin, and the others in their roles.
fn has_members(there: &[Member], others: &[Member], own: &[u8; 32]) -> bool {
    let expected = |member: &Member| match member.public.sign == *own {
        true => member.role == Role::Admin,
        false => others.iter().any(|other| other.public == member.public && other.role == member.role),
    };
    there.len() == others.len() + 1 && there.iter().all(expected)
}

/// Where the folder stands.
struct Place {
    parent: Arc<dyn Dir>,
    parent_id: [u8; 32],
    stored: Box<[u8]>,
    name: Vec<u8>,
}

impl Place {
    fn of(core: &Core, stored: &[u8], name: &[u8], parent: NodeId) -> Inner<Self> {
        let parent_id = core.directory_id(parent)?;
        let name = core.keys.place_name(&parent_id, stored, name).to_vec();
        Ok(Place { parent: core.dir(parent)?, parent_id, stored: stored.into(), name })
    }

    fn new_staging(&self, core: &Core) -> Vec<u8> {
        Self::staging_name(&core.keys.place_hash(&self.parent_id, &self.name))
    }

    fn staging_name(hash: &[u8; 32]) -> Vec<u8> {
        [COMING, &junction::file_name(hash)[junction::PREFIX.len()..]].concat()
    }

    /// What an earlier call left.
    fn staging(&self, core: &Core) -> Inner<Option<Vec<u8>>> {
        for hash in core.keys.place_hashes(&self.parent_id, &self.name) {
            let name = Self::staging_name(&hash);
            match self.parent.stat(&name) {
                Ok(_) => return Ok(Some(name)),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(None)
    }

    /// Ends what was left to do after the exchange: the junction says that the share is there, and the former folder goes.
    fn tidy(&self, core: &Core) -> Inner<()> {
        if let Some(junction) = core.junction(&*self.parent, &self.parent_id, &self.name)?
            && junction.coming
        {
            core.write_junction(&*self.parent, &self.parent_id, &Junction { coming: false, ..junction })?;
        }
        if let Some(former) = self.staging(core)? {
            remove_all(&*self.parent, &former)?;
            self.parent.sync()?;
        }
        Ok(())
    }

    fn fill_and_exchange(
        &self,
        core: &Arc<Core>,
        folder: NodeId,
        staged: Arc<Core>,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Inner<()> {
        let staging = self.staging(core)?.ok_or(Fault::Os(libc::ENOENT))?;
        let mut before = Seen::new();
        for _ in 0..ROUNDS {
            self.commit_below(core, folder)?;
            let (links, done) = (HashMap::new(), ShareProgress::default());
            let mut copy = Copy { from: core, to: &staged, links, seen: Seen::new(), before, done, progress };
            copy.count(folder)?;
            copy.directory(folder, ROOT)?;
            let (links, seen) = (copy.links, copy.seen);
            links.values().for_each(|node| staged.nodes.forget(*node, 1));
            super::close_core(&staged).map_err(|_| Fault::Os(libc::EIO))?;
            staged.closed.store(false, Ordering::Release);

            // From here on no name changes, and no file is opened.
            let names = core.names.write()?;
            let files = core.files.lock();
            // Who has a file open for reading goes on with the one that he has, as after a rename(2) over it.
            let is_written = |shared: &Shared| shared.writers > 0 || shared.file.state.read().changed;
            if files.values().any(|shared| core.nodes.is_below(shared.file.node, folder) && is_written(shared)) {
                return Err(Fault::Os(libc::EBUSY));
            }
            let step = core.passing.lock();
            is_open(core)?;
            if !unchanged(&*self.parent.open_dir(&self.stored)?, &seen)? {
                before = seen;
                continue;
            }
            core.journal.settle(None)?;
            self.parent.rename(&self.stored, &*self.parent, &staging, RenameMode::Exchange)?;
            self.parent.sync()?;
            // Whoever still goes by the former folder is told to look its name up again; nobody may open anything in it for writing.
            core.nodes.forget_links(folder);
            core.forget_dirs();
            drop((files, names, step));
            wait_for_listings(core);
            return self.tidy(core);
        }
        Err(Fault::Os(libc::EBUSY))
    }

    /// What is dirty below the folder reaches the store, so that all of it is seen there.
    fn commit_below(&self, core: &Core, folder: NodeId) -> Inner<()> {
        let open: Vec<_> = core.files.lock().values().map(|shared| shared.file.clone()).collect();
        open.iter().filter(|file| core.nodes.is_below(file.node, folder)).try_for_each(|file| core.commit(file, Durability::Ordered))
    }
}

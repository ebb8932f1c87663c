//! Making a share of a folder: its contents are sealed anew into a share beside it, which then takes its place at once.
//!
//! Rules that hold here
//! * Until the exchange the folder is what it was, and can be read and changed; after it, the share is whole and durable. There is no state
//!   between, whenever the process or the machine stops: the exchange is one rename, and the junction is there before it.
//! * What was copied before an interruption is not copied again: a file that has the size and the time of the original is compared with it
//!   instead. The time is set last, after its contents are durable.
//! * Nothing is left behind: what changed while it was being copied is noticed at the end, with all names held, and copied again.

mod copy;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::copy::{Copy, Seen, is_open, unchanged};
use super::cache::BlockCache;
use super::commit::Durability;
use super::control::list;
use super::core::Core;
use super::error::{Error, Fault, Inner, Result};
use super::open_files::{Open, Shared};
use super::share::{self, CreateShare, Vouched};
use super::trust::Trust;
use super::types::{Attr, NodeId, ROOT};
use super::{LockMode, OpenOptions, OsRandom, Vault};
use crate::backing::{Dir, Kind, RenameMode};
use crate::format::junction::{self, Junction};
use crate::sharing::{FoundParams, Member, Role};

/// A share that is being made, by the hash of the name whose place it will take.
const COMING: &[u8] = b"+moving-";
/// A directory that was brought up to be removed.
const BROUGHT: &str = "+removed-";
/// Levels of directories that a folder may have, of which a share is made: copying holds a frame, and the last look a handle, for each.
const DEPTH_MAX: usize = 256;
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

/// Gives those who are listing a directory that another one has taken the place of time to end, before its entries go.
fn wait_for_listings(core: &Core) {
    let listed = || core.handles.read().values().any(|open| matches!(open, Open::Dir { node, .. } if core.nodes.is_moved_away(*node)));
    let end = Instant::now() + LISTINGS_TAKE;
    while listed() && Instant::now() < end {
        std::thread::sleep(LISTINGS_ASKED);
    }
}

/// Removes a directory of the store with all that is in it. What is deeper is brought up to its top first: whoever filled it could have made
/// it deeper than our stack, and than there are handles.
pub(super) fn remove_all(parent: &dyn Dir, name: &[u8]) -> Inner<()> {
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
    /// for the vault's root and for a folder with a share in it, `ELOOP` for one with more than 256 levels of directories; `EOPNOTSUPP` where the store cannot exchange two directories, as exFAT, NTFS, sshfs and NFS cannot; whatever reading and writing can fail with.
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
            place.check_exchange(&at.core).map_err(explain)?;
            let staged = self.staged_share(&at.core, &place, &attr, options)?;
            let copied = place.fill_and_exchange(&at.core, at.local, staged.clone(), progress);
            let closed = super::lifetime::close_core(&staged);
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
                && has_members(entered.heads[0].members.all(), &others, &identity.public().sign, &options.name)
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
        Ok(Arc::new(super::lifetime::open_core(store, entered, identity, &options, cache, &PathBuf::new())?))
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

/// Whether these are the members: ourselves as admin under this name, and the others in their roles.
fn has_members(there: &[Member], others: &[Member], own: &[u8; 32], name: &str) -> bool {
    let expected = |member: &Member| match member.public.sign == *own {
        true => member.role == Role::Admin && member.name == name,
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

    /// Refuses a store that does not exchange two directories in one step, before anything is copied: in two a crash in between would leave
    /// the folder under no name.
    fn check_exchange(&self, core: &Core) -> Inner<()> {
        let [one, other] = [core.trash_name(), core.trash_name()];
        let tried = self.parent.mkdir(&one, 0o700).and_then(|()| self.parent.mkdir(&other, 0o700));
        let tried = tried.and_then(|()| self.parent.rename(&one, &*self.parent, &other, RenameMode::Exchange));
        let _ = (self.parent.rmdir(&one), self.parent.rmdir(&other));
        match tried {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(Fault::Os(libc::EOPNOTSUPP)),
            other => Ok(other?),
        }
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
            super::lifetime::close_core(&staged).map_err(|_| Fault::Os(libc::EIO))?;
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

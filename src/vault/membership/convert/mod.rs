//! Makes a share of a folder: its contents are sealed again into a share beside it, which then
//! replaces the folder.
//!
//! Rules that hold here
//! * The junction is written first. Until the exchange the folder can be read and written; after
//!   it, the share is complete and durable. If the store can exchange two directories, there is no
//!   intermediate state, even after a crash.
//! * Otherwise the folder has another name for a moment, complete and visible to programs. A call
//!   after an interruption gives it its name back and begins by comparing again: the store's
//!   contents are not trusted more than at any other time.
//! * Files that were copied before an interruption are not copied again: a file with the size and
//!   the time of the original is compared with it instead. The time is set last, after its contents
//!   are durable.
//! * No change is lost: at the end, with all names locked, files that changed during the copy are
//!   detected and copied again. Names stay locked for other daemons until the folder is removed: a
//!   program there may still use a directory of it.

mod compare;
mod copy;
mod entries;
mod place;
mod seen;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::compare::Compare;
use self::copy::Copy;
use self::place::{Aside, Place};
use self::seen::{Seen, unchanged};
use crate::format::junction::Junction;
use crate::roster::{FoundParams, Member, Role};
use crate::store::{Dir, RenameMode};
use crate::vault::core::Core;
use crate::vault::core::open_table::{Open, OpenEntry};
use crate::vault::core::trash::remove_all;
use crate::vault::directory::junction::holds_share;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Error, Fault, Inner, Result};
use crate::vault::session::nested::Route;
use crate::vault::session::options::{LockMode, OpenOptions, OsRandom};
use crate::vault::session::paths::components;
use crate::vault::session::vault::Vault;
use crate::vault::share::enter;
use crate::vault::share::enter::{CreateShare, Vouched};
use crate::vault::share::shared;
use crate::vault::share::trust::Trust;
use crate::vault::types::{Attr, NodeId, ROOT, ShareProgress};

const OP: &str = "share";
/// Maximum number of rounds of copying; each after the first copies what changed during the one
/// before. Beyond it the call fails because the folder is busy.
const ROUNDS: usize = 4;

/// How long the call waits for listings of the former folder, and the poll interval.
const LISTINGS_TAKE: Duration = Duration::from_secs(5);
const LISTINGS_ASKED: Duration = Duration::from_millis(10);

/// A share that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMade {
    /// Id of the share.
    pub share: [u8; 32],
    /// Name of the former folder, beside the share, if an interruption has left it and its contents
    /// differ from the share's.
    pub former: Option<Vec<u8>>,
}

/// Waits until the listings of a replaced directory have ended, before its entries are removed.
fn wait_for_listings(core: &Core) {
    let listed =
        || {
            core.open.handles.read().values().any(
                |open| matches!(open, Open::Dir { node, .. } if core.nodes.is_moved_away(*node)),
            )
        };
    let end = Instant::now() + LISTINGS_TAKE;
    while listed() && Instant::now() < end {
        std::thread::sleep(LISTINGS_ASKED);
    }
}

impl Vault {
    /// Makes a share of the folder at `path`, with the parent's admins in it unless it is isolated.
    /// Called again after an interruption, it continues. For a folder that is already a share, it
    /// cleans up after an interruption.
    ///
    /// # Errors
    /// * `EPERM` if the caller is not an admin of the containing share.
    /// * `EBUSY` while files in it are open for writing, here or in another daemon, or keep changing.
    /// * `ESHUTDOWN` if the vault was closed meanwhile.
    /// * `EINVAL` for the vault's root and for a folder that contains a share.
    /// * `ELOOP` for a folder with more than 256 levels of directories.
    /// * Those of [`Vault::put_back`], and of reading and writing.
    pub fn create_share(
        &self,
        path: &[u8],
        options: &CreateShare,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<ShareMade> {
        self.put_back(path)?;
        // The node of the folder's directory is used after the folder has lost its name, and would
        // be forgotten with it.
        let mut parts: Vec<&[u8]> = components(path).collect();
        parts.pop();
        let parent = self.resolve(&parts.join(&b'/'))?.node;
        let made = self.create_share_at(path, options, progress);
        self.forget(parent, 1);
        made
    }

    fn create_share_at(
        &self,
        path: &[u8],
        options: &CreateShare,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<ShareMade> {
        let attr = self.resolve(path)?;
        let made = (|| {
            if attr.node == ROOT {
                return Err(Error::Os { op: OP, errno: libc::EINVAL });
            }
            let at = self.shares().raw(attr.node).map_err(|fault| fault.at(OP, PathBuf::new))?;
            let explain = |fault: Fault| self.shares().explain(OP, &at, fault);
            at.core.check_writable().map_err(explain)?;
            if at.core.keys.signing.role() != Role::Admin {
                return Err(explain(Fault::Os(libc::EPERM)));
            }
            let link = at.core.nodes.link(at.local).map_err(explain)?;
            let place =
                Place::of(&at.core, link.stored(), link.name(), link.parent).map_err(explain)?;
            if place.name[..] != link.name()[..] {
                // A conflict copy: the junction of its place would be that of the original.
                return Err(explain(Fault::Os(libc::EINVAL)));
            }
            match at.core.directory_tag(at.local) {
                Ok(_) => {}
                Err(Fault::Boundary) => {
                    let former = self.end_exchange(&at, &place, attr.node)?;
                    place.tidy(&at.core).map_err(explain)?;
                    let junction = at
                        .core
                        .junction_at(at.local)
                        .map_err(explain)?
                        .ok_or(explain(Fault::Os(libc::EACCES)))?;
                    return Ok(ShareMade { share: junction.share, former });
                }
                Err(fault) => return Err(explain(fault)),
            }
            let staged = self.staged_share(&at.core, &place, &attr, options)?;
            let copied = place.fill_and_exchange(&at.core, at.local, staged.clone(), progress);
            let closed = crate::vault::session::lifetime::close_core(&staged);
            copied.map_err(|fault| match fault {
                Fault::Boundary => explain(Fault::Os(libc::EINVAL)),
                fault => explain(fault),
            })?;
            closed?;
            Ok(ShareMade { share: staged.keys.share, former: None })
        })();
        self.forget(attr.node, 1);
        made
    }

    /// Gives the folder at `path` its name back if [`Vault::create_share`] was interrupted while
    /// the folder had a temporary name. `create_share` begins with this.
    ///
    /// # Errors
    /// `EEXIST` if another entry, other than an empty directory, has that name now; those of
    /// lookups and renames.
    pub fn put_back(&self, path: &[u8]) -> Result<()> {
        let mut parts: Vec<&[u8]> = components(path).collect();
        let Some(name) = parts.pop() else { return Ok(()) };
        let parent = match self.resolve(&parts.join(&b'/')) {
            Err(error) if error.errno() == libc::ENOENT => return Ok(()),
            other => other?.node,
        };
        let done = (|| {
            let at = self.shares().directory(OP, parent)?;
            let explain = |fault: Fault| self.shares().explain(OP, &at, fault);
            let place = Place::named(&at.core, name, at.local).map_err(explain)?;
            let Some(aside) = place.aside(&at.core).map_err(explain)? else { return Ok(()) };
            let mode = match place.parent.stat(&place.stored) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => RenameMode::NoReplace,
                Ok(_) if holds_share(&*place.parent, &place.stored).unwrap_or(false) => {
                    return Ok(());
                } // the folder's name is taken
                _ => RenameMode::Replace, // only of an empty directory, which a program has created in its place
            };
            self.rename(parent, &aside.name, parent, name, mode).map_err(|error| {
                match error.errno() {
                    libc::ENOTEMPTY | libc::ENOTDIR | libc::EEXIST => {
                        Error::Os { op: OP, errno: libc::EEXIST }
                    }
                    _ => error,
                }
            })
        })();
        self.forget(parent, 1);
        done
    }

    /// Completes an exchange in several steps that was interrupted after the share had taken the
    /// place. Users can see the former folder: it is removed if the share has all of it; otherwise
    /// it stays and its name is returned.
    fn end_exchange(&self, at: &Route, place: &Place, share: NodeId) -> Result<Option<Vec<u8>>> {
        let core = &at.core;
        let explain = |fault: Fault| self.shares().explain(OP, at, fault);
        let Some(aside) = place.aside(core).map_err(explain)? else { return Ok(None) };
        match self.remove_former(at, place, &aside, share) {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                "the former folder of a share could not be compared with the share: {error}"
            ),
        }
        Ok(Some(aside.name))
    }

    /// Hides and removes the former folder if the share has all of it. Returns whether it did.
    fn remove_former(
        &self,
        at: &Route,
        place: &Place,
        aside: &Aside,
        share: NodeId,
    ) -> Result<bool> {
        let core = &at.core;
        let explain = |fault: Fault| self.shares().explain(OP, at, fault);
        let inside = self.shares().directory(OP, share)?;
        let parent = core.nodes.link(at.local).map_err(explain)?.parent;
        let folder = core.lookup(parent, &aside.name).map_err(explain)?.node;
        let removed = (|| {
            commit_below(core, folder)?;
            let mut compare = Compare { from: core, to: &inside.core, seen: Seen::new() };
            if place.staging(core)?.is_some() || !compare.directory(folder, inside.local, b"", 0)? {
                return Ok(false);
            }
            // From here on no name changes, and no file is opened.
            let names = core.namespace.names.write()?;
            let files = core.open.files.lock();
            let former = place.parent.open_dir(&aside.stored)?;
            if is_written_below(core, &files, folder)
                || core.mode.writers.others_write_below(&*former)?
                || !unchanged(&*former, &compare.seen)?
            {
                return Ok(false);
            }
            core.journal.checkpoint_for(None)?;
            place.finish_exchange(core, Some(aside))?;
            core.nodes.forget_links(folder);
            core.forget_dirs();
            drop(files);
            let _others = names.keep_others_out();
            wait_for_listings(core);
            place.tidy(core).map(|()| true)
        })();
        core.nodes.forget(folder, 1);
        removed.map_err(explain)
    }

    /// Returns the share that will take the place: founded now, or by an earlier call. A share of
    /// an earlier call is used only if the junction of the place names it and its members are the
    /// expected ones: the storage host could have put another share of this identity there, with
    /// further members. It is not in the trust store yet: a share that was entered before is not
    /// one that is being created.
    fn staged_share(
        &self,
        core: &Arc<Core>,
        place: &Place,
        attr: &Attr,
        options: &CreateShare,
    ) -> Result<Arc<Core>> {
        let at = |fault: Fault| fault.at("share", PathBuf::new);
        let identity = self.shares().founder();
        let parent = &*place.parent;
        let others = self.other_members(core, options)?;
        if let Some(staging) = place.staging(core).map_err(at)? {
            let junction = place.junction(core).map_err(at)?.filter(|junction| junction.coming);
            let vouched = Vouched { share: junction.map(|junction| junction.share), head: None };
            let store = parent.open_dir(&staging).map_err(|e| at(e.into()))?;
            if vouched.share.is_some()
                && let Ok(entered) =
                    enter::enter(&*store, identity, &Trust::default(), &vouched, &PathBuf::new())
                && !entered.forked
                && entered.descriptor.isolated == options.isolated
                && has_members(
                    entered.heads[0].members.all(),
                    &others,
                    &identity.public().sign,
                    &options.name,
                )
            {
                return self.open_staged(store, &entered);
            }
            remove_all(parent, &staging).map_err(at)?;
        }
        let staging = place.new_staging(core).map_err(at)?;
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
        let share = *enter::found_in(&*store, identity, &params, &OsRandom)?.roster.share_id();
        if shared::is_set(&*core.root).map_err(at)? {
            shared::set(&*store, true, &OsRandom).map_err(at)?;
        }
        let coming =
            Junction { share, isolated: options.isolated, coming: true, name: place.name.clone() };
        place.beside(core).and_then(|beside| beside.write_junction(&coming)).map_err(at)?;
        let vouched = Vouched { share: Some(share), head: None };
        let entered =
            enter::enter(&*store, identity, &Trust::default(), &vouched, &PathBuf::new())?;
        self.open_staged(store, &entered)
    }

    fn open_staged(&self, store: Arc<dyn Dir>, entered: &enter::Entered) -> Result<Arc<Core>> {
        let options = OpenOptions {
            lock: LockMode::Exclusive,
            cache_bytes: 4 << 20,
            ..OpenOptions::default()
        };
        let identity = self.shares().founder().clone();
        Ok(Arc::new(crate::vault::session::lifetime::open_core(
            store,
            entered,
            identity,
            &options,
            None,
            &PathBuf::new(),
        )?))
    }

    /// Returns the other members of the new share: those the caller names, and the parent's admins
    /// unless it is isolated.
    fn other_members(&self, core: &Core, options: &CreateShare) -> Result<Vec<Member>> {
        let identity = core.keys.signing.identity();
        let mut others = options.others.clone();
        if !options.isolated && core.keys.signed() {
            let vouched =
                Vouched { share: Some(core.keys.share), head: core.membership.seen.lock().head };
            let parent = enter::enter(
                &*core.root,
                identity,
                self.shares().trust(),
                &vouched,
                &PathBuf::new(),
            )?;
            for admin in parent.heads[0].members.all().iter().filter(|m| m.role == Role::Admin) {
                others.retain(|other| other.public.sign != admin.public.sign);
                others.push(admin.clone());
            }
        }
        let own = self.shares().founder().public().sign;
        others.retain(|other| other.public.sign != own);
        Ok(others)
    }
}

/// Returns whether these are the members: this identity as admin under this name, and the others in
/// their roles.
fn has_members(there: &[Member], others: &[Member], own: &[u8; 32], name: &str) -> bool {
    let expected = |member: &Member| match member.public.sign == *own {
        true => member.role == Role::Admin && member.name == name,
        false => {
            others.iter().any(|other| other.public == member.public && other.role == member.role)
        }
    };
    there.len() == others.len() + 1 && there.iter().all(expected)
}

impl Place {
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
            commit_below(core, folder)?;
            let (links, done) = (HashMap::new(), ShareProgress::default());
            let mut copy = Copy {
                from: core,
                to: &staged,
                links,
                at: Vec::new(),
                seen: Seen::new(),
                before,
                done,
                progress,
            };
            copy.count(folder)?;
            let copied = copy.directory(folder, ROOT);
            let (links, seen) = (copy.links, copy.seen);
            links.values().for_each(|node| staged.nodes.forget(*node, 1));
            match copied {
                // The store has given an object another inode number.
                Err(fault) if fault.errno() == libc::ESTALE => {
                    before = seen;
                    continue;
                }
                other => other?,
            }
            crate::vault::session::lifetime::close_core(&staged)
                .map_err(|_| Fault::Os(libc::EIO))?;
            staged.closed.store(false, Ordering::Release);

            // From here on no name changes, and no file is opened.
            let names = core.namespace.names.write()?;
            let files = core.open.files.lock();
            let former = self.parent.open_dir(&self.stored)?;
            if is_written_below(core, &files, folder)
                || core.mode.writers.others_write_below(&*former)?
            {
                return Err(Fault::Os(libc::EBUSY));
            }
            let step = core.membership.passing.lock();
            core.check_open()?;
            if !unchanged(&*former, &seen)? {
                before = seen;
                continue;
            }
            core.journal.checkpoint_for(None)?;
            let aside = self.exchange(core, &staging)?;
            let finished = self.finish_exchange(core, aside.as_ref());
            // Callers that still use nodes of the former folder get an error that makes them look
            // up the name again; nothing in it can be opened for writing.
            core.nodes.forget_links(folder);
            core.forget_dirs();
            drop((files, step));
            let _others = names.keep_others_out();
            finished?;
            wait_for_listings(core);
            return self.tidy(core);
        }
        Err(Fault::Os(libc::EBUSY))
    }
}

/// Returns whether a file below the folder is being written. A file that is open for reading stays
/// usable, as after a rename(2) over it.
fn is_written_below(core: &Core, files: &HashMap<NodeId, OpenEntry>, folder: NodeId) -> bool {
    let is_written =
        |shared: &OpenEntry| shared.writers > 0 || shared.file.state.read().changes.is_some();
    files.values().any(|shared| core.nodes.is_below(shared.file.node, folder) && is_written(shared))
}

/// Commits dirty files below the folder, so that the store has all of their data.
fn commit_below(core: &Core, folder: NodeId) -> Inner<()> {
    let open: Vec<_> = core.open.files.lock().values().map(|shared| shared.file.clone()).collect();
    open.iter()
        .filter(|file| core.nodes.is_below(file.node, folder))
        .try_for_each(|file| core.commit(file, Durability::Ordered))
}

//! The shares of an open vault: its own, and those nested in it, each opened when it is first
//! entered.
//!
//! Rules that hold here
//! * The high bits of a node's or handle's number identify its share; the vault's own share is
//!   number 0. A number is never reused while the vault is open.
//! * The directory that contains a nested share has one node, in the parent share. Once the nested
//!   share is open, operations on that node go to the share's root, which has no number of its own.
//! * A nested share is entered only through a valid junction. The user's decision to trust a share
//!   as it is ([`Trust::first_use`](crate::vault::share::trust::Trust)) covers only the share that
//!   was named, not shares that were planted in it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::roster::Identity;
use crate::store::Kind;
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::directory::junction::holds_share;
use crate::vault::error::{Error, Fault, Inner, Result};
use crate::vault::fsck::report::join as join_paths;
use crate::vault::session::lingering::Lingering;
use crate::vault::session::options::OpenOptions;
use crate::vault::share::control_files::exists;
use crate::vault::share::enter;
use crate::vault::share::enter::{DESCRIPTOR, Entered, Vouched};
use crate::vault::types::{Attr, Forget, Handle, NodeId, ROOT};

/// Bits of a number that belong to the share itself.
const LOCAL_BITS: u32 = 40;
/// Maximum number of shares that can be entered while a vault is open.
const SHARES_MAX: usize = 1 << 20;

/// A nested share that is open.
struct Child {
    core: Arc<Core>,
    place: NodeId,
    /// The name at which a junction to it was found.
    link: Mutex<Link>,
}

#[derive(Default)]
struct Children {
    /// By number, from 1; `None` for one that was closed.
    list: Vec<Option<Child>>,
    /// By the node of the share's directory.
    places: HashMap<NodeId, u64>,
}

/// The open shares of a vault.
pub(crate) struct Shares {
    pub root: Arc<Core>,
    identity: Arc<Identity>,
    options: OpenOptions,
    children: RwLock<Children>,
    /// One share is entered at a time.
    entering: Mutex<()>,
    kernel: OnceLock<Tell>,
    lingering: Lingering,
}

/// Notifies the kernel about a node, by its number outside.
type Tell = Arc<dyn Fn(NodeId, Forget) + Send + Sync>;

/// A node or a handle in its share.
pub(crate) struct Route {
    pub core: Arc<Core>,
    pub number: u64,
    pub local: u64,
}

fn split(id: u64) -> (u64, u64) {
    (id >> LOCAL_BITS, id & ((1 << LOCAL_BITS) - 1))
}

fn join(number: u64, local: u64) -> u64 {
    number << LOCAL_BITS | local
}

impl Shares {
    pub fn new(root: Arc<Core>, identity: Arc<Identity>, options: OpenOptions) -> Self {
        Shares {
            root,
            identity,
            options,
            children: RwLock::default(),
            entering: Mutex::new(()),
            kernel: OnceLock::new(),
            lingering: Lingering::new(),
        }
    }

    /// Sets `tell`, which is called for nodes of the vault's own share and of all shares that are
    /// entered from now on.
    pub fn tell_kernel(&self, tell: Tell) {
        if self.kernel.set(tell.clone()).is_ok() {
            self.root.tell_kernel(Box::new(move |node, what| tell(node, what)));
        }
    }

    pub fn trust(&self) -> &crate::vault::share::trust::Trust {
        &self.options.trust
    }

    /// Returns the identity that enters and founds nested shares.
    pub fn founder(&self) -> &Arc<Identity> {
        self.options.person.as_ref().map_or(&self.identity, |person| &person.0)
    }

    /// Returns all open shares, nested ones first.
    pub fn cores(&self) -> Vec<Arc<Core>> {
        let children = self.children.read();
        let nested = children.list.iter().rev().flatten().map(|child| child.core.clone());
        nested.chain([self.root.clone()]).collect()
    }

    /// Returns the nodes of all files that programs have open.
    pub fn open_nodes(&self) -> Vec<NodeId> {
        let nested: Vec<(u64, Arc<Core>)> = {
            let children = self.children.read();
            let numbered = (1..).zip(&children.list);
            numbered.filter_map(|(n, child)| Some((n, child.as_ref()?.core.clone()))).collect()
        };
        let all = nested.into_iter().chain([(0, self.root.clone())]);
        all.flat_map(|(number, core)| {
            let open: Vec<NodeId> = core.open.files.lock().keys().copied().collect();
            open.into_iter().map(move |node| self.outside(number, node))
        })
        .collect()
    }

    fn core(&self, number: u64) -> Inner<Arc<Core>> {
        if number == 0 {
            return Ok(self.root.clone());
        }
        let children = self.children.read();
        let child = children.list.get(number as usize - 1).and_then(Option::as_ref);
        child.map(|child| child.core.clone()).ok_or(Fault::Os(libc::ESTALE))
    }

    /// Returns the node as in the table of its share: for the place of a nested share, a directory
    /// of the parent.
    pub fn raw(&self, id: u64) -> Inner<Route> {
        let (number, local) = split(id);
        Ok(Route { core: self.core(number)?, number, local })
    }

    /// Lets nodes linger whose lookups are dropped.
    pub fn let_nodes_linger(&self) {
        self.lingering.begin(self.options.cache_bytes);
    }

    /// Drops `count` lookups of a node, which may linger.
    pub fn forget(&self, node: NodeId, count: u64) {
        let Ok(route) = self.raw(node) else { return };
        if !self.lingering.is_begun() {
            return route.core.nodes.forget(route.local, count);
        }
        let lingering = route.core.nodes.forget_and_linger(route.local, count);
        let outside = |(local, names)| (self.outside(route.number, local), names);
        for ended in self.lingering.add(lingering.into_iter().map(outside)) {
            if let Ok(route) = self.raw(ended) {
                route.core.nodes.end_linger(route.local);
            }
        }
    }

    /// Returns the names of a node, each with its parent; the one that was used last is the first.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub fn names(&self, node: NodeId) -> Inner<Vec<(NodeId, Box<[u8]>)>> {
        let route = self.raw(node)?;
        let links = route.core.nodes.links(route.local);
        if links.is_empty() {
            return Err(Fault::Os(libc::ESTALE));
        }
        let outside = |link: Link| (self.outside(route.number, link.parent), link.name().into());
        Ok(links.into_iter().rev().map(outside).collect())
    }

    /// Returns the share and node that requests for a node go to.
    pub fn route(&self, node: NodeId) -> Inner<Route> {
        let nested = {
            let children = self.children.read();
            if children.places.is_empty() { None } else { children.places.get(&node).copied() }
        };
        match nested {
            Some(number) if self.is_removed(number)? => {
                self.leave_removed(node)?;
                self.raw(node)
            }
            Some(number) => {
                self.check_place(number)?;
                Ok(Route { core: self.core(number)?, number, local: ROOT })
            }
            None => self.raw(node),
        }
    }

    /// Returns whether another machine has removed a share of a synced vault while the sync tool
    /// has left its directory, for example because there is a plain one of the same name.
    fn is_removed(&self, number: u64) -> Inner<bool> {
        if !self.root.mode.synced {
            return Ok(false);
        }
        Ok(!exists(&*self.core(number)?.root, DESCRIPTOR)?)
    }

    /// Closes a share that was removed. Nothing is written under its keys any more.
    ///
    /// # Errors
    /// `ESTALE` as long as programs have files of the share open.
    fn leave_removed(&self, node: NodeId) -> Inner<()> {
        let child = {
            let mut children = self.children.write();
            let Some(&number) = children.places.get(&node) else { return Ok(()) };
            let child = &mut children.list[number as usize - 1];
            if child.as_ref().is_some_and(|child| !child.core.open.files.lock().is_empty()) {
                return Err(Fault::Os(libc::ESTALE));
            }
            let child = child.take();
            children.places.remove(&node);
            child
        };
        let Some(child) = child else { return Ok(()) };
        tracing::warn!("a share was removed on another machine; its directory is a plain one now");
        if let Ok(route) = self.raw(child.place) {
            route.core.nodes.closed(route.local);
        }
        if let Err(error) = crate::vault::session::lifetime::close_core(&child.core) {
            tracing::error!("{error}");
        }
        Ok(())
    }

    /// Keeps the control files of a share of a synced vault on this machine before it is removed.
    /// A failure does not prevent the removal.
    pub fn keep_removed(&self, at: &Route, name: &[u8]) {
        let Some(local) = self.options.local.as_ref().filter(|_| at.core.mode.synced) else {
            return;
        };
        let kept = (|| {
            let folder = at.core.folder(at.local)?;
            let Ok((stored, stat)) = folder.find(name) else { return Ok(()) };
            if stat.kind != Kind::Dir || !holds_share(&*folder.dir, &stored)? {
                return Ok(());
            }
            let share = folder.dir.open_dir(&stored)?;
            let above = self.stored_path(at.number, at.local).ok_or(Fault::Os(libc::ENOENT))?;
            let descriptor = enter::descriptor(&*share, Path::new(""));
            let id = descriptor.map_err(|_| Fault::Os(libc::EIO))?.share_id();
            if Core::is_empty(&*share)?.0 {
                let path = join_paths(&above, &stored);
                local.keep_removed(&*share, &id, &path, &*at.core.random)?;
            }
            Ok::<_, Fault>(())
        })();
        if let Err(fault) = kept {
            let errno = fault.errno();
            tracing::warn!(
                errno,
                "the control files of a share that is removed cannot be kept on this machine"
            );
        }
    }

    /// Rejects a share whose directory was moved to a place without a junction to it.
    fn check_place(&self, number: u64) -> Inner<()> {
        let children = self.children.read();
        let child = children
            .list
            .get(number as usize - 1)
            .and_then(Option::as_ref)
            .ok_or(Fault::Os(libc::ESTALE))?;
        let place = self.raw_in(&children, child.place)?;
        let Ok(link) = place.core.nodes.link(place.local) else { return Ok(()) }; // removed: only open handles lead here
        if *child.link.lock() == link {
            return Ok(());
        }
        match place.core.junction_at(place.local)? {
            Some(junction) if junction.share == child.core.keys.share => *child.link.lock() = link,
            _ => return Err(Fault::Os(libc::EACCES)),
        }
        Ok(())
    }

    fn raw_in(&self, children: &Children, id: u64) -> Inner<Route> {
        let (number, local) = split(id);
        let core = match number {
            0 => self.root.clone(),
            n => children
                .list
                .get(n as usize - 1)
                .and_then(Option::as_ref)
                .ok_or(Fault::Os(libc::ESTALE))?
                .core
                .clone(),
        };
        Ok(Route { core, number, local })
    }

    /// Runs `act` in the node's share; if `act` meets a nested share at `node`, enters it and runs
    /// `act` there.
    pub fn run<T>(
        &self,
        op: &'static str,
        node: NodeId,
        act: impl Fn(&Core, NodeId) -> Inner<T>,
    ) -> Result<(T, u64)> {
        let mut entered = false;
        loop {
            let route = self.route(node).map_err(|fault| fault.at(op, PathBuf::new))?;
            let away = route.core.namespace.away.count();
            match act(&route.core, route.local) {
                Err(Fault::Boundary) if !entered => {
                    self.enter(&route)?;
                    entered = true;
                }
                // The parent directory had a temporary name meanwhile, while no name could change.
                Err(fault)
                    if fault.errno() == libc::ENOENT
                        && route.core.namespace.away.were_any_since(away) =>
                {
                    drop(route.core.namespace.names.look())
                }
                // It is gone because another directory has taken its place; a repeated lookup
                // succeeds.
                Err(fault)
                    if fault.errno() == libc::ENOENT
                        && route.core.nodes.is_moved_away(route.local) =>
                {
                    return Err(self.explain(op, &route, Fault::Os(libc::ESTALE)));
                }
                other => {
                    return other
                        .map(|out| (out, route.number))
                        .map_err(|fault| self.explain(op, &route, fault));
                }
            }
        }
    }

    /// Returns the route to the directory `node`; enters its share if it is a nested one.
    pub fn directory(&self, op: &'static str, node: NodeId) -> Result<Route> {
        self.run(op, node, |core, local| core.directory_tag(local))?;
        self.route(node).map_err(|fault| fault.at(op, PathBuf::new))
    }

    pub fn explain(&self, op: &'static str, route: &Route, fault: Fault) -> Error {
        route.core.tell_if_full(&fault);
        fault.at(op, || self.shown_path(route.number, route.local))
    }

    /// Returns the stored path from the vault's root.
    pub fn stored_path(&self, number: u64, local: NodeId) -> Option<Vec<u8>> {
        let own = self.core(number).ok()?.nodes.stored_path(local)?;
        if number == 0 {
            return Some(own);
        }
        let (parent, place) = split(self.place(number)?);
        let above = self.stored_path(parent, place)?;
        Some(if own.is_empty() { above } else { [&above[..], &own].join(&b'/') })
    }

    /// Returns the plain path from the vault's root.
    pub fn plain_path(&self, number: u64, local: NodeId) -> Option<Vec<u8>> {
        let own = self.core(number).ok()?.nodes.plain_path(local)?;
        if number == 0 {
            return Some(own);
        }
        let (parent, place) = split(self.place(number)?);
        let above = self.plain_path(parent, place)?;
        Some(if own.is_empty() { above } else { [&above[..], &own].join(&b'/') })
    }

    /// Returns the innermost open share on a stored path, and the rest of the path from its root.
    pub fn at_stored_path<'p>(&self, path: &'p [u8]) -> (Arc<Core>, &'p [u8]) {
        let numbers: Vec<u64> = self.children.read().places.values().copied().collect();
        let inside = |number: u64| {
            let rest = path.strip_prefix(&*self.stored_path(number, ROOT)?)?;
            let rest = if rest.is_empty() { rest } else { rest.strip_prefix(b"/")? };
            Some((self.core(number).ok()?, rest))
        };
        let innermost = numbers.into_iter().filter_map(inside).min_by_key(|(_, rest)| rest.len());
        innermost.unwrap_or_else(|| (self.root.clone(), path))
    }

    fn shown_path(&self, number: u64, local: NodeId) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        match self.stored_path(number, local).filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(std::ffi::OsString::from_vec(path)),
            None => {
                self.core(number).map_or_else(|_| "(unlinked)".into(), |it| it.shown_path(local))
            }
        }
    }

    /// Returns the node of the directory of a nested share.
    fn place(&self, number: u64) -> Option<NodeId> {
        self.children
            .read()
            .list
            .get((number as usize).checked_sub(1)?)?
            .as_ref()
            .map(|child| child.place)
    }

    /// Returns the outside number of a node of a share.
    pub fn outside(&self, number: u64, local: NodeId) -> NodeId {
        match local {
            ROOT if number != 0 => self.place(number).unwrap_or(join(number, ROOT)),
            _ => join(number, local),
        }
    }

    pub fn attr(&self, number: u64, attr: Attr) -> Attr {
        Attr { node: self.outside(number, attr.node), ..attr }
    }

    pub fn outside_handle(number: u64, handle: Handle) -> Handle {
        join(number, handle)
    }

    /// Opens the nested share in a directory.
    fn enter(&self, place: &Route) -> Result<()> {
        let _one = self.entering.lock();
        let node = join(place.number, place.local);
        if self.children.read().places.contains_key(&node) {
            return Ok(()); // another thread was faster
        }
        let explain = |fault: Fault| self.explain("enter", place, fault);
        let shown = self.shown_path(place.number, place.local);
        let link = place.core.nodes.link(place.local).map_err(explain)?;
        let junction = place.core.junction_at(place.local).map_err(explain)?;
        let Some(junction) = junction else {
            tracing::error!(
                "{}: there is a share here without a junction that leads to it; it is not entered",
                shown.display()
            );
            return Err(explain(Fault::Os(libc::EACCES)));
        };
        let store = place.core.dir(place.local).map_err(explain)?;
        let seen = crate::vault::share::seen::manifests(&*store).map_err(explain)?;
        let vouched = Vouched { share: Some(junction.share), head: None };
        let enter_as = |identity: &Arc<Identity>| {
            enter::enter(&*store, identity, &self.options.trust, &vouched, &shown)
                .map(|entered| (identity.clone(), entered))
                .map_err(Error::from)
        };
        let entered = match enter_as(self.founder()) {
            // A share from before the vault was handed over: only the vault's own identity has
            // access.
            Err(Error::NoAccess { .. }) if self.options.person.is_some() => {
                enter_as(&self.identity)
            }
            entered => entered,
        };
        let entered = entered.and_then(|(identity, entered)| {
            if entered.descriptor.signed {
                Ok((identity, entered))
            } else {
                Err(explain(Fault::Os(libc::EACCES)))
            }
        });
        let (identity, entered) = entered.inspect_err(|error| tracing::error!("{error}"))?;
        let core = self.open(store, &entered, identity, &shown)?;
        core.note_head(seen, &entered);
        let mut children = self.children.write();
        if children.list.len() >= SHARES_MAX {
            return Err(explain(Fault::Os(libc::EMFILE)));
        }
        place.core.nodes.opened(place.local); // kept while the share is open
        let number = children.list.len() as u64 + 1;
        if let Some(tell) = self.kernel.get().cloned() {
            core.tell_kernel(Box::new(move |node, what| tell(join(number, node), what)));
        }
        children.list.push(Some(Child {
            core: Arc::new(core),
            place: node,
            link: Mutex::new(link),
        }));
        children.places.insert(node, number);
        Ok(())
    }

    fn open(
        &self,
        store: Arc<dyn crate::store::Dir>,
        entered: &Entered,
        identity: Arc<Identity>,
        shown: &Path,
    ) -> Result<Core> {
        let options = OpenOptions {
            read_only: self.options.read_only || self.root.mode.read_only,
            ..self.options.clone()
        };
        crate::vault::session::lifetime::open_core(
            store,
            entered,
            identity,
            &options,
            Some(&self.root),
            shown,
        )
    }

    /// Returns whether a nested share is open.
    pub fn has_nested(&self) -> bool {
        !self.children.read().places.is_empty()
    }

    /// Closes the nested share in a directory, if it is open: the directory is about to be removed.
    ///
    /// # Errors
    /// `ENOTEMPTY` if it holds anything but control files; those of its last commits.
    pub fn leave(&self, node: NodeId) -> Result<()> {
        if let Ok(route) = self.route(node)
            && route.local == ROOT
            && route.number != 0
        {
            let empty = Core::is_empty(&*route.core.root)
                .map_err(|fault| self.explain("rmdir", &route, fault))?
                .0;
            if !empty {
                return Err(self.explain("rmdir", &route, Fault::Os(libc::ENOTEMPTY)));
            }
        }
        let child = {
            let mut children = self.children.write();
            let Some(number) = children.places.remove(&node) else { return Ok(()) };
            children.list[number as usize - 1].take()
        };
        let Some(child) = child else { return Ok(()) };
        if let Ok(route) = self.raw(child.place) {
            route.core.nodes.closed(route.local);
        }
        crate::vault::session::lifetime::close_core(&child.core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_first_share_are_as_they_were() {
        assert_eq!(split(ROOT), (0, ROOT));
        assert_eq!(split(join(7, 12345)), (7, 12345));
        assert_eq!(join(0, 12345), 12345);
        assert!(join(SHARES_MAX as u64, 1) < 1 << 62);
    }
}

//! Paths for callers without nodes: components separated by `/`, from the vault's root, without
//! following links. They may lead into nested shares.

use crate::vault::error::{Error, Result};
use crate::vault::session::nested::Route;
use crate::vault::session::vault::Vault;
use crate::vault::types::{Attr, NodeId, ROOT};

pub(in crate::vault) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".")
}

impl Vault {
    /// Finds the entry at `path` from the root, without following links; adds one lookup to its
    /// node.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; the reason why a share on the way cannot be entered.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        let mut at = self.getattr(ROOT)?;
        for component in components(path) {
            let next = self.lookup(at.node, component);
            // The child keeps its parents in the table.
            self.let_go(at.node);
            at = next?;
        }
        Ok(at)
    }

    fn let_go(&self, node: NodeId) {
        if node != ROOT {
            self.forget(node, 1);
        }
    }

    /// Returns the stored path of a plain one, from the root; the last component need not exist.
    ///
    /// # Errors
    /// As [`Vault::resolve`].
    pub fn cipher_path(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut parts: Vec<&[u8]> = components(path).collect();
        let Some(last) = parts.pop() else { return Ok(Vec::new()) };
        let parent = self.resolve(&parts.join(&b'/'))?.node;
        let found = self.shares().directory("map", parent).and_then(|route| {
            let stored = route.core.folder(route.local).and_then(|folder| folder.stored(last));
            let stored = stored.map_err(|fault| self.shares().explain("map", &route, fault))?;
            Ok((self.shares().stored_path(route.number, route.local).unwrap_or_default(), stored))
        });
        self.let_go(parent);
        let (path, stored) = found?;
        Ok(if path.is_empty() { stored } else { [path, stored].join(&b'/') })
    }

    /// Returns the plain path of a stored one.
    ///
    /// # Errors
    /// `ENOENT` if a component is not a name of its directory.
    pub fn plain_path(&self, cipher: &[u8]) -> Result<Vec<u8>> {
        let mut plain: Vec<Vec<u8>> = Vec::new();
        let mut node = ROOT;
        for stored in components(cipher) {
            let name = self.shares().directory("map", node).and_then(|route: Route| {
                let name = route.core.folder(route.local).and_then(|folder| folder.decode(stored));
                let name = name.map_err(|fault| self.shares().explain("map", &route, fault))?;
                name.ok_or(Error::Os { op: "map", errno: libc::ENOENT })
            });
            let next = name.and_then(|name| Ok((self.lookup(node, &name)?.node, name)));
            // The parent is dropped in every case; otherwise an invalid stored path would keep its
            // nodes for ever.
            self.let_go(node);
            let (child, name) = next?;
            node = child;
            plain.push(name);
        }
        self.let_go(node);
        Ok(plain.join(&b'/'))
    }
}

//! Paths, for those who have no nodes: components separated by `/`, from the root, no link followed.

use super::core::Core;
use super::error::{Fault, Inner};
use super::types::{Attr, NodeId, ROOT};

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".")
}

impl Core {
    /// Walks `path` and counts one on its last node.
    pub fn resolve(&self, path: &[u8]) -> Inner<Attr> {
        let mut at = self.stat(ROOT)?;
        for component in components(path) {
            let next = self.lookup(at.node, component);
            // The child keeps its parents in the table.
            if at.node != ROOT {
                self.nodes.forget(at.node, 1);
            }
            at = next?;
        }
        Ok(at)
    }

    pub fn readlink(&self, node: NodeId) -> Inner<Vec<u8>> {
        if self.nodes.kind(node)? != crate::backing::Kind::Symlink {
            return Err(Fault::Os(libc::EINVAL));
        }
        let link = self.nodes.link(node)?;
        self.read_target(&*self.dir(link.parent)?, &link.stored)
    }

    pub fn cipher_path(&self, path: &[u8]) -> Inner<Vec<u8>> {
        let mut parts: Vec<&[u8]> = components(path).collect();
        let Some(last) = parts.pop() else { return Ok(Vec::new()) };
        let parent = self.resolve(&parts.join(&b'/'))?;
        let stored = self.folder(parent.node).and_then(|folder| folder.stored(last));
        let path = self.nodes.stored_path(parent.node).unwrap_or_default();
        if parent.node != ROOT {
            self.nodes.forget(parent.node, 1);
        }
        let stored = stored?;
        Ok(if path.is_empty() { stored } else { [path, stored].join(&b'/') })
    }

    pub fn plain_path(&self, cipher: &[u8]) -> Inner<Vec<u8>> {
        let mut plain: Vec<Vec<u8>> = Vec::new();
        let mut node = ROOT;
        for stored in components(cipher) {
            let name = self.folder(node).and_then(|folder| folder.decode(stored)?.ok_or(Fault::Os(libc::ENOENT)));
            let next = name.and_then(|name| Ok((self.lookup(node, &name)?.node, name)));
            // The parent goes in every case, or a stored path that leads nowhere would keep its nodes for ever.
            if node != ROOT {
                self.nodes.forget(node, 1);
            }
            let (child, name) = next?;
            node = child;
            plain.push(name);
        }
        if node != ROOT {
            self.nodes.forget(node, 1);
        }
        Ok(plain.join(&b'/'))
    }
}

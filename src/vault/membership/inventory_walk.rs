//! A walk through a share: finds the entries that certain members have signed, and the nested
//! shares.
//!
//! Rules that hold here
//! * Members who are to be removed control the depth of directories: pending work is on the heap,
//!   and only the directory being read is held open.
//! * Data that is not authentic or not readable does not prevent a removal; unreadable entries are
//!   counted.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use crate::format::journal::header_hash;
use crate::format::junction::Junction;
use crate::format::layout::SMALL_MAX;
use crate::format::name::{DIRECTORY_RECORD, Decoded, SIDECAR, is_control};
use crate::format::record::{OVERFLOW, RecordKind, link_record};
use crate::store::{Access, Dir, Kind};
use crate::vault::core::Core;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::share::control_files::{entries, read_control};
use crate::vault::types::ShareProgress;
use crate::vault::types::{NodeId, ROOT};

/// Maximum length in bytes of a record that is read.
const RECORD_MAX: usize = 8192;

/// Results of a walk through a share.
#[derive(Default)]
pub(crate) struct Walked {
    pub hashes: HashSet<[u8; 32]>,
    /// Places of nested shares.
    pub nested: Vec<NodeId>,
    /// Shares to which a junction leads and which are not isolated, with the stored path of one. A
    /// claim that a share is isolated, or is being created, is ignored if its signer is to be
    /// removed.
    pub expected: HashMap<[u8; 32], PathBuf>,
}

impl Walked {
    /// Drops the lookups of the nested places.
    pub fn forget_nested(&self, core: &Core) {
        self.nested.iter().for_each(|node| core.nodes.forget(*node, 1));
    }
}

/// Walks through a share and notes the entries that certain members have signed.
pub(crate) struct Walk<'a> {
    pub core: &'a Core,
    pub of: &'a [[u8; 32]],
    pub found: Walked,
    pub done: ShareProgress,
    pub progress: &'a mut dyn FnMut(&ShareProgress),
}

/// A pending step of a walk.
enum Step {
    Enter(NodeId, Vec<u8>),
    /// Everything below it is done.
    Leave(NodeId),
}

impl Walk<'_> {
    /// Runs the walk; the places of nested shares each get one lookup.
    pub fn all(&mut self) -> Inner<()> {
        let mut steps = Vec::new();
        let walked = self.steps(&mut steps);
        for step in steps {
            if let Step::Leave(node) = step {
                self.core.nodes.forget(node, 1);
            }
        }
        walked
    }

    fn steps(&mut self, steps: &mut Vec<Step>) -> Inner<()> {
        self.directory(ROOT, steps)?;
        while let Some(step) = steps.pop() {
            let (parent, name) = match step {
                Step::Enter(parent, name) => (parent, name),
                Step::Leave(node) => {
                    self.core.nodes.forget(node, 1);
                    continue;
                }
            };
            let node = match self.core.lookup(parent, &name) {
                Ok(attr) => attr.node,
                Err(fault) => {
                    self.pass_over(parent, fault)?;
                    continue;
                }
            };
            let before = steps.len();
            steps.push(Step::Leave(node));
            match self.directory(node, steps) {
                Ok(()) => {}
                Err(Fault::Boundary) => {
                    steps.truncate(before);
                    self.found.nested.push(node);
                }
                Err(fault) => self.pass_over(node, fault)?,
            }
        }
        Ok(())
    }

    /// Handles a fault of one object. An object that is not authentic, is gone, or has the wrong
    /// type (a directory or a FIFO with the name of a record) has nothing to keep. An unreadable
    /// object is counted, and does not prevent a removal; any other failure ends the walk.
    fn pass_over(&mut self, node: NodeId, fault: Fault) -> Inner<()> {
        match (&fault, fault.errno()) {
            (Fault::Corrupt(_) | Fault::Format(_), _)
            | (_, libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::EISDIR | libc::ENXIO) => {
                Ok(())
            }
            (_, libc::EACCES | libc::EPERM | libc::ELOOP) => {
                self.unread(node);
                Ok(())
            }
            _ => Err(fault),
        }
    }

    fn unread(&mut self, node: NodeId) {
        self.done.unread += 1;
        tracing::error!(
            "{}: not all of it is readable; entries signed there are in no inventory",
            self.core.shown_path(node).display()
        );
    }

    /// Notes the record `bytes` if it is valid and signed by one of the members. Invalid records
    /// are reported by the check.
    fn record(&mut self, kind: RecordKind, bound: &[u8], bytes: &[u8]) {
        if let Ok((_, Some(by))) = self.core.keys.open_record_by(kind, bound, bytes)
            && self.of.contains(&by.signer)
        {
            self.found.hashes.insert(header_hash(bytes));
        }
    }

    fn control(&mut self, node: NodeId, id: &[u8; 32], name: &[u8]) -> Inner<()> {
        let prefixes = [SIDECAR, crate::format::junction::PREFIX, b"+link-"];
        if name != DIRECTORY_RECORD && !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(());
        }
        let Some(bytes) = read_control(&*self.core.dir(node)?, name, RECORD_MAX)? else {
            return Ok(());
        };
        // The name contains the hash, as does that of the entry.
        let hash = |prefix: &[u8]| match self
            .core
            .keys
            .names(id)
            .decode(&[&b"="[..], &name[prefix.len()..]].concat())
        {
            Decoded::Long { hash, .. } => Some([&id[..], &hash].concat()),
            _ => None,
        };
        if name == DIRECTORY_RECORD {
            self.record(RecordKind::Directory, b"", &bytes);
        } else if name.starts_with(SIDECAR) {
            if let Some(bound) = hash(SIDECAR) {
                self.record(RecordKind::Name, &bound, &bytes);
            }
        } else if name.starts_with(crate::format::junction::PREFIX) {
            if let Some(bound) = hash(crate::format::junction::PREFIX) {
                self.record(RecordKind::Junction, &bound, &bytes);
                self.expect(node, name, &bound, &bytes);
            }
        } else if let Some(reference) = crate::vault::namespace::symlink::overflow_reference(name) {
            self.record(RecordKind::LongSymlink, &reference, &bytes);
        }
        Ok(())
    }

    /// Notes the share to which a valid junction leads.
    fn expect(&mut self, node: NodeId, name: &[u8], bound: &[u8], bytes: &[u8]) {
        if let Ok((plain, Some(by))) =
            self.core.keys.open_record_by(RecordKind::Junction, bound, bytes)
            && let Ok(junction) = Junction::decode(&plain)
            && (!(junction.isolated || junction.coming)
                || self.of.iter().any(|gone| *gone == by.signer || *gone == by.author))
        {
            let path = self.core.shown_path(node).join(crate::vault::directory::names::shown(name));
            self.found.expected.insert(junction.share, path);
        }
    }

    fn directory(&mut self, node: NodeId, steps: &mut Vec<Step>) -> Inner<()> {
        let id = match self.core.directory_id(node) {
            // Its sidecar may only be late, and the validity of files in it does not depend on it.
            Err(Fault::Corrupt(Corruption::LostDirectory)) => {
                self.unread(node);
                None
            }
            other => Some(other?),
        };
        let dir = self.core.dir(node)?;
        for entry in entries(&*dir)? {
            let entry = entry?;
            let seen = match (is_control(&entry.name), &id) {
                (true, Some(id)) => self.control(node, id, &entry.name),
                (true, None) => Ok(()),
                (false, _) => self.entry(node, &*dir, &entry.name, steps),
            };
            if let Err(fault) = seen {
                self.pass_over(node, fault)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        node: NodeId,
        dir: &dyn Dir,
        stored: &[u8],
        steps: &mut Vec<Step>,
    ) -> Inner<()> {
        match dir.stat(stored)?.kind {
            Kind::File => {
                let file = dir.open_file(stored, Access::Read)?;
                let header = self.core.keys.layout.header();
                let mut bytes = vec![0; header + SMALL_MAX as usize];
                let read = file.read_at(&mut bytes, 0)?;
                bytes.truncate(read);
                if let Ok(opened) = self.core.keys.open_header(&bytes)
                    && opened.by.is_some_and(|by| self.of.contains(&by.signer))
                {
                    self.found.hashes.insert(header_hash(&bytes[..header]));
                }
                self.done.files += 1;
                (self.progress)(&self.done);
            }
            Kind::Symlink => {
                let text = dir.readlink(stored)?;
                let (text, bound): (&[u8], &[u8]) = match text.split_first() {
                    Some((&OVERFLOW, rest)) => (rest, b"+"),
                    _ => (&text, b""),
                };
                self.record(RecordKind::Symlink, bound, &link_record(text)?);
            }
            Kind::Dir => {
                if let Some(name) = self.core.folder(node)?.decode(stored)? {
                    steps.push(Step::Enter(node, name.to_vec()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

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
use crate::format::junction::{self, Junction};
use crate::format::layout::SMALL_MAX;
use crate::format::name::is_control;
use crate::format::record::{OVERFLOW, RecordKind, link_record};
use crate::store::{Access, Dir, Kind};
use crate::vault::core::Core;
use crate::vault::directory::junction::bound;
use crate::vault::error::{Fault, Inner};
use crate::vault::namespace::symlink::overflow_reference;
use crate::vault::share::control_files::{entries, is_forbidden, read_control};
use crate::vault::types::ShareProgress;
use crate::vault::types::{NodeId, ROOT};

/// Maximum length in bytes of a record that is read.
const RECORD_MAX: usize = 8192;

/// Results of a walk through a share.
#[derive(Default)]
pub(crate) struct Walked {
    /// Hashes of the headers and records that the members have signed.
    pub hashes: HashSet<[u8; 32]>,
    /// Places of nested shares.
    pub nested: Vec<NodeId>,
    /// Shares to which junctions lead, with the stored path of one junction. A junction with the
    /// flag isolated or coming is left out, unless one of the members is its author or signer: then
    /// the flag may be false.
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
    /// Signing keys of the members.
    pub of: &'a [[u8; 32]],
    /// Hashes of headers that an earlier walk has noted. They are not verified again.
    pub known: &'a HashSet<[u8; 32]>,
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
        self.evidence()?;
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

    /// Notes the rename evidence that the members have signed: without it the entries of the
    /// directories that they renamed would be marked.
    fn evidence(&mut self) -> Inner<()> {
        let (of, hashes) = (self.of, &mut self.found.hashes);
        let mut is_unread = false;
        let walked = self.core.each_evidence(|found| {
            match found {
                Ok(found) if found.by.is_some_and(|by| of.contains(&by.signer)) => {
                    hashes.insert(found.hash);
                }
                Ok(_) => {}
                Err(Fault::Io(e)) if is_forbidden(&e) => is_unread = true,
                Err(fault) => return Err(fault),
            }
            Ok(())
        });
        if is_unread {
            self.unread(ROOT);
        }
        walked.or_else(|fault| self.pass_over(ROOT, fault))
    }

    fn control(&mut self, node: NodeId, name: &[u8]) -> Inner<()> {
        let (place, reference) = (junction::hash_of(name), overflow_reference(name));
        if place.is_none() && reference.is_none() {
            return Ok(());
        }
        let Some(bytes) = read_control(&*self.core.dir(node)?, name, RECORD_MAX)? else {
            return Ok(());
        };
        if let Some(hash) = place {
            for tag in self.core.folder(node)?.junction_tags()? {
                let bound = bound(&tag, &hash);
                self.record(RecordKind::Junction, &bound, &bytes);
                self.expect(node, name, &bound, &bytes);
            }
        }
        if let Some(reference) = reference {
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
        self.core.directory_tag(node)?;
        let dir = self.core.dir(node)?;
        for entry in entries(&*dir)? {
            let entry = entry?;
            self.core.check_open()?;
            let seen = if is_control(&entry.name) {
                self.control(node, &entry.name)
            } else {
                self.entry(node, &*dir, &entry.name, steps)
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
                if let Some(hash) = bytes.get(..header).map(header_hash)
                    && !self.known.contains(&hash)
                    && self.core.keys.is_header_of(&bytes, self.of)
                {
                    self.found.hashes.insert(hash);
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

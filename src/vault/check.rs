//! The check: reads and authenticates every byte of a vault, or of a sub-tree, and tells what is wrong where.

use std::sync::Arc;

use super::core::{Core, list};
use super::entries::Folder;
use super::error::{Fault, Inner};
use super::file::OpenFile;
use super::types::{NodeId, ROOT};
use crate::backing::{Access, Kind, Stat};
use crate::format::name::{DIRECTORY_RECORD, SIDECAR, is_control};

/// Beginnings of the names of control files at the root of a share. What is in them is verified by who opens the share, but for the
/// targets of long links, which are read with their links.
const ROOT_CONTROLS: [&[u8]; 8] = [b"+share", b"+manifest-", b"+slots-", b"+identity", b"+lock", b"+journal-", b"+link-", b"+inventory-"];

/// What the check has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets, devices.
    pub others: u64,
    /// Plain bytes that were authenticated.
    pub bytes: u64,
}

impl CheckProgress {
    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        CheckProgress {
            files: self.files + other.files,
            dirs: self.dirs + other.dirs,
            symlinks: self.symlinks + other.symlinks,
            others: self.others + other.others,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFault {
    /// Plain path from the root, as far as it is known.
    pub plain: Vec<u8>,
    /// Stored path from the root.
    pub cipher: Vec<u8>,
    /// What.
    pub what: String,
}

/// Outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What was seen.
    pub seen: CheckProgress,
    /// What is wrong.
    pub faults: Vec<CheckFault>,
}

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Io(e) => e.to_string(),
        Fault::Format(e) => e.to_string(),
        Fault::Corrupt(what) => what.to_string(),
        Fault::Boundary => "is a share that cannot be entered".to_string(),
        Fault::Os(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// Nested shares that a check came upon, by node and plain path. The caller enters them, and lets go of the nodes.
pub(crate) type NestedShares = Vec<(NodeId, Vec<u8>)>;

struct Check<'a> {
    core: &'a Core,
    report: CheckReport,
    shares: NestedShares,
    progress: &'a mut dyn FnMut(&CheckProgress),
    buf: zeroize::Zeroizing<Vec<u8>>,
}

impl Core {
    /// Checks the entry at `start` (its node and both paths) and everything below it.
    pub fn check(
        &self,
        start: NodeId,
        plain: &[u8],
        cipher: &[u8],
        progress: &mut dyn FnMut(&CheckProgress),
    ) -> Inner<(CheckReport, NestedShares)> {
        let mut check = Check {
            core: self,
            report: CheckReport::default(),
            shares: Vec::new(),
            progress,
            buf: zeroize::Zeroizing::new(vec![0; 1 << 20]),
        };
        if start == ROOT {
            // The root is an entry of no directory: nobody else would look at its attributes.
            if let Err(fault) = self.list_xattr(start) {
                check.fault(plain, cipher, describe(fault));
            }
            check.directory(start, plain, cipher);
        } else {
            let link = self.nodes.link(start)?;
            let stat = self.dir(link.parent)?.stat(&link.stored)?;
            check.entry(&self.folder(link.parent)?, start, &stat, &link.stored, plain, cipher);
        }
        Ok((check.report, check.shares))
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

impl Check<'_> {
    fn fault(&mut self, plain: &[u8], cipher: &[u8], what: impl Into<String>) {
        self.report.faults.push(CheckFault { plain: plain.to_vec(), cipher: cipher.to_vec(), what: what.into() });
    }

    fn directory(&mut self, node: NodeId, plain: &[u8], cipher: &[u8]) {
        self.report.seen.dirs += 1;
        (self.progress)(&self.report.seen);
        let folder = match self.core.folder(node) {
            Ok(folder) => folder,
            // A share of its own, which is checked by whoever enters it.
            Err(Fault::Boundary) => {
                self.report.seen.dirs -= 1;
                return self.shares.push((node, plain.to_vec()));
            }
            Err(fault) => return self.fault(plain, cipher, describe(fault)),
        };
        let listed = self.core.dir(node).and_then(|dir| list(&*dir));
        let mut entries = match listed {
            Ok(entries) => entries,
            Err(fault) => return self.fault(plain, cipher, describe(fault)),
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in &entries {
            let cipher = join(cipher, &entry.name);
            let name = match folder.decode(&entry.name) {
                Ok(Some(name)) => name,
                Ok(None) if is_control(&entry.name) => {
                    self.control(node, &entry.name, &entries, plain, &cipher);
                    continue;
                }
                Ok(None) => {
                    self.fault(&join(plain, b"?"), &cipher, "is not a name of this directory: changed, or moved here without the key");
                    continue;
                }
                Err(fault) => {
                    self.fault(&join(plain, b"?"), &cipher, describe(fault));
                    continue;
                }
            };
            let plain = join(plain, &name);
            if name == *entry.name {
                self.fault(&plain, &cipher, "has lost its long name");
            }
            let attr = match self.core.lookup(node, &name) {
                Ok(attr) => attr,
                Err(fault) => {
                    self.fault(&plain, &cipher, describe(fault));
                    continue;
                }
            };
            match self.core.dir(node).and_then(|dir| Ok(dir.stat(&entry.name)?)) {
                Ok(stat) => self.entry(&folder, attr.node, &stat, &entry.name, &plain, &cipher),
                Err(fault) => self.fault(&plain, &cipher, describe(fault)),
            }
            // The node of a share is still counted on, by the one that the report has.
            if self.shares.last().is_none_or(|(share, _)| *share != attr.node) {
                self.core.nodes.forget(attr.node, 1);
            }
        }
    }

    /// Control files: records are read with what they belong to; sidecars are held against their entries.
    fn control(&mut self, node: NodeId, name: &[u8], entries: &[crate::backing::DirEntry], plain: &[u8], cipher: &[u8]) {
        let text = name.strip_prefix(SIDECAR);
        if name.starts_with(crate::format::junction::PREFIX) {
            return; // read with the directory that it leads to
        }
        if let Some(text) = text {
            let entry = [b"=", text].concat();
            if !entries.iter().any(|e| e.name.starts_with(&entry)) {
                self.fault(plain, cipher, "names an entry that is not there");
            }
        } else if name.starts_with(b"+tmp-") || name.starts_with(b"+trash-") {
            self.fault(plain, cipher, "was left behind by a crash");
        } else if name.starts_with(b"+moving-") {
            self.fault(plain, cipher, "is a share that was not finished: making it again goes on, or removes what is left");
        } else if name.starts_with(b"+refused-") {
            self.fault(plain, cipher, "is a journal with changes to files that were something else when it was replayed");
        } else if if node == ROOT { !ROOT_CONTROLS.iter().any(|known| name.starts_with(known)) } else { name != DIRECTORY_RECORD } {
            self.fault(plain, cipher, "is no control file of this directory");
        }
    }

    fn entry(&mut self, folder: &Folder, node: NodeId, stat: &Stat, stored: &[u8], plain: &[u8], cipher: &[u8]) {
        match self.core.list_xattr(node) {
            // Those of a share are checked with it.
            Ok(_) | Err(Fault::Boundary) => {}
            Err(fault) => self.fault(plain, cipher, describe(fault)),
        }
        match stat.kind {
            Kind::Dir => self.directory(node, plain, cipher),
            Kind::File => {
                self.report.seen.files += 1;
                if let Err(fault) = self.file(folder, node, stored) {
                    self.fault(plain, cipher, describe(fault));
                }
            }
            Kind::Symlink => {
                self.report.seen.symlinks += 1;
                if let Err(fault) = folder.read_target(stored) {
                    self.fault(plain, cipher, describe(fault));
                }
            }
            _ => self.report.seen.others += 1,
        }
        (self.progress)(&self.report.seen);
    }

    fn file(&mut self, folder: &Folder, node: NodeId, stored: &[u8]) -> Inner<()> {
        let open = self.core.files.lock().get(&node).map(|s| s.file.clone());
        let open: Arc<OpenFile> = match open {
            Some(open) => open,
            None => {
                let file = folder.open_file(stored, Access::Read)?;
                OpenFile::load(node, file, &self.core.tools(), self.core.next_serial(), false)?
            }
        };
        let mut offset = 0;
        loop {
            let read = open.read(&self.core.tools(), offset, &mut self.buf)?;
            if read == 0 {
                break;
            }
            offset += read as u64;
            self.report.seen.bytes += read as u64;
            (self.progress)(&self.report.seen);
            // A hole is authenticated by its absence from the tree: no need to read its zeros.
            let next = open.state.read().seek(&*open.file, &self.core.tools(), offset, crate::backing::Seek::Data);
            match next {
                Ok(data) => offset = data,
                Err(Fault::Os(libc::ENXIO)) => break,
                Err(fault) => return Err(fault),
            }
        }
        let state = open.state.read();
        let expected = self.core.keys.layout.cipher_len(state.size);
        if !state.changed && open.file.stat()?.size != expected {
            // What a crash leaves of an append is no part of the file and never shown, and neither is what somebody put there.
            return Err(Fault::Corrupt("holds bytes beyond its end, which are not shown"));
        }
        Ok(())
    }
}

//! Directory listings: names in the order of the store, decoded in batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::name::{is_control, may_be_sealed};
use crate::vault::core::Core;
use crate::vault::core::open_table::Open;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Meaning;
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::types::{Attr, Entry, Handle, NamesReadWith, NodeId};

impl Core {
    pub fn open_dir(&self, node: NodeId) -> Inner<Handle> {
        let folder = self.folder(node)?;
        let dir = folder.dir.reopen()?;
        self.nodes.opened(node);
        let handle = self.open.put_handle(Open::Dir {
            node,
            dir,
            directory: folder.tag,
            unread: Arc::default(),
            missing: Arc::default(),
        });
        if self.nodes.is_moved_away(node) {
            // Another directory has taken this one's place since the check. The conversion that
            // empties this directory may have looked for open listings before this handle existed.
            // The caller repeats the lookup.
            self.release_handle(handle)?;
            return Err(Fault::Os(libc::ESTALE));
        }
        Ok(handle)
    }

    pub fn names_read_with(&self, handle: Handle) -> Inner<NamesReadWith> {
        match self.open.handle(handle)? {
            Open::Dir { directory, .. } => {
                let mut tags = blake3::Hasher::new();
                tags.update(&directory);
                for tag in &*self.explained(&directory)? {
                    tags.update(tag);
                }
                let tags = tags.finalize().into();
                Ok(NamesReadWith { generation: self.keys.generation(), tags })
            }
            Open::File { .. } => Err(Fault::Os(libc::ENOTDIR)),
        }
    }

    pub fn has_our_clock(&self, handle: Handle) -> bool {
        matches!(self.open.handle(handle), Ok(Open::Dir { dir, .. }) if dir.has_our_clock())
    }

    pub fn has_unread_names(&self, handle: Handle) -> bool {
        matches!(self.open.handle(handle), Ok(Open::Dir { unread, .. }) if unread.load(Ordering::Relaxed))
    }

    pub fn misses_entries(&self, handle: Handle) -> bool {
        matches!(self.open.handle(handle), Ok(Open::Dir { missing, .. }) if missing.load(Ordering::Relaxed))
    }

    pub fn read_dir(&self, handle: Handle, mut cookie: i64, limit: usize) -> Inner<Vec<Entry>> {
        let Open::Dir { node, dir, directory, unread, missing } = self.open.handle(handle)? else {
            return Err(Fault::Os(libc::ENOTDIR));
        };
        // A directory that was renamed since the open has another tag; a removed one keeps its tag.
        let tag = self.directory_tag(node).unwrap_or(directory);
        let folder = Folder { core: self, node, dir, tag };
        loop {
            let away = self.namespace.away.count();
            let raw = folder.dir.read(cookie, limit)?;
            if self.namespace.away.were_any_since(away) {
                // A directory in it may have had a temporary name: the read is repeated after that.
                drop(self.namespace.names.look());
                continue;
            }
            let Some(last) = raw.last() else {
                // A directory that was removed because another has taken its place must not look
                // empty.
                let gone = self.nodes.is_moved_away(node) && folder.dir.stat_self()?.nlink == 0;
                return if gone { Err(Fault::Os(libc::ESTALE)) } else { Ok(Vec::new()) };
            };
            cookie = last.next;
            let mut entries = Vec::with_capacity(raw.len());
            // The storage host can add any number of entries without a name: one line is logged for
            // all that are skipped in one read.
            let (mut skipped, mut first) = (0, None);
            let meanings = self.read_names(raw.iter().map(|entry| &*entry.name))?;
            for (entry, meaning) in raw.into_iter().zip(meanings) {
                if meaning == Some(Meaning::Lost) {
                    unread.store(true, Ordering::Relaxed); // shown under its stored name
                }
                let name = match &meaning {
                    Some(meaning) => folder.shown(&entry.name, meaning)?,
                    None => None,
                };
                if let Some(name) = name {
                    entries.push(Entry {
                        name: name.into(),
                        ino: self.nodes.listed_number(entry.ino),
                        kind: entry.kind,
                        next: entry.next,
                    });
                } else if !is_control(&entry.name) {
                    unread.store(true, Ordering::Relaxed);
                    missing.fetch_or(may_be_sealed(&entry.name), Ordering::Relaxed);
                    skipped += 1;
                    first.get_or_insert((entry.name, meaning.is_some()));
                }
            }
            if let Some((name, is_known)) = first {
                let why = if is_known {
                    "other entries have its names"
                } else {
                    "no key of this share opens its name (see `kithfs fsck`, and docs/TROUBLESHOOTING.md on changes to a share that cross)"
                };
                let path = self.shown_path(node).join(shown(&name));
                match skipped {
                    1 => tracing::warn!("{}: {why}, skipped", path.display()),
                    n => tracing::warn!("{}: {why}; {n} entries skipped", path.display()),
                }
            }
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// Looks up an entry of a listing.
    pub fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Inner<Attr> {
        let Open::Dir { node, .. } = self.open.handle(handle)? else {
            return Err(Fault::Os(libc::ENOTDIR));
        };
        self.lookup(node, &entry.name)
    }
}

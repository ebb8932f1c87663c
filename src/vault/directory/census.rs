//! The census of a directory: what one listing shows of its junctions, tags and entries that may
//! need a mark. It is cached, because lookups of many names need it.
//!
//! Rules that hold here
//! * A census is valid as long as the directory's times show no change. One that took long to take
//!   is used a while longer: the storage host can change the times at any moment.
//! * Entries that are certain to be shown under their plain names are not in it, because a directory
//!   may be larger than memory.

use std::sync::Arc;
use std::time::Instant;

use crate::format::junction;
use crate::format::suffix::mark_of;
use crate::vault::core::Core;
use crate::vault::core::known_names::{Census, Freshness};
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Meaning;
use crate::vault::error::Inner;
use crate::vault::share::control_files::LISTED;

impl Folder<'_> {
    /// Returns the cached census of the directory. If the directory has changed, takes a new one.
    pub(in crate::vault) fn census(&self) -> Inner<Arc<Census>> {
        let Core { namespace, mode, keys, .. } = self.core;
        let stat = self.dir.stat_self()?;
        let (key, times) =
            ((stat.dev, stat.ino, self.tag, keys.generation()), (stat.mtime, stat.ctime));
        let known = namespace.censuses.0.lock().get(&key).cloned();
        let shared = mode.writers.share_names();
        if let Some((fresh, census)) = &known
            && (fresh.is_valid(&times, shared) || fresh.rests(shared))
        {
            return Ok(census.clone());
        }
        let (before, begun) = (known.as_ref().map(|(fresh, _)| fresh), Instant::now());
        let fresh = Freshness::new(times, before, begun);
        let census = Arc::new(self.take_census()?);
        let fresh = fresh.took(begun.elapsed());
        namespace.censuses.0.lock().put(key, (fresh, census.clone()));
        Ok(census)
    }

    fn take_census(&self) -> Inner<Census> {
        let (dir, mut cookie, mut census) = (self.dir.reopen()?, 0, Census::default());
        loop {
            let part = dir.read(cookie, LISTED)?;
            let Some(last) = part.last() else { break };
            cookie = last.next;
            let meanings = self.core.read_names(part.iter().map(|entry| &*entry.name))?;
            for (entry, meaning) in part.into_iter().zip(meanings) {
                census.junctions.extend(junction::hash_of(&entry.name));
                let Some(meaning) = meaning else { continue };
                if let Meaning::Name(sealed) = &meaning {
                    census.tags.insert(sealed.tag);
                    if self.is_plain(sealed) {
                        continue;
                    }
                }
                census.marks.entry(mark_of(&entry.name)).or_default().push(entry.name);
            }
        }
        census.marks.values_mut().for_each(|names| names.sort_unstable());
        Ok(census)
    }
}

//! The census of a directory: its junctions, its lost long names, and its entries with other tags
//! than its own, as one listing shows them. It is cached, because lookups of many names need it.
//!
//! Rules that hold here
//! * A census is valid as long as the directory's times show no change. One that took long to take
//!   is used a while longer: the storage host can change the times at any moment.
//! * Entries with the directory's own tag are not in it, because a directory may be larger than
//!   memory. A lookup finds them by trying that tag.

use std::sync::Arc;
use std::time::Instant;

use crate::format::junction;
use crate::format::name::{Parts, parse};
use crate::format::suffix::mark_of;
use crate::vault::core::Core;
use crate::vault::core::known_names::{Census, Count, Freshness};
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::{Meaning, Sealed};
use crate::vault::error::Inner;
use crate::vault::share::control_files::LISTED;

/// A census, and whether it is still exact.
pub(in crate::vault) struct Counted {
    pub census: Arc<Census>,
    /// Whether the directory's times prove that it has not changed since the census was taken.
    pub is_certain: bool,
}

impl Folder<'_> {
    /// Returns the cached census of the directory, or takes a new one if that is no longer valid.
    pub(in crate::vault) fn census(&self) -> Inner<Counted> {
        let Core { namespace, mode, keys, .. } = self.core;
        let stat = self.dir.stat_self()?;
        let (key, times) =
            ((stat.dev, stat.ino, self.tag, keys.generation()), (stat.mtime, stat.ctime));
        let known = namespace.censuses.get(&key);
        let shared = mode.writers.share_names();
        if let Some((fresh, census)) = &known
            && (fresh.is_valid(&times, shared) || fresh.rests(shared))
        {
            let is_certain = fresh.is_certain(&times);
            return Ok(Counted { census: census.clone(), is_certain });
        }
        // If a long name was lost, the times are no proof: its arrival changes no time of the directory.
        let before = known.as_ref().filter(|(_, census)| census.lost.is_empty());
        let (before, begun) = (before.map(|(fresh, _)| fresh), Instant::now());
        let fresh = Freshness::new(times, before, begun);
        let census = Arc::new(self.take_census()?);
        let fresh = fresh.took(begun.elapsed());
        namespace.censuses.keep(key, (fresh, census.clone()));
        Ok(Counted { census, is_certain: true })
    }

    fn take_census(&self) -> Inner<Census> {
        let (dir, mut cookie, mut count) = (self.dir.reopen()?, 0, Count::default());
        loop {
            let part = dir.read(cookie, LISTED)?;
            let Some(last) = part.last() else { break };
            cookie = last.next;
            let meanings = self.core.read_names(part.iter().map(|entry| &*entry.name))?;
            for (entry, meaning) in part.iter().zip(meanings) {
                if let Some(place) = junction::hash_of(&entry.name) {
                    count.junction(&place);
                }
                match meaning {
                    Some(Meaning::Name(Sealed { tag, .. })) if tag == self.tag => {
                        count.tag(&tag);
                    }
                    Some(Meaning::Name(Sealed { tag, plain, suffix, .. })) => {
                        count.entry(&tag, (&plain, &suffix), mark_of(&entry.name));
                    }
                    Some(Meaning::Lost) => {
                        if let Parts::Long { hash, .. } =
                            parse(&entry.name, self.keys().longest_name)
                        {
                            count.lost(&hash);
                        }
                    }
                    None => {}
                }
            }
        }
        Ok(count.finish())
    }
}

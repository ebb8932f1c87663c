//! Older states that this machine has written since.
//!
//! A commit raises the version, so soon the file is not older than it was seen. Only the mount
//! knows the version that its first commit was built on.
//!
//! Rules that hold here
//! * The version that a commit was built on is compared with the recorded one before that is
//!   raised.
//! * A finding about a file that was written since stays until the user accepts it, whatever
//!   version the name shows: the versions that this machine has written since cannot be told from
//!   the one that was seen before.
//! * The same holds for an alarm that was listed already, if this machine removes or replaces the
//!   file.
//! * What makes a finding a note in a comparison makes it one here too, also later.

use std::collections::BTreeMap;

use super::suspect::FILE;
use super::{Here, Survey};
use crate::vault::error::Inner;
use crate::vault::fsck::report::join;
use crate::vault::rollback::memory::{Base, Memory, PlaceId};
use crate::vault::rollback::notice::NoticeKind;
use crate::vault::rollback::rows::{EntryKey, Id, NameTag, NoticeRow, PREFIX, Row};

/// A file that was older than it was seen, and was then written.
pub(super) struct Found {
    key: EntryKey,
    plain: Vec<u8>,
    id: Id,
    kind: NoticeKind,
    /// The file that this client has put in its place before.
    over: Option<Row>,
    /// When the newer state was last seen.
    seen: i64,
}

impl Survey<'_> {
    /// Compares the version on which a commit of the file with this name was built with `row`, the
    /// recorded state of the name. `ours`: this mount has created, removed or renamed the name.
    pub(super) fn compare_base(
        &mut self,
        key: EntryKey,
        row: Option<&Row>,
        here: &Here,
        name: &[u8],
        ours: bool,
    ) -> Inner<()> {
        let Some(base) = self.memory.base(&here.place, name) else { return Ok(()) };
        let kind = match base.at < self.accepted {
            true => None,
            false => self.kind_of_base(&base, row, self.memory.tag(&here.place, name), ours)?,
        };
        if kind.is_some() && !base.is_written {
            return Ok(());
        }
        self.memory.drop_base(&here.place, name, &base);
        if let Some(kind) = kind {
            let seen = row.map_or(self.options.now, |row| row.seen);
            let plain = join(&here.plain, name);
            let tag = Some(self.memory.tag(&here.place, name));
            let is_over = self
                .removed(&base.id)?
                .is_some_and(|removed| removed.over.map(|(name, _)| name) == tag);
            let over = row.filter(|row| is_over && row.kind == FILE && row.id != base.id).cloned();
            self.found.push(Found { key, plain, id: base.id, kind, over, seen });
        }
        Ok(())
    }

    fn kind_of_base(
        &self,
        base: &Base,
        row: Option<&Row>,
        name: NameTag,
        ours: bool,
    ) -> Inner<Option<NoticeKind>> {
        let now = base.version;
        let file = self.file(&base.id)?;
        if let Some(row) = row.filter(|row| row.kind == FILE && row.id == base.id) {
            let innocent = ours && file.is_some_and(|file| file.beside == now);
            let was = row.version;
            return Ok((now < was && !innocent).then_some(NoticeKind::Older { was, now }));
        }
        let Some(removed) = self.removed(&base.id)?.filter(|removed| now <= removed.version) else {
            return Ok(None);
        };
        let since = *self.memory.interrupted.lock();
        let is_doubtful = since.is_some_and(|since| removed.when >= since);
        let same_name = removed.names.contains(&name);
        if ours || is_doubtful || !(removed.here || same_name) || file.is_some_and(|f| f.names > 0)
        {
            return Ok(None);
        }
        let elsewhere = !same_name || self.has_other_writers();
        let was = removed.version;
        Ok(Some(match now < was && (same_name || !elsewhere) {
            true => NoticeKind::Older { was, now },
            false => NoticeKind::PutBack { elsewhere },
        }))
    }

    /// Makes notices of what was found.
    pub(super) fn keep_found(&mut self) {
        for Found { key, plain, id, kind, over, seen } in std::mem::take(&mut self.found) {
            let name: NameTag = key[PREFIX..].try_into().expect("8 of 24 bytes");
            let is_beside = over.is_some_and(|row| self.is_copy(&row, name));
            let kind = match kind {
                NoticeKind::Older { was, now } if is_beside && self.has_other_writers() => {
                    NoticeKind::Conflict { was, now }
                }
                kind => self.explained_kind(kind, &id, &key, &plain),
            };
            let old = self.before.get(&key);
            if old.is_some_and(|old| old.is_written && old.kind.is_some()) && !kind.is_alarm() {
                continue; // the earlier finding stays until the user accepts it
            }
            let same = old.filter(|old| old.is_about(&kind));
            let row = NoticeRow {
                kind: Some(kind),
                seen,
                first: old.map_or(self.options.now, |old| old.first.min(self.options.now)),
                last: self.options.now,
                silenced: same.is_some_and(|old| old.silenced),
                is_written: true,
                path: self.memory.seal(&plain),
            };
            self.before.insert(key, row);
            self.is_told = true;
        }
    }

    /// Keeps an alarm that was listed, as this mount has removed or replaced the file.
    pub(super) fn keep_alarm(&mut self, key: &EntryKey) {
        let settled = self.options.now - self.options.settle.as_secs() as i64;
        if let Some(notice) = self.before.get_mut(key)
            && !notice.is_written
            && notice.first <= settled
            && matches!(
                notice.kind,
                Some(NoticeKind::Older { .. } | NoticeKind::PutBack { elsewhere: false })
            )
        {
            notice.is_written = true;
            self.is_told = true;
        }
    }

    /// Adds the earlier findings about files that were written since.
    pub(super) fn keep_written(&self, notices: &mut BTreeMap<EntryKey, NoticeRow>) -> Inner<()> {
        for (key, old) in self.before.iter().filter(|(_, old)| old.is_written) {
            let plain = self.memory.open(&old.path).unwrap_or_default();
            let Some(kind) = old.kind.clone().filter(|_| !self.options.accepts(&plain)) else {
                continue;
            };
            let kind = match self.row(key)?.filter(|row| row.kind == FILE) {
                Some(row) => self.explained_kind(kind, &row.id, key, &plain),
                None => kind,
            };
            if !kind.is_alarm() && notices.get(key).is_some_and(NoticeRow::is_alarm) {
                continue;
            }
            let (last, silenced) = (self.options.now, old.silenced || self.options.silence);
            notices.insert(*key, NoticeRow { kind: Some(kind), last, silenced, ..old.clone() });
        }
        Ok(())
    }

    /// Adds the findings that were recorded since the comparison began.
    pub(super) fn reread_written(&mut self) -> Inner<()> {
        for (key, row) in self.db.notices()?.into_iter().filter(|(_, row)| row.is_written) {
            self.before.insert(key, row);
        }
        Ok(())
    }

    /// Returns the kind as a note if another machine may be the cause.
    fn explained_kind(
        &self,
        kind: NoticeKind,
        id: &Id,
        key: &EntryKey,
        plain: &[u8],
    ) -> NoticeKind {
        let name: NameTag = key[PREFIX..].try_into().expect("8 of 24 bytes");
        match kind {
            NoticeKind::Older { was, now } if self.is_conflict(id, &name, plain, was) => {
                NoticeKind::Conflict { was, now }
            }
            NoticeKind::PutBack { elsewhere } => {
                NoticeKind::PutBack { elsewhere: elsewhere || self.has_other_writers() }
            }
            kind => kind,
        }
    }
}

impl Memory {
    /// Returns the version on which a commit of the file with this name was built, if that was not
    /// compared yet.
    fn base(&self, place: &PlaceId, name: &[u8]) -> Option<Base> {
        self.held.lock().touched.get(place)?.bases.get(name).copied()
    }

    fn drop_base(&self, place: &PlaceId, name: &[u8], base: &Base) {
        if let Some(touched) = self.held.lock().touched.get_mut(place)
            && touched
                .bases
                .get(name)
                .is_some_and(|there| (there.id, there.version) == (base.id, base.version))
        {
            touched.bases.remove(name);
        }
    }
}

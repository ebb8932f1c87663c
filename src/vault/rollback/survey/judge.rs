//! Classifies deviations as alarm, informational, or nothing, once the whole vault was read.
//!
//! Rules that hold here
//! * A name that shows an older version of the file that it showed before is an alarm, whatever is
//!   beside it. In a synced vault it is informational if the newest version is a conflict copy of
//!   that very name, and stays so when the copy is removed. That alone may be all that this client
//!   ever sees of another machine. A mark that the vault did not have when it was first compared
//!   counts only once another client has changed the vault: the storage host can set it.
//! * The same holds if a change of the share's key has left the newest version at the same path, in
//!   a directory or under a name with a mark: one machine resealed the file and its names, while
//!   another one wrote it. Both versions are visible.
//! * A file that cannot be read is an alarm. If it is under another name and not older, this is
//!   informational where several machines write a synced vault, or may do so: the tool has copied
//!   the file while it was written, and another machine has renamed it before the whole file
//!   arrived.
//! * An older version under a new name is an alarm. It is none if the newest version is in the
//!   vault as well, or if both versions were once seen in it at the same time.
//! * A file that is not at its name is gone, unless it is elsewhere and not older. This is
//!   informational in three cases, since a removal leaves nothing to verify: an older version is
//!   there that was seen at the same time; a new file shows that another client has changed the
//!   vault since the last comparison; or several machines write a synced vault.
//! * A file that was removed or replaced must not come back under its name. If several machines
//!   write a synced vault, this is informational: a sync tool keeps a file that another machine has
//!   changed, even if only its times were changed.
//! * If this client put another file in the place of a file, and an older version of that one is at
//!   the name, or a conflict copy of it, then this is informational where several machines write a
//!   synced vault and the other file is visible: beside it, or under another name if this client
//!   renamed it from there. One machine saved or renamed over the file, while another one changed
//!   the version that it had. The client knows its own changes of names, so the storage host cannot
//!   do this with a file that nobody replaced here.
//! * If a file that this client removed comes back under another name, this is informational. If
//!   several machines write a synced vault, it may then be an older version: another machine may
//!   have renamed the version that it had.
//! * If a file that this client had never seen took the name of a version, and an older version
//!   comes under another name, this is informational where several machines write a synced vault:
//!   one machine saved the file anew, while another one renamed the version that it had.
//! * A file whose name another known file has taken is gone like any other. If the names of several
//!   files rotate, they were exchanged. That is informational where several machines write a synced
//!   vault: renaming a file leaves nothing to verify.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::suspect::{DIRECTORY, FILE, Left, Pending, Why};
use super::vacated::Vacated;
use super::{BATCH, NOTICES_MAX, PATIENCE, RowsLeft, STEPS_MAX, Survey};
use crate::vault::error::Inner;
use crate::vault::rollback::memory::{Memory, PlaceId};
use crate::vault::rollback::notice::{Notice, NoticeKind, SurveyOptions};
use crate::vault::rollback::rows::{EntryKey, Id, NameTag, NoticeRow, RemovedRow, Row};

/// What a comparison has noticed.
#[derive(Default)]
pub(super) struct Notices {
    pub rows: BTreeMap<EntryKey, NoticeRow>,
    /// Numbers of those that are listed: by whether they are alarms, and whether the name is
    /// remembered. The storage host can add any number of new names, and names that are remembered
    /// are listed beside them.
    listed: [[usize; 2]; 2],
    /// Number of those that are not listed.
    pub more: u64,
}

/// Names whose files have rotated.
enum Round {
    Of(HashSet<EntryKey>),
    /// There are too many to tell.
    All,
}

impl Round {
    fn has(&self, key: &EntryKey) -> bool {
        match self {
            Round::Of(keys) => keys.contains(key),
            Round::All => true,
        }
    }
}

impl Survey<'_> {
    /// Classifies all deviations. Harmless ones are recorded.
    pub(super) fn judge(&mut self) -> Inner<Notices> {
        let round = self.go_round();
        let mut notices = Notices::default();
        let none = self.list();
        std::mem::replace(&mut self.pending, none).drain(|pending| {
            match self.kind(&pending, &round)? {
                Some(kind) => self.notice(&mut notices, &pending, kind),
                None => self.accept(pending)?,
            }
            if self.changes.len() >= BATCH {
                self.write()?;
            }
            Ok(())
        })?;
        self.take_vacated().drain(|Vacated { hash, place, pending }| {
            if let Some(pending) = pending {
                if let Some(elsewhere) = self.lost_below(place, hash)? {
                    self.notice(&mut notices, &pending, NoticeKind::Gone { elsewhere });
                    return Ok(());
                }
                self.accept(pending)?;
            }
            self.prune(place, true)
        })?;
        self.retire()?;
        self.keep_found();
        self.keep_written(&mut notices.rows)?;
        self.keep_first(&mut notices.rows);
        Ok(notices)
    }

    fn kind(&self, pending: &Pending, round: &Round) -> Inner<Option<NoticeKind>> {
        let Some(thing) = pending.thing else {
            return match (&pending.why, &pending.row) {
                // A crash can leave a file that cannot be read.
                (Why::NotCompared, Some(row)) if row.kind == FILE && self.interrupted.is_some() => {
                    Ok(None)
                }
                (Why::Gone, Some(row)) => Ok(self
                    .gone(&row.id, row.version)?
                    .map(|elsewhere| NoticeKind::Gone { elsewhere })),
                _ => Ok(Some(NoticeKind::NotCompared { elsewhere: self.is_torn_copy(pending)? })),
            };
        };
        let displaced = pending.displaced().filter(|_| !pending.ours);
        let seen = self.seen.get(&thing.id)?.unwrap_or_default();
        let (mut back, mut older) = (None, None);
        match &pending.why {
            Why::PutBack { removed, same_name, over } => {
                let is_alive = seen.kept.is_some_and(|kept| kept >= thing.version);
                // The session that removed it was interrupted: it may have changed more than was
                // recorded.
                let is_doubtful = self.interrupted.is_some_and(|since| removed.when >= since);
                if !is_alive && !is_doubtful && (removed.here || *same_name) {
                    back = Some(!same_name || self.has_other_writers());
                }
                // A later version than another machine had and renamed was removed by this client,
                // or replaced.
                let is_older = thing.version < removed.version;
                if removed.replaced && is_older && !is_alive && !is_doubtful && !same_name {
                    back = back.or(self.has_other_writers().then_some(true));
                }
                if back == Some(true) && *same_name && is_older {
                    let conflict =
                        NoticeKind::Conflict { was: removed.version, now: thing.version };
                    let is_beside = over
                        .as_ref()
                        .map_or(Ok(false), |row| self.is_beside(pending, removed, row));
                    if is_beside? || self.was(pending, &conflict) {
                        return Ok(Some(conflict));
                    }
                }
                let is_other = back == Some(true) && !same_name || removed.names.is_empty();
                older = (!(is_other && self.has_other_writers())).then_some(removed.version);
            }
            Why::Older { was, backwards: true } => {
                let (was, now) = (*was, thing.version);
                let conflict = NoticeKind::Conflict { was, now };
                let is_conflict = self.is_conflict(&thing.id, &pending.name, &pending.plain, was);
                return Ok(Some(match is_conflict || self.was(pending, &conflict) {
                    true => conflict,
                    false => NoticeKind::Older { was, now },
                }));
            }
            Why::Older { was, backwards: false } => {
                let is_replaced = self.replaced.get(&thing.id).is_some_and(|left| left >= was);
                let is_back = is_replaced && self.has_other_writers();
                (back, older) = (is_back.then_some(true), (!is_back).then_some(*was));
            }
            _ => {}
        }
        if back == Some(false) {
            return Ok(Some(NoticeKind::PutBack { elsewhere: false }));
        }
        if let Some(was) = older.filter(|was| thing.version < *was && seen.version < *was) {
            return Ok(Some(NoticeKind::Older { was, now: thing.version }));
        }
        if let Some(row) = displaced {
            if round.has(&pending.key) && self.interrupted.is_none() {
                let elsewhere = self.has_other_writers();
                return Ok(Some(NoticeKind::Exchanged { elsewhere }));
            }
            if let Some(elsewhere) = self.gone(&row.id, row.version)? {
                return Ok(Some(NoticeKind::Gone { elsewhere }));
            }
        }
        Ok(back.map(|elsewhere| NoticeKind::PutBack { elsewhere }))
    }

    /// Returns whether this notice was the last one about an entry.
    fn was(&self, pending: &Pending, kind: &NoticeKind) -> bool {
        self.before.get(&pending.key).and_then(|row| row.kind.as_ref()) == Some(kind)
    }

    /// Returns whether the file `row`, which this client knows at the name `removed.over` or has
    /// renamed from there, is visible: under its name, or as a conflict copy if the file that was
    /// removed there has the name.
    fn is_beside(&self, pending: &Pending, removed: &RemovedRow, row: &Row) -> Inner<bool> {
        let Some((over, _)) = removed.over else { return Ok(false) };
        if pending.name == over && pending.row.is_some() {
            return Ok(self.is_copy(row, over));
        }
        let kept = self.seen.get(&row.id)?.and_then(|seen| seen.kept);
        Ok(kept.is_some_and(|kept| kept >= row.version))
    }

    /// Returns whether a conflict copy of a name is the file `row`, and not older.
    pub(super) fn is_copy(&self, row: &Row, of: NameTag) -> bool {
        self.copies.get(&(row.id, of)).is_some_and(|version| *version >= row.version)
    }

    /// Returns whether this version of a file, or a newer one, was seen as a conflict copy of this
    /// name, or was left at this path by a change of the share's key; false if no other machine can
    /// be the cause.
    pub(super) fn is_conflict(&self, id: &Id, name: &NameTag, plain: &[u8], was: u64) -> bool {
        let is_newest = |beside: Option<&u64>| beside.is_some_and(|beside| *beside >= was);
        let former = (*id, self.memory.path_id(plain));
        self.may_have_other_writers()
            && (is_newest(self.copies.get(&(*id, *name))) || is_newest(self.former.get(&former)))
    }

    /// Returns whether the file that was at a name is elsewhere and not older, so that a sync tool
    /// may have left a torn copy of it at this name.
    fn is_torn_copy(&self, pending: &Pending) -> Inner<bool> {
        let Some(row) = pending.row.as_ref().filter(|row| row.kind == FILE) else {
            return Ok(false);
        };
        let is_elsewhere = self.seen.get(&row.id)?.is_some_and(|seen| seen.version >= row.version);
        Ok(is_elsewhere && self.may_have_other_writers())
    }

    /// If a file of which this version was seen is gone, returns whether that is informational.
    /// `None` if it is not gone, or if an interrupted session may have removed it.
    fn gone(&self, id: &Id, version: u64) -> Inner<Option<bool>> {
        if self.interrupted.is_some() {
            return Ok(None);
        }
        Ok(match self.seen.get(id)? {
            Some(seen) if seen.version >= version => None,
            Some(seen)
                if seen.kept.is_some()
                    || self.file(id)?.is_some_and(|file| file.beside == seen.version) =>
            {
                Some(true)
            }
            _ => Some(self.may_be_elsewhere()),
        })
    }

    /// Returns whether several machines write this vault. The mark alone does not say so: the
    /// storage host can set it.
    pub(super) fn has_other_writers(&self) -> bool {
        self.others.changed && self.core.mode.synced
    }

    /// Returns whether several machines write this vault, or it was marked for that before this
    /// client knew anything of it.
    fn may_have_other_writers(&self) -> bool {
        self.others.synced || self.has_other_writers()
    }

    /// Returns whether another machine may have removed what is missing.
    fn may_be_elsewhere(&self) -> bool {
        self.news || self.has_other_writers()
    }

    /// Returns whether anything is gone from a directory that is not at its place any more, as
    /// [`Survey::gone`] does.
    fn lost_below(&self, place: PlaceId, hash: Id) -> Inner<Option<bool>> {
        let mut lost = None;
        let mut todo = self.list();
        todo.push((place, hash))?;
        while let Some((place, hash)) = todo.pop()? {
            if self.was_visited(&place)? {
                continue;
            }
            let mut rest = RowsLeft::All;
            while let Some(rows) = self.next_rows(&place, &mut rest)? {
                for row in rows.into_values() {
                    let one = match row.kind {
                        FILE => self.gone(&row.id, row.version)?,
                        DIRECTORY => {
                            todo.push((self.memory.place(&place, &row.name, &row.id), row.id))?;
                            None
                        }
                        _ => (self.seen.get(&hash)?.is_none() && self.interrupted.is_none())
                            .then_some(self.may_be_elsewhere()),
                    };
                    match one {
                        Some(false) => return Ok(one),
                        _ => lost = lost.or(one),
                    }
                }
            }
        }
        Ok(lost)
    }

    /// Returns the names whose files have rotated: each shows a file that another of these names
    /// showed before. Names at which another client has renamed files in a row are not included.
    fn go_round(&mut self) -> Round {
        let steps = std::mem::take(&mut self.steps);
        if steps.len() > STEPS_MAX {
            return Round::All;
        }
        let mut displaced: HashMap<Id, usize> = HashMap::new();
        let mut shown: HashMap<Id, Vec<usize>> = HashMap::new();
        for (n, (_, was, now)) in steps.iter().enumerate() {
            *displaced.entry(*was).or_default() += 1;
            shown.entry(*now).or_default().push(n);
        }
        let mut round: HashSet<EntryKey> = steps.iter().map(|(key, ..)| *key).collect();
        let mut ends: Vec<usize> =
            (0..steps.len()).filter(|n| !displaced.contains_key(&steps[*n].2)).collect();
        while let Some(n) = ends.pop() {
            let (key, was, _) = &steps[n];
            round.remove(key);
            let left = displaced.get_mut(was).expect("counted above");
            *left -= 1;
            if *left == 0 {
                ends.extend(shown.remove(was).unwrap_or_default());
            }
        }
        Round::Of(round)
    }

    /// Accepts the present state of an entry.
    pub(super) fn accept(&mut self, pending: Pending) -> Inner<()> {
        let Pending { key, name, plain, row, thing, .. } = pending;
        if let Some(row) = row.as_ref().filter(|row| {
            row.kind == FILE
                && thing.is_none_or(|thing| thing.id != row.id)
                && self.interrupted.is_none()
        }) {
            let Row { id, version, .. } = *row;
            self.left.push(Left { name, id, version, here: false, over: None })?;
        }
        match thing {
            Some(thing) => self.put(
                key,
                row.as_ref(),
                thing,
                plain.rsplit(|b| *b == b'/').next().unwrap_or(&plain),
            ),
            None => self.set(key, None),
        }
    }

    fn notice(&self, notices: &mut Notices, pending: &Pending, kind: NoticeKind) {
        let old = self.before.get(&pending.key);
        let told = old.and_then(|old| old.kind.clone());
        let kind = match (kind, told) {
            // The other client's changes that explained it are no longer new in the next
            // comparison.
            (NoticeKind::Gone { .. }, Some(told @ NoticeKind::Gone { elsewhere: true })) => told,
            (kind, _) => kind,
        };
        let listed =
            &mut notices.listed[usize::from(kind.is_alarm())][usize::from(pending.row.is_some())];
        if *listed == NOTICES_MAX {
            notices.more += 1;
            return;
        }
        *listed += 1;
        let same = old.filter(|old| old.is_about(&kind));
        let known_path =
            old.filter(|old| self.memory.open(&old.path).as_deref() == Some(&pending.plain[..]));
        let row = NoticeRow {
            kind: Some(kind),
            seen: pending
                .row
                .as_ref()
                .map(|row| row.seen)
                .or(same.map(|old| old.seen))
                .unwrap_or(self.options.now),
            // For the entry, whatever the kind: otherwise alternating states would delay the notice
            // for ever.
            first: old.map_or(self.options.now, |old| old.first.min(self.options.now)),
            last: self.options.now,
            silenced: self.options.silence || same.is_some_and(|old| old.silenced),
            is_written: false,
            path: known_path
                .map_or_else(|| self.memory.seal(&pending.plain), |old| old.path.clone()),
        };
        notices.rows.insert(pending.key, row);
    }

    /// Remembers for a while at what time an entry first had a notice, although it has none now.
    fn keep_first(&self, notices: &mut BTreeMap<EntryKey, NoticeRow>) {
        let while_ = PATIENCE * self.options.settle.as_secs() as i64;
        for (key, old) in &self.before {
            let is_recent = || self.options.now - old.last < while_;
            let is_accepted =
                || self.memory.open(&old.path).is_none_or(|plain| self.options.accepts(&plain));
            if !notices.contains_key(key) && is_recent() && !is_accepted() {
                let row =
                    NoticeRow { kind: None, silenced: false, is_written: false, ..old.clone() };
                notices.insert(*key, row);
            }
        }
    }
}

impl Memory {
    /// Returns notices for display; `latest` is when the store last changed.
    pub(in crate::vault::rollback) fn shown(
        &self,
        rows: &BTreeMap<EntryKey, NoticeRow>,
        options: &SurveyOptions,
        latest: i64,
    ) -> Vec<Notice> {
        let settle = options.settle.as_secs() as i64;
        let show = |row: &NoticeRow| {
            Some(Notice {
                plain: self.open(&row.path).unwrap_or_else(|| b"?".to_vec()),
                kind: row.kind.clone()?,
                seen: row.seen,
                first: row.first,
                due: options.now.saturating_sub(latest.min(options.now)) >= settle
                    || options.now - row.first >= PATIENCE * settle,
                silenced: row.silenced,
                written: row.is_written,
            })
        };
        let mut notices: Vec<Notice> = rows.values().filter_map(show).collect();
        notices.sort_by(|a, b| a.plain.cmp(&b.plain));
        notices
    }
}

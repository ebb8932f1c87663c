//! What a comparison with the rollback database notices, and how it is made.

use std::time::{Duration, SystemTime};

/// How long a store must have been unchanged before notices are shown.
pub const SETTLE: Duration = Duration::from_secs(300);

/// Kind of a deviation from the remembered state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// The file is an older version of itself.
    Older {
        /// The highest version seen.
        was: u64,
        /// The present version.
        now: u64,
    },
    /// The name shows an older version, in a vault that is synced. The newest one is beside it as a
    /// conflict copy, or this machine has replaced the newest one by another file, which is
    /// visible.
    Conflict {
        /// The highest version seen.
        was: u64,
        /// The present version.
        now: u64,
    },
    /// A file that was replaced or removed is back.
    PutBack {
        /// It has another name than before, or other clients write the vault, which is synced:
        /// another machine may have renamed or changed it before it received the removal.
        elsewhere: bool,
    },
    /// Files have exchanged their names.
    Exchanged {
        /// Other clients write the vault, which is synced, and may have renamed them.
        elsewhere: bool,
    },
    /// A file, or a directory that was not empty, is gone.
    Gone {
        /// Another holder of the vault's keys has changed something since, or ever in a vault that
        /// is synced, and may have removed it; or an older version that was seen at the same time
        /// is still there.
        elsewhere: bool,
    },
    /// A file that cannot be read, or a directory that cannot be listed: it was not compared.
    NotCompared {
        /// Other clients write the vault, which is synced, and the file is elsewhere: a sync tool
        /// may have copied it while it was written.
        elsewhere: bool,
    },
}

impl NoticeKind {
    /// Returns the numbers that a row records: the kind, what was seen, and what is there now.
    pub(super) fn encode(&self) -> (u8, u64, u64) {
        match *self {
            NoticeKind::Older { was, now } => (1, was, now),
            NoticeKind::PutBack { elsewhere } => (2, elsewhere.into(), 0),
            NoticeKind::Exchanged { elsewhere } => (3, elsewhere.into(), 0),
            NoticeKind::Gone { elsewhere } => (4, elsewhere.into(), 0),
            NoticeKind::NotCompared { elsewhere } => (5, elsewhere.into(), 0),
            NoticeKind::Conflict { was, now } => (6, was, now),
        }
    }

    /// Returns the kind of which these are the numbers; `None` if there is nothing to report.
    pub(super) fn decode(what: u8, was: u64, now: u64) -> Option<NoticeKind> {
        match what {
            0 => None,
            1 => Some(NoticeKind::Older { was, now }),
            2 => Some(NoticeKind::PutBack { elsewhere: was != 0 }),
            3 => Some(NoticeKind::Exchanged { elsewhere: was != 0 }),
            4 => Some(NoticeKind::Gone { elsewhere: was != 0 }),
            6 => Some(NoticeKind::Conflict { was, now }),
            _ => Some(NoticeKind::NotCompared { elsewhere: was != 0 }),
        }
    }

    /// Returns whether both are about the same present state: silencing one silences the other.
    pub(super) fn is_same_state(&self, other: &NoticeKind) -> bool {
        let ((what, _, now), (other_what, _, other_now)) = (self.encode(), other.encode());
        (what, now) == (other_what, other_now)
    }

    /// Returns whether another machine's work cannot explain it, as far as this client knows. Other
    /// kinds are informational.
    pub fn is_alarm(&self) -> bool {
        !matches!(
            self,
            NoticeKind::Gone { elsewhere: true }
                | NoticeKind::PutBack { elsewhere: true }
                | NoticeKind::Exchanged { elsewhere: true }
                | NoticeKind::NotCompared { elsewhere: true }
                | NoticeKind::Conflict { .. }
        )
    }
}

/// A notice about one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Plain path.
    pub plain: Vec<u8>,
    /// Kind of the notice.
    pub kind: NoticeKind,
    /// When the newer state was last seen, in seconds since 1970.
    pub seen: i64,
    /// When this entry first had a notice of any kind, in seconds since 1970.
    pub first: i64,
    /// The store has been unchanged for [`SETTLE`], or the notice has lasted for an hour: it is not
    /// an unfinished sync.
    pub due: bool,
    /// The user has silenced it.
    pub silenced: bool,
    /// This machine has written, removed or replaced the file since. The version of an older file
    /// is the one that it had before.
    pub written: bool,
}

/// What a comparison with the rollback database has omitted, because its numbers are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omitted {
    /// Entries that were not recorded, because the database has reached its limit.
    pub entries: u64,
    /// Notices that were counted and not listed: lists are bounded by 10,000 of each kind.
    pub notices: u64,
}

/// Options of a comparison with the rollback database.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// The present time, in seconds since 1970.
    pub now: i64,
    /// See [`SETTLE`].
    pub settle: Duration,
    /// Plain paths whose state, and everything below, is accepted; the empty path is the whole
    /// vault.
    pub accept: Vec<Vec<u8>>,
    /// Silences the notices.
    pub silence: bool,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs() as i64);
        SurveyOptions { now, settle: SETTLE, accept: Vec::new(), silence: false }
    }
}

impl SurveyOptions {
    pub(super) fn accepts(&self, plain: &[u8]) -> bool {
        let is_below = |top: &Vec<u8>| {
            top.is_empty()
                || plain == top.as_slice()
                || plain.strip_prefix(&top[..]).is_some_and(|r| r[0] == b'/')
        };
        self.accept.iter().any(is_below)
    }
}

//! What a comparison with the rollback memory notices, and how it is made.

use std::time::{Duration, SystemTime};

use super::database::NoticeRow;

/// How long a store must have been at rest before what was noticed is told.
pub const SETTLE: Duration = Duration::from_secs(300);

/// What is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// The file is an older version of itself.
    Older {
        /// Highest version that was seen.
        was: u64,
        /// The version that is there.
        now: u64,
    },
    /// A file is there again that was replaced or removed.
    PutBack {
        /// It has another name than it had, and another machine may have renamed it before it heard
        /// of the removal.
        elsewhere: bool,
    },
    /// Two files have exchanged their names.
    Exchanged,
    /// A file, or a directory that was not empty, is gone.
    Gone {
        /// Somebody else with the vault's keys has changed something since, and may have removed
        /// it; or an older version of it is still there that was seen beside it.
        elsewhere: bool,
    },
    /// A file that cannot be read, or a directory that cannot be listed: it was not compared.
    NotCompared,
}

impl NoticeKind {
    pub(super) fn encode(&self) -> (u8, u64, u64) {
        match *self {
            NoticeKind::Older { was, now } => (1, was, now),
            NoticeKind::PutBack { elsewhere } => (2, elsewhere.into(), 0),
            NoticeKind::Exchanged => (3, 0, 0),
            NoticeKind::Gone { elsewhere } => (4, elsewhere.into(), 0),
            NoticeKind::NotCompared => (5, 0, 0),
        }
    }

    /// `None` where all was as it had been.
    pub(super) fn decode(row: &NoticeRow) -> Option<NoticeKind> {
        match row.what {
            0 => None,
            1 => Some(NoticeKind::Older { was: row.was, now: row.now }),
            2 => Some(NoticeKind::PutBack { elsewhere: row.was != 0 }),
            3 => Some(NoticeKind::Exchanged),
            4 => Some(NoticeKind::Gone { elsewhere: row.was != 0 }),
            _ => Some(NoticeKind::NotCompared),
        }
    }

    /// Whether another machine's work does not explain it, as far as this one can tell. The rest
    /// are notes.
    pub fn is_alarm(&self) -> bool {
        !matches!(
            self,
            NoticeKind::Gone { elsewhere: true } | NoticeKind::PutBack { elsewhere: true }
        )
    }
}

/// Something that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Plain path.
    pub plain: Vec<u8>,
    /// What.
    pub kind: NoticeKind,
    /// When the newer state was seen last, seconds since 1970.
    pub seen: i64,
    /// When this was noticed first.
    pub first: i64,
    /// The store has been at rest since: it is not a sync tool that has not finished.
    pub due: bool,
    /// It was to be kept in mind and not told again.
    pub silenced: bool,
}

/// How a vault is compared with the memory.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// The present, seconds since 1970.
    pub now: i64,
    /// See [`SETTLE`].
    pub settle: Duration,
    /// Plain paths at and below which everything is accepted as it is; the empty path is the whole
    /// vault.
    pub accept: Vec<Vec<u8>>,
    /// What is noticed is not to be told again.
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

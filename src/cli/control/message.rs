//! Requests and answers on the control socket.
//!
//! Rules that hold here
//! * These types belong to one version of the program. A daemon and a command of different
//!   versions understand each other or refuse, by [`VERSION`].

use serde::{Deserialize, Serialize};

use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::roster::{Member, Role};
use crate::vault::{LogEntry, Pending, ShareInfo, ShareProgress};

/// Version of these messages.
pub const VERSION: u32 = 7;

/// One request with its version.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// [`VERSION`].
    pub version: u32,
    /// The request.
    pub request: Request,
}

/// An operation, and the plain path in the vault that it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// The path from the vault's root.
    pub path: Vec<u8>,
    /// What to do.
    pub what: What,
}

/// The operation of a [`Request`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum What {
    /// Return information about the share that contains the path.
    Info,
    /// Return the history of that share.
    Log,
    /// Return what the mount does at this moment.
    Status,
    /// Return how often the store has answered, and ask it again. The daemon answers this even
    /// while the store hangs, and after the mount has ended.
    Answers,
    /// Lock the vault: take the mount away, and end the daemon.
    Lock,
    /// Count the data under older folder keys.
    Pending,
    /// Reseal that data, with contents if `eager`.
    Reseal {
        /// Also contents.
        eager: bool,
    },
    /// Begin a new folder key.
    Rekey,
    /// Add members.
    Add(Vec<Member>),
    /// Give a member, named by their signing key, another role.
    SetRole([u8; 32], Role),
    /// Remove members, named by their signing keys.
    Remove(Vec<[u8; 32]>),
    /// Resolve a fork in favour of the head with this hash.
    Settle([u8; 32]),
    /// Sign an invitation for the member with this signing key.
    Invite([u8; 32]),
    /// Turn the folder into a share.
    Create {
        /// Whether the admins of the enclosing share are kept out.
        isolated: bool,
        /// The founder's name.
        name: String,
        /// Mode of the folder and of its parents, where they are created.
        mode: u32,
    },
}

/// What a mount does at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the last request of a program.
    pub idle: u64,
    /// Open files with changes that are not on the disk yet.
    pub unsynced_files: usize,
    /// Bytes of uncommitted changes in memory.
    pub unsynced_bytes: usize,
    /// Shares with lists of members that exclude each other.
    pub forks: usize,
}

/// The result of an operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// Success.
    Done,
    /// The share.
    Info(ShareInfo),
    /// The history of the share.
    Log(Vec<LogEntry>),
    /// The state of the mount.
    Status(Status),
    /// How often the store has answered until now.
    Answers(u64),
    /// The remaining data.
    Pending(Pending),
    /// The final progress.
    Progress(ShareProgress),
    /// The final progress of a new share, and the name of the former folder if that was left beside
    /// it.
    Made(ShareProgress, Option<Vec<u8>>),
    /// A signed invitation.
    Invitation(Vec<u8>),
}

/// A message from the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Progress; more messages follow.
    Progress(ShareProgress),
    /// The result.
    Done(Reply),
    /// The operation failed.
    Failed {
        /// Exit code.
        exit: u8,
        /// The message.
        message: String,
        /// How to fix it.
        hint: Option<String>,
    },
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Answer {
        Answer::Failed { exit: failure.exit.code(), message: failure.message, hint: failure.hint }
    }
}

/// Converts a failure that a daemon has reported.
pub fn failure(exit: u8, message: String, hint: Option<String>) -> Failure {
    Failure {
        hint,
        ..Failure::new(
            Exit::from_code(exit).filter(|exit| *exit != Exit::Ok).unwrap_or(Exit::Failure),
            message,
        )
    }
}

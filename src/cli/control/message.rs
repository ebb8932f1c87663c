//! Requests and answers on the control socket.
//!
//! Rules that hold here
//! * These types belong to one version of the program. A daemon and a command of different
//!   versions understand each other or refuse, by [`VERSION`].

use serde::{Deserialize, Serialize};

use crate::cli::args::share::Role;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::roster::{Member, Pin, PublicIdentity};
use crate::vault::{self, LogKind, MemberChanges, Pending, ShareInfo, ShareProgress};

/// Version of these messages.
pub const VERSION: u32 = 4;

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
    /// Return its history.
    Log,
    /// Return what the mount does at this moment.
    Status,
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
    Add(Vec<Person>),
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
        /// Without the parent's admins.
        isolated: bool,
        /// The founder's name.
        name: String,
        /// Mode of missing parent directories that are created.
        mode: u32,
    },
}

/// A member.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Person {
    sign: [u8; 32],
    exchange: [u8; 32],
    role: Role,
    name: String,
}

impl From<&Member> for Person {
    fn from(member: &Member) -> Person {
        let PublicIdentity { sign, exchange } = member.public;
        Person { sign, exchange, role: member.role.into(), name: member.name.clone() }
    }
}

impl From<&Person> for Member {
    fn from(person: &Person) -> Member {
        let Person { sign, exchange, role, name } = person;
        Member {
            public: PublicIdentity { sign: *sign, exchange: *exchange },
            role: (*role).into(),
            name: name.clone(),
        }
    }
}

fn people(members: &[Member]) -> Vec<Person> {
    members.iter().map(Person::from).collect()
}

fn members(people: &[Person]) -> Vec<Member> {
    people.iter().map(Member::from).collect()
}

/// A head of a roster.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Head {
    sequence: u32,
    hash: [u8; 32],
}

impl From<Pin> for Head {
    fn from(Pin { sequence, hash }: Pin) -> Head {
        Head { sequence, hash }
    }
}

impl From<Head> for Pin {
    fn from(Head { sequence, hash }: Head) -> Pin {
        Pin { sequence, hash }
    }
}

/// Information about a share, without the public facts in its descriptor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Info {
    own: ([u8; 32], [u8; 32]),
    share: [u8; 32],
    path: Vec<u8>,
    signed: bool,
    isolated: bool,
    epoch: u32,
    heads: Vec<Head>,
    signer: [u8; 32],
    time: u64,
    members: Vec<Person>,
    elsewhere: Vec<Person>,
    own_role: Role,
}

/// A share, as the commands use it.
pub struct Known {
    /// Public keys of the identity that has it open.
    pub me: PublicIdentity,
    /// Its id.
    pub share: [u8; 32],
    /// Plain path of its folder from the vault's root.
    pub path: Vec<u8>,
    /// Whether it can have members.
    pub signed: bool,
    /// Whether the parent's admins are excluded.
    pub isolated: bool,
    /// Number of the folder key.
    pub epoch: u32,
    /// The heads; more than one is a fork.
    pub heads: Vec<Pin>,
    /// The signer of the first head.
    pub signer: [u8; 32],
    /// Its time, in seconds since 1970.
    pub time: u64,
    /// Its members.
    pub members: Vec<Member>,
    /// In a fork: members only at another head.
    pub elsewhere: Vec<Member>,
    /// The identity's role.
    pub own_role: crate::roster::Role,
}

impl Info {
    /// Returns the information about `share`.
    pub fn of(share: &vault::Share) -> vault::Result<Info> {
        let ShareInfo {
            share: id,
            path,
            signed,
            isolated,
            epoch,
            heads,
            signer,
            time,
            members,
            elsewhere,
            own_role,
            ..
        } = share.info()?;
        let me = share.identity();
        Ok(Info {
            own: (me.sign, me.exchange),
            share: id,
            path,
            signed,
            isolated,
            epoch,
            heads: heads.into_iter().map(Head::from).collect(),
            signer,
            time,
            members: people(&members),
            elsewhere: people(&elsewhere),
            own_role: own_role.into(),
        })
    }
}

impl From<Info> for Known {
    fn from(info: Info) -> Known {
        let Info {
            own: (sign, exchange),
            share,
            path,
            signed,
            isolated,
            epoch,
            heads,
            signer,
            time,
            members: all,
            elsewhere,
            own_role,
        } = info;
        Known {
            me: PublicIdentity { sign, exchange },
            share,
            path,
            signed,
            isolated,
            epoch,
            heads: heads.into_iter().map(Pin::from).collect(),
            signer,
            time,
            members: members(&all),
            elsewhere: members(&elsewhere),
            own_role: own_role.into(),
        }
    }
}

/// The kind of a step of the history.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Founded,
    Members,
    NewEpoch,
    Settled,
}

/// One step of the history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    head: Head,
    time: u64,
    signer: [u8; 32],
    epoch: u32,
    what: Kind,
    /// Added, removed, changed.
    changes: Option<[Vec<Person>; 3]>,
}

/// A step of the history, as the commands use it.
pub struct Past {
    /// Number of the manifest.
    pub sequence: u32,
    /// Its time, in seconds since 1970.
    pub time: u64,
    /// Its signer.
    pub signer: [u8; 32],
    /// Number of the folder key from this step on.
    pub epoch: u32,
    /// Its kind.
    pub what: LogKind,
    /// The members that it changed.
    pub changes: Option<MemberChanges>,
}

impl From<&vault::LogEntry> for Step {
    fn from(entry: &vault::LogEntry) -> Step {
        let what = match entry.what {
            LogKind::Founded => Kind::Founded,
            LogKind::Members => Kind::Members,
            LogKind::NewEpoch => Kind::NewEpoch,
            LogKind::Settled => Kind::Settled,
        };
        let changes = entry
            .changes
            .as_ref()
            .map(|c| [people(&c.added), people(&c.removed), people(&c.changed)]);
        Step {
            head: entry.head.into(),
            time: entry.time,
            signer: entry.signer,
            epoch: entry.epoch,
            what,
            changes,
        }
    }
}

impl From<Step> for Past {
    fn from(step: Step) -> Past {
        let what = match step.what {
            Kind::Founded => LogKind::Founded,
            Kind::Members => LogKind::Members,
            Kind::NewEpoch => LogKind::NewEpoch,
            Kind::Settled => LogKind::Settled,
        };
        let changes = step.changes.map(|[added, removed, changed]| MemberChanges {
            added: members(&added),
            removed: members(&removed),
            changed: members(&changed),
        });
        Past {
            sequence: step.head.sequence,
            time: step.time,
            signer: step.signer,
            epoch: step.epoch,
            what,
            changes,
        }
    }
}

/// The data under older folder keys.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Left {
    files: u64,
    bytes: u64,
    bytes_total: u64,
    names: u64,
    headers: u64,
    conflicts: u64,
    skipped: u64,
}

impl From<Pending> for Left {
    fn from(left: Pending) -> Left {
        let Pending { files, bytes, bytes_total, names, headers, conflicts, skipped } = left;
        Left { files, bytes, bytes_total, names, headers, conflicts, skipped }
    }
}

impl From<Left> for Pending {
    fn from(left: Left) -> Pending {
        let Left { files, bytes, bytes_total, names, headers, conflicts, skipped } = left;
        Pending { files, bytes, bytes_total, names, headers, conflicts, skipped }
    }
}

/// The progress of an operation.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Progress {
    files: u64,
    bytes: u64,
    files_total: u64,
    bytes_total: u64,
    unread: u64,
}

impl From<&ShareProgress> for Progress {
    fn from(progress: &ShareProgress) -> Progress {
        let ShareProgress { files, bytes, files_total, bytes_total, unread } = *progress;
        Progress { files, bytes, files_total, bytes_total, unread }
    }
}

impl From<Progress> for ShareProgress {
    fn from(progress: Progress) -> ShareProgress {
        let Progress { files, bytes, files_total, bytes_total, unread } = progress;
        ShareProgress { files, bytes, files_total, bytes_total, unread }
    }
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
    Info(Info),
    /// Its history.
    Log(Vec<Step>),
    /// The state of the mount.
    Status(Status),
    /// The remaining data.
    Pending(Left),
    /// The final progress.
    Progress(Progress),
    /// The final progress of a new share, and the name of the former folder if that was left beside
    /// it.
    Made(Progress, Option<Vec<u8>>),
    /// A signed invitation.
    Invitation(Vec<u8>),
}

/// A message from the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Progress; more messages follow.
    Progress(Progress),
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

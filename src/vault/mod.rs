//! The filesystem without FUSE: nodes, open files, commit order, recovery, check.
//!
//! [`Vault`] is the interface for the command line, the FUSE adapter, tests and fuzzers. It uses
//! nodes with lookup counts, as FUSE does, and handles; a few methods take paths.
//!
//! ```
//! use std::sync::Arc;
//! use kithfs::store::mem::MemStore;
//! use kithfs::crypto::Suite;
//! use kithfs::roster::Identity;
//! use kithfs::vault::{Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, ROOT, Vault};
//!
//! # fn main() -> Result<(), kithfs::vault::Error> {
//! let store = MemStore::new();
//! let owner = Identity::generate(&OsRandom);
//! Vault::create(&store.root(), &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 18 }, &owner)?;
//!
//! let vault = Vault::open(store.root(), &owner, OpenOptions::default())?;
//! let caller = Caller { uid: 0, gid: 0, umask: 0o022 };
//! let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
//! let (_, file) = vault.create_file(&caller, ROOT, b"letter", 0o600, flags)?;
//! vault.write(file.handle, 0, b"dear Ann", false)?;
//! let mut text = [0; 8];
//! vault.read(file.handle, 0, &mut text)?;
//! assert_eq!(&text, b"dear Ann");
//! vault.release(file.handle)?;
//! vault.close()?;
//! # Ok(())
//! # }
//! ```

mod core;
mod directory;
mod durability;
mod error;
mod file;
mod fsck;
mod keyring;
mod membership;
mod namespace;
mod open_files;
mod rollback;
mod session;
mod share;
pub mod types;

pub use self::error::{
    Contention, Error, LockHolder, NOT_A_WRITER, Result, TOO_MANY_JOURNALS, UnreadJournal,
};
pub use self::session::options::{LockMode, OpenOptions, OsRandom, Person};
pub use self::session::vault::{Activity, Description, Vault};
pub use self::types::*;
pub use crate::format::signature::Authorship;
pub use crate::vault::fsck::remedy::Remedy;
pub use crate::vault::fsck::repair::{Outcome, RepairReport, Repaired};
pub use crate::vault::fsck::report::{
    CheckFault, CheckNote, CheckProgress, CheckReport, LOST_AND_FOUND, More, NoteKind, Online,
    REPAIR_RUN, UNUSED_MAX, Unused,
};
pub use crate::vault::membership::convert::ShareMade;
pub use crate::vault::membership::reseal::pass::Pending;
pub use crate::vault::membership::share::{LogEntry, LogKind, MemberChanges, Share, ShareInfo};
pub use crate::vault::rollback::notice::{Notice, NoticeKind, Omitted, SETTLE, SurveyOptions};
pub use crate::vault::share::enter::{CreateOptions, CreateShare, DESCRIPTOR_FILE, IDENTITY_FILE};
pub use crate::vault::share::removed::RemovedShare;
pub use crate::vault::share::synced::{Kept, Local};
pub use crate::vault::share::trust::{Pins, Trust};

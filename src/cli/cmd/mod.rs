//! One file for each command: takes the parsed arguments, does the work, says how it ended.

pub mod accept;
pub mod bench;
pub mod contact;
pub mod files;
pub mod fsck;
pub mod generate;
pub mod identity;
pub mod info;
pub mod init;
pub mod map;
pub mod mount;
pub mod mounts;
pub mod passphrase;
pub mod rollback;
pub mod share;
pub mod transfer;
pub mod umount;

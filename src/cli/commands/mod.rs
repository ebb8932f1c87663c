//! One module for each command: it takes the parsed arguments, does the work and returns the exit
//! code.

pub mod bench;
pub mod files;
pub mod fsck;
pub mod generate;
pub mod info;
pub mod init;
pub mod map;
pub mod mounting;
pub mod people;
pub mod rollback;
pub mod set;
pub mod share;
pub mod transfer;

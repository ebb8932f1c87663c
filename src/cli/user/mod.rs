//! What kithfs stores for this user: identity, contacts, and records of shares and vaults.

pub mod contacts;
pub mod directories;
pub mod rollback_memory;
pub mod share_memory;

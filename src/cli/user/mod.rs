//! What kithfs keeps for this user: identity and contacts, and what this machine has seen of shares.

pub mod contacts;
pub mod directories;
pub mod rollback_memory;
pub mod share_memory;

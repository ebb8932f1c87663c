//! What kithfs stores for this user: identity, contacts, named vaults, and records of shares and
//! vaults.

pub mod contacts;
pub mod directories;
pub mod named;
pub mod own_name;
pub mod rollback_memory;
pub mod share_memory;
pub mod ssh_voucher;

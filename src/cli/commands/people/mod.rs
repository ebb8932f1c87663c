//! Commands for identities, contacts and invitations.

pub mod accept;
pub mod contact;
pub mod identity;
pub mod passphrase;

//! Commands for identities, contacts and invitations.

pub mod accept;
mod adopt;
pub mod contact;
pub mod identity;
pub mod passphrase;

//! Who vouches for what in an open share: our own signature, and whose signatures count.
//!
//! Rules that hold here
//! * A signature counts if its signer may write at the head, or if what is signed stands in an inventory that the chain commits to.
//! * We sign only while we may write ourselves, and only what the caller has made of verified parts: nothing here looks at contents.
//! * In a share that is not signed only junctions are, and the founder's signature alone counts.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::RwLock;

use super::error::{Fault, Inner};
use crate::format::inventory::InventoryList;
use crate::format::journal::header_hash;
use crate::format::signature::{Authorship, Sign};
use crate::sharing::{Identity, Members, Role};

/// Whose signatures count, as of one head.
#[derive(Default)]
pub(crate) struct Rights {
    writers: HashSet<[u8; 32]>,
    admins: HashSet<[u8; 32]>,
    /// What stays valid of those who may write no longer.
    kept: Vec<InventoryList>,
    /// Two heads exclude each other: nothing is written until somebody has settled that.
    pub forked: bool,
}

impl Rights {
    /// Of the members at the heads, with the inventories of their chains. Where there are several heads only those may write who may at
    /// each: otherwise whoever was removed on one side could sign by the other.
    pub fn new(heads: &[Members], kept: Vec<InventoryList>) -> Self {
        let with = |role: Role| -> HashSet<[u8; 32]> {
            let of = |members: &Members| -> HashSet<[u8; 32]> {
                members.all().iter().filter(|m| m.role >= role).map(|m| m.public.sign).collect()
            };
            heads.iter().map(of).reduce(|a, b| &a & &b).unwrap_or_default()
        };
        Rights { writers: with(Role::Writer), admins: with(Role::Admin), kept, forked: heads.len() > 1 }
    }
}

/// See the module.
pub(crate) struct Signing {
    identity: Arc<Identity>,
    own: [u8; 32],
    rights: RwLock<Arc<Rights>>,
}

impl Signing {
    pub fn new(identity: Arc<Identity>, rights: Rights) -> Self {
        Signing { own: identity.public().sign, identity, rights: RwLock::new(Arc::new(rights)) }
    }

    /// The identity that has the share open.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Its signing key.
    pub fn own(&self) -> [u8; 32] {
        self.own
    }

    /// Takes over what a new head says.
    pub fn adopt(&self, rights: Rights) {
        *self.rights.write() = Arc::new(rights);
    }

    /// Whether we may write.
    pub fn may_write(&self) -> bool {
        let rights = self.rights.read();
        rights.writers.contains(&self.own) && !rights.forked
    }

    /// What the identity may do.
    pub fn role(&self) -> Role {
        let rights = self.rights.read();
        match (rights.admins.contains(&self.own), rights.writers.contains(&self.own)) {
            (true, _) => Role::Admin,
            (_, true) => Role::Writer,
            _ => Role::Reader,
        }
    }

    /// Signs by `act`, as ourselves, for `author` where it is somebody else's.
    pub fn sign<T>(&self, author: Option<[u8; 32]>, act: impl FnOnce(Sign<'_>) -> T) -> T {
        let by = Authorship { author: author.unwrap_or(self.own), signer: self.own };
        act(Sign { by, sign: &|label, message| self.identity.sign(label, message) })
    }

    /// Whether what is signed by `by`, whose signature was verified, counts; `bytes` is the header or record.
    pub fn check(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.writers.contains(&by.signer) {
            return Ok(());
        }
        let hash = header_hash(bytes);
        if rights.kept.iter().any(|list| list.contains(&hash)) {
            return Ok(());
        }
        Err(Fault::Corrupt("is signed by somebody who may not write here"))
    }

    /// Whether a junction signed by `by` counts: admins alone lead into other shares.
    pub fn check_admin(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.admins.contains(&by.signer) || rights.kept.iter().any(|list| list.contains(&header_hash(bytes))) {
            return Ok(());
        }
        Err(Fault::Corrupt("is a junction signed by somebody who is no admin here"))
    }
}

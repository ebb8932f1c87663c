//! Who vouches for what in an open share: our own signature, and whose signatures count.
//!
//! Rules that hold here
//! * A signature counts if its signer may write at the head, or if what is signed stands in an
//!   inventory that the chain commits to.
//! * We sign only while we may write ourselves, and only what the caller has made of verified
//!   parts: nothing here looks at contents.
//! * In a share that is not signed only junctions are, and the founder's signature alone counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::crypto::{Label, labels};
use crate::format::inventory::InventoryList;
use crate::format::journal::header_hash;
use crate::format::signature::{Authorship, Claim, Sign};
use crate::roster::{Identity, Members, Role};
use crate::vault::error::{Fault, Inner};
use crate::vault::keyring::verified::VerifiedCache;

/// Whose signatures count at one head.
#[derive(Clone)]
pub(crate) struct HeadRights {
    writers: HashSet<[u8; 32]>,
    admins: HashSet<[u8; 32]>,
    /// What stays valid of those who may write no longer, by the chain of this head.
    kept: Vec<Arc<InventoryList>>,
}

/// Whose signatures count: those that count at every head.
#[derive(Clone, Default)]
pub(crate) struct Rights {
    heads: Vec<HeadRights>,
    /// Two heads exclude each other, or what the head says cannot be read: nothing is written until
    /// that is settled.
    pub forked: bool,
    /// This identity is no member any more: it will not write again.
    pub ended: bool,
}

impl Rights {
    /// Of the members at the heads, each with the inventories of its own chain. Where there are
    /// several heads a signature has to count at each: otherwise whoever was removed on one side
    /// could sign by the other, or list his forgeries there.
    pub fn new(
        heads: impl Iterator<Item = (Members, Vec<Arc<InventoryList>>)>,
        forked: bool,
    ) -> Self {
        let with = |members: &Members, role: Role| {
            members.all().iter().filter(|m| m.role >= role).map(|m| m.public.sign).collect()
        };
        let of = |(members, kept): (Members, Vec<Arc<InventoryList>>)| HeadRights {
            writers: with(&members, Role::Writer),
            admins: with(&members, Role::Admin),
            kept,
        };
        Rights { heads: heads.map(of).collect(), forked, ended: false }
    }

    fn all(&self, counts: impl Fn(&HeadRights) -> bool) -> bool {
        !self.heads.is_empty() && self.heads.iter().all(counts)
    }

    fn vouch(
        &self,
        signer: &[u8; 32],
        bytes: &[u8],
        who: impl Fn(&HeadRights) -> &HashSet<[u8; 32]>,
    ) -> bool {
        let hash = std::cell::OnceCell::new();
        self.all(|head| {
            who(head).contains(signer)
                || head
                    .kept
                    .iter()
                    .any(|list| list.contains(hash.get_or_init(|| header_hash(bytes))))
        })
    }
}

/// See the module.
pub(crate) struct Signing {
    identity: Arc<Identity>,
    own: [u8; 32],
    rights: RwLock<Arc<Rights>>,
    /// Signatures of headers that are valid.
    known: VerifiedCache,
    /// Somebody else has the vault for writing who does not know of us.
    shut_out: AtomicBool,
}

impl Signing {
    pub fn new(identity: Arc<Identity>, rights: Rights) -> Self {
        let (own, rights) = (identity.public().sign, RwLock::new(Arc::new(rights)));
        Signing {
            identity,
            own,
            rights,
            known: VerifiedCache::new(),
            shut_out: AtomicBool::new(false),
        }
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

    /// Nothing is written until a head is taken over again, with `ended` nothing at all; what
    /// counted before still counts.
    pub fn freeze(&self, ended: bool) {
        let mut rights = self.rights.write();
        *rights = Arc::new(Rights { forked: true, ended, ..Rights::clone(&rights) });
    }

    /// Nothing is written from here on: we have lost the lock, and what is in memory may be of a
    /// state that is no more.
    pub fn shut_out(&self) {
        self.shut_out.store(true, Ordering::Release);
    }

    /// Whether we may not write now and may again once there is one head that opens: what is not
    /// written yet is to be kept.
    pub fn waits(&self) -> bool {
        let rights = self.rights.read();
        rights.forked
            && !rights.ended
            && !self.shut_out.load(Ordering::Acquire)
            && rights.all(|head| head.writers.contains(&self.own))
    }

    /// Whether we may write.
    pub fn may_write(&self) -> bool {
        let rights = self.rights.read();
        rights.all(|head| head.writers.contains(&self.own))
            && !rights.forked
            && !self.shut_out.load(Ordering::Acquire)
    }

    /// What the identity may do.
    pub fn role(&self) -> Role {
        let rights = self.rights.read();
        match (
            rights.all(|head| head.admins.contains(&self.own)),
            rights.all(|head| head.writers.contains(&self.own)),
        ) {
            (true, _) => Role::Admin,
            (_, true) => Role::Writer,
            _ => Role::Reader,
        }
    }

    /// Signs by `act`, as ourselves, for `author` where it is somebody else's.
    pub fn sign<T>(&self, author: Option<[u8; 32]>, act: impl FnOnce(Sign<'_>) -> T) -> T {
        let by = Authorship { author: author.unwrap_or(self.own), signer: self.own };
        let sign = |label: &Label, message: &[u8]| {
            let signature = self.identity.sign(label, message);
            if *label == labels::FILE_SIGNATURE {
                self.known.learn(&Claim::made(by, label, message, signature));
            }
            signature
        };
        act(Sign { by, sign: &sign })
    }

    /// Whose a header is, its signature verified unless that was done before. Whether it counts is
    /// another question.
    pub fn verify(&self, claim: &Claim) -> Inner<Authorship> {
        Ok(self.known.verify(claim)?)
    }

    /// Whether what is signed by `by`, whose signature was verified, counts; `bytes` is the header
    /// or record.
    pub fn check(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.vouch(&by.signer, bytes, |head| &head.writers) {
            return Ok(());
        }
        Err(Fault::Corrupt("is signed by somebody who may not write here"))
    }

    /// Whether a junction signed by `by` counts: admins alone lead into other shares.
    pub fn check_admin(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.vouch(&by.signer, bytes, |head| &head.admins) {
            return Ok(());
        }
        Err(Fault::Corrupt("is a junction signed by somebody who is no admin here"))
    }
}

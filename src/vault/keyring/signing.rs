//! Signatures in an open share: signing by the identity that opened it, and which signatures count.
//!
//! Rules that hold here
//! * A signature counts if its signer may write at the head, or if the signed entry is listed in an
//!   inventory that the chain commits to.
//! * A caller signs only while this identity may write, and only data built from verified parts:
//!   this module checks neither.
//! * In an unsigned share only junctions are signed, and only the founder's signature counts.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::crypto::{Label, labels};
use crate::format::inventory::InventoryList;
use crate::format::journal::header_hash;
use crate::format::signature::{Authorship, Claim, Sign};
use crate::roster::{Identity, Members, Role};
use crate::vault::error::{Corruption, Fault, Inner, NOT_A_WRITER};
use crate::vault::keyring::verified::VerifiedCache;

/// The signers whose signatures count at one head.
#[derive(Clone)]
pub(crate) struct HeadRights {
    writers: HashSet<[u8; 32]>,
    admins: HashSet<[u8; 32]>,
    /// Entries of former writers that stay valid, by the chain of this head.
    kept: Vec<Arc<InventoryList>>,
}

/// The signers whose signatures count: those that count at every head.
#[derive(Clone, Default)]
pub(crate) struct Rights {
    heads: Vec<HeadRights>,
    /// Two heads conflict, or the head cannot be read: nothing is written until that is settled.
    pub forked: bool,
    /// This identity is no longer a member, so unwritten changes are not kept for a later commit.
    pub ended: bool,
}

impl Rights {
    /// Collects the rights of the members at the heads, each with the inventories of its own chain.
    /// With several heads a signature has to count at each. Otherwise a member who was removed on
    /// one side could sign by the other side, or list forgeries there.
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

    /// Returns whether the signature of an entry counts: `allowed` names the signers at a head.
    fn counts(
        &self,
        signer: &[u8; 32],
        bytes: &[u8],
        allowed: impl Fn(&HeadRights) -> &HashSet<[u8; 32]>,
    ) -> bool {
        let hash = std::cell::OnceCell::new();
        self.all(|head| {
            allowed(head).contains(signer)
                || head
                    .kept
                    .iter()
                    .any(|list| list.contains(hash.get_or_init(|| header_hash(bytes))))
        })
    }
}

/// The identity that has a share open, and the signatures that count in it.
pub(crate) struct Signing {
    identity: Arc<Identity>,
    own: [u8; 32],
    rights: RwLock<Arc<Rights>>,
    /// Signatures of headers that were verified, or made by this process.
    verified: VerifiedCache,
    /// Another daemon has the vault for writing and does not know of this one.
    shut_out: AtomicBool,
}

impl Signing {
    pub fn new(identity: Arc<Identity>, rights: Rights) -> Self {
        let (own, rights) = (identity.public().sign, RwLock::new(Arc::new(rights)));
        Signing {
            identity,
            own,
            rights,
            verified: VerifiedCache::new(),
            shut_out: AtomicBool::new(false),
        }
    }

    /// Returns the identity that has the share open.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Returns its signing key.
    pub fn own(&self) -> [u8; 32] {
        self.own
    }

    /// Adopts the rights of a new head.
    pub fn adopt(&self, rights: Rights) {
        *self.rights.write() = Arc::new(rights);
    }

    /// Stops writing until a head is adopted again. With `ended` that is not expected, see
    /// [`Rights::ended`]. Signatures that counted before still count.
    pub fn freeze(&self, ended: bool) {
        let mut rights = self.rights.write();
        *rights = Arc::new(Rights { forked: true, ended, ..Rights::clone(&rights) });
    }

    /// Stops writing for good: the lock is lost, and memory may hold a stale state.
    pub fn shut_out(&self) {
        self.shut_out.store(true, Ordering::Release);
    }

    /// Returns whether two heads conflict, or the head cannot be read.
    pub fn is_forked(&self) -> bool {
        self.rights.read().forked
    }

    /// Returns whether writing is not allowed now but will be once a single head opens: then dirty
    /// data is to be kept.
    pub fn waits(&self) -> bool {
        let rights = self.rights.read();
        rights.forked
            && !rights.ended
            && !self.shut_out.load(Ordering::Acquire)
            && rights.all(|head| head.writers.contains(&self.own))
    }

    /// Returns whether this identity may write.
    pub fn may_write(&self) -> bool {
        let rights = self.rights.read();
        rights.all(|head| head.writers.contains(&self.own))
            && !rights.forked
            && !self.shut_out.load(Ordering::Acquire)
    }

    /// Returns the role of this identity.
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

    /// Calls `act` with a [`Sign`] that signs as this identity. `author` is given if the content is
    /// another member's.
    pub fn sign<T>(&self, author: Option<[u8; 32]>, act: impl FnOnce(Sign<'_>) -> T) -> T {
        let by = Authorship { author: author.unwrap_or(self.own), signer: self.own };
        let sign = |label: &Label, message: &[u8]| {
            let signature = self.identity.sign(label, message);
            if *label == labels::FILE_SIGNATURE {
                self.verified.learn(&Claim::made(by, label, message, signature));
            }
            signature
        };
        act(Sign { by, sign: &sign })
    }

    /// Returns author and signer of a header. Verifies the signature unless it is in the cache.
    /// Whether the signature counts is decided by [`Signing::check`].
    pub fn verify(&self, claim: &Claim) -> Inner<Authorship> {
        Ok(self.verified.verify(claim)?)
    }

    /// Checks that an entry with the verified signature `by` counts; `bytes` is the header or
    /// record.
    pub fn check(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.counts(&by.signer, bytes, |head| &head.writers) {
            return Ok(());
        }
        Err(Fault::Corrupt(Corruption::Other(NOT_A_WRITER)))
    }

    /// Checks that a junction signed by `by` counts: only admins may link to other shares.
    pub fn check_admin(&self, by: &Authorship, bytes: &[u8]) -> Inner<()> {
        let rights = self.rights.read();
        if rights.counts(&by.signer, bytes, |head| &head.admins) {
            return Ok(());
        }
        Err(Fault::Corrupt(Corruption::Other("is a junction whose signer is not an admin here")))
    }
}

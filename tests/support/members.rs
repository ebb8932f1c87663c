//! Members and their shares, for tests of the library.

use std::collections::HashMap;
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::roster::{Identity, Member, Pin, Role};
use kithfs::store::mem::MemStore;
use kithfs::vault::{
    self, CreateOptions, CreateShare, Error, LockMode, OpenOptions, Pending, Pins, Share,
    ShareInfo, ShareProgress, Trust, Vault,
};

use super::vaults::Seeded;

/// Returns person number `n`, the same one in each call.
pub fn person(n: u64) -> Identity {
    Identity::generate(&Seeded::new(1000 + n))
}

/// Returns an entry of a list of members.
pub fn member(identity: &Identity, role: Role, name: &str) -> Member {
    Member { public: identity.public(), role, name: name.into() }
}

/// Returns the public signing key, which identifies a member.
pub fn key(identity: &Identity) -> [u8; 32] {
    identity.public().sign
}

/// Options for opening a share that nothing vouches for.
pub fn trusting(read_only: bool, lock: LockMode) -> OpenOptions {
    OpenOptions {
        read_only,
        lock,
        trust: Trust { first_use: true, ..Trust::default() },
        ..OpenOptions::default()
    }
}

/// Opens as a mount does.
pub fn open_as(store: &MemStore, who: &Identity) -> Result<Vault, Error> {
    Vault::open(store.root(), who, trusting(false, LockMode::Exclusive))
}

/// Opens as a command beside a mount does.
pub fn beside(store: &MemStore, who: &Identity) -> Vault {
    Vault::open(store.root(), who, trusting(true, LockMode::None)).unwrap()
}

/// Opens as a mount with concurrent writers does.
pub fn together(store: &MemStore, who: &Identity) -> Result<Vault, Error> {
    Vault::open(store.root(), who, trusting(false, LockMode::Shared))
}

/// Ignores progress.
pub fn quiet() -> impl FnMut(&ShareProgress) {
    |_| {}
}

/// Creates a share of person number 1, whom its members call Ann.
pub fn founded(others: Vec<Member>) -> (MemStore, Identity) {
    let ann = person(1);
    let store = MemStore::new();
    let share = CreateShare { isolated: false, name: "Ann".into(), others };
    Vault::create_signed(
        &store.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 14 },
        &ann,
        &share,
    )
    .unwrap();
    (store, ann)
}

/// Creates Ann's share with Bob as a writer.
pub fn with_bob() -> (MemStore, Identity, Identity) {
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    (store, ann, bob)
}

/// Returns the vault's own share.
pub fn root_share(vault: &Vault) -> Share {
    vault.share_at(b"").unwrap()
}

/// The pins that a client has stored.
#[derive(Default)]
pub struct Memory {
    pub heads: parking_lot::Mutex<HashMap<[u8; 32], Pin>>,
    /// Signer of the invitation that the heads come from.
    pub inviter: Option<[u8; 32]>,
}

impl Memory {
    /// Returns what is stored once an invitation of `inviter` is accepted.
    pub fn invited(share: [u8; 32], head: Pin, inviter: &Identity) -> Arc<Memory> {
        Arc::new(Memory {
            heads: parking_lot::Mutex::new(HashMap::from([(share, head)])),
            inviter: Some(key(inviter)),
        })
    }
}

impl Pins for Memory {
    fn get(&self, share: &[u8; 32]) -> std::io::Result<Option<Pin>> {
        Ok(self.heads.lock().get(share).copied())
    }

    fn inviter(&self, _share: &[u8; 32]) -> std::io::Result<Option<[u8; 32]>> {
        Ok(self.inviter)
    }

    fn put(&self, share: &[u8; 32], head: Pin) -> std::io::Result<()> {
        let mut heads = self.heads.lock();
        let known = heads.entry(*share).or_insert(head);
        // As the program does: another process may have seen more.
        if head.sequence > known.sequence {
            *known = head;
        }
        Ok(())
    }
}

/// Options for opening a share with stored pins, without trust on first use.
pub fn remembering(memory: &Arc<Memory>) -> OpenOptions {
    OpenOptions {
        trust: Trust { pins: Some(memory.clone()), first_use: false },
        ..OpenOptions::default()
    }
}

/// Operations on the share that a path is in.
pub trait ShareOfPath {
    /// See [`Share::pending`].
    fn pending(
        &self,
        path: &[u8],
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> vault::Result<Pending>;

    /// See [`Share::reseal`].
    fn reseal(
        &self,
        path: &[u8],
        eager: bool,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> vault::Result<Pending>;

    /// Returns the members of the share of a path, at any of its heads.
    fn who_can_read(&self, path: &[u8]) -> vault::Result<Vec<Member>>;
}

impl ShareOfPath for Vault {
    fn pending(
        &self,
        path: &[u8],
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> vault::Result<Pending> {
        self.share_at(path)?.pending(progress)
    }

    fn reseal(
        &self,
        path: &[u8],
        eager: bool,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> vault::Result<Pending> {
        self.share_at(path)?.reseal(eager, progress)
    }

    fn who_can_read(&self, path: &[u8]) -> vault::Result<Vec<Member>> {
        let ShareInfo { members, elsewhere, .. } = self.share_at(path)?.info()?;
        Ok([members, elsewhere].concat())
    }
}

//! Rosters: chains of manifests and the slot blocks that they name. Only what the admins signed may
//! ever count.

use std::io;
use std::sync::LazyLock;

use kithfs::crypto::Suite;
use kithfs::format::manifest::{BlockRef, Manifest};
use kithfs::format::share::ShareDescriptor;
use kithfs::format::slots::slice_reader;
use kithfs::roster::{
    Acting, Assembly, Change, FoundParams, Identity, Member, Pin, Role, Roster, VerifiedRoster,
    found,
};

use super::Seeded;

/// A share with a history: founded with some members, then one more, then one less, which began a
/// new epoch.
pub struct Fixture {
    founder: Identity,
    pub descriptor: ShareDescriptor,
    /// In the order of the chain.
    pub manifests: Vec<Vec<u8>>,
    /// Slot blocks by their root, in the order of the chain.
    pub blocks: Vec<([u8; 32], Vec<u8>)>,
    roster: VerifiedRoster,
    folder: [u8; 32],
    members: Vec<Member>,
}

impl Fixture {
    /// The slot block that the head names.
    pub fn head_block(&self) -> &[u8] {
        &self.blocks[self.blocks.len() - 1].1
    }
}

fn members(from: usize, to: usize) -> Vec<Member> {
    let member = |n: usize| {
        let public = Identity::generate(&Seeded::new(1000 + n as u64)).public();
        Member {
            public,
            role: [Role::Reader, Role::Writer, Role::Admin][n % 3],
            name: format!("member {n}"),
        }
    };
    (from..to).map(member).collect()
}

pub static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let random = Seeded::new(30);
    let founder = Identity::generate(&random);
    let others = members(0, 20);
    let params = FoundParams {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        name: "founder",
        others: &others,
    };
    let founded = found(&founder, &params, &random, 1).expect("founded");
    let mut roster = founded.roster;
    let mut changes = vec![founded.change];
    for step in 0..2 {
        let blocks = blocks_of(&roster, &changes);
        let mut read =
            |block: &BlockRef, at: u64, buf: &mut [u8]| read_from(&blocks, &block.root, at, buf);
        let keys = roster.open(&founder, &mut read).expect("opened");
        let list = roster.members(&keys, &mut read).expect("listed");
        let acting =
            Acting { by: &founder, keys: &keys, members: &list, random: &random, now: 2 + step };
        let change = match step {
            0 => roster.add_members(&acting, &members(20, 36)).expect("added"),
            _ => roster.remove_members(&acting, &[others[4].public.sign], None).expect("removed"),
        };
        roster = roster.extend(&change.manifest).expect("extended");
        changes.push(change);
    }
    let blocks = blocks_of(&roster, &changes);
    let mut read =
        |block: &BlockRef, at: u64, buf: &mut [u8]| read_from(&blocks, &block.root, at, buf);
    let keys = roster.open(&founder, &mut read).expect("opened");
    let list = roster.members(&keys, &mut read).expect("listed");
    let (folder, members) = (*keys.current().key.expose(), list.all().to_vec());
    let descriptor = ShareDescriptor::decode(&founded.descriptor).expect("descriptor");
    let manifests = changes.into_iter().map(|change| change.manifest).collect();
    Fixture { founder, descriptor, manifests, blocks, roster, folder, members }
});

fn blocks_of(roster: &VerifiedRoster, changes: &[Change]) -> Vec<([u8; 32], Vec<u8>)> {
    let roots =
        roster.history().map(|(manifest, _)| manifest.blocks[manifest.blocks.len() - 1].root);
    roots.zip(changes.iter().map(|change| change.slots.clone())).collect()
}

fn read_from(
    blocks: &[([u8; 32], Vec<u8>)],
    root: &[u8; 32],
    at: u64,
    buf: &mut [u8],
) -> io::Result<()> {
    let (_, bytes) =
        blocks.iter().find(|(known, _)| known == root).ok_or(io::ErrorKind::NotFound)?;
    slice_reader(bytes)(at, buf)
}

/// A directory's manifests, each behind its length (u16).
pub fn roster_bag(data: &[u8]) {
    let mut bag: Vec<&[u8]> = Vec::new();
    let mut rest = data;
    while let Some((len, after)) = rest.split_first_chunk::<2>()
        && bag.len() < 8
    {
        let (manifest, after) =
            after.split_at(after.len().min(usize::from(u16::from_le_bytes(*len))));
        bag.push(manifest);
        rest = after;
    }
    let fixture = &*FIXTURE;
    let first = fixture
        .roster
        .history()
        .next()
        .map(|(manifest, hash)| Pin { sequence: manifest.sequence, hash: *hash });
    for pin in [None, first, Some(fixture.roster.head())] {
        let mut manifests: Vec<Manifest> =
            bag.iter().filter_map(|bytes| Manifest::decode(bytes).ok()).collect();
        manifests.sort_by_key(|manifest| manifest.sequence);
        let mut assembly = Assembly::new(&fixture.descriptor);
        for manifest in manifests {
            let _ = assembly.take(manifest);
        }
        let Ok(standing) = assembly.finish(pin.as_ref()) else { continue };
        assert!(!standing.heads.is_empty());
        for head in &standing.heads {
            check_genuine(head);
            assert!(pin.is_none_or(|pin| head.contains(&pin)));
        }
    }
    if let Ok(roster) = Roster::verify(&fixture.descriptor, &bag) {
        assert_eq!(roster.history().count(), bag.len());
        check_genuine(&roster);
    }
}

fn check_genuine(roster: &VerifiedRoster) {
    for ((manifest, _), original) in roster.history().zip(&FIXTURE.manifests) {
        assert_eq!(manifest.encode(), *original);
    }
    assert!(roster.history().count() <= FIXTURE.manifests.len());
}

fn bag<'a>(manifests: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    manifests.into_iter().flat_map(|m| [&(m.len() as u16).to_le_bytes()[..], m].concat()).collect()
}

pub fn roster_bag_seeds() -> Vec<Vec<u8>> {
    let all = &FIXTURE.manifests;
    vec![
        bag(all),
        bag(all.iter().rev()),
        bag(&all[..1]),
        bag([&all[0], &all[2]]),
        bag([&all[0], &all[0]]),
    ]
}

/// The slot block of the head, opened by a member.
pub fn roster_open(data: &[u8]) {
    let fixture = &*FIXTURE;
    let head = fixture.roster.head();
    let mut read = |_: &BlockRef, at: u64, buf: &mut [u8]| slice_reader(data)(at, buf);
    let Ok(keys) = fixture.roster.open(&fixture.founder, &mut read) else { return };
    assert_eq!(*keys.current().key.expose(), fixture.folder);
    assert_eq!(keys.all().count(), 2);
    if let Ok(list) = fixture.roster.members(&keys, &mut read) {
        assert_eq!(list.all(), fixture.members);
    }
    assert_eq!(fixture.roster.head(), head);
}

pub fn roster_open_seeds() -> Vec<Vec<u8>> {
    vec![FIXTURE.head_block().to_vec(), FIXTURE.blocks[0].1.clone()]
}

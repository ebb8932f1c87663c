//! A cache of what was read about names: rename evidence, sealed long names, and the censuses of
//! directories. A program that works in a directory needs them for many names.
//!
//! Rules that hold here
//! * Evidence and censuses are valid as long as the directory's times show no change. Without
//!   concurrent writers, evidence is used for [`TRUSTED`] before its times are checked again, and
//!   what took long to read is used for longer, see [`Freshness::rests`].
//! * The number of entries is limited, because the storage host controls how many there could be.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::crypto::Tag;
use crate::format::suffix::Mark;
use crate::vault::share::seen::{GRANULARITY, Times};

/// How long an entry is valid without checking the store.
pub(crate) const TRUSTED: Duration = Duration::from_secs(1);
/// Maximum number of directories whose evidence is kept.
const CLOSURES_MAX: usize = 1 << 10;
/// Maximum number of bytes of all closures that are kept, except that the last one is always kept.
/// A directory can have many former names, and the storage host can show it under each.
const CLOSURES_LEN: usize = 32 << 20;
/// Maximum number of sealed names that are kept, of some hundred bytes each.
const LONG_NAMES_MAX: usize = 1 << 14;
/// Maximum number of directories whose census is kept.
const DIRS_MAX: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
/// Maximum number of bytes of all censuses that are kept, except that the last one is always kept.
const CENSUSES_MAX: usize = 256 << 20;

/// A reading is not repeated for this many times as long as it took: the storage host can add files
/// to a directory, and so change its times, at any moment.
const REST: u32 = 8;
/// Maximum number of unreadable control files that are logged.
const TOLD_MAX: usize = 1000;

/// How long what was read of a directory is valid.
#[derive(Clone)]
pub(crate) struct Freshness<T> {
    pub times: T,
    /// When these times were first seen, by this machine's clock: the store's clock may differ.
    first: Instant,
    pub read: Instant,
    /// How long the reading took.
    cost: Duration,
}

impl<T: PartialEq> Freshness<T> {
    /// Returns the freshness of what was read now. `times` are from before the reading, which began
    /// at `begun`; `before` is the freshness of the reading before it.
    pub fn new(times: T, before: Option<&Self>, begun: Instant) -> Self {
        let now = Instant::now();
        let first = before.filter(|before| before.times == times).map_or(now, |b| b.first);
        Freshness { times, first, read: now, cost: now - begun }
    }

    /// Sets the time of the reading to `since`, if a part comes from a reading at that time.
    pub fn read_at(self, since: Option<Instant>) -> Self {
        Freshness { read: since.map_or(self.read, |since| since.min(self.read)), ..self }
    }

    /// Sets how long the reading took.
    pub fn took(self, cost: Duration) -> Self {
        Freshness { cost, ..self }
    }

    /// Returns whether the reading took so long that it is not repeated yet, even if the directory
    /// has changed. Additions by other machines are then noticed later.
    pub fn rests(&self, shared: bool) -> bool {
        !shared && self.read.elapsed() < self.cost * REST
    }

    /// Returns whether it is valid whatever the directory's times are.
    pub fn is_trusted(&self, shared: bool) -> bool {
        !shared && self.read.elapsed() < TRUSTED
    }

    /// Returns whether it is valid if these are the directory's times now.
    pub fn is_valid(&self, times: &T, shared: bool) -> bool {
        self.is_certain(times) || (self.times == *times && self.is_trusted(shared))
    }

    /// Returns whether these times show that nothing has changed since.
    pub fn is_certain(&self, times: &T) -> bool {
        let has_aged = self.read.saturating_duration_since(self.first) >= GRANULARITY;
        self.times == *times && has_aged
    }
}

/// The directories of evidence that were read, by their names, with their times; `None` for one
/// that is missing or may not be read.
pub(crate) type Asked = Vec<(Vec<u8>, Option<Times>)>;

/// The evidence that leads to one directory.
#[derive(Clone)]
pub(crate) struct Closure {
    /// The explained tags, in ascending order.
    pub tags: Arc<[Tag]>,
    /// The generation of the keys with which it was read.
    pub generation: u64,
    pub fresh: Arc<Freshness<Asked>>,
    /// This process was permitted to read every record.
    pub is_whole: bool,
}

impl Closure {
    /// Returns the bytes that it takes.
    fn size(&self) -> usize {
        let place = |(name, times): &(Vec<u8>, Option<Times>)| name.len() + size_of_val(times) + 32;
        size_of_val(&*self.tags) + self.fresh.times.iter().map(place).sum::<usize>()
    }
}

/// The closures of the directories that were asked about last.
pub(crate) struct Closures {
    all: LruCache<Tag, Closure>,
    size: usize,
}

impl Default for Closures {
    fn default() -> Self {
        Closures { all: LruCache::unbounded(), size: 0 }
    }
}

impl Closures {
    pub fn get(&mut self, to: &Tag) -> Option<&Closure> {
        self.all.get(to)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Tag, &Closure)> {
        self.all.iter()
    }

    /// Keeps a closure. If the limits are exceeded, drops those that were used least recently.
    pub fn keep(&mut self, to: Tag, closure: Closure) {
        self.remove(&to);
        self.size += closure.size();
        self.all.put(to, closure);
        while self.all.len() > CLOSURES_MAX || self.size > CLOSURES_LEN && self.all.len() > 1 {
            self.size -= self.all.pop_lru().map_or(0, |(_, closure)| closure.size());
        }
    }

    pub fn remove(&mut self, to: &Tag) {
        self.size -= self.all.pop(to).map_or(0, |closure| closure.size());
    }
}

/// What was read of the evidence of a share.
#[derive(Default)]
pub(crate) struct Evidence {
    pub closures: Mutex<Closures>,
    /// When the share was last seen to have no evidence that may be read.
    pub none: Mutex<Option<Instant>>,
}

/// Control files that this process may not read: each is logged once.
#[derive(Default)]
pub(crate) struct Unreadable(Mutex<HashSet<Vec<u8>>>);

impl Unreadable {
    /// Logs a control file by its stored path from the share's root.
    pub fn tell(&self, path: &[&[u8]]) {
        let (path, mut told) = (path.join(&b'/'), self.0.lock());
        if told.len() < TOLD_MAX && !told.contains(&path) {
            tracing::warn!(
                "{}: no permission to read it; entries that need it are marked, or shown under their stored names",
                String::from_utf8_lossy(&path)
            );
            told.insert(path);
        }
    }
}

/// The sealed long names that were read, by their hashes; and the lock for writing one.
pub(crate) struct LongNames {
    pub kept: Mutex<LruCache<[u8; 32], Box<[u8]>>>,
    pub writing: Mutex<()>,
}

impl Default for LongNames {
    fn default() -> Self {
        // A bounded cache allocates all its memory at once.
        LongNames { kept: Mutex::new(LruCache::unbounded()), writing: Mutex::new(()) }
    }
}

impl LongNames {
    /// Keeps a sealed name.
    pub fn keep(&self, hash: &[u8; 32], sealed: &[u8]) {
        let mut kept = self.kept.lock();
        kept.put(*hash, sealed.into());
        while kept.len() > LONG_NAMES_MAX {
            kept.pop_lru();
        }
    }
}

/// A sorted set of hashes, of which the first 4 bytes are kept. [`Hashes::has`] can be true for a
/// hash that was never added; that costs a look at the store.
#[derive(Default)]
pub(crate) struct Hashes(Box<[u32]>);

impl Hashes {
    fn new(mut all: Vec<u32>) -> Self {
        all.sort_unstable();
        all.dedup();
        Hashes(all.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, hash: &[u8; 32]) -> bool {
        self.0.binary_search(&first_bytes(hash)).is_ok()
    }
}

fn first_bytes(hash: &[u8; 32]) -> u32 {
    u32::from_be_bytes(*hash.first_chunk().expect("32 is more than 4"))
}

/// States that an entry with this tag claims a name with this hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    name: u32,
    /// The tag's number in a [`Count`]; in a [`Census`], the tag's index in the sorted tags.
    tag: u32,
}

/// Returns the hash of a claimed name: a plain name with a suffix as stored, and perhaps with a
/// mark. Its seed is unknown to the storage host, which could otherwise choose suffixes of equal
/// hashes.
fn hash_of(seed: &RandomState, (plain, suffix): (&[u8], &[u8]), mark: Option<Mark>) -> u32 {
    seed.hash_one((plain, suffix, mark)) as u32
}

/// What one listing of a directory shows of its names: sixteen bytes for an entry with another tag
/// than the directory's own, and four for a junction or a lost name. It holds no names, because the
/// storage host controls how many entries there are.
#[derive(Default)]
pub(crate) struct Census {
    seed: RandomState,
    /// Tags of the names, in ascending order.
    tags: Box<[Tag]>,
    /// In ascending order.
    claims: Box<[Claim]>,
    /// Hashes of the long names that are lost.
    pub lost: Hashes,
    /// Hashes of the places that have a junction.
    pub junctions: Hashes,
}

impl Census {
    /// Returns the tags of all names, in ascending order.
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// Returns the tags of the entries that may have this plain name and suffix, and this mark, in
    /// ascending order; not of those with the directory's own tag. Equal hashes can add other tags.
    pub fn tags_of(&self, parts: (&[u8], &[u8]), mark: Option<Mark>) -> impl Iterator<Item = &Tag> {
        let name = hash_of(&self.seed, parts, mark);
        let from = self.claims.partition_point(|claim| claim.name < name);
        let claims = self.claims[from..].iter().take_while(move |claim| claim.name == name);
        claims.map(|claim| &self.tags[claim.tag as usize])
    }

    /// Returns the bytes that it takes.
    fn size(&self) -> usize {
        let hashes = size_of_val(&*self.lost.0) + size_of_val(&*self.junctions.0);
        size_of::<Self>() + size_of_val(&*self.tags) + size_of_val(&*self.claims) + hashes
    }
}

/// A census that is being taken.
#[derive(Default)]
pub(crate) struct Count {
    seed: RandomState,
    /// The tags, numbered in the order in which they were met.
    tags: HashMap<Tag, u32>,
    claims: Vec<Claim>,
    lost: Vec<u32>,
    junctions: Vec<u32>,
}

impl Count {
    /// Adds the tag of a name, and returns its number.
    pub fn tag(&mut self, tag: &Tag) -> u32 {
        let next = u32::try_from(self.tags.len()).expect("fewer directories than a store can have");
        *self.tags.entry(*tag).or_insert(next)
    }

    /// Adds an entry with another tag than the directory's own: its plain name, its suffix as
    /// stored, and its mark.
    pub fn entry(&mut self, tag: &Tag, parts: (&[u8], &[u8]), mark: Mark) {
        let tag = self.tag(tag);
        for mark in [None, Some(mark)] {
            self.claims.push(Claim { name: hash_of(&self.seed, parts, mark), tag });
        }
    }

    pub fn lost(&mut self, hash: &[u8; 32]) {
        self.lost.push(first_bytes(hash));
    }

    pub fn junction(&mut self, hash: &[u8; 32]) {
        self.junctions.push(first_bytes(hash));
    }

    pub fn finish(self) -> Census {
        let (mut tags, mut claims) = (self.tags.into_iter().collect::<Vec<_>>(), self.claims);
        tags.sort_unstable();
        let mut ranks = vec![0; tags.len()];
        (0..).zip(&tags).for_each(|(rank, (_, number))| ranks[*number as usize] = rank);
        claims.iter_mut().for_each(|claim| claim.tag = ranks[claim.tag as usize]);
        claims.sort_unstable();
        claims.dedup();
        Census {
            seed: self.seed,
            tags: tags.into_iter().map(|(tag, _)| tag).collect(),
            claims: claims.into(),
            lost: Hashes::new(self.lost),
            junctions: Hashes::new(self.junctions),
        }
    }
}

/// A directory of the store (device and inode number), its tag, and the generation of the keys.
pub(crate) type Key = (u64, u64, Tag, u64);

/// A census, and when the directory was listed.
pub(crate) type Taken = (Freshness<Times>, Arc<Census>);

/// The censuses of the directories that were listed last.
pub(crate) struct Censuses(Mutex<LruCache<Key, Taken>>);

impl Censuses {
    pub fn get(&self, key: &Key) -> Option<Taken> {
        self.0.lock().get(key).cloned()
    }

    /// Keeps a census. If the limits are exceeded, drops those that were used least recently.
    pub fn keep(&self, key: Key, taken: Taken) {
        let mut all = self.0.lock();
        all.put(key, taken);
        let size = |(_, (_, census)): (&Key, &Taken)| census.size();
        while all.len() > 1 && all.iter().map(size).sum::<usize>() > CENSUSES_MAX {
            all.pop_lru();
        }
    }
}

impl Default for Censuses {
    fn default() -> Self {
        Censuses(Mutex::new(LruCache::new(DIRS_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Timestamp;

    const SUFFIX: &[u8] = b" (1)";

    fn tag(n: u32) -> Tag {
        u64::from(n).to_be_bytes()
    }

    fn name(n: u32) -> Vec<u8> {
        format!("name {}", n / 2).into_bytes()
    }

    /// Two entries of each name, with suffixes, each with a mark and a tag of its own.
    fn census_of(entries: u32) -> Census {
        let mut count = Count::default();
        for n in (0..entries).rev() {
            count.entry(&tag(n), (&name(n), SUFFIX), n.to_be_bytes());
            count.lost(&[n as u8; 32]);
            count.junction(&[n as u8; 32]);
        }
        count.finish()
    }

    /// The census kept the stored names of all entries that were not certain to be shown under
    /// their plain names, and 32 bytes for each junction: a storage host that added ten million
    /// copies filled the memory.
    #[test]
    fn a_census_takes_16_bytes_an_entry_and_4_a_junction() {
        let mut count = Count::default();
        for n in 0..10_000_u32 {
            let suffix = format!(" ({n})").into_bytes();
            count.entry(&tag(1), (&[b'x'; 200], &suffix), n.to_be_bytes());
        }
        let entries = count.finish().size() - size_of::<Census>() - size_of::<Tag>();
        assert!(entries <= 16 * 10_000, "{entries} bytes");
        let mut count = Count::default();
        for n in 0..10_000_u32 {
            count.junction(blake3::hash(&n.to_be_bytes()).as_bytes());
        }
        let junctions = count.finish().size() - size_of::<Census>();
        assert!(junctions <= 4 * 10_000, "{junctions} bytes");
    }

    #[test]
    fn a_census_shows_the_tags_of_a_name_in_ascending_order() {
        let census = census_of(1000);
        assert!(census.tags().is_sorted() && census.tags().len() == 1000);
        for n in (0..1000).step_by(2) {
            let name = name(n);
            let tags = |mark| census.tags_of((&name, SUFFIX), mark).copied().collect::<Vec<_>>();
            // Hashes of 4 bytes may be equal by chance.
            let found = tags(None);
            assert!(found.is_sorted() && found.len() < 10);
            assert!(found.contains(&tag(n)) && found.contains(&tag(n + 1)));
            assert!(tags(Some(n.to_be_bytes())).contains(&tag(n)));
            assert!(census.tags_of((&name, b""), None).count() < 10);
        }
        assert!(census.lost.has(&[7; 32]) && census.junctions.has(&[255; 32]));
        assert!(!census_of(2).lost.has(&[7; 32]) && Census::default().junctions.is_empty());
    }

    /// The number of closures had a limit, and their bytes had none.
    #[test]
    fn closures_are_kept_up_to_a_number_and_a_size() {
        let closure = |tags: usize, places: usize| {
            let asked = vec![(vec![b'x'; 32], None); places];
            let (tags, fresh) =
                (vec![tag(0); tags].into(), Freshness::new(asked, None, Instant::now()));
            Closure { tags, generation: 0, fresh: fresh.into(), is_whole: true }
        };
        let mut closures = Closures::default();
        for n in 0..2 * CLOSURES_MAX as u32 {
            closures.keep(tag(n), closure(1, 1));
            closures.keep(tag(n), closure(2, 2));
        }
        assert_eq!(closures.iter().count(), CLOSURES_MAX);
        let (tags, places) = (CLOSURES_LEN / 8 / size_of::<Tag>(), CLOSURES_LEN / 8 / 128);
        for n in 0..100 {
            closures.keep(tag(n), closure(tags, places));
            assert!(closures.iter().map(|(_, kept)| kept.size()).sum::<usize>() <= CLOSURES_LEN);
        }
        assert!(closures.get(&tag(99)).is_some() && closures.get(&tag(0)).is_none());
        closures.keep(tag(100), closure(CLOSURES_LEN, 0));
        assert_eq!(closures.iter().count(), 1, "the last one is kept");
        closures.remove(&tag(100));
        assert_eq!((closures.iter().count(), closures.size), (0, 0));
    }

    #[test]
    fn censuses_are_kept_up_to_the_limit() {
        let censuses = Censuses::default();
        let keep = |dir: u64, claims: usize| {
            let claims = vec![Claim { name: 0, tag: 0 }; claims].into();
            let now = Instant::now();
            let time = Timestamp { secs: 0, nanos: 0 };
            let fresh = Freshness::new((time, time), None, now);
            let census = Census { claims, ..Census::default() };
            censuses.keep((1, dir, tag(1), 0), (fresh, census.into()));
        };
        let is_kept = |dir: u64| censuses.get(&(1, dir, tag(1), 0)).is_some();
        const PART: usize = CENSUSES_MAX / size_of::<Claim>();
        keep(1, PART / 2);
        keep(2, PART / 4);
        assert!(is_kept(2) && is_kept(1));
        keep(3, PART / 4);
        assert!(
            !is_kept(2) && is_kept(1) && is_kept(3),
            "the one that was used least recently is dropped"
        );
        keep(4, PART + 1);
        assert!(is_kept(4) && !is_kept(1) && !is_kept(2) && !is_kept(3), "the last one is kept");
    }
}

//! The rollback memory: older states that storage gives back are noticed, and nothing that honest people and tools do is.

#[path = "support/vaults.rs"]
mod vaults;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kithfs::backing::fault::{Calls, FaultPlan, FaultStore};
use kithfs::backing::mem::MemStore;
use kithfs::backing::os::OsDir;
use kithfs::backing::{Access, Call, Dir, Kind, RenameMode};
use kithfs::crypto::Suite;
use kithfs::vault::{Notice, NoticeKind, OpenOptions, SurveyOptions, Vault};
use parking_lot::Mutex;
use vaults::{Seeded, mkdir, pattern, put, rename, write_at};

/// A client: its memory lies in its own directory.
struct Client {
    memory: tempfile::TempDir,
}

impl Client {
    fn new() -> Client {
        Client { memory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.memory.path().join("memory.redb")
    }

    /// Opens the vault, remembers what `act` does, and closes it.
    fn session(&self, store: &Arc<dyn Dir>, act: impl FnOnce(&Vault)) {
        let vault = vaults::open(store.clone()).unwrap();
        vault.remember(&self.path(), false).unwrap();
        act(&vault);
        vault.close().unwrap();
    }

    fn survey(&self, store: &Arc<dyn Dir>, options: &SurveyOptions) -> Vec<Notice> {
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let vault = Vault::open(store.clone(), &vaults::owner(), read_only).unwrap();
        vault.survey(&self.path(), options).unwrap()
    }

    /// What is told of a store that is at rest.
    fn told(&self, store: &Arc<dyn Dir>) -> Vec<(String, NoticeKind)> {
        let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
        let notices = self.survey(store, &options);
        assert!(notices.iter().all(|n| n.due && n.seen > 1_600_000_000 && n.first >= n.seen), "{notices:?}");
        notices.into_iter().map(|n| (n.plain.escape_ascii().to_string(), n.kind)).collect()
    }
}

fn fresh() -> (MemStore, Client) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let client = Client::new();
    client.session(&store.root(), |v| {
        put(v, b"letter", &pattern(1, 5000)).unwrap();
        put(v, b"other", &pattern(2, 500)).unwrap();
        put(v, b"third", &pattern(3, 100)).unwrap();
        mkdir(v, b"dir").unwrap();
        put(v, b"dir/inside", b"inside").unwrap();
    });
    assert_eq!(client.told(&store.root()), []);
    (store, client)
}

fn cipher(store: &Arc<dyn Dir>, path: &[u8]) -> Vec<u8> {
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    Vault::open(store.clone(), &vaults::owner(), read_only).unwrap().cipher_path(path).unwrap()
}

fn bytes(dir: &Arc<dyn Dir>, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn set(dir: &Arc<dyn Dir>, name: &[u8], bytes: &[u8]) {
    let file = match dir.open_file(name, Access::ReadWrite) {
        Ok(file) => file,
        Err(_) => dir.create_file(name, 0o600).unwrap(),
    };
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

#[test]
fn a_directory_that_is_too_large_is_left_out_and_forgets_nothing() {
    // All of a directory is held in memory while it is compared: one of a million entries took a gigabyte.
    let (store, client) = fresh();
    let root = store.root();
    let inside = cipher(&root, b"dir/inside");
    let (dir, name) = (inside.split(|b| *b == b'/').next().unwrap(), inside.rsplit(|b| *b == b'/').next().unwrap());
    let dir = root.open_dir(dir).unwrap();
    let before = bytes(&dir, name);
    client.session(&root, |v| write_at(v, b"dir/inside", 0, b"other!").unwrap());
    assert_eq!(client.told(&root), []);
    set(&dir, name, &before);
    let told = |entries_max| {
        let options = SurveyOptions { settle: Duration::ZERO, entries_max, ..SurveyOptions::default() };
        client.survey(&root, &options).len()
    };
    assert_eq!(told(2), 0);
    assert_eq!(told(1000), 1, "nothing was forgotten meanwhile");
}

#[test]
fn a_file_that_was_put_back_is_noticed_until_it_is_accepted() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| write_at(v, b"letter", 100, b"changed").unwrap());
    assert_eq!(client.told(&root), []);
    let after = bytes(&root, &letter);
    set(&root, &letter, &before);
    let told = client.told(&root);
    assert!(matches!(&told[..], [(path, NoticeKind::Older { was, now })] if path == "letter" && was > now), "{told:?}");
    assert_eq!(client.told(&root), told, "it stays noticed");
    // Reading goes on.
    let vault = vaults::open(root.clone()).unwrap();
    assert_eq!(vaults::get(&vault, b"letter").unwrap(), pattern(1, 5000));
    vault.close().unwrap();
    // Put forward again: nothing happened. Back once more, and accepted.
    set(&root, &letter, &after);
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &before);
    let accept = SurveyOptions { accept: vec![b"letter".to_vec()], ..SurveyOptions::default() };
    assert_eq!(client.survey(&root, &accept), []);
    assert_eq!(client.told(&root), []);
    client.session(&root, |v| write_at(v, b"letter", 100, b"changed").unwrap());
    assert_eq!(client.told(&root), []);
}

#[test]
fn a_folder_that_becomes_a_share_is_no_loss_and_a_signed_share_has_a_memory_of_its_own() {
    let (store, client) = fresh();
    let root = store.root();
    let options = kithfs::vault::CreateShare { name: "Ann".into(), ..Default::default() };
    client.session(&root, |v| {
        v.create_share(b"dir", &options, &mut |_| {}).unwrap();
        put(v, b"dir/inside", b"changed").unwrap();
        put(v, b"letter", b"changed").unwrap();
    });
    assert_eq!(client.told(&root), []);

    let share = root.open_dir(&cipher(&root, b"dir")).unwrap();
    let own = Client::new();
    own.session(&share, |v| put(v, b"letter", &pattern(1, 5000)).unwrap());
    assert_eq!(own.told(&share), []);
    let letter = cipher(&share, b"letter");
    let before = bytes(&share, &letter);
    own.session(&share, |v| {
        write_at(v, b"letter", 100, b"changed").unwrap();
        rename(v, b"inside", b"elsewhere", kithfs::vault::RenameMode::Replace).unwrap();
    });
    assert_eq!(own.told(&share), []);
    set(&share, &letter, &before);
    share.unlink(&cipher(&share, b"elsewhere")).unwrap();
    let told = own.told(&share);
    let paths: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["elsewhere", "letter"], "{told:?}");
    assert!(matches!(told[0].1, NoticeKind::Gone { .. }) && matches!(told[1].1, NoticeKind::Older { was, now } if was > now), "{told:?}");
}

#[test]
fn a_file_that_an_editor_replaced_is_noticed_when_it_comes_back() {
    // Editors write a new file and rename it over the old one: no version tells the two apart, only the memory of which is gone.
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| {
        put(v, b"letter.new", b"new").unwrap();
        rename(v, b"letter.new", b"letter", RenameMode::Replace).unwrap();
    });
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &before);
    assert_eq!(client.told(&root), [("letter".to_owned(), NoticeKind::PutBack)]);
}

#[test]
fn exchanged_and_vanished_entries_are_noticed() {
    let (store, client) = fresh();
    let root = store.root();
    let (letter, other) = (cipher(&root, b"letter"), cipher(&root, b"other"));
    root.rename(&letter, &*root, &other, RenameMode::Exchange).unwrap();
    let exchanged = |path: &str| (path.to_owned(), NoticeKind::Exchanged);
    assert_eq!(client.told(&root), [exchanged("letter"), exchanged("other")]);
    root.rename(&letter, &*root, &other, RenameMode::Exchange).unwrap();
    assert_eq!(client.told(&root), []);
    root.unlink(&cipher(&root, b"third")).unwrap();
    let dir = cipher(&root, b"dir");
    let inside = root.open_dir(&dir).unwrap();
    inside.unlink(cipher(&root, b"dir/inside").rsplit(|b| *b == b'/').next().unwrap()).unwrap();
    root.rmdir(&dir).unwrap();
    let gone = |path: &str| (path.to_owned(), NoticeKind::Gone { elsewhere: false });
    assert_eq!(client.told(&root), [gone("dir"), gone("third")]);
    // Kept in mind, and not told again.
    let silence = SurveyOptions { silence: true, ..SurveyOptions::default() };
    assert!(client.survey(&root, &silence).iter().all(|n| n.silenced));
    assert!(client.survey(&root, &SurveyOptions::default()).iter().all(|n| n.silenced));
}

/// Rows of entries in a client's database.
fn rows(client: &Client) -> u64 {
    use redb::{ReadableDatabase, ReadableTableMetadata};
    let db = redb::Database::open(client.path()).unwrap();
    let table = redb::TableDefinition::<&[u8], &[u8]>::new("entries");
    db.begin_read().unwrap().open_table(table).unwrap().len().unwrap()
}

#[test]
fn what_was_in_directories_that_are_gone_is_forgotten() {
    // A directory that was removed or renamed left the rows of all that had been in it, and below, in the database for ever.
    let (store, client) = fresh();
    let root = store.root();
    let fill = |v: &Vault| {
        mkdir(v, b"tree").unwrap();
        mkdir(v, b"tree/below").unwrap();
        (0..20).for_each(|n| put(v, format!("tree/below/{n}").as_bytes(), b"x").unwrap());
    };
    let before = rows(&client);
    client.session(&root, fill);
    assert_eq!(client.told(&root), []);
    assert_eq!(rows(&client), before + 22);
    for round in 0..3 {
        // Renamed by this client, by another one, and removed by this one.
        client.session(&root, |v| rename(v, b"tree", b"renamed", RenameMode::Replace).unwrap());
        assert_eq!(client.told(&root), [], "round {round}");
        assert_eq!(rows(&client), before + 22, "round {round}");
        Client::new().session(&root, |v| rename(v, b"renamed", b"tree", RenameMode::Replace).unwrap());
        assert_eq!(client.told(&root), [], "round {round}");
        assert_eq!(rows(&client), before + 22, "round {round}");
    }
    client.session(&root, |v| {
        for n in 0..20 {
            vaults::at(v, b"tree/below", |dir| v.unlink(dir, n.to_string().as_bytes())).unwrap();
        }
        vaults::at(v, b"tree", |dir| v.rmdir(dir, b"below")).unwrap();
        vaults::at(v, b"", |dir| v.rmdir(dir, b"tree")).unwrap();
    });
    assert_eq!(client.told(&root), []);
    assert_eq!(rows(&client), before);
    // Removed by the storage it is noticed, and forgotten when that is accepted.
    client.session(&root, fill);
    let dir = cipher(&root, b"tree");
    root.rename(&dir, &*root, b"+trash-0", RenameMode::Replace).unwrap();
    assert_eq!(client.told(&root), [("tree".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    let accept = SurveyOptions { accept: vec![Vec::new()], ..SurveyOptions::default() };
    client.survey(&root, &accept);
    assert_eq!((client.told(&root), rows(&client)), (vec![], before));
}

#[test]
fn a_renamed_directory_in_whose_place_the_storage_puts_an_empty_one_is_noticed() {
    // It had an id of its own, the empty one has that of its place: the two were not compared, and all that was in it went unnoticed.
    let (store, client) = fresh();
    let root = store.root();
    client.session(&root, |v| rename(v, b"dir", b"moved", RenameMode::Replace).unwrap());
    assert_eq!(client.told(&root), []);
    let stored = cipher(&root, b"moved");
    root.rename(&stored, &*root, b"+trash-0", RenameMode::Replace).unwrap();
    root.mkdir(&stored, 0o755).unwrap();
    assert_eq!(client.told(&root), [("moved".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    root.rmdir(&stored).unwrap();
    root.rename(b"+trash-0", &*root, &stored, RenameMode::Replace).unwrap();
    assert_eq!(client.told(&root), []);
    // Done by a client, who leaves the directory elsewhere, it is nothing.
    Client::new().session(&root, |v| {
        rename(v, b"moved", b"away", RenameMode::Replace).unwrap();
        mkdir(v, b"moved").unwrap();
    });
    assert_eq!(client.told(&root), []);
}

#[test]
fn a_host_that_only_deletes_is_told_of_and_whose_news_is_seen_is_no_alarm() {
    // Who only removes leaves nothing that the storage could not have done itself, so it is an alarm; with anything new beside it, it is not.
    let (store, client) = fresh();
    let root = store.root();
    let other = Client::new();
    other.session(&root, |v| vaults::at(v, b"", |dir| v.unlink(dir, b"third")).unwrap());
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    other.session(&root, |v| put(v, b"news", b"from elsewhere").unwrap());
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: true })]);
    // It became an alarm with the next mount, when what was new had been learnt.
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: true })]);
}

#[test]
fn an_older_copy_of_the_whole_vault_is_noticed_and_accepted_with_one_word() {
    let (store, client) = fresh();
    let backup = store.snapshot();
    client.session(&store.root(), |v| {
        write_at(v, b"letter", 0, b"newer").unwrap();
        put(v, b"new", b"new").unwrap();
    });
    let root = backup.root();
    let told: Vec<String> = client.told(&root).into_iter().map(|(path, _)| path).collect();
    assert_eq!(told, ["letter", "new"]);
    let accept = SurveyOptions { accept: vec![Vec::new()], ..SurveyOptions::default() };
    client.survey(&root, &accept);
    assert_eq!(client.told(&root), []);
    // The next session on it is one like any other.
    client.session(&root, |v| write_at(v, b"letter", 0, b"again").unwrap());
    assert_eq!(client.told(&root), []);
}

/// Something that an honest person does.
fn act(vault: &Vault, random: &Seeded) {
    let name = |n: u64| format!("{}{}", if n.is_multiple_of(3) { "dir/" } else { "" }, n % 8).into_bytes();
    let (a, b) = (name(random.below(40)), name(random.below(40)));
    let _ = match random.below(9) {
        0..=1 => put(vault, &a, &pattern(random.next(), random.below(9000) as usize)),
        2..=3 => write_at(vault, &a, random.below(5000), b"some bytes"),
        4 => rename(vault, &a, &b, RenameMode::Replace),
        5 => rename(vault, &a, &b, RenameMode::Exchange),
        6 => {
            let (parent, last) = vaults::split(&a);
            vaults::at(vault, parent, |node| vault.unlink(node, last))
        }
        7 => vaults::at(vault, &a, |node| {
            let (parent, last) = vaults::split(&b);
            vaults::at(vault, parent, |dir| vault.link(node, dir, last).map(|attr| vault.forget(attr.node, 1)))
        }),
        _ => rename(vault, b"dir", b"moved", RenameMode::Replace).and_then(|()| mkdir(vault, b"dir")),
    };
}

#[test]
fn what_is_done_here_is_no_alarm() {
    for seed in 0..20 {
        let (store, client) = fresh();
        let random = Seeded::new(seed);
        for _ in 0..6 {
            client.session(&store.root(), |v| (0..12).for_each(|_| act(v, &random)));
            assert_eq!(client.told(&store.root()), [], "seed {seed}");
        }
    }
}

#[test]
fn two_hosts_that_take_turns_raise_no_alarm() {
    for seed in 0..10 {
        let (store, one) = fresh();
        let other = Client::new();
        let random = Seeded::new(seed);
        for turn in 0..8 {
            let (client, peer) = if turn % 2 == 0 { (&other, &one) } else { (&one, &other) };
            client.session(&store.root(), |v| {
                (0..6).for_each(|_| {
                    // An exchange of two names by somebody else looks like one by the storage, and is told.
                    act_without_exchange(v, &random)
                });
                put(v, format!("turn {turn}").as_bytes(), b"something new").unwrap();
            });
            let told = peer.told(&store.root());
            assert!(told.iter().all(|(_, kind)| *kind == NoticeKind::Gone { elsewhere: true }), "seed {seed}, turn {turn}: {told:?}");
            let accept = SurveyOptions { accept: vec![Vec::new()], ..SurveyOptions::default() };
            peer.survey(&store.root(), &accept);
        }
    }
}

fn act_without_exchange(vault: &Vault, random: &Seeded) {
    let name = |n: u64| format!("{}", n % 8).into_bytes();
    let (a, fresh) = (name(random.below(40)), format!("name {}", random.next()).into_bytes());
    let _ = match random.below(5) {
        0 => put(vault, &a, &pattern(random.next(), random.below(9000) as usize)),
        1 => write_at(vault, &a, random.below(5000), b"some bytes"),
        2 => rename(vault, &a, &fresh, RenameMode::Replace),
        3 => put(vault, &fresh, b"saved").and_then(|()| rename(vault, &fresh, &a, RenameMode::Replace)),
        _ => vaults::at(vault, b"", |node| vault.unlink(node, &a)),
    };
}

/// Every object of a store by path, with what a sync tool delivers.
fn objects(dir: &Arc<dyn Dir>, path: &[u8], all: &mut Vec<(Vec<u8>, Option<Vec<u8>>)>) {
    let mut cookie = 0;
    loop {
        let entries = dir.read(cookie, 4096).unwrap();
        let Some(last) = entries.last() else { return };
        cookie = last.next;
        for entry in entries.iter().filter(|e| &*e.name != b"+lock") {
            let at = if path.is_empty() { entry.name.to_vec() } else { [path, b"/", &entry.name].concat() };
            match dir.stat(&entry.name).unwrap().kind {
                Kind::Dir => {
                    all.push((at.clone(), None));
                    objects(&dir.open_dir(&entry.name).unwrap(), &at, all);
                }
                _ => all.push((at, Some(bytes(dir, &entry.name)))),
            }
        }
    }
}

fn on_disk(dir: &Path) -> Arc<dyn Dir> {
    OsDir::open(dir).unwrap()
}

#[test]
fn files_that_a_sync_tool_delivers_in_any_order_are_no_alarm() {
    // Ours is a copy that a sync tool brings up to date with another machine's, object by object, removals anywhere in between.
    for seed in 0..6 {
        let random = Seeded::new(seed);
        let (store, client) = fresh();
        client.session(&store.root(), |v| (0..10).for_each(|_| act_without_exchange(v, &random)));
        let scratch = tempfile::tempdir().unwrap();
        let mut ours = Vec::new();
        objects(&store.root(), b"", &mut ours);
        let local = scratch.path().to_path_buf();
        let path = |name: &[u8]| local.join(std::str::from_utf8(name).unwrap());
        for (name, contents) in &ours {
            match contents {
                None => std::fs::create_dir(path(name)).unwrap(),
                Some(contents) => std::fs::write(path(name), contents).unwrap(),
            }
        }
        let elsewhere = Client::new();
        elsewhere.session(&store.root(), |v| {
            (0..15).for_each(|_| act_without_exchange(v, &random));
            rename(v, b"dir", b"moved", RenameMode::Replace).unwrap();
            write_at(v, b"moved/inside", 0, b"more").unwrap();
        });
        let mut theirs = Vec::new();
        objects(&store.root(), b"", &mut theirs);
        // Deliveries and removals, shuffled; directories first, or nothing can be put into them.
        for (name, _) in theirs.iter().filter(|(_, contents)| contents.is_none()) {
            let _ = std::fs::create_dir(path(name));
        }
        let mut steps: Vec<(Vec<u8>, Option<Vec<u8>>)> = theirs.iter().filter(|(_, contents)| contents.is_some()).cloned().collect();
        steps.extend(ours.iter().filter(|(name, c)| c.is_some() && !theirs.iter().any(|(n, _)| n == name)).map(|(n, _)| (n.clone(), None)));
        for i in (1..steps.len()).rev() {
            steps.swap(i, random.below(i as u64 + 1) as usize);
        }
        for (name, contents) in steps {
            match contents {
                Some(contents) => {
                    // Under another name first, as sync tools do.
                    std::fs::write(path(b".delivery"), contents).unwrap();
                    std::fs::rename(path(b".delivery"), path(&name)).unwrap();
                }
                None => std::fs::remove_file(path(&name)).unwrap(),
            }
            let notices = client.survey(&on_disk(&local), &SurveyOptions::default());
            assert!(notices.iter().all(|n| !n.due), "seed {seed}: {notices:?}");
        }
        for (name, _) in ours.iter().rev().filter(|(name, c)| c.is_none() && !theirs.iter().any(|(n, _)| n == name)) {
            std::fs::remove_dir(path(name)).unwrap();
        }
        // An hour later all is at rest, and what is left are removals that came from elsewhere.
        let later = SurveyOptions { now: SurveyOptions::default().now + 3600, ..SurveyOptions::default() };
        let notices = client.survey(&on_disk(&local), &later);
        assert!(notices.iter().all(|n| matches!(n.kind, NoticeKind::Gone { .. })), "seed {seed}: {notices:?}");
    }
}

#[test]
fn a_sync_tools_conflict_copy_keeps_the_newer_state_in_sight() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let older = bytes(&root, &letter);
    client.session(&root, |v| write_at(v, b"letter", 0, b"ours").unwrap());
    let newer = bytes(&root, &letter);
    set(&root, &letter, &older);
    set(&root, &[&letter[..], b" (conflicted copy)"].concat(), &newer);
    assert_eq!(client.told(&root), []);
}

#[test]
fn a_crash_at_any_moment_is_no_alarm() {
    // The memory and the vault are two things that no commit makes durable together.
    let (store, client) = fresh();
    let store = store.crash(&mut |n| n - 1);
    let cuts = Arc::new(Mutex::new(Vec::new()));
    {
        let vault = vaults::open(store.root()).unwrap();
        vault.remember(&client.path(), false).unwrap();
        let (taken, watched, path) = (cuts.clone(), store.clone(), client.path());
        store.on_event(Box::new(move |_| taken.lock().push((watched.snapshot(), std::fs::read(&path).unwrap()))));
        let random = Seeded::new(3);
        for round in 0..6 {
            (0..8).for_each(|_| act(&vault, &random));
            put(&vault, b"letter", &pattern(round, 5000)).unwrap();
            write_at(&vault, b"other", round * 100, b"bytes").unwrap();
            vault.learn().unwrap();
        }
        vault.close().unwrap();
        store.on_event(Box::new(|_| {}));
    }
    let cuts = std::mem::take(&mut *cuts.lock());
    assert!(cuts.len() > 50, "{} moments", cuts.len());
    for (n, (moment, database)) in cuts.iter().enumerate().step_by(3) {
        for seed in 0..3 {
            let random = Seeded::new(n as u64 * 3 + seed);
            let crashed = moment.crash(&mut |n| match seed {
                0 => 0,
                1 => n - 1,
                _ => random.below(n as u64) as usize,
            });
            let after = Client::new();
            std::fs::write(after.path(), database).unwrap();
            // Replays the journal, as the next mount does.
            vaults::open(crashed.root()).unwrap().close().unwrap();
            assert_eq!(after.told(&crashed.root()), [], "cut {n}, choice {seed}");
        }
    }
}

#[test]
fn the_database_tells_no_names() {
    let (store, client) = fresh();
    client.session(&store.root(), |v| put(v, b"a very telling name", b"x").unwrap());
    let database = std::fs::read(client.path()).unwrap();
    for name in [&b"a very telling name"[..], b"letter", b"inside"] {
        assert!(!database.windows(name.len()).any(|w| w == name));
    }
}

/// A vault with `files` files in one directory behind a plan by which each opening of a file takes `time` from now on.
fn slow(files: usize, time: Duration) -> (Arc<dyn Dir>, Arc<FaultPlan>, Client) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let client = Client::new();
    client.session(&store.root(), |v| {
        for n in 0..files {
            put(v, format!("file {n}").as_bytes(), b"text").unwrap();
        }
    });
    let plan = FaultPlan::new();
    plan.slow_down(Call::OpenFile, time);
    (FaultStore::wrap(store.root(), plan.clone()), plan, client)
}

/// Waits until so many files have been opened since `before`.
fn wait_for_opened(plan: &FaultPlan, before: u64, files: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while plan.count(Calls::Of(Call::OpenFile)) < before + files {
        assert!(Instant::now() < end, "the comparison goes on");
        std::thread::yield_now();
    }
}

#[test]
fn a_comparison_in_the_background_leaves_the_store_alone_half_of_the_time() {
    // Each mount read the headers of all files as fast as the store could give them, and on a slow disk nothing else came through.
    let (files, time) = (30, Duration::from_millis(10));
    let (store, plan, client) = slow(files, time);
    let vault = vaults::open(store).unwrap();
    let (begin, before) = (Instant::now(), plan.count(Calls::Of(Call::OpenFile)));
    vault.remember(&client.path(), true).unwrap();
    wait_for_opened(&plan, before, files as u64);
    assert!(begin.elapsed() >= time * (2 * files as u32 - 3), "30 openings of 10 ms took {:?}", begin.elapsed());
    vault.close().unwrap();
}

#[test]
fn a_vault_is_closed_in_the_midst_of_a_comparison() {
    // The comparison looked whether it was to stop between two directories: with a large one on a slow disk an unmount took minutes.
    let files = 300;
    let (store, plan, client) = slow(files, Duration::from_millis(5));
    let vault = vaults::open(store.clone()).unwrap();
    let before = plan.count(Calls::Of(Call::OpenFile));
    vault.remember(&client.path(), true).unwrap();
    wait_for_opened(&plan, before, 2);
    vault.close().unwrap();
    let opened = plan.count(Calls::Of(Call::OpenFile)) - before;
    assert!(opened < files as u64, "{opened} of {files} files were opened");
    // Nothing of what was not looked at counts as gone.
    plan.slow_down(Call::OpenFile, Duration::ZERO);
    assert_eq!(client.told(&store), []);
}

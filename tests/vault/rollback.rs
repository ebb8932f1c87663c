//! The rollback database: older states that the storage restores are noticed, and nothing that
//! honest people and tools do raises an alarm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::os::OsDir;
use kithfs::store::{Access, Call, Dir, Kind, RenameMode};
use kithfs::vault::{
    CheckFault, Event, Events, Notice, NoticeKind, OpenOptions, ROOT, SurveyOptions, Vault,
};
use parking_lot::Mutex;

use crate::support::members::ShareOfPath;
use crate::support::members::{beside, founded, open_as, quiet, root_share};
use crate::support::vaults::{self, Seeded, mkdir, pattern, put, rename, write_at};

/// A client: its database is in a directory of its own.
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

    /// Opens the vault, records what `act` does, and closes it.
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

    /// Returns the emptied files that a check finds, after a comparison with what this client has
    /// seen.
    fn recalled(&self, store: &Arc<dyn Dir>) -> Vec<CheckFault> {
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let vault = Vault::open(store.clone(), &vaults::owner(), read_only).unwrap();
        let mut report = vault.check(b"", &mut |_| {}).unwrap();
        vault.recall(&mut report, &|_| Some(self.path())).unwrap();
        report.faults.into_iter().filter(|fault| fault.emptied).collect()
    }

    /// Returns the notices for a store that is at rest.
    fn told(&self, store: &Arc<dyn Dir>) -> Vec<(String, NoticeKind)> {
        let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
        let notices = self.survey(store, &options);
        // `first` is when the entry first had a notice of any kind, and may be before `seen`.
        assert!(
            notices.iter().all(|n| n.due && n.seen.min(n.first) > 1_600_000_000),
            "{notices:?}"
        );
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
    assert!(
        matches!(&told[..], [(path, NoticeKind::Older { was, now })] if path == "letter" && was > now),
        "{told:?}"
    );
    assert_eq!(client.told(&root), told, "the finding stays");
    // Reading continues.
    let vault = vaults::open(root.clone()).unwrap();
    assert_eq!(vaults::get(&vault, b"letter").unwrap(), pattern(1, 5000));
    vault.close().unwrap();
    // Restored to the newer state: nothing happened. Set back once more, and accepted.
    set(&root, &letter, &after);
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &before);
    let accept = SurveyOptions { accept: vec![b"letter".to_vec()], ..SurveyOptions::default() };
    assert_eq!(client.survey(&root, &accept), []);
    assert_eq!(client.told(&root), []);
    client.session(&root, |v| write_at(v, b"letter", 100, b"changed").unwrap());
    assert_eq!(client.told(&root), []);
}

/// The storage put an older version back, and a program wrote to the file until its version was as
/// high as the one that had been seen. The comparison then noticed nothing, and an alarm that was
/// listed already vanished.
#[test]
fn an_older_version_that_is_written_on_stays_noticed() {
    for is_listed in [false, true] {
        let (store, client) = fresh();
        let root = store.root();
        let letter = cipher(&root, b"letter");
        let before = bytes(&root, &letter);
        let write = |times: u64| {
            client.session(&root, |v| {
                (0..times).for_each(|n| write_at(v, b"letter", n, b"on").unwrap());
            });
        };
        write(3);
        assert_eq!(client.told(&root), []);
        let newer = bytes(&root, &letter);
        set(&root, &letter, &before);
        if is_listed {
            assert!(older(&client.told(&root), "letter"));
        }
        write(8);
        let told = client.told(&root);
        assert!(older(&told, "letter"), "{told:?}");
        // Written on, returned to what had been seen, removed: what happened stays noticed.
        write(2);
        assert_eq!(client.told(&root), told);
        set(&root, &letter, &newer);
        assert_eq!(client.told(&root), told);
        client.session(&root, |v| vaults::at(v, b"", |dir| v.unlink(dir, b"letter")).unwrap());
        assert_eq!(client.told(&root), told);
        let notices = client.survey(&root, &SurveyOptions::default());
        assert!(notices[0].written, "{notices:?}");
        accept_all(&client, &root);
        client.session(&root, |v| put(v, b"letter", b"a new one").unwrap());
        write(3);
        assert_eq!(client.told(&root), []);
    }
}

/// The same with a file that had been removed: once it was written to, it was newer than the
/// version that was known to be gone.
#[test]
fn a_removed_file_that_is_written_on_stays_noticed() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| vaults::at(v, b"", |dir| v.unlink(dir, b"letter")).unwrap());
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &before);
    client.session(&root, |v| write_at(v, b"letter", 0, b"on").unwrap());
    let put_back = [("letter".to_owned(), NoticeKind::PutBack { elsewhere: false })];
    assert_eq!(client.told(&root), put_back);
    client.session(&root, |v| write_at(v, b"letter", 0, b"on").unwrap());
    assert_eq!(client.told(&root), put_back);
    accept_all(&client, &root);
}

/// How a host hides what this machine has changed, at the moment at which it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    /// The directory is elsewhere.
    Directory,
    /// The header of the file cannot be opened.
    Header,
    /// The file is elsewhere.
    File,
}

/// Records the changes of a vault while the file `dir/inside` is hidden.
fn learn_without(vault: &Vault, root: &Arc<dyn Dir>, hidden: Hidden) {
    let stored = cipher(root, b"dir/inside");
    let (above, name) = vaults::split(&stored);
    let dir = root.open_dir(above).unwrap();
    let moved = |dir: &Arc<dyn Dir>, from: &[u8], to: &[u8]| {
        dir.rename(from, &**dir, to, RenameMode::NoReplace).unwrap();
    };
    match hidden {
        Hidden::Directory => moved(root, above, b".away"),
        Hidden::Header => moved(&dir, name, b".away"),
        Hidden::File => moved(&dir, name, b".away"),
    }
    if hidden == Hidden::Header {
        set(&dir, name, &[0; 5000]);
    }
    vault.learn().unwrap();
    match hidden {
        Hidden::Directory => moved(root, b".away", above),
        Hidden::Header => dir.rename(b".away", &*dir, name, RenameMode::Replace).unwrap(),
        Hidden::File => moved(&dir, b".away", name),
    }
}

/// The host put an older version back, and hid the file while this machine recorded what it had
/// written to it. So the machine forgot on which version its writes were built.
#[test]
fn an_older_version_hidden_while_it_is_recorded_is_noticed() {
    for hidden in [Hidden::Directory, Hidden::Header, Hidden::File] {
        let (store, client) = fresh();
        let root = store.root();
        let stored = cipher(&root, b"dir/inside");
        let (above, name) = vaults::split(&stored);
        let dir = root.open_dir(above).unwrap();
        let before = bytes(&dir, name);
        let write = |v: &Vault, times: u64| {
            (0..times).for_each(|n| write_at(v, b"dir/inside", n, b"on").unwrap());
        };
        client.session(&root, |v| write(v, 3));
        assert_eq!(client.told(&root), []);
        set(&dir, name, &before);
        client.session(&root, |v| {
            write(v, 8);
            learn_without(v, &root, hidden);
        });
        let told = client.told(&root);
        assert!(older(&told, "dir/inside"), "{hidden:?}: {told:?}");
    }
}

/// The same in a synced vault with a file that this machine had put in the place of another one:
/// the host put the former one back, and nothing was noticed. Damaging the header meanwhile was
/// enough.
#[test]
fn a_replacement_hidden_while_it_is_recorded_is_noticed() {
    for hidden in [Hidden::Directory, Hidden::Header, Hidden::File] {
        let (store, client, _) = of_two_machines(true);
        let root = store.root();
        let stored = cipher(&root, b"dir/inside");
        let (above, name) = vaults::split(&stored);
        let dir = root.open_dir(above).unwrap();
        let before = bytes(&dir, name);
        client.session(&root, |v| {
            rename(v, b"third", b"dir/inside", RenameMode::Replace).unwrap();
            learn_without(v, &root, hidden);
            set(&dir, name, &before);
        });
        let told = client.told(&root);
        assert!(told.iter().any(|(path, _)| path == "dir/inside"), "{hidden:?}: {told:?}");
    }
}

/// A file was saved twice, each time by a rename, before either was recorded. The host put the
/// first one back, and it counted as a new file of another machine: no alarm. In the same way a
/// temporary file of this machine, put back by the host, turned the host's removals in a synced
/// vault into notes.
#[test]
fn a_file_made_and_gone_before_it_is_recorded_is_known() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let mut first = Vec::new();
    let saved = |v: &Vault, contents: &[u8]| {
        put(v, b"new", contents).unwrap();
        rename(v, b"new", b"letter", RenameMode::Replace).unwrap();
        bytes(&root, &letter)
    };
    client.session(&root, |v| {
        first = saved(v, b"first");
        saved(v, b"second");
    });
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &first);
    for _ in 0..2 {
        let gone = [("letter".to_owned(), NoticeKind::Gone { elsewhere: false })];
        assert_eq!(client.told(&root), gone);
    }

    let (store, client) = fresh();
    Vault::set_synced(&store.root()).unwrap();
    let root = store.root();
    let (mut stored, mut kept) = (Vec::new(), Vec::new());
    client.session(&root, |v| {
        put(v, b"temporary", b"text").unwrap();
        stored = v.cipher_path(b"temporary").unwrap();
        kept = bytes(&root, &stored);
        remove(v, b"temporary");
    });
    set(&root, &stored, &kept);
    assert_eq!(client.told(&root), []);
    root.unlink(&cipher(&root, b"third")).unwrap();
    for _ in 0..2 {
        let gone = [("third".to_owned(), NoticeKind::Gone { elsewhere: false })];
        assert_eq!(client.told(&root), gone);
    }
}

/// Another machine received such a file, and renamed it or wrote on: that is no alarm.
#[test]
fn a_file_gone_before_it_is_recorded_may_come_from_elsewhere() {
    for writes in 0..3 {
        let (store, client, other) = of_two_machines(true);
        let root = store.root();
        let mut apart = None;
        client.session(&root, |v| {
            put(v, b"temporary", b"text").unwrap();
            apart = Some(store.snapshot().root());
            write_at(v, b"temporary", 0, b"T").unwrap();
            remove(v, b"temporary");
        });
        let apart = apart.unwrap();
        other.session(&apart, |v| {
            (0..writes).for_each(|n| write_at(v, b"temporary", n, b"t").unwrap());
            rename(v, b"temporary", b"kept", RenameMode::NoReplace).unwrap();
        });
        let kept = cipher(&apart, b"kept");
        set(&root, &kept, &bytes(&apart, &kept));
        for _ in 0..2 {
            assert_eq!(client.told(&root), [], "{writes}");
        }
    }
}

/// An alarm vanished when a program replaced the file, as editors do when they save what they have
/// read.
#[test]
fn a_listed_alarm_outlives_the_replacement_of_the_file() {
    for by_rename in [false, true] {
        let (store, client) = fresh();
        let root = store.root();
        let letter = cipher(&root, b"letter");
        let before = bytes(&root, &letter);
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        set(&root, &letter, &before);
        let now = SurveyOptions::default().now - 1000;
        assert_eq!(
            client.survey(&root, &SurveyOptions { now, ..SurveyOptions::default() }).len(),
            1
        );
        client.session(&root, |v| match by_rename {
            true => {
                put(v, b"letter.new", b"saved").unwrap();
                rename(v, b"letter.new", b"letter", RenameMode::Replace).unwrap();
            }
            false => put(v, b"letter", b"saved").unwrap(),
        });
        let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
        let told = client.survey(&root, &options);
        assert!(
            matches!(told[..], [Notice { kind: NoticeKind::Older { .. }, written: true, .. }]),
            "{told:?}"
        );
        accept_all(&client, &root);
    }
}

/// A machine loses the name of a file to another one in a conflict, and goes on writing the other
/// machine's version. That is no alarm, and stays the note that it was.
#[test]
fn writing_on_after_a_conflict_is_no_alarm() {
    let (store, client) = fresh();
    Vault::set_synced(&store.root()).unwrap();
    let (root, apart) = (store.root(), store.snapshot().root());
    let letter = cipher(&root, b"letter");
    Client::new().session(&apart, |v| {
        write_at(v, b"letter", 0, b"theirs").unwrap();
        put(v, b"news", b"from elsewhere").unwrap();
    });
    client.session(&root, |v| (0..4).for_each(|n| write_at(v, b"letter", n, b"ours").unwrap()));
    let ours = bytes(&root, &letter);
    set(&root, &letter, &bytes(&apart, &letter));
    let news = cipher(&apart, b"news");
    set(&root, &news, &bytes(&apart, &news));
    set(&root, &[&letter[..], b".sync-conflict-20260101-120000-ABCDEFG"].concat(), &ours);
    client.session(&root, |v| (0..9).for_each(|n| write_at(v, b"letter", n, b"on").unwrap()));
    let told = client.told(&root);
    assert!(matches!(told[..], [(_, NoticeKind::Conflict { .. })]), "{told:?}");
}

/// A mount passes the alarm on to its user, and only once.
#[test]
fn a_mount_reports_an_alarm_that_is_due() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| write_at(v, b"letter", 100, b"changed").unwrap());
    set(&root, &letter, &before);
    // A survey noticed it 1,000 seconds ago.
    let now = SurveyOptions::default().now - 1000;
    assert_eq!(client.survey(&root, &SurveyOptions { now, ..SurveyOptions::default() }).len(), 1);
    let (tell, told) = std::sync::mpsc::channel();
    let events = Events::new(move |event| tell.send(event).unwrap());
    let options = OpenOptions { events, ..OpenOptions::default() };
    let vault = Vault::open(root.clone(), &vaults::owner(), options).unwrap();
    vault.remember(&client.path(), true).unwrap();
    let event = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(event, Ok(Event::RolledBack(1)));
    vault.close().unwrap();
    drop(vault);
    assert_eq!(told.iter().count(), 0);
}

/// A folder that becomes a share is not reported as lost, and a signed share has its own records in
/// the database.
#[test]
fn a_folder_that_becomes_a_share_is_no_rollback() {
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
    assert!(
        matches!(told[0].1, NoticeKind::Gone { .. })
            && matches!(told[1].1, NoticeKind::Older { was, now } if was > now),
        "{told:?}"
    );
}

#[test]
fn the_return_of_a_file_an_editor_replaced_is_noticed() {
    // Editors write a new file and rename it over the old one: no version distinguishes the two,
    // only the memory of which one is gone.
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
    assert_eq!(
        client.told(&root),
        [("letter".to_owned(), NoticeKind::PutBack { elsewhere: false })]
    );
}

#[test]
fn exchanged_and_vanished_entries_are_noticed() {
    let (store, client) = fresh();
    let root = store.root();
    let (letter, other) = (cipher(&root, b"letter"), cipher(&root, b"other"));
    root.rename(&letter, &*root, &other, RenameMode::Exchange).unwrap();
    let exchanged = |path: &str| (path.to_owned(), NoticeKind::Exchanged { elsewhere: false });
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
    // The findings are kept, and not reported again.
    let silence = SurveyOptions { silence: true, ..SurveyOptions::default() };
    assert!(client.survey(&root, &silence).iter().all(|n| n.silenced));
    assert!(client.survey(&root, &SurveyOptions::default()).iter().all(|n| n.silenced));
}

/// Returns the number of entries in a client's database.
fn rows(client: &Client) -> u64 {
    use redb::ReadableDatabase;
    let db = redb::Database::open(client.path()).unwrap();
    let table = redb::TableDefinition::<&str, i64>::new("meta");
    let meta = db.begin_read().unwrap().open_table(table).unwrap();
    meta.get("entries").unwrap().unwrap().value() as u64
}

#[test]
fn what_was_in_directories_that_are_gone_is_forgotten() {
    // A directory that was removed or renamed left the rows of all its former contents, and of
    // those below, in the database for ever.
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
        // Renamed by this client, and back by another one.
        client.session(&root, |v| rename(v, b"tree", b"renamed", RenameMode::Replace).unwrap());
        assert_eq!(client.told(&root), [], "round {round}");
        assert_eq!(rows(&client), before + 22, "round {round}");
        Client::new()
            .session(&root, |v| rename(v, b"renamed", b"tree", RenameMode::Replace).unwrap());
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
    // If the storage removes it, that is noticed, and forgotten when it is accepted.
    client.session(&root, fill);
    let dir = cipher(&root, b"tree");
    root.rename(&dir, &*root, b"+trash-0", RenameMode::Replace).unwrap();
    assert_eq!(client.told(&root), [("tree".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    let accept = SurveyOptions { accept: vec![Vec::new()], ..SurveyOptions::default() };
    client.survey(&root, &accept);
    assert_eq!((client.told(&root), rows(&client)), (vec![], before));
}

#[test]
fn an_empty_directory_in_place_of_a_renamed_one_is_noticed() {
    // The two were not compared, and all contents went unnoticed.
    let (store, client) = fresh();
    let root = store.root();
    client.session(&root, |v| rename(v, b"dir", b"moved", RenameMode::Replace).unwrap());
    assert_eq!(client.told(&root), []);
    let stored = cipher(&root, b"moved");
    root.rename(&stored, &*root, b"+trash-0", RenameMode::Replace).unwrap();
    root.mkdir(&stored, 0o755).unwrap();
    assert_eq!(
        client.told(&root),
        [("moved/inside".to_owned(), NoticeKind::Gone { elsewhere: false })]
    );
    root.rmdir(&stored).unwrap();
    root.rename(b"+trash-0", &*root, &stored, RenameMode::Replace).unwrap();
    assert_eq!(client.told(&root), []);
    // If a client does it, and leaves the directory elsewhere, nothing is reported.
    Client::new().session(&root, |v| {
        rename(v, b"moved", b"away", RenameMode::Replace).unwrap();
        mkdir(v, b"moved").unwrap();
    });
    assert_eq!(client.told(&root), []);
}

#[test]
fn deletions_are_an_alarm_only_without_other_news() {
    // A machine that only removes files cannot be told from a storage host that drops them, so that
    // is an alarm; if the machine has also made something new, it is a note.
    let (store, client) = fresh();
    let root = store.root();
    let other = Client::new();
    other.session(&root, |v| vaults::at(v, b"", |dir| v.unlink(dir, b"third")).unwrap());
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    other.session(&root, |v| put(v, b"news", b"from elsewhere").unwrap());
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: true })]);
    // This became an alarm at the next mount, once the new entry had been learnt.
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: true })]);
}

/// An older copy of the whole vault is reported, and one command accepts it.
#[test]
fn an_older_copy_of_a_vault_is_noticed_and_can_be_accepted() {
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
    // The next session on it is an ordinary one.
    client.session(&root, |v| write_at(v, b"letter", 0, b"again").unwrap());
    assert_eq!(client.told(&root), []);
}

/// Performs an action of an honest person.
fn act(vault: &Vault, random: &Seeded) {
    let name =
        |n: u64| format!("{}{}", if n.is_multiple_of(3) { "dir/" } else { "" }, n % 8).into_bytes();
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
            vaults::at(vault, parent, |dir| {
                vault.link(node, dir, last).map(|attr| vault.forget(attr.node, 1))
            })
        }),
        _ => {
            rename(vault, b"dir", b"moved", RenameMode::Replace).and_then(|()| mkdir(vault, b"dir"))
        }
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
                    // An exchange of two names by another machine looks like one by the storage,
                    // and is reported.
                    act_without_exchange(v, &random)
                });
                put(v, format!("turn {turn}").as_bytes(), b"something new").unwrap();
            });
            let told = peer.told(&store.root());
            assert!(
                told.iter().all(|(_, kind)| *kind == NoticeKind::Gone { elsewhere: true }),
                "seed {seed}, turn {turn}: {told:?}"
            );
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
        3 => put(vault, &fresh, b"saved")
            .and_then(|()| rename(vault, &fresh, &a, RenameMode::Replace)),
        _ => vaults::at(vault, b"", |node| vault.unlink(node, &a)),
    };
}

/// Returns every object of a store by path, with what a sync tool delivers.
fn objects(dir: &Arc<dyn Dir>, path: &[u8], all: &mut Vec<(Vec<u8>, Option<Vec<u8>>)>) {
    let mut cookie = 0;
    loop {
        let entries = dir.read(cookie, 4096).unwrap();
        let Some(last) = entries.last() else { return };
        cookie = last.next;
        for entry in entries.iter().filter(|e| &*e.name != b"+lock") {
            let at = if path.is_empty() {
                entry.name.to_vec()
            } else {
                [path, b"/", &entry.name].concat()
            };
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
    // Our copy is brought up to date with another machine's by a sync tool, object by object, with
    // removals anywhere in between.
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
        // Deliveries and removals in random order; directories first, because other objects need
        // them.
        for (name, _) in theirs.iter().filter(|(_, contents)| contents.is_none()) {
            let _ = std::fs::create_dir(path(name));
        }
        let mut steps: Vec<(Vec<u8>, Option<Vec<u8>>)> =
            theirs.iter().filter(|(_, contents)| contents.is_some()).cloned().collect();
        steps.extend(
            ours.iter()
                .filter(|(name, c)| c.is_some() && !theirs.iter().any(|(n, _)| n == name))
                .map(|(n, _)| (n.clone(), None)),
        );
        for i in (1..steps.len()).rev() {
            steps.swap(i, random.below(i as u64 + 1) as usize);
        }
        for (name, contents) in steps {
            match contents {
                Some(contents) => {
                    // First under another name, as sync tools do.
                    std::fs::write(path(b".delivery"), contents).unwrap();
                    std::fs::rename(path(b".delivery"), path(&name)).unwrap();
                }
                None => std::fs::remove_file(path(&name)).unwrap(),
            }
            let notices = client.survey(&on_disk(&local), &SurveyOptions::default());
            assert!(notices.iter().all(|n| !n.due), "seed {seed}: {notices:?}");
        }
        for (name, _) in ours
            .iter()
            .rev()
            .filter(|(name, c)| c.is_none() && !theirs.iter().any(|(n, _)| n == name))
        {
            std::fs::remove_dir(path(name)).unwrap();
        }
        // An hour later everything is at rest, and what remains are removals from elsewhere.
        let later =
            SurveyOptions { now: SurveyOptions::default().now + 3600, ..SurveyOptions::default() };
        let notices = client.survey(&on_disk(&local), &later);
        assert!(
            notices.iter().all(|n| matches!(n.kind, NoticeKind::Gone { .. })),
            "seed {seed}: {notices:?}"
        );
    }
}

#[test]
fn a_crash_at_any_moment_is_no_alarm() {
    // No commit makes the database and the vault durable together.
    let (store, client) = fresh();
    let store = store.crash(&mut |n| n - 1);
    let cuts = Arc::new(Mutex::new(Vec::new()));
    {
        let vault = vaults::open(store.root()).unwrap();
        vault.remember(&client.path(), false).unwrap();
        let (taken, watched, path) = (cuts.clone(), store.clone(), client.path());
        // The database is copied first: another thread may sync the store and write the database in
        // between.
        store.on_event(Box::new(move |_| {
            let mut taken = taken.lock();
            let database = std::fs::read(&path).unwrap();
            taken.push((watched.snapshot(), database));
        }));
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
            let told = after.recalled(&crashed.root());
            assert!(told.iter().all(|fault| fault.residue), "cut {n}, choice {seed}: {told:?}");
            // Replays the journal, as the next mount does.
            vaults::open(crashed.root()).unwrap().close().unwrap();
            assert_eq!(after.told(&crashed.root()), [], "cut {n}, choice {seed}");
        }
    }
}

#[test]
fn the_database_contains_no_names() {
    let (store, client) = fresh();
    client.session(&store.root(), |v| put(v, b"a very telling name", b"x").unwrap());
    let database = std::fs::read(client.path()).unwrap();
    for name in [&b"a very telling name"[..], b"letter", b"inside"] {
        assert!(!database.windows(name.len()).any(|w| w == name));
    }
}

/// A vault with `files` files in one directory, behind a plan by which each opening of a file takes
/// `time` from now on.
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

/// Waits until this many files have been opened since `before`.
fn wait_for_opened(plan: &FaultPlan, before: u64, files: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while plan.count(Calls::Of(Call::OpenFile)) < before + files {
        assert!(Instant::now() < end, "the comparison does not go on");
        std::thread::yield_now();
    }
}

#[test]
fn a_background_comparison_idles_half_of_the_time() {
    // Each mount read the headers of all files as fast as the store could deliver them, and on a
    // slow disk nothing else came through.
    let (files, time) = (30, Duration::from_millis(10));
    let (store, plan, client) = slow(files, time);
    let vault = vaults::open(store).unwrap();
    let (begin, before) = (Instant::now(), plan.count(Calls::Of(Call::OpenFile)));
    vault.remember(&client.path(), true).unwrap();
    wait_for_opened(&plan, before, files as u64);
    assert!(
        begin.elapsed() >= time * (2 * files as u32 - 3),
        "30 openings of 10 ms took {:?}",
        begin.elapsed()
    );
    vault.close().unwrap();
}

#[test]
fn a_vault_is_closed_in_the_midst_of_a_comparison() {
    // The comparison checked only between two directories whether it should stop: with a large
    // directory on a slow disk an unmount took minutes.
    let files = 300;
    let (store, plan, client) = slow(files, Duration::from_millis(5));
    let vault = vaults::open(store.clone()).unwrap();
    let before = plan.count(Calls::Of(Call::OpenFile));
    vault.remember(&client.path(), true).unwrap();
    wait_for_opened(&plan, before, 2);
    vault.close().unwrap();
    let opened = plan.count(Calls::Of(Call::OpenFile)) - before;
    assert!(opened < files as u64, "{opened} of {files} files were opened");
    // Files that were not looked at do not count as gone.
    plan.slow_down(Call::OpenFile, Duration::ZERO);
    assert_eq!(client.told(&store), []);
}

/// Creates a vault with this many files in its root. A directory with more than 1,000 is not listed
/// for a change in it.
fn with_files(files: usize) -> (Arc<dyn Dir>, Arc<FaultPlan>, Client) {
    slow(files, Duration::ZERO)
}

/// Every 30 seconds the directories with changes were listed, and each file in them was opened: in a
/// directory of a million files one new file cost a million openings, and an import into one
/// directory took time that grew with the square of its entries, and memory for what had to wait.
#[test]
fn recording_a_change_reads_no_other_file() {
    for synced in [false, true] {
        let (store, plan, client) = with_files(2200);
        if synced {
            Vault::set_synced(&store).unwrap();
        }
        let vault = vaults::open(store).unwrap();
        vault.remember(&client.path(), false).unwrap();
        put(&vault, b"new", b"text").unwrap();
        write_at(&vault, b"file 7", 1, b"E").unwrap();
        plan.reset();
        vault.learn().unwrap();
        // The background may record one of the changes before, or look at the vault meanwhile.
        let calls = plan.count(Calls::All);
        vault.close().unwrap();
        assert!(calls < 100, "{calls}, synced: {synced}");
    }
}

/// In a synced vault all files of a directory were still opened each time that changes in it were
/// recorded. Creating files in one directory took openings that grew with the square of them.
#[test]
fn recording_new_files_of_a_synced_vault_opens_few_others() {
    let (before, new, in_a_batch) = (1100, 1000, 20);
    let (store, plan, client) = with_files(before);
    Vault::set_synced(&store).unwrap();
    let vault = vaults::open(store.clone()).unwrap();
    vault.remember(&client.path(), false).unwrap();
    plan.reset();
    for n in 0..new {
        put(&vault, format!("new {n}").as_bytes(), b"text").unwrap();
        if n % in_a_batch == 0 {
            vault.learn().unwrap();
        }
    }
    vault.close().unwrap();
    let opened = plan.count(Calls::Of(Call::OpenFile));
    println!("{opened} openings");
    assert!(opened < 8 * (before + new) as u64, "{opened} openings");
    assert_eq!(client.told(&store), []);
}

/// What another machine has written in a directory while this one was writing there is learnt with
/// that, or if the directory is large, by the next comparison.
#[test]
fn what_others_wrote_in_a_changed_directory_is_learnt() {
    for files in [100, 1100] {
        let (store, _, client) = with_files(files);
        Vault::set_synced(&store).unwrap();
        let theirs = cipher(&store, b"file 5");
        let before = bytes(&store, &theirs);
        Client::new().session(&store, |v| write_at(v, b"file 5", 0, b"theirs").unwrap());
        let newer = bytes(&store, &theirs);
        set(&store, &theirs, &before);
        client.session(&store, |vault| {
            put(vault, b"new", b"text").unwrap();
            vault.learn().unwrap();
            set(&store, &theirs, &newer);
            put(vault, b"another", b"text").unwrap();
        });
        if files > 1000 {
            assert_eq!(client.told(&store), []);
        }
        set(&store, &theirs, &before);
        let told = client.told(&store);
        assert!(
            matches!(&told[..], [(path, NoticeKind::Older { .. })] if path == "file 5"),
            "{files} files: {told:?}"
        );
    }
}

/// Returns how many calls to the store the end of a mount takes that has changed a directory
/// (`act`) of a synced vault, to which the storage host has added `copies` conflict copies.
fn calls_at_the_end(files: usize, copies: usize, act: impl FnOnce(&Vault)) -> u64 {
    let (store, plan, client) = with_files(files);
    Vault::set_synced(&store).unwrap();
    let stored = cipher(&store, b"file 5");
    let vault = vaults::open(store.clone()).unwrap();
    vault.remember(&client.path(), false).unwrap();
    act(&vault);
    for n in 0..copies {
        let name = [&stored[..], format!(" ({n})").as_bytes()].concat();
        store.link(&stored, &*store, &name).unwrap();
    }
    plan.reset();
    vault.close().unwrap();
    plan.count(Calls::All)
}

/// At its end, a mount of a synced vault opened all files of each directory in which it had changed
/// something. The storage host had added ten million conflict copies to one: that took ten minutes.
#[test]
fn the_end_of_a_mount_reads_no_large_directory() {
    let created = |vault: &Vault| put(vault, b"new", b"text").unwrap();
    let removed = |vault: &Vault| vault.unlink(ROOT, b"file 7").unwrap();
    let calls = [
        [(10, 2000), (10, 4000), (1100, 0), (2200, 0)]
            .map(|(f, c)| calls_at_the_end(f, c, created)),
        // The names are read, and no more than 10,000 of them.
        [12_000, 14_000, 16_000, 18_000].map(|copies| calls_at_the_end(10, copies, removed)),
    ];
    println!("{calls:?}");
    for [first, second, third, fourth] in calls {
        assert!(first == second && third == fourth, "{first} {second} {third} {fourth}");
    }
    // A directory of few recorded entries is listed until that shows that it has many.
    assert!(calls[0][0] < 3000 && calls[0][2] < 100 && calls[1][0] < 3000, "{calls:?}");
}

/// A file that this machine removes is not gone if a conflict copy of it is in the directory, and the
/// copy does not count as a file that was put back.
#[test]
fn a_copy_beside_a_removed_file_of_a_large_directory_is_seen() {
    for files in [100, 1100] {
        let (store, _, client) = with_files(files);
        Vault::set_synced(&store).unwrap();
        client.session(&store, |vault| {
            let stored = cipher(&store, b"file 4");
            set(&store, &[&stored[..], b" (1)"].concat(), &bytes(&store, &stored));
            vault.unlink(ROOT, b"file 4").unwrap();
            vault.learn().unwrap();
        });
        assert_eq!(client.told(&store), [], "{files} files");
    }
}

/// Each directory with changes was opened by its path from the root: to record 1,900 levels took 1.8
/// million openings, and half as many levels a quarter of that.
#[test]
fn recording_a_deep_tree_takes_equal_calls_for_each_level() {
    let calls = |levels: usize| {
        let (store, client, plan) = (MemStore::new(), Client::new(), FaultPlan::new());
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        vault.remember(&client.path(), false).unwrap();
        let recorded = || {
            plan.reset();
            vault.learn().unwrap();
            plan.count(Calls::All)
        };
        let mut nodes = vec![ROOT];
        for _ in 0..levels {
            let made = vault.mkdir(&vaults::CALLER, nodes[nodes.len() - 1], b"d", 0o755).unwrap();
            nodes.push(made.node);
        }
        let made = recorded();
        nodes.pop();
        nodes.iter().rev().for_each(|parent| vault.rmdir(*parent, b"d").unwrap());
        let removed = recorded();
        vault.close().unwrap();
        [made, removed]
    };
    let (few, many) = (calls(100), calls(200));
    println!("{few:?} {many:?}");
    assert!(few.into_iter().zip(many).all(|(few, many)| many <= 2 * few), "{few:?} {many:?}");
}

/// Changes names and files of a directory with this many files, in two steps that are recorded one
/// by one. Then puts back what was there before, or removes what is there now. Returns what the
/// client notices then.
fn told_after_changes(files: usize, synced: bool) -> Vec<(String, NoticeKind)> {
    let (store, _, client) = with_files(files);
    if synced {
        Vault::set_synced(&store).unwrap();
    }
    let names = [&b"file 1"[..], b"file 3", b"file 4", b"file 6", b"file 10"];
    let before = names.map(|name| {
        let stored = cipher(&store, name);
        (bytes(&store, &stored), stored)
    });
    let vault = vaults::open(store.clone()).unwrap();
    vault.remember(&client.path(), false).unwrap();
    let unlink = |name: &[u8]| vault.unlink(ROOT, name).unwrap();
    let moved = |from: &[u8], to: &[u8]| rename(&vault, from, to, RenameMode::Replace).unwrap();
    write_at(&vault, b"file 1", 1, b"E").unwrap();
    moved(b"file 3", b"renamed");
    unlink(b"file 4");
    put(&vault, b"another", b"text").unwrap();
    moved(b"another", b"file 6");
    for name in [&b"new"[..], b"written", b"both"] {
        put(&vault, name, b"text").unwrap();
    }
    mkdir(&vault, b"dir").unwrap();
    put(&vault, b"dir/inside", b"text").unwrap();
    unlink(b"file 9");
    unlink(b"file 10");
    put(&vault, b"file 10", b"again").unwrap();
    vault.learn().unwrap();
    moved(b"dir", b"moved");
    moved(b"both", b"second");
    let written = cipher(&store, b"written");
    let first = bytes(&store, &written);
    write_at(&vault, b"written", 1, b"E").unwrap();
    vault.close().unwrap();
    assert_eq!(client.told(&store), []);

    before.iter().for_each(|(bytes, stored)| set(&store, stored, bytes));
    set(&store, &written, &first);
    let (moved, inside) = (cipher(&store, b"moved"), cipher(&store, b"moved/inside"));
    store.open_dir(&moved).unwrap().unlink(last(&inside)).unwrap();
    for name in [&b"new"[..], b"second"] {
        store.unlink(&cipher(&store, name)).unwrap();
    }
    client.told(&store)
}

/// Only the changed names of a large directory are looked up when its changes are recorded, and that
/// records the same as a listing.
#[test]
fn all_changes_in_a_large_directory_are_recorded() {
    for synced in [false, true] {
        let told = told_after_changes(1100, synced);
        assert_eq!(told, told_after_changes(100, synced), "synced: {synced}");
        let paths: Vec<_> = told.iter().map(|(path, _)| &path[..]).collect();
        for path in
            ["file 1", "file 4", "file 6", "file 10", "moved/inside", "new", "second", "written"]
        {
            assert!(paths.contains(&path), "{path}: {told:?}");
        }
    }
}

/// Keeps only the alarms.
fn alarms(told: Vec<(String, NoticeKind)>) -> Vec<(String, NoticeKind)> {
    told.into_iter().filter(|(_, kind)| kind.is_alarm()).collect()
}

/// Returns whether there is one notice, of an older version at this path.
fn older(told: &[(String, NoticeKind)], at: &str) -> bool {
    matches!(told, [(path, NoticeKind::Older { was, now })] if path == at && was > now)
}

fn accept_all(client: &Client, store: &Arc<dyn Dir>) {
    client.survey(store, &SurveyOptions { accept: vec![Vec::new()], ..SurveyOptions::default() });
    assert_eq!(client.told(store), []);
}

fn last(path: &[u8]) -> &[u8] {
    vaults::split(path).1
}

/// The storage put the old version under the name and left the newest one beside it, as a conflict
/// copy. That raised no alarm, because the newest version was still somewhere in the vault.
#[test]
fn a_name_that_goes_backwards_is_noticed_beside_its_copy() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| write_at(v, b"letter", 0, b"ours").unwrap());
    let newer = bytes(&root, &letter);
    set(&root, &letter, &before);
    set(&root, &[&letter[..], b" (1)"].concat(), &newer);
    let told = client.told(&root);
    assert!(older(&told, "letter"), "{told:?}");
    // Also if both have been seen side by side before.
    set(&root, &letter, &newer);
    set(&root, &[&letter[..], b" (2)"].concat(), &before);
    assert_eq!(client.told(&root), []);
    set(&root, &letter, &before);
    let told = client.told(&root);
    assert!(older(&told, "letter"), "{told:?}");
}

/// Two other machines changed a file independently. The sync tool kept one version under the name
/// and the other one, with the higher number, as a copy. Under the name nothing went back, so it is
/// no alarm. The later removal of the copy is a note.
#[test]
fn an_ordinary_sync_conflict_is_no_alarm() {
    let (store, client) = fresh();
    let (root, apart) = (store.root(), store.snapshot().root());
    let letter = cipher(&root, b"letter");
    Client::new().session(&root, |v| write_at(v, b"letter", 0, b"once").unwrap());
    Client::new()
        .session(&apart, |v| (0..5).for_each(|n| write_at(v, b"letter", n, b"often").unwrap()));
    let copy = [&letter[..], b" (conflicted copy)"].concat();
    set(&root, &copy, &bytes(&apart, &letter));
    assert_eq!(client.told(&root), []);
    root.unlink(&copy).unwrap();
    assert_eq!(
        client.told(&root),
        [("letter (conflicted copy)".to_owned(), NoticeKind::Gone { elsewhere: true })]
    );
    accept_all(&client, &root);
}

/// One machine changed `a/f`, another one renamed `a` to `b`, and the sync tool kept `a/f` and the
/// older `b/f`. When `a/f` was removed later, `b/f` was reported as rolled back on both machines,
/// although nothing had been.
#[test]
fn a_change_and_a_rename_that_a_sync_tool_merges_are_no_alarm() {
    let (store, renamer) = fresh();
    let changer = Client::new();
    changer.session(&store.root(), |v| write_at(v, b"letter", 0, b"both have seen it").unwrap());
    accept_all(&renamer, &store.root());
    accept_all(&changer, &store.root());
    let (here, apart) = (store.root(), store.snapshot().root());
    changer.session(&apart, |v| write_at(v, b"dir/inside", 0, b"newer").unwrap());
    let inside = cipher(&apart, b"dir/inside");
    let (dir, name) = vaults::split(&inside);
    let newer = bytes(&apart.open_dir(dir).unwrap(), name);
    renamer.session(&here, |v| rename(v, b"dir", b"moved", RenameMode::Replace).unwrap());
    here.mkdir(dir, 0o755).unwrap();
    set(&here.open_dir(dir).unwrap(), name, &newer);
    for client in [&renamer, &changer] {
        assert_eq!(alarms(client.told(&here)), []);
    }
    here.open_dir(dir).unwrap().unlink(name).unwrap();
    here.rmdir(dir).unwrap();
    for client in [&renamer, &changer] {
        let told = client.told(&here);
        assert_eq!(
            told,
            [("dir".to_owned(), NoticeKind::Gone { elsewhere: true })],
            "a note is kept"
        );
        accept_all(client, &here);
    }
}

/// The storage shows an old version once, beside the newest one, and then drops the newest. That is
/// no alarm, because a sync tool may do the same with a conflict, but a note stays. If both were
/// never seen together, it is an alarm.
#[test]
fn the_newer_of_two_versions_seen_together_goes_with_a_note() {
    let (store, client) = fresh();
    let root = store.root();
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
    let newer = bytes(&root, &letter);
    let copy = [&letter[..], b" (1)"].concat();
    set(&root, &copy, &before);
    root.unlink(&letter).unwrap();
    let told: Vec<String> = alarms(client.told(&root)).into_iter().map(|(path, _)| path).collect();
    assert_eq!(told, ["letter", "letter (1)"]);
    set(&root, &letter, &newer);
    assert_eq!(client.told(&root), []);
    root.unlink(&letter).unwrap();
    for _ in 0..2 {
        assert_eq!(
            client.told(&root),
            [("letter".to_owned(), NoticeKind::Gone { elsewhere: true })]
        );
    }
}

/// A file that was removed, and not replaced, could come back unnoticed, under any name.
#[test]
fn a_removed_file_that_is_put_back_is_noticed() {
    let (store, client) = fresh();
    let root = store.root();
    client.session(&root, |v| put(v, b"free", b"a name that is free later").unwrap());
    let (letter, free) = (cipher(&root, b"letter"), cipher(&root, b"free"));
    let inside = cipher(&root, b"dir/inside");
    let dir = vaults::split(&inside).0;
    let (before, below) =
        (bytes(&root, &letter), bytes(&root.open_dir(dir).unwrap(), last(&inside)));
    client.session(&root, |v| {
        for name in [&b"letter"[..], b"free"] {
            vaults::at(v, b"", |node| v.unlink(node, name)).unwrap();
        }
        vaults::at(v, b"dir", |node| v.unlink(node, b"inside")).unwrap();
        vaults::at(v, b"", |node| v.rmdir(node, b"dir")).unwrap();
        // Under the live mount, before it was recorded.
        set(&root, &letter, &before);
    });
    let back = |path: &str, elsewhere| vec![(path.to_owned(), NoticeKind::PutBack { elsewhere })];
    for _ in 0..2 {
        assert_eq!(client.told(&root), back("letter", false), "the finding stays");
    }
    root.unlink(&letter).unwrap();
    assert_eq!(client.told(&root), []);
    // As a copy, under another name, in a directory that is restored with it.
    set(&root, &[&letter[..], b" (1)"].concat(), &before);
    assert_eq!(client.told(&root), back("letter (1)", false));
    root.unlink(&[&letter[..], b" (1)"].concat()).unwrap();
    set(&root, &free, &before);
    assert_eq!(client.told(&root), back("free", true));
    root.unlink(&free).unwrap();
    root.mkdir(dir, 0o755).unwrap();
    set(&root.open_dir(dir).unwrap(), last(&inside), &below);
    assert_eq!(client.told(&root), back("dir/inside", false));
    accept_all(&client, &root);
}

/// A file that this machine removed while another one changed it comes back from there with a
/// version that was never seen before.
#[test]
fn a_removed_file_that_another_machine_changed_is_no_alarm() {
    let (store, client) = fresh();
    let root = store.root();
    let apart = store.snapshot().root();
    let letter = cipher(&root, b"letter");
    client.session(&root, |v| vaults::at(v, b"", |node| v.unlink(node, b"letter")).unwrap());
    Client::new().session(&apart, |v| write_at(v, b"letter", 0, b"changed").unwrap());
    set(&root, &letter, &bytes(&apart, &letter));
    assert_eq!(client.told(&root), []);
}

/// The time of the first sight was kept for each version. A store that kept changing, and showed two
/// old versions in turn, or the newest one in between, postponed the report for ever.
#[test]
fn old_versions_that_take_turns_are_reported_in_an_hour() {
    let (dir, client) = (tempfile::tempdir().unwrap(), Client::new());
    let root = on_disk(dir.path());
    vaults::create(&root, Suite::Aes256Gcm, 12);
    client.session(&root, |v| put(v, b"letter", b"first").unwrap());
    let letter = cipher(&root, b"letter");
    let mut versions = vec![bytes(&root, &letter)];
    for n in 0..2 {
        client.session(&root, |v| write_at(v, b"letter", n, b"changed").unwrap());
        versions.push(bytes(&root, &letter));
    }
    // Before the store's last change, as in a store that changes at every moment.
    let begin = SurveyOptions::default().now - 4 * 3600;
    for step in 0..9 {
        set(&root, &letter, &versions[[0, 1, 0, 1, 2, 0, 1, 2, 1][step]]);
        let notices = client.survey(
            &root,
            &SurveyOptions { now: begin + 480 * step as i64, ..SurveyOptions::default() },
        );
        let due = notices.iter().any(|n| n.due);
        assert_eq!(due, step == 8, "step {step}: {notices:?}");
    }
}

/// Files with foreign names counted against a limit of 16,384 entries, beyond which a directory was
/// left out with everything below it. There is no limit any more, because they are not held in
/// memory. Nor is there one for the vault's own entries: directories are read piece by piece.
#[test]
fn no_number_of_entries_keeps_a_directory_from_being_compared() {
    let (store, client) = fresh();
    let root = store.root();
    client.session(&root, |v| {
        (0..3000).for_each(|n| put(v, format!("dir/{n}").as_bytes(), b"x").unwrap())
    });
    let letter = cipher(&root, b"letter");
    let before = bytes(&root, &letter);
    client.session(&root, |v| {
        write_at(v, b"letter", 0, b"newer").unwrap();
        write_at(v, b"dir/2999", 0, b"newer").unwrap();
    });
    let gone = cipher(&root, b"dir/1500");
    root.open_dir(vaults::split(&gone).0).unwrap().unlink(last(&gone)).unwrap();
    set(&root, &letter, &before);
    (0..16_385)
        .for_each(|n| drop(root.create_file(format!("foreign {n}").as_bytes(), 0o600).unwrap()));
    let told = client.told(&root);
    assert_eq!(told[0], ("dir/1500".to_owned(), NoticeKind::Gone { elsewhere: false }));
    assert!(older(&told[1..], "letter"), "{told:?}");
}

/// A directory is held open for its subdirectories. If many are nested, the deeper ones are opened
/// by their paths.
#[test]
fn directories_that_are_nested_deeply_are_compared() {
    let (store, client) = fresh();
    let root = store.root();
    let paths: Vec<String> = (1..80).map(|depth| vec!["a"; depth].join("/")).collect();
    client.session(&root, |v| {
        for path in &paths {
            mkdir(v, path.as_bytes()).unwrap();
            mkdir(v, format!("{path}/b").as_bytes()).unwrap();
            put(v, format!("{path}/b/file").as_bytes(), b"bytes").unwrap();
        }
    });
    assert_eq!(client.told(&root), []);
    for path in &paths {
        let stored = cipher(&root, format!("{path}/b/file").as_bytes());
        let (dir, name) = vaults::split(&stored);
        let dir =
            dir.split(|b| *b == b'/').fold(root.clone(), |dir, name| dir.open_dir(name).unwrap());
        dir.unlink(name).unwrap();
    }
    assert_eq!(client.told(&root).len(), paths.len());
}

/// Unreadable objects were skipped: a damaged file, and a directory into which the descriptor of a
/// share had been put.
#[test]
fn what_cannot_be_compared_is_noticed() {
    let (store, client) = fresh();
    let root = store.root();
    let (letter, dir) = (cipher(&root, b"letter"), cipher(&root, b"dir"));
    let before = bytes(&root, &letter);
    set(&root, &letter, b"");
    set(&root.open_dir(&dir).unwrap(), b"+share", b"planted");
    let not_compared = |path: &str| (path.to_owned(), NoticeKind::NotCompared { elsewhere: false });
    assert_eq!(client.told(&root), [not_compared("dir"), not_compared("letter")]);
    set(&root, &letter, &before);
    root.open_dir(&dir).unwrap().unlink(b"+share").unwrap();
    assert_eq!(client.told(&root), []);
    // A directory that cannot be listed.
    let plan = FaultPlan::new();
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let vault =
        Vault::open(FaultStore::wrap(root.clone(), plan.clone()), &vaults::owner(), read_only)
            .unwrap();
    let when = When::From(plan.count(Calls::Of(Call::List)) + 1);
    plan.add(Fault { calls: Calls::Of(Call::List), when, errno: libc::EIO, short: false });
    let told = vault
        .survey(
            &client.path(),
            &SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() },
        )
        .unwrap();
    assert_eq!(
        told.iter().map(|n| (&n.plain[..], &n.kind)).collect::<Vec<_>>(),
        [(&b""[..], &NoticeKind::NotCompared { elsewhere: false })]
    );
    assert_eq!(client.told(&root), [], "nothing was forgotten meanwhile");
}

/// A file that the storage host had cut to nothing counted as residue of a crash, which a repair
/// removes without a question. Here this client has seen its contents, which were durable then: no
/// crash has emptied it. After an interrupted session nothing tells the two apart, because the
/// session may have truncated the file.
#[test]
fn a_file_that_was_seen_whole_is_not_emptied_by_a_crash() {
    let (store, client) = fresh();
    let root = store.root();
    let (letter, dir) = (cipher(&root, b"letter"), cipher(&root, b"dir"));
    let inside = cipher(&root, b"dir/inside");
    let inside = &inside[dir.len() + 1..];
    let zeros = vec![0; bytes(&root.open_dir(&dir).unwrap(), inside).len()];
    set(&root, &letter, b"");
    set(&root.open_dir(&dir).unwrap(), inside, &zeros);
    let is_residue = |client: &Client| {
        let mut found = client.recalled(&root);
        found.sort_by(|a, b| a.plain.cmp(&b.plain));
        assert_eq!(
            found.iter().map(|fault| &fault.plain[..]).collect::<Vec<_>>(),
            [&b"dir/inside"[..], b"letter"]
        );
        found.iter().map(|fault| fault.residue).collect::<Vec<_>>()
    };
    assert_eq!(is_residue(&client), [false, false]);
    assert_eq!(is_residue(&Client::new()), [true, true], "another machine has seen nothing");

    // A session that is interrupted: its mark stays in the database.
    let vault = vaults::open(root.clone()).unwrap();
    vault.remember(&client.path(), false).unwrap();
    assert_eq!(is_residue(&client), [false, false], "while the session runs");
    let database = std::fs::read(client.path()).unwrap();
    vault.close().unwrap();
    std::fs::write(client.path(), database).unwrap();
    assert_eq!(is_residue(&client), [true, true]);
    // Also for the session that finds the mark, and until the vault was compared.
    let vault = vaults::open(root.clone()).unwrap();
    vault.remember(&client.path(), false).unwrap();
    let mut report = vault.check(b"", &mut |_| {}).unwrap();
    vault.recall(&mut report, &|_| Some(client.path())).unwrap();
    assert!(report.faults.iter().all(|fault| fault.residue), "{report:?}");
    vault.close().unwrap();
    assert_eq!(is_residue(&client), [true, true]);
}

/// The remembered state of a directory was forgotten when it was renamed, until the next
/// comparison. What the storage took from it in between, or together with a rename by another
/// machine, was not missed.
#[test]
fn what_is_remembered_follows_a_renamed_directory() {
    for by_us in [true, false] {
        let (store, client) = fresh();
        let root = store.root();
        client.session(&root, |v| put(v, b"dir/second", b"bytes").unwrap());
        let other = Client::new();
        let who = if by_us { &client } else { &other };
        who.session(&root, |v| rename(v, b"dir", b"moved", RenameMode::Replace).unwrap());
        let inside = cipher(&root, b"moved/inside");
        root.open_dir(vaults::split(&inside).0).unwrap().unlink(last(&inside)).unwrap();
        for _ in 0..2 {
            assert_eq!(
                client.told(&root),
                [("moved/inside".to_owned(), NoticeKind::Gone { elsewhere: false })],
                "by us: {by_us}"
            );
        }
        accept_all(&client, &root);
    }
}

/// A file that was made in a directory shortly before the directory was renamed, so that neither was
/// recorded yet, was recorded under the tag that the directory had before. No comparison looked there,
/// and the storage could remove the file without an alarm.
#[test]
fn what_was_made_before_a_rename_is_remembered() {
    let chain: [&[(&str, &str)]; 3] = [
        &[("dir", "moved")],
        &[("dir", "moved"), ("moved", "again")],
        &[("dir", "moved"), ("moved", "dir")],
    ];
    for renames in chain {
        for name in ["new", "below/new"] {
            let (store, client) = fresh();
            let root = store.root();
            client.session(&root, |v| {
                mkdir(v, b"dir/below").unwrap();
                put(v, format!("dir/{name}").as_bytes(), b"bytes").unwrap();
                for (from, to) in renames {
                    rename(v, from.as_bytes(), to.as_bytes(), RenameMode::Replace).unwrap();
                }
            });
            let path = format!("{}/{name}", renames.last().unwrap().1);
            let stored = cipher(&root, path.as_bytes());
            let above = vaults::split(&stored).0.split(|b| *b == b'/');
            let dir = above.fold(root.clone(), |dir, name| dir.open_dir(name).unwrap());
            dir.unlink(last(&stored)).unwrap();
            assert_eq!(client.told(&root), [(path, NoticeKind::Gone { elsewhere: false })]);
        }
    }
}

/// As above, for directories that exchanged their names.
#[test]
fn what_was_made_before_an_exchange_is_remembered() {
    let (store, client) = fresh();
    let root = store.root();
    client.session(&root, |v| {
        mkdir(v, b"second").unwrap();
        put(v, b"second/of it", b"bytes").unwrap();
        put(v, b"dir/of dir", b"bytes").unwrap();
        rename(v, b"dir", b"second", RenameMode::Exchange).unwrap();
    });
    for path in ["dir/of it", "second/of dir"] {
        let stored = cipher(&root, path.as_bytes());
        root.open_dir(vaults::split(&stored).0).unwrap().unlink(last(&stored)).unwrap();
        let gone = NoticeKind::Gone { elsewhere: false };
        assert_eq!(client.told(&root), [(path.to_owned(), gone)]);
        accept_all(&client, &root);
    }
}

/// A file was removed or renamed shortly before or after its directory was renamed. The records of
/// the directory moved along and still had the file.
#[test]
fn what_was_removed_around_a_rename_is_not_missed() {
    for round in 0..4 {
        let (store, client) = fresh();
        let root = store.root();
        client.session(&root, |v| {
            put(v, b"dir/stays", b"bytes").unwrap();
            mkdir(v, b"dir/below").unwrap();
            put(v, b"dir/below/file", b"bytes").unwrap();
        });
        assert_eq!(client.told(&root), []);
        let act = |v: &Vault, dir: &str| {
            let inside = format!("{dir}/inside");
            match round {
                0 => vaults::at(v, dir.as_bytes(), |node| v.unlink(node, b"inside")).unwrap(),
                1 => rename(v, inside.as_bytes(), b"out", RenameMode::Replace).unwrap(),
                _ => {
                    let below = format!("{dir}/below");
                    vaults::at(v, below.as_bytes(), |node| v.unlink(node, b"file")).unwrap();
                    vaults::at(v, dir.as_bytes(), |node| v.rmdir(node, b"below")).unwrap();
                }
            }
        };
        client.session(&root, |v| {
            if round % 2 == 0 {
                act(v, "dir");
                rename(v, b"dir", b"moved", RenameMode::Replace).unwrap();
            } else {
                rename(v, b"dir", b"moved", RenameMode::Replace).unwrap();
                act(v, "moved");
            }
        });
        assert_eq!(client.told(&root), [], "round {round}");
    }
}

/// Another machine renamed files in a row, as log rotation does: each took the name of the next.
/// That was reported as an exchange.
#[test]
fn files_that_are_renamed_in_a_row_are_no_exchange() {
    let (store, client) = fresh();
    let root = store.root();
    Client::new().session(&root, |v| {
        rename(v, b"third", b"oldest", RenameMode::Replace).unwrap();
        rename(v, b"other", b"third", RenameMode::Replace).unwrap();
        rename(v, b"letter", b"other", RenameMode::Replace).unwrap();
        put(v, b"letter", b"a new one").unwrap();
    });
    assert_eq!(client.told(&root), []);
}

/// The storage put a copy of one file in the place of another, which was then gone, and nothing was
/// reported.
#[test]
fn a_file_that_a_copy_of_another_replaces_is_gone() {
    let (store, client) = fresh();
    let root = store.root();
    let (letter, other) = (cipher(&root, b"letter"), cipher(&root, b"other"));
    let before = bytes(&root, &other);
    set(&root, &other, &bytes(&root, &letter));
    assert_eq!(client.told(&root), [("other".to_owned(), NoticeKind::Gone { elsewhere: false })]);
    set(&root, &other, &before);
    assert_eq!(client.told(&root), []);
    root.unlink(&other).unwrap();
    root.mknod(&other, Kind::Fifo, 0o600, 0).unwrap();
    assert_eq!(client.told(&root), [("other".to_owned(), NoticeKind::Gone { elsewhere: false })]);
}

/// A database of another version of the program is put aside, and a new one is begun.
#[test]
fn a_database_of_another_version_is_put_aside() {
    let (store, client) = fresh();
    let root = store.root();
    std::fs::remove_file(client.path()).unwrap();
    {
        let db = redb::Database::create(client.path()).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("entries"))
            .unwrap()
            .insert(&[7; 48][..], &[1, 2, 3][..])
            .unwrap();
        tx.commit().unwrap();
    }
    assert_eq!(client.told(&root), []);
    assert!(client.path().with_extension("unreadable").exists());
    root.unlink(&cipher(&root, b"letter")).unwrap();
    assert_eq!(client.told(&root), [("letter".to_owned(), NoticeKind::Gone { elsewhere: false })]);
}

/// All states that a file of the vault has had, by plain path: its ciphertext after each session.
type Past = BTreeMap<String, Vec<Vec<u8>>>;

/// Returns where a plain path is stored, whether or not it exists now.
fn place(
    store: &Arc<dyn Dir>,
    stored: &BTreeMap<String, Vec<u8>>,
    path: &str,
) -> (Arc<dyn Dir>, Vec<u8>) {
    let (dir, name) = vaults::split(&stored[path]);
    (if dir.is_empty() { store.clone() } else { store.open_dir(dir).unwrap() }, name.to_vec())
}

/// A storage host that rolls back, exchanges, removes, restores, duplicates and damages at random,
/// compared with a model of the expected reports. Once the store is restored, nothing is reported;
/// and what is accepted is not reported again.
#[test]
fn what_a_hostile_host_does_at_random_is_reported() {
    for seed in 0..60 {
        let random = Seeded::new(seed);
        let store = MemStore::new();
        vaults::create_by_seed(&store.root(), seed);
        let (root, client) = (store.root(), Client::new());
        // A file that is truncated and written anew has another id: its former id counts as
        // replaced by the new one.
        let is_saved_anew = |name: &str| name.ends_with(['3', '7']);
        let stale = |name: &str| if is_saved_anew(name) { "put back" } else { "older" };
        let mut names: Vec<String> =
            (0..10).map(|n| format!("{}{n}", ["", "d/", "e/"][n % 3])).collect();
        let (mut past, mut stored) = (Past::new(), BTreeMap::new());
        for round in 0..3 {
            client.session(&root, |v| {
                if round == 0 {
                    mkdir(v, b"d").unwrap();
                    mkdir(v, b"e").unwrap();
                }
                for name in &names {
                    let text = pattern(random.next(), random.below(9000) as usize + 1);
                    if round == 0 || is_saved_anew(name) {
                        put(v, name.as_bytes(), &text).unwrap();
                    } else {
                        write_at(v, name.as_bytes(), random.below(9000), &text).unwrap();
                    }
                }
            });
            for name in &names {
                stored.insert(name.clone(), cipher(&root, name.as_bytes()));
                let (dir, file) = place(&root, &stored, name);
                past.entry(name.clone()).or_default().push(bytes(&dir, &file));
            }
            if random.below(2) == 0 {
                assert_eq!(client.told(&root), []);
            }
        }
        let shuffle = |names: &mut Vec<String>| {
            (1..names.len()).rev().for_each(|i| names.swap(i, random.below(i as u64 + 1) as usize))
        };
        shuffle(&mut names);
        // This client removes three of them.
        let removed: Vec<String> = names.drain(..3).collect();
        client.session(&root, |v| {
            for name in &removed {
                let (dir, file) = vaults::split(name.as_bytes());
                vaults::at(v, dir, |node| v.unlink(node, file)).unwrap();
            }
        });
        assert_eq!(client.told(&root), [], "seed {seed}");
        let honest = store.snapshot();

        let mut expected: BTreeMap<String, &str> = BTreeMap::new();
        let mut story = Vec::new();
        let write = |name: &str, suffix: &str, bytes: &[u8]| {
            let (dir, file) = place(&root, &stored, name);
            set(&dir, &[&file[..], suffix.as_bytes()].concat(), bytes);
        };
        let unlink = |name: &str| {
            let (dir, file) = place(&root, &stored, name);
            dir.unlink(&file).unwrap();
        };
        let newest = |name: &str| past[name][2].clone();
        let mut spare = removed.clone();
        for _ in 0..1 + random.below(3) {
            let (Some(a), Some(b)) = (names.pop(), names.pop()) else { break };
            let old = past[&a][random.below(2) as usize].clone();
            let copy = format!("{a} (1)");
            let act = random.below(11);
            story.push((act, a.clone(), b.clone()));
            match act {
                0 => {
                    write(&a, "", &old);
                    expected.insert(a.clone(), stale(&a));
                }
                1 => {
                    write(&a, "", &old);
                    write(&a, " (1)", &newest(&a));
                    expected.insert(a.clone(), stale(&a));
                }
                2 => {
                    write(&a, "", &newest(&b));
                    write(&b, "", &newest(&a));
                    expected.extend([(a, "exchanged"), (b, "exchanged")]);
                }
                3 => {
                    // The file in the place of the first also exists in an older version.
                    write(&a, "", &newest(&b));
                    write(&b, "", &old);
                    if is_saved_anew(&a) {
                        // The old one was replaced under another name.
                        expected.extend([(a, "gone"), (b, "a note")]);
                    } else {
                        expected.extend([(a, "exchanged"), (b, "older")]);
                    }
                }
                4 => {
                    unlink(&a);
                    expected.insert(a, "gone");
                }
                5 => {
                    // This looks like a rename.
                    unlink(&a);
                    write(&a, " (1)", &newest(&a));
                }
                6 => {
                    unlink(&a);
                    write(&a, " (1)", &old);
                    expected.extend([(copy, stale(&a)), (a, "gone")]);
                }
                7 => write(&a, " (1)", &newest(&a)),
                8 => {
                    write(&a, "", &newest(&b));
                    expected.insert(a, "gone");
                }
                9 => {
                    write(&a, "", b"spoilt");
                    expected.insert(a, "not compared");
                }
                _ => {
                    let Some(back) = spare.pop() else { continue };
                    let bytes = past[&back][random.below(3) as usize].clone();
                    match random.below(3) {
                        0 => {
                            write(&back, "", &bytes);
                            expected.insert(back, "put back");
                        }
                        1 => {
                            write(&back, " (2)", &bytes);
                            expected.insert(format!("{back} (2)"), "put back");
                        }
                        // Over another file, which is then gone.
                        _ => {
                            write(&a, "", &bytes);
                            expected.insert(
                                a,
                                if bytes == past[&back][2] || is_saved_anew(&back) {
                                    "gone"
                                } else {
                                    "older"
                                },
                            );
                        }
                    }
                }
            }
        }
        let told = client.told(&root);
        let kinds: BTreeMap<String, &str> = told
            .iter()
            .map(|(path, kind)| {
                let kind = match kind {
                    NoticeKind::Older { .. } => "older",
                    NoticeKind::PutBack { elsewhere: false } => "put back",
                    NoticeKind::PutBack { elsewhere: true } => "a note",
                    NoticeKind::Exchanged { elsewhere: false } => "exchanged",
                    NoticeKind::Exchanged { elsewhere: true } => "a note",
                    NoticeKind::Gone { elsewhere: false } => "gone",
                    NoticeKind::Gone { elsewhere: true } => "a note",
                    NoticeKind::NotCompared { .. } => "not compared",
                    NoticeKind::Conflict { .. } => "a conflict",
                };
                (path.clone(), kind)
            })
            .collect();
        assert_eq!(kinds, expected, "seed {seed}: {story:?}");
        assert_eq!(client.told(&root), told, "seed {seed}: the findings stay");
        if random.below(2) == 0 {
            assert_eq!(
                client.told(&honest.root()),
                [],
                "seed {seed}: {story:?}: the store is unchanged"
            );
            assert_eq!(client.told(&root), told, "seed {seed}: {story:?}: once more");
        }
        accept_all(&client, &root);
    }
}

/// A machine with its own copy of the store.
struct Machine {
    store: MemStore,
    client: Client,
}

impl Machine {
    fn files(&self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        let mut all = Vec::new();
        objects(&self.store.root(), b"", &mut all);
        all.into_iter().collect()
    }

    /// Makes an object of the store equal to `contents`: a directory, a file, or nothing.
    fn deliver(&self, path: &[u8], contents: Option<&Option<Vec<u8>>>) {
        let (dir, name) = vaults::split(path);
        let root = self.store.root();
        let dir = dir
            .split(|b| *b == b'/')
            .filter(|name| !name.is_empty())
            .try_fold(root, |dir, name| dir.open_dir(name));
        match (dir, contents) {
            (Ok(dir), Some(None)) => drop(dir.mkdir(name, 0o755)),
            (Ok(dir), Some(Some(bytes))) => set(&dir, name, bytes),
            (Ok(dir), None) => drop(dir.unlink(name).or_else(|_| dir.rmdir(name))),
            (Err(_), None) => {}
            (Err(e), _) => panic!("{}: {e}", path.escape_ascii()),
        }
    }
}

/// Performs an action of a program on one of several machines.
fn act_on_a_machine(vault: &Vault, random: &Seeded, fresh: &str) {
    let names: Vec<Vec<u8>> = vaults::tree(vault)
        .unwrap()
        .into_iter()
        .filter(|(_, item)| matches!(item, vaults::Item::File { .. }))
        .map(|(n, _)| n)
        .collect();
    if names.is_empty() {
        return;
    }
    let pick = || names[random.below(names.len() as u64) as usize].clone();
    let (a, b) = (pick(), pick());
    let saved = [vaults::split(&a).0, b"/", fresh.as_bytes()].concat();
    let saved = saved.strip_prefix(b"/").unwrap_or(&saved).to_vec();
    let _ = match random.below(7) {
        0 | 1 => write_at(vault, &a, random.below(100), b"some bytes"),
        2 => put(vault, &saved, &pattern(random.next(), random.below(9000) as usize)),
        3 => put(vault, &saved, b"saved")
            .and_then(|()| rename(vault, &saved, &a, RenameMode::Replace)),
        4 => rename(vault, &a, &saved, RenameMode::Replace),
        5 => rename(vault, &a, &b, RenameMode::Replace),
        _ => vaults::at(vault, vaults::split(&a).0, |node| vault.unlink(node, last(&a))),
    };
}

/// Two machines work on their own copies, and after each round a sync tool brings both to one
/// state: what one machine changed, created or removed. If both changed a file, one version wins and
/// the other becomes a copy beside it. None of this is an alarm, except a conflict that this
/// machine's version lost: the name then shows an older version, and only the user can judge that.
#[test]
fn what_a_sync_tool_makes_of_honest_work_is_no_alarm() {
    for seed in 0..8 {
        let random = Seeded::new(seed);
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let machine = |store: &MemStore| Machine { store: store.snapshot(), client: Client::new() };
        Client::new().session(&store.root(), |v| {
            ["d0", "d1", "d2"].iter().for_each(|dir| mkdir(v, dir.as_bytes()).unwrap());
            (0..9).for_each(|n| {
                put(v, format!("{}{n}", ["", "d0/", "d1/", "d2/"][n % 4]).as_bytes(), b"bytes")
                    .unwrap()
            });
        });
        let machines = [machine(&store), machine(&store)];
        for machine in &machines {
            assert_eq!(machine.client.told(&machine.store.root()), []);
        }
        for round in 0..6 {
            let base = machines[0].files();
            for (number, machine) in machines.iter().enumerate() {
                machine.client.session(&machine.store.root(), |v| {
                    for step in 0..random.below(4) {
                        act_on_a_machine(v, &random, &format!("fresh {number} {round} {step}"));
                    }
                    // In every other round the second machine renames a directory in which the
                    // first one may work.
                    if number == 1 && round % 2 == 1 {
                        let _ = rename(
                            v,
                            format!("d{}", round / 2).as_bytes(),
                            format!("renamed {round}").as_bytes(),
                            RenameMode::Replace,
                        );
                    }
                    put(v, format!("news {number} {round}").as_bytes(), b"news").unwrap();
                });
            }
            let states = machines.each_ref().map(Machine::files);
            let mut paths: Vec<&Vec<u8>> =
                states.iter().flat_map(|state| state.keys()).chain(base.keys()).collect();
            paths.sort();
            paths.dedup();
            let mut conflicts = 0;
            // Directories come before their contents, and are removed after them.
            let (mut made, mut removed) = (Vec::new(), Vec::new());
            for path in paths {
                let [one, two] = states.each_ref().map(|state| state.get(path));
                let was = base.get(path);
                let kept = match (one != was, two != was) {
                    (_, false) => one,
                    (false, true) => two,
                    _ if one == two => one,
                    // A changed file is kept if the other machine removed it.
                    _ if one.is_none() || two.is_none() => one.or(two),
                    _ => {
                        conflicts += 1;
                        let (kept, lost) =
                            if random.below(2) == 0 { (one, two) } else { (two, one) };
                        made.push((
                            [path, &format!(".sync-conflict-{round}").into_bytes()[..]].concat(),
                            lost.unwrap().clone(),
                        ));
                        kept
                    }
                };
                match kept {
                    Some(kept) => made.push((path.clone(), kept.clone())),
                    None => removed.push(path.clone()),
                }
            }
            // A directory that one machine renamed stays for the files that the other one changed
            // in it.
            let parents = |path: &[u8]| {
                path.iter()
                    .enumerate()
                    .filter(|(_, b)| **b == b'/')
                    .map(|(at, _)| path[..at].to_vec())
                    .collect::<Vec<_>>()
            };
            let needed: Vec<Vec<u8>> = made.iter().flat_map(|(path, _)| parents(path)).collect();
            made.extend(
                removed.extract_if(.., |path| needed.contains(path)).map(|path| (path, None)),
            );
            made.sort();
            for machine in &machines {
                removed.iter().rev().for_each(|path| machine.deliver(path, None));
                made.iter().for_each(|(path, contents)| machine.deliver(path, Some(contents)));
            }
            for machine in &machines {
                let told = machine.client.told(&machine.store.root());
                let (backwards, others): (Vec<_>, Vec<_>) = alarms(told.clone())
                    .into_iter()
                    .partition(|(_, kind)| matches!(kind, NoticeKind::Older { .. }));
                assert!(
                    backwards.len() <= conflicts && others.is_empty(),
                    "seed {seed}, round {round}, {conflicts} conflicts: {told:?}"
                );
                // The user accepts files that were put back, older versions, and half of the rest.
                let accepts = |path: &str, kind: &NoticeKind| match kind {
                    NoticeKind::PutBack { .. } | NoticeKind::Older { .. } => {
                        Some(path.as_bytes().to_vec())
                    }
                    _ => (random.below(2) == 0).then(|| path.as_bytes().to_vec()),
                };
                let accept = told.iter().filter_map(|(path, kind)| accepts(path, kind)).collect();
                machine.client.survey(
                    &machine.store.root(),
                    &SurveyOptions { accept, ..SurveyOptions::default() },
                );
            }
        }
    }
}

/// A vault that two machines write, which is marked as synced if `marked`: this machine has seen
/// something of the other one, and knows all there is now.
fn of_two_machines(marked: bool) -> (MemStore, Client, Client) {
    let (store, client) = fresh();
    let (root, other) = (store.root(), Client::new());
    if marked {
        Vault::set_synced(&root).unwrap();
    }
    other.session(&root, |v| put(v, b"theirs", b"from another machine").unwrap());
    for _ in 0..2 {
        assert_eq!(client.told(&root), []);
    }
    (store, client, other)
}

fn remove(vault: &Vault, name: &[u8]) {
    vaults::at(vault, b"", |dir| vault.unlink(dir, name)).unwrap();
}

/// Another machine removed a file and did nothing else. In a folder that several machines keep equal
/// that is everyday work, and it was an alarm. The mark alone, which the storage host can set, does
/// not make a vault one that several machines write.
#[test]
fn a_removal_by_another_machine_of_a_synced_vault_is_a_note() {
    let gone = |elsewhere| [("third".to_owned(), NoticeKind::Gone { elsewhere })];
    for marked in [false, true] {
        let (store, client, other) = of_two_machines(marked);
        other.session(&store.root(), |v| remove(v, b"third"));
        for _ in 0..2 {
            assert_eq!(client.told(&store.root()), gone(marked), "marked: {marked}");
        }
    }
    let (store, client) = fresh();
    Vault::set_synced(&store.root()).unwrap();
    Client::new().session(&store.root(), |v| remove(v, b"third"));
    assert_eq!(client.told(&store.root()), gone(false), "only this machine has ever written");
}

/// In the first comparison every file is new. That is no sign of another machine.
#[test]
fn what_the_first_comparison_finds_is_no_news() {
    let (store, _) = fresh();
    let (root, client) = (store.root(), Client::new());
    assert_eq!(client.told(&root), []);
    Vault::set_synced(&root).unwrap();
    Client::new().session(&root, |v| remove(v, b"third"));
    let gone = NoticeKind::Gone { elsewhere: false };
    assert_eq!(client.told(&root), [("third".to_owned(), gone)]);
}

/// Another machine exchanged two names, at once or by three renames. In a folder that several machines
/// keep equal that is everyday work, and it was an alarm. It stays one where only the storage host can
/// have done it, as far as this machine knows.
#[test]
fn names_that_another_machine_exchanged_are_a_note() {
    let exchanged = |elsewhere| {
        ["letter", "other"].map(|name| (name.to_owned(), NoticeKind::Exchanged { elsewhere }))
    };
    for (marked, at_once) in [(false, true), (false, false), (true, true), (true, false)] {
        let (store, client, other) = of_two_machines(marked);
        other.session(&store.root(), |v| {
            if at_once {
                rename(v, b"letter", b"other", RenameMode::Exchange).unwrap();
            } else {
                for (from, to) in [("letter", "t"), ("other", "letter"), ("t", "other")] {
                    let (from, to) = (from.as_bytes(), to.as_bytes());
                    rename(v, from, to, RenameMode::NoReplace).unwrap();
                }
            }
        });
        for _ in 0..2 {
            assert_eq!(client.told(&store.root()), exchanged(marked), "marked: {marked}");
        }
    }
    let (store, client) = fresh();
    let root = store.root();
    Vault::set_synced(&root).unwrap();
    let (letter, other) = (cipher(&root, b"letter"), cipher(&root, b"other"));
    root.rename(&letter, &*root, &other, RenameMode::Exchange).unwrap();
    assert_eq!(client.told(&root), exchanged(false), "only this machine has ever written");
}

/// What is learnt during a mount shows the work of other machines, too. In a directory in which
/// this machine had written, files of another machine were taken for its own.
#[test]
fn what_is_new_beside_ones_own_work_shows_another_machine() {
    let (store, client) = fresh();
    let root = store.root();
    Vault::set_synced(&root).unwrap();
    let apart = store.snapshot().root();
    Client::new().session(&apart, |v| put(v, b"theirs", b"from another machine").unwrap());
    let theirs = cipher(&apart, b"theirs");
    client.session(&root, |v| {
        put(v, b"ours", b"here").unwrap();
        set(&root, &theirs, &bytes(&apart, &theirs));
        write_at(v, b"letter", 0, b"here too").unwrap();
    });
    Client::new().session(&root, |v| remove(v, b"third"));
    assert_eq!(client.told(&root), [("third".to_owned(), NoticeKind::Gone { elsewhere: true })]);
}

/// Two machines changed a file apart. This one's version had the higher number, and the server of
/// the sync tool gave the name to the other one. That was an alarm, although this machine's version
/// was beside it as a conflict copy.
#[test]
fn a_name_lost_in_a_conflict_is_a_note_in_a_synced_vault() {
    for marked in [false, true] {
        let (store, client, other) = of_two_machines(marked);
        let (root, apart) = (store.root(), store.snapshot().root());
        let letter = cipher(&root, b"letter");
        let first = bytes(&root, &letter);
        other.session(&apart, |v| write_at(v, b"letter", 0, b"once").unwrap());
        client.session(&root, |v| {
            (0..5).for_each(|n| write_at(v, b"letter", n, b"often").unwrap());
        });
        let ours = bytes(&root, &letter);
        let copy = [&letter[..], b" (conflicted copy 2026-01-01 000000)"].concat();
        // Without the copy beside it, and with the copy elsewhere, it is an alarm.
        set(&root, &letter, &bytes(&apart, &letter));
        assert!(older(&client.told(&root), "letter"));
        let dir = cipher(&root, b"dir");
        set(&root.open_dir(&dir).unwrap(), &copy, &ours);
        assert!(client.told(&root).iter().any(|(_, kind)| kind.is_alarm()));
        root.open_dir(&dir).unwrap().unlink(&copy).unwrap();
        // Beside a copy of another older version, it is one too.
        set(&root, &copy, &first);
        let told = client.told(&root);
        assert!(told.iter().any(|told| older(std::slice::from_ref(told), "letter")), "{told:?}");
        set(&root, &copy, &ours);
        let told = client.told(&root);
        if !marked {
            assert!(older(&told, "letter"), "{told:?}");
            continue;
        }
        let is_conflict = |told: &[(String, NoticeKind)]| {
            told.iter().any(|(path, kind)| {
                path == "letter" && matches!(kind, NoticeKind::Conflict { was, now } if was > now)
            })
        };
        assert!(is_conflict(&told), "{told:?}");
        // Somebody looks at both and removes the copy.
        other.session(&root, |v| remove(v, b"letter (conflicted copy 2026-01-01 000000)"));
        let told = client.told(&root);
        assert!(is_conflict(&told) && alarms(told.clone()).is_empty(), "{told:?}");
        // A third version under the name is none of the two.
        set(&root, &letter, &first);
        assert!(older(&alarms(client.told(&root)), "letter"));
        accept_all(&client, &root);
    }
}

/// The storage host left the newest version of a file as a conflict copy, put the old one under its
/// name, and marked the vault as synced. In a vault that was marked from the beginning nothing tells
/// that from the first conflict with another machine, and it is a note.
#[test]
fn a_mark_that_the_host_sets_later_hides_no_older_version() {
    for marked in [false, true] {
        let store = MemStore::new();
        let root = store.root();
        vaults::create(&root, Suite::Aes256Gcm, 12);
        if marked {
            Vault::set_synced(&root).unwrap();
        }
        let client = Client::new();
        client.session(&root, |v| put(v, b"letter", b"once").unwrap());
        assert_eq!(client.told(&root), []);
        let letter = cipher(&root, b"letter");
        let old = bytes(&root, &letter);
        client.session(&root, |v| write_at(v, b"letter", 0, b"often").unwrap());
        assert_eq!(client.told(&root), []);
        let newest = bytes(&root, &letter);
        assert_eq!(Vault::set_synced(&root).unwrap(), !marked);
        set(&root, &letter, &old);
        set(&root, &[&letter[..], b" (1)"].concat(), &newest);
        let told = client.told(&root);
        assert_eq!(older(&told, "letter"), !marked, "{told:?}");
        assert_eq!(alarms(told.clone()).is_empty(), marked, "{told:?}");
    }
}

/// One machine removed a file of which another one had changed the time alone. A sync tool keeps it
/// then, and the file that came back with no newer version was an alarm. An older one still is.
#[test]
fn a_removed_file_that_comes_back_to_a_synced_vault_is_a_note() {
    for marked in [false, true] {
        let (store, client, _) = of_two_machines(marked);
        let root = store.root();
        let letter = cipher(&root, b"letter");
        let before = bytes(&root, &letter);
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        let newest = bytes(&root, &letter);
        client.session(&root, |v| remove(v, b"letter"));
        set(&root, &letter, &newest);
        let back = [("letter".to_owned(), NoticeKind::PutBack { elsewhere: marked })];
        assert_eq!(client.told(&root), back, "marked: {marked}");
        set(&root, &letter, &before);
        let told = alarms(client.told(&root));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(!marked || older(&told, "letter"), "{told:?}");
    }
}

/// One machine wrote a later version of a file, and replaced the file with a new one, while another
/// machine renamed the version that it had. What then arrived under the other name was an alarm.
#[test]
fn an_older_version_renamed_elsewhere_is_a_note() {
    for marked in [false, true] {
        let (store, client, _) = of_two_machines(marked);
        let root = store.root();
        let before = bytes(&root, &cipher(&root, b"letter"));
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        client.session(&root, |v| {
            remove(v, b"letter");
            put(v, b"letter", b"a new file").unwrap();
            put(v, b"renamed", b"for its stored name").unwrap();
        });
        let renamed = cipher(&root, b"renamed");
        client.session(&root, |v| remove(v, b"renamed"));
        set(&root, &renamed, &before);
        let told = client.told(&root);
        match marked {
            true => {
                let back = NoticeKind::PutBack { elsewhere: true };
                assert_eq!(told, [("renamed".to_owned(), back)]);
            }
            false => assert!(older(&told, "renamed"), "{told:?}"),
        }
    }
}

/// One machine renamed the version of a file that it had, while another one saved the file anew, by a
/// rename over a later version. What then arrived under the other name was an alarm. It stays one if
/// the later version was replaced by a file that this client knew.
#[test]
fn an_older_version_of_a_replaced_file_is_a_note() {
    for (marked, saved) in [(false, true), (true, true), (true, false)] {
        let (store, client, other) = of_two_machines(marked);
        let root = store.root();
        let letter = cipher(&root, b"letter");
        let apart = store.snapshot().root();
        other.session(&apart, |v| rename(v, b"letter", b"aside", RenameMode::Replace).unwrap());
        let aside = cipher(&apart, b"aside");
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        assert_eq!(client.told(&root), []);
        if saved {
            Client::new().session(&root, |v| {
                put(v, b"new", b"saved").unwrap();
                rename(v, b"new", b"letter", RenameMode::Replace).unwrap();
            });
        } else {
            let third = cipher(&root, b"third");
            set(&root, &letter, &bytes(&root, &third));
        }
        set(&root, &aside, &bytes(&apart, &aside));
        for _ in 0..2 {
            let told = client.told(&root);
            match marked && saved {
                true => {
                    let back = NoticeKind::PutBack { elsewhere: true };
                    assert_eq!(told, [("aside".to_owned(), back)]);
                }
                false => assert!(
                    told.iter().any(|(path, kind)| {
                        path == "aside" && matches!(kind, NoticeKind::Older { .. })
                    }),
                    "{told:?}"
                ),
            }
        }
    }
}

/// This client wrote a file twice and then put another one in its place, while another machine wrote
/// the version that it had. The tool gave the name back to that version, or made a conflict copy of it:
/// an alarm for an older version, although both files are visible. It stays one if the file that is now
/// in its place is not beside it, or if this client did not put it there.
#[test]
fn an_older_version_of_a_file_replaced_here_is_a_note() {
    for (marked, here, act) in [
        (true, true, 0),
        (true, true, 1),
        (true, true, 2),
        (true, false, 0),
        (true, false, 1),
        (false, true, 0),
    ] {
        let (store, client, other) = of_two_machines(marked);
        let (root, apart) = (store.root(), store.snapshot().root());
        let letter = cipher(&root, b"letter");
        other.session(&apart, |v| write_at(v, b"letter", 0, b"once").unwrap());
        for n in 0..2 {
            client.session(&root, |v| write_at(v, b"letter", n, b"newer").unwrap());
        }
        let replace = |v: &Vault| match act {
            0 => rename(v, b"third", b"letter", RenameMode::Replace).unwrap(),
            1 => {
                put(v, b"new", b"saved").unwrap();
                rename(v, b"new", b"letter", RenameMode::Replace).unwrap();
            }
            _ => put(v, b"letter", b"truncated and saved").unwrap(),
        };
        match here {
            true => client.session(&root, replace),
            false => Client::new().session(&root, replace),
        }
        client.told(&root);
        let (ours, theirs) = (bytes(&root, &letter), bytes(&apart, &letter));
        let copy = [&letter[..], b" (conflicted copy 2026-01-01 000000)"].concat();
        let shown = "letter (conflicted copy 2026-01-01 000000)";
        let is_note = |told: &[(String, NoticeKind)], at: &str| {
            alarms(told.to_vec()).is_empty()
                && told.iter().any(|(path, kind)| {
                    path == at && matches!(kind, NoticeKind::Conflict { was, now } if was > now)
                })
        };
        // The other machine's version is a conflict copy of the name.
        set(&root, &copy, &theirs);
        let told = client.told(&root);
        assert_eq!(is_note(&told, shown), marked && here, "{act}: {told:?}");
        root.unlink(&copy).unwrap();
        // It has the name, and the file that replaced it is nowhere, or in another directory.
        set(&root, &letter, &theirs);
        let is_alarm = |told| alarms(told).iter().any(|(path, _)| path == "letter");
        let told = client.told(&root);
        assert!(is_alarm(told.clone()), "{act}: nothing is beside it: {told:?}");
        let dir = root.open_dir(&cipher(&root, b"dir")).unwrap();
        set(&dir, &copy, &ours);
        assert!(is_alarm(client.told(&root)), "{act}: the other one is elsewhere");
        dir.unlink(&copy).unwrap();
        // The file that replaced it is a conflict copy of the name.
        set(&root, &copy, &ours);
        for _ in 0..2 {
            let told = client.told(&root);
            assert_eq!(is_note(&told, "letter"), marked && here, "{act}: {told:?}");
        }
        if marked && here {
            // Somebody looks at both and removes the copy.
            client.session(&root, |v| remove(v, shown.as_bytes()));
            let told = client.told(&root);
            assert!(is_note(&told, "letter"), "{act}: {told:?}");
        }
        accept_all(&client, &root);
    }
}

/// The same, if the tool was faster than the mount, which had not recorded the replacement: that was an
/// alarm in every case. The mount now notes which file it puts under a name. A host that puts the
/// version back that this client replaced was not noticed at all.
#[test]
fn a_replacement_is_known_before_it_is_recorded() {
    for (act, is_beside) in [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)] {
        let (store, client, other) = of_two_machines(true);
        let (root, apart) = (store.root(), store.snapshot().root());
        let letter = cipher(&root, b"letter");
        let copy = [&letter[..], b" (conflicted copy 2026-01-01 000000)"].concat();
        other.session(&apart, |v| write_at(v, b"letter", 0, b"once").unwrap());
        for n in 0..2 {
            client.session(&root, |v| write_at(v, b"letter", n, b"newer").unwrap());
        }
        client.session(&root, |v| {
            match act {
                0 => rename(v, b"third", b"letter", RenameMode::Replace).unwrap(),
                1 => {
                    put(v, b"new", b"saved").unwrap();
                    rename(v, b"new", b"letter", RenameMode::Replace).unwrap();
                }
                _ => put(v, b"letter", b"truncated and saved").unwrap(),
            }
            if is_beside {
                set(&root, &copy, &bytes(&root, &letter));
            }
            set(&root, &letter, &bytes(&apart, &letter));
        });
        for _ in 0..2 {
            let told = client.told(&root);
            let is_note = told.iter().any(|(path, kind)| {
                path == "letter" && matches!(kind, NoticeKind::Conflict { was, now } if was > now)
            });
            assert_eq!(is_note, is_beside, "{act}: {told:?}");
            assert_eq!(alarms(told.clone()).is_empty(), is_beside, "{act}: {told:?}");
        }
        accept_all(&client, &root);
        let before = bytes(&root, &letter);
        client.session(&root, |v| {
            rename(v, b"other", b"letter", RenameMode::Replace).unwrap();
            set(&root, &letter, &before);
        });
        let told = client.told(&root);
        // The file that this client put there is nowhere.
        let gone = ("letter".to_owned(), NoticeKind::Gone { elsewhere: true });
        assert!(told.contains(&gone), "{act}: {told:?}");
    }
}

/// The same, if this client then renamed the file that it had put there: an alarm, as nothing was known
/// at the name. It stays one if the host moved that file, or took it away.
#[test]
fn a_replacement_that_was_moved_on_is_known() {
    for (recorded, by_host, is_copy, is_kept) in [
        (true, false, true, true),
        (true, false, false, true),
        (false, false, true, true),
        (false, false, false, true),
        (true, false, true, false),
        (false, false, false, false),
        (true, true, true, true),
        (true, true, false, true),
    ] {
        let (store, client, other) = of_two_machines(true);
        let (root, apart) = (store.root(), store.snapshot().root());
        let letter = cipher(&root, b"letter");
        let copy = [&letter[..], b" (conflicted copy 2026-01-01 000000)"].concat();
        client.session(&root, |v| put(v, b"aside", b"for its stored name").unwrap());
        let aside = cipher(&root, b"aside");
        client.session(&root, |v| remove(v, b"aside"));
        other.session(&apart, |v| write_at(v, b"letter", 0, b"once").unwrap());
        for n in 0..2 {
            client.session(&root, |v| write_at(v, b"letter", n, b"newer").unwrap());
        }
        let replace = |v: &Vault| rename(v, b"third", b"letter", RenameMode::Replace).unwrap();
        let move_on = |v: &Vault| rename(v, b"letter", b"aside", RenameMode::Replace).unwrap();
        if recorded {
            client.session(&root, replace);
            match by_host {
                true => root.rename(&letter, &*root, &aside, RenameMode::Replace).unwrap(),
                false => client.session(&root, move_on),
            }
        } else {
            client.session(&root, |v| (replace(v), move_on(v)).0);
        }
        assert_eq!(alarms(client.told(&root)), []);
        if !is_kept {
            root.unlink(&aside).unwrap();
        }
        set(&root, if is_copy { &copy } else { &letter }, &bytes(&apart, &letter));
        for _ in 0..2 {
            let told = client.told(&root);
            let is_note = alarms(told.clone()).is_empty()
                && told.iter().any(|(_, kind)| matches!(kind, NoticeKind::Conflict { .. }));
            let case = (recorded, by_host, is_copy, is_kept);
            assert_eq!(is_note, is_kept && !by_host, "{case:?}: {told:?}");
        }
        accept_all(&client, &root);
    }
}

/// The same, if a program renames both files while the whole vault is compared at the start of a
/// mount, after the directory was listed. The comparison found the other file nowhere and recorded
/// it as removed, so nothing was known of the name that it had left: an alarm.
#[test]
fn a_replacement_moved_on_during_a_comparison_is_known() {
    (0..4).for_each(move_on_during_a_comparison);
}

/// Renames before the comparison opens its file number `nth` after it has listed the directory.
fn move_on_during_a_comparison(nth: u64) {
    let (store, client, other) = of_two_machines(true);
    let (root, apart) = (store.root(), store.snapshot().root());
    let stored = cipher(&root, b"other");
    other.session(&apart, |v| write_at(v, b"other", 0, b"once").unwrap());
    let inside = cipher(&root, b"dir/inside");
    let (above, name) = vaults::split(&inside);
    let dir = root.open_dir(above).unwrap();
    let before = bytes(&dir, name);
    client.session(&root, |v| write_at(v, b"dir/inside", 0, b"newer").unwrap());
    for n in 0..2 {
        client.session(&root, |v| write_at(v, b"other", n, b"newer").unwrap());
    }
    // An alarm that is due shows when the comparison has ended.
    set(&dir, name, &before);
    let now = SurveyOptions::default().now - 1000;
    client.survey(&root, &SurveyOptions { now, ..SurveyOptions::default() });

    let plan = FaultPlan::new();
    let (tell, told) = std::sync::mpsc::channel();
    let events = Events::new(move |event| tell.send(event).unwrap());
    let options = OpenOptions { events, ..OpenOptions::default() };
    let watched = FaultStore::wrap(root.clone(), plan.clone());
    let vault = Vault::open(watched, &vaults::owner(), options).unwrap();
    let opened = std::sync::atomic::AtomicU64::new(0);
    let (counted, lists) = (plan.clone(), plan.count(Calls::Of(Call::List)));
    let (listed, wait_for_list) = std::sync::mpsc::sync_channel(0);
    let (renamed, wait_for_renames) = std::sync::mpsc::sync_channel(0);
    let wait_for_renames = parking_lot::Mutex::new(wait_for_renames);
    plan.before(Call::OpenFile, move || {
        let is_listed = counted.count(Calls::Of(Call::List)) > lists;
        if is_listed && opened.fetch_add(1, std::sync::atomic::Ordering::AcqRel) == nth {
            listed.send(()).unwrap();
            wait_for_renames.lock().recv().unwrap();
        }
    });
    std::thread::scope(|scope| {
        let vault = &vault;
        scope.spawn(move || {
            wait_for_list.recv_timeout(Duration::from_secs(60)).unwrap();
            rename(vault, b"third", b"other", RenameMode::Replace).unwrap();
            rename(vault, b"other", b"letter", RenameMode::Replace).unwrap();
            renamed.send(()).unwrap();
        });
        vault.remember(&client.path(), true).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Event::RolledBack(1)));
    vault.close().unwrap();

    set(&root, &stored, &bytes(&apart, &stored));
    let told = client.told(&root);
    let is_note = |(path, kind): &_| path == "other" && matches!(kind, NoticeKind::Conflict { .. });
    assert!(told.iter().any(is_note), "{nth}: {told:?}");
}

/// The same, if this client writes on what has the name now. Without the other file beside it, it is an
/// alarm, which a second write turned into a note: the version was then as high as the one before.
#[test]
fn writing_on_after_a_replacement_here_is_a_note() {
    let (store, client, other) = of_two_machines(true);
    let (root, apart) = (store.root(), store.snapshot().root());
    let letter = cipher(&root, b"letter");
    other.session(&apart, |v| write_at(v, b"letter", 0, b"once").unwrap());
    for n in 0..2 {
        client.session(&root, |v| write_at(v, b"letter", n, b"newer").unwrap());
    }
    client.session(&root, |v| rename(v, b"third", b"letter", RenameMode::Replace).unwrap());
    let ours = bytes(&root, &letter);
    let copy = [&letter[..], b" (conflicted copy 2026-01-01 000000)"].concat();
    for is_beside in [true, false] {
        let store = store.snapshot();
        let (root, memory) = (store.root(), tempfile::tempdir().unwrap());
        std::fs::copy(client.path(), memory.path().join("memory.redb")).unwrap();
        let client = Client { memory };
        set(&root, &letter, &bytes(&apart, &letter));
        if is_beside {
            set(&root, &copy, &ours);
        }
        for n in 0..4 {
            client.session(&root, |v| write_at(v, b"letter", n, b"written on").unwrap());
            let told = client.told(&root);
            let is_note =
                |kind: &NoticeKind| matches!(kind, NoticeKind::Conflict { was, now } if was > now);
            let of_letter = |(path, kind): &(String, NoticeKind)| path == "letter" && is_note(kind);
            assert_eq!(alarms(told.clone()).is_empty(), is_beside, "{n}: {told:?}");
            assert_eq!(told.iter().any(of_letter), is_beside, "{n}: {told:?}");
        }
        accept_all(&client, &root);
    }
}

/// A version that another machine has replaced and that comes under another name is no older one. A
/// version that another machine has removed was not replaced: an older one under another name is an
/// alarm, also where several machines write a synced vault.
#[test]
fn only_an_older_version_of_a_replaced_file_is_a_note() {
    for saved in [true, false] {
        let (store, client, other) = of_two_machines(true);
        let (root, apart) = (store.root(), store.snapshot().root());
        let letter = cipher(&root, b"letter");
        Client::new()
            .session(&apart, |v| rename(v, b"letter", b"aside", RenameMode::Replace).unwrap());
        let aside = cipher(&apart, b"aside");
        let before = bytes(&root, &letter);
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        let newest = bytes(&root, &letter);
        other.session(&root, |v| {
            remove(v, b"letter");
            if saved {
                put(v, b"letter", b"a new file").unwrap();
            }
        });
        client.told(&root);
        accept_all(&client, &root);
        if saved {
            set(&root, &aside, &newest);
            assert_eq!(client.told(&root), []);
        } else {
            set(&root, &aside, &before);
            let told = client.told(&root);
            assert!(older(&told, "aside"), "{told:?}");
        }
    }
}

/// A sync tool copied a file while it was written, and another machine renamed the file before the whole
/// of it arrived: the torn copy stayed under the former name, and was an alarm. It is one without the
/// whole file.
#[test]
fn a_torn_copy_of_a_renamed_file_is_a_note() {
    for marked in [false, true] {
        let (store, client, other) = of_two_machines(marked);
        let root = store.root();
        let letter = cipher(&root, b"letter");
        let before = bytes(&root, &letter);
        client.session(&root, |v| write_at(v, b"letter", 0, b"newer").unwrap());
        let whole = bytes(&root, &letter);
        other.session(&root, |v| rename(v, b"letter", b"aside", RenameMode::Replace).unwrap());
        set(&root, &letter, &whole[..50]);
        let not_compared =
            |elsewhere| [("letter".to_owned(), NoticeKind::NotCompared { elsewhere })];
        for _ in 0..2 {
            assert_eq!(client.told(&root), not_compared(marked), "marked: {marked}");
        }
        let aside = cipher(&root, b"aside");
        set(&root, &aside, &before);
        let told = client.told(&root);
        assert!(told.contains(&not_compared(false)[0]), "an older one is there: {told:?}");
        root.unlink(&aside).unwrap();
        let told = client.told(&root);
        assert!(told.contains(&not_compared(false)[0]), "{told:?}");
    }
}

/// The same was an alarm on a machine that had not compared the vault before, and so had noticed no
/// change of the other one. A mark that came later does not count: the storage host can set it.
#[test]
fn a_torn_copy_at_the_first_comparison_is_a_note() {
    for marked in [false, true] {
        let (store, client) = (MemStore::new(), Client::new());
        let root = store.root();
        vaults::create(&root, Suite::Aes256Gcm, 12);
        client.session(&root, |v| put(v, b"letter", &pattern(1, 5000)).unwrap());
        if marked {
            Vault::set_synced(&root).unwrap();
        }
        let letter = cipher(&root, b"letter");
        let whole = bytes(&root, &letter);
        let other = Client::new();
        other.session(&root, |v| rename(v, b"letter", b"aside", RenameMode::Replace).unwrap());
        set(&root, &letter, &whole[..50]);
        let not_compared = NoticeKind::NotCompared { elsewhere: marked };
        assert_eq!(client.told(&root), [("letter".to_owned(), not_compared)]);
        Vault::set_synced(&root).unwrap();
        let not_compared = NoticeKind::NotCompared { elsewhere: marked };
        assert_eq!(client.told(&root), [("letter".to_owned(), not_compared)]);
    }
}

/// Which version of a file the former directory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Newest,
    First,
    Nothing,
}

/// One machine resealed a share under a new key, which also renames everything, while another one wrote
/// a file: its directory is there twice, and the file under the plain path is older than the one in the
/// directory with the mark. That was an alarm. It is one without the newest version.
#[test]
fn both_versions_of_a_file_resealed_elsewhere_are_a_note() {
    #[derive(Debug, PartialEq)]
    enum Marked {
        No,
        AtFirst,
        Later,
    }
    for (marked, others, kept) in [
        (Marked::No, true, Kept::Newest),
        (Marked::AtFirst, true, Kept::Newest),
        (Marked::AtFirst, false, Kept::Newest),
        (Marked::Later, true, Kept::Newest),
        (Marked::Later, false, Kept::Newest),
        (Marked::AtFirst, true, Kept::First),
        (Marked::AtFirst, true, Kept::Nothing),
    ] {
        let (store, ann) = founded(Vec::new());
        let here = Machine { store, client: Client::new() };
        if marked == Marked::AtFirst {
            Vault::set_synced(&here.store.root()).unwrap();
        }
        let session = |store: &MemStore, client: &Client, act: &dyn Fn(&Vault)| {
            let vault = open_as(store, &ann).unwrap();
            vault.remember(&client.path(), false).unwrap();
            act(&vault);
            vault.close().unwrap();
        };
        let told = || {
            let options = SurveyOptions { settle: Duration::ZERO, ..SurveyOptions::default() };
            let vault = beside(&here.store, &ann);
            let notices = vault.survey(&here.client.path(), &options).unwrap();
            let shown = |notice: Notice| (notice.plain.escape_ascii().to_string(), notice.kind);
            alarms(notices.into_iter().map(shown).collect())
        };
        session(&here.store, &here.client, &|v| {
            mkdir(v, b"dir").unwrap();
            put(v, b"dir/file", b"first").unwrap();
        });
        assert_eq!(told(), []);
        if marked == Marked::Later {
            Vault::set_synced(&here.store.root()).unwrap();
        }
        if others {
            session(&here.store, &Client::new(), &|v| put(v, b"theirs", b"of another").unwrap());
        }
        assert_eq!(told(), []);
        let ours = || beside(&here.store, &ann).cipher_path(b"dir/file").unwrap();
        let first = here.files().remove(&ours()).unwrap();
        let apart = Machine { store: here.store.snapshot(), client: Client::new() };
        session(&apart.store, &apart.client, &|v| {
            root_share(v).rekey().unwrap();
            v.reseal(b"", true, &mut quiet()).unwrap();
        });
        session(&here.store, &here.client, &|v| {
            (0..5).for_each(|n| write_at(v, b"dir/file", n, b"often").unwrap());
        });
        assert_eq!(told(), []);
        // The tool keeps what was written in the former directory.
        let (former, newest) = (here.files(), ours());
        for (path, contents) in apart.files() {
            if !former.contains_key(&path) {
                here.deliver(&path, Some(&contents));
            }
        }
        match kept {
            Kept::Newest => {}
            Kept::First => here.deliver(&newest, Some(&first)),
            Kept::Nothing => here.deliver(&newest, None),
        }
        let is_note = kept == Kept::Newest
            && (marked == Marked::AtFirst || marked == Marked::Later && others);
        for _ in 0..2 {
            let told = told();
            let is_older = |told| older(std::slice::from_ref(told), "dir/file");
            assert_eq!(
                told.iter().any(is_older),
                !is_note,
                "{marked:?}, {others}, {kept:?}: {told:?}"
            );
            assert_eq!(told.is_empty(), is_note, "{marked:?}, {others}, {kept:?}: {told:?}");
        }
    }
}

/// Returns how many bytes a client's database takes on disk.
fn len(client: &Client) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(client.path()).unwrap().blocks() * 512
}

/// A vault with 200 directories of 100 files, and a client that remembers them.
fn of_many_files() -> (MemStore, Client) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let client = Client::new();
    client.session(&store.root(), |v| {
        for n in 0..200 {
            mkdir(v, format!("directory {n}").as_bytes()).unwrap();
            fill(v, n);
        }
    });
    (store, client)
}

fn fill(vault: &Vault, directory: usize) {
    for n in 0..100 {
        put(vault, format!("directory {directory}/document {n}.txt").as_bytes(), b"x").unwrap();
    }
}

fn empty(vault: &Vault, directory: usize) {
    vaults::at(vault, format!("directory {directory}").as_bytes(), |dir| {
        (0..100).try_for_each(|n| vault.unlink(dir, format!("document {n}.txt").as_bytes()))
    })
    .unwrap();
}

/// The database took 1,050 bytes for each file, and kept all of its length when files were replaced
/// or removed. Now it takes at most 100 bytes for each file or directory, and 50 for each file that
/// was removed or replaced, of which it remembers 65,536.
#[test]
fn the_database_takes_100_bytes_for_each_file() {
    let (store, client) = of_many_files();
    let root = store.root();
    let live = 20_200;
    assert!(len(&client) <= 100 * live, "{} bytes", len(&client));
    assert_eq!(client.told(&root), []);
    assert!(len(&client) <= 100 * live, "{} bytes after a comparison", len(&client));
    let mut removed = 0;
    for round in 0..6 {
        client.session(&root, |v| {
            for directory in 0..50 {
                empty(v, directory);
                fill(v, directory);
            }
        });
        removed += 5_000;
        assert!(len(&client) <= 100 * live + 50 * removed, "{} in {round}", len(&client));
    }
    assert_eq!(client.told(&root), []);
    client.session(&root, |v| (0..200).for_each(|directory| empty(v, directory)));
    assert_eq!(client.told(&root), []);
    let rest = len(&client);
    assert!(rest <= 100 * 200 + 50 * (removed + 20_000), "{rest} bytes when all are removed");
}

/// A full database records nothing more, reports how many entries it left out, and still notices
/// what happens to those that it knows. What it left out does not count as news of another
/// machine, which would turn the alarm into a note.
#[test]
fn a_full_database_records_no_more_and_reports_that() {
    let (store, client) = fresh();
    let root = store.root();
    let known = rows(&client);
    // Room for no entry at all, and then for two more.
    let removed = 65_536 * 60;
    Vault::limit_rollback_memory(&client.path(), removed).unwrap();
    let full = |v: &Vault| {
        (0..5).for_each(|n| put(v, format!("new {n}").as_bytes(), b"x").unwrap());
        write_at(v, b"letter", 0, b"newer").unwrap();
    };
    let before = bytes(&root, &cipher(&root, b"letter"));
    client.session(&root, full);
    assert_eq!((client.told(&root), rows(&client)), (vec![], known));
    assert_eq!(Vault::omitted_by_rollback_memory(&client.path()).unwrap().entries, 5);
    Vault::limit_rollback_memory(&client.path(), removed + 100 * (known + 2)).unwrap();
    assert_eq!((client.told(&root), rows(&client)), (vec![], known + 2));
    assert_eq!(Vault::omitted_by_rollback_memory(&client.path()).unwrap().entries, 3);
    let letter = cipher(&root, b"letter");
    set(&root, &letter, &before);
    root.unlink(&cipher(&root, b"third")).unwrap();
    let told = client.told(&root);
    assert!(
        matches!(
            &told[..],
            [(letter, NoticeKind::Older { .. }), (third, NoticeKind::Gone { elsewhere: false })]
                if letter == "letter" && third == "third"
        ),
        "{told:?}"
    );
    Vault::limit_rollback_memory(&client.path(), 1 << 30).unwrap();
    client.told(&root);
    assert_eq!(rows(&client), known + 5);
    assert_eq!(Vault::omitted_by_rollback_memory(&client.path()).unwrap().entries, 0);
}

/// Records that could not be read were taken for unknown ones, and nothing was compared with them.
/// Now a changed block is an error, and so is one in the place of another.
#[test]
fn a_damaged_block_of_the_database_is_an_error() {
    use redb::ReadableTable;
    let (store, client) = fresh();
    let root = store.root();
    let intact = std::fs::read(client.path()).unwrap();
    let table = redb::TableDefinition::<&[u8], &[u8]>::new;
    for exchanged in [false, true] {
        std::fs::write(client.path(), &intact).unwrap();
        let db = redb::Database::open(client.path()).unwrap();
        let tx = db.begin_write().unwrap();
        {
            let mut entries = tx.open_table(table("entries")).unwrap();
            let files = tx.open_table(table("files")).unwrap();
            let from = |table: &redb::Table<&[u8], &[u8]>| {
                table.get(&[][..]).unwrap().expect("the first block").value().to_vec()
            };
            let mut block = if exchanged { from(&files) } else { from(&entries) };
            if !exchanged {
                block[30] ^= 1;
            }
            entries.insert(&[][..], &block[..]).unwrap();
        }
        tx.commit().unwrap();
        drop(db);
        let vault = vaults::open(root.clone()).unwrap();
        let error = vault.survey(&client.path(), &SurveyOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains("a block of the rollback database is damaged"),
            "{error}"
        );
    }
    std::fs::write(client.path(), &intact).unwrap();
    assert_eq!(client.told(&root), []);
}

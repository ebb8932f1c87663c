//! One short trace for each way in which vaults in synced folders have lost data. Each is played
//! with the rules of each tool.
//!
//! In the end nothing may be lost, hidden or without a name, no mount may be refused, no check may
//! find a fault, and every expectation of a step must be met.

use super::play::Counts;
use super::simulator::Place;
use super::system::System;
use super::trace::{TOOLS, ToolKind, Trace};

/// A scenario: its name and its steps. `SEED` is replaced by several numbers.
pub struct Scenario {
    pub name: &'static str,
    pub steps: &'static str,
}

/// How many seeds a trace with the word `SEED` is played with.
const SEEDS: usize = 6;

impl Scenario {
    fn traces(&self, tool: ToolKind) -> Vec<Trace> {
        let count = if self.steps.contains("SEED") { SEEDS } else { 1 };
        (0..count)
            .map(|seed| {
                let text = self.steps.replace("SEED", &seed.to_string());
                Trace { tool, ..Trace::parse(&text) }
            })
            .collect()
    }

    /// Returns what went wrong, if anything did.
    pub fn failures(&self, place: &Place) -> Vec<String> {
        let mut failures = Vec::new();
        for tool in TOOLS {
            for trace in self.traces(tool) {
                let outcome = place.play(&trace);
                if !outcome.counts.is_zero() {
                    let notes = outcome.notes.join("\n    ");
                    failures.push(format!("{}: {}\n    {notes}", tool.name(), outcome.counts));
                }
            }
        }
        failures
    }
}

macro_rules! scenarios {
    ($($(#[doc = $story:literal])+ $name:ident $steps:literal)+) => {
        pub const ALL: &[Scenario] = &[$(Scenario {
            name: stringify!($name),
            steps: $steps,
        }),+];
        $(
            $(#[doc = $story])+
            #[test]
            fn $name() {
                let Some(place) = Place::new(System::Kithfs) else { return };
                let scenario = Scenario { name: stringify!($name), steps: $steps };
                let failures = scenario.failures(&place);
                assert!(failures.is_empty(), "{}", failures.join("\n"));
            }
        )+
    };
}

scenarios! {
    /// The record that named a directory's id was removed on one machine, with the directory, and
    /// what the other machine had created there was listed nowhere.
    a_directory_is_renamed_while_a_file_is_created_in_it "
        0 mkdir a
        0 append a/one 1 fsync
        0 sync
        1 sync
        0 rename a b
        0 sync
        1 sync
        0 rename b c
        1 append b/two 2 fsync
        0 keeps 1
        0 keeps 2
    "
    /// The same if the directory is removed.
    a_renamed_directory_is_removed_while_a_file_is_created_in_it "
        0 mkdir a
        0 append a/one 1 fsync
        0 sync
        1 sync
        0 rename a b
        0 sync
        1 sync
        0 rmtree b
        1 append b/two 2 fsync
        0 keeps 2
    "
    /// Two machines renamed two directories to one name: the directory had entries of both, and one
    /// id.
    two_directories_are_renamed_to_one_name "
        0 mkdir a
        0 append a/one 1 fsync
        0 mkdir b
        0 append b/two 2 fsync
        0 sync
        1 sync
        0 rename a x
        1 rename b x
        0 keeps 1
        0 keeps 2
    "
    /// One machine renamed a directory to a name under which the other created one.
    a_directory_is_renamed_to_a_name_that_another_machine_creates "
        0 mkdir a
        0 append a/one 1 fsync
        0 sync
        1 sync
        0 rename a x
        1 mkdir x
        1 append x/two 2 fsync
        0 keeps 1
        0 keeps 2
    "
    /// The entries of a renamed directory arrived before the evidence that explained them, and a
    /// program created a file there.
    a_file_is_created_in_a_renamed_directory_that_is_arriving "
        0 mkdir a
        0 append a/one 1 fsync
        0 append a/two 2 fsync
        0 append a/three 3 fsync
        0 sync
        1 sync
        0 rename a x
        0 sync
        1 sync partial SEED
        1 append x/four 4 fsync
        1 mkdir x/d
        1 append x/d/five 5 fsync
        0 keeps 1
        0 keeps 2
        0 keeps 3
        1 keeps 4
        1 keeps 5
    "
    /// A daemon that had worked in a directory used the same id when another directory had come in
    /// its place.
    another_directory_takes_the_place_of_one_that_is_in_use "
        0 mkdir x
        0 mkdir a
        0 append a/one 1 fsync
        0 sync
        1 sync
        1 append x/tmp 9
        1 unlink x/tmp
        1 list x
        0 rename a x
        0 sync
        1 sync
        1 append x/two 2 fsync
        1 sees x/one 1
        1 keeps 1
        1 keeps 2
    "
    /// One machine removed a file with a long name, and the control file with that name; the other
    /// machine appended to the file.
    a_long_name_is_removed_while_it_is_edited "
        0 append f{200} 1 fsync
        0 mkdir d{220}
        0 append d{220}/g{230} 3 fsync
        0 append d{220}/h 5 fsync
        0 sync
        1 sync
        0 unlink f{200}
        0 rmtree d{220}
        1 append f{200} 2 fsync
        1 append d{220}/g{230} 4 fsync
        0 keeps 2
        0 keeps 4
    "
    /// Two machines created one long name. The control files that stored the name differed, so
    /// there was a conflict copy, which was a fault for a check.
    a_long_name_is_created_twice "
        0 append f{255} 1 fsync
        0 append g{200} 3 fsync
        1 append f{255} 1 fsync
        1 append g{200} 3 fsync
        0 mkdir d{180}
        0 append d{180}/f 5 fsync
        1 mkdir d{180}
        1 append d{180}/g 6 fsync
        0 keeps 1
        0 keeps 3
        0 keeps 5
        1 keeps 6
    "
    /// A file that a program had open was replaced by the tool. What another program then wrote
    /// under its name went to the version to which no name led any more.
    a_file_is_opened_by_name_after_it_was_replaced "
        0 append f 1 fsync
        0 append g 7 fsync
        0 append h 49 fsync
        0 sync
        1 sync
        1 open f 1
        1 write 1 11 fsync
        1 open g 2
        1 write 2 12 fsync
        1 open h 3
        1 write 3 13
        1 sync
        0 sync
        0 append f 2 fsync
        0 append g 21 fsync
        0 append h 99 fsync
        0 sync
        1 sync
        1 append f 3 fsync
        1 append g 4 fsync
        1 append h 5 fsync
        1 sees f 3
        1 sees g 4
        1 sees h 5
        1 sees f 2
        1 sees g 21
        1 sees h 99
        1 keeps 3
        1 keeps 4
        1 keeps 5
    "
    /// What is written through a descriptor of the replaced version is acknowledged, so it is kept.
    a_file_is_written_through_a_descriptor_after_it_was_replaced "
        0 append f 1 fsync
        0 sync
        1 sync
        1 open f 1
        0 append f 2 fsync
        0 sync
        1 sync
        1 write 1 3 fsync
        1 keeps 2
        1 keeps 3
    "
    /// A file was written to, and the tool replaced it before the daemon had stored the write.
    a_file_is_replaced_before_a_write_to_it_is_stored "
        0 append f 1 fsync
        0 append g 7 fsync
        0 append h 49 fsync
        0 sync
        1 sync
        0 append f 2 fsync
        0 append g 8 fsync
        0 replace h 9 fsync
        0 sync live
        1 open g 1
        1 append f 3
        1 write 1 4
        1 append h 5
        1 sync live
        0 keeps 2
        0 keeps 8
        0 keeps 9
        1 keeps 3
        1 keeps 4
        1 keeps 5
    "
    /// The same if the other machine has removed the file.
    a_file_is_removed_before_a_write_to_it_is_stored "
        0 append f 1 fsync
        0 mkdir d
        0 append d/g 2 fsync
        0 sync
        1 sync
        0 unlink f
        0 rmtree d
        0 sync live
        1 append f 3
        1 append d/g 4
        1 sync live
        1 keeps 3
        1 keeps 4
    "
    /// The journal of another machine was younger than two minutes: a mount for writing was refused.
    a_machine_mounts_while_the_journal_of_another_is_fresh "
        0 page x.db 0 1 fsync
        0 page x.db 1 2 fsync
        0 page x.db 0 3 fsync
        0 page x.db 1 4 fsync
        0 leave
        0 sync
        1 sync
        1 remount
        1 append f 5 fsync
        0 return
        1 keeps 5
    "
    /// A machine crashed, its copy was synced, another machine changed the same file, and the first
    /// one returned.
    a_file_changes_elsewhere_before_a_crashed_machine_returns "
        0 append f 1 fsync
        0 sync
        1 sync
        0 append f 2 fsync
        0 append f 3 fsync
        0 append g 4 fsync
        0 leave
        0 sync
        1 sync
        1 append f 5 fsync
        1 sync
        0 sync
        0 return
        0 keeps 2
        0 keeps 3
        0 keeps 4
        1 keeps 5
    "
    /// A stored name had 218 bytes and more, and the tool had no room for the suffix of a conflict
    /// copy.
    a_conflict_about_a_name_of_155_to_183_bytes "
        0 append f{155} 1 fsync
        1 append f{155} 2 fsync
        0 append g{160} 3 fsync
        1 append g{160} 4 fsync
        0 append h{163} 5 fsync
        1 append h{163} 6 fsync
        0 keeps 1
        0 keeps 2
        0 keeps 3
        0 keeps 4
        0 keeps 5
        0 keeps 6
    "
    /// Control files that name the machine had conflict copies on every machine.
    control_files_of_two_machines_conflict "
        0 append f 1 fsync
        1 append g 2 fsync
        0 sync
        1 sync
        0 remount
        1 remount
        0 append f 3 fsync
        1 append g 4 fsync
        1 sync
        0 sync
        1 remount
        0 append h 5 fsync
        0 keeps 5
    "
    /// A name that was looked up before its file arrived did not exist for an hour.
    a_name_is_looked_up_before_it_arrives "
        0 mkdir d
        0 sync
        1 sync
        1 stat f
        1 stat d/g
        0 append f 1 fsync
        0 append d/g 2 fsync
        0 sync
        1 sync
        1 sees f 1
        1 sees d/g 2
    "
    /// A renamed directory was still there under its former name, and a removed file too.
    a_removed_and_a_renamed_name_are_gone "
        0 mkdir d
        0 append d/f 1 fsync
        0 append g 2 fsync
        0 sync
        1 sync
        1 sees d/f 1
        1 sees g 2
        1 stat e/f
        0 rename d e
        0 unlink g
        0 sync
        1 sync
        1 sees e/f 1
        1 gone d/f
        1 gone g
    "
    /// A file that a program holds open was shown in its former version to all programs.
    a_file_that_is_held_open_is_read_anew_by_the_next_open "
        0 append f 1 fsync
        0 sync
        1 sync
        1 open f 1
        0 append f 2 fsync
        0 sync
        1 sync
        1 sees f 2
    "
    /// One machine changed a file, another renamed its directory, and both versions were there;
    /// when one of them was removed, the rollback database took the other for an older version.
    a_version_goes_that_was_seen_beside_a_later_one "
        0 mkdir a
        0 append a/f 1 fsync
        0 append a/f 2 fsync
        0 sync
        1 sync
        0 append a/f 3 fsync
        1 rename a b
        0 sync
        1 sync
        0 sync
        1 sync
        0 sees a/f 3
        0 sees b/f 2
        1 sees a/f 3
        1 sees b/f 2
        0 remount
        1 remount
        0 unlink a/f
        0 sync
        1 sync
    "
    /// The kernel flushed the times of a file late, when its name was gone, and a program that had
    /// nothing to do with it failed with EIO.
    times_of_a_removed_file_are_flushed_late "
        0 append f 1 fsync
        0 append g 2 fsync
        0 sync
        1 sync
        1 append f 3
        1 append g 4
        0 unlink f
        0 replace g 5 fsync
        0 sync live
        1 sync live
        1 flush
        1 append h 8 fsync
        1 append f 6
        1 append g 7
        0 unlink f
        0 unlink g
        0 sync live
        1 flush
        1 sync live
        1 flush
        1 keeps 8
    "
    /// A machine removed two files, renamed another and did nothing else. The other machine had
    /// written in the same directories, took what was new there for its own work, and reported
    /// files as gone.
    a_removal_by_another_machine_is_no_alarm "
        0 mkdir a
        0 append a/f 1 fsync
        0 append a/g 2 fsync
        0 append h 3 fsync
        0 sync
        1 sync
        1 append a/i 4 fsync
        1 append j 5 fsync
        1 sync
        0 sync
        0 remount
        1 remount
        0 append a/k 6 fsync
        1 unlink a/f
        1 rename a/g g
        1 unlink h
        1 sync
        0 sync
        0 keeps 2
        0 keeps 6
    "
    /// One machine removed a file while another changed only its time. The tool kept it, and on the
    /// first machine a file that had been removed was back: an alarm.
    a_removed_file_is_kept_since_another_machine_touched_it "
        0 append f 1 fsync
        0 append g 2 fsync
        0 sync
        1 sync
        1 append h 3 fsync
        1 sync
        0 sync
        0 remount
        1 remount
        0 unlink f
        1 touch f
        0 sync
        1 sync
        0 sync
        0 sees f 1
        0 keeps 2
    "
    /// Two machines changed a file, one of them more often. The tool gave the name to the other's
    /// version, which has the lower number, and the newest one was a conflict copy beside it: the
    /// rollback database called that an older version.
    a_newer_version_loses_its_name_in_a_conflict "
        0 append f 1 fsync
        0 append g 2 fsync
        0 sync
        1 sync
        1 append h 3 fsync
        1 sync
        0 sync
        0 remount
        1 remount
        1 append f 4 fsync
        1 append f 5 fsync
        1 append f 6 fsync
        0 append f 7 fsync
        0 append g 8 fsync
        0 append g 9 fsync
        0 append g 10 fsync
        1 append g 11 fsync
        0 remount
        1 remount
        0 sync
        1 sync
        0 sync
        0 keeps 6
        0 keeps 7
        0 keeps 10
        0 keeps 11
    "
    /// The same, as the first change that the machine ever sees of the other one.
    a_newer_version_loses_its_name_in_the_first_conflict "
        0 append f 1 fsync
        0 sync
        1 sync
        0 remount
        1 remount
        0 append f 2 fsync
        0 append f 3 fsync
        1 append f 4 fsync
        0 remount
        1 sync
        0 sync
        0 keeps 3
        0 keeps 4
    "
    /// A directory with a file was renamed to one in which another machine had made a file of that
    /// name. One of the two entries is shown with the name, the other one with the mark added. The
    /// Nextcloud client renames the directory in the store. The program's rename followed at once
    /// and failed with ESTALE: the kernel had the directory at its old place.
    two_entries_of_one_directory_have_one_name "
        0 mkdir a
        0 mkdir b
        0 mkdir d
        0 append a/f 1 fsync
        0 sync
        1 sync
        1 rename a d/d
        1 sync live
        1 append b/f 2 fsync
        0 sync
        0 rename d/d b
        0 keeps 1
        1 keeps 2
    "
    /// The tool copied files while their machine wrote to them. The copies cannot be opened until the
    /// tool copies the files again, and then have everything.
    a_file_is_copied_while_it_is_written "
        0 append f 1 fsync
        0 append g 49 fsync
        0 sync
        1 sync
        0 append f 2 fsync
        0 append g 3 fsync
        0 sync torn 0 append f 4 fsync
        1 sync torn 0 append g 5 fsync
        0 sync
        1 sync
        1 sees f 4
        1 sees g 5
        0 keeps 2
        0 keeps 3
        0 keeps 4
        0 keeps 5
    "
    /// The same if the machine dies meanwhile, and its copy is synced before it returns.
    a_file_is_copied_while_its_machine_dies "
        0 append f 1 fsync
        0 append g 49 fsync
        0 sync
        1 sync
        0 append f 2 fsync
        0 append g 3 fsync
        0 sync torn 0 append f 4 fsync
        1 sync torn 0 append g 5 fsync
        0 leave
        0 sync
        1 sync
        0 return
        0 sync
        1 sync
        1 sees f 4
        1 sees g 5
        0 keeps 4
        0 keeps 5
    "
    /// A database was copied while it was written, and another machine renamed the torn copy. In the
    /// plain directories it is torn too, and the tool does not copy it again: it does not count.
    a_copy_is_renamed_that_is_torn_in_plain_directories_too "
        0 page x.db 0 1 fsync
        0 page x.db 1 2 fsync
        0 page x.db 2 3 fsync
        0 sync
        1 sync
        0 page x.db 0 4 fsync
        0 sync torn 0 page x.db 1 5 fsync
        1 sync torn 0 page x.db 1 6 fsync
        1 rename x.db y.db
    "
    /// One machine edited two files twice and put other files in their places, while another
    /// machine edited the versions that it had. The tool gave these versions the names. They have
    /// lower numbers: an alarm, although all files are visible.
    an_older_version_of_a_replaced_file_comes_back "
        1 compare
        0 append f 1 fsync
        0 append g 2 fsync
        0 append h 3 fsync
        0 sync
        1 sync
        1 append f 4 fsync
        1 append f 5 fsync
        1 append h 6 fsync
        1 append h 8 fsync
        1 remount
        1 rename g f
        1 replace h 9 fsync
        1 remount
        0 append f 10 fsync
        0 append h 11 fsync
        0 keeps 2
        0 keeps 9
        0 keeps 10
        0 keeps 11
    "
    /// The same, but the first machine then renamed the files that it had put there, and the tool was
    /// faster than the rollback database, which had not recorded all that.
    an_older_version_comes_back_where_files_were_moved_on "
        1 compare
        0 append f 1 fsync
        0 append g 2 fsync
        0 append h 3 fsync
        0 append i 4 fsync
        0 sync
        1 sync
        1 append f 5 fsync
        1 append f 6 fsync
        1 append h 8 fsync
        1 append h 9 fsync
        1 remount
        1 rename g f
        1 rename i h
        1 sync
        0 append f 10 fsync
        0 append h 11 fsync
        1 rename f k
        1 remount
        1 rename h l
        0 keeps 2
        0 keeps 4
        0 keeps 10
        0 keeps 11
    "
    /// Another machine changed the folder key. Dropbox and Syncthing copy a directory to its new
    /// stored name and remove the old one. A program that uses it at once fails with ENOENT: the
    /// kernel still has the old directory under the name, for up to a second. What is written after
    /// that is kept.
    a_directory_of_a_new_key_is_used_at_once "
        members
        0 mkdir a
        0 append a/f 3 fsync
        0 sync
        1 sync
        1 sees a/f 3
        0 rekey
        0 sync
        1 sync
        1 append a/new 19 fsync
        1 append a/f 21 fsync
        1 sees a/f 3
        1 append a/new 20 fsync
        1 append a/f 22 fsync
        1 keeps 3
        1 keeps 20
        1 keeps 22
    "
    /// Another machine changed the folder key, and the tool delivered a part of the change: a directory
    /// under its new name, without the key. A program wrote through a descriptor, its fsync failed with
    /// EIO, and the bytes were gone.
    a_directory_arrives_before_its_key "
        members
        0 mkdir a
        0 append a/f 3 fsync
        0 sync
        1 sync
        1 open a/f 1
        0 rekey
        0 sync
        1 sync partial SEED
        1 write 1 19 fsync
        1 flush
        1 write 1 20
        1 keeps 3
        1 keeps 19
        1 keeps 20
    "
    /// Another machine changed the folder key. The tool renamed a directory under the new key and
    /// delivered the key, and a program wrote into the directory before the daemon had looked for
    /// new keys. The daemon had no name for the directory, did not find the new file in it, and the
    /// program's fsync failed with EIO. The Nextcloud client renames the directory in the store.
    a_file_is_created_in_a_directory_of_a_new_key "
        members
        0 mkdir a
        0 append a/f 3 fsync
        0 sync
        1 sync
        1 sees a/f 3
        0 rekey
        0 sync
        1 sync live
        1 append a/new 19 fsync
        1 keeps 3
        1 keeps 19
    "
}

/// Traces in which a tool copies the file `f` while its machine writes to it, and does not copy it
/// again. A program in a plain directory only appends, so the copy is the former version. `FIRST` is
/// the first record of the file.
const COPIED_ONCE: [&str; 3] = [
    // Another machine renames the copy.
    "
        0 append f FIRST fsync
        0 sync
        1 sync
        0 append f 2 fsync
        1 sync torn 0 append f 3 fsync
        1 rename f g
        0 keeps FIRST
        0 keeps 2
        0 keeps 3
    ",
    // The tool makes a conflict copy of it.
    "
        machines 3
        members
        1 append f 7 fsync
        2 append f FIRST fsync
        1 sync torn 2 append f 11 fsync
        1 keeps 7
        2 keeps FIRST
        2 keeps 11
    ",
    // Another machine changes the folder key, which gives the file's directory another stored name.
    "
        tool dropbox
        members
        0 mkdir a
        0 append a/g 1 fsync
        0 sync
        1 sync
        1 append a/h 2 fsync
        1 sync
        0 sync
        0 remount
        1 remount
        0 append a/g 3 fsync
        0 sync
        1 sync
        1 remount
        1 replace a/f FIRST fsync
        1 sync live torn 1 append a/f 15 fsync
        0 sync
        0 rekey eager
        1 keeps FIRST
        1 keeps 15
    ",
];

/// A commit of a small file puts a new file in place of the old one, so the tool has a whole version.
/// In place, a commit changed the header as well as the end, and the copy could not be opened.
#[test]
fn a_small_file_that_is_copied_during_a_commit_is_whole() {
    let Some(place) = Place::new(System::Kithfs) else { return };
    for steps in COPIED_ONCE {
        let steps = steps.replace("FIRST", "8");
        let outcome = place.play(&Trace::parse(&steps));
        assert_eq!(outcome.counts, Counts::default(), "{steps}{}", outcome.notes.join("\n"));
    }
}

/// A commit of a larger file is made in place, so the copy cannot be opened: docs/STORES.md describes
/// this limit. It is the only thing that is wrong then, on every machine.
#[test]
fn a_copy_that_a_tool_leaves_torn_is_all_that_is_wrong() {
    let Some(place) = Place::new(System::Kithfs) else { return };
    for (torn, steps) in [2, 3, 2].into_iter().zip(COPIED_ONCE) {
        let steps = steps.replace("FIRST", "49");
        let outcome = place.play(&Trace::parse(&steps));
        let expected = Counts { torn, ..Counts::default() };
        assert_eq!(outcome.counts, expected, "{steps}{}", outcome.notes.join("\n"));
    }
}

/// That a torn copy cannot be read is excused; damage to other files is counted.
#[test]
fn damage_beside_a_torn_copy_is_counted() {
    let Some(place) = Place::new(System::Kithfs) else { return };
    let steps = COPIED_ONCE[0].replace("FIRST", "49");
    let other = "1 append k 99 fsync\n1 append k 149 fsync\n1 sync\n0 sync\n";
    let trace = Trace::parse(&format!("{other}{steps}"));
    let outcome = place.play_and_spoil(&trace, &|store| {
        let largest = std::fs::read_dir(store)
            .expect("list the store")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.is_file() && path.extension().is_none())
            .max_by_key(|path| std::fs::metadata(path).map_or(0, |meta| meta.len()))
            .expect("a file");
        let mut bytes = std::fs::read(&largest).expect("read the file");
        bytes[5000] ^= 1;
        std::fs::write(largest, bytes).expect("damage the file");
    });
    let counts = outcome.counts;
    let seen = (counts.torn, counts.io_errors, counts.faults, counts.lost);
    assert_eq!(seen, (2, 1, 2, 2), "{counts}");
}

#[test]
fn every_trace_can_be_printed_and_parsed_again() {
    for scenario in ALL {
        for trace in scenario.traces(ToolKind::Syncthing) {
            assert_eq!(Trace::parse(&trace.to_string()), trace, "{}", scenario.name);
        }
    }
}

//! `kithfs bench` measures on a real mount, and leaves nothing behind.

use std::process::Command;

use serde_json::Value;

use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code};
use crate::support::people::Person;
use crate::support::turn;

/// A user with an identity got no figures about files: the vault to measure was to belong to that
/// identity, and `init` refused the costs of a passphrase.
#[test]
fn files_are_measured_for_a_user_with_an_identity() {
    if !can_mount() {
        return;
    }
    let ann = Person::with_identity("ann");
    let output = ann.ok(&["bench", "--quick", "--json", "."]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["not_mounted"], Value::Null);
}

/// A quick run with `--json` prints every figure and leaves no file and no mount behind.
#[test]
fn a_quick_run_prints_every_figure_as_json_and_cleans_up() {
    let scratch = Scratch::bare();
    let dir = scratch.path().join("here");
    std::fs::create_dir(&dir).unwrap();
    let output =
        expect_code(Command::new(KITHFS).args(["bench", "--quick", "--json"]).arg(&dir), 0);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let figures = |part: &str| {
        report[part].as_array().unwrap_or_else(|| panic!("no {part} in {report}")).clone()
    };
    assert_eq!(figures("ciphers").len(), 4);
    assert!(figures("names").len() >= 3, "{report}");
    for figure in figures("ciphers").iter().chain(&figures("names")) {
        assert!(
            figure["value"].as_f64().is_some_and(|value| value > 0.0 && value.is_finite()),
            "{figure}"
        );
        assert!(figure["name"].is_string() && figure["unit"].is_string(), "{figure}");
    }
    if can_mount() {
        assert_eq!(report["not_mounted"], Value::Null);
        assert_eq!(figures("files").len(), 11);
        for pair in figures("files") {
            let number = |field: &str| {
                pair[field].as_f64().unwrap_or_else(|| panic!("no {field} in {pair}"))
            };
            assert!(number("plain") > 0.0 && number("vault") > 0.0, "{pair}");
            assert!(
                (number("vault") / number("plain") / number("ratio") - 1.0).abs() < 1e-6,
                "{pair}"
            );
        }
    } else {
        assert!(report["not_mounted"].is_string());
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "something was left behind");
}

#[test]
fn the_table_has_a_row_and_a_bar_for_each_figure() {
    let scratch = Scratch::bare();
    let output =
        expect_code(Command::new(KITHFS).args(["bench", "--quick"]).arg(scratch.path()), 0);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for expected in
        ["AES-256-GCM, seal 4 KiB", "HCTR2, portable, a listing, each", "X25519, a member", "█"]
    {
        assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
    }
    if can_mount() {
        assert!(text.contains("4 KiB random writes, fsync"), "{text}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let _turn = turn::take();
    let output = expect_code(Command::new(KITHFS).args(["bench", "--quick", "/nowhere/at/all"]), 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all"));
}

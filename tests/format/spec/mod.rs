//! SPEC.md against the program: labels, numbers, byte tables, worked sizes, and the worked example,
//! each read from the page.
//!
//! Rules that hold here
//! * Expected bytes are assembled by hand from primitives (HKDF, the constructions for records,
//!   BLAKE3) and compared with the program's; no test compares the program with itself.
//! * Every byte table of the page is checked, or the test fails.

mod byhand;
mod bytes;
mod example;
mod numbers;
mod page;
mod sharing;
mod signed;

use std::collections::BTreeSet;

use kithfs::crypto::labels;

/// Returns the purposes in a table of labels: the first column without its back-quotes.
fn purposes(heading: &str) -> BTreeSet<String> {
    page::table_after(heading).into_iter().map(|row| row[0].trim_matches('`').to_owned()).collect()
}

#[test]
fn the_labels_of_the_page_are_those_of_the_program() {
    let strip = |bytes: &[u8]| {
        String::from_utf8(bytes["kithfs v1 ".len()..bytes.len() - 1].to_vec()).unwrap()
    };
    let known: BTreeSet<String> =
        labels::ALL.iter().map(|(_, label)| strip(label.as_bytes())).collect();
    assert_eq!(purposes("**Labels in use.**"), known);
}

#[test]
fn every_label_of_the_program_is_used_by_it() {
    fn sources(dir: &std::path::Path, all: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, all);
            } else if !path.ends_with("labels.rs") {
                all.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut all = String::new();
    sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    let is_used = |name: &str| {
        all.match_indices(&format!("labels::{name}")).any(|(at, found)| {
            let next = all[at + found.len()..].chars().next();
            !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    };
    let unused: Vec<&str> =
        labels::ALL.iter().map(|(name, _)| *name).filter(|name| !is_used(name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn every_byte_table_matches_what_the_program_writes() {
    let known: Vec<bytes::Structure> = bytes::structures()
        .into_iter()
        .chain(sharing::structures())
        .chain(signed::structures())
        .collect();
    let on_page: BTreeSet<String> = page::byte_tables();
    let checked: BTreeSet<String> = known.iter().map(|s| s.name.to_owned()).collect();
    assert_eq!(on_page, checked, "tables of the page, and structures that are checked");
    for structure in &known {
        structure.check(&page::table_after(&format!("<!-- bytes: {} -->", structure.name)));
    }
}

//! The tests that pages name, and the names of tests.
//!
//! Rules that hold here
//! * A page names a test as `binary::module::test`. Each test that a page names exists.
//! * Each row of a table of docs/DURABILITY.md names its test, and each test of
//!   `durability::contract` has a row.
//! * The name of a test has fewer than 60 characters. Its doc comment tells the story.
//! * Tests that run beside others on real files start no programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest name of a test, in characters.
const LONGEST_NAME: usize = 59;

/// Test binaries that run many tests at a time and use real files: a child that was just forked
/// would hold their locks. (`sharing` runs rm(1) on a tree that is deeper than the stack; its other
/// tests lock nothing.)
const START_NO_PROGRAM: &[&str] = &["format", "hostile", "vault"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Collects the files below `dir` whose names end with `suffix`.
fn files(dir: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            files(&path, suffix, found);
        } else if path.to_str().is_some_and(|name| name.ends_with(suffix)) {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the names of the test binaries: directories of `tests` with a `main.rs`.
fn binaries() -> BTreeSet<String> {
    let entries = fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.path().join("main.rs").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// Returns the source of a module of tests, such as `mount::posix::names`; `None` if there is none.
fn module(path: &str) -> Option<String> {
    let file = root().join("tests").join(path.replace("::", "/"));
    let found = [file.with_extension("rs"), file.join("mod.rs")].into_iter().find(|f| f.exists());
    found.map(|file| read(&file))
}

/// Returns the names of the tests in a source, in the form that rustfmt writes.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    source.split("#[test]\n").skip(1).filter_map(|rest| {
        let mut lines = rest.lines().map(str::trim_start);
        lines.find_map(|line| line.strip_prefix("fn "))?.split(['(', '<']).next()
    })
}

/// Panics unless `path`, such as `durability::journal::a_test`, is a test.
fn must_be_a_test(path: &str, page: &str) {
    let (parent, name) = path.rsplit_once("::").unwrap_or_else(|| panic!("{page}: {path}"));
    let source = module(parent).unwrap_or_else(|| panic!("{page}: no such module: {path}"));
    assert!(tests(&source).any(|test| test == name), "{page}: no such test: {path}");
}

/// Returns the tests that a page names: code that begins with a test binary and a module of it.
fn named<'a>(page: &'a str, binaries: &BTreeSet<String>) -> Vec<&'a str> {
    let is_test = |code: &&str| {
        let mut parts = code.splitn(3, "::");
        let (binary, inner) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let dir = root().join("tests").join(binary).join(inner);
        parts.next().is_some()
            && binaries.contains(binary)
            && (dir.is_dir() || dir.with_extension("rs").exists())
    };
    page.split('`').filter(is_test).collect()
}

#[test]
fn every_test_that_a_page_names_exists() {
    let mut pages = Vec::new();
    files(&root().join("docs"), ".md", &mut pages);
    pages.extend(fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()));
    let (binaries, mut count) = (binaries(), 0);
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let (name, text) = (page.file_name().unwrap().to_str().unwrap(), read(page));
        let old = text.split('`').find(|code| code.contains(".rs::"));
        assert_eq!(old, None, "{name}: a test is named as binary::module::test");
        let named = named(&text, &binaries);
        named.iter().for_each(|test| must_be_a_test(test, name));
        count += named.len();
    }
    assert!(count > 150, "{count} tests are named");
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let page = read(&root().join("THREAT_MODEL.md"));
    let named = named(&page, &binaries());
    assert!(named.len() > 40, "{}", named.len());
    named.iter().for_each(|test| must_be_a_test(test, "THREAT_MODEL.md"));
}

/// Each "yes" in the comparison names a test, or a script that CI runs.
#[test]
fn every_yes_of_the_comparison_names_its_test() {
    let page = read(&root().join("docs/COMPARISON.md"));
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| {
            line.starts_with("| ") && line[2..].starts_with(|c: char| c.is_ascii_digit())
        })
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for row in rows {
        let ours = row[2];
        assert!(row.len() == 9 && ours.starts_with(['Y', 'P', 'N']), "{row:?}");
        if !ours.starts_with('Y') {
            continue;
        }
        let shown_by = ours.split('`').nth(1).unwrap_or_else(|| panic!("no test: {row:?}"));
        match shown_by.strip_prefix("scripts/") {
            Some(script) => assert!(root().join("scripts").join(script).exists(), "{row:?}"),
            None => must_be_a_test(shown_by, "COMPARISON.md"),
        }
    }
}

#[test]
fn every_row_of_durability_md_has_its_test() {
    let page = read(&root().join("docs/DURABILITY.md"));
    let mut named = 0;
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let test = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or("").trim();
        if test == "test" || test.starts_with("---") {
            continue;
        }
        must_be_a_test(test.trim_matches('`'), line);
        named += 1;
    }
    assert!(named >= 14, "{named} lines");
    // Each tested promise is on the page.
    for test in tests(&module("durability::contract").expect("the contract")) {
        assert!(
            page.contains(&format!("`durability::contract::{test}`")),
            "the page does not name {test}"
        );
    }
}

/// The journeys of DESIGN.md, and every other file of the source that a page names, exist.
#[test]
fn every_source_file_that_a_page_names_exists() {
    let mut named = 0;
    for page in ["DESIGN.md", "CONTRIBUTING.md", "SPEC.md", "THREAT_MODEL.md"] {
        let text = read(&root().join(page));
        let words = text.split(|c: char| c.is_whitespace() || "`(),".contains(c));
        for word in words.map(|word| word.trim_end_matches(['.', ':', ';'])) {
            let in_journey = word.ends_with(".rs") && word.matches('/').count() > 1;
            let path = match word.strip_prefix("src/") {
                Some(path) => path,
                None if in_journey && !word.starts_with("tests/") => word,
                None => continue,
            };
            assert!(root().join("src").join(path).exists(), "{page} names {word}");
            named += 1;
        }
    }
    assert!(named > 30, "{named} files");
}

/// Returns whether a source file has unit tests.
fn has_unit_tests(path: &str) -> bool {
    path.starts_with("src/")
        && root().join(path).exists()
        && read(&root().join(path)).contains("#[test]")
}

/// Each row of a table names its tests, except in the table of what the storage host sees: that is
/// the format, which SPEC.md describes and tests/format checks.
#[test]
fn each_row_of_the_threat_model_names_a_test() {
    let page = read(&root().join("THREAT_MODEL.md"));
    let binaries = binaries();
    let mut rows = 0;
    let mut header = "";
    for line in page.lines() {
        if !line.starts_with('|') {
            header = "";
            continue;
        }
        let is_header = header.is_empty();
        if is_header {
            header = line;
        }
        if is_header || line.starts_with("|---") || header == "| what | how exactly |" {
            continue;
        }
        let last = line.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or("");
        let has_source = last.split('`').any(has_unit_tests);
        assert!(has_source || !named(last, &binaries).is_empty(), "{line}");
        rows += 1;
    }
    assert!(rows >= 70, "{rows} rows");
}

#[test]
fn names_of_tests_are_short() {
    let mut sources = Vec::new();
    files(&root().join("tests"), ".rs", &mut sources);
    files(&root().join("src"), ".rs", &mut sources);
    let mut count = 0;
    for source in sources {
        for test in tests(&read(&source)) {
            let len = test.len();
            assert!(len <= LONGEST_NAME, "{}: {test} has {len} characters", source.display());
            count += 1;
        }
    }
    assert!(count > 500, "{count} tests are not all of them");
}

/// A test that starts its own binary again passes the name of a test to it. If no test has that
/// name, the child runs nothing and succeeds.
#[test]
fn tests_that_are_run_as_children_exist() {
    let mut found = 0;
    for binary in binaries() {
        let mut sources = Vec::new();
        files(&root().join("tests").join(&binary), ".rs", &mut sources);
        for source in sources.iter().filter(|source| *source != &root().join(file!())) {
            for child in read(source).split("\"--exact\", \"").skip(1) {
                let test = child.split('"').next().expect("the name of a test");
                must_be_a_test(&format!("{binary}::{test}"), &source.display().to_string());
                found += 1;
            }
        }
    }
    assert!(found >= 6, "{found} of them");
}

#[test]
fn tests_on_real_files_start_no_program() {
    for binary in START_NO_PROGRAM {
        let mut sources = Vec::new();
        files(&root().join("tests").join(binary), ".rs", &mut sources);
        assert!(!sources.is_empty(), "{binary} has no tests");
        for source in sources {
            assert!(!read(&source).contains("Command::new("), "{}", source.display());
        }
    }
}

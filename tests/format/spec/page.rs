//! Parses SPEC.md: tables by the text before them, and the values of the worked example.

use std::collections::{BTreeMap, BTreeSet};

pub const PAGE: &str = include_str!("../../../SPEC.md");

/// Returns the rows of the first table after the only occurrence of `heading`, without the heading
/// row; each row as its trimmed cells.
pub fn table_after(heading: &str) -> Vec<Vec<String>> {
    assert_eq!(PAGE.matches(heading).count(), 1, "{heading} is on the page once");
    let rest = &PAGE[PAGE.find(heading).unwrap()..];
    let lines = rest
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> = lines.skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "a table follows {heading}");
    rows
}

/// Returns the names of all tables that are marked as byte tables of this version.
pub fn byte_tables() -> BTreeSet<String> {
    PAGE.lines()
        .filter_map(|line| {
            Some(line.strip_prefix("<!-- bytes: ")?.strip_suffix(" -->")?.to_owned())
        })
        .collect()
}

/// Returns the number at the beginning of a cell ("3221225472 (3 GiB)").
pub fn number(cell: &str) -> u64 {
    let digits: String = cell.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{cell:?} begins with a number"))
}

/// Returns the `name = value` lines of the worked example; lines that begin with a space continue
/// the previous value.
pub fn example() -> BTreeMap<String, String> {
    let section = &PAGE[PAGE.find("## 13 ").unwrap()..];
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for block in section.split("```").skip(1).step_by(2) {
        for line in block.lines().skip(1) {
            if line.starts_with(' ') {
                let name: &String = last.as_ref().expect("a value goes on");
                values.get_mut(name).unwrap().push_str(line.trim());
            } else {
                let (name, value) =
                    line.split_once(" = ").unwrap_or_else(|| panic!("{line:?} is name = value"));
                assert!(
                    values.insert(name.to_owned(), value.to_owned()).is_none(),
                    "{name} occurs twice"
                );
                last = Some(name.to_owned());
            }
        }
    }
    values
}

//! The length of functions: each fits on a screen or two.

use std::fs;
use std::path::Path;

use crate::rooms::files_below;

/// Maximum number of lines from the signature to the closing brace.
const LINES_MAX: usize = 80;

/// Functions that may be longer: each is one flat match or one table.
const FLAT: &[(&str, &str)] = &[
    ("cli/args/mod.rs", "each_spelling_of_the_manual_is_understood"),
    ("cli/report/mod.rs", "from"),
    ("cli/report/mod.rs", "hint"),
    ("fuse/dispatch/dispatcher.rs", "call"),
    ("fuse/protocol/request.rs", "decode"),
];

/// Returns the name of the function that a line begins to define.
fn defined(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_qualified = before.split_whitespace().all(|word| {
        word.starts_with("pub")
            || matches!(word, "const" | "async" | "unsafe" | "in")
            || word.ends_with(')')
    });
    is_qualified.then(|| after.split(|c| !is_word(c)).next()).flatten()
}

/// Returns name and number of lines of each function with a body, as rustfmt sets it.
fn lengths(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = defined(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        // The first line at the same depth that is not part of the signature ends it.
        let is_signature = |line: &str| line.trim_start().starts_with([')', 'w', '{']);
        let is_end = |line: &&&str| {
            let is_here = line.starts_with(indent) && !line[indent.len()..].starts_with(' ');
            is_here && !line[indent.len()..].is_empty() && !is_signature(line)
        };
        let is_short = line.ends_with('}') || line.ends_with(';');
        let rest = if is_short { None } else { lines[first + 1..].iter().position(|l| is_end(&l)) };
        if let Some(rest) = rest
            && lines[first + 1 + rest].trim() == "}"
        {
            found.push((name, rest + 2));
        }
    }
    found
}

#[test]
fn no_function_is_longer_than_80_lines() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files_below(&src, &mut paths);
    let (mut long, mut functions) = (Vec::new(), 0);
    for path in &paths {
        let text = fs::read_to_string(path).expect("UTF-8");
        let path = path.strip_prefix(&src).expect("below src").to_str().expect("UTF-8");
        for (name, lines) in lengths(&text) {
            functions += 1;
            if lines > LINES_MAX {
                long.push((path.to_owned(), name.to_owned()));
            }
        }
    }
    assert!(functions > 3000, "{functions} functions: that is not the whole source");
    let flat: Vec<_> =
        FLAT.iter().map(|(path, name)| (path.to_string(), name.to_string())).collect();
    assert_eq!(long, flat, "longer than {LINES_MAX} lines, and listed as such");
}

#[test]
fn lengths_of_functions_are_counted() {
    let text = "impl A {\n    fn short(&self) {}\n    fn declared(\n        a: u8,\n    ) -> u8;\n    \
                pub(in crate::vault) const fn long(\n        &self,\n    ) -> u8\n    where\n        \
                A: B,\n    {\n        if a {\n        }\n\n        1\n    }\n}\n\nfn free() {\n    a\n}\n";
    assert_eq!(lengths(text), [("long", 11), ("free", 3)]);
}

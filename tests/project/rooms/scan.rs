//! Reads Rust source far enough to know which paths it names. No compiler, no macros expanded.
//!
//! Rules that hold here
//! * Comments are gone and literals are set apart before anything is looked for, so prose never
//!   counts as code.
//! * What stands under `#[cfg(test)]` is cut out; what the scanner cannot judge is an error and not
//!   silence.
//! * A path is followed through `self`, `super` and the names that the file's own `use` lines give.

use std::collections::HashMap;

/// A piece of source that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Identifier, keyword or number.
    Word(String),
    /// The inside of a string literal, as written.
    Text(String),
    /// `::`
    Sep,
    /// Any other character.
    Mark(char),
}

/// A token and the number of the line that it stands in, from 1.
pub type Placed = (usize, Token);

/// Splits source into tokens, without comments, character literals and lifetimes.
pub fn tokens(source: &str) -> Vec<Placed> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut i, mut line) = (Vec::new(), 0, 1);
    while i < chars.len() {
        let (start, first_line) = (i, line);
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                found.push((
                    first_line,
                    Token::Text(chars[start + 1..i.min(chars.len())].iter().collect()),
                ));
                i += 1;
            }
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            '\'' => {
                i += 1;
                while is_word(at(i)) {
                    i += 1;
                }
            }
            ':' if at(i + 1) == ':' => {
                found.push((line, Token::Sep));
                i += 2;
            }
            c if is_word(c) => {
                while is_word(at(i)) {
                    i += 1;
                }
                let word: String = chars[start..i].iter().collect();
                let hashes = (i..).take_while(|&k| at(k) == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                    let from = i + hashes + 1;
                    let closes = |k: usize| at(k) == '"' && (1..=hashes).all(|h| at(k + h) == '#');
                    let to = (from..chars.len()).find(|&k| closes(k)).unwrap_or(chars.len());
                    found.push((first_line, Token::Text(chars[from..to].iter().collect())));
                    i = to + hashes + 1;
                } else if word == "r" && hashes == 1 {
                    i += 1;
                } else {
                    found.push((line, Token::Word(word)));
                }
            }
            c => {
                if !c.is_whitespace() {
                    found.push((line, Token::Mark(c)));
                }
                i += 1;
            }
        }
        line += chars[start..i.min(chars.len())].iter().filter(|&&c| c == '\n').count();
    }
    found
}

/// The source without its tests, and what was cut but lies in files of its own.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// What is left.
    pub code: Vec<Placed>,
    /// Names of modules of `#[cfg(test)] mod name;`.
    pub test_files: Vec<String>,
}

/// Position after the bracket that closes the one at `open`.
fn after_group(code: &[Placed], open: usize) -> usize {
    let mut depth = 0;
    for (i, (_, token)) in code.iter().enumerate().skip(open) {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    code.len()
}

/// True for the attribute `#[...]` at `i` that keeps an item out of builds that are not tests.
fn is_test_only(code: &[Placed], i: usize) -> bool {
    let end = after_group(code, i + 1);
    let words: Vec<&str> = code[i..end]
        .iter()
        .filter_map(|(_, t)| if let Token::Word(w) = t { Some(w.as_str()) } else { None })
        .collect();
    matches!(words[..], ["cfg", "test"])
        || matches!(words[..], ["cfg", "all", ..] if words.contains(&"test") && !words.contains(&"not"))
}

/// Takes out every item under `#[cfg(test)]`.
///
/// # Errors
/// Such an attribute on something that is not an item.
pub fn without_tests(all: &[Placed]) -> Result<Cut, String> {
    const ITEMS: [&str; 13] = [
        "mod",
        "use",
        "fn",
        "const",
        "static",
        "struct",
        "enum",
        "impl",
        "trait",
        "type",
        "macro_rules",
        "unsafe",
        "extern",
    ];
    let is_attribute = |i: usize| {
        all.get(i).map(|t| &t.1) == Some(&Token::Mark('#'))
            && all.get(i + 1).map(|t| &t.1) == Some(&Token::Mark('['))
    };
    let (mut cut, mut i) = (Cut::default(), 0);
    while i < all.len() {
        if !(is_attribute(i) && is_test_only(all, i)) {
            cut.code.push(all[i].clone());
            i += 1;
            continue;
        }
        let line = all[i].0;
        while is_attribute(i) {
            i = after_group(all, i + 1);
        }
        if all.get(i).map(|t| &t.1) == Some(&Token::Word("pub".into())) {
            i += 1;
            if all.get(i).map(|t| &t.1) == Some(&Token::Mark('(')) {
                i = after_group(all, i);
            }
        }
        match &all[i..] {
            [(_, Token::Word(word)), (_, Token::Word(name)), (_, Token::Mark(';')), ..]
                if word == "mod" =>
            {
                cut.test_files.push(name.clone())
            }
            [(_, Token::Word(word)), ..] if ITEMS.contains(&word.as_str()) => {}
            _ => return Err(format!("line {line}: #[cfg(test)] on something that is not an item")),
        }
        loop {
            match all.get(i).map(|t| &t.1) {
                None => break,
                Some(Token::Mark(';')) => {
                    i += 1;
                    break;
                }
                Some(Token::Mark('{')) => {
                    i = after_group(all, i);
                    break;
                }
                Some(Token::Mark('(' | '[')) => i = after_group(all, i),
                Some(_) => i += 1,
            }
        }
    }
    Ok(cut)
}

/// A path that the source names, from the crate's root (`crate::room::...`) or from another
/// crate's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Line, from 1.
    pub line: usize,
    /// Its parts.
    pub parts: Vec<String>,
}

/// A path as written: line, the module it is written in, parts, whether a `use` names it, and the
/// name that this gives.
struct Written {
    line: usize,
    module: Vec<String>,
    parts: Vec<String>,
    gives: Option<String>,
}

/// Reads the path tree at `i`; gives the position after it.
fn tree(
    code: &[Placed],
    mut i: usize,
    mut parts: Vec<String>,
    module: &[String],
    in_use: bool,
    out: &mut Vec<Written>,
) -> usize {
    let line = code.get(i).map_or(0, |t| t.0);
    loop {
        match code.get(i).map(|t| &t.1) {
            Some(Token::Word(word)) => {
                parts.push(word.clone());
                i += 1;
            }
            Some(Token::Mark('*')) => {
                parts.push("*".into());
                i += 1;
                break;
            }
            Some(Token::Mark('{')) => {
                let end = after_group(code, i);
                i += 1;
                while i < end - 1 {
                    i = match code[i].1 {
                        Token::Word(_) | Token::Mark('*') => {
                            tree(code, i, parts.clone(), module, in_use, out)
                        }
                        _ => i + 1,
                    };
                }
                return end;
            }
            _ => break,
        }
        let goes_on =
            matches!(code.get(i + 1).map(|t| &t.1), Some(Token::Word(_) | Token::Mark('*' | '{')));
        if code.get(i).map(|t| &t.1) != Some(&Token::Sep) || !goes_on {
            break;
        }
        i += 1;
    }
    if parts.len() > 1 && parts.last().is_some_and(|last| last == "self") {
        parts.pop();
    }
    let mut gives = parts.last().cloned();
    if let [(_, Token::Word(word)), (_, Token::Word(name)), ..] = &code[i.min(code.len())..]
        && word == "as"
        && in_use
    {
        gives = Some(name.clone());
        i += 2;
    }
    out.push(Written { line, module: module.to_vec(), parts, gives: gives.filter(|_| in_use) });
    i
}

/// All paths in `code` of the module `module` (`["crate", "room", ...]`).
pub fn paths(code: &[Placed], module: &[&str]) -> Vec<Named> {
    let mut here: Vec<String> = module.iter().map(|part| part.to_string()).collect();
    let (mut written, mut ends, mut depth, mut i) = (Vec::new(), Vec::new(), 0, 0);
    while i < code.len() {
        match (&code[i].1, code.get(i + 1).map(|t| &t.1)) {
            (Token::Word(word), Some(Token::Word(name)))
                if word == "mod" && code.get(i + 2).map(|t| &t.1) == Some(&Token::Mark('{')) =>
            {
                here.push(name.clone());
                ends.push(depth);
                i += 2;
            }
            (Token::Word(word), Some(_)) if word == "use" => {
                i += 1;
                while code[i].1 == Token::Sep {
                    i += 1;
                }
                i = tree(code, i, Vec::new(), &here, true, &mut written);
            }
            (Token::Word(_), Some(Token::Sep)) => {
                i = tree(code, i, Vec::new(), &here, false, &mut written)
            }
            (Token::Sep, _) => {
                let goes_on =
                    i > 0 && matches!(code[i - 1].1, Token::Word(_) | Token::Mark('>' | ')' | ']'));
                i += if goes_on { 2 } else { 1 };
            }
            (token, _) => {
                match token {
                    Token::Mark('{') => depth += 1,
                    Token::Mark('}') => {
                        depth -= 1;
                        if ends.last() == Some(&depth) {
                            ends.pop();
                            here.pop();
                        }
                    }
                    _ => {}
                }
                i += 1;
            }
        }
    }
    let mut known: HashMap<String, Vec<String>> = HashMap::new();
    for path in &written {
        if let Some(name) = &path.gives {
            known.insert(name.clone(), path.absolute(None));
        }
    }
    written
        .iter()
        .map(|path| Named {
            line: path.line,
            parts: path.absolute(if path.gives.is_some() { None } else { Some(&known) }),
        })
        .collect()
}

impl Written {
    fn absolute(&self, known: Option<&HashMap<String, Vec<String>>>) -> Vec<String> {
        let mut rest = &self.parts[..];
        let mut base = match rest.first().map(String::as_str) {
            Some("crate" | "kithfs") => vec!["crate".to_owned()],
            Some("self" | "super") => self.module.clone(),
            Some(head) => {
                if let Some(path) = known.and_then(|known| known.get(head)) {
                    return path.iter().chain(&rest[1..]).cloned().collect();
                }
                return self.parts.clone();
            }
            None => return Vec::new(),
        };
        if matches!(rest[0].as_str(), "crate" | "kithfs" | "self") {
            rest = &rest[1..];
        }
        while rest.first().is_some_and(|part| part == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        base
    }
}

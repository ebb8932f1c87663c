//! The rooms of the source, and which way they may depend.
//!
//! ```text
//! cli  ->  fuse  ->  vault  ->  { roster, format }  ->  crypto          vault -> store
//! ```
//!
//! Rules that hold here
//! * A room names only rooms below it: `roster` is above `format`; `fuse` names no layer that
//!   knows ciphers, and of `store` only plain types (such as a timestamp or the kind of a file),
//!   never the store.
//! * The sub-rooms of `vault` have an order; a sub-room names itself and those below it.
//! * `crypto`, `format` and `roster` are pure: no files, clocks, threads, environment or
//!   randomness except what the caller passes in. Of `std::io` they may use the types of errors.
//!   Test code is exempt.
//! * Ciphers are named only in `crypto`, the FUSE transport only in `fuse`, the terminal only in
//!   `cli`.
//! * Unsafe code is only in the files that are listed here, each with its reason. Advice to the
//!   user is only in `cli`.
//!
//! Source is read as text: comments, literals and items under `#[cfg(test)]` are blanked, `use`
//! lines are expanded, and every `a::b` is a path. The check does not implement the compiler's
//! rules, so forms that would hide a path (`use crate as x`, `#[path]`) are faults themselves.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms that it may name.
const ROOMS: &[(&str, &[&str])] = &[
    ("crypto", &[]),
    ("format", &["crypto"]),
    ("roster", &["format", "crypto"]),
    ("store", &[]),
    ("vault", &["roster", "format", "crypto", "store"]),
    ("fuse", &["vault", "store"]),
    ("cli", &["fuse", "vault", "roster", "format", "crypto", "store"]),
];

/// The sub-rooms of `vault`, from the lowest up. The files beside them: `error` and `types` are
/// below all, `mod` is above.
const SUB_ROOMS: &[&str] = &[
    "keyring",
    "share",
    "file",
    "durability",
    "core",
    "directory",
    "open_files",
    "namespace",
    "fsck",
    "rollback",
    "session",
    "membership",
];

/// Maximum number of files and folders in one folder of the source.
const ENTRIES_MAX: usize = 15;

/// What `fuse` may use of `store`.
const PLAIN: &[&str] =
    &["Kind", "Lock", "RenameMode", "Seek", "SetTime", "Space", "Span", "Stat", "Timestamp"];

const PURE: &[&str] = &["crypto", "format", "roster"];

/// Parts of `std` that reach outside; the pure rooms may not use them.
const OUTSIDE: &[&str] = &["env", "fs", "net", "os", "path", "process", "random", "thread"];

/// Crates that the pure rooms may name: they only compute. (rayon computes on several cores.)
const COMPUTE: &[&str] = &[
    "aes",
    "argon2",
    "aws_lc_rs",
    "base64",
    "bech32",
    "blake3",
    "chacha20",
    "chacha20poly1305",
    "ed25519_dalek",
    "hex",
    "hkdf",
    "hmac",
    "polyval",
    "rayon",
    "ring",
    "serde",
    "sha2",
    "subtle",
    "thiserror",
    "x25519_dalek",
    "zeroize",
];

/// Crates that belong to one room.
const OWNED: &[(&str, &str)] = &[
    ("aes", "crypto"),
    ("argon2", "crypto"),
    ("aws_lc_rs", "crypto"),
    ("chacha20", "crypto"),
    ("chacha20poly1305", "crypto"),
    ("ed25519_dalek", "crypto"),
    ("hkdf", "crypto"),
    ("hmac", "crypto"),
    ("polyval", "crypto"),
    ("ring", "crypto"),
    ("sha2", "crypto"),
    ("x25519_dalek", "crypto"),
    ("redb", "vault"),
    ("fuser", "fuse"),
    ("io_uring", "fuse"),
    ("anstream", "cli"),
    ("anstyle", "cli"),
    ("clap", "cli"),
    ("clap_complete", "cli"),
    ("clap_mangen", "cli"),
    ("indicatif", "cli"),
    ("qrcode", "cli"),
    ("rpassword", "cli"),
    ("sd_notify", "cli"),
    ("toml_edit", "cli"),
    ("tracing_subscriber", "cli"),
    ("zxcvbn", "cli"),
];

/// Files with unsafe code, and the reason for each.
const UNSAFE: &[(&str, &str)] = &[
    ("crypto/heap.rs", "an allocator, which overwrites what is freed"),
    (
        "crypto/hctr2/wide.rs",
        "vector instructions, called where the processor has them, and their loads and stores",
    ),
    (
        "store/os/sys.rs",
        "system calls that neither std nor rustix has: fchmodat2, getxattrat, setxattrat, removexattrat, sync_file_range, fcntl for locks of an open file description",
    ),
    ("fuse/transport/serve.rs", "a descriptor that was lent to the transport is taken back"),
    (
        "fuse/transport/uring/memory.rs",
        "memory that the kernel writes requests to and reads answers from",
    ),
    ("fuse/transport/uring/ring.rs", "commands for io_uring, whose memory must outlive them"),
    ("fuse/mount/abort.rs", "close_range(2), for which rustix has no wrapper"),
    ("cli/daemon/fork.rs", "fork, to go to the background, and _exit"),
    ("cli/terminal/echo.rs", "a handler of signals, which makes system calls only"),
    ("cli/secrets/source.rs", "a descriptor that the user names by its number"),
];

/// A file of the source.
struct Source {
    /// Relative to `src`.
    path: String,
    text: String,
    /// Line and path of everything that is named outside tests.
    named: Vec<(usize, Vec<String>)>,
}

/// Returns the path of the module in a file: `crate`, the room, and so on.
fn module_of(path: &str) -> Vec<&str> {
    let inner = path.trim_end_matches(".rs").split('/');
    ["crate"].into_iter().chain(inner.filter(|p| !matches!(*p, "mod" | "lib" | "main"))).collect()
}

pub(super) fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
}

/// Returns the text with blanks for comments and, unless `keep` is set, for the insides of
/// literals.
fn blanked(text: &str, keep: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut i) = (String::with_capacity(text.len()), 0);
    while i < chars.len() {
        let hashes = (i + 1..).take_while(|&k| at(k) == '#').count();
        let is_raw = at(i) == 'r' && at(i + 1 + hashes) == '"' && (i == 0 || !is_word(at(i - 1)));
        let (end, is_literal) = match at(i) {
            '/' if at(i + 1) == '/' => {
                ((i..chars.len()).find(|&k| at(k) == '\n').unwrap_or(chars.len()), false)
            }
            '/' if at(i + 1) == '*' => {
                let (mut depth, mut k) = (1, i + 2);
                while depth > 0 && k < chars.len() {
                    match (at(k), at(k + 1)) {
                        ('/', '*') => (depth, k) = (depth + 1, k + 2),
                        ('*', '/') => (depth, k) = (depth - 1, k + 2),
                        _ => k += 1,
                    }
                }
                (k, false)
            }
            'r' if is_raw => {
                let closes = |k: usize| at(k) == '"' && (1..=hashes).all(|h| at(k + h) == '#');
                let from = i + hashes + 2;
                let last = (from..chars.len()).find(|&k| closes(k)).unwrap_or(chars.len());
                (last + hashes + 1, true)
            }
            '"' => {
                let mut k = i + 1;
                while k < chars.len() && at(k) != '"' {
                    k += if at(k) == '\\' { 2 } else { 1 };
                }
                (k + 1, true)
            }
            '\'' if at(i + 1) == '\\' => {
                ((i + 3..chars.len()).find(|&k| at(k) == '\'').unwrap_or(chars.len()) + 1, true)
            }
            '\'' if at(i + 2) == '\'' => (i + 3, true),
            c => {
                out.push(c);
                i += 1;
                continue;
            }
        };
        let end = end.min(chars.len());
        let shown = |c: char| if c == '\n' || is_literal && keep { c } else { ' ' };
        out.extend(chars[i..end].iter().map(|&c| shown(c)));
        i = end;
    }
    out
}

/// Blanks items under `#[cfg(test)]`; returns the names of test modules in files of their own.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut out, mut files) = (code.to_owned(), Vec::new());
    let mut from = 0;
    while let Some(begin) = out[from..].find("#[cfg(").map(|i| i + from) {
        let attribute_end = begin + out[begin..].find(']').expect("an attribute ends");
        from = attribute_end;
        let attribute = &out[begin..attribute_end];
        let is_test = attribute.contains("test") && !attribute.contains("not(test)");
        if !is_test {
            continue;
        }
        let (mut depth, mut end) = (0, out.len());
        for (i, c) in out[attribute_end + 1..].char_indices() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            let is_end = matches!(c, ';' | ',' | '}') && depth == 0 || depth < 0;
            if is_end {
                end = attribute_end + 1 + i + usize::from(depth == 0);
                break;
            }
        }
        let item = out[attribute_end + 1..end].trim();
        if let Some(name) = item.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
            files.push(name.to_owned());
        }
        let blank: String =
            out[begin..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        out = format!("{}{blank}{}", &out[..begin], &out[end..]);
    }
    (out, files)
}

/// Expands a `use` tree into paths, each with the name that it introduces.
fn expand(before: &[String], tree: &str, found: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    let segments = |text: &str| -> Vec<String> {
        let parts = text.split("::").map(|part| part.trim().to_owned());
        before.iter().cloned().chain(parts.filter(|part| !part.is_empty())).collect()
    };
    let Some((head, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path = segments(path);
        path.pop_if(|last| last == "self" && !before.is_empty());
        let name = if alias.is_empty() { path.last().map_or("", |s| s) } else { alias.trim() };
        let name = name.to_owned();
        found.push((path, name));
        return;
    };
    let (head, mut depth, mut begin) = (segments(head), 0, 0);
    let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
    for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[begin..i].trim().is_empty() {
                    expand(&head, &group[begin..i], found);
                }
                begin = i + 1;
            }
            _ => {}
        }
    }
}

/// Returns every path in blanked code of `module`, from the crate's root if it begins in the crate.
fn paths(code: &str, module: &[&str]) -> Vec<(usize, Vec<String>)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let absolute = |path: Vec<String>| -> Vec<String> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (above, rest) = match path.first().map(String::as_str) {
            Some("self") => (0, 1),
            Some("super") => (supers, supers),
            _ => return path,
        };
        let kept = module.len().saturating_sub(above).max(1);
        module[..kept].iter().map(|m| m.to_string()).chain(path[rest..].iter().cloned()).collect()
    };
    let (mut found, mut names) = (Vec::new(), HashMap::new());
    let mut rest = String::new();
    let mut at = 0;
    while let Some(i) = code[at..].find("use ").map(|i| i + at) {
        let begins = code[..i].chars().next_back().is_none_or(|c| !is_word(c));
        let end = code[i..].find(';').map_or(code.len(), |e| i + e);
        let next = if begins { end } else { i + 4 };
        if begins {
            rest.push_str(&code[at..i]);
            let mut tree = Vec::new();
            expand(&[], &code[i + 4..end], &mut tree);
            let line = code[..i].matches('\n').count() + 1;
            for (path, name) in tree {
                let path = absolute(path);
                names.insert(name, path.clone());
                found.push((line, path));
            }
            rest.extend(code[i..end].chars().filter(|c| *c == '\n'));
        } else {
            rest.push_str(&code[at..next]);
        }
        at = next;
    }
    rest.push_str(&code[at..]);
    for (number, line) in rest.lines().enumerate() {
        for text in line.split(|c: char| !is_word(c) && c != ':' && c != '$') {
            let text = text.trim_matches(':').trim_start_matches('$');
            if !text.contains("::") {
                continue;
            }
            let mut path: Vec<String> = text.split("::").map(str::to_owned).collect();
            if let Some(whole) = names.get(&path[0]) {
                path.splice(..1, whole.iter().cloned());
            }
            found.push((number + 1, absolute(path)));
        }
    }
    found
}

/// Reads `(path, text)` pairs; a test file names nothing that counts.
fn read(files: Vec<(String, String)>) -> Vec<Source> {
    let mut tests: Vec<String> = Vec::new();
    let mut cut = Vec::new();
    for (path, text) in files {
        let (code, own_tests) = without_tests(&blanked(&text, false));
        let module = module_of(&path).join("::");
        tests.extend(own_tests.iter().map(|name| format!("{module}::{name}")));
        cut.push((path, text, code));
    }
    let is_test = |path: &str| {
        let module = module_of(path).join("::");
        tests.iter().any(|test| module == *test || module.starts_with(&format!("{test}::")))
    };
    let source = |(path, text, code): (String, String, String)| {
        let named = if is_test(&path) { Vec::new() } else { paths(&code, &module_of(&path)) };
        Source { path, text, named }
    };
    cut.into_iter().map(source).collect()
}

fn sources() -> Vec<Source> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files_below(&src, &mut found);
    let name = |path: &PathBuf| {
        path.strip_prefix(&src).expect("below src").to_str().expect("UTF-8").to_owned()
    };
    read(found.iter().map(|path| (name(path), fs::read_to_string(path).expect("UTF-8"))).collect())
}

/// Returns the fault of a path that `room` names, if there is one.
fn fault(room: &str, parts: &[&str], crates: &BTreeSet<String>) -> Option<String> {
    let pure = PURE.contains(&room);
    match parts {
        ["crate"] | ["crate", "*"] => Some("names all rooms at once".into()),
        ["crate", to, rest @ ..] => {
            let (_, below) = ROOMS.iter().find(|(name, _)| *name == room)?;
            if *to == room {
                None
            } else if !ROOMS.iter().any(|(name, _)| name == to) {
                Some(format!("{to} is not a room; name a thing by the room that it is in"))
            } else if !below.contains(to) {
                Some(format!("the arrow {room} -> {to} points up"))
            } else if (room, *to) == ("fuse", "store")
                && !rest.first().is_some_and(|item| PLAIN.contains(item))
            {
                Some(format!("fuse takes plain types of the store only: {}", PLAIN.join(", ")))
            } else {
                None
            }
        }
        ["std" | "core" | "alloc"] | ["std" | "core" | "alloc", "*"] if pure => {
            Some("names all of the library at once".into())
        }
        ["std", part, ..] if pure && OUTSIDE.contains(part) => {
            Some(format!("std::{part} in a pure room"))
        }
        ["std", "time"] | ["std", "time", "SystemTime" | "Instant" | "UNIX_EPOCH" | "*", ..]
            if pure =>
        {
            Some("a clock in a pure room".into())
        }
        ["std", "io", part, ..] if pure && !matches!(*part, "Error" | "ErrorKind" | "Result") => {
            Some(format!("std::io::{part} in a pure room"))
        }
        ["ring" | "aws_lc_rs"] | ["ring" | "aws_lc_rs", "rand" | "*", ..] if pure => {
            Some("randomness in a pure room".into())
        }
        [head, ..] if crates.contains(*head) => {
            let owner = OWNED.iter().find(|(name, _)| name == head).map(|(_, owner)| *owner);
            if owner.is_some_and(|owner| owner != room) {
                Some(format!("{head} belongs to {}", owner.unwrap_or_default()))
            } else if pure && !COMPUTE.contains(head) {
                Some(format!("{head} in a pure room"))
            } else {
                None
            }
        }
        _ => None,
    }
}

/// Returns the crates that may be named, as they are spelled in code: the dependencies of
/// Cargo.toml.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            names.insert(name.trim().replace('-', "_"));
        }
    }
    names
}

/// Returns the fault if a file of `vault` may not name another part of it.
fn sub_room_fault(path: &str, parts: &[&str]) -> Option<String> {
    let (["crate", "vault", to, ..], Some(own)) = (parts, path.strip_prefix("vault/")) else {
        return None;
    };
    let height = |name: &str| SUB_ROOMS.iter().position(|room| *room == name).map(|i| i + 1);
    let from = match own.split_once('/') {
        Some((room, _)) => room,
        None if own == "mod.rs" => return None,
        None => own.trim_end_matches(".rs"),
    };
    let floor = |name| if matches!(name, "error" | "types") { Some(0) } else { height(name) };
    match (floor(from), floor(to)) {
        (Some(from), Some(to)) if to <= from => None,
        (Some(_), Some(_)) => Some(format!("the arrow vault/{from} -> vault/{to} points up")),
        (None, _) => Some(format!("vault/{from} has no place in the order of sub-rooms")),
        (_, None) => Some(format!("{to} is no sub-room; name a thing by the one that it is in")),
    }
}

fn arrows(sources: &[Source], crates: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| s.path != "lib.rs") {
        let room = if source.path == "main.rs" { "main" } else { module_of(&source.path)[1] };
        for (line, named) in &source.named {
            let parts: Vec<&str> = named.iter().map(String::as_str).collect();
            let why = match (room, &parts[..]) {
                ("main", ["crate", to, ..]) if *to != "cli" => {
                    Some(format!("main -> {to}: main starts cli and nothing else"))
                }
                _ => fault(room, &parts, crates).or_else(|| sub_room_fault(&source.path, &parts)),
            };
            if let Some(why) = why {
                faults.push(format!("src/{}:{line}: {}: {why}", source.path, parts.join("::")));
            }
        }
    }
    faults
}

#[test]
fn each_room_names_only_those_below_it_and_pure_crates() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .expect("Cargo.toml");
    let (sources, crates) = (sources(), dependencies(&manifest));
    for name in OWNED.iter().map(|(name, _)| name).chain(COMPUTE) {
        assert!(crates.contains(*name), "{name} is listed here, but not in Cargo.toml");
    }
    let named: usize = sources.iter().map(|s| s.named.len()).sum();
    assert!(
        sources.len() > 50 && named > 1000,
        "{} files and {named} paths: that is not the whole source",
        sources.len()
    );
    let faults = arrows(&sources, &crates);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_file_is_in_a_room() {
    let sources = sources();
    for Source { path, .. } in &sources {
        let known = matches!(path.as_str(), "lib.rs" | "main.rs")
            || ROOMS.iter().any(|(room, _)| path.starts_with(&format!("{room}/")));
        assert!(known, "src/{path}: a new room needs a place in this test's table");
    }
    let mut entries: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for path in sources.iter().map(|s| s.path.as_str()) {
        for (i, _) in path.match_indices('/') {
            let entry = path[i + 1..].split('/').next().expect("a name");
            entries.entry(&path[..i]).or_default().insert(entry);
        }
    }
    for (folder, entries) in entries {
        assert!(entries.len() <= ENTRIES_MAX, "src/{folder} holds {} entries", entries.len());
    }
}

/// Returns the violations of the rules for every file, with file and line.
fn manners(sources: &[Source]) -> Vec<String> {
    let unfinished =
        [concat!("TO", "DO"), concat!("FIX", "ME"), "unimplemented!", concat!("to", "do!")];
    let mut faults = Vec::new();
    for Source { path, text, .. } in sources {
        let (code, literals) = (blanked(text, false), blanked(text, true));
        let listed = UNSAFE.iter().any(|(file, _)| file == path);
        let mut uses_unsafe = false;
        let lines = text.lines().zip(code.lines().zip(literals.lines()));
        for (number, (line, (code, literals))) in lines.enumerate() {
            let mut fault = |why: &str| faults.push(format!("src/{path}:{}: {why}", number + 1));
            if let Some(word) = unfinished.iter().find(|word| line.contains(*word)) {
                fault(word);
            }
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| word == "unsafe") {
                uses_unsafe = true;
                if !listed {
                    fault("unsafe code in a file that is not listed");
                }
            }
            let in_literals = literals.matches("hint:").count() > code.matches("hint:").count();
            if in_literals && !path.starts_with("cli/") {
                fault("advice outside cli");
            }
            if code.contains("#[path") {
                fault("#[path] hides the room of a file");
            }
            if code.contains("use crate as") || code.contains("use std as") {
                fault("a name for all rooms, or all of std, hides what is named");
            }
        }
        if listed && !uses_unsafe {
            faults.push(format!("src/{path}: listed as unsafe, but it is not"));
        }
    }
    faults
}

#[test]
fn unsafe_code_and_hints_are_only_where_listed() {
    let faults = manners(&sources());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Invented sources in which the check must find something: the file, its text, and the number of
/// faulty paths or lines.
const MADE_UP: &[(&str, &str, usize)] = &[
    // Rooms.
    ("store/a.rs", "use crate::vault::Thing;", 1),
    ("store/a.rs", "fn f() { crate::crypto::f(); }", 1),
    ("fuse/a.rs", "fn f() { crate::crypto::f(); crate::roster::f(); crate::format::f(); }", 3),
    ("format/a.rs", "use crate::store::Kind;", 1),
    ("main.rs", "fn main() { kithfs::cli::main() }", 0),
    ("main.rs", "fn main() { crate::vault::main() }", 1),
    ("fuse/a.rs", "use crate::store::{Kind, Timestamp}; fn f() -> crate::store::Space {}", 0),
    ("fuse/a.rs", "use crate::store::{Kind, os::open};", 1),
    ("fuse/a.rs", "use crate::store::Dir; use crate::store; use crate::store::*;", 3),
    // Other ways to write a path.
    ("format/a.rs", "use crate::{\n    crypto::Suite,\n    vault::{self, Vault},\n};", 2),
    ("format/a.rs", "use super::super::vault::Vault;", 1),
    ("format/a.rs", "fn f(v: &crate::vault::Vault) {}", 1),
    ("format/a.rs", "type T = Vec<crate::vault::Node>;", 1),
    ("format/a.rs", "use crate as all;", 2),
    ("format/a.rs", "use crate::*;", 1),
    ("format/a.rs", "use crate::Vault;", 1),
    ("format/a.rs", "macro_rules! m { () => { $crate::vault::f() } }", 1),
    ("format/a.rs", "pub(in crate::vault) fn f() {}", 1),
    ("format/a.rs", "fn f() { <crate::vault::Vault as Drop>::drop(x) }", 1),
    ("format/a.rs", "fn f() { g::<crate::vault::Vault>() }", 1),
    ("format/a.rs", "#[cfg(not(test))] use crate::vault::Vault;", 1),
    ("format/a.rs", "#[cfg(test)] mod tests { } use crate::vault::Vault;", 1),
    ("format/a.rs", "#[cfg(test)] use crate::vault::A;\nuse crate::vault::B;", 1),
    // Prose, literals and tests are ignored.
    ("format/a.rs", "//! See [`crate::vault`].", 0),
    ("format/a.rs", "/* crate::vault::x /* nested crate::vault::x */ crate::vault::y */", 0),
    ("format/a.rs", "const S: &str = \"crate::vault::x \\\" std::fs::y\";", 0),
    ("format/a.rs", "const S: &str = r#\"crate::vault::x \" std::fs::y\"#;", 0),
    (
        "format/a.rs",
        "fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' || \"std::fs::x\" == c }",
        0,
    ),
    (
        "format/a.rs",
        "#[cfg(test)]\nmod tests { use crate::vault::V; fn f() { std::fs::read(\"{\"); } }",
        0,
    ),
    ("format/a.rs", "#[cfg(test)] pub(crate) fn f(a: [u8; 2]) { std::env::args(); }", 0),
    (
        "format/a.rs",
        "#[cfg(all(test, unix))] #[allow(dead_code)] use crate::{vault::Vault, fuse};",
        0,
    ),
    // Sub-rooms of the vault.
    ("vault/file/a.rs", "use crate::vault::session::Vault;", 1),
    ("vault/file/a.rs", "use super::super::namespace::f;", 1),
    ("vault/file/a.rs", "use super::read; use crate::vault::{error::Fault, keyring::keys};", 0),
    ("vault/file/a.rs", "use crate::vault::Vault;", 1),
    ("vault/error.rs", "use crate::vault::keyring::keys;", 1),
    ("vault/types.rs", "use crate::vault::error::Fault;", 0),
    ("vault/mod.rs", "pub use crate::vault::membership::share::Share;", 0),
    ("vault/new.rs", "use crate::vault::error::Fault;", 1),
    // Paths that reach outside a pure room.
    ("crypto/a.rs", "use std::fs; use std::fs::File; use std::{fmt, fs as files};", 3),
    ("roster/a.rs", "fn f() { std::env::var(\"X\"); ::std::thread::spawn(g); }", 2),
    ("format/a.rs", "use std::time::{Duration, Instant}; use std::time::SystemTime;", 2),
    ("format/a.rs", "use std::time; fn f() { time::Instant::now() }", 2),
    ("format/a.rs", "use std::io::File; use std::io::*;", 2),
    ("format/a.rs", "use std::io; fn f() { io::stdin() }", 1),
    ("format/a.rs", "use std as s;", 2),
    ("format/a.rs", "fn f() { libc::getpid() }", 1),
    ("crypto/a.rs", "use ring::rand::SystemRandom; use ring::{aead, rand};", 2),
    ("format/a.rs", "use std::io::{self, Error, Result}; use std::{sync::Arc, time::Duration};", 0),
    ("store/a.rs", "use std::fs; use std::time::Instant; fn f() { libc::getpid() }", 0),
    // A crate stays in its room.
    ("vault/error.rs", "use sha2::Sha256; use fuser::Session;", 2),
    ("crypto/a.rs", "use sha2::Sha256; fn f() { x25519_dalek::x25519() }", 0),
    ("fuse/a.rs", "use fuser::Session; fn f() { libc::getpid() }", 0),
    // Manners.
    ("vault/error.rs", "fn f() { unsafe { g() } }", 1),
    ("vault/error.rs", "#![deny(unsafe_op_in_unsafe_fn)] // unsafe", 0),
    ("fuse/transport/serve.rs", "fn f() { unsafe { g() } }", 0),
    ("fuse/transport/serve.rs", "fn f() {}", 1),
    ("vault/error.rs", "fn f() {\n    unimplemented!()\n}", 1),
    ("vault/error.rs", "const A: &str = \"hint: try again\"; struct S { hint: u8 }", 1),
    ("cli/a.rs", "const A: &str = \"hint: try again\";", 0),
    ("vault/error.rs", "#[path = \"../cli/b.rs\"] mod b;", 1),
];

#[test]
fn each_fault_is_found_in_invented_sources() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nlibc = \"1\"\nfuser = \"1\"\n\
                    ring = \"1\"\nsha2 = \"1\"\nx25519-dalek = \"3\"\n[dev-dependencies]\nhex = \"1\"\n";
    let crates = dependencies(manifest);
    assert_eq!(
        crates.iter().collect::<Vec<_>>(),
        ["fuser", "libc", "ring", "sha2", "x25519_dalek"]
    );
    for (path, text, faults) in MADE_UP {
        let sources = read(vec![(path.to_string(), text.to_string())]);
        let found = [arrows(&sources, &crates), manners(&sources)].concat();
        assert_eq!(found.len(), *faults, "src/{path}: {text}\n{}", found.join("\n"));
    }
    let note = format!("// {}: later", concat!("TO", "DO"));
    assert_eq!(manners(&read(vec![("vault/error.rs".into(), note)])).len(), 1);
    let order = ["crypto", "format", "roster", "vault", "fuse", "cli"];
    for (low, lower) in order.iter().enumerate() {
        for upper in &order[low + 1..] {
            let text = format!("use crate::{upper}::Thing;");
            let sources = read(vec![(format!("{lower}/mod.rs"), text)]);
            let found = arrows(&sources, &crates);
            assert_eq!(found.len(), 1, "{lower} -> {upper}");
            assert!(found[0].starts_with(&format!("src/{lower}/mod.rs:1: crate::{upper}::Thing")));
        }
    }
}

#[test]
fn a_file_of_tests_is_exempt_and_its_neighbour_is_not() {
    let text = "use crate::vault::Vault;".to_owned();
    let parent = "#[cfg(test)]\nmod tests;\nmod more;".to_owned();
    let files = vec![
        ("format/name.rs".into(), parent),
        ("format/name/tests.rs".into(), text.clone()),
        ("format/name/tests/deep.rs".into(), text.clone()),
        ("format/name/more.rs".into(), text),
    ];
    let faults = arrows(&read(files), &BTreeSet::new());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("src/format/name/more.rs:1"), "{}", faults[0]);
}

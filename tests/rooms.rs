//! The rooms of the source, and which way they may depend.
//!
//! ```text
//! cli  ->  fuse  ->  vault  ->  { roster, format }  ->  crypto          vault -> store
//! ```
//!
//! Rules that hold here
//! * A room names only rooms below it: `roster` stands above `format`; `fuse` skips none of the
//!   layers that know ciphers, and of `store` it takes plain types only (what a time or a kind of
//!   file is), never the store.
//! * `crypto`, `format` and `roster` are pure: no files, clocks, threads, environment or
//!   randomness but what is handed in. Of `std::io` they may take the types of errors. Code of
//!   tests is free.
//! * Ciphers are named in `crypto` alone, the FUSE transport in `fuse`, the terminal in `cli`.
//! * Unsafe code stands in the files that are listed here, each with its reason. Advice to the user
//!   stands in `cli`.

#[path = "rooms/scan.rs"]
mod scan;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use scan::{Named, Token};

/// Each room and those that it may name.
const ROOMS: &[(&str, &[&str])] = &[
    ("crypto", &[]),
    ("format", &["crypto"]),
    ("roster", &["format", "crypto"]),
    ("store", &[]),
    ("vault", &["roster", "format", "crypto", "store"]),
    ("fuse", &["vault", "store"]),
    ("cli", &["fuse", "vault", "roster", "format", "crypto", "store"]),
];

/// What `fuse` may take of `store`.
const PLAIN: &[&str] = &["Kind", "RenameMode", "Seek", "SetTime", "Space", "Stat", "Timestamp"];

const PURE: &[&str] = &["crypto", "format", "roster"];

/// Parts of `std` that reach outside; the pure rooms do without.
const OUTSIDE: &[&str] = &["env", "fs", "net", "os", "path", "process", "random", "thread"];

/// Crates that the pure rooms may name: none of them does anything but compute. (rayon computes on
/// several cores.)
const COMPUTE: &[&str] = &[
    "aes",
    "argon2",
    "aws_lc_rs",
    "base64ct",
    "bech32",
    "blake3",
    "chacha20",
    "chacha20poly1305",
    "ed25519_dalek",
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
    ("clap", "cli"),
    ("clap_complete", "cli"),
    ("clap_mangen", "cli"),
    ("indicatif", "cli"),
    ("qrcode", "cli"),
    ("rpassword", "cli"),
    ("tracing_subscriber", "cli"),
];

/// Files with unsafe code, and why they cannot do without.
const UNSAFE: &[(&str, &str)] = &[
    (
        "crypto/exchange/wide.rs",
        "vector instructions, called where the processor has them, and their loads and stores",
    ),
    (
        "crypto/hctr2/wide.rs",
        "vector instructions, called where the processor has them, and their loads and stores",
    ),
    (
        "store/os/sys.rs",
        "system calls that neither std nor rustix has: fchmodat2, getxattrat, setxattrat, removexattrat, sync_file_range",
    ),
    ("fuse/transport/serve.rs", "a descriptor that was lent to the transport is taken back"),
    (
        "fuse/transport/uring/memory.rs",
        "memory that the kernel writes requests to and reads answers from",
    ),
    ("fuse/transport/uring/ring.rs", "commands for io_uring, whose memory must outlive them"),
    ("cli/daemon.rs", "fork, to go to the background"),
    ("cli/signals.rs", "sigwait and the signal mask, which std does not have"),
    ("cli/secret.rs", "a descriptor that the user names by its number"),
];

/// A file of the source, without its tests.
struct Source {
    /// Relative to `src`.
    path: String,
    /// As it stands.
    text: String,
    /// Every token, tests too.
    all: Vec<scan::Placed>,
    /// Paths that are named outside tests.
    named: Vec<Named>,
}

/// `crate`, the room, and so on: the module that a file is.
fn module_of(path: &str) -> Vec<&str> {
    let inner = path.trim_end_matches(".rs");
    let mut parts = vec!["crate"];
    parts.extend(inner.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main")));
    parts
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .expect("a directory of the source")
        .map(|e| e.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Reads `(path, text)` pairs; what a parent declares as `#[cfg(test)] mod name;` has no paths that
/// count.
fn read(files: Vec<(String, String)>) -> Result<Vec<Source>, String> {
    let mut tests: Vec<Vec<String>> = Vec::new();
    let mut cuts = Vec::new();
    for (path, text) in files {
        let all = scan::tokens(&text);
        let cut = scan::without_tests(&all).map_err(|why| format!("{path}: {why}"))?;
        let module = module_of(&path);
        tests.extend(
            cut.test_files
                .iter()
                .map(|name| module.iter().map(|m| m.to_string()).chain([name.clone()]).collect()),
        );
        cuts.push((path, text, all, cut.code));
    }
    Ok(cuts
        .into_iter()
        .map(|(path, text, all, code)| {
            let module = module_of(&path);
            let is_test = tests.iter().any(|test| {
                module.len() >= test.len() && test.iter().zip(&module).all(|(a, b)| a == b)
            });
            let named = if is_test { Vec::new() } else { scan::paths(&code, &module) };
            Source { path, text, all, named }
        })
        .collect())
}

fn sources() -> Vec<Source> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files_below(&src, &mut found);
    let name = |path: &PathBuf| {
        path.strip_prefix(&src).expect("below src").to_str().expect("UTF-8").to_owned()
    };
    read(found.iter().map(|path| (name(path), fs::read_to_string(path).expect("UTF-8"))).collect())
        .unwrap_or_else(|why| panic!("{why}"))
}

/// What is wrong with a path that `room` names, if anything is.
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
                Some(format!("fuse takes plain types of backing only: {}", PLAIN.join(", ")))
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

/// The crates that may be named, as they are spelled in code: the dependencies of Cargo.toml.
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

fn arrows(sources: &[Source], crates: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| s.path != "lib.rs") {
        let room = if source.path == "main.rs" { "main" } else { module_of(&source.path)[1] };
        for named in &source.named {
            let parts: Vec<&str> = named.parts.iter().map(String::as_str).collect();
            let why = match (room, &parts[..]) {
                ("main", ["crate", to, ..]) if *to != "cli" => {
                    Some(format!("main -> {to}: main starts cli and nothing else"))
                }
                _ => fault(room, &parts, crates),
            };
            if let Some(why) = why {
                faults.push(format!(
                    "src/{}:{}: {}: {why}",
                    source.path,
                    named.line,
                    parts.join("::")
                ));
            }
        }
    }
    faults
}

#[test]
fn no_arrow_points_up_and_the_pure_rooms_are_pure() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .expect("Cargo.toml");
    let (sources, crates) = (sources(), dependencies(&manifest));
    for (name, _) in OWNED {
        assert!(
            crates.contains(*name),
            "{name} is in the list of crates that belong to a room, but not in Cargo.toml"
        );
    }
    for name in COMPUTE {
        assert!(
            crates.contains(*name),
            "{name} is in the list of crates that compute, but not in Cargo.toml"
        );
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
    for source in sources() {
        let known = matches!(source.path.as_str(), "lib.rs" | "main.rs")
            || ROOMS.iter().any(|(room, _)| source.path.starts_with(&format!("{room}/")));
        assert!(known, "src/{}: a new room needs a place in this test's table", source.path);
    }
}

/// Files, lines and what is wrong there, of what every file must keep.
fn manners(sources: &[Source]) -> Vec<String> {
    let unfinished =
        [concat!("TO", "DO"), concat!("FIX", "ME"), "unimplemented!", concat!("to", "do!")];
    let mut faults = Vec::new();
    for Source { path, text, all, .. } in sources {
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = unfinished.iter().find(|word| line.contains(*word)) {
                faults.push(format!("src/{path}:{}: {word}", number + 1));
            }
        }
        let listed = UNSAFE.iter().any(|(file, _)| file == path);
        let mut uses_unsafe = false;
        for (i, (line, token)) in all.iter().enumerate() {
            match token {
                Token::Word(word) if word == "unsafe" => {
                    uses_unsafe = true;
                    if !listed {
                        faults.push(format!(
                            "src/{path}:{line}: unsafe code in a file that is not listed"
                        ));
                    }
                }
                Token::Text(text) if text.contains("hint:") && !path.starts_with("cli/") => {
                    faults.push(format!("src/{path}:{line}: advice outside cli"));
                }
                Token::Word(word)
                    if word == "path"
                        && i >= 2
                        && all[i - 1].1 == Token::Mark('[')
                        && all[i - 2].1 == Token::Mark('#') =>
                {
                    faults.push(format!("src/{path}:{line}: #[path] hides the room of a file"));
                }
                _ => {}
            }
        }
        if listed && !uses_unsafe {
            faults.push(format!("src/{path}: listed as unsafe, but it is not"));
        }
    }
    faults
}

#[test]
fn nothing_is_unfinished_and_unsafe_code_and_advice_are_where_they_belong() {
    let faults = manners(&sources());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The scanner itself, on sources made up so that it has something to find.
mod scanner {
    use super::*;

    fn crates() -> BTreeSet<String> {
        dependencies(
            "[package]\nname = \"x\"\n[dependencies]\nlibc = \"1\"\nfuser = \"1\"\nring = \"1\"\nsha2 = \"1\"\nx25519-dalek = \"3\"\n[dev-dependencies]\nhex = \"1\"\n",
        )
    }

    fn one(path: &str, text: &str) -> Vec<Source> {
        read(vec![(path.to_owned(), text.to_owned())]).expect("readable")
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        arrows(&one(path, text), &crates())
    }

    fn paths_of(path: &str, text: &str) -> Vec<String> {
        one(path, text)[0].named.iter().map(|named| named.parts.join("::")).collect()
    }

    #[test]
    fn dependencies_are_those_of_the_program() {
        assert_eq!(
            crates().into_iter().collect::<Vec<_>>(),
            ["fuser", "libc", "ring", "sha2", "x25519_dalek"]
        );
    }

    #[test]
    fn every_arrow_that_points_up_is_found() {
        let order = ["crypto", "format", "roster", "vault", "fuse", "cli"];
        for (low, lower) in order.iter().enumerate() {
            for upper in &order[low + 1..] {
                let text = format!("use crate::{upper}::Thing;");
                let faults = found(&format!("{lower}/a.rs"), &text);
                assert_eq!(faults.len(), 1, "{lower} -> {upper}");
                assert!(
                    faults[0].starts_with(&format!("src/{lower}/a.rs:1: crate::{upper}::Thing")),
                    "{}",
                    faults[0]
                );
            }
        }
        for (from, to) in [
            ("store", "vault"),
            ("store", "crypto"),
            ("fuse", "crypto"),
            ("fuse", "format"),
            ("fuse", "roster"),
            ("format", "store"),
        ] {
            assert_eq!(
                found(&format!("{from}/mod.rs"), &format!("fn f() {{ crate::{to}::f(); }}")).len(),
                1,
                "{from} -> {to}"
            );
        }
    }

    #[test]
    fn arrows_that_point_down_are_not() {
        for (from, to) in [
            ("cli", "fuse"),
            ("cli", "crypto"),
            ("fuse", "vault"),
            ("vault", "store"),
            ("vault", "crypto"),
            ("roster", "format"),
            ("format", "crypto"),
        ] {
            assert_eq!(
                found(&format!("{from}/mod.rs"), &format!("use crate::{to}::Thing;")),
                [""; 0],
                "{from} -> {to}"
            );
        }
        assert_eq!(found("main.rs", "fn main() { kithfs::cli::main() }"), [""; 0]);
        assert_eq!(found("main.rs", "fn main() { kithfs::vault::main() }").len(), 1);
    }

    #[test]
    fn of_backing_the_adapter_takes_plain_types() {
        assert_eq!(
            found(
                "fuse/transport/fuser.rs",
                "use crate::store::{Kind, Timestamp}; fn f() -> crate::store::Space {}"
            ),
            [""; 0]
        );
        for text in [
            "use crate::store::Dir;",
            "use crate::store::{Kind, os::open};",
            "use crate::store;",
            "use crate::store::*;",
        ] {
            assert_eq!(found("fuse/transport/fuser.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn an_arrow_is_found_however_it_is_written() {
        for text in [
            "use crate::{\n    crypto::Suite,\n    vault::{self, Vault},\n};",
            "use super::super::vault::Vault;",
            "mod inner { use super::super::super::vault::Vault; }",
            "fn f(v: &crate::vault::Vault) {}",
            "type T = Vec<crate::vault::Node>;",
            "use crate as all; fn f() { all::vault::f() }",
            "use crate::*;",
            "use crate::Vault;",
            "macro_rules! m { () => { $crate::vault::f() } }",
            "pub(in crate::vault) fn f() {}",
            "fn f() { <crate::vault::Vault as Drop>::drop(x) }",
            "fn f() { g::<crate::vault::Vault>() }",
            "#[cfg(not(test))] use crate::vault::Vault;",
            "#[cfg(test)] mod tests { } use crate::vault::Vault;",
        ] {
            assert!(!found("format/name.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn prose_literals_and_tests_do_not_count() {
        for text in [
            "//! See [`crate::vault`].",
            "/* use crate::vault; /* nested crate::vault::x */ crate::vault::y */",
            "const S: &str = \"crate::vault::x \\\" std::fs::y\";",
            "const S: &str = r#\"crate::vault::x \" std::fs::y\"#;",
            "fn f<'a>(c: char) -> &'a str { if c == '\"' || c == '\\'' { \"std::fs::x\" } else { \"\" } }",
            "#[cfg(test)]\nmod tests { use crate::vault::Vault; fn f() { std::fs::read(\"{\"); } }",
            "#[cfg(test)] pub(crate) fn f(a: [u8; 2]) { std::env::args(); }",
            "#[cfg(all(test, unix))] #[allow(dead_code)] use crate::{vault::Vault, fuse};",
        ] {
            assert_eq!(found("format/name.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn code_after_a_test_still_counts() {
        assert_eq!(
            found("format/name.rs", "#[cfg(test)] use crate::vault::A;\nuse crate::vault::B;"),
            ["src/format/name.rs:2: crate::vault::B: the arrow format -> vault points up"]
        );
        let what = read(vec![(
            "format/name.rs".into(),
            "struct S { #[cfg(test)] a: crate::vault::A }".into(),
        )]);
        assert!(
            what.is_err_and(|why| why.contains("line 1")),
            "what cannot be judged is not passed over"
        );
    }

    #[test]
    fn a_file_of_tests_is_free_and_its_neighbour_is_not() {
        let parent =
            ("format/name.rs".to_owned(), "#[cfg(test)]\nmod tests;\nmod more;".to_owned());
        let text = "use crate::vault::Vault;".to_owned();
        let files = vec![
            parent,
            ("format/name/tests.rs".into(), text.clone()),
            ("format/name/tests/deep.rs".into(), text.clone()),
            ("format/name/more.rs".into(), text),
        ];
        let faults = arrows(&read(files).expect("readable"), &crates());
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("src/format/name/more.rs:1"), "{}", faults[0]);
    }

    #[test]
    fn what_reaches_outside_is_found_in_a_pure_room_only() {
        for text in [
            "use std::fs;",
            "use std::fs::File;",
            "use std::{fmt, fs as files};",
            "fn f() { std::env::var(\"X\"); }",
            "fn f() { ::std::thread::spawn(g); }",
            "use std::time::SystemTime;",
            "use std::time::{Duration, Instant};",
            "use std::time; fn f() { time::Instant::now() }",
            "use std::io::File;",
            "use std::io::{self, Read};",
            "use std::io; fn f() { io::stdin() }",
            "use std::io::*;",
            "use std as s; fn f() { s::fs::read() }",
            "use libc;",
            "fn f() { libc::getpid() }",
            "use ring::rand::SystemRandom;",
            "use ring::{aead, rand};",
        ] {
            for room in PURE {
                assert!(!found(&format!("{room}/a.rs"), text).is_empty(), "{room}: {text}");
            }
            if !text.contains("ring") {
                assert_eq!(found("store/os.rs", text), [""; 0], "{text}");
            }
        }
        for text in [
            "use std::io::{self, Error, Result}; fn f() -> io::Result<()> { Err(io::ErrorKind::Other.into()) }",
            "use std::time::Duration;",
            "use std::sync::Arc;",
        ] {
            assert_eq!(found("format/a.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_crate_stays_in_its_room() {
        assert_eq!(found("vault/a.rs", "use sha2::Sha256;").len(), 1);
        assert_eq!(found("vault/a.rs", "use fuser::Session;").len(), 1);
        assert_eq!(
            found("crypto/a.rs", "use sha2::Sha256; fn f() { x25519_dalek::x25519() }"),
            [""; 0]
        );
        assert_eq!(found("fuse/a.rs", "use fuser::Session; fn f() { libc::getpid() }"), [""; 0]);
    }

    #[test]
    fn paths_come_out_whole() {
        let text = "use std::collections::{HashMap, btree_map::{self as tree, Entry}};\nfn f() { tree::f(); self::g(); super::h(); Vec::<u8>::new(); }";
        assert_eq!(
            paths_of("vault/io.rs", text),
            [
                "std::collections::HashMap",
                "std::collections::btree_map",
                "std::collections::btree_map::Entry",
                "std::collections::btree_map::f",
                "crate::vault::io::g",
                "crate::vault::h",
                "Vec",
            ]
        );
        assert_eq!(
            paths_of("vault/mod.rs", "use super::lib; pub use self::types::*;"),
            ["crate::lib", "crate::vault::types::*"]
        );
    }

    #[test]
    fn bad_manners_are_found() {
        let bad = |path: &str, text: &str| manners(&one(path, text)).len();
        assert_eq!(bad("vault/a.rs", &format!("// {}: later", concat!("TO", "DO"))), 1);
        assert_eq!(bad("vault/a.rs", "fn f() {\n    unimplemented!()\n}"), 1);
        assert_eq!(bad("vault/a.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(bad("vault/a.rs", "#![deny(unsafe_op_in_unsafe_fn)] // unsafe"), 0);
        assert_eq!(bad("fuse/transport/serve.rs", "fn f() { unsafe { g() } }"), 0);
        assert_eq!(
            bad("fuse/transport/serve.rs", "fn f() {}"),
            1,
            "a list that is too long is wrong too"
        );
        assert_eq!(
            bad("vault/a.rs", "const A: &str = \"hint: try again\"; struct S { hint: u8 }"),
            1
        );
        assert_eq!(bad("cli/a.rs", "const A: &str = \"hint: try again\";"), 0);
        assert_eq!(bad("vault/a.rs", "#[path = \"../cli/b.rs\"] mod b;"), 1);
    }
}

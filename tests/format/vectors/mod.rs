//! Golden vectors of every structure: `tests/vectors/<structure>/<scenario>.txt`, one scenario a
//! file. `tests/vectors/README.md` describes their form.
//!
//! Rules that hold here
//! * The committed vectors are authoritative; the generator behind the ignored test never runs by
//!   itself.
//! * The expected failure of a bad scenario was chosen by hand, from SPEC.md, and not taken from
//!   the program.

mod generate;
mod read;
mod scenario;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use scenario::Scenario;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// Returns every scenario file with its structure (the name of its directory).
fn scenarios() -> Vec<(String, PathBuf)> {
    let mut all = Vec::new();
    for dir in std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
    {
        let structure = dir.file_name().unwrap().to_str().unwrap().to_owned();
        for file in std::fs::read_dir(&dir).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(
                path.extension().and_then(|e| e.to_str()),
                Some("txt"),
                "{}: is no scenario",
                path.display()
            );
            all.push((structure.clone(), path));
        }
    }
    all.sort();
    all
}

#[test]
fn every_vector_has_its_expected_result() {
    let mut seen: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (structure, path) in scenarios() {
        let scenario = Scenario::parse(&std::fs::read_to_string(&path).unwrap());
        let counts = seen.entry(structure.clone()).or_default();
        if scenario.expect == "ok" {
            counts.0 += 1
        } else {
            counts.1 += 1
        }
        let outcome = read::read(&structure, &scenario);
        let right = match &outcome {
            Ok(fields) => scenario.expect == "ok" && *fields == scenario.fields,
            Err(kind) => scenario.expect == *kind && scenario.fields.is_empty(),
        };
        if !right {
            wrong.push(format!(
                "{}: expects {} {:?}, but the result is {outcome:?}",
                path.display(),
                scenario.expect,
                scenario.fields
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let structures: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(structures, read::STRUCTURES);
    assert!(
        seen.values().all(|(good, bad)| *good > 0 && *bad > 0),
        "each structure has scenarios of both kinds: {seen:?}"
    );
}

/// Writes missing scenarios: `cargo test --test format write_new_vectors -- --ignored`. Existing
/// ones are never touched.
#[test]
#[ignore = "writes files into the source tree"]
fn write_new_vectors() {
    for (structure, name, scenario) in generate::all() {
        let dir = root().join(structure);
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{name}.txt"));
        if !path.exists() {
            std::fs::write(&path, scenario.text()).unwrap();
        }
    }
}

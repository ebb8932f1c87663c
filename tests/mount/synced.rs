//! A vault in a folder that a sync tool keeps equal, mounted for writing on several machines.
//!
//! A machine is a state directory and a copy of the vault of its own.

use std::fs;

use crate::support::mounted::{Scratch, can_mount, expect_code};

/// A mount that began before the vault's directory was renamed excludes one under the new name.
#[test]
fn a_renamed_directory_has_one_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mount = scratch.mount(&[]);
    let (moved, other) = (scratch.path().join("moved"), scratch.path().join("other"));
    fs::rename(scratch.vault(), &moved).unwrap();
    fs::create_dir(&other).unwrap();
    let output = expect_code(scratch.kithfs("mount").arg(&moved).arg(&other), 9);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let info = expect_code(scratch.kithfs("info").arg("--json").arg(&moved), 0);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    let pid = info["in_use_by"]["pid"].as_u64().expect("the kernel lists the holder");
    assert!(said.contains(&format!("process {pid} on ")), "{said}");
    fs::write(mount.point.join("file"), "written under the new name").unwrap();
    mount.unmount();
    let listed = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    for name in fs::read_dir(&moved).unwrap().map(|entry| listed(entry.unwrap())) {
        assert!(!name.starts_with("+lock") && !name.starts_with("+names"), "{name}");
    }
    expect_code(scratch.kithfs("mount").arg(&moved).arg(&other), 0);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"written under the new name");
    expect_code(scratch.kithfs("umount").arg(&other), 0);
}

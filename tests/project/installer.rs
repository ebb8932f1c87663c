//! The installer of the tarball.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Makes what the tarball contains, with few files, below `dir`.
fn tarball(dir: &Path, version: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/package");
    let usr = dir.join("files/usr");
    for sub in ["bin", "sbin", "lib/systemd/user", "share/doc/kithfs"] {
        fs::create_dir_all(usr.join(sub)).unwrap();
    }
    fs::copy(root.join("install.sh"), dir.join("install.sh")).unwrap();
    fs::write(usr.join("bin/kithfs"), version).unwrap();
    fs::set_permissions(usr.join("bin/kithfs"), fs::Permissions::from_mode(0o755)).unwrap();
    let _ = std::os::unix::fs::symlink("../bin/kithfs", usr.join("sbin/mount.kithfs"));
    let unit = "lib/systemd/user/kithfs@.service";
    fs::copy(root.join("kithfs@.service"), usr.join(unit)).unwrap();
    fs::write(usr.join("share/doc/kithfs/README.md"), "").unwrap();
}

/// Runs the installer in `dir`, with the umask of a careful user.
fn run(dir: &Path, destination: &str, options: &str) -> Output {
    let line = format!("umask 077; exec timeout 60 sh ./install.sh {options}");
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(dir).env("DESTDIR", destination);
    command.output().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A removal takes the directories that an installation or an upgrade has created. It also removed
/// empty ones that were there before.
#[test]
fn the_tarball_is_installed_upgraded_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (home, place) = (dir.path().join("home"), dir.path().join("place"));
    fs::create_dir(&place).unwrap();
    fs::create_dir_all(home.join("share")).unwrap();
    fs::write(home.join("share/mine"), "").unwrap();
    fs::create_dir_all(home.join("lib/systemd")).unwrap();
    let prefix = format!("--prefix {}", home.display());
    let program = home.join("bin/kithfs");
    for version in ["one", "two"] {
        tarball(&place, version);
        let new = place.join("files/usr/share").join(version);
        fs::create_dir(&new).unwrap();
        fs::write(new.join("file"), "").unwrap();
        // The program of the version before is in use.
        let in_use = fs::File::open(&program).ok();
        assert!(run(&place, "", &prefix).status.success());
        assert_eq!(fs::read_to_string(&program).unwrap(), version);
        let before = in_use.map(|file| std::io::read_to_string(file).unwrap());
        assert!(before.is_none_or(|before| before == "one"), "the running program is kept");
    }
    assert_eq!((mode(&program), mode(&home.join("share/doc/kithfs"))), (0o755, 0o755));
    assert_eq!(fs::read_to_string(home.join("sbin/mount.kithfs")).unwrap(), "two");
    let unit = fs::read_to_string(home.join("lib/systemd/user/kithfs@.service")).unwrap();
    assert!(unit.contains(&format!("\nExecStart={} open ", program.display())), "{unit}");
    assert!(run(&place, "", &format!("{prefix} --uninstall")).status.success());
    let list = "find . -mindepth 1 | sort";
    let left = Command::new("sh").args(["-c", list]).current_dir(&home).output().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    assert_eq!(left, "./lib\n./lib/systemd\n./share\n./share/mine\n", "what was there before");
}

/// A failed copy was reported as "installed", with exit code 0: find(1) ignores the result of what
/// it runs.
#[test]
fn an_installation_that_fails_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    tarball(dir.path(), "one");
    fs::write(dir.path().join("file"), "").unwrap();
    let destination = dir.path().join("file");
    let output = run(dir.path(), destination.to_str().unwrap(), "");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(!run(dir.path(), "", "--prefix relative").status.success());
}

/// A relative DESTDIR was taken relative to the files of the tarball: the installer copied its own
/// copies until the disk was full.
#[test]
fn a_relative_destination_is_that_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    tarball(dir.path(), "one");
    assert!(run(dir.path(), "staged", "").status.success());
    assert_eq!(fs::read_to_string(dir.path().join("staged/usr/bin/kithfs")).unwrap(), "one");
    let unit = dir.path().join("staged/usr/lib/systemd/user/kithfs@.service");
    assert!(fs::read_to_string(unit).unwrap().contains("\nExecStart=/usr/bin/kithfs open "));
}

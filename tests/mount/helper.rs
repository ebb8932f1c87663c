//! mount-helper/mount.kithfs and install.sh: what mount(8) gives is translated to a call of kithfs,
//! recorded by a fake one on PATH.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::turn;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-helper").join(name)
}

/// A directory with programs that take the place of those on PATH.
struct Fake {
    dir: TempDir,
    _turn: turn::Turn,
}

impl Fake {
    fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// A directory with a `kithfs` that prints one argument a line and ends with `code`.
fn fake(code: i32) -> Fake {
    let turn = turn::take();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kithfs");
    fs::write(&program, format!("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit {code}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Fake { dir, _turn: turn }
}

fn run(fake: &Fake, arguments: &[&str]) -> Output {
    let path = format!("{}:/usr/bin:/bin", fake.path().display());
    Command::new("sh")
        .arg(script("mount.kithfs"))
        .args(arguments)
        .env("PATH", path)
        .output()
        .unwrap()
}

fn called(arguments: &[&str]) -> Vec<String> {
    let output = run(&fake(0), arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_plain_mount() {
    assert_eq!(
        called(&["/vault", "/mnt"]),
        ["mount", "-o", "fsname=/vault", "--", "/vault", "/mnt"]
    );
    assert_eq!(
        called(&["/vault", "/mnt", "-o", "rw"]),
        ["mount", "-o", "fsname=/vault", "--", "/vault", "/mnt"]
    );
}

#[test]
fn secrets_and_read_only_become_options_of_the_command() {
    let options =
        "ro,passphrase_file=/etc/a b,identity=/id,passphrase_command=pass show x=y,log_level=debug";
    let expected = [
        "mount",
        "--read-only",
        "--passphrase-file",
        "/etc/a b",
        "--identity",
        "/id",
        "--passphrase-command",
    ];
    let rest = ["pass show x=y", "--log-level", "debug", "-o", "fsname=/v", "--", "/v", "/m"];
    assert_eq!(called(&["/v", "/m", "-o", options]), [&expected[..], &rest[..]].concat());
}

/// Options that concern only mount(8) and fstab are dropped. All others are passed on.
#[test]
fn options_of_mount_and_fstab_are_dropped_others_passed_on() {
    let options = "defaults,noauto,nofail,_netdev,users,user=me,x-systemd.automount,x-gvfs-name=a,comment=b,relatime";
    assert_eq!(
        called(&["/v", "/m", "-o", options]),
        ["mount", "-o", "fsname=/v", "--", "/v", "/m"]
    );
    let options = "allow_other,nodev,nosuid,noexec,uid=1000,made_up";
    let list = "allow_other,nodev,nosuid,noexec,uid=1000,made_up,fsname=/v";
    assert_eq!(called(&["/v", "/m", "-o", options]), ["mount", "-o", list, "--", "/v", "/m"]);
}

#[test]
fn device_nodes_and_suid_bits_can_be_asked_for() {
    // mount(8) takes `dev` and `suid` for its own defaults and hands neither on: nobody could have
    // them in fstab.
    assert_eq!(
        called(&["/v", "/m", "-o", "rw,allow_dev,allow_suid"]),
        ["mount", "-o", "dev,suid,fsname=/v", "--", "/v", "/m"]
    );
}

#[test]
fn several_lists_and_flags_in_any_place() {
    let expected = ["mount", "--read-only", "-o", "nodev,uid=1,fsname=/v", "--", "/v", "/m"];
    assert_eq!(
        called(&[
            "-n",
            "/v",
            "-onodev",
            "/m",
            "-sr",
            "-o",
            "uid=1",
            "-t",
            "fuse.kithfs",
            "-N",
            "/ns"
        ]),
        expected
    );
}

#[test]
fn commas_backslashes_and_blanks_stay_in_their_values() {
    assert_eq!(
        called(&[r"/v,allow_other\", "/m n"]),
        ["mount", "-o", r"fsname=/v\,allow_other\\", "--", r"/v,allow_other\", "/m n"]
    );
    let expected = [
        "mount",
        "--passphrase-file",
        r"/a,b\",
        "--read-only",
        "-o",
        r"fsname=x\,y\\",
        "--",
        "/v",
        "/m",
    ];
    assert_eq!(called(&["/v", "/m", "-o", r"passphrase_file=/a\,b\\,ro,fsname=x\,y\\"]), expected);
    let expected = ["mount", "--identity", "$(touch x) * `y`", "-o", "fsname=/v", "--", "/v", "/m"];
    assert_eq!(called(&["/v", "/m", "-o", "identity=$(touch x) * `y`"]), expected);
}

#[test]
fn a_remount_changes_kernel_options_and_starts_no_daemon() {
    // `mount -o remount,ro` ended in a second daemon that was refused, or in libfuse's helper,
    // which found no program of that name.
    let fake = fake(9);
    fs::write(fake.path().join("mount"), "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    fs::set_permissions(fake.path().join("mount"), fs::Permissions::from_mode(0o755)).unwrap();
    let output =
        run(&fake, &["/v", "/m m", "-o", "remount,ro,allow_other,passphrase_file=/p,nosuid"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "-i\n-o\nremount,nosuid,nodev,ro,nosuid\n--\n/v\n/m m\n"
    );
    // The flags that the mount had were dropped: after `remount,ro` set-user-id programs and device
    // nodes of the vault worked.
    let findmnt = "#!/bin/sh\necho rw,nosuid,nodev,noexec,relatime\n";
    fs::write(fake.path().join("findmnt"), findmnt).unwrap();
    fs::set_permissions(fake.path().join("findmnt"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&fake, &["/v", "/m m", "-o", "remount,ro"]);
    let called = String::from_utf8(output.stdout).unwrap();
    assert_eq!(called, "-i\n-o\nremount,rw,nosuid,nodev,noexec,relatime,ro\n--\n/v\n/m m\n");
}

#[test]
fn exit_codes_are_those_of_mount() {
    assert_eq!(run(&fake(7), &["/v", "/m"]).status.code(), Some(32));
    for wrong in [&["/v"][..], &[], &["/v", "/m", "/x"], &["/v", "/m", "-o"], &["/v", "/m", "-z"]] {
        assert_eq!(run(&fake(0), wrong).status.code(), Some(1), "{wrong:?}");
    }
}

/// With `-f` no program is run; with `-v` the command is printed.
#[test]
fn fake_mounts_run_nothing_and_verbose_ones_print_the_call() {
    let output = run(&fake(9), &["/v", "/m", "-fv"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "kithfs mount -o fsname=/v -- /v /m\n");
}

#[test]
fn the_switch_for_io_uring_is_set_where_that_was_asked_for() {
    let fake = fake(0);
    let switch = fake.path().join("enable_uring");
    let mount = |options: &str, before: &str| {
        fs::write(&switch, before).unwrap();
        let path = format!("{}:/usr/bin:/bin", fake.path().display());
        let mut command = Command::new("sh");
        command
            .arg(script("mount.kithfs"))
            .args(["/v", "/m", "-o", options])
            .env("PATH", path)
            .env("KITHFS_URING_SWITCH", &switch);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (
            String::from_utf8(output.stdout).unwrap().contains("uring"),
            fs::read_to_string(&switch).unwrap(),
        )
    };
    assert_eq!(mount("nodev,uring", "N\n"), (true, "Y\n".to_owned()));
    assert_eq!(mount("uring", "Y\n"), (true, "Y\n".to_owned()));
    assert_eq!(mount("nodev", "N\n"), (false, "N\n".to_owned()));
    assert_eq!(mount("uring_memory=8", "N\n"), (true, "N\n".to_owned()));
}

#[test]
fn installing_and_removing() {
    let _turn = turn::take();
    let dest = tempfile::tempdir().unwrap();
    let install = |arguments: &[&str]| {
        let output = Command::new("sh")
            .arg(script("install.sh"))
            .args(arguments)
            .env("DESTDIR", dest.path())
            .env_remove("PREFIX")
            .output();
        assert!(output.unwrap().status.success());
    };
    let sbin = dest.path().join("usr/sbin");
    install(&["--prefix", "/usr"]);
    install(&["--prefix=/usr"]);
    assert_eq!(
        fs::read(sbin.join("mount.kithfs")).unwrap(),
        fs::read(script("mount.kithfs")).unwrap()
    );
    assert_eq!(
        fs::metadata(sbin.join("mount.kithfs")).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(fs::read_link(sbin.join("mount.fuse.kithfs")).unwrap(), Path::new("mount.kithfs"));
    assert_eq!(fs::read_dir(&sbin).unwrap().count(), 2);
    install(&["--uninstall", "--prefix", "/usr"]);
    assert_eq!(fs::read_dir(&sbin).unwrap().count(), 0);
    install(&[]);
    assert!(dest.path().join("sbin/mount.kithfs").exists());
}

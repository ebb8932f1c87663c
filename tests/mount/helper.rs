//! The program under the name `mount.kithfs`, as mount(8) calls it, and its installer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::mounted::{KITHFS, Scratch, can_mount, expect_code, is_mounted, shell};
use crate::support::people::has;
use crate::support::turn;

fn install_sh() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-helper/install.sh")
}

/// Runs the program under the name of the helper.
fn helper(scratch: &Scratch, arguments: &[&str]) -> Output {
    let name = scratch.path().join("mount.kithfs");
    if !name.exists() {
        symlink(KITHFS, &name).unwrap();
    }
    let state = scratch.path().join("state");
    Command::new(name).args(arguments).env("XDG_STATE_HOME", state).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exit_codes_are_those_of_mount() {
    let scratch = Scratch::bare();
    let failed = helper(&scratch, &["/no/such/vault", "/m"]);
    assert_eq!(failed.status.code(), Some(32));
    assert!(text(&failed.stderr).contains("the vault does not exist"), "{failed:?}");
    for wrong in [&["/v"][..], &["/v", "/m", "/x"], &["/v", "/m", "-z"]] {
        let refused = helper(&scratch, wrong);
        assert_eq!(refused.status.code(), Some(1), "{wrong:?}");
        assert!(text(&refused.stderr).starts_with("usage: mount.kithfs VAULT MOUNTPOINT"));
    }
    let unknown = helper(&scratch, &["/v", "/m", "-o", "setuid=no-such-user"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("no such user"), "{unknown:?}");
}

/// With `-f` nothing is mounted; with `-v` the command is printed.
#[test]
fn fake_mounts_run_nothing_and_verbose_ones_print_the_call() {
    let scratch = Scratch::bare();
    let faked = helper(&scratch, &["/v", "/m", "-fv", "-o", "ro"]);
    assert!(faked.status.success() && faked.stdout.is_empty());
    assert_eq!(text(&faked.stderr), "kithfs mount --read-only -o fsname=/v -- /v /m\n");
}

#[test]
fn the_program_mounts_and_remounts_as_a_helper() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can remount");
    }
    let scratch = Scratch::new(&[]);
    let (vault, point) = (scratch.vault(), scratch.point());
    let (vault, place) = (vault.to_str().unwrap(), point.to_str().unwrap());
    let secret = format!("passphrase_file={}", scratch.passphrase().display());
    let mounted = helper(&scratch, &[vault, place, "-o", &format!("noexec,{secret}")]);
    assert!(mounted.status.success(), "{mounted:?}");
    let remounted = helper(&scratch, &[vault, place, "-o", "remount,ro"]);
    let options = shell(scratch.path(), "findmnt -nro VFS-OPTIONS mnt");
    let is_written = fs::write(point.join("file"), "x").is_ok();
    expect_code(scratch.kithfs("umount").arg(&point), 0);
    assert!(remounted.status.success(), "{remounted:?}");
    let has = |flag| options.trim().split(',').any(|has| has == flag);
    assert!(["ro", "nosuid", "nodev", "noexec"].into_iter().all(has), "{options}");
    assert!(!is_written);
    let gone = helper(&scratch, &[vault, place, "-o", "remount,rw"]);
    assert_eq!(gone.status.code(), Some(32));
    assert!(text(&gone.stderr).contains("no kithfs is mounted there"), "{gone:?}");
}

/// The option `age_identity`, as in a line of /etc/fstab: only the right identity mounts the vault.
#[test]
fn an_age_identity_opens_a_mount_of_fstab() {
    if !can_mount() || !has("age-keygen") {
        return;
    }
    let scratch = Scratch::new(&[]);
    let key = shell(scratch.path(), "age-keygen -o key.txt 2>/dev/null; age-keygen -y key.txt");
    expect_code(
        scratch.kithfs("passphrase").args(["add", "--age", key.trim()]).arg(scratch.vault()),
        0,
    );
    let (vault, point) = (scratch.vault(), scratch.point());
    let (vault, place) = (vault.to_str().unwrap(), point.to_str().unwrap());
    for (name, is_right) in [("other.txt", false), ("key.txt", true)] {
        shell(scratch.path(), "[ -e other.txt ] || age-keygen -o other.txt 2>/dev/null");
        let options = format!("noexec,age_identity={}", scratch.path().join(name).display());
        let mounted = helper(&scratch, &[vault, place, "-o", &options]);
        assert_eq!(mounted.status.code(), Some(if is_right { 0 } else { 32 }), "{mounted:?}");
        assert_eq!(is_mounted(&point), is_right);
    }
    expect_code(scratch.kithfs("umount").arg(&point), 0);
}

/// Root mounts for a user, as pam_mount does at login. Everything happens in a mount namespace of
/// its own, with a user who exists only there.
const FOR_A_USER: &str = r#"
mkdir home
printf 'ann:x:4321:4321::%s/home:/bin/sh\n' "$PWD" | cat /etc/passwd - > passwd
mount --bind passwd /etc/passwd
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
chmod 755 .
chown -R ann: home vault mnt passphrase
./mount.kithfs "$PWD/vault" "$PWD/mnt" -o "setuid=ann,passphrase_file=$PWD/passphrase"
as_ann() { setpriv --reuid 4321 --regid 4321 --clear-groups env HOME="$PWD/home" "$@"; }
as_ann sh -c 'echo hers > mnt/file'
as_ann stat -c %U mnt/file
cat mnt/file 2>&1 || true
awk -v point="$PWD/mnt" '$5 == point { print $NF }' /proc/self/mountinfo
as_ann "$KITHFS" mounts --json | grep -c '"mountpoint"'
as_ann "$KITHFS" umount "$PWD/mnt"
"#;

/// Runs a script as root in a mount namespace of its own, beside a new vault. Returns its output;
/// `None` if that is not possible here.
fn said_by_root(script: &str) -> Option<(Scratch, String)> {
    let _alone = turn::alone();
    if !can_mount() {
        return None;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/setpriv").exists() {
        println!("skipped: needs root and setpriv");
        return None;
    }
    let scratch = Scratch::new(&[]);
    symlink(KITHFS, scratch.path().join("mount.kithfs")).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "slave", "bash", "-euc", script]);
    shell.current_dir(scratch.path()).env("KITHFS", KITHFS).env_remove("XDG_RUNTIME_DIR");
    let said = text(&expect_code(&mut shell, 0).stdout);
    Some((scratch, said))
}

#[test]
fn a_mount_with_setuid_belongs_to_the_user() {
    let Some((scratch, said)) = said_by_root(FOR_A_USER) else { return };
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ann", "{said}");
    assert!(lines[1].contains("Permission denied"), "not even root may look: {said}");
    assert!(lines[2].contains("user_id=4321"), "{said}");
    assert_eq!(lines[3], "1", "the user's own commands know the mount: {said}");
    assert!(!is_mounted(&scratch.point()));
}

/// Attacks with `setuid=USER`, where root mounts what users have chosen, and must lend them none of
/// its rights. The first lines of the output are refused mounts; the others show which rights the
/// command and the daemon of an allowed mount have.
const ATTACKS: &str = r#"
mkdir home victim bobs
printf 'ann:x:4321:4321::%s/home:/bin/sh\nbob:x:4322:4322::/:/bin/sh\n' "$PWD" | cat /etc/passwd - > passwd
mount --bind passwd /etc/passwd
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
chmod 755 . victim
chmod 644 passphrase
chown -R ann: home vault mnt
chown bob: bobs
chmod 700 vault
install -m 600 passphrase roots-passphrase
install -m 600 vault/+identity roots-identity
as_ann() { setpriv --reuid 4321 --regid 4321 --clear-groups env HOME="$PWD/home" "$@"; }
is_mounted() { awk -v point="$PWD/$1" '$5 == point { found = 1 } END { exit !found }' /proc/self/mountinfo; }
try() {
    code=0
    $3 ./mount.kithfs "$PWD/vault" "$PWD/$2" -o "$4" 2> told || code=$?
    echo "$1: $code"
    for place in victim mnt bobs; do ! is_mounted "$place" || echo "$place is mounted"; done
}
own="passphrase_file=$PWD/passphrase"
try "a mount point of root" victim env "setuid=ann,$own"
as_ann ln -s "$PWD/victim" home/link
try "a link to it" home/link env "setuid=ann,$own"
try "a mount point of another user" bobs env "setuid=ann,$own"
try "a vault of another user" bobs env "setuid=bob,$own"
try "a passphrase of root" mnt env "setuid=ann,passphrase_file=$PWD/roots-passphrase"
try "an identity of root" mnt env "setuid=ann,identity=$PWD/roots-identity,$own"
try "a call by a user" mnt as_ann "setuid=bob,$own"

# A link that is exchanged all the time.
touch home/exchange
as_ann sh -c 'ln -s "$0/mnt" home/own; ln -s "$0/victim" home/other
    while [ -e home/exchange ]; do cp -P home/own home/next; mv -T home/next home/link
        cp -P home/other home/next; mv -T home/next home/link; done' "$PWD" &
for turn in 1 2 3 4 5 6 7 8; do
    ./mount.kithfs "$PWD/vault" "$PWD/home/link" -o "setuid=ann,$own" 2> /dev/null || true
    ! is_mounted victim || echo "victim is mounted"
    ! is_mounted mnt || as_ann "$KITHFS" umount "$PWD/mnt"
done
rm home/exchange
wait

# An allowed mount: neither its command nor its daemon has anything of root.
export LD_LIBRARY_PATH=/of-root
./mount.kithfs "$PWD/vault" "$PWD/mnt" -o 'setuid=ann,passphrase_command=id -u > home/who; env >> home/who; cat passphrase'
unset LD_LIBRARY_PATH
head -1 home/who
grep -c of-root home/who || true
pid=$(as_ann "$KITHFS" mounts --json | sed -n 's/.*"pid": \([0-9]*\),/\1/p')
grep -E '^(Uid|Gid|Groups|CapEff):' "/proc/$pid/status" | tr -s '\t ' ' '
as_ann "$KITHFS" umount "$PWD/mnt"
"#;

#[test]
fn a_mount_with_setuid_lends_no_right_of_root() {
    let Some((_scratch, said)) = said_by_root(ATTACKS) else { return };
    let refused = [
        ("a mount point of root", 32),
        ("a link to it", 32),
        ("a mount point of another user", 32),
        ("a vault of another user", 32),
        ("a passphrase of root", 32),
        ("an identity of root", 32),
        ("a call by a user", 2),
    ];
    let refused: String = refused.map(|(what, code)| format!("{what}: {code}\n")).concat();
    let own = "4321\n0\nUid: 4321 4321 4321 4321\nGid: 4321 4321 4321 4321\nGroups: 4321 \nCapEff: 0000000000000000\n";
    assert_eq!(said, refused + own);
}

#[test]
fn installing_and_removing() {
    let scratch = Scratch::bare();
    let dest = scratch.path().join("dest");
    let install = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(install_sh()).args(arguments).env("DESTDIR", &dest).env_remove("PREFIX");
        expect_code(&mut command, 0);
    };
    let sbin = dest.join("usr/sbin");
    install(&["--prefix", "/usr", "--program", "/opt/old"]);
    install(&["--prefix=/usr", "--program=../bin/kithfs"]);
    for name in ["mount.kithfs", "mount.fuse.kithfs"] {
        assert_eq!(fs::read_link(sbin.join(name)).unwrap(), Path::new("../bin/kithfs"));
    }
    assert_eq!(fs::read_dir(&sbin).unwrap().count(), 2);
    install(&["--uninstall", "--prefix", "/usr"]);
    assert_eq!(fs::read_dir(&sbin).unwrap().count(), 0);
    // Without the option, the program in the PATH.
    let path = format!("{}:/usr/bin:/bin", Path::new(KITHFS).parent().unwrap().display());
    let mut command = Command::new("sh");
    command.arg(install_sh()).env("DESTDIR", &dest).env("PATH", path).env_remove("PREFIX");
    expect_code(&mut command, 0);
    assert_eq!(fs::read_link(dest.join("sbin/mount.kithfs")).unwrap(), Path::new(KITHFS));
}

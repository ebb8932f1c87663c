//! Every kind of call, by owners, members of groups and others, on files and directories of random
//! modes and ACLs. Each must be allowed if the filesystem below allows it, and otherwise refused
//! with the same error, whether the kernel or the daemon decides.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::thread;

use super::{Dice, Posix, c, mounted};
use crate::support::turn;

/// The caller: user, group, supplementary groups.
type Who = (u32, u32, &'static [u32]);

const OWNER: u32 = 1234;
const GROUP: u32 = 4321;
const CALLERS: [Who; 6] = [
    (OWNER, 7, &[]),
    (1235, GROUP, &[]),
    (1236, 8, &[]),
    (1237, 9, &[GROUP]),
    (1235, 9, &[8, 11]),
    (0, 0, &[]),
];

const ACCESS: &str = "system.posix_acl_access";

/// An access control list in the kernel's form, with the rights of the owner, two users, the group,
/// two groups, the mask and others.
fn list(bits: [u16; 8]) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let whom =
        [(1, NONE), (2, 1235), (2, 1236), (4, NONE), (8, 8), (8, 9), (0x10, NONE), (0x20, NONE)];
    let entries = whom.iter().zip(bits).flat_map(|(&(tag, id), bits): (&(u16, u32), u16)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())?)
}

/// The objects of a round: modes of a file and a directory, and perhaps ACLs.
struct Round {
    modes: [u32; 2],
    lists: [Option<Vec<u8>>; 2],
}

impl Round {
    fn thrown(dice: &mut Dice) -> Round {
        let lists = [(); 2]
            .map(|()| (dice.below(2) == 1).then(|| list([(); 8].map(|()| dice.below(8) as u16))));
        Round { modes: [dice.below(0o1000) as u32, dice.below(0o2000) as u32], lists }
    }

    /// Creates all objects again, as root.
    fn prepare(&self, at: &Path) {
        let _ = fs::remove_dir_all(at.join("t"));
        for dir in ["t", "t/d", "t/d/sub", "t/other", "t/other/dir"] {
            fs::create_dir(at.join(dir)).unwrap();
        }
        for file in ["t/f", "t/d/in", "t/d/gone", "t/other/there"] {
            fs::write(at.join(file), b"#!/bin/true\n").unwrap();
            fs::set_permissions(at.join(file), fs::Permissions::from_mode(0o777)).unwrap();
        }
        symlink("in", at.join("t/d/link")).unwrap();
        set_xattr(&at.join("t/f"), "user.there", b"1").unwrap();
        utimes(&at.join("t/f"), 5, 5).unwrap();
        for name in ["t/f", "t/d", "t/d/in", "t/d/sub", "t/other", "t/other/dir"] {
            chown(at.join(name), Some(OWNER), Some(GROUP)).unwrap();
        }
        fs::set_permissions(at.join("t"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at.join("t/other"), fs::Permissions::from_mode(0o777)).unwrap();
        for (name, (mode, list)) in ["t/f", "t/d"].iter().zip(self.modes.iter().zip(&self.lists)) {
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(*mode)).unwrap();
            if let Some(list) = list {
                set_xattr(&at.join(name), ACCESS, list).unwrap();
            }
        }
    }
}

fn utimes(path: &Path, atime: i64, mtime: i64) -> io::Result<()> {
    let time = |nanos| rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: nanos };
    let times = rustix::fs::Timestamps { last_access: time(atime), last_modification: time(mtime) };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())?)
}

fn open(path: &Path, flags: i32) -> io::Result<()> {
    let access = flags & libc::O_ACCMODE;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags & !libc::O_ACCMODE)
        .open(path)
        .map(drop)
}

fn raw(returned: i32) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mkfifo(path: &Path) -> io::Result<()> {
    // SAFETY: the path ends with a zero byte and lives through the call.
    raw(unsafe { libc::mkfifo(c(path).as_ptr(), 0o644) })
}

fn access(path: &Path, mode: i32) -> io::Result<()> {
    // SAFETY: as above.
    raw(unsafe { libc::faccessat(libc::AT_FDCWD, c(path).as_ptr(), mode, libc::AT_EACCESS) })
}

fn truncate(path: &Path) -> io::Result<()> {
    // SAFETY: as above.
    raw(unsafe { libc::truncate(c(path).as_ptr(), 3) })
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let cwd = rustix::fs::CWD;
    Ok(rustix::fs::renameat_with(cwd, one, cwd, other, rustix::fs::RenameFlags::EXCHANGE)?)
}

fn chdir(path: &Path) -> io::Result<()> {
    // SAFETY: as above; the thread has a working directory of its own.
    raw(unsafe { libc::chdir(c(path).as_ptr()) })
}

fn get_xattr(path: &Path, name: &str) -> io::Result<()> {
    let mut value = [0; 100];
    Ok(rustix::fs::getxattr(path, name, &mut value).map(drop)?)
}

/// An attempt, and the number of its error.
type Outcome = (&'static str, Option<i32>);

/// Tries everything in the directory `at`, as the thread's user. `links`: whether the kernel
/// protects hard links; only then they are tried.
fn attempts(at: &Path, links: bool) -> Vec<Outcome> {
    let (f, d) = (at.join("t/f"), at.join("t/d"));
    let other = at.join("t/other");
    let mut outcomes = Vec::new();
    let mut note = |what, result: io::Result<()>| {
        outcomes.push((what, result.err().and_then(|error| error.raw_os_error())))
    };
    const NOW: i64 = libc::UTIME_NOW;
    const OMIT: i64 = libc::UTIME_OMIT;

    note("stat", fs::metadata(&f).map(drop));
    note("open to read", open(&f, libc::O_RDONLY));
    note("open to write", open(&f, libc::O_WRONLY));
    note("open for both", open(&f, libc::O_RDWR));
    note("open to append", open(&f, libc::O_WRONLY | libc::O_APPEND));
    note(
        "open with O_CREAT",
        File::options().write(true).create(true).truncate(false).open(&f).map(drop),
    );
    note("may read", access(&f, libc::R_OK));
    note("may write", access(&f, libc::W_OK));
    note("may run", access(&f, libc::X_OK));
    note("may all", access(&f, libc::R_OK | libc::W_OK | libc::X_OK));
    note("attribute", get_xattr(&f, "user.there"));
    note("no attribute", get_xattr(&f, "user.none"));
    note("set attribute", set_xattr(&f, "user.new", b"1"));
    note("remove attribute", rustix::fs::removexattr(&f, "user.there").map_err(Into::into));
    // This call comes first: later the file could already have this time, and setting the time that
    // a file already has is permitted to users who may write to it.
    note("touch time of modification", utimes(&f, OMIT, NOW));
    note("touch", utimes(&f, NOW, NOW));
    note("set times", utimes(&f, 1, 2));
    note("set time of access", utimes(&f, 1, OMIT));
    note("set time of modification", utimes(&f, OMIT, 2));
    note("touch time of access", utimes(&f, NOW, OMIT));
    note("touch and set", utimes(&f, NOW, 2));
    note("set and touch", utimes(&f, 2, NOW));
    note("truncate", truncate(&f));
    note("open with O_TRUNC", open(&f, libc::O_WRONLY | libc::O_TRUNC));
    note("read with O_TRUNC", open(&f, libc::O_RDONLY | libc::O_TRUNC));
    note("give away", chown(&f, Some(1235), None));
    note("give to a group", chown(&f, None, Some(8)));

    note("list", fs::read_dir(&d).map(|entries| entries.for_each(drop)));
    note(
        "list and look",
        fs::read_dir(&d).map(|entries| entries.flatten().for_each(|entry| drop(entry.metadata()))),
    );
    note("look", fs::metadata(d.join("in")).map(drop));
    note("look for nothing", fs::metadata(d.join("nothing")).map(drop));
    note("open in", open(&d.join("in"), libc::O_RDWR));
    note("follow", fs::read_link(d.join("link")).map(drop));
    note("enter", chdir(&d));
    note("may search", access(&d, libc::X_OK));
    note("may change", access(&d, libc::W_OK | libc::X_OK));
    note("attribute of a directory", set_xattr(&d, "user.new", b"1"));
    note("touch a directory", utimes(&d, NOW, NOW));
    note("touch time of access of a directory", utimes(&d, NOW, OMIT));
    note("touch time of modification of a directory", utimes(&d, OMIT, NOW));
    note("touch and set times of a directory", utimes(&d, NOW, 2));
    note("set times of a directory", utimes(&d, OMIT, 2));
    note("create", OpenOptions::new().write(true).create_new(true).open(d.join("new")).map(drop));
    note("create again", File::create(d.join("new")).map(drop));
    note("mkdir", fs::create_dir(d.join("dir")));
    note("mkfifo", mkfifo(&d.join("pipe")));
    note("symlink", symlink("x", d.join("soft")));
    if links {
        note("link", fs::hard_link(d.join("in"), d.join("hard")));
        note("link another's", fs::hard_link(&f, other.join("hard")));
    }
    note("replace a directory", fs::rename(other.join("dir"), d.join("sub")));
    note("exchange", exchange(&other.join("dir"), &d.join("in")));
    note("replace", fs::rename(d.join("in"), other.join("there")));
    note("replace in", fs::rename(other.join("there"), d.join("in")));
    note("rename", fs::rename(d.join("in"), d.join("moved")));
    note("move away", fs::rename(d.join("moved"), other.join("moved")));
    note("move a directory away", fs::rename(d.join("sub"), other.join("sub")));
    note("unlink", fs::remove_file(d.join("gone")));
    note("unlink nothing", fs::remove_file(d.join("nothing")));
    note("rmdir", fs::remove_dir(d.join("dir")));
    note("chmod", fs::set_permissions(&f, fs::Permissions::from_mode(0o600)));
    note("chmod a directory", fs::set_permissions(&d, fs::Permissions::from_mode(0o700)));
    note("set a list", set_xattr(&f, ACCESS, &list([6, 0, 0, 4, 0, 0, 4, 0])));
    note("remove a list", rustix::fs::removexattr(&f, ACCESS).map_err(Into::into));
    note("look after all that", fs::metadata(d.join("gone")).map(drop));
    outcomes
}

/// Makes the calling thread, and no other, `who` for the rest of its life.
fn become_user((uid, gid, groups): Who) {
    // SAFETY: plain calls. As direct system calls they change this thread alone, which is intended:
    // glibc's functions change all threads.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
    }
}

fn attempts_by(who: Who, at: &Path, links: bool) -> Vec<Outcome> {
    thread::scope(|scope| {
        let run = move || {
            become_user(who);
            attempts(at, links)
        };
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn each_kind_of_call_is_allowed_or_refused_as_below() {
    // In a mount without `default_permissions` access was not checked at all: any user who could
    // enter wrote to files of mode 0444.
    let links =
        fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.trim() == "1");
    for posix in Posix::both() {
        let (here, below) = (posix.scratch.point(), posix.below());
        fs::set_permissions(&here, fs::Permissions::from_mode(0o755)).unwrap();
        let mut dice = Dice::new(7);
        let mut refused = 0;
        for number in 0..60 {
            let round = Round::thrown(&mut dice);
            for who in CALLERS {
                for at in [&here, &below] {
                    round.prepare(at);
                }
                // In every second round the kernel has the names cached already.
                if number % 2 == 1 {
                    let _ =
                        (fs::metadata(here.join("t/d/in")), fs::metadata(here.join("t/d/gone")));
                }
                let [here, below] = [&here, &below].map(|at| attempts_by(who, at, links));
                let Round { modes, lists } = &round;
                assert_eq!(
                    here, below,
                    "{who:?} with {} on file and directory of {modes:?} with {lists:?}",
                    posix.options
                );
                refused += below.iter().filter(|(_, error)| error.is_some()).count();
            }
        }
        assert!(refused > 5000, "{refused}: too little was refused to show anything");
        posix.finish();
    }
}

#[test]
fn names_that_the_kernel_knows_are_closed_with_their_directory() {
    // The kernel walks through cached names without checking access.
    for posix in Posix::both() {
        let script = r#"mkdir -p d/sub; echo x > d/in; echo y > d/sub/in; chown -R 1234:1234 d
             c() { code as 1234 1234 "$@"; }
             c cat d/in d/sub/in; c ls -lR d
             for mode in 600 700 0 755 311 444; do as 1234 1234 chmod $mode d; echo $mode $(c cat d/in) $(c stat d/sub/in) $(c ls d) $(c ls -l d) $(c test -e d/in); done
             as 1234 1234 chmod 700 d; c cat d/sub/in; as 1234 1234 setfacl -m u::--- d; c cat d/in; stat -c %a d
             as 1234 1234 setfacl -m u::rwx,u:1235:rwx d; stat -c %a d; code as 1235 1235 cat d/in; as 1234 1234 setfacl -x u:1235 d; code as 1235 1235 cat d/in; as 1234 1234 setfacl -b d; stat -c %a d
             printf '#!/bin/sh\nexit 7\n' > d/run; chown 1234:1234 d/run; for mode in 100 500 700 755 55 0; do chmod $mode d/run; echo $mode $(c sh -c d/run) $(code as 1235 1235 sh -c d/run) $(code d/run); done"#;
        posix.same_as_below(script);
        posix.finish();
    }
}

#[test]
fn a_nested_mount_survives_the_close_of_a_directory() {
    let _alone = turn::alone();
    // When a user closed a directory to themselves, the kernel looked up all names again, and it
    // unmounts what is mounted on a name that it does not trust any more. If it keeps no names
    // there is nothing to look up.
    for posix in Posix::both() {
        let script = "mkdir -p theirs deep/on; chown 1234:1234 theirs; mount -t tmpfs none deep/on; touch deep/on/there
             setpriv --reuid 1234 --regid 1234 --clear-groups chmod 0 theirs; test -e deep/on/there; grep -q \"$PWD/deep/on\" /proc/mounts";
        let mut alone = std::process::Command::new("unshare");
        alone
            .args(["--mount", "--propagation", "slave", "bash", "-euc", script])
            .current_dir(posix.scratch.point());
        mounted::expect_code(&mut alone, 0);
        posix.finish();
    }
}

/// In a mount for one user alone, that user's daemon decides on access as the filesystem below
/// does.
#[test]
fn an_ordinary_users_mount_obeys_the_modes_of_files() {
    let Some(user) = super::user::unprivileged() else { return };
    let options = || mounted::shell(user.path(), "grep \" $PWD/mnt \" /proc/mounts");
    assert!(options().contains("default_permissions"), "{}", options());
    user.umount();
    user.run(&format!("{} mount -o no_default_permissions vault mnt", mounted::KITHFS));
    assert!(!options().contains("default_permissions"), "{}", options());
    let script = r#"umask 022; code() { local status=0; "$@" >/dev/null 2>&1 || status=$?; echo "$status"; }
         echo x > f; mkdir -p d/sub; echo y > d/in; ls -lR d > /dev/null
         for mode in 0 100 200 300 400 500 600 700 077; do chmod $mode f d
           echo $mode $(code cat f) $(code bash -c 'echo y >> f') $(code bash -c ': > f') $(code test -r f) $(code test -w f) $(code test -x f) $(code truncate -s 1 f) $(code getfattr -n user.none f) $(code setfattr -n user.a -v 1 f)
           echo $(code ls d) $(code ls -l d) $(code cat d/in) $(code touch d/new) $(code rm d/new) $(code mv d/sub d/bus) $(code mv d/bus d/sub) $(code mkdir d/x) $(code rmdir d/x) $(code cd d) $(code find d) $(code touch f) $(code touch -d yesterday f)
         done; chmod 700 f d; stat -c '%n %a' f d d/*
         # the kernel sends the time of what was written also when it has no name any more
         for i in 1 2 3; do echo x > w; rm w; sync -f .; done"#;
    std::fs::create_dir(user.path().join("below")).unwrap();
    chown(user.path().join("below"), Some(65534), Some(65534)).unwrap();
    let [here, below] = ["mnt", "below"].map(|at| user.run(&format!("cd {at}\n{script}")));
    assert_eq!(here, below);
    user.umount();
}

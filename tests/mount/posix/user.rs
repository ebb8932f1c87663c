//! The daemon of an ordinary user, mounted through fusermount3: it has fewer rights than root, and
//! must still do everything that its user may do.

use std::path::Path;
use std::process::Command;

use super::mounted::{self, KITHFS, Scratch, shell};
use crate::support::turn;

/// `nobody`: fusermount3 looks up the name of its caller.
const USER: &str = "65534";

pub(super) struct Unprivileged(Scratch);

impl Unprivileged {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn run(&self, script: &str) -> String {
        let mut bash = Command::new("setpriv");
        bash.args([
            "--reuid",
            USER,
            "--regid",
            USER,
            "--clear-groups",
            "env",
            "HOME=/nonexistent",
            "XDG_RUNTIME_DIR=",
        ]);
        bash.arg(format!("XDG_STATE_HOME={}", self.0.path().join("state").display()));
        bash.arg(format!("KITHFS_PASSPHRASE_FILE={}", self.0.passphrase().display()));
        bash.args(["bash", "-euc", script]).current_dir(self.0.path());
        String::from_utf8(mounted::expect_code(&mut bash, 0).stdout).unwrap()
    }

    fn mount(&self) {
        self.run(&format!("{KITHFS} mount vault mnt"));
    }

    pub(super) fn umount(&self) {
        self.run(&format!("{KITHFS} umount mnt"));
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if mounted::is_mounted(&self.0.point()) {
            let _ = Command::new("fusermount3").args(["-uz"]).arg(self.0.point()).status();
        }
    }
}

pub(super) fn unprivileged() -> Option<Unprivileged> {
    if !mounted::can_mount() {
        return None;
    }
    let usable = rustix::process::geteuid().is_root()
        && Command::new("fusermount3").arg("-V").output().is_ok();
    // The program itself may be where only root can go.
    let readable = Command::new("setpriv")
        .args(["--reuid", USER, "--regid", USER, "--clear-groups", "test", "-x", KITHFS])
        .status();
    if !usable || !readable.is_ok_and(|status| status.success()) {
        println!("skipped: needs root, fusermount3, and a build that every user may run");
        return None;
    }
    let device = Command::new("setpriv")
        .args(["--reuid", USER, "--regid", USER, "--clear-groups", "test", "-w", "/dev/fuse"])
        .status();
    if !device.is_ok_and(|status| status.success()) {
        println!("skipped: user {USER} may not open /dev/fuse");
        return None;
    }
    let scratch = Scratch::bare();
    shell(
        scratch.path(),
        &format!(
            "chmod 755 .; mkdir state; chown -R {USER}:{USER} mnt passphrase state; chmod 600 passphrase; install -d -o {USER} -g {USER} vault"
        ),
    );
    let user = Unprivileged(scratch);
    user.run(&format!("{KITHFS} init --kdf-memory 32 --kdf-passes 1 vault 2>/dev/null"));
    user.mount();
    Some(user)
}

#[test]
fn modes_that_bar_the_owner_do_not_bar_their_daemon() {
    let Some(user) = unprivileged() else { return };
    user.run(
        "cd mnt; umask 022
         # a file of mode 0444 that is written through a handle of before, renamed, linked, removed
         exec 3> f; chmod 0444 f; head -c 600000 /dev/zero >&3; exec 3>&-; test $(stat -c %s:%a f) = 600000:444; ! (echo x > f) 2>/dev/null
         mv f g; ln g h; rm -f h; cp -p g i; rm -f i
         # a directory of mode 0555, with something in it, changes its name and its place
         mkdir -p full/in; echo 1 > full/file; chmod 0555 full; mv full moved; mkdir sub; test $(stat -c %a moved) = 555; test $(cat moved/file) = 1
         chmod 0000 sub; test $(stat -c %a sub) = 0; rmdir sub
         mkdir zero; touch zero/x; chmod 0000 zero; ! rmdir zero 2>/dev/null; chmod 700 zero; rm zero/x; chmod 0 zero; rmdir zero
         # mode 0000
         echo x > n; chmod 0 n; ! cat n 2>/dev/null; mv n m; chmod 600 m; test $(cat m) = x
         # attributes of what cannot be written
         setfattr -n user.a -v 1 m; chmod 0400 m; getfattr -n user.a m | grep -q 1; chmod 600 m",
    );
    user.umount();
    user.mount();
    user.run("cd mnt; test $(stat -c %a:%s g) = 444:600000; test $(cat moved/file) = 1; test $(stat -c %a moved) = 555; chmod 755 moved");
    user.umount();
    user.run(&format!("{KITHFS} fsck vault 2>/dev/null"));
}

#[test]
fn git_collects_its_read_only_objects() {
    let Some(user) = unprivileged() else { return };
    user.run(
        "cd mnt; export GIT_CONFIG_GLOBAL=/dev/null; git init -q r 2>/dev/null; cd r; git config user.email a@b; git config user.name a
         for i in $(seq 40); do echo $i > f$i; git add f$i; git commit -qm $i; done
         git gc -q --prune=now; git fsck --strict 2>&1; test -z \"$(git status --porcelain)\"; git checkout -q HEAD~20; git checkout -q -; git repack -adq; git fsck --strict 2>&1",
    );
    user.umount();
    user.mount();
    user.run("cd mnt/r; export GIT_CONFIG_GLOBAL=/dev/null; test -z \"$(git status --porcelain)\"; git fsck --strict 2>&1");
    user.umount();
}

/// Owners, ACLs and namespaces of attributes in an ordinary user's mount.
#[test]
fn an_ordinary_users_mount_has_owners_acls_and_namespaces() {
    let Some(user) = unprivileged() else { return };
    user.run(
        "cd mnt; umask 027; touch f; mkdir d; test $(stat -c %a:%u f) = 640:65534; test $(stat -c %a d) = 750
         setfacl -d -m u:77:rwx d; (umask 077; touch d/f); getfacl -n d/f | grep -q user:77:rwx; setfacl -m u:78:r f; getfacl -n f | grep -q user:78:r
         ! chown 77 f 2>/dev/null; ! setfattr -n trusted.a -v 1 f 2>/dev/null; ! mknod c c 1 3 2>/dev/null; mkfifo p; test -p p
         for p in a b; do (for i in $(seq 300); do echo $p$i >> log; done) & done; wait; test $(sort -u log | wc -l) = 600",
    );
    user.umount();
}

#[test]
fn a_mount_in_a_namespace_of_users_is_listed_and_waited_for() {
    let _alone = turn::alone();
    // A user who is root only in a namespace looked for the list of mounts where the machine's root
    // has it: `mounts` failed without the path, and `umount` did not wait until everything was
    // written.
    let Some(user) = unprivileged() else { return };
    user.umount();
    mounted::expect_code(Command::new(KITHFS).arg("mounts"), 0); // the machine's root has a list
    if user.run("unshare --user --map-root-user --mount true 2> /dev/null || echo refused")
        == "refused\n"
    {
        println!("skipped: users may make no namespaces");
        return;
    }
    let script = format!(
        "umask 022; {KITHFS} mount vault mnt; echo text > mnt/f; {KITHFS} mounts | grep -q vault; mkfifo mnt/p; ls -l mnt > /dev/null
         {KITHFS} umount mnt 2> state/said; test ! -s state/said; {KITHFS} fsck vault 2> /dev/null; {KITHFS} mount --read-only vault mnt; cat mnt/f; {KITHFS} umount mnt"
    );
    let ran = user.run(&format!(
        "XDG_RUNTIME_DIR=$PWD/state unshare --user --map-root-user --mount --propagation slave bash -euc '{script}'"
    ));
    assert_eq!(ran.trim(), "text");
}

/// Runs a script as root in a mount namespace of its own, in which `conf` replaces /etc/fuse.conf:
/// the machine's file is not touched, and mounts there end with it. `mine` and `theirs` run a
/// command as the daemon's user and as another.
fn with_fuse_conf(user: &Unprivileged, conf: &str, script: &str) -> String {
    std::fs::write(user.0.path().join("fuse.conf"), conf).unwrap();
    let mut bash = Command::new("unshare");
    bash.args(["--mount", "--propagation", "slave", "bash", "-euc"]).current_dir(user.0.path());
    bash.arg(format!(
        "chmod 644 fuse.conf; mount --bind fuse.conf /etc/fuse.conf
         export KITHFS_PASSPHRASE_FILE=$PWD/passphrase XDG_STATE_HOME=$PWD/state XDG_RUNTIME_DIR= HOME=/nonexistent
         mine() {{ setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\"; }}
         theirs() {{ setpriv --reuid 1235 --regid 1235 --clear-groups \"$@\"; }}
         {script}"
    ));
    String::from_utf8(mounted::expect_code(&mut bash, 0).stdout).unwrap()
}

#[test]
fn an_ordinary_user_lets_others_in_where_the_machine_allows_it() {
    let _alone = turn::alone();
    let Some(user) = unprivileged() else { return };
    if !std::path::Path::new("/etc/fuse.conf").exists() {
        println!("skipped: there is no /etc/fuse.conf");
        return;
    }
    user.umount();
    // Without `user_allow_other` the mount is refused with a message.
    with_fuse_conf(
        &user,
        "",
        &format!(
            "! mine {KITHFS} mount -o allow_other vault mnt 2> why; grep -q user_allow_other why; ! mountpoint -q mnt"
        ),
    );
    with_fuse_conf(
        &user,
        "user_allow_other\n",
        &format!(
            "umask 022; mine {KITHFS} mount vault mnt; ! theirs ls mnt 2>/dev/null; ! ls mnt 2>/dev/null; mine {KITHFS} umount mnt
             mine {KITHFS} mount -o allow_other vault mnt
             mine bash -c 'cd mnt; echo open > open; echo closed > closed; chmod 600 closed; mkdir mine all sticky; chmod 777 all; chmod 1777 sticky; echo x > sticky/x'
             # modes hold for others; root passes, as everywhere
             test \"$(theirs cat mnt/open)\" = open; ! theirs cat mnt/closed 2>/dev/null; ! theirs touch mnt/mine/x 2>/dev/null; ! theirs rm -f mnt/sticky/x 2>/dev/null
             ! theirs chmod 777 mnt/open 2>/dev/null; test \"$(cat mnt/closed)\" = closed
             # what others make works and belongs to the daemon's user, who can give nothing away
             theirs bash -c 'umask 0; cd mnt/all; echo theirs > theirs; mkdir dir; echo in > dir/in; ln -s theirs link; mv theirs moved; echo more >> moved'
             test \"$(theirs cat mnt/all/moved | tr '\\n' ' ')\" = 'theirs more '; test \"$(stat -c %u:%g:%a mnt/all/moved)\" = {USER}:{USER}:666
             ! chown 1235 mnt/open 2>/dev/null
             mine {KITHFS} umount mnt; ! mountpoint -q mnt; mine {KITHFS} fsck vault 2>/dev/null >/dev/null"
        ),
    );
    user.mount();
    assert_eq!(user.run("cat mnt/all/dir/in"), "in\n");
    user.umount();
}

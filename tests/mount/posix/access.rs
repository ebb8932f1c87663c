//! Permissions: modes, owners, groups, umask, sticky and set-group-id directories, ACLs.

use super::Posix;

#[test]
fn owners_modes_and_groups_are_those_of_the_filesystem_below() {
    Posix::both().for_each(owners_modes_and_groups);
}

fn owners_modes_and_groups(posix: Posix) {
    posix.same_as_below(
        "chmod 777 .
         # what another user makes belongs to that user
         as 1234 1234 touch theirs; as 1234 1234 mkdir theirsdir; as 1234 1234 mkfifo theirspipe; as 1234 1234 ln -s x theirslink
         stat -c '%n %u:%g %a' theirs theirsdir theirspipe; stat -c '%u:%g' theirslink
         # set-group-id directories hand the group down, and themselves to directories
         mkdir team; chown 0:4321 team; chmod 2777 team; as 1234 1234 touch team/f; as 1234 1234 mkdir team/d; stat -c '%n %u:%g %a' team/f team/d
         # sticky directories
         mkdir tmp; chmod 1777 tmp; as 1234 1234 touch tmp/mine; code as 1235 1235 rm -f tmp/mine; code as 1235 1235 mv tmp/mine tmp/yours; code as 1234 1234 rm tmp/mine
         # supplementary groups
         echo secret > grouped; chown 0:4321 grouped; chmod 640 grouped; code as 1234 1234 cat grouped; code as 1234 1234,4321 cat grouped
         # a caller who does not own it
         code as 1235 1235 chmod 600 theirs; code as 1235 1235 chown 1235 theirs; code as 1235 1235 touch -d yesterday theirs; code as 1234 1234 chown 1235 theirs
         # a group that the owner belongs to, and another one
         code as 1234 1234,4321 chgrp 4321 theirs; code as 1234 1234 chgrp 999 theirs; stat -c '%u:%g %a' theirs
         # sgid by chmod of an owner outside the group, and of one in it
         as 1234 1234 chmod 2755 theirs; stat -c %a theirs; as 1234 1234,4321 chmod 2755 theirs; stat -c %a theirs
         # umask
         (umask 077; touch private; mkdir privatedir); stat -c '%n %a' private privatedir",
    );
    posix.finish();
}

#[test]
fn suid_and_sgid_go_where_linux_clears_them() {
    Posix::both().for_each(suid_and_sgid);
}

fn suid_and_sgid(posix: Posix) {
    // sgid without group execution stayed when a user outside the group wrote: the protocol leaves
    // it, Linux clears it.
    let each = |act: &str| {
        posix.same_as_below(&format!(
            "rm -rf s; for mode in 4777 2777 6777 2666 6666 2767 6676; do
                 rm -f s; head -c 10000 /dev/zero > s; chown 1234:1234 s; chmod $mode s; {act}; stat -c %a s; done"
        ))
    };
    each("as 1235 1235 sh -c \"echo x >> s\"");
    each("as 1235 1235 truncate -s 5 s");
    each("as 1235 1235 sh -c \": > s\"");
    each("as 1235 1235 fallocate -l 20000 s");
    each("as 1235 1235 fallocate --punch-hole -o 0 -l 4096 s");
    each("as 1235 1235 fallocate --zero-range -o 0 -l 4096 s");
    // Members of the file's group: by their own group, and by a supplementary one.
    let member = "setpriv --reuid 1235 --regid 1234 --clear-groups";
    each(&format!("{member} sh -c \"echo x >> s\""));
    each(&format!("{member} truncate -s 5 s"));
    each(&format!("{member} fallocate -l 20000 s"));
    each("as 1235 1234,7 sh -c \"echo x >> s\"");
    each("as 1235 1234,7 truncate -s 5 s");
    each("as 1235 1234,7 sh -c \": > s\"");
    each("as 1235 1234,7 fallocate -l 20000 s");
    // An owner outside the group gives the file another group.
    each("chown 1235 s; as 1235 1236,8 chgrp 8 s");
    each("chown 1235 s; as 1235 1234,8 chgrp 8 s");
    each("sh -c \"echo root >> s\"");
    each("truncate -s 5 s");
    each("fallocate -l 20000 s");
    each("chown 1236 s");
    each("chgrp 1236 s");
    let sgid_dir = posix.same_as_below("mkdir d; chmod 6777 d; chown 1234:1234 d; stat -c %a d");
    assert_eq!(sgid_dir, "6777\n");
    posix.finish();
}

/// Prints everything about ACLs below the directory `t`.
const SHOW: &str =
    "find t ! -type l | sort | xargs getfacl -n -p; find t -printf '%p %m\\n' | sort";

#[test]
fn acls_are_kept_enforced_and_handed_down() {
    // ACLs were refused, so `cp -p`, rsync -A and a default ACL for a team's directory did not
    // work.
    Posix::both().for_each(acls);
}

fn acls(mut posix: Posix) {
    let shown = posix.same_as_below(&format!(
        "chmod 755 .; mkdir t; setfacl -m u:1234:rwx,g:4321:rx t; setfacl -d -m u:1234:rwx,g::rx,o::- t
         touch t/file; mkdir t/dir; mkfifo t/pipe; ln -s x t/link; echo > t/dir/deeper
         (umask 077; touch t/masked; mkdir t/maskeddir)
         as 1234 1234 touch t/theirs; code as 1235 1235 touch t/not; code as 1235 4321 ls t; code as 1235 4321 touch t/not
         touch t/moded; chmod 640 t/moded; chmod 700 t/dir; setfacl -m m::rx t/dir; code as 1234 1234 touch t/dir/not
         setfacl -b t/file; setfacl -k t/maskeddir; cp -p t/theirs t/copy
         touch s; chown 1234:4321 s; chmod 2770 s; as 1234 1234 setfacl -m u:7:r s; stat -c %a s
         chmod 2770 s; as 1234 4321 setfacl -m u:8:r s; stat -c %a s; chmod 2770 s; setfacl -m u:9:r s; stat -c %a s
         code as 1235 1235 setfacl -m u:1:r s; code setfacl -d -m u:1:r s
         {SHOW}"
    ));
    posix.remount();
    let again = posix.shell(SHOW);
    assert!(shown.ends_with(&again), "{shown}\n--\n{again}");
    posix.shell(
        "getfacl -R -p -n t > ../saved; setfacl -R -b -k t; test \"$(getfacl -R -p -n t | grep -c user:1234)\" = 0
         setfacl --restore=../saved; getfacl -R -p -n t | diff ../saved -
         rsync -aAX t/ copied/; (cd t; find . ! -type l | sort | xargs getfacl -n) > ../a; (cd copied; find . ! -type l | sort | xargs getfacl -n) | diff ../a -",
    );
    posix.finish();
}

#[test]
fn a_view_of_other_owners_has_no_acls() {
    // An ACL names true owners: with uid= it would grant access to others than those who are shown.
    let Some(mut posix) = Posix::new() else { return };
    posix.shell("touch f; setfacl -m u:1234:rw f");
    posix.mount.take().unwrap().unmount();
    posix.mount = Some(posix.scratch.mount(&["-o", "allow_other,uid=77,umask=077"]));
    posix.shell("test $(stat -c %u:%a f) = 77:600; ! setfacl -m u:1:r f 2>/dev/null; test -z \"$(getfacl -n f | grep 1234)\"; (umask 0; touch g); test $(stat -c %a g) = 600");
    posix.remount();
    posix.shell("getfacl -n f | grep -q user:1234:rw; test $(stat -c %a g) = 666");
    posix.finish();
}

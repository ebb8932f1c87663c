#!/usr/bin/env bash
# Runs xfstests on a mount of kithfs, or of gocryptfs in the same way, and prints what passed, failed and was not run.
#
#     scripts/xfstests.sh DIR [kithfs|gocryptfs] [CHECK-ARGUMENT...]       e.g. scripts/xfstests.sh /tmp/xfstests kithfs -g quick
#
# DIR is a built checkout of the public repository of xfstests, whose README lists the packages that it needs. Run this as root, on a machine
# for tests: it creates the users that xfstests expects, and puts a mount helper into /sbin for the duration of the run. Results are in
# DIR/results. Some tests fill the filesystem of $TMPDIR, so use a separate one of some 12 GiB. Tests in scripts/xfstests-excluded.txt are
# not run; that file gives the reasons.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
xfstests=$(realpath -- "${1:?the directory of xfstests}")
which=${2:-kithfs}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- -g quick
. "$(dirname -- "$0")/scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root"
[ -x "$xfstests/check" ] || die "$xfstests is no checkout of xfstests"
for user in fsgqa fsgqa2 123456-fsgqa; do
    id "$user" >/dev/null 2>&1 || useradd -m -s /bin/bash "$user" 2>/dev/null || useradd --badname -m -s /bin/bash "$user"
done

helper=/sbin/mount.fuse.$which
[ ! -e "$helper" ] || die "$helper is there already"
before_cleanup() {
    for at in "$work"/mnt-*; do ! mountpoint -q "$at" || umount "$at" || umount -l "$at"; done
    rm -f "$helper"
}
mkdir "$work/mnt-test" "$work/mnt-scratch" "$work/store-test" "$work/store-scratch"
head -c 24 /dev/urandom | base64 >"$work/passphrase"
case $which in
    kithfs)
        for store in test scratch; do
            "$kithfs" init --own-identity --passphrase-file "$work/passphrase" --kdf-memory 32 --kdf-passes 1 "$work/store-$store" >/dev/null 2>&1
        done
        ln -s -- "$kithfs" "$work/mount.kithfs"
        command=("$work/mount.kithfs")
        own=allow_suid,allow_dev,allow_foreign_store,passphrase_file=$work/passphrase ;;
    gocryptfs)
        for store in test scratch; do gocryptfs -init -q -scryptn 10 -passfile "$work/passphrase" "$work/store-$store"; done
        command=(gocryptfs -q -nosyslog -allow_other -suid -dev -passfile "$work/passphrase")
        own='' ;;
    *) die "kithfs or gocryptfs, not $which" ;;
esac
# mount(8) calls the helper with: SOURCE MOUNTPOINT -o OPTIONS. The option store= is the store's directory. The kernel does remounts; the
# helper of kithfs asks it to.
cat >"$helper" <<HELPER
#!/bin/bash
ulimit -n "\$(ulimit -Hn)"
source=\$1 point=\$2 options=${own@Q} store='' remount=no
shift 2
while [ \$# -gt 0 ]; do
    case \$1 in -o) list=\$2; shift ;; -o*) list=\${1#-o} ;; *) shift; continue ;; esac
    shift
    IFS=, read -ra each <<<"\$list"
    for option in "\${each[@]}"; do
        case \$option in
            store=*) store=\${option#store=} ;;
            source=* | rw) ;;
            remount) remount=yes; options+=,\$option ;;
            # gocryptfs takes allow_other as an option of its own, which implies default_permissions. Other options go to the kernel.
            allow_other | default_permissions) [ $which = gocryptfs ] || options+=,\$option ;;
            *) options+=,\$option ;;
        esac
    done
done
options=\${options#,}
case $which-\$remount in
    # Warnings of kithfs must not become output of a test, for example about modes that tests give to the root of the mount.
    kithfs-no) exec 2>>"$work/kithfs.log" ${command[*]@Q} "\$store" "\$point" -o "fsname=\$source,\$options" ;;
    kithfs-yes) exec ${command[*]@Q} "\$source" "\$point" -o "\$options" ;;
    # Messages of the gocryptfs daemon must not become output of a test.
    *-no) exec >>"$work/gocryptfs.log" 2>&1 ${command[*]@Q} -fsname "\$source" \${options:+-ko "\$options"} "\$store" "\$point" ;;
    *-yes) exec mount -i -o "\$options" "\$source" "\$point" ;;
esac
HELPER
chmod 755 "$helper"

cat >"$xfstests/local.config" <<CONFIG
export TEST_DEV=$which-test
export TEST_DIR=$work/mnt-test
export SCRATCH_DEV=$which-scratch
export SCRATCH_MNT=$work/mnt-scratch
export FSTYP=fuse
export FUSE_SUBTYP=.$which
export MOUNT_OPTIONS="-ostore=$work/store-scratch,allow_other,default_permissions"
export TEST_FS_MOUNT_OPTS="-ostore=$work/store-test,allow_other,default_permissions"
CONFIG
sed -n 's/^\([a-z]*\/[0-9]*\) .*/\1/p' "$here/scripts/xfstests-excluded.txt" >"$work/excluded"
mount -t "fuse.$which" -o "store=$work/store-test,allow_other,default_permissions" "$which-test" "$work/mnt-test"
cd "$xfstests"
# xfstests expects the type `fuse`, as libfuse's examples have it. These mounts have a subtype, as all mounts by mount(8) do.
grep -q 'fuse[[]' common/rc || sed -i -E "s#-e 's/fuse.ceph-fuse/ceph-fuse/'#& -e 's/fuse[.]kithfs/fuse/' -e 's/fuse[.]gocryptfs/fuse/'#" common/rc
# Ends a test that hangs after TEST_TIMEOUT seconds, because `check` itself would wait for ever.
sed -i 's#^\t\t"${cmd\[@\]}"$#\t\ttimeout -k 20 "${TEST_TIMEOUT:-300}" "${cmd[@]}"#' check
grep -q 'timeout -k 20' check || die "$xfstests/check is not as it was known: it runs its tests in another way"
export TEST_TIMEOUT=${TEST_TIMEOUT:-300}
./check -E "$work/excluded" "$@" 2>&1 | tee "$work/log" || true
# Counts results by the output of the run: one line for each test, which ends with a time if the test passed.
awk '
    /^(generic|shared)\/[0-9]+/ {
        if (/\[not run\]/) notrun++
        else if (/\[expunged\]/) expunged++
        else if (/exit status (124|137)/) { late++; which_late = which_late " " $1 }
        else if (/\[failed|output mismatch|_check_|\[dmesg/ || / - /) { failed++; which_failed = which_failed " " $1 }
        else passed++
    }
    END {
        printf "passed %d, failed %d, timed out %d, not run %d, left out %d\n", passed, failed, late, notrun, expunged
        if (failed) print "failed:" which_failed
        if (late) print "timed out:" which_late
    }' "$work/log"
cd "$here"
for at in "$work"/mnt-*; do ! mountpoint -q "$at" || umount "$at" || die "$at is still in use"; done
[ "$which" != kithfs ] || for store in test scratch; do
    "$kithfs" fsck --passphrase-file "$work/passphrase" "$work/store-$store" >"$work/fsck" 2>&1 || { cat "$work/fsck"; die "fsck finds faults in the vault of $store"; }
done

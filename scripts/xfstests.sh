#!/usr/bin/env bash
# Runs xfstests on a mount of kithfs, or of gocryptfs in the same way, and prints what passed, failed and was not run.
#
#     scripts/xfstests.sh DIR [kithfs|gocryptfs] [CHECK-ARGUMENT...]       e.g. scripts/xfstests.sh /tmp/xfstests kithfs -g quick
#
# DIR is a built checkout of xfstests (its public repository; it needs its own packages, see its README). As root, and on a machine that
# is for testing: it makes the users that xfstests wants and puts a mount helper into /sbin for the time of the run. Results stay in
# DIR/results. Tests named in scripts/xfstests-excluded.txt are not run, each for the reason given there.
set -euo pipefail
xfstests=$(realpath -- "${1:?the directory of xfstests}")
which=${2:-kithfs}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- -g quick
. "$(dirname -- "$0")/scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root"
[ -x "$xfstests/check" ] || die "$xfstests is no checkout of xfstests"
for user in fsgqa fsgqa2 123456-fsgqa; do
    id "$user" >/dev/null 2>&1 || useradd -M -s /bin/bash "$user" 2>/dev/null || useradd --badname -M -s /bin/bash "$user"
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
            "$kithfs" init --passphrase-file "$work/passphrase" --kdf-memory 32 --kdf-passes 1 "$work/store-$store" >/dev/null 2>&1
        done
        command=("$kithfs" mount --passphrase-file "$work/passphrase") ;;
    gocryptfs)
        for store in test scratch; do gocryptfs -init -q -scryptn 10 -passfile "$work/passphrase" "$work/store-$store"; done
        command=(gocryptfs -q -passfile "$work/passphrase") ;;
    *) die "kithfs or gocryptfs, not $which" ;;
esac
# mount(8) calls it as: helper SOURCE MOUNTPOINT -o OPTIONS; the store's directory comes as the option store=.
cat >"$helper" <<HELPER
#!/bin/bash
ulimit -n "\$(ulimit -Hn)"
source=\$1 point=\$2 options='' store=''
shift 2
while [ \$# -gt 0 ]; do
    case \$1 in -o) list=\$2; shift ;; -o*) list=\${1#-o} ;; *) shift; continue ;; esac
    shift
    IFS=, read -ra each <<<"\$list"
    for option in "\${each[@]}"; do
        case \$option in store=*) store=\${option#store=} ;; source=*) ;; rw) ;; *) options+=,\$option ;; esac
    done
done
exec ${command[*]@Q} -o "fsname=\$source\$options" "\$store" "\$point"
HELPER
chmod 755 "$helper"

cat >"$xfstests/local.config" <<CONFIG
export TEST_DEV=$which-test
export TEST_DIR=$work/mnt-test
export SCRATCH_DEV=$which-scratch
export SCRATCH_MNT=$work/mnt-scratch
export FSTYP=fuse
export FUSE_SUBTYP=.$which
export MOUNT_OPTIONS="-ostore=$work/store-scratch,allow_other,default_permissions,suid,dev"
export TEST_FS_MOUNT_OPTS="-ostore=$work/store-test,allow_other,default_permissions,suid,dev"
CONFIG
sed -n 's/^\([a-z]*\/[0-9]*\) .*/\1/p' "$here/scripts/xfstests-excluded.txt" >"$work/excluded"
mount -t "fuse.$which" -o "store=$work/store-test,allow_other,default_permissions,suid,dev" "$which-test" "$work/mnt-test"
cd "$xfstests"
# xfstests knows the mounts of libfuse's examples, whose type is `fuse` alone; ours have a subtype, as mounts by mount(8) do.
sed -i "s#-e 's/fuse.ceph-fuse/ceph-fuse/')#-e 's/fuse.ceph-fuse/ceph-fuse/' -e 's/fuse[.]$which/fuse/')#; s#^\( *-e 's/fuse.ceph-fuse/ceph-fuse/'\)\$#\1 -e 's/fuse[.]$which\$/fuse/'#" common/rc
# A test that hangs is ended by its own time; the run is judged by what it printed.
TEST_TIMEOUT=${TEST_TIMEOUT:-300} ./check -E "$work/excluded" "$@" 2>&1 | tee "$work/log" || true
awk '
    /^(generic|shared)\/[0-9]+/ {
        if (/\[not run\]/) notrun++
        else if (/\[expunged\]/) expunged++
        else if (/\[failed|output mismatch|_check_/ || / - /) failed++
        else passed++
    }
    END { printf "passed %d, failed %d, not run %d, left out %d\n", passed, failed, notrun, expunged }' "$work/log"
grep -E '^(Failures|Failed)' "$work/log" || true

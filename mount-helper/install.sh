#!/bin/sh
# Makes the type kithfs known to mount(8) and /etc/fstab: the program answers to the name mount.kithfs.
#
#     install.sh [--prefix DIR] [--program FILE] [--uninstall]
#
#   --program FILE   the program to which PREFIX/sbin/mount.kithfs links; default: kithfs in the PATH
#
# mount(8) searches only /sbin for helpers, so the default prefix is empty.
# DESTDIR, if set, is prepended, for packaging.
set -eu

prefix=${PREFIX:-} program='' uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || { echo "install.sh: --prefix needs a directory" >&2; exit 1; }; prefix=$2; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --program) [ $# -ge 2 ] || { echo "install.sh: --program needs a file" >&2; exit 1; }; program=$2; shift ;;
        --program=*) program=${1#--program=} ;;
        --uninstall) uninstall=yes ;;
        *) echo "usage: install.sh [--prefix DIR] [--program FILE] [--uninstall]" >&2; exit 1 ;;
    esac
    shift
done

sbin=${DESTDIR:-}$prefix/sbin

if [ "$uninstall" = yes ]; then
    rm -f -- "$sbin/mount.kithfs" "$sbin/mount.fuse.kithfs"
    echo "removed $sbin/mount.kithfs and $sbin/mount.fuse.kithfs"
    exit 0
fi

if [ -z "$program" ]; then
    program=$(command -v kithfs) || {
        echo "install.sh: kithfs is not in the PATH; name it with --program FILE" >&2
        exit 1
    }
fi
mkdir -p -- "$sbin"
# A new link is moved into place, so that a concurrent mount sees either the old or the new one.
for name in mount.kithfs mount.fuse.kithfs; do
    ln -sfn -- "$program" "$sbin/.$name.new"
    mv -fT -- "$sbin/.$name.new" "$sbin/$name"
done
echo "installed $sbin/mount.kithfs and $sbin/mount.fuse.kithfs"

#!/bin/sh
# Installs the mount helper, so that mount(8) and /etc/fstab know the type kithfs.
#
#     install.sh [--prefix DIR] [--uninstall]
#
# mount(8) searches only /sbin for helpers, so the default prefix is empty: PREFIX/sbin/mount.kithfs.
# DESTDIR, if set, is prepended, for packaging.
set -eu

prefix=${PREFIX:-} uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || { echo "install.sh: --prefix needs a directory" >&2; exit 1; }; prefix=$2; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --uninstall) uninstall=yes ;;
        *) echo "usage: install.sh [--prefix DIR] [--uninstall]" >&2; exit 1 ;;
    esac
    shift
done

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
sbin=${DESTDIR:-}$prefix/sbin

if [ "$uninstall" = yes ]; then
    rm -f -- "$sbin/mount.kithfs" "$sbin/mount.fuse.kithfs"
    echo "removed $sbin/mount.kithfs and $sbin/mount.fuse.kithfs"
    exit 0
fi

mkdir -p -- "$sbin"
# A new file is moved into place, so that a concurrent mount sees either the old or the new one.
cp -- "$here/mount.kithfs" "$sbin/.mount.kithfs.new"
chmod 755 "$sbin/.mount.kithfs.new"
mv -f -- "$sbin/.mount.kithfs.new" "$sbin/mount.kithfs"
ln -sf mount.kithfs "$sbin/mount.fuse.kithfs"
echo "installed $sbin/mount.kithfs and $sbin/mount.fuse.kithfs"

#!/bin/sh
# Installs kithfs from the tarball, or removes it.
#
#     ./install.sh [--uninstall]
#
# Run it as root. Files go below /usr, where mount(8), man(1) and the shells look for them, or below $DESTDIR/usr if DESTDIR is set.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=${DESTDIR:-}
cd "$here/files"
case ${1-} in
    '')
        command -v fusermount3 >/dev/null || echo "install: to mount, install the package fuse3" >&2
        # Replaces the program instead of overwriting it, because it may be running.
        find . -type d -exec mkdir -p "$root/{}" \;
        find . ! -type d -exec cp --remove-destination -P --preserve=mode,timestamps {} "$root/{}" \;
        echo "installed $root/usr/bin/kithfs"
        ;;
    --uninstall)
        find . ! -type d -exec rm -f -- "$root/{}" \;
        rm -rf -- "$root/usr/share/doc/kithfs"
        echo "removed $root/usr/bin/kithfs"
        ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 1 ;;
esac

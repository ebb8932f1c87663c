#!/bin/sh
# Installs kithfs from the tarball, upgrades it, or removes it.
#
#     ./install.sh [--prefix DIR] [--uninstall]
#
#   --prefix DIR   below this directory: /usr/local, or ~/.local without root. The default is /usr, where mount(8), systemd, SiriKali and all
#                  shells look
#   --uninstall    removes what it has installed there, and the directories that it has created
#
# DESTDIR, if set, is prepended, for packaging.
set -eu

prefix=/usr uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || { echo "install: --prefix needs a directory" >&2; exit 1; }; prefix=$2; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --uninstall) uninstall=yes ;;
        *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 1 ;;
    esac
    shift
done
# The user unit names the program by this path.
case $prefix in /*) ;; *) echo "install: --prefix $prefix: give an absolute path" >&2; exit 1 ;; esac

umask 022
from=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/files/usr
to=${DESTDIR:-}$prefix
files=$(cd -- "$from" && find . ! -type d)

# The directories that installations have created here, one a line. Others may be empty too, and stay.
created=$to/share/doc/kithfs/created-directories

if [ "$uninstall" = yes ]; then
    dirs=$(cat -- "$created" 2>/dev/null || :; cd -- "$from" && find . -type d -name kithfs)
    for file in $files; do
        rm -f -- "$to/$file"
    done
    rm -f -- "$created"
    # In reverse, a directory comes after those in it. rmdir leaves directories that have files of others.
    printf '%s\n' "$dirs" | LC_ALL=C sort -r | while read -r dir; do
        [ ! -d "$to/$dir" ] || rmdir --ignore-fail-on-non-empty -- "$to/$dir"
    done
    echo "removed $to/bin/kithfs"
    exit 0
fi

command -v fusermount3 >/dev/null || echo "install: to mount, install the package fuse3" >&2
new=''
# Creates a directory below $to, and notes each one that was missing.
make_dir() {
    [ ! -d "$to/$1" ] || return 0
    case $1 in */*) make_dir "${1%/*}" ;; esac
    mkdir -- "$to/$1"
    new="$new./$1
"
}

mkdir -p -- "$to"
for file in $files; do
    at=$to/${file#./}
    dir=${file#./}
    make_dir "${dir%/*}"
    cp -P --preserve=mode,timestamps -- "$from/$file" "$at.new"
    case $file in
        *.service) sed "s|/usr/bin/kithfs|$prefix/bin/kithfs|" <"$from/$file" >"$at.new" ;;
    esac
    # Replaces the program instead of overwriting it, because it may be running.
    mv -fT -- "$at.new" "$at"
done
# A package has no such list: the package manager knows its directories.
if [ -n "$new" ] && [ -z "${DESTDIR:-}" ]; then printf '%s' "$new" >>"$created"; fi
echo "installed $to/bin/kithfs"

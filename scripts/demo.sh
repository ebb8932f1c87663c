#!/usr/bin/env bash
# Shows the main use from end to end in a temporary directory: makes and mounts a vault, copies real files in, mounts it again, and
# compares the files and copies them out.
#
#     scripts/demo.sh [DIR]        copies the files of DIR; default: the sources of this project
#
# Uses target/release/kithfs, or the program that the variable KITHFS names. Leaves nothing behind, however it ends.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
files=${1:-}
die() { echo "demo: $*" >&2; exit 1; }
step() { printf '\n-- %s\n' "$*"; }
[ -x "$kithfs" ] || die "$kithfs is not there: run scripts/setup.sh, or cargo build --release"
[ -z "$files" ] || [ -d "$files" ] || die "$files is not a directory"

work=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-demo.XXXXXX")
vault=$work/vault plain=$work/plain

# Unmounts the mount of this script only, which ends its daemon too.
cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    if mountpoint -q "$plain"; then
        "$kithfs" umount "$plain" || "$kithfs" umount --lazy "$plain" || fusermount3 -uz "$plain" || true
    fi
    if mountpoint -q "$plain"; then
        echo "demo: $plain is still mounted, so $work is left as it is" >&2
        exit 1
    fi
    rm -rf --one-file-system -- "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mount_vault() { "$kithfs" mount --passphrase-file "$work/passphrase" "$vault" "$plain"; }

# Prints kind, mode, owner, size, time and link target of everything below $1. Omits sizes of directories, which differ between filesystems.
metadata() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%p %y %m %U:%G %T@\n' -o -printf '%p %y %m %U:%G %n %s %T@ %l\n' \) | sort)
}
compare() {
    diff -r --no-dereference "$1" "$2" || die "contents differ"
    diff <(metadata "$1") <(metadata "$2") || die "metadata differs"
}

mkdir "$plain" "$work/source"
head -c 24 /dev/urandom | base64 >"$work/passphrase"
if [ -n "$files" ]; then
    cp -a -- "$files/." "$work/source/"
else
    (cd "$here" && cp -a -- src tests scripts mount-helper Cargo.toml Cargo.lock "$work/source/")
fi
head -c 5000000 /dev/urandom >"$work/source/five megabytes"
ln -s 'five megabytes' "$work/source/link"
ln "$work/source/five megabytes" "$work/source/the same again"
chmod 640 "$work/source/five megabytes"

step "kithfs init: a vault, and the recovery code that opens it when the passphrase is lost"
"$kithfs" init --own-identity --passphrase-file "$work/passphrase" "$vault"

step "kithfs mount, and $(find "$work/source" -type f | wc -l) files copied in"
mount_vault
cp -a -- "$work/source/." "$plain/"
compare "$work/source" "$plain"
step "kithfs umount, and what the storage host sees"
"$kithfs" umount "$plain"
find "$vault" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | head -n 8
if grep -rqF -e 'five megabytes' -e 'kithfs: an encrypted filesystem' "$vault"; then die "the vault shows a name or a text"; fi

step "kithfs mount again, compare, and copy out"
mount_vault
compare "$work/source" "$plain"
cp -a -- "$plain" "$work/copy"
compare "$work/source" "$work/copy"
"$kithfs" umount "$plain"

step "kithfs fsck: every byte verified"
"$kithfs" fsck --passphrase-file "$work/passphrase" "$vault"

step "done: the files that came out are the same as those that went in"

#!/usr/bin/env bash
# The main job, from end to end, in a temporary directory: a vault is made and mounted, real files are copied in, it is mounted
# anew, and they are compared and copied out again.
#
#     scripts/demo.sh [DIR]        DIR is what is copied in; default: the sources of this project
#
# Uses target/release/kithfs, or what the variable KITHFS names. Leaves nothing behind, however it ends.
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

# Only the mount of this script is ended, and with it its daemon.
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

# Kind, mode, owner, size, time and link of everything below $1; a directory's size is the filesystem's own affair.
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
step "kithfs umount, and what whoever stores the vault sees"
"$kithfs" umount "$plain"
find "$vault" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | head -n 8
if grep -rqF -e 'five megabytes' -e 'kithfs: an encrypted filesystem' "$vault"; then die "the vault shows a name or a text"; fi

step "mounted anew, compared, and copied out"
mount_vault
compare "$work/source" "$plain"
cp -a -- "$plain" "$work/copy"
compare "$work/source" "$work/copy"
"$kithfs" umount "$plain"

step "kithfs fsck: every byte verified"
"$kithfs" fsck --passphrase-file "$work/passphrase" "$vault"

step "done: what came out is what went in"

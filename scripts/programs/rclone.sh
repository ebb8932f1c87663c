#!/usr/bin/env bash
# rclone copying a tree in, changing it, and syncing again, in both directions; its own check by hash finds no difference.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need rclone
export RCLONE_CONFIG=/dev/null
make_vault && mount_vault
mkdir -p "$work/source"/{a,b,c}/{d,e}
n=0
for dir in "$work/source"/*/*; do for file in $(seq 60); do n=$((n + 1)); head -c $((n * 977 % 70000)) /dev/urandom >"$dir/file $file.bin"; done; done
head -c 30000000 /dev/urandom >"$work/source/large.bin"
rclone -q sync "$work/source" "$plain/copy" --transfers 8 --checkers 8
rclone -q check "$work/source" "$plain/copy" || die "the copy differs"
rm -r "$work/source/a/d" && mv "$work/source/b/e" "$work/source/a/moved" && head -c 5000 /dev/urandom >"$work/source/large.bin"
rclone -q sync "$work/source" "$plain/copy" --transfers 8
remount_vault
rclone -q check "$work/source" "$plain/copy" || die "the copy differs after a second sync"
rclone -q sync "$plain/copy" "$work/back" --transfers 8
rclone -q check "$work/source" "$work/back" || die "what came back differs"
umount_vault && check_vault

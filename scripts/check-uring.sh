#!/usr/bin/env bash
# Runs mount tests over FUSE-over-io_uring: the tests of the adapter, of the program and of this transport.
#
#     scripts/check-uring.sh     # prints that it is skipped if the kernel does not offer io_uring for FUSE
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

switch=/sys/module/fuse/parameters/enable_uring
if [ ! -e "$switch" ]; then
    echo "check-uring: skipped: this kernel has no FUSE over io_uring (Linux 6.14 and later have)" >&2
    exit 0
fi
before=$(cat "$switch")
if [ "$before" != Y ]; then
    if ! [ -w "$switch" ] || ! echo Y >"$switch"; then
        echo "check-uring: skipped: $switch is N, and only root can change it" >&2
        exit 0
    fi
fi
output=$(mktemp)
finish() {
    rm -f -- "$output"
    [ "$before" = Y ] || echo "$before" >"$switch"
}
trap finish EXIT

export KITHFS_TRANSPORT=uring
# Each process runs its tests one at a time, and most of them wait.
some() { cargo test --locked --test mount -- --test-threads "$((2 * $(nproc)))" "$@"; }
some uring:: fuse_adapter:: hostile:: >"$output" 2>&1 &
status=0
some end_to_end:: helper:: killed:: lock:: program_locks:: signed:: refused:: || status=$?
wait "$!" || status=$?
cat "$output"
[ "$status" -eq 0 ] || exit "$status"
cargo test --locked --test project -- readme::

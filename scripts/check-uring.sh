#!/usr/bin/env bash
# Runs mount tests over FUSE-over-io_uring: the tests of the adapter, of the program and of this transport.
#
#     scripts/check-uring.sh                    # prints that it is skipped if the kernel does not offer io_uring for FUSE
#     scripts/check-uring.sh --stress SECONDS   # random I/O with writeback and fsync, in a control group with little memory (root)
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
group=''
finish() {
    [ "$before" = Y ] || echo "$before" >"$switch"
    [ -z "$group" ] || rmdir -- "$group" 2>/dev/null || true
}
trap finish EXIT

if [ "${1:-}" = --stress ]; then
    [ $# -eq 2 ] || { echo "usage: check-uring.sh [--stress SECONDS]" >&2; exit 1; }
    # The test binary is run without cargo, which takes 50 MiB itself.
    test=$(cargo test --locked --test mount --no-run --message-format=json | sed -n 's/.*"executable":"\([^"]*mount-[^"]*\)".*/\1/p')
    [ -x "$test" ] || { echo "check-uring: the test was not built" >&2; exit 1; }
    # The test and the daemon that it starts share 288 MiB. Once all memory for requests was used, after half an hour, they need some 230 MiB
    # themselves: with a limit of 224 MiB the daemon was killed after 39 minutes. The rest is too small to cache 48 MiB of files both in the
    # mount and in the store.
    limit=$((288 << 20))
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        group=/sys/fs/cgroup/kithfs-stress file=memory.max
    elif [ -d /sys/fs/cgroup/memory ]; then
        group=/sys/fs/cgroup/memory/kithfs-stress file=memory.limit_in_bytes
    fi
    if [ -n "$group" ] && mkdir -p -- "$group" && echo "$limit" >"$group/$file"; then
        echo "check-uring: at most $((limit >> 20)) MiB" >&2
        (
            echo "$BASHPID" >"$group/cgroup.procs"
            KITHFS_STRESS_SECONDS=$2 "$test" uring::random_work --nocapture
        )
    else
        group=''
        echo "check-uring: no control group can be made here: memory is not limited" >&2
        KITHFS_STRESS_SECONDS=$2 "$test" uring::random_work --nocapture
    fi
    exit 0
fi

export KITHFS_TRANSPORT=uring
cargo test --locked --test mount -- uring:: fuse_adapter:: hostile:: end_to_end:: helper:: lock:: program_locks:: signed:: refused::
cargo test --locked --test project -- readme::

#!/usr/bin/env bash
# Simulates several machines that have one vault mounted for writing, with random programs and a simulated sync tool. A plain directory under
# the same programs and tool is the reference. Counts entries that are lost, hidden or without a name, and operations that are refused.
#
#     scripts/sync-simulator.sh [OPTION...]
#
#   --seeds N|A..B      sessions: the seeds 0 to N-1, or A to B-1 (default 50)
#   --ops N             steps of each session (default 50)
#   --tool NAME         syncthing, dropbox or nextcloud (default: all, in turns)
#   --system NAME       kithfs (default), gocryptfs, or plain, which compares the reference with itself
#   --shrink DIR        write the smallest failing part of each failing session into this directory
#   --trace FILE        play this trace instead (tests/sync/trace.rs describes the form)
#   --scenarios [NAME]  play the scenarios of tests/sync/scenarios.rs instead, or those with this in their name, and print their states
#   --clocks            give each machine a wrong time: 400 days late, 3 days early, 2 hours late; needs Debian's package libfaketime
#   --verbose           print also results of operations that differ without being a failure
#
# The seed of a session determines its trace. Needs root, /dev/fuse and cargo. KITHFS names a program to use instead of the one that cargo
# builds. gocryptfs is mounted with -sharedstorage and -badname '*', with which it shows the most entries.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
die() { echo "sync-simulator: $*" >&2; exit 1; }
export KITHFS_SYNC_SEEDS=50 KITHFS_SYNC_OPS=50
while [ $# -gt 0 ]; do
    case $1 in
        --verbose) export KITHFS_SYNC_VERBOSE=1 ;;
        --clocks)
            KITHFS_SYNC_CLOCKS=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null) || die "there is no libfaketime: apt-get install libfaketime"
            export KITHFS_SYNC_CLOCKS
            ;;
        --scenarios)
            export KITHFS_SYNC_SCENARIOS=all
            case ${2-} in '' | -*) ;; *) KITHFS_SYNC_SCENARIOS=$2; shift ;; esac
            ;;
        --seeds | --ops | --tool | --system | --shrink | --trace)
            [ $# -ge 2 ] || die "$1 needs a value"
            variable=${1#--}
            export "KITHFS_SYNC_${variable^^}=$2"
            shift
            ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
case ${KITHFS_SYNC_SYSTEM-} in gocryptfs) command -v gocryptfs >/dev/null || die "gocryptfs is not installed" ;; esac
[ "$(id -u)" -eq 0 ] || die "needs root, for host names and mounts"
[ -r /dev/fuse ] || die "there is no /dev/fuse"
exec cargo test --locked --quiet --test sync -- --exact simulator::random_sessions_lose_nothing --nocapture

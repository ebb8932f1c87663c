#!/usr/bin/env bash
# Runs more kills, copies of disks in use and power cuts than CI has time for.
#
#     scripts/crash.sh [--full] [--rounds N] [--cuts N] [--seed N]
#
#   --full       50 rounds of each kind of kill and 1,000,000 power cuts
#   --rounds N   rounds of each kind of kill (default 12)
#   --cuts N     power cuts in memory (default 100000)
#   --seed N     other moments and other workloads
#
# Nothing is skipped as root with /dev/fuse, mkfs.xfs and sqlite3. A test that is skipped prints why. The totals are printed at the end.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

rounds=12 cuts=100000 seed=1
die() { echo "crash: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        --full) rounds=50 cuts=1000000 ;;
        --rounds | --cuts | --seed)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $2 in '' | *[!0-9]*) die "$1 takes a number" ;; esac
            case $1 in --rounds) rounds=$2 ;; --cuts) cuts=$2 ;; --seed) seed=$2 ;; esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done

export KITHFS_CRASH_ROUNDS=$rounds KITHFS_CRASH_SEED=$seed KITHFS_POWER_CUTS=$cuts KITHFS_POWER_CUT_SEED=$seed
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --locked --test durability -- crash:: power_cut_random:: --nocapture --test-threads 1 2>&1 | tee "$log"
echo
echo "in all:"
grep -E '^(skipped:|[0-9]+ (kills|copies|power cuts|loads))' "$log"

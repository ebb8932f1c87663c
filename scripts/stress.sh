#!/usr/bin/env bash
# Runs stress-ng's filesystem stressors in a mount, one after the other, with verification. Checks that there is no wrong data and no leaked
# handle, that the daemon stays alive, and that its memory stays within a limit.
#
#     scripts/stress.sh [SECONDS [STRESSOR...]]       default: 60 seconds for each stressor of stress-ng's class filesystem
#     scripts/stress.sh --random SECONDS [--seed N] [--transport dev|uring] [PRESSURE...]
#
# Stressors that cannot run in a mount are left out; scripts/stress-excluded.txt lists them with their reasons.
#
# --random does random work in rounds of 20 to 60 seconds, compares it with a model (scripts/stress/model.py), and needs root. It uses
# io_uring if the kernel offers it. A PRESSURE is
#
#   memory    most rounds run in a control group whose limit on memory is little more than what the daemon needs
#   kill      some rounds end with kill -9 of the daemon
#   unmount   some rounds end with an unmount that is refused, and a lazy one, while the clients go on
#   clients   some rounds have 64 clients instead of 6
#   hotplug   in some rounds a processor goes offline for a fifth of a second, again and again
#
# The default is all of them. The same seed chooses the same rounds and the same work, but a kill comes at another point of it.
set -euo pipefail
. "$(dirname -- "$0")/scratch.sh"

if [ "${1-}" = --random ]; then
    . "$here/scripts/stress/random.sh"
    exit 0
fi
need stress-ng
seconds=${1:-60}
[ $# -eq 0 ] || shift
if [ $# -gt 0 ]; then stressors=("$@"); else
    mapfile -t stressors < <(stress-ng --class 'filesystem?' | tr ' ' '\n' | grep -E '^[a-z]' | grep -vxE 'class|stressors:|filesystem|.*:' |
        grep -vxFf <(sed -n 's/^\([a-z0-9-]*\) .*/\1/p' "$here/scripts/stress-excluded.txt"))
fi
[ ${#stressors[@]} -gt 0 ] || die "stress-ng names no stressors"

make_vault && mount_vault
daemon=$("$kithfs" mounts --json | python3 -c 'import json, sys; print(next(m["pid"] for m in json.load(sys.stdin) if m["mountpoint"] == sys.argv[1]))' "$plain")
handles() { find "/proc/$daemon/fd" -mindepth 1 -maxdepth 1 | wc -l; }
memory() { awk '/^VmRSS/ { print $2 }' "/proc/$daemon/status"; }
# 64 MiB of caches, a buffer of at least 1 MiB for each thread, and nodes for the largest tree that a stressor makes.
limit_kib=$((256 * 1024))

failed=()
before=$(handles)
for each in "${stressors[@]}"; do
    mkdir "$plain/$each"
    status=0
    timeout --kill-after=20 $((seconds + 120)) stress-ng --quiet --"$each" 2 --timeout "$seconds" --verify --temp-path "$plain/$each" >"$work/log" 2>&1 || status=$?
    # Exit statuses of stress-ng: 2 and 3 mean failed, 4 not implemented or not possible on this machine.
    case $status in
        0) result=held ;;
        4) result="not possible on this machine" ;;
        *) result="FAILED ($status)"; failed+=("$each"); cat "$work/log" ;;
    esac
    [ -d "/proc/$daemon" ] || die "the daemon died under $each"
    rm -rf -- "${plain:?}/$each"
    echo "$each: $result, $(memory) KiB of memory, $(handles) handles"
    [ "$(memory)" -le $limit_kib ] || die "the daemon holds more than $limit_kib KiB after $each"
done
# A cache keeps up to 512 handles of directories. No other handle may stay open.
[ "$(handles)" -le $((before + 512)) ] || die "$(handles) handles are open, $before were before"
umount_vault
check_vault
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
say "${#stressors[@]} stressors held"

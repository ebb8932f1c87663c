#!/usr/bin/env bash
# Checks the memory of the daemon with a tree of many files (tree), a very large file (large) and a huge directory (many), and that of
# commands on a vault whose directory contains very many foreign entries (foreign). Prints the number of open handles too.
#
#     scripts/memory.sh [--full] [tree] [large] [many] [foreign]      default: all four
#
#   --full    100,000 files, 20 GiB, 1,000,000 entries (needs 26 GiB of disk and about half an hour). Otherwise 10,000 files, 1 GiB, 50,000
#             entries
#
# The limit is 64 MiB for the caches, as documented, 64 MiB for threads, buffers and the program itself, and 512 bytes for each node that the
# kernel holds. Exit status 0 if the memory never exceeds the limit, also after the kernel has forgotten nodes.
set -euo pipefail
. "$(dirname -- "$0")/scratch.sh"
need python3
files=10000 bytes=$((1 << 30)) entries=50000
[ "${1-}" != --full ] || { files=100000 bytes=$((20 << 30)) entries=1000000; shift; }
parts=" ${*:-tree large many foreign} "
wanted() { [[ $parts == *" $1 "* ]]; }
[ "$(id -u)" -eq 0 ] || skip "needs root, to drop the kernel's caches"

find_daemon() {
    daemon=$("$kithfs" mounts --json | python3 -c 'import json, sys; print(next(m["pid"] for m in json.load(sys.stdin) if m["mountpoint"] == sys.argv[1]))' "$plain")
}
make_vault && mount_vault && find_daemon
memory() { awk '/^VmRSS/ { print $2 }' "/proc/$daemon/status"; }
handles() { find "/proc/$daemon/fd" -mindepth 1 -maxdepth 1 | wc -l; }
check() { # WHAT NODES
    local limit=$((128 * 1024 + $2 / 2)) now tries
    # The kernel sends a request for each node that it forgets, which takes a while for a million.
    for tries in {1..50}; do
        now=$(memory)
        [ "$now" -gt $limit ] || break
        sleep 0.2
    done
    echo "$1: $now KiB of memory (limit $limit), $(handles) handles"
    [ "$now" -le $limit ] || die "the daemon holds $now KiB after: $1"
}
forget() { sync; echo 2 >/proc/sys/vm/drop_caches; }

tree() {
    python3 - "$plain/tree" "$files" <<'PY'
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    place = f"{root}/{n // 10000}/{n // 200 % 50}"
    if n % 200 == 0:
        os.makedirs(place, exist_ok=True)
    with open(f"{place}/{n}", "wb") as f:
        f.write(b"%d\n" % n * (n % 90))
PY
    check "$files files made" "$files"
    umount_vault && mount_vault && find_daemon
    [ "$(find "$plain/tree" -type f -print0 | xargs -0 cat | wc -c)" -gt $((files * 100)) ] || die "the tree is not whole"
    check "$files files read" "$files"
    forget
    check "$files files forgotten" 0
}

large() {
    # One MiB of random bytes, repeated: new random bytes for the whole file would take too long.
    head -c 1048576 /dev/urandom >"$work/block"
    sum=$(for _ in $(seq $((bytes >> 20))); do cat "$work/block"; done | tee "$plain/large" | cksum)
    check "$((bytes >> 30)) GiB written" 0
    forget
    [ "$(cksum <"$plain/large")" = "$sum" ] || die "the large file came back different"
    check "$((bytes >> 30)) GiB read" 0
    rm "$plain/large"
}

many() {
    mkdir "$plain/many"
    python3 - "$plain/many" "$entries" <<'PY'
import os, sys
for n in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/entry-{n}", os.O_CREAT | os.O_WRONLY))
PY
    check "$entries entries made" "$entries"
    forget
    [ "$(ls -f "$plain/many" | wc -l)" -eq $((entries + 2)) ] || die "the listing of the directory is not whole"
    check "$entries entries listed" 10000
    [ "$(find "$plain/many" -mindepth 1 -printf '%s\n' | wc -l)" -eq "$entries" ] || die "the second listing is not whole"
    check "$entries entries listed with their attributes" "$entries"
    forget
    check "$entries entries forgotten" 0
    umount_vault && mount_vault && find_daemon
    [ "$(ls -f "$plain/many" | wc -l)" -eq $((entries + 2)) ] || die "the listing in a new mount is not whole"
    check "$entries entries listed in a new mount" 10000
    [ "$(find "$plain/many" -mindepth 1 -printf '%s\n' | wc -l)" -eq "$entries" ] || die "the second listing in a new mount is not whole"
    check "$entries entries listed with their attributes in a new mount" "$entries"
    forget
    check "$entries entries forgotten in a new mount" 0
}

foreign() {
    umount_vault
    python3 - "$vault" "$entries" <<'PY'
import os, sys
for n in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/{'.' if n % 2 else ''}entry-{n:030}", os.O_CREAT | os.O_WRONLY))
PY
    local command peak
    for command in ls fsck; do
        peak=$(python3 - "$kithfs" "$command" --passphrase-file "$work/passphrase" "$vault" <<'PY'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
PY
)
        echo "$command beside $entries foreign entries: $peak KiB of memory (limit $((128 * 1024)))"
        [ "$peak" -le $((128 * 1024)) ] || die "$command took $peak KiB"
    done
    mount_vault && find_daemon
    ls -f "$plain" >/dev/null
    check "a directory with $entries foreign entries listed" 0
    find "$vault" -maxdepth 1 -name '*entry-*' -delete
}

for part in tree large many foreign; do
    if wanted "$part"; then "$part"; fi
done
umount_vault

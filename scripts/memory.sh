#!/usr/bin/env bash
# Checks the memory of the daemon with a tree of many files (tree), a very large file (large) and a huge directory (many), and that of
# commands on a huge directory (commands) and on a vault whose directory contains very many foreign entries (foreign). Prints the number of
# open handles too.
#
#     scripts/memory.sh [--full] [tree] [large] [many] [commands] [foreign]      default: all five
#
#   --full    100,000 files, 20 GiB, 1,000,000 entries, 300,000 for commands (needs 26 GiB of disk and about half an hour). Otherwise 10,000
#             files, 1 GiB, 50,000 entries
#
# The limit is 64 MiB for the caches, as documented, 64 MiB for threads, buffers and the program itself, and 512 bytes for each node that the
# kernel holds. Exit status 0 if the memory never exceeds the limit, also after the kernel has forgotten nodes.
set -euo pipefail
. "$(dirname -- "$0")/scratch.sh"
need python3
files=10000 bytes=$((1 << 30)) entries=50000 in_commands=50000
[ "${1-}" != --full ] || { files=100000 bytes=$((20 << 30)) entries=1000000 in_commands=300000; shift; }
parts=" ${*:-tree large many commands foreign} "
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

weigh() { # WHAT COMMAND...
    local what=$1 peak
    shift
    peak=$(python3 - "$@" <<'PY'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
PY
)
    echo "$what: $peak KiB of memory (limit $((128 * 1024)))"
    [ "$peak" -le $((128 * 1024)) ] || die "$what took $peak KiB"
}

# Each command with the rollback memory and without it. The rollback memory holds up to 50,000 local changes, and writes them in one
# transaction.
commands() {
    local pass=(--passphrase-file "$work/passphrase") vault=$work/second command with
    python3 - "$work/source" "$in_commands" <<'PY'
import os, sys
os.makedirs(f"{sys.argv[1]}/many")
for n in range(int(sys.argv[2])):
    with open(f"{sys.argv[1]}/many/file number {n}", "wb") as f:
        f.write(bytes(100))
PY
    for with in with without; do
        [ $with = with ] || export KITHFS_NO_ROLLBACK_MEMORY=1
        "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "${pass[@]}" "$vault" >/dev/null 2>&1
        weigh "import of $in_commands files of one directory, $with rollback memory" "$kithfs" import "${pass[@]}" "$work/source" "$vault"
        for command in fsck rollback 'share rekey --eager'; do
            [ "$with $command" != 'without rollback' ] || continue
            # shellcheck disable=SC2086 # a command, a subcommand and an option
            weigh "$command of them, $with rollback memory" "$kithfs" $command "${pass[@]}" "$vault"
        done
        weigh "export of them, $with rollback memory" "$kithfs" export "${pass[@]}" "$vault" "$work/out"
        [ "$(ls -f "$work/out/many" | wc -l)" -eq $((in_commands + 2)) ] || die "the export is not whole"
        rm -rf --one-file-system -- "$work/out" "$vault"
    done
    unset KITHFS_NO_ROLLBACK_MEMORY
    rm -rf --one-file-system -- "$work/source"
}

foreign() {
    umount_vault
    python3 - "$vault" "$entries" <<'PY'
import os, sys
for n in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/{'.' if n % 2 else ''}entry-{n:030}", os.O_CREAT | os.O_WRONLY))
PY
    local command
    for command in ls fsck; do
        weigh "$command beside $entries foreign entries" "$kithfs" "$command" --passphrase-file "$work/passphrase" "$vault"
    done
    mount_vault && find_daemon
    ls -f "$plain" >/dev/null
    check "a directory with $entries foreign entries listed" 0
    find "$vault" -maxdepth 1 -name '*entry-*' -delete
}

for part in tree large many commands foreign; do
    if wanted "$part"; then "$part"; fi
done
umount_vault

#!/usr/bin/env bash
# Runs PostgreSQL in a mount and kills the daemon while pgbench works. Afterwards every acknowledged transaction must exist, and amcheck must
# find no fault.
#
#     scripts/crash-databases.sh [--rounds N] [--seconds N]
#
#   --rounds N    kills (default 5)
#   --seconds N   longest time between the first acknowledged commits and the kill (default 5)
#
# Needs PostgreSQL (initdb, postgres, pgbench, psql, the amcheck extension) and, run by root, a user `postgres` or `nobody` for the server.
# Beside pgbench, three clients insert rows into one table. Each records outside of the mount the commits that the server has acknowledged.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
rounds=5 seconds=5
die() { echo "crash-databases: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        --rounds | --seconds)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $2 in '' | 0 | *[!0-9]*) die "$1 takes a number from 1" ;; esac
            case $1 in --rounds) rounds=$2 ;; --seconds) seconds=$2 ;; esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done

kithfs=${KITHFS:-$here/target/release/kithfs}
[ -x "$kithfs" ] || die "$kithfs is not there: cargo build --release"
bin=${PGBIN:-}
for dir in /usr/lib/postgresql/*/bin "$bin"; do [ -x "$dir/initdb" ] && bin=$dir; done
[ -x "$bin/initdb" ] || die "no initdb: install PostgreSQL or set PGBIN"
for tool in psql pgbench; do command -v "$tool" >/dev/null || [ -x "$bin/$tool" ] || die "$tool is missing"; done
PATH=$bin:$PATH

work=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-pg.XXXXXX")
chmod 755 "$work"
mkdir "$work/mnt" "$work/notes" "$work/socket"
printf 'correct horse' >"$work/pass"
as=()
if [ "$(id -u)" -eq 0 ]; then
    user=$(id -un postgres 2>/dev/null || echo nobody)
    chown "$user" "$work/notes" "$work/socket"
    as=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups env HOME="$work" PATH="$PATH")
fi
daemon='' server=''

end_all() {
    trap - EXIT INT TERM
    if [ -n "$server" ]; then
        # shellcheck disable=SC2046
        kill -9 "$server" $(cat "/proc/$server/task/$server/children" 2>/dev/null) 2>/dev/null || true
    fi
    if [ -n "$daemon" ]; then kill -9 "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; fi
    if mountpoint -q "$work/mnt"; then umount -l "$work/mnt"; fi
    rm -rf --one-file-system -- "$work"
}
trap end_all EXIT
trap 'exit 130' INT TERM

mount_it() {
    "$kithfs" mount --foreground --log-level warn -o allow_other,allow_foreign_store --passphrase-file "$work/pass" "$work/vault" "$work/mnt" &
    daemon=$!
    for ((i = 0; i < 200; i++)); do
        if mountpoint -q "$work/mnt"; then return; fi
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.05
    done
    die "the mount did not come up"
}

kill_it() {
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
    daemon=''
    # Without its files the server ends by itself. But one of its processes that waits for a lock of a dead one does not notice that, and
    # would keep the mount busy.
    if [ -n "$server" ]; then
        local parts
        parts=$(cat "/proc/$server/task/$server/children" 2>/dev/null || true)
        # shellcheck disable=SC2086
        kill -9 "$server" $parts 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=''
    fi
    umount -l "$work/mnt"
}

start_server() {
    "${as[@]}" rm -f "$work/mnt/data/postmaster.pid"
    "${as[@]}" postgres -D "$work/mnt/data" -k "$work/socket" -c listen_addresses= -c fsync=on -c synchronous_commit=on >>"$work/log" 2>&1 &
    server=$!
    for ((i = 0; i < 600; i++)); do
        if sql 'SELECT 1' >/dev/null 2>&1; then return; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/log" >&2
    die "the server did not start"
}

sql() { "${as[@]}" psql -h "$work/socket" -d postgres -U bench -qAtX -v ON_ERROR_STOP=1 -c "$1"; }

# One client: inserts one row after the other, and records each once its commit has returned.
client() {
    local n=$1 i
    coproc "${as[@]}" psql -h "$work/socket" -d postgres -U bench -qAtX -v ON_ERROR_STOP=1 2>/dev/null
    for ((i = $2; ; i++)); do
        echo "INSERT INTO inserted VALUES ($n, $i, repeat('x', 100 + $i % 900)) RETURNING i;" >&"${COPROC[1]}" 2>/dev/null || return 0
        read -r answer <&"${COPROC[0]}" || return 0
        [ "$answer" = "$i" ] || return 0
        echo "$i" >"$work/notes/new.$n" && mv "$work/notes/new.$n" "$work/notes/client.$n"
    done
}

"$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 --passphrase-file "$work/pass" "$work/vault" >/dev/null
mount_it
if [ ${#as[@]} -gt 0 ]; then chown "$user" "$work/mnt"; fi
"${as[@]}" initdb -D "$work/mnt/data" -U bench -A trust --data-checksums >"$work/log" 2>&1 || { tail "$work/log" >&2; die "initdb failed"; }
start_server
sql 'CREATE EXTENSION amcheck; CREATE TABLE inserted (n int, i int, t text, PRIMARY KEY (n, i))'
"${as[@]}" pgbench -h "$work/socket" -U bench -i -s 2 -q postgres >/dev/null 2>&1 || die "pgbench -i failed"

total=0
# Rows of each client that existed after the rounds so far.
kept=(0 0 0 0)
for ((round = 1; round <= rounds; round++)); do
    from=$((round * 1000000))
    rm -f "$work/notes/"*
    for n in 1 2 3; do client "$n" "$from" & done
    "${as[@]}" pgbench -h "$work/socket" -U bench -n -c 4 -T 600 postgres >/dev/null 2>&1 &
    bench=$!
    for ((i = 0; i < 600; i++)); do
        if [ -e "$work/notes/client.1" ] && [ -e "$work/notes/client.2" ] && [ -e "$work/notes/client.3" ]; then break; fi
        sleep 0.05
    done
    sleep "$((RANDOM % seconds)).$((RANDOM % 10))"
    kill_it
    kill "$bench" 2>/dev/null || true
    wait 2>/dev/null || true
    mount_it
    start_server
    for n in 1 2 3; do
        acknowledged=$(($(cat "$work/notes/client.$n") - from + 1))
        intact="n = $n AND t = repeat('x', 100 + i % 900)"
        there=$(sql "SELECT count(*) FROM inserted WHERE $intact AND i >= $from")
        [ "$there" -ge "$acknowledged" ] || die "round $round, client $n: $acknowledged rows were acknowledged, $there exist"
        # A row that has survived one kill must survive all others.
        earlier=$(sql "SELECT count(*) FROM inserted WHERE $intact AND i < $from")
        [ "$earlier" -eq "${kept[n]}" ] || die "round $round, client $n: earlier rounds left ${kept[n]} rows, $earlier exist"
        kept[n]=$((earlier + there))
        total=$((total + acknowledged))
    done
    sql "SELECT bt_index_parent_check(c.oid, true) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am a ON a.oid = c.relam
         WHERE a.amname = 'btree' AND c.relpersistence = 'p'" >/dev/null || die "round $round: an index is damaged"
    found=$(sql "SELECT count(*) FROM pg_class c, LATERAL verify_heapam(c.oid) WHERE c.relkind = 'r' AND c.relpersistence = 'p'")
    [ "$found" -eq 0 ] || die "round $round: amcheck found $found faults"
    sum=$(sql 'SELECT (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(abalance) FROM pgbench_accounts)')
    [ "$sum" = t ] || die "round $round: the balances do not agree"
    echo "round $round: amcheck found no fault, $total acknowledged rows so far, each found after every kill"
done
sql 'SELECT 1' >/dev/null
kill -INT "$server" && wait "$server" 2>/dev/null || true
server=''
"$kithfs" umount "$work/mnt"
wait "$daemon"
daemon=''
echo "$rounds kills, $total acknowledged rows, each found after every kill since"

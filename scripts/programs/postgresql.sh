#!/usr/bin/env bash
# PostgreSQL in a mount, run as its own user in a mount made by root: initdb with checksums, pgbench, amcheck, restart after a remount.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root, to run the server as another user"
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || skip "postgresql is not installed"
id postgres >/dev/null 2>&1 || skip "there is no user postgres"
as() { setpriv --reuid=postgres --regid=postgres --init-groups env -C "$work" HOME="$work" PATH="$bin:$PATH" "$@"; }
data=$plain/data
pg() { as pg_ctl -D "$data" -s -w -t 120 -l "$work/log/server" "$@"; }
before_cleanup() { [ ! -e "$data/postmaster.pid" ] || pg -m immediate stop; }

make_vault && mount_vault
chmod 755 "$plain" # the root of a new vault is its maker's alone
mkdir "$work/log" && chown postgres "$work/log"
install -d -o postgres -g postgres -m 700 "$data"
as initdb -D "$data" --data-checksums -A trust >/dev/null
options="-c listen_addresses='' -c unix_socket_directories='$work/log' -c shared_buffers=32MB -c max_wal_size=64MB"
pg -o "$options" start
sql() { as psql -h "$work/log" -qAtX -v ON_ERROR_STOP=1 "$@" postgres; }
as createdb -h "$work/log" bench
as pgbench -h "$work/log" -q -i -s 3 bench 2>/dev/null
as pgbench -h "$work/log" -n -c 4 -j 2 -t 300 bench 2>/dev/null >"$work/pgbench"
grep -q 'actually processed: 1200/1200' "$work/pgbench" || die "pgbench did not do its work"
sql -c 'create extension amcheck' -c "copy (select repeat(md5(n::text), 50) from generate_series(1, 20000) n) to '$plain/data/out.copy'"
as psql -h "$work/log" -qAtX -c 'create extension amcheck' bench
as pg_amcheck -h "$work/log" --heapallindexed --all >&2 || die "amcheck found damage"
pg -m fast stop
remount_vault
pg -o "$options" start
count=$(as psql -h "$work/log" -qAtX -c 'select count(*) from pgbench_history' bench)
[ "$count" -eq 1200 ] || die "$count transactions are in the history, not 1200"
as pg_amcheck -h "$work/log" --heapallindexed --all >&2 || die "amcheck found damage after a remount"
pg -m fast stop
as pg_checksums -D "$data" --check >/dev/null || die "checksums are wrong"
umount_vault && check_vault

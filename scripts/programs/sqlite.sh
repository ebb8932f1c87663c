#!/usr/bin/env bash
# SQLite in a mount: rollback journal and WAL, with and without mmap, several writers at once; integrity_check, and every row counted.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need sqlite3
make_vault && mount_vault
writers=4 rounds=60

writer() { # DATABASE MMAP NUMBER
    for round in $(seq $rounds); do
        sqlite3 -bail "$1" ".timeout 60000" "pragma mmap_size=$2" "pragma synchronous=$((round % 3))" "begin immediate;
            insert into t(who, round, text) values($3, $round, hex(randomblob($((round * 37 % 3000)))));
            update t set text = hex(randomblob(200)) where id = (select max(id) / 2 from t);
            update tally set n = n + 1;
            commit;" >/dev/null || return 1
        [ $((round % 20)) -ne 0 ] || sqlite3 "$1" ".timeout 60000" "pragma mmap_size=$2" "select count(*), sum(length(text)) from t" >/dev/null || return 1
    done
}
for journal in delete truncate wal; do
    for mmap in 0 268435456; do
        base=$plain/$journal-$mmap.sqlite
        sqlite3 "$base" "pragma journal_mode=$journal; create table t(id integer primary key, who int, round int, text); create index i on t(who, round);
            create table tally(n int); insert into tally values(0); insert into t(who, text) values(0, 'first')" >/dev/null
        pids=()
        for n in $(seq $writers); do writer "$base" "$mmap" "$n" & pids+=($!); done
        for pid in "${pids[@]}"; do wait "$pid" || die "a writer failed ($journal, mmap $mmap)"; done
        [ "$(sqlite3 "$base" 'select n from tally')" -eq $((writers * rounds)) ] || die "updates were lost ($journal, mmap $mmap)"
    done
done
remount_vault
for base in "$plain"/*.sqlite; do
    [ "$(sqlite3 "$base" 'pragma integrity_check')" = ok ] || die "$base is damaged"
    [ "$(sqlite3 "$base" 'select count(distinct who * 1000 + round) from t where who > 0')" -eq $((writers * rounds)) ] || die "$base lacks rows"
    sqlite3 "$base" 'vacuum' && [ "$(sqlite3 "$base" 'pragma integrity_check')" = ok ] || die "$base is damaged after vacuum"
done
umount_vault && check_vault

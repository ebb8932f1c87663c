#!/usr/bin/env bash
# Many small SQLite databases, as in a browser's profile, in WAL mode: many processes write to them at once, and afterwards every row exists.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need sqlite3
make_vault && mount_vault
files=60 visits=25
mkdir "$plain/profile"
profile() { # NUMBER
    local base=$plain/profile/$1.sqlite
    sqlite3 "$base" 'pragma journal_mode=wal; create table visit(id integer primary key, url text unique, blob blob)' >/dev/null
    for visit in $(seq $visits); do
        sqlite3 "$base" "insert into visit(url, blob) values('https://example.org/$1/$visit', randomblob(900))" || return 1
    done
    # Bookmarks and settings are written to a new file, which then replaces the old one by a rename.
    for visit in 1 2 3 4 5; do
        echo "{\"file\": $1, \"visit\": $visit}" >"$plain/profile/$1.json.tmp"
        mv "$plain/profile/$1.json.tmp" "$plain/profile/$1.json"
    done
}
export -f profile
export plain visits
seq $files | xargs -P 8 -I{} bash -euc 'profile {}' || die "a writer failed"
remount_vault
for n in $(seq $files); do
    [ "$(sqlite3 "$plain/profile/$n.sqlite" 'pragma integrity_check; select count(*) from visit' | paste -sd,)" = "ok,$visits" ] || die "$n.sqlite is damaged"
    grep -q '"visit": 5' "$plain/profile/$n.json" || die "$n.json is old"
done
umount_vault && check_vault

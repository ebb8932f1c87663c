#!/usr/bin/env bash
# Tests a vault in a folder that a real sync tool keeps equal on two machines: each reads what the other writes, both versions of a conflict
# are kept, and a crash of one machine stops nothing on the other.
#
#     scripts/sync-tools.sh [--install] [syncthing | unison | nextcloud]...
#
# Runs all tools if none is named. --install installs what they need (as root on Debian). Both machines are this one, with two host names and
# separate state directories. Syncthing and Nextcloud run in a network namespace without a connection to the outside. The Nextcloud client is
# the real one; its server is scripts/sync-tools/nextcloud-server.py. Needs root.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
if [ "${1-}" = --install ]; then
    shift
    export DEBIAN_FRONTEND=noninteractive
    packages=(syncthing unison nextcloud-desktop-cmd curl iproute2 python3)
    dpkg -s "${packages[@]}" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
fi
. "$(dirname -- "$0")/scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root, for host names and a network of its own"
need unshare nsenter
tools=("$@")
[ $# -gt 0 ] || tools=(syncthing unison nextcloud)

network='' synced=()
# on MACHINE COMMAND...: runs a command with that machine's host name and state directory.
on() {
    local machine=$1
    shift
    XDG_STATE_HOME=$work/state-$machine KITHFS_PASSPHRASE_FILE=$work/passphrase \
        unshare --uts sh -c 'hostname "$0"; exec "$@"' "machine-$machine" "$@"
}
# The vault, in the folder that the tool keeps equal.
store() { echo "$work/$sync-$1/vault"; }
point() { echo "$work/at-$1"; }
up() { on "$1" "$kithfs" mount "$(store "$1")" "$(point "$1")"; }
down() { "$kithfs" umount "$(point "$1")"; }
before_cleanup() {
    local machine pid
    for machine in one two; do
        ! mountpoint -q "$work/at-$machine" || "$kithfs" umount "$work/at-$machine" || umount -l "$work/at-$machine"
    done
    for pid in "${synced[@]}" $network; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
}
# Makes a network namespace without a connection to the outside.
apart() {
    need unshare nsenter ip
    [ -z "$network" ] || return 0
    unshare --net sh -c 'ip link set lo up; exec sleep infinity' &
    network=$!
}
# in_network COMMAND...: runs a command in that namespace. Not for servers in the background: `$!` would be the process id of a shell.
in_network() { nsenter --target "$network" --net "$@"; }

# Exports the plain contents of a machine's copy of the vault.
contents() {
    rm -rf -- "$work/out-$1"
    on "$1" "$kithfs" export "$(store "$1")" "$work/out-$1" >"$work/export" 2>&1 || { cat "$work/export" >&2; die "$sync: export on machine $1"; }
}
# Checks that both machines have the same contents without faults, and that neither reports a rollback.
agree() {
    local machine
    for machine in one two; do
        on "$machine" "$kithfs" fsck "$(store "$machine")" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "$sync: fsck on machine $machine found faults"; }
        on "$machine" "$kithfs" rollback --settle 0 "$(store "$machine")" >"$work/rollback" || { cat "$work/rollback" >&2; die "$sync: an alarm on $machine"; }
        contents "$machine"
    done
    diff -r --no-dereference "$work/out-one" "$work/out-two" >&2 || die "$sync: the two machines differ"
}
stores_are_equal() {
    diff -rq --no-dereference -x '.syncthing.*.tmp' -x '.sync_*.db*' -x '.*sync.log*' "$(store one)" "$(store two)" >/dev/null 2>&1
}

# Compares the stores without control files, some of which change as long as a daemon runs.
entries_are_equal() { diff -rq --no-dereference -x '+*' -x '.syncthing.*.tmp' "$(store one)" "$(store two)" >/dev/null 2>&1; }

unison_start() { need unison; mkdir -p "$work/unison-one" "$work/unison-two"; }
# Has Unison compare contents: by times it would miss a second change of a file within one second. Runs it twice, because it finds the conflict
# copies that it has made only in the next run.
unison_sync() {
    local time
    for time in 1 2; do
        UNISON=$work/unison-state unison "$work/unison-one" "$work/unison-two" -ui text -batch -auto -confirmbigdel=false -times -owner \
            -group -numericids -perms -1 -fastcheck false -prefer newer -copyonconflict \
            -ignore 'Name ~syncthing~*.tmp' >"$work/unison-$time.log" 2>&1 || true
    done
    "${1:-stores_are_equal}" || { tail -n 20 "$work"/unison-?.log >&2; die "unison: the stores differ"; }
}
unison_apart() { :; }

api() {
    local machine=$1
    shift
    in_network curl -sf --max-time 30 -H 'X-API-Key: key' "http://127.0.0.1:$([ "$machine" = one ] && echo 8401 || echo 8402)$1" "${@:2}"
}
syncthing_start() {
    need syncthing curl
    apart
    local machine id_one id_two
    export STNOUPGRADE=1
    for machine in one two; do
        mkdir -p "$work/syncthing-$machine" "$work/config-$machine"
        syncthing generate --home="$work/config-$machine" --no-default-folder >/dev/null 2>&1
    done
    device() { sed -n 's/.*<device id="\([A-Z0-9-]*\)" name=.*/\1/p' "$work/config-$1/config.xml" | head -n 1; }
    id_one=$(device one) id_two=$(device two)
    for machine in one two; do
        # Nothing is announced, asked for or reported anywhere.
        cat >"$work/config-$machine/config.xml" <<CONFIG
<configuration version="36">
  <folder id="v" path="$work/syncthing-$machine" type="sendreceive" rescanIntervalS="60" fsWatcherEnabled="true" fsWatcherDelayS="1">
    <device id="$id_one"></device><device id="$id_two"></device><maxConflicts>10</maxConflicts>
  </folder>
  <device id="$id_one" name="one"><address>tcp://127.0.0.1:22001</address></device>
  <device id="$id_two" name="two"><address>tcp://127.0.0.1:22002</address></device>
  <gui enabled="true"><address>127.0.0.1:$([ "$machine" = one ] && echo 8401 || echo 8402)</address><apikey>key</apikey></gui>
  <options>
    <listenAddress>tcp://127.0.0.1:$([ "$machine" = one ] && echo 22001 || echo 22002)</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled><localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled>
    <natEnabled>false</natEnabled><urAccepted>-1</urAccepted><autoUpgradeIntervalH>0</autoUpgradeIntervalH>
    <crashReportingEnabled>false</crashReportingEnabled><stunKeepaliveStartS>0</stunKeepaliveStartS><reconnectionIntervalS>1</reconnectionIntervalS>
  </options>
</configuration>
CONFIG
        nsenter --target "$network" --net syncthing serve --home="$work/config-$machine" --no-browser --no-restart >"$work/syncthing-$machine.log" 2>&1 &
        synced+=($!)
    done
}
# Has Syncthing scan, and waits until both machines have everything.
syncthing_sync() {
    local machine end=$((SECONDS + 90))
    while [ "$SECONDS" -lt "$end" ]; do
        for machine in one two; do api "$machine" '/rest/db/scan?folder=v' -X POST >/dev/null || true; done
        if "${1:-stores_are_equal}" && [ "$(for machine in one two; do api "$machine" '/rest/db/status?folder=v'; done | grep -cE '"state": "idle"|"needTotalItems": 0')" = 4 ]; then
            return
        fi
        sleep 0.2
    done
    diff -rq --no-dereference "$(store one)" "$(store two)" >&2 || true
    die "syncthing: not the same on both machines after 90 seconds"
}
syncthing_apart() { for machine in one two; do api "$machine" "/rest/system/$1" -X POST; done; }

nextcloud_start() {
    need nextcloudcmd python3 curl
    apart
    mkdir -p "$work/nextcloud-one" "$work/nextcloud-two"
    nsenter --target "$network" --net python3 "$here/scripts/sync-tools/nextcloud-server.py" 8403 >"$work/nextcloud.log" 2>&1 &
    synced+=($!)
    until in_network curl -sf http://127.0.0.1:8403/status.php >/dev/null; do kill -0 "${synced[-1]}"; sleep 0.05; done
}
# Conflict copies stay on the machine that made them, unless the client is told to send them.
nextcloud_client() {
    local home=$work/nextcloud-home-$1
    mkdir -p "$home"
    HOME=$home XDG_CONFIG_HOME=$home XDG_DATA_HOME=$home QT_QPA_PLATFORM=offscreen OWNCLOUD_UPLOAD_CONFLICT_FILES=1 \
        in_network timeout 120 nextcloudcmd -h --non-interactive -u user -p password \
        "$work/nextcloud-$1" http://127.0.0.1:8403 >"$work/nextcloud-$1.log" 2>&1 || true
}
nextcloud_sync() {
    local machine end=$((SECONDS + 90))
    while [ "$SECONDS" -lt "$end" ]; do
        for machine in one two one; do nextcloud_client "$machine"; done
        ! "${1:-stores_are_equal}" || return 0
    done
    diff -rq --no-dereference "$(store one)" "$(store two)" >&2 || true
    tail -n 20 "$work"/nextcloud-???.log >&2
    die "nextcloud: not the same on both machines after 90 seconds"
}
nextcloud_apart() { :; }

# lines MACHINE LINE: prints the line, and on the second machine another one too: Nextcloud treats two new versions with the same size and the
# same second as equal.
lines() { [ "$1" = one ] && printf '%s\n' "$2" || printf '%s\nlonger\n' "$2"; }
# Both machines have the vault mounted and write to it all the time, and the tool syncs in between.
together() {
    local machine n ended whole=true
    # Syncthing names a conflict copy after the second of its creation, and another copy of the file in that second replaces the first one. So
    # each of its rounds begins in a new second, after the round before has ended.
    [ "$sync" != syncthing ] || whole=entries_are_equal
    up one
    up two
    for n in 1 2 3 4 5 6; do
        for machine in one two; do
            mkdir -p "$(point "$machine")/common/$n"
            echo "$n of $machine" >"$(point "$machine")/common/$n/$machine"
            echo "$n of $machine" >>"$(point "$machine")/only-$machine"
            lines "$machine" "$n of $machine" >>"$(point "$machine")/together"
            lines "$machine" "$n of $machine" >"$(point "$machine")/created-$n"
        done
        "${sync}_sync" "$whole"
        ended=$(date +%s)
        [ "$whole" = true ] || until [ "$(date +%s)" != "$ended" ]; do sleep 0.05; done
    done
    "${sync}_sync" entries_are_equal
    for machine in one two; do
        for n in 1 2 3 4 5 6; do
            shows one "$n of $machine"
            shows two "$n of $machine"
        done
    done
    down one
    down two
    "${sync}_sync"
    agree
    rm -rf -- "$work/expected"
    cp -a "$work/out-one" "$work/expected"
    say "$sync: two machines that are mounted all the time have everything of each other"
}
# shows MACHINE LINE: within three seconds the mount shows the line in each of the files that should have it, or in a conflict copy.
shows() {
    local at end=$((SECONDS + 3)) n=${2%% *} from=${2##* } file
    at=$(point "$1")
    for file in together "created-$n" "only-$from" "common/$n/$from"; do
        # Not in a pipe: `grep -q` ends at the first match, and then the program that writes into the pipe would fail.
        until grep -qxs "$2" "$at/$file"*; do
            [ "$SECONDS" -lt "$end" ] || { ls -l "$at" "$(store "$1")" >&2; die "$sync: machine $1 does not show '$2' in $file"; }
            sleep 0.1
        done
    done
}

scenario() {
    local machine
    "${sync}_start"
    on one "$kithfs" init --synced --own-identity --kdf-memory 32 --kdf-passes 1 "$(store one)" >/dev/null 2>&1

    # The first machine writes while the tool is working.
    up one
    cp -a "$here/src" "$here/tests/vectors" "$(point one)/"
    # Nextcloud keeps no symbolic links.
    [ "$sync" = nextcloud ] || ln -s src/lib.rs "$(point one)/link"
    mkdir "$(point one)/busy"
    for n in 1 2 3 4 5 6 7 8; do
        head -c 700000 /dev/urandom >"$(point one)/busy/new"
        cp "$(point one)/busy/new" "$(point one)/busy/$n"
        head -c 9000 /dev/urandom | dd of="$(point one)/busy/1" bs=4500 seek="$n" conv=notrunc,fsync status=none
        echo "line $n" >>"$(point one)/log"
        mv "$(point one)/busy/$n" "$(point one)/busy/moved-$n"
        [ "$sync" = syncthing ] || unison_sync true
        cp "$(point one)/busy/moved-$n" "$(point one)/busy/$n"
    done
    cp -a "$(point one)/." "$work/expected/"
    down one
    "${sync}_sync"
    agree
    diff -r --no-dereference "$work/expected" "$work/out-two" >&2 || die "$sync: the second machine does not have what the first one wrote"
    say "$sync: the second machine has what the first one wrote"

    together

    # Then the second machine writes.
    up two
    echo two >>"$(point two)/log"
    mv "$(point two)/src" "$(point two)/moved"
    rm -r "$(point two)/busy"
    cp -a "$(point two)/moved/cli" "$(point two)/copy"
    down two
    "${sync}_sync"
    agree
    # A removal on the other machine is no alarm, also in a second comparison in which nothing is new.
    agree
    say "$sync: the machines take turns"

    # Both machines write while the tool is stopped.
    "${sync}_apart" pause
    for machine in one two; do
        up "$machine"
        lines "$machine" "conflict of $machine" >>"$(point "$machine")/log"
        lines "$machine" "new on $machine" >"$(point "$machine")/new"
        mkdir "$(point "$machine")/both"
        echo "$machine" >"$(point "$machine")/both/$machine"
        down "$machine"
    done
    "${sync}_apart" resume
    "${sync}_sync"
    agree
    for machine in one two; do
        grep -rqx "conflict of $machine" "$work/out-two"/log* || die "$sync: the line of machine $machine is lost"
        grep -rqx "new on $machine" "$work/out-two"/new* || die "$sync: the new file of machine $machine is lost"
        [ "$(cat "$work/out-two/both/$machine")" = "$machine" ] || die "$sync: a file in a directory that both made is lost"
    done
    say "$sync: both versions of a conflict are kept"

    # The daemon of the first machine is killed while its journal contains changes. The journal is only on that machine.
    on one sh -c 'echo $$ >"$0"; exec "$@"' "$work/daemon" "$kithfs" mount --foreground "$(store one)" "$(point one)" >/dev/null 2>&1 &
    local job=$!
    until mountpoint -q "$(point one)"; do kill -0 "$job"; sleep 0.05; done
    for n in $(seq 40); do
        head -c $((n * 1000)) /dev/urandom | dd of="$(point one)/log" bs=64k seek=1 conv=notrunc,fsync status=none
    done
    local synced_sum
    synced_sum=$(sha256sum <"$(point one)/log")
    kill -9 "$(cat "$work/daemon")"
    wait "$job" 2>/dev/null || true
    "$kithfs" umount "$(point one)" >/dev/null 2>&1
    [ -z "$(find "$(store one)" -name '+journal-*' -o -name '+lock*')" ] || die "$sync: a journal or a lock is in the vault"
    "${sync}_sync"
    [ "$(on two "$kithfs" cat "$(store two)" log | sha256sum)" = "$synced_sum" ] || die "$sync: the other machine does not see what was synced"
    on two "$kithfs" put "$(store two)" beside-a-crash "$work/passphrase" 2>/dev/null || die "$sync: the other machine is refused"
    up one
    [ "$(sha256sum <"$(point one)/log")" = "$synced_sum" ] || die "$sync: what was synced is not there after the crash"
    down one
    "${sync}_sync"
    agree
    on two "$kithfs" put "$(store two)" after-all "$work/passphrase" 2>/dev/null || die "$sync: the other machine is refused"
    "${sync}_sync"
    agree
    say "$sync: after a crash the other machine reads and writes, and what was synced is there"
}

head -c 24 /dev/urandom | base64 >"$work/passphrase"
for sync in "${tools[@]}"; do
    case $sync in syncthing | unison | nextcloud) ;; *) die "unknown tool $sync (see --help)" ;; esac
    rm -rf -- "$work"/state-* "$work/expected"
    mkdir -p "$work/at-one" "$work/at-two" "$work/state-one" "$work/state-two" "$work/expected"
    scenario
done

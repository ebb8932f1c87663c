#!/usr/bin/env bash
# Measures the first hour of new users with the Debian package in a fresh root. Two ordinary users install it, make a vault and share a folder
# through Syncthing; then the owner removes the other user. Prints each step with its time, as in docs/FIRST_HOUR.md.
#
#     scripts/walk.sh DEB
#
# Needs root, mmdebstrap, /dev/fuse and a Debian mirror (or the variable MIRROR). Passphrases come from files, because no person types them.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
[ $# -eq 1 ] || { echo "usage: walk.sh DEB" >&2; exit 1; }
deb=$(realpath -- "$1")
if [ -z "${KITHFS_WALK-}" ]; then
    # Runs in namespaces of its own, which contain the mounts and the network of the two machines.
    KITHFS_WALK=1 exec unshare --mount --propagation private --net bash "$0" "$deb"
fi
ip link set lo up
root=$(mktemp -d)
daemons=()
cleanup() {
    local status=$? pid at
    trap - EXIT
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    while read -r at; do umount -- "$at" || umount -l -- "$at" || status=1; done < <(awk -v below="$root/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac)
    ! grep -q " $root/" /proc/self/mountinfo || { echo "walk: something is still mounted below $root" >&2; exit 1; }
    rm -rf --one-file-system -- "$root"
    exit "$status"
}
trap cleanup EXIT
die() { echo "walk: $*" >&2; exit 1; }

# The machine has Syncthing already; only kithfs is new.
nsenter --target "$PPID" --net mmdebstrap --quiet --variant=minbase --include=ca-certificates,syncthing,curl bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}"
mkdir -p "$root/dev" "$root/proc"
mount --rbind /proc "$root/proc"
mount -t tmpfs -o mode=755 none "$root/dev"
for node in 'null 1 3' 'zero 1 5' 'urandom 1 9' 'random 1 8' 'fuse 10 229'; do
    read -r name major minor <<<"$node"
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -sf /proc/self/mounts "$root/etc/mtab"
cp -- "$deb" "$root/kithfs.deb"
system() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
for user in ann bob; do
    system useradd --create-home "$user"
    echo "a passphrase of $user" >"$root/home/$user/.passphrase"
    system chown "$user:" "/home/$user/.passphrase"
done

# step USER TEXT COMMAND: runs the command as that user and prints a row.
total=0
step() {
    local who=$1 what=$2 command=$3 began took
    began=$(date +%s%N)
    if [ "$who" = root ]; then
        (cd / && system sh -euc "$command") >"$root/log" 2>&1 || { cat "$root/log" >&2; die "$what: failed"; }
    else
        chroot --userspec="$who:$who" "$root" env -i PATH=/usr/bin:/bin "HOME=/home/$who" "KITHFS_PASSPHRASE_FILE=/home/$who/.passphrase" \
            sh -euc "cd; $command" >"$root/log" 2>&1 || { cat "$root/log" >&2; die "$what: failed"; }
    fi
    took=$((($(date +%s%N) - began) / 10000000))
    total=$((total + took))
    command=${command//$'\n'/; }
    # shellcheck disable=SC2016
    printf '| %s | %s | `%s` | %d.%02d |\n' "$who" "$what" "${command//|/\\|}" $((took / 100)) $((took % 100))
}
# Prints the output of the last step.
said() { cat "$root/log"; }

api() { curl -sf --max-time 30 -H 'X-API-Key: key' "http://127.0.0.1:$1" "${@:2}"; }
syncthing_of() { # USER
    local config=/home/$1/.config/syncthing
    chroot --userspec="$1:$1" "$root" env -i PATH=/usr/bin:/bin "HOME=/home/$1" STNOUPGRADE=1 syncthing serve --home="$config" --no-browser --no-restart \
        >"$root/tmp/syncthing-$1.log" 2>&1 &
    daemons+=($!)
}
configure() { # USER FOLDER GUI-PORT PORT
    local config=$root/home/$1/.config/syncthing
    cat >"$config/config.xml" <<CONFIG
<configuration version="36">
  <folder id="v" path="$2" type="sendreceive" rescanIntervalS="60" fsWatcherEnabled="true" fsWatcherDelayS="1">
    <device id="$id_ann"></device><device id="$id_bob"></device><maxConflicts>10</maxConflicts>
  </folder>
  <device id="$id_ann" name="ann"><address>tcp://127.0.0.1:22001</address></device>
  <device id="$id_bob" name="bob"><address>tcp://127.0.0.1:22002</address></device>
  <gui enabled="true"><address>127.0.0.1:$3</address><apikey>key</apikey></gui>
  <options>
    <listenAddress>tcp://127.0.0.1:$4</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled><localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled>
    <natEnabled>false</natEnabled><urAccepted>-1</urAccepted><autoUpgradeIntervalH>0</autoUpgradeIntervalH>
    <crashReportingEnabled>false</crashReportingEnabled><stunKeepaliveStartS>0</stunKeepaliveStartS><reconnectionIntervalS>1</reconnectionIntervalS>
  </options>
</configuration>
CONFIG
    system chown -R "$1:" "/home/$1/.config"
}
# Waits until both have the same, and prints a row.
sync_row() {
    local began=$SECONDS end=$((SECONDS + 90))
    until diff -rq --no-dereference -x .stfolder -x '.syncthing.*.tmp' "$root$share" "$root/home/bob/projects.kithfs" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "Syncthing has not delivered everything after 90 seconds"
        for port in 8401 8402; do api "$port/rest/db/scan?folder=v" -X POST >/dev/null || true; done
        sleep 0.2
    done
    echo "| - | Syncthing delivers | | $((SECONDS - began)) |"
}

echo '| who | what | command | seconds |'
echo '|---|---|---|---:|'
nsenter --target "$PPID" --net chroot "$root" apt-get -qq update
mv "$root/etc/resolv.conf" "$root/etc/resolv.conf.away" 2>/dev/null || true
cp /etc/resolv.conf "$root/etc/resolv.conf"
began=$(date +%s%N)
nsenter --target "$PPID" --net chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends /kithfs.deb >/dev/null 2>&1 || die "apt install failed"
took=$((($(date +%s%N) - began) / 10000000))
# shellcheck disable=SC2016
printf '| root | install | `apt install ./kithfs.deb` | %d.%02d |\n' $((took / 100)) $((took % 100))

step ann 'make a vault' 'kithfs init ~/vault'
step ann 'give it a name' 'kithfs vaults add mine ~/vault ~/plain'
step ann 'use it' 'kithfs open mine; echo "dear diary" > ~/plain/diary; kithfs status; kithfs close mine'
step ann 'make an identity' 'kithfs identity new --name Ann; kithfs identity export > /tmp/ann.key'
step bob 'make an identity' 'kithfs identity new --name Bob; kithfs identity export > /tmp/bob.key'
step ann 'note the other, after a telephone call' 'kithfs contact add Bob - < /tmp/bob.key; kithfs contact verify Bob --yes'
step bob 'note the other, after a telephone call' 'kithfs contact add Ann - < /tmp/ann.key; kithfs contact verify Ann --yes'
step ann 'make a vault to share from' 'kithfs init ~/team'
step ann 'share a folder' 'kithfs share create ~/team/projects; kithfs share add ~/team/projects Bob --role writer'
step ann 'put a letter in' 'echo "dear Bob" | kithfs put ~/team projects/letter'
step ann 'invite' 'kithfs share invite ~/team/projects Bob -o /tmp/bob.invitation'
step ann 'find the directory to sync' 'kithfs map ~/team projects'
share=/home/ann/team/$(said)

for user in ann bob; do
    chroot --userspec="$user:$user" "$root" env -i PATH=/usr/bin:/bin "HOME=/home/$user" syncthing generate --home="/home/$user/.config/syncthing" --no-default-folder >/dev/null 2>&1
done
device() { sed -n 's/.*<device id="\([A-Z0-9-]*\)" name=.*/\1/p' "$root/home/$1/.config/syncthing/config.xml" | head -n 1; }
id_ann=$(device ann) id_bob=$(device bob)
chroot --userspec=bob:bob "$root" mkdir /home/bob/projects.kithfs
configure ann "$share" 8401 22001
configure bob /home/bob/projects.kithfs 8402 22002
syncthing_of ann
syncthing_of bob
sync_row

step bob 'accept and open' 'kithfs accept /tmp/bob.invitation; kithfs vaults add projects ~/projects.kithfs ~/projects; kithfs open projects'
step bob 'read and answer' 'cat ~/projects/letter; echo "dear Ann" > ~/projects/answer; kithfs close projects'
sync_row
step ann 'read the answer' 'kithfs cat ~/team projects/answer'
[ "$(said)" = "dear Ann" ] || die "the answer has not arrived"
step ann 'remove the other' 'kithfs share remove ~/team/projects Bob; kithfs share rekey --eager ~/team/projects'
step ann 'write something new' 'echo "not for Bob" | kithfs put ~/team projects/secret'
sync_row
step bob 'reads nothing new' '! kithfs cat ~/projects.kithfs secret'
said >&2
printf '| | **all commands** | | **%d** |\n' $((total / 100))

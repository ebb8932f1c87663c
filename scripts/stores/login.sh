#!/bin/bash
# Tests locking and opening vaults with the real systemd and logind: login.sh DIRECTORY-OF-KITHFS PROGRAM. systemd runs this script as a
# service in the virtual machine of scripts/stores-vm.sh, and only there.
#
# `su` opens a user's sessions, as a login does. Instead of real sleep, a service records whether the vault was still mounted.
set -uo pipefail
[ -e /run/kithfs-stores-vm ] || { echo "login: only in the machine of scripts/stores-vm.sh" >&2; exit 1; }
here=$1 program=$2
failed=0
say() { echo "login: $*"; }
# If a check fails, the others still run.
check() { if "${@:2}"; then say "ok: $1"; else say "FAILED: $1"; failed=1; fi; }
finish() {
    [ "$failed" = 0 ] || journalctl --no-pager -q -n 60
    echo "$failed" >/dev/ttyS2
    sync
    stty -F /dev/ttyS2 -opost
    systemctl --force --force reboot
}
trap finish EXIT

cp -- "$program" /usr/bin/kithfs
ln -sf kithfs /usr/bin/mount.kithfs
ln -sf /usr/bin/kithfs "$(readlink -f /sbin)/mount.kithfs"
mkdir -p /usr/lib/systemd/user
cp "$here/scripts/package/kithfs@.service" /usr/lib/systemd/user/
# Does what udev would do, which is not installed here.
chmod 666 /dev/fuse
useradd --create-home --uid 4321 --shell /bin/bash ann
# Opens a session at a terminal: without a terminal logind treats a session as a background job.
export XDG_SESSION_CLASS=user XDG_SESSION_TYPE=tty
home=/home/ann point=/home/ann/plain
is_mounted() { grep -q " $point .*fuse.kithfs" /proc/self/mountinfo; }
is_gone() { ! is_mounted; }
# Runs a script in a login session of its own, which ends with the script.
session() { su --login ann -c "export KITHFS_PASSPHRASE_FILE=\$HOME/passphrase; $1"; }
daemon() { session "kithfs mounts --json" | sed -n 's/.*"pid": \([0-9]*\),/\1/p'; }
# Waits until a process has ended.
ended() { timeout 300 tail --pid="$1" -f /dev/null; }

# Opens a session that stays open until its input ends, as a desktop's does. The user's service manager starts with it; here that may take longer
# than a login waits.
mkfifo /run/stays
su --login ann -c 'exec cat' </run/stays >/dev/null &
exec 5>/run/stays
until loginctl list-sessions --no-legend | grep ' ann ' >/dev/null; do sleep 0.2; done
stays=$(loginctl list-sessions --no-legend | awk '$3 == "ann" { print $1; exit }')

session 'printf "correct horse" >passphrase; kithfs init --kdf-memory 32 --kdf-passes 1 vault >/dev/null 2>&1'
session 'kithfs vaults add photos vault plain; kithfs vaults set photos --passphrase-command "cat $HOME/passphrase"'

# Only the daemon is left in the session that has mounted the vault. logind then waits for the daemon, so the daemon must not wait for logind.
session 'kithfs mount --lock-on logout vault plain; kithfs mounts --json >mounts; echo "dear Ann" >plain/note'
pid=$(sed -n 's/.*"pid": \([0-9]*\),/\1/p' $home/mounts)
check "the end of the session that has mounted locks the vault" ended "$pid"
check "its mount is gone" is_gone

session "XDG_SESSION_ID=$stays kithfs mount --lock-on screen vault plain"
pid=$(daemon)
loginctl lock-session "$stays"
check "loginctl lock-session locks the vault" ended "$pid"
check "its mount is gone" is_gone

# Another session ends meanwhile. That must not lock the vault, which is still open afterwards.
mkdir -p /run/systemd/system/systemd-suspend.service.d
printf '%s\n' '[Service]' 'ExecStart=' "ExecStart=/bin/sh -c 'if grep -q \" $point .*fuse.kithfs\" /proc/self/mountinfo; then echo open; else echo locked; fi >/run/slept'" \
    >/run/systemd/system/systemd-suspend.service.d/test.conf
systemctl daemon-reload
session "systemd-run --user --quiet --unit=mount --setenv=KITHFS_PASSPHRASE_FILE=$home/passphrase --property=Type=forking kithfs mount --lock-on suspend,logout vault plain"
pid=$(daemon)
session 'echo more >plain/other'
check "sleep is delayed for the vault" bash -c 'systemd-inhibit --list --no-legend | grep "^kithfs .*sleep .*delay" >/dev/null'
check "a session that ends is not the last one" is_mounted
systemctl suspend
check "sleep locks the vault" ended "$pid"
until [ -s /run/slept ]; do systemctl is-active --quiet sleep.target || sleep 0.2; done
check "the machine slept after the vault was locked" test "$(cat /run/slept)" = locked
check "what was written is there" test "$(session 'kithfs cat vault other')" = more

check "the user service is ready once the vault is open" session 'systemctl --user start kithfs@photos.service'
check "its mount is there" is_mounted
session 'echo served >plain/served'
check "the user service stops" session 'systemctl --user stop kithfs@photos.service'
check "its mount is gone" is_gone
check "what was written is there" test "$(session 'kithfs cat vault served')" = served

mkdir -p /srv /mnt/plain
kithfs init --passphrase-file $home/passphrase --kdf-memory 32 --kdf-passes 1 /srv/vault >/dev/null 2>&1
echo "/srv/vault  /mnt/plain  kithfs  noauto,x-systemd.automount,x-systemd.idle-timeout=10min,passphrase_file=$home/passphrase,lock_on=suspend,allow_other  0  0" >>/etc/fstab
systemctl daemon-reload
systemctl start mnt-plain.automount
check "the first access mounts the line of fstab" bash -c 'echo system >/mnt/plain/file && grep -q " /mnt/plain .*fuse.kithfs" /proc/self/mountinfo'
pid=$(kithfs mounts --json | sed -n 's/.*"pid": \([0-9]*\),/\1/p')
systemctl suspend
check "sleep locks a vault of the system" ended "$pid"
systemctl stop mnt-plain.automount
check "what was written is there" test "$(kithfs cat --passphrase-file $home/passphrase /srv/vault file)" = system
exec 5>&-

#!/usr/bin/env bash
# Tests opening a vault at login or boot with the real programs: pam_mount opens a session (by pamtester), and systemd reads the user service
# and a line of fstab with automount. systemd itself is never started.
#
#     scripts/login.sh [--install] [--program FILE]
#
#   --install        install pamtester, libpam-mount and systemd if they are missing (Debian)
#   --program FILE   test this program instead of building one
#
# Run it as root. Everything happens in a separate mount namespace, with a user and a PAM service that exist only there.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
if [ "${1-}" = --install ]; then
    shift
    if ! command -v pamtester >/dev/null || ! command -v mount.crypt >/dev/null || ! command -v systemd-analyze >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pamtester libpam-mount libpam-mount-bin systemd >/dev/null
    fi
fi
program=''
if [ "${1-}" = --program ]; then
    program=$(realpath -- "$2")
elif [ $# -gt 0 ]; then
    echo "usage: login.sh [--install] [--program FILE]" >&2
    exit 1
fi
if [ -z "${KITHFS_LOGIN_WORK-}" ]; then
    if [ -z "$program" ]; then
        (cd "$here" && cargo build --locked)
        program=${CARGO_TARGET_DIR:-$here/target}/debug/kithfs
    fi
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system -- "$work"' EXIT
    chmod 755 "$work"
    cp -- "$program" "$work/kithfs"
    KITHFS_LOGIN_WORK=$work unshare --mount --propagation slave bash "$0"
    exit
fi

die() { echo "login: $*" >&2; exit 1; }
cd "$KITHFS_LOGIN_WORK"
kithfs=$PWD/kithfs

# A user with a passphrase.
mkdir home plain
{ cat /etc/passwd; echo "ann:x:4321:4321::$PWD/home:/bin/sh"; } >passwd
{ cat /etc/group; echo 'ann:x:4321:'; } >group
{ cat /etc/shadow; echo "ann:$(openssl passwd -6 'correct horse'):19000:0:99999:7:::"; } >shadow
chmod 640 shadow
for file in passwd group shadow; do mount --bind "$file" "/etc/$file"; done
# mount(8) finds the program by the name of its helper. Everybody may use FUSE, as on an ordinary machine.
mkdir helpers
ln -s "$kithfs" helpers/mount.kithfs
sbin=$(readlink -f /sbin)
mount -t overlay -o "lowerdir=$PWD/helpers:$sbin" overlay "$sbin"
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
printf 'correct horse' >passphrase
chown -R ann: home plain passphrase
chown ann: .
as_ann() { setpriv --reuid 4321 --regid 4321 --clear-groups env -u XDG_RUNTIME_DIR HOME="$PWD/home" "$@"; }
as_ann "$kithfs" init --passphrase-file passphrase --kdf-memory 32 --kdf-passes 1 vault >/dev/null 2>&1

# The volume as in the manual, with the paths of this user.
line=$(grep '^<volume fstype="kithfs"' "$here/docs/MANUAL.md") || die "the manual has no volume for pam_mount"
line=${line//\/home\/ann/$PWD}
cat >pam_mount.conf.xml <<END
<?xml version="1.0" encoding="utf-8" ?>
<!DOCTYPE pam_mount SYSTEM "pam_mount.conf.xml.dtd">
<pam_mount>
$line
</pam_mount>
END
mount --bind pam_mount.conf.xml /etc/security/pam_mount.conf.xml
# pam_mount counts the sessions of a user there. One that this script left open would keep the next run from unmounting.
mkdir -p sessions /run/pam_mount
mount --bind sessions /run/pam_mount
mkdir services
printf '%s\n' 'auth required pam_unix.so' 'auth optional pam_mount.so' 'account required pam_unix.so' \
    'session required pam_unix.so' 'session optional pam_mount.so' >services/kithfs-login
mount --bind services /etc/pam.d
login() { pamtester kithfs-login ann "$@" <<<'correct horse' >pamtester.log 2>&1 || { cat pamtester.log >&2; die "pamtester failed"; }; }
login authenticate open_session
grep -q " $PWD/plain .*fuse.kithfs.*user_id=4321" /proc/self/mountinfo || { cat pamtester.log >&2; die "nothing was mounted at login"; }
as_ann sh -c 'echo "dear Ann" > plain/note'
[ "$(as_ann stat -c %U plain/note)" = ann ] || die "the file does not belong to the user"
! cat plain/note 2>/dev/null || die "root can read the mount of a user"
as_ann "$kithfs" status | grep "open on $PWD/plain" >/dev/null || die "the user's commands do not know the mount"
pid=$(as_ann "$kithfs" mounts --json | sed -n 's/.*"pid": \([0-9]*\),/\1/p')
login authenticate open_session close_session close_session # the first session ends with it
! grep -q " $PWD/plain " /proc/self/mountinfo || die "the logout did not unmount"
timeout 60 tail --pid="$pid" -f /dev/null || die "the daemon has not ended after the logout"
[ "$(as_ann "$kithfs" cat --passphrase-file passphrase vault note)" = "dear Ann" ] || die "the file is not in the vault"
echo "login: pam_mount opened a vault for its user at login and closed it at logout" >&2

mkdir units
sed "s|/usr/bin/kithfs|$kithfs|" "$here/scripts/package/kithfs@.service" >units/kithfs@.service
mkdir run
XDG_RUNTIME_DIR=$PWD/run SYSTEMD_LOG_LEVEL=warning systemd-analyze --user verify --man=no "$PWD/units/kithfs@photos.service" >verify.log 2>&1 || { cat verify.log >&2; die "the unit is not valid"; }
! grep kithfs verify.log >&2 || die "systemd complains about the unit"
echo "login: systemd accepts the user service" >&2

generator=/usr/lib/systemd/system-generators/systemd-fstab-generator
grep '^/srv/vault .*x-systemd.automount' "$here/docs/MANUAL.md" >fstab || die "the manual has no line with automount"
mkdir -p generated
SYSTEMD_FSTAB=$PWD/fstab SYSTEMD_LOG_TARGET=console "$generator" "$PWD/generated" "$PWD/generated" "$PWD/generated"
grep -q '^Where=/mnt/plain$' generated/mnt-plain.automount || die "there is no automount unit"
grep -q '^TimeoutIdleSec=10min$' generated/mnt-plain.automount || die "the automount has no idle time"
grep -q '^Type=kithfs$' generated/mnt-plain.mount || die "the mount unit has another type"
grep -q '^Options=.*passphrase_file=/root/vault.pass' generated/mnt-plain.mount || die "the mount unit lacks the options"
echo "login: systemd makes an automount of the line in fstab" >&2

# A vault in a scratch directory, for the scripts that drive real programs over a mount: sourced, not run.
#
# Sets `kithfs` (the program: $KITHFS, or target/release/kithfs), `work` (the scratch directory, on $TMPDIR), `vault`, `plain` (the mount
# point). Only the mount made here is ended, however the script ends; the daemon goes with it.

case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
name=$(basename -- "$0" .sh)
say() { echo "$name: $*" >&2; }
die() { say "$*"; exit 1; }
# Ends the run as "cannot be done here", which is neither a success nor a failure.
skip() { say "skipped: $*"; exit 77; }
[ -x "$kithfs" ] || die "$kithfs is not there: run scripts/setup.sh, or cargo build --release"
[ -r /dev/fuse ] || skip "there is no /dev/fuse"

work=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-$name.XXXXXX")
chmod 755 "$work"
vault=$work/vault plain=$work/plain

scratch_cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    # What a script started and did not end is ended first: it says so in before_cleanup.
    before_cleanup || true
    if mountpoint -q "$plain"; then
        "$kithfs" umount "$plain" || "$kithfs" umount --lazy "$plain" || umount -l "$plain" || true
    fi
    if mountpoint -q "$plain"; then
        say "$plain is still mounted, so $work is left as it is"
        exit 1
    fi
    rm -rf --one-file-system -- "$work"
    exit "$status"
}
before_cleanup() { :; }
trap scratch_cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# make_vault [OPTION...]: a vault with a random passphrase and the cheapest key stretching, for it guards nothing.
make_vault() {
    mkdir -p "$plain"
    head -c 24 /dev/urandom | base64 >"$work/passphrase"
    "$kithfs" init --own-identity --passphrase-file "$work/passphrase" --kdf-memory 32 --kdf-passes 1 "$@" "$vault" >/dev/null
}
# mount_vault [OPTION...]: mounted as a machine's own filesystem would be, for all users and all kinds of files.
mount_vault() {
    local options=()
    [ "$(id -u)" -ne 0 ] || options=(-o allow_other,dev,suid)
    # A store without modes shows all as everybody's, which only this option accepts.
    [ -z "$(find "$vault" -maxdepth 0 -perm -0002)" ] || options+=(-o allow_foreign_store)
    "$kithfs" mount --passphrase-file "$work/passphrase" "${options[@]}" "$@" "$vault" "$plain"
}
umount_vault() { "$kithfs" umount "$plain"; }
remount_vault() { umount_vault; mount_vault; }
check_vault() { "$kithfs" fsck --passphrase-file "$work/passphrase" "$vault" >/dev/null || die "fsck found faults"; }

# Kind, mode, owner, size, time and link of everything below $1; a directory's size is the filesystem's own affair.
metadata() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%p %y %m %U:%G %T@\n' -o -printf '%p %y %m %U:%G %n %s %T@ %l\n' \) | LC_ALL=C sort)
}
# same_tree A B: contents, kinds, modes, owners, times, links.
same_tree() {
    diff -r --no-dereference "$1" "$2" >&2 || die "contents of $1 and $2 differ"
    diff <(metadata "$1") <(metadata "$2") >&2 || die "metadata of $1 and $2 differs"
}
need() { for tool; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done; }

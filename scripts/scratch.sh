# Functions for scripts that run real programs in a mount, on a vault in a scratch directory. Sourced, not run.
#
# Sets `kithfs` (the program: $KITHFS, or target/release/kithfs), `work` (the scratch directory, on $TMPDIR), `vault`, `plain` (the mount
# point). However the script ends, it unmounts only its own mount, which ends the daemon too.

case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
name=$(basename -- "$0" .sh)
say() { echo "$name: $*" >&2; }
die() { say "$*"; exit 1; }
# Ends the run with status 77: it cannot run here, which is neither a success nor a failure.
skip() { say "skipped: $*"; exit 77; }
[ -x "$kithfs" ] || die "$kithfs is not there: run scripts/setup.sh, or cargo build --release"
[ -r /dev/fuse ] || skip "there is no /dev/fuse"

work=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-$name.XXXXXX")
chmod 755 "$work"
vault=$work/vault plain=$work/plain

scratch_cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    # First ends what the script has started itself: the script defines before_cleanup for that.
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

# make_vault [OPTION...]: makes a vault with a random passphrase and the cheapest key stretching, because it protects nothing.
make_vault() {
    mkdir -p "$plain"
    head -c 24 /dev/urandom | base64 >"$work/passphrase"
    "$kithfs" init --own-identity --passphrase-file "$work/passphrase" --kdf-memory 32 --kdf-passes 1 "$@" "$vault" >/dev/null
}
# mount_vault [OPTION...]: mounts it for all users and all kinds of files, like a filesystem of the machine.
mount_vault() {
    local options=()
    [ "$(id -u)" -ne 0 ] || options=(-o allow_other,dev,suid)
    # On a store without modes everybody may write to the vault's directory. Only this option permits that.
    [ -z "$(find "$vault" -maxdepth 0 -perm -0002)" ] || options+=(-o allow_foreign_store)
    "$kithfs" mount --passphrase-file "$work/passphrase" "${options[@]}" "$@" "$vault" "$plain"
}
umount_vault() { "$kithfs" umount "$plain"; }
remount_vault() { umount_vault; mount_vault; }
check_vault() { "$kithfs" fsck --passphrase-file "$work/passphrase" "$vault" >/dev/null || die "fsck found faults"; }

# Prints kind, mode, owner, size, time and link target of everything below $1. Omits sizes of directories, which differ between filesystems.
metadata() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%p %y %m %U:%G %T@\n' -o -printf '%p %y %m %U:%G %n %s %T@ %l\n' \) | LC_ALL=C sort)
}
# same_tree A B: compares contents, kinds, modes, owners, times and links.
same_tree() {
    diff -r --no-dereference "$1" "$2" >&2 || die "contents of $1 and $2 differ"
    diff <(metadata "$1") <(metadata "$2") >&2 || die "metadata of $1 and $2 differs"
}
need() { for tool; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done; }

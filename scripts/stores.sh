#!/usr/bin/env bash
# Tests a vault on many kinds of stores: a tree and the calls of programs, a daemon that is killed, shares with a second member, a store that
# fills up, and one that disappears while it is mounted. Compares the results with docs/STORES.md.
#
#     scripts/stores.sh [--install] [--part I/N] [STORE[=SCENARIO,...]...]        e.g. scripts/stores.sh exfat sshfs=use,killed
#
#   --install    install what the stores need (as root on Debian)
#   --part I/N   test only the I-th of N parts of them
#   SCENARIO     one at the end of scripts/stores/store.sh (default: all). Missing features are compared with the page only if all run
#
# The stores: ext4 xfs btrfs overlay exfat ntfs sshfs bindfs mergerfs unionfs squashfs rclone cephfs, and by request glusterfs. Needs root, to
# mount them. Prints the stores that cannot be tested here. scripts/stores-vm.sh has those that need another kernel. Exit status: 0 if all
# passed and lack exactly the features that docs/STORES.md lists; 1 if not.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

packages=(exfat-fuse exfatprogs ntfs-3g sshfs openssh-sftp-server btrfs-progs xfsprogs bindfs mergerfs unionfs-fuse squashfs-tools rclone ceph-common ceph-fuse ceph-mds ceph-mon ceph-osd python3 strace)
if [ "${1-}" = --install ]; then
    shift
    export DEBIAN_FRONTEND=noninteractive
    dpkg -s "${packages[@]}" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
fi
part=1/1
if [ "${1-}" = --part ]; then
    part=${2:?--part needs I/N}
    shift 2
fi
[[ $part =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]] || { echo "stores: --part needs I/N, not $part" >&2; exit 1; }
all=("$@")
[ ${#all[@]} -gt 0 ] || all=(ext4 xfs btrfs overlay exfat ntfs sshfs bindfs mergerfs unionfs squashfs rclone cephfs)
stores=()
for ((each = ${part%/*} - 1; each < ${#all[@]}; each += ${part#*/})); do stores+=("${all[each]}"); done

held=0 failed=() skipped=()
for store in "${stores[@]}"; do
    began=$SECONDS status=0
    some=${store#"${store%%=*}"} store=${store%%=*}
    some=${some#=}
    found=$(timeout --kill-after=30 "${KITHFS_STORE_SECONDS:-900}" stores/store.sh "$store" "${some//,/ }") || status=$?
    case $status in
        0)
            # The features that the store does not support, by its row in the page.
            said=$(sed -n "s/^| $store | [^|]* | \([^|]*\) |.*/\1/p" ../docs/STORES.md | tr -d '\`,')
            found=${found:-nothing}
            if [ -n "$some" ] || [ "$found" = "$(xargs <<<"$said")" ]; then
                held=$((held + 1)); echo "$store: held, without: $found; $((SECONDS - began)) s"
            else
                failed+=("$store"); echo "$store: it does without: $found; docs/STORES.md says: $said"
            fi
            ;;
        77) skipped+=("$store") ;;
        *) failed+=("$store"); echo "$store: FAILED, exit status $status" ;;
    esac
done
[ ${#skipped[@]} -eq 0 ] || echo "stores: skipped: ${skipped[*]}"
[ ${#failed[@]} -eq 0 ] || { echo "stores: failed: ${failed[*]}"; exit 1; }
echo "stores: $held held"

#!/usr/bin/env bash
# Tests vaults on disks of the virtual machine of scripts/stores-vm.sh whose power is cut in the middle of writing. `power.sh write` makes the
# vaults, writes to them, and reports synced data on a serial line until the power is cut. After the next start,
# `power.sh verify ACKNOWLEDGED` checks that the reported data exists.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
name=power
[ -e /run/kithfs-stores-vm ] || skip "is done by scripts/stores-vm.sh alone"
export KITHFS_NO_ROLLBACK_MEMORY=1 KITHFS_PASSPHRASE_FILE=$work/passphrase
echo power >"$work/passphrase"
modprobe -a virtio_blk ext4 xfs btrfs vfat exfat nls_utf8 nls_cp437 nls_ascii
disks=(ext4:vda xfs:vdb btrfs:vdc vfat:vdd exfat:vde)
synced=$here/scripts/stores/synced.py
case $1 in
    write)
        for disk in "${disks[@]}"; do
            kind=${disk%:*} at=$work/${disk%:*}
            mkdir "$at" "$at-plain"
            case $kind in ext4) flags=-qF ;; vfat) flags=-I ;; exfat) flags=-v ;; *) flags=-qf ;; esac
            "mkfs.$kind" "$flags" "/dev/${disk#*:}" >"$work/mkfs" 2>&1 || { cat "$work/mkfs" >&2; die "cannot make the $kind"; }
            mount -t "$kind" "/dev/${disk#*:}" "$at"
            "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "$at/vault" >"$work/init" 2>&1
            sync "$at"
            "$kithfs" mount "$at/vault" "$at-plain"
        done
        for disk in "${disks[@]}"; do
            python3 "$synced" write "$work/${disk%:*}-plain" | while read -r n; do echo "${disk%:*} $n" >/dev/ttyS3; done &
        done
        wait
        die "it was not switched off"
        ;;
    verify)
        for disk in "${disks[@]}"; do
            kind=${disk%:*} at=$work/${disk%:*} last=$(sed -n "s/^${disk%:*} //p" "$2" | tail -n 1)
            mkdir "$at" "$at-plain"
            mount -t "$kind" "/dev/${disk#*:}" "$at"
            "$kithfs" mount "$at/vault" "$at-plain" || die "$kind: it cannot be mounted"
            python3 "$synced" verify "$at-plain" "$last" || die "$kind: what was synced is gone"
            "$kithfs" umount "$at-plain"
            # Part of the file that was being created may exist. No other fault is allowed.
            "$kithfs" fsck --repair --yes "$at/vault" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "$kind: it cannot be repaired"; }
            "$kithfs" mount "$at/vault" "$at-plain"
            python3 "$synced" verify "$at-plain" "$last" || die "$kind: what was synced is gone after the repair"
            "$kithfs" umount "$at-plain"
            "$kithfs" fsck "$at/vault" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "$kind: fsck found faults"; }
            umount "$at"
            say "$kind: all of $last is there"
        done
        ;;
esac

#!/usr/bin/env bash
# A disk image in a mount, written by qemu-img and qemu-io: sparse clusters, discards, snapshots, conversions, compared block by block.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need qemu-img qemu-io
make_vault && mount_vault
img=$plain/disk.qcow2
qemu-img create -q -f qcow2 -o preallocation=metadata "$img" 512M
for n in $(seq 1 60); do echo "write -P $n $((n * 7919 % 500))M $((n * 4096 + 512))"; done >"$work/orders"
printf '%s\n' 'discard 100M 20M' 'write -z 200M 3M' flush >>"$work/orders"
qemu-io -f qcow2 "$img" <"$work/orders" >/dev/null
qemu-img check -q "$img" || die "the image is damaged"
qemu-img snapshot -c first "$img"
qemu-io -f qcow2 -c 'write -P 200 0 5M' "$img" >/dev/null
qemu-img convert -O raw "$img" "$work/outside.raw"
remount_vault
qemu-img check -q "$img" || die "the image is damaged after a remount"
qemu-img compare -q "$img" "$work/outside.raw" || die "the image is another one after a remount"
qemu-img convert -O raw -S 4k "$work/outside.raw" "$plain/inside.raw"
cmp "$plain/inside.raw" "$work/outside.raw" || die "a raw image differs"
[ "$(du -k "$plain/inside.raw" | cut -f1)" -lt 300000 ] || die "the raw image has no holes"
qemu-img convert -c -O qcow2 "$plain/inside.raw" "$plain/small.qcow2"
qemu-img compare -q "$plain/small.qcow2" "$work/outside.raw" || die "a compressed image differs"
qemu-img snapshot -a first "$img" && qemu-img check -q "$img" || die "the snapshot cannot be put back"
umount_vault && check_vault

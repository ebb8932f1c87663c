#!/usr/bin/env bash
# Containers whose storage is in a mount, with podman's drivers overlay and vfs: images are made, built and committed, containers change,
# rename and remove files of their image, and after a remount of the vault all of it is as before.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root, for the kernel's overlays"
need podman runc busybox tar setcap getcap
driver=''
export CONTAINERS_CONF=$work/containers.conf # limits that any root may set
printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n' >"$CONTAINERS_CONF"
# Without a network, which a test has no right to set up, and without a daemon or a log of the machine.
pod() {
    podman --runtime runc --root "$plain/$driver" --runroot "$work/run" --tmpdir "$work/tmp" --storage-driver "$driver" --storage-opt '' \
        --cgroup-manager cgroupfs --events-backend none "$@"
}
inside() { pod run --network none --log-driver none "$@"; }
# The overlay driver mounts its directory on itself, which keeps the vault busy until that mount is unmounted.
leave_storage() { ! mountpoint -q "$plain/$driver/overlay" || umount "$plain/$driver/overlay"; }
before_cleanup() { [ -z "$driver" ] || leave_storage; }

# A system of one program, with what images hold: links of both kinds, owners, set-user-ID, a capability, a directory of files.
root=$work/root
mkdir -p "$root"/{bin,etc,tmp,data/old/sub}
cp "$(command -v busybox)" "$root/bin/busybox"
for tool in sh cat mkdir mv rm ln chown chmod stat seq test sync find wc readlink; do ln -s busybox "$root/bin/$tool"; done
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
cp "$root/bin/busybox" "$root/bin/privileged" && chmod 4755 "$root/bin/privileged"
cp "$root/bin/busybox" "$root/bin/capable" && setcap cap_net_raw+ep "$root/bin/capable"
for n in $(seq 200); do head -c $((n * 353)) /dev/urandom >"$root/data/old/file-$n"; done
echo sub >"$root/data/old/sub/file"
ln "$root/data/old/file-1" "$root/data/hard link"
chown -R 1234:4321 "$root/data"
tar -C "$root" --xattrs --xattrs-include='security.*' -cf "$work/root.tar" .

# What a container does to its image; the second program verifies it in another container.
cat >"$work/change" <<'SH'
set -e
rm /data/old/file-2
rm -r /data/old/sub && mkdir /data/old/sub && echo new >/data/old/sub/new
mv /data/old/file-3 /data/moved
echo more >>/data/old/file-4
chown 5:6 /data/old/file-5 && chmod 2755 /data/old/file-5
ln -s /data/moved /data/link
ln /data/old/file-6 /data/second
for n in $(seq 300); do echo $n >/data/new-$n; done
sync
SH
cat >"$work/verify" <<'SH'
set -e
test ! -e /data/old/file-2
test "$(find /data/old/sub | wc -l)" -eq 2
test "$(cat /data/old/sub/new)" = new
test "$(stat -c %s /data/moved)" -eq 1059
test "$(stat -c %s /data/old/file-4)" -eq 1417
test "$(stat -c '%u:%g %a' /data/old/file-5)" = '5:6 2755'
test "$(readlink /data/link)" = /data/moved
test "$(stat -c '%u:%g' /data/old/file-7)" = 1234:4321
test "$(stat -c %a /bin/privileged)" = 4755
for n in $(seq 300); do test "$(cat /data/new-$n)" = $n; done
SH

make_vault && mount_vault
chmod 755 "$plain" # the root of a new vault is its maker's alone
for driver in overlay vfs; do
    pod import -q "$work/root.tar" localhost/base >/dev/null
    inside --name first localhost/base sh -c "$(cat "$work/change")"
    pod commit -q first localhost/changed >/dev/null
    inside --rm localhost/changed sh -c "$(cat "$work/verify")" || die "$driver: a container of the new image sees other files"
    printf 'FROM localhost/changed\nCOPY root.tar /copied\nRUN mv /data/old /data/renamed && rm /data/moved\n' >"$work/Containerfile"
    pod build -q --network host --isolation chroot -t localhost/built -f "$work/Containerfile" "$work" >/dev/null
    leave_storage
    remount_vault
    inside --rm localhost/changed sh -c "$(cat "$work/verify")" || die "$driver: after a remount a container sees other files"
    inside --rm localhost/built sh -c 'test ! -e /data/old && test ! -e /data/moved && test "$(stat -c %s /data/renamed/file-200)" -eq 70600' ||
        die "$driver: the image that was built holds other files"
    # Exports the files of the image from the storage.
    id=$(pod create localhost/changed sh)
    mkdir "$work/out-$driver"
    pod export "$id" | tar -C "$work/out-$driver" --numeric-owner --xattrs --xattrs-include='security.*' -xf -
    pod rm -f -t 0 first "$id" >/dev/null
    pod rmi -a -f >/dev/null
    leave_storage
    [ -z "$(find "$plain/$driver" -name 'file-*' -print -quit)" ] || die "$driver: files are left after the images were removed"
done
diff -r --no-dereference "$work/out-overlay" "$work/out-vfs" >&2 || die "the drivers gave out different files"
for out in "$work"/out-*; do
    [ "$(stat -c '%u:%g %a' "$out/data/old/file-5" "$out/bin/privileged" | paste -sd,)" = '5:6 2755,0:0 4755' ] || die "$out lost owners or modes"
    getcap "$out/bin/capable" | grep -q cap_net_raw || die "$out lost a capability"
done
# The driver vfs makes two files of a new hard link, on any filesystem.
[ "$(stat -c %h "$work/out-overlay/data/second")" -eq 2 ] || die "a hard link was lost"
umount_vault && check_vault

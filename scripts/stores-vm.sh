#!/usr/bin/env bash
# Tests the stores that need a kernel with modules, in a virtual machine with Debian's kernel. The virtual machine sees this machine's files
# read-only, keeps everything that it writes in memory, and runs stores.sh with the arguments of this script.
#
#     scripts/stores-vm.sh [--install] [STORE[=SCENARIO,...]...]        e.g. scripts/stores-vm.sh nfs4=use power
#
#   --install    install what it needs (as root on Debian); the kernel is only downloaded and unpacked, not installed
#
# `login` instead of a store tests locking and opening vaults with the real systemd and logind (scripts/stores/login.sh).
#
# The stores by default: nfs4 nfs3 vfat kernel-exfat, with the scenarios that pass, and power. Further stores: smb, whose limits are in
# docs/STORES.md, and stick, an ext4. STORE=SCENARIO,... is as for stores.sh, also with KITHFS_SEED, KITHFS_RUNS, KITHFS_STEPS and
# KITHFS_SECONDS for the scenario random. Needs root. Exit status: 0 if all passed; 1 if not; 77 if they cannot run here.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
say() { echo "stores-vm: $*" >&2; }
skip() { say "skipped: $*"; exit 77; }
[ -x "$kithfs" ] || { say "$kithfs is not there: run scripts/setup.sh, or cargo build --release"; exit 1; }
[ "$(id -u)" -eq 0 ] || skip "needs root, to read all of this machine's files"

packages=(systemd dbus libpam-systemd qemu-system-x86 seabios busybox-static kmod cpio iproute2 nfs-kernel-server rpcbind samba cifs-utils dosfstools exfatprogs python3 strace)
if [ "${1-}" = --install ]; then
    shift
    export DEBIAN_FRONTEND=noninteractive
    dpkg -s "${packages[@]}" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; } || skip "its packages cannot be had"
fi
for tool in qemu-system-x86_64 busybox depmod modprobe cpio dpkg; do command -v "$tool" >/dev/null || skip "$tool is not installed"; done
stores=("$@")
[ ${#stores[@]} -gt 0 ] || stores=(nfs4=use,machines,restarted,replaced,squashed,lost nfs3=use vfat=use,lost kernel-exfat=use,lost power)
power=0 login=0
for n in "${!stores[@]}"; do
    case ${stores[n]} in
        power) power=1; unset "stores[n]" ;;
        login) login=1; unset "stores[n]" ;;
    esac
done

# The unpacked kernel is kept between runs if $KITHFS_VM_KERNEL names a directory for it.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kithfs-stores-vm.XXXXXX")
machine=''
cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    [ -z "$machine" ] || { kill -9 "$machine"; wait "$machine"; } 2>/dev/null || true
    rm -rf --one-file-system -- "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

system=${KITHFS_VM_KERNEL:-$work/kernel}
if ! ls "$system"/boot/vmlinuz-* >/dev/null 2>&1; then
    mkdir -p "$system"
    image=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$image" ] || skip "apt knows no kernel"
    # Without this option apt downloads as another user, who may not write here, and prints a warning.
    (cd "$work" && apt-get download -q -o APT::Sandbox::User=root "$image" >download.log 2>&1) || skip "no kernel can be had: $(tail -n 1 "$work/download.log")"
    dpkg -x "$work"/linux-image-*.deb "$system"
    rm "$work"/linux-image-*.deb
fi
kernel=$(ls "$system"/boot/vmlinuz-* | tail -n 1)
release=${kernel##*/vmlinuz-}
[ -e "$system/lib/modules/$release/modules.dep" ] || depmod -b "$system" "$release"

# Emulation by software works everywhere; /dev/kvm could not start this kernel on a test machine. KITHFS_VM_ACCEL='-accel kvm -cpu host' uses
# the hardware. A complete run with it was not tested.
accelerator=${KITHFS_VM_ACCEL:--accel tcg,thread=multi,tb-size=512 -cpu Nehalem,+aes,+pclmulqdq}
# The virtual machine boots from busybox and the modules that give it access to this machine's files. It takes everything else from these
# files.
root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,modules,lower,memory,root}
cp "$(command -v busybox)" "$root/bin/busybox"
for module in virtio_pci 9pnet_virtio 9p overlay; do modprobe -d "$system" -S "$release" --show-depends "$module"; done |
    sed -n 's/^insmod \([^ ]*\) *$/\1/p' | awk '!seen[$0]++' >"$work/modules"
while read -r module; do
    cp "$module" "$root/modules/"
    echo "$(basename "$module")" >>"$root/modules/order"
done <"$work/modules"

# machine_runs COMMAND...: starts the virtual machine, which runs the command by scripts/stores/guest.sh. Its output is shown at once.
machine_runs() {
    cat >"$root/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in \$(cat /modules/order); do insmod "/modules/\$module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 machine /lower
mount -t tmpfs -o size=80% none /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work none /root
mkdir -p /root/lib/modules
mount --bind "/root$system/lib/modules" /root/lib/modules
umount /proc /sys
mount --move /dev /root/dev
$(env | sed -n 's/^KITHFS_\(SEED\|RUNS\|STEPS\|SECONDS\)=[0-9]*$/export &/p')
exec switch_root /root /bin/bash "$here/scripts/stores/guest.sh" "$here" "$kithfs" $*
END
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
    : >"$work/console"
    : >"$work/out"
    : >"$work/status"
    qemu-system-x86_64 $accelerator -smp 2 -m "${KITHFS_VM_MEMORY:-4096}" \
        -nodefaults -no-user-config -display none -no-reboot -kernel "$kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 panic=-1 no_timer_check quiet loglevel=4" \
        -virtfs local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap \
        -serial "file:$work/console" -serial "file:$work/out" -serial "file:$work/status" -serial "pipe:$work/asks" -monitor "pipe:$work/monitor" \
        -blockdev "driver=raw,node-name=stick,file.driver=file,file.filename=$work/stick" -device qemu-xhci "${disks[@]}" \
        -object rng-random,filename=/dev/urandom,id=rng -device virtio-rng-pci,rng=rng \
        </dev/null >"$work/qemu.log" 2>&1 &
    machine=$!
    tail -q -n +1 -F --pid "$machine" "$work/out" 2>/dev/null &
    shown=$!
}
# machine_ends ANSWER...: waits for the end of the virtual machine. Calls `ANSWER... LINE` for each line with which it requests something.
machine_ends() {
    local asked until=$((SECONDS + ${KITHFS_VM_SECONDS:-5400}))
    while kill -0 "$machine" 2>/dev/null; do
        ! read -r -t 1 asked <&7 || "$@" "${asked%$'\r'}"
        [ "$SECONDS" -lt "$until" ] || { say "it has not ended in time"; kill -9 "$machine" 2>/dev/null || true; }
    done
    wait "$machine" 2>/dev/null || true
    machine=''
    wait "$shown" || true
}
# Returns the status of the command that the virtual machine has run.
machine_said() {
    local said
    said=$(tr -d '\r\n' <"$work/status")
    [ "$said" != 0 ] || return 0
    cat "$work/qemu.log" >&2
    tail -n 40 "$work/console" >&2
    [ -n "$said" ] || say "the machine has ended without a word"
    return 1
}

mkfifo "$work/asks.in" "$work/asks.out" "$work/monitor.in" "$work/monitor.out"
exec 6<>"$work/asks.in" 7<>"$work/asks.out" 8<>"$work/monitor.in" 9<>"$work/monitor.out"
truncate -s 400M "$work/stick"
disks=()
failed=0

# Plugs the USB stick in or pulls it, when the virtual machine requests that.
hand() {
    case $1 in
        plug) echo "device_add usb-storage,id=stick,drive=stick" >&8 ;;
        unplug) echo "device_del stick" >&8 ;;
    esac
}
if [ ${#stores[@]} -gt 0 ]; then
    machine_runs "${stores[@]}"
    machine_ends hand
    machine_said || failed=1
fi

if [ "$login" = 1 ]; then
    machine_runs login
    machine_ends hand
    machine_said || failed=1
fi

# Cuts the power of the virtual machine once it has synced enough on each disk. It then starts again with the disks as they are.
cut() {
    echo "$1" >>"$work/acknowledged"
    [ "$(cut_least)" -lt 25 ] || kill -9 "$machine" 2>/dev/null || true
}
cut_least() { for kind in ext4 xfs btrfs vfat exfat; do grep -c "^$kind " "$work/acknowledged" || true; done | sort -n | head -n 1; }
if [ "$power" = 1 ]; then
    for kind in ext4 xfs btrfs vfat exfat; do
        truncate -s 400M "$work/disk-$kind"
        disks+=(-drive "if=virtio,format=raw,cache=writethrough,file=$work/disk-$kind")
    done
    : >"$work/acknowledged"
    machine_runs power.sh write
    machine_ends cut
    if [ "$(cut_least)" -lt 25 ]; then
        say "power: it did not write"
        tail -n 20 "$work/console" >&2
        failed=1
    else
        machine_runs power.sh verify "$work/acknowledged"
        machine_ends hand
        machine_said || failed=1
    fi
fi
exit "$failed"

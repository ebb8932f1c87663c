#!/bin/bash
# The first process of the virtual machine of scripts/stores-vm.sh: guest.sh DIRECTORY-OF-KITHFS PROGRAM STORE...
# or guest.sh DIRECTORY-OF-KITHFS PROGRAM power.sh ARGUMENT...
# or guest.sh DIRECTORY-OF-KITHFS PROGRAM login, after which it is systemd
here=$1 program=$2
shift 2
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/root/.cargo/bin HOME=/root LC_ALL=C.UTF-8 KITHFS=$program
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
for place in /dev/shm /run /var/lib/nfs /var/lib/samba /var/cache/samba; do
    mkdir -p "$place"
    mount -t tmpfs none "$place"
done
touch /run/kithfs-stores-vm
mkdir /run/work
export TMPDIR=/run/work XDG_RUNTIME_DIR=/run
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost
modprobe -a fuse loop
chmod 666 /dev/fuse
ip link set lo up
hostname kithfs-vm
cd "$here" || exit 1
if [ "$1" = login ]; then
    units=/run/systemd/system
    mkdir -p "$units"
    cat >"$units/kithfs-login.service" <<END
[Unit]
Requires=dbus.service systemd-logind.service
After=dbus.service systemd-logind.service
[Service]
ExecStart=/bin/bash $here/scripts/stores/login.sh $here $program
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
END
    # Switches off services that a machine without hardware does not need.
    for unit in systemd-timesyncd systemd-networkd systemd-resolved systemd-tmpfiles-clean systemd-random-seed systemd-sysusers systemd-firstboot e2scrub_reap; do
        ln -sf /dev/null "$units/$unit.service"
    done
    # systemd empties /tmp when it boots, and this source tree may be there.
    mkdir -p /run/tmpfiles.d
    ln -s /dev/null /run/tmpfiles.d/tmp.conf
    tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
    exec /lib/systemd/systemd --unit=kithfs-login.service </dev/null >/dev/ttyS0 2>&1
fi
case $1 in
    power.sh) shift; scripts/stores/power.sh "$@" ;;
    # Without hardware virtualization everything takes many times as long.
    *) KITHFS_STORE_SECONDS=1500 scripts/stores.sh "$@" ;;
esac
status=$?
dmesg -l emerg,alert,crit,err,warn | tail -n 50 >/dev/ttyS0
echo "$status" >/dev/ttyS2
sync
# Serial lines are slow: waits until the output has arrived.
stty -F /dev/ttyS2 -opost
reboot -f
sleep 10
echo b >/proc/sysrq-trigger

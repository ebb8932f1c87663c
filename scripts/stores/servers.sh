# The kernel's NFS server and Samba over a separate ext4, and a second machine: a network namespace with its own name and address, for which
# the kernel's clients keep separate state. Sourced by store.sh, in the virtual machine of scripts/stores-vm.sh only, because all of this
# changes the machine.
server_loop=''
of_machine() { [ -e /run/kithfs-stores-vm ] || skip "is tried by scripts/stores-vm.sh alone"; }
served=10.99.0.1 second_address=10.99.0.2
# The directory that is served. It is on a separate disk, because file handles of tmpfs do not survive a restart of a server.
served_up() {
    ! mountpoint -q "$below" || return 0
    packages mkfs.ext4
    [ -e "$work/served" ] || { truncate -s 400M "$work/served"; mkfs.ext4 -q -F -b 4096 "$work/served"; }
    server_loop=$(losetup -f --show "$work/served")
    mount "$server_loop" "$below"
    mkdir -p "$below/all"
    [ ! -e /run/netns/second ] || return 0
    ip netns add second
    ip link add first type veth peer name second netns second
    ip address add "$served/24" dev first
    ip link set first up
    ip -n second address add "$second_address/24" dev second
    ip -n second link set second up
    ip -n second link set lo up
}
served_down() {
    umount "$below"
    losetup -d "$server_loop"
    server_loop=''
}
# on_second COMMAND...: runs a command on the second machine.
on_second() {
    export -f nfs_mount smb_mount
    export kind served nfs_options work
    nsenter --net=/run/netns/second unshare --uts bash -c 'set -eu; hostname second; "$@"' bash "$@"
}

# After a restart the server waits for its former clients to reclaim their locks. Here it waits for less than the usual 90 s.
grace=10
nfs_server_up() {
    of_machine
    packages rpc.nfsd exportfs rpc.mountd rpcbind rpc.statd mount.nfs
    served_up
    if ! mountpoint -q /proc/fs/nfsd; then
        modprobe -a nfsd nfs nfsv3 nfsv4 2>"$work/modprobe.log" || skip "this kernel has no NFS: $(cat "$work/modprobe.log")"
        mountpoint -q /proc/fs/nfsd || mount -t nfsd none /proc/fs/nfsd
        mkdir -p /run/rpc_pipefs /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/nfsdcld /run/sendsigs.omit.d
        mount -t rpc_pipefs none /run/rpc_pipefs
        touch /var/lib/nfs/etab /var/lib/nfs/rmtab
        rpcbind -w
        rpc.statd
        nfsdcld
        rpc.mountd
        if [ "$kind" = nfs3 ]; then
            # NFS 3 needs another service for locks, on each machine.
            nsenter --net=/run/netns/second unshare --uts --mount bash -c 'hostname second
                for place in /run /var/lib/nfs; do mount -t tmpfs none $place; done
                mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /run/sendsigs.omit.d
                rpcbind -w && rpc.statd' || die "no locks of NFS 3 on the second machine"
        fi
    fi
    nfs_start
}
nfs_start() {
    [ "$(cat /proc/fs/nfsd/threads)" -eq 0 ] || return 0
    exportfs -i -o "rw,sync,insecure,no_subtree_check,fsid=0,${nfs_squash:-no_root_squash}" "*:$below/all"
    echo "$grace" >/proc/fs/nfsd/nfsv4leasetime
    echo "$grace" >/proc/fs/nfsd/nfsv4gracetime
    echo "$grace" >/proc/sys/fs/nfs/nlm_grace_period
    rpc.nfsd 4
}
nfs_stop() {
    rpc.nfsd 0
    exportfs -ua
}
# The server loses power: data that it had not written to its disk is lost.
nfs_crash() {
    rpc.nfsd 0
    exportfs -ua
    exportfs -f
    python3 -c 'import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack("I", 2))' "$below"
    served_down
}
nfs_mount() {
    local version=4.2 path=/
    [ "$kind" = nfs4 ] || version=3 path=$work/below/all
    mount -t nfs -o "vers=$version,${nfs_options:-hard}" "$served:$path" "$1"
}

smb_server_up() {
    of_machine
    packages smbd mount.cifs smbpasswd
    served_up
    [ ! -e /run/samba/smbd.pid ] || return 0
    modprobe cifs 2>"$work/modprobe.log" || skip "this kernel has no SMB: $(cat "$work/modprobe.log")"
    mkdir -p "$work/samba/private" /run/samba /var/log/samba
    cat >"$work/samba/smb.conf" <<END
[global]
server role = standalone server
map to guest = never
log level = 0
log file = $work/samba/log
max log size = 100000
private dir = $work/samba/private
lock directory = $work/samba
state directory = $work/samba
cache directory = $work/samba
pid directory = /run/samba
disable netbios = yes
smb ports = 445
load printers = no
[all]
path = $below/all
read only = no
force user = root
END
    printf 'word\nword\n' | smbpasswd -c "$work/samba/smb.conf" -s -a root >"$work/samba/passwd" 2>&1 || { cat "$work/samba/passwd" >&2; skip "no user for Samba"; }
    smb_start
}
smb_start() {
    smbd -D -s "$work/samba/smb.conf"
    local try
    for try in $(seq 100); do
        ! (exec 3<>"/dev/tcp/$served/445") 2>/dev/null || return 0
        sleep 0.1
    done
    cat "$work"/samba/log* >&2
    skip "Samba does not come up"
}
smb_mount() { mount -t cifs -o "username=root,password=word,vers=3.1.1,${smb_options:-serverino}" "//$served/all" "$1"; }

# stick MKFS...: plugs in the USB stick of the virtual machine, and makes the filesystem the first time. Outside of the virtual machine a loop
# device takes its place.
ask_machine() { echo "$1" >/dev/ttyS3; }
stick() {
    if [ ! -e /run/kithfs-stores-vm ]; then
        image "$@"
        return
    fi
    local try
    modprobe -a xhci_pci usb_storage sd_mod vfat exfat nls_cp437 nls_ascii nls_utf8 ext4
    [ -n "$(stick_device)" ] || ask_machine plug
    for try in $(seq 300); do
        loop=$(stick_device)
        [ -z "$loop" ] || break
        sleep 0.1
    done
    [ -n "$loop" ] || die "the stick does not come up"
    [ -e "$work/stick-made" ] || { "$@" "$loop" >"$work/mkfs.log" 2>&1 || { cat "$work/mkfs.log" >&2; die "cannot make the filesystem"; }; }
    touch "$work/stick-made"
}
stick_device() {
    local at
    for at in /sys/block/sd*; do [ ! -e "$at" ] || [ "$(cat "$at/size")" -eq 0 ] || echo "/dev/${at##*/}"; done | head -n 1
}
stick_pulled() {
    [ -e /run/kithfs-stores-vm ] || skip "a loop device cannot be pulled"
    ask_machine unplug
    local try
    for try in $(seq 300); do
        [ -n "$(stick_device)" ] || return 0
        sleep 0.1
    done
    die "the stick cannot be pulled"
}

servers_down() {
    [ -e /run/kithfs-stores-vm ] || return 0
    ! mountpoint -q /proc/fs/nfsd || nfs_stop || true
    [ ! -e /run/samba/smbd.pid ] || kill "$(cat /run/samba/smbd.pid)" || true
    [ -z "$server_loop" ] || served_down || true
}

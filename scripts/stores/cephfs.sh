# A Ceph cluster on this machine, with its disks in memory: a monitor, a metadata server, and as many disks as $disks says, of which each has
# all data. Each server is a child of the shell that sources this file. Sets $ceph_conf, $cluster to the process ids of the servers, and $osds
# to those of the disks.
cluster=() osds=() disks=1
cluster_up() {
    local at=$work/ceph ports monitor uuid try disk
    ceph_conf=$at/ceph.conf
    [ ! -e "$ceph_conf" ] || return 0
    mkdir -p "$at"/{mon,osd,mds}
    ports=$(python3 -c 'import socket; held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]; print(*(s.getsockname()[1] for s in held))')
    monitor="[v2:127.0.0.1:${ports% *},v1:127.0.0.1:${ports#* }]"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    touch "$at/keyring" "$at/asked"
    cat >"$ceph_conf" <<EOF
[global]
fsid = $uuid
mon host = $monitor
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
keyring = $at/keyring
mon data = $at/mon
osd data = $at/osd
mds data = $at/mds
run dir = $at
admin socket = $at/\$name.\$pid.asok
log file = $at/\$name.log
mon cluster log file = $at/cluster.log
osd objectstore = memstore
memstore device bytes = 1073741824
osd pool default size = $disks
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
# The last disk alone reports that the other one is gone.
mon osd min down reporters = 1

[client]
# ceph-fuse lets the kernel keep pages of a file that another client has open for writing, and never drops them.
fuse disable pagecache = true
# The cache of ceph-fuse itself keeps bytes that it has read ahead, also after another client has changed them (coherent.py).
client oc = false
EOF
    part() { "$@" -c "$ceph_conf" -f >"$at/$1.out" 2>&1 </dev/null & cluster+=($!); }
    ask() { timeout 20 ceph -c "$ceph_conf" "$@" >"$at/asked" 2>&1; }
    make() { "$@" >"$at/made" 2>&1 || { cat "$at/made" "$at/asked" >&2; skip "no Ceph cluster can be made"; }; }
    make monmaptool --create --addv a "$monitor" --fsid "$uuid" "$at/monmap"
    make ceph-mon --mkfs -i a --monmap "$at/monmap" -c "$ceph_conf"
    part ceph-mon -i a
    for try in $(seq 50); do
        ! ask mon stat || break
        # Another program may have taken the port meanwhile.
        [ -d "/proc/${cluster[0]}" ] || { cat "$at/ceph-mon.out" >&2; skip "the cluster has no monitor"; }
        sleep 0.1
    done
    for disk in $(seq 0 $((disks - 1))); do
        uuid=$(cat /proc/sys/kernel/random/uuid)
        make ask osd new "$uuid"
        make ceph-osd --mkfs -i "$disk" --osd-uuid "$uuid" -c "$ceph_conf"
        part ceph-osd -i "$disk"
        osds+=("$!")
    done
    make ask osd pool create metadata 8
    make ask osd pool create data 8
    make ask fs new fs metadata data
    part ceph-mds -i a
    for try in $(seq 300); do
        ! { ask mds stat && grep -q up:active "$at/asked"; } || return 0
        sleep 0.1
    done
    cat "$at/asked" >&2
    skip "the cluster does not come up"
}
# After a client was killed, its files stay reserved for it until the metadata server forgets the client, after some five minutes. This
# function makes the server forget it at once.
forget_clients() { [ ${#cluster[@]} -eq 0 ] || timeout 20 ceph -c "$ceph_conf" tell mds.a session evict >"$work/ceph/asked" 2>&1; }
cluster_down() {
    [ ${#cluster[@]} -eq 0 ] || { kill -9 "${cluster[@]}"; wait "${cluster[@]}"; } 2>/dev/null || true
    cluster=()
}
# Kills the last disk, and waits until the cluster has noticed.
ceph_kill_disk() {
    local at=$work/ceph disk=$((disks - 1)) try
    kill -9 "${osds[disk]}"
    for try in $(seq 300); do
        ! { ask osd stat && grep -q " $disk up" "$at/asked"; } || return 0
        sleep 0.1
    done
    cat "$work/ceph/asked" >&2
    die "the cluster does not notice that a disk is gone"
}

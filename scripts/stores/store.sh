#!/usr/bin/env bash
# Tests one kind of store: makes the store, uses a vault on it, kills the daemon, fills the store, and takes it away while it is mounted.
# scripts/stores.sh runs this script with the kind as the argument; docs/STORES.md has the results.
set -Eeuo pipefail
. "$(dirname -- "$0")/../scratch.sh"
trap 'say "line $LINENO: exit status $?: $BASH_COMMAND"' ERR
. "$(dirname -- "$0")/cephfs.sh"
. "$(dirname -- "$0")/glusterfs.sh"
. "$(dirname -- "$0")/servers.sh"
kind=${1:?a kind of store}
name=$kind
[ "$(id -u)" -eq 0 ] || skip "needs root, to mount"
need python3 mountpoint losetup setpriv
calls=$here/scripts/stores/calls.py
export KITHFS_NO_ROLLBACK_MEMORY=1 KITHFS_PASSPHRASE_FILE=$work/passphrase

# ---- the stores. $store is the mount point, $below the directory beneath the store, $loop its device, $server the process that serves it.

store=$work/store below=$work/below loop='' server=''
mkdir -p "$store" "$below"
# Works also for a mount whose server is gone, unlike mountpoint(1).
is_mounted() { grep -qF " $1 " /proc/mounts; }
packages() { for file; do [ -e "$(command -v "$file" || echo "$file")" ] || skip "$file is not installed"; done; }
# image MKFS...: sets up a loop device, and makes the filesystem on it the first time.
image() {
    if [ ! -e "$work/image" ]; then
        truncate -s "${image_size:-400M}" "$work/image"
        "$@" "$work/image" >"$work/mkfs.log" 2>&1 || { cat "$work/mkfs.log" >&2; die "cannot make the filesystem"; }
    fi
    loop=$(losetup -f --show "$work/image" 2>"$work/losetup.log") || skip "no loop device: $(cat "$work/losetup.log")"
}
# serve COMMAND...: starts a FUSE server in the foreground, so that it can be ended by its process id.
serve() {
    "$@" >"$work/server.log" 2>&1 </dev/null &
    server=$!
    local try
    for try in $(seq 100); do
        ! mountpoint -q "$store" || return 0
        [ -d "/proc/$server" ] || break
        sleep 0.1
    done
    cat "$work/server.log" >&2
    skip "the store does not come up"
}
# client DIRECTORY: mounts a distributed filesystem there, by a client of its own. Sets $server to its process.
client() {
    case $kind in
        cephfs) store=$1 serve ceph-fuse -c "$ceph_conf" -f "$1" ;;
        glusterfs)
            # Otherwise the kernel keeps attributes for a second, and the pages of a file that another client has changed meanwhile.
            store=$1 serve glusterfs -N --attribute-timeout=0 --entry-timeout=0 --direct-io-mode=enable \
                --volfile-server="$gluster_address" --volfile-id=vault --log-file="$work/gluster/client.log" "$1"
            ;;
    esac
}
# second_machine: mounts the store a second time, on $work/machine. Sets $second to the process of a FUSE client.
second_machine() {
    local first=$server
    mkdir -p "$work/machine"
    # Otherwise each machine sees names and sizes as they were up to a minute ago.
    case $kind in nfs4) nfs_options=hard,actimeo=0; store_down; store_up ;; esac
    case $kind in
        cephfs | glusterfs) client "$work/machine"; second=$server server=$first ;;
        nfs3 | nfs4) on_second nfs_mount "$work/machine" ;;
        smb) on_second smb_mount "$work/machine" ;;
    esac
}
store_up() {
    case $kind in
        exfat) packages mount.exfat-fuse mkfs.exfat; image mkfs.exfat; serve mount.exfat-fuse -d "$loop" "$store" ;;
        ntfs) packages ntfs-3g mkfs.ntfs; image mkfs.ntfs -F -Q; serve ntfs-3g -o no_detach "$loop" "$store" ;;
        ext4) packages mkfs.ext4; image mkfs.ext4 -q -F -b 4096; mount "$loop" "$store" ;;
        xfs) packages mkfs.xfs; image mkfs.xfs -q; mount "$loop" "$store" ;;
        btrfs) packages mkfs.btrfs; image mkfs.btrfs -q; mount "$loop" "$store" ;;
        sshfs)
            packages sshfs /usr/lib/openssh/sftp-server
            printf '#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n' >"$work/ssh"
            chmod +x "$work/ssh"
            serve sshfs -f -o ssh_command="$work/ssh" "host:$below" "$store"
            ;;
        bindfs) packages bindfs; serve bindfs -f "$below" "$store" ;;
        mergerfs) packages mergerfs; mkdir -p "$below/a" "$below/b"; serve mergerfs -f "$below/a:$below/b" "$store" ;;
        unionfs) packages unionfs; mkdir -p "$below/rw" "$below/ro"; serve unionfs -f -o cow "$below/rw=RW:$below/ro=RO" "$store" ;;
        overlay)
            # The upper layer must not be on an overlay itself, such as the root of a container.
            mountpoint -q "$below" || mount -t tmpfs -o size=400m none "$below"
            mkdir -p "$below/lower" "$below/upper" "$below/work"
            mount -t overlay -o "lowerdir=$below/lower,upperdir=$below/upper,workdir=$below/work" overlay "$store" || skip "no overlay here"
            ;;
        squashfs) packages mksquashfs; reading_only; mksquashfs "$below" "$work/image" -quiet -no-progress >/dev/null; image; mount -o ro "$loop" "$store" ;;
        cephfs)
            packages ceph ceph-mon ceph-osd ceph-mds ceph-fuse monmaptool
            cluster_up
            forget_clients
            client "$store"
            ;;
        glusterfs) packages glusterd gluster glusterfs; gluster_up; client "$store" ;;
        rclone)
            packages rclone
            reading_only
            serve rclone mount "$below" "$store" --config /dev/null --read-only --vfs-cache-mode full --cache-dir "$work/cache"
            ;;
        vfat) packages mkfs.vfat; stick mkfs.vfat -F 32 -I; of_kernel mount -t vfat "$loop" "$store" ;;
        kernel-exfat) packages mkfs.exfat; stick mkfs.exfat; of_kernel mount -t exfat "$loop" "$store" ;;
        stick) packages mkfs.ext4; stick mkfs.ext4 -q -F -b 4096; mount "$loop" "$store" ;;
        nfs3 | nfs4) nfs_server_up; nfs_mount "$store" ;;
        smb) smb_server_up; smb_mount "$store" ;;
        *) die "unknown kind" ;;
    esac
}
# of_kernel COMMAND...: mounts by a driver that this kernel may lack.
of_kernel() { "$@" 2>"$work/mount.log" || skip "this kernel cannot mount it: $(cat "$work/mount.log")"; }
# Makes the vault of a read-only store, in the directory beneath it.
reading_only() {
    [ ! -d "$below/read" ] || return 0
    vault=$below/read
    make_vault 2>"$work/init"
    tree "$work/tree"
    "$kithfs" import "$work/tree" "$vault/tree" >/dev/null 2>&1
}
store_down() {
    local try
    for try in 1 2 3 4 5 6 7 8; do
        is_mounted "$store" || break
        umount "$store" 2>/dev/null || sleep "0.$try"
    done
    ! is_mounted "$store" || umount -l "$store"
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    case $loop in /dev/loop*) losetup -d "$loop" ;; esac
    server='' loop=''
}
# Pulls the stick or cuts the connection: the store is gone at once, and so is the data that it had not written.
store_lost() {
    case $kind in
        ext4 | xfs) python3 -c 'import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack("I", 2))' "$store" ;;
        nfs3 | nfs4) nfs_stop ;;
        vfat | kernel-exfat | stick) stick_pulled ;;
        *) kill -9 "$server" ;;
    esac
}
can_be_lost() { case $kind in btrfs | overlay | smb) return 1 ;; esac; }
can_be_full() { case $kind in ext4 | xfs | btrfs | exfat | ntfs | vfat | kernel-exfat | nfs3 | nfs4 | smb) ;; *) return 1 ;; esac; }

before_cleanup() {
    local place
    for place in "$work/other" "$plain"; do
        ! is_mounted "$place" || "$kithfs" umount "$place" 2>/dev/null || "$kithfs" umount --lazy "$place" || umount -l "$place"
    done
    [ -z "${writer:-}" ] || kill "$writer" 2>/dev/null || true
    ! is_mounted "$work/machine" || umount -l "$work/machine"
    store_down
    cluster_down
    gluster_down
    servers_down
    ! mountpoint -q "$below" || umount "$below"
}

# ---- what is done on each

lacking=$work/lacking
: >"$lacking"
# soon SECONDS COMMAND...: fails if the command takes longer. $calls_wait multiplies the time while each call waits for a server that does not
# answer, and for GlusterFS, which writes everything to three bricks on one disk.
exec 9>&2
at_least=1
case $kind in glusterfs) at_least=5 ;; esac
calls_wait=$at_least
soon() {
    local seconds=$(($1 * calls_wait)) status=0
    shift
    timeout -s KILL "$seconds" "$@" || status=$?
    [ "$status" -ne 137 ] || { say "hangs for more than $seconds s: $*" 2>&9; exit 1; }
    return "$status"
}
same() { diff -rq --no-dereference "$1" "$2" >"$work/diff" || { head -n 5 "$work/diff" >&2; die "$3"; }; }
fails() { ! soon 30 "$@" >"$work/failed" 2>&1 || die "does not fail: $*"; }
daemon() { "$kithfs" mounts --json | python3 -c 'import json, sys; print(*(m["pid"] for m in json.load(sys.stdin) if m["mountpoint"] == sys.argv[1]))' "$plain"; }
unmount_vault() {
    local try
    for try in 1 2 3 4; do
        ! soon 30 "$kithfs" umount "$plain" 2>"$work/umount" || return 0
        sleep "0.$try" # a program that looks at all mounts of the machine keeps this one busy for a moment
    done
    cat "$work/umount" >&2
    return 1
}
verify_vault() { soon 120 "$kithfs" fsck "$vault" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "fsck found faults $*"; }; }
new_vault() { vault=$store/$1; make_vault 2>"$work/init"; }

# Makes some hundred files, a deep path and holes, which calls.py does not make.
tree() {
    python3 - "$1" <<'EOF'
import os, random, sys
random.seed(1)
for d in range(25):
    path = os.path.join(sys.argv[1], *[f"dir {d} {n}" for n in range(d % 5 + 1)])
    os.makedirs(path + "/empty")
    for n in range(24):
        with open(f"{path}/file {n} {'long' * (n * 2)}", "wb") as file:
            file.write(random.randbytes(random.choice((0, 1, 100, 4096, 5000, 20000))))
with open(os.path.join(sys.argv[1], "sparse"), "wb") as file:
    file.seek(3_000_000)
    file.write(b"end")
EOF
}

use() {
    new_vault use
    tree "$work/tree"
    mount_vault
    cp -a "$work/tree" "$plain/tree"
    mkdir "$plain/calls"
    soon 120 python3 "$calls" do "$plain/calls" >>"$lacking"
    # Makes the store drop its caches, as when memory is short. Some stores then change inode numbers.
    echo 2 >/proc/sys/vm/drop_caches
    soon 60 python3 "$calls" verify "$plain/calls" >"$work/before"
    same "$work/tree" "$plain/tree" "the tree differs"
    status=0
    mkdir "$work/elsewhere"
    "$kithfs" mount "$vault" "$work/elsewhere" 2>"$work/second" || status=$?
    [ "$status" -eq 9 ] || die "mounted a second time: exit status $status"
    unmount_vault
    verify_vault "after use"
    mount_vault
    soon 60 python3 "$calls" verify "$plain/calls" >>"$lacking"
    same "$work/tree" "$plain/tree" "the tree differs after a remount"
    soon 60 rm -r "$plain/tree"
    unmount_vault
    # Commands without a mount.
    echo 'milk, bread' | "$kithfs" put "$vault" list
    [ "$("$kithfs" cat "$vault" list)" = 'milk, bread' ] || die "put and cat"
    "$kithfs" import "$work/tree" "$vault/imported" >/dev/null 2>&1
    "$kithfs" export "$vault/imported" "$work/exported" >/dev/null 2>&1
    same "$work/tree" "$work/exported" "what was imported and exported differs"
    verify_vault "after an import"
    mount_vault --read-only
    [ "$(cat "$plain/list")" = 'milk, bread' ] || die "read only"
    fails touch "$plain/list"
    unmount_vault
    case $kind in
        ext4 | xfs | btrfs)
            # Makes the whole store read-only.
            mount -o remount,ro "$store"
            mount_vault 2>"$work/mount"
            [ "$(cat "$plain/list")" = 'milk, bread' ] || die "cannot read the list on a read-only store"
            fails touch "$plain/list"
            unmount_vault
            mount -o remount,rw "$store"
            ;;
    esac
    local left
    left=$(find "$vault" -name '.fuse_hidden*' -o -name '.nfs*' -o -name '+trash*' -o -name '+tmp*')
    [ -z "$left" ] || die "left in the vault: $left"
}

# Makes a share of a folder that is not in use, and of one that programs use in a mount. Adds a second member, and removes that member.
sharing() {
    local of_root=$HOME folder bob_has
    export HOME=$work/ann
    bob() { HOME=$work/bob soon 60 "$kithfs" "$@" 2>"$work/bob.said"; }
    ann() { soon 120 "$kithfs" "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; die "kithfs $*"; }; }
    mkdir "$work/ann" "$work/bob"
    new_vault sharing
    [ -d "$work/tree" ] || tree "$work/tree"
    bob identity new --kdf-memory 32 --kdf-passes 1 >"$work/said" || { cat "$work/bob.said" >&2; die "an identity"; }
    bob identity export >"$work/bob.key"
    ann contact add Bob "$(cat "$work/bob.key")"
    ann contact verify Bob --yes
    "$kithfs" import "$work/tree" "$vault/resting" >/dev/null 2>&1
    "$kithfs" import "$work/tree" "$vault/used" >/dev/null 2>&1
    ann share create "$vault/resting"
    mount_vault
    same "$work/tree" "$plain/resting" "a share of a folder that nobody uses differs"
    exec 4<"$plain/used/dir 0 0/file 5 $(printf 'long%.0s' $(seq 10))"
    # A program continues to work in the folder by its path, and at no moment is the folder missing.
    (while [ ! -e "$work/made" ]; do stat "$plain/used/dir 0 0" >/dev/null || echo gone; done) >"$work/looked" 2>&1 &
    writer=$!
    cp "$work/tree/sparse" "$plain/used/sparse"
    ann share create "$plain/used"
    touch "$work/made"
    wait "$writer"
    writer=''
    [ ! -s "$work/looked" ] || { head -n 3 "$work/looked" >&2; die "the folder was not there while it became a share"; }
    cmp - "$work/tree/dir 0 0/file 5 $(printf 'long%.0s' $(seq 10))" <&4 || die "an open file has changed"
    exec 4<&-
    same "$work/tree" "$plain/used" "a share of a folder in use differs"
    [ "$(ls -A "$plain")" = $'resting\nused' ] || { ls -A "$plain" >&2; die "share create has left something behind"; }
    echo plan >"$plain/used/plan"
    sync "$plain/used/plan"
    ann share add "$plain/used" Bob --role writer
    ann share invite "$plain/used" Bob -o "$work/invitation"
    unmount_vault
    folder=$("$kithfs" map "$vault" used)
    case $folder in /*) ;; *) folder=$vault/$folder ;; esac
    bob accept --yes "$work/invitation" >"$work/said" || { cat "$work/bob.said" >&2; die "accept"; }
    bob_has() { bob cat "$folder" "$1"; }
    [ "$(bob_has plan)" = plan ] || { cat "$work/bob.said" >&2; die "what the second member reads"; }
    echo his | bob put "$folder" his || { cat "$work/bob.said" >&2; die "what the second member writes"; }
    [ "$("$kithfs" cat "$vault" used/his)" = his ] || die "what the second member has written"
    ann share remove "$vault/used" Bob
    ann share rekey --eager "$vault/used"
    echo secret | "$kithfs" put "$vault" used/secret
    ! bob_has secret >"$work/said" || die "the removed member can still read new data"
    [ "$("$kithfs" cat "$vault" used/his)" = his ] || die "a file that the removed member has written is not as it was"
    verify_vault "after sharing"
    local left
    left=$(find "$vault" -name '.fuse_hidden*' -o -name '.nfs*' -o -name '+trash*' -o -name '+tmp*' -o -name '+moving*')
    [ -z "$left" ] || die "left in the vault: $left"
    export HOME=$of_root
}

# Kills `share create` before each of its renames in turn. The folder must be complete, and the same command must continue.
interrupted() {
    command -v strace >/dev/null || { say "interrupted: strace is not installed"; return 0; }
    new_vault interrupted
    mkdir -p "$work/small/sub"
    head -c 30000 /dev/urandom >"$work/small/large"
    echo note >"$work/small/sub/note"
    local n status renames=rename,renameat,renameat2 at
    exported() {
        rm -rf "$work/exported"
        "$kithfs" export "$vault/$1" "$work/exported" >"$work/said" 2>&1 || { cat "$work/said" >&2; die "$2"; }
        same "$work/small" "$work/exported" "$2"
    }
    for n in $(seq 40); do
        "$kithfs" import "$work/small" "$vault/folder $n" >/dev/null 2>&1
        status=0
        # In a separate process, because otherwise this shell would print a message about the kill.
        sh -c 'timeout 60 "$@"; exit $?' sh strace -f -o /dev/null -e trace=$renames -e inject=$renames:signal=KILL:when="$n" \
            "$kithfs" share create "$vault/folder $n" >"$work/said" 2>&1 || status=$?
        at="folder $n"
        "$kithfs" ls "$vault" >"$work/names"
        grep -q "^$at/*\$" "$work/names" || at="$at.before-share"
        exported "$at" "killed before rename $n, the folder is not whole"
        "$kithfs" share create "$vault/folder $n" >"$work/said" 2>&1 || { cat "$work/said" >&2; die "killed before rename $n, share create does not continue"; }
        exported "folder $n" "killed before rename $n, the share is not whole"
        ! "$kithfs" ls "$vault" | grep before-share >&2 || die "killed before rename $n, share create leaves a folder behind"
        [ "$status" -ne 0 ] || break
    done
    [ "$status" -eq 0 ] && [ "$n" -gt 3 ] || { cat "$work/said" >&2; die "share create: exit status $status after $n renames"; }
}

# Tests a user who is not the owner of a store that shows one owner for all files: with a vault of that user, and in a vault that root has
# mounted for all.
others() {
    as_other() { setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$work/home" XDG_RUNTIME_DIR="$work/home" "$@"; }
    new_vault others
    mount_vault
    chmod 777 "$plain"
    as_other sh -c "echo his >'$plain/his' && mkdir '$plain/dir' && echo more >>'$plain/his'"
    [ "$(as_other cat "$plain/his" | wc -l)" -eq 2 ] || die "what another user has written"
    unmount_vault
    verify_vault "after another user"
    mkdir -m 777 "$work/home"
    chmod 644 "$work/passphrase"
    as_other "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "$store/his" >"$work/init" 2>&1 || { cat "$work/init" >&2; die "init by a user who does not own the store"; }
    echo his | as_other "$kithfs" put "$store/his" file 2>"$work/put" || { cat "$work/put" >&2; die "put by a user who does not own the store"; }
    if [ "$kind" = exfat ]; then
        grep -q 'mode and time of the file cannot be set' "$work/put" || die "put does not report that mode and time are not kept"
        ! as_other "$kithfs" import "$here/scripts/stores" "$store/his/imported" >/dev/null 2>&1 || die "import does not report what is not kept"
    fi
    [ "$(as_other "$kithfs" cat "$store/his" file)" = his ] || die "put and cat by a user who does not own the store"
    as_other "$kithfs" passphrase add --new-recovery-code "$store/his" >/dev/null 2>"$work/add" || { cat "$work/add" >&2; die "passphrase add"; }
    as_other "$kithfs" fsck "$store/his" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "fsck by a user who does not own the store"; }
}

# Tests a second machine: another client of the same cluster, with its own cache, which learns of the first one only through the server.
machines() {
    local second='' n status other=$work/other
    mkdir -p "$other"
    second_machine
    case $kind in cephfs | glusterfs) coherent ;; esac
    new_vault machines
    mount_there() { soon 60 "$kithfs" mount "$@" "$work/machine/machines" "$other" 2>"$work/there"; }
    sees() { [ "$(cat "$1")" = "$2" ] || die "$1 is not what the other machine has written: $(head -c 100 "$1")"; }
    for there in '' --shared; do
        mount_vault
        status=0
        mount_there $there || status=$?
        [ "$status" -eq 9 ] || { cat "$work/there" >&2; die "mounted on two machines, on one of them ${there:-alone}: exit status $status"; }
        unmount_vault
    done
    mount_vault --shared
    mount_there --shared || { cat "$work/there" >&2; die "mounted on two machines"; }
    for n in $(seq 10); do
        echo "$n" >"$plain/file"
        sees "$other/file" "$n"
        echo "back $n" >"$other/file"
        sees "$plain/file" "back $n"
    done
    mkdir "$plain/dir"
    mv "$other/dir" "$other/moved"
    mv "$plain/file" "$plain/moved/file"
    sees "$other/moved/file" "back 10"
    # A lease that is not given up is taken over after seven seconds, and then programs see what their kernel has cached.
    soon 300 python3 "$here/scripts/stores/followed.py" 8 "$plain" "$other" >"$work/followed" ||
        { cat "$work/followed" >&2; die "a descriptor does not show what the other machine has written"; }
    # While one machine has a file open for writing, the other one can read it but not write to it.
    exec 5>>"$plain/held"
    ! (echo late >>"$other/held") 2>"$work/late" || die "both have one file open for writing"
    grep -q 'busy' "$work/late" || { cat "$work/late" >&2; die "the error for a file that is open elsewhere is not EBUSY"; }
    exec 5>&-
    appends() { for n in $(seq 40); do until echo "$2 $n" >>"$1/log"; do sleep 0.1; done; done 2>/dev/null; }
    appends "$other" there &
    writer=$!
    appends "$plain" here
    wait "$writer"
    writer=''
    for n in $(seq 40); do printf 'here %s\nthere %s\n' "$n" "$n"; done | sort >"$work/all"
    for at in "$plain" "$other"; do sort "$at/log" | cmp - "$work/all" || die "$at does not contain everything that the two machines have appended"; done
    for place in "$other" "$plain"; do soon 60 "$kithfs" umount "$place"; done
    verify_vault "after two machines"
    umount "$work/machine"
    [ -z "$second" ] || wait "$second" || true
}

# Tests plain files through both clients, without kithfs: what a mount may rely on.
coherent() {
    mkdir "$store/plain"
    soon 120 python3 "$here/scripts/stores/coherent.py" 20 "$store/plain" "$work/machine/plain" >"$work/coherent" ||
        { cat "$work/coherent" >&2; die "plain files are not coherent through two clients"; }
    rm -r "$store/plain"
}

# Runs random work in several mounts through two clients of the cluster, with daemons that are killed and stopped, and counters under locks.
# Only by request, because it takes minutes. KITHFS_SEED and KITHFS_RUNS choose the sessions, and an argument one of the tests.
random() {
    local second=''
    second_machine
    # The NFS client shows plain files that it has open for writing as they were (docs/STORES.md).
    [ "$kind" = nfs4 ] || [ -e "$work/coherent" ] || coherent
    random_work "${1:-random_shared}" || die "random work in several mounts through two clients"
    umount "$work/machine"
    [ -z "$second" ] || wait "$second" || true
}
random_work() {
    KITHFS_STORES=$store:$work/machine cargo test --locked --manifest-path "$here/Cargo.toml" --test mount -- "$1" >"$work/random" 2>&1 ||
        { cat "$work/random" >&2; return 1; }
}

# disk [TEST]: runs the random work without the counters, which do not retry, and kills one disk of the cluster in the middle of it. Calls may
# fail only with EBUSY, after which the programs retry, and all that was acknowledged must be there.
disk() {
    export KITHFS_SEED=${KITHFS_SEED:-100} KITHFS_SECONDS=${KITHFS_SECONDS:-60}
    if [ ! -e "$work/killed" ]; then
        (
            sleep 25
            case $kind in cephfs) ceph_kill_disk ;; glusterfs) gluster_kill_disk ;; esac
            touch "$work/killed"
        ) &
        writer=$!
    fi
    random "${1:-random_work_in_several_mounts}"
    [ -z "${writer:-}" ] || wait "$writer" || die "no disk was killed"
    writer=''
    [ -e "$work/killed" ] || die "no disk was killed"
}
# Runs the operations of fsx in all mounts at the same time. The programs sync each turn, because an unlock does not return the error of a commit.
fsx() { KITHFS_SYNCED=1 disk fsx_in_several_mounts_agrees_with_models; }

# Kills the daemon while programs write.
killed() {
    new_vault killed
    mount_vault
    head -c 700000 /dev/urandom >"$work/synced"
    dd if="$work/synced" of="$plain/synced" bs=64K conv=fsync status=none
    sync "$plain"
    (for n in $(seq 100000); do head -c 50000 /dev/zero >"$plain/file $n" || exit 0; done) 2>/dev/null &
    writer=$!
    dd if=/dev/urandom of="$work/synced" bs=1000 seek=300 count=100 conv=notrunc status=none
    dd if="$work/synced" of="$plain/synced" bs=64K conv=notrunc,fsync status=none
    kill -9 "$(daemon)"
    wait "$writer" 2>/dev/null || true
    writer=''
    soon 30 "$kithfs" umount "$plain" 2>/dev/null || umount -l "$plain"
    mount_vault
    cmp "$work/synced" "$plain/synced" || die "what was synced is gone after a kill"
    unmount_vault
}

# Switches the server off in the middle of writing, so that it loses data not yet on its disk, and starts it again. Programs must wait for it.
restarted() {
    new_vault restarted
    mount_vault
    : >"$work/acknowledged"
    python3 "$here/scripts/stores/synced.py" write "$plain" >"$work/acknowledged" 2>"$work/writing" &
    writer=$!
    local n had try
    goes_on() {
        had=$(wc -l <"$work/acknowledged")
        for try in $(seq 600); do
            [ "$(wc -l <"$work/acknowledged")" -lt $((had + 8)) ] || return 0
            [ -d "/proc/$writer" ] || break
            sleep 0.2
        done
        cat "$work/writing" >&2
        die "the writing program does not continue after the restart of the server"
    }
    for n in 1 2; do
        goes_on
        nfs_crash
        nfs_server_up
    done
    goes_on
    kill "$writer"
    wait "$writer" || true
    writer=''
    # The mount still has its lock after the restart.
    mkdir -p "$work/machine" "$work/other"
    on_second nfs_mount "$work/machine"
    local status=0
    "$kithfs" mount "$work/machine/restarted" "$work/other" 2>"$work/there" || status=$?
    [ "$status" -eq 9 ] || { cat "$work/there" >&2; die "mounted on two machines after the server has restarted: exit status $status"; }
    umount "$work/machine"
    unmount_vault
    mount_vault
    python3 "$here/scripts/stores/synced.py" verify "$plain" "$(tail -n 1 "$work/acknowledged")" || die "what was synced is gone"
    unmount_vault
    verify_vault "after the server has restarted"
}

# Removes the vault on the server and restores it from a backup, while a machine has it mounted.
replaced() {
    new_vault replaced
    mount_vault
    echo kept >"$plain/kept"
    sync "$plain/kept"
    exec 5>>"$plain/open"
    echo begun >&5
    cp -a "$below/all/replaced" "$work/backup"
    rm -r "$below/all/replaced"
    cp -a "$work/backup" "$below/all/replaced"
    rm -r "$work/backup"
    # Reading a file that the server no longer has returns an error, or the former contents.
    (echo more >&5) 2>/dev/null || true
    exec 5>&- || true
    fails dd if=/dev/zero of="$plain/new" bs=4096 count=1 conv=fsync
    ! soon 30 cat "$plain/kept" >"$work/read" 2>/dev/null || [ "$(cat "$work/read")" = kept ] || die "other bytes"
    soon 60 "$kithfs" umount "$plain" >"$work/umount" 2>&1 || say "umount of a vault that is gone: $(paste -s -d ' ' "$work/umount")"
    ! is_mounted "$plain" || die "it is still mounted"
    mount_vault
    [ "$(cat "$plain/kept")" = kept ] || die "what was restored"
    echo after >"$plain/after"
    unmount_vault
    soon 60 "$kithfs" fsck --repair --yes "$vault" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "the state after the restore cannot be repaired"; }
    verify_vault "after it was replaced"
}

# Tests a server that treats root as the user nobody (root_squash), which is the default of NFS servers.
squashed() {
    store_down
    nfs_stop
    chmod 777 "$below/all"
    nfs_squash=root_squash store_up
    as_user() { setpriv --reuid daemon --regid daemon --clear-groups env HOME="$work/user" XDG_RUNTIME_DIR="$work/user" "$@"; }
    mkdir -p "$work/user"
    chown daemon:daemon "$work/user"
    # A vault of an ordinary user works for that user. Root, which is nobody there, gets a message that access is refused.
    [ -e "$work/passphrase" ] || head -c 24 /dev/urandom | base64 >"$work/passphrase"
    chmod 644 "$work/passphrase"
    as_user "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "$store/his" >"$work/init" 2>&1 || { cat "$work/init" >&2; die "init by a user"; }
    as_user mkdir "$work/user/plain"
    as_user "$kithfs" mount "$store/his" "$work/user/plain" || die "mount by a user"
    as_user sh -c "cd '$work/user/plain' && echo his >file && chmod 400 file && mkdir dir && mv file dir/ && cat dir/file" >"$work/read" || die "what a user does"
    as_user "$kithfs" umount "$work/user/plain"
    as_user "$kithfs" fsck "$store/his" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "fsck by a user"; }
    local status=0
    "$kithfs" ls "$store/his" >"$work/said" 2>&1 || status=$?
    [ "$status" -ne 0 ] && grep -q 'ermission denied' "$work/said" || { cat "$work/said" >&2; die "root is not refused with a message about the permission: exit status $status"; }
    # A vault of root belongs to nobody there.
    new_vault squashed
    mount_vault
    echo mine >"$plain/mine"
    mkdir "$plain/dir"
    mv "$plain/mine" "$plain/dir/"
    unmount_vault
    [ "$("$kithfs" cat "$vault" dir/mine)" = mine ] || die "what root has written"
    verify_vault "of root, who is nobody there"
    store_down
    nfs_stop
    store_up
}

lost() {
    case $kind in nfs3 | nfs4) calls_wait=10; store_down; nfs_options=soft,timeo=10,retrans=2 store_up ;; esac
    new_vault lost
    mount_vault
    head -c 3000000 /dev/urandom >"$work/synced"
    dd if="$work/synced" of="$plain/synced" bs=64K conv=fsync status=none
    mkdir "$plain/dir"
    sync "$plain/dir" "$plain"
    (exec 3<>"$plain/synced"; for n in $(seq 100000); do head -c 20000 /dev/zero >"$plain/dir/file $n" || exit 0; done) 2>/dev/null &
    writer=$!
    for n in $(seq 5); do printf 'over %s' "$n" | dd of="$work/synced" bs=1 seek=$((n * 300000)) conv=notrunc status=none; done
    dd if="$work/synced" of="$plain/synced" bs=64K conv=notrunc,fsync status=none
    process=$(daemon)
    store_lost
    soon 60 tail --pid "$writer" -f /dev/null
    writer=''
    # Programs get errors or the former bytes, never other bytes.
    fails dd if=/dev/zero of="$plain/new" bs=4096 count=1 conv=fsync
    fails dd if=/dev/zero of="$plain/synced" bs=4096 count=1 conv=notrunc,fsync
    soon 30 cat "$plain/synced" >"$work/read" 2>/dev/null || true
    soon 30 ls -lR "$plain" >/dev/null 2>&1 || true
    # The unmount succeeds all the same, and reports that some data was not written.
    soon 60 "$kithfs" umount "$plain" >"$work/umount" 2>&1 || grep -q 'some data was not written' "$work/umount" ||
        { cat "$work/umount" >&2; die "the mount cannot be ended"; }
    ! is_mounted "$plain" || die "it is still mounted"
    soon 60 tail --pid "$process" -f /dev/null
    umount -l "$store"
    store_down
    store_up
    soon 60 "$kithfs" mount "$vault" "$plain"
    cmp "$work/synced" "$plain/synced" || die "what was synced is gone"
    echo after >"$plain/after"
    unmount_vault
    # Files that were never synced may exist in part. No other fault is allowed.
    soon 60 "$kithfs" fsck --repair --yes "$vault" >"$work/fsck" 2>&1 || { cat "$work/fsck" >&2; die "the state after the loss cannot be repaired"; }
    ! grep -q synced "$work/fsck" || { cat "$work/fsck" >&2; die "what was synced is damaged"; }
    verify_vault "after the repair"
    calls_wait=$at_least
}

full() {
    new_vault full
    mount_vault
    for n in 1 2 3; do
        head -c 2000000 /dev/urandom >"$work/synced $n"
        dd if="$work/synced $n" of="$plain/synced $n" bs=64K conv=fsync status=none
    done
    sync "$plain"
    # Another file fills the store except for some MiB.
    local room
    room=$(df --output=avail -k "$store" | tail -n 1)
    dd if=/dev/zero of="$store/ballast" bs=1024K count=$((room / 1024 - 6)) conv=fsync status=none 2>/dev/null || true
    local n=0 refused=0
    while [ "$refused" -lt 5 ]; do
        n=$((n + 1))
        [ "$n" -lt 2000 ] || die "it is never full"
        dd if=/dev/urandom of="$plain/new $n" bs=100000 count=1 conv=fsync status=none 2>"$work/dd" || refused=$((refused + 1))
        # Overwriting synced data either succeeds or is refused. What was refused may be in the file, or get into it once there is room, so
        # such a file is not overwritten again.
        local which=$((n % 3 + 1)) at=$((n % 19))
        [ ! -e "$work/next $which" ] || continue
        head -c 50000 /dev/urandom >"$work/part"
        cp "$work/synced $which" "$work/next"
        dd if="$work/part" of="$work/next" bs=100000 seek="$at" conv=notrunc status=none
        if soon 60 dd if="$work/part" of="$plain/synced $which" bs=100000 seek="$at" conv=notrunc,fsync status=none 2>>"$work/dd"; then
            mv "$work/next" "$work/synced $which"
        else
            mv "$work/next" "$work/next $which"
            refused=$((refused + 1))
        fi
    done
    if grep -v 'No space left' "$work/dd" >&2; then die "the error of a full store is not ENOSPC"; fi
    # Each file has the contents before or after the overwriting that was refused. On a store that never writes in place (Btrfs), a file that
    # found no room may be readable only when there is room again. No read returns other bytes.
    for n in 1 2 3; do
        if ! cat "$plain/synced $n" >"$work/read" 2>"$work/failed"; then
            grep -q 'No space left' "$work/failed" || { cat "$work/failed" >&2; die "synced $n cannot be read while it is full"; }
            say "synced $n waits for room"
        elif ! cmp -s "$work/synced $n" "$work/read" && ! cmp -s "$work/next $n" "$work/read"; then
            die "synced $n is other than it was while it is full"
        fi
    done
    rm -f "$plain"/new*
    rm "$store/ballast"
    sync "$store"
    dd if=/dev/urandom of="$plain/again" bs=100000 count=20 conv=fsync status=none
    unmount_vault
    verify_vault "after it was full"
    mount_vault
    for n in 1 2 3; do
        cmp -s "$work/synced $n" "$plain/synced $n" || cmp "$work/next $n" "$plain/synced $n" >&2 || die "synced $n is other than it was"
    done
    unmount_vault
}

reading() {
    vault=$store/read
    soon 60 "$kithfs" fsck "$vault" >/dev/null 2>&1 || echo fsck >>"$lacking"
    mount_vault --read-only
    same "$work/tree" "$plain/tree" "the tree differs"
    fails touch "$plain/new"
    unmount_vault
    if [ "$kind" = squashfs ]; then
        mount_vault 2>"$work/mount"
        grep -q 'read' "$work/mount" || die "no message says that the vault is mounted read-only"
        fails touch "$plain/new"
        unmount_vault
        local status=0
        echo x | "$kithfs" put "$vault" new 2>"$work/put" || status=$?
        [ "$status" -eq 11 ] || { cat "$work/put" >&2; die "put into a read-only store: exit status $status"; }
    fi
    if "$kithfs" export "$vault/tree" "$work/exported" >/dev/null 2>&1; then
        same "$work/tree" "$work/exported" "what was exported differs"
    else
        echo export >>"$lacking"
    fi
}

scenarios=${2:-use sharing interrupted others machines killed restarted replaced squashed lost full}
case $kind in squashfs | rclone) scenarios=reading ;; esac
case " $scenarios " in *' disk '* | *' fsx '*) disks=2 ;; esac
store_up
for scenario in $scenarios; do
    case $scenario in
        others) case $kind in exfat | ntfs) ;; *) continue ;; esac ;;
        machines) case $kind in cephfs | glusterfs | nfs3 | nfs4 | smb) ;; *) continue ;; esac ;;
        random) case $kind in cephfs | glusterfs | nfs4) ;; *) continue ;; esac ;;
        disk | fsx) case $kind in cephfs | glusterfs) ;; *) continue ;; esac ;;
        restarted | replaced | squashed) case $kind in nfs3 | nfs4) ;; *) continue ;; esac ;;
        lost) can_be_lost || continue ;;
        full) can_be_full || continue ;;
    esac
    "$scenario"
    say "$scenario: held"
done
LC_ALL=C sort -u "$lacking" | sed "s/^/$kind: does not hold: /" >&2
cut -d ' ' -f 1 "$lacking" | LC_ALL=C sort -u | paste -s -d ' '

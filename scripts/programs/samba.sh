#!/usr/bin/env bash
# A Samba server whose share is in a mount: a client writes, renames, removes, sets attributes and streams; files survive a restart of the
# server and a remount of the vault; Samba's own tests have the same results as beside the vault.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
[ "$(id -u)" -eq 0 ] || skip "needs root, as smbd does"
need smbd smbclient smbtorture python3
user=nobody conf=$work/smb.conf samba=$work/samba server=''
stop_server() {
    [ -n "$server" ] || return 0
    kill "$server" && wait "$server" || true
    server=''
}
before_cleanup() { stop_server; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
as_user=(-p "$port" -U "$user%secret")
client() { # COMMANDS: fails as a whole if one of them fails
    smbclient //127.0.0.1/vault "${as_user[@]}" -m SMB3 -c "$1" >"$work/said" 2>&1 && ! grep -q NT_STATUS_ "$work/said" || { cat "$work/said" >&2; die "failed: $1"; }
}
start_server() {
    smbd --foreground --configfile="$conf" >>"$work/server" 2>&1 </dev/null &
    server=$!
    for _ in {1..300}; do
        if smbclient //127.0.0.1/vault "${as_user[@]}" -c quit >/dev/null 2>&1; then return 0; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/server" "$samba/log" >&2
    die "smbd did not come up"
}

make_vault && mount_vault
chmod 755 "$plain" # the root of a new vault is its maker's alone
install -d -o "$user" -m 755 "$plain/share" "$work/beside"
mkdir -p "$samba"/{private,lock,state,cache,pid,rpc}
cat >"$conf" <<CONF
[global]
server role = standalone server
interfaces = 127.0.0.1/8
bind interfaces only = yes
smb ports = $port
disable netbios = yes
rpc start on demand helpers = no
load printers = no
log file = $samba/log
private dir = $samba/private
passdb backend = tdbsam:$samba/private/passdb.tdb
lock directory = $samba/lock
state directory = $samba/state
cache directory = $samba/cache
pid directory = $samba/pid
ncalrpc dir = $samba/rpc
vfs objects = acl_xattr streams_xattr
ea support = yes
store dos attributes = yes
read only = no
[vault]
path = $plain/share
[beside]
path = $work/beside
CONF
printf 'secret\nsecret\n' | smbpasswd -c "$conf" -s -a "$user" >/dev/null
start_server

# What a client writes is there for the server's machine at once, and for a client after a restart.
head -c 20000000 /dev/urandom >"$work/large"
mkdir "$work/tree" "$work/back"
for n in $(seq 100); do head -c $((n * 611)) /dev/urandom >"$work/tree/file-$n"; done
client "put $work/large large; mkdir dir; put $work/large dir/second; rename dir/second dir/moved; lcd $work; prompt; recurse; mput tree"
client "put $work/tree/file-1 large:stream; setea large kept value; setmode large +h; rm tree/file-2; rename tree/file-3 tree/file-4 -f"
rm "$work/tree/file-2" && mv "$work/tree/file-3" "$work/tree/file-4"
cmp "$work/large" "$plain/share/dir/moved" || die "the server's machine sees other bytes"
diff -r "$work/tree" "$plain/share/tree" >&2 || die "the server's machine sees other files"
stop_server
remount_vault
start_server
client "get large:stream $work/stream; lcd $work/back; prompt; recurse; mget large tree dir"
cmp "$work/large" "$work/back/large" && cmp "$work/large" "$work/back/dir/moved" || die "a file is another one after a restart"
diff -r "$work/tree" "$work/back/tree" >&2 || die "the tree is another one after a restart"
cmp "$work/tree/file-1" "$work/stream" || die "a stream is another one after a restart"
client "geteas large; allinfo large" && grep -q value "$work/said" && grep -q 'attributes:.*H' "$work/said" || die "an attribute is gone after a restart"
client "rm large; rm dir/moved; rmdir dir; deltree tree"
[ -z "$(ls -A "$plain/share")" ] || die "files are left after they were removed"

# Some of Samba's own tests fail on any filesystem. So their results are compared with those on a share beside the vault.
results() { # SHARE TEST
    # Its exit status is not 0 if one of a suite's tests fails.
    { timeout 120 smbtorture "//127.0.0.1/$1" "${as_user[@]}" "$2" 2>&1 </dev/null || :; } |
        grep -E '^(success|failure|error|skip):' | sed 's/ \[$//' | sort
}
for test in smb2.{lock,rename,streams,compound,acls,sharemode,delete-on-close-perms,read,mkdir,openattr,winattr}; do
    results beside $test >"$work/beside.$test"
    results vault $test >"$work/vault.$test"
    grep -q ^success: "$work/vault.$test" || die "$test did not run"
    diff "$work/beside.$test" "$work/vault.$test" >&2 || die "$test has other results in a mount than beside the vault"
done
stop_server
umount_vault && check_vault

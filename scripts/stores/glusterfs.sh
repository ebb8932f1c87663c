# A GlusterFS volume on this machine: three bricks, of which each has all data. Sets $gluster_at to the directory of its servers.
gluster_at=''
gluster_up() {
    [ -z "$gluster_at" ] || return 0
    gluster_at=$work/gluster
    mkdir -p "$gluster_at"/{log,brick-1,brick-2,brick-3}
    # The servers find each other by this port alone, so a run has an address of its own on the loopback interface.
    gluster_address=127.$((RANDOM % 254 + 1)).$((RANDOM % 254 + 1)).$((RANDOM % 253 + 2))
    cat >"$gluster_at/glusterd.vol" <<EOT
volume management
    type mgmt/glusterd
    option working-directory $gluster_at/state
    option run-directory $gluster_at/run
    option logging-directory $gluster_at/log
    option glusterd-sockfile $gluster_at/socket
    option transport-type socket
    option transport.socket.bind-address $gluster_address
    option transport.socket.listen-port 24007
    option ping-timeout 0
end-volume
EOT
    glusterd -N -f "$gluster_at/glusterd.vol" -l "$gluster_at/log/glusterd.log" -p "$gluster_at/glusterd.pid" >"$gluster_at/glusterd.out" 2>&1 </dev/null &
    glusterd=$!
    gluster_make
}
gluster_told() { timeout 60 gluster --mode=script --log-file="$gluster_at/log/cli.log" --glusterd-sock="$gluster_at/socket" "$@" >"$gluster_at/said" 2>&1; }
gluster_make() {
    local try brick cache bricks=()
    for try in $(seq 100); do
        ! gluster_told peer status || break
        [ -d "/proc/$glusterd" ] || { cat "$gluster_at/glusterd.out" >&2; skip "glusterd does not come up"; }
        sleep 0.1
    done
    for brick in 1 2 3; do bricks+=("$gluster_address:$gluster_at/brick-$brick"); done
    # `force` because the bricks are on the filesystem of the machine.
    gluster_told volume create vault replica 3 "${bricks[@]}" force || { cat "$gluster_at/said" >&2; skip "no GlusterFS volume can be made"; }
    # Two of these caches of the clients return blocks that another client has changed since: see docs/STORES.md.
    for cache in stat-prefetch io-cache quick-read read-ahead write-behind open-behind readdir-ahead; do
        gluster_told volume set vault "performance.$cache" off || { cat "$gluster_at/said" >&2; die "no option $cache"; }
    done
    gluster_told volume start vault || { cat "$gluster_at/said" >&2; skip "the GlusterFS volume does not start"; }
}
# Kills a brick, which its clients notice at once.
gluster_kill_disk() { kill -9 "$(cat "$gluster_at"/run/vols/vault/*-brick-1.pid)"; }
gluster_down() {
    [ -n "$gluster_at" ] || return 0
    local pid
    gluster_told volume stop vault force || true
    for pid in $(cat "$gluster_at"/run/vols/vault/*.pid "$gluster_at"/run/shd/vault/*.pid 2>/dev/null || true); do
        ! grep -q "^gluster" "/proc/$pid/comm" 2>/dev/null || kill -9 "$pid" || true
    done
    { kill -9 "$glusterd"; wait "$glusterd"; } 2>/dev/null || true
    gluster_at=''
}

# `scripts/stress.sh --random`: rounds of random work under pressure. Sourced by it, not run.

seconds=${2-} seed=$((($(date +%s) % 30000) + 1)) transport=''
[[ $seconds =~ ^[0-9]+$ ]] || die "--random needs a number of seconds"
shift 2
while [ $# -gt 0 ]; do
    case $1 in
        --seed) seed=${2:?--seed needs a value}; shift 2 ;;
        --transport) transport=${2:?--transport needs a value}; shift 2 ;;
        *) break ;;
    esac
done
pressures=" ${*:-memory kill unmount clients hotplug} "
wanted() { [[ $pressures == *" $1 "* ]]; }
[ "$(id -u)" -eq 0 ] || skip "--random needs root, for the limit on memory and the kernel's switch"
need python3

switch=/sys/module/fuse/parameters/enable_uring switched=''
if [ -z "$transport" ]; then
    transport=dev
    [ ! -e "$switch" ] || transport=uring
fi
[ "$transport" != uring ] || [ -e "$switch" ] || skip "this kernel has no FUSE over io_uring (Linux 6.14 and later have)"
processor=/sys/devices/system/cpu/cpu$(($(getconf _NPROCESSORS_CONF) - 1))/online
if wanted hotplug && ! [ -w "$processor" ]; then
    say "no processor can be taken offline here"
    pressures=${pressures/ hotplug / }
fi
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    group=/sys/fs/cgroup/kithfs-stress-$$ limit_file=memory.max
else
    group=/sys/fs/cgroup/memory/kithfs-stress-$$ limit_file=memory.limit_in_bytes
fi
if wanted memory && ! mkdir -- "$group"; then
    say "no control group can be made here: memory is not limited"
    pressures=${pressures/ memory / }
fi
daemon='' worker=''
before_cleanup() {
    [ -z "$worker" ] || kill "$worker" 2>/dev/null || true
    ! [ -w "$processor" ] || echo 1 >"$processor"
    [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
    # mountpoint(1) does not recognize a mount whose daemon is dead.
    umount --lazy "$plain" 2>/dev/null || true
    [ -z "$worker$daemon" ] || wait 2>/dev/null || true
    [ -z "$switched" ] || echo N >"$switch"
    ! [ -d "$group" ] || rmdir -- "$group" || true
}

# The caches, then threads, buffers and the program itself as in scripts/memory.sh, and the memory of io_uring.
processors=$(getconf _NPROCESSORS_CONF)
most_kib=$(((128 + (processors < 8 ? 8 * processors : 64)) * 1024))
[ "$transport" = uring ] || most_kib=$((128 * 1024))

# start_daemon [GROUP]: mounts in the foreground; the daemon is in the control group from its first page on.
start_daemon() {
    # A test may have set the switch back.
    if [ "$transport" = uring ] && [ "$(cat "$switch")" != Y ]; then
        echo Y >"$switch"
        switched=yes
    fi
    (
        [ -z "${1-}" ] || echo "$BASHPID" >"$1/cgroup.procs"
        exec "$kithfs" mount --foreground --log-level warn --transport "$transport" --passphrase-file "$work/passphrase" \
            "$vault" "$plain" 2>>"$work/daemon.log"
    ) &
    daemon=$!
    until mountpoint -q "$plain"; do
        [ -d "/proc/$daemon" ] || { cat "$work/daemon.log"; die "the daemon has ended before it mounted"; }
        sleep 0.1
    done
}
stop_daemon() {
    "$kithfs" umount "$plain"
    end_daemon
}
# Waits for the daemon, whose mount is gone, and checks how it ended.
end_daemon() {
    timeout 120 tail --pid="$daemon" -f /dev/null || die "the daemon $daemon has not ended two minutes after the unmount"
    local status=0
    wait "$daemon" || status=$?
    daemon=''
    [ $status -eq 0 ] || die "the daemon has ended with status $status: $(tail -3 "$work/daemon.log")"
}
# Waits for the clients; prints what they say if they failed.
end_clients() {
    local status=0
    timeout 120 tail --pid="$worker" -f /dev/null || die "clients are still there two minutes after they were told to end"
    wait "$worker" || status=$?
    worker=''
    [ $status -eq 0 ] || die "$1: $(cat "$work/clients.log")"
}

# press LENGTH HOTPLUG WHAT: lets the clients work, and watches the daemon.
press() {
    local until=$((SECONDS + $1)) now
    while [ $SECONDS -lt $until ]; do
        sleep 1
        [ -d "/proc/$daemon" ] || die "$3: the daemon is dead: $(tail -3 "$work/daemon.log")"
        [ -d "/proc/$worker" ] || end_clients "$3"
        now=$(awk '/^VmRSS/ { print $2 }' "/proc/$daemon/status")
        [ "${now:-0}" -le "$most" ] || most=$now
        [ "$most" -le $most_kib ] || die "$3: the daemon holds $most KiB, more than $most_kib"
        if [ -n "$2" ] && [ $(((until - SECONDS) % 6)) -eq 0 ]; then
            echo 0 >"$processor"
            sleep 0.2
            echo 1 >"$processor"
        fi
    done
}

# unmount_under_load WHAT: one unmount is refused, and a lazy one lets the clients work on.
unmount_under_load() {
    local status=0
    "$kithfs" umount "$plain" >"$work/umount.log" 2>&1 || status=$?
    [ $status -eq 13 ] || die "$1: umount of a busy mount ended with status $status: $(cat "$work/umount.log")"
    press 2 '' "$1"
    "$kithfs" umount --lazy "$plain"
    press 3 '' "$1, detached"
}

round() { # NUMBER
    local clients=6 limit='' hotplug='' endings=(stop) ending what how=ended place="round $1" most=0
    ! wanted clients || [ $((RANDOM % 3)) -gt 0 ] || clients=64
    ! wanted memory || [ $((RANDOM % 3)) -eq 0 ] || limit=$((most_kib / 1024 + 24 + clients))
    ! wanted hotplug || [ $((RANDOM % 3)) -gt 0 ] || hotplug=yes
    ! wanted kill || endings+=(kill kill)
    ! wanted unmount || endings+=(unmount)
    ending=${endings[RANDOM % ${#endings[@]}]}
    local length=$((20 + RANDOM % 40))
    what="seed $seed, round $1: $clients clients, ${limit:+$limit MiB, }${hotplug:+hotplug, }$ending after $length s"
    [ -z "$limit" ] || echo $((limit << 20)) >"$group/$limit_file"

    start_daemon "${limit:+$group}"
    rm -rf -- "$work/state"
    MALLOC_MMAP_THRESHOLD_=$((32 << 20)) MALLOC_TRIM_THRESHOLD_=$((1 << 40)) python3 "$here/scripts/stress/model.py" work "$plain" "$place" "$work/state" "$seed $1" "$clients" ${limit:+"$group"} \
        >"$work/clients.log" 2>&1 &
    worker=$!
    press "$length" "$hotplug" "$what"
    case $ending in
        kill)
            kill -9 "$daemon"
            wait "$daemon" 2>/dev/null || true
            daemon='' how=killed
            end_clients "$what"
            umount --lazy "$plain"
            ;;
        unmount)
            unmount_under_load "$what"
            kill "$worker"
            end_clients "$what"
            end_daemon
            ;;
        stop)
            kill "$worker"
            end_clients "$what"
            stop_daemon
            ;;
    esac
    start_daemon
    python3 "$here/scripts/stress/model.py" verify "$plain" "$place" "$work/state" $how || die "$what: not what was written"
    rm -rf -- "${plain:?}/$place"
    stop_daemon
    check_vault 2>/dev/null
    steps=$((steps + $(tail -1 "$work/clients.log"))) worked=$((worked + length))
    echo "$what: $(tail -1 "$work/clients.log") steps, at most $most KiB, as it should be"
}

make_vault 2>/dev/null
RANDOM=$seed steps=0 worked=0 number=0
begun=$(awk '{ print $1 }' /proc/uptime)
end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ]; do
    number=$((number + 1))
    round $number
done
if ! [ -s "$work/daemon.log" ]; then :; else say "the daemons' log:"; sort "$work/daemon.log" | uniq -c | tail -20 >&2; fi
kernel=$(dmesg | awk -v begun="$begun" -F '[][]' '$2 + 0 > begun' | grep -E "hung task|blocked for more|BUG|WARNING|fuse|oom_memcg=/kithfs-stress-$$" || true)
[ -z "$kernel" ] || die "the kernel's log: $kernel"
say "$number rounds, $steps steps in $worked seconds, seed $seed, over $transport"

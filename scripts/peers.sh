# Functions for scripts that compare kithfs with other encrypted filesystems, each in a directory of its own. Sourced, not run.
#
# Sets `here` and `kithfs` (the program: $KITHFS, or target/release/kithfs). The filesystem kithfs-before is another build, $KITHFS_BEFORE.
# `choose_peers LIST KNOWN...` sets `peers` to the names in LIST, separated by commas, or if LIST is empty to those of KNOWN that are
# installed. `begin_peers DIR` makes the scratch directory `work` in DIR. `make_store`, `start_mount`, `end_mount` and `memory` take the
# name of a filesystem; `rate` measures a command. However the script ends, it unmounts only its own mounts, and ends only processes that it
# has started.

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
name=$(basename -- "$0" .sh)
say() { echo "$name: $*" >&2; }
die() { say "$*"; exit 1; }
# All but kithfs-uring are measured over /dev/fuse.
export KITHFS_TRANSPORT=dev

# available FILESYSTEM: returns whether it can be measured here. For kithfs-uring, start_mount sets the switch of the fuse module as root, and
# end_peers sets it back.
switch=/sys/module/fuse/parameters/enable_uring switched=''
available() {
    case $1 in
        native) ;;
        kithfs | kithfs-synced | kithfs-shared*) [ -x "$kithfs" ] ;;
        kithfs-before) [ -x "${KITHFS_BEFORE-}" ] ;;
        kithfs-uring) [ -x "$kithfs" ] && [ -r "$switch" ] && { [ "$(cat "$switch")" = Y ] || [ -w "$switch" ]; } ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

choose_peers() { # LIST KNOWN...
    local list=$1 fs
    shift
    peers=()
    for fs in ${list:+${list//,/ }}; do
        case " $* " in *" $fs "*) ;; *) die "--with: $fs is none of $*" ;; esac
        available "$fs" || die "$fs is not there"
        peers+=("$fs")
    done
    [ -z "$list" ] || return 0
    for fs in "$@"; do
        case $fs in kithfs-synced | kithfs-shared* | kithfs-before) continue ;; esac # only on request
        if available "$fs"; then peers+=("$fs"); else say "$fs is not there: left out"; fi
    done
}

begin_peers() { # DIR
    unmounter=$(command -v fusermount3 || command -v fusermount || true)
    work=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/kithfs-bench.XXXXXX")
    declare -gA daemon=() second=() worker=()
    printf 'bench-peers' >"$work/pass"
    trap end_peers EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

end_peers() {
    local status=$? fs
    trap - EXIT INT TERM HUP
    for fs in "${peers[@]}"; do end_mount "$fs"; done
    [ -z "$switched" ] || echo N >"$switch"
    for fs in "${peers[@]}"; do
        if [ "$fs" != native ] && { mountpoint -q "$work/$fs/mnt" || mountpoint -q "$work/$fs/other"; } 2>/dev/null; then
            say "something below $work/$fs is still mounted: $work is left as it is"
            exit 1
        fi
    done
    rm -rf --one-file-system -- "$work"
    exit "$status"
}

program_of() { case $1 in kithfs-before) echo "$KITHFS_BEFORE" ;; *) echo "$kithfs" ;; esac; }

make_store() {
    local dir=$work/$1
    mkdir -p "$dir/store" "$dir/mnt" "$dir/other"
    case $1 in
        native) ;;
        gocryptfs) gocryptfs -q -init -scryptn 10 -passfile "$work/pass" "$dir/store" ;;
        securefs) securefs create --pass bench-peers --rounds 1 "$dir/store" ;;
        encfs) ;; # makes its store when it is mounted for the first time
        cryfs) ;;
        kithfs*)
            local synced=''
            [ "$1" != kithfs-synced ] || synced=--synced
            "$(program_of "$1")" init $synced --own-identity --passphrase-file "$work/pass" --kdf-memory 32 --kdf-passes 1 "$dir/store"
            ;;
    esac >"$dir/log" 2>&1 || { cat "$dir/log" >&2; die "$1: no store could be made"; }
}

start_mount() {
    local fs=$1 dir=$work/$1 i command
    case $fs in
        native) return 0 ;;
        gocryptfs) command=(gocryptfs -q -fg -passfile "$work/pass" "$dir/store" "$dir/mnt") ;;
        securefs) command=(securefs mount --pass bench-peers "$dir/store" "$dir/mnt") ;;
        encfs) command=(encfs -f -S --standard "$dir/store" "$dir/mnt") ;;
        cryfs) command=(env CRYFS_FRONTEND=noninteractive CRYFS_NO_UPDATE_CHECK=true CRYFS_LOCAL_STATE_DIR="$dir/state" cryfs -f "$dir/store" "$dir/mnt") ;;
        kithfs-shared*) command=("$kithfs" mount --shared --foreground --passphrase-file "$work/pass" "$dir/store" "$dir/mnt") ;;
        kithfs | kithfs-synced | kithfs-before) command=("$(program_of "$fs")" mount --foreground --passphrase-file "$work/pass" "$dir/store" "$dir/mnt") ;;
        kithfs-uring)
            if [ "$(cat "$switch")" != Y ]; then echo Y >"$switch" && switched=yes; fi
            command=("$kithfs" mount --foreground --transport uring --passphrase-file "$work/pass" "$dir/store" "$dir/mnt")
            ;;
    esac
    # Programs without an option for the passphrase read it from standard input.
    "${command[@]}" >>"$dir/log" 2>&1 <"$work/pass" &
    daemon[$fs]=$!
    await_mount "$fs" "${daemon[$fs]}" "$dir/mnt"
    case $fs in
        kithfs-shared-*)
            "$kithfs" mount --shared --foreground --passphrase-file "$work/pass" "$dir/store" "$dir/other" >>"$dir/log" 2>&1 </dev/null &
            second[$fs]=$!
            await_mount "$fs" "${second[$fs]}" "$dir/other"
            ;;
    esac
    case $fs in
        kithfs-shared-busy)
            perl -e 'use Time::HiRes "sleep"; my $dir = shift; mkdir $dir; for (my $i = 0; ; $i++) { my $name = "$dir/file" . $i % 100; open my $out, ">", $name or next; print $out "k" x 4096; close $out; open my $in, "<", $name or next; my $read = <$in>; close $in; sleep 0.01 }' "$dir/other/work of the other" >>"$dir/log" 2>&1 &
            worker[$fs]=$!
            ;;
    esac
}

await_mount() { # filesystem, process, mountpoint
    local i
    for ((i = 0; i < 2400; i++)); do
        if mountpoint -q "$3"; then return 0; fi
        kill -0 "$2" 2>/dev/null || break
        sleep 0.05
    done
    tail -n 5 "$work/$1/log" >&2
    die "$1: the mount did not come up"
}

# Unmounts $1, if it is mounted. If it stays busy, unmounts it lazily and ends its daemon, which this script has started.
end_mount() {
    local fs=$1 mnt=$work/$1/mnt pid=${daemon[$1]:-} i
    [ -n "$pid" ] || return 0
    if [ -n "${worker[$fs]:-}" ]; then
        kill "${worker[$fs]}" 2>/dev/null || true
        wait "${worker[$fs]}" 2>/dev/null || true
        worker[$fs]=''
    fi
    if [ -n "${second[$fs]:-}" ]; then
        "$kithfs" umount "$work/$fs/other" 2>>"$work/$fs/log" || true
        wait "${second[$fs]}" 2>/dev/null || true
        second[$fs]=''
    fi
    for i in 1 2 3 4 5; do
        mountpoint -q "$mnt" || break
        case $fs in kithfs*) "$(program_of "$fs")" umount "$mnt" ;; *) "$unmounter" -u "$mnt" ;; esac 2>>"$work/$fs/log" && break
        sleep 1
    done
    if mountpoint -q "$mnt"; then
        say "$fs is busy: unmounted lazily"
        "$unmounter" -uz "$mnt" || umount -l "$mnt" || true
        kill "$pid" 2>/dev/null || true
    fi
    # Waits for the daemon's last writes, so that they do not disturb the next measurement.
    wait "$pid" 2>/dev/null || true
    daemon[$fs]=''
}

micros() { local now=$EPOCHREALTIME; echo $((${now%[.,]*} * 1000000 + 10#${now#*[.,]})); }

# Prints the most memory that the daemon of $1 has used since its start, in MiB.
memory() { awk '/^VmHWM/ { printf "%.0f", $2 / 1024 }' "/proc/${daemon[$1]}/status"; }

# Runs a command that does `count` things, and prints the number of things per second.
rate() { # count, command...
    local count=$1 from to
    shift
    from=$(micros)
    "$@" >/dev/null || die "failed: $*"
    to=$(micros)
    awk -v n="$count" -v us="$((to - from))" 'BEGIN { printf "%.1f", n * 1e6 / (us > 0 ? us : 1) }'
}

seconds_since() { awk -v us="$(($(micros) - $1))" 'BEGIN { printf "%.2f", us / 1e6 }'; }

#!/usr/bin/env bash
# Measures how the cost of an operation grows with the number of files, entries, bytes, clients and members, for kithfs beside gocryptfs and
# securefs, in one run on one machine, and prints a table for each.
#
#     scripts/growth.sh [--with LIST] [--dir DIR] [--out FILE] [--chart FILE] [--install] [PART SIZES]...
#
#   --with LIST   names from: native gocryptfs securefs kithfs kithfs-uring, separated by commas (default: gocryptfs,securefs,kithfs)
#   --dir DIR     directory for the ciphertext (default: $TMPDIR)
#   --out FILE    write the tables to FILE as well
#   --chart FILE  draw four of the figures to FILE, as SVG (scripts/growth/chart.sh; needs gnuplot)
#   --install     install Debian's packages of the other filesystems, and gnuplot, first (as root)
#
# Parts, each with its sizes, separated by commas. Default is all of them with the sizes shown:
#   files 10000,100000     files of 100 bytes, 100 to a directory
#   entries 10000,100000   empty files in one directory
#   large 1,4              random blocks of 4 KiB of a file that was written and flushed, in GiB
#   clients 1,4,16         processes that create files of 4 KiB at the same time
#   members 1,10,100       members of a share (kithfs alone)
#
# Memory is the largest amount that the daemon or the command has had. Mounting and unmounting are timed until the command returns; for
# kithfs that is when everything is written.
set -euo pipefail

. "$(dirname -- "${BASH_SOURCE[0]}")/peers.sh"
base='' with=gocryptfs,securefs,kithfs out='' chart='' plan=()
while [ $# -gt 0 ]; do
    case $1 in
        --install) apt-get install -y --no-install-recommends gocryptfs securefs gnuplot-nox >/dev/null || die "the packages could not be installed" ;;
        --with | --dir | --out | --chart)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --with) with=$2 ;; --dir) base=$2 ;; --out) out=$2 ;; --chart) chart=$2 ;; esac
            shift
            ;;
        files | entries | large | clients | members)
            case ${2-} in '' | *[!0-9,]*) die "$1 needs sizes" ;; esac
            plan+=("$1" "${2//,/ }")
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
[ ${#plan[@]} -gt 0 ] || plan=(files '10000 100000' entries '10000 100000' large '1 4' clients '1 4 16' members '1 10 100')
"$(dirname -- "${BASH_SOURCE[0]}")/tools.sh" python3:python3 mountpoint:util-linux
[ -z "$chart" ] || command -v gnuplot >/dev/null || die "--chart needs gnuplot (--install installs it)"
choose_peers "$with" native gocryptfs securefs kithfs kithfs-uring
begin_peers "$base"
export KITHFS_PASSPHRASE_FILE=$work/pass XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config

row() { # PART SIZE FS NAME VALUE
    local IFS=$'\t'
    echo "$*" >>"$work/rows"
    say "$*"
}
# Runs a load and notes its figures. NAMES are the names of LOAD's figures, in the order in which it prints them, separated by `;`.
load() { # PART SIZE FS NAMES LOAD PATH [NUMBER...]
    local part=$1 size=$2 fs=$3 names=$4 said value
    shift 4
    said=$(python3 "$here/scripts/growth/load.py" "$@")
    while read -r _ value; do
        row "$part" "$size" "$fs" "${names%%;*}" "$value"
        names=${names#*;}
    done <<<"$said"
}
# Notes the most memory that the daemon has had, in MiB. The plain disk has no daemon.
daemon_memory() { # PART SIZE FS NAME
    [ "$3" = native ] || row "$@" "$(memory "$3")"
}
# Notes the seconds that mounting or unmounting takes.
timed() { # PART SIZE FS NAME COMMAND...
    local part=$1 size=$2 fs=$3 what=$4 from
    shift 4
    from=$(micros)
    "$@" >/dev/null || die "$fs: $what failed"
    [ "$fs" = native ] || row "$part" "$size" "$fs" "$what" "$(seconds_since "$from")"
}
# Notes the seconds and the most memory, in MiB, of a command that ends.
weighed() { # PART SIZE FS NAME COMMAND...
    local part=$1 size=$2 fs=$3 what=$4 said
    shift 4
    said=$(python3 - "$@" <<'PY'
import resource, subprocess, sys, time
begun = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
sys.stderr.buffer.write(done.stderr if done.returncode else b"")
print(f"{time.perf_counter() - begun:.2f} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f}")
sys.exit(done.returncode)
PY
    ) || die "$fs: $what failed"
    row "$part" "$size" "$fs" "$what, s" "${said% *}"
    row "$part" "$size" "$fs" "$what, MiB" "${said#* }"
}
quietly() { "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; die "failed: $*"; }; }
fresh() { rm -rf --one-file-system -- "${work:?}/$1"; make_store "$1"; start_mount "$1"; }
stored() { du -s --block-size=1 "$1" | cut -f 1; }

files() {
    local size=$1 fs=$2 store=$work/$2/store mnt=$work/$2/mnt vault
    fresh "$fs"
    load files "$size" "$fs" 'created, files/s' files "$mnt/tree" "$size"
    timed files "$size" "$fs" 'unmount after that, s' end_mount "$fs"
    timed files "$size" "$fs" 'mount, s' start_mount "$fs"
    row files "$size" "$fs" 'first find, entries/s' "$(rate "$size" find "$mnt/tree")"
    row files "$size" "$fs" 'find again, entries/s' "$(rate "$size" find "$mnt/tree")"
    daemon_memory files "$size" "$fs" 'daemon after that, MiB'
    timed files "$size" "$fs" 'unmount then, s' end_mount "$fs"
    case $fs in
        gocryptfs) weighed files "$size" "$fs" 'check' gocryptfs -q -fsck -passfile "$work/pass" "$store" ;;
        kithfs*)
            weighed files "$size" "$fs" 'check' "$kithfs" fsck "$store"
            weighed files "$size" "$fs" 'rollback' "$kithfs" rollback "$store"
            weighed files "$size" "$fs" 'export' "$kithfs" export "$store" "$work/$fs/out"
            row files "$size" "$fs" 'rollback database, bytes a file' "$(awk -v all="$(stored "$XDG_STATE_HOME/kithfs/seen")" -v n="$size" 'BEGIN { printf "%.0f", all / n }')"
            for vault in second third; do
                quietly "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "$work/$fs/$vault"
            done
            weighed files "$size" "$fs" 'import' "$kithfs" import "$work/$fs/out" "$work/$fs/second"
            weighed files "$size" "$fs" 'import --no-rollback-memory' "$kithfs" import --no-rollback-memory "$work/$fs/out" "$work/$fs/third"
            rm -rf --one-file-system -- "$work/$fs/out" "$work/$fs/second" "$work/$fs/third"
            ;;
    esac
    start_mount "$fs"
    row files "$size" "$fs" 'rm -r, files/s' "$(rate "$size" rm -r "$mnt/tree")"
    end_mount "$fs"
    rm -rf -- "$XDG_STATE_HOME"
}

entries() {
    local size=$1 fs=$2 mnt=$work/$2/mnt
    fresh "$fs"
    load entries "$size" "$fs" 'created, files/s' entries "$mnt/many" "$size"
    end_mount "$fs"
    start_mount "$fs"
    load entries "$size" "$fs" 'looked up, files/s' lookups "$mnt/many" "$size"
    row entries "$size" "$fs" 'listed, entries/s' "$(rate "$size" ls -f "$mnt/many")"
    daemon_memory entries "$size" "$fs" 'daemon after that, MiB'
    row entries "$size" "$fs" 'rm -r, files/s' "$(rate "$size" rm -r "$mnt/many")"
    end_mount "$fs"
}

large() {
    local size=$1 fs=$2 file=$work/$2/mnt/large
    fresh "$fs"
    load large "$size" "$fs" 'written and flushed, MB/s' fill "$file" $((size * 1024))
    load large "$size" "$fs" 'random writes of 4 KiB, /s;longest write, ms' random-writes "$file" 10
    end_mount "$fs"
    start_mount "$fs"
    load large "$size" "$fs" 'random reads of 4 KiB, /s;longest read, ms' random-reads "$file" 5
    daemon_memory large "$size" "$fs" 'daemon after reading, MiB'
    rm "$file" # there may be no room for the file of the next filesystem beside it
    end_mount "$fs"
}

clients() {
    local size=$1 fs=$2
    fresh "$fs"
    load clients "$size" "$fs" 'created, files/s;99% of them within, ms' clients "$work/$fs/mnt" "$size" $((8000 / size))
    daemon_memory clients "$size" "$fs" 'daemon, MiB'
    end_mount "$fs"
}

members() {
    local size=$1 dir=$work/members n
    case $2 in kithfs) ;; *) return 0 ;; esac
    rm -rf -- "$dir" "$XDG_CONFIG_HOME"
    mkdir -p "$dir"
    local cheap=(--kdf-memory 32 --kdf-passes 1)
    quietly "$kithfs" init "${cheap[@]}" --own-identity --signed --name owner "$dir/vault"
    for ((n = 0; n < size; n++)); do
        quietly "$kithfs" identity new "${cheap[@]}" --identity "$dir/id-$n" --name "member $n"
        quietly "$kithfs" contact add "member $n" "$("$kithfs" identity export --identity "$dir/id-$n")"
    done
    local names=()
    for ((n = 0; n < size; n++)); do names+=("member $n"); done
    weighed members "$size" kithfs 'share add of all' "$kithfs" share add --trust-on-first-use --role writer "$dir/vault" "${names[@]}"
    row members "$size" kithfs 'control files, bytes' "$(stored "$dir/vault")"
    weighed members "$size" kithfs 'open by a member' "$kithfs" ls --trust-on-first-use --identity "$dir/id-0" "$dir/vault"
    weighed members "$size" kithfs 'share remove of one' "$kithfs" share remove "$dir/vault" 'member 0'
}

for ((part = 0; part < ${#plan[@]}; part += 2)); do
    for size in ${plan[part + 1]}; do
        for fs in "${peers[@]}"; do "${plan[part]}" "$size" "$fs"; done
    done
done
where="$(date -u +%F), $(nproc) CPUs, Linux $(uname -r), ciphertext on $(findmnt -no FSTYPE --target "$work" | tail -n 1)"
[ -z "$chart" ] || "$here/scripts/growth/chart.sh" "$where; higher is better" <"$work/rows" >"$chart"
{
    echo "$where"
    echo
    python3 "$here/scripts/growth/table.py" <"$work/rows"
} | if [ -n "$out" ]; then tee "$out"; else cat; fi

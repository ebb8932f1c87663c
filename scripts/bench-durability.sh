#!/usr/bin/env bash
# What durability costs: kithfs beside gocryptfs, securefs and the plain disk, in one run on one machine.
#
#     scripts/bench-durability.sh [--quick] [--runs N] [--dir DIR] [--with LIST] [--out FILE]
#
#   --quick      small and short: to see that it works, not to quote
#   --runs N     medians of N runs (default 3); within each run the filesystems take turns
#   --dir DIR    where plain and ciphered files lie, all on this one filesystem (default: a directory in $TMPDIR or /tmp)
#   --with LIST  which, separated by commas: native, gocryptfs, securefs, kithfs (default: all that are installed)
#   --out FILE   write the table to FILE as well
#
# Three loads, each on files that were synced before:
#   overwrite    4 KiB at random places of a file, fsync after each (fio, fsync=1): operations a second, and the median time of one fsync
#   sequential   a file overwritten from its beginning to its end in 1 MiB, one fsync at the end: MB/s
#   create       files of 4 KiB made, written and synced one after the other: files a second
# A disk whose fsync takes no time (a RAM disk) says nothing here; the first line tells what the plain disk needs for one.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
runs=3 base='' with='' out='' size_mib=256 seconds=10 files=1000
die() { echo "bench-durability: $*" >&2; exit 1; }
say() { echo "bench-durability: $*" >&2; }
while [ $# -gt 0 ]; do
    case $1 in
        --quick) runs=1 size_mib=16 seconds=1 files=50 ;;
        --runs | --dir | --with | --out)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --runs) runs=$2 ;; --dir) base=$2 ;; --with) with=$2 ;; --out) out=$2 ;; esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
case $runs in '' | *[!0-9]* | 0) die "--runs takes a number from 1" ;; esac
for tool in fio perl mountpoint awk; do command -v "$tool" >/dev/null || die "$tool is missing (scripts/setup.sh installs it)"; done
unmounter=$(command -v fusermount3 || command -v fusermount || true)

available() {
    case $1 in
        native) ;;
        kithfs) [ -x "$kithfs" ] ;;
        *) command -v "$1" >/dev/null ;;
    esac
}
peers=()
for fs in ${with:+${with//,/ }}; do
    case $fs in native | gocryptfs | securefs | kithfs) ;; *) die "--with: $fs is none of native, gocryptfs, securefs, kithfs" ;; esac
    available "$fs" || die "$fs is not there"
    peers+=("$fs")
done
if [ -z "$with" ]; then
    for fs in native gocryptfs securefs kithfs; do
        if available "$fs"; then peers+=("$fs"); else say "$fs is not there: left out"; fi
    done
fi

work=$(mktemp -d "${base:-${TMPDIR:-/tmp}}/kithfs-bench.XXXXXX")
declare -A daemon=()

end_mount() {
    local fs=$1 mnt=$work/$1/mnt pid=${daemon[$1]:-}
    [ -n "$pid" ] || return 0
    case $fs in kithfs) "$kithfs" umount "$mnt" ;; *) "$unmounter" -u "$mnt" ;; esac 2>>"$work/$fs/log" || {
        say "$fs is busy: unmounted lazily"
        "$unmounter" -uz "$mnt" || umount -l "$mnt" || true
        kill "$pid" 2>/dev/null || true
    }
    wait "$pid" 2>/dev/null || true
    daemon[$fs]=''
}

cleanup() {
    local status=$? fs
    trap - EXIT INT TERM HUP
    for fs in "${peers[@]}"; do end_mount "$fs"; done
    for fs in "${peers[@]}"; do
        if [ "$fs" != native ] && mountpoint -q "$work/$fs/mnt" 2>/dev/null; then
            say "$work/$fs/mnt is still mounted: $work is left as it is"
            exit 1
        fi
    done
    rm -rf --one-file-system -- "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

printf 'bench' >"$work/pass"
for fs in "${peers[@]}"; do
    dir=$work/$fs
    mkdir -p "$dir/store" "$dir/mnt"
    case $fs in
        native) command=() ;;
        gocryptfs)
            gocryptfs -q -init -scryptn 10 -passfile "$work/pass" "$dir/store"
            command=(gocryptfs -q -fg -passfile "$work/pass" "$dir/store" "$dir/mnt")
            ;;
        securefs)
            securefs create --pass bench --rounds 1 "$dir/store"
            command=(securefs mount --pass bench "$dir/store" "$dir/mnt")
            ;;
        kithfs)
            "$kithfs" init --passphrase-file "$work/pass" --kdf-memory 32 --kdf-passes 1 "$dir/store"
            command=("$kithfs" mount --foreground --passphrase-file "$work/pass" "$dir/store" "$dir/mnt")
            ;;
    esac >"$dir/log" 2>&1 || { cat "$dir/log" >&2; die "$fs: no store could be made"; }
    [ ${#command[@]} -gt 0 ] || continue
    "${command[@]}" >>"$dir/log" 2>&1 </dev/null &
    daemon[$fs]=$!
    for ((i = 0; i < 200; i++)); do
        if mountpoint -q "$dir/mnt"; then break; fi
        kill -0 "${daemon[$fs]}" 2>/dev/null || break
        sleep 0.05
    done
    mountpoint -q "$dir/mnt" || { tail -n 5 "$dir/log" >&2; die "$fs: the mount did not come up"; }
done

fio_json() { fio --output-format=json "$@" 2>>"$work/fio.log" | perl -0ne 'print $1 if /(\{.*\})/s'; }

overwrite() { # operations a second and microseconds of the median fsync
    fio_json --name=o --filename="$1/file" --rw=randwrite --bs=4k --size="${size_mib}m" --ioengine=psync --fsync=1 \
        --time_based --runtime="$seconds" --overwrite=1 |
        perl -MJSON::PP -0ne '$j = decode_json($_)->{jobs}[0]; printf "%.0f %.0f\n", $j->{write}{iops}, ($j->{sync}{lat_ns}{percentile}{"50.000000"} // 0) / 1000'
}

sequential() { # MB/s
    fio_json --name=s --filename="$1/file" --rw=write --bs=1m --size="${size_mib}m" --ioengine=psync --end_fsync=1 --overwrite=1 |
        perl -MJSON::PP -0ne 'printf "%.0f\n", decode_json($_)->{jobs}[0]{write}{bw_bytes} / 1e6'
}

create() { # files a second
    perl -MTime::HiRes=time -MIO::Handle -e '
        my ($dir, $files) = @ARGV;
        my $text = "x" x 4096;
        my $from = time;
        for my $n (1 .. $files) {
            open my $f, ">", "$dir/new $n" or die "$n: $!";
            syswrite($f, $text) == 4096 or die "$n: $!";
            $f->sync or die "$n: $!";
            close $f or die "$n: $!";
        }
        printf "%.0f\n", $files / (time - $from);
        unlink "$dir/new $_" for 1 .. $files;' "$1" "$files"
}

declare -A figures=()
for ((run = 1; run <= runs; run++)); do
    for fs in "${peers[@]}"; do
        place=$work/$fs/mnt/run
        mkdir -p "$place"
        fio --name=lay --filename="$place/file" --rw=write --bs=1m --size="${size_mib}m" --ioengine=psync --end_fsync=1 >/dev/null
        read -r iops fsync < <(overwrite "$place")
        figures[$fs,iops]+="$iops " figures[$fs,fsync]+="$fsync "
        figures[$fs,sequential]+="$(sequential "$place") "
        figures[$fs,create]+="$(create "$place") "
        rm -r "$place"
        say "run $run: $fs done"
    done
done

median() { tr ' ' '\n' <<<"$1" | grep . | sort -n | awk '{ a[NR] = $1 } END { print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
table() {
    echo "| | random 4 KiB overwrite, fsync each /s | median fsync us | sequential overwrite MB/s | create and fsync 4 KiB /s |"
    echo "|---|---|---|---|---|"
    for fs in "${peers[@]}"; do
        printf '| %s |' "$fs"
        for what in iops fsync sequential create; do printf ' %s |' "$(median "${figures[$fs,$what]}")"; done
        echo
    done
}
table
if [ -n "$out" ]; then table >"$out"; fi

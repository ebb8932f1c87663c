#!/usr/bin/env bash
# Measures the cost of durability: compares kithfs with gocryptfs, securefs and the plain disk, in one run on one machine.
#
#     scripts/bench-durability.sh [--quick] [--runs N] [--dir DIR] [--with LIST] [--out FILE]
#
#   --quick      small and short: to see that it works, not to quote
#   --runs N     medians of N runs (default 3); within each run the filesystems take turns
#   --dir DIR    directory for the plain and the encrypted files (default: a directory in $TMPDIR or /tmp)
#   --with LIST  filesystems, separated by commas: native, gocryptfs, securefs, kithfs (default: all that are installed)
#   --out FILE   write the table to FILE as well
#
# Three loads; the first two are on a file that was synced before:
#   overwrite    4 KiB at random places of a file, fsync after each (fio, fsync=1): operations a second, and the median time of one fsync
#   sequential   a file overwritten from its beginning to its end, 1 MiB at a time, one fsync at the end: MB/s
#   create       files of 4 KiB created, written and synced one after the other: files a second
# The results mean nothing on a disk whose fsync takes no time, such as a RAM disk. The first line shows the time of the plain disk.
set -euo pipefail

. "$(dirname -- "${BASH_SOURCE[0]}")/peers.sh"
runs=3 base='' with='' out='' size_mib=256 seconds=10 files=1000
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
"$(dirname -- "${BASH_SOURCE[0]}")/tools.sh" fio:fio perl:perl mountpoint:util-linux
choose_peers "$with" native gocryptfs securefs kithfs
begin_peers "$base"
for fs in "${peers[@]}"; do
    make_store "$fs"
    start_mount "$fs"
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

#!/usr/bin/env bash
# Measures costs of a synced vault that scripts/bench-peers.sh does not measure: the first listing and the first lookup in a directory that
# was renamed a thousand times, and in a directory of many entries. Measures a vault without the mark and a synced one in turns.
#
#     scripts/bench-synced.sh [--renames N] [--entries N] [--runs N] [--dir DIR]
#
#   --renames N   how often the directory is renamed (default 1000); each time one file is created in it
#   --entries N   files in the large directory (default 1000000)
#   --runs N      medians of N runs (default 5), each after mounting again
#   --dir DIR     directory for the vaults (default: a directory in $TMPDIR or /tmp)
#
# Lookups are of a name that exists and of one that does not. The table is in milliseconds.
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/peers.sh"
runs=5 base='' renames=1000 entries=1000000
while [ $# -gt 0 ]; do
    case $1 in
        --runs | --dir | --renames | --entries)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --runs) runs=$2 ;; --dir) base=$2 ;; --renames) renames=$2 ;; --entries) entries=$2 ;; esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
choose_peers kithfs,kithfs-synced kithfs kithfs-synced
begin_peers "$base"

# Makes a directory that is renamed again and again, with a file created under each of its names; and a large directory.
fill() {
    perl -e '
        use strict;
        my ($dir, $renames, $entries) = @ARGV;
        chdir $dir or die "$dir: $!";
        sub make { open(my $f, ">", $_[0]) or die "$_[0]: $!"; close $f }
        mkdir "renamed0" or die $!;
        for my $n (1 .. $renames) {
            make("renamed" . ($n - 1) . "/file$n");
            rename "renamed" . ($n - 1), "renamed$n" or die $!;
        }
        mkdir "many" or die $!;
        make("many/file$_") for 1 .. $entries;' "$1" "$renames" "$entries"
}

# Prints the milliseconds of listing a directory, or of looking up a name that exists, or one that does not.
took() { # what, directory, name
    perl -MTime::HiRes=time -e '
        use strict;
        my ($what, $dir, $name) = @ARGV;
        my $began = time;
        if ($what eq "list") { opendir(my $d, $dir) or die "$dir: $!"; my @all = readdir $d; @all > 2 or die "nothing in $dir" }
        else { my $found = defined((stat "$dir/$name")[0]); $found == ($what eq "hit") or die "$dir/$name: other than expected" }
        printf "%.2f\n", (time - $began) * 1000;' "$@"
}

for fs in "${peers[@]}"; do
    make_store "$fs"
    start_mount "$fs"
    say "$fs: $renames renames, $entries entries"
    fill "$work/$fs/mnt"
    end_mount "$fs"
done
rows=()
for ((run = 1; run <= runs; run++)); do
    for what in list hit miss; do
        for dir in "renamed$renames" many; do
            for fs in "${peers[@]}"; do
                start_mount "$fs"
                took "$what" "$work/$fs/mnt/$dir" "$([ "$what" = hit ] && echo file1 || echo none)" >>"$work/$fs/$what.$dir"
                end_mount "$fs"
            done
            [ "$run" != 1 ] || rows+=("$what.$dir")
        done
    done
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { printf "%.2f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
echo "$(date -u +%Y-%m-%d), $(nproc) CPUs, Linux $(uname -r), $(findmnt -n -o FSTYPE -T "$work" | tail -n 1), $("$kithfs" --version); medians of $runs, in ms; $renames renames, $entries entries; load $(cut -d ' ' -f 1 /proc/loadavg)."
echo
echo "| first | kithfs | kithfs-synced | ratio |"
echo "|---|---:|---:|---:|"
for row in "${rows[@]}"; do
    plain=$(median "$work/kithfs/$row") synced=$(median "$work/kithfs-synced/$row")
    echo "| ${row/./ in } | $plain | $synced | $(awk -v a="$plain" -v b="$synced" 'BEGIN { printf "%.2f", b / (a > 0 ? a : 0.01) }') |"
done

#!/usr/bin/env bash
# Compares the speed of kithfs with other encrypted filesystems and the plain disk, in one run on one machine.
#
#     scripts/bench-peers.sh [--quick] [--runs N] [--dir DIR] [--with LIST] [--tree DIR] [--entries N] [--drop-caches] [--cpus LIST]
#                            [--out FILE] [--chart FILE] [--install]
#
#   --quick        small files, few of them, one run: to see that it works, not to quote
#   --runs N       medians of N runs (default 3); within each run the filesystems take turns
#   --dir DIR      directory for the plain and the encrypted files (default: a directory in $TMPDIR or /tmp)
#   --with LIST    filesystems, separated by commas: native, gocryptfs, securefs, encfs, cryfs, kithfs, kithfs-uring, kithfs-synced,
#                  kithfs-shared, kithfs-shared-idle, kithfs-shared-busy, kithfs-before (default: all that are installed, up to
#                  kithfs-uring). kithfs-uring is kithfs over io_uring, which
#                  the script switches on in the fuse module for the run, as root. kithfs-synced is a vault that is marked as synced.
#                  kithfs-shared is a mount with --shared, and the two after it have a second mount of the same vault beside it.
#                  kithfs-before is another build, the program $KITHFS_BEFORE; the ratios are to it then
#   --tree DIR     tree that is packed and then unpacked (default: a generated one of 2,000 files)
#   --entries N    number of files in the large directory that is listed (default 20,000). Give it after --quick, which sets it too. With
#                  a million each filesystem takes some minutes
#   --drop-caches  as root: empty the kernel's caches before each cold measurement, so that the disk is measured too
#   --cpus LIST    bind all programs and daemons to these processors (as for taskset -c). With a single one no process waits for another
#                  processor to wake up, so the figures show the work of each filesystem alone
#   --out FILE     write the table to FILE as well
#   --chart FILE   draw eight lines of it to FILE, as SVG (scripts/bench-chart.sh; needs gnuplot)
#   --install      install Debian's packages of the other filesystems first (as root)
#
# The jobs of fio are benches/fio/*.fio and can be run by hand. "cold" means mounted again: the mount has cached nothing, but the kernel
# may still have cached the ciphertext. The plain disk has no mount, so without --drop-caches its cold figures are warm ones.
# The script unmounts each filesystem that it has mounted, and ends its process, however the script ends.
set -euo pipefail

. "$(dirname -- "${BASH_SOURCE[0]}")/peers.sh"
runs=3 base='' with='' tree='' drop=no cpus='' out='' chart='' size_mib=256 files=3000 entries=20000

while [ $# -gt 0 ]; do
    case $1 in
        --quick) runs=1 size_mib=32 files=300 entries=1000 ;;
        --drop-caches) drop=yes ;;
        --install) apt-get install -y --no-install-recommends gocryptfs securefs encfs cryfs fio gnuplot-nox >/dev/null || die "the packages could not be installed" ;;
        --runs | --dir | --with | --tree | --entries | --cpus | --out | --chart)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --runs) runs=$2 ;; --dir) base=$2 ;; --with) with=$2 ;; --tree) tree=$2 ;; --entries) entries=$2 ;; --cpus) cpus=$2 ;; --out) out=$2 ;;
                --chart) chart=$2 ;;
            esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
case $runs in '' | *[!0-9]* | 0) die "--runs takes a number from 1" ;; esac
case $entries in '' | *[!0-9]* | 0) die "--entries takes a number from 1" ;; esac
[ "$drop" = no ] || [ "$(id -u)" -eq 0 ] || die "--drop-caches needs root"
"$(dirname -- "${BASH_SOURCE[0]}")/tools.sh" fio:fio perl:perl mountpoint:util-linux findmnt:util-linux
[ -z "$chart" ] || command -v gnuplot >/dev/null || die "--chart needs gnuplot (--install installs it)"
if [ -n "$cpus" ]; then taskset -cp "$cpus" $$ >/dev/null || die "--cpus $cpus: taskset refuses"; fi
choose_peers "$with" native gocryptfs securefs encfs cryfs kithfs kithfs-uring kithfs-synced kithfs-shared kithfs-shared-idle kithfs-shared-busy kithfs-before
begin_peers "$base"

# Empties the cache of the mount by mounting again.
cold() {
    if [ "$1" != native ]; then
        end_mount "$1"
    fi
    sync -f "$work"
    if [ "$drop" = yes ]; then echo 3 >/proc/sys/vm/drop_caches; fi
    if [ "$1" != native ]; then start_mount "$1"; fi
}

# Runs a command that measures, and stores what it prints as a result.
note() { # filesystem, measurement, command...
    local fs=$1 what=$2 value
    shift 2
    # Not part of the `local` line: there a failure of the command would not end the script.
    value=$("$@")
    [ -n "$value" ] || die "$fs: $what gave no result"
    echo "$value" >>"$work/$fs/result.$what"
}

# Runs one job of fio. In fio's terse output fields 7 and 8 are KiB/s and IOPS of reads, fields 48 and 49 those of writes.
fio_job() { # filesystem, job, MB/s | IOPS, size in MiB
    local line value
    sync -f "$work"
    line=$(cd "$work" && DIR=$work/$1/mnt/bench SIZE=$4m fio --minimal "$here/benches/fio/$2.fio" 2>>"$work/$1/log") || {
        tail -n 5 "$work/$1/log" >&2
        die "$1: fio failed in $2"
    }
    value=$(awk -F';' -v unit="$3" 'NF > 50 { r = unit == "IOPS" ? $8 + $49 : ($7 + $48) * 1024 / 1e6; printf "%.1f", r }' <<<"$line")
    [ -n "$value" ] || die "$1: no result of fio in $2: $line"
    echo "$value"
}

loop() { # operation, directory, [count]: one process that performs the operation on each file
    perl -e '
        use strict;
        my ($what, $dir, $n) = @ARGV;
        chdir $dir or die "$dir: $!";
        my $data = "k" x 4096;
        for my $i (0 .. $n - 1) {
            my $name = "file$i";
            if ($what eq "create") { open(my $f, ">", $name) or die "$name: $!"; syswrite($f, $data) == 4096 or die "$name: $!"; close $f or die "$name: $!" }
            elsif ($what eq "stat") { stat $name or die "$name: $!" }
            elsif ($what eq "read") { open(my $f, "<", $name) or die "$name: $!"; my $got; sysread($f, $got, 8192) == 4096 && $got eq $data or die "$name: other bytes"; close $f }
            elsif ($what eq "entry") { open(my $f, ">", $name) or die "$name: $!"; close $f }
            elsif ($what eq "rename") { rename $name, "moved$i" or die "$name: $!" }
            elsif ($what eq "unlink") { unlink "moved$i" or die "moved$i: $!" }
            else { die "$what?" }
        }' "$1" "$2" "${3:-$files}"
}

list() { ls -f "$1" | wc -l; }
list_all() { ls -lR "$1"; }
sum_all() { find "$1" -type f -exec md5sum {} +; }

make_tree() {
    perl -e '
        use strict;
        my ($dir, $n) = @ARGV;
        my $seed = 12345;
        my $next = sub { $seed = ($seed * 1103515245 + 12345) % 2147483648 };
        mkdir $dir or die;
        for my $i (0 .. $n - 1) {
            my $sub = sprintf "%s/part%02d", $dir, $i / 50;
            -d $sub or mkdir $sub or die;
            my $len = 200 + $next->() % (($next->() % 8) ? 8000 : 60000);
            open(my $f, ">", "$sub/item$i.txt") or die;
            print $f substr(join(" ", map { $next->() } 1 .. $len / 8), 0, $len);
            close $f or die;
        }' "$1" "$2"
}

one_run() {
    local fs=$1 dir=$work/$1 at
    at=$dir/mnt/bench
    start_mount "$fs"
    mkdir -p "$at"

    rm -f "$at/seq.dat"
    note "$fs" write-fresh fio_job "$fs" seq-write-fresh MB/s "$size_mib"
    note "$fs" overwrite fio_job "$fs" seq-overwrite MB/s "$size_mib"
    cold "$fs"
    note "$fs" read-cold fio_job "$fs" seq-read MB/s "$size_mib"
    note "$fs" read-warm fio_job "$fs" seq-read MB/s "$size_mib"
    cold "$fs"
    note "$fs" rand-read fio_job "$fs" rand-read-4k IOPS "$size_mib"
    cold "$fs"
    note "$fs" rand-read-2 fio_job "$fs" rand-read-4k-two IOPS "$size_mib"
    note "$fs" rand-write fio_job "$fs" rand-write-4k IOPS "$size_mib"
    note "$fs" rand-write-fsync fio_job "$fs" rand-write-4k-fsync IOPS "$size_mib"
    rm -f "$at/append.dat"
    note "$fs" append fio_job "$fs" append-4k MB/s $((size_mib / 4))
    if [ "$fs" != native ]; then note "$fs" memory memory "$fs"; fi
    rm -f "$at/seq.dat" "$at/append.dat"
    sync -f "$work"

    mkdir "$at/small"
    note "$fs" create rate "$files" loop create "$at/small"
    cold "$fs"
    note "$fs" stat-cold rate "$files" loop stat "$at/small"
    cold "$fs"
    note "$fs" open-read-cold rate "$files" loop read "$at/small"
    note "$fs" rename rate "$files" loop rename "$at/small"
    note "$fs" unlink rate "$files" loop unlink "$at/small"
    rmdir "$at/small"

    mkdir "$at/tree"
    note "$fs" untar rate "$tree_mb" tar -xf "$work/tree.tar" -C "$at/tree"
    cold "$fs"
    note "$fs" list-tree rate "$tree_files" list_all "$at/tree"
    cold "$fs"
    note "$fs" sum-tree rate "$tree_mb" sum_all "$at/tree"
    cold "$fs"
    note "$fs" rm-tree rate "$tree_files" rm -r "$at/tree"

    # Created in the first run only, because only the listing is measured.
    if [ ! -d "$at/many" ]; then
        mkdir "$at/many"
        loop entry "$at/many" "$entries"
    fi
    cold "$fs"
    note "$fs" list-cold rate "$entries" list "$at/many"
    note "$fs" list-warm rate "$entries" list "$at/many"
    end_mount "$fs"
}

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { if (NR) printf "%.1f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

version() {
    case $1 in
        native) findmnt -n -o FSTYPE -T "$work" | tail -n 1 ;;
        gocryptfs) gocryptfs -version 2>&1 | sed 's/;.*//;q' ;;
        securefs) dpkg-query -W -f '${Package} ${Version}\n' securefs 2>/dev/null || echo "securefs of unknown version" ;;
        encfs) encfs --version 2>&1 | sed -n 's/^encfs version /encfs /p' ;;
        cryfs) CRYFS_NO_UPDATE_CHECK=true cryfs --version 2>/dev/null | head -n 1 ;;
        kithfs) "$kithfs" --version ;;
        kithfs-uring) echo "the same over io_uring" ;;
        kithfs-before) echo "another build of $("$KITHFS_BEFORE" --version)" ;;
        kithfs-shared) echo "kithfs mounted with --shared" ;;
        kithfs-shared-idle) echo "the same with a second mount that is idle" ;;
        kithfs-shared-busy) echo "the same with a second mount in which files are written and read" ;;
        kithfs-synced) echo "the same with a vault that is marked as synced" ;;
    esac
}

# Prints half of the spread of the numbers in a file, in percent of their median.
spread() { sort -n "$1" | awk -v m="$(median "$1")" '{ v[NR] = $1 } END { if (NR && m > 0) printf "%.0f", 100 * (v[NR] - v[1]) / (2 * m); else printf "-" }'; }

rows() {
    cat <<'ROWS'
write-fresh:new file, 1 MiB writes, fsync at the end, MB/s
overwrite:the same written over, MB/s
read-cold:read, 1 MiB, cold, MB/s
read-warm:read, 1 MiB, warm, MB/s
rand-read:4 KiB random reads, cold, IOPS
rand-read-2:the same by two clients, IOPS
rand-write:4 KiB random writes, fsync at the end, IOPS
rand-write-fsync:4 KiB random writes, fsync each, IOPS
append:4 KiB appends, fsync at the end, MB/s
create:create 4 KiB files, files/s
stat-cold:stat, cold, files/s
open-read-cold:open and read 4 KiB files, cold, files/s
rename:rename, files/s
unlink:unlink, files/s
untar:unpack a tree, MB/s
list-tree:ls -lR of the tree, cold, files/s
sum-tree:md5sum of the tree, cold, MB/s
rm-tree:rm -r of the tree, cold, files/s
list-cold:list one large directory, cold, entries/s
list-warm:the same again, entries/s
ROWS
}

# Tab-separated: line, filesystem, median, half of the spread in percent of it.
results() {
    local key what fs
    while IFS=: read -r key what; do
        for fs in "${peers[@]}"; do
            printf '%s\t%s\t%s\t%s\n' "$what" "$fs" "$(median "$work/$fs/result.$key")" "$(spread "$work/$fs/result.$key")"
        done
    done < <(rows)
}

report() {
    local fs mem cpu
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    mem=$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)
    echo "$(date -u +%Y-%m-%d), $(nproc) CPUs (${cpu:-unknown}), $mem, Linux $(uname -r), $(findmnt -n -o FSTYPE -T "$work" | tail -n 1); medians of $runs."
    for fs in "${peers[@]}"; do echo "$(version "$fs");"; done | paste -s -d ' ' | sed 's/;$/./'
    echo "File of $size_mib MiB, $files small files of 4 KiB, tree of $tree_files files and $tree_mb MB, directory of $entries files. More is better."
    echo
    # The ratio is to the other build, or to the faster of gocryptfs and securefs on each line.
    perl -F'\t' -lane '
        BEGIN { @fs = split / /, shift @ARGV; $spread = 0; @base = grep(/^kithfs-before$/, @fs); $to = @base ? "before" : "better"; @base = grep(/^(gocryptfs|securefs)$/, @fs) unless @base }
        push @lines, $F[0] unless $value{$F[0]}; $value{$F[0]}{$F[1]} = $F[2]; $spread = $F[3] if $F[3] ne "-" && $F[3] > $spread;
        sub number { $_[0] >= 100 ? sprintf "%.0f", $_[0] : sprintf "%.1f", $_[0] }
        END {
            my @ours = @base ? grep /^kithfs(?!-before)/, @fs : ();
            print join(" | ", "|", @fs, map { "$_ / $to" } @ours) . " |";
            print "|---|" . "---:|" x (@fs + @ours);
            for my $line (@lines) {
                my %v = %{$value{$line}};
                my ($best) = sort { $b <=> $a } grep defined, @v{@base};
                print join(" | ", "| $line", (map { number($v{$_}) } @fs), map { $best ? sprintf "%.2f", $v{$_} / $best : "-" } @ours) . " |";
            }
            print "\nHalf of the range of a line is at most $spread% of its median.";
        }' "${peers[*]}" "$work/results.tsv"
    echo "Most memory of the daemon in the streams and random accesses, MiB:$(for fs in "${peers[@]}"; do [ "$fs" = native ] || printf ' %s %s,' "$fs" "$(median "$work/$fs/result.memory" | sed 's/\.0$//')"; done | sed 's/,$/./')"
}

if [ -z "$tree" ]; then
    make_tree "$work/tree" $((files * 2 / 3))
    tree=$work/tree
fi
tar -cf "$work/tree.tar" -C "$tree" .
tree_files=$(find "$tree" -mindepth 1 | wc -l)
tree_mb=$(stat -c %s "$work/tree.tar" | awk '{ printf "%.1f", $1 / 1e6 }')

for fs in "${peers[@]}"; do make_store "$fs"; done
for ((run = 1; run <= runs; run++)); do
    for fs in "${peers[@]}"; do
        say "run $run of $runs: $fs"
        one_run "$fs"
    done
done
results >"$work/results.tsv"
report >"$work/report.md"
cat "$work/report.md"
if [ -n "$out" ]; then cp -- "$work/report.md" "$out"; fi
if [ -n "$chart" ]; then "$here/scripts/bench-chart.sh" "$work/report.md" >"$chart"; fi

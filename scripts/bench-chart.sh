#!/usr/bin/env bash
# Draws eight lines of a table of scripts/bench-peers.sh, for three systems, as SVG.
#
#     scripts/bench-chart.sh TABLE.md >chart.svg      docs/bench-peers.svg is made from docs/BENCHMARKS.md
#
# Each line has its own unit: the bar of its fastest system has the full length. Each bar shows its figure.
set -euo pipefail
case ${1--h} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
command -v gnuplot >/dev/null || { echo "bench-chart: gnuplot is missing: apt-get install gnuplot-nox" >&2; exit 1; }

lines='new file, 1 MiB writes, fsync at the end, MB/s=write a new file
the same written over, MB/s=overwrite it
read, 1 MiB, cold, MB/s=read it, cold
4 KiB random reads, cold, IOPS=4 KiB random reads, cold
4 KiB random writes, fsync each, IOPS=4 KiB writes, fsync each
create 4 KiB files, files/s=create 4 KiB files
unpack a tree, MB/s=unpack a tree
md5sum of the tree, cold, MB/s=read a tree, cold'

# One bar per line: position, length, figure, system, and for the second bar of three the label of the group.
bars=$(awk -F' *[|] *' -v OFS='\t' '
    NR == FNR { split($0, pair, "="); label[pair[1]] = pair[2]; next }
    /^\| \|/ { for (i = 3; i < NF; i++) column[$i] = i }
    $2 in label {
        best = 0
        n = split("kithfs gocryptfs securefs", systems, " ")
        for (s = 1; s <= n; s++) if (systems[s] in column && $column[systems[s]] + 0 > best) best = $column[systems[s]] + 0
        unit = $2
        sub(/.*, /, "", unit)
        for (s = 1; s <= n; s++) if (systems[s] in column) {
            value = $column[systems[s]]
            print -4 * row - s, value / best, value " " unit, s, s == 2 ? label[$2] : ""
        }
        row++
    }' <(echo "$lines") "$1")
[ -n "$bars" ] || { echo "bench-chart: $1 has none of the lines" >&2; exit 1; }
# Date, machine and number of runs, without the rest of the line.
when=$(sed -n '/^[0-9-]*, [0-9]* CPU/{s/\(medians of [0-9]*\).*/\1/p;q}' "$1")

gnuplot <(cat <<PLOT
set terminal svg size 800,620 dynamic font "Helvetica,14" background "white"
set label "Speed beside gocryptfs and securefs: longer is better" at screen 0.5,0.965 center font ",18"
set label "measured $when" at screen 0.5,0.925 center font ",12"
set key at screen 0.5,0.89 center horizontal Left reverse samplen 1.5 font ",14"
set style fill solid noborder
set xrange [-0.46:1.2]
set yrange [-31.8:-0.4]
set margins screen 0.01, screen 0.99, screen 0.01, screen 0.86
unset border
unset tics
\$bars << DATA
$bars
DATA
set datafile separator tab
row(n) = (column(4) == n ? column(1) : NaN)
plot for [n = 1:3] \$bars using (0):(row(n)):(0):2:(row(n) - 0.45):(row(n) + 0.45) with boxxyerror \\
         lc rgb word("#0b3d91 #e08a1e #c4c4c4", n) title word("kithfs gocryptfs securefs", n), \\
     \$bars using (\$2 + 0.01):1:3 with labels left font ",12" notitle, \\
     \$bars using (strlen(strcol(5)) ? -0.02 : NaN):1:5 with labels right notitle
PLOT
)

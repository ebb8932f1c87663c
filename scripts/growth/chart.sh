#!/usr/bin/env bash
# Draws four measurements of scripts/growth.sh as SVG: a chart for each, with a line for each filesystem.
#
#     scripts/growth/chart.sh TITLE <ROWS >chart.svg
#
# ROWS are the lines that scripts/growth/table.py reads. Both axes are logarithmic; higher is better.
set -euo pipefail
case ${1--h} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
command -v gnuplot >/dev/null || { echo "chart: gnuplot is missing: apt-get install gnuplot-nox" >&2; exit 1; }
rows=$(cat)
panels=(
    'files;created, files/s;create files in a tree, files/s;files'
    'files;first find, entries/s;first find over the tree, entries/s;files'
    'large;random writes of 4 KiB, /s;random 4 KiB writes in one file, /s;GiB'
    'clients;created, files/s;create files with many clients, files/s;clients'
)
points() { # PART FIGURE SYSTEM
    awk -F'\t' -v part="$1" -v figure="$2" -v name="$3" '$1 == part && $4 == figure && $3 == name { print $2, $5 }' <<<"$rows" | sort -n
}
{
    echo "set terminal svg size 800,560 font 'sans-serif,12' background 'white'"
    echo "set multiplot layout 2,2 title \"$1\" font ',13'"
    echo "set logscale xy; set grid lc '#dddddd'; set key bottom left samplen 2; set tics nomirror; set border 3; set format x '%.0s%c'; set format y '%.0s%c'"
    echo "set style line 1 lc '#0b3d91' lw 3 pt 7; set style line 2 lc '#e69f00' lw 2 pt 5; set style line 3 lc '#8c8c8c' lw 2 pt 9"
    for panel in "${panels[@]}"; do
        IFS=';' read -r part figure title unit <<<"$panel"
        plots=()
        for system in kithfs gocryptfs securefs; do
            data=$(points "$part" "$figure" "$system")
            [ -n "$data" ] || continue
            name=$part$RANDOM
            printf '$%s << END\n%s\nEND\n' "$name" "$data"
            case $system in kithfs) style=1 ;; gocryptfs) style=2 ;; *) style=3 ;; esac
            plots+=("\$$name with linespoints ls $style title '$system'")
        done
        [ ${#plots[@]} -gt 0 ] || continue
        echo "set title '$title' font ',12'; set xlabel '$unit'"
        (IFS=,; echo "plot [][] ${plots[*]}")
        echo "unset key" # the key of the first chart is for all
    done
    echo "unset multiplot"
} | gnuplot

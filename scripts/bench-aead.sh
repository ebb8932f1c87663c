#!/usr/bin/env bash
# Compares the speed of kithfs's chunk encryption with two Python libraries: rencrypt (AES-256-GCM of ring) and PyFLocker (of OpenSSL,
# through cryptography).
#
#     scripts/bench-aead.sh [--most MIB] [--ring]
#
#   --most MIB   the largest buffer (default 1024)
#   --ring       build kithfs with ring instead of aws-lc-rs
#
# Measures buffers of 32 KiB to 1 GiB in memory, and files, with one thread. kithfs seals each segment of 4 KiB separately, with a sub-key
# for each 256 KiB; the others seal a buffer as a whole. kithfs and rencrypt work in place, PyFLocker from one buffer to another, as their
# documentation recommends. The packages are installed into a Python environment below target.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
die() { echo "bench-aead: $*" >&2; exit 1; }

most=1024 features=()
while [ $# -gt 0 ]; do
    case $1 in
        --most)
            [ $# -ge 2 ] || die "$1 needs a value"
            most=$2
            shift
            ;;
        --ring) features=(--no-default-features) ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
case $most in '' | *[!0-9]* | 0) die "--most takes a number of MiB" ;; esac

work=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-aead.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
venv=${CARGO_TARGET_DIR:-target}/bench-aead-venv
if [ ! -x "$venv/bin/python" ]; then
    command -v python3 >/dev/null || die "python3 is missing"
    python3 -m venv "$venv"
fi
"$venv/bin/python" -c 'import rencrypt, pyflocker' 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'numpy<2' rencrypt pyflocker cryptography

cargo bench --quiet "${features[@]}" --bench aead -- --buffers "$most" >"$work/figures"
"$venv/bin/python" benches/aead_peers.py "$most" "$work" >>"$work/figures"

echo "$(date -u +%Y-%m-%d), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), one thread; GB/s of the median (of the best)."
"$venv/bin/python" - "$work/figures" <<'PYTHON'
import sys

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
who = list(dict.fromkeys(row[0] for row in rows))
figures = {(row[0], row[1], int(row[2])): (float(row[3]), float(row[4])) for row in rows}
for what in dict.fromkeys(row[1] for row in rows):
    print(f"\n| {what} | " + " | ".join(who) + " | kithfs / fastest |\n|---|" + "---:|" * (len(who) + 1))
    for size in sorted({key[2] for key in figures if key[1] == what}):
        cells, others = [], []
        for name in who:
            best, median = figures.get((name, what, size), (None, None))
            cells.append("-" if best is None else f"{size / median / 1e9:.2f} ({size / best / 1e9:.2f})")
            if best is not None and name != "kithfs":
                others.append(size / median)
        ours = size / figures[("kithfs", what, size)][1]
        shown = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
        print(f"| {shown} | " + " | ".join(cells) + f" | {ours / max(others):.2f} |" if others else f"| {shown} | " + " | ".join(cells) + " | - |")
PYTHON

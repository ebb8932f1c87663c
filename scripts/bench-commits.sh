#!/usr/bin/env bash
# Compares the benchmarks of two commits, as ratios.
#
#     scripts/bench-commits.sh A B [BENCH...] [-- ARGUMENTS OF CRITERION]
#
# Checks both out under target/bench-commits, runs the named benchmarks (default: aead hctr2 parts) of A, B, A and B, takes
# the better of the two medians for each, and prints the time of B divided by that of A: below 1, B is faster. Only benchmarks that both
# commits have are compared. On most machines a difference of less than a quarter is noise.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
die() { echo "bench-commits: $*" >&2; exit 1; }
case ${1:-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# -ge 2 ] || die "two commits are needed (see --help)"
a=$(git rev-parse --verify "$1^{commit}") b=$(git rev-parse --verify "$2^{commit}")
shift 2
benches=() arguments=()
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then shift; arguments=("$@"); break; fi
    benches+=("$1")
    shift
done
[ ${#benches[@]} -gt 0 ] || benches=(aead hctr2 parts)

top=$PWD/${CARGO_TARGET_DIR:-target}
case ${CARGO_TARGET_DIR:-} in /*) top=$CARGO_TARGET_DIR ;; esac
top=$top/bench-commits
mkdir -p "$top"
tree() {
    if [ -d "$top/$1" ]; then git -C "$top/$1" checkout --quiet --detach "$1"; else git worktree add --quiet --detach "$top/$1" "$1"; fi
}
trap 'git worktree remove --force "$top/$a" 2>/dev/null; git worktree remove --force "$top/$b" 2>/dev/null' EXIT
tree "$a"
[ "$a" = "$b" ] || tree "$b"

run() { # commit, round
    local bench
    for bench in "${benches[@]}"; do
        if [ ! -e "$top/$1/benches/$bench.rs" ]; then
            echo "bench-commits: $1 has no benchmark $bench" >&2
            continue
        fi
        # A separate directory for criterion's figures, so that the second round does not overwrite those of the first.
        (cd "$top/$1" && CARGO_TARGET_DIR=$top/build CRITERION_HOME=$top/figures/$1/$2 \
            cargo bench --quiet --locked --bench "$bench" -- "${arguments[@]}" >/dev/null) || die "$bench of $1 failed"
    done
}
rm -rf "$top/figures"
for round in 1 2; do
    for commit in "$a" "$b"; do run "$commit" "$round"; done
done

python3 - "$top/figures/$a" "$top/figures/$b" <<'PYTHON'
import json, pathlib, sys

def medians(top):
    found = {}
    for file in pathlib.Path(top).glob("*/**/new/estimates.json"):
        name = json.loads((file.parent / "benchmark.json").read_text())["full_id"]
        median = json.loads(file.read_text())["median"]["point_estimate"]
        found[name] = min(median, found.get(name, median))
    return found

a, b = (medians(top) for top in sys.argv[1:3])
print("| benchmark | A, ns | B, ns | B / A |\n|---|---:|---:|---:|")
for name in sorted(a.keys() & b.keys()):
    print(f"| {name} | {a[name]:.1f} | {b[name]:.1f} | {b[name] / a[name]:.2f} |")
PYTHON

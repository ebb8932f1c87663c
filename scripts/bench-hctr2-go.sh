#!/usr/bin/env bash
# Compares HCTR2-AES-256 of single names with the Go module github.com/ericlagergren/hctr2. Each call processes its tweak anew.
#
#     scripts/bench-hctr2-go.sh [--checkouts DIR]
#
#   --checkouts DIR   use the checkouts DIR/hctr2, DIR/polyval and DIR/subtle: the module and the two that it needs. For use without a
#                     module proxy that offers them
#
# Needs a Go toolchain. Cargo measures kithfs and the crate hctr2-rs (`cargo bench --bench hctr2`). The Go program, in a folder below target,
# first seals and opens a name of each length. Exit status 77 if Go or the module is missing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
die() { echo "bench-hctr2-go: $*" >&2; exit 1; }
skip() { echo "bench-hctr2-go: skipped: $*" >&2; exit 77; }

checkouts=''
while [ $# -gt 0 ]; do
    case $1 in
        --checkouts)
            [ $# -ge 2 ] || die "$1 needs a value"
            checkouts=$(cd -- "$2" && pwd) || die "$2 is no directory"
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
command -v go >/dev/null || skip "there is no Go toolchain"

top=$PWD/${CARGO_TARGET_DIR:-target}
case ${CARGO_TARGET_DIR:-} in /*) top=$CARGO_TARGET_DIR ;; esac
work=$top/bench-hctr2-go
rm -rf -- "$work"
mkdir -p "$work"
cat >"$work/names_test.go" <<'GO'
package names

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ericlagergren/hctr2"
)

func BenchmarkName(b *testing.B) {
	key, tweak := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	cipher, err := hctr2.NewAES(key)
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{16, 32, 64, 128, 255, 8192} {
		plain, sealed, opened := make([]byte, size), make([]byte, size), make([]byte, size)
		cipher.Encrypt(sealed, plain, tweak)
		cipher.Decrypt(opened, sealed, tweak)
		if bytes.Equal(sealed, plain) || !bytes.Equal(opened, plain) {
			b.Fatal("opened to other bytes")
		}
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for i := 0; i < b.N; i++ {
				cipher.Encrypt(sealed, plain, tweak)
			}
		})
	}
}
GO
(
    cd "$work"
    export GOFLAGS=-mod=mod GOTOOLCHAIN=local
    go mod init names 2>/dev/null
    if [ -n "$checkouts" ]; then
        for module in hctr2 polyval subtle; do
            [ -e "$checkouts/$module/go.mod" ] || die "$checkouts/$module is no checkout of the module"
            go mod edit -replace "github.com/ericlagergren/$module=$checkouts/$module"
        done
        go mod tidy >"$work/log" 2>&1 || { tail -n 3 "$work/log" >&2; skip "the modules that the checkouts need cannot be downloaded"; }
    else
        go get github.com/ericlagergren/hctr2@latest >"$work/log" 2>&1 || { tail -n 3 "$work/log" >&2; skip "the module cannot be downloaded (see --checkouts)"; }
    fi
    go test -bench . -benchtime 300ms -count 5 >"$work/go.txt" || die "the Go program failed: $work/go.txt"
)
CRITERION_HOME=$work/criterion cargo bench --quiet --locked --bench hctr2 -- --noplot --warm-up-time 0.5 --measurement-time 1 'fresh tweak' >"$work/ours.txt"

echo "$(date -u +%Y-%m-%d), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(go version | cut -d ' ' -f 3), one thread; median, ns."
python3 - "$work" <<'PYTHON'
import json, pathlib, re, statistics, sys

work = pathlib.Path(sys.argv[1])
figures = {}
for line in (work / "go.txt").read_text().splitlines():
    if found := re.match(r"BenchmarkName/(\d+)\S*\s+\d+\s+([\d.]+) ns/op", line):
        figures.setdefault(("Go", int(found[1])), []).append(float(found[2]))
for file in (work / "criterion").glob("*/**/new/estimates.json"):
    group, _, size = json.loads((file.parent / "benchmark.json").read_text())["full_id"].rsplit("/", 2)
    figures[(group.removeprefix("hctr2/"), int(size))] = [json.loads(file.read_text())["median"]["point_estimate"]]
names = [name for name in ("Go", "hctr2-rs", "portable", "wide") if any(key[0] == name for key in figures)]
print("\n| bytes | " + " | ".join(names) + f" | {names[-1]} / Go |\n|---:|" + "---:|" * (len(names) + 1))
for size in sorted({size for _, size in figures}):
    row = [statistics.median(figures[(name, size)]) for name in names]
    print(f"| {size} | " + " | ".join(f"{value:,.0f}" for value in row) + f" | {row[-1] / row[0]:.2f} |")
PYTHON

#!/usr/bin/env bash
# Measures the cost of signed files: compares a vault made with --signed with one made without it, in one run on one machine.
#
#     scripts/bench-signed.sh [--quick] [--runs N] [--dir DIR] [--out FILE]
#
#   --quick      small and short: to see that it works, not to quote
#   --runs N     medians of N runs (default 7); within each run the two vaults take turns
#   --dir DIR    directory for the ciphertext (default: a directory in /dev/shm, so that no disk hides the difference)
#   --out FILE   write the table to FILE as well
#
# Loads, in files of 2 MiB and one of 256 MiB:
#   create       files created, written and closed: us a file
#   open         files opened, their first 4 KiB read, and closed, in a fresh mount: us a file, the median
#   open again   the same once more
#   write        a file written from its beginning to its end, 1 MiB at a time, and closed: MB/s
#   overwrite    the same over what is there: MB/s
#   read         the same read in a fresh mount: MB/s
# The opens are measured with daemon and program on one processor: waking a process on another processor takes longer than an open, and
# its time differs from mount to mount. They are also measured without a rollback database, which verifies signatures in the background.
# A signed vault hashes the ciphertext, has signatures, and has tables of twice the size. `cargo bench --bench parts -- signed` measures
# the hashes and the signatures alone.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
kithfs=${KITHFS:-$here/target/release/kithfs}
runs=7 base=/dev/shm out='' size_mib=256 files=100
die() { echo "bench-signed: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
        --quick) runs=1 size_mib=16 files=5 ;;
        --runs | --dir | --out)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --runs) runs=$2 ;; --dir) base=$2 ;; --out) out=$2 ;; esac
            shift
            ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown option $1 (see --help)" ;;
    esac
    shift
done
case $runs in '' | *[!0-9]* | 0) die "--runs takes a number from 1" ;; esac
command -v python3 >/dev/null || die "python3 is missing"
[ -x "$kithfs" ] || die "$kithfs is missing: cargo build --release"
work=$(mktemp -d "$base/kithfs-bench.XXXXXX")
end() {
    local vault
    for vault in unsigned signed; do
        mountpoint -q "$work/$vault.mnt" && "$kithfs" umount "$work/$vault.mnt" >/dev/null 2>&1
    done
    rm -rf "$work"
}
trap end EXIT
echo "not a secret" >"$work/pass"
export KITHFS_PASSPHRASE_FILE=$work/pass XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config
"$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 "$work/unsigned" >/dev/null 2>&1
"$kithfs" init --own-identity --signed --name Ann --kdf-memory 32 --kdf-passes 1 "$work/signed" >/dev/null 2>&1
mkdir "$work/unsigned.mnt" "$work/signed.mnt"

python3 - "$kithfs" "$work" "$runs" "$files" "$size_mib" <<'PYTHON' | if [ -n "$out" ]; then tee "$out"; else cat; fi
import os, statistics, subprocess, sys, time

kithfs, work, runs, files, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
MIB = 1 << 20
data = os.urandom(MIB)

def run(*args):
    subprocess.run([kithfs, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

def stream(path, flags, act):
    begun = time.perf_counter()
    fd = os.open(path, flags, 0o600)
    for _ in range(size):
        act(fd)
    os.close(fd)
    return size * MIB / (time.perf_counter() - begun) / 1e6

def one(vault):
    store, mnt = f"{work}/{vault}", f"{work}/{vault}.mnt"
    got = {}
    run("mount", store, mnt)
    begun = time.perf_counter()
    for n in range(files):
        fd = os.open(f"{mnt}/{n}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, data)
        os.write(fd, data)
        os.close(fd)
    got["create"] = (time.perf_counter() - begun) / files * 1e6
    got["write"] = stream(f"{mnt}/large", os.O_WRONLY | os.O_CREAT, lambda fd: os.write(fd, data))
    subprocess.run(["sync", "-f", mnt], check=True)
    got["overwrite"] = stream(f"{mnt}/large", os.O_WRONLY, lambda fd: os.write(fd, data))
    run("umount", mnt)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    run("mount", "--no-rollback-memory", store, mnt)
    for load in ("open", "open again"):
        took = []
        for n in range(files):
            begun = time.perf_counter()
            fd = os.open(f"{mnt}/{n}", os.O_RDONLY)
            os.read(fd, 4096)
            os.close(fd)
            took.append((time.perf_counter() - begun) * 1e6)
        got[load] = statistics.median(took)
    run("umount", mnt)
    os.sched_setaffinity(0, allowed)
    run("mount", store, mnt)
    got["read"] = stream(f"{mnt}/large", os.O_RDONLY, lambda fd: os.read(fd, MIB))
    for name in os.listdir(mnt):
        os.unlink(f"{mnt}/{name}")
    run("umount", mnt)
    return got

all = {"unsigned": [], "signed": []}
for n in range(runs):
    for vault in list(all) if n % 2 == 0 else list(all)[::-1]:
        all[vault].append(one(vault))

print(f"| load | unsigned | signed | more time |\n|---|---:|---:|---:|")
for load, unit in [("create", "us"), ("open", "us"), ("open again", "us"), ("write", "MB/s"), ("overwrite", "MB/s"), ("read", "MB/s")]:
    a, b = (statistics.median(got[load] for got in all[vault]) for vault in ("unsigned", "signed"))
    more = b / a - 1 if unit == "us" else a / b - 1
    print(f"| {load}, {unit} | {a:.0f} | {b:.0f} | {more:+.0%} |")
PYTHON

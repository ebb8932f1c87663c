#!/usr/bin/env bash
# Runs two public test suites on a real mount: pjdfstest (the rules of POSIX for names, modes, owners and errors) and fsx (the contents of
# a file after any mixture of reads, writes, mappings, holes and truncations). See docs/conformance.md.
#
#     scripts/conformance.sh [--full] [--chunk SIZE] [--seed N] [pjdfstest] [fsx]
#
#   --full           fsx with 1,000,000 operations instead of 20,000, on a release build; takes an hour or more
#   --chunk, --seed  run only the part of fsx with this chunk size (4K or 256K) or this seed (1 to 4)
#
# The program is $KITHFS; without it the script builds one. Needs root: pjdfstest changes users, and only root may mount with
# `allow_other`, `suid` and `dev`. Both suites come from crates.io in the versions below and are built once, into target/conformance.
# Without /dev/fuse the script prints that it is skipped, and succeeds.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here"
say() { echo "conformance: $*" >&2; }
die() { say "$*"; exit 1; }

pjdfstest_version=0.2.2
fsx_version=0.3.2
full=no
suites=() chunks=(4K 256K) seeds=(1 2 3 4)
while [ $# -gt 0 ]; do
    argument=$1
    shift
    case $argument in
        --full) full=yes ;;
        --chunk) chunks=("${1:?a size}"); shift ;;
        --seed) seeds=("${1:?a number}"); shift ;;
        pjdfstest | fsx) suites+=("$argument") ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown argument $argument (see --help)" ;;
    esac
done
[ ${#suites[@]} -gt 0 ] || suites=(pjdfstest fsx)

[ "$(id -u)" -eq 0 ] || die "needs root"
if ! { : <> /dev/fuse; } 2>/dev/null; then
    say "skipped: /dev/fuse cannot be opened"
    exit 0
fi

tools=${CARGO_TARGET_DIR:-$here/target}/conformance
install_suite() {
    local stamp=$tools/$1-$2.installed
    [ ! -e "$stamp" ] || return 0
    say "building $1 $2"
    # Built outside the project, because the project's lint flags and lock file do not apply to the suite.
    (cd / && RUSTFLAGS='' cargo install --quiet --locked --force --version "=$2" --root "$tools" --target-dir "$tools/build" "$1")
    : > "$stamp"
}

if [ -n "${KITHFS:-}" ]; then
    kithfs=$KITHFS
elif [ "$full" = yes ]; then
    cargo build --release --locked
    kithfs=${CARGO_TARGET_DIR:-$here/target}/release/kithfs
else
    cargo build --locked
    kithfs=${CARGO_TARGET_DIR:-$here/target}/debug/kithfs
fi

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kithfs-conformance-XXXXXX")
chmod 755 "$scratch" # pjdfstest becomes other users on its way to the mount
point=$scratch/mnt
mkdir "$point" "$scratch/other"
echo 'a passphrase for a test' > "$scratch/passphrase"
export KITHFS_PASSPHRASE_FILE=$scratch/passphrase

# Tries several times: a program that looks at every mount of the machine, such as df, keeps this one busy for a moment.
unmount() {
    local try
    for try in 1 2 3 4 5 6 7 8; do
        ! mountpoint -q "$point" || "$kithfs" umount "$point" 2>"$scratch/umount" || { sleep "0.$try"; continue; }
        return 0
    done
    cat "$scratch/umount" >&2
    return 1
}
tidy() {
    unmount || "$kithfs" umount --lazy "$point" || true
    ! mountpoint -q "$scratch/other" || umount "$scratch/other"
    rm -rf --one-file-system "$scratch"
}
trap tidy EXIT

# vault NAME CHUNK-SIZE: makes a vault with the cheapest key stretching.
vault() {
    "$kithfs" init --own-identity --kdf-memory 32 --kdf-passes 1 --chunk-size "$2" "$scratch/$1" >/dev/null 2>&1
    chmod 755 "$scratch/$1" # the mount's root shows this mode
}
# mount_vault NAME [OPTIONS]: mounts a vault. OPTIONS let the kernel (default_permissions,dev) or the daemon (no_default_permissions) check
# permissions.
mount_vault() { "$kithfs" mount -o "allow_other,suid,${2:-default_permissions,dev}" "$scratch/$1" "$point"; }

run_pjdfstest() {
    install_suite pjdfstest "$pjdfstest_version"
    pjdfstest_with default_permissions,dev
    pjdfstest_with no_default_permissions
}

pjdfstest_with() {
    rm -rf "${scratch:?}/pjdfstest" "$scratch/sbin"
    vault pjdfstest 256K
    mount_vault pjdfstest "$1"
    mkdir "$point/tests"
    mountpoint -q "$scratch/other" || mount -t tmpfs -o size=1m none "$scratch/other" # what EXDEV needs
    # The cases that remount the mount read-only with mount(8) run separately: they would fail if another case had left a file open for
    # writing. mount(8) looks for a helper in /sbin. Ours is in a mount namespace, so the machine is not changed.
    local log=$scratch/pjdfstest.log remount=$scratch/pjdfstest-remount.log
    local conf=scripts/conformance/pjdfstest.toml
    "$tools/bin/pjdfstest" -c "$conf" -s "$scratch/other" -p "$point/tests" > "$log" 2>&1 || true
    mkdir "$scratch/sbin"
    cp -- "$kithfs" "$scratch/sbin/mount.fuse.kithfs"
    sed 's/^allow_remount = false$/allow_remount = true/' "$conf" > "$scratch/remount.toml"
    # shellcheck disable=SC2016
    unshare --mount --propagation slave bash -euc '
        sbin=$(readlink -f /sbin)
        mount -t overlay -o "lowerdir=$1/sbin:$sbin" overlay "$sbin"
        exec "$2" -c "$1/remount.toml" -p "$1/mnt/tests" erofs
    ' run "$scratch" "$tools/bin/pjdfstest" > "$remount" 2>&1 || true
    # The cases that have not passed must be exactly those in the list of exclusions.
    local ended
    for ended in "$log" "$remount"; do
        grep -q '^Summary:' "$ended" || { tail -n 60 "$ended"; die "pjdfstest did not run to its end"; }
    done
    cases() { sed -nE "s/^([a-z_0-9:]+) +($1)\$/\\1/p" "${@:2}" | sort -u; }
    cases ok "$log" "$remount" > "$scratch/passed"
    comm -23 <(cases 'FAILED|skipped' "$log" "$remount") "$scratch/passed" > "$scratch/not-passed"
    comm -12 <(cases FAILED "$log" "$remount") "$scratch/passed" >> "$scratch/not-passed"
    sed -E 's/#.*//; s/[[:space:]]+$//; /^$/d' scripts/conformance/pjdfstest.exclusions | sort > "$scratch/excluded"
    say "pjdfstest $pjdfstest_version with $1: $(wc -l < "$scratch/passed") cases passed, $(wc -l < "$scratch/not-passed") not"
    [ "$(wc -l < "$scratch/passed")" -ge 380 ] || die "fewer than 380 pjdfstest cases passed"
    if ! diff "$scratch/excluded" "$scratch/not-passed" > "$scratch/difference"; then
        grep -h -A4 -E ' FAILED$' "$log" "$remount" || true
        sed -n 's/^> \(.*\)/conformance: not passed and not excluded: \1/p; s/^< \(.*\)/conformance: excluded, but it passes: \1/p' "$scratch/difference" >&2
        exit 1
    fi
    unmount
    "$kithfs" fsck "$scratch/pjdfstest" >/dev/null || die "the vault is damaged after pjdfstest"
}

# Several seeds on vaults of the smallest and the usual chunk size. After each part the vault is mounted anew and the file compared.
run_fsx() {
    install_suite fsx "$fsx_version"
    local parts=1 operations=2500 done=0
    [ "$full" = no ] || { parts=5; operations=25000; }
    local chunk seed part sum
    for chunk in "${chunks[@]}"; do
        vault "fsx-$chunk" "$chunk"
        for seed in "${seeds[@]}"; do
            for part in $(seq "$parts"); do
                mount_vault "fsx-$chunk"
                if ! "$tools/bin/fsx" -q -f scripts/conformance/fsx.toml -N "$operations" -S "$((seed * 1000 + part))" -P "$scratch" \
                    "$point/file" > "$scratch/fsx.log" 2>&1; then
                    tail -n 60 "$scratch/fsx.log"
                    die "fsx: chunks of $chunk, seed $((seed * 1000 + part)): wrong contents"
                fi
                sum=$(sha256sum < "$point/file")
                unmount
                mount_vault "fsx-$chunk"
                [ "$sum" = "$(sha256sum < "$point/file")" ] || die "fsx: chunks of $chunk, seed $((seed * 1000 + part)): other contents after a remount"
                unmount
                done=$((done + operations))
            done
        done
        "$kithfs" fsck "$scratch/fsx-$chunk" >/dev/null || die "the vault is damaged after fsx"
    done
    say "fsx $fsx_version: $done operations, nothing wrong"
}

for suite in "${suites[@]}"; do
    "run_$suite"
done

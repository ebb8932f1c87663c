#!/usr/bin/env bash
# Builds the packages twice, from two copies of the last commit in folders with different names, and compares them byte by byte.
#
#     scripts/reproduce.sh [deb | rpm | tar]...     default: deb and tar
#
# Takes two whole builds. Prints the SHA-256 of each package.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for copy in first a/second-and-longer; do
    mkdir -p "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    (unset CARGO_TARGET_DIR && cd "$work/$copy" && scripts/package.sh "$@" >/dev/null)
done
for package in "$work"/first/target/package/*; do
    cmp -- "$package" "$work/a/second-and-longer/target/package/${package##*/}"
    (cd "${package%/*}" && sha256sum "${package##*/}")
done

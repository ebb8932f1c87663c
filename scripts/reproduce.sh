#!/usr/bin/env bash
# Builds the program twice, from two copies of the last commit in folders with different names, packs each build, and compares all packages
# byte by byte.
#
#     scripts/reproduce.sh [--program FILE] [deb | rpm | tar]...     default: deb, rpm and tar
#
#   --program FILE   pack this program in both folders instead of building it: compares the packing alone, in a minute
#
# Takes two whole builds. Prints the SHA-256 of each package. `rpm` needs the package rpm.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
given=()
if [ "${1-}" = --program ]; then
    given=(--program "$(realpath -- "$2")")
    shift 2
fi
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- deb rpm tar
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for copy in first a/second-and-longer; do
    mkdir -p "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    (unset CARGO_TARGET_DIR && cd "$work/$copy" && scripts/package.sh "${given[@]}" "$@" >/dev/null)
done
compared=0
for package in "$work"/first/target/package/*; do
    cmp -- "$package" "$work/a/second-and-longer/target/package/${package##*/}"
    (cd "${package%/*}" && sha256sum "${package##*/}")
    compared=$((compared + 1))
done
# A kind of package that was not made must not count as the same.
[ "$compared" = $# ] || { echo "reproduce: $compared packages were compared, not $#" >&2; exit 1; }

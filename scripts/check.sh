#!/usr/bin/env bash
# Runs all checks, as CI does. Stops at the first one that fails.
#
#     scripts/check.sh
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

step() {
    echo "== $*" >&2
    "$@"
}

step scripts/tools.sh --tests
step cargo fmt --check
step cargo clippy --locked --all-targets -- -D warnings
step cargo test --locked
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --no-deps

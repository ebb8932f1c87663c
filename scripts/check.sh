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
step cargo test --locked --no-run

# The binaries that mount wait more than they compute, so each runs more tests at a time than there are processors, and the others run beside
# them. They do not run beside one another: some of their tests have a mount namespace of their own, and a mount that is in use there cannot
# be unmounted.
mounting=(cli fsck mount project sync)
others=()
for main in tests/*/main.rs; do
    name=$(basename -- "$(dirname -- "$main")")
    case " ${mounting[*]} " in *" $name "*) ;; *) others+=(--test "$name") ;; esac
done
beside=$(mktemp)
cargo test --locked --lib --bins "${others[@]}" >"$beside" 2>&1 &
pid=$!
# A check that is interrupted starts no further binary of the others.
trap 'rm -f -- "$beside"; kill "$pid" 2>/dev/null || :' EXIT
status=0
step cargo test --locked "${mounting[@]/#/--test=}" -- --test-threads "$((2 * $(nproc)))" || status=$?
wait "$pid" || status=$?
echo "== beside it: cargo test --locked --lib --bins ${others[*]}" >&2
cat "$beside"
[ "$status" -eq 0 ] || exit "$status"
step cargo test --locked --doc
RUSTDOCFLAGS="-D warnings" step cargo doc --locked --no-deps

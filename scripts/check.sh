#!/usr/bin/env bash
# Runs all checks, as CI does. Fails if one of them fails.
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
step cargo test --locked --no-run

outputs=$(mktemp -d)
names=()
declare -A running
# An interrupted check ends what it has started: each command beside the others has a process group, with what cargo runs.
trap 'for group in "${running[@]}"; do kill -- "-$group" 2>/dev/null || :; done; rm -rf -- "$outputs"' EXIT
trap 'exit 130' INT TERM
# beside NAME COMMAND...: runs a command beside the others. Its output is printed when all have ended.
beside() {
    local name=$1
    names+=("$name")
    set -m
    (
        SECONDS=0
        trap 'echo "== $name has ended after $SECONDS s" >&2' EXIT
        "${@:2}"
    ) </dev/null >"$outputs/$name" 2>&1 &
    running[$name]=$!
    set +m
}

# The tests that mount wait more than they compute, and a process runs them one at a time (tests/support/turn.rs). So several processes share
# them; the second one of `mount` has all tests that the first one has not.
mounting=(cli fsck mount project sync)
others=()
for main in tests/*/main.rs; do
    name=$(basename -- "$(dirname -- "$main")")
    case " ${mounting[*]} durability " in *" $name "*) ;; *) others+=(--test "$name") ;; esac
done
threads=(--test-threads "$((2 * $(nproc)))")
some=(hostile:: posix:: fuse_adapter:: random_shared:: uring::)
beside mount-1 cargo test --locked --test mount -- "${threads[@]}" "${some[@]}"
beside mount-2 cargo test --locked --test mount -- "${threads[@]}" "${some[@]/#/--skip=}"
beside mounting cargo test --locked --no-fail-fast --test cli --test fsck --test project -- "${threads[@]}"
beside sync cargo test --locked --test sync -- "${threads[@]}"
# The other tests compute. They have a lower priority, because the tests above wait with deadlines.
beside durability nice -n 5 cargo test --locked --test durability
beside others nice -n 5 cargo test --locked --no-fail-fast --lib --bins "${others[@]}"

# Compiling begins only when all tests have begun, because cargo locks the build directory.
lint() {
    renice -n 10 -p "$BASHPID" >/dev/null
    step cargo clippy --locked --all-targets -- -D warnings
    step cargo test --locked --doc
    # There are no examples, but with --examples cargo enables the features of dev-dependencies. Without it, cargo would check nearly all
    # dependencies anew.
    RUSTDOCFLAGS="-D warnings" step cargo doc --locked --no-deps --lib --bins --examples
}
for name in "${names[@]}"; do
    until grep -q '^ *Running ' "$outputs/$name" || ! kill -0 "${running[$name]}" 2>/dev/null; do sleep 0.1; done
done
beside lint lint

status=0
for name in "${names[@]}"; do
    wait "${running[$name]}" || status=$?
    echo "== $name" >&2
    cat "$outputs/$name"
done
exit "$status"

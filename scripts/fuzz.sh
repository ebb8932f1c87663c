#!/bin/sh
# Runs the fuzz targets under libFuzzer, which follows coverage: stable Rust, no nightly.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]      runs each target (default: all) for SECONDS (default: 60);
#                                              with 0, runs the seeds and the kept inputs once
#   scripts/fuzz.sh list                       names of the targets
#
# One target runs on each processor at a time; KITHFS_FUZZ_JOBS sets another number of targets. A failing input is printed.
# Inputs that reach new code are kept in target/fuzz-corpus/TARGET, failing ones in target/fuzz-failures/TARGET. To run one input again:
#   KITHFS_FUZZ_INPUT=FILE scripts/fuzz.sh 0 TARGET
# Exit status: 0 if every target held, 1 if one did not, 2 if the fuzzer could not be built.
set -u
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.." || exit 2

top="${CARGO_TARGET_DIR:-target}"

# Runs one target with the built fuzzer. The script calls itself with --one for this, several times concurrently.
one() {
    fuzzer=$1 seconds=$2 name=$3
    corpus="$top/fuzz-corpus/$name"
    failures="$top/fuzz-failures/$name"
    mkdir -p "$corpus" "$failures"
    if [ -n "${KITHFS_FUZZ_INPUT-}" ]; then
        KITHFS_FUZZ_TARGET=$name "$fuzzer" "$KITHFS_FUZZ_INPUT"
        return
    fi
    log="$failures/log"
    # Failing inputs of earlier runs are older than this file.
    : > "$failures/begun"
    # For libFuzzer, 0 seconds are no limit.
    limit=-max_total_time=$seconds
    [ "$seconds" -gt 0 ] || limit=-runs=0
    # A target counts as hanging if one input takes longer than 10 seconds. The target itself checks its memory.
    if KITHFS_FUZZ_TARGET=$name KITHFS_FUZZ_CORPUS=$corpus "$fuzzer" "$limit" -timeout=10 -rss_limit_mb=2048 \
        -max_len=65536 -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$failures/" "$corpus" > "$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "$name: held, $runs runs in $seconds s, $covered places reached, $(ls "$corpus" | wc -l) inputs kept"
        return
    fi
    # Printed in one piece, because another target may print at the same time.
    report=$(
        echo "$name: FAILED, see $log"
        grep -v '^#' "$log" | tail -n 40
        find "$failures" -type f -newer "$failures/begun" ! -name log ! -name begun | while read -r input; do
            echo "$name: input of $(wc -c < "$input") bytes in $input, in hex:"
            od -An -v -tx1 "$input" | tr -d ' \n'
            echo
            echo "$name: run it again with: KITHFS_FUZZ_INPUT=$input scripts/fuzz.sh 0 $name"
        done
    )
    printf '%s\n' "$report"
    return 1
}
if [ "${1-}" = --one ]; then
    shift
    one "$@"
    exit
fi

# libFuzzer's counters, from LLVM's built-in coverage pass. They make the program slow, so it has a target directory of its own.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
host=$(rustc -vV | sed -n 's/^host: //p')

# libFuzzer is written in C++.
scripts/tools.sh c++:g++ || exit 2

# A given --target keeps the flags away from build scripts and macros.
build=$(RUSTFLAGS="$flags" cargo build --quiet --features fuzz \
    --bin fuzz_coverage --target "$host" --target-dir "$top/fuzz-build" --message-format json) || exit 2
fuzzer=$(printf '%s\n' "$build" | sed -n 's/.*"name":"fuzz_coverage".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$fuzzer" ] || { echo "fuzz.sh: the fuzzer was not built" >&2; exit 2; }

if [ "${1-}" = list ]; then
    KITHFS_FUZZ_TARGET=list exec "$fuzzer" 2> /dev/null
fi
seconds=60
case "${1-}" in
    '' | *[!0-9]*) ;;
    *) seconds=$1; shift ;;
esac
[ $# -gt 0 ] || set -- $(KITHFS_FUZZ_TARGET=list "$fuzzer" 2> /dev/null)

# If a target fails, xargs continues with the others and returns 123.
if printf '%s\n' "$@" | xargs -n 1 -P "${KITHFS_FUZZ_JOBS:-$(nproc)}" scripts/fuzz.sh --one "$fuzzer" "$seconds"; then
    echo "fuzz.sh: all targets held"
else
    echo "fuzz.sh: targets failed, see above" >&2
    exit 1
fi

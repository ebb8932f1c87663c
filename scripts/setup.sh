#!/usr/bin/env bash
# Sets up a machine, builds kithfs and shows its main use: makes a vault, mounts it, and copies files in and out.
#
#     scripts/setup.sh [--tools-only]
#
#   --tools-only   only install what is missing
#
# As root on a Debian system it installs the packages that building and running need; elsewhere it lists what is missing. It installs a Rust
# toolchain by rustup only if cargo is missing or too old. It can be run again at any time, and changes nothing that is installed already.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here"
say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

tools_only=no
case ${1:-} in
    '') ;;
    --tools-only) tools_only=yes ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
esac

# The tools that building and running need. The tests and the benchmarks install their own tools (scripts/tools.sh).
scripts/tools.sh cc:gcc cc:libc6-dev fusermount3:fuse3 mountpoint:util-linux

# Cargo.toml states the oldest Rust version that can build the project.
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
new_enough() {
    local have
    have=$(cargo --version 2>/dev/null | awk '{ print $2 }')
    [ -n "$have" ] && [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ]
}
if ! new_enough && [ -r "${CARGO_HOME:-$HOME/.cargo}/env" ]; then
    # shellcheck disable=SC1091
    . "${CARGO_HOME:-$HOME/.cargo}/env"
fi
if new_enough; then
    :
elif command -v rustup >/dev/null; then
    say "cargo is missing or older than $wanted: rustup installs the stable toolchain"
    rustup toolchain install stable --profile minimal >&2
    rustup override set stable >&2 # for this directory only
else
    say "cargo is missing or older than $wanted: installing a Rust toolchain with rustup, for this user only"
    scripts/tools.sh curl:curl
    [ -e /etc/ssl/certs/ca-certificates.crt ] || scripts/tools.sh update-ca-certificates:ca-certificates
    curl --proto '=https' --tlsv1.2 -fsS https://sh.rustup.rs |
        sh -s -- -y -q --no-modify-path --default-toolchain stable --profile minimal >&2
    # shellcheck disable=SC1091
    . "${CARGO_HOME:-$HOME/.cargo}/env"
fi
new_enough || die "cargo is still older than $wanted"
# Does what udev does, if no udev runs: every user may open the device, and fusermount3 decides what they may mount.
if [ -c /dev/fuse ] && [ "$(id -u)" -eq 0 ] && [ "$(stat -c %a /dev/fuse)" = 600 ]; then
    chmod 666 /dev/fuse
fi
if [ ! -e /dev/fuse ]; then
    [ "$(id -u)" -ne 0 ] || modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || say "there is no /dev/fuse: nothing can be mounted here (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
fi
[ "$tools_only" = no ] || exit 0

say "building"
cargo build --release --locked
# Builds may go elsewhere: CARGO_TARGET_DIR, or a line in ~/.cargo/config.toml.
built=$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/kithfs
KITHFS=$built scripts/demo.sh
[ "$built" != "$here/target/release/kithfs" ] || built=target/release/kithfs
say "the program is $built; put it in the PATH, for example: install $built /usr/local/bin"

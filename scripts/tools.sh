#!/usr/bin/env bash
# Installs missing tools that the calling script needs.
#
#     scripts/tools.sh COMMAND:PACKAGE...     installs Debian's PACKAGE if there is no COMMAND
#     scripts/tools.sh --tests                installs the tools of the tests, with rustfmt and clippy
#
# As root on a Debian system it installs the packages; elsewhere it names them and fails.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
say() { echo "tools: $*" >&2; }

needs=("$@")
if [ "${1-}" = --tests ]; then
    needs=(
        fusermount3:fuse3 git:git mount:mount mountpoint:util-linux setfattr:attr setfacl:acl setcap:libcap2-bin rsync:rsync
        perl:perl make:make ps:procps sqlite3:sqlite3 mkfs.xfs:xfsprogs
        age:age ssh-keygen:openssh-client python3:python3 dbus-daemon:dbus-daemon gnome-keyring-daemon:gnome-keyring
        pinentry-curses:pinentry-curses zsh:zsh fish:fish
    )
    # Looks for the modules in Debian's Python, not in another one in the PATH.
    for module in dbusmock argon2 cryptography; do
        /usr/bin/python3 -c "import $module" 2>/dev/null || needs+=("$module:python3-$module")
    done
    if command -v rustup >/dev/null && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        rustup component add rustfmt clippy >&2
    fi
fi
packages=()
for need in "${needs[@]}"; do
    command -v "${need%%:*}" >/dev/null || packages+=("${need#*:}")
done
[ ${#packages[@]} -gt 0 ] || exit 0
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
else
    say "missing: ${packages[*]}; install them (as root on Debian: apt-get install ${packages[*]}) and run this again"
    exit 1
fi

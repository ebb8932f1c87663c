#!/usr/bin/env bash
# Runs real programs in a mount and verifies their results: all of scripts/programs/*.sh, or those that are named.
#
#     scripts/programs.sh [--install] [NAME...]       e.g. scripts/programs.sh sqlite git
#
#   --install    install the programs that are missing (as root on Debian); those for podman and samba only if these are named
#
# Each of these scripts can be run by itself. Exit status: 0 if all passed; 1 if one failed. Scripts whose program is missing are listed.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

packages=(git sqlite3 postgresql postgresql-contrib rsync tar acl attr qemu-utils rclone libcap2-bin util-linux python3 stress-ng)
if [ "${1-}" = --install ]; then
    shift
    for each in "$@"; do
        case $each in
            podman) packages+=(podman runc conmon busybox-static) ;;
            samba) packages+=(samba samba-vfs-modules samba-testsuite smbclient) ;;
        esac
    done
    export DEBIAN_FRONTEND=noninteractive
    dpkg -s "${packages[@]}" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
fi
names=("$@")
[ ${#names[@]} -gt 0 ] || for script in programs/*.sh; do names+=("$(basename -- "$script" .sh)"); done

passed=0 failed=() skipped=()
for each in "${names[@]}"; do
    began=$SECONDS status=0
    timeout --kill-after=30 900 "programs/$each.sh" || status=$?
    case $status in
        0) passed=$((passed + 1)); echo "$each: held, $((SECONDS - began)) s" ;;
        77) skipped+=("$each") ;;
        *) failed+=("$each"); echo "$each: FAILED, exit status $status" ;;
    esac
done
[ ${#skipped[@]} -eq 0 ] || echo "programs: skipped: ${skipped[*]}"
[ ${#failed[@]} -eq 0 ] || { echo "programs: failed: ${failed[*]}"; exit 1; }
echo "programs: $passed held"

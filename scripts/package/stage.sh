#!/usr/bin/env bash
# Copies every file of an installation below a directory. All packages take their files from there.
#
#     scripts/package/stage.sh PROGRAM DIR
#
# PROGRAM is the built kithfs; DIR becomes the root of the package. If SOURCE_DATE_EPOCH is set, it is the time of every file.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
[ $# -eq 2 ] || { echo "usage: stage.sh PROGRAM DIR" >&2; exit 1; }

project=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
program=$1 root=$2
umask 022

install -D -m 755 "$program" "$root/usr/bin/kithfs"
DESTDIR=$root "$project/mount-helper/install.sh" --prefix /usr --program ../bin/kithfs >/dev/null

man=$root/usr/share/man/man1
mkdir -p "$man"
"$program" man "$man"
gzip -9n "$man"/*.1
# Users of mount(8) look for a manual page with the name of the helper.
mkdir -p "$root/usr/share/man/man8"
ln -s ../man1/kithfs-mount.1.gz "$root/usr/share/man/man8/mount.kithfs.8.gz"
ln -s ../man1/kithfs-mount.1.gz "$root/usr/share/man/man8/mount.fuse.kithfs.8.gz"

completion() {
    mkdir -p "$root/usr/share/$(dirname -- "$2")"
    "$program" completion "$1" >"$root/usr/share/$2"
}
completion bash bash-completion/completions/kithfs
completion zsh zsh/vendor-completions/_kithfs
completion fish fish/vendor_completions.d/kithfs.fish

doc=$root/usr/share/doc/kithfs
install -d "$doc/examples"
install -m 644 "$project"/{README,SPEC,THREAT_MODEL,SECURITY}.md "$project"/docs/*.md "$doc"
install -m 644 "$project/scripts/package/fuse-io-uring.conf" "$doc/examples"

"$project/scripts/package/sbom.py" >"$doc/kithfs.spdx.json"
chmod 644 "$doc/kithfs.spdx.json"

install -D -m 644 "$project/scripts/package/kithfs@.service" "$root/usr/lib/systemd/user/kithfs@.service"
install -D -m 644 "$project/scripts/package/sirikali.json" "$root/usr/share/SiriKali/backends/kithfs.json"

find "$root" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-$(date +%s)}" {} +

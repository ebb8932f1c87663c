#!/usr/bin/env bash
# tar with all metadata, and a big source tree: the unpacked tree equals the packed one, and packing it again makes the same archive.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need tar setfattr
make_vault && mount_vault

# Takes the largest tree of sources or texts that this machine has.
tree=$(rustc --print sysroot 2>/dev/null || true)/lib/rustlib/src/rust/library
for other in "$tree" /usr/include /usr/share; do [ ! -d "$other" ] || { tree=$other; break; }; done
pack() { tar --sort=name --numeric-owner --xattrs --xattrs-include='*' --acls -S --pax-option=delete=atime,delete=ctime -C "$1" -cf - .; }
mkdir "$work/source"
# Takes at most 200 MB of it, so that the run is similar on every machine.
(cd "$tree" && find . -xdev -type f -printf '%s %P\0' | awk -v RS='\0' -v ORS='\0' '{ s += $1; if (s < 200e6 && NR < 15000) { sub(/^[0-9]+ /, ""); print } }' |
    tar --null -T - -cf - 2>/dev/null) | tar -C "$work/source" -xf -
setfattr -n user.note -v 'text' "$(find "$work/source" -type f | head -n 1)"
pack "$work/source" >"$work/a.tar"
mkdir "$plain/tree"
tar --xattrs --xattrs-include='*' --acls --same-owner -S -C "$plain/tree" -xpf "$work/a.tar"
same_tree "$work/source" "$plain/tree"
remount_vault
same_tree "$work/source" "$plain/tree"
pack "$plain/tree" | cmp - "$work/a.tar" || die "the archive of the unpacked tree differs from the archive that was unpacked"
say "$(find "$plain/tree" -type f | wc -l) files"
rm -r "$plain/tree"
[ -z "$(ls -A "$plain")" ] || die "something is left after rm -r"
umount_vault && check_vault

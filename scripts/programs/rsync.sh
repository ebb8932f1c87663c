#!/usr/bin/env bash
# rsync -aHAXS in and out again: hard links, ACLs, extended attributes, capabilities, holes, times; a second run finds nothing to do.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need rsync setfacl setfattr setcap
[ "$(id -u)" -eq 0 ] || skip "needs root, for owners, ACLs and capabilities"
make_vault && mount_vault

src=$work/source
mkdir -p "$src/dir/deep" "$src/ro"
for n in $(seq 200); do head -c $((n * 131)) /dev/urandom >"$src/dir/file $n"; done
head -c 300000 /dev/urandom >"$src/big" && ln "$src/big" "$src/dir/hard link"
ln -s 'dir/file 1' "$src/link" && ln -s /nowhere "$src/dangling"
truncate -s 8M "$src/sparse" && dd if=/dev/urandom of="$src/sparse" bs=4096 count=3 seek=700 conv=notrunc status=none
mkfifo "$src/fifo" && mknod "$src/null" c 1 3
cp /bin/true "$src/program" && setcap cap_net_raw+ep "$src/program"
chmod 4755 "$src/dir/file 2" && chown 12345:54321 "$src/dir/file 3" && chmod 000 "$src/dir/file 4"
setfattr -n user.colour -v 'green' "$src/dir/file 5" && setfattr -n trusted.secret -v 0x00ff00 "$src/dir/deep" && setfattr -n user.empty "$src/dir/file 6"
setfacl -m u:12345:rwx,g:54321:r "$src/dir/file 7" && setfacl -d -m u:12345:rwx "$src/dir/deep" && touch "$src/dir/deep/inherits"
# By default rsync compares times in whole seconds, so no file may have a time within the present second.
find "$src" -depth -exec touch -h -d '2005-05-05 05:05:05.123456789' {} +
touch -d '1960-02-03 04:05:06.789012345' "$src/dir/file 8" && touch -d '2038-01-20 00:00:00.000000001' "$src/dir/file 9"
chmod 555 "$src/ro" && touch -d '2001-01-01 01:01:01.5' "$src/ro" "$src/dir"

differences() { rsync -aHAXSn --checksum --delete --itemize-changes "$1/" "$2/"; }
rsync -aHAXS "$src/" "$plain/copy/"
[ -z "$(differences "$src" "$plain/copy")" ] || die "the copy differs: $(differences "$src" "$plain/copy")"
remount_vault
[ -z "$(differences "$src" "$plain/copy")" ] || die "the copy differs after a remount: $(differences "$src" "$plain/copy")"
rsync -aHAXS "$plain/copy/" "$work/back/"
[ -z "$(differences "$src" "$work/back")" ] || die "what came back differs: $(differences "$src" "$work/back")"
diff <(metadata "$src") <(metadata "$work/back") || die "metadata of what came back differs"
[ "$(getcap "$plain/copy/program" | sed 's/.*program//')" = "$(getcap "$src/program" | sed 's/.*program//')" ] || die "the capability is gone"
acls() { (cd "$1" && find . ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -n 2>/dev/null); }
diff <(acls "$src") <(acls "$plain/copy") || die "ACLs differ"
[ "$(du -k "$plain/copy/sparse" | cut -f1)" -lt 200 ] || die "the sparse file has no holes any more"
# Updates the copy in place.
echo changed >>"$src/dir/file 10" && head -c 1000 /dev/urandom | dd of="$src/big" bs=1000 seek=100 conv=notrunc status=none
rsync -aHAX --inplace --no-whole-file "$src/" "$plain/copy/"
[ -z "$(differences "$src" "$plain/copy")" ] || die "the copy differs after an update in place"
umount_vault && check_vault

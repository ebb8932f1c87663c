#!/usr/bin/env bash
# Maildir delivery by several processes (write to tmp, fsync, link into new, unlink), with a reader that moves mail to cur meanwhile.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need python3
make_vault && mount_vault
mkdir -p "$plain/Maildir/tmp" "$plain/Maildir/new" "$plain/Maildir/cur"
cat >"$work/deliver.py" <<'PY'
import hashlib, os, sys
box, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(count):
    body = (f"From: {who}\nSubject: {n}\n\n" + f"{who} {n} " * (n % 400)).encode()
    name = f"{n:06}.{who}.host"
    tmp, new = f"{box}/tmp/{name}", f"{box}/new/{name},H={hashlib.sha256(body).hexdigest()}"
    fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, body)
    os.fsync(fd)
    os.close(fd)
    os.link(tmp, new)
    os.unlink(tmp)
PY
cat >"$work/read.py" <<'PY'
import hashlib, os, sys
box, wanted = sys.argv[1], int(sys.argv[2])
seen = set()
while len(seen) < wanted:
    for name in os.listdir(f"{box}/new"):
        body = open(f"{box}/new/{name}", "rb").read()
        assert hashlib.sha256(body).hexdigest() == name.split("H=")[1], f"{name} is not what was delivered"
        os.rename(f"{box}/new/{name}", f"{box}/cur/{name}:2,S")
        assert name not in seen, f"{name} came twice"
        seen.add(name)
PY
pids=()
for who in a b c d; do timeout 300 python3 "$work/deliver.py" "$plain/Maildir" $who 250 & pids+=($!); done
timeout 300 python3 "$work/read.py" "$plain/Maildir" 1000 || die "the reader failed"
for pid in "${pids[@]}"; do wait "$pid" || die "a delivery failed"; done
remount_vault
[ "$(ls "$plain/Maildir/cur" | wc -l)" -eq 1000 ] || die "mail is missing"
[ -z "$(ls -A "$plain/Maildir/tmp" "$plain/Maildir/new" | grep -v :)" ] || die "mail is left in tmp or new"
python3 - "$plain/Maildir/cur" <<'PY' || die "mail is damaged"
import hashlib, os, sys
for name in os.listdir(sys.argv[1]):
    body = open(f"{sys.argv[1]}/{name}", "rb").read()
    assert hashlib.sha256(body).hexdigest() == name.split("H=")[1].split(":")[0], name
PY
umount_vault && check_vault

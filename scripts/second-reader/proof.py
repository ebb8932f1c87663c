#!/usr/bin/python3
"""The parts of scripts/second-reader.sh that compare read-vault.py with the program, or with the expected results in the repository.

    proof.py frozen VAULTS WORK         the frozen vaults, against expected.txt beside each, opened by each of their secrets
    proof.py vectors DIR                the golden vectors: what is decoded, and the kind of each failure
    proof.py tree DIR                   makes a tree of files of all kinds, sizes and names
    proof.py change DIR                 changes it as programs would: overwrites, cuts, holes, renamed directories
    proof.py overwrite DIR              overwrites and syncs files of it; nothing is made, renamed or removed
    proof.py overwritten DIR            checks that these bytes are there
    proof.py attribute PATH...          sets an attribute on each
    proof.py small DIR                  makes a small tree of files of all kinds, for flips
    proof.py flips COUNT SEED KITHFS VAULT WORK
                                        flips single bits of a vault, cuts files: both return the true bytes or an error, and agree on which
    proof.py compare A B                two trees: contents, kinds, modes, owners, times, links, attributes
"""
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import types
from pathlib import Path
from random import Random

READER = Path(__file__).resolve().parent.parent / "read-vault.py"


def load_reader():
    loader = importlib.machinery.SourceFileLoader("read_vault", str(READER))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("read_vault", loader))
    sys.modules["read_vault"] = module  # dataclasses look for it there
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def walk(tree: bytes):
    """All below a directory: path in it, path, status."""
    for parent, directories, files in os.walk(tree):
        for name in sorted(directories + files):
            path = os.path.join(parent, name)
            yield path[len(tree) + 1:], path, os.lstat(path)


def attributes(path: bytes) -> dict[str, bytes]:
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}


def export(vault, out, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run([READER, *options, vault, "export", out], capture_output=True, text=True)


# The frozen vaults.

def facts(tree: bytes, blake3) -> set[str]:
    """The lines of expected.txt for a tree of plain files."""
    found = set()
    for name, path, status in walk(tree):
        shown = "/".join(part.hex() for part in name.split(b"/"))
        if stat.S_ISDIR(status.st_mode):
            found.add(f"dir {shown} 0 -")
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)
            found.add(f"symlink {shown} {len(target)} {target.hex()}")
        elif stat.S_ISFIFO(status.st_mode):
            found.add(f"fifo {shown} 0 -")
        else:
            data = Path(os.fsdecode(path)).read_bytes()
            found.add(f"file {shown} {len(data)} {blake3(data).hex()}")
        for attribute, value in attributes(path).items():
            found.add(f"xattr {shown} {attribute.encode().hex()} {value.hex()}")
    return found


def frozen(vaults: str, work: str) -> int:
    reader, bad = load_reader(), 0
    for vault in sorted(Path(vaults).iterdir()):
        copy = Path(work) / vault.name
        shutil.copytree(vault / "vault", copy, symlinks=True)
        lines = (vault / "expected.txt").read_text().splitlines()
        secrets = dict(line.split(" ", 1) for line in lines[:7])
        expected = set()
        for line in lines[7:]:
            kind, _, rest = line.partition(" ")
            if kind == "store-fifo":
                os.mkfifo(copy / rest)
            elif kind == "store-xattr":
                name, value = rest.split(" ")
                os.setxattr(copy / name, "user.kithfs", bytes.fromhex(value))
            else:
                expected.add(line)
        public = reader.identity_of_text(secrets["identity"])
        if reader.fingerprint(public) != secrets["fingerprint"]:
            print(f"{vault.name}: another fingerprint")
            bad += 1
        for kind in ("passphrase", "recovery-code", "key-file", "age-identity"):
            file, out = Path(work) / "secret", Path(work) / "plain"
            file.write_bytes(bytes.fromhex(secrets[kind]) if kind == "key-file" else secrets[kind].encode())
            option = f"--{kind}" if kind in ("key-file", "age-identity") else f"--{kind}-file"
            done = export(copy, out, option, str(file))
            found = facts(os.fsencode(out), reader.blake3)
            # The one entry that nothing explains is noted.
            said = [line for line in done.stderr.splitlines() if not line.endswith("nothing explains that it is in this directory")]
            if done.returncode or said or found != expected:
                bad += 1
                print(f"{vault.name} by its {kind}: exit status {done.returncode}\n{done.stderr}", end="")
                for line in sorted(found ^ expected):
                    print(("+ " if line in found else "- ") + line[:200])
            shutil.rmtree(out)
        print(f"{vault.name}: {len(expected)} facts")
    return bad


# The golden vectors.

class Anything:
    """A vector contains the key, but no number or commitment of its epoch."""

    def __eq__(self, other) -> bool:
        return True

    def __getitem__(self, part) -> "Anything":
        return self


class ShareOfVectors:
    """The parts of a share that a single structure needs."""

    def __init__(self, reader, given: dict[str, str]) -> None:
        self.reader, self.id, self.suite = reader, bytes.fromhex(given.get("share", "")), int(given.get("suite", "1"))
        self.signed = "signed" in given
        epoch = types.SimpleNamespace(number=Anything(), commitment=Anything(),
                                      **{name.replace("-", "_"): bytes.fromhex(given[name]) for name in ("records-key", "header-key") if name in given})
        self.descriptor = types.SimpleNamespace(chunk_log2=int(given.get("chunk-log2", "12")))
        self.epochs = [epoch]

    def epochs_of(self, number: int):
        # A vector has one key, whatever the number: another number is another associated data.
        return self.epochs

    def check_signature(self, purpose, author, signer, signature, message, whole):
        self.reader.verify_signature(purpose, signer, message, signature)


def read_vector(reader, kind: str, given: dict[str, str], data: bytes) -> dict[str, object]:
    """The reader's results for a vector, under the names of the vector's fields."""
    share, r = ShareOfVectors(reader, given), reader

    def known(name: str) -> bytes:
        return bytes.fromhex(given[name])

    def hashed(name: str, found: bytes) -> None:
        if name in given and found != known(name):
            raise r.Fault("unauthentic", "another hash")

    if kind == "chunk-table":
        layout = r.Layout(int(given["chunk-log2"]), share.signed)
        hashed("hash", r.blake3(b"kithfs1\0" + data))
        salt, epoch, entries = r.parse_table(share, layout, data)
        return {"salt": salt, "epoch": epoch} | {f"segment-{i}": None for i in range(len(entries))}
    if kind == "index-block":
        if len(data) < 4096:
            raise r.Fault("truncated", "the block ends too early")
        hashed("hash", r.blake3(b"kithfs1" + bytes([int(given["level"])]) + data))
        return {f"child-{i}": data[32 * i:32 * i + 32] for i in range(128)}
    if kind == "segment":
        cipher = r.segment_cipher(share.suite, known("file-key"), known("salt"))
        associated = (b"KSEG" + share.id + known("file-id") + r.u(8, int(given["chunk"])) + r.u(4, int(given["segment"])) + r.u(2, len(data))
                      + r.u(4, int(given["epoch"])) + r.u(1, share.suite) + b"\0")
        hashed("hash", r.blake3(b"kithfs1\xfe" + data))
        return {"plain": cipher.decrypt(known("nonce"), data + known("tag"), associated)}
    if kind == "file-header":
        header = r.open_header(share, data)
        return {"epoch": header.epoch, "file-id": header.file_id, "size": header.size, "version": header.version, "root": header.root,
                "oldest-epoch": header.oldest, "data": header.data} | ({"author": header.author, "signer": header.signer} if share.signed else {})
    if kind == "identity-file":
        for name, slot in (("passphrase", r.PASSPHRASE), ("recovery-code", r.RECOVERY_CODE), ("key-file", r.KEY_FILE), ("age-identity", r.AGE)):
            if name in given:
                secret = (r.recovery_code(given[name]) if slot == r.RECOVERY_CODE
                          else given[name].encode() if slot == r.AGE else known(name))
                return {"public": r.open_identity_file(data, slot, secret).public}
        return {"public": r.parse_identity_file(data)[1]}
    if kind == "share-descriptor":
        found = r.parse_descriptor(data)
        return {"suite": found.suite, "signed": str(found.signed).lower(), "isolated": str(found.isolated).lower(),
                "chunk-log2": found.chunk_log2, "longest-name": found.longest_name, "founder": found.founder, "share-id": found.id}
    if kind == "slot-block":
        block = r.parse_slot_block(data)
        hashed("root", block.root)
        return {"epoch": block.epoch, "share": block.share_id, "ephemeral": block.ephemeral, "slots": len(block.slots)}
    if kind == "members":
        return {f"member-{i}": None for i, _ in enumerate(r.parse_members(data))}
    if kind == "manifest":
        found = r.parse_manifest(data)
        return {"sequence": found.sequence, "epoch": found.epoch, "share": found.share_id, "hash": found.hash, "signer": found.signer,
                "file-name": found.file_name().decode(), "previous": found.previous, "commitment": found.commitment}
    if kind == "invitation":
        found = r.parse_invitation(data)
        return {"share-id": found.share_id, "sequence": found.sequence, "head": found.head, "admin": found.admin, "invited": found.invited}
    if kind == "inventory":
        _, root, file_hash = r.parse_inventory(data)
        hashed("root", root)
        hashed("file-hash", file_hash)
        return {"root": root, "file-hash": file_hash}
    if kind == "journal-head":
        suite, share_id, journal_id, owner = r.parse_journal_head(data)
        return {"suite": suite, "share": share_id, "id": journal_id, "owner": owner}
    if kind == "journal-record":
        generation, sequence, record, _ = r.open_journal_record(data, share, known("journal-id"), known("journal-key"))
        return {"generation": generation, "sequence": sequence, "path": record.path, "file-id": record.file_id, "base": record.base,
                "result": record.result, "cipher-length": record.length}
    if kind == "evidence":
        opened = r.open_sealed_record(share, b"KMOV", data, b"")
        found = r.parse_evidence(opened.content)
        place = r.letters(r.expand(known("names-key"), "moved", found[1]))
        path = b"+moved/" + place + b"/" + r.letters(r.blake3(data))
        return {"from": found[0], "to": found[1], "path": path.decode(), "author": opened.author, "signer": opened.signer}
    if kind == "long-name":
        try:
            tag, name = r.open_sealed_name(r.Hctr2(known("names-key")), r.check_long_name(data, known("hash"), int(given["longest"])))
        except r.Fault:
            raise r.Fault("unauthentic", "no sealed name") from None
        return {"tag": tag, "name": name}
    if kind == "junction":
        opened = r.open_sealed_record(share, b"KJNC", data, known("tag") + known("hash"))
        junction, name = r.parse_junction(opened.content)
        return {"leads-to": junction.child, "name": name, "author": opened.author, "signer": opened.signer,
                "isolated": str(junction.isolated).lower(), "coming": str(junction.coming).lower()}
    if kind == "symlink":
        if "reference" in given:
            return {"target": r.check_target(r.open_sealed_record(share, b"KLSY", data, known("reference")).content)}
        found, is_reference = r.open_link(share, data)
        return {"reference" if is_reference else "target": found}
    if kind == "xattrs":
        if "reference" in given:
            content, is_reference = r.open_sealed_record(share, b"KXAT", data, known("reference")).content, False
        else:
            content, is_reference = r.open_attributes(share, data)
        if is_reference:
            return {"reference": content}
        return {f"attribute-{name.hex()}": value for name, value in r.parse_attributes(content)}
    if kind == "name":
        if not r.ENTRY.match(data):
            return {"kind": "control"}
        try:
            parts = r.parse_stored_name(data, int(given["longest"]))
            if parts.hash:
                file = r.letters(parts.hash).decode()
                return {"kind": "long", "path": f"+long/{parts.hash[:1].hex()}/{file}", "hash": parts.hash, "suffix": parts.suffix}
            tag, plain = r.open_sealed_name(r.Hctr2(known("names-key")), parts.sealed)
        except r.Fault:
            raise r.Fault("foreign", "foreign") from None
        shown = plain + r.shown_suffix(parts.suffix)
        if parts.suffix and (plain, parts.suffix) not in list(r.splits(shown)):
            raise SystemExit("a shown name cannot be taken apart")
        return {"kind": "plain", "tag": tag, "name": plain, "suffix": parts.suffix, "shown": shown, "marked": shown + r.mark(data)}
    raise SystemExit(f"no way to read a vector of {kind}")


def vectors(root: str) -> int:
    reader, bad, count = load_reader(), 0, 0
    for path in sorted(Path(root).glob("*/*.txt")):
        given: dict[str, str] = {}
        fields: dict[str, str] = {}
        data, expected = "", ""
        for line in path.read_text().splitlines():
            word, _, rest = line.partition(" ")
            name, _, value = rest.partition(": ")
            if word == "input":
                given[name.rstrip(":")] = value
            elif word == "field":
                fields[name.rstrip(":")] = value
            elif word == "expect:":
                expected = rest
            elif line.startswith("    "):
                data += line.strip()
        try:
            found, verdict = read_vector(reader, path.parent.name, given, bytes.fromhex(data)), "ok"
        except reader.Fault as fault:
            found, verdict = {}, fault.kind
        except reader.InvalidTag:
            found, verdict = {}, "unauthentic"
        except reader.NoAccess:
            found, verdict = {}, "unauthentic"
        count += 1
        wrong = {name: (value, fields[name]) for name, value in found.items() if name in fields and value is not None
                 and (value.hex() if isinstance(value, bytes) else str(value)) != fields[name]}
        if verdict != expected or wrong:
            bad += 1
            print(f"{path.parent.name}/{path.name}: {verdict}, and should be {expected} {wrong or ''}")
    print(f"{count} vectors, {bad} differ")
    return bad


# A tree.

SIZES = (0, 1, 15, 16, 4095, 4096, 4097, 8192, 65535, 65536, 65537, 262143, 262144, 262145, 524287, 524289, 1000000)


def contents(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode(errors="surrogateescape")).digest(size)


def make_file(path: bytes, size: int) -> None:
    with open(path, "wb") as file:
        file.write(contents(os.fsdecode(path[-20:]), size))


def tree(root: str) -> int:
    top = os.fsencode(root)
    for name in (b"sizes", b"names", b"links", b"special", b"deep", b"many", b"to be renamed", b"n" * 255, b"m" * 200 + b"/below"):
        os.makedirs(os.path.join(top, name))
    at = os.path.join
    for size in SIZES:
        make_file(at(top, b"sizes", b"%d" % size), size)
    for i in range(150):
        make_file(at(top, b"many", b"file %d" % i), i * 37 % 6000)
    # Sparse, with data before, between and behind holes, of chunks and of whole index blocks; at its largest with three levels of them.
    for name, size, places in ((b"only a hole", 300000, ()), (b"sparse", 40 << 20, (0, 5000, 1 << 20, 39 << 20)),
                               (b"huge", 5 << 30, (0, 70 << 20, (4 << 30) + 12345, (5 << 30) - 10)), (b"hole at the end", 200000, (0,))):
        with open(at(top, b"sizes", name), "wb") as file:
            for place in places:
                file.seek(place)
                file.write(contents(f"{place}", min(10000, size - place)))
            file.truncate(size)
    names = [b"x", b"a" * 97, b"b" * 98, b"c" * 99, b"A" * 32, b"d" * 255, b"\xff\xfe not utf-8 \x80", "grün 名前".encode(), b" \n\t", b".hidden", b"+share",
             b"=", b"-", b"copy (1)", b"copy (1).txt", b"notes (Ann's conflicted copy)", b"e" * 183 + b" (2)", b"f.sync-conflict-20260101-000000-ABC",
             b"x (moved 01234567)", b"x-MACHINE", b"x_conflict-1", b"x (conflict copy ~)", b"a.b.c d", b"trailing ", b"eight888", b"nine99999", b"COPY (Conflict)", b"()", b" ()", b" (9)", b"~", b"\\"]
    for name in names:
        make_file(at(top, b"names", name), 100)
    make_file(at(top, b"n" * 255, b"o" * 255), 5000)
    make_file(at(top, b"m" * 200, b"below", b"here"), 10)
    deep = at(top, b"deep")
    for i in range(30):
        deep = at(deep, b"level %d" % i)
        os.mkdir(deep)
    make_file(at(deep, b"bottom"), 4097)
    for name in (b"one", b"two/three", b"two/four"):
        os.makedirs(at(top, b"to be renamed", name))
        make_file(at(top, b"to be renamed", name, b"file"), 300)
    links = {b"relative": b"../sizes/1", b"dangling": b"/nowhere/\xff", b"seventeen": b"+" * 17, b"one": b".", b"3005": b"t" * 3005,
             b"2877": b"t" * 2877, b"2878": b"t" * 2878, b"3006": b"u" * 3006, b"longest": b"v" * 4095}
    for name, target in links.items():
        os.symlink(target, at(top, b"links", name))
    os.link(at(top, b"sizes", b"4097"), at(top, b"links", b"hard link"))
    os.link(at(top, b"sizes", b"4097"), at(top, b"names", b"another hard link"))
    os.link(at(top, b"links", b"relative"), at(top, b"links", b"hard link of a link"), follow_symlinks=False)
    os.mkfifo(at(top, b"special", b"fifo"))
    for name in (b"few", b"large"):
        make_file(at(top, b"special", name), 10)
    for i in range(5):
        os.setxattr(at(top, b"special", b"few"), f"user.{i}", contents(str(i), 90 * i))
    os.setxattr(at(top, b"special"), "user.of a directory", b"\0\1\2")
    os.setxattr(at(top, b"special", b"few"), "user.empty", b"")
    if os.geteuid() == 0:
        os.mknod(at(top, b"special", b"device"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        for name in (b"fifo", b"../links/relative", b"few"):
            os.setxattr(at(top, b"special", name), "trusted.by root", b"1", follow_symlinks=False)
        os.chown(at(top, b"special", b"few"), 1234, 5678)
    for i, mode in enumerate((0o000, 0o444, 0o777, 0o4755, 0o2750, 0o1644)):
        make_file(at(top, b"special", b"mode %o" % mode), i)
        os.chmod(at(top, b"special", b"mode %o" % mode), mode)
    os.chmod(at(top, b"special"), 0o1773)
    os.utime(at(top, b"sizes", b"1"), ns=(-1, -1500000001))
    os.utime(at(top, b"links", b"one"), ns=(1, 1234567890123456789), follow_symlinks=False)
    os.utime(at(top, b"deep"), ns=(1, 987654321987654321))
    return 0


def change(root: str) -> int:
    """Changes a tree in a mount as programs do: every kind of change to a file's table and to a directory's place."""
    sizes = os.path.join(root, "sizes")

    def write(name: str, offset: int, data: bytes) -> None:
        with open(os.path.join(sizes, name), "r+b") as file:
            file.seek(offset)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    write("1000000", 4000, b"across segments" * 300)
    write("1000000", 262140, b"across chunks")
    write("1000000", 1000000, b"behind the end" * 1000)
    for name, size in (("524289", 4096), ("524287", 262144), ("262145", 4097), ("65537", 0), ("65536", 300001), ("8192", 5000), ("4095", 4097), ("16", 4096)):
        os.truncate(os.path.join(sizes, name), size)
    write("262145", 4097, b"grown again")
    write("huge", 3 << 30, b"in a hole")
    subprocess.run(["fallocate", "--punch-hole", "--offset", "4096", "--length", "270000", os.path.join(sizes, "1000000")], check=True)
    # A file that the disk can hold as it is, but no longer with the overhead of sealing.
    os.setxattr(os.path.join(root, "special/large"), "user.large", contents("large", 4000))
    renames = (("to be renamed/one", "renamed"), ("to be renamed/two", "deep/two, moved"), ("deep/two, moved/three", "deep/" + "l" * 220),
               ("deep/level 0", "deep/level zero"), ("renamed", "renamed twice"), ("to be renamed", "renamed \udcff"))
    for old, new in renames:
        os.rename(os.path.join(root, old), os.path.join(root, new))
    os.mkdir(os.path.join(root, "deep/level 0"))
    make_file(os.fsencode(os.path.join(root, "deep/level 0/file of the second with this id")), 5)
    return 0


# Overwrites existing bytes: a write to a hole, or after the end, goes to its place at once and is in no journal.
OVERWRITES = (("1000000", 300000, 70000), ("1000000", 300000, 7000), ("4097", 1000, 3097), ("15", 0, 15), ("sparse", 100, 5000),
              ("262143", 100, 200000), ("1", 0, 4096))


def overwrite(root: str) -> int:
    for name, offset, size in OVERWRITES:
        with open(os.path.join(root, "sizes", name), "r+b") as file:
            file.seek(offset)
            file.write(contents(f"overwritten {name} {offset}", size))
            file.flush()
            os.fsync(file.fileno())
    return 0


def overwritten(root: str) -> int:
    bad = 0
    for name, offset, size in OVERWRITES:
        with open(os.path.join(root, "sizes", name), "rb") as file:
            file.seek(offset)
            if file.read(size) != contents(f"overwritten {name} {offset}", size):
                bad += 1
                print(f"{name}: other bytes at {offset}")
    return bad


def attribute(*paths: str) -> int:
    for path in paths:
        os.setxattr(path, "user.of this one", os.fsencode(path[-20:]))
    return 0


def small(root: str) -> int:
    top = os.fsencode(root)
    for name in (b"sizes", b"names", b"n" * 200, b"links", b"to be renamed/below", b"projects/nested/below"):
        os.makedirs(os.path.join(top, name))
    for size in (0, 1, 4096, 4097, 9000, 40000):
        make_file(os.path.join(top, b"sizes", b"%d" % size), size)
        make_file(os.path.join(top, b"projects", b"%d" % size), size)
    with open(os.path.join(top, b"sizes", b"sparse"), "wb") as file:
        file.write(contents("begin", 5000))
        file.seek(3 << 20)
        file.write(contents("end", 5000))
    for name in (b"names/x", b"names/" + b"y" * 190, b"names/copy (1)", b"n" * 200 + b"/file", b"projects/" + b"z" * 190, b"projects/nested/file",
                 b"projects/nested/below/file", b"to be renamed/file", b"to be renamed/below/file"):
        make_file(os.path.join(top, name), 50)
    os.symlink(b"../sizes/1", os.path.join(top, b"links", b"short"))
    os.symlink(b"t" * 3500, os.path.join(top, b"links", b"long"))
    os.symlink(b"sizes/1", os.path.join(top, b"projects", b"link"))
    os.setxattr(os.path.join(top, b"sizes", b"1"), "user.a", b"value")
    os.setxattr(os.path.join(top, b"projects", b"1"), "user.a", contents("large", 4000))
    return 0


# A tree that is deeper than any path is long: it is walked by descriptors.

def descend(root: str, count: int, step) -> int:
    fd = os.open(root, os.O_RDONLY)
    for _ in range(count):
        step(fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def deep(root: str, count: str) -> int:
    os.mkdir(root)
    bottom = descend(root, int(count), lambda fd: os.mkdir("d", dir_fd=fd))
    os.write(os.open("deepest", os.O_WRONLY | os.O_CREAT, dir_fd=bottom), b"text")
    return 0


def deepest(root: str, count: str) -> int:
    bottom = descend(root, int(count), lambda fd: None)
    return 0 if os.read(os.open("deepest", os.O_RDONLY, dir_fd=bottom), 9) == b"text" else 1


# Two trees.

def facts_of_tree(tree: bytes) -> dict[bytes, dict[str, object]]:
    found: dict[bytes, dict[str, object]] = {}
    first: dict[tuple[int, int], bytes] = {}
    for name, path, status in [(b"", tree, os.lstat(tree)), *sorted(walk(tree))]:
        is_directory = stat.S_ISDIR(status.st_mode)
        entry: dict[str, object] = {
            "mode": oct(status.st_mode), "owner": (status.st_uid, status.st_gid), "mtime": status.st_mtime_ns, "device": status.st_rdev,
            "names": 0 if is_directory else status.st_nlink, "first name": first.setdefault((status.st_dev, status.st_ino), name),
            "attributes": attributes(path),
        }
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                entry["contents"] = (status.st_size, hashlib.file_digest(file, "sha256").hexdigest())
            # A small hole may be written as zeros, but not one of many megabytes.
            entry["sparse"] = status.st_size - status.st_blocks * 512 > 8 << 20
        elif stat.S_ISLNK(status.st_mode):
            entry["target"] = os.readlink(path)
        found[name] = entry
    return found


def compare(one: str, other: str) -> int:
    a, b = facts_of_tree(os.fsencode(one)), facts_of_tree(os.fsencode(other))
    bad = 0
    for name in sorted(a.keys() | b.keys()):
        for fact in sorted(a.get(name, {}).keys() | b.get(name, {}).keys()):
            left, right = (tree.get(name, {}).get(fact, "not there") for tree in (a, b))
            if left != right:
                bad += 1
                print(f"{os.fsdecode(name)!a}: {fact}: {str(left)[:300]} | {str(right)[:300]}")
    print(f"{len(a)} entries compared, {bad} differences")
    return bad


# Tampering.

def spots(vault: bytes) -> list[tuple[str, bytes]]:
    """The parts of a vault that can be changed: bytes of files, their lengths, texts of links, the attribute, names."""
    found = []
    for name, path, status in walk(vault):
        if stat.S_ISREG(status.st_mode) and status.st_size:
            found += [("bytes", path), ("bytes", path), ("length", path)]
        elif stat.S_ISLNK(status.st_mode):
            found.append(("text", path))
        if not stat.S_ISLNK(status.st_mode) and "user.kithfs" in attributes(path):
            found.append(("attribute", path))
        found.append(("name", path))
    return found


def flipped(data: bytes, random: Random, text: bool) -> bytes:
    """Flips one bit; in a text it changes one letter, which stays printable."""
    at = random.randrange(len(data))
    changed = bytearray(data)
    if text:
        changed[at] = random.choice([letter for letter in b"Aa09-_=+Zz" if letter != data[at]])
    else:
        changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


@contextlib.contextmanager
def tampered(kind: str, path: bytes, random: Random):
    """Makes one change in a vault, and undoes it afterwards."""
    above, status = os.path.dirname(path), os.lstat(path)
    above_status = os.lstat(above)
    moved = path
    if kind == "bytes":
        # Headers and tables are as likely as all the rest, however large the file.
        size = status.st_size
        at = random.randrange(min(size, random.choice((640, 16384, 1 << 40))))
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(flipped(byte, random, False))
        what = f"byte {at}"
    elif kind == "length":
        with open(path, "rb") as file:
            data = file.read()
        length = random.randrange(status.st_size + 100)
        os.truncate(path, length)
        what = f"length {length} of {status.st_size}"
    elif kind == "text":
        text = os.readlink(path)
        os.unlink(path)
        os.symlink(flipped(text, random, True), path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        what = "the text"
    elif kind == "attribute":
        value = os.getxattr(path, "user.kithfs")
        os.setxattr(path, "user.kithfs", flipped(value, random, False))
        what = "the attribute"
    else:
        name = changed = os.path.basename(path)
        # An entry with the name of a control file is ignored, and missed no more than one that was removed.
        while changed == name or changed[:1] in b"-_+" and name[:1] not in b"-_+":
            changed = flipped(name, random, True)
        moved = os.path.join(above, changed)
        os.rename(path, moved)
        what = f"the name, to {os.fsdecode(os.path.basename(moved))}"
    os.utime(moved, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
    os.utime(above, ns=(above_status.st_atime_ns, above_status.st_mtime_ns))
    try:
        yield what
    finally:
        if kind == "bytes":
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(byte)
        elif kind == "length":
            with open(path, "r+b") as file:
                file.write(data)
                file.truncate()
        elif kind == "text":
            os.unlink(path)
            os.symlink(text, path)
        elif kind == "attribute":
            os.setxattr(path, "user.kithfs", value)
        else:
            os.rename(moved, path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        os.utime(above, ns=(above_status.st_atime_ns, above_status.st_mtime_ns))


def flips(count: str, seed: str, kithfs: str, vault: str, work: str) -> int:
    """`kithfs` finds its secret, and the vault's owner, in the environment; the reader gets the same in READER_IDENTITY."""
    random, bad, refused, odd = Random(int(seed)), 0, 0, 0
    reader = load_reader()
    passphrase = Path(os.environ["KITHFS_PASSPHRASE_FILE"]).read_bytes().removesuffix(b"\n")
    identity_file = os.environ.get("READER_IDENTITY", vault + "/+identity")

    class Quiet(reader.Report):
        def fault(self, path, what):
            self.faults.append((path, str(what)))

        note = fault

    def by_reader() -> tuple[dict, list]:
        out, report = Path(work) / "by-reader", Quiet()
        try:
            identity = reader.open_identity_file(Path(identity_file).read_bytes(), reader.PASSPHRASE, passphrase)
            opened = reader.Vault(vault, identity, {}, set(), report)
            reader.Export(opened, str(out), False, False).run(opened.root)
        except reader.UNREADABLE as error:
            report.fault(b"", error)
        found = facts_of_tree(os.fsencode(out)) if out.exists() else {}
        shutil.rmtree(out, ignore_errors=True)
        return found, report.faults

    def by_kithfs() -> tuple[dict, str, bool]:
        out = Path(work) / "by-kithfs"
        # No state is kept between runs: the program would have one more source than the reader.
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)
        done = subprocess.run([kithfs, "export", vault, out], capture_output=True, text=True)
        checked = subprocess.run([kithfs, "fsck", vault], capture_output=True, text=True)
        found = facts_of_tree(os.fsencode(out)) if out.exists() else {}
        shutil.rmtree(out, ignore_errors=True)
        said = done.stderr + checked.stdout + checked.stderr
        # The program only warns about a manifest that does not count: its check reports no fault.
        return found, said, bool(done.returncode or checked.returncode or " WARN " in said)

    def contents_of(found: dict) -> dict:
        """Times and names of directories that were partly read differ; the contents of the files count."""
        return {name: {fact: value for fact, value in entry.items() if fact in ("contents", "target", "attributes")}
                for name, entry in found.items() if not entry["mode"].startswith("0o4")}

    truth, faults = by_reader()
    theirs, said, is_bad = by_kithfs()
    if faults or is_bad or truth != theirs:
        print(f"the vault is not whole before anything was changed: {faults} {said}")
        return 1
    true_contents = contents_of(truth)
    known = {(entry.get("contents"), entry.get("target")) for entry in true_contents.values()}
    places = spots(os.fsencode(vault))
    for i in range(int(count)):
        kind, path = random.choice(places)
        with tampered(kind, path, random) as what:
            ours, faults = by_reader()
            theirs, said, is_bad = by_kithfs()
        where = f"{os.fsdecode(path[len(vault) + 1:])}: {what}"
        ours, theirs = contents_of(ours), contents_of(theirs)
        # If attributes are bad, the reader returns the file without them and reports that, and the program leaves the file out.
        for name, what_failed in faults:
            if what_failed.startswith("extended attributes: ") and ours.get(name) == {**true_contents.get(name, {}), "attributes": {}}:
                del ours[name]
        refused += ours != true_contents
        for program, found in (("the reader", ours), ("kithfs", theirs)):
            for name, entry in found.items():
                wrong = entry != true_contents[name] if name in true_contents else (entry.get("contents"), entry.get("target")) not in known
                if wrong:
                    bad += 1
                    print(f"WRONG: {where}: {program} returns {os.fsdecode(name)!a} as {str(entry)[:200]}")
        if ours != true_contents and not faults:
            bad += 1
            print(f"SILENT: {where}: the reader leaves something out and says nothing")
        if ours != theirs or bool(faults) != is_bad:
            odd += 1
            print(f"differ: {where}\n  the reader lacks {sorted(theirs.keys() - ours.keys())[:3]}, kithfs lacks {sorted(ours.keys() - theirs.keys())[:3]}"
                  f"\n  the reader: {faults[:3]}\n  kithfs: {'' if is_bad else 'no fault'} {said[:600]}")
    print(f"{count} changes: {refused} with something refused, {bad} wrong, {odd} on which the two differ")
    return bad + (odd if os.environ.get("STRICT") else 0)


if __name__ == "__main__":
    job, *rest = sys.argv[1:]
    jobs = (frozen, vectors, tree, change, overwrite, overwritten, attribute, small, deep, deepest, flips, compare)
    sys.exit(1 if {do.__name__: do for do in jobs}[job](*rest) else 0)

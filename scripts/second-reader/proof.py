#!/usr/bin/python3
"""The parts of scripts/second-reader.sh that compare read-vault.py with the program, or with what the repository says must be found.

    proof.py frozen VAULTS WORK         the frozen vaults, against expected.txt beside each, opened by each of their secrets
    proof.py tree DIR                   makes a tree of files of all kinds, sizes and names
    proof.py change DIR                 changes it as programs would: overwrites, cuts, holes, renamed directories
    proof.py compare A B                two trees: contents, kinds, modes, owners, times, links, attributes
"""
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

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
        secrets = dict(line.split(" ", 1) for line in lines[:6])
        expected = set()
        for line in lines[6:]:
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
        for kind in ("passphrase", "recovery-code", "key-file"):
            file, out = Path(work) / "secret", Path(work) / "plain"
            file.write_bytes(bytes.fromhex(secrets[kind]) if kind == "key-file" else secrets[kind].encode())
            option = {"passphrase": "--passphrase-file", "recovery-code": "--recovery-code-file", "key-file": "--key-file"}[kind]
            done = export(copy, out, option, str(file))
            found = facts(os.fsencode(out), reader.blake3)
            if done.returncode or done.stderr or found != expected:
                bad += 1
                print(f"{vault.name} by its {kind}: exit status {done.returncode}\n{done.stderr}", end="")
                for line in sorted(found ^ expected):
                    print(("+ " if line in found else "- ") + line[:200])
            shutil.rmtree(out)
        print(f"{vault.name}: {len(expected)} facts")
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
    names = [b"x", b"a" * 182, b"b" * 183, b"c" * 184, b"d" * 255, b"\xff\xfe not utf-8 \x80", "grün 名前".encode(), b" \n\t", b".hidden", b"+share",
             b"=", b"-", b"copy (1)", b"copy (1).txt", b"notes (Ann's conflicted copy)", b"e" * 183 + b" (2)", b"f.sync-conflict-20260101-000000-ABC",
             b"x (conflict, epoch 1)", b"a.b.c d", b"trailing ", b"eight888", b"nine99999", b"COPY (Conflict)", b"()", b" ()", b" (9)", b"~", b"\\"]
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
    """What a program does to a tree in a mount: every kind of change to a file's table and to a directory's place."""
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
    # What a disk just holds, and sealed no more.
    os.setxattr(os.path.join(root, "special/large"), "user.large", contents("large", 4000))
    renames = (("to be renamed/one", "renamed"), ("to be renamed/two", "deep/two, moved"), ("deep/two, moved/three", "deep/" + "l" * 220),
               ("deep/level 0", "deep/level zero"), ("renamed", "renamed twice"), ("to be renamed", "renamed \udcff"))
    for old, new in renames:
        os.rename(os.path.join(root, old), os.path.join(root, new))
    os.mkdir(os.path.join(root, "deep/level 0"))
    make_file(os.fsencode(os.path.join(root, "deep/level 0/file of the second with this id")), 5)
    return 0


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
            # A hole may be written out where it is small, but not one of many megabytes.
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


if __name__ == "__main__":
    job, *rest = sys.argv[1:]
    sys.exit(1 if {"frozen": frozen, "tree": tree, "change": change, "compare": compare}[job](*rest) else 0)

"""Writes files and syncs them until it is ended, and prints the number of each acknowledged file: `synced.py write DIR [FIRST]`. Then
`synced.py verify DIR LAST`: all up to number LAST are there, whole, and nothing has other bytes.
"""
import itertools, os, sys

SLOTS = 64


def contents(n):
    return bytes((n * 31 + i * 7 + (i >> 8)) & 255 for i in range(997)) * (n * 13 % 40)


def block(n):
    return n.to_bytes(4, "big") * 1024


def fsync_dir(name="."):
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def write(first):
    over = os.open("over", os.O_RDWR | os.O_CREAT, 0o644)
    if first == 0:
        os.pwrite(over, block(0) * SLOTS, 0)
        os.fsync(over)
        fsync_dir()
    for n in itertools.count(first + 1):
        fd = os.open(f"file {n}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, contents(n))
        os.fsync(fd)
        os.close(fd)
        fsync_dir()
        os.pwrite(over, block(n), n * 37 % SLOTS * 4096)
        os.fsync(over)
        print(n, flush=True)


def verify(last):
    for n in range(1, last + 1):
        with open(f"file {n}", "rb") as file:
            assert file.read() == contents(n), f"file {n} of {last}"
    with open("over", "rb") as file:
        there = file.read()
    assert len(there) == SLOTS * 4096, len(there)
    newest = list(range(max(0, last - SLOTS + 1), last + 1))
    want = {n * 37 % SLOTS: n for n in newest}
    for slot in range(SLOTS):
        allowed = [want.get(slot, 0)] + [last + 1] * ((last + 1) * 37 % SLOTS == slot)
        assert any(there[slot * 4096 : slot * 4096 + 4096] == block(n) for n in allowed), f"slot {slot} after {last}"


os.chdir(sys.argv[2])
number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
write(number) if sys.argv[1] == "write" else verify(number)

"""Tests whether plain files are coherent through several clients of a store, without kithfs: `coherent.py SECONDS DIR DIR...`.

Each DIR is the same directory through another client. Writers take turns under a lock, as kithfs does: each writes a block that begins at
4096, and then a header that names the block. Readers take no lock. A reader that finds the same header before and after it has read the block,
and no lock, must have found the block that the header names. Prints what a reader has found instead, and exits with status 1. Prints the
number of rounds otherwise.
"""
import fcntl, os, random, struct, sys, time
from multiprocessing import Process, Queue

OFD_GETLK, OFD_SETLK, LOCK = 36, 37, "hhqqi4x"
HEADER, START, LENGTH = 512, 4096, 7744
FILES = 2


def of_version(version, length):
    return struct.pack("<Q", version) * (length // 8)


def version_of(data):
    return struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else -1


def lock(fd, kind, operation=OFD_SETLK):
    return struct.unpack(LOCK, fcntl.fcntl(fd, operation, struct.pack(LOCK, kind, 0, 0, 1, 0)))[0]


def write(path):
    """Writes the next version of block and header, unless another program has the lock."""
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd, fcntl.F_WRLCK)
        version = version_of(os.pread(fd, HEADER, 0)) + 1
        os.pwrite(fd, of_version(version, LENGTH), START)
        os.pwrite(fd, of_version(version, HEADER), 0)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)


def read(path):
    """Returns what is wrong, or None. Reads in the way of kithfs: the first read reaches into the block."""
    fd = os.open(path, os.O_RDONLY)
    try:
        before = os.pread(fd, HEADER + START, 0)[:HEADER]
        block = os.pread(fd, LENGTH, START)
        locked = lock(fd, fcntl.F_RDLCK, OFD_GETLK) != fcntl.F_UNLCK
        if locked or os.pread(fd, HEADER, 0) != before or block == of_version(version_of(before), LENGTH):
            return None
        words = [version_of(block[at:]) for at in range(0, len(block), 8)]
        return f"the header names {version_of(before)}; the block has {len(block)} bytes, of the versions {sorted(set(words))}"
    finally:
        os.close(fd)


def work(directory, writes, until, found):
    choose, rounds = random.Random(os.getpid()), 0
    while time.monotonic() < until:
        path = os.path.join(directory, str(choose.randrange(FILES)))
        rounds += 1
        wrong = write(path) if writes else read(path)
        if wrong:
            found.put(f"{path}: {wrong}")
            return
    found.put(rounds)


def main(seconds, *directories):
    for name in range(FILES):
        with open(os.path.join(directories[0], str(name)), "wb") as file:
            file.write(of_version(1, HEADER).ljust(START, b"\0") + of_version(1, LENGTH))
    found, until = Queue(), time.monotonic() + float(seconds)
    programs = [Process(target=work, args=(it, writes, until, found)) for it in directories for writes in (True, False, False)]
    for program in programs:
        program.start()
    results = [found.get() for _ in programs]
    for program in programs:
        program.join()
    wrong = [it for it in results if isinstance(it, str)]
    print("\n".join(wrong) if wrong else f"{sum(results)} rounds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

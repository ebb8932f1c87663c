"""Loads of scripts/growth.sh. Each prints one line of `name value` for each figure."""

import concurrent.futures
import os
import random
import sys
import time

BLOCK = 4096


def per_second(count, begun):
    return f"{count / max(time.perf_counter() - begun, 1e-9):.0f}"


def write(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, data)
    os.close(fd)


def files(root, count):
    """Creates `count` files of 100 bytes, 100 to a directory, 100 directories to a directory."""
    begun = time.perf_counter()
    for n in range(count):
        place = f"{root}/{n // 10_000}/{n // 100 % 100}"
        if n % 100 == 0:
            os.makedirs(place, exist_ok=True)
        write(f"{place}/file-{n:010}", b"%-100d" % n)
    print("created", per_second(count, begun))


def entries(root, count):
    """Creates `count` empty files in one directory."""
    os.mkdir(root)
    begun = time.perf_counter()
    for n in range(count):
        write(f"{root}/entry-{n:010}", b"")
    print("created", per_second(count, begun))


def lookups(root, count):
    """Asks for the attributes of 2,000 random files that `entries` has made."""
    chosen = random.Random(1)
    begun = time.perf_counter()
    for _ in range(2000):
        os.stat(f"{root}/entry-{chosen.randrange(count):010}")
    print("looked-up", per_second(2000, begun))


def fill(path, size):
    """Writes a file of `size` MiB, the same random MiB again and again, and makes it durable."""
    block = random.Random(1).randbytes(1 << 20)
    begun = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(size):
        os.write(fd, block)
    os.fsync(fd)
    os.close(fd)
    print("written", f"{size * 1.048576 / (time.perf_counter() - begun):.0f}")


def scattered(path, seconds, writes):
    """Reads or writes random blocks of 4 KiB, with an fsync at the end of writing."""
    fd = os.open(path, os.O_RDWR)
    blocks = os.fstat(fd).st_size // BLOCK
    chosen, data = random.Random(os.getpid()), os.urandom(BLOCK)
    count, longest = 0, 0.0
    begun = last = time.perf_counter()
    while last - begun < seconds:
        at = chosen.randrange(blocks) * BLOCK
        if writes:
            os.pwrite(fd, data, at)
        else:
            os.pread(fd, BLOCK, at)
        now = time.perf_counter()
        count, longest, last = count + 1, max(longest, now - last), now
    if writes:
        os.fsync(fd)
    os.close(fd)
    print("rate", per_second(count, begun))
    print("longest-ms", f"{longest * 1000:.0f}")


def creator(job):
    """Creates files of 4 KiB in a directory of its own, and returns how long each took."""
    place, count = job
    os.makedirs(place)
    took, data = [], os.urandom(BLOCK)
    for n in range(count):
        begun = time.perf_counter()
        write(f"{place}/{n}", data)
        took.append(time.perf_counter() - begun)
    return took


def clients(root, count, each):
    # Unlike multiprocessing.Pool, which waits forever for a process that was killed, this raises an error.
    with concurrent.futures.ProcessPoolExecutor(count) as pool:
        begun = time.perf_counter()
        jobs = [pool.submit(creator, (f"{root}/{n}", each)) for n in range(count)]
        every = sorted(one for job in concurrent.futures.as_completed(jobs) for one in job.result())
        print("created", per_second(count * each, begun))
    print("p99-ms", f"{every[len(every) * 99 // 100] * 1000:.1f}")


def main():
    what, path, *numbers = sys.argv[1:]
    numbers = [int(number) for number in numbers]
    match what:
        case "random-writes":
            scattered(path, *numbers, writes=True)
        case "random-reads":
            scattered(path, *numbers, writes=False)
        case "files" | "entries" | "lookups" | "fill" | "clients":
            globals()[what](path, *numbers)
        case _:
            sys.exit(f"load.py: there is no load {what}")


main()

"""Counts in files that programs in other mounts count in, too.

Each round locks a file, adds one to its number, and appends a line to the log beside it. The line is
printed once the lock is given back: from then on it must not get lost. Arguments: the program's
name, a seed, the number of files, and "unmapped" to leave mappings out."""

import errno
import fcntl
import mmap
import os
import random
import sys
import time

program, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
maps = sys.argv[4:] != ["unmapped"]
random.seed(seed)


def report(line):
    os.write(1, line.encode() + b"\n")  # at once: the program may be killed


def lock(fd, how, kind):
    if how == "flock":
        fcntl.flock(fd, kind)
    else:
        fcntl.lockf(fd, kind, 0, 0)


def add(fd, how):
    if how == "mapped":
        numbers = mmap.mmap(fd, 8)
        value = int(numbers[:8]) + 1
        numbers[:8] = b"%08d" % value
        numbers.flush()
        numbers.close()
    else:
        value = int(os.pread(fd, 8, 0)) + 1
        os.pwrite(fd, b"%08d" % value, 0)
    return value


def count_once(number, round):
    # All programs lock a file in the same way.
    how = ["flock", "fcntl", "mapped" if maps else "fcntl"][number % 3]
    fd = os.open("n%d" % number, os.O_RDWR)
    log = -1
    try:
        lock(fd, how, fcntl.LOCK_EX)
        value = add(fd, how)
        log = os.open("log%d" % number, os.O_WRONLY | os.O_APPEND)
        os.write(log, b"%s.%d\n" % (program.encode(), round))
        ended, log = log, -1
        os.close(ended)
        lock(fd, how, fcntl.LOCK_UN)
        report("counted %d %d %s.%d" % (number, value, program, round))
    finally:
        if log >= 0:
            os.close(log)
        os.close(fd)


for round in range(1 << 30):
    try:
        count_once(random.randrange(count), round)
    except OSError as error:
        report("failed %s %s.%d" % (errno.errorcode[error.errno], program, round))
        time.sleep(0.05)

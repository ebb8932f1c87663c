"""Takes locks and uses files as it is told, one command a line; answers each with one line."""

import errno
import fcntl
import mmap
import os
import signal
import struct
import sys

KINDS = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX, "un": fcntl.LOCK_UN}
FLAGS = {"r": os.O_RDONLY, "rw": os.O_RDWR | os.O_CREAT, "new": os.O_RDWR | os.O_CREAT | os.O_EXCL}
FLOCK = "hhqqi4x"
files = {}
maps = {}


def interrupted(*_):
    raise InterruptedError(errno.EINTR, "interrupted")


def run(command, name, *rest):
    if command == "open":
        files[name] = os.open(rest[0], FLAGS[rest[1]], 0o600)
    elif command == "lock":  # fcntl: kind, first offset, length, "wait" or nothing
        kind = KINDS[rest[0]]
        if "wait" not in rest and rest[0] != "un":
            kind |= fcntl.LOCK_NB
        fcntl.lockf(files[name], kind, int(rest[2]), int(rest[1]))
    elif command == "get":  # as "lock"; returns what is in its way
        kind = fcntl.F_RDLCK if rest[0] == "sh" else fcntl.F_WRLCK
        wanted = struct.pack(FLOCK, kind, os.SEEK_SET, int(rest[1]), int(rest[2]), 0)
        found = struct.unpack(FLOCK, fcntl.fcntl(files[name], fcntl.F_GETLK, wanted))
        return "%d %d %d %d" % (found[0], *found[2:])
    elif command == "flock":
        fcntl.flock(files[name], KINDS[rest[0]] | (0 if "wait" in rest else fcntl.LOCK_NB))
    elif command == "write":
        os.pwrite(files[name], rest[1].encode(), int(rest[0]))
    elif command == "append":
        os.lseek(files[name], 0, os.SEEK_END)
        os.write(files[name], rest[0].encode())
    elif command == "read":
        return os.pread(files[name], int(rest[1]), int(rest[0])).decode()
    elif command == "time":  # seconds
        os.utime(files[name], (int(rest[0]), int(rest[0])))
    elif command == "truncate":  # length
        os.ftruncate(files[name], int(rest[0]))
    elif command == "allocate":  # first offset, length
        os.posix_fallocate(files[name], int(rest[0]), int(rest[1]))
    elif command == "mode":  # octal
        os.fchmod(files[name], int(rest[0], 8))
    elif command == "attribute":  # name, value
        os.setxattr(files[name], rest[0], rest[1].encode())
        return os.getxattr(files[name], rest[0]).decode()
    elif command == "stat":  # permission bits, links, size, seconds
        stat = os.fstat(files[name])
        return "%o %d %d %d" % (stat.st_mode & 0o7777, stat.st_nlink, stat.st_size, stat.st_mtime)
    elif command == "map":  # length
        maps[name] = mmap.mmap(files[name], int(rest[0]))
    elif command == "put":
        maps[name][: len(rest[0])] = rest[0].encode()
        maps[name].flush()
    elif command == "peek":  # length
        return maps[name][: int(rest[0])].decode()
    elif command == "sync":
        os.fsync(files[name])
    elif command == "close":
        os.close(files.pop(name))
    elif command == "dup":
        files[rest[0]] = os.dup(files[name])
    else:
        raise ValueError(command)
    return "ok"


signal.signal(signal.SIGUSR1, interrupted)
for line in sys.stdin:
    try:
        answer = run(*line.split())
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(answer, flush=True)

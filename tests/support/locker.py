"""Reads commands that take locks or use files, one a line; answers each with one line."""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import stat
import struct
import sys
import zlib

KINDS = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX, "un": fcntl.LOCK_UN}
FLAGS = {"r": os.O_RDONLY, "rw": os.O_RDWR | os.O_CREAT, "new": os.O_RDWR | os.O_CREAT | os.O_EXCL}
FLAGS |= {"old": os.O_RDWR, "app": os.O_RDWR | os.O_APPEND, "trunc": os.O_RDWR | os.O_TRUNC}
FLOCK = "hhqqi4x"
files = {}
maps = {}
libc = ctypes.CDLL(None, use_errno=True)


def interrupted(*_):
    raise InterruptedError(errno.EINTR, "interrupted")


def text(length, seed):
    return (seed.encode() * (int(length) // len(seed) + 1))[: int(length)]


def digest(fd):
    data = os.pread(fd, 1 << 24, 0)
    return "%d:%08x" % (len(data), zlib.crc32(data))


def tree(top):
    """Returns path, kind, mode, links, inode, time, size, and a digest or link target of each entry."""
    found = []
    for at in sorted(os.listdir(top)):
        path = os.path.join(top, at)
        entry = os.lstat(path)
        kind, contents = "dir", ""
        if stat.S_ISLNK(entry.st_mode):
            kind, contents = "link", os.readlink(path)
        elif stat.S_ISREG(entry.st_mode):
            fd = os.open(path, os.O_RDONLY)
            entry, kind = os.fstat(fd), "file"
            try:
                contents = digest(fd)
            except OSError as error:
                contents = errno.errorcode[error.errno]
            os.close(fd)
        values = os.path.relpath(path), kind, entry.st_mode & 0o7777, entry.st_nlink, entry.st_ino
        found.append("%s|%s|%o|%d|%d|" % values + "%d|%d|" % (entry.st_mtime_ns, entry.st_size) + contents)
        if kind == "dir":
            found += tree(path)
    return found


def run_on_names(command, first, *rest):
    """Runs a command on a name; returns `None` for any other command."""
    if command == "mkdir":
        os.mkdir(first)
    elif command == "rmdir":
        os.rmdir(first)
    elif command == "unlink":
        os.unlink(first)
    elif command == "rename":
        os.rename(first, rest[0])
    elif command == "swap":  # RENAME_EXCHANGE
        if libc.renameat2(-100, first.encode(), -100, rest[0].encode(), 2):
            raise OSError(ctypes.get_errno(), "renameat2")
    elif command == "link":
        os.link(first, rest[0])
    elif command == "symlink":
        os.symlink(rest[0], first)
    elif command == "chmod":
        os.chmod(first, int(rest[0], 8), follow_symlinks=True)
    elif command == "touch":  # seconds
        os.utime(first, (int(rest[0]), int(rest[0])))
    elif command == "cut":  # length
        os.truncate(first, int(rest[0]))
    elif command == "store":  # flags, offset, length, text
        fd = os.open(first, FLAGS[rest[0]], 0o600)
        try:
            os.pwrite(fd, text(*rest[2:]), int(rest[1]))
        finally:
            os.close(fd)
    elif command == "tree":
        return " ".join(tree(first)) or "empty"
    else:
        return None
    return "ok"


def run(command, name, *rest):
    if command == "open":
        files[name] = os.open(rest[0], FLAGS[rest[1]], 0o600)
    elif command == "lock":  # fcntl: kind, first offset, length, "wait" or nothing
        kind = KINDS[rest[0]]
        if "wait" not in rest and rest[0] != "un":
            kind |= fcntl.LOCK_NB
        fcntl.lockf(files[name], kind, int(rest[2]), int(rest[1]))
    elif command == "get":  # arguments of "lock"; returns type, offset, length and pid of a conflicting lock
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
        entry = os.fstat(files[name])
        mode = stat.S_IMODE(entry.st_mode)
        return "%o %d %d %d" % (mode, entry.st_nlink, entry.st_size, entry.st_mtime)
    elif command == "map":  # length
        maps[name] = mmap.mmap(files[name], int(rest[0]))
    elif command == "put":
        maps[name][: len(rest[0])] = rest[0].encode()
        maps[name].flush()
    elif command == "peek":  # length
        return maps[name][: int(rest[0])].decode()
    elif command == "unmap":
        maps.pop(name).close()
    elif command == "fill":  # offset, length, text
        os.pwrite(files[name], text(*rest[1:]), int(rest[0]))
    elif command == "punch":  # first offset, length
        if libc.fallocate(files[name], 3, ctypes.c_long(int(rest[0])), ctypes.c_long(int(rest[1]))):
            raise OSError(ctypes.get_errno(), "fallocate")
    elif command == "digest":
        return digest(files[name])
    elif command == "inode":
        return str(os.fstat(files[name]).st_ino)
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
        answer = run_on_names(*line.split()) or run(*line.split())
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(answer, flush=True)

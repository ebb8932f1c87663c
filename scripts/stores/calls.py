"""Makes the calls that a program may make in a mount, and verifies them: `calls.py do DIR`, and after a remount `calls.py verify DIR`.

Prints one word for each thing that does not hold, with the error or what was found instead, and nothing if all of them hold. What must hold
on every store (contents, names, an error rather than other bytes) is an assertion: it ends the run.
"""
import ctypes, errno, fcntl, mmap, os, stat, sys

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE = 1, 2
NAMES = [b"n" * length for length in (1, 183, 184, 255)] + ["Größe 漢字 \U0001f600".encode(), b"\x01\xff\xfe", b"CON.txt. ", b"a", b"A", b"con:<>|?*\"\\"]


def check(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "")


def rename2(old, new, flags):
    check(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def lacks(word, what=""):
    print(f"{word} {what}".strip())


def attempt(word, call):
    """Returns whether the store supports the operation. If not, prints its word and the error."""
    try:
        call()
        return True
    except OSError as error:
        lacks(word, errno.errorcode.get(error.errno, error.errno))
        return False


def write(name, data, flags=0, mode=0o644):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags, mode)
    os.write(fd, data)
    return fd


def read(name):
    with open(name, "rb") as file:
        return file.read()


def pattern(length, seed=1):
    block = bytes((i * seed * 7 + (i >> 8)) & 255 for i in range(65536))
    return (block * (length // 65536 + 1))[:length]


def fsync_dir(name="."):
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def others(call):
    """Makes `call` in another process, and returns 0 or the number of the error."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def names_and_directories():
    os.mkdir("names")
    for name in NAMES:
        os.close(write(b"names/" + name, name))
        os.mkdir(b"names/dir " + name[:251])
    assert sorted(os.listdir(b"names")) == sorted(NAMES + [b"dir " + name[:251] for name in NAMES])
    # A directory with entries is renamed, which makes rename evidence for it. Then it is emptied, removed, and renamed over.
    for name in ("moved", "target", "source"):
        os.makedirs(f"d-{name}/sub")
        os.close(write(f"d-{name}/file", b"x"))
        os.rename(f"d-{name}", name)
    assert read("moved/file") == b"x"
    try:
        os.rename("source", "target")
        raise AssertionError("a full directory was renamed over")
    except OSError as error:
        assert error.errno in (errno.ENOTEMPTY, errno.EEXIST), error
    try:
        os.rmdir("moved")
        raise AssertionError("a full directory was removed")
    except OSError as error:
        assert error.errno == errno.ENOTEMPTY, error
    for name in ("moved", "target"):
        os.rmdir(f"{name}/sub")
        os.unlink(f"{name}/file")
    os.rmdir("moved")
    os.rename("source", "target")
    assert read("target/file") == b"x" and not os.path.exists("source") and not os.path.exists("moved")
    os.rename("target", "kept")
    long = "l" * 250
    os.mkdir(long)
    os.rename(long, long + "2")
    os.rmdir(long + "2")


def renames():
    os.close(write("r1", b"one"))
    os.close(write("r2", b"two"))
    assert others(lambda: rename2("r1", "r2", NOREPLACE)) == errno.EEXIST
    rename2("r1", "r3", NOREPLACE)
    assert read("r3") == b"one" and not os.path.exists("r1")
    if attempt("exchange", lambda: rename2("r2", "r3", EXCHANGE)):
        assert (read("r2"), read("r3")) == (b"one", b"two")
        os.makedirs("x1/in"), os.makedirs("x2/in2")
        rename2("x1", "x2", EXCHANGE)
        assert os.listdir("x1") == ["in2"] and os.listdir("x2") == ["in"]
    os.rename("r3", "r2")
    assert not os.path.exists("r3")


def open_files():
    # Saves as an editor does, many times, while the old file is open.
    fd = write("saved", b"version 0")
    for n in range(1, 6):
        new = write("saved.new", b"version %d" % n)
        os.fsync(new)
        os.close(new)
        # SMB cannot replace an open file.
        if n == 1 and not attempt("rename-over-open", lambda: os.rename("saved.new", "saved")):
            assert os.pread(fd, 100, 0) == b"version 0" == read("saved") and read("saved.new") == b"version 1"
            os.close(fd)
            fd = None
        if os.path.exists("saved.new"):
            os.rename("saved.new", "saved")
        assert read("saved") == b"version %d" % n
    if fd is not None:
        assert os.pread(fd, 100, 0) == b"version 0"
        os.close(fd)
    # A file is renamed while it is open, and opened again under the new name: both handles are of one file.
    fd = write("o1", pattern(10000))
    os.rename("o1", "o2")
    again = os.open("o2", os.O_RDWR)
    os.pwrite(fd, b"first", 0)
    os.pwrite(again, b"second", 5000)
    os.fsync(fd)
    os.fsync(again)
    os.close(fd)
    os.pwrite(again, b"third", 9000)
    os.close(again)
    want = bytearray(pattern(10000))
    want[0:5], want[5000:5006], want[9000:9005] = b"first", b"second", b"third"
    assert read("o2") == bytes(want), "one file opened under two names in turn has other bytes"
    # A file is unlinked while it is open, then written to, truncated and read.
    for length in (100, 3_000_000):
        fd = write("gone", pattern(length))
        os.fsync(fd)
        os.unlink("gone")
        assert not os.path.exists("gone")
        os.pwrite(fd, b"after", 50)
        os.fsync(fd)
        assert os.pread(fd, 5, 50) == b"after" and os.fstat(fd).st_size == length
        if os.fstat(fd).st_nlink != 0:
            lacks("nlink-of-unlinked", os.fstat(fd).st_nlink)
        os.ftruncate(fd, 10)
        os.close(fd)
    os.mkdir("empty")
    fd = write("empty/f", b"x")
    os.unlink("empty/f")
    attempt("rmdir-with-unlinked", lambda: os.rmdir("empty"))
    os.close(fd)
    if os.path.exists("empty"):
        os.rmdir("empty")


def contents():
    for name, length in (("empty", 0), ("small", 100), ("page", 4096), ("chunk", 262144), ("large", 3_000_001)):
        os.close(write("c-" + name, pattern(length)))
    fd = write("c-append", b"", os.O_APPEND)
    for n in range(300):
        os.write(fd, b"line %d\n" % n)
    os.close(fd)
    fd = write("c-sparse", b"head")
    os.ftruncate(fd, 5_000_000)
    os.pwrite(fd, b"tail", 4_999_996)
    os.fsync(fd)
    os.close(fd)
    fd = write("c-shrunk", pattern(1_000_000))
    os.fsync(fd)
    os.ftruncate(fd, 1000)
    os.ftruncate(fd, 2000)
    os.close(fd)
    fd = write("c-mapped", b"\0" * 300_000)
    with mmap.mmap(fd, 0) as map:
        map[100_000:100_005] = b"map 1"
        map.flush()
        map[299_995:300_000] = b"map 2"
    os.close(fd)
    fd = write("c-over", pattern(500_000))
    os.fsync(fd)
    for n in range(40):
        os.pwrite(fd, b"%04d" % n, n * 12345)
        os.fdatasync(fd)
    os.close(fd)
    fd = write("c-punched", pattern(1_000_000))
    if attempt("allocate", lambda: fallocate(fd, 1, 0, 2_000_000)) and attempt("punch", lambda: fallocate(fd, 3, 262144, 262144)):
        assert os.pread(fd, 4, 300_000) == b"\0\0\0\0"
    os.close(fd)
    copied = os.open("c-copied", os.O_RDWR | os.O_CREAT, 0o644)
    source = os.open("c-large", os.O_RDONLY)
    done = 0
    while done < 3_000_001:
        done += os.copy_file_range(source, copied, 3_000_001 - done)
    os.close(copied), os.close(source)
    fsync_dir()


def verify_contents():
    for name, length in (("empty", 0), ("small", 100), ("page", 4096), ("chunk", 262144), ("large", 3_000_001), ("copied", 3_000_001)):
        assert read("c-" + name) == pattern(length), name
    assert read("c-append") == b"".join(b"line %d\n" % n for n in range(300))
    assert read("c-sparse") == b"head" + b"\0" * 4_999_992 + b"tail"
    assert read("c-shrunk") == pattern(1000) + b"\0" * 1000
    mapped = read("c-mapped")
    assert len(mapped) == 300_000 and mapped[100_000:100_005] == b"map 1" and mapped.endswith(b"map 2") and mapped.count(0) == 299_990
    over = bytearray(pattern(500_000))
    for n in range(40):
        over[n * 12345 : n * 12345 + 4] = b"%04d" % n
    assert read("c-over") == bytes(over)
    for name in NAMES:
        assert read(b"names/" + name) == name, name
        assert os.listdir(b"names/dir " + name[:251]) == []
    assert sorted(os.listdir(b"names")) == sorted(NAMES + [b"dir " + name[:251] for name in NAMES])
    assert read("saved") == b"version 5" and read("kept/file") == b"x"


def locks():
    fd = write("locked", b"x")
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert others(lambda: fcntl.flock(os.open("locked", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)) == errno.EAGAIN
    fcntl.flock(fd, fcntl.LOCK_UN)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    assert others(lambda: fcntl.lockf(os.open("locked", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)) in (errno.EAGAIN, errno.EACCES)
    os.close(fd)


def kinds():
    if attempt("symlink", lambda: os.symlink("c-small", "a-symlink")):
        attempt("long-symlink", lambda: os.symlink("x" * 2000, "a-long-symlink"))
    if attempt("hardlink", lambda: os.link("c-small", "a-link")):
        fd, again = os.open("c-small", os.O_RDWR), os.open("a-link", os.O_RDWR)
        os.pwrite(fd, b"A", 0)
        os.pwrite(again, b"B", 1)
        os.fsync(fd), os.fsync(again)
        os.pwrite(again, pattern(100)[:2], 0)
        os.close(fd), os.close(again)
        assert read("c-small") == read("a-link") == pattern(100), "two names of one file have two contents"
    attempt("fifo", lambda: os.mkfifo("a-fifo"))
    attempt("xattr", lambda: os.setxattr("c-page", "user.colour", b"green"))
    for mode in (0o600, 0o444, 0o4755, 0o000):
        os.close(write(f"mode-{mode:o}", b"m"))
        attempt("chmod", lambda: os.chmod(f"mode-{mode:o}", mode))
        assert read(f"mode-{mode:o}") == b"m"
    os.mkdir("dir-500", 0o500)
    os.close(write("made-444", b"m", os.O_EXCL, 0o444))
    os.close(write("owner", b"o"))
    attempt("chown", lambda: os.chown("owner", 1234, 4321))
    for name, time in (("time-ns", 1_000_000_000_123_456_789), ("time-1965", -150_000_000_000_000_000), ("time-2100", 4_102_444_800_000_000_000)):
        os.close(write(name, b"t"))
        attempt("utime", lambda: os.utime(name, ns=(time, time)))


def verify_kinds():
    if os.path.lexists("a-symlink"):
        assert os.readlink("a-symlink") == "c-small"
    if os.path.lexists("a-long-symlink"):
        assert os.readlink("a-long-symlink") == "x" * 2000
    if os.path.exists("a-link"):
        assert read("a-link") == pattern(100)
        if not os.path.samefile("a-link", "c-small"):
            lacks("one-inode-of-links")
        if os.stat("a-link").st_nlink != 2:
            lacks("nlink", os.stat("a-link").st_nlink)
    if os.path.lexists("a-fifo"):
        assert stat.S_ISFIFO(os.stat("a-fifo").st_mode)
    for mode in (0o600, 0o444, 0o4755, 0o000):
        there = stat.S_IMODE(os.stat(f"mode-{mode:o}").st_mode)
        if there != mode:
            lacks("mode", f"{mode:o} is {there:o}")
    for name, mode in (("dir-500", 0o500), ("made-444", 0o444)):
        there = stat.S_IMODE(os.stat(name).st_mode)
        if there != mode:
            lacks("mode", f"{name} is {there:o}")
    if (os.stat("owner").st_uid, os.stat("owner").st_gid) != (1234, 4321):
        lacks("owner", os.stat("owner").st_uid)
    try:
        if os.getxattr("c-page", "user.colour") != b"green":
            lacks("xattr-value")
    except OSError:
        pass
    for name, time in (("time-ns", 1_000_000_000_123_456_789), ("time-1965", -150_000_000_000_000_000), ("time-2100", 4_102_444_800_000_000_000)):
        there = os.stat(name).st_mtime_ns
        if there != time:
            lacks(name, f"{there - time:+d} ns" if abs(there - time) < 10**11 else f"{there / 1e9:.1f}")


os.chdir(sys.argv[2])
if sys.argv[1] == "do":
    contents()
    names_and_directories()
    renames()
    open_files()
    locks()
    kinds()
    verify_contents()
else:
    verify_contents()
    verify_kinds()

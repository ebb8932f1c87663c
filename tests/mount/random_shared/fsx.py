"""Changes and reads files as fsx does, while programs in other mounts do the same.

The program changes a file of its own, and turn by turn with the others the files that all of them
share, under a lock. Each file has a model in a plain directory: the bytes as of the last `fsync`,
and the operations since. Everything that is read must be what the model says.

The model gets an operation before the file does. So the file that a killed daemon leaves is in one
of the states since the last `fsync`; only the pages of a mapping arrive one by one.

Ends when its input does, with all its changes synced. Prints a line for each turn, and for each error
of a turn. Arguments: the program's name (`MOUNT-ROUND`), a seed, the directory of the models, and
words: "synced" to sync each turn, "unmapped" and "unallocated" to leave mappings and allocations
out. With the name "verify" it only compares all files with their models."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import select
import signal
import struct
import sys

program, seed, models, words = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
synced, maps, allocates = "synced" in words, "unmapped" not in words, "unallocated" not in words
random.seed(seed)
libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE, OFD_SETLKW = 1, 2, 38
PAGE = SEGMENT = 4096
# The name, the greatest size and the lock. The sizes are those of a file within its header, one that
# is replaced at each commit, and one that is written in place.
SHARED = [("small", 6000, "range"), ("replaced", 200_000, "flock"), ("in-place", 600_000, "range")]
OWN = ("own-%s" % program.split("-")[0], 400_000, None)


def report(line):
    os.write(1, line.encode() + b"\n")  # at once: the program may be killed


class Wrong(Exception):
    """The file is not what the model says."""


class Lost(Exception):
    """Another program has the lock."""


def apply(data, op):
    """Does to bytes what `perform` does to a file."""
    kind, at, length, text = op
    end = at + length
    if kind == "failed":
        return data
    if kind == "truncate":
        grown = at - len(data)
        return data + bytes(grown) if grown > 0 else data[:at]
    if kind == "punch":
        end = min(end, len(data))
        return data[:at] + bytes(end - at) + data[end:] if end > at else data
    data += bytes(max(0, end - len(data)))
    return data if kind == "allocate" else data[:at] + filled(length, text) + data[end:]


def filled(length, text):
    return (text.encode() * (length // len(text) + 1))[:length]


def allocate(fd, mode, at, length):
    if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(length)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def mapped(fd, at, length, access):
    start = at - at % PAGE
    return mmap.mmap(fd, at + length - start, access=access, offset=start), at - start


def perform(fd, op):
    kind, at, length, text = op
    if kind == "write":
        assert os.pwrite(fd, filled(length, text), at) == length, "a short write"
    elif kind == "truncate":
        os.ftruncate(fd, at)
    elif kind == "punch":
        allocate(fd, KEEP_SIZE | PUNCH_HOLE, at, length)
    elif kind == "allocate":
        allocate(fd, 0, at, length)
    else:
        pages, start = mapped(fd, at, length, mmap.ACCESS_WRITE)
        try:
            pages[start : start + length] = filled(length, text)
            pages.flush()
        finally:
            pages.close()


def until_free(call, *arguments):
    """Repeats a call while another mount has changes of the file that are not committed."""
    while True:
        try:
            return call(*arguments)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            report("busy %s" % program)


class Model:
    """The bytes of a file as of the last sync, and the operations since."""

    def __init__(self, name):
        self.path = os.path.join(models, name)
        self.file = open(self.path, "rb")
        head = json.loads(self.file.readline())
        self.owner, self.base = head["owner"], self.file.read(head["size"])
        self.ops = [json.loads(line) for line in self.file]
        self.data = self.base
        for op in self.ops:
            self.data = apply(self.data, op)

    @contextlib.contextmanager
    def owned(self):
        """Fails if another program has got the lock of the file, because the daemon was killed."""
        with open(os.path.join(models, "lock"), "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if os.stat(self.path).st_ino != os.fstat(self.file.fileno()).st_ino:
                raise Lost
            yield

    def save(self):
        """Makes the present bytes the base: all operations are synced, or at least in the file."""
        self.owner, self.base, self.ops = program, self.data, []
        new = os.path.join(models, "new-" + program)
        with self.owned():
            with open(new, "wb") as file:
                head = {"owner": self.owner, "size": len(self.base)}
                file.write(json.dumps(head).encode() + b"\n" + self.base)
            os.rename(new, self.path)
            self.file = open(self.path, "rb")

    def add(self, op):
        with self.owned(), open(self.path, "ab") as file:
            file.write(json.dumps(op).encode() + b"\n")
        self.ops.append(op)
        self.data = apply(self.data, op)

    def states(self):
        states = [self.base]
        for op in self.ops:
            states.append(apply(states[-1], op))
        return states

    def compare(self, there):
        """Compares a file with the model: all operations are in it, or after a kill only the first ones."""
        if there != self.data:
            states = self.states()
            if not (there in states or self.is_of_pages(there, states)):
                raise Wrong("%s has another state: %s" % (self.path, self.differs(there)))
            if not any(op[0] == "failed" for op in self.ops):
                report("older %s" % self.owner)

    def adopt(self, there):
        self.compare(there)
        self.data = there
        self.save()

    def is_of_pages(self, there, states):
        """Returns whether each page is from one of the states, some of which came through mappings."""
        if not any(op[0] == "map" for op in self.ops) or len(there) not in map(len, states):
            return False
        starts = range(0, len(there), SEGMENT)
        return all(any(self.shows(there, state, at) for state in states) for at in starts)

    def shows(self, there, state, at):
        page = there[at : at + SEGMENT]
        return page == state[at : at + len(page)].ljust(len(page), b"\0")

    def differs(self, there):
        at = next((at for at, (a, b) in enumerate(zip(there, self.data)) if a != b), None)
        return "%d bytes, not %d, first at %s; by %s: %s" % (
            len(there), len(self.data), at, self.owner, self.ops,
        )


def read_all(fd):
    size = os.fstat(fd).st_size
    there = os.pread(fd, size + 1, 0)
    if len(there) != size:
        raise Wrong("%d bytes of a size of %d" % (len(there), size))
    return there


def check(fd, model):
    """Reads a part of the file, by a call or a mapping."""
    size = os.fstat(fd).st_size
    if size != len(model.data):
        raise Wrong("a size of %d, not %d: %s" % (size, len(model.data), model.ops))
    at = random.randrange(size + 1)
    length = random.choice([1, 100, PAGE, 66_000])
    if size > at and random.random() < 0.5 and maps:
        pages, start = mapped(fd, at, min(length, size - at), mmap.ACCESS_READ)
        there = pages[start:]
        pages.close()
    else:
        there = os.pread(fd, length, at)
    wanted = model.data[at : at + length]
    if there != wanted:
        raise Wrong("%s at %d: %r, not %r: %s" % (model.path, at, there[:40], wanted[:40], model.ops))


def random_op(size, limit):
    kind = random.choice(["write", "write", "write", "map", "map", "truncate", "punch", "allocate"])
    if kind == "map" and not maps or kind == "allocate" and not allocates:
        kind = "write"
    if kind == "truncate":
        return [kind, random.choice([0, random.randrange(limit), size // 2, size]), 0, ""]
    if kind == "map":  # only what is there can be written to
        at = random.randrange(size) if size else 0
        length = min(random.choice([1, 100, 5000, 40_000]), size - at)
        return [kind if length else "write", at, length or 1, "%d " % random.randrange(10**6)]
    at = random.choice([size, random.randrange(limit)])
    length = random.choice([1, 100, PAGE, 5000, 20_000, 66_000])
    at = max(0, min(at, limit - length))
    return [kind, at, min(length, limit), "%d." % random.randrange(10**6)]


def change(fd, model, limit):
    """Does some operations, and reads."""
    try:
        for _ in range(random.randrange(1, 6)):
            if random.random() < 0.6:
                op = random_op(len(model.data), limit)
                model.add(op)
                until_free(perform, fd, op)
            check(fd, model)
        if synced or random.random() < 0.5:
            until_free(os.fsync, fd)
            model.save()
    except OSError as error:
        ops = list(model.ops)
        model.add(["failed", 0, 0, ""])
        about = "%s of %d bytes after %s" % (model.path, len(model.base), ops)
        raise OSError(error.errno, about) from error


def lock(fd, how, kind):
    if how == "flock":
        fcntl.flock(fd, kind)
    else:
        # A close of a mapping, which has a descriptor of its own, would drop a lock of the process.
        kind = fcntl.F_WRLCK if kind == fcntl.LOCK_EX else fcntl.F_UNLCK
        fcntl.fcntl(fd, OFD_SETLKW, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))


def turn_in_shared(name, limit, how):
    fd = until_free(os.open, name, os.O_RDWR)
    try:
        lock(fd, how, fcntl.LOCK_EX)
        model = Model(name)
        model.adopt(read_all(fd))
        change(fd, model, limit)
        lock(fd, how, fcntl.LOCK_UN)
    finally:
        os.close(fd)


class Own:
    """The program's own file, which stays open over many turns."""

    def __init__(self):
        self.fd = -1

    def turn(self):
        name, limit, _ = OWN
        if self.fd < 0:
            self.fd = until_free(os.open, name, os.O_RDWR)
            self.model = Model(name)
            self.model.adopt(read_all(self.fd))
        try:
            change(self.fd, self.model, limit)
            if random.random() < 0.2:
                self.close()
        except OSError:
            failed, self.fd = self.fd, -1
            if failed >= 0:
                os.close(failed)
            raise

    def close(self):
        if self.fd >= 0:
            until_free(os.fsync, self.fd)
            self.model.save()
            closed, self.fd = self.fd, -1
            os.close(closed)


def verify():
    all = hashlib.sha256()
    for name in sorted(os.listdir(models)):
        if name in [it[0] for it in SHARED] or name.startswith("own-"):
            fd = os.open(name, os.O_RDONLY)
            there = read_all(fd)
            os.close(fd)
            Model(name).compare(there)
            all.update(b"%d " % len(there) + there)
    report("verified %s" % all.hexdigest())


def is_asked_to_end():
    return select.select([0], [], [], 0)[0] != []


def main():
    own = Own()
    while not is_asked_to_end():
        try:
            if random.random() < 0.3:
                own.turn()
            else:
                turn_in_shared(*random.choice(SHARED))
            report("turn %s" % program)
        except OSError as error:
            report("failed %s %s: %s" % (errno.errorcode[error.errno], program, error))
            select.select([0], [], [], 0.05)
        except Wrong as wrong:
            report("wrong %s: %s" % (program, wrong))
            return
        except Lost:
            report("lost %s" % program)
            signal.pause()
    own.close()
    report("ended %s" % program)


verify() if program == "verify" else main()

"""Random work of many clients in a mount, each compared with a model. Run by scripts/stress.sh.

    model.py work MOUNT PLACE STATE SEED CLIENTS [CGROUP]   works in MOUNT/PLACE until SIGTERM or until the daemon dies
    model.py verify MOUNT PLACE STATE killed|ended          compares MOUNT/PLACE with what the clients left in STATE

While the clients work, each read must return exactly what was written. After the daemon was killed, each byte of a synced file must have one
of the values that it had since the last fsync, and each name must be there in one of its states since the last fsync of its directory.
Otherwise everything must be as it was left.
"""

import errno
import mmap
import os
import pickle
import random
import shutil
import signal
import sys

BLOB = random.Random(0).randbytes(1 << 20)
BLOCK = 4096
# At most this much is written between two fsyncs of a file, because the model keeps it.
MOST_OPERATIONS = 300
MOST_BYTES = 2 << 20
NAMES = 12


class Wrong(Exception):
    """The mount has returned something that was never written."""


class Contents:
    """Bytes of a file, in one piece of memory that is allocated once."""

    def __init__(self, limit):
        self.room, self.size = bytearray(b"\1" * limit), 0

    def apply(self, at, data):
        """Does a write, or a truncation if `data` is None."""
        if at > self.size:
            self.room[self.size : at] = bytes(at - self.size)
        if data is None:
            self.size = at
        else:
            self.room[at : at + len(data)] = data
            self.size = max(self.size, at + len(data))

    def part(self, at, length):
        return bytes(self.room[at : max(at, min(at + length, self.size))])


class File:
    """A file and its model: the contents now, those of the last fsync, and what was done since."""

    def __init__(self, name, limit):
        self.name, self.limit = name, limit
        self.now, self.synced, self.since = Contents(limit), Contents(limit), []
        self.fd = None

    def open(self, place, flags=0):
        self.fd = os.open(self.name, os.O_RDWR | flags, 0o644, dir_fd=place)

    def record(self, at, data):
        """Records a write, or a truncation (`data` is None), before it is done: it may be interrupted."""
        self.since.append((at, data))

    def write(self, at, data):
        self.record(at, data)
        done = os.pwrite(self.fd, data, at)
        self.now.apply(at, data[:done])
        if done != len(data):
            # A daemon that dies in the middle makes the rest fail. Otherwise nothing may be left out.
            os.pwrite(self.fd, data[done:], at + done)
            raise Wrong(f"{self.name}: {done} of {len(data)} bytes written")

    def truncate(self, at):
        self.record(at, None)
        os.ftruncate(self.fd, at)
        self.now.apply(at, None)

    def sync(self, call=os.fsync):
        call(self.fd)
        for at, data in self.since:
            self.synced.apply(at, data)
        self.since = []

    def compare(self, at, data, what):
        expected = self.now.part(at, len(data))
        if data != expected:
            pairs = enumerate(zip(data, expected))
            wrong = next((n for n, (is_there, should_be) in pairs if is_there != should_be), len(expected))
            raise Wrong(f"{self.name}: {what} of {len(data)} bytes at {at} of {self.now.size} differs from {at + wrong} on")

    def check_ended(self, data):
        if len(data) != self.now.size:
            raise Wrong(f"{self.name}: {len(data)} bytes instead of {self.now.size}")
        self.compare(0, data, "the file")

    def check_killed(self, data):
        sizes, size = [self.synced.size], self.synced.size
        for at, new in self.since:
            size = at if new is None else max(size, at + len(new))
            sizes.append(size)
        if not min(sizes) <= len(data) <= max(sizes):
            raise Wrong(f"{self.name}: {len(data)} bytes, which is not between {min(sizes)} and {max(sizes)}")
        for begin in range(0, len(data), BLOCK):
            block = data[begin : begin + BLOCK]
            if block != self.now.part(begin, len(block)):
                self.check_block(block, begin)

    def check_block(self, data, begin):
        """Checks that each byte of the block is the synced one or one that was written since."""
        end = begin + len(data)
        old = self.synced.part(begin, len(data))
        possible = [old + bytes(len(data) - len(old))]
        for at, new in self.since:
            if at >= end or new is not None and at + len(new) <= begin:
                continue
            block, first = bytearray(possible[-1]), max(at, begin)
            last = end if new is None else min(at + len(new), end)
            block[first - begin : last - begin] = bytes(last - first) if new is None else new[first - at : last - at]
            possible.append(block)
        for n, byte in enumerate(data):
            if all(block[n] != byte for block in possible):
                raise Wrong(f"{self.name}: byte {begin + n} is {byte}, which nothing has written since the last fsync")


class Names:
    """Names of one client in a directory that all clients share."""

    def __init__(self, client):
        self.all = [f"{client}-{n}" for n in range(NAMES)]
        # By name: its states since the last fsync of the directory, each (contents, durable), or None without a file. The last is the present one.
        self.states = {name: [None] for name in self.all}

    def present(self):
        return [name for name in self.all if self.states[name][-1] is not None]

    def step(self, directory, chosen):
        kind, name = chosen.randrange(10), chosen.choice(self.all)
        present = self.present()
        if kind < 4 or not present:
            self.create(directory, name, chosen)
        elif kind < 6:
            other = chosen.choice(present)
            if other != name:
                moved = self.states[other][-1]
                self.states[name].append(moved)
                self.states[other].append(None)
                os.rename(other, name, src_dir_fd=directory, dst_dir_fd=directory)
        elif kind < 7:
            gone = chosen.choice(present)
            self.states[gone].append(None)
            os.unlink(gone, dir_fd=directory)
        elif kind < 9:
            name = chosen.choice(present)
            if read(name, directory) != self.states[name][-1][0]:
                raise Wrong(f"names/{name}: other contents")
        else:
            mine = {name for name in os.listdir(directory) if name in self.states}
            if mine != set(present):
                raise Wrong(f"names: {sorted(mine)} instead of {sorted(present)}")
            os.fsync(directory)
            self.states = {name: states[-1:] for name, states in self.states.items()}

    def create(self, directory, name, chosen):
        data = BLOB[chosen.randrange(1000) :][: chosen.choice([0, 1, 100, 4096, 20_000, 100_000])]
        new = f"{self.all[0]}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=directory)
        try:
            os.write(fd, data)
            durable = chosen.randrange(8) == 0
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        self.states[name].append((data, durable))
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)

    def check(self, directory, killed):
        there = set(os.listdir(directory))
        for name, states in self.states.items():
            states = states if killed else states[-1:]
            if name not in there:
                if None not in states:
                    raise Wrong(f"names/{name} is missing")
                continue
            contents = [state for state in states if state is not None]
            try:
                data = read(name, directory)
            except OSError as error:
                if killed and error.errno == errno.EIO and any(not durable for _, durable in contents):
                    continue
                raise Wrong(f"names/{name}: {error}") from error
            if not any(data == whole for whole, _ in contents):
                raise Wrong(f"names/{name}: {len(data)} bytes of other contents")


def read(name, directory):
    fd = os.open(name, os.O_RDONLY, dir_fd=directory)
    with open(fd, "rb") as file:
        return file.read()


class Client:
    """One process: two or three files, names in the shared directory, a tree of its own."""

    def __init__(self, number, size):
        self.number, self.rounds = number, 0
        self.files = [File(f"{number}.{n}", size) for n in range(3 if size > 1 << 20 else 2)]
        self.names = Names(number)

    def begin(self, place):
        for file in self.files:
            file.open(place, os.O_CREAT | os.O_EXCL)
            file.sync()
        os.fsync(place)

    def step(self, place, names, chosen):
        self.rounds += 1
        kind, file = chosen.randrange(100), chosen.choice(self.files)
        if kind < 12:
            return self.names.step(names, chosen)
        if kind == 12 and chosen.randrange(4) == 0:
            return tree(place, f"tree {self.number}", chosen)
        if kind == 13 and chosen.randrange(8) == 0:
            file.sync()
            os.close(file.fd)
            return file.open(place)
        length = 1 + chosen.randrange(200_000 if chosen.randrange(4) == 0 else 5_000)
        at = chosen.randrange(file.limit - length)
        if kind < 16:
            return file.sync(os.fdatasync if chosen.randrange(2) else os.fsync)
        if kind == 16:
            return file.truncate(max(1, at))
        if kind == 17:
            return self.copy(file, at, length, chosen)
        if kind == 18:
            return self.map(file, at, length, chosen)
        if kind == 19:
            return seek(file, at)
        if kind < 58:
            begin = chosen.randrange(len(BLOB) - length)
            file.write(at, BLOB[begin : begin + length])
        else:
            if chosen.randrange(2):
                os.posix_fadvise(file.fd, at, length, os.POSIX_FADV_DONTNEED)
            data = os.pread(file.fd, length, at)
            if len(data) != len(file.now.part(at, length)):
                # As for a write: the rest fails if the daemon has died.
                os.pread(file.fd, length - len(data), at + len(data))
                raise Wrong(f"{file.name}: {len(data)} bytes read at {at} of {file.now.size}")
            file.compare(at, data, "a read")
        if len(file.since) > MOST_OPERATIONS or sum(len(data or b"") for _, data in file.since) > MOST_BYTES:
            file.sync()

    def copy(self, file, at, length, chosen):
        source = chosen.choice(self.files)
        data = source.now.part(at, length)
        if source is file:
            return
        while data:
            file.record(at, data)
            done = os.copy_file_range(source.fd, file.fd, len(data), at, at)
            file.now.apply(at, data[:done])
            file.since[-1] = (at, data[:done])
            at, data = at + done, data[done:]

    def map(self, file, at, length, chosen):
        length = min(length, file.now.size - at)
        if length <= 0:
            return
        begin = chosen.randrange(len(BLOB) - length)
        data = BLOB[begin : begin + length]
        page = at // mmap.PAGESIZE * mmap.PAGESIZE
        file.record(at, data)
        with mmap.mmap(file.fd, at + length - page, offset=page) as mapping:
            mapping[at - page :] = data
        file.now.apply(at, data)


def tree(place, name, chosen):
    """Makes a small tree, renames it, and removes it."""
    os.mkdir(name, dir_fd=place)
    root = os.open(name, os.O_DIRECTORY, dir_fd=place)
    try:
        for n in range(chosen.randrange(1, 20)):
            fd = os.open(f"file {n}", os.O_WRONLY | os.O_CREAT, dir_fd=root)
            try:
                os.write(fd, BLOB[: 100 * n])
            finally:
                os.close(fd)
    finally:
        os.close(root)
    os.rename(name, name + " moved", src_dir_fd=place, dst_dir_fd=place)
    shutil.rmtree(name + " moved", dir_fd=place)


def seek(file, at):
    """What SEEK_DATA skips must be zeros."""
    try:
        found = os.lseek(file.fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        found = file.now.size
    if file.now.part(at, found - at).strip(b"\0"):
        raise Wrong(f"{file.name}: SEEK_DATA skips data between {at} and {found} of {file.now.size}")


def mount_is_dead(place):
    """Returns whether the daemon is gone. Calls in progress then fail with ECONNABORTED, or over io_uring with ECANCELED, and all later ones
    with ENOTCONN."""
    while True:
        try:
            os.statvfs(place)
            return False
        except OSError as error:
            if error.errno not in (errno.ECONNABORTED, errno.ECANCELED):
                return error.errno == errno.ENOTCONN


def run_client(number, place, state, seed, size, group):
    """Works until told to stop or until the daemon is dead; returns the exit status."""
    client = Client(number, size)
    # Memory for the model is taken before the limit applies; stress.sh makes malloc keep what is freed.
    taken = [b"\1" * (1 << 20) for _ in range(2 * (size + MOST_BYTES * len(client.files)) >> 20)]
    del taken
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    if group:
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(os.getpid()))
    chosen = random.Random(f"{seed} {number}")
    place = os.open(place, os.O_DIRECTORY)
    names = os.open("names", os.O_DIRECTORY, dir_fd=place)
    try:
        client.begin(place)
        while not stopped:
            client.step(place, names, chosen)
    except OSError as error:
        if not mount_is_dead(place):
            print(f"client {number} after {client.rounds} steps: {error!r}", flush=True)
            return 1
    except Wrong as error:
        print(f"client {number} after {client.rounds} steps: {error}", flush=True)
        return 1
    for file in client.files:
        if file.fd is not None:
            try:
                os.close(file.fd)
            except OSError:
                pass
            file.fd = None
    with open(f"{state}/{number}", "wb") as file:
        pickle.dump(client, file, protocol=5)
    return 0


def work(mount, place, state, seed, clients, group=""):
    """Starts the clients and waits for them. Prints how many steps they have done."""
    clients = int(clients)
    size = (6 << 20) if clients <= 16 else (1 << 20)
    os.makedirs(f"{mount}/{place}/names")
    os.makedirs(state)
    children = {}
    for number in range(clients):
        child = os.fork()
        if child == 0:
            status = 2
            try:
                status = run_client(number, f"{mount}/{place}", state, seed, size, group)
            except BaseException as error:
                print(f"client {number}: {error!r}", flush=True)
            os._exit(status)
        children[child] = number
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(child, signal.SIGTERM) for child in children])
    failed = 0
    while children:
        child, status = os.waitpid(-1, 0)
        number, status = children.pop(child), os.waitstatus_to_exitcode(status)
        # A page of a mapping that cannot be read from a dead mount ends the client without its model.
        failed += status not in (0, -signal.SIGBUS) or status != 0 and not mount_is_dead(mount)
        if status not in (0, 1):
            print(f"client {number}: status {status}", flush=True)
    if failed:
        sys.exit(f"{failed} of {clients} clients failed")
    print(sum(client.rounds for client in models(state)))


def models(state):
    for number in sorted(os.listdir(state), key=int):
        with open(f"{state}/{number}", "rb") as file:
            yield pickle.load(file)


def verify(mount, place, state, how):
    place = os.open(f"{mount}/{place}", os.O_DIRECTORY)
    names = os.open("names", os.O_DIRECTORY, dir_fd=place)
    for client in models(state):
        for file in client.files:
            try:
                data = read(file.name, place)
            except FileNotFoundError:
                if how == "killed" and not file.synced.size and not file.since:
                    continue
                raise
            file.check_killed(data) if how == "killed" else file.check_ended(data)
        client.names.check(names, how == "killed")


if __name__ == "__main__":
    try:
        {"work": work, "verify": verify}[sys.argv[1]](*sys.argv[2:])
    except (Wrong, OSError) as error:
        sys.exit(f"model: {error}")

#!/usr/bin/env python3
"""Compares two builds of kithfs on real mounts, as ratios.

    scripts/bench-builds.py ROUNDS BUILD FORMER [DIRECTORY]

Both builds have a vault in DIRECTORY (default: /dev/shm) mounted at the same time, without a rollback database. For each line
the builds take turns at blocks of at most 50 operations, so that a change of the machine's speed affects both. This program and
the daemons run on one processor. With two, a request would mostly wait for a halted processor to wake up, and that time varies
more than the builds differ. The columns are: microseconds per operation of BUILD (median of the blocks), then four ratios of
BUILD's time to FORMER's: of the sums, the medians and the first quartiles of the blocks, and of the daemons' processor time.
Above 1, BUILD is slower. Ratios that differ much from one another are noise.
"""
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

FILES = 4000
BLOCK = 50
MIB = 1 << 20
SMALL, OTHER, LARGE = b"x" * 4096, b"y" * 5000, b"w" * MIB


class Mount:
    """A vault of one build, with the directory in which it can be mounted."""

    def __init__(self, program, directory):
        self.program = program
        self.top = tempfile.mkdtemp(prefix="bench-builds.", dir=directory)
        self.at = self.top + "/mnt"
        self.store = self.top + "/store"
        self.daemon = None
        self.file = None
        self.environment = dict(os.environ, KITHFS_NO_ROLLBACK_MEMORY="1", XDG_STATE_HOME=self.top + "/state")
        with open(self.top + "/passphrase", "w") as file:
            file.write("not a secret at all\n")
        os.mkdir(self.at)
        os.mkdir(self.store)
        self.run("init", self.store)

    def command(self, *arguments):
        return [self.program, arguments[0], "--passphrase-file", self.top + "/passphrase", *arguments[1:]]

    def run(self, *arguments):
        subprocess.run(self.command(*arguments), env=self.environment, check=True, capture_output=True)

    def mount(self):
        self.daemon = subprocess.Popen(
            self.command("mount", "--foreground", self.store, self.at),
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.ismount(self.at):
            if self.daemon.poll() is not None:
                raise SystemExit(f"bench-builds: {self.program} cannot mount")
            time.sleep(0.02)

    def unmount(self):
        self.close()
        subprocess.run(["fusermount3", "-u", self.at], check=True)
        self.daemon.wait()
        self.daemon = None

    def end(self):
        if self.daemon:
            self.unmount()
        shutil.rmtree(self.top)

    def cpu(self):
        """Returns the processor time of the daemon in seconds."""
        total = 0
        for task in os.listdir(f"/proc/{self.daemon.pid}/task"):
            try:
                with open(f"/proc/{self.daemon.pid}/task/{task}/schedstat") as file:
                    total += int(file.read().split()[0])
            except OSError:
                pass  # the thread has ended
        return total / 1e9

    def open(self, name, flags):
        self.close()
        self.file = os.open(f"{self.at}/{name}", flags, 0o644)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM if flags == os.O_RDWR else os.POSIX_FADV_NORMAL)
        self.random = random.Random(1)

    def close(self):
        if self.file is not None:
            os.close(self.file)
        self.file = None

    # ---- one operation each, of number n

    def path(self, n, kind="f"):
        return f"{self.at}/d/{kind}{n}"

    def save(self, n, data=SMALL, kind="f", flags=os.O_CREAT | os.O_EXCL):
        file = os.open(self.path(n, kind), os.O_WRONLY | flags, 0o644)
        if data:
            os.write(file, data)
        os.close(file)

    def create(self, n):
        self.save(n)

    def create_empty(self, n):
        self.save(n, None, "e")

    def overwrite(self, n):
        self.save(n, OTHER, "f", os.O_TRUNC)

    def stat(self, n):
        os.stat(self.path(n))

    def read(self, n):
        file = os.open(self.path(n), os.O_RDONLY)
        os.read(file, 8192)
        os.close(file)

    def rename(self, n):
        os.rename(self.path(n), self.path(n, "g"))

    def unlink(self, n):
        os.unlink(self.path(n, "g"))

    def mkdir(self, n):
        os.mkdir(self.path(n, "k"))

    def write_fsync(self, _n):
        os.write(self.file, SMALL)
        os.fsync(self.file)

    def write_stream(self, _n):
        os.write(self.file, LARGE)

    def read_stream(self, _n):
        os.read(self.file, MIB)

    def write_random(self, _n):
        os.pwrite(self.file, SMALL, self.random.randrange(256 * MIB // 4096) * 4096)

    def read_random(self, _n):
        os.pread(self.file, 4096, self.random.randrange(256 * MIB // 4096) * 4096)


# Name, operation, number of operations, whether the vault is mounted anew before, and the file to open with its flags.
CREATE = os.O_CREAT | os.O_WRONLY
LINES = [
    ("create 4 KiB", Mount.create, FILES, False, None),
    ("create, empty", Mount.create_empty, FILES, False, None),
    ("stat, cold", Mount.stat, FILES, True, None),
    ("open and read, cold", Mount.read, FILES, True, None),
    ("open and read, warm", Mount.read, FILES, False, None),
    ("overwrite", Mount.overwrite, FILES, False, None),
    ("rename", Mount.rename, FILES, True, None),
    ("unlink", Mount.unlink, FILES, False, None),
    ("mkdir", Mount.mkdir, FILES // 2, False, None),
    ("write 4 KiB, fsync", Mount.write_fsync, FILES // 2, False, ("small", CREATE)),
    ("write 1 MiB", Mount.write_stream, 256, False, ("large", CREATE)),
    ("write 4 KiB at random", Mount.write_random, FILES, False, ("large", os.O_RDWR)),
    ("read 1 MiB", Mount.read_stream, 256, True, ("large", os.O_RDONLY)),
    ("read 4 KiB at random", Mount.read_random, FILES, True, ("large", os.O_RDWR)),
]


def measure(mounts, rounds):
    """Returns two maps by line and build (0 or 1): the times of its blocks, and its daemon's processor time."""
    blocks, cpu_times = {}, {}
    for turn in range(rounds):
        pair = [Mount(program, directory) for program, directory in mounts]
        try:
            for mount in pair:
                mount.mount()
                os.mkdir(mount.at + "/d")
            for name, act, count, is_anew, file in LINES:
                for mount in pair:
                    if is_anew:
                        mount.unmount()
                        mount.mount()
                    if file:
                        mount.open(*file)
                before = [mount.cpu() for mount in pair]
                size = min(BLOCK, count // 16)
                for first in range(0, count - size + 1, size):
                    for place in (0, 1) if (first // size + turn) % 2 else (1, 0):
                        began = time.perf_counter()
                        for n in range(first, first + size):
                            act(pair[place], n)
                        took = (time.perf_counter() - began) / size
                        blocks.setdefault((name, place), []).append(took)
                for place, mount in enumerate(pair):
                    cpu_times[name, place] = cpu_times.get((name, place), 0) + mount.cpu() - before[place]
        finally:
            for mount in pair:
                mount.end()
    return blocks, cpu_times


def main():
    if len(sys.argv) not in (4, 5) or not sys.argv[1].isdigit():
        raise SystemExit(__doc__)
    directory = sys.argv[4] if len(sys.argv) == 5 else "/dev/shm"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    blocks, cpu_times = measure([(os.path.abspath(program), directory) for program in sys.argv[2:4]], int(sys.argv[1]))
    print(f"{'line':22} {'us':>8} {'sum':>6} {'median':>7} {'quarter':>8} {'cpu':>6}")
    for name, *_ in LINES:
        new, old = blocks[name, 0], blocks[name, 1]
        quarter = lambda times: sorted(times)[len(times) // 4]
        print(f"{name:22} {statistics.median(new) * 1e6:8.1f} {sum(new) / sum(old):6.2f} "
              f"{statistics.median(new) / statistics.median(old):7.2f} {quarter(new) / quarter(old):8.2f} "
              f"{cpu_times[name, 0] / (cpu_times[name, 1] or math.nan):6.2f}")


main()

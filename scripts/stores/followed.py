"""Tests whether a descriptor in one mount shows what another mount of the vault writes: `followed.py ROUNDS DIR DIR`.

Each DIR is the vault through another mount. In each round, and in both directions, one mount writes a file, a program opens it in the other
one, and then the first one rewrites the file, and makes it longer. Prints each read that did not show what was there, and exits with status 1.
"""
import os, sys, time

SIZES = [10, 3000, 40_000, 300_000]
LONGER = b"more" * 500


def write(path, mode, data):
    """Returns how long it took."""
    begun = time.monotonic()
    with open(path, mode) as file:
        file.write(data)
    return time.monotonic() - begun


def main(rounds, *directories):
    wrong, reads, longest = 0, 0, 0
    for number in range(int(rounds)):
        for one, other in (directories, directories[::-1]):
            name = f"followed {number}"
            versions = [(b"%03d-%d " % (number, version)) * (SIZES[number % len(SIZES)] // 6) for version in (1, 2)]
            longest = max(longest, write(f"{one}/{name}", "wb", versions[0]))
            fd = os.open(f"{other}/{name}", os.O_RDONLY)
            for mode, added, wanted in [("ab", b"", versions[0]), ("wb", versions[1], versions[1]), ("ab", LONGER, versions[1] + LONGER)]:
                longest = max(longest, write(f"{one}/{name}", mode, added))
                found = os.pread(fd, 1 << 20, 0)
                reads += 1
                if found != wanted:
                    wrong += 1
                    print(f"{name}, written through {one}: {len(found)} bytes that begin with {found[:6]}, not {len(wanted)} with {wanted[:6]}")
            os.close(fd)
    print(f"{wrong} of {reads} reads wrong; the longest write took {longest:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

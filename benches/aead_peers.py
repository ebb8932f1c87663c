"""Measures Python's libraries for scripts/bench-aead.sh, in the output format of `cargo bench --bench aead -- --buffers`.

    aead_peers.py MIB DIRECTORY
"""

import io
import os
import sys
import time
import warnings

# Deprecation warnings of one library about another do not matter here.
warnings.simplefilter("ignore")

import numpy
from pyflocker.ciphers import AES, Backends
from rencrypt import Cipher, CipherMeta, RingAlgorithm

CHUNK = 256 << 10


def times(size, work, prepare=None):
    taken = []
    for _ in range(min(max((256 << 20) // size, 3), 2000)):
        if prepare:
            prepare()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    taken.sort()
    return taken[0], taken[len(taken) // 2]


def show(library, what, size, figures):
    print(f"{library}\t{what}\t{size}\t{figures[0]:.9f}\t{figures[1]:.9f}", flush=True)


def rencrypt_buffers(size, directory):
    meta = CipherMeta.Ring(RingAlgorithm.Aes256Gcm)
    cipher = Cipher(meta, bytearray(os.urandom(meta.key_len())))
    buf = numpy.full(meta.ciphertext_len(size), 7, dtype=numpy.uint8)
    show("rencrypt", "seal", size, times(size, lambda: cipher.seal_in_place(buf, size, 0, b"context")))
    sealed = buf.copy()
    length = cipher.seal_in_place(sealed, size, 0, b"context")

    # As for kithfs, copying the ciphertext to the place where it is opened is not timed.
    opening = times(size, lambda: cipher.open_in_place(buf, length, 0, b"context"), lambda: numpy.copyto(buf, sealed))
    show("rencrypt", "open", size, opening)
    if size < 1 << 20:
        return
    source, target = os.path.join(directory, "plain"), os.path.join(directory, "sealed")
    with open(source, "wb") as file:
        file.write(b"\7" * size)
    chunk = numpy.zeros(meta.ciphertext_len(CHUNK), dtype=numpy.uint8)

    def encrypt_file():
        with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
            for n in range(size // CHUNK):
                reader.readinto(memoryview(chunk)[:CHUNK])
                written = cipher.seal_in_place(chunk, CHUNK, n, b"context")
                writer.write(memoryview(chunk)[:written])

    show("rencrypt", "encrypt a file", size, times(size, encrypt_file))


def pyflocker_buffers(size, directory):
    key, nonce = os.urandom(32), os.urandom(12)
    plain, sealed = memoryview(bytearray(b"\7" * size)), memoryview(bytearray(size + 16))

    def new(encrypting):
        return AES.new(encrypting, key, AES.MODE_GCM, nonce, backend=Backends.CRYPTOGRAPHY)

    tag = b""

    def seal():
        nonlocal tag
        cipher = new(True)
        cipher.authenticate(b"context")
        cipher.update_into(plain, sealed)
        cipher.finalize()
        tag = cipher.calculate_tag()

    show("PyFLocker", "seal", size, times(size, seal))
    opened = memoryview(bytearray(size + 16))

    def open_sealed():
        cipher = new(False)
        cipher.authenticate(b"context")
        cipher.update_into(sealed[:size], opened)
        cipher.finalize(tag)

    show("PyFLocker", "open", size, times(size, open_sealed))
    if size < 1 << 20:
        return
    source, target = os.path.join(directory, "plain"), os.path.join(directory, "sealed")
    chunk, out = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK + 16))

    def encrypt_file():
        with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
            for _ in range(size // CHUNK):
                reader.readinto(chunk)
                cipher = new(True)
                cipher.update_into(chunk, out)
                cipher.finalize()
                writer.write(out[:CHUNK])
                writer.write(cipher.calculate_tag())

    show("PyFLocker", "encrypt a file", size, times(size, encrypt_file))


def main():
    most, directory = int(sys.argv[1]) << 20, sys.argv[2]
    size = 32 << 10
    while size <= most:
        rencrypt_buffers(size, directory)
        pyflocker_buffers(size, directory)
        size *= 2


main()

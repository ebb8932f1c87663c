#!/usr/bin/python3
"""Reads a kithfs vault without kithfs: lists it, prints a file, exports everything. It changes nothing in the vault.

    read-vault.py [OPTIONS] VAULT ls [PATH]         lists a directory
    read-vault.py [OPTIONS] VAULT cat PATH          writes one file to stdout
    read-vault.py [OPTIONS] VAULT export DIR [PATH] copies everything, or the tree below PATH, to a new or empty directory
    read-vault.py [OPTIONS] VAULT check [PATH]      reads and verifies everything and writes nothing

It is for people who have lost the program, and it proves that SPEC.md is sufficient for a second implementation: it was written from that page
alone, and scripts/second-reader.sh compares it with the program. It needs only Debian's python3, python3-cryptography and python3-argon2.

An object that fails a check is reported on stderr and left out; none of its bytes are returned. Exit status: 0 if all was read; 1 if not;
2 if the command line is wrong; 3 if no secret fits or the identity has no access.
"""
from __future__ import annotations

import argparse
import array
import base64
import dataclasses
import errno
import functools
import getpass
import hashlib
import hmac as hmac_module
import os
import re
import stat
import struct
import sys
import unicodedata
from typing import Callable, Iterator, Sequence

import argon2.low_level
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

RAW = (Encoding.Raw, PublicFormat.Raw)
ZERO32 = bytes(32)


# ---------------------------------------------------------------------------------------------------------------------------------------
# 1 Conventions
# ---------------------------------------------------------------------------------------------------------------------------------------

class Fault(Exception):
    """A check that failed. `kind` is one of those in section 1; the vectors name failures by it."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class NoAccess(Exception):
    """No secret opens the identity, or a share has no proof: exit status 3."""


class Bytes:
    """The position of a strict parser in its input."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.at = data, what, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise Fault("truncated", f"{self.what} ends too early")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def zeros(self, count: int) -> None:
        if any(self.take(count)):
            raise Fault("flags", f"{self.what}: reserved bytes are not zero")

    def end(self) -> None:
        if self.at != len(self.data):
            raise Fault("trailing", f"{self.what}: bytes are left over")

    def begin(self, magic: bytes) -> None:
        """Magic and version, with which every file of the format begins."""
        if self.take(len(magic)) != magic:
            raise Fault("magic", f"{self.what}: begins with the wrong bytes")
        version = self.number(2)
        if version != 1:
            raise Fault("version", f"{self.what} has version {version}, this reader knows 1")

    def suite(self) -> int:
        suite = self.number(1)
        if suite not in (AES, CHACHA):
            raise Fault("suite", f"{self.what} has suite {suite}, this reader knows 1 and 2")
        return suite


def within(value: int, least: int, most: int, what: str) -> int:
    if not least <= value <= most:
        raise Fault("range", f"{what} is {value}, which is not {least} to {most}")
    return value


def ascending(keys: Sequence[object], what: str) -> None:
    if any(not a < b for a, b in zip(keys, keys[1:])):  # type: ignore[operator]
        raise Fault("order", f"{what} are not in ascending order, or there is a duplicate")


def text(data: bytes, what: str) -> str:
    """UTF-8 without control characters."""
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("encoding", f"{what} is not UTF-8") from None
    if any(unicodedata.category(character) == "Cc" for character in decoded):
        raise Fault("encoding", f"{what} has control characters")
    return decoded


def u(width: int, value: int) -> bytes:
    return value.to_bytes(width, "little")


def label(purpose: str) -> bytes:
    return b"kithfs v1 " + purpose.encode() + b"\0"


def parts16(parts: Sequence[bytes]) -> bytes:
    return b"".join(u(2, len(part)) + part for part in parts)


def extract(salt: bytes, secret: bytes) -> bytes:
    return hmac_module.digest(salt or ZERO32, secret, "sha256")


def expand(key: bytes, purpose: str, *parts: bytes) -> bytes:
    return hmac_module.digest(key, label(purpose) + parts16(parts) + b"\x01", "sha256")


def hmac(key: bytes, *parts: bytes) -> bytes:
    return hmac_module.digest(key, parts16(parts), "sha256")


def digest(purpose: str, *parts: bytes) -> bytes:
    name = label(purpose)
    return hashlib.sha256(u(2, len(name)) + name + b"".join(u(8, len(part)) + part for part in parts)).digest()


# BLAKE3, which the standard library lacks. Many messages of one length are hashed at once: word i of a block of all of them is in one
# big integer, 64 bits to each of the lanes, so that Python's arithmetic on long numbers does the loop.

BLAKE3_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
BLAKE3_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
BLAKE3_ROUND = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8


def to_lanes(words: Sequence[int]) -> int:
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *words), "little")


def block_lanes(blocks: bytes, count: int, stride: int, offset: int) -> list[int]:
    """The 16 words at `offset` of each of `count` pieces of `stride` bytes."""
    words = array.array("I", blocks)
    if sys.byteorder == "big":
        words.byteswap()
    return [to_lanes(words[(offset >> 2) + i::stride >> 2][:count]) for i in range(16)]


def blake3_compress(chain: list[int], block: list[int], lanes: int, counters: int, length: int, flags: int) -> list[int]:
    ones = to_lanes([1] * lanes)
    mask = ones * 0xFFFFFFFF
    state = chain + [ones * word for word in BLAKE3_IV[:4]] + [counters, 0, ones * length, ones * flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(BLAKE3_ROUND):
            va, vb, vc, vd = state[a], state[b], state[c], state[d]
            for word, right, then in ((block[2 * i], 16, 12), (block[2 * i + 1], 8, 7)):
                va = (va + vb + word) & mask
                vd ^= va
                vd = (vd >> right | vd << 32 - right) & mask
                vc = (vc + vd) & mask
                vb ^= vc
                vb = (vb >> then | vb << 32 - then) & mask
            state[a], state[b], state[c], state[d] = va, vb, vc, vd
        block = [block[i] for i in BLAKE3_PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def blake3_chains(chain: list[int], lanes: int) -> list[bytes]:
    columns = [struct.unpack(f"<{lanes}Q", word.to_bytes(8 * lanes, "little")) for word in chain]
    return [struct.pack("<8I", *words) for words in zip(*columns)]


def blake3_leaves(pieces: Sequence[bytes], counters: Sequence[int], root: int) -> list[bytes]:
    """Chaining values of chunks of one length, up to 1024 bytes."""
    lanes, length = len(pieces), len(pieces[0])
    blocks = max(1, -(-length // 64))
    data = b"".join(piece.ljust(blocks * 64, b"\0") for piece in pieces)
    ones, counter = to_lanes([1] * lanes), to_lanes(counters)
    chain = [ones * word for word in BLAKE3_IV]
    for block in range(blocks):
        last = block == blocks - 1
        flags = (CHUNK_START if block == 0 else 0) | (CHUNK_END | root if last else 0)
        lanes_of_block = block_lanes(data, lanes, blocks * 64, block * 64)
        chain = blake3_compress(chain, lanes_of_block, lanes, counter, length - block * 64 if last else 64, flags)
    return blake3_chains(chain, lanes)


def blake3_many(messages: Sequence[bytes]) -> list[bytes]:
    """BLAKE3 of messages that all have one length."""
    if not messages:
        return []
    length, count = len(messages[0]), len(messages)
    chunks = max(1, -(-length // 1024))
    full = length // 1024
    levels: list[list[bytes]] = [[] for _ in messages]
    root = ROOT if chunks == 1 else 0
    if full:
        pieces = [message[i * 1024:i * 1024 + 1024] for message in messages for i in range(full)]
        leaves = blake3_leaves(pieces, list(range(full)) * count, root)
        levels = [leaves[i * full:i * full + full] for i in range(count)]
    if full < chunks:
        for level, leaf in zip(levels, blake3_leaves([m[full * 1024:] for m in messages], [full] * count, root)):
            level.append(leaf)
    while len(levels[0]) > 1:
        pairs = len(levels[0]) // 2
        lanes = pairs * count
        ones = to_lanes([1] * lanes)
        data = b"".join(level[2 * i] + level[2 * i + 1] for level in levels for i in range(pairs))
        flags = PARENT | (ROOT if len(levels[0]) == 2 else 0)
        chain = blake3_compress([ones * word for word in BLAKE3_IV], block_lanes(data, lanes, 64, 0), lanes, 0, 64, flags)
        nodes = blake3_chains(chain, lanes)
        levels = [nodes[i * pairs:i * pairs + pairs] + level[2 * pairs:] for i, level in enumerate(levels)]
    return [level[0] for level in levels]


def blake3(message: bytes) -> bytes:
    return blake3_many([message])[0]


# Ed25519, strictly. The library checks S and compares the bytes of R without the cofactor; keys that are not canonical and points of small
# order are refused here.

ED25519_P = 2**255 - 19
SMALL_ORDER_Y = {
    0, 1, ED25519_P - 1,
    int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
    int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fddb7792ac7a"), "little"),
}


def is_good_point(encoded: bytes) -> bool:
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    return y < ED25519_P and y not in SMALL_ORDER_Y


def verify_signature(purpose: str, key: bytes, message: bytes, signature: bytes) -> None:
    if is_good_point(key) and is_good_point(signature[:32]):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, label(purpose) + message)
            return
        except (InvalidSignature, ValueError):
            pass
    raise Fault("unauthentic", "the signature does not verify")


# Suites.

AES, CHACHA = 1, 2


def aes_blocks(key: bytes, blocks: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)


def aes_blocks_back(key: bytes, blocks: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).decryptor().update(blocks)


def xaes_step(key: bytes, nonce12: bytes) -> bytes:
    """The key step of XAES-256-GCM (C2SP): CMAC of two one-block messages."""
    doubled = int.from_bytes(aes_blocks(key, bytes(16)), "big") << 1
    if doubled >> 128:
        doubled ^= 1 << 128 | 0x87
    mask = doubled.to_bytes(16, "big")
    blocks = b"".join(xor(bytes([0, i, 0x58, 0]) + nonce12, mask) for i in (1, 2))
    return aes_blocks(key, blocks)


def hchacha20(key: bytes, nonce16: bytes) -> bytes:
    state = list(struct.unpack("<16I", b"expand 32-byte k" + key + nonce16))

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            word = state[z] ^ state[x]
            state[z] = (word << by | word >> 32 - by) & 0xFFFFFFFF

    for _ in range(10):
        for lanes in BLAKE3_ROUND:
            quarter(*lanes)
    return struct.pack("<8I", *state[:4], *state[12:])


def segment_cipher(suite: int, file_key: bytes, salt: bytes) -> AESGCM | ChaCha20Poly1305:
    return AESGCM(xaes_step(file_key, salt[:12])) if suite == AES else ChaCha20Poly1305(hchacha20(file_key, salt))


def open_sealed(suite: int, key: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The suite's construction for records; `sealed` is ciphertext and tag."""
    try:
        if suite == AES:
            return AESGCM(xaes_step(key, nonce[:12])).decrypt(nonce[12:], sealed, associated)
        return ChaCha20Poly1305(hchacha20(key, nonce[:16])).decrypt(bytes(4) + nonce[16:], sealed, associated)
    except InvalidTag:
        raise Fault("unauthentic", "the seal does not open") from None


def open_record(suite: int, key: bytes, record: bytes, associated: bytes) -> bytes:
    if len(record) < 40:
        raise Fault("truncated", "a sealed record ends too early")
    return open_sealed(suite, key, record[:24], record[24:], associated)


def xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


def base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def from_base64url(encoded: bytes, what: str) -> bytes:
    """Only the canonical form is accepted: the alphabet alone, no padding, no bits after the last byte."""
    try:
        data = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
    except ValueError:
        data = b""
    if base64url(data) != encoded:
        raise Fault("encoding", f"{what} is not canonical base64url")
    return data


# ---------------------------------------------------------------------------------------------------------------------------------------
# 5 Names
# ---------------------------------------------------------------------------------------------------------------------------------------

class Polyval:
    """POLYVAL of RFC 8452 under one key: sums and products in GF(2^128), x^i being bit i of a little-endian block."""

    REDUCTION = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1

    def __init__(self, key: bytes) -> None:
        element = int.from_bytes(key, "little")
        for _ in range(128):  # the product of POLYVAL is a · b · x^-128
            element = (element ^ self.REDUCTION if element & 1 else element) >> 1
        self.tables: list[list[int]] = []
        for _ in range(16):
            table = [0]
            for _ in range(8):
                table += [entry ^ element for entry in table]
                element <<= 1
                if element >> 128:
                    element ^= self.REDUCTION
            self.tables.append(table)

    def hash(self, data: bytes) -> bytes:
        total = 0
        for at in range(0, len(data), 16):
            block = (total ^ int.from_bytes(data[at:at + 16], "little")).to_bytes(16, "little")
            total = 0
            for table, byte in zip(self.tables, block):
                total ^= table[byte]
        return total.to_bytes(16, "little")


class Hctr2:
    """HCTR2 of Crowley, Huckleberry and Biggers with AES-256; messages of 16 bytes and more."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.polyval = Polyval(aes_blocks(key, bytes(16)))
        self.mask = aes_blocks(key, u(16, 1))

    def hash(self, tweak: bytes, message: bytes) -> bytes:
        whole = len(message) % 16 == 0
        head = u(16, 2 * 8 * len(tweak) + (2 if whole else 3)) + tweak + bytes(-len(tweak) % 16)
        return self.polyval.hash(head + (message if whole else message + b"\x01" + bytes(15 - len(message) % 16)))

    def stream(self, seed: bytes, data: bytes) -> bytes:
        blocks = b"".join(xor(seed, u(16, i)) for i in range(1, len(data) // 16 + 2))
        return xor(data, aes_blocks(self.key, blocks)[:len(data)])

    def decrypt(self, tweak: bytes, sealed: bytes) -> bytes:
        u_block, v = sealed[:16], sealed[16:]
        uu = xor(u_block, self.hash(tweak, v))
        mm = aes_blocks_back(self.key, uu)
        n = self.stream(xor(xor(mm, uu), self.mask), v)
        return xor(mm, self.hash(tweak, n)) + n

    def encrypt(self, tweak: bytes, plain: bytes) -> bytes:
        m, n = plain[:16], plain[16:]
        mm = xor(m, self.hash(tweak, n))
        uu = aes_blocks(self.key, mm)
        v = self.stream(xor(xor(mm, uu), self.mask), n)
        return xor(uu, self.hash(tweak, v)) + v


ENTRY = re.compile(rb"(?!(?:@eaDir|@Recycle|desktop\.ini|lost\+found|System Volume Information|Thumbs\.db)\Z)[A-Za-z0-9,@=]", re.IGNORECASE)
STORED_NAME = re.compile(rb"(=?)([A-Za-z0-9,@]*)(.*)", re.DOTALL)
CONTROL_FILE = re.compile(rb"\+(?:(?:share|identity|lock|long|moved|synced|shared|lease|wanted)\Z|(?:lock|manifest|slots|link|attr|inventory|journal|created"
                          rb"|refused|junction|moving|tmp|trash)-)")
MARK = re.compile(rb"(.+) \(moved [0-9a-f]{8}\)", re.DOTALL)
KNOWN_SUFFIX = re.compile(rb"\.sync-conflict-.*|_conflict-.*|\.(?i:conflict).*|-(?=[0-9-]*[A-Z])[A-Z0-9-]{1,15}| \([0-9]+\)"
                          rb"| \(.*(?i:conflict).*\)", re.DOTALL)
OTHER_SUFFIX = b" (conflict copy "


def letters(data: bytes) -> bytes:
    return base64.b64encode(data, b",@").rstrip(b"=")


def from_letters(encoded: bytes, what: str) -> bytes:
    try:
        data = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b",@", validate=True)
    except ValueError:
        data = b""
    if letters(data) != encoded:
        raise Fault("encoding", f"{what} is not spelled as names are")
    return data


def check_plain_name(name: bytes) -> bytes:
    within(len(name), 1, 255, "the length of a name")
    if b"/" in name or b"\0" in name or name in (b".", b".."):
        raise Fault("range", "an invalid name")
    return name


@dataclasses.dataclass(frozen=True)
class StoredName:
    """The parts of a stored name: sealed bytes or a hash of them, and what follows the letters."""
    sealed: bytes
    hash: bytes
    suffix: bytes


def parse_stored_name(stored: bytes, longest: int) -> StoredName:
    found = STORED_NAME.fullmatch(stored)
    assert found
    equals, written, suffix = found.groups()
    if equals:
        if len(written) != 43:
            raise Fault("encoding", "a hash in a name does not have 43 letters")
        return StoredName(b"", from_letters(written, "a hash in a name"), suffix)
    within(len(written), 1, longest, "the length of a stored name")
    return StoredName(from_letters(written, "a name"), b"", suffix)


def open_sealed_name(names: Hctr2, sealed: bytes) -> tuple[bytes, bytes]:
    """Tag and plain name."""
    within(len(sealed), 24, 8 + 255 + 8, "the length of a sealed name")
    padded = names.decrypt(b"", sealed)
    tag, name = padded[:8], padded[8:].rstrip(b"\0")
    if len(padded) != max(24, 8 + len(name) + 8):
        raise Fault("unauthentic", "a name under another key")
    return tag, check_plain_name(name)


def check_long_name(sealed: bytes, name_hash: bytes, longest: int) -> bytes:
    """The contents of a file in `+long`."""
    if len(letters(sealed)) <= longest or blake3(sealed) != name_hash:
        raise Fault("unauthentic", "its sealed name does not match its hash")
    return sealed


def is_known_suffix(suffix: bytes) -> bool:
    return not suffix.startswith(OTHER_SUFFIX) and KNOWN_SUFFIX.fullmatch(suffix) is not None


def shown_suffix(suffix: bytes) -> bytes:
    return suffix if not suffix or is_known_suffix(suffix) else OTHER_SUFFIX + suffix + b")"


def splits(name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ways to take a shown name apart, from the left: the plain name and the suffix as stored."""
    for at in range(1, len(name)):
        if name[at] not in b". _-":
            continue
        left, right = name[:at], name[at:]
        if is_known_suffix(right):
            yield left, right
        elif right.startswith(OTHER_SUFFIX) and right.endswith(b")"):
            inner = right[len(OTHER_SUFFIX):-1]
            if inner and not re.match(rb"[A-Za-z0-9,@]", inner) and not is_known_suffix(inner):
                yield left, inner


def mark(stored: bytes) -> bytes:
    return b" (moved " + blake3(stored)[:4].hex().encode() + b")"


# ---------------------------------------------------------------------------------------------------------------------------------------
# 9 Identities
# ---------------------------------------------------------------------------------------------------------------------------------------

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
PASSPHRASE, RECOVERY_CODE, KEY_FILE, AGE = 1, 2, 3, 4
SLOT_KINDS = {"passphrase": PASSPHRASE, "recovery code": RECOVERY_CODE, "key file": KEY_FILE, "age recipient": AGE}
AGE_MAGIC = b"age-encryption.org/v1\n"


def from_bits(bits: str) -> bytes:
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def crockford(data: bytes, bits: int) -> str:
    ones = "".join(f"{byte:08b}" for byte in data)[:bits]
    symbols = "".join(CROCKFORD[int(ones[i:i + 5], 2)] for i in range(0, bits, 5))
    return "-".join(symbols[i:i + 4] for i in range(0, len(symbols), 4))


def public_identity(data: bytes) -> bytes:
    if data[63] & 0x80:
        raise Fault("encoding", "the top bit of an exchange key is set")
    return data


def fingerprint(public: bytes) -> str:
    return crockford(digest("fingerprint", public[:32], public[32:]), 100)


def identity_of_text(written: str) -> bytes:
    """Bech32m (BIP 350), prefix `kith`, over 01 and the public identity."""
    folded = "".join(written.split())
    if folded == folded.upper():
        folded = folded.lower()
    if len(folded) != 115 or not folded.startswith("kith1") or any(symbol not in BECH32 for symbol in folded[5:]):
        raise Fault("encoding", "not the text of a public identity")
    values = [BECH32.index(symbol) for symbol in folded[5:]]
    check = 1
    for value in [ord(c) >> 5 for c in "kith"] + [0] + [ord(c) & 31 for c in "kith"] + values:
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ value
        for i, constant in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= constant if top >> i & 1 else 0
    bits = "".join(f"{value:05b}" for value in values[:-6])
    data, rest = from_bits(bits[:520]), bits[520:]
    if check != 0x2BC830A3 or "1" in rest or data[0] != 1:
        raise Fault("encoding", "not the text of a public identity")
    return public_identity(data[1:])


def recovery_code(written: str) -> bytes:
    folded = "".join(written.split()).replace("-", "").upper().replace("O", "0").replace("I", "1").replace("L", "1")
    if len(folded) != 36 or any(symbol not in CROCKFORD for symbol in folded):
        raise NoAccess("this is no recovery code: it has 36 letters and digits")
    bits = "".join(f"{CROCKFORD.index(symbol):05b}" for symbol in folded)
    code = from_bits(bits[:160])
    if "".join(f"{byte:08b}" for byte in digest("recovery check", code))[:20] != bits[160:]:
        raise NoAccess("the recovery code has a typing error: its checksum does not fit")
    return code


@dataclasses.dataclass(frozen=True)
class IdentitySlot:
    id: int
    kind: int
    created: int
    memory: int
    passes: int
    lanes: int
    salt: bytes
    sealed: bytes
    label: bytes
    head: bytes  # bytes 0 to 56
    age_file: bytes


@dataclasses.dataclass(frozen=True)
class Identity:
    """The reading identity: the keys that are derived from the seed."""
    seed: bytes

    @functools.cached_property
    def prk(self) -> bytes:
        return extract(b"", self.seed)

    @functools.cached_property
    def exchange(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(expand(self.prk, "identity exchange"))

    @functools.cached_property
    def public(self) -> bytes:
        signing = Ed25519PrivateKey.from_private_bytes(expand(self.prk, "identity signing"))
        return signing.public_key().public_bytes(*RAW) + self.exchange.public_key().public_bytes(*RAW)

    def journal_key(self, share_id: bytes) -> bytes:
        return expand(self.prk, "identity journal", share_id)


def parse_identity_file(data: bytes) -> tuple[int, bytes, list[IdentitySlot]]:
    """9.1: suite, public identity, slots."""
    at = Bytes(data, "the identity file")
    at.begin(b"kithiden")
    suite = at.suite()
    count = within(at.number(1), 1, 32, "the number of slots")
    public = public_identity(at.take(64))
    slots = []
    for _ in range(count):
        start = at.at
        number = within(at.number(2), 1, 0xFFFF, "the id of a slot")
        kind = at.number(1)
        if kind not in SLOT_KINDS.values():
            raise Fault("flags", f"slot {number} is of a kind that this reader does not know")
        length = within(at.number(1), 0, 64, "the length of a slot's label")
        created, memory, passes, lanes = at.number(8), at.number(4), at.number(4), at.number(4)
        age_length = 0
        if kind == AGE:
            age_length, memory = within(memory, 22, 8192, "the length of an age file"), 0
        salt = at.take(32)
        head = data[start:start + 56]
        sealed = at.take(72)
        name = at.take(length)
        text(name, "the label of a slot")
        age_file = at.take(age_length)
        if kind == AGE and not age_file.startswith(AGE_MAGIC):
            raise Fault("magic", f"slot {number}: the age file begins with the wrong bytes")
        if kind == PASSPHRASE:
            within(memory, 32 << 10, 4 << 20, "the memory of a passphrase in KiB")
            within(passes, 1, 64, "the passes of a passphrase")
            within(lanes, 1, 16, "the lanes of a passphrase")
        elif memory or passes or lanes:
            raise Fault("flags", f"slot {number}: reserved bytes are not zero")
        slots.append(IdentitySlot(number, kind, created, memory, passes, lanes, salt, sealed, name, head, age_file))
    at.end()
    ascending([slot.id for slot in slots], "the slots of the identity")
    within(sum(slot.memory * slot.passes for slot in slots), 0, (4 << 20) * 64, "memory x passes of all passphrases")
    return suite, public, slots


def age_identity(line: str) -> X25519PrivateKey:
    """A native age identity: bech32 with the prefix AGE-SECRET-KEY-, over 32 bytes."""
    prefix, _, symbols = line.lower().rpartition("1")
    if prefix != "age-secret-key-" or any(symbol not in BECH32 for symbol in symbols) or len(symbols) != 58:
        raise NoAccess("this reader opens age slots with native X25519 identities only (AGE-SECRET-KEY-1...)")
    values = [BECH32.index(symbol) for symbol in symbols]
    check = 1
    for value in [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix] + values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for i, constant in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= constant if top >> i & 1 else 0
    bits = "".join(f"{value:05b}" for value in values[:-6])
    if check != 1 or "1" in bits[256:]:
        raise NoAccess("the age identity has a typing error")
    return X25519PrivateKey.from_private_bytes(from_bits(bits[:256]))


def open_age_file(data: bytes, identity: X25519PrivateKey) -> bytes | None:
    """The contents of an age file of one chunk (c2sp.org/age); None if no stanza of it is for the identity."""
    def derive(key: bytes, salt: bytes, info: bytes) -> bytes:
        return hmac_module.digest(extract(salt, key), info + b"\1", "sha256")

    def unpadded(text: bytes) -> bytes:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)

    end = data.find(b"\n---")
    line_end = data.find(b"\n", end + 1)
    if end < 0 or line_end < 0:
        return None
    stanzas: list[tuple[list[bytes], bytes]] = []
    for line in data[len(AGE_MAGIC):end].split(b"\n"):
        if line.startswith(b"-> "):
            stanzas.append((line[3:].split(b" "), b""))
        elif stanzas:
            stanzas[-1] = (stanzas[-1][0], stanzas[-1][1] + line)
    own = identity.public_key().public_bytes(*RAW)
    for arguments, body in stanzas:
        if arguments[0] != b"X25519" or len(arguments) != 2:
            continue
        try:
            share = unpadded(arguments[1])
            shared = identity.exchange(X25519PublicKey.from_public_bytes(share))
            wrap = derive(shared, share + own, b"age-encryption.org/v1/X25519")
            file_key = ChaCha20Poly1305(wrap).decrypt(bytes(12), unpadded(body), None)
            mac = hmac_module.digest(derive(file_key, b"", b"header"), data[:end + 4], "sha256")
            if len(file_key) != 16 or not hmac_module.compare_digest(mac, unpadded(data[end + 5:line_end])):
                continue
            payload = data[line_end + 1:]
            return ChaCha20Poly1305(derive(file_key, payload[:16], b"payload")).decrypt(bytes(11) + b"\1", payload[16:], None)
        except (ValueError, InvalidTag):
            continue
    return None


def open_identity_file(data: bytes, kind: int, secret: bytes) -> Identity:
    """For kind AGE the secret is the text of an age identity."""
    suite, public, slots = parse_identity_file(data)
    for slot in slots:
        if slot.kind != kind:
            continue
        if kind == PASSPHRASE:
            key = argon2.low_level.hash_secret_raw(secret, slot.salt, time_cost=slot.passes, memory_cost=slot.memory,
                                                   parallelism=slot.lanes, hash_len=32, type=argon2.low_level.Type.ID, version=0x13)
        elif kind == AGE:
            contents = open_age_file(slot.age_file, age_identity(secret.decode()))
            if contents is None or len(contents) != 32:
                continue
            key = expand(extract(slot.salt, contents), "age recipient")
        else:
            key = expand(extract(slot.salt, secret), "recovery code" if kind == RECOVERY_CODE else "key file")
        associated = label("identity slot") + data[:11] + public + slot.head + slot.label + slot.age_file
        try:
            identity = Identity(open_record(suite, key, slot.sealed, associated))
        except Fault:
            continue
        if identity.public != public:
            raise Fault("unauthentic", "the identity file is damaged: its seed does not match its public keys")
        return identity
    others = ", ".join(f"slot {slot.id}: {slot.label.decode() or 'no label'}" for slot in slots if slot.kind == AGE)
    raise NoAccess("wrong secret: it opens no slot of its kind" +
                   (f" (this reader opens age slots with native X25519 identities only; {others})" if kind == AGE and others else ""))


# ---------------------------------------------------------------------------------------------------------------------------------------
# 2 The store, which is trusted for nothing
# ---------------------------------------------------------------------------------------------------------------------------------------

def open_directory(parent: int, name: bytes) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def open_root(path: str | bytes) -> int:
    """A directory that the user names: links are followed here, and nowhere below it."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_regular(parent: int, name: bytes) -> int:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Fault("flags", f"{show(name)} is not a regular file")
    return fd


def read_control(parent: int, name: bytes, most: int = 1 << 28) -> bytes | None:
    """The contents of a control file; None if there is none."""
    try:
        fd = open_regular(parent, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Fault("flags", f"{show(name)} is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise Fault("flags", f"{show(name)} is a socket") from None
        raise
    with os.fdopen(fd, "rb") as file:
        within(os.fstat(fd).st_size, 0, most, f"the length of {show(name)}")
        return file.read()


def entry_path(parent: int, name: bytes) -> str:
    """A path for the calls that take no descriptor of a directory."""
    return f"/proc/self/fd/{parent}/{os.fsdecode(name)}"


def escape(text: str) -> str:
    """Names and faults can contain text that an attacker chose: escape everything that moves a terminal's cursor or begins a new line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def show(path: bytes) -> str:
    return escape(path.decode("utf-8", "backslashreplace"))


# ---------------------------------------------------------------------------------------------------------------------------------------
# 10 Shares and rosters
# ---------------------------------------------------------------------------------------------------------------------------------------

READER, WRITER, ADMIN = 1, 2, 3
SIGNED, SMALL = 1, 2


@dataclasses.dataclass(frozen=True)
class Descriptor:
    suite: int
    signed: bool
    isolated: bool
    chunk_log2: int
    longest_name: int
    founder: bytes
    id: bytes


def parse_descriptor(data: bytes) -> Descriptor:
    """10.1"""
    at = Bytes(data, "the share's descriptor")
    at.begin(b"kithshar")
    suite = at.suite()
    flags = at.number(1)
    if flags not in (0, 1, 3):
        raise Fault("flags", f"the share's descriptor has flags {flags}, which this reader does not know")
    chunk_log2 = within(at.number(1), 12, 22, "log2 of the chunk size")
    longest_name = within(at.number(1), 64, 200, "the longest stored name")
    at.zeros(2)
    founder = public_identity(at.take(64))
    at.take(32)
    at.end()
    return Descriptor(suite, flags & 1 != 0, flags & 2 != 0, chunk_log2, longest_name, founder, digest("share id", data))


@dataclasses.dataclass(frozen=True)
class Member:
    public: bytes
    role: int
    name: bytes


@dataclasses.dataclass(frozen=True)
class SlotBlock:
    suite: int
    epoch: int
    share_id: bytes
    ephemeral: bytes
    slots: list[bytes]
    members: bytes  # sealed
    members_associated: bytes
    root: bytes


def tree_levels(leaves: list[bytes], purpose: str) -> list[list[bytes]]:
    """A tree over pages: a last node without a sibling moves up unchanged."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([digest(purpose, *below[i:i + 2]) if i + 1 < len(below) else below[i] for i in range(0, len(below), 2)])
    return levels


def parse_slot_block(data: bytes, in_parts: bool = False) -> SlotBlock:
    """10.2, read as a whole: the tree is recomputed from the slots and compared. With `in_parts` bytes behind the block are ignored, because a
    reader of single pages does not see them."""
    at = Bytes(data, "a slot block")
    at.begin(b"kithslot")
    suite = at.suite()
    at.zeros(1)
    epoch = within(at.number(4), 1, 0xFFFFFFFF, "the epoch of a slot block")
    share_id, ephemeral = at.take(32), at.take(32)
    count = within(at.number(4), 1, 65536, "the number of slots")
    members_length = within(at.number(4), 0, 44 + 130 * count, "the length of the member list")
    top, members_hash = at.take(32), at.take(32)
    slots = [at.take(64) for _ in range(count)]
    pages = [b"".join(slots[i:i + 16]) for i in range(0, count, 16)]
    levels = tree_levels([digest("slot page", u(4, i), page) for i, page in enumerate(pages)], "slot node")
    stored = [at.take(32) for level in levels[:-1] for _ in level]
    members = at.take(members_length)
    if not in_parts:
        at.end()
    ascending([slot[:16] for slot in slots], "the slots")
    if stored != [node for level in levels[:-1] for node in level] or levels[-1][0] != top:
        raise Fault("unauthentic", "the tree of a slot block does not fit its slots")
    if digest("member list hash", members) != members_hash:
        raise Fault("unauthentic", "the member list is not the one of its slot block")
    return SlotBlock(suite, epoch, share_id, ephemeral, slots, members, data[:84], digest("slot block", data[:152]))


def open_slot(block: SlotBlock, identity: Identity) -> bytes | None:
    """The folder key from the identity's slot; None if there is no such slot."""
    try:
        dh = identity.exchange.exchange(X25519PublicKey.from_public_bytes(block.ephemeral))
    except ValueError:
        raise Fault("unauthentic", "the ephemeral key of a slot block is of small order") from None
    if not any(dh):
        raise Fault("unauthentic", "the ephemeral key of a slot block is of small order")
    prk = extract(label("roster slot") + block.share_id, dh)
    context = (u(1, block.suite), block.ephemeral, identity.public[:32], identity.public[32:], u(4, block.epoch))
    tag = expand(prk, "roster slot tag", *context)[:16]
    for slot in block.slots:
        if slot[:16] == tag:
            return open_sealed(block.suite, expand(prk, "roster slot key", *context), bytes(24), slot[16:], tag)
    return None


def open_members(block: SlotBlock, records_key: bytes) -> list[Member]:
    key = expand(records_key, "members", block.ephemeral)
    members = parse_members(open_record(block.suite, key, block.members, block.members_associated))
    if len(members) != len(block.slots):
        raise Fault("range", "the number of members is not the number of slots in the slot block")
    return members


def parse_members(content: bytes) -> list[Member]:
    at, members = Bytes(content, "the member list"), []
    for _ in range(within(at.number(4), 1, 65536, "the number of members")):
        public = public_identity(at.take(64))
        role = at.number(1)
        if role not in (READER, WRITER, ADMIN):
            raise Fault("flags", f"a member has role {role}, which this reader does not know")
        name = at.take(within(at.number(1), 0, 64, "the length of a member's name"))
        text(name, "the name of a member")
        members.append(Member(public, role, name))
    at.end()
    ascending([member.public[:32] for member in members], "the members")
    return members


@dataclasses.dataclass(frozen=True)
class Manifest:
    suite: int
    sequence: int
    epoch: int
    share_id: bytes
    previous: bytes
    second: bytes
    commitment: bytes
    inventory_root: bytes
    inventory_hash: bytes
    signer: bytes
    admins: list[bytes]
    blocks: list[tuple[bytes, int]]
    history: list[tuple[int, bytes, bytes]]
    signed: bytes  # all bytes before the signature
    signature: bytes
    hash: bytes

    def file_name(self) -> bytes:
        return f"+manifest-{self.sequence}-{self.hash[:16].hex()}".encode()


def parse_manifest(data: bytes) -> Manifest:
    """10.3"""
    at = Bytes(data, "a manifest")
    at.begin(b"kithmani")
    suite = at.suite()
    at.zeros(1)
    sequence = within(at.number(4), 1, 0xFFFFFFFF, "the sequence of a manifest")
    epoch = within(at.number(4), 1, 0xFFFFFFFF, "the epoch of a manifest")
    at.number(8)
    share_id, previous, second, commitment = at.take(32), at.take(32), at.take(32), at.take(32)
    inventory_root, inventory_hash = at.take(32), at.take(32)
    if any(inventory_root) != any(inventory_hash):
        raise Fault("range", "a manifest has one of the two hashes of an inventory")
    signer = at.take(32)
    admins = within(at.number(2), 1, 1024, "the number of admins")
    history = within(at.number(2), 0, 256, "the number of history entries")
    blocks = within(at.number(1), 1, 4, "the number of slot blocks")
    at.zeros(3)
    admin_list = [at.take(32) for _ in range(admins)]
    block_list = [(at.take(32), at.number(4)) for _ in range(blocks)]
    history_list = [(at.number(4), at.take(32), at.take(72)) for _ in range(history)]
    signed = data[:at.at]
    signature = at.take(64)
    at.end()
    ascending(admin_list, "the admins")
    ascending([entry[:2] for entry in history_list], "the history entries")
    if len({root for root, _ in block_list}) != blocks:
        raise Fault("order", "a manifest names a slot block twice")
    return Manifest(suite, sequence, epoch, share_id, previous, second, commitment, inventory_root, inventory_hash, signer, admin_list,
                    block_list, history_list, signed, signature, digest("manifest hash", data))


def verify_manifests(descriptor: Descriptor, manifests: list[Manifest]) -> dict[bytes, Manifest]:
    """10.4, checks 1 to 5. A parent has a lower epoch, or the same epoch and a lower sequence, so it is verified before its children."""
    valid: dict[bytes, Manifest] = {}
    for m in sorted(manifests, key=lambda m: (m.epoch, m.sequence)):
        if (m.share_id, m.suite) != (descriptor.id, descriptor.suite):
            continue
        if not any(m.previous):
            fits = m.sequence == 1 and m.epoch == 1 and not m.history and not any(m.second)
            may_sign = m.signer == descriptor.founder[:32]
        else:
            before = valid.get(m.previous)
            if before is None:
                continue
            may_sign = m.signer in before.admins
            earlier = [entry[:2] for entry in m.history]
            if any(m.second):
                other = valid.get(m.second)
                fits = (other is not None and m.second != m.previous and m.epoch == max(before.epoch, other.epoch) + 1
                        and m.sequence == max(before.sequence, other.sequence) + 1
                        and (before.epoch, before.commitment) in earlier and all(1 <= epoch < m.epoch for epoch, _ in earlier))
            elif m.epoch == before.epoch:
                fits = m.commitment == before.commitment and not m.history
            else:
                fits = m.epoch == before.epoch + 1 and earlier == [(before.epoch, before.commitment)]
            if not any(m.second):
                fits = fits and m.sequence == before.sequence + 1
        if not descriptor.signed:
            fits = fits and m.admins == [descriptor.founder[:32]] and [count for _, count in m.blocks] == [1]
        if not fits or not may_sign:
            continue
        try:
            verify_signature("manifest signature", m.signer, m.signed, m.signature)
        except Fault:
            continue
        valid[m.hash] = m
    return valid


def settles(manifest: Manifest, valid: dict[bytes, Manifest]) -> bytes | None:
    """The branch that a manifest settles: its signer must be an admin there too."""
    other = valid.get(manifest.second)
    return other.hash if other is not None and manifest.signer in other.admins else None


def ancestry(head: Manifest, valid: dict[bytes, Manifest]) -> list[Manifest]:
    """A head and all its ancestors, by first parents and by settling."""
    found, waiting = {}, [head]
    while waiting:
        manifest = waiting.pop()
        if manifest.hash not in found:
            found[manifest.hash] = manifest
            waiting += [valid[parent] for parent in (manifest.previous, settles(manifest, valid)) if parent in valid]
    return list(found.values())


def count_with_pin(pin: Manifest, valid: dict[bytes, Manifest]) -> set[bytes]:
    """10.4: the pinned manifest and its descendants, and the branches that leave its history, before the first manifest of a former admin."""
    history = {manifest.hash for manifest in ancestry(pin, valid)}
    former = {admin for manifest in history for admin in valid[manifest].admins} - set(pin.admins)
    below = {m.hash for m in valid.values() if pin in ancestry(m, valid)}
    apart: set[bytes] = set()
    for manifest in sorted(valid.values(), key=lambda m: m.sequence):
        if manifest.hash not in history and manifest.signer not in former and manifest.previous in history | apart | below:
            apart.add(manifest.hash)
    return below | apart


def chain_to(head: Manifest, valid: dict[bytes, Manifest]) -> list[Manifest]:
    """A head and its ancestors by first parents alone."""
    chain = [head]
    while chain[-1].previous in valid:
        chain.append(valid[chain[-1].previous])
    return chain


@dataclasses.dataclass(frozen=True)
class Memory:
    """The proof of a share (10.6, 10.7): the pinned head, and the inviting admin."""
    share_id: bytes
    sequence: int
    head: bytes
    inviter: bytes | None = None


def parse_memory(data: bytes) -> Memory:
    """10.7"""
    lines = text(data.replace(b"\n", b" \xe2\x80\xa8"), "the memory of a share").split(" \u2028")
    pattern = ("kithfs share memory 1", "share ([0-9a-f]{64})", "proof (?:visit|invitation (kith1[a-z0-9]+))",
               "head ([1-9][0-9]*) ([0-9a-f]{64})", "")
    found = [re.fullmatch(p, line, re.ASCII) for p, line in zip(pattern, lines)]
    if len(lines) != len(pattern) or None in found:
        raise Fault("encoding", "the pin of a share is malformed")
    share, inviter, head = found[1][1], found[2][1], found[3]  # type: ignore[index]
    return Memory(bytes.fromhex(share), int(head[1]), bytes.fromhex(head[2]),  # type: ignore[index]
                  identity_of_text(inviter) if inviter else None)


@dataclasses.dataclass(frozen=True)
class Invitation:
    share_id: bytes
    sequence: int
    head: bytes
    admin: bytes
    invited: bytes

    def accept(self, identity: Identity, expected_fingerprint: str) -> Memory:
        """The user has got the inviting admin's fingerprint over another channel than the invitation."""
        if self.invited != identity.public:
            raise NoAccess("the invitation is for another identity")
        if fingerprint(self.admin) != expected_fingerprint.strip().upper():
            raise NoAccess(f"the invitation is by {fingerprint(self.admin)}, which is not the fingerprint that was given")
        return Memory(self.share_id, self.sequence, self.head, self.admin)


def parse_invitation(data: bytes) -> Invitation:
    """10.6"""
    at = Bytes(data, "the invitation")
    at.begin(b"kithinvi")
    descriptor = parse_descriptor(at.take(112))
    if not descriptor.signed:
        raise Fault("flags", "the invitation is to a share that can have no members")
    sequence = within(at.number(4), 1, 0xFFFFFFFF, "the sequence of the invitation's head")
    head = at.take(32)
    admin, invited = public_identity(at.take(64)), public_identity(at.take(64))
    at.number(8)
    signature = at.take(64)
    at.end()
    verify_signature("invitation signature", admin[:32], data[:294], signature)
    return Invitation(descriptor.id, sequence, head, admin, invited)


# ---------------------------------------------------------------------------------------------------------------------------------------
# 3 Keys
# ---------------------------------------------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Epoch:
    number: int
    suite: int
    secret: bytes

    def key(self, purpose: str) -> bytes:
        return expand(self.secret, purpose, u(4, self.number), u(1, self.suite))

    commitment = functools.cached_property(lambda self: self.key("commitment"))
    names_key = functools.cached_property(lambda self: self.key("names"))
    names = functools.cached_property(lambda self: Hctr2(self.names_key))
    content_key = functools.cached_property(lambda self: self.key("content"))
    header_key = functools.cached_property(lambda self: self.key("headers"))
    records_key = functools.cached_property(lambda self: self.key("records"))
    history_key = functools.cached_property(lambda self: self.key("history"))

    def place_hash(self, tag: bytes, name: bytes) -> bytes:
        return expand(self.names_key, "place", tag, name)

    def long_entry(self, tag: bytes, name: bytes) -> bytes:
        """The entry of a long name."""
        return b"=" + letters(blake3(self.names.encrypt(b"", tag + name + bytes(8))))


class Rights:
    """The members whose signatures count at one head, and the hashes that stay valid by the inventories of its chain (11)."""

    def __init__(self, share: Share, members: list[Member], chain: list[Manifest]) -> None:
        self.share, self.chain = share, chain
        self.writers = {member.public[:32] for member in members if member.role >= WRITER}
        self.admins = {member.public[:32] for member in members if member.role == ADMIN}

    @functools.cached_property
    def inventoried(self) -> set[bytes]:
        listed: set[bytes] = set()
        for manifest in self.chain:
            if not any(manifest.inventory_hash):
                continue
            name = b"+inventory-" + manifest.inventory_hash[:16].hex().encode()
            try:
                data = read_control(self.share.fd, name, 32 << 24)
                if data is None:
                    raise Fault("truncated", "missing: what former members have signed cannot be read")
                hashes, root, file_hash = parse_inventory(data)
                if (root, file_hash) != (manifest.inventory_root, manifest.inventory_hash):
                    raise Fault("unauthentic", "not the inventory that the manifest names")
                listed.update(hashes)
            except Fault as fault:
                self.share.report.fault(self.share.path, f"{show(name)}: {fault}")
        return listed


class Share:
    """A share that was entered by proof: its keys, and the members whose signatures count."""

    def __init__(self, fd: int, descriptor: Descriptor, identity: Identity, memory: Memory | None, report: Report, path: bytes) -> None:
        self.fd, self.descriptor, self.identity, self.report, self.path = fd, descriptor, identity, report, path
        self.id, self.suite, self.signed = descriptor.id, descriptor.suite, descriptor.signed
        self.valid = verify_manifests(descriptor, self.read_manifests())
        self.epochs: list[Epoch] = []
        self.rights: list[Rights] = []
        for head in self.find_heads(memory):
            self.open_head(head)
        if not self.rights:
            raise NoAccess("this identity is no member of the share")
        # The order in which a name is looked up: first the current epoch, which is that of the head with the highest sequence; then older
        # epochs, the highest number first, and of equal numbers the lower commitment first.
        self.epochs[1:] = sorted(self.epochs[1:], key=lambda epoch: (-epoch.number, epoch.commitment))
        first = [epoch for epoch in self.epochs if epoch.number == 1]
        if len(first) != 1:
            raise Fault("unauthentic", "the folder key of the first epoch is not known")
        self.directory_key = expand(first[0].secret, "directories")
        self.overlays: dict[tuple[int, int], Overlay] = {}
        self.closures: dict[bytes, list[bytes]] = {}
        read_journals(self)

    def read_manifests(self) -> list[Manifest]:
        manifests = []
        for name in sorted(os.fsencode(n) for n in os.listdir(self.fd)):
            # Includes names that no manifest can have: the user must be told about such files.
            if not re.match(rb"\+manifest-[0-9]{1,10}-", name):
                continue
            try:
                manifest = parse_manifest(read_control(self.fd, name) or b"")
                if manifest.file_name() != name:
                    raise Fault("unauthentic", "a manifest does not have the hash in its name")
                manifests.append(manifest)
            except Fault as fault:
                self.report.fault(self.path, f"{show(name)}: {fault}")
        return manifests

    def find_heads(self, memory: Memory | None) -> list[Manifest]:
        continued = {m.previous for m in self.valid.values()}
        settled = {settles(m, self.valid) for m in self.valid.values()}
        heads = [m for m in self.valid.values() if m.hash not in continued and m.hash not in settled]
        if memory is not None:
            pin = self.valid.get(memory.head)
            if pin is None or pin.sequence != memory.sequence:
                raise Fault("unauthentic", "the store has rolled the members back: the manifest that was seen before is not there")
            if memory.inviter is not None and memory.inviter[:32] not in pin.admins:
                raise Fault("unauthentic", "the inviting admin is not an admin of the share")
            counted = count_with_pin(pin, self.valid)
            heads = [
                m for m in self.valid.values()
                if m.hash in counted and not any(m.hash in (self.valid[c].previous, settles(self.valid[c], self.valid)) for c in counted)
            ]
        if not heads:
            raise Fault("unauthentic", "the share has no list of members that is valid")
        if len(heads) > 1:
            self.report.note(self.path, "the lists of members are forked")
        return sorted(heads, key=lambda head: (-head.sequence, head.hash))

    def open_head(self, head: Manifest) -> None:
        """10.4, checks 6 to 8, and the keys of all epochs before."""
        blocks = []
        for root, count in head.blocks:
            data = read_control(self.fd, b"+slots-" + root[:16].hex().encode())
            if data is None:
                raise Fault("unauthentic", "a slot block is missing")
            block = parse_slot_block(data, in_parts=True)
            if block.root != root:
                raise Fault("unauthentic", "a slot block is not the one that the manifest names")
            if (block.share_id, block.suite, block.epoch, len(block.slots)) != (self.id, self.suite, head.epoch, count):
                raise Fault("unauthentic", "a slot block is of another share or epoch, or has another number of slots")
            blocks.append(block)
        keys = [key for key in (open_slot(block, self.identity) for block in blocks) if key is not None]
        if not keys:
            return
        current = self.epoch(head.epoch, keys[0], head.commitment)
        known = {(current.number, current.commitment): current}
        chain = chain_to(head, self.valid)
        for manifest in chain:
            newer = known[manifest.epoch, manifest.commitment]
            for number, commitment, sealed in manifest.history:
                associated = (label("history") + self.id + u(4, manifest.epoch) + manifest.commitment + u(4, number) + commitment)
                folder_key = open_record(self.suite, newer.history_key, sealed, associated)
                known.setdefault((number, commitment), self.epoch(number, folder_key, commitment))
        members = [member for block in blocks for member in open_members(block, current.records_key)]
        keys_of_members = [member.public[:32] for member in members]
        if len(set(keys_of_members)) != len(members):
            raise Fault("order", "the lists of members contain a duplicate")
        if sorted(member.public[:32] for member in members if member.role == ADMIN) != head.admins:
            raise Fault("unauthentic", "the lists of members have other admins than the manifest")
        if not self.signed and [member.public for member in members] != [self.descriptor.founder]:
            raise Fault("unauthentic", "a share that is not signed has other members than its founder")
        self.rights.append(Rights(self, members, chain))
        have = {(epoch.number, epoch.commitment) for epoch in self.epochs}
        self.epochs += [epoch for key, epoch in known.items() if key not in have]

    def epoch(self, number: int, folder_key: bytes, commitment: bytes) -> Epoch:
        epoch = Epoch(number, self.suite, extract(self.id, folder_key))
        if epoch.commitment != commitment:
            raise Fault("unauthentic", "a folder key is not the one of its commitment")
        return epoch

    def epochs_of(self, number: int) -> list[Epoch]:
        """Two branches of a fork can have epochs of one number, so there may be several."""
        found = [epoch for epoch in self.epochs if epoch.number == number]
        if not found:
            raise Fault("unauthentic", f"epoch {number} is not one of the share")
        return found

    def check_signature(self, purpose: str, author: bytes, signer: bytes, signature: bytes, message: bytes, whole: bytes) -> None:
        """11, Whose signature counts: at every head. `whole` is what an inventory has the hash of."""
        verify_signature(purpose, signer, message, signature)
        for rights in self.rights:
            # Admins alone lead into other shares.
            may_sign = rights.admins if purpose == "junction signature" else rights.writers
            if signer not in may_sign and blake3(whole) not in rights.inventoried:
                raise Fault("unauthentic", "its signer is not allowed to sign in the share")

    def root_tag(self) -> bytes:
        return hmac(self.directory_key, label("root tag"), self.id)[:8]

    def tag(self, sealed_tag: bytes, name: bytes) -> bytes:
        return hmac(self.directory_key, label("tag"), sealed_tag, name)[:8]

    def long_tag(self, name_hash: bytes) -> bytes:
        return hmac(self.directory_key, label("long tag"), name_hash)[:8]

    def explained(self, own: bytes) -> list[bytes]:
        """6, Evidence: the explained tags of the directory with the tag `own`."""
        if own not in self.closures:
            found: set[bytes] = set()
            waiting = [own]
            while waiting:
                to = waiting.pop()
                new = self.evidence_to(to) - found
                found |= new
                waiting += new
            self.closures[own] = sorted(found - {own})
        return self.closures[own]

    def evidence_to(self, to: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for epoch in self.epochs:
            place = letters(expand(epoch.names_key, "moved", to))
            fd = os.dup(self.fd)
            try:
                for part in (b"+moved", place):
                    fd, above = open_directory(fd, part), fd
                    os.close(above)
                for name in sorted(os.fsencode(n) for n in os.listdir(fd)):
                    try:
                        record = read_control(fd, name, 1 << 16) or b""
                        if letters(blake3(record)) != name:
                            raise Fault("unauthentic", "it is not named by its hash")
                        from_tag, to_tag = parse_evidence(open_sealed_record(self, b"KMOV", record, b"").content)
                        if to_tag == to:
                            found.add(from_tag)
                    except (Fault, IsADirectoryError) as fault:
                        self.report.note(self.path, f"evidence {show(name)} does not count: {fault}")
            except FileNotFoundError:
                pass
            finally:
                os.close(fd)
        return found


def parse_inventory(data: bytes) -> tuple[list[bytes], bytes, bytes]:
    """The hashes, the root of their tree and the hash of the file."""
    if len(data) % 32:
        raise Fault("truncated", "the inventory ends too early")
    within(len(data) // 32, 0, 16777216, "the number of hashes in the inventory")
    hashes = [data[i:i + 32] for i in range(0, len(data), 32)]
    ascending(hashes, "the hashes of the inventory")
    pages = [data[i:i + 128 * 32] for i in range(0, len(data), 128 * 32)] or [b""]
    levels = tree_levels([digest("inventory page", u(4, i), page) for i, page in enumerate(pages)], "inventory node")
    return hashes, levels[-1][0], digest("inventory hash", data)


# ---------------------------------------------------------------------------------------------------------------------------------------
# 7 Sealed records
# ---------------------------------------------------------------------------------------------------------------------------------------

RECORD_SIGNATURES = {b"KSYM": "symlink signature", b"KLSY": "symlink signature", b"KMOV": "moved signature",
                     b"KJNC": "junction signature"}


@dataclasses.dataclass(frozen=True)
class Opened:
    """The contents of a record, and in a signed share its authorship."""
    content: bytes
    author: bytes = b""
    signer: bytes = b""


def open_sealed_record(share: Share, word: bytes, record: bytes, bound: bytes) -> Opened:
    at = Bytes(record, "a sealed record")
    version = at.number(1)
    if version != 1:
        raise Fault("version", f"a sealed record has version {version}, this reader knows 1")
    if at.suite() != share.suite:
        raise Fault("suite", "a sealed record is of another suite than its share")
    is_signed = word == b"KJNC" or share.signed and word != b"KXAT"
    if at.number(1) != (SIGNED if is_signed else 0):
        raise Fault("flags", "a sealed record has another flag than its kind and share ask for")
    at.zeros(1)
    number = at.number(4)
    at.take(16)
    sealed = at.take(len(record) - 24)
    associated = word + share.id + record[:24] + bound
    content = first_that_opens(share.epochs_of(number), lambda e: open_record(share.suite, e.records_key, sealed, associated))
    if not is_signed:
        return Opened(content)
    if len(content) < 128:
        raise Fault("truncated", "a sealed record ends too early")
    content, trailer = content[:-128], content[-128:]
    author, signer, signature = trailer[:32], trailer[32:64], trailer[64:]
    share.check_signature(RECORD_SIGNATURES[word], author, signer, signature, associated + author + content, record)
    return Opened(content, author, signer)


def first_that_opens(epochs: list[Epoch], attempt: Callable[[Epoch], bytes]) -> bytes:
    for epoch in epochs[:-1]:
        try:
            return attempt(epoch)
        except Fault:
            pass
    return attempt(epochs[-1])


def open_link(share: Share, stored: bytes) -> tuple[bytes, bool]:
    """Parses the text of the store's link: the target, or the reference to a long one."""
    if stored.startswith(b"+"):
        reference = open_sealed_record(share, b"KSYM", from_base64url(stored[1:], "the text of a link"), b"+").content
        return check_reference(reference), True
    opened = open_sealed_record(share, b"KSYM", from_base64url(stored, "the text of a link"), b"")
    if share.signed and len(opened.content) == 17 and opened.author[:1] == b"+" and opened.signer != opened.author:
        raise Fault("unauthentic", "a link whose signature can be that of a reference")
    return check_target(opened.content), False


def read_link(share: Share, stored: bytes) -> bytes:
    target, is_reference = open_link(share, stored)
    if is_reference:
        data = read_reference(share, b"+link-", target, "the target of the link")
        target = check_target(open_sealed_record(share, b"KLSY", data, target).content)
    return target


def check_reference(reference: bytes) -> bytes:
    if len(reference) != 16:
        raise Fault("range", "a reference that does not have 16 bytes")
    return reference


def read_reference(share: Share, prefix: bytes, reference: bytes, what: str) -> bytes:
    data = read_control(share.fd, prefix + reference.hex().encode(), 2 << 20)
    if data is None:
        raise Fault("truncated", f"{what} is missing: {show(prefix)}{reference.hex()}")
    return data


def check_target(target: bytes) -> bytes:
    within(len(target), 1, 4095, "the length of a link's target")
    if b"\0" in target:
        raise Fault("encoding", "the target of a link has a zero byte")
    return target


def open_attributes(share: Share, stored: bytes) -> tuple[bytes, bool]:
    """Parses the attribute of the store: the list, or the reference to a long one."""
    if stored.startswith(b"+"):
        return check_reference(open_sealed_record(share, b"KXAT", stored[1:], b"+").content), True
    return open_sealed_record(share, b"KXAT", stored, b"").content, False


def read_attributes(share: Share, stored: bytes) -> list[tuple[bytes, bytes]]:
    """The extended attributes of an inode, from the one attribute of the store."""
    content, is_reference = open_attributes(share, stored)
    if is_reference:
        data = read_reference(share, b"+attr-", content, "the list of extended attributes")
        content = open_sealed_record(share, b"KXAT", data, content).content
    return parse_attributes(content)


def parse_attributes(content: bytes) -> list[tuple[bytes, bytes]]:
    within(len(content), 0, 1048576, "the length of a list of attributes")
    at, attributes = Bytes(content, "the list of attributes"), []
    while at.at < len(content):
        name_length, value_length = at.number(2), at.number(4)
        name = at.take(within(name_length, 1, 255, "the length of an attribute's name"))
        if b"\0" in name:
            raise Fault("encoding", "the name of an attribute has a zero byte")
        attributes.append((name, at.take(value_length)))
    ascending([name for name, _ in attributes], "the attributes")
    return attributes


def parse_evidence(content: bytes) -> tuple[bytes, bytes]:
    """6: from and to."""
    at = Bytes(content, "the evidence of a rename")
    tags = at.take(8), at.take(8)
    at.end()
    return tags


@dataclasses.dataclass(frozen=True)
class Junction:
    child: bytes
    isolated: bool
    coming: bool


def parse_junction(content: bytes) -> tuple[Junction, bytes]:
    at = Bytes(content, "the junction")
    child, flags = at.take(32), at.number(1)
    if flags & ~130:
        raise Fault("flags", f"the junction has flags {flags}, which this reader does not know")
    name = check_plain_name(at.take(at.number(1)))
    at.end()
    return Junction(child, flags & 2 != 0, flags & 128 != 0), name


def find_junction(share: Share, directory_fd: int, directory_tag: bytes, name: bytes) -> Junction | None:
    """11, Junctions: an invalid one is ignored."""
    for tag, epoch in ((tag, epoch) for tag in [directory_tag, *share.explained(directory_tag)] for epoch in share.epochs):
        place = epoch.place_hash(tag, name)
        try:
            record = read_control(directory_fd, b"+junction-" + letters(place), 1 << 16)
            if record is None:
                continue
            junction, named = parse_junction(open_sealed_record(share, b"KJNC", record, tag + place).content)
            if named == name:
                return junction
            raise Fault("unauthentic", "it is of another name")
        except Fault as fault:
            share.report.note(share.path, f"a junction of {show(name)} does not count: {fault}")
    return None


# ---------------------------------------------------------------------------------------------------------------------------------------
# 4 Ciphertext files
# ---------------------------------------------------------------------------------------------------------------------------------------

SEGMENT = INDEX = FIRST_TABLE = SMALL_MOST = 4096
CHILDREN = 128
TABLE_HEAD = 64
SIZE_MOST = 1 << 62


@dataclasses.dataclass(frozen=True)
class Layout:
    """4.1"""
    chunk_log2: int
    signed: bool

    header = property(lambda self: 640 if self.signed else 512)
    entry = property(lambda self: 62 if self.signed else 30)
    chunk_size = property(lambda self: 1 << self.chunk_log2)

    @functools.cached_property
    def table_used(self) -> int:
        return TABLE_HEAD + (self.chunk_size // SEGMENT) * self.entry

    @functools.cached_property
    def table_size(self) -> int:
        size = 1 << (self.table_used - 1).bit_length()
        return max(size, 4096) if self.chunk_log2 >= 18 else size

    def table(self, k: int) -> int:
        blocks, power = 0, 1
        while power <= k:
            blocks += k // (power * CHILDREN) + 1
            power *= CHILDREN
        return FIRST_TABLE + k * (self.table_size + self.chunk_size) + INDEX * blocks

    def chunk(self, k: int) -> int:
        return self.table(k) + self.table_size

    def index(self, level: int, j: int) -> int:
        return self.table(CHILDREN ** (level - 1) if j == 0 else j * CHILDREN ** level) - level * INDEX

    def chunks(self, size: int) -> int:
        return -(-size // self.chunk_size)

    def levels(self, chunks: int) -> int:
        level = 0
        while CHILDREN ** level < chunks:
            level += 1
        return level

    def length(self, size: int) -> int:
        if size <= SMALL_MOST:
            return self.header + size
        last = (size - 1) // self.chunk_size
        return self.chunk(last) + size - last * self.chunk_size

    def size_of_length(self, length: int) -> int:
        """The largest size whose length is not greater: a hint, for listings."""
        if length < self.length(SMALL_MOST + 1):
            return min(max(length - self.header, 0), SMALL_MOST)
        least, most = SMALL_MOST + 1, SIZE_MOST
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if self.length(middle) <= length else (least, middle - 1)
        return least


@dataclasses.dataclass
class Overlay:
    """8: the changes that a replay of the journals would make to a file."""
    patches: list[tuple[int, bytes]]
    length: int
    mtime_ns: int | None


class Ciphertext:
    """The bytes of a file in the store as a replay of the journals would leave them."""

    def __init__(self, fd: int, overlay: Overlay | None) -> None:
        self.fd, self.overlay = fd, overlay
        stored = os.fstat(fd).st_size
        self.length = max(stored, overlay.length) if overlay else stored

    def read(self, offset: int, count: int) -> bytes:
        """Shorter only at the end of the file."""
        count = min(count, self.length - offset)
        data = bytearray()
        while len(data) < count:
            more = os.pread(self.fd, count - len(data), offset + len(data))
            if not more:
                break
            data += more
        if self.overlay:
            data = data.ljust(max(count, 0), b"\0")
            for start, patch in self.overlay.patches:
                begin, end = max(start, offset), min(start + len(patch), offset + count)
                if begin < end:
                    data[begin - offset:end - offset] = patch[begin - start:end - start]
        return bytes(data)


@dataclasses.dataclass(frozen=True)
class Header:
    epoch: int
    file_id: bytes
    size: int
    version: int
    root: bytes
    oldest: int
    data: bytes  # small form
    author: bytes = b""
    signer: bytes = b""


def open_header(share: Share, data: bytes) -> Header:
    """4.2 and 11. `data` is the beginning of the file, header and small data."""
    layout = Layout(share.descriptor.chunk_log2, share.signed)
    at = Bytes(data, "the header")
    at.begin(b"kithfile")
    suite = at.suite()
    flags = at.number(1)
    if flags & ~(SIGNED | SMALL) or bool(flags & SIGNED) != share.signed:
        raise Fault("flags", "the header has other flags than a file of the share has")
    kind = at.number(1)
    if kind != 1:
        raise Fault("range", f"the header is of type {kind}, this reader knows 1")
    if at.number(1) != share.descriptor.chunk_log2:
        raise Fault("range", "the header has another chunk size than the share")
    small = flags & SMALL != 0
    data_length = within(at.number(2), 0, SMALL_MOST if small else 0, "the length of the data")
    number = at.number(4)
    commitment, file_id, nonce = at.take(8), at.take(32), at.take(24)
    at.zeros(12)
    if suite != share.suite:
        raise Fault("suite", "the header is of another suite than the share")
    epochs = [epoch for epoch in share.epochs if epoch.number == number and epoch.commitment[:8] == commitment]
    if not epochs:
        raise Fault("unauthentic", "the header is of an epoch that the share does not have")
    tag, sealed = at.take(16), at.take(layout.header - 112 + data_length)
    associated = b"KHDR" + share.id + data[:96]
    plain = first_that_opens(epochs, lambda epoch: open_sealed(suite, epoch.header_key, nonce, sealed + tag, associated))
    trailer, plain = (plain[:128], plain[128:]) if share.signed else (b"", plain)
    at = Bytes(plain, "the header")
    size, version, root, oldest = at.number(8), at.number(8), at.take(32), at.number(4)
    at.zeros(12)
    at.take(8)
    hint_length = at.number(1)
    if any(at.take(255)[hint_length:]):
        raise Fault("flags", "the header: reserved bytes are not zero")
    at.zeros(72)
    content = at.take(data_length)
    if small:
        within(size, data_length, data_length, "the size of a small file")
        if any(root):
            raise Fault("flags", "the header of a small file has a root")
    else:
        within(size, SMALL_MOST + 1, SIZE_MOST, "the size of a large file")
    author, signer, signature = trailer[:32], trailer[32:64], trailer[64:]
    if share.signed:
        message = (share.id + file_id + u(1, kind) + u(1, suite) + u(1, flags) + u(1, share.descriptor.chunk_log2) + u(4, number)
                   + commitment + u(8, size) + u(8, version) + author + (blake3(b"kithfs1\xff" + content) if small else root))
        share.check_signature("file signature", author, signer, signature, message, data[:layout.header])
    return Header(number, file_id, size, version, root, oldest, content, author, signer)


class PlainFile:
    """An open file: it returns verified pieces, in order, without the holes."""

    def __init__(self, share: Share, ciphertext: Ciphertext) -> None:
        self.share, self.ciphertext = share, ciphertext
        self.layout = Layout(share.descriptor.chunk_log2, share.signed)
        if ciphertext.length == 0:
            raise Fault("truncated", "the file was never committed")
        self.header = open_header(share, ciphertext.read(0, self.layout.header + SMALL_MOST))
        self.size = self.header.size
        if ciphertext.length < self.layout.length(self.size):
            raise Fault("truncated", "the file is shorter than its header says")

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        if self.size <= SMALL_MOST:
            if self.size:
                yield 0, self.header.data
            return
        chunks = self.layout.chunks(self.size)
        for k, table_hash in self.tables(self.layout.levels(chunks), 0, self.header.root, chunks):
            yield from self.chunk(k, table_hash)

    def tables(self, level: int, j: int, node: bytes, chunks: int) -> Iterator[tuple[int, bytes]]:
        """4.5: the chunks below node j of a level that are not holes, each with the hash of its table."""
        if not any(node):
            return
        if level == 0:
            yield j, node
            return
        block = self.ciphertext.read(self.layout.index(level, j), INDEX)
        if len(block) < INDEX or blake3(b"kithfs1" + bytes([level]) + block) != node:
            raise Fault("unauthentic", f"index block {j} of level {level} is not the one that the file refers to")
        for i in range(CHILDREN):
            child, child_hash = CHILDREN * j + i, block[32 * i:32 * i + 32]
            if child * CHILDREN ** (level - 1) < chunks:
                yield from self.tables(level - 1, child, child_hash, chunks)
            elif any(child_hash):
                raise Fault("flags", "an index block has entries beyond the file's last chunk")

    def chunk(self, k: int, table_hash: bytes) -> Iterator[tuple[int, bytes]]:
        """4.3 and 4.4"""
        share, layout = self.share, self.layout
        table = self.ciphertext.read(layout.table(k), layout.table_used)
        if len(table) < layout.table_used or blake3(b"kithfs1\0" + table) != table_hash:
            raise Fault("unauthentic", f"the table of chunk {k} is not the one that the file refers to")
        salt, number, entries = parse_table(share, layout, table)
        start = k * layout.chunk_size
        size = min(layout.chunk_size, self.size - start)
        sealed = self.ciphertext.read(layout.chunk(k), size)
        if len(sealed) < size:
            raise Fault("truncated", "the file is shorter than its header says")
        segments = []
        for s, (nonce, tag, length, ciphertext_hash) in enumerate(entries):
            within(length, 0, min(SEGMENT, max(0, size - s * SEGMENT)), f"the sealed length of segment {s} of chunk {k}")
            if length:
                segments.append((s, nonce, sealed[s * SEGMENT:s * SEGMENT + length], tag, ciphertext_hash))
        if share.signed:
            by_length: dict[int, list[tuple[int, bytes, bytes]]] = {}
            for s, _, data, _, ciphertext_hash in segments:
                by_length.setdefault(len(data), []).append((s, data, ciphertext_hash))
            for group in by_length.values():
                for (s, _, expected), found in zip(group, blake3_many([b"kithfs1\xfe" + data for _, data, _ in group])):
                    if found != expected:
                        raise Fault("unauthentic", f"segment {s} of chunk {k} is not the one that was signed")
        ciphers = [segment_cipher(share.suite, expand(epoch.content_key, "file", self.header.file_id), salt)
                   for epoch in share.epochs_of(number)]
        for s, nonce, data, tag, _ in segments:
            associated = (b"KSEG" + share.id + self.header.file_id + u(8, k) + u(4, s) + u(2, len(data)) + u(4, number)
                          + u(1, share.suite) + b"\0")
            for cipher in ciphers:
                try:
                    plain = cipher.decrypt(nonce, data + tag, associated)
                    break
                except InvalidTag:
                    continue
            else:
                raise Fault("unauthentic", f"segment {s} of chunk {k} does not open")
            yield start + s * SEGMENT, plain


TableEntry = tuple[bytes, bytes, int, bytes]


def parse_table(share: Share, layout: Layout, table: bytes) -> tuple[bytes, int, list[TableEntry]]:
    """4.3: salt, epoch, and of each segment nonce, tag, sealed length and, in a signed share, the hash of its ciphertext."""
    at = Bytes(table, "a chunk table")
    salt, number = at.take(16), at.number(4)
    at.number(4)
    at.zeros(40)
    if share.suite == AES and any(salt[12:]):
        raise Fault("range", "a chunk table: the end of the salt is not zero")
    entries = []
    for _ in range(layout.chunk_size // SEGMENT):
        nonce, tag, length = at.take(12), at.take(16), within(at.number(2), 0, SEGMENT, "the sealed length of a segment")
        ciphertext_hash = at.take(32) if share.signed else b""
        if length == 0 and (any(nonce) or any(tag) or any(ciphertext_hash)):
            raise Fault("range", "a chunk table has a hole with a nonce, a tag or a hash")
        entries.append((nonce, tag, length, ciphertext_hash))
    at.end()
    return salt, number, entries


# ---------------------------------------------------------------------------------------------------------------------------------------
# 8 The journal
# ---------------------------------------------------------------------------------------------------------------------------------------

NOTHING = bytes.fromhex("af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262")  # blake3 of no bytes


@dataclasses.dataclass(frozen=True)
class JournalRecord:
    path: bytes
    file_id: bytes
    base: bytes
    result: bytes
    length: int
    mtime_ns: int
    patches: list[tuple[int, bytes]]


def parse_birth(at: Bytes, what: str) -> None:
    """A birth time, which this reader does not use: in Python no call returns that of a file."""
    seconds, nanoseconds = at.number(8), at.number(4)
    if (seconds, nanoseconds) != (0, 0xffffffff):
        within(nanoseconds, 0, 999999999, f"the nanoseconds of {what}")


def parse_journal_head(data: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Suite, share id, journal id and owner."""
    at = Bytes(data, "the journal's head")
    at.begin(b"kithjrnl")
    suite = at.suite()
    at.zeros(5)
    share_id, journal_id, owner = at.take(32), at.take(16), at.take(16)
    for what in ("journal", "root"):
        parse_birth(at, f"the birth time of the {what}")
    at.zeros(3992)
    at.end()
    return suite, share_id, journal_id, owner


def parse_journal_body(body: bytes) -> JournalRecord:
    at = Bytes(body, "a journal record")
    kind = at.number(1)
    if kind:
        raise Fault("flags", f"a journal record is of kind {kind}, which this reader does not know")
    path = at.take(at.number(2))
    file_id = at.take(32)
    parse_birth(at, "the birth time in a journal record")
    base, result, length = at.take(32), at.take(32), at.number(8)
    seconds = int.from_bytes(at.take(8), "little", signed=True)
    nanoseconds = within(at.number(4), 0, 999999999, "the nanoseconds of a journal record")
    patches = []
    for _ in range(at.number(4)):
        offset, count = at.number(8), at.number(4)
        within(offset + count, 0, length, "the end of a patch")
        patches.append((offset, at.take(count)))
    at.end()
    return JournalRecord(path, file_id, base, result, length, seconds * 10**9 + nanoseconds, patches)


def open_journal_record(data: bytes, share: Share, journal_id: bytes, key: bytes) -> tuple[int, int, JournalRecord, int]:
    """Generation, sequence, the contents of the record, and its length in the journal."""
    at = Bytes(data, "a journal record")
    if at.take(4) != b"KREC":
        raise Fault("magic", "there is no journal record")
    length = at.number(4)
    if not 40 <= length <= 67108864:
        raise Fault("magic", "a journal record has an invalid length")
    generation, sequence = at.number(8), at.number(8)
    body = open_record(share.suite, key, at.take(length), b"KREC" + share.id + journal_id + data[8:24])
    return generation, sequence, parse_journal_body(body), 24 + length + -(24 + length) % 512


def journal_records(data: bytes, share: Share, journal_id: bytes, key: bytes) -> list[JournalRecord]:
    """The first record that is not authentic ends the journal: it was never acknowledged."""
    records: list[JournalRecord] = []
    at, running = 4096, None
    while True:
        try:
            length = int.from_bytes(data[at + 4:at + 8], "little")
            generation, sequence, record, taken = open_journal_record(data[at:at + 24 + length], share, journal_id, key)
        except Fault as fault:
            if fault.kind in ("truncated", "magic", "unauthentic"):
                return records
            raise
        if sequence != len(records) or running not in (None, generation):
            return records
        records.append(record)
        running = generation
        at += taken


def read_journals(share: Share) -> None:
    """Fills the share's overlays with what a replay of the reader's own journals would do; journals of other identities can only be listed."""
    journals: list[tuple[bytes, list[JournalRecord]]] = []
    created: list[list[JournalRecord]] = []
    key = share.identity.journal_key(share.id)
    for name in sorted(os.fsencode(n) for n in os.listdir(share.fd)):
        found = re.fullmatch(rb"\+(journal|created|refused)-.+-[0-9a-f]{16}", name)
        if not found:
            continue
        try:
            data = read_control(share.fd, name, 1 << 34) or b""
            if not any(data[:4096]):
                continue
            suite, share_id, journal_id, owner = parse_journal_head(data[:4096])
            if (suite, share_id) != (share.suite, share.id):
                raise Fault("unauthentic", "the journal is of another share")
            if hmac(key, label("journal owner"), journal_id)[:16] != owner:
                if data[4096:4100] == b"KREC" and not any(data[4112:4120]):
                    share.report.fault(share.path, f"{show(name)} has changes of another identity that were not written to their files "
                                                   "yet: files can be older than they should be, or unreadable")
                continue
            records = journal_records(data, share, journal_id, key)
        except Fault as fault:
            share.report.fault(share.path, f"{show(name)}: {fault}")
            continue
        if not records:
            continue
        if found[1] == b"refused":
            share.report.fault(share.path, f"{show(name)} has changes that could not be written to their files")
        elif found[1] == b"created":
            created.append(records)
        else:
            share.report.note(share.path, f"{show(name)} has {len(records)} changes that were not written to their files yet: they are "
                                          "read from there")
            journals.append((name, records))
    replay(share, journals)
    for records in created:
        replay_created(share, records)


def resolve(share: Share, path: bytes) -> tuple[tuple[int, int], int] | None:
    """The regular file to which a stored path leads: its inode, and a descriptor that the caller closes."""
    *directories, name = path.split(b"/")
    fd = os.dup(share.fd)
    try:
        for part in directories + [name]:
            if part in (b"", b".", b".."):
                raise Fault("encoding", "a journal record has an invalid path")
        for part in directories:
            fd, above = open_directory(fd, part), fd
            os.close(above)
        file = open_regular(fd, name)
        status = os.fstat(file)
        return (status.st_dev, status.st_ino), file
    except (OSError, Fault):
        return None
    finally:
        os.close(fd)


def chains_of(records: list[JournalRecord]) -> list[list[JournalRecord]]:
    """Records of one file id that follow from each other."""
    chains: list[list[JournalRecord]] = []
    for record in records:
        for chain in chains:
            if (chain[-1].file_id, chain[-1].result) == (record.file_id, record.base):
                chain.append(record)
                break
        else:
            chains.append([record])
    return chains


def replay(share: Share, journals: list[tuple[bytes, list[JournalRecord]]]) -> None:
    """8, Replay. Journals are retried as long as one of them makes progress, since one may continue where another ends."""
    waiting: list[tuple[bytes, list[JournalRecord]]] = []
    for name, records in journals:
        waiting += [(name, chain) for chain in reversed(chains_of(records))]
    while waiting:
        refused = [(name, chain) for name, chain in waiting if not replay_chain(share, chain)]
        if len(refused) == len(waiting):
            for name, chain in refused:
                share.report.fault(share.path, f"{show(name)} has changes to {show(chain[0].path)} that fit no file there")
            return
        waiting = refused


def replay_chain(share: Share, chain: list[JournalRecord]) -> bool:
    """Compares each file to which one of the paths leads with the whole chain. False if the records are refused."""
    files: dict[tuple[int, int], int] = {}
    outcomes = set()
    for path in dict.fromkeys(record.path for record in reversed(chain)):
        found = resolve(share, path)
        if found is None:
            outcomes.add("refused")
        elif found[0] in files:
            os.close(found[1])
        else:
            files[found[0]] = found[1]
    for inode, file in files.items():
        with os.fdopen(file, "rb"):
            outcomes.add(replay_records(share, file, inode, chain))
    return "applied" in outcomes or "refused" not in outcomes


def replay_records(share: Share, file: int, inode: tuple[int, int], records: list[JournalRecord]) -> str:
    """Applies a chain to a file. Returns "applied", "newer" if the file is in a later state, or "refused"."""
    layout = Layout(share.descriptor.chunk_log2, share.signed)
    beginning = Ciphertext(file, share.overlays.get(inode)).read(0, layout.header + SMALL_MOST)
    if share.signed:
        # The owner may have lost the right to write since.
        counting = [i for i, record in enumerate(records) if signature_of_record_counts(share, record)]
        records = records[:counting[-1] + 1] if counting else []
        if not records:
            return "newer"
    current = blake3(beginning[:layout.header])
    if not any(current in (record.base, record.result) for record in records):
        try:
            header = open_header(share, beginning)
            versions = [opened.version for opened in (header_of_record(share, record) for record in records) if opened]
            is_its = beginning[28:60] == records[0].file_id
            return "newer" if is_its and versions and header.version > max(versions) else "refused"
        except Fault:
            if beginning[28:60] != records[0].file_id:
                return "refused"
            if not any(is_torn_of(beginning[:layout.header], record) for record in records):
                return "refused"
    overlay = share.overlays.setdefault(inode, Overlay([], 0, None))
    for record in records:
        overlay.patches += record.patches
        overlay.length = max(overlay.length, record.length)
    overlay.mtime_ns = records[-1].mtime_ns
    return "applied"


def is_torn_of(header: bytes, record: JournalRecord) -> bool:
    """Whether a torn header has a part of the header that a record leaves."""
    left = next((patch for offset, patch in reversed(record.patches) if offset == 0), b"")
    return any(header[at:at + 16] == left[at:at + 16] for at in range(60, len(header) - 15, 16))


def header_of_record(share: Share, record: JournalRecord) -> Header | None:
    """The header after a record, if it opens and its signature counts."""
    for offset, patch in record.patches[-1:]:
        if offset == 0:
            try:
                return open_header(share, patch)
            except Fault:
                pass
    return None


def signature_of_record_counts(share: Share, record: JournalRecord) -> bool:
    return header_of_record(share, record) is not None


def replay_created(share: Share, records: list[JournalRecord]) -> None:
    """8, Files that were made: an empty file in the store whose creation was recorded is an empty file of the vault."""
    last_of_path = {record.path: record for record in records}
    last_of_file = {record.file_id: record for record in records}
    for record in last_of_path.values():
        if record.base != NOTHING or last_of_file[record.file_id] is not record:
            continue
        found = resolve(share, record.path)
        if found is None:
            continue
        inode, fd = found
        with os.fdopen(fd, "rb"):
            if os.fstat(fd).st_size == 0 and inode not in share.overlays:
                share.overlays[inode] = Overlay(record.patches, record.length, record.mtime_ns)


# ---------------------------------------------------------------------------------------------------------------------------------------
# 6 Directories
# ---------------------------------------------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of a directory. `place` is its plain name without a suffix; None if it is lost or does not belong to the directory. `tag` is
    that of a directory with this stored name."""
    name: bytes
    place: bytes | None
    tag: bytes
    stored: bytes
    status: os.stat_result


@dataclasses.dataclass
class Directory:
    share: Share
    fd: int
    tag: bytes
    path: bytes
    in_copy: bool = False  # it is a sync tool's copy of a directory, or in one

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


@dataclasses.dataclass(frozen=True)
class SealedName:
    """The contents of a stored name: the plain name and the tag that are sealed in it, None if they are lost; the suffix; the place of the
    epoch in the order of the epochs."""
    plain: bytes | None
    tag: bytes | None
    suffix: bytes
    rank: int


class Owners:
    """5, To whom a name belongs, in a directory that has been read as a whole."""

    def __init__(self, directory: Directory, sealed: dict[bytes, SealedName]) -> None:
        self.sealed, self.share = sealed, directory.share
        self.stored = {found: name for name, found in sealed.items() if found.plain is not None}
        self.some_lost = len(self.stored) < len(sealed)
        self.tags = [directory.tag]
        if any(found.tag not in (None, directory.tag) for found in sealed.values()) or self.some_lost:
            self.tags += self.share.explained(directory.tag)
        self.marks: dict[bytes, list[bytes]] = {}

    def belongs(self, found: SealedName) -> bool:
        return found.tag in self.tags

    def sealed_as(self, plain: bytes, suffix: bytes) -> bytes | None:
        """(a) and (b), with a suffix behind."""
        for tag in self.tags:
            for rank, epoch in enumerate(self.share.epochs):
                found = self.stored.get(SealedName(plain, tag, suffix, rank))
                if found is None and self.some_lost and len(letters(bytes(16 + len(plain)))) > self.share.descriptor.longest_name:
                    entry = epoch.long_entry(tag, plain) + suffix  # the hash in the entry is enough to know its name
                    found = entry if entry in self.sealed else None
                if found is not None:
                    return found
        return None

    def first(self, name: bytes) -> bytes | None:
        """(a) to (c)"""
        for plain, suffix in [(name, b""), *splits(name)]:
            found = self.sealed_as(plain, suffix) if len(plain) <= 255 else None
            if found is not None:
                return found
        return None

    def with_mark(self, name: bytes) -> bytes | None:
        """(d)"""
        found = MARK.fullmatch(name)
        if found is None:
            return None
        if not self.marks:
            for stored in sorted(self.sealed):
                self.marks.setdefault(mark(stored), []).append(stored)
        for stored in self.marks.get(name[len(found[1]):], []):
            claims = self.claims(stored)
            if claims[1] == name and not self.has(stored, claims[:1]) or claims[3] == name and not self.has(stored, claims[:3]):
                return stored
        return None

    def owner(self, name: bytes) -> bytes | None:
        found = self.first(name) or self.with_mark(name)
        if found is None and name in self.sealed and not self.has(name, self.claims(name)[:2]):
            return name
        return found

    def claims(self, stored: bytes) -> list[bytes | None]:
        """The four names that an entry claims; None in the place of one that it cannot have."""
        found, behind = self.sealed[stored], mark(stored)
        plain = None if found.plain is None else found.plain + shown_suffix(found.suffix)
        claims = [plain if self.belongs(found) else None, None if plain is None else plain + behind, stored, stored + behind]
        return [claim if claim is not None and len(claim) <= 255 else None for claim in claims]

    def has(self, stored: bytes, claims: list[bytes | None]) -> bool:
        return any(claim is not None and self.owner(claim) == stored for claim in claims)

    def shown(self, stored: bytes) -> bytes | None:
        """The name with which an entry is shown."""
        return next((claim for claim in self.claims(stored) if claim is not None and self.owner(claim) == stored), None)


class Vault:
    """A vault that was opened by an identity."""

    def __init__(self, root: str | int, identity: Identity, memories: dict[bytes, Memory], trusted: set[bytes], report: Report) -> None:
        self.identity, self.memories, self.trusted, self.report = identity, memories, trusted, report
        fd = root if isinstance(root, int) else open_root(root)
        data = read_control(fd, b"+share", 4096)
        if data is None:
            raise Fault("magic", "this directory is not a vault: it has no +share")
        descriptor = parse_descriptor(data)
        known = descriptor.founder == identity.public or descriptor.id in memories or descriptor.id in trusted
        if not known:
            raise NoAccess(f"nothing vouches for this share: give its invitation or memory, or --trust {descriptor.id.hex()}")
        self.share = self.enter(fd, descriptor, b"")
        self.root = Directory(self.share, fd, self.share.root_tag(), b"")

    def enter(self, fd: int, descriptor: Descriptor, path: bytes) -> Share:
        if not descriptor.signed and descriptor.founder != self.identity.public:
            raise NoAccess("the share is not signed, and this identity is not its founder")
        return Share(fd, descriptor, self.identity, self.memories.get(descriptor.id), self.report, path)

    def entries(self, directory: Directory) -> list[Entry]:
        """All entries of a directory under the names with which they are shown (5)."""
        names = sorted(os.fsencode(n) for n in os.listdir(directory.fd))
        for name in names:
            if name.startswith(b"+") and not CONTROL_FILE.match(name):
                self.report.note(directory.path, f"{show(name)} is no control file that this reader knows")
        sealed: dict[bytes, SealedName] = {}
        for name in names:
            if not ENTRY.match(name):
                continue
            found = self.open_name(directory, name)
            if found is None:
                self.report.fault(directory.path, f"foreign entry {show(name)}: its name opens under no key")
            else:
                sealed[name] = found
        owners = Owners(directory, sealed)
        entries: list[Entry] = []
        for name, found in sealed.items():
            shown = owners.shown(name)
            if shown is None:
                self.report.fault(directory.path, f"{show(name)} is not shown: other entries have all of its names")
                continue
            try:
                status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            belongs = owners.belongs(found)
            if found.plain is not None and not belongs:
                self.report.note(join(directory.path, shown), "nothing explains that it is in this directory")
            entries.append(Entry(shown, found.plain if belongs else None, self.tag_of(directory, name, found), name, status))
        return sorted(entries, key=lambda entry: entry.name)

    def tag_of(self, directory: Directory, stored: bytes, found: SealedName) -> bytes:
        """The tag of a directory with this stored name."""
        parts = parse_stored_name(stored, directory.share.descriptor.longest_name)
        if parts.hash or found.plain is None or found.tag is None:
            return directory.share.long_tag(parts.hash)
        return directory.share.tag(found.tag, found.plain)

    def open_name(self, directory: Directory, stored: bytes) -> SealedName | None:
        """None for a foreign entry."""
        share = directory.share
        try:
            parts = parse_stored_name(stored, share.descriptor.longest_name)
            sealed = self.long_name(directory, stored, parts.hash) if parts.hash else parts.sealed
        except Fault:
            return None
        if not sealed:
            return SealedName(None, None, parts.suffix, 0)
        for rank, epoch in enumerate(share.epochs):
            try:
                tag, plain = open_sealed_name(epoch.names, sealed)
                return SealedName(plain, tag, parts.suffix, rank)
            except Fault:
                continue
        return None

    def long_name(self, directory: Directory, stored: bytes, name_hash: bytes) -> bytes:
        """The sealed name of a long-named entry; nothing if it is lost."""
        share, file = directory.share, letters(name_hash)
        fd = os.dup(share.fd)
        try:
            for part in (b"+long", name_hash[:1].hex().encode()):
                fd, above = open_directory(fd, part), fd
                os.close(above)
            sealed = read_control(fd, file, 1 << 16)
            if sealed is None:
                raise FileNotFoundError
            return check_long_name(sealed, name_hash, share.descriptor.longest_name)
        except (FileNotFoundError, Fault) as error:
            what = error if isinstance(error, Fault) else "its name is missing"
            self.report.fault(join(directory.path, stored), f"shown under its stored name: {what}")
            return b""
        finally:
            os.close(fd)

    def open_directory(self, parent: Directory, entry: Entry) -> Directory:
        """A subdirectory: of the same share, or the root of a share to which a junction leads (11, Junctions)."""
        fd = open_directory(parent.fd, entry.stored)
        try:
            path = join(parent.path, entry.name)
            data = read_control(fd, b"+share", 4096)
            junction = find_junction(parent.share, parent.fd, parent.tag, entry.place) if entry.place is not None else None
            if data is not None:
                descriptor = parse_descriptor(data)
                leads = junction is not None and junction.child == descriptor.id and not parent.in_copy
                if not leads and descriptor.id not in self.trusted:
                    raise Fault("unauthentic", "there is a share here to which no junction leads")
                share = self.enter(fd, descriptor, path)
                return Directory(share, fd, share.root_tag(), path)
            if junction and (not junction.coming or junction.child in self.memories):
                raise Fault("unauthentic", "there should be a share here, and there is none")
            in_copy = parent.in_copy or bool(parse_stored_name(entry.stored, parent.share.descriptor.longest_name).suffix)
            return Directory(parent.share, fd, entry.tag, path, in_copy)
        except BaseException:
            os.close(fd)
            raise

    def open_file(self, directory: Directory, entry: Entry) -> tuple[PlainFile, int]:
        """The file, and a descriptor that the caller closes."""
        fd = open_regular(directory.fd, entry.stored)
        try:
            file = PlainFile(directory.share, Ciphertext(fd, self.overlay(directory, entry)))
            if file.ciphertext.length > file.layout.length(file.size):
                self.report.note(join(directory.path, entry.name), "there are bytes behind its end, which are no part of it")
            return file, fd
        except BaseException:
            os.close(fd)
            raise

    def overlay(self, directory: Directory, entry: Entry) -> Overlay | None:
        return directory.share.overlays.get((entry.status.st_dev, entry.status.st_ino))

    def attributes(self, directory: Directory, stored: bytes, kind: int) -> list[tuple[bytes, bytes]]:
        """The attributes of the entry `stored`, or, if that is empty, of the directory itself."""
        path = entry_path(directory.fd, stored) if stored else f"/proc/self/fd/{directory.fd}"
        name = "user.kithfs" if kind in (stat.S_IFREG, stat.S_IFDIR) else "trusted.kithfs"
        try:
            sealed = os.getxattr(path, name, follow_symlinks=not stored)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
                return []
            raise
        return read_attributes(directory.share, sealed)

    def link_target(self, directory: Directory, entry: Entry) -> bytes:
        return read_link(directory.share, os.readlink(entry.stored, dir_fd=directory.fd))

    def find(self, path: bytes) -> tuple[Directory, Entry | None]:
        """The directory that contains a path, and its entry; None for a root."""
        directory, entry = self.root, None
        for part in [part for part in path.split(b"/") if part]:
            if entry is not None:
                above, directory = directory, self.open_directory(directory, entry)
                self.close(above)
            entry = next((e for e in self.entries(directory) if e.name == part), None)
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, "no such path in the vault", show(path))
        return directory, entry

    def close(self, directory: Directory) -> None:
        """Closes a directory that is no longer needed. The root of a share is needed as long as the share is."""
        if directory.fd != directory.share.fd:
            directory.close()

    def find_directory(self, path: bytes) -> Directory:
        directory, entry = self.find(path)
        return directory if entry is None else self.open_directory(directory, entry)


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


# ---------------------------------------------------------------------------------------------------------------------------------------
# The commands
# ---------------------------------------------------------------------------------------------------------------------------------------

class Report:
    """Reports objects that could not be read, and oddities."""

    def __init__(self) -> None:
        self.faults: list[tuple[bytes, str]] = []

    def fault(self, path: bytes, what: object) -> None:
        said = what.strerror if isinstance(what, OSError) and what.strerror else str(what)
        self.faults.append((path, said))
        print(f"read-vault: {show(path) or '/'}: {escape(said)}", file=sys.stderr)

    def note(self, path: bytes, what: str) -> None:
        print(f"read-vault: {show(path) or '/'}: note: {escape(what)}", file=sys.stderr)


UNREADABLE = (Fault, NoAccess, OSError)


def copy_out(file: PlainFile, out: int) -> None:
    """Writes a file with its holes."""
    for offset, piece in file.pieces():
        while piece:
            written = os.pwrite(out, piece, offset)
            piece, offset = piece[written:], offset + written
    os.ftruncate(out, file.size)


# Nested directories that are open at the same time. Parents are opened again by `..` when they are needed.
HELD = 100


def identity_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


@dataclasses.dataclass
class Held:
    """A descriptor of a directory, which can be closed and reopened from a directory below."""
    fd: int
    inode: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> Held:
        return cls(fd, identity_of(fd))

    def give_up(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def reopen_from(self, below: int) -> None:
        if self.fd >= 0:
            return
        self.fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
        if identity_of(self.fd) != self.inode:
            self.give_up()
            raise Fault("flags", "it was moved during the read")


@dataclasses.dataclass
class Level:
    """A directory that is being read, and the directory that it is copied to."""
    directory: Directory
    source: Held
    out: Held | None
    left: Iterator[Entry]


class Export:
    """Copies a tree, or without a destination only reads it. The store determines its depth, so the stack is a list."""

    def __init__(self, vault: Vault, destination: str | None, suid: bool, devices: bool) -> None:
        self.vault, self.report, self.suid, self.devices = vault, vault.report, suid, devices
        self.destination = os.fsencode(destination) if destination else None
        self.root = -1
        self.names: dict[tuple[int, int], tuple[bytes, tuple[int, int]]] = {}  # the first name of an inode with several, and its copy

    def run(self, directory: Directory) -> None:
        out = None
        if self.destination:
            os.makedirs(self.destination, mode=0o700, exist_ok=True)
            self.root = open_root(self.destination)
            if os.listdir(self.root):
                raise SystemExit("read-vault: the directory to export to is not empty")
            out = Held.of(os.dup(self.root))
        self.top = directory.path
        levels = [self.level(directory, out)]
        while levels:
            level = levels[-1]
            entry = next(level.left, None)
            if entry is None:
                out, status = level.out.fd if level.out else None, os.fstat(level.directory.fd)
                try:
                    self.metadata(level.directory, b"", level.directory.path, status, out, None)
                except UNREADABLE as error:
                    self.report.fault(level.directory.path, error)
                levels.pop()
                self.leave(level, levels)
                continue
            try:
                below = self.entry(level, entry)
            except UNREADABLE as error:
                self.report.fault(join(level.directory.path, entry.name), error)
                continue
            if below is not None:
                levels.append(below)
                if len(levels) > HELD:
                    self.give_up(levels[-1 - HELD])

    def level(self, directory: Directory, out: Held | None) -> Level:
        return Level(directory, Held.of(directory.fd), out, iter(self.vault.entries(directory)))

    def give_up(self, level: Level) -> None:
        if level.directory.fd != level.directory.share.fd:
            level.source.give_up()
            level.directory.fd = -1
        if level.out:
            level.out.give_up()

    def leave(self, level: Level, above: list[Level]) -> None:
        """Closes a directory and reopens its parent. If that fails, the parent's ancestors are unreachable too."""
        while above:
            last = above[-1]
            try:
                last.source.reopen_from(level.directory.fd)
                last.directory.fd = last.source.fd
                if last.out and level.out:
                    last.out.reopen_from(level.out.fd)
                break
            except UNREADABLE as error:
                self.report.fault(last.directory.path, error)
                self.give_up(above.pop())
                while above and above[-1].source.fd < 0:
                    self.report.fault(above.pop().directory.path, "it cannot be reached any more")
        level.directory.close()
        if level.out:
            level.out.give_up()

    def entry(self, level: Level, entry: Entry) -> Level | None:
        """Copies an entry. For a directory, returns the level whose entries are still to be copied."""
        directory, kind = level.directory, stat.S_IFMT(entry.status.st_mode)
        out = entry_path(level.out.fd, entry.name) if level.out else None
        if kind == stat.S_IFDIR:
            below = self.vault.open_directory(directory, entry)
            held = None
            try:
                if out:
                    os.mkdir(out, 0o700)
                    held = Held.of(open_directory(level.out.fd, entry.name))
                return self.level(below, held)
            except BaseException:
                below.close()
                if held:
                    held.give_up()
                raise
        inode = (entry.status.st_dev, entry.status.st_ino)
        if entry.status.st_nlink > 1 and inode in self.names:
            if out:
                self.link(*self.names[inode], out)
            return None
        if kind == stat.S_IFREG:
            self.file(directory, entry, out)
        elif kind == stat.S_IFLNK:
            target = self.vault.link_target(directory, entry)
            if out:
                os.symlink(target, out)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK) and not self.devices:
            self.report.note(join(directory.path, entry.name), "a device, left out without --dev")
            return None
        elif out:
            os.mknod(out, kind | 0o600, entry.status.st_rdev if self.devices else 0)
        if out:
            made = os.lstat(out)
            self.names[inode] = join(directory.path, entry.name), (made.st_dev, made.st_ino)
        overlay = self.vault.overlay(directory, entry)
        self.metadata(directory, entry.stored, join(directory.path, entry.name), entry.status, out, overlay.mtime_ns if overlay else None)
        return None

    def link(self, first: bytes, inode: tuple[int, int], out: str) -> None:
        """Links another name to the copy of the first one."""
        *above, name = first[len(self.top):].lstrip(b"/").split(b"/")
        fd = os.dup(self.root)
        try:
            for part in above:
                below = open_directory(fd, part)
                os.close(fd)
                fd = below
            made = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if (made.st_dev, made.st_ino) != inode:
                raise Fault("flags", "the copy under its first name no longer exists")
            os.link(entry_path(fd, name), out, follow_symlinks=False)
        finally:
            os.close(fd)

    def file(self, directory: Directory, entry: Entry, out: str | None) -> None:
        file, fd = self.vault.open_file(directory, entry)
        try:
            if out is None:
                for _ in file.pieces():
                    pass
                return
            target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                copy_out(file, target)
            except BaseException:
                os.unlink(out)
                raise
            finally:
                os.close(target)
        finally:
            os.close(fd)

    def metadata(self, directory: Directory, stored: bytes, path: bytes, status: os.stat_result,
                 out: str | int | None, mtime_ns: int | None) -> None:
        """Owner, attributes, mode and times, in this order: a new owner clears set-user-id bits, and attributes can be set only by
        a user who may still write to the file. `out` is the path of an entry, or the descriptor of a directory."""
        kind = stat.S_IFMT(status.st_mode)
        attributes: list[tuple[bytes, bytes]] = []
        try:
            attributes = self.vault.attributes(directory, stored, kind)
        except UNREADABLE as error:
            self.report.fault(path, f"extended attributes: {error}")
        if out is None:
            return
        source = entry_path(directory.fd, stored) if stored else f"/proc/self/fd/{directory.fd}"
        if kind != stat.S_IFLNK:
            for name in (b"system.posix_acl_access", b"system.posix_acl_default"):
                try:
                    attributes.append((name, os.getxattr(source, name)))
                except OSError:
                    pass
        itself: dict[str, bool] = {} if isinstance(out, int) else {"follow_symlinks": False}
        if os.geteuid() == 0:
            os.chown(out, status.st_uid, status.st_gid, **itself)
        for name, value in attributes:
            if name != b"security.capability" or self.suid:
                try:
                    os.setxattr(out, name, value, **itself)
                except OSError as error:
                    self.report.fault(path, f"extended attribute {show(name)}: {error.strerror}")
        if kind != stat.S_IFLNK:
            os.chmod(out, stat.S_IMODE(status.st_mode) & (0o7777 if self.suid or kind == stat.S_IFDIR else 0o1777))
        os.utime(out, ns=(status.st_atime_ns, status.st_mtime_ns if mtime_ns is None else mtime_ns), **itself)


def list_entries(vault: Vault, path: bytes) -> None:
    directory, entry = vault.find(path)
    if entry is not None and not stat.S_ISDIR(entry.status.st_mode):
        shown = [entry]
    else:
        directory = directory if entry is None else vault.open_directory(directory, entry)
        shown = vault.entries(directory)
    layout = Layout(directory.share.descriptor.chunk_log2, directory.share.signed)
    for entry in shown:
        size, target = entry.status.st_size, b""
        if stat.S_ISREG(entry.status.st_mode):
            overlay = vault.overlay(directory, entry)
            size = layout.size_of_length(max(size, overlay.length if overlay else 0))
        elif stat.S_ISLNK(entry.status.st_mode):
            try:
                target = vault.link_target(directory, entry)
                size = len(target)
            except UNREADABLE as error:
                vault.report.fault(join(directory.path, entry.name), error)
        print(f"{stat.filemode(entry.status.st_mode)} {size:>14} {show(entry.name)}{' -> ' + show(target) if target else ''}")


def print_file(vault: Vault, path: bytes) -> None:
    directory, entry = vault.find(path)
    if entry is None or not stat.S_ISREG(entry.status.st_mode):
        raise Fault("flags", "not a regular file")
    file, fd = vault.open_file(directory, entry)
    at, out = 0, sys.stdout.buffer

    def fill(end: int) -> None:
        nonlocal at
        while at < end:
            at += out.write(bytes(min(end - at, 1 << 20)))

    try:
        for offset, piece in file.pieces():
            fill(offset)
            at += out.write(piece)
        fill(file.size)
    finally:
        out.flush()
        os.close(fd)


def secret_of(options: argparse.Namespace) -> tuple[int, bytes]:
    if options.recovery_code_file:
        with open(options.recovery_code_file, encoding="ascii") as file:
            return RECOVERY_CODE, recovery_code(file.read())
    if options.key_file:
        with open(options.key_file, "rb") as file:
            return KEY_FILE, file.read()
    if options.age_identity:
        with open(options.age_identity, "rb") as file:
            lines = [line for line in file.read().split(b"\n") if line.strip() and not line.startswith(b"#")]
        if len(lines) != 1:
            raise NoAccess("this reader needs a file with one age identity")
        return AGE, lines[0].strip()
    if options.passphrase_file:
        with open(options.passphrase_file, "rb") as file:
            return PASSPHRASE, re.sub(rb"\r?\n\Z", b"", file.read())
    return PASSPHRASE, os.fsencode(getpass.getpass("passphrase: "))


def open_vault(options: argparse.Namespace, report: Report) -> Vault:
    root = open_root(options.vault)
    if read_control(root, b"+share", 4096) is None:
        raise Fault("magic", f"{options.vault} is not a vault: it has no +share")
    name = options.identity or os.path.join(options.vault, "+identity")
    missing = NoAccess(f"no identity: {name} is not there; give its file with --identity")
    if options.identity:
        try:
            with open(name, "rb") as file:
                data = file.read(1 << 20)
        except FileNotFoundError:
            raise missing from None
    else:
        # the store's own file: no link is followed, and a FIFO does not block
        found = read_control(root, b"+identity", 1 << 20)
        if found is None:
            raise missing
        data = found
    kind, secret = secret_of(options)
    identity = open_identity_file(data, kind, secret)
    memories: dict[bytes, Memory] = {}
    for memory_file in options.memory or []:
        with open(memory_file, "rb") as file:
            memory = parse_memory(file.read())
        memories[memory.share_id] = memory
    if options.invitation:
        with open(options.invitation, "rb") as file:
            memory = parse_invitation(file.read()).accept(identity, options.fingerprint or "")
        memories.setdefault(memory.share_id, memory)
    trusted = {bytes.fromhex(share_id) for share_id in options.trust or []}
    return Vault(root, identity, memories, trusted, report)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="read-vault.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passphrase-file", metavar="FILE", help="a file with the passphrase; the default is to prompt for it")
    parser.add_argument("--recovery-code-file", metavar="FILE", help="a file with a recovery code, instead of the passphrase")
    parser.add_argument("--key-file", metavar="FILE", help="a key file, instead of the passphrase")
    parser.add_argument("--age-identity", metavar="FILE", help="a native age identity (AGE-SECRET-KEY-1...), instead of the passphrase")
    parser.add_argument("--identity", metavar="FILE", help="an identity that is not in the vault")
    parser.add_argument("--memory", metavar="FILE", action="append", help="the file in which kithfs pins a share: it proves the share")
    parser.add_argument("--invitation", metavar="FILE", help="an invitation proves a share, with --fingerprint of the inviting admin")
    parser.add_argument("--fingerprint", metavar="FP")
    parser.add_argument("--trust", metavar="SHARE-ID", action="append", help="accept the share of this id without a proof")
    parser.add_argument("vault", metavar="VAULT")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("ls", "list a directory"), ("check", "read everything, write nothing")):
        commands.add_parser(name, help=what).add_argument("path", metavar="PATH", nargs="?", default="")
    commands.add_parser("cat", help="print a file").add_argument("path", metavar="PATH")
    export = commands.add_parser("export", help="copy everything out")
    export.add_argument("directory", metavar="DIR")
    export.add_argument("path", metavar="PATH", nargs="?", default="")
    export.add_argument("--suid", action="store_true", help="keep set-user-id bits and capabilities; the storage host may have set them")
    export.add_argument("--dev", action="store_true", help="create device nodes; the storage host may have created them")
    return parser


def main() -> int:
    options, report = arguments().parse_args(), Report()
    path = b"" if options.command is None else os.fsencode(options.path)
    try:
        vault = open_vault(options, report)
        if options.command == "ls":
            list_entries(vault, path)
        elif options.command == "cat":
            print_file(vault, path)
        else:
            destination = options.directory if options.command == "export" else None
            suid, devices = getattr(options, "suid", False), getattr(options, "dev", False)
            Export(vault, destination, suid, devices).run(vault.find_directory(path))
    except NoAccess as error:
        print(f"read-vault: {escape(str(error))}", file=sys.stderr)
        return 3
    except UNREADABLE as error:
        report.fault(path, error)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())

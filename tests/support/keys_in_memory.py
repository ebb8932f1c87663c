"""keys_in_memory.py PID VAULT PASSPHRASE-FILE: searches the memory of a process for the secrets of a vault, now and when it is about to end.

The second reader derives the secrets while it reads the vault. Prints for each search how many bytes were read and which kinds of secrets were
found; the first line comes once the process is watched. As root.
"""
import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path

PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_O_TRACEEXIT, PTRACE_EVENT_EXIT = 7, 17, 0x4206, 0x40, 6
SIGTRAP, WALL = 5, 0x40000000


def derived(vault: str, passphrase_file: str) -> dict[bytes, str]:
    """Everything of 32 bytes that the second reader derives or uses as a key, with the place where it does."""
    path = Path(__file__).resolve().parents[2] / "scripts/read-vault.py"
    spec = importlib.util.spec_from_file_location("read_vault", path)
    reader = importlib.util.module_from_spec(spec)
    sys.modules["read_vault"] = reader
    spec.loader.exec_module(reader)
    found: dict[bytes, str] = {}

    def noting(name: str, key: int | None, has_result: bool) -> None:
        function = getattr(reader, name)

        def call(*args):
            result = function(*args)
            if key is not None:
                found.setdefault(bytes(args[key]), f"the key of {name}")
            if has_result:
                found.setdefault(bytes(result), f"{name} {args[1]}" if name == "expand" else name)
            return result
        setattr(reader, name, call)

    for name, key, has_result in (("expand", 0, True), ("extract", 1, True), ("xaes_step", 0, True), ("hchacha20", 0, True),
                                  ("aes_blocks", 0, False), ("open_sealed", 1, False)):
        noting(name, key, has_result)
    sys.argv = ["read-vault.py", "--passphrase-file", passphrase_file, vault, "check"]
    if (status := reader.main()) != 0:
        sys.exit(f"the second reader failed: {status}")
    # The commitment to a key and the hash in the name of a junction are stored in clear.
    public = ("expand commitment", "expand place")
    return {secret: kind for secret, kind in found.items() if len(secret) == 32 and kind not in public}


def schedule(key: bytes) -> bytes:
    """The round keys of AES-256."""
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p = p ^ p << 1 & 0xFF ^ (0x1B if p & 0x80 else 0)
        for shift in (1, 2, 4):
            q = (q ^ q << shift) & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        box[p] = 0x63 ^ q
        for turn in range(1, 5):
            box[p] ^= (q << turn | q >> 8 - turn) & 0xFF
        if p == 1:
            break
    words, constant = [key[i:i + 4] for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = bytes(box[b] for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant <<= 1
        elif i % 8 == 4:
            word = bytes(box[b] for b in word)
        words.append(bytes(a ^ b for a, b in zip(words[i - 8], word)))
    return b"".join(words)


def search(pid: int, secrets: dict[bytes, str]) -> str:
    total, kinds = 0, set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            first, last, access, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)", line).groups()
            # Read-only memory has no secrets, and parts of it cannot be read.
            if "w" not in access or "r" not in access:
                continue
            begin, end = int(first, 16), int(last, 16)
            memory.seek(begin)
            block = b""
            while len(block) < end - begin:
                try:
                    part = memory.read(end - begin - len(block))
                except OSError:
                    # Another thread that ends has unmapped its stack meanwhile.
                    with open(f"/proc/{pid}/maps") as now:
                        if f"{first}-{last} " in now.read():
                            raise
                    break
                if not part:
                    break
                block += part
            total += len(block)
            kinds |= {f"{kind} ({name or 'anonymous'})" for secret, kind in secrets.items() if secret in block}
    return f"{total} bytes: {'; '.join(sorted(kinds)) or 'nothing'}"


def main() -> None:
    pid, vault, passphrase_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    secrets = derived(vault, passphrase_file)
    assert schedule(bytes(32))[32:48].hex() == "62636363" * 4
    for key, kind in list(secrets.items()):
        rounds = schedule(key)
        for at in (2, 7, 13):
            secrets[rounds[16 * at:16 * at + 16]] = f"round key {at}: {kind}"
    with open(passphrase_file, "rb") as file:
        secrets[file.read()] = "passphrase"
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long] * 4
    if ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT) != 0:
        sys.exit(f"the process cannot be watched: {os.strerror(ctypes.get_errno())}")
    print(search(pid, secrets), flush=True)
    while True:
        _, status = os.waitpid(pid, WALL)
        if not os.WIFSTOPPED(status):
            sys.exit("the process has ended unwatched")
        if status >> 8 == SIGTRAP | PTRACE_EVENT_EXIT << 8:
            break
        ptrace(PTRACE_CONT, pid, 0, 0 if status >> 16 else os.WSTOPSIG(status))
    print(search(pid, secrets), flush=True)
    ptrace(PTRACE_DETACH, pid, 0, 0)


main()

"""Enables replication in ClickHouse's engine by changing four functions of libchdb in memory.

`clickhouse local` lacks the interserver address, scheme, credentials and port that only
clickhouse-server sets up, and without them a replica cannot fetch parts from another one. The patch
replaces the functions that return them, and turns the second HTTP listener into the interserver
one. It works for one build of libchdb on x86-64, and rejects any other before it changes a byte.
"""

from __future__ import annotations

import ctypes
import mmap
import struct

# Addresses in the file, and the code there in libchdb 26.7.3-stable.1.
IO_ADDRESS = 0x1417C9C0
SCHEME = 0x1417CAC0
CREDENTIALS = 0x1417C940
HANDLER_FACTORY = 0x18395CC0
KNOWN = {
    IO_ADDRESS: "4156534883ec484c8b36490fbe8e6701",
    SCHEME: "488b0680b88701000000781a48057001",
    CREDENTIALS: "41574156534c8b3f498d9f8801000048",
    HANDLER_FACTORY: "554157415641554154534881ec98000000",
}

PAGE = 4096

# The functions' results must outlive the call that creates them.
_kept: list[object] = []


class UnknownLibrary(Exception):
    """The library is not the one that this patch supports."""


def replicate(library: ctypes.CDLL, host: str, port: int) -> None:
    """Other replicas find this one at `host:port`, the port of the second `<listen_host>`."""
    base = _base()
    _check(base)
    zeros = _buffer(bytes(48))
    credentials = _buffer(
        bytes(48) + struct.pack("<QQQ", zeros, zeros + 48, zeros + 48) + bytes(64)
    )
    _write(base + IO_ADDRESS, _returns_string(host.encode(), port))
    _write(base + SCHEME, _returns_string(b"http"))
    # mov rax, credentials; xor edx, edx; ret
    _write(base + CREDENTIALS, b"\x48\xb8" + struct.pack("<Q", credentials) + b"\x31\xd2\xc3")
    _replace_second_factory(base)
    _kept.append(library)


def _base() -> int:
    with open("/proc/self/maps") as maps:
        return min(int(line.split("-")[0], 16) for line in maps if "libchdb.so" in line)


def _check(base: int) -> None:
    for address, known in KNOWN.items():
        found = ctypes.string_at(base + address, len(known) // 2).hex()
        if found != known:
            raise UnknownLibrary(
                f"libchdb has {found} at {address:#x}, not {known}: replicas need 26.7.3-stable.1 "
                "for x86-64"
            )


def _buffer(content: bytes) -> int:
    made = ctypes.create_string_buffer(content, len(content))
    _kept.append(made)
    return ctypes.addressof(made)


def _returns_string(text: bytes, port: int | None = None) -> bytes:
    """Machine code that returns a short libc++ string, and a port behind it."""
    assert len(text) < 23
    words = text.ljust(23, b"\0") + bytes([len(text)])
    code = b""
    for place in (0, 8, 16):
        # mov rax, word; mov [rdi + place], rax
        code += b"\x48\xb8" + words[place : place + 8] + b"\x48\x89\x47" + bytes([place])
    if port is not None:
        # mov word [rdi + 24], port
        code += b"\x66\xc7\x47\x18" + struct.pack("<H", port)
    # mov rax, rdi; ret
    return code + b"\x48\x89\xf8\xc3"


def _replace_second_factory(base: int) -> None:
    """The second call that creates a handler factory asks for the interserver's by name."""
    name = b"InterserverIOHTTPHandler-factory"
    string = _buffer(struct.pack("<QQQ", _buffer(name + b"\0"), len(name), (1 << 63) | 33))
    calls = _buffer(bytes(8))
    begins = bytes.fromhex(KNOWN[HANDLER_FACTORY])
    stub = b"\x48\xb8" + struct.pack("<Q", calls)  # mov rax, calls
    stub += b"\xff\x00\x83\x38\x02\x75\x0a"  # inc [rax]; cmp [rax], 2; jne over the next
    stub += b"\x48\xb9" + struct.pack("<Q", string)  # mov rcx, string
    stub += begins
    # mov rax, behind them; jmp rax
    stub += b"\x48\xb8" + struct.pack("<Q", base + HANDLER_FACTORY + len(begins)) + b"\xff\xe0"
    memory = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(stub)
    _kept.append(memory)
    target = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _write(base + HANDLER_FACTORY, b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0")


def _write(address: int, code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first = address & ~(PAGE - 1)
    length = ((address + len(code) + PAGE - 1) & ~(PAGE - 1)) - first
    readable, writable, executable = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
    for protection in (readable | writable | executable, readable | executable):
        if libc.mprotect(first, length, protection):
            raise OSError(ctypes.get_errno(), "mprotect")
        if protection & writable:
            ctypes.memmove(address, code, len(code))

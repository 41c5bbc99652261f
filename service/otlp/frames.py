"""Frames: the bytes between the server and a process beside it. Each has its length before it, 8 bytes, little-endian."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<Q")
LENGTH_BYTES = _LENGTH.size


def length_of(content: bytes) -> bytes:
    """Return what stands before the content of a frame."""
    return _LENGTH.pack(len(content))


def length(head: bytes) -> int:
    """Return the length of the content that follows."""
    return int(_LENGTH.unpack(head)[0])

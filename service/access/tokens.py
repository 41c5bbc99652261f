"""Tokens: `dl_<prefix>_<secret>`, of which only the public prefix and a digest are ever stored."""

from __future__ import annotations

import hashlib
import re
import secrets

MARK = "dl"
"""The beginning of every token; no holder's name begins with it and an underscore."""
_PREFIX = re.compile(rb"dl_([0-9a-f]{12})_[A-Za-z0-9_-]{1,64}")


def new_token() -> str:
    """Return a token with 48 random bits to find it by and 256 to open with."""
    return f"{MARK}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def prefix_of(token: bytes) -> str | None:
    """Return the public part of a token; None if it is not one, whatever its bytes."""
    found = _PREFIX.fullmatch(token)
    return found.group(1).decode() if found else None


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token. The secret is random, so that no salt and no slow hash are needed."""
    return hashlib.sha256(token).digest()

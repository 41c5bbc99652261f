"""The key that signs exports: an Ed25519 key in a file beside the database and its tokens, which only its owner may read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from schemas.errors import StoreError


def signing_key_file(database: Path) -> Path:
    """Return the file of a database's signing key."""
    return database.with_suffix(".signing-key")


def load_signing_key(database: Path) -> Ed25519PrivateKey:
    """Return the signing key of a database, which is created at its first use.

    Raises StoreError if the file cannot be read or written, or holds no Ed25519 key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    path = signing_key_file(database)
    try:
        if not path.exists():
            key = Ed25519PrivateKey.generate()
            create_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        loaded = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path}: {error}", hint="Check its permissions and that it holds the key in PEM format.") from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise StoreError(f"{path}: holds no Ed25519 key", hint="Move it away; the next export makes a key.")
    return loaded


def create_file(path: Path, content: bytes) -> None:
    """Write a secret file that did not exist, complete or not at all. Raises OSError if it cannot be written."""
    unfinished = path.with_name(f".unfinished-{os.getpid()}-{path.name}")
    descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A hard link fails if another process was faster, and its key is then used.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(unfinished)
    finally:
        unfinished.unlink()

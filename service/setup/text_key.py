"""The key of texts: the secret of an installation, in a file that all of its processes share and only their user may read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from analytics.deletion.text_keys import SECRET_BYTES, parse_secret
from schemas.errors import SettingsError
from service.setup.signing_key import create_file

_FINGERPRINT_CHARACTERS = 16


def load_text_key(path: Path) -> bytes:
    """Return the key in a file. Raises SettingsError if the file cannot be read or holds no key."""
    try:
        return parse_secret(path.read_text("ascii"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"DRIFTLINE_TEXT_KEY_FILE: {path}: {reason}", hint="Make the file with `driftline text-key FILE`, or copy it here."
        ) from error


def make_text_key(path: Path) -> bytes:
    """Return the key in a file, which is created with a random key if there is none.

    Raises SettingsError if the file cannot be read or written, or holds no key.
    """
    try:
        if not path.exists():
            create_file(path, os.urandom(SECRET_BYTES).hex().encode() + b"\n")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}", hint="Name a file in a writable folder.") from error
    return load_text_key(path)


def fingerprint_of(key: bytes) -> str:
    """Return what tells two keys apart and reveals neither."""
    return hashlib.sha256(b"driftline text key" + key).hexdigest()[:_FINGERPRINT_CHARACTERS]

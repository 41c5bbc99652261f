"""Result files, written atomically into folders with portable names. Names come from agents and may be hostile."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from audit.fingerprints import digest
from schemas.errors import SettingsError

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin|conout)(\.|$)", re.IGNORECASE)
"""Names that Windows reserves for devices, with any suffix."""
_LONGEST = 80
"""Maximum length of a kept name."""
_NAMELESS = "_unknown"
"""Stands for an unknown name; no other name begins with an underscore and carries no digest."""


def folder_names(names: Iterable[str | None]) -> dict[str | None, str]:
    """Return a folder name for each name; names stay distinct even on case-insensitive systems.

    A slash becomes two hyphens. A name that needs any other change, or that would collide with another, gets a digest of itself:
    `gpt-5+1a2b3c4d5e6f7a8b`.
    """
    wanted = list(dict.fromkeys(names))
    plain = {name: _NAMELESS if name is None else _plain(name) for name in wanted}
    times = Counter(made.casefold() for made in plain.values() if made is not None)
    return {
        name: made if made is not None and times[made.casefold()] == 1 else _with_digest(name or "")
        for name, made in plain.items()
    }


def make_folder(path: Path) -> None:
    """Create a folder with its parents and test that it is writable; SettingsError names it if not."""
    with _naming(path):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".driftline-{os.getpid()}"
        probe.touch()
        probe.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder. SettingsError names the path."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


def _plain(name: str) -> str | None:
    """Return the name with slashes replaced; None if it needs any other change."""
    made = name.replace("/", "--")
    is_fit = made and len(made) <= _LONGEST and not _UNSAFE.search(made) and made[0] not in "._-" and not made.endswith(".")
    return made if is_fit and not _RESERVED.match(made) else None


def _with_digest(name: str) -> str:
    kept = _UNSAFE.sub("-", name.replace("/", "--")).strip("._-")[:_LONGEST]
    return f"{'_' if _RESERVED.match(kept) else ''}{kept}+{digest(name)}"


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Convert the system's error about a path into a SettingsError that names it."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror or error}", hint="Check the path, its permissions and the space left."
        ) from error

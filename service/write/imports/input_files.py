"""Input files of commands: one rule for all commands that take paths.

1. A path is a file or a folder, and several may be given. A folder stands for the files of the command's sort below it, in the
   order of their names; hidden files and symbolic links are left out.
2. A file that is named and is missing, empty or something else is refused, before anything is written.
3. A file in a folder that is something else is named and passed over, and the exit code is 1. An empty one holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from audit.file_kinds import HEAD, unlike_json
from schemas.errors import InputError
from streams.sources.event_files import EVENT_FILES
from streams.sources.lines import visible_files
from streams.sources.source import FileSort

STANDARD_INPUT = "-"


SESSIONS = FileSort("sessions, event JSON lines or a transcript", EVENT_FILES.patterns, unlike_json)


class Found(NamedTuple):
    """The files to read, and those in folders that are something else."""

    files: list[Path]
    refused: list[InputError]


def input_files(paths: Iterable[Path], reads: FileSort) -> Found:
    """Return the files at the paths, each once. InputError for a refused path, or if no file is left."""
    given = list(paths)
    files = (file for path in given for file in (files_below(path, reads.patterns) if path.is_dir() else [path]))
    return checked(dict.fromkeys(files), given, reads)


def checked(files: Iterable[Path], paths: Sequence[Path], reads: FileSort, *, allow_empty: bool = False) -> Found:
    """Return those files that can be read. A file that is one of the paths is refused with an InputError, others are skipped.

    It is an InputError, too, where no file holds anything, unless that is allowed.
    """
    found, named, empty = Found([], []), set(paths), 0
    for file in files:
        if file not in named and _is_empty(file):
            empty += 1
            continue
        try:
            require(file, reads, allow_empty=allow_empty)
        except InputError as error:
            if file in named:
                raise
            found.refused.append(error)
        else:
            found.files.append(file)
    if found.refused and not found.files:
        raise found.refused[0]
    if empty and not found.files and not allow_empty:
        where = ", ".join(map(str, paths))
        raise InputError(f"{where}: every file in it is empty", hint=f"Give {reads.description}, or a folder of them.")
    return found


def files_below(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files of these names below a folder, by name; InputError if there is none."""
    files = visible_files(folder, patterns)
    if not files:
        raise InputError(f"{folder}: holds no {_either(patterns)}", hint="Give a file, or a folder that holds some.")
    return files


def require(file: Path, reads: FileSort, *, allow_empty: bool = False) -> None:
    """Refuse a file that is missing, empty or of another kind with an InputError. Pipes and devices are not looked into."""
    if not file.exists():
        raise InputError(f"{file}: does not exist", hint=f"Give {reads.description}, or a folder of them.")
    if not file.is_file():
        return
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}", hint="Check the path and its permissions.") from error
    if head or not allow_empty:
        _refuse(str(file), head, reads)


def require_stream(stream: BinaryIO, reads: FileSort) -> None:
    """Refuse empty or other standard input with an InputError, consuming nothing. It waits for the first bytes."""
    peek = getattr(stream, "peek", None)
    if peek is not None:
        _refuse("standard input", peek(HEAD)[:HEAD], reads)


def _refuse(name: str, head: bytes, reads: FileSort) -> None:
    kind = reads.unlike(head)
    if kind is not None:
        but = f", not {reads.description}" if head.strip() else ""
        raise InputError(f"{name}: is {kind.name}{but}", hint=kind.hint)


def _is_empty(file: Path) -> bool:
    return file.is_file() and not file.stat().st_size


def _either(patterns: Sequence[str]) -> str:
    """Join patterns as in `*.jsonl, *.json or *.ndjson`."""
    return f"{', '.join(patterns[:-1])} or {patterns[-1]}"

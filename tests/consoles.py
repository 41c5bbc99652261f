"""Guides that are typed: what stands in a `console` block behind a `$` is run, and must print what stands below it."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from service.cli.main import run

GAP = "…"
"""Stands for anything."""
_BLOCK = re.compile(r"^```console\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command of a guide, and what it is said to print."""

    command: str
    shown: str


def typed_in(guide: str) -> list[Typed]:
    """The commands of a guide, in order."""
    return [Typed(*found) for block in _BLOCK.findall(guide) for found in _TYPED.findall(f"{block}\n")]


def files_in(guide: str) -> Mapping[str, str]:
    """The files that a guide has the reader write, by name."""
    return dict(_FILE.findall(guide))


def is_shown(shown: str, printed: str) -> bool:
    """Whether this is what was printed, gaps and spaces at the ends of lines aside."""
    wanted = ".*".join(re.escape(part) for part in _trimmed(shown).split(GAP))
    return re.fullmatch(wanted, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Terminal:
    """Types the commands of one guide in a folder: those of ours in this process, others in a shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = 0

    def type(self, command: str) -> str:
        """What a command prints; an error output that is not empty stands behind it."""
        if command == "echo $?":
            return str(self._code)
        words = shlex.split(command)
        if words[0] == "driftline":
            out, err = StringIO(), StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self._code = run(words[1:])
            return out.getvalue() + err.getvalue()
        done = subprocess.run(words, check=False, cwd=self._folder, capture_output=True, text=True, timeout=600)
        self._code = done.returncode
        return done.stdout + done.stderr

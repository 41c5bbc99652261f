"""Guides that are typed: what stands in their `console` and `sh` blocks is run, in a terminal and by bash."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from support.forking import Forked, forking
from support.processes import free_port
from support.servers import PATIENCE, ROOT, until

from service.cli.main import run

GAP = "…"
"""Stands for anything."""
_CONSOLE_BLOCK = re.compile(r"^```console\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command of a guide, and what it is said to print."""

    command: str
    shown: str


def typed_in(guide: str) -> list[Typed]:
    """The commands of a guide, in order."""
    return [Typed(*found) for block in _CONSOLE_BLOCK.findall(guide) for found in _TYPED.findall(f"{block}\n")]


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


_SHELL_BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_SERVES = re.compile(r"^(driftline (?:serve|worker|simulate-judge)\b.*)$", re.MULTILINE)
_CLEAN = ("ANTHROPIC_", "DRIFTLINE_")


def blocks_in(guide: Path) -> list[str]:
    """What a guide has its reader type into a shell, block by block."""
    return [textwrap.dedent(block) for _, block in _SHELL_BLOCK.findall(guide.read_text("utf-8"))]


class Beside:
    """What was started in a terminal of its own."""

    def __init__(self, words: list[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name = words[1]
        self._log = folder / f"{self.name}-{len([*folder.glob('*.log')])}.log"
        with self._log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            self._command = Forked(words[1:], folder, variables, [nothing.fileno(), out.fileno(), out.fileno()])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._command.pid

    @property
    def logged(self) -> str:
        """What it has said."""
        return self._log.read_text("utf-8")

    def wait_until_it_serves(self) -> None:
        """A worker has no address to be called at; the others say theirs."""
        if self.name != "worker":
            until(lambda: "http://" in self.logged or self._command.has_ended, f"{self.name} to serve")
            assert not self._command.has_ended, self.logged[-4000:]

    def stop(self) -> None:
        """As a supervisor would; fails when it does not end in peace."""
        assert self._command.send(signal.SIGTERM) == 0, self.logged[-4000:]

    def close(self) -> None:
        """End it whatever it does."""
        self._command.close()


class Shell:
    """A shell in a folder, with the variables that were exported so far."""

    def __init__(self, folder: Path, stack: ExitStack, **environment: str) -> None:
        self.folder = folder
        _, text = forking()
        self._stack = stack
        entry = folder / "bin" / "driftline"
        entry.parent.mkdir(parents=True)
        entry.write_text(text)
        entry.chmod(0o700)
        self.port, self.judge = free_port(), free_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CLEAN)}
        ours = {"PATH": f"{entry.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200", "HOME": str(folder)}
        self.variables = inherited | ours | {"DRIFTLINE_PORT": str(self.port)} | environment
        self._usual = {"127.0.0.1:8377": f"127.0.0.1:{self.port}", "127.0.0.1:8788": f"127.0.0.1:{self.judge}"}
        self.beside: list[Beside] = []

    @property
    def url(self) -> str:
        """Where a server of this shell listens."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, block: str, replaced: Mapping[str, str] | None = None, codes: Collection[int] = (0,)) -> str:
        """What a block prints, with its errors; what a reader puts in for a placeholder is in `replaced`, each of which must be there."""
        for placeholder, value in (replaced or {}).items():
            assert placeholder in block
            block = block.replace(placeholder, value)
        for usual, free in self._usual.items():
            block = block.replace(usual, free)
        return "".join(
            self._start(part) if _SERVES.fullmatch(part) else self._type(part, codes) for part in _SERVES.split(block)
        )

    def _type(self, part: str, codes: Collection[int]) -> str:
        variables = self.folder / "bin" / "variables"
        script = f"set -eu -o pipefail\n{part}\nenv -0 > {shlex.quote(str(variables))}\n"
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            check=False,
            cwd=self.folder,
            env=self.variables,
            input="y\n" * 100,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.returncode in codes, f"{part}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        if variables.exists():
            self.variables = dict(one.split("=", 1) for one in variables.read_text("utf-8").split("\0") if one)
        return done.stdout + done.stderr

    def _start(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[1] == "simulate-judge":
            words += ["--port", str(self.judge)]
        started = Beside(words, self.folder, self.variables)
        self._stack.callback(started.close)
        self.beside.append(started)
        started.wait_until_it_serves()
        return ""

    def stop(self) -> None:
        """End everything that was started beside, the last first."""
        while self.beside:
            self.beside.pop().stop()


@contextmanager
def shell(folder: Path, **environment: str) -> Iterator[Shell]:
    """A shell that has `driftline` from a process that forks; what it started has ended when the context has."""
    with ExitStack() as stack:
        yield Shell(folder, stack, **environment)

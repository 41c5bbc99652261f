"""Guides that are typed into a shell: their blocks of `sh` are run by bash, one after the other, in a folder of their own.

`driftline` is this tree's, and questions are answered with yes. What serves until it is interrupted is started beside, as a reader
does in a terminal of its own; the block goes on once it serves. Ports are free ones in place of the usual.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forking import Forked, forking
from kafka_server import free_port
from servers import PATIENCE, ROOT, until

_BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_SERVES = re.compile(r"^(driftline (?:serve|worker|simulate-judge)\b.*)$", re.MULTILINE)
_CLEAN = ("ANTHROPIC_", "DRIFTLINE_")


def blocks_in(guide: Path) -> list[str]:
    """What a guide has its reader type into a shell, block by block."""
    return [textwrap.dedent(block) for _, block in _BLOCK.findall(guide.read_text("utf-8"))]


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
        assert 0 == self._command.send(signal.SIGTERM), self.logged[-4000:]

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

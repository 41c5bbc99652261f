"""Runs the `console` and `sh` blocks of guides, in a terminal of this process and in bash."""

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
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

from support.forking import Forked, forking
from support.processes import free_port
from support.servers import PATIENCE, ROOT, until

from service.cli.main import run

GAP = "…"
"""Stands for omitted output in a guide."""
_CONSOLE_BLOCK = re.compile(r"^```console\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Typed:
    """A command of a guide, and the output that the guide shows."""

    command: str
    shown: str


def typed_in(guide: str) -> list[Typed]:
    """Return the commands of a guide, in order."""
    return [Typed(command, shown) for block in _CONSOLE_BLOCK.findall(guide) for command, shown in _TYPED.findall(f"{block}\n")]


def files_in(guide: str) -> Mapping[str, str]:
    """Return the files that a guide has the reader write, by name."""
    return dict(_FILE.findall(guide))


def is_shown(example: str, printed: str) -> bool:
    """Return whether the printed output matches the guide, except for gaps and trailing spaces."""
    pattern = ".*".join(re.escape(part) for part in _trimmed(example).split(GAP))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Terminal:
    """Runs the commands of one guide in a folder: `driftline` in this process, other programs in a subprocess."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = 0

    def type(self, command: str) -> str:
        """Return the output of a command; a non-empty error output follows it."""
        if command == "echo $?":
            return str(self._code)
        arguments = shlex.split(command)
        if arguments[0] == "driftline":
            # Commands also write bytes to the buffer of standard output.
            written = BytesIO()
            out = TextIOWrapper(written, encoding="utf-8", newline="", write_through=True)
            err = StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self._code = run(arguments[1:])
            return written.getvalue().decode("utf-8") + err.getvalue()
        command_run = subprocess.run(arguments, check=False, cwd=self._folder, capture_output=True, text=True, timeout=600)
        self._code = command_run.returncode
        return command_run.stdout + command_run.stderr


_SHELL_BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_SERVES = re.compile(r"^(driftline (?:serve|worker|simulate-judge)\b.*)$", re.MULTILINE)
_CLEAN = ("ANTHROPIC_", "DRIFTLINE_")


def blocks_in(guide: Path) -> list[str]:
    """Return the `sh` blocks of a guide, in order."""
    return [textwrap.dedent(block) for _, block in _SHELL_BLOCK.findall(guide.read_text("utf-8"))]


class BackgroundProcess:
    """A `driftline` process that runs in the background of a shell."""

    def __init__(self, arguments: list[str], folder: Path, variables: Mapping[str, str]) -> None:
        self.name = arguments[1]
        self._log = folder / f"{self.name}-{len([*folder.glob('*.log')])}.log"
        with self._log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            self._command = Forked(arguments[1:], folder, variables, [nothing.fileno(), out.fileno(), out.fileno()])

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._command.pid

    @property
    def logged(self) -> str:
        """Return the log so far."""
        return self._log.read_text("utf-8")

    def wait_until_it_serves(self) -> None:
        """Wait until the process serves. A worker has no address; the other processes print theirs."""
        if self.name != "worker":
            until(lambda: "http://" in self.logged or self._command.has_ended, f"{self.name} to serve")
            assert not self._command.has_ended, self.logged[-4000:]

    def stop(self) -> None:
        """Stop the process as a supervisor would; fail if it does not exit cleanly."""
        assert self._command.send(signal.SIGTERM) == 0, self.logged[-4000:]

    def close(self) -> None:
        """Kill the process."""
        self._command.close()


class Shell:
    """A shell in a folder that keeps exported variables."""

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
        shell_variables = {
            "PATH": f"{entry.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            "HOME": str(folder),
        }
        self.variables = inherited | shell_variables | {"DRIFTLINE_PORT": str(self.port)} | environment
        self._ports = {"127.0.0.1:8377": f"127.0.0.1:{self.port}", "127.0.0.1:8788": f"127.0.0.1:{self.judge}"}
        self.processes: list[BackgroundProcess] = []

    @property
    def url(self) -> str:
        """Return the address of the server started in this shell."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, block: str, replaced: Mapping[str, str] | None = None, codes: Collection[int] = (0,)) -> str:
        """Return the output and errors of a block; `replaced` maps the placeholders to values, and each placeholder must occur."""
        for placeholder, value in (replaced or {}).items():
            assert placeholder in block
            block = block.replace(placeholder, value)
        for default, free in self._ports.items():
            block = block.replace(default, free)
        return "".join(
            self._start(part) if _SERVES.fullmatch(part) else self._type(part, codes) for part in _SERVES.split(block)
        )

    def _type(self, part: str, codes: Collection[int]) -> str:
        variables = self.folder / "bin" / "variables"
        script = f"set -eu -o pipefail\n{part}\nenv -0 > {shlex.quote(str(variables))}\n"
        command_run = subprocess.run(
            ["/bin/bash", "-c", script],
            check=False,
            cwd=self.folder,
            env=self.variables,
            input="y\n" * 100,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert command_run.returncode in codes, f"{part}\n{command_run.stdout[-4000:]}\n{command_run.stderr[-4000:]}"
        if variables.exists():
            self.variables = dict(line.split("=", 1) for line in variables.read_text("utf-8").split("\0") if line)
        return command_run.stdout + command_run.stderr

    def _start(self, line: str) -> str:
        arguments = shlex.split(line, comments=True)
        if arguments[1] == "simulate-judge":
            arguments += ["--port", str(self.judge)]
        process = BackgroundProcess(arguments, self.folder, self.variables)
        self._stack.callback(process.close)
        self.processes.append(process)
        process.wait_until_it_serves()
        return ""

    def stop(self) -> None:
        """Stop the background processes, newest first."""
        while self.processes:
            self.processes.pop().stop()


@contextmanager
def shell(folder: Path, **environment: str) -> Iterator[Shell]:
    """Yield a shell whose `driftline` runs in a forking process; every process ends with the context."""
    with ExitStack() as stack:
        yield Shell(folder, stack, **environment)

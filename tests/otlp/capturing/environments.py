"""Environments of the programs, each with the pinned requirements of one dialect and nothing of Driftline.

`requirements` has a file per environment: a list for pip, or a `package.json` for npm under the environment's name.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from support.npm import UnavailableError, node, npm_install
from support.processes import locked

INSTALL_SECONDS = 600.0
HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
PROGRAMS = HERE / "programs"
ENVIRONMENTS = Path(gettempdir()) / "driftline-otlp-environments"
"""Where environments stay from one use to the next."""


@dataclass(frozen=True)
class Program:
    """A program that can be run: its command, the folder to run it in, and the folder of its environment."""

    command: Sequence[str]
    folder: Path
    environment: Path


@contextmanager
def installed(name: str, requirements: str, folder: Path) -> Iterator[Program]:
    """A program of `programs` in an environment below `folder`, made unless it is there; UnavailableError when it cannot be."""
    if is_for_node(requirements):
        with written(name, (PROGRAMS / f"{name.replace('.', '/')}.mjs").read_text("utf-8"), requirements, folder) as program:
            yield program
    else:
        environment = made(requirements, folder)
        yield Program([str(environment / "bin" / "python"), "-m", f"programs.{name}"], HERE, environment)


@contextmanager
def written(name: str, text: str, requirements: str, folder: Path) -> Iterator[Program]:
    """A program of this text in an environment below `folder`; one in Python finds `programs` where PYTHONPATH names this folder."""
    environment = made(requirements, folder)
    # Node looks for packages in the folders above a program.
    with TemporaryDirectory(dir=environment) as beside:
        if is_for_node(requirements):
            command, file = node(), Path(beside) / f"{name}.mjs"
        else:
            command, file = environment / "bin" / "python", Path(beside) / f"{name}.py"
        file.write_text(text, "utf-8")
        yield Program([str(command), file.name], Path(beside), environment)


def is_for_node(requirements: str) -> bool:
    """Whether an environment has packages of npm."""
    return (REQUIREMENTS / f"{requirements}.json").exists()


def made(requirements: str, folder: Path) -> Path:
    """An environment below `folder`, made unless it is there; UnavailableError when it cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = folder / requirements
    with locked(folder / f"{requirements}.lock"):
        if is_for_node(requirements):
            _once(environment, REQUIREMENTS / f"{requirements}.json", _install_for_node)
        else:
            _once(environment, REQUIREMENTS / f"{requirements}.txt", _install_for_python)
    return environment


def _once(environment: Path, requirements: Path, install: Callable[[Path, Path], None]) -> None:
    made_of = environment / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not made_of.exists() or made_of.read_text("utf-8") != digest:
        shutil.rmtree(environment, ignore_errors=True)
        environment.mkdir(parents=True)
        install(environment, requirements)
        made_of.write_text(digest, "utf-8")


def _install_for_node(environment: Path, requirements: Path) -> None:
    shutil.copy(requirements, environment / "package.json")
    npm_install(environment, first_on_path=node().parent)


def _install_for_python(environment: Path, requirements: Path) -> None:
    """The list is whole and taken as it is: what some packages say they need cannot be had together."""
    _run(sys.executable, "-m", "venv", str(environment))
    pip = (str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    _run(*pip, "--requirement", str(requirements))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip did not install within {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        raise UnavailableError(f"pip could not install: {done.stderr.strip()[-500:]}")

"""Packages from the npm registry, each installed once on a machine into a cache outside the repository.

What is tested against runs on a Node that is newer than most machines have, so a Node is installed beside it, from the same
registry. `DRIFTLINE_NPM_CACHE` names another folder for the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from support.processes import locked, skip_or_fail

NODE = "24"
"""Major version of Node that every package here runs on."""
INSTALL_SECONDS = 900.0
CACHE = "DRIFTLINE_NPM_CACHE"

Program = TypeVar("Program")


class UnavailableError(Exception):
    """A package cannot be installed on this machine; the message says why."""


def or_skip(install: Callable[[], Program]) -> Program:
    """What `install` gives. Where the package is unavailable the test is skipped with the reason; in CI it fails."""
    try:
        return install()
    except UnavailableError as error:
        skip_or_fail(error)


@cache
def node() -> Path:
    """The Node that packages run on."""
    if shutil.which("npm") is None:
        raise UnavailableError("there is no npm: install Node 20 or newer")
    return _installed(f"node-{NODE}", f"node@{NODE}", None) / "node_modules" / "node" / "bin" / "node"


@cache
def package(name: str, version: str) -> Path:
    """The folder of an installed package, in `node_modules`; UnavailableError, with npm's last words, when it cannot be."""
    folder = _installed(f"{name.replace('/', '+')}-{version}", f"{name}@{version}", node().parent)
    return folder / "node_modules" / name


def path_with_node() -> str:
    """The PATH of a process that is to find the Node of `node` first."""
    return f"{node().parent}{os.pathsep}{os.environ['PATH']}"


def _installed(name: str, wanted: str, first_on_path: Path | None) -> Path:
    """The folder that holds a package, installed there unless it was before."""
    chosen = os.environ.get(CACHE)
    cache_folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    cache_folder.mkdir(parents=True, exist_ok=True)
    folder = cache_folder / name
    with locked(cache_folder / f"{name}.lock"):
        if not folder.exists():
            # Renamed when it is whole: an installation that was cut short is never taken for one.
            partial = cache_folder / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            (partial / "package.json").write_text('{"private": true}', "utf-8")
            npm_install(partial, wanted, first_on_path=first_on_path)
            partial.rename(folder)
    return folder


def npm_install(folder: Path, *wanted: str, first_on_path: Path | None = None) -> None:
    """Install packages, or those of the folder's `package.json` where none is named; UnavailableError when they cannot be."""
    path = os.environ["PATH"] if first_on_path is None else f"{first_on_path}{os.pathsep}{os.environ['PATH']}"
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel", "error", *wanted]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm did not install {' '.join(wanted)} within {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        raise UnavailableError(f"npm could not install {' '.join(wanted)}: {done.stderr.strip()[-500:]}")

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
    """A package cannot be installed on this machine; the message gives the reason."""


def or_skip(install: Callable[[], Program]) -> Program:
    """Return the result of `install`. Skip the test with the reason if the package is unavailable; fail in CI."""
    try:
        return install()
    except UnavailableError as error:
        skip_or_fail(error)


@cache
def node() -> Path:
    """Return the Node that packages run on."""
    if shutil.which("npm") is None:
        raise UnavailableError("there is no npm: install Node 20 or newer")
    return _installed(f"node-{NODE}", f"node@{NODE}", None) / "node_modules" / "node" / "bin" / "node"


@cache
def package(name: str, version: str) -> Path:
    """Return the folder of an installed package in `node_modules`; raise UnavailableError with npm's last lines if it cannot be installed."""
    folder = _installed(f"{name.replace('/', '+')}-{version}", f"{name}@{version}", node().parent)
    return folder / "node_modules" / name


def path_with_node() -> str:
    """Return a PATH on which the Node of `node` comes first."""
    return f"{node().parent}{os.pathsep}{os.environ['PATH']}"


def cache_folder() -> Path:
    """Return the folder of installed programs, which is created if it is missing."""
    chosen = os.environ.get(CACHE)
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _installed(name: str, requirement: str, first_on_path: Path | None) -> Path:
    """Return the folder of a package, and install it if it is missing."""
    folder = cache_folder() / name
    with locked(folder.with_name(f"{name}.lock")):
        if not folder.exists():
            # Renamed when it is whole: an installation that was cut short is never taken for one.
            partial = folder.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            (partial / "package.json").write_text('{"private": true}', "utf-8")
            npm_install(partial, requirement, first_on_path=first_on_path)
            partial.rename(folder)
    return folder


def npm_install(folder: Path, *requirements: str, first_on_path: Path | None = None) -> None:
    """Install packages, or those of the folder's `package.json` if none is given; raise UnavailableError on failure."""
    path = os.environ["PATH"] if first_on_path is None else f"{first_on_path}{os.pathsep}{os.environ['PATH']}"
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel", "error", *requirements]
    try:
        installation = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm did not install {' '.join(requirements)} within {INSTALL_SECONDS:.0f} s") from error
    if installation.returncode:
        raise UnavailableError(f"npm could not install {' '.join(requirements)}: {installation.stderr.strip()[-500:]}")

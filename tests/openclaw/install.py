"""Versions of OpenClaw from the npm registry, each installed once on a machine into a cache outside the repository.

OpenClaw runs on a Node that is newer than most machines have, so a Node is installed beside it, from the same registry.
`DRIFTLINE_OPENCLAW_CACHE` names another folder for the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kafka_server import locked

NODE = "24"
"""Major version of Node that every version here runs on."""
INSTALL_SECONDS = 900.0
CACHE = "DRIFTLINE_OPENCLAW_CACHE"


class Version(NamedTuple):
    """A version of OpenClaw and the form in which it keeps transcripts."""

    name: str
    form: str


JSONL, FIRST_SQLITE, CURRENT_SQLITE = "jsonl", "first sqlite", "current sqlite"
VERSIONS = (
    Version("2026.6.11", JSONL),
    Version("2026.7.2-beta.7", FIRST_SQLITE),
    Version("2026.8.1", CURRENT_SQLITE),
    Version("2026.9.6", CURRENT_SQLITE),
)
"""At least one version of each form; the last is the newest that was tried."""
NEWEST = VERSIONS[-1]


class UnavailableError(Exception):
    """OpenClaw cannot be installed on this machine; the message says why."""


class Installed(NamedTuple):
    """An installed OpenClaw: the command that runs it, and the Node it runs on."""

    version: Version
    node: Path
    script: Path


@cache
def installed(version: Version = NEWEST) -> Installed:
    """The version, installed at the first call on a machine; UnavailableError, with npm's last words, when it cannot be."""
    if shutil.which("npm") is None:
        raise UnavailableError("there is no npm: install Node 20 or newer")
    node = _package(f"node-{NODE}", f"node@{NODE}", None) / "node_modules" / "node" / "bin" / "node"
    folder = _package(f"openclaw-{version.name}", f"openclaw@{version.name}", node.parent)
    return Installed(version, node, folder / "node_modules" / "openclaw" / "openclaw.mjs")


def _package(name: str, wanted: str, first_on_path: Path | None) -> Path:
    """The folder that holds an npm package, installed there unless it was before."""
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
            _npm_install(partial, wanted, first_on_path)
            partial.rename(folder)
    return folder


def _npm_install(folder: Path, wanted: str, first_on_path: Path | None) -> None:
    path = os.environ["PATH"] if first_on_path is None else f"{first_on_path}{os.pathsep}{os.environ['PATH']}"
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-progress", "--loglevel", "error", wanted]
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
        raise UnavailableError(f"npm did not install {wanted} within {INSTALL_SECONDS:.0f} s") from error
    if done.returncode:
        raise UnavailableError(f"npm could not install {wanted}: {done.stderr.strip()[-500:]}")

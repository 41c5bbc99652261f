"""Versions of OpenClaw that tests run, one of each form in which it has kept transcripts: all in a soak run, else the newest."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from support.effort import SOAK
from support.npm import node, package


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
PLAYED = VERSIONS if SOAK else (NEWEST,)
"""Those that this run plays: the older ones do not change any more, and each takes a minute of processor."""


class Installed(NamedTuple):
    """An installed OpenClaw: the command that runs it, and the Node it runs on."""

    version: Version
    node: Path
    script: Path


def installed(version: Version = NEWEST) -> Installed:
    """The version, installed at the first call on a machine; UnavailableError, with npm's last words, when it cannot be."""
    return Installed(version, node(), package("openclaw", version.name) / "openclaw.mjs")

"""What the scripted conversations are about: services, their logs, notes and files, varied by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.model_apis.messages import Call, Step

SERVICES = ("billing", "search", "ingest", "mailer", "thumbnails", "checkout", "inventory", "auth", "reports", "webhooks")
HOSTS = ("atlas", "boreas", "cygnus", "draco", "electra", "fornax", "gemini", "hydra")
PEOPLE = ("Marta", "Jonas", "Priya", "Tomasz", "Aiko", "Luca", "Nadia", "Owen")
TABLES = ("orders", "invoices", "customers", "shipments", "sessions", "ratings", "coupons", "audit_trail")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a user, and what the model does until it has answered."""

    text: str
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One scripted session. `files` go into the workspace before it begins; `planted` is the failure it shows, if any."""

    kind: str
    ref: str
    turns: Sequence[Turn]
    files: Mapping[str, str] = field(default_factory=dict)
    planted: str | None = None
    agent: str = "main"


class Desk:
    """One user's matter: its number, its folder in the workspace, and the seeded choices."""

    def __init__(self, ref: str, seed: str) -> None:
        self.ref = ref
        self.rng = random.Random(f"{ref}:{seed}")
        self.files: dict[str, str] = {}
        self.service = self.rng.choice(SERVICES)
        self.host = self.rng.choice(HOSTS)
        self.person = self.rng.choice(PEOPLE)
        self._turns = 0

    def pick(self, *options: str) -> str:
        """One of the options."""
        return self.rng.choice(options)

    def number(self, least: int, most: int) -> int:
        """A number between the two."""
        return self.rng.randint(least, most)

    def path(self, name: str) -> str:
        """The path of a file of this matter, from the workspace on."""
        return f"{self.ref}/{name}"

    def put(self, name: str, text: str) -> str:
        """Put a file into the folder of this matter; its path."""
        self.files[self.path(name)] = text
        return self.path(name)

    def turn(self, text: str, *steps: Step) -> Turn:
        """A turn whose text no other turn has: a stand-in knows its play by it."""
        self._turns += 1
        return Turn(f"{text} [{self.ref}-{self._turns}]", steps)

    def log(self, lines: int, *, troubles: Sequence[str] = ()) -> str:
        """A service's log of so many lines, with these troubles near its end."""
        rows = [self._line(index) for index in range(lines)]
        for offset, trouble in enumerate(troubles):
            rows[-2 - offset] = f"{rows[-2 - offset][:20]} {self.service}[{self.number(900, 9999)}] ERROR {trouble}"
        return "\n".join(rows) + "\n"

    def _line(self, index: int) -> str:
        at = f"2026-11-{self.number(10, 21):02d}T{index // 60 % 24:02d}:{index % 60:02d}:{self.number(0, 59):02d}Z"
        words = (
            f"INFO copied table {self.rng.choice(TABLES)}_{self.number(1, 12):02d} rows={self.number(100, 90000)} ms={self.number(3, 900)}",
            f"INFO request {self.rng.randbytes(4).hex()} status=200 ms={self.number(2, 340)} bytes={self.number(90, 70000)}",
            f"DEBUG cache hit ratio {self.number(70, 99)}.{self.number(0, 9)} on {self.rng.choice(HOSTS)}-{self.number(1, 9)}",
            f"INFO checkpoint {self.number(10**6, 10**7)} flushed in {self.number(4, 80)} ms",
        )
        return f"{at} {self.service}[{self.number(900, 9999)}] {self.rng.choice(words)}"

    def config(self) -> dict[str, Any]:
        """The settings of a service."""
        return {
            "listen": f"0.0.0.0:{self.number(3000, 9800)}",
            "workers": self.number(2, 48),
            "database": f"postgres://{self.host}-db.internal/{self.service}",
            "timeout_ms": self.number(3, 60) * 500,
            "retention_days": self.number(7, 400),
            "feature_flags": {"async_export": self.rng.random() < 0.5, "new_parser": self.rng.random() < 0.5},
        }

    def config_file(self, settings: Mapping[str, Any]) -> str:
        """A file with these settings; its path."""
        return self.put("config.json", json.dumps(settings, indent=2) + "\n")


def command(text: str, *, title: str = "") -> Call:
    """A call of the shell."""
    return Call("exec", {"command": text, **({"title": title} if title else {})})


def read(path: str, **more: Any) -> Call:
    """A call that reads a file."""
    return Call("read", {"path": path, **more})


def wrapped(tool: str, **arguments: Any) -> Call:
    """A call of a tool of the catalogue, as the compact surface has it."""
    return Call("tool_call", {"id": tool, "args": arguments})


def asks(*calls: Call, text: str = "", thinking: str = "") -> Step:
    """An answer that asks for tools."""
    return Step(text=text, thinking=thinking, calls=calls)


def long_text(rng: random.Random, kilobytes: int, subject: str) -> str:
    """A manual of so many kilobytes, each line of its own words and figures."""
    parts: list[str] = []
    size = 0
    while size < kilobytes * 1024:
        line = (
            f"{len(parts) + 1}. {subject} {rng.choice(TABLES)} on {rng.choice(HOSTS)}-{rng.randint(1, 40)}: "
            f"limit {rng.randint(10, 99999)}, code {rng.randbytes(3).hex()}, owner {rng.choice(PEOPLE)}, "
            f"window {rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        )
        parts.append(line)
        size += len(line) + 1
    return "\n".join(parts) + "\n"

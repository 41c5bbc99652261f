"""A real Claude Code with a home of its own, run without a terminal against a stand-in provider."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.model_apis.messages import MODEL, Provider
from support.npm import package, path_with_node

VERSION = "2.1.330"
PATIENCE = 300.0
"""Seconds after which a run is given up."""
TOOLS = ("Bash", "Read", "Agent")

Json = dict[str, Any]


def installed() -> Path:
    """The program, installed at the first call on a machine; UnavailableError, with npm's last words, when it cannot be."""
    return package("@anthropic-ai/claude-code", VERSION) / "bin" / "claude.exe"


@dataclass
class ClaudeCode:
    """A home folder and a folder to work in."""

    program: Path
    folder: Path
    provider: Provider

    def __post_init__(self) -> None:
        for folder in (self.home, self.work):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def home(self) -> Path:
        """The home folder of its processes: none of them sees the user's."""
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """The folder it works in."""
        return self.folder / "work"

    @property
    def logs(self) -> Path:
        """The folder of the logs of its runs."""
        return self.folder / "logs"

    @property
    def root(self) -> Path:
        """What users have at `~/.claude`."""
        return self.home / ".claude"

    def turn(self, text: str, *arguments: str, model: str = MODEL) -> Json:
        """One run of the program with a prompt; what it says of it at the end."""
        answer: Json = json.loads(self._run(text, *arguments, "--output-format", "json", model=model))
        return answer

    def log(self, text: str, *arguments: str) -> str:
        """The log of one run with a prompt, as people keep it; it is also at `logs`."""
        told = self._run(text, *arguments, "--output-format", "stream-json", "--verbose", model=MODEL)
        self.logs.mkdir(exist_ok=True)
        (self.logs / f"{len(list(self.logs.iterdir()))}.jsonl").write_text(told, "utf-8")
        return told

    def _run(self, text: str, *arguments: str, model: str) -> str:
        done = subprocess.run(
            [str(self.program), "-p", text, *arguments, "--model", model, "--allowedTools", *TOOLS],
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stdout, done.stderr[-2000:]
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": path_with_node(),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": self.provider.url,
            "ANTHROPIC_API_KEY": "not-a-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }

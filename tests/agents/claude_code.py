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
"""Timeout of a run in seconds."""
TOOLS = ("Bash", "Read", "Agent")

Json = dict[str, Any]


def installed() -> Path:
    """Install the program if it is missing and return its path; raise UnavailableError with the output of npm on failure."""
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
        """Return the home folder of its processes, which hides the user's own."""
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """Return the folder it works in."""
        return self.folder / "work"

    @property
    def logs(self) -> Path:
        """Return the folder with the logs of its runs."""
        return self.folder / "logs"

    @property
    def root(self) -> Path:
        """Return its data folder, `~/.claude` for users."""
        return self.home / ".claude"

    def turn(self, text: str, *arguments: str, model: str = MODEL) -> Json:
        """Run the program with a prompt and return its final result."""
        answer: Json = json.loads(self._run(text, *arguments, "--output-format", "json", model=model))
        return answer

    def log(self, text: str, *arguments: str) -> str:
        """Run the program with a prompt and return its log, which is also written to `logs`."""
        log = self._run(text, *arguments, "--output-format", "stream-json", "--verbose", model=MODEL)
        self.logs.mkdir(exist_ok=True)
        (self.logs / f"{len(list(self.logs.iterdir()))}.jsonl").write_text(log, "utf-8")
        return log

    def _run(self, text: str, *arguments: str, model: str) -> str:
        completed = subprocess.run(
            [str(self.program), "-p", text, *arguments, "--model", model, "--allowedTools", *TOOLS],
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert completed.stdout, completed.stderr[-2000:]
        return completed.stdout

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

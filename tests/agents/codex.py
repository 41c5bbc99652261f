"""A real Codex with a home of its own, run without a terminal against a stand-in provider."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.model_apis.messages import Provider
from support.npm import node, package, path_with_node
from support.servers import until

VERSION = "0.169.0"
PATIENCE = 120.0
"""Timeout of a run in seconds."""
MODEL = "stand-in-model"
CONTEXT_WINDOW = 20_000
COMPACTION_THRESHOLD = 16_000

_CONFIGURATION = """
model = "{model}"
model_provider = "stand-in"
model_context_window = {window}
model_auto_compact_token_limit = {limit}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[history]
persistence = "none"

[features]
multi_agent = true

[model_providers.stand-in]
name = "Stand-in"
base_url = "{url}"
wire_api = "responses"
requires_openai_auth = false
request_max_retries = 4
stream_max_retries = 2
"""


def installed() -> Path:
    """Install the program if it is missing and return its path; raise UnavailableError with the output of npm on failure."""
    return package("@openai/codex", VERSION) / "bin" / "codex.js"


@dataclass
class Codex:
    """A home folder and a folder to work in."""

    program: Path
    folder: Path
    provider: Provider

    def __post_init__(self) -> None:
        for folder in (self.root, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        configuration = _CONFIGURATION.format(
            model=MODEL, window=CONTEXT_WINDOW, limit=COMPACTION_THRESHOLD, url=self.provider.url
        )
        (self.root / "config.toml").write_text(configuration, "utf-8")

    @property
    def home(self) -> Path:
        """Return the home folder of its processes, which hides the user's own."""
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """Return the folder it works in."""
        return self.folder / "work"

    @property
    def root(self) -> Path:
        """Return its data folder, `~/.codex` for users."""
        return self.home / ".codex"

    def turn(self, text: str, *arguments: str) -> str:
        """Run the program with a prompt and return the id of its session. `arguments` precede the prompt: `resume`, `fork`."""
        completed = subprocess.run(
            self._command(text, arguments),
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        events = [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]
        ids = [event["thread_id"] for event in events if event["type"] == "thread.started"]
        assert ids, completed.stderr[-2000:]
        return str(ids[0])

    def interrupted_turn(self, text: str) -> None:
        """Run the program and interrupt it after its first request to the model."""
        earlier_requests = len(self.provider.requests)
        process = subprocess.Popen(
            self._command(text, ()),
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(lambda: len(self.provider.requests) > earlier_requests, "a request of Codex", PATIENCE)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE)

    def _command(self, text: str, arguments: tuple[str, ...]) -> list[str]:
        return [str(node()), str(self.program), "exec", "--json", "--skip-git-repo-check", *arguments, text]

    def _environment(self) -> dict[str, str]:
        return {"PATH": path_with_node(), "HOME": str(self.home), "LANG": "C.UTF-8"}

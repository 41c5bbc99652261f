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
"""Seconds after which a run is given up."""
MODEL = "stand-in-model"
CONTEXT_WINDOW = 20_000
COMPACTS_AT = 16_000

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
    """The program, installed at the first call on a machine; UnavailableError, with npm's last words, when it cannot be."""
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
        written = _CONFIGURATION.format(model=MODEL, window=CONTEXT_WINDOW, limit=COMPACTS_AT, url=self.provider.url)
        (self.root / "config.toml").write_text(written, "utf-8")

    @property
    def home(self) -> Path:
        """The home folder of its processes: none of them sees the user's."""
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """The folder it works in."""
        return self.folder / "work"

    @property
    def root(self) -> Path:
        """What users have at `~/.codex`."""
        return self.home / ".codex"

    def turn(self, text: str, *arguments: str) -> str:
        """One run of the program with a prompt; the id of its session. `arguments` stand before the prompt: `resume`, `fork`."""
        done = subprocess.run(
            self._command(text, arguments),
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        ids = [line["thread_id"] for line in told if line["type"] == "thread.started"]
        assert ids, done.stderr[-2000:]
        return str(ids[0])

    def interrupted_turn(self, text: str) -> None:
        """A run that is interrupted as soon as it asked the model."""
        asked = len(self.provider.requests)
        process = subprocess.Popen(
            self._command(text, ()),
            cwd=self.work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(lambda: len(self.provider.requests) > asked, "a request of Codex", PATIENCE)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE)

    def _command(self, text: str, arguments: tuple[str, ...]) -> list[str]:
        return [str(node()), str(self.program), "exec", "--json", "--skip-git-repo-check", *arguments, text]

    def _environment(self) -> dict[str, str]:
        return {"PATH": path_with_node(), "HOME": str(self.home), "LANG": "C.UTF-8"}

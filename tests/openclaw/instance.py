"""A running OpenClaw with a state folder of its own: single turns with `agent --local`, or a gateway that takes turns over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from support.model_apis.messages import MODEL, Provider
from support.npm import path_with_node
from support.processes import free_port

from openclaw.install import Installed

PATIENCE = 300.0
"""Seconds after which a turn or a start is given up; a busy machine takes a minute."""
TOKEN = "gateway-token"
PROVIDER = "stand-in"
Json = dict[str, Any]


@dataclass
class Instance:
    """One state folder of an installed OpenClaw, configured for a stand-in provider."""

    installed: Installed
    folder: Path
    provider: Provider
    agents: Sequence[str] = ("main",)
    context_window: int = 200_000
    thinking: bool = False
    plugins: Json = field(default_factory=dict)
    more: Json = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        for folder in (self.state, self.home, self.workspace):
            folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps(self._configuration(), indent=2), "utf-8")

    @property
    def state(self) -> Path:
        """The state folder, which users have at `~/.openclaw`."""
        return self.folder / "state"

    @property
    def home(self) -> Path:
        """The home folder of its processes: none of them sees the user's."""
        return self.folder / "home"

    @property
    def workspace(self) -> Path:
        """The folder in which its agents work."""
        return self.folder / "workspace"

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.state / "openclaw.json"

    def _configuration(self) -> Json:
        model = {
            "id": MODEL,
            "name": "Stand-in",
            "reasoning": self.thinking,
            "input": ["text"],
            "contextWindow": self.context_window,
            "maxTokens": 4096,
            "cost": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
        }
        provider = {"baseUrl": self.provider.url, "apiKey": "not-a-key", "api": "anthropic-messages", "models": [model]}
        return merged(
            {
                "models": {"mode": "replace", "providers": {PROVIDER: provider}},
                "agents": {
                    "defaults": {
                        "model": {"primary": f"{PROVIDER}/{MODEL}"},
                        "workspace": str(self.workspace),
                        "skipBootstrap": True,
                    },
                    "list": [{"id": agent, **({"default": True} if agent == self.agents[0] else {})} for agent in self.agents],
                },
                "gateway": {
                    "mode": "local",
                    "bind": "loopback",
                    "port": self.port,
                    "auth": {"mode": "token", "token": TOKEN},
                    "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
                },
                "plugins": self.plugins,
            },
            self.more,
        )

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """The command line and environment that run OpenClaw with these arguments."""
        environment = {
            "PATH": path_with_node(),
            "HOME": str(self.home),
            "OPENCLAW_STATE_DIR": str(self.state),
            "OPENCLAW_CONFIG_PATH": str(self.config),
            "OPENCLAW_SKIP_CHANNELS": "1",
            "NO_COLOR": "1",
            **self.environment,
        }
        return [str(self.installed.node), str(self.installed.script), *arguments], environment

    def run(self, *arguments: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command of OpenClaw to its end."""
        command, environment = self.command(*arguments)
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=patience, check=False
        )

    def local_turn(self, session: str, text: str, *, agent: str | None = None) -> subprocess.CompletedProcess[str]:
        """One turn in a process of its own, without a gateway."""
        agent = agent or self.agents[0]
        return self.run("agent", "--local", "--agent", agent, "--session-id", session, "--message", text, "--json")

    @contextmanager
    def gateway(self) -> Iterator[Gateway]:
        """A gateway that runs until the block is left."""
        gateway = Gateway(self)
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()


class Gateway:
    """The gateway of an instance, a process that can be stopped, killed and started again."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.url = f"http://127.0.0.1:{instance.port}"
        self.log = instance.folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        command, environment = self.instance.command("gateway", "run")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.instance.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert self._process.poll() is None, f"the gateway ended: {self.said()[-2000:]}"
            assert time.monotonic() < deadline, f"the gateway did not answer: {self.said()[-2000:]}"
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            answer = httpx.get(f"{self.url}/v1/models", headers=self._headers(), timeout=30)
        except httpx.HTTPError:
            return False
        return bool(answer.status_code == 200)

    def _headers(self, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}", **more}

    def turn(self, session: str, text: str, *, agent: str | None = None, timeout: float = PATIENCE) -> str:
        """Say something to an agent; its answer. `session` is a key that no other conversation of the agent has."""
        agent = agent or self.instance.agents[0]
        key = f"agent:{agent}:{session}"
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            headers=self._headers(**{"x-openclaw-session-key": key}),
            json={"model": f"openclaw/{agent}", "messages": [{"role": "user", "content": text}]},
            timeout=timeout,
        )
        body = answer.json()
        if answer.status_code != 200:
            return json.dumps(body)
        return str(body["choices"][0]["message"]["content"] or "")

    def call(self, method: str, params: Json | None = None) -> Json:
        """Call a method of the gateway, as its own command line does."""
        options = {"params": json.dumps(params or {}), "token": TOKEN, "timeout": str(int(PATIENCE * 1000))}
        done = self.instance.run("gateway", "call", method, "--json", *(f"--{name}={value}" for name, value in options.items()))
        assert done.returncode == 0, done.stderr[-2000:]
        answer: Json = json.loads(done.stdout)
        return answer

    def said(self) -> str:
        """What it wrote to its log."""
        return self.log.read_text("utf-8", "replace")

    def stop(self, patience: float = 60.0) -> None:
        """Have it end as a service manager does."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and what it started at once, by kill -9."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def merged(base: Json, more: Mapping[str, Any]) -> Json:
    """The base with the fields of another object, level by level."""
    result = dict(base)
    for name, value in more.items():
        inner = result.get(name)
        result[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result

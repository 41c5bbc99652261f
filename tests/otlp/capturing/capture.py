"""One capture: a program run against the stand-in of its provider, and what its exporter sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from support.model_apis.messages import Provider
from support.receivers import receiving

from otlp.capturing.dialects import Dialect
from otlp.capturing.environments import Program, installed
from otlp.capturing.programs import numbers, scenario
from otlp.capturing.readable import Json, readable

CAPTURES = Path(__file__).parents[1] / "captures"
PATIENCE = 120.0
"""Seconds after which a program is given up."""
SPANS_A_REQUEST = 6
"""At most; the few spans of a program would all be in one request otherwise."""


def record_capture(dialect: Dialect, environments: Path) -> list[Json]:
    """Run a dialect's program and return the lines of its capture, in the order in which the exporter sent them."""
    with installed(dialect.program or dialect.name, dialect.requirements or dialect.name, environments) as program:
        return capture(program, dialect)


def capture(program: Program, dialect: Dialect) -> list[Json]:
    """The lines that the exporter of an installed program sends."""
    with (
        dialect.stand_in(dialect.conversation(dialect.tool_prefix)) as provider,
        receiving() as receiver,
        TemporaryDirectory() as home,
    ):
        done = subprocess.run(
            program.command,
            cwd=program.folder,
            env=provided(provider, home) | _exporting(receiver.url) | dialect.settings,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert not done.returncode, done.stderr[-4000:]
        assert not provider.unknown, provider.unknown
        replaced = {
            str(program.folder): "/app",
            str(program.environment): "/environment",
            home: "/home/agent",
            sys.base_prefix: "/python",
            os.uname().nodename: "host.example",
        }
        lines = (readable(post, replaced) for post in receiver.posts)
        return [line for line in lines if line is not None]


def provided(provider: Provider, home: str) -> dict[str, str]:
    """What every program is run with: a home of its own, the conversation, and the address of its provider."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENAI_BASE_URL": provider.url,
        "OPENAI_API_KEY": "not-a-key",
        "ANTHROPIC_BASE_URL": provider.url,
        "ANTHROPIC_API_KEY": "not-a-key",
        "GOOGLE_GEMINI_BASE_URL": provider.url.removesuffix("/v1"),
        "GOOGLE_API_KEY": "not-a-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "SCENARIO": json.dumps(_constants(scenario)),
        "NUMBERS": json.dumps(_constants(numbers)),
    }


def _constants(conversation: ModuleType) -> Json:
    """What a program in another language is told of a conversation."""
    return {name: value for name, value in vars(conversation).items() if name.isupper() and isinstance(value, str | tuple)}


def _exporting(receiver: str) -> dict[str, str]:
    """Where spans go, in which batches, and the resource that an operator names."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver,
        "TRACELOOP_BASE_URL": receiver,
        "TRACELOOP_TELEMETRY": "false",
        "LANGFUSE_BASE_URL": receiver,
        "LANGFUSE_PUBLIC_KEY": "pk-lf-not-a-key",
        "LANGFUSE_SECRET_KEY": "sk-lf-not-a-key",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(SPANS_A_REQUEST),
        "OTEL_SERVICE_NAME": "weather-service",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.version={scenario.VERSION},deployment.environment.name=staging",
    }


def written(lines: list[Json]) -> str:
    """The file of a capture."""
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


def read_capture(dialect: str) -> Iterator[Json]:
    """Yield the lines of a committed capture."""
    for line in (CAPTURES / f"{dialect}.jsonl").read_text("utf-8").splitlines():
        yield json.loads(line)

"""A real OpenTelemetry Collector: built once on a machine by the Collector's own builder, into a cache outside the repository.

A soak run builds it: the build takes minutes of one processor. Its modules come from the module proxy of Go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import yaml
from support.effort import SOAK
from support.otlp_captures import Captured, Json
from support.otlp_spans import attributes, body, messages
from support.processes import free_port, locked, tied, untie
from support.servers import PATIENCE, until

CONFIG = Path(__file__).parents[1] / "otlp" / "collector" / "builder.yaml"
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
BUILD_SECONDS = 3600.0


class UnavailableError(Exception):
    """No Collector is available on this machine; the message gives the reason."""


def collector() -> Path:
    """Return the program, built once per machine in a soak run; raise UnavailableError if it cannot be built."""
    go = shutil.which("go", path=os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"]))
    if go is None:
        raise UnavailableError("there is no go: install Go 1.26 or newer, with which the OpenTelemetry Collector is built")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"otel-collector-{hashlib.sha256(CONFIG.read_bytes()).hexdigest()[:8]}"
    with locked(cache / f"{program.name}.lock"):
        if not program.exists() and not SOAK:
            raise UnavailableError(
                "the Collector is not built on this machine: `make soak` builds it, in minutes and half a gigabyte"
            )
        if not program.exists():
            _build(go, program)
    return program


def _build(go: str, program: Path) -> None:
    """Generate the sources with the builder and compile them, one package at a time to spare the machine."""
    with tempfile.TemporaryDirectory(prefix="driftline-collector-") as folder:
        config = yaml.safe_load(CONFIG.read_text("utf-8"))
        config["dist"]["output_path"] = f"{folder}/built"
        configuration = Path(folder) / "builder.yaml"
        configuration.write_text(yaml.safe_dump(config), "utf-8")
        environment = os.environ | {"GOFLAGS": "-p=1", "PATH": os.pathsep.join([str(Path(go).parent), os.environ["PATH"]])}
        command = ["nice", "-n", "15", go, "run", BUILDER, "--config", str(configuration)]
        try:
            build = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"the Collector was not built within {BUILD_SECONDS:g} s") from error
        if build.returncode:
            raise UnavailableError(f"the Collector could not be built: {(build.stdout + build.stderr)[-2000:]}")
        # Renamed when it is whole, and from its own file system: a build that was cut short is never taken for one.
        unfinished = program.with_suffix(".partial")
        shutil.copy2(Path(folder) / "built" / "collector", unfinished)
        unfinished.rename(program)


class RunningCollector:
    """A running Collector: `url` is its OTLP/HTTP endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self._log = log

    @property
    def logged(self) -> str:
        """Return the log so far."""
        return self._log.read_text("utf-8", "replace")

    @property
    def ended(self) -> bool:
        """Return whether the Collector has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Stop the Collector gracefully: it sends its queued data."""
        untie(self._process)
        self._process.terminate()
        self._process.wait(PATIENCE)


@contextmanager
def exporting(folder: Path, exporters: Mapping[str, Json]) -> Iterator[RunningCollector]:
    """Yield a Collector that receives OTLP, batches it and exports traces and logs. The folder has its configuration."""
    port = free_port()
    pipeline = {"receivers": ["otlp"], "processors": ["batch"], "exporters": sorted(exporters)}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "processors": {"batch": {"timeout": "100ms"}},
        "exporters": dict(exporters),
        "service": {
            "pipelines": {"traces": pipeline, "logs": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "collector.yaml", folder / "collector.log"
    file.write_text(yaml.safe_dump(config), "utf-8")
    with log.open("wb") as output:
        process = tied([str(collector()), "--config", str(file)], output.fileno())
    running = RunningCollector(process, f"http://127.0.0.1:{port}", log)
    try:
        until(lambda: _listens(port) or running.ended, "a Collector to listen")
        assert not running.ended, running.logged[-4000:]
        yield running
    finally:
        running.stop()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def traces(*spans: Json, service: str | None = "checkout") -> Captured:
    """Return a request with spans of one service."""
    return Captured("traces", body(spans, {} if service is None else {"service.name": service}))


def turn(trace: int, start: datetime, *, session: str = "", **fields: str) -> Json:
    """Return the span of an agent that answers one question."""
    texts = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": session or f"session-{trace}",
        "gen_ai.input.messages": messages("user", f"Where is order {trace}?"),
        "gen_ai.output.messages": messages("assistant", f"Order {trace} left the depot this morning."),
    }
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace:016x}",
        "name": "invoke_agent clerk",
        "startTimeUnixNano": nanoseconds(start),
        "endTimeUnixNano": nanoseconds(start + timedelta(seconds=1)),
        "attributes": attributes({**texts, **fields}),
    }


def nanoseconds(time: datetime) -> str:
    """Return a time in the format of OTLP's JSON."""
    return f"{int(time.timestamp())}000000000"

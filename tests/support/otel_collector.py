"""A real OpenTelemetry Collector, built with the Collector's own builder and cached in the user's cache folder.

Only a soak run builds it: the build takes minutes on one processor and downloads modules from the Go module proxy.
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
BUILD_TIMEOUT_SECONDS = 3600.0


class UnavailableError(Exception):
    """No Collector is available on this machine; the message gives the reason."""


def find_or_build_collector() -> Path:
    """Return the path of the cached program. A soak run builds it first if it is missing.

    Raises UnavailableError if the program is neither cached nor can be built.
    """
    go = shutil.which("go", path=os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"]))
    if go is None:
        raise UnavailableError("go is not installed: building the OpenTelemetry Collector needs Go 1.26 or newer")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"otel-collector-{hashlib.sha256(CONFIG.read_bytes()).hexdigest()[:8]}"
    with locked(cache / f"{program.name}.lock"):
        if program.exists():
            return program
        if not SOAK:
            raise UnavailableError(
                "the Collector is not built on this machine: run `make soak`, which takes minutes and half a gigabyte for it"
            )
        _build_collector(go, program)
    return program


def _build_collector(go: str, program: Path) -> None:
    """Generate the sources with the builder and compile them, one package at a time to keep the machine responsive."""
    with tempfile.TemporaryDirectory(prefix="driftline-collector-") as folder:
        output_folder = Path(folder) / "built"
        config = yaml.safe_load(CONFIG.read_text("utf-8"))
        config["dist"]["output_path"] = str(output_folder)
        config_file = Path(folder) / "builder.yaml"
        config_file.write_text(yaml.safe_dump(config), "utf-8")
        environment = os.environ | {"GOFLAGS": "-p=1", "PATH": os.pathsep.join([str(Path(go).parent), os.environ["PATH"]])}
        command = ["nice", "-n", "15", go, "run", BUILDER, "--config", str(config_file)]
        try:
            build = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"the Collector was not built within {BUILD_TIMEOUT_SECONDS:g} s") from error
        if build.returncode:
            raise UnavailableError(f"the Collector could not be built: {(build.stdout + build.stderr)[-2000:]}")
        # The temporary folder may be on another file system, where a rename would not be atomic: an interrupted copy
        # must not look like a finished program.
        partial_copy = program.with_suffix(".partial")
        shutil.copy2(output_folder / "collector", partial_copy)
        partial_copy.rename(program)


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
def run_collector(folder: Path, exporters: Mapping[str, Json]) -> Iterator[RunningCollector]:
    """Run a Collector that receives OTLP over HTTP and sends batches to the exporters. `folder` gets its configuration and log."""
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
    config_file = folder / "collector.yaml"
    config_file.write_text(yaml.safe_dump(config), "utf-8")
    log = folder / "collector.log"
    with log.open("wb") as output:
        process = tied([str(find_or_build_collector()), "--config", str(config_file)], output.fileno())
    collector = RunningCollector(process, f"http://127.0.0.1:{port}", log)
    try:
        until(lambda: _listens(port) or collector.ended, "a Collector to listen")
        assert not collector.ended, collector.logged[-4000:]
        yield collector
    finally:
        collector.stop()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def traces_request(*spans: Json, service: str | None = "checkout") -> Captured:
    """Return an export request with the spans of one service."""
    return Captured("traces", body(spans, {} if service is None else {"service.name": service}))


def agent_span(trace: int, start: datetime, *, session: str = "", **extra_attributes: str) -> Json:
    """Return the span of an agent that answers one question."""
    values = {
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
        "startTimeUnixNano": unix_nanoseconds(start),
        "endTimeUnixNano": unix_nanoseconds(start + timedelta(seconds=1)),
        "attributes": attributes({**values, **extra_attributes}),
    }


def unix_nanoseconds(time: datetime) -> str:
    """Return a time, truncated to whole seconds, as OTLP/JSON writes it: nanoseconds in a string."""
    return f"{int(time.timestamp())}000000000"

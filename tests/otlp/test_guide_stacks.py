"""The guide's lines for each stack: a program of that stack has them, runs, and its turn is in Driftline."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pytest
from support.npm import or_skip
from support.pages import HTML, SIGN_IN
from support.processes import free_port
from support.receivers import Post, receiving
from support.servers import PATIENCE, ROOT, Child, Home, Nursery, nursery, until

from otlp.capturing.capture import provided
from otlp.capturing.environments import ENVIRONMENTS, HERE, REQUIREMENTS, made, written
from otlp.capturing.plays import plays
from otlp.capturing.programs import scenario
from otlp.capturing.readable import readable
from otlp.capturing.shape import iterate_records
from otlp.guided import SESSION, TURNS, WITHOUT_CONTENT, Turn
from service.pages.connect import Stack, fill, stacks

POLICY = "version: 1\ndefaults: {traces: {settleSeconds: 1}}\n"
PROJECT = "shop"
OVER_HTTP = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
OVER_GRPC = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
"""Modules of Python's exporters."""
WITHOUT_A_TURN = {"collector", "any"}
"""The Collector is a program of its own, and the lines for any SDK are a turn by themselves."""
FRAMEWORKS = {
    *("google-adk", "strands", "crewai", "smolagents", "llama-index", "autogen", "dspy", "haystack", "agno", "agent-framework"),
    *("semantic-kernel", "litellm", "openllmetry", "mastra"),
}
"""Stacks whose conversations are captured from programs of their own."""


def stack_of(turn: Turn) -> Stack:
    """The lines of a turn's stack."""
    (found,) = [stack for stack in stacks().stacks if stack.key == turn.stack]
    return found


@dataclass
class Connected:
    """A server, with what a program is run with that is connected to it as the guide says."""

    home: Home
    child: Child
    url: str
    token: str
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    def run(self, name: str, text: str, requirements: str, folder: Path, more: str = "") -> str:
        """What a program prints that has this text; `more` is typed after the guide's variables."""
        exports = fill(stacks().environment, {"url": self.url, "token": self.token}) + more
        with written(name, text, requirements, ENVIRONMENTS) as program:
            done = subprocess.run(
                ["/bin/bash", "-c", f'{exports}\nexec "$@"', "bash", *program.command],
                cwd=program.folder,
                env=self.variables | {"PYTHONPATH": str(HERE), "HOME": str(folder)},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        assert not done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()

    def wait_for_a_score(self) -> None:
        """Return once an exchange has its score."""
        headers = {"Authorization": f"Bearer {self.home.operator()}"}
        with httpx2.Client(base_url=self.url, headers=headers, timeout=PATIENCE) as client:
            until(lambda: bool(_scores(client)), f"a score; the server says {self.child.logged[-2000:]}")

    def wait_for_words(self, words: str) -> None:
        """Return once the page that connects agents says so of the connection."""
        with httpx2.Client(base_url=self.url, timeout=PATIENCE, headers=HTML) as client:
            headers = {"Authorization": f"Bearer {self.home.operator()}"}
            assert client.post(SIGN_IN, headers=headers, json={}).status_code == 204
            page = {"params": {"connection": "agent"}}
            until(
                lambda: words in client.get("/connect", **page).text, f"the page; the server says {self.child.logged[-2000:]}"
            )

    def asked(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, once the server has stopped."""
        if not self.child.ended:
            self.child.send(signal.SIGTERM)
            assert self.child.wait() == 0, self.child.logged[-4000:]
        with duckdb.connect(str(self.home.database), read_only=True) as raw:
            return raw.execute(statement).fetchall()


def _scores(client: httpx2.Client) -> list[Any]:
    answer = client.get(f"/api/audit/{PROJECT}/scores")
    return answer.json()["scores"] if answer.status_code == 200 else []


@pytest.fixture
def children() -> Iterator[Nursery]:
    """Starts the server."""
    with nursery() as opened:
        yield opened


@pytest.fixture
def connected(children: Nursery, tmp_path: Path) -> Connected:
    """A server with a connection."""
    return begun(children, Home(tmp_path, POLICY))


def begun(children: Nursery, home: Home) -> Connected:
    """The server of a home, with a connection."""
    token = home.connection("agent", PROJECT)
    child = children.serve(home)
    return Connected(home, child, child.serving(), token)


def turned(connected: Connected, turn: Turn, lines: str, folder: Path, more: str = "", **variables: str) -> str:
    """What the program of a turn prints that has these lines, is connected and has its provider."""
    or_skip(lambda: made(turn.requirements, ENVIRONMENTS))
    with turn.stand_in(plays(turn.tool_prefix)) as provider:
        connected.variables = provided(provider, str(folder)) | variables
        printed = connected.run("agent", turn.build_program(lines), turn.requirements, folder, more)
        assert not provider.unknown, provider.unknown
    return printed


def assert_told(connected: Connected, turn: Turn, session: str) -> None:
    """Driftline has the session, its exchange, and the calls of tools with their outputs."""
    connected.wait_for_a_score()
    exchanges = connected.asked("SELECT session_id, user_message, agent_response, tags FROM log.exchanges")
    events = connected.asked("SELECT session_id, event, tool FROM log.agent_events WHERE event LIKE 'tool_%'")
    tool = f"{turn.tool_prefix}get_weather"

    assert exchanges == [(session, scenario.WEATHER, scenario.WEATHER_ANSWER, [])]
    assert Counter(events) == {(session, "tool_call", tool): 2, (session, "tool_output", tool): 2}


@pytest.mark.parametrize("name", [name for name in TURNS if name != "langfuse"])
def test_an_agent_with_the_guides_lines_is_a_session_with_its_exchange_and_calls(
    name: str, connected: Connected, tmp_path: Path
) -> None:
    """Nobody who copied them looks for what is missing in them."""
    printed = turned(connected, TURNS[name], stacks().lines(stack_of(TURNS[name]), {}), tmp_path)

    assert_told(connected, TURNS[name], printed if TURNS[name].prints_session else SESSION)


def test_langfuse_beside_gets_the_same_spans_and_not_the_token(connected: Connected, tmp_path: Path) -> None:
    """A team that tries Driftline keeps what it has, and its credentials apart."""
    with receiving() as receiver:
        keys = {"LANGFUSE_PUBLIC_KEY": "pk-lf-not-a-key", "LANGFUSE_SECRET_KEY": "sk-lf-not-a-key"}
        lines = stacks().lines(stack_of(TURNS["langfuse"]), {})
        turned(connected, TURNS["langfuse"], lines, tmp_path, LANGFUSE_BASE_URL=receiver.url, **keys)
        posts = list(receiver.posts)

    assert_told(connected, TURNS["langfuse"], SESSION)
    assert {(post.headers["authorization"].split()[0], connected.token in str(post)) for post in posts} == {("Basic", False)}
    sent = {(span["traceId"], span["spanId"]) for span in spans_of(posts)}
    assert set(connected.asked("SELECT trace_id, span_id FROM log.spans")) == sent != set()


def spans_of(posts: list[Post]) -> Iterator[dict[str, Any]]:
    """The spans that were sent."""
    lines = (readable(post, {}) for post in posts)
    return (span for _, span in iterate_records(line for line in lines if line is not None))


def lines_by_hand() -> str:
    """The lines for any SDK, which are a whole program."""
    (stack,) = [candidate for candidate in stacks().stacks if candidate.key == "any"]
    return stacks().lines(stack, {})


def assert_told_by_hand(connected: Connected) -> None:
    """Driftline has what the lines for any SDK say."""
    connected.wait_for_a_score()
    exchanges = connected.asked("SELECT session_id, agent, user_message, agent_response FROM log.exchanges")
    events = connected.asked("SELECT session_id, event, tool FROM log.agent_events WHERE event LIKE 'tool_%' ORDER BY seq")

    assert exchanges == [(SESSION, "my-agent", "Where is order 4711?", "It left the depot this morning.")]
    assert events == [(SESSION, "tool_call", "find_order"), (SESSION, "tool_output", "find_order")]


def test_spans_by_hand_are_a_session_with_its_exchange_and_calls(connected: Connected, tmp_path: Path) -> None:
    """Agents without an instrumentor, and those in other languages, have the names of this program alone to go by."""
    or_skip(lambda: made("pydantic_ai", ENVIRONMENTS))
    connected.run("by_hand", lines_by_hand(), "pydantic_ai", tmp_path)

    assert_told_by_hand(connected)


def test_the_same_lines_over_grpc_are_the_same_session(children: Nursery, tmp_path: Path) -> None:
    """Another address and another import are all that the guide has its reader change."""
    or_skip(lambda: made("otlp_grpc", ENVIRONMENTS))
    port = free_port()
    connected = begun(children, Home(tmp_path, POLICY, DRIFTLINE_OTLP_GRPC_PORT=str(port)))
    lines = lines_by_hand().replace(OVER_HTTP, OVER_GRPC)

    connected.run("by_grpc", lines, "otlp_grpc", tmp_path, f"export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port}")

    assert_told_by_hand(connected)
    assert f"`{OVER_GRPC}`" in (ROOT / "docs/how-to/opentelemetry.md").read_text("utf-8")


@pytest.mark.parametrize("name", WITHOUT_CONTENT)
def test_texts_are_missing_by_default_which_the_page_says(name: str, connected: Connected, tmp_path: Path) -> None:
    """Spans without an exchange look like a fault of ours to a reader who is not told whose default it is."""
    turned(connected, WITHOUT_CONTENT[name], stacks().exporter, tmp_path)

    connected.wait_for_words(stacks().content)
    assert connected.asked("SELECT state FROM log.trace_assemblies") == [("no_content",)]
    assert connected.asked("SELECT count(*) FROM log.exchanges") == [(0,)]


@pytest.mark.parametrize("name", WITHOUT_CONTENT)
def test_the_guides_variables_switch_texts_on(name: str, connected: Connected, tmp_path: Path) -> None:
    """What an instrumentor does not know it leaves off, with a warning that nobody reads."""
    turned(connected, WITHOUT_CONTENT[name], stacks().exporter, tmp_path, stacks().content)

    assert_told(connected, WITHOUT_CONTENT[name], SESSION)


@pytest.mark.parametrize("name", TURNS)
def test_a_program_has_the_words_of_the_guide(name: str) -> None:
    """A session that is set in another way than the guide says proves nothing of the guide."""
    stack = stack_of(TURNS[name])

    for snippet in (*TURNS[name].snippets.values(), *TURNS[name].omitted):
        assert f"`{snippet}`" in stack.session


def test_every_stack_has_a_turn() -> None:
    """One that was added later would be tried by those who believe it."""
    assert {stack.key for stack in stacks().stacks} == {turn.stack for turn in TURNS.values()} | WITHOUT_A_TURN | FRAMEWORKS


@pytest.mark.parametrize("key", sorted(FRAMEWORKS - {"openllmetry"}))
def test_the_lines_of_a_framework_are_those_of_its_captured_program(key: str) -> None:
    """An instrumentor that is imported or started in another way than in the program that was run may not be there."""
    (stack,) = [candidate for candidate in stacks().stacks if candidate.key == key]
    programs = "\n".join(path.read_text("utf-8") for path in (HERE / "programs").rglob("*.*") if path.suffix in {".py", ".mjs"})
    own = [
        line
        for line in stack.code.splitlines()
        if re.match(r"from (openinference|strands|agent_framework)\b|import \{? ?(Observability|OtelExporter)", line)
        or re.match(r"\w+Instrumentor\(\)|StrandsTelemetry\(\)|configure_otel_providers\(|litellm\.callbacks", line)
    ]
    assert [line for line in own if line.removesuffix(")").removesuffix("(tracer_provider=provider") not in programs] == []
    assert own or key in {"google-adk", "semantic-kernel"}  # which trace themselves


@pytest.mark.parametrize("name", TURNS)
def test_an_environment_has_the_packages_that_the_guide_has_installed(name: str) -> None:
    """Lines that are tried with other packages than those of the guide may be wrong with the guide's."""
    turn = TURNS[name]
    (file,) = REQUIREMENTS.glob(f"{turn.requirements}.*")
    pinned = file.read_text("utf-8")
    named = [package for package in stack_of(turn).install.split()[2:] if package not in turn.omitted]

    assert named
    assert [package for package in named if f"{package}==" not in pinned and f'"{package}":' not in pinned] == []

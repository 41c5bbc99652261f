"""Traces of real frameworks, each instrumented as its documentation describes, yield the conversation that took place.

A fast test reads the stored export of each framework in `captures/frameworks`; a slow test runs the framework again. `make check` runs
the frameworks that install quickly, `make soak` runs all of them. To store a new capture, run
`PYTHONPATH=tests .venv/bin/python -m otlp.capturing NAME`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.effort import SOAK
from support.npm import or_skip

from otlp.capturing.capture import record_capture
from otlp.capturing.environments import ENVIRONMENTS, REQUIREMENTS
from otlp.capturing.frameworks import FRAMEWORK_CAPTURES, FRAMEWORKS
from otlp.framework_facts import EXPECTED, facts_of, read_capture

MAX_CAPTURE_BYTES = 400_000
QUICKLY_INSTALLED = ("agno", "google_adk_opt_in", "openai_agents_responses", "strands")
"""One framework per kind of instrumentation; all of them install and run within a few minutes, in every check."""


@pytest.mark.parametrize("framework", EXPECTED)
def test_the_stored_capture_of_a_framework_yields_the_conversation(framework: str) -> None:
    """Expected are three exchanges of a session, the tool calls, their outputs, the failure and the tokens."""
    assert facts_of(read_capture(framework)) == EXPECTED[framework].facts


@pytest.mark.parametrize("framework", QUICKLY_INSTALLED)
def test_a_framework_sends_the_conversation_again(framework: str) -> None:
    """The stored captures match what the pinned versions send."""
    assert facts_of(or_skip(lambda: record_capture(FRAMEWORKS[framework], ENVIRONMENTS))) == EXPECTED[framework].facts


@pytest.mark.parametrize("framework", [name for name in EXPECTED if name not in QUICKLY_INSTALLED])
def test_every_other_framework_sends_the_conversation_again(framework: str) -> None:
    """Their installation takes too long for `make check`."""
    if not SOAK:
        pytest.skip("installed and run in `make soak` only")
    assert facts_of(or_skip(lambda: record_capture(FRAMEWORKS[framework], ENVIRONMENTS))) == EXPECTED[framework].facts


def test_each_framework_has_a_small_capture_and_expected_facts() -> None:
    """A capture without expected facts is tested nowhere, and a large one cannot be reviewed."""
    sizes = {path.stem: path.stat().st_size for path in FRAMEWORK_CAPTURES.glob("*.jsonl")}
    assert set(FRAMEWORKS) == set(sizes) == set(EXPECTED)
    assert {name: size for name, size in sizes.items() if not 0 < size <= MAX_CAPTURE_BYTES} == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_packages_of_a_framework_are_pinned(framework: str) -> None:
    """An unpinned version could break a test without a change of the repository."""
    (file,) = REQUIREMENTS.glob(f"{FRAMEWORKS[framework].requirements}.*")
    text = file.read_text("utf-8")
    assert "<" not in text
    assert text.count("==") == len(text.splitlines()) or file.suffix == ".json"


@pytest.mark.parametrize("framework", EXPECTED)
def test_a_capture_has_no_path_of_a_machine(framework: str) -> None:
    """Paths would make each new capture differ, and disclose whose machine it was."""
    text = (FRAMEWORK_CAPTURES / f"{framework}.jsonl").read_text("utf-8")
    local_paths = (ENVIRONMENTS.parent.as_posix(), Path.home().as_posix(), sys.prefix)
    assert [path for path in local_paths if path in text] == []

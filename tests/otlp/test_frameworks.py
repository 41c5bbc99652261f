"""Runs of real frameworks, each instrumented as its documentation says, come out as the conversation that was had.

A quick test reads what the exporter of each sent once, which is kept in `captures/frameworks`; a slow one runs the framework again. Of
these `make check` runs those that install quickly, and `make soak` all. Keep a run anew:
`PYTHONPATH=tests .venv/bin/python -m otlp.capturing NAME`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.effort import SOAK
from support.npm import or_skip

from otlp.capturing.capture import captured
from otlp.capturing.environments import ENVIRONMENTS, REQUIREMENTS
from otlp.capturing.frameworks import FRAMEWORK_CAPTURES, FRAMEWORKS
from otlp.framework_facts import EXPECTED, facts_of, kept_lines

BOUND = 400_000
QUICK = ("agno", "google_adk_opt_in", "openai_agents_responses", "strands")
"""Those that are run in every check: of each kind of instrumentation one, together within a few minutes with their installation."""


@pytest.mark.parametrize("framework", EXPECTED)
def test_what_a_framework_sent_is_the_conversation(framework: str) -> None:
    """Three exchanges of one session, the calls with their outputs, the failure and the tokens: as far as the framework says them."""
    assert EXPECTED[framework].facts == facts_of(kept_lines(framework))


@pytest.mark.parametrize("framework", QUICK)
def test_a_framework_sends_the_conversation_again(framework: str) -> None:
    """The kept runs are what these versions send."""
    assert EXPECTED[framework].facts == facts_of(or_skip(lambda: captured(FRAMEWORKS[framework], ENVIRONMENTS)))


@pytest.mark.parametrize("framework", [name for name in EXPECTED if name not in QUICK])
def test_every_other_framework_sends_the_conversation_again(framework: str) -> None:
    """Their installation takes longer than a check may."""
    if not SOAK:
        pytest.skip("installed and run in `make soak` only")
    assert EXPECTED[framework].facts == facts_of(or_skip(lambda: captured(FRAMEWORKS[framework], ENVIRONMENTS)))


def test_each_framework_has_a_kept_run_of_bounded_size_and_its_facts() -> None:
    """One without facts would be tried by nobody, and a large one cannot be reviewed."""
    sizes = {path.stem: path.stat().st_size for path in FRAMEWORK_CAPTURES.glob("*.jsonl")}
    assert set(FRAMEWORKS) == set(sizes) == set(EXPECTED)
    assert {name: size for name, size in sizes.items() if not 0 < size < BOUND} == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_packages_of_a_framework_are_pinned(framework: str) -> None:
    """A version that moves by itself makes a test of today fail tomorrow."""
    (file,) = REQUIREMENTS.glob(f"{FRAMEWORKS[framework].requirements}.*")
    assert "<" not in (text := file.read_text("utf-8"))
    assert text.count("==") == len(text.splitlines()) or file.suffix == ".json"


@pytest.mark.parametrize("framework", EXPECTED)
def test_a_kept_run_names_no_machine(framework: str) -> None:
    """Else every run kept again differs, and says whose machine it was."""
    text = (FRAMEWORK_CAPTURES / f"{framework}.jsonl").read_text("utf-8")
    assert not [trace for trace in (ENVIRONMENTS.parent.as_posix(), Path.home().as_posix(), sys.prefix) if trace in text]

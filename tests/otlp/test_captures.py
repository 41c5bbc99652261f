"""The captures of real instrumentors: complete, free of the machine they were made on, described as they are, and reproducible."""

from __future__ import annotations

import json
import re

import pytest
from support.npm import or_skip

from otlp.capturing.capture import CAPTURES, captured, kept
from otlp.capturing.dialects import DIALECTS
from otlp.capturing.environments import ENVIRONMENTS, REQUIREMENTS
from otlp.capturing.programs import scenario
from otlp.capturing.readable import message
from otlp.capturing.shape import records, shape

BOUND = 300_000
README = (CAPTURES / "README.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", README.partition("## Made with")[2].partition("\n## ")[0], re.MULTILINE))
MADE_WITH = re.compile(r"(@?[a-z][\w/.-]+) (\d[\w.]*\d)\b")


def pinned(dialect: str) -> str:
    """Return the requirements of a dialect's environment."""
    (file,) = REQUIREMENTS.glob(f"{DIALECTS[dialect].requirements or dialect}.*")
    return file.read_text("utf-8")


def test_each_dialect_has_a_capture_of_bounded_size() -> None:
    """A capture without its program cannot be made again, and a large one cannot be reviewed."""
    sizes = {path.stem: path.stat().st_size for path in CAPTURES.glob("*.jsonl")}
    assert set(sizes) == set(DIALECTS)
    assert {name: size for name, size in sizes.items() if not 0 < size < BOUND} == {}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_is_otlp(dialect: str) -> None:
    """No exporter sends what protobuf refuses, so such a capture would have been damaged on its way into the file."""
    for line in kept(dialect):
        assert message(line["signal"], line["request"]).ByteSize() > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_has_the_whole_conversation(dialect: str) -> None:
    """Each capture has two answered turns and a refusal, because readers must tell these apart."""
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in kept(dialect))
    # The answer about the weather has a sign that some SDKs escape, and its end may be cut off by a limit.
    said = [scenario.WEATHER, scenario.BOAT, scenario.BOAT_ANSWER, scenario.WEATHER_ANSWER[:9]]
    assert (said if DIALECTS[dialect].has_content else []) == [words for words in said if words in text]
    assert any(span.failed for span in shape(kept(dialect)))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_holds_nothing_of_the_machine_it_was_made_on(dialect: str) -> None:
    """Else every capture made again differs, and says whose machine it was."""
    keys = {
        attribute["key"]
        for line in kept(dialect)
        for resource in (*line["request"].get("resourceSpans", ()), *line["request"].get("resourceLogs", ()))
        for attribute in resource["resource"]["attributes"]
    } | {attribute["key"] for _, record in records(kept(dialect)) for attribute in record.get("attributes", ())}
    assert {key for key in keys if key.startswith(("host.", "process.", "os."))} == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_table_names_the_versions_that_are_installed(dialect: str) -> None:
    """A reader of a capture looks up what it was made with; a version raised in one place only would mislead."""
    named = MADE_WITH.findall(ROWS[dialect])
    assert named or DIALECTS[dialect].requirements, "only a dialect that shares an environment may leave its versions out"
    wrong = [
        (package, version)
        for package, version in named
        if f"{package}=={version}\n" not in pinned(dialect) and f'"{package}": "{version}"' not in pinned(dialect)
    ]
    assert wrong == []


def test_an_instrumentor_sends_again_what_was_captured() -> None:
    """The captures are what these versions send, and were not edited since."""
    dialect = DIALECTS["openai_v2"]
    assert shape(kept(dialect.name)) == shape(or_skip(lambda: captured(dialect, ENVIRONMENTS)))

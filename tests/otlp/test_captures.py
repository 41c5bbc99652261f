"""The captures of real instrumentors: complete, reproducible, described correctly, and without traces of the recording machine."""

from __future__ import annotations

import json
import re

import pytest
from support.npm import or_skip

from otlp.capturing.capture import CAPTURES, read_capture, record_capture
from otlp.capturing.dialects import DIALECTS
from otlp.capturing.environments import ENVIRONMENTS, REQUIREMENTS
from otlp.capturing.programs import scenario
from otlp.capturing.readable import to_protobuf
from otlp.capturing.shape import count_shapes, iterate_records

MAX_CAPTURE_BYTES = 300_000
README = (CAPTURES / "README.md").read_text("utf-8")
PACKAGE_TABLE = README.partition("## Made with")[2].partition("\n## ")[0]
PACKAGES_BY_DIALECT = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PACKAGE_TABLE, re.MULTILINE))
PACKAGE_AND_VERSION = re.compile(r"(@?[a-z][\w/.-]+) (\d[\w.]*\d)\b")


def read_requirements(dialect: str) -> str:
    """Return the pinned requirements of a dialect's environment."""
    (file,) = REQUIREMENTS.glob(f"{DIALECTS[dialect].requirements or dialect}.*")
    return file.read_text("utf-8")


def test_each_dialect_has_a_capture_of_bounded_size() -> None:
    """A capture without a dialect cannot be recorded again, and a large one cannot be reviewed."""
    sizes = {path.stem: path.stat().st_size for path in CAPTURES.glob("*.jsonl")}
    assert set(sizes) == set(DIALECTS)
    assert {name: size for name, size in sizes.items() if not 0 < size <= MAX_CAPTURE_BYTES} == {}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_is_valid_otlp(dialect: str) -> None:
    """Exporters send valid protobuf, so an invalid request was damaged when it was recorded."""
    for line in read_capture(dialect):
        assert to_protobuf(line["signal"], line["request"]).ByteSize() > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_contains_the_conversation_and_its_failure(dialect: str) -> None:
    """Each capture has two answered turns and a failed call, because readers must tell these apart."""
    lines = list(read_capture(dialect))
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    # Some SDKs escape a character of the weather answer, and some truncate it, so only its beginning is compared.
    messages = [scenario.WEATHER, scenario.BOAT, scenario.BOAT_ANSWER, scenario.WEATHER_ANSWER[:9]]
    recorded_messages = [message for message in messages if message in text]
    assert recorded_messages == (messages if DIALECTS[dialect].has_content else [])
    assert any(shape.failed for shape in count_shapes(lines))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_capture_has_no_attributes_of_the_recording_machine(dialect: str) -> None:
    """They would differ with every recording and disclose details of a developer's machine."""
    lines = list(read_capture(dialect))
    attributes = []
    for line in lines:
        for resource in (*line["request"].get("resourceSpans", ()), *line["request"].get("resourceLogs", ())):
            attributes += resource["resource"]["attributes"]
    for _, record in iterate_records(lines):
        attributes += record.get("attributes", ())
    keys = {attribute["key"] for attribute in attributes}
    assert {key for key in keys if key.startswith(("host.", "process.", "os."))} == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_table_lists_the_pinned_versions(dialect: str) -> None:
    """The table tells readers which packages sent a capture; it would mislead them if only the requirements were upgraded."""
    packages = PACKAGE_AND_VERSION.findall(PACKAGES_BY_DIALECT[dialect])
    assert packages or DIALECTS[dialect].requirements, "only a dialect that shares an environment may omit its packages"
    requirements = read_requirements(dialect)
    outdated = [
        (package, version)
        for package, version in packages
        if f"{package}=={version}\n" not in requirements and f'"{package}": "{version}"' not in requirements
    ]
    assert outdated == []


def test_recording_again_gives_the_same_shapes() -> None:
    """The captures are what the pinned versions send, and were not edited."""
    dialect = DIALECTS["openai_v2"]
    recorded = or_skip(lambda: record_capture(dialect, ENVIRONMENTS))
    assert count_shapes(recorded) == count_shapes(read_capture(dialect.name))

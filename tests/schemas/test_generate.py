"""The generator: committed files match the schemas, and a change that would lose records is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import schemas
from schemas.errors import SchemaError
from schemas.generate import class_text, main, python_type

PACKAGE = Path(schemas.__file__).parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package that a test may change."""
    shutil.copytree(PACKAGE, tmp_path / "schemas", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    return tmp_path


def generate(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the generator of the copy."""
    return subprocess.run(
        [sys.executable, "-m", "schemas.generate", *options],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def edit_schema(tree: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a schema file of the copy."""
    path = tree / "schemas" / "avsc" / f"driftline.{name}.avsc"
    definition = json.loads(path.read_text("utf-8"))
    change(definition)
    path.write_text(json.dumps(definition), encoding="utf-8")


def test_the_tree_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Record classes that were edited by hand or are outdated would differ from the encoded records."""
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_writing_twice_changes_nothing(tree: Path) -> None:
    """Files that are up to date are not written."""
    original_files = {path: path.read_bytes() for path in tree.rglob("*.*sc")}
    process = generate(tree)
    assert process.returncode == 0, process.stderr
    assert process.stdout == ""
    assert {path: path.read_bytes() for path in tree.rglob("*.*sc")} == original_files


def _add_default(definition: dict[str, Any]) -> None:
    definition["fields"].append({"name": "mood", "type": "string", "default": "calm", "doc": "Mood."})


def _reword(definition: dict[str, Any]) -> None:
    definition["fields"][0]["doc"] = "Other words."


@pytest.mark.parametrize("change", [_add_default, _reword])
def test_a_change_is_noticed_and_then_generated(tree: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The check must fail before the generator has run, and pass afterwards."""
    edit_schema(tree, "Heartbeat", change)
    stale = generate(tree, "--check")
    assert stale.returncode == 1
    assert "schemas/records.py" in stale.stderr
    assert "python -m schemas.generate" in stale.stderr
    assert generate(tree).returncode == 0
    assert generate(tree, "--check").returncode == 0
    history = sorted(path.name for path in (tree / "schemas" / "history" / "Heartbeat").iterdir())
    assert history == (["1.avsc", "2.avsc"] if change is _add_default else ["1.avsc"])


def _drop(definition: dict[str, Any]) -> None:
    del definition["fields"][-1]


def _retype(definition: dict[str, Any]) -> None:
    definition["fields"][0]["type"] = "bytes"


def _make_plain(definition: dict[str, Any]) -> None:
    definition["fields"][-1]["type"] = "long"


def _add_bare(definition: dict[str, Any]) -> None:
    definition["fields"].append({"name": "mood", "type": "string", "doc": "Mood."})


@pytest.mark.parametrize("change", [_drop, _retype, _make_plain, _add_bare])
def test_a_change_that_loses_records_is_refused(tree: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A refusal must not leave a partial change."""
    original_module = (tree / "schemas" / "records.py").read_bytes()
    edit_schema(tree, "Heartbeat", change)
    process = generate(tree)
    assert process.returncode == 1
    assert "Heartbeat" in process.stderr
    assert "Traceback" not in process.stderr
    assert (tree / "schemas" / "records.py").read_bytes() == original_module
    assert [path.name for path in (tree / "schemas" / "history" / "Heartbeat").iterdir()] == ["1.avsc"]


def test_a_default_may_not_be_taken_away_again(tree: Path) -> None:
    """Defaults are no part of the fingerprint, so the schema looks the same; records without the field would be lost."""
    edit_schema(tree, "Heartbeat", _add_default)
    assert generate(tree).returncode == 0
    edit_schema(tree, "Heartbeat", lambda definition: definition["fields"][-1].pop("default"))
    process = generate(tree)
    assert process.returncode == 1
    assert re.search("Heartbeat cannot read .*version 1", process.stderr)


def test_a_published_type_may_not_disappear(tree: Path) -> None:
    """Its records stay in topics and files, and would be of no known type."""
    (tree / "schemas" / "avsc" / "driftline.Heartbeat.avsc").unlink()
    process = generate(tree, "--check")
    assert process.returncode == 1
    assert re.search("Heartbeat .*schema was removed", process.stderr)


@pytest.mark.parametrize(
    "avro_type",
    [
        ["string", "null"],
        ["null", "string", "long"],
        ["string"],
        {"type": "map", "values": "string"},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "array", "items": ["string", "null"]},
    ],
)
def test_a_type_that_decoders_disagree_on_is_refused(avro_type: Any) -> None:
    """Single records would work, but the first batch would fail."""
    with pytest.raises(SchemaError):
        python_type(avro_type)


@pytest.mark.parametrize(
    ("avro_type", "annotation"),
    [
        ("string", "str"),
        (["null", "long"], "int | None"),
        ({"type": "array", "items": "double"}, "tuple[float, ...]"),
        ({"type": "array", "items": "driftline.DimensionScore"}, "tuple[DimensionScore, ...]"),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], "datetime | None"),
    ],
)
def test_types_become_annotations(avro_type: Any, annotation: str) -> None:
    """Decoded values must have the annotated types."""
    assert python_type(avro_type) == annotation


def test_a_class_carries_its_docs_and_defaults() -> None:
    """Users read the generated module first."""
    text = class_text(
        {
            "name": "Thing",
            "doc": "A thing.",
            "fields": [
                {"name": "a", "type": "string", "doc": "First."},
                {"name": "b", "type": {"type": "array", "items": "string"}, "default": [], "doc": "Second."},
                {"name": "c", "type": ["null", "int"], "default": None, "doc": "Third."},
            ],
        }
    )
    assert '    a: str\n    """First."""\n    b: tuple[str, ...] = ()\n' in text
    assert '    c: int | None = None\n    """Third."""\n' in text
    compile(text.replace("(Record, frozen=True, kw_only=True)", ""), "thing", "exec")

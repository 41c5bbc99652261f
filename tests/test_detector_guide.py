"""The guide to a detector is followed to its end in a copy of the repository: what it has the reader write is all that is written."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from support.repository_copy import ROOT, Copy, copy_repository
from support.typed_guides import blocks_in, files_in, is_shown, typed_in

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "how-to" / "detector.md"
MODULE = "audit/detectors/retry_storm.py"
TYPING = """
    import json, sys
    from pathlib import Path
    from support.typed_guides import Terminal

    terminal = Terminal(Path.cwd())
    print(json.dumps([terminal.type(command) for command in json.loads(sys.argv[1])]))
"""
"""Types commands into the copy: one process for all of them, for loading the command line takes seconds."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The repository with the files that the guide has the reader write, and nothing else."""
    made = copy_repository(tmp_path_factory.mktemp("copy"))
    (made.root / ".venv").symlink_to(sys.prefix)
    for name, content in files_in(GUIDE.read_text("utf-8")).items():
        assert not (made.root / name).exists()
        (made.root / name).write_text(content, "utf-8")
    return made


def test_a_detector_is_one_module() -> None:
    """What the reader writes beside it is a session to try it on."""
    written = files_in(GUIDE.read_text("utf-8"))

    assert {*written} == {MODULE, "session.json"}
    assert "weight=0" in written[MODULE]


def test_the_detector_of_the_guide_passes_the_laws_and_is_shown(copy: Copy) -> None:
    """Generating, the contract tests, the page, HTTP and SQL go by what is registered."""
    (block,) = blocks_in(GUIDE)
    printed = copy.run("/bin/bash", "-c", f"set -eu\n{block}")

    assert "passed" in printed
    assert "wrote docs/reference/detectors.md" in printed
    assert "## retry_storm\n" in (copy.root / "docs/reference/detectors.md").read_text("utf-8")
    assert "retry_storm" in (copy.root / "docs/reference/packages.md").read_text("utf-8")
    copy.run(".venv/bin/ruff", "check", MODULE)
    copy.run(".venv/bin/ruff", "format", "--check", MODULE)


def test_what_the_guide_has_the_reader_type_finds_the_new_failure(copy: Copy) -> None:
    """On the command line, in an import and in SQL; the trust score stays 100, for the weight is 0."""
    typed = typed_in(GUIDE.read_text("utf-8"))
    commands = json.dumps([one.command for one in typed])
    printed = json.loads(copy.run(sys.executable, "-c", textwrap.dedent(TYPING), commands).splitlines()[-1])

    assert len(typed) == 4
    for one, said in zip(typed, printed, strict=True):
        assert is_shown(one.shown, said), f"$ {one.command}\n{said}"

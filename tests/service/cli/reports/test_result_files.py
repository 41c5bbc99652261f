"""Files of results: whole or not there, in folders that any system takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import SettingsError
from service.cli.evaluation_files import folder_names, make_folder, write_file


@given(st.lists(st.none() | st.text(max_size=120) | st.sampled_from(["con", "CON.txt", "..", "a/b", "A/b", "a--b", "x."])))
@example(["gpt-5", "GPT-5"])
@example(["../../etc", "/", "", ".", "nul", "a\x00b", "x" * 300, "é", None])
def test_names_of_folders_are_safe_and_differ_where_the_names_do(names: list[str | None]) -> None:
    """A model calls itself what it likes; two of them never share a folder, on no system, and none leaves its place."""
    made = folder_names(names)
    assert set(names) == set(made)
    assert len(made) == len({one.casefold() for one in made.values()})
    for one in made.values():
        assert re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,97}", one)
        assert not one.endswith(".")
        assert not re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", one)


def test_usual_names_stay_as_they_are() -> None:
    """People look for the model by its name."""
    usual = {"minimax/minimax-m2.7": "minimax--minimax-m2.7", "GPT-5.4": "GPT-5.4", "refund_policy": "refund_policy"}
    assert folder_names(usual) == usual


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Whoever reads while it is written finds the old one; nothing else is left behind."""
    path = tmp_path / "a" / "b" / "c.json"
    write_file(path, b"old")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [*path.parent.iterdir()] == [path]


def test_an_error_names_the_path(tmp_path: Path) -> None:
    """Which of a hundred files could not be written is what one needs to know; a file that stands in the way stays."""
    (tmp_path / "file").write_text("mine")
    for refused in (lambda: write_file(tmp_path / "file" / "x.md", b""), lambda: make_folder(tmp_path / "file")):
        with pytest.raises(SettingsError, match=re.escape(str(tmp_path / "file"))):
            refused()
    (tmp_path / "taken").mkdir()
    with pytest.raises(SettingsError, match="taken"):
        write_file(tmp_path / "taken", b"")
    assert {one.name for one in tmp_path.iterdir()} == {"file", "taken"}
    assert (tmp_path / "file").read_text() == "mine"

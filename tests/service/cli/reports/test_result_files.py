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
def test_folder_names_are_safe_and_distinct(names: list[str | None]) -> None:
    """Models may have any name: no two share a folder on any system, and none escapes its parent."""
    folders = folder_names(names)
    assert set(names) == set(folders)
    assert len(folders) == len({one.casefold() for one in folders.values()})
    for folder in folders.values():
        assert re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,97}", folder)
        assert not folder.endswith(".")
        assert not re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", folder)


def test_common_names_are_unchanged() -> None:
    """Users look for a model by its name."""
    usual = {"minimax/minimax-m2.7": "minimax--minimax-m2.7", "GPT-5.4": "GPT-5.4", "refund_policy": "refund_policy"}
    assert folder_names(usual) == usual


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    """A concurrent reader finds the old file, and no temporary file remains."""
    path = tmp_path / "a" / "b" / "c.json"
    write_file(path, b"old")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [*path.parent.iterdir()] == [path]


def test_an_error_names_the_path(tmp_path: Path) -> None:
    """With a hundred files, the user needs to know which one could not be written; an existing file stays."""
    (tmp_path / "file").write_text("mine")
    for refused in (lambda: write_file(tmp_path / "file" / "x.md", b""), lambda: make_folder(tmp_path / "file")):
        with pytest.raises(SettingsError, match=re.escape(str(tmp_path / "file"))):
            refused()
    (tmp_path / "taken").mkdir()
    with pytest.raises(SettingsError, match="taken"):
        write_file(tmp_path / "taken", b"")
    assert {one.name for one in tmp_path.iterdir()} == {"file", "taken"}
    assert (tmp_path / "file").read_text() == "mine"

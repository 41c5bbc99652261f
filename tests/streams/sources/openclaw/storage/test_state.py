"""What a state folder tells about OpenClaw: its version, the form of its transcripts, and whether the plugin is on."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams.sources.openclaw.storage import CURRENT_SQLITE, FIRST_SQLITE, JSONL, Plugin, read_state, state_folders

PLUGIN: dict[str, Any] = {
    "enabled": True,
    "hooks": {"allowConversationAccess": True},
    "config": {"url": "http://127.0.0.1:8377"},
}


def configured(root: Path, entry: dict[str, Any] | None, **more: Any) -> Path:
    """Return a state folder without transcripts and with the plugin's entry in its configuration."""
    (root / "agents" / "main").mkdir(parents=True)
    entries = {} if entry is None else {"driftline": entry}
    (root / "openclaw.json").write_text(json.dumps({"plugins": {"entries": entries}, **more}), "utf-8")
    return root


def database(root: Path, agent: str, version: str | None, *tables: str) -> None:
    """Create an agent's database with these tables, written by a version of OpenClaw."""
    path = root / "agents" / agent / "agent" / "openclaw-agent.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        if version is not None:
            connection.execute("CREATE TABLE schema_meta (app_version TEXT)")
            connection.execute("INSERT INTO schema_meta VALUES (?)", (version,))
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (session_id TEXT)")
        connection.commit()


@pytest.mark.parametrize(
    ("entry", "plugin"),
    [
        (None, Plugin(is_on=False)),
        ({"enabled": False}, Plugin(is_on=False)),
        ({"enabled": True}, Plugin(True, False)),
        (PLUGIN, Plugin(True, True, "http://127.0.0.1:8377")),
        ({**PLUGIN, "config": {"url": 7}}, Plugin(True, True)),
        ("garbage", Plugin(is_on=False)),
    ],
)
def test_the_configuration_says_whether_the_plugin_is_on(tmp_path: Path, entry: Any, plugin: Plugin) -> None:
    """Without the plugin nothing arrives until an import. A plugin without access to conversations is the most common mistake."""
    assert read_state(configured(tmp_path, entry)).plugin == plugin


def test_plugins_disabled_together_are_off(tmp_path: Path) -> None:
    """One switch overrides all entries."""
    root = configured(tmp_path, PLUGIN)
    (root / "openclaw.json").write_text(json.dumps({"plugins": {"enabled": False, "entries": {"driftline": PLUGIN}}}), "utf-8")
    assert Plugin(is_on=False) == read_state(root).plugin


@pytest.mark.parametrize("text", ["// a comment\n{}", "{", "\x00", "[" * 100_000])
def test_a_configuration_that_is_not_plain_json_is_unknown(tmp_path: Path, text: str) -> None:
    """OpenClaw accepts comments and includes; a false 'not on' would advise installing what is already there."""
    root = configured(tmp_path, PLUGIN)
    (root / "openclaw.json").write_text(text, "utf-8")
    assert Plugin(None) == read_state(root).plugin


def test_the_newest_version_and_every_storage_form_are_reported(tmp_path: Path) -> None:
    """Agents unused since an update keep the old form."""
    root = configured(tmp_path, None)
    database(root, "main", "2026.9.6", "transcript_events", "session_transcript_archives")
    database(root, "idle", "2026.7.31", "transcript_events")
    database(root, "fresh", "2026.10.1")
    (root / "agents" / "old" / "sessions").mkdir(parents=True)
    (root / "agents" / "old" / "sessions" / "a.jsonl").write_text("{}\n", "utf-8")
    state = read_state(root)
    assert state.version == "2026.9.6"
    assert state.forms == (CURRENT_SQLITE, FIRST_SQLITE, JSONL)
    assert state.agents == 4


def test_without_a_database_the_configuration_gives_the_version(tmp_path: Path) -> None:
    """Transcript files have no version of OpenClaw."""
    root = configured(tmp_path, None, meta={"lastTouchedVersion": "2026.6.11"})
    assert read_state(root).version == "2026.6.11"


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """The others are described as usual."""
    root = configured(tmp_path, None)
    database(root, "main", "2026.9.6", "transcript_events")
    broken = root / "agents" / "broken" / "agent" / "openclaw-agent.sqlite"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"SQLite format 3\x00 and then garbage" * 50)
    state = read_state(root)
    assert state.version == "2026.9.6"
    assert str(broken) in " ".join(state.unreadable)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenClaw uses the same variable; without it, the folders in the home folder are used."""
    configured(tmp_path / "named", None)
    configured(tmp_path / "home" / ".openclaw", None)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENCLAW_STATE_DIR", raising=False)
    assert state_folders() == [tmp_path / "home" / ".openclaw"]
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "named"))
    assert state_folders() == [tmp_path / "named"]
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "nowhere"))
    assert state_folders() == []

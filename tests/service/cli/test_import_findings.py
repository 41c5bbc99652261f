"""How an import ends, and what `doctor` says of OpenClaw: the first ten minutes with one's own fleet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.main import run

Typed = Callable[..., tuple[int, str]]


def transcript(folder: Path, session: str, *, calls: int, agent: str = "main") -> None:
    """Return a transcript in a state folder: a question, repeated identical calls, and an answer."""
    path = folder / "agents" / agent / "sessions" / f"{session}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [f"a{number:07}" for number in range(2 * calls + 2)]
    lines = [
        {"type": "session", "version": 3, "id": session, "timestamp": "2026-11-03T09:00:00.000Z", "cwd": "/srv"},
        entry(ids[0], None, 0, {"role": "user", "content": "Is the site up?"}),
    ]
    for number in range(calls):
        call = {"type": "toolCall", "id": f"t{number}", "name": "exec", "arguments": {"command": "curl -sI site"}}
        request = {"role": "assistant", "content": [call], "model": "m", "stopReason": "toolUse"}
        entry_fields = {
            "role": "toolResult",
            "toolCallId": f"t{number}",
            "toolName": "exec",
            "content": [{"type": "text", "text": "200"}],
        }
        lines.append(entry(ids[2 * number + 1], ids[2 * number], 2 * number + 1, request))
        lines.append(entry(ids[2 * number + 2], ids[2 * number + 1], 2 * number + 2, entry_fields))
    answer = {"role": "assistant", "content": [{"type": "text", "text": "It answers 200."}], "model": "m", "stopReason": "stop"}
    lines.append(entry(ids[-1], ids[-2], 50, answer))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def entry(own: str, parent: str | None, second: int, message: dict[str, object]) -> dict[str, object]:
    """Return a line of a transcript."""
    return {
        "type": "message",
        "id": own,
        "parentId": parent,
        "timestamp": f"2026-11-03T09:00:{second:02}.000Z",
        "message": {**message, "timestamp": 1793696400000 + 1000 * second},
    }


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs a command and returns its exit code and output."""

    def typed(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return typed


def test_an_import_ends_with_its_findings(tmp_path: Path, run_command: Typed) -> None:
    """Numbers of records do not tell whether the fleet is healthy."""
    transcript(tmp_path / "state", "good", calls=1)
    transcript(tmp_path / "state", "bad", calls=6)
    database = str(tmp_path / "own fleet.duckdb")
    code, out = run_command("import", "openclaw", str(tmp_path / "state"), "--db", database, "--as-of", "2026-11-04T00:00:00Z")
    assert code == 0
    assert "In short, checked as of 2026-11-04" in out
    assert "2 runs of 1 agent" in out
    assert "1 unsafe for production, 0 to review, 1 ready" in out
    assert "main (2 runs): cost_explosion in 1 run" in out
    assert "infinite_tool_loop in 1 run, 1 critical" in out
    assert "default (2 of 14 days)" in out
    run_line = next(line for line in out.splitlines() if " run run_" in line)
    code, run_shown = run_command(*shlex.split(run_line)[1:])
    assert code == 0
    assert "bad" in run_shown
    assert f"serve --db {shlex.quote(database)}" in out
    assert "whether the thresholds fit these agents" in out


def test_an_import_of_open_sessions_says_so(tmp_path: Path, run_command: Typed) -> None:
    """Recent sessions are not over: no run yet is not the same as no finding."""
    transcript(tmp_path / "state", "now", calls=1)
    _, out = run_command(
        "import", "openclaw", str(tmp_path), "--db", str(tmp_path / "a.duckdb"), "--as-of", "2026-11-03T09:01:00Z"
    )
    assert "No session has ended yet" in out


def test_json_output_has_only_the_counts(tmp_path: Path, run_command: Typed) -> None:
    """Scripts read one document."""
    transcript(tmp_path / "state", "s", calls=1)
    _, out = run_command("import", "openclaw", str(tmp_path), "--db", str(tmp_path / "a.duckdb"), "--json")
    assert json.loads(out)["exchanges"] == 1


def test_doctor_reports_openclaw_and_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Typed) -> None:
    """It is the second command of a new user."""
    transcript(tmp_path / "state", "s", calls=1)
    plugin = {"enabled": True, "hooks": {"allowConversationAccess": True}, "config": {"url": "http://127.0.0.1:8377"}}
    config = {"meta": {"lastTouchedVersion": "2026.6.11"}, "plugins": {"entries": {"driftline": plugin}}}
    (tmp_path / "state" / "openclaw.json").write_text(json.dumps(config), "utf-8")
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "state"))
    _, out = run_command("doctor", "--db", str(tmp_path / "a.duckdb"))
    assert f"2026.6.11, 1 agent under {tmp_path / 'state'}: JSONL files" in out
    assert "on, sends to http://127.0.0.1:8377" in out
    (tmp_path / "state" / "openclaw.json").write_text("{}", "utf-8")
    _, out = run_command("doctor", "--db", str(tmp_path / "a.duckdb"))
    assert "off: sessions arrive by import only" in out


def test_doctor_names_the_folders_of_other_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Typed) -> None:
    """New users do not know which imports exist."""
    (tmp_path / ".codex").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    _, out = run_command("doctor", "--db", str(tmp_path / "a.duckdb"))
    assert f"driftline import codex {tmp_path / '.codex'}" in out
    assert "import claude-code" not in out

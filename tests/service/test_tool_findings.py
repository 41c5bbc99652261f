"""Findings about tools from a policy and a real source to what people see: the run, its page, the answers, SQL and the watch."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from support.claude_code_lines import Lines, call, text

from analytics.queries import run_query
from analytics.store.store import Store
from service.cli.main import run as run_command
from streams.watch.measures import RUNS_QUERY

PASSWORD = "hunter2hunter2"
POLICY = """version: 1
projects:
  ops:
    detectors:
      tools:
        denied: [Bash]
        approvalRequired: ["mcp__shop__refund*"]
        approvals: [AskUserQuestion]
        external: [WebFetch]
"""
FINDINGS = {"forbidden_calls": "Bash", "secrets_sent_out": "WebFetch", "unapproved_calls": "mcp__shop__refund_order"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database with a transcript of Claude Code, imported under the policy."""
    lines = Lines()
    lines.user("Refund both orders and report to the shop.")
    calls = [
        ("AskUserQuestion", {"question": "Refund order 1?"}),
        ("mcp__shop__refund_order", {"order": 1}),
        ("mcp__shop__refund_order", {"order": 2}),
        ("Bash", {"command": "rm -r reports"}),
        ("WebFetch", {"url": f"https://shop.example/report?password={PASSWORD}"}),
    ]
    for number, (tool, arguments) in enumerate(calls):
        lines.said(f"m{number}", call(f"t{number}", tool, **arguments), stop="tool_use")
        lines.result(f"t{number}", "done")
    lines.said("m9", text("Both are refunded."))
    transcript = tmp_path / "agent" / "projects" / "-srv" / "session.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text("\n".join(map(json.dumps, lines.lines)) + "\n", "utf-8")
    (tmp_path / "p.yaml").write_text(POLICY, "utf-8")
    path = tmp_path / "a.duckdb"
    options = ["--db", str(path), "--project", "ops", "--policy", str(tmp_path / "p.yaml"), "--as-of", "2026-11-05T00:00:00Z"]
    assert run_command(["import", "claude-code", str(transcript.parents[2]), *options]) == 0
    return path


def test_each_broken_rule_is_a_finding_with_its_call_wherever_runs_are_shown(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding must lead to the call, and no answer may have the secret."""
    capsys.readouterr()
    assert run_command(["run", "run_001", "--project", "ops", "--db", str(database), "--json"]) == 0
    output = capsys.readouterr().out
    document = json.loads(output)
    causes = document["diagnosis"]["failure_causes"]
    assert {cause["type"]: cause["evidence"][0]["tool"] for cause in causes} == FINDINGS
    assert [len(cause["evidence"]) for cause in causes] == [1, 1, 1]
    assert document["diagnosis"]["trust_score"] == 100
    assert document["diagnosis"]["readiness_level"] == "review_recommended"
    assert {finding["type"]: len(finding["turns"]) for finding in document["findings"]} == dict.fromkeys(FINDINGS, 1)
    assert PASSWORD not in output


def test_the_findings_are_in_sql_and_counted_by_the_watch(database: Path) -> None:
    """The watch finds a change of their frequency by the same rows as that of any failure."""
    with Store(database) as store, closing(store.cursor()) as cursor:
        rows = cursor.execute("SELECT c.type, c.severity FROM diagnoses, unnest(failure_causes) AS u(c) ORDER BY 1").fetchall()
        assert rows == [(finding, "high") for finding in FINDINGS]
        window = {"projects": ["ops"], "since": datetime(2026, 11, 1), "until": datetime(2026, 11, 5), "most_agents": 1}  # noqa: DTZ001
        assert sorted(run_query(cursor, RUNS_QUERY, window)["failures"][0]) == [*FINDINGS]
        assert PASSWORD not in str(cursor.execute("SELECT payload FROM log.agent_events").fetchall())

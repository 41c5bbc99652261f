"""The policy over HTTP: tried before it is saved, and in force from the next start on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from support.api_server import NOW, PATIENT, BodyBuilder, Call, Tokens

from service.setup.access import AccessStore
from service.web.bounds import ApiSettings
from service.write.policy_file import fingerprint

POLICY, TRIAL = "/api/audit/policy", "/api/audit/policy/trial"
PRESENT = (
    "version: 1\nprojects: {dark: {enabled: false}, capped: {costCapPerSession: 0}}\ndefaults: {wrapQualityScoring: true}\n"
)
"""What servers of tests begin with."""
CHANGED = PRESENT.replace("true}", "true, sampling: {routineInterval: 9}}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the policy file."""
    path = tmp_path / "policy.yaml"
    path.write_text(PRESENT, "utf-8")
    return path


@pytest.fixture
def settings(file: Path) -> ApiSettings:
    """Return the settings of a server with this file."""
    return ApiSettings(queries=PATIENT, policy_file=file)


def save(call: Call, token: str, text: str, base: str) -> Any:
    """Save a text that was edited from another one."""
    return call("PUT", POLICY, token, json={"text": text, "base": fingerprint(base)})


def test_a_dry_run_shows_the_changes_without_saving(call: Call, tokens: Tokens, file: Path, access: AccessStore) -> None:
    """A trial lists the changed settings and projects without writing anything."""
    preview = call("POST", TRIAL, tokens.root, json={"text": CHANGED}).json()
    assert preview["valid"] is True
    assert preview["problems"] == []
    change = {"setting": "sampling.routineInterval", "before": 3, "after": 9, "projects": ["", "capped", "dark"]}
    assert preview["changes"] == [change]
    assert "+defaults: {wrapQualityScoring: true, sampling: {routineInterval: 9}}" in preview["comparison"]
    assert file.read_text("utf-8") == PRESENT
    assert access.audit_log.lines(10) == []


def test_a_dry_run_estimates_the_sampling(call: Call, tokens: Tokens, exchange_body: BodyBuilder) -> None:
    """Of twenty turns all but the first five and the last three are routine, so fewer are sampled."""
    for number in range(1, 21):
        body = exchange_body(number, timestamp=f"2026-10-01T09:{number:02}:00Z")
        assert call("POST", "/api/audit/ingest", tokens.ops, json=body).status_code == 201
    text = PRESENT.replace("true}", "true, sampling: {alwaysScoreFirst: 0, alwaysScoreLast: 0, routineInterval: 10}}")
    [effect] = call("POST", TRIAL, tokens.root, json={"text": text}).json()["effects"]
    assert NOW.year == 2026
    assert effect["project"] == "ops"
    assert effect["exchanges"] == 20
    assert effect["judgedBefore"] == pytest.approx((5 + 3 + 12 / 3) / 20)
    assert effect["judgedAfter"] == pytest.approx(0.1)


def test_problems_in_a_dry_run_have_line_numbers(call: Call, tokens: Tokens) -> None:
    """The page links the line of each problem."""
    preview = call("POST", TRIAL, tokens.root, json={"text": "version: 1\ndefaults: {retentionDay: 3}\n"}).json()
    assert preview["valid"] is False
    assert preview["changes"] == []
    assert preview["problems"][0]["line"] == 2


def test_a_saved_policy_takes_effect_at_the_next_start(
    call: Call, tokens: Tokens, file: Path, access: AccessStore, app: FastAPI
) -> None:
    """The answer says so, the audit log names author and settings, and a restart is a separate request."""
    assert call("GET", POLICY, tokens.root).json()["inForce"]
    saved = save(call, tokens.root, CHANGED, PRESENT)
    assert saved.status_code == 200
    assert saved.json()["inForce"] is False
    assert file.read_text("utf-8") == CHANGED
    assert not call("GET", POLICY, tokens.root).json()["inForce"]
    [line] = access.audit_log.lines(10)
    assert line.name == "root"
    assert line.method == "PUT"
    assert line.subject == "sampling.routineInterval"
    assert line.outcome == "done"
    restarted: list[bool] = []
    app.state.context.restart = lambda: restarted.append(True)
    assert call("POST", f"{POLICY}/apply", tokens.root).status_code == 202
    assert restarted == [True]


def test_the_last_save_can_be_undone(call: Call, tokens: Tokens, file: Path) -> None:
    """One request restores the previous text; before the first save there is none."""
    first = call("POST", f"{POLICY}/restore", tokens.root, json={"base": fingerprint(PRESENT)})
    assert first.status_code == 409
    assert first.json()["code"] == "conflict"
    save(call, tokens.root, CHANGED, PRESENT)
    back = call("POST", f"{POLICY}/restore", tokens.root, json={"base": fingerprint(CHANGED)})
    assert back.status_code == 200
    assert back.json()["inForce"] is True
    assert file.read_text("utf-8") == PRESENT


def test_an_invalid_or_outdated_policy_is_not_saved(call: Call, tokens: Tokens, file: Path) -> None:
    """The file must always be valid, and concurrent changes must not be overwritten."""
    wrong = save(call, tokens.root, "version: 2\n", PRESENT)
    assert wrong.status_code == 400
    assert wrong.json()["code"] == "invalid_policy"
    assert wrong.json()["error"].startswith("line 1: version: ")
    stale = save(call, tokens.root, CHANGED, "version: 1\n")
    assert stale.status_code == 409
    assert stale.json()["code"] == "conflict"
    assert file.read_text("utf-8") == PRESENT


def test_a_server_does_not_restart_with_a_broken_file(call: Call, tokens: Tokens, file: Path, app: FastAPI) -> None:
    """If the file is broken, the server continues and reports the problem."""
    app.state.context.restart = lambda: pytest.fail("it started again")
    file.write_text("version: [\n", "utf-8")
    answer = call("POST", f"{POLICY}/apply", tokens.root)
    assert answer.status_code == 409
    assert answer.json()["code"] == "invalid_policy"
    assert call("GET", POLICY, tokens.root).json()["problems"] != []


def test_a_policy_up_to_the_size_limit_is_accepted(call: Call, tokens: Tokens) -> None:
    """A fleet of thousands of projects has a long policy; a larger one is refused with its size."""
    room = "# " + 1000 * "x" + "\n"
    text = PRESENT + 600 * room
    assert call("POST", TRIAL, tokens.root, json={"text": text}).json()["valid"]
    assert call("POST", TRIAL, tokens.root, json={"text": 2 * text}).status_code == 400


def test_the_effective_policy_of_a_project_is_complete(call: Call, tokens: Tokens) -> None:
    """The answer includes defaults that the file does not name."""
    effective = call("GET", f"{POLICY}/effective?project=dark", tokens.root).json()
    assert effective["settings"]["enabled"] is False
    assert effective["settings"]["retentionDays"] == 90
    assert call("GET", f"{POLICY}/effective", tokens.root).json()["settings"]["enabled"]

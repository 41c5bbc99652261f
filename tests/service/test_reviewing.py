"""`driftline review`, `agreement` and `anchors`: people beside the judge, and the judge beside itself, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders import exchange, score

from analytics.store.store import Store
from driftline_trial.simulator.server import running
from schemas.codec.single_object import encode

Command = Callable[..., tuple[int, str, str]]
JUDGED = {"disposition": "scored", "tier2_state": "scored", "tier3_state": "scored", "tier2_score": 0.9, "tier3_score": 4.0}
POLICY = "version: 1\ndefaults:\n  bidirectionalScoring: true\n"
PEOPLE = ("--policy", "policy.yaml", "--project", "ops", "--rater", "ann")
OPS = ("--project", "ops")


@pytest.fixture
def database(tmp_path: Path) -> None:
    """Three judged exchanges, the second with an anomaly; one more waits for a judge."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    odd = JUDGED | {"anomaly": True, "anomaly_reasons": ("It gave up.",), "tier3_score": 1.5}
    with Store(tmp_path / "driftline.duckdb") as store, store.transaction() as transaction:
        exchanges = [exchange("s", 1), exchange("s", 2, "I give up.\x1b[31m"), exchange("t", 1), exchange("u", 1)]
        transaction.append("exchanges", [encode(one) for one in exchanges])
        transaction.set_watermark("intake", "exchanges", 3)
        scores = [score("s", 1, **JUDGED), score("s", 2, **odd), score("t", 1, **JUDGED)]
        transaction.append("scores", [encode(one) for one in scores])


@pytest.mark.usefixtures("database")
def test_the_next_exchange_is_shown_scored_and_not_shown_again(driftline: Command) -> None:
    """The anomaly comes first, and texts of agents are escaped."""
    code, shown, _ = driftline("review", "next", *PEOPLE)
    assert code == 0
    assert "agent: I give up.<U+001B>" in shown
    assert "anomaly: It gave up." in shown
    assert "not reviewed yet" in shown
    code, told, _ = driftline("review", "score", "score s:2", "1", *PEOPLE, "--comment", "It gave up.")
    assert code == 0
    assert told == "ann gives s:2 1 of 5\n"
    _, other, _ = driftline("review", "next", *PEOPLE, "--json", "--blind")
    item = json.loads(other)
    assert item["scoreId"] in ("score s:1", "score t:1")
    assert item["score"] is None
    _, nothing, said = driftline("review", "next", *PEOPLE, "--skip", "score s:1", "--skip", "score t:1")
    assert nothing == ""
    assert "project ops" in said


@pytest.mark.usefixtures("database")
def test_the_order_of_the_interval_says_why_an_exchange_is_next(driftline: Command) -> None:
    """A pick that nobody understands is not followed. A verdict that is hidden stays hidden in the reason."""
    code, shown, _ = driftline("review", "next", *PEOPLE, "--order", "interval")
    assert code == 0
    assert "Ordinary exchanges, all of which are judged, stand for 67% of" in shown
    blind = json.loads(driftline("review", "next", *PEOPLE, "--order", "interval", "--blind", "--json")[1])
    assert (blind["pick"], blind["gain"]) == ("interval", None)


@pytest.mark.usefixtures("database")
def test_a_queue_is_filled_reviewed_and_closed_from_the_command_line(driftline: Command) -> None:
    """Queues are for scripts, too."""
    settings = '{"rubric": "Polite?", "dimensions": ["tone_alignment"]}'
    assert driftline("review", "queue", "tone", settings, *PEOPLE)[0] == 0
    assert driftline("review", "add", "tone", "score s:2", *PEOPLE)[1] == "1 exchange added to tone\n"
    assert json.loads(driftline("review", "next", *PEOPLE, "--queue", "tone", "--json")[1])["scoreId"] == "score s:2"
    scored = driftline("review", "score", "score s:2", "2", *PEOPLE, "--queue", "tone", "--dimension", "tone_alignment=4")
    assert scored[0] == 0
    [queue] = json.loads(driftline("review", "queues", *PEOPLE, "--json")[1])
    assert (queue["items"], queue["done"], queue["waiting"]) == (1, 1, 0)
    assert driftline("review", "queue", "tone", *PEOPLE, "--close")[0] == 0
    assert "no open review queue 'tone'" in driftline("review", "next", *PEOPLE, "--queue", "tone")[2]


@pytest.mark.usefixtures("database")
def test_a_human_score_leaves_pending_tasks_alone(driftline: Command, tmp_path: Path) -> None:
    """Tasks of a stopped server are judged when it starts again."""
    driftline("review", "score", "score s:1", "4", *PEOPLE)
    with Store(tmp_path / "driftline.duckdb") as store:
        assert store.count("scores") == 3
        assert store.count("reviews") == 1


@pytest.mark.usefixtures("database")
def test_agreement_reports_too_few_labels(driftline: Command) -> None:
    """A number would be quoted."""
    driftline("review", "score", "score s:1", "4", *PEOPLE)
    code, shown, _ = driftline("agreement", *OPS)
    assert code == 0
    assert "not enough labels" in shown
    assert "labels represent 67% of the exchanges" in shown
    _, document, _ = driftline("agreement", *OPS, "--json")
    assert json.loads(document)["overall"]["state"] == "not_enough_labels"
    assert json.loads(document)["overall"]["labels"] == 1


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("review", "score", "nothing", "3", *PEOPLE), "no score 'nothing' in project ops"),
        (("review", "next", *OPS), "bidirectionalScoring is off"),
        (("review", "score", "score s:1", "3", *OPS), "bidirectionalScoring is off"),
        (("review", "next", *PEOPLE[:-1], " "), "--rater must not be blank"),
        (("anchors", "add", *OPS, "nothing"), "the project has no exchange with this id"),
        (("anchors", "add", *OPS, "s:1", "--count", "2"), "give either exchanges or --count"),
        (("anchors", "withdraw", *OPS, "nothing"), "no anchor 'nothing' in project ops"),
        (("anchors", "run", *OPS), "there is no judge"),
    ],
)
def test_an_impossible_command_is_an_error_with_a_reason(driftline: Command, arguments: tuple[str, ...], words: str) -> None:
    """It has exit code 2, one line, and a hint."""
    code, shown, said = driftline(*arguments)
    assert code == 2
    assert shown == ""
    assert words in said


@pytest.mark.usefixtures("database")
def test_anchors_are_chosen_judged_listed_and_withdrawn(driftline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single round costs money but proves nothing yet."""
    assert "no anchor in project ops yet" in driftline("anchors", "list", *OPS)[2]
    assert driftline("anchors", "add", *OPS, "--count", "2")[1].startswith("2 anchors chosen")
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "simulated")
        code, shown, _ = driftline("anchors", "run", *OPS)
    assert code == 0
    assert shown.startswith("2 anchors judged again\n")
    assert "tier2: no change of the judge is proven" in shown
    _, document, _ = driftline("anchors", "list", *OPS, "--json")
    anchors_found = json.loads(document)
    assert [(one["anchors"], one["scored"]) for one in anchors_found["rounds"]] == [(2, 2)]
    assert "is no longer judged" in driftline("anchors", "withdraw", *OPS, anchors_found["anchors"][0]["id"])[1]
    code, listed, _ = driftline("anchors", "list", *OPS)
    assert code == 0
    assert "no more" in listed
    assert "1 round; the last one" in listed

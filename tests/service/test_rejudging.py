"""`driftline rejudge`: what stayed unscored is judged, after a word on what that costs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.builders import exchange

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from driftline_trial.simulator import RunningJudge, running
from schemas.codec.single_object import encode
from service.setup.workspace import utc_now
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def unscored(tmp_path: Path) -> Path:
    """A database with three exchanges that no judge has seen."""
    path = tmp_path / "driftline.duckdb"
    with Store(path) as store:
        runner = EmbeddedRunner(store, Policy(), Redactor(Policy().redaction), utc_now)
        accepted = EncodedRecords()
        for turn in (1, 2, 3):
            accepted.add("exchanges", encode(exchange("s", turn, project="ops" if turn < 3 else "other")))
        runner.publish(accepted)
        runner.run()
    return path


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningJudge]:
    """A simulated judge, named in the environment."""
    with running() as judge:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", judge.base_url)
        yield judge


def dispositions(path: Path) -> Sequence[tuple[object, ...]]:
    """The current scores, by turn."""
    with Store(path) as store:
        return store.cursor().execute("SELECT disposition, revision, simulated FROM scores ORDER BY turn_number").fetchall()


def test_it_says_what_it_would_cost_and_asks_nobody(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """Whoever pays wants to know before."""
    code, out, err = driftline("rejudge", "--dry-run")
    assert code == 0
    assert out == ""
    assert "3 unscored exchanges: about 3 calls and 0.00" in err
    assert "USD at most" in err
    assert simulator.requests == 0
    assert dispositions(unscored) == [("unscored", 0, False)] * 3
    document = json.loads(driftline("rejudge", "--dry-run", "--json")[1])
    assert document["exchanges"] == 3
    assert document["calls"] == 3
    assert document["unpriced"] == 0
    assert 0 < document["expected_usd"] < document["at_most_usd"]


def test_what_was_unscored_is_judged_and_labelled(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """The score keeps its id and gets the next revision; a simulated judge is called one."""
    code, out, _ = driftline("rejudge", "--yes")
    assert code == 0
    assert "3 exchanges judged again" in out
    assert "calls: 6 answered" in out
    assert "tiers still unscored: none" in out
    assert simulator.requests == 6
    assert dispositions(unscored) == [("scored", 1, True)] * 3
    assert "no exchange is unscored" in driftline("rejudge", "--yes")[2]
    assert simulator.requests == 6


def test_only_what_was_asked_for_is_judged(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """By project, by reason, and no more than so many."""
    assert driftline("rejudge", "--yes", "--project", "other")[0] == 0
    words = "nothing matches --reason timeout: 2 exchanges are unscored for: no_judge"
    assert words in driftline("rejudge", "--yes", "--reason", "timeout")[2]
    words = "nothing matches --project other: 2 exchanges in ops (2) are unscored for: no_judge"
    assert words in driftline("rejudge", "--yes", "--project", "other")[2]
    assert driftline("rejudge", "--yes", "--limit", "1", "--reason", "no_judge")[0] == 0
    assert [disposition for disposition, *_ in dispositions(unscored)] == ["scored", "unscored", "scored"]
    assert simulator.requests == 4


def test_what_stays_unscored_is_named_and_can_be_asked_again(
    driftline: Command, unscored: Path, simulator: RunningJudge
) -> None:
    """A judge that refuses today may answer tomorrow; both are on record."""
    simulator.reset("refusal")
    document = json.loads(driftline("rejudge", "--yes", "--json", "--project", "other")[1])
    assert document["calls"] == {"refused": 2}
    assert document["still_unscored"] == {"refused": 1}
    simulator.reset("answer")
    assert driftline("rejudge", "--yes", "--project", "other")[0] == 0
    assert dispositions(unscored)[2] == ("scored", 2, True)


@pytest.mark.usefixtures("unscored")
def test_without_a_judge_it_says_what_to_set(driftline: Command) -> None:
    """The way on is in the error."""
    code, _, err = driftline("rejudge", "--yes")
    assert code == 2
    assert "there is no judge" in err
    assert "ANTHROPIC_API_KEY" in err
    assert "USD" not in err
    code, _, err = driftline("rejudge", "--dry-run")
    assert code == 0
    assert "note: there is no judge" in err
    assert err.index("there is no judge") < err.index("USD")


def policy_without_a_price(folder: Path, cap: str) -> str:
    """A policy by which a model of one's own judges."""
    policy = folder / "policy.yaml"
    policy.write_text(f"version: 1\ndefaults: {{judgeModel: house-model, costCapPerSession: {cap}}}\n")
    return str(policy)


def test_under_a_cap_a_judge_without_a_price_is_asked_nothing_and_that_is_said(
    driftline: Command, unscored: Path, simulator: RunningJudge
) -> None:
    """A question that costs 0.0000 USD and answers nothing would be a riddle."""
    policy = policy_without_a_price(unscored.parent, "1.0")
    for arguments, expected in ((["--dry-run"], 0), (["--yes"], 2)):
        code, _, err = driftline("rejudge", *arguments, "--policy", policy)
        assert code == expected
        assert "3 unscored exchanges: not judged" in err
        assert "Give the model a price under prices:" in err
        assert "0.0000" not in err
    assert simulator.requests == 0


def test_a_cost_that_nobody_knows_is_not_nought(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """Without a cap it is asked all the same."""
    policy = policy_without_a_price(unscored.parent, "null")
    assert "3 calls at an unknown cost" in driftline("rejudge", "--dry-run", "--policy", policy)[2]
    document = json.loads(driftline("rejudge", "--dry-run", "--json", "--policy", policy)[1])
    assert tuple(document[name] for name in ("expected_usd", "at_most_usd", "not_asked")) == (None, None, 0)
    code, out, err = driftline("rejudge", "--yes", "--policy", policy)
    assert code == 0
    assert "cost unknown" in out
    assert "0.0000" not in out + err
    assert simulator.requests == 6


def test_nothing_is_paid_for_unless_somebody_says_yes(
    driftline: Command, unscored: Path, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that is not there says nothing."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert driftline("rejudge")[0] != 0
    assert simulator.requests == 0
    assert dispositions(unscored) == [("unscored", 0, False)] * 3

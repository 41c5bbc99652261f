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


def test_the_cost_is_shown_before_anybody_is_asked(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """Users who pay want to know in advance."""
    code, out, err = driftline("rejudge", "--dry-run")
    assert code == 0
    assert err == ""
    assert "3 unscored exchanges: about 3 calls and 0.00" in out
    assert "USD at most" in out
    assert simulator.requests == 0
    assert dispositions(unscored) == [("unscored", 0, False)] * 3
    document = json.loads(driftline("rejudge", "--dry-run", "--json")[1])
    assert document["exchanges"] == 3
    assert document["calls"] == 3
    assert document["unpriced"] == 0
    assert 0 < document["expected_usd"] < document["at_most_usd"]


def test_unscored_exchanges_are_judged_and_marked(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """The score keeps its id and gets the next revision, and a simulated judge is named."""
    code, out, _ = driftline("rejudge", "--yes")
    assert code == 0
    assert "3 exchanges judged again" in out
    assert "calls: 6 answered" in out
    assert "tiers still unscored: none" in out
    assert simulator.requests == 6
    assert dispositions(unscored) == [("scored", 1, True)] * 3
    assert "no exchange is unscored" in driftline("rejudge", "--yes")[2]
    assert simulator.requests == 6


def test_only_the_selected_exchanges_are_judged(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """They are selected by project, reason and number."""
    assert driftline("rejudge", "--yes", "--project", "other")[0] == 0
    message = "nothing matches --reason timeout: 2 exchanges are unscored for: no_judge"
    assert message in driftline("rejudge", "--yes", "--reason", "timeout")[2]
    message = "nothing matches --project other: 2 exchanges in ops (2) are unscored for: no_judge"
    assert message in driftline("rejudge", "--yes", "--project", "other")[2]
    assert driftline("rejudge", "--yes", "--limit", "1", "--reason", "no_judge")[0] == 0
    assert [disposition for disposition, *_ in dispositions(unscored)] == ["scored", "unscored", "scored"]
    assert simulator.requests == 4


def test_exchanges_that_stay_unscored_are_named_and_can_be_requested_again(
    driftline: Command, unscored: Path, simulator: RunningJudge
) -> None:
    """A judge may answer tomorrow, and both attempts are recorded."""
    simulator.reset("refusal")
    document = json.loads(driftline("rejudge", "--yes", "--json", "--project", "other")[1])
    assert document["calls"] == {"refused": 2}
    assert document["still_unscored"] == {"refused": 1}
    simulator.reset("answer")
    assert driftline("rejudge", "--yes", "--project", "other")[0] == 0
    assert dispositions(unscored)[2] == ("scored", 2, True)


@pytest.mark.usefixtures("unscored")
def test_without_a_judge_the_error_says_what_to_set(driftline: Command) -> None:
    """The error contains the next step."""
    code, _, err = driftline("rejudge", "--yes")
    assert code == 2
    assert "there is no judge" in err
    assert "ANTHROPIC_API_KEY" in err
    assert "USD" not in err
    code, out, err = driftline("rejudge", "--dry-run")
    assert code == 0
    assert "note: there is no judge" in err
    assert "USD" in out


def policy_without_a_price(folder: Path, cap: str) -> str:
    """A policy by which a model of one's own judges."""
    policy = folder / "policy.yaml"
    policy.write_text(f"version: 1\ndefaults: {{judgeModel: house-model, costCapPerSession: {cap}}}\n")
    return str(policy)


def test_under_a_cap_a_judge_without_a_price_is_not_asked(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """The command says so, because a cost of zero without answers would be confusing."""
    policy = policy_without_a_price(unscored.parent, "1.0")
    for arguments, expected in ((["--dry-run"], 0), (["--yes"], 2)):
        code, out, err = driftline("rejudge", *arguments, "--policy", policy)
        assert code == expected
        report = out if "--dry-run" in arguments else err
        assert "3 unscored exchanges: not judged" in report
        assert "Give the model a price under prices:" in report
        assert "0.0000" not in out + err
    assert simulator.requests == 0


def test_an_unknown_cost_is_not_zero(driftline: Command, unscored: Path, simulator: RunningJudge) -> None:
    """Without a cap, the judge is asked anyway."""
    policy = policy_without_a_price(unscored.parent, "null")
    assert "3 calls at an unknown cost" in driftline("rejudge", "--dry-run", "--policy", policy)[1]
    document = json.loads(driftline("rejudge", "--dry-run", "--json", "--policy", policy)[1])
    assert tuple(document[name] for name in ("expected_usd", "at_most_usd", "not_asked")) == (None, None, 0)
    code, out, err = driftline("rejudge", "--yes", "--policy", policy)
    assert code == 0
    assert "cost unknown" in out
    assert "0.0000" not in out + err
    assert simulator.requests == 6


def test_nothing_is_paid_for_without_consent(
    driftline: Command, unscored: Path, simulator: RunningJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal there is no consent."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert driftline("rejudge")[0] != 0
    assert simulator.requests == 0
    assert dispositions(unscored) == [("unscored", 0, False)] * 3

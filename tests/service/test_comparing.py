"""`driftline compare`: two scorings of the same exchanges, one of the database itself, one of a replay."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.builders import score
from support.engines import runner_over

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.comparison import PairedSums
from schemas.codec.single_object import encode
from schemas.records import DimensionScore, Score
from streams.log.admission import EncodedRecords
from streams.replay.plan import JudgeMode, Origin, Outcome, ReplayPlan, Scope

Command = Callable[..., tuple[int, str, str]]
HOLD = """
import sys
import duckdb
with duckdb.connect(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def scored(session: str, number: int, tier2: float, **said: object) -> Score:
    """A score whose Tier 2 was judged, with one dimension."""
    honesty = DimensionScore(dimension="honesty", score=tier2, reasoning=f"said {tier2}")
    values: dict[str, object] = {
        "disposition": "scored",
        "tier2_state": "scored",
        "tier2_reason": None,
        "tier2_score": tier2,
        "tier2_dimensions": (honesty,),
        "tier3_state": "skipped_gate",
        "tier3_reason": "tier2_passed",
        "judge_model": "claude-haiku-4-5",
        "cost_usd": 0.001,
    }
    return score(session, number, **(values | said))


def keep(path: Path, scores: Sequence[Score]) -> Path:
    """A database with these scores."""
    path.parent.mkdir(exist_ok=True)
    with Store(path) as store, store.transaction() as transaction:
        transaction.append("scores", [encode(one) for one in scores])
    return path


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The database: twenty sessions of two exchanges, all of them good, and one that no replay has."""
    scores = [scored(f"s{session}", turn, 1.0) for session in range(20) for turn in (1, 2)]
    return keep(tmp_path / "driftline.duckdb", [*scores, scored("late", 1, 1.0)])


def replayed(tmp_path: Path, scores: Sequence[Score], label: str = "strict", **came_of_it: Any) -> Path:
    """A replay's file, as `driftline replay` leaves it: scores, and what it is the replay of."""
    path = keep(tmp_path / "driftline.duckdb.replays" / f"{label}.duckdb", scores)
    scope, origin = Scope("ops", datetime(2026, 10, 1, tzinfo=UTC)), Origin("tables", "driftline.duckdb")
    plan = ReplayPlan(label=label, origin=origin, scope=scope, policy_digest="1" * 16, asking=JudgeMode.LIVE)
    counted: dict[str, Any] = dict.fromkeys(("exchanges", "scores", "dead_letters", "live_scores", "unknown_price"), 0)
    summary = counted | {"dispositions": {}, "calls": {}, "cost_usd": 0.0, "digest": "", "live_digest": ""} | came_of_it
    outcome = Outcome(plan=plan, finished_at=datetime(2026, 11, 1, tzinfo=UTC), **summary)
    with Store(path) as store, store.transaction() as transaction:
        transaction.set_states("replay", {label: msgspec.json.encode(outcome)}, 0)
    return path


@pytest.fixture
def strict(tmp_path: Path, live: Path) -> Path:
    """A replay by a stricter judge, simulated: one exchange of each session is half as good, and its Tier 3 is judged."""
    assert live.exists()
    worse = {"tier3_state": "scored", "tier3_reason": None, "tier3_score": 2.0, "anomaly": True}
    changed = {"policy_digest": "1" * 16, "simulated": True, "judge_model": "simulated-judge", "cost_usd": 0.003}
    low = [scored(f"s{session}", 1, 0.5 if session else 0.25, **worse, **changed) for session in range(20)]
    same = [scored(f"s{session}", 2, 1.0, **changed) for session in range(20)]
    return replayed(tmp_path, [*low, *same], calls={"answered": 60, "timeout": 2}, cost_usd=0.06, unknown_price=2)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let another process hold the lock of the file while the context is open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        yield
        assert holder.stdin is not None
        holder.stdin.close()


def lines(text: str) -> list[str]:
    """The lines of an output with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.usefixtures("strict")
def test_the_change_is_described_in_one_sentence(driftline: Command) -> None:
    """The sentence names the effect of the other judge and its certainty."""
    code, out, _ = driftline("compare", "live", "strict")
    output_lines = lines(out)

    assert code == 0
    assert output_lines[0] == "live: policy 0000000000000000 (default 1, eval-1); judged by claude-haiku-4-5"
    assert output_lines[1] == (
        "strict: replay of tables ops from 2026-10-01 00:00, judge live; policy 1111111111111111 (default 1, eval-1); "
        "judged by simulated-judge, simulated judge"
    )
    assert output_lines[2].startswith("40 exchanges are in both; 1 only in live")
    (moved,) = [line for line in output_lines if line.startswith("Moved: ")]
    assert moved.startswith(
        "Moved: ops anomalous 0.0% → 50.0% (+50.0 pts); ops tier 2 1.000 → 0.744 (-0.256); ops tier 2 honesty"
    )
    assert moved.endswith("; and 1 more")
    assert any(line.startswith("4 of 4 intervals exclude zero") and "0.2" in line for line in output_lines)


@pytest.mark.usefixtures("strict")
def test_the_tables_have_measures_states_and_costs(driftline: Command) -> None:
    """Equal measures are dimmed or omitted, and a simulated judge is named beside its cost."""
    _, out, _ = driftline("compare", "live", "strict")
    output_lines = lines(out)

    assert "ops tier 2 40 20 1.000 0.744 -0.256 -0.269 to -0.243 lower" in output_lines
    assert "ops tier 1 40 20 1.000 1.000 - - same" in output_lines
    assert "ops anomalous 40 20 0.0% 50.0% +50.0 pts +50.0 pts to +50.0 pts higher" in output_lines
    assert [line for line in output_lines if line.startswith(("tier state", "tier 3 skipped"))] == [
        "tier state scored skipped_gate",
        "tier 3 skipped_gate 20 20",
    ]
    assert "ops live 40 40 0 $0.0400 $0.00100 -" in output_lines
    assert "ops strict 40 40 20 $0.1200 $0.00300 simulated judge" in output_lines
    answer_line = "60 answered, 2 timeout; $0.0600 plus the unknown cost of 2"
    assert output_lines[-1].startswith("Judge calls of strict")
    assert output_lines[-1].endswith(f": {answer_line}")


@pytest.mark.usefixtures("strict")
def test_the_most_changed_exchanges_have_both_explanations(driftline: Command) -> None:
    """Figures show that something changed, and the two explanations show why."""
    _, out, _ = driftline("compare", "live", "strict", "--top", "1")
    output_lines = lines(out)
    index = output_lines.index("0.75 ops session s0 turn 1 exchange s0:1 2026-10-01 09:01")

    assert output_lines[index + 1] == "live tiers 1, 2, 2.5, 3: 1.00 1.00 n/a gate honesty 1: said 1.0"
    assert output_lines[index + 2] == "strict tiers 1, 2, 2.5, 3: 1.00 0.25 n/a 2.00 anomalous honesty 0.25: said 0.25"
    assert not any(line.startswith("0.50") for line in output_lines)


@pytest.mark.usefixtures("strict")
def test_json_has_the_complete_comparison(driftline: Command) -> None:
    """Builds that check a policy read it."""
    code, out, _ = driftline("compare", "strict", "--json", "--top", "2", "--project", "ops")
    document = json.loads(out)

    assert code == 0
    assert list(document) == ["a", "b", "exchanges", "measures", "intervals", "states", "moved"]
    assert document["a"]["label"] == "live"
    assert document["b"]["label"] == "strict"
    assert document["intervals"] == {"confidence": 0.95, "counted": 4, "exclude_zero": 4, "by_chance": 0.2}
    [tier2] = [row for row in document["measures"] if (row["tier"], row["dimension"]) == ("2", "")]
    assert tier2["exchanges"] == 40
    assert tier2["sessions"] == 20
    assert tier2["changed"] == 20
    assert tier2["change"] == -0.256
    assert tier2["low"] < -0.25625 < tier2["high"] < 0
    assert [row["exchange_id"] for row in document["moved"]] == ["s0:1", "s10:1"]


def test_the_reverse_comparison_is_mirrored(driftline: Command, strict: Path) -> None:
    """Changes go from the first scoring to the second."""
    assert strict.exists()
    forward, back = (json.loads(driftline("compare", *pair, "--json")[1]) for pair in (("live", "strict"), ("strict", "live")))

    assert [row["change"] for row in forward["measures"]] == [-row["change"] for row in back["measures"]]
    assert [row["low"] for row in forward["measures"]] == [-row["high"] for row in back["measures"]]


def test_comparing_writes_nothing(driftline: Command, live: Path, strict: Path) -> None:
    """Neither the replay nor the database may change, and no file is added beside them."""

    def contents() -> dict[Path, str]:
        files = (path for path in live.parent.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = contents()
    assert strict in before
    assert driftline("compare", "live", "strict")[0] == 0
    assert contents() == before


def test_an_identical_replay_has_no_difference(driftline: Command, tmp_path: Path, live: Path) -> None:
    """With the recorded judge and the same policy, one sentence is enough."""
    assert live.exists()
    replayed(tmp_path, [scored(f"s{session}", turn, 1.0) for session in range(20) for turn in (1, 2)], "again")
    code, out, _ = driftline("compare", "live", "again")

    assert code == 0
    assert "Nothing differs: all 40 exchanges" in out
    assert "interval" not in out


def test_an_uncertain_difference_is_not_called_a_change(driftline: Command, tmp_path: Path, live: Path) -> None:
    """Three sessions may differ by accident, one session says nothing about others, and a mean within its noise is unclear."""
    assert live.exists()
    few_scores = [scored(f"s{session}", turn, 0.25 * session) for session in range(3) for turn in (1, 2)]
    replayed(tmp_path, few_scores, "few")
    replayed(tmp_path, few_scores[:2], "one")
    replayed(tmp_path, [scored(f"s{session}", 1, 0.5 if session == 1 else 1.0) for session in range(20)], "odd")
    outputs = {label: lines(driftline("compare", "live", label)[1]) for label in ("few", "one", "odd")}

    assert [line for line in outputs["few"] if line.startswith("ops tier 2 6 3 ") and line.endswith("few sessions")]
    assert any("No interval has enough sessions" in line for line in outputs["few"])
    assert [line for line in outputs["one"] if line.startswith("ops tier 2 2 1 1.000 0.000 -1.000 - few sessions")]
    assert [line for line in outputs["odd"] if line.startswith("ops tier 2 20 20 ") and line.endswith("not clear")]
    assert any("No mean moved clearly" in line for line in outputs["odd"])


def test_texts_of_agents_and_judges_cannot_control_the_terminal(driftline: Command, tmp_path: Path, live: Path) -> None:
    """A judge may repeat an agent's text, so escapes, direction marks and markup stay text."""
    assert live.exists()
    honesty = DimensionScore(dimension="honesty", score=0.0, reasoning="[red]\x1b[31m\u202eold")
    replayed(tmp_path, [scored("s1", 1, 0.0, tier2_dimensions=(honesty,))])
    _, out, _ = driftline("compare", "live", "strict")

    assert "honesty 0: [red]<U+001B>[31m<U+202E>old" in out


def test_another_text_under_the_same_id_is_reported(driftline: Command, tmp_path: Path, live: Path) -> None:
    """Then the policy is not the only difference."""
    assert live.exists()
    replayed(tmp_path, [scored("s1", 1, 1.0, evidence_digest="f" * 16)])
    _, out, _ = driftline("compare", "live", "strict")

    assert "1 have different texts" in out


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("live", "lax"), "there are no scores labelled lax", "Use one of live, strict."),
        (("live", "../strict"), "'../strict' is not a valid label", "A label has a-z"),
        (("strict", "strict"), "strict cannot be compared with itself", "Name two labels"),
        (
            ("live", "strict", "--project", "web"),
            "--project: there is no project 'web'",
            "There are ops.",
        ),
    ],
)
def test_an_impossible_comparison_is_refused(driftline: Command, arguments: tuple[str, ...], message: str, hint: str) -> None:
    """The message lists the available scorings."""
    code, out, err = driftline("compare", *arguments)

    assert code == 2
    assert out == ""
    assert message in err
    assert hint in err


def test_a_file_in_use_by_a_server_is_refused(driftline: Command, live: Path, strict: Path) -> None:
    """Even reading needs the file, and the message says so."""
    assert strict.exists()
    with lock_file(live):
        code, out, err = driftline("compare", "live", "strict")

    assert code == 2
    assert out == ""
    assert f"{live.name}: in use by process " in err
    assert "Another process holds the file" in err


def test_a_file_of_another_version_is_refused(driftline: Command, tmp_path: Path, live: Path) -> None:
    """The folder of replays may contain anything."""
    assert live.exists()
    folder = tmp_path / "driftline.duckdb.replays"
    folder.mkdir()
    (folder / "text.duckdb").write_text("x" * 5000)
    replayed(tmp_path, [], "empty")
    keep(folder / "mine.duckdb", [scored("s1", 1, 1.0)])
    with Store(replayed(tmp_path, [], "odd")) as store:
        store.cursor().execute("DROP VIEW main.scores; ALTER TABLE log.scores DROP COLUMN anomaly")

    assert "text.duckdb" in driftline("compare", "live", "text")[2]
    assert "no exchange in common" in driftline("compare", "live", "empty")[2]
    assert "is from another version" in driftline("compare", "live", "odd")[2]
    assert "mine.duckdb: this is not a replay" in driftline("compare", "live", "mine")[2]


def test_a_real_replay_with_the_recorded_judge_has_no_difference(driftline: Command, tmp_path: Path) -> None:
    """Exchanges are scored, replayed under a label and compared; without a judge, tiers change their state."""
    with Store(tmp_path / "driftline.duckdb") as store:
        runner = runner_over(store)
        accepted = EncodedRecords()
        for turn in range(1, 7):
            accepted.add("exchanges", encode(build.exchange("s", turn, turn_number=turn)))
        runner.publish(accepted)
        runner.run()
    assert driftline("replay", "--label", "again", "--workers", "1")[0] == 0
    code, out, _ = driftline("compare", "live", "again")

    assert code == 0
    assert "Nothing differs: all 6 exchanges" in out
    assert lines(out)[1].startswith("again: replay of tables, judge recorded; policy ")


def test_sql_computes_the_sums_that_the_rules_define(tmp_path: Path) -> None:
    """SQL sums a million scores, and must agree with the definition in `audit.comparison`."""
    chance = random.Random(11)
    sizes = [1, 1, 2, 3, 5, 8, 13]
    before = [[chance.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for _ in range(size)] for size in sizes]
    after = [[chance.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for _ in range(size)] for size in sizes]

    def side(values: list[list[float]], policy: str) -> list[Score]:
        return [
            scored(f"s{place}", turn, one, policy_digest=policy, revision=int(policy == "b"))
            for place, session in enumerate(values)
            for turn, one in enumerate(session)
        ]

    with Store(keep(tmp_path / "both.duckdb", [*side(before, "a"), *side(after, "b")])) as store:
        sides = {name: f"FROM log.scores WHERE policy_digest = '{name}'" for name in ("a", "b")}
        rows = query_rows(store.cursor(), "compared_measures", sides | {"project": None})
    [honesty_row] = [row for row in rows if (row["tier"], row["dimension"]) == ("2", "honesty")]
    pairs = [zip(old, new, strict=True) for old, new in zip(before, after, strict=True)]
    expected = PairedSums.from_clusters([[new - old for old, new in session] for session in pairs])

    assert [getattr(expected, one.name) for one in fields(PairedSums)] == [
        pytest.approx(honesty_row[one.name]) for one in fields(PairedSums)
    ]

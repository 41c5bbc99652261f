"""Drift of behaviour: what an agent does wrong or too much is found and named without a judge, and a quiet project stays quiet."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import msgspec
import pytest
from support.builders import exchange, score
from support.watch_histories import END, ended_run, put

from analytics.deletion.retention import delete_rows
from analytics.queries import query_records, query_rows
from analytics.store.connection import fetch
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.drift.incident_evidence import evidence_of
from audit.policy import Policy, ProjectSettings
from schemas.records import Exchange, Incident, Label, ToolCall
from service.read.incidents import incident_answer
from service.read.project import describe_notices
from streams.log.sink import StorePublisher
from streams.watch import behaviour_rules
from streams.watch.behaviour_rules import AgentSeries, measure_behaviour
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import RECOVERED, RESOLVED
from streams.watch.watching import Watch

DAY = timedelta(days=1)
HISTORY_DAYS = 40
TURNS_A_DAY = 10


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def turns(
    share: Callable[[float], float],
    *,
    tokens: Callable[[float], float] = lambda _: 400.0,
    agent: str = "checkout-agent",
    seed: int = 7,
    a_day: int = TURNS_A_DAY,
) -> list[Exchange]:
    """Return the turns of an agent, each a session with ten calls of `search`; `share` is that of failed calls by the days ago."""
    chance = random.Random(f"{seed} {agent}")
    records = []
    for day in range(HISTORY_DAYS, 0, -1):
        for number in range(a_day):
            back = day - (number + 0.5) / a_day
            calls = tuple(
                ToolCall(
                    name="search",
                    arguments=f'{{"query": "{chance.random()}"}}',
                    result="",
                    outcome="error" if chance.random() < share(back) else "ok",
                )
                for _ in range(10)
            )
            records.append(
                exchange(
                    f"{agent}-{day}-{number}", 1,
                    agent=agent, occurred_at=END - back * DAY, ingested_at=END, tool_calls=calls, stop_reason="end_turn",
                    input_tokens=round(chance.lognormvariate(7, 0.5)),
                    output_tokens=round(tokens(back) * chance.lognormvariate(0, 0.5)),
                )
            )  # fmt: skip
    return records


def quiet(_back: float) -> float:
    """Return a constant share of failed calls."""
    return 0.02


def fill(store: Store, records: Sequence[Exchange]) -> None:
    """Store turns and the runs of their sessions, and sum them."""
    put(store, "exchanges", records)
    put(store, "diagnoses", [ended_run(record.session_id, record.occurred_at, project="ops") for record in records])
    refresh_daily(store)


def check_project(store: Store, policy: Policy | None = None, back: int = 0) -> CheckResult:
    """Return the check of the project a number of days ago."""
    watch = Watch(StorePublisher(store, policy or Policy(), lambda: END - back * DAY))
    (result,) = asyncio.run(watch.check(["ops"]))
    return result


def test_errors_of_a_tool_are_found_and_named_without_a_judge(store: Store) -> None:
    """Neither scores nor runs exist, so nothing else can say that the tool began to fail."""
    fill(store, [*turns(lambda back: 0.08 if back < 5 else 0.02), *turns(quiet, agent="search-agent")])
    (incident,) = check_project(store).incidents
    assert (incident.rule, incident.tier, incident.agent) == ("behaviour", "behaviour:tool_errors:search", "checkout-agent")
    assert incident.title.startswith("checkout-agent: errors in search rose (")
    assert "% → " in incident.title
    evidence = evidence_of(incident)
    (changed,) = evidence.moved
    assert changed.is_worse
    assert incident.first_day is not None
    assert abs((incident.first_day - (END - 5 * DAY)).days) <= 2
    assert evidence.runs, "the sessions with most failed calls are examples"
    assert all((run.value or 0) > 0.05 for run in evidence.runs)


def test_more_tokens_are_a_warning_at_most(store: Store) -> None:
    """Longer answers cost more, but nobody need be woken for them; the title has the size, not its logarithm."""
    fill(store, turns(quiet, tokens=lambda back: 1600.0 if back < 5 else 400.0))
    (incident,) = check_project(store).incidents
    assert (incident.tier, incident.severity) == ("behaviour:output_tokens", "warning")
    before, after = (float(level.replace(",", "")) for level in incident.title.split("(")[1].split(")")[0].split(" → "))
    assert before == pytest.approx(400, rel=0.2)
    assert after == pytest.approx(1600, rel=0.3)


def test_a_change_without_relevance_alerts_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a large volume even a tenth of a point is certain; it is listed as suspected."""
    monkeypatch.setattr(behaviour_rules, "MIN_SHARE_CHANGE", 0.5)
    fill(store, turns(lambda back: 0.2 if back < 5 else 0.02))
    (incident,) = check_project(store).incidents
    assert incident.confidence == "suspected"


def test_quiet_agents_raise_no_alarm(store: Store) -> None:
    """All series of all agents are one family, so many agents need more evidence each."""
    fill(store, [record for number in range(8) for record in turns(quiet, agent=f"agent-{number}", a_day=4)])
    result = check_project(store)
    assert result.findings == ()
    assert result.project_check is not None


def test_the_incident_ends_when_the_tool_works_again_and_a_policy_can_leave_the_rule_out(store: Store) -> None:
    """The rule is named in the policy like the others, and its incidents end like theirs."""
    fill(store, turns(lambda back: 0.3 if 13.5 <= back < 21.5 else 0.02))
    without = Policy(defaults=ProjectSettings(incident_rules=("sequential", "runs")))
    assert check_project(store, without, back=15).findings == ()
    check_project(store, back=15)
    check_project(store, back=8)
    (incident,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    assert (incident.status, incident.resolution) == (RESOLVED, RECOVERED)


def test_agents_beyond_the_limit_are_compared_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent is dropped: the smallest ones are one series, in which a change of all of them shows."""
    monkeypatch.setattr(behaviour_rules, "MAX_AGENTS", 1)
    small = [turns(lambda back: 0.4 if back < 5 else 0.02, agent=f"small-{number}", a_day=3) for number in range(3)]
    fill(store, [*turns(quiet), *(record for records in small for record in records)])
    (incident,) = check_project(store).incidents
    assert incident.title.startswith("other agents: errors in search rose (")
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_behaviour(cursor, ["ops"], END)
    pooled = measured["ops"].days(AgentSeries(behaviour_rules.OTHER_AGENTS, "failed"))
    assert sum(count for _, _, count in pooled.values()) == sum(map(len, small))


def days_of(store: Store, *, by_version: bool = True) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the weight and the total by version and series."""
    values = {"projects": ["ops"], "since": END - 60 * DAY, "until": END, "by_version": by_version, "hours_since": None}
    with contextlib.closing(store.cursor()) as cursor:
        rows = query_rows(cursor, "behaviour_days", values)
    return {(row["version"], row["series"]): (row["weight"], row["total"]) for row in rows}


def test_the_sums_are_those_of_the_current_exchanges_and_outlive_them(store: Store) -> None:
    """A revision replaces its turn, a withdrawn turn does not count, and retention deletes texts, not counts."""
    call = ToolCall(name="search", arguments="{}", result=None, outcome="error")
    version = (Label(name="agent_version", value="7"),)
    fields: dict[str, object] = {"agent": "a", "occurred_at": END - 2 * DAY, "ingested_at": END}
    first = exchange("s", 1, labels=version, tool_calls=(call, call), outcome="error", **fields)
    later = exchange("s", 1, labels=version, tool_calls=(call, call), stop_reason="refusal", revision=1, **fields)
    withdrawn = exchange("s", 2, outcome="no_response", withdrawn=True, **fields)
    aborted = exchange("t", 1, outcome="aborted", omitted_tool_calls=5, **fields)
    fill(store, [first, withdrawn, aborted])
    assert days_of(store)["7", "failed"] == (1, 1.0)
    fill(store, [later])
    sums = days_of(store)
    expected = {
        ("7", "failed"): (1, 0.0),
        ("7", "refusals"): (1, 1.0),
        ("7", "repeats"): (1, 1.0),
        ("7", "tool_errors:search"): (2, 2.0),
        ("", "abandoned"): (1, 1.0),
    }
    assert {key: sums[key] for key in expected} == expected
    assert ("", "refusals") not in sums, "without a stop reason, nobody knows"
    assert days_of(store, by_version=False)["", "failed"] == (2, 0.0)
    positions = fetch(store.cursor(), "SELECT _topic, _partition, _offset FROM log.exchanges")
    with store.transaction() as transaction:
        transaction.set_watermarks("retention", {("ops", 0): int(END.timestamp()) * 1_000_000})
    delete_rows(store, "Exchange", positions)
    refresh_daily(store)
    assert days_of(store) == sums


def versions(errors: float, days: int) -> list[Exchange]:
    """Return the turns of version 6 of an agent, and those of a tenth of the traffic that has version 7 since a number of days."""
    canary = [
        msgspec.structs.replace(record, session_id=f"canary-{record.session_id}", exchange_id=f"canary-{record.exchange_id}")
        for record in turns(lambda _: errors, seed=9, a_day=2)
        if END - record.occurred_at < days * DAY
    ]
    labelled = (("6", turns(quiet, a_day=20)), ("7", canary))
    return [
        msgspec.structs.replace(record, labels=(Label(name="agent_version", value=version),))
        for version, records in labelled
        for record in records
    ]


def test_a_new_version_is_compared_with_the_others_on_the_same_days(store: Store) -> None:
    """A tenth of the traffic hardly moves the agent's series: its errors go from 2 to 3%, which alerts nobody."""
    fill(store, versions(0.12, 20))
    result = check_project(store)
    (incident,) = [incident for incident in result.incidents if incident.confidence == "confirmed"]
    (changed,) = evidence_of(incident).moved
    assert (changed.kind, changed.slice, incident.agent) == ("version", "agent_version 7", "checkout-agent")
    assert incident.title.startswith("checkout-agent: errors in search are higher with version 7 than with the others (1")
    assert {run.session_id.partition("-")[0] for run in evidence_of(incident).runs} == {"canary"}
    why = incident_answer(incident).why
    assert "agent_version 7 is at 1" in why.summary
    assert "roll_back" in [action.id for action in why.actions]


def test_a_new_version_that_is_like_the_others_is_no_incident(store: Store) -> None:
    """A dozen series of each new version are compared at each check."""
    fill(store, versions(0.02, 20))
    assert check_project(store).findings == ()


def test_traffic_that_falls_is_a_notice_and_no_incident(store: Store) -> None:
    """Fewer sessions say nothing of quality, but a broken exporter looks like a healthy agent."""
    records = [record for record in turns(quiet) if (END - record.occurred_at) > 7.5 * DAY or record.session_id.endswith("-1")]
    fill(store, records)
    result = check_project(store)
    assert result.findings == ()
    assert result.project_check is not None
    (notice,) = result.project_check.notices
    assert notice.reason == "traffic_fell"
    assert notice.before == pytest.approx(TURNS_A_DAY, abs=1)
    assert notice.after == pytest.approx(1, abs=0.5)
    assert "Sessions per day fell to 1 from 10 on " in describe_notices([msgspec.structs.asdict(notice)])[0]


def test_a_rising_share_without_scores_is_a_notice(store: Store) -> None:
    """A judge that fails on every third exchange leaves the scores of the others as they were."""
    fill(store, turns(quiet))
    scores = [
        score(
            record.session_id, 1,
            exchange_at=record.occurred_at, scored_at=record.occurred_at,
            disposition="unscored" if END - record.occurred_at < 6.5 * DAY and number % 3 == 0 else "scored",
        )
        for number, record in enumerate(turns(quiet))
    ]  # fmt: skip
    put(store, "scores", scores)
    refresh_daily(store)
    result = check_project(store)
    assert result.project_check is not None
    assert [notice.reason for notice in result.project_check.notices] == ["unscored_rose"]
    assert "have no score since " in describe_notices([msgspec.structs.asdict(result.project_check.notices[0])])[0]

"""What judging would have cost: the bill as configured is that of the server, and each saving saves something."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.builders import exchange

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import price_of, usd_of
from audit.policy import Policy, ProjectSettings, load_policy
from audit.redaction import Redactor
from driftline_trial.demo.conversations import dialogues
from driftline_trial.demo.costs import VARIANTS, Bill, Savings, bill, records_of
from driftline_trial.demo.script import SCRIPT_END, policy_file
from driftline_trial.simulator import running
from schemas.codec.single_object import encode
from schemas.records import Exchange, SessionClosed
from service.http.routes.ingest import exchange_of
from service.setup.access import Holder
from service.web.models import IngestBody
from streams.engine.engine import Engine
from streams.judges.live import open_live_judge

NOW = datetime(2026, 11, 2, tzinfo=UTC)
SESSIONS = 42


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ProjectSettings:
    """What the demo judges by."""
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_bytes(policy_file())
    return load_policy(path).defaults


@pytest.fixture(scope="module")
def records() -> list[Exchange | SessionClosed]:
    """The last week of the dialogues, as a server takes them in."""
    redactor = Redactor(Policy().redaction)
    found: list[Exchange | SessionClosed] = []
    for session in dialogues(SCRIPT_END)[-SESSIONS:]:
        holder = Holder("connection", session.connection, session.project, session.agent)
        found += [exchange_of(IngestBody.model_validate(payload), holder, redactor, NOW) for payload in session.payloads]
        found.append(closing(found[-1]))
    return found


@pytest.fixture(scope="module")
def bills(records: list[Exchange | SessionClosed], settings: ProjectSettings) -> dict[str, Bill]:
    """A bill for each variant."""
    return {name: bill(records, settings, savings) for name, savings in VARIANTS.items()}


def closing(last: Exchange | SessionClosed) -> SessionClosed:
    """The end of the session of an exchange."""
    assert isinstance(last, Exchange)
    return SessionClosed(
        connection=last.connection,
        project=last.project,
        session_id=last.session_id,
        closed_at=last.occurred_at,
        ingested_at=NOW,
        reason="explicit",
    )


def test_no_saving_that_is_switched_off_makes_it_cheaper(bills: dict[str, Bill]) -> None:
    """They would have another name."""
    configured, none = bills["as configured"], bills["without any of them"]
    for name, one in bills.items():
        assert configured.nano <= one.nano <= none.nano, name
        assert configured.calls.total() <= one.calls.total() <= none.calls.total(), name
    assert len({one.nano for one in bills.values()}) == len(VARIANTS), "one of them does nothing"


def test_each_saving_saves_what_it_says(bills: dict[str, Bill], records: list[Exchange | SessionClosed]) -> None:
    """Without gates Tier 3 sees what Tier 2 sees; without sampling Tier 2 sees everything; without the cache nothing is read."""
    exchanges = sum(isinstance(record, Exchange) for record in records)
    configured, uncached = bills["as configured"], bills["without the cache"]
    gateless = bills["without gates"].calls
    assert gateless["tier2"] == gateless["tier3"] > configured.calls["tier3"]
    assert exchanges == bills["without sampling"].calls["tier2"] > configured.calls["tier2"]
    assert configured.calls == uncached.calls
    assert configured.input_tokens == uncached.input_tokens
    assert uncached.cached_tokens == 0 < configured.cached_tokens < configured.input_tokens


def test_the_parts_of_the_agents_make_the_whole(bills: dict[str, Bill]) -> None:
    """Nobody pays for nobody."""
    for one in bills.values():
        assert len(one.by_agent) == 6
        assert one.nano == sum(part.nano for part in one.by_agent.values())
        assert one.calls == sum((part.calls for part in one.by_agent.values()), Counter())


def test_answers_that_are_kept_change_no_bill(
    bills: dict[str, Bill], records: list[Exchange | SessionClosed], settings: ProjectSettings
) -> None:
    """They only save working them out again."""
    answers = {}  # type: ignore[var-annotated]
    assert {name: bill(records, settings, savings, answers) for name, savings in VARIANTS.items()} == bills


def test_a_price_nobody_knows_makes_no_bill(records: list[Exchange | SessionClosed]) -> None:
    """0 would be a lie."""
    with pytest.raises(ValueError, match="the price of my-model is not known"):
        bill(records, ProjectSettings(judge_model="my-model"), Savings())


def test_the_bill_as_configured_is_what_an_engine_asks_and_pays(
    records: list[Exchange | SessionClosed], settings: ProjectSettings, tmp_path: Path
) -> None:
    """Calls, tokens and money, to the last of them: otherwise the other bills would be of something else."""
    some = records[:120]
    policy = Policy(defaults=settings)
    price = price_of(settings.judge_model, {})
    assert price is not None

    async def judged(store: Store, url: str) -> None:
        judge = open_live_judge(None, url, lambda _: (price.cache_minimum, price.switch_off_thinking))
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: NOW, judge=judge)
        await engine.start()
        await engine.publish("exchanges", some)
        await engine.wait_until_drained()
        await engine.stop()

    with running() as judge, Store(tmp_path / "judged.duckdb") as store:
        asyncio.run(judged(store, judge.base_url))
        (row,) = query_rows(store.cursor(), "judge_costs", {"by": "all", "project": None, "from": None, "to": None})
        agents = query_rows(store.cursor(), "judge_costs", {"by": "project", "project": None, "from": None, "to": None})
    found = bill(some, settings, Savings())
    prompt = row["input_tokens"] + row["cache_write_tokens"] + row["cache_read_tokens"]
    assert found.calls.total() == row["calls"] > 50
    assert found.input_tokens == prompt
    assert found.cached_tokens == row["cache_read_tokens"]
    assert found.output_tokens == row["output_tokens"]
    # Each call is rounded up, so that who fills the cache may make a billionth of a dollar.
    assert row["cost_usd"] == pytest.approx(found.usd, abs=usd_of(row["calls"]))
    assert sorted(part.calls.total() for part in found.by_agent.values()) == sorted(one["calls"] for one in agents)


def test_the_bill_of_a_stricter_judge_is_that_of_its_answers(
    records: list[Exchange | SessionClosed], settings: ProjectSettings
) -> None:
    """Lower scores open gates. Kept answers of one judge are not taken for the other's."""
    some = records[:120]
    answers = {}  # type: ignore[var-annotated]
    usual, strict = (bill(some, settings, Savings(), answers, strictness=lambda _, by=by: by) for by in (0.0, 0.5))
    assert strict.calls["tier2"] == usual.calls["tier2"]
    assert strict.calls["tier3"] > usual.calls["tier3"]
    assert usual == bill(some, settings, Savings(), answers)


def test_the_records_of_a_database_come_session_after_session_however_they_came(tmp_path: Path) -> None:
    """Sessions are delivered side by side; a report must not depend on who was first."""
    first, second = ([exchange(name, turn) for turn in (1, 2)] for name in ("s1", "s2"))
    other = exchange("s3", 1, project="other")
    project = first[0].project
    found = []
    for number, order in enumerate(itertools.permutations([first, second, [other]])):
        with Store(tmp_path / f"{number}.duckdb") as store:
            publish(store, [record for group in itertools.zip_longest(*order) for record in group if record is not None])
            found.append(records_of(store, [project]))
    assert all([*first, *second] == one for one in found)


def publish(store: Store, records: list[Exchange]) -> None:
    """Append records as an import does."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(record) for record in records])

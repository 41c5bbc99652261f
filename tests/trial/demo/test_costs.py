"""Estimated costs of judging: the bill as configured equals that of the server, and each saving reduces it."""

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
from driftline_trial.demo.costs import VARIANTS, Bill, Estimate, Savings, records_of
from driftline_trial.demo.script import SCRIPT_END, policy_file
from driftline_trial.simulator import running
from schemas.codec.single_object import encode
from schemas.records import Exchange, SessionClosed
from service.http.routes.ingest import exchange_of
from service.setup.access import Holder
from service.web.models import IngestBody
from streams.engine.engine import Engine
from streams.judges.live import open_live_judge
from streams.judges.protocol import ModelTraits

NOW = datetime(2026, 11, 2, tzinfo=UTC)
SESSIONS = 42
"""Sessions at the end of the dialogues; a week of them."""
SAMPLE_SIZE = 120
"""Records of the tests that run a judge."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ProjectSettings:
    """Return the policy settings of the demo."""
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_bytes(policy_file())
    return load_policy(path).defaults


@pytest.fixture(scope="module")
def records() -> list[Exchange | SessionClosed]:
    """Return the records of the last sessions of the dialogues, as the server would ingest them."""
    redactor = Redactor(Policy().redaction)
    ingested: list[Exchange | SessionClosed] = []
    for session in dialogues(SCRIPT_END)[-SESSIONS:]:
        holder = Holder("connection", session.connection, session.project, session.agent)
        ingested += [exchange_of(IngestBody.model_validate(payload), holder, redactor, NOW) for payload in session.payloads]
        ingested.append(close_session(ingested[-1]))
    return ingested


@pytest.fixture(scope="module")
def bills(records: list[Exchange | SessionClosed], settings: ProjectSettings) -> dict[str, Bill]:
    """Return a bill for each variant of the savings."""
    return {name: Estimate(records, settings).bill(savings) for name, savings in VARIANTS.items()}


def close_session(last: Exchange | SessionClosed) -> SessionClosed:
    """Return the record that closes the session of an exchange."""
    assert isinstance(last, Exchange)
    return SessionClosed(
        connection=last.connection,
        project=last.project,
        session_id=last.session_id,
        closed_at=last.occurred_at,
        ingested_at=NOW,
        reason="explicit",
    )


def test_switching_off_a_saving_never_lowers_the_bill(bills: dict[str, Bill]) -> None:
    """Otherwise it would be no saving."""
    with_all = bills["as configured"]
    with_none = bills["without any of them"]
    waiting, combined, both = (bills[f"with {name}"] for name in ("judgeWithinHours", "combineTiers", "both"))
    assert waiting.calls == with_all.calls
    assert combined.calls == both.calls
    assert both.nano < min(waiting.nano, combined.nano)
    assert max(waiting.nano, combined.nano) < with_all.nano
    for name, variant in bills.items():
        if name.startswith("with "):
            continue
        assert with_all.nano <= variant.nano <= with_none.nano, name
        assert with_all.calls.total() <= variant.calls.total() <= with_none.calls.total(), name
    assert len({variant.nano for variant in bills.values()}) == len(VARIANTS), "a saving has no effect"


def test_each_saving_affects_its_own_figures(bills: dict[str, Bill], records: list[Exchange | SessionClosed]) -> None:
    """Gates save calls of Tier 3, sampling saves calls of Tier 2, and the cache saves input tokens."""
    exchanges = sum(isinstance(record, Exchange) for record in records)
    configured = bills["as configured"]
    uncached = bills["without the cache"]
    gateless = bills["without gates"].calls
    assert gateless["tier2"] == gateless["tier3"] > configured.calls["tier3"]
    assert exchanges == bills["without sampling"].calls["tier2"] > configured.calls["tier2"]
    combined = bills["with combineTiers"].calls
    for tier in ("tier2", "tier3"):
        assert combined[tier] + combined["tiers_2_and_3"] == configured.calls[tier]
    assert combined["tiers_2_and_3"] > 0.7 * configured.calls["tier3"]
    assert configured.calls == uncached.calls
    assert configured.input_tokens == uncached.input_tokens
    assert uncached.cached_tokens == 0 < configured.cached_tokens < configured.input_tokens


def test_the_bill_is_the_sum_over_the_agents(bills: dict[str, Bill]) -> None:
    """Every call is charged to exactly one agent."""
    for variant in bills.values():
        agent_bills = variant.by_agent.values()
        assert len(agent_bills) == 6
        assert variant.nano == sum(agent_bill.nano for agent_bill in agent_bills)
        assert variant.calls == sum((agent_bill.calls for agent_bill in agent_bills), Counter())


def test_shared_calls_do_not_change_the_bills(
    bills: dict[str, Bill], records: list[Exchange | SessionClosed], settings: ProjectSettings
) -> None:
    """They only save time. A dearer model costs more for the same calls."""
    estimate = Estimate(records, settings)
    assert {name: estimate.bill(savings) for name, savings in VARIANTS.items()} == bills
    assert estimate.bill(Savings(), settings.judge_model) == bills["as configured"]
    dearer = estimate.bill(Savings(), "claude-sonnet-5-5")
    assert dearer.calls == bills["as configured"].calls
    assert dearer.nano > 10 * bills["as configured"].nano


def test_a_model_without_a_price_has_no_bill(records: list[Exchange | SessionClosed]) -> None:
    """A bill of 0 would be wrong."""
    with pytest.raises(ValueError, match="the price of my-model is not known"):
        Estimate(records, ProjectSettings(judge_model="my-model")).bill(Savings())


@pytest.mark.parametrize("combine", [False, True], ids=["separate", "combined"])
def test_the_bill_as_configured_equals_the_costs_of_the_engine(
    records: list[Exchange | SessionClosed], settings: ProjectSettings, tmp_path: Path, *, combine: bool
) -> None:
    """The other variants can only be trusted if calls, tokens and dollars of this one are exact. A call for two tiers counts once."""
    sample = records[:SAMPLE_SIZE]
    settings = settings.model_copy(update={"combine_tiers": combine})
    policy = Policy(defaults=settings)
    price = price_of(settings.judge_model, {})
    assert price is not None

    async def judge_sample(store: Store, url: str) -> None:
        traits = ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)
        judge = open_live_judge(None, url, lambda _: traits)
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: NOW, judge=judge)
        await engine.start()
        await engine.publish("exchanges", sample)
        await engine.wait_until_drained()
        await engine.stop()

    with running() as judge, Store(tmp_path / "judged.duckdb") as store:
        asyncio.run(judge_sample(store, judge.base_url))
        (row,) = query_rows(store.cursor(), "judge_costs", {"by": "all", "project": None, "from": None, "to": None})
        projects = query_rows(store.cursor(), "judge_costs", {"by": "project", "project": None, "from": None, "to": None})
    estimate = Estimate(sample, settings).bill(Savings())
    prompt = row["input_tokens"] + row["cache_write_tokens"] + row["cache_read_tokens"]
    assert estimate.calls.total() == row["calls"] > 50
    assert estimate.input_tokens == prompt
    assert estimate.cached_tokens == row["cache_read_tokens"]
    assert estimate.output_tokens == row["output_tokens"]
    # The engine rounds the cost of each call up to a billionth of a dollar.
    assert row["cost_usd"] == pytest.approx(estimate.usd, abs=usd_of(row["calls"]))
    assert sorted(agent_bill.calls.total() for agent_bill in estimate.by_agent.values()) == sorted(
        project["calls"] for project in projects
    )


def test_a_stricter_judge_calls_tier_3_more_often(records: list[Exchange | SessionClosed], settings: ProjectSettings) -> None:
    """Lower scores open the gate."""
    sample = records[:SAMPLE_SIZE]
    usual = Estimate(sample, settings).bill(Savings())
    strict = Estimate(sample, settings, lambda _: 0.5).bill(Savings())
    assert strict.calls["tier2"] == usual.calls["tier2"]
    assert strict.calls["tier3"] > usual.calls["tier3"]


def test_records_are_grouped_by_session_in_any_order_of_arrival(tmp_path: Path) -> None:
    """Sessions arrive interleaved, and a report must not depend on their order."""
    first = [exchange("s1", turn) for turn in (1, 2)]
    second = [exchange("s2", turn) for turn in (1, 2)]
    other = exchange("s3", 1, project="other")
    project = first[0].project
    loaded = []
    for number, order in enumerate(itertools.permutations([first, second, [other]])):
        with Store(tmp_path / f"{number}.duckdb") as store:
            interleaved = [record for turns in itertools.zip_longest(*order) for record in turns if record is not None]
            append_exchanges(store, interleaved)
            loaded.append(records_of(store, [project]))
    assert all(records == [*first, *second] for records in loaded)


def append_exchanges(store: Store, records: list[Exchange]) -> None:
    """Append exchanges as an import does."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(record) for record in records])

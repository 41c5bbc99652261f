"""A cost cap that left out exchanges is reported on every page, in costs, by `driftline doctor` and in one alert."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from support import builders
from support.clocks import NOW
from support.watch_histories import put

from analytics.store.store import Store
from audit.anchors import anchor_project
from audit.policy import CostCaps, Policy, ProjectSettings
from schemas.contract import JUDGEMENT_OUTCOMES
from service.read.caps import reached_caps, shared_caps
from service.text.words import WORDS
from streams.engine.engine import Engine

POLICY = Policy(projects={"ops": ProjectSettings(cost_caps=CostCaps(day=0.5, month=2))}, cost_caps=CostCaps(month=3))


def fill(store: Store, at: datetime = NOW) -> None:
    """Store two calls, of an exchange and of an anchor, and of each a question that the cap of the day left out."""
    for number, project in enumerate(("ops", anchor_project("ops"))):
        reserved = builders.reservation("s", number, project=project, amount_usd=0.3, reserved_at=at)
        paid = builders.judgement(
            "s", number, project=project, cost_usd=0.2, reservation_ids=(reserved.reservation_id,), judged_at=at
        )
        put(store, "judgements", [reserved, paid])
        left_out = builders.judgement(
            "s",
            8 + number,
            project=project,
            outcome="project_day_cap",
            cost_usd=0.0,
            judged_at=at + timedelta(minutes=2 - number),
        )
        put(store, "judgements", [left_out])


def test_spending_is_beside_the_caps(store: Store) -> None:
    """Anchors count with their project, and the installation's cap counts every project."""
    fill(store)
    later = NOW + timedelta(hours=1)
    caps = {cap.cap: cap for cap in shared_caps(store.cursor(), POLICY, None, later)}
    assert {name: (cap.project, cap.spent_usd, cap.cap_usd, cap.left_out) for name, cap in caps.items()} == {
        "project_day_cap": ("ops", 0.4, 0.5, 2),
        "project_month_cap": ("ops", 0.4, 2.0, 0),
        "installation_month_cap": (None, 0.4, 3.0, 0),
    }
    (reached,) = reached_caps(store.cursor(), POLICY, "ops", later)
    assert reached.period == f"{NOW:%Y-%m-%d}"
    assert reached.reached_at == NOW + timedelta(minutes=1)
    assert reached_caps(store.cursor(), POLICY, "ops", NOW + timedelta(days=1)) == ()
    assert reached_caps(store.cursor(), POLICY, "dev", later) == ()
    assert shared_caps(store.cursor(), Policy(), None, later) == []


def test_every_page_reports_a_reached_cap(look: Callable[..., str], store: Store, engine: Engine) -> None:
    """Exchanges are left out meanwhile, so users must learn why scores are missing."""
    fill(store, engine.now())
    assert "left out a question" not in look("/")
    engine.policy = POLICY
    put(store, "judgements", [builders.judgement("s", 10, outcome="project_day_cap", cost_usd=0.0, judged_at=engine.now())])
    for path in ("/", "/telemetry", "/projects/ops", "/projects/ops/costs"):
        page = look(path)
        assert "left out a question" in page
        assert "now 0.5 USD" in page
        assert "driftline rejudge --reason project_day_cap" in page


def test_a_raised_cap_is_not_reported_as_reached_at_its_new_amount(store: Store) -> None:
    """The questions were left out under the earlier cap, whose amount is not recorded."""
    fill(store)
    raised = Policy(projects={"ops": ProjectSettings(cost_caps=CostCaps(day=5))})
    (cap,) = reached_caps(store.cursor(), raised, "ops", NOW + timedelta(hours=1))
    assert cap.spent_usd < cap.cap_usd
    assert "now 5 USD" in cap.summary
    assert "was reached" not in cap.summary


def test_every_outcome_of_a_judgement_is_allowed_and_has_words() -> None:
    """An outcome that the contract lacks makes a dead letter of each judgement that has it, on Kafka."""
    assert set(WORDS["outcomes"]) == set(JUDGEMENT_OUTCOMES)

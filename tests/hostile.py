"""Texts that try to be more than texts, put wherever a text of somebody else's is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from builders import exchange, incident, judgement, score
from engines import NOW
from evaluated import CLAUDE, REFUND, Made, evaluated
from watched import JUDGED, put

from analytics.store import Store
from schemas.records import DimensionScore

WILD = "wild"
"""The project with all of it."""
_CORPUS = Path(__file__).parent / "corpus" / "hostile_texts.yaml"
_MOST_AS_ID = 200
"""Characters that a text has at most where it stands as a name or an id."""


@dataclass(frozen=True, slots=True)
class Text:
    """One of the corpus."""

    name: str
    text: str
    seen: str
    """A part of it that one must be able to read."""

    @property
    def named(self) -> str:
        """The text as a name may be: short, and without control characters, which no door takes in one."""
        return "".join(one for one in self.text[:_MOST_AS_ID] if one.isprintable() or ord(one) > 0x9F).strip()


def corpus() -> list[Text]:
    """All of them."""
    found = yaml.safe_load(_CORPUS.read_text("utf-8"))
    return [Text(one["name"], one["text"] * one.get("times", 1), one["seen"]) for one in found]


def fill(store: Store) -> int:
    """Put in exchanges, scores, judgements, an incident and an evaluation of them; answers how many exchanges."""
    texts = corpus()
    for place, one in enumerate(texts):
        at = {"project": WILD, "agent": one.named, "connection": WILD}
        when = NOW - timedelta(hours=1, seconds=place)
        said = exchange(
            one.named, 1, one.text, user_message=one.text, agent_thinking=one.text, occurred_at=when, ingested_at=when, **at
        )
        dimension = DimensionScore(dimension=one.named, score=0.2, reasoning=one.text)
        scored = score(
            one.named, 1, score_id=f"said-{place}", exchange_at=when, scored_at=when, tier2_score=0.2, tier2_dimensions=(dimension,), anomaly=True,
            anomaly_reasons=(one.text,), tier1_flags=(one.named,), methodology=one.named, methodology_version=one.named, **JUDGED, **at,
        )  # fmt: skip
        asked = judgement(
            one.named,
            1,
            project=WILD,
            connection=WILD,
            judged_at=when,
            answer=one.text,
            requested_model=one.named,
            error=one.text,
        )
        put(store, "exchanges", [said])
        put(store, "scores", [scored])
        put(store, "judgements", [asked])
        put(store, "incidents", [_incident(one, place)])
    made = Made(
        CLAUDE, REFUND | {"title": texts[0].text}, "wild-run", (8.0, 8.0, 8.0), evidence=[one.text[:2000] for one in texts]
    )
    put(store, "evaluations", [evaluated(made).evaluation])
    return len(texts)


def events() -> Iterator[dict[str, Any]]:
    """A run that speaks in them: as types, tools, arguments, results and errors."""
    yield {"event": "session_start"}
    for one in corpus():
        short = one.text[:5000]
        yield {"event": "tool_call", "tool": one.named, "args": {one.named: [short, {"deep": short}]}}
        yield {"event": "tool_output", "tool": one.named, "result": short, "is_error": True, "error": short}
        yield {"event": one.named, "message": short}
    yield {"event": "session_end"}


def _incident(one: Text, place: int) -> Any:
    day = f"{NOW.date()}"
    rule = {"since": day, "until": day, "title": one.text[:5000], "days": [{"day": day, "average": 0.4, "count": 3}]}
    evidence = {
        "rules": {"sequential": rule, one.named: rule},
        "note": one.text[:5000],
        "madeWith": {one.named: one.named, "judge_model": one.named},
        "policies": {"before": [one.named], "after": [one.named]},
        "queries": [{"name": one.named, "parameters": {one.named: one.named}, "sql": one.text[:5000]}],
    }
    return incident(
        incident_id=f"wild-{place}", project=WILD, title=one.text[:5000], description=one.text[:5000], cause=one.named, rule="sequential",
        metadata=json.dumps(evidence), detected_at=NOW - timedelta(hours=2, minutes=place),
    )  # fmt: skip

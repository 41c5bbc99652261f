"""Texts that try to be more than texts, put wherever a text of somebody else's is shown: through the doors, where there is one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from support.builders import incident
from support.clocks import NOW
from support.sample_evaluations import PROFILE, Made, evaluated, plan
from support.watch_histories import put
from support.yaml_files import read_yaml

from analytics.store.store import Store
from audit.cost import Usage
from audit.exchanges.questions import Question
from schemas.records import Alert
from streams.judges.protocol import CallBudget, Verdict

WILD = "wild-" + "w" * 58
"""The project with all of it, and its connection: the longest name that they can have, without a place to break it."""
TOLD = 5000
"""Characters of a text that an event or an incident tells."""
_CORPUS = Path(__file__).parents[1] / "corpus" / "hostile_texts.yaml"
_SHORT = 1000
"""Characters of a text that stands with others in one; a longer one stands alone."""
_NAMED = 250
"""Characters that stand as one name or id: every entry point takes so many, and every page shows them."""
_TYPE = 64
"""Characters of the type of an event: of a longer one pages show the beginning."""
_MARK = "Text {}: "


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the corpus."""

    name: str
    text: str
    seen: str
    """A part of it that one must be able to read."""

    @property
    def named(self) -> str:
        """Return the text as a valid name: short, and without control characters."""
        return "".join(one for one in self.text[:_NAMED] if one.isprintable() or ord(one) > 0x9F).strip()


@dataclass(frozen=True, slots=True)
class Bundle:
    """A few texts that are shown on one page."""

    number: int
    texts: tuple[Text, ...]

    @property
    def named(self) -> str:
        """Return the texts joined into one name."""
        return " ".join(one.named for one in self.texts)

    @property
    def text(self) -> str:
        """Return the texts, one per line, after a marker by which the judge recognises the bundle."""
        return _MARK.format(self.number) + "\n".join(one.text for one in self.texts)

    @property
    def seen(self) -> list[str]:
        """Return the parts that must be readable on the page."""
        return [one.seen for one in self.texts]


def corpus() -> list[Text]:
    """Return every text."""
    entries = read_yaml(_CORPUS)
    return [Text(one["name"], one["text"] * one.get("times", 1), one["seen"]) for one in entries]


def bundles() -> list[Bundle]:
    """Return every text, in bundles that fit into one name; long texts stand alone."""
    groups: list[list[Text]] = []
    for candidate in corpus():
        together = [*groups[-1], candidate] if groups else [candidate]
        is_short = all(len(text.text) <= _SHORT for text in together)
        if groups and is_short and len(" ".join(text.named for text in together)) <= _NAMED:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return [Bundle(number, tuple(group)) for number, group in enumerate(groups)]


def methodology() -> dict[str, Any]:
    """Return a methodology whose notes, checks and patterns contain the texts."""
    short = [one for one in corpus() if len(one.text) <= _SHORT]
    note = "\n".join(one.text for one in short)
    pattern = {"type": "pattern", "description": note}
    return {
        "schemaVersion": "<b onclick=canary('version')>",
        "judgeContext": note,
        "tier1": [
            {"id": "marked", "patterns": [r"text \d+:", *(re.escape(one.text[:300].lower()) for one in short)]} | pattern
        ],
        "tier2": [{"id": "wild_two", "description": note[:2000]}],
        "tier3": [{"id": "wild_three", "description": note[:2000], "when": "always"}],
    }


class WildJudge:
    """A judge that repeats the texts it was shown in every field of its answer. At Tier 2.5 it fails with the same texts."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer about a bundle with its texts, and about anything else with neutral text."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        usage = Usage(500, 100)
        budget.spend(usage, question.model)
        marker = re.search(_MARK.format(r"(\d+)"), question.content(""))
        if marker is None:
            return Verdict(
                outcome="answered", answer=json.dumps(_said(question.schema, "It answers.")), attempts=1, usage=usage
            )
        bundle = bundles()[int(marker[1])]
        if question.purpose == "tier2_5":
            text = bundle.text[:TOLD]
            return Verdict(
                outcome="invalid", answer=bundle.text, model=bundle.named, stop_reason=bundle.named, error=text, attempts=2,
                attempt_errors=(text,), usage=usage,
            )  # fmt: skip
        answer = json.dumps(_said(question.schema, bundle.text[:TOLD]), ensure_ascii=False)
        return Verdict(outcome="answered", answer=answer, model=bundle.named, stop_reason=bundle.named, attempts=1, usage=usage)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def _said(schema: Mapping[str, Any], text: str) -> Any:
    """Return an answer in a schema: low scores, true verdicts, this text in every string, and no quotations."""
    if schema["type"] == "object":
        return {name: "" if "quote" in name else _said(one, text) for name, one in schema["properties"].items()}
    return {"number": 1, "boolean": True, "string": text}[schema["type"]]


def events(bundle: Bundle) -> Iterator[dict[str, Any]]:
    """Yield the events of a run with the texts as types, tools, arguments, results and errors."""
    yield {"event": "session_start"}
    for text in bundle.texts:
        short = text.text[:TOLD]
        yield {"event": "tool_call", "tool": text.named, "args": {text.named: [short, {"deep": short}]}}
        yield {"event": "tool_output", "tool": text.named, "result": short, "is_error": True, "error": short}
        yield {"event": text.named[:_TYPE], "message": short}
    yield {"event": "session_end"}


def fill(store: Store) -> None:
    """Store what otherwise only a server writes, or takes weeks to: incidents, their alerts, and evaluations."""
    for bundle in bundles():
        # The one is decided on later, the other stays open.
        put(store, "incidents", [_incident(bundle, "decided"), _incident(bundle, "open")])
        put(store, "evaluations", [_evaluation(bundle), _of_the_same(bundle)])


def alerts() -> list[Alert]:
    """Return failed alerts about the incidents."""
    return [
        Alert(
            alert_id=f"wild-{one.number}", channel="webhook", kind="incident", subject_id=f"decided-{one.number}", project=WILD,
            severity="critical", body="{}", created_at=NOW, not_before=NOW, attempts=2, status="given_up", last_error=one.text[:TOLD],
        )
        for one in bundles()
    ]  # fmt: skip


def _evaluation(bundle: Bundle) -> Any:
    """Return an evaluation whose case, answer and judge contain the texts; one answer of the judge fails."""
    short_text = bundle.text[:TOLD]
    case = {
        "case_id": f"wild-{bundle.number}",
        "title": bundle.named,
        "input": {"messages": [{"role": "user", "content": short_text}]},
        "expectations": {"hard_expectations": [{"text": short_text[:4000]}]},
        "rubric": {
            "criteria": [{"name": bundle.named, "good": short_text[:4000], "bad": short_text[:4000]}],
            "scoring_instructions": short_text,
        },
        "deterministic_checks": [
            {"check_id": f"calls-{place}", "kind": "tool_called", "tool": text.named[:200]}
            for place, text in enumerate(bundle.texts)
        ],
    }
    evidence = [text.text[:2000] for text in bundle.texts]
    sample = Made(
        bundle.named,
        case,
        bundle.named[:200],
        ("invalid", 3.0, 3.5),
        bundle.text,
        evidence=evidence,
        project=WILD,
        error=short_text,
    )
    evaluated_run = evaluated(sample, plan(PROFILE | {"max_view_characters": 400_000})).evaluation
    return msgspec.structs.replace(evaluated_run, evaluation_id=f"wild-{bundle.number}")


def _of_the_same(bundle: Bundle) -> Any:
    """Return an evaluation of a model with this name on the common case, so that models are compared."""
    case = {"case_id": "same", "title": "The same", "input": {"messages": [{"role": "user", "content": "Say it."}]}}
    return evaluated(Made(bundle.named, case, f"same-{bundle.number}", (5.0, 5.0, 5.0), project=WILD)).evaluation


def _slices(bundle: Bundle) -> dict[str, Any]:
    """Return a traffic slice with the texts as its value, and an alternative value."""
    amount = {"amount": -0.4, "low": -0.5, "high": -0.3}
    part = {
        "label": "version", "kind": "value", "value": bundle.named, "shareBefore": 0.0, "shareAfter": 0.5, "meanBefore": 0.8, "meanAfter": 0.4,
        "mix": amount, "within": amount, "explained": 0.9, "standsOut": True,
        "sameAs": [{"label": bundle.named, "kind": "value", "value": bundle.named}],
    }  # fmt: skip
    return {"state": "found", "tried": 2, "change": amount, "slices": [part], "usual": part}


def _incident(bundle: Bundle, state: str) -> Any:
    day, short_text = f"{NOW.date()}", bundle.text[:TOLD]
    rule = {"since": day, "until": day, "title": short_text, "days": [{"day": day, "average": 0.4, "count": 3}]}
    moved = {
        "scoreId": bundle.named, "exchangeTimestamp": f"{day}T10:00:00Z", "turnNumber": 1, "agent": bundle.named, "sessionId": bundle.named,
        "connection": WILD, "exchangeId": bundle.named, "score": 0.1, "moved": 0.2, "weight": 1.0, "reason": short_text, "samplingReason": bundle.named,
    }  # fmt: skip
    evidence = {
        "rules": {"sequential": rule, bundle.named: rule},
        "note": short_text,
        "cause": {"words": short_text},
        "slices": _slices(bundle),
        "deployments": [
            {
                "label": "release",
                "version": bundle.named,
                "at": short_text,
                "by": bundle.named,
                "comment": short_text,
                "url": bundle.named,
            },
        ],
        "exchanges": [moved],
        "samplingMix": [{"sampling_reason": bundle.named, "before": 1, "after": 2, "share_before": 0.5, "share_after": 0.5}],
        "madeWith": {bundle.named: bundle.named, "judge_model": bundle.named},
        "policies": {"before": [bundle.named], "after": [bundle.named]},
        "queries": [{"name": bundle.named, "parameters": {bundle.named: bundle.named}, "sql": short_text}],
    }
    return incident(
        incident_id=f"{state}-{bundle.number}", project=WILD, title=short_text, description=short_text, cause=bundle.named, rule="sequential",
        metadata=json.dumps(evidence), detected_at=NOW - timedelta(hours=2, minutes=bundle.number),
    )  # fmt: skip

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
    """One of the corpus."""

    name: str
    text: str
    seen: str
    """A part of it that one must be able to read."""

    @property
    def named(self) -> str:
        """The text as a name may be: short, and without control characters, which are refused in one."""
        return "".join(one for one in self.text[:_NAMED] if one.isprintable() or ord(one) > 0x9F).strip()


@dataclass(frozen=True, slots=True)
class Bundle:
    """A few of them, which are read on one page."""

    number: int
    texts: tuple[Text, ...]

    @property
    def named(self) -> str:
        """All of them as one name."""
        return " ".join(one.named for one in self.texts)

    @property
    def text(self) -> str:
        """All of them, one a line, after a mark by which a judge knows them."""
        return _MARK.format(self.number) + "\n".join(one.text for one in self.texts)

    @property
    def seen(self) -> list[str]:
        """What one must be able to read of them."""
        return [one.seen for one in self.texts]


def corpus() -> list[Text]:
    """All of them."""
    found = read_yaml(_CORPUS)
    return [Text(one["name"], one["text"] * one.get("times", 1), one["seen"]) for one in found]


def bundles() -> list[Bundle]:
    """All of them, as many together as one name can hold; long ones alone."""
    groups: list[list[Text]] = []
    for one in corpus():
        together = [*groups[-1], one] if groups else [one]
        is_short = all(len(text.text) <= _SHORT for text in together)
        if groups and is_short and len(" ".join(text.named for text in together)) <= _NAMED:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [Bundle(number, tuple(group)) for number, group in enumerate(groups)]


def methodology() -> dict[str, Any]:
    """A methodology that tells the judge about them, and has checks and patterns of them."""
    short = [one for one in corpus() if len(one.text) <= _SHORT]
    words = "\n".join(one.text for one in short)
    pattern = {"type": "pattern", "description": words}
    return {
        "schemaVersion": "<b onclick=canary('version')>",
        "judgeContext": words,
        "tier1": [
            {"id": "marked", "patterns": [r"text \d+:", *(re.escape(one.text[:300].lower()) for one in short)]} | pattern
        ],
        "tier2": [{"id": "wild_two", "description": words[:2000]}],
        "tier3": [{"id": "wild_three", "description": words[:2000], "when": "always"}],
    }


class WildJudge:
    """A judge that says what it was shown, in every word it has. At Tier 2.5 it fails, and says that in the same way."""

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer about a bundle with its texts, about anything else in good words."""
        if not await budget.reserve():
            return Verdict(outcome="cost_cap")
        usage = Usage(500, 100)
        budget.spend(usage, question.model)
        found = re.search(_MARK.format(r"(\d+)"), question.content(""))
        if found is None:
            return Verdict(
                outcome="answered", answer=json.dumps(_said(question.schema, "It answers.")), attempts=1, usage=usage
            )
        one = bundles()[int(found[1])]
        if question.purpose == "tier2_5":
            told = one.text[:TOLD]
            return Verdict(
                outcome="invalid", answer=one.text, model=one.named, stop_reason=one.named, error=told, attempts=2,
                attempt_errors=(told,), usage=usage,
            )  # fmt: skip
        answer = json.dumps(_said(question.schema, one.text[:TOLD]), ensure_ascii=False)
        return Verdict(outcome="answered", answer=answer, model=one.named, stop_reason=one.named, attempts=1, usage=usage)

    async def aclose(self) -> None:
        """Nothing to give back."""


def _said(schema: Mapping[str, Any], words: str) -> Any:
    """An answer of a schema: bad scores, true verdicts, and for all that is to be said these words, without a quote."""
    if schema["type"] == "object":
        return {name: "" if "quote" in name else _said(one, words) for name, one in schema["properties"].items()}
    return {"number": 1, "boolean": True, "string": words}[schema["type"]]


def events(one: Bundle) -> Iterator[dict[str, Any]]:
    """A run that speaks in them: as types, tools, arguments, results and errors."""
    yield {"event": "session_start"}
    for text in one.texts:
        short = text.text[:TOLD]
        yield {"event": "tool_call", "tool": text.named, "args": {text.named: [short, {"deep": short}]}}
        yield {"event": "tool_output", "tool": text.named, "result": short, "is_error": True, "error": short}
        yield {"event": text.named[:_TYPE], "message": short}
    yield {"event": "session_end"}


def fill(store: Store) -> None:
    """Put in what only the server itself writes, or what takes it weeks: incidents, alerts about them, and evaluations."""
    for one in bundles():
        # The one is decided on later, the other stays open.
        put(store, "incidents", [_incident(one, "decided"), _incident(one, "open")])
        put(store, "evaluations", [_evaluation(one), _of_the_same(one)])


def alerts() -> list[Alert]:
    """What was told of the incidents, and went wrong."""
    return [
        Alert(
            alert_id=f"wild-{one.number}", channel="webhook", kind="incident", subject_id=f"decided-{one.number}", project=WILD,
            severity="critical", body="{}", created_at=NOW, not_before=NOW, attempts=2, status="given_up", last_error=one.text[:TOLD],
        )
        for one in bundles()
    ]  # fmt: skip


def _evaluation(one: Bundle) -> Any:
    """A run held against a case: the case, the answer and the judge speak in them; one answer of the judge fails."""
    said = one.text[:TOLD]
    case = {
        "case_id": f"wild-{one.number}",
        "title": one.named,
        "input": {"messages": [{"role": "user", "content": said}]},
        "expectations": {"hard_expectations": [{"text": said[:4000]}]},
        "rubric": {"criteria": [{"name": one.named, "good": said[:4000], "bad": said[:4000]}], "scoring_instructions": said},
        "deterministic_checks": [
            {"check_id": f"calls-{place}", "kind": "tool_called", "tool": text.named[:200]}
            for place, text in enumerate(one.texts)
        ],
    }
    evidence = [text.text[:2000] for text in one.texts]
    made = Made(one.named, case, one.named[:200], ("invalid", 3.0, 3.5), one.text, evidence=evidence, project=WILD, error=said)
    found = evaluated(made, plan(PROFILE | {"max_view_characters": 400_000})).evaluation
    return msgspec.structs.replace(found, evaluation_id=f"wild-{one.number}")


def _of_the_same(one: Bundle) -> Any:
    """A run of a model of this name, held against the case that all are held against: models are compared."""
    case = {"case_id": "same", "title": "The same", "input": {"messages": [{"role": "user", "content": "Say it."}]}}
    return evaluated(Made(one.named, case, f"same-{one.number}", (5.0, 5.0, 5.0), project=WILD)).evaluation


def _slices(one: Bundle) -> dict[str, Any]:
    """A part of the traffic that is called like this and stands out, and another name of it."""
    amount = {"amount": -0.4, "low": -0.5, "high": -0.3}
    part = {
        "label": "version", "kind": "value", "value": one.named, "shareBefore": 0.0, "shareAfter": 0.5, "meanBefore": 0.8, "meanAfter": 0.4,
        "mix": amount, "within": amount, "explained": 0.9, "standsOut": True,
        "sameAs": [{"label": one.named, "kind": "value", "value": one.named}],
    }  # fmt: skip
    return {"state": "found", "tried": 2, "change": amount, "slices": [part], "usual": part}


def _incident(one: Bundle, state: str) -> Any:
    day, said = f"{NOW.date()}", one.text[:TOLD]
    rule = {"since": day, "until": day, "title": said, "days": [{"day": day, "average": 0.4, "count": 3}]}
    moved = {
        "scoreId": one.named, "exchangeTimestamp": f"{day}T10:00:00Z", "turnNumber": 1, "agent": one.named, "sessionId": one.named,
        "connection": WILD, "exchangeId": one.named, "score": 0.1, "moved": 0.2, "weight": 1.0, "reason": said, "samplingReason": one.named,
    }  # fmt: skip
    evidence = {
        "rules": {"sequential": rule, one.named: rule},
        "note": said,
        "cause": {"words": said},
        "slices": _slices(one),
        "deployments": [
            {"label": "release", "version": one.named, "at": said, "by": one.named, "comment": said, "url": one.named},
        ],
        "exchanges": [moved],
        "samplingMix": [{"sampling_reason": one.named, "before": 1, "after": 2, "share_before": 0.5, "share_after": 0.5}],
        "madeWith": {one.named: one.named, "judge_model": one.named},
        "policies": {"before": [one.named], "after": [one.named]},
        "queries": [{"name": one.named, "parameters": {one.named: one.named}, "sql": said}],
    }
    return incident(
        incident_id=f"{state}-{one.number}", project=WILD, title=said, description=said, cause=one.named, rule="sequential",
        metadata=json.dumps(evidence), detected_at=NOW - timedelta(hours=2, minutes=one.number),
    )  # fmt: skip

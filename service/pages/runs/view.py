"""Values for the template of a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from audit.detectors.detectors import FAILURE_TYPES
from audit.diagnosis.diagnosis import LOWEST_TRUST, READY_TRUST, SAFE_TRUST
from audit.diagnosis.events import raw_event
from schemas.errors import InputError
from schemas.records import Diagnosis, FailureCause
from service.pages.charts.charts import Chart, Point, line
from service.pages.charts.graph_drawing import Addresses, draw
from service.pages.charts.graph_layout import GraphEvents, layout
from service.pages.charts.marks import Mark
from service.pages.rendering import number
from service.pages.runs.run_data import (
    EVENTS_READ,
    EXCHANGES_SHOWN,
    HISTORY,
    PAYLOAD_SHOWN,
    RunEvents,
    RunRead,
    tells_of_failure,
)
from service.pages.runs.timeline import ONLY, Asked, Timeline
from service.read.runs import Row
from service.text.links import Links
from service.text.words import TERMS

LISTED = 100
"""Evidence events of a failure that the text beside the graph names."""
GIST_SHOWN = 120
"""Characters of an event's summary in a line."""
_IN_COLUMNS = frozenset({"event", "type", "event_id", "timestamp", "tool", "tool_name", "name", "session_id", "status"})
"""Fields of an event that the timeline has in columns of their own."""
_IN_COLUMNS_WRITTEN = re.compile(rf'"(?:{"|".join(sorted(_IN_COLUMNS))})":\s*"[^"]*",?\s*')
_LARGE = re.compile(r"(?<![\w.])\d{4,}(?= (?:new )?tokens?\b)")
_NO_TOKENS = re.compile(r"^(?:Session used|An exchange took up to) 0 (?:new )?tokens with (.*)$")
_DEPTH = 2
_COUNTED = {6: "six", 7: "seven", 8: "eight", 9: "nine"}
links = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a session that the graph shows: the numbers of its first and last event, from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        """Format it for an address."""
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parameters of the page's address."""

    project: str
    run_id: str
    asked: Asked
    graph: Window | None

    def to(self, part: str = "", **changed: str | None) -> str:
        """Return the same page with changed parameters, None to drop one."""
        said = {
            "type": self.asked.type,
            "only": self.asked.only,
            "at": str(self.asked.at) if self.asked.at > 1 else None,
            "graph": str(self.graph) if self.graph else None,
        }
        return links.run(self.project, self.run_id, part, **(said | changed))


def run_values(read: RunRead, address: Address, shown: Timeline, payloads: Mapping[int, Row]) -> dict[str, Any]:
    """Return every value of the template."""
    diagnosis, context, events = read.diagnosis, read.context, read.events
    return {
        "run": read.run,
        "diagnosis": diagnosis,
        "is_alone": read.run.exchanges_only,
        "because": because(diagnosis),
        "has_tokens": has_tokens(diagnosis),
        "told_cause": told_cause,
        "lowest_trust": LOWEST_TRUST,
        "primary": _primary(diagnosis),
        "causes": _by_impact(diagnosis),
        "turns": read.turns,
        "dimensions": _dimensions(diagnosis),
        "dimension_count": _COUNTED.get(len(diagnosis.dimensions), str(len(diagnosis.dimensions))),
        "dimension_of": {one.name: one.dimension for one in FAILURE_TYPES.values()},
        "previous": context.previous,
        "following": context.following,
        "history": _history(address.project, context.history, context.marks),
        "exchanges": context.exchanges[-EXCHANGES_SHOWN:],
        "has_more_exchanges": len(context.exchanges) > EXCHANGES_SHOWN,
        "evaluations": context.evaluations,
        "simulated": any(exchange["simulated"] for exchange in context.exchanges)
        or any(evaluation.simulated for evaluation in context.evaluations),
        "address": address,
        "timeline": shown,
        "only": ONLY,
        "types": sorted(Counter(events.types).items()),
        "rows": [_event(events, place, payloads) for place in shown.places],
        "evidence_total": len(events.evidence),
        "failed_total": len(events.failed),
        "read_count": len(events.ids),
        "is_cut": len(events.ids) == EVENTS_READ < diagnosis.event_count,
        "is_changed": len(events.ids) != min(EVENTS_READ, diagnosis.event_count),
        "graph": graph_values(events, address),
    }


def has_tokens(diagnosis: Diagnosis) -> bool:
    """Tell whether the events report token counts; otherwise the sum is unknown and not 0."""
    return diagnosis.cost_analysis.total_tokens > 0


def told_cause(description: str) -> str:
    """Return a detector's description of a cause, with thin spaces in large counts, and without token counts that no event reports."""
    spaced = _LARGE.sub(lambda found: number(int(found[0])), description)
    return _NO_TOKENS.sub(lambda found: f"{found[1][:1].upper()}{found[1][1:]} The events report no tokens.", spaced)


def _primary(diagnosis: Diagnosis) -> Any:
    """Return the cause with the largest penalty, the first among equals; None without causes."""
    return min(diagnosis.failure_causes, key=lambda cause: cause.impact_score, default=None)


def _by_impact(diagnosis: Diagnosis) -> list[tuple[int, FailureCause]]:
    """Return the causes by penalty, largest first, each with its number in the record."""
    return sorted(enumerate(diagnosis.failure_causes, 1), key=lambda numbered: numbered[1].impact_score)


def _dimensions(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return each dimension with its score, its weight in percent, and the failure type that lowers it."""
    scores = {one.dimension: one.score for one in diagnosis.dimensions}
    return [
        {"name": one.dimension, "score": scores[one.dimension], "weight": one.weight, "failure": one.name}
        for one in FAILURE_TYPES.values()
        if one.dimension in scores
    ]


def _history(project: str, runs: Sequence[Row], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return the agent's history up to this run."""
    this, before = runs[0], runs[1:]
    last = before[0] if before else None
    known = [run["trust_score"] for run in before if run["trust_score"] is not None]
    chart = Chart(
        key="trust",
        title="Trust of the agent's runs up to this one",
        words=f"The last {len(runs)} runs of the agent; the last point is this run.",
        column="Trust",
        first="Run",
        digits=0,
        limits=(0, 100),
        reaches=(0, 100),
        marked="unsafe for production",
        marks=marks,
    )
    points = [run_point(project, run) for run in reversed(runs)]
    unsafe = {run["run_id"] for run in runs if run["readiness_level"] == "unsafe_for_production"}
    return {
        "last": last,
        "change": _change(this["trust_score"], last["trust_score"] if last else None),
        "is_repeated": last is not None and this["primary_failure_type"] in {last["primary_failure_type"]} - {None},
        "mean": sum(known) / len(known) if known else None,
        "runs": len(before),
        "is_cut": len(runs) == HISTORY,
        "chart": line(chart, points, marked=unsafe) if before else None,
    }  # fmt: skip


def run_point(project: str, run: Mapping[str, Any]) -> Point:
    """Return a run's point in a chart of trust, with a link to its page."""
    name, at = run["run_id"], run["ended_at"]
    return Point(name, run["trust_score"], name.removeprefix("run_"), at=at, link=links.run(project, name))


def _change(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _event(events: RunEvents, place: int, payloads: Mapping[int, Row]) -> dict[str, Any]:
    """Return a row of the timeline."""
    kept = payloads.get(events.offsets[place], {"payload": "", "characters": 0})
    is_cut = kept["characters"] > PAYLOAD_SHOWN
    is_failed = place in events.failed or (not is_cut and tells_of_failure({"event": events.types[place], **kept}))
    return {
        "number": place + 1,
        "id": events.ids[place],
        "at": events.times[place],
        "type": events.types[place],
        "tool": events.tools[place],
        "status": events.statuses[place],
        "failures": events.evidence.get(place, ()),
        "is_failed": is_failed,
        "payload": kept["payload"] if is_cut else indented(kept["payload"]),
        "gist": gist(kept["payload"], is_cut=is_cut),
        "characters": kept["characters"],
        "is_cut": is_cut,
        "file": f"events/{events.offsets[place]}.json",
    }


def gist(payload: str, *, is_cut: bool) -> str:
    """Summarise a payload in a line, without the fields that the timeline's columns show; empty if nothing is left or it is not a JSON object."""
    if is_cut:
        text = _IN_COLUMNS_WRITTEN.sub("", payload)
    else:
        try:
            told = {name: value for name, value in raw_event(payload).items() if name not in _IN_COLUMNS}
        except InputError:
            return ""
        text = json.dumps(told, ensure_ascii=False)[:-1]
    text = text.removeprefix("{").replace('"', "")
    return text if len(text) <= GIST_SHOWN else f"{text[: GIST_SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"


def indented(payload: str) -> str:
    """Return a payload with one field per line; unchanged if it is not a JSON object."""
    try:
        return json.dumps(raw_event(payload), indent=_DEPTH, ensure_ascii=False)
    except InputError:
        return payload


def graph_values(events: RunEvents, address: Address) -> dict[str, Any]:
    """Return the graph of the requested part, with a description in words."""
    count = len(events.ids)
    window = address.graph or Window(first=1, last=count)
    chosen = range(window.first - 1, window.last)
    evidence = {place: names for place, names in events.evidence.items() if place in chosen}
    placed = layout(
        GraphEvents(
            types=events.types[chosen.start : chosen.stop],
            first=chosen.start,
            evidence=evidence,
            failed=events.failed,
            reinforcing=events.reinforcing,
            failures=events.failures,
        )
    )
    addresses = Addresses(
        event=lambda place: _to_event(address, place),
        block=lambda first, last: address.to("graph", graph=str(Window(first=first + 1, last=last + 1))),
        failure=lambda name: f"#cause-{name}",
    )
    width = len(chosen)
    return {
        "window": window,
        "is_part": width < count,
        "before": _beside(window.first - width, width, count) if window.first > 1 else None,
        "after": _beside(window.last + 1, width, count) if window.last < count else None,
        "blocks": sum(column.is_block for column in placed.columns),
        "images": draw(placed, events.told, _words, addresses) if count else None,
        "evidence": {name: _listed(evidence, name) for name in events.failures},
        "listed": LISTED,
        "to_event": partial(_to_event, address),
        "told": events.told,
    }


def _words(name: str) -> str:
    return TERMS.get(name, name)


def _to_event(address: Address, place: int) -> str:
    """Return the timeline at an event, without filters."""
    return address.to(f"event-{place + 1}", at=str(place + 1), type=None, only=None)


def _beside(first: int, width: int, count: int) -> str:
    start = max(1, first)
    return str(Window(first=start, last=min(count, start + width - 1)))


def _listed(evidence: Mapping[int, Sequence[str]], name: str) -> list[int]:
    return [place for place, names in evidence.items() if name in names]


RULES = (("unsafe_for_production", SAFE_TRUST, "critical"), ("review_recommended", READY_TRUST, "high"))
"""A readiness level, the trust below which a run has it, and the severity of a failure that has the same effect."""
_FAILING = {
    "critical": ("a failure is critical", "{} failures are critical"),
    "high": ("a failure has high severity", "{} failures have high severity"),
}


def because(diagnosis: Diagnosis) -> str:
    """Return the reason of a run's readiness level as a clause; empty if there is none or it is not recorded."""
    found = next((rule for rule in RULES if rule[0] == diagnosis.readiness_level), None)
    if found is None or diagnosis.trust_score is None:
        return ""
    _, least, severity = found
    failures = sum(cause.severity == severity for cause in diagnosis.failure_causes)
    low = [f"trust is below {least}"] if diagnosis.trust_score < least else []
    return " and ".join([*low, *([_FAILING[severity][failures > 1].format(failures)] if failures else [])])

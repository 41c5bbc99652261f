"""The causal graph of a session: which events followed each other, and which of them led to which failure.

Nodes: every event, then one node a failure type. Edges: `precedes` between consecutive events; for every cause, `causes` from
each evidence event to its failure, and `reinforces` between its consecutive evidence events. No edge is repeated. The graph is
built on request, from the events and the causes; it is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from audit.detectors.detectors import FAILURE_TYPES, FINDING_TYPES, Cause, shown
from audit.diagnosis.events import TOOL_EVENTS, tool_name

FAILURE_NODES = frozenset(failure.node for failure in (FAILURE_TYPES | FINDING_TYPES).values())
"""Ids of the failure nodes; no event may have one of them."""


class EvidenceLink(NamedTuple):
    """An edge that a cause makes, from an event, by the id; `failure` is the node of the cause's failure type."""

    source: str
    target: str
    relation: str
    failure: str


def causal_graph(
    events: Sequence[Mapping[str, Any]], causes: Iterable[Cause], id_by_seq: Mapping[int, str]
) -> dict[str, list[dict[str, str]]]:
    """`{"nodes": [{id, type, label}], "edges": [{from, to, relation}]}` for events in order, with unique ids.

    `id_by_seq` maps positions, by which causes refer to events, to ids; evidence that is not in it has no edges.
    """
    nodes = [{"id": event["event_id"], "type": "event", "label": _label(event)} for event in events]
    edges = [
        {"from": earlier["event_id"], "to": later["event_id"], "relation": "precedes"} for earlier, later in pairwise(events)
    ]
    links: dict[tuple[str, str, str], None] = {}
    failures: dict[str, dict[str, str]] = {}
    for cause in causes:
        node = cause.failure.node
        failures[node] = {"id": node, "type": "failure", "label": cause.type}
        links.update(dict.fromkeys(link[:3] for link in evidence_links(cause, id_by_seq)))
    nodes.extend(failures.values())
    edges.extend({"from": source, "to": target, "relation": relation} for source, target, relation in links)
    return {"nodes": nodes, "edges": edges}


def evidence_links(cause: Cause, id_by_seq: Mapping[int, str]) -> Iterator[EvidenceLink]:
    """Yield the links of a cause: each of its evidence events to its failure, then its consecutive evidence events."""
    node = cause.failure.node
    ids = [id_by_seq[seq] for seq, _ in cause.evidence if seq in id_by_seq]
    yield from (EvidenceLink(event_id, node, "causes", node) for event_id in ids)
    yield from (EvidenceLink(earlier, later, "reinforces", node) for earlier, later in pairwise(ids))


def _label(event: Mapping[str, Any]) -> str:
    """The event's type, with its tool where it has one."""
    label = shown(event["event"])
    tool = tool_name(event) if event["event"] in TOOL_EVENTS else None
    return f"{label}: {shown(tool)}" if tool else label

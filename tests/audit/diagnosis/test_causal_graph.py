"""The causal graph: each event, failure type and edge occurs once, and no edge dangles."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from audit.diagnosis.diagnosis import FAILURE_NODES, causal_graph, diagnose_events

CALL = {"event": "tool_call", "tool": "search"}
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(["tool_call", "retry_event", "memory_event", "token_usage", "decision"])},
    optional={
        "event_id": st.sampled_from(["a", "b", "a#2", "event_1", "failure_infinite_tool_loop", 3]),
        "tool": st.sampled_from(["t", "u"]),
        "action": st.just("miss"),
        "total": st.just(9000),
    },
)


def graph_of(*raw_events: dict[str, Any]) -> dict[str, Any]:
    """Return the graph of a session with these events."""
    return dict(diagnose_events("s", raw_events)["causal_graph"])


def edge(source: str, target: str, relation: str) -> dict[str, str]:
    """Return an edge as in the document."""
    return {"from": source, "to": target, "relation": relation}


def test_graph_of_a_small_failure() -> None:
    """Edges show the order of events, then which of them led to the failure."""
    graph = graph_of(
        {"event": "memory_event", "action": "miss", "event_id": "m1"},
        {"event": "decision", "event_id": "d"},
        {"event": "memory_event", "action": "miss", "event_id": "m2"},
    )
    assert graph["nodes"] == [
        {"id": "m1", "type": "event", "label": "memory_event"},
        {"id": "d", "type": "event", "label": "decision"},
        {"id": "m2", "type": "event", "label": "memory_event"},
        {"id": "failure_memory_degradation", "type": "failure", "label": "memory_degradation"},
    ]
    assert graph["edges"] == [
        edge("m1", "d", "precedes"),
        edge("d", "m2", "precedes"),
        edge("m1", "failure_memory_degradation", "causes"),
        edge("m2", "failure_memory_degradation", "causes"),
        edge("m1", "m2", "reinforces"),
    ]


def test_two_loops_share_a_failure_node_and_their_retries_one_edge() -> None:
    """The node stands for the failure type, however often it occurred."""
    graph = graph_of(*[CALL] * 3, *[{**CALL, "tool": "fetch"}] * 3, {"event": "retry_event"}, {"event": "retry_event"})
    failures = [node["id"] for node in graph["nodes"] if node["type"] == "failure"]
    assert failures == ["failure_infinite_tool_loop", "failure_cost_explosion"]
    assert graph["edges"].count(edge("event_6", "failure_infinite_tool_loop", "causes")) == 1
    assert graph["edges"].count(edge("event_6", "event_7", "reinforces")) == 1


def test_labels_name_the_tool_and_are_fit_to_be_shown() -> None:
    """Labels are shown on a page, but type and tool come from the agent."""
    graph = graph_of(
        {"event": "tool_call", "name": "se\u202earch"}, {"event": "x\x1b" * 100}, {"event": "skill_event", "name": "n"}
    )
    assert [node["label"] for node in graph["nodes"]] == ["tool_call: search", "x" * 80, "skill_event"]


def test_an_event_cannot_pose_as_a_failure() -> None:
    """Events may have any id, so one could imitate a failure node."""
    graph = graph_of(*[{**CALL, "event_id": "failure_infinite_tool_loop"}] * 3)
    ids = [node["id"] for node in graph["nodes"]]
    assert ids[:3] == ["failure_infinite_tool_loop#2", "failure_infinite_tool_loop#3", "failure_infinite_tool_loop#4"]
    assert ids[3] == "failure_infinite_tool_loop"


def test_no_events_make_an_empty_graph() -> None:
    """An empty session has an empty graph, not an error."""
    assert causal_graph([], [], {}) == {"nodes": [], "edges": []}


@settings(deadline=None)
@given(raw_events=st.lists(EVENTS, max_size=25))
def test_graphs_are_sound_whatever_the_ids(raw_events: list[dict[str, Any]]) -> None:
    """Node ids are unique, no edge dangles or repeats, and only `causes` edges end at failures."""
    graph = graph_of(*raw_events)
    ids = [node["id"] for node in graph["nodes"]]
    assert len(ids) == len(set(ids))
    assert len(raw_events) == sum(node["type"] == "event" for node in graph["nodes"])
    edges = [tuple(edge.values()) for edge in graph["edges"]]
    assert len(edges) == len(set(edges))
    assert max(0, len(raw_events) - 1) == sum(relation == "precedes" for _, _, relation in edges)
    for source, target, relation in edges:
        assert {source, target} <= set(ids)
        assert source not in FAILURE_NODES
        assert (relation == "causes") == (target in FAILURE_NODES)

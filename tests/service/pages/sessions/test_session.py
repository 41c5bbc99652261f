"""The page of a session: the conversation in order, what each turn was worth, what was done beside it; and the way there by an id."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from support import evaluation_builders as evaluated
from support.api_server import NOW, Call, Tokens
from support.builders import START, closing, event, exchange, incident, judgement, score
from support.pages import HTML, Elements, cookie, signed_in
from support.servers import until
from support.watch_histories import put

from analytics.store.store import Store
from audit.evaluation.cases import WHOLE_SESSION
from audit.evaluation.evaluating import evaluating, next_attempt
from audit.evaluation.whole_sessions import evaluation_of_session
from audit.exchanges.cascade import drive
from audit.exchanges.questions import Reply, outcome_state
from schemas.records import DimensionScore, Erasure, EvaluationRequest, Heartbeat, Label, Redaction
from service.pages.run_view import MAX_STEPS_PER_TURN
from service.pages.session import MAX_TEXT_LENGTH, STEPS_PER_PAGE, TURNS_PER_PAGE
from service.setup.access import AccessStore, Holder
from service.text.links import Links
from service.text.words import WORDS
from streams.engine.engine import Engine

LINKS = Links()
Look = Callable[..., str]
JUDGED: dict[str, Any] = {
    "disposition": "scored",
    "tier2_state": "scored",
    "tier2_score": 0.52,
    "tier2_dimensions": (DimensionScore(dimension="scope_compliance", score=0.52, reasoning="It strays."),),
    "anomaly": True,
    "anomaly_reasons": ("It left out what was asked.",),
    "cost_usd": 0.25,
}
HOSTILE = '<script>alert(1)</script>\u202etxt.exe {{ 7 * 7 }} " onload=x'


def assert_in_order(page: str, *texts: str) -> None:
    """Assert that the texts are on the page in this order."""
    end = 0
    for text in texts:
        assert text in page[end:], text
        end = page.index(text, end) + len(text)


def talk(store: Store, session: str = "s", turns: int = 2, **fields: Any) -> None:
    """Store a session of some turns, the second of which is anomalous."""
    put(
        store,
        "exchanges",
        [exchange(session, one, f"Answer {one}.", user_message=f"Question {one}?", **fields) for one in range(1, turns + 1)],
    )
    put(
        store,
        "scores",
        [
            score(
                session,
                one,
                **(JUDGED if one == 2 else {}),
                **{k: v for k, v in fields.items() if k in ("project", "connection", "agent")},
            )
            for one in range(1, turns + 1)
        ],
    )


def test_a_conversation_is_shown_in_order(store: Store, look: Look) -> None:
    """The conversation is shown in order, with the findings of each turn."""
    talk(
        store,
        agent="scout",
        agent_thinking="Let me see.",
        agent_model="sonnet-5",
        input_tokens=7,
        output_tokens=3,
        labels=(Label(name="agent_version", value="7"),),
    )
    page = look(LINKS.session("ops", "s"))
    assert_in_order(
        page,
        "<h1><bdi>Question 1?</bdi>",
        "Session <bdi>s</bdi>",
        "Turn 1",
        "Question 1?",
        "Thinking, 11 characters",
        "Let me see.",
        "Answer 1.",
        "Turn 2",
        "0.52",
        "It left out what was asked.",
        "Question 2?",
        "Answer 2.",
    )
    assert_in_order(page, "Cost of judging", "$0.25", "Tokens of the agent", ">20<", "14 in, 6 out")
    assert_in_order(page, "About this session", "local", "sonnet-5", "agent_version", "7")
    for number in (1, 2):
        assert LINKS.exchange("ops", score("s", number).score_id, score("s", number).exchange_at).replace("&", "&amp;") in page


def test_an_open_answer_is_shown_with_the_time_at_which_it_counts(store: Store, engine: Engine, look: Look) -> None:
    """A session whose answer is still being written is not empty, and nobody has to guess when its exchange will appear."""
    gap = timedelta(minutes=engine.policy.session_gap_minutes)
    newest = NOW - timedelta(minutes=1)
    talk(store)
    asked = replace(event("s", 90, event="tool_call", tool="search"), exchange_id="open")
    put(store, "agent-events", [replace(asked, occurred_at=newest)])
    counts_at = f'datetime="{newest + gap:%Y-%m-%dT%H:%M}'
    for page in (look(LINKS.session("ops", "s")), look(LINKS.project("ops"))):
        assert_in_order(page, "1 answer", counts_at, "session idle limit")
    put(store, "agent-events", [replace(asked, session_id="old", event_id="old", exchange_id="old")])
    assert "import it again" in look(LINKS.session("ops", "old"))
    put(store, "exchanges", [replace(exchange("s", 3, "Done."), exchange_id="open", occurred_at=newest)])
    assert "session idle limit" not in look(LINKS.session("ops", "s"))
    assert "session idle limit" not in look(LINKS.project("ops"))


def test_events_are_shown_with_their_turn_in_order_of_time(store: Store, look: Look) -> None:
    """Calls between two questions belong to the first one."""
    talk(store)
    events = [
        event("s", 0, event="session_start"),
        event("s", 90, event="tool_call", tool="search"),
        event("s", 150, event="tool_output", tool="search", is_error=True),
    ]
    put(store, "agent-events", events)
    page = look(LINKS.session("ops", "s"))
    assert_in_order(
        page, "Before the first turn", "session_start", "Turn 1", "tool_call", "search", "Turn 2", "tool_output", "failed"
    )


def test_an_event_that_names_its_exchange_is_shown_there(store: Store, look: Look) -> None:
    """Sources differ in whether an event has the time of the question or of the answer, so the id decides."""
    talk(store)
    put(store, "agent-events", [event("s", 30, event="tool_call", tool="lookup", exchange_id="s:2")])
    page = look(LINKS.session("ops", "s"))
    assert page.index("Turn 2") < page.index("lookup")
    assert "Before the first turn" not in page


def test_long_sessions_are_paged_and_each_turn_has_a_link(store: Store, look: Look) -> None:
    """A page of five thousand turns would never load, but a link to a turn must still work."""
    talk(store, turns=2 * TURNS_PER_PAGE + 1)
    first = look(LINKS.session("ops", "s"))
    assert f"Turns 1 to {TURNS_PER_PAGE} of {2 * TURNS_PER_PAGE + 1}" in first
    assert f"Question {TURNS_PER_PAGE}?" in first
    assert f"Question {TURNS_PER_PAGE + 1}?" not in first
    assert LINKS.session("ops", "s", "local", fragment="turns", turn=TURNS_PER_PAGE + 1).replace("&", "&amp;") in first
    strip = first.split('aria-label="Turns"')[1].split("</nav>")[0]
    assert strip.count("<a ") == 2 * TURNS_PER_PAGE + 1
    last_page = LINKS.session("ops", "s", "local", fragment="turns", turn=2 * TURNS_PER_PAGE + 1).replace("&", "&amp;")
    assert f'<a href="{last_page}">Last</a>' in first
    last = look(LINKS.session("ops", "s", turn=2 * TURNS_PER_PAGE + 1))
    assert f"Question {2 * TURNS_PER_PAGE + 1}?" in last
    assert f"Question {TURNS_PER_PAGE}?" not in last
    around = look(LINKS.session("ops", "s", exchange=f"s:{TURNS_PER_PAGE + 5}"))
    assert f"Turns {TURNS_PER_PAGE + 1} to {2 * TURNS_PER_PAGE} of" in around
    assert "No such turn" in look(LINKS.session("ops", "s", turn=5000))


def test_a_search_finds_turns_of_all_pages_and_leads_from_one_to_the_next(store: Store, look: Look) -> None:
    """A reviewer looks for a word in a session of hundreds of turns. A turn that is not on the page must be found, too."""
    turns = 3 * TURNS_PER_PAGE
    talk(store, turns=turns)
    page = look(LINKS.session("ops", "s", find="ANSWER 45."))
    assert re.findall("<mark>(.*?)</mark>", page) == ["Answer 45."]
    assert "Turn 1 of 1 with it" in page
    page = look(LINKS.session("ops", "s", find="question 5"))
    hits = [number for number in range(1, turns + 1) if str(number).startswith("5")]
    assert f"Turn 1 of {len(hits)} with it" in page
    for place, following in pairwise(hits):
        (link,) = re.findall(r'rel="next" data-key="n" href="([^"]+)"', page)
        assert link.endswith(f"#turn-title-{following}")
        page = look(html.unescape(link))
        assert f'aria-labelledby="turn-title-{following}" data-match data-current' in page
        assert re.findall(r'rel="prev" data-key="p" href="[^"]*#turn-title-(\d+)"', page) == [str(place)]
    assert "No turn contains it" in look(LINKS.session("ops", "s", find="%"))


def test_durations_are_shown_where_records_tell_them_and_named_unknown_elsewhere(store: Store, look: Look) -> None:
    """A wait of a tool explains a slow turn. A guess would blame the wrong one."""
    talk(store)
    steps = [
        ("tool_call", 3, {"tool_call_id": "a"}),
        ("tool_call", 4, {"tool_call_id": "b"}),
        ("tool_output", 9, {"tool_call_id": "a"}),
        ("tool_output", 10, {"duration_ms": 1250}),
        ("tool_output", 10, {"duration_ms": 0, "tool_call_id": "b"}),
        ("tool_output", 11, {}),
        ("session_end", 40, {}),
    ]
    put(
        store,
        "agent-events",
        [
            replace(event("s", number, event=name, **payload), occurred_at=START + timedelta(minutes=1, seconds=seconds))
            for number, (name, seconds, payload) in enumerate(steps, 1)
        ],
    )
    page = look(LINKS.session("ops", "s"))
    outputs = re.findall(r"<strong>tool_output</strong> <small>(.*?)</small>", page)
    assert outputs == ["6 s", "1.2 s", "0 ms", "duration unknown"]
    assert "2 of 2 calls report it" in page
    first, second = re.findall(r'<h3 id="turn-title-\d+">.*?</h3>', page)
    assert ("11 s" in first, "duration" in second) == (True, False)


def test_a_session_can_be_filtered_for_anomalies(store: Store, look: Look) -> None:
    """In a long session, users want to see only the turns with anomalies."""
    talk(store, turns=TURNS_PER_PAGE + 2)
    page = look(LINKS.session("ops", "s", only="anomalies"))
    assert "Turns 1 to 1 of 1 with an anomaly" in page
    assert "Answer 2." in page
    assert "Answer 1." not in page
    look("/projects/ops/sessions/s?only=odd", 400)


def test_many_events_of_a_turn_have_their_own_page(store: Store, look: Look) -> None:
    """A turn may call ten thousand tools: some are shown, and all can be reached."""
    talk(store, turns=1)
    count = STEPS_PER_PAGE + MAX_STEPS_PER_TURN
    put(store, "agent-events", [event("s", 61 + one, event="tool_call", tool=f"tool-{one}.") for one in range(count)])
    page = look(LINKS.session("ops", "s"))
    assert f"All {count} events of this turn" in page
    assert f"tool-{MAX_STEPS_PER_TURN - 1}." in page
    assert f"tool-{MAX_STEPS_PER_TURN}." not in page
    alone = look(LINKS.session("ops", "s", "local", part=1))
    assert f"1 to {STEPS_PER_PAGE} of {count}" in alone
    assert "Back to the conversation" in alone
    assert f"tool-{count - 1}." in look(LINKS.session("ops", "s", part=1, step=STEPS_PER_PAGE + 1))
    assert "There are no events here" in look(LINKS.session("ops", "s", part=7))


def test_a_session_with_only_events_or_heartbeats_has_a_page(store: Store, look: Look) -> None:
    """Some agents send events but no exchanges."""
    put(store, "agent-events", [event("s", one, event="tool_call", tool="search") for one in range(3)])
    put(
        store,
        "heartbeats",
        [Heartbeat(connection="local", project="ops", session_id="beat", occurred_at=START, ingested_at=START)],
    )
    page = look(LINKS.session("ops", "s"))
    assert "1 to 3 of 3: 3 tool_call" in page
    assert "Conversation" not in page
    assert "only heartbeats" in look(LINKS.session("ops", "beat"))


def test_an_open_session_is_marked(store: Store, look: Look) -> None:
    """A session in progress must be marked as incomplete."""
    talk(store)
    assert "Still open" in look(LINKS.session("ops", "s"))
    put(store, "exchanges", [closing("s", 3)])
    page = look(LINKS.session("ops", "s"))
    assert "Still open" not in page
    assert_in_order(page, "ended", "Closed", "its sender, a command or an operator ended it")


def test_deleted_texts_leave_the_findings(store: Store, look: Look) -> None:
    """Retention deletes texts earlier than scores."""
    put(store, "scores", [score("s", 1, **JUDGED)])
    page = look(LINKS.session("ops", "s"))
    assert_in_order(page, "Turn 1", "0.52", "The texts were deleted.")


def test_omitted_text_is_counted_and_linked(store: Store, look: Look) -> None:
    """Omitted text is counted and linked."""
    redacted_exchange = exchange(
        "s",
        1,
        "x" * (MAX_TEXT_LENGTH + 7),
        redactions=(Redaction(kind="token", count=2),),
        user_message="The key is [redacted].",
    )
    put(store, "exchanges", [redacted_exchange])
    put(store, "scores", [score("s", 1)])
    page = look(LINKS.session("ops", "s"))
    assert_in_order(
        page,
        f"Cut after {MAX_TEXT_LENGTH // 1000},{MAX_TEXT_LENGTH % 1000:03} of",
        "Download the full text",
        "<bdi>token</bdi> removed",
    )


def test_a_session_links_to_the_incidents_that_name_it(store: Store, look: Look) -> None:
    """Incidents link to sessions, so sessions must link back."""
    talk(store)
    evidence = '{"exchanges": [{"connection": "local", "sessionId": "s"}]}'
    put(
        store,
        "incidents",
        [
            incident(incident_id="i1", title="Tier 2 fell", metadata=evidence),
            incident(incident_id="i2", title="Another", metadata="{}"),
        ],
    )
    page = look(LINKS.session("ops", "s"))
    assert LINKS.incident("ops", "i1") in page
    assert "Tier 2 fell" in page
    assert "Another" not in page


def test_a_session_links_to_neighbouring_sessions_of_its_agent(store: Store, look: Look) -> None:
    """Links to neighbouring sessions help to find when a problem began."""
    for number, (session, agent) in enumerate((("one", "scout"), ("two", "guide"), ("three", "scout"), ("four", "scout"))):
        at = START + timedelta(hours=number)
        put(store, "exchanges", [exchange(session, 1, agent=agent, occurred_at=at, ingested_at=at)])
    page = look(LINKS.session("ops", "three"))
    assert_in_order(
        page,
        f'rel="prev" href="{LINKS.session("ops", "one", "local")}"',
        f'rel="next" href="{LINKS.session("ops", "four", "local")}"',
    )
    assert LINKS.session("ops", "two", "local") not in page


def test_a_finished_session_shows_its_run(call: Call, tokens: Tokens, loop: asyncio.Runner, engine: Engine, look: Look) -> None:
    """The page shows the run's verdict beside the conversation."""
    body = {"session_id": "a/b c", "first_seq": 0, "events": [{"timestamp": "2026-10-01T09:00:00Z", "event": "session_start"}]}
    assert call("POST", "/api/audit/events", tokens.ops, json=body).status_code == 201
    call("POST", "/api/audit/sessions/a%2Fb%20c/finalize", tokens.ops)
    loop.run(engine.wait_until_drained())
    until(lambda: call("GET", "/api/audit/ops/runs", tokens.root).json()["runs"], "the diagnosis")
    page = look(LINKS.session("ops", "a/b c"))
    assert_in_order(page, "<h1>Session <bdi>a/b c</bdi>", LINKS.run("ops", "run_001"))
    assert LINKS.session("ops", "a/b c", "north") in look(LINKS.run("ops", "run_001"))


def test_an_id_redirects_to_its_session(call: Call, tokens: Tokens, store: Store) -> None:
    """Users paste ids from logs behind /sessions/."""
    talk(store)
    browser = cookie(signed_in(call, tokens.root))
    answer = call("GET", "/sessions/s", headers=browser)
    assert answer.status_code == 303
    assert answer.headers["location"] == LINKS.session("ops", "s")
    assert call("GET", "/sessions/nothing", headers=browser).status_code == 404
    assert call("GET", "/sessions/s", headers=HTML).status_code == 303


def test_an_ambiguous_id_offers_the_visible_sessions(call: Call, tokens: Tokens, store: Store, look: Look) -> None:
    """Ids are unique within a connection only, and sessions of hidden projects must not be offered."""
    talk(store)
    talk(store, connection="south", project="web")
    page = look("/sessions/s")
    assert_in_order(page, "2 connections have a session with this id")
    assert LINKS.session("ops", "s", "local") in page
    assert LINKS.session("web", "s", "south") in page
    reader = cookie(signed_in(call, tokens.ops_reader))
    answer = call("GET", "/sessions/s", headers=reader)
    assert answer.status_code == 303
    assert answer.headers["location"] == LINKS.session("ops", "s")
    assert call("GET", LINKS.session("web", "s"), headers=reader).status_code in (403, 404)


def test_an_id_shared_by_two_connections_asks_for_the_connection(store: Store, look: Look) -> None:
    """The connection in the address resolves the ambiguity."""
    talk(store)
    talk(store, connection="south")
    assert "Which one?" in look(LINKS.session("ops", "s"))
    assert "Conversation" in look(LINKS.session("ops", "s", "south"))


def test_a_deleted_session_is_explained(access: AccessStore, store: Store, look: Look) -> None:
    """Alerts may link to sessions that have been erased since."""
    talk(store)
    assert "It may have been erased, or its retention period has passed." in look(LINKS.session("ops", "nothing"), 404)
    access.add(Holder("connection", "local", "ops"))
    put(
        store,
        "erasures",
        [
            Erasure(
                erasure_id="e", connection="local", session_id="gone", requested_by="ada", occurred_at=START, ingested_at=START
            )
        ],
    )
    page = look(LINKS.session("ops", "gone"), 404)
    assert "erased" in page
    assert "ada requested that on 2026-10-01" in page
    assert "ada asked" not in look(LINKS.session("web", "gone"), 404)


def test_no_foreign_text_is_markup(store: Store, look: Look) -> None:
    """Users, agents, tools and senders of ids write these texts."""
    hostile_exchange = exchange(
        HOSTILE,
        1,
        HOSTILE,
        user_message=HOSTILE,
        agent_thinking=HOSTILE,
        agent=HOSTILE,
        agent_model=HOSTILE,
        tags=(HOSTILE,),
        labels=(Label(name="tenant", value=HOSTILE),),
    )
    put(store, "exchanges", [hostile_exchange])
    put(
        store,
        "scores",
        [score(HOSTILE, 1, score_id="one", **JUDGED | {"anomaly_reasons": (HOSTILE,), "tier1_flags": (HOSTILE,)})],
    )
    put(store, "agent-events", [event(HOSTILE, 120, event=HOSTILE, tool=HOSTILE, note=HOSTILE)])
    page = look(LINKS.session("ops", HOSTILE))
    assert Elements(page).active() == []
    assert "\u202e" not in page


def test_the_api_answer_is_complete_and_paged(call: Call, tokens: Tokens, store: Store) -> None:
    """A script that analyses a session gets the content of the page without truncation."""
    long = "x" * (MAX_TEXT_LENGTH + 1)
    talk(store, turns=3, agent_thinking=long)
    put(store, "judgements", [judgement("s", 2)])
    first = call("GET", "/api/audit/ops/sessions/s?limit=2", tokens.root).json()
    session = first["session"]
    assert session["connection"] == "local"
    assert session["sessionId"] == "s"
    assert session["state"] == "open"
    assert session["exchanges"] == 3
    assert session["scores"] == 3
    assert session["anomalies"] == 1
    assert session["judgeCostUsd"] == 0.25
    assert [one["turn"] for one in first["turns"]] == [1, 2]
    assert long == first["turns"][0]["agentThinking"]
    assert tuple(first["turns"][1][name] for name in ("tier2", "anomaly", "anomalyReasons")) == (
        0.52,
        True,
        ["It left out what was asked."],
    )
    next_page = call("GET", f"/api/audit/ops/sessions/s?limit=2&turn={first['nextTurn']}", tokens.root).json()
    assert [one["turn"] for one in next_page["turns"]] == [3]
    assert next_page["nextTurn"] is None
    assert call("GET", "/api/audit/ops/sessions/nothing", tokens.root).status_code == 404


def test_the_api_asks_for_the_connection_of_an_ambiguous_id(call: Call, tokens: Tokens, store: Store) -> None:
    """As for exchanges, an id may belong to several connections."""
    talk(store)
    talk(store, connection="south")
    answer = call("GET", "/api/audit/ops/sessions/s", tokens.root)
    assert answer.status_code == 409
    assert answer.json()["code"] == "ambiguous"
    assert call("GET", "/api/audit/ops/sessions/s?connection=south", tokens.root).status_code == 200


@pytest.mark.parametrize("address", ["?turn=0", "?part=-1", "?turn=x", "?connection=A%20B"])
def test_an_invalid_address_is_an_error_page(store: Store, look: Look, address: str) -> None:
    """Errors must be pages, not stack traces."""
    talk(store)
    look(f"/projects/ops/sessions/s{address}", 400)


def request_judgement(attempt: int = 0) -> EvaluationRequest:
    """Return the request to judge session `s` as a whole."""
    request = evaluated.make_request(
        evaluated.case(case_id=WHOLE_SESSION),
        evaluated.plan(),
        session_id="s",
        project="ops",
        evaluation_id=evaluation_of_session("local", "s"),
        sampling_probability=0.5,
    )
    return next_attempt(request, attempt, ())


def test_the_verdict_on_a_whole_session_is_shown_with_its_evidence_or_why_there_is_none(store: Store, look: Look) -> None:
    """A reader must tell a session that was not drawn from one that the judge could not score."""
    talk(store)
    put(store, "exchanges", [closing("s", 9)])
    request = request_judgement()
    address = LINKS.session("ops", "s", "local")
    assert "The session as a whole" not in look(address)  # off by default
    put(store, "evaluation-requests", [request])
    assert "The judge is being asked." in look(address)
    answer = evaluated.answer_json(evaluated.answer(6.5, task=2.5))
    reply = partial(evaluated.judgement, text=answer)
    result = drive(evaluating(request), lambda question: Reply(text=answer, judgements=(reply(question),)))
    put(store, "evaluations", [result])
    page = look(address)
    assert_in_order(page, "The session as a whole", "6.5", "Task", "2.5")
    assert LINKS.evaluation("ops", request.evaluation_id) in page


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (
            "cost_cap",
            "The cap on judging a session as a whole (sessionJudging.costCap in the policy) left no room for the call.",
        ),
        ("project_day_cap", WORDS["reasons"]["project_day_cap"]),
        ("refused", WORDS["reasons"]["refused"]),
    ],
)
def test_a_failed_judgement_of_a_session_names_its_reason_in_whole_sentences(
    store: Store, look: Look, outcome: str, reason: str
) -> None:
    """A session's judgement has a cap of its own, not that of the session's exchanges; a new attempt hides the old reason."""
    talk(store)
    put(store, "exchanges", [closing("s", 9)])
    put(store, "evaluation-requests", [request_judgement()])
    put(store, "evaluations", [drive(evaluating(request_judgement()), lambda _: Reply(state=outcome_state(outcome)))])
    address = LINKS.session("ops", "s", "local")
    assert f"The judge gave no verdict. {reason} <a" in html.unescape(look(address))
    put(store, "evaluation-requests", [request_judgement(1)])
    assert "The judge is being asked. <a" in look(address)

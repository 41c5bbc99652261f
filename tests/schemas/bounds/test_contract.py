"""The contract of external records: a record and its row in a batch are refused for the same reasons with the same message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as build

from audit.exchanges.outcomes import NOT_SAMPLED, Sampled, structural_score
from audit.policy import Policy
from schemas.bounds import (
    MAX_COUNT,
    MAX_DEPTH,
    MAX_ID,
    MAX_LABEL,
    MAX_LABELS,
    MAX_MADE_ID,
    MAX_TOOL_CALLS,
    MAX_TOOL_TEXT_BYTES,
    OUTCOMES,
    TOOL_OUTCOMES,
)
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import encode
from schemas.contract import (
    Between,
    Identifier,
    JsonObject,
    Labels,
    Named,
    OneOf,
    Rule,
    ToolCalls,
    breaches,
    check_record,
    rules_of,
)
from schemas.errors import BoundsError
from schemas.records import Anchor, Exchange, Heartbeat, JudgingRequest, Record, Review
from schemas.registry import schema_of, topics
from streams.sources.openclaw.tree import outcome_of

AT = datetime(2026, 10, 1, 9, 0, tzinfo=UTC)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(
        [
            "",
            "../etc",
            "a/b",
            "A",
            "-a",
            "a\n",
            " ",
            "\u3000",
            "\x1c",
            "\x85",
            "\xa0",
            "\u200b",
            "\0",
            "a\0b",
            "é" * MAX_ID,
            "é" * (MAX_ID + 1),
            "a" * 63,
            "a" * 64,
            "answered",
        ]
    ),
)
NESTED = "[" * MAX_DEPTH + "]" * MAX_DEPTH
JSONS = st.one_of(
    TEXTS,
    st.recursive(st.none() | st.text(max_size=2), lambda one: st.dictionaries(st.text(max_size=2), one, max_size=3)).map(
        lambda value: msgspec.json.encode(value).decode()
    ),
    st.sampled_from(
        [
            "{",
            "[1]",
            "{} {}",
            '{"a":1},{"b":2}',
            '{"a":NaN}',
            '{"a":1e999}',
            f'{{"a":{"1" * 5000}}}',
            f'{{"a":"{"1" * 5000}"}}',
            '{"a":"\\ud800"}',
            '{"a":"\\q"}',
            f'{{"a":{NESTED}}}',
            f'{{"a":{NESTED[1:-1]}}}',
            f'{{"a":"{NESTED}"}}',
        ]
    ),
)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([-1, 0, 1, 5, 6, MAX_COUNT, MAX_COUNT + 1])
CALL_TEXTS = st.none() | st.sampled_from(["", "x" * MAX_TOOL_TEXT_BYTES, "é" * (MAX_TOOL_TEXT_BYTES // 2) + "a"])
TOOL_CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.just("search") | TEXTS,
            "arguments": CALL_TEXTS,
            "result": CALL_TEXTS,
            "outcome": st.sampled_from(TOOL_OUTCOMES) | TEXTS,
        }
    ),
    max_size=2,
) | st.sampled_from(
    [
        [{"name": "search", "arguments": None, "result": None, "outcome": "ok"}] * count
        for count in (MAX_TOOL_CALLS, MAX_TOOL_CALLS + 1)
    ]
)
CALLS_TYPE = pl.List(pl.Struct(dict.fromkeys(("name", "arguments", "result", "outcome"), pl.String)))
LABELS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["model", "agent", "agent_model", "tenant", "Tenant"]) | TEXTS, "value": st.just("a") | TEXTS}
    ),
    max_size=3,
) | st.sampled_from([[{"name": f"n{index}", "value": "a"} for index in range(count)] for count in (MAX_LABELS, MAX_LABELS + 1)])
LABELS_TYPE = pl.List(pl.Struct(dict.fromkeys(("name", "value"), pl.String)))
KINDS: list[tuple[Rule, st.SearchStrategy[Any], Any]] = [
    (Named(), TEXTS, pl.String),
    (Named(optional=True), TEXTS, pl.String),
    (Identifier(), TEXTS, pl.String),
    (Identifier(optional=True), TEXTS, pl.String),
    (OneOf(OUTCOMES), TEXTS, pl.String),
    (JsonObject(), JSONS, pl.String),
    (ToolCalls(), TOOL_CALLS, CALLS_TYPE),
    (Labels(), LABELS, LABELS_TYPE),
    (Labels(derived=True), LABELS, LABELS_TYPE),
    (Between(0, MAX_COUNT), NUMBERS, pl.Int64),
    (Between(1, 5), NUMBERS, pl.Int64),
]


@pytest.mark.parametrize(("rule", "values", "dtype"), KINDS, ids=[str(rule)[:30] for rule, _, _ in KINDS])
def test_a_column_is_refused_exactly_where_its_values_are(rule: Rule, values: st.SearchStrategy[Any], dtype: Any) -> None:
    """A value that only one of both checks accepts would be in one runner's tables only."""

    @given(st.lists(st.none() | values, max_size=6))
    def agree(column: list[Any]) -> None:
        expected = [value is not None and rule.fault(value) is not None for value in column]
        frame = pl.DataFrame({"a": pl.Series(column, dtype=dtype)})
        assert frame.select(rule.broken(pl.col("a")).fill_null(value=False)).to_series().to_list() == expected

    agree()


HEARTBEAT = Heartbeat(connection="local", project="ops", session_id="s", occurred_at=AT, ingested_at=AT)
REVIEW = Review(
    review_id="r", project="ops", kind="human_score", subject_id="s", reviewer="ada", score=3, occurred_at=AT, ingested_at=AT
)


def request(exchange: Exchange, **fields: Any) -> JudgingRequest:
    """Return a request to judge exchange `s:1` with the encoded exchange."""
    identity = {
        "connection": "local",
        "project": "ops",
        "session_id": "s",
        "exchange_id": "s:1",
        "turn_number": 1,
        "revision": 1,
    }
    sampling = {"sampling_reason": "first_turns", "sampling_probability": 1.0, "ingested_at": AT}
    return JudgingRequest(exchange=encode(exchange), **identity | sampling | fields)  # type: ignore[arg-type]


def anchor(exchange: bytes) -> Anchor:
    """Return an anchor with these bytes as its exchange."""
    return Anchor(
        anchor_id="a",
        revision=0,
        project="ops",
        connection="local",
        exchange_id="s:1",
        exchange=exchange,
        active=True,
        chosen_by="ada",
        occurred_at=AT,
        ingested_at=AT,
    )


GOOD: list[Record] = [
    build.exchange("s", 1, turn_number=0, input_tokens=0, output_tokens=MAX_COUNT),
    build.exchange("s" * MAX_ID, 1, exchange_id="é" * MAX_MADE_ID, outcome="aborted", user_message="\0 of any length"),
    build.event("s", 1, event="tool_call", tool="t"),
    build.closing("s", 1, "idle"),
    build.score("s", 1),
    build.judgement("s", 1),
    build.reservation("s", 1),
    HEARTBEAT,
    REVIEW,
    msgspec.structs.replace(REVIEW, project="", kind="dead_letter", score=None, status="retried"),
    request(build.exchange("s", 1)),
    anchor(encode(build.exchange("s", 1))),
]
CASES: list[tuple[Record, str]] = [
    (build.exchange("s", 1, project="../etc"), "Exchange.project: '../etc' is not a valid name"),
    (build.exchange("s", 1, project=""), "Exchange.project: '' is not a valid name"),
    (build.exchange("s", 1, connection="a/b"), "Exchange.connection: 'a/b' is not a valid name"),
    (build.exchange("", 1), "Exchange.session_id: has 0 characters"),
    (build.exchange("s" * 257, 1), "Exchange.session_id: has 257 characters"),
    (build.exchange("s\0", 1, exchange_id="x"), "Exchange.session_id: contains control characters"),
    (build.exchange(" ", 1), "Exchange.session_id: is blank"),
    (build.exchange("s", 1, exchange_id=""), "Exchange.exchange_id: has 0 characters"),
    (build.exchange("s", 1, agent=""), "Exchange.agent: has 0 characters"),
    (build.exchange("s", 1, turn_number=-1), "Exchange.turn_number: -1 is not from 0"),
    (build.exchange("s", 1, input_tokens=-5), "Exchange.input_tokens: -5 is not from 0"),
    (build.exchange("s", 1, output_tokens=1 << 62), "Exchange.output_tokens: 4611686018427387904 is not from 0"),
    (build.exchange("s", 1, outcome="splendid"), "Exchange.outcome: 'splendid' is none of answered"),
    (msgspec.structs.replace(build.event("s", 1), payload="no JSON"), "AgentEvent.payload: is not JSON"),
    (msgspec.structs.replace(build.event("s", 1), payload="[]"), "AgentEvent.payload: is not a readable JSON object"),
    (msgspec.structs.replace(build.event("s", 1), event_id=""), "AgentEvent.event_id: has 0 characters"),
    (msgspec.structs.replace(build.event("s", 1), event=" "), "AgentEvent.event: is blank"),
    (msgspec.structs.replace(build.event("s", 1), seq=-1), "AgentEvent.seq: -1 is not from 0"),
    (msgspec.structs.replace(build.event("s", 1), tokens=-1), "AgentEvent.tokens: -1 is not from 0"),
    (build.closing("s", 1, "whim"), "SessionClosed.reason: 'whim' is none of"),
    (msgspec.structs.replace(HEARTBEAT, project="../etc"), "Heartbeat.project: '../etc' is not a valid name"),
    (msgspec.structs.replace(REVIEW, kind="praise"), "Review.kind: 'praise' is none of"),
    (msgspec.structs.replace(REVIEW, score=6), "Review.score: 6 is not from 1 to 5"),
    (msgspec.structs.replace(REVIEW, status="gone"), "Review.status: 'gone' is none of"),
    (build.judgement("s", 1, outcome="won"), "Judgement.outcome: 'won' is none of"),
    (build.judgement("s", 1, cost_usd=-1.0), "Judgement.cost_usd: -1.0 is not from 0"),
    (build.reservation("s", 1, subject_id=""), "Reservation.subject_id: has 0 characters"),
    (build.score("s", 1, project="../etc"), "Score.project: '../etc' is not a valid name"),
    (
        request(build.exchange("t", 1, exchange_id="s:1")),
        "JudgingRequest.exchange: its session_id differs from that of the record",
    ),
    (request(build.exchange("s", 1, outcome="?")), "JudgingRequest.exchange: Exchange.outcome: '?' is none of"),
    (request(build.exchange("s", 1), sampling_probability=1.5), "JudgingRequest.sampling_probability: 1.5 is not from 0 to 1"),
    (anchor(b"no exchange"), "Anchor.exchange: the value starts with"),
    (anchor(encode(HEARTBEAT)), "Anchor.exchange: is a Heartbeat, not an Exchange"),
]


@pytest.mark.parametrize(("record", "message"), CASES, ids=[message[:40] for _, message in CASES])
def test_a_violation_is_refused_with_its_field(record: Record, message: str) -> None:
    """The message is the same over HTTP, in files and on topics; the other records of a batch are accepted."""
    with pytest.raises(BoundsError) as caught:
        check_record(record)

    assert str(caught.value).startswith(message)
    good = next(one for one in GOOD if type(one) is type(record))
    name, frame = next(iter(decode_batch([encode(one) for one in (good, record, good)]).frames.items()))
    errors = breaches(name, frame, pl.Series([None] * 3, dtype=pl.Datetime("us", "UTC")))
    assert {row: str(error) for row, error in errors.items()} == {1: str(caught.value)}


@pytest.mark.parametrize("record", GOOD, ids=lambda record: type(record).__name__)
def test_valid_records_are_accepted(record: Record) -> None:
    """A limit that is off by one would refuse valid records."""
    check_record(record)


@pytest.mark.parametrize("model", ["model-1", "", "é" * (MAX_LABEL + 1)])
def test_the_score_of_an_exchange_with_a_model_keeps_the_contract(model: str) -> None:
    """Its labels name the model and a late arrival, which an exchange's own labels may not: the sink must not set it aside."""
    audited = msgspec.structs.replace(build.exchange("s", 1), agent_model=model, ingested_at=AT + timedelta(days=9))
    sampled = Sampled(0, 1, "sampling_skip", None, 1.0, ())
    score = structural_score(sampled, audited, Policy().for_project("ops"), NOT_SAMPLED, tampering=())
    assert [(label.name, label.value) for label in score.labels] == [("arrival", "later"), ("model", model)]
    check_record(score)
    frame = decode_batch([encode(score)]).frames["Score"]
    assert breaches("Score", frame, pl.Series([None], dtype=pl.Datetime("us", "UTC"))) == {}


def test_a_time_more_than_a_day_after_receipt_is_refused() -> None:
    """A record of 2099 would be the newest one until then; a clock that is a few hours fast is tolerated."""
    day, far_future = timedelta(days=1), datetime(2099, 1, 1, tzinfo=UTC)
    records = [
        msgspec.structs.replace(HEARTBEAT, occurred_at=at, ingested_at=at)
        for at in (AT + day, AT + day + timedelta(microseconds=1), far_future)
    ]
    frame = decode_batch([encode(record) for record in records]).frames["Heartbeat"]
    errors = breaches("Heartbeat", frame, pl.Series([AT] * 3))
    assert sorted(errors) == [1, 2]
    assert str(errors[2]).startswith(
        "Heartbeat.occurred_at: 2099-01-01T00:00:00+00:00 is more than a day after the record was received"
    )
    assert breaches("Heartbeat", frame, pl.Series([None] * 3, dtype=pl.Datetime("us", "UTC"))) == {}


def test_every_record_type_of_a_topic_has_rules_for_its_owner() -> None:
    """A new type without rules would bypass the contract."""
    for name in {name for names in topics().values() for name in names}:
        rules = rules_of(name)
        assert rules, name
        assert {"connection", "project", "session_id"} & set(rules) or name == "DeadLetter"


def test_defaults_keep_the_contract() -> None:
    """Old records get the defaults of added fields and must stay readable."""
    broken = [
        f"{name}.{field['name']}"
        for name in {name for names in topics().values() for name in names}
        for field in schema_of(name).fields
        if (rule := rules_of(name).get(field["name"])) and field.get("default") is not None and rule.fault(field["default"])
    ]
    assert broken == []


@pytest.mark.parametrize("stop", [None, "stop", "error", "aborted", "whatever"])
@pytest.mark.parametrize("text", ["", "Done."])
def test_outcomes_of_files_are_those_of_the_contract(text: str, stop: str | None) -> None:
    """Topics accept only the outcomes of the contract."""
    assert outcome_of(text, stop) in OUTCOMES

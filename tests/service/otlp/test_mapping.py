"""Mapping beside the server says what mapping in it says, of whatever comes, and under the policy that is in force."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_processes import LABELS, answered, mapping_process, ready, task_of
from otlp.captured import dialects, requests_of
from otlp.spans import agent, body, request, span
from trials import examples

from audit.policy.policy_fields import RedactionSettings
from audit.policy.policy_fields import SecretPattern as PolicyPattern
from audit.redaction.redactor import Redactor
from schemas.codec.single_object import decode
from service.http.bounds import MAX_SPANS, MAX_UNPACKED
from service.otlp import mapping_child
from service.otlp.mapping import LogLine, MappedSpans, MappingTask, mapped
from service.otlp.mapping_process import MODULE, MappingProcess
from streams.kafka.producing import key_of
from streams.log.admission import CONFLICT, KNOWN
from streams.log.in_flight import InFlight, names_of

SECRET = "AKIA" + "QXDR7TVWCB2MHJ5K"
PLAIN = Redactor(RedactionSettings())
Beside = tuple[asyncio.Runner, MappingProcess]


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    """A process that is ready, and the loop that it belongs to."""
    with asyncio.Runner() as runner:
        process = mapping_process()
        runner.run(ready(process))
        yield runner, process
        runner.run(process.close())


def both(beside: Beside, task: MappingTask, content: bytes, redactor: Redactor = PLAIN) -> MappedSpans:
    """What mapping here says, which is what mapping beside says."""
    runner, process = beside
    here, there = mapped(task, content, redactor), runner.run(answered(process, task, content, redactor)).spans
    assert [*here.messages] == [*there.messages]
    assert ([*here.refused], here.problem) == ([*there.refused], there.problem)
    assert [*here.without_content().records] == [*there.records]
    assert [*here.records] == [*map(decode, there.messages)]
    return here


@pytest.mark.parametrize("dialect", dialects())
def test_each_dialect_is_mapped_beside_the_server_as_in_it(beside: Beside, dialect: str) -> None:
    """In both forms, packed or not: which process maps a request is a matter of its size."""
    for captured in requests_of(dialect):
        for is_json, content in ((True, captured.as_json), (False, captured.as_protobuf)):
            one = both(beside, task_of(captured.signal, is_json=is_json), content)
            packed = both(beside, task_of(captured.signal, is_json=is_json, is_packed=True), gzip.compress(content))
            assert one == packed


@given(st.data())
@settings(max_examples=examples(200))
def test_a_damaged_request_is_refused_beside_the_server_as_in_it(beside: Beside, data: st.DataObject) -> None:
    """Word for word, so that an exporter and its owner see no difference."""
    captured = data.draw(st.sampled_from(_SOUND))
    is_json, is_packed = data.draw(st.booleans()), data.draw(st.booleans())
    content = bytearray(captured.as_json if is_json else captured.as_protobuf)
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=3)):
        content[place] = byte
    whole = gzip.compress(bytes(content)) if is_packed else bytes(content)
    cut = whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole
    both(beside, task_of(captured.signal, is_json=is_json, is_packed=is_packed), cut)


_SOUND = [one for dialect in dialects()[:3] for one in requests_of(dialect)[:2]] + [
    request(agent(0), {**span(1), "traceId": "00"}, agent(2, question=f"the key {SECRET}"))
]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (gzip.compress(bytes(MAX_UNPACKED + 1)), "too_large"),
        (gzip.compress(json.dumps(body([agent(0)] * (MAX_SPANS + 1))).encode()), "too_large"),
        (b"not gzip at all", "not_gzip"),
        (gzip.compress(b"{}") * 2, "not_gzip"),
        (gzip.compress(b"[]"), "invalid"),
    ],
    ids=["bomb", "spans", "none", "two", "list"],
)
def test_what_is_refused_as_a_whole_has_the_same_words(beside: Beside, content: bytes, code: str) -> None:
    """Status, code and words are those of the API, whichever process found the problem."""
    problem = both(beside, task_of(is_packed=True), content).problem
    assert problem is not None
    assert code == problem.code


def test_another_policy_is_in_force_with_the_next_request(beside: Beside) -> None:
    """A process that went on with an old key or without a new kind of secret would write what is to be taken out."""
    sent = request(agent(0, question=f"{SECRET} and ticket-4711"), resource={"service.version": "7", "team": "blue"}).as_json
    custom = RedactionSettings(patterns=(PolicyPattern(kind="ticket", pattern="ticket-[0-9]+"),))
    redactors = [
        PLAIN,
        Redactor(RedactionSettings(), b"another key"),
        Redactor(custom),
        Redactor(RedactionSettings(enabled=False)),
    ]
    told = [both(beside, task_of(), sent, redactor).records[0].content for redactor in [*redactors, PLAIN]]
    assert 4 == len(set(told))
    assert told[0] == told[-1]
    assert "[SECRET:ticket:" in told[2]
    labelled = msgspec.structs.replace(task_of(), labels=LABELS | {"team": ("team",)})
    assert "blue" in both(beside, labelled, sent).records[0].content


def test_a_record_without_its_content_tells_all_that_intake_asks(beside: Beside) -> None:
    """Its name, its key on Kafka, and whether a repetition is one or a conflict: the content is in its encoding alone."""
    runner, process = beside
    sent, other = (request(agent(0, answer=answer)).as_json for answer in ("It is.", "It is not."))
    whole, others = mapped(task_of(), sent, PLAIN).records, mapped(task_of(), other, PLAIN).records
    handed = runner.run(answered(process, task_of(), sent, PLAIN)).spans.records
    assert "" == handed[0].content
    assert names_of("spans", whole) == names_of("spans", handed)
    assert [*map(key_of, whole)] == [*map(key_of, handed)]
    in_flight, [name] = InFlight(), names_of("spans", handed)
    in_flight.add(name, handed[0], key_of(handed[0]), ("spans", 0), 0)
    assert [KNOWN, CONFLICT] == [in_flight.outcome(name, record) for record in (whole[0], others[0])]


def test_a_task_that_fails_is_left_to_the_server(beside: Beside) -> None:
    """It runs into the same and tells of it as ever; the process goes on."""
    runner, process = beside
    assert runner.run(process.ask(b"no task", b"")) is None
    assert 1 == len(both(beside, task_of(), request(agent(0)).as_json).records)


def test_what_is_logged_beside_the_server_is_logged_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """A fault that costs a span is found in the server's log, with its trace, and nowhere else: there it is written without secrets."""
    kept, log = mapping_child.KeptLog(), logging.getLogger("mapping.test")
    log.addHandler(kept)
    log.propagate = False
    log.error("the span %s cannot be read", "7", exc_info=ValueError("broken"))
    log.removeHandler(kept)
    log.propagate = True
    [line] = kept.taken()
    assert [] == kept.taken()
    msgspec.msgpack.decode(msgspec.msgpack.encode(line), type=LogLine).write()
    [record] = caplog.records
    assert ("mapping.test", logging.ERROR, "the span 7 cannot be read") == (record.name, record.levelno, record.getMessage())
    assert "ValueError: broken" in (record.exc_text or "")


def test_the_process_loads_no_more_than_mapping_takes() -> None:
    """40 MB beside the server, not 160: no database, no web framework, no models of policies."""
    heavy = ["duckdb", "polars", "numpy", "fastapi", "starlette", "pydantic", "uvicorn", "rocksdict", "typer"]
    code = f"import sys, {MODULE}; print(*sys.modules.keys() & {heavy!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "" == done.stdout.strip()

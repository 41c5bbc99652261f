"""`driftline dead-letters`: what could not be taken is counted, shown without harm, and put back once where that can be right."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import builders as build
from support.clocks import NOW
from support.engines import rows

from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import decode, encode
from schemas.records import DeadLetter, Record, ScoringTask
from schemas.registry import published_schemas
from service.setup.settings import Settings
from service.write.dead_letters import find_dead_letter, open_dead_letters
from streams.log.admission import Admission, EncodedRecords, RecordOrigin, Refusal
from streams.log.dead_letters import Retry, RetryRefusal, plan_retry
from streams.steps.intake import IntakeStep

Command = Callable[..., tuple[int, str, str]]
HOLD = """
import sys
import duckdb
with duckdb.connect(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
KILL = """
import os
import sys
from pathlib import Path
import streams.engine.embedded
from service.cli.main import run
from streams.engine.embedded import EmbeddedRunner

def killed(self, *arguments):
    os._exit(9)

setattr(EmbeddedRunner, sys.argv[1], killed)
run(["dead-letters", "retry", "--stage", "intake", "--db", sys.argv[2]])
"""


class Letters:
    """A database whose dead letters a test makes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._accepted = EncodedRecords()
        self._now = NOW

    def set_aside(self, body: bytes, stage: str, reason: str, *, source: str = "exchanges", at: int = 0, **more: Any) -> str:
        """A letter with these bytes; answers its id. Each is a minute later than the one before."""
        self._now += timedelta(minutes=1)
        admission = Admission(Redactor(Policy().redaction), self._now)
        partition = more.pop("partition", 0)
        admission.add_dead_letter(
            self._accepted, RecordOrigin(source, at, partition), Refusal(stage, reason, "why \x1b[31m"), body, **more
        )
        message = self._accepted.messages["dead-letters"][-1]
        with Store(self.path) as store, store.transaction() as transaction:
            transaction.append("dead-letters", [message])
        record = decode(message)
        assert isinstance(record, DeadLetter)
        return record.dead_letter_id

    def failed(self, record: Record, stage: str = "intake", source: str = "exchanges", at: int = 0) -> str:
        """The letter of a record that a stage could not get over."""
        return self.set_aside(encode(record), stage, "stage_failed", source=source, at=at)


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    """A database without any letter."""
    Store(tmp_path / "driftline.duckdb").close()
    return Letters(tmp_path / "driftline.duckdb")


def letter(path: Path, name: str) -> DeadLetter:
    """A letter out of the database."""
    with open_dead_letters(Settings(database=path)) as box:
        return find_dead_letter(box.store, name).letter


def counts(path: Path, *tables: str) -> tuple[int, ...]:
    """How many rows the tables have."""
    with Store(path) as store:
        return tuple(store.count(table) for table in tables)


def lines(text: str) -> list[str]:
    """The lines of an output with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let another process hold the lock of the file while the context is open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        yield
        assert holder.stdin is not None
        holder.stdin.close()


def test_reasons_are_counted_and_the_newest_letters_listed(driftline: Command, letters: Letters) -> None:
    """Ten thousand letters have three reasons; filters apply to the counts, too."""
    for line in range(3):
        letters.set_aside(b"{", "import", "invalid", source="a.jsonl", at=line + 1, partition=None)
    name = letters.set_aside(b"\xc3\x01 unknown", "decoding", "unknown_schema", at=7, partition=3)
    code, out, _ = driftline("dead-letters", "list", "--limit", "2")
    output_lines = lines(out)

    assert code == 0
    assert output_lines[2:4] == [
        "3 import invalid 2026-11-01 12:01 2026-11-01 12:03",
        "1 decoding unknown_schema 2026-11-01 12:04 2026-11-01 12:04",
    ]
    assert "The newest 2 of 4" in output_lines
    assert f"{name[:8]} 2026-11-01 12:04 exchanges[3] at 7 decoding unknown_schema 10 why <U+001B>[31m" in output_lines
    filtered = json.loads(
        driftline("dead-letters", "list", "--json", "--source", "a.jsonl", "--since", "2026-11-01T12:02:00Z")[1]
    )
    assert [(row["stage"], row["reason"], row["letters"]) for row in filtered["reasons"]] == [("import", "invalid", 2)]
    assert [row["position"] for row in filtered["letters"]] == [3, 2]
    assert tuple(text.strip() for text in driftline("dead-letters", "list", "--stage", "http")[1:]) == (
        "",
        "no dead letter matches",
    )


def test_no_letters_are_no_error(driftline: Command, letters: Letters) -> None:
    """It is the best news possible."""
    assert letters.path.exists()
    assert driftline("dead-letters", "list") == (0, "", "no dead letter\n")


def test_a_text_is_shown_line_by_line_without_control_characters(driftline: Command, letters: Letters) -> None:
    """Looking at a refused text must not run it."""
    name = letters.set_aside(
        b"first \x1b]0;title\x07\nsecond \xe2\x80\xaeold [red]", "import", "invalid", source="a.jsonl", at=4, partition=None
    )
    code, out, _ = driftline("dead-letters", "show", name[:10])
    output_lines = lines(out)

    assert code == 0
    assert output_lines[0] == f"id {name}"
    assert output_lines[1] == "from a.jsonl:4"
    assert "size 36 bytes, all stored unchanged" in output_lines
    assert any(line.startswith("retry not possible") for line in output_lines)
    assert output_lines[-2:] == ["first <U+001B>]0;title<U+0007>", "second <U+202E>old [red]"]
    assert "\x1b" not in out


def test_binary_bytes_are_shown_as_a_hex_dump_or_raw(driftline: Command, letters: Letters) -> None:
    """A dump is for people, raw bytes are for tools."""
    body = bytes(range(256)) * 8
    name = letters.set_aside(body, "decoding", "framing")
    output_lines = lines(driftline("dead-letters", "show", name)[1])

    assert "00000010 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f ................" in output_lines
    assert "00000040 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f @ABCDEFGHIJKLMNO" in output_lines
    assert output_lines[-1] == "… and 1,024 more bytes; --raw writes all"
    document = json.loads(driftline("dead-letters", "show", name, "--json")[1])
    assert document["body"] is None
    assert document["bodyHex"] == body.hex()
    assert document["whole"] is True
    assert document["retriedAt"] is None
    process = subprocess.run(
        [sys.executable, "-m", "service.cli.main", "dead-letters", "show", name, "--raw", "--db", str(letters.path)],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert body == process.stdout


@pytest.mark.parametrize(("start", "message"), [("zz", "there is no dead letter 'zz'"), ("", "there is no dead letter ''")])
def test_an_unknown_or_ambiguous_id_is_refused(driftline: Command, letters: Letters, start: str, message: str) -> None:
    """An ambiguous id lists the matching letters."""
    names = [letters.set_aside(bytes([number]), "decoding", "framing", at=number) for number in range(20)]
    code, _, err = driftline("dead-letters", "show", start)
    assert code == 2
    assert message in err
    first = next(one for one in "0123456789abcdef" if sum(name.startswith(one) for name in names) > 1)
    assert "dead letters begin with" in driftline("dead-letters", "show", first)[2]


def test_an_exchange_that_failed_in_intake_is_judged_after_a_retry(driftline: Command, letters: Letters) -> None:
    """It becomes a request, so that a rebuild gives the same; the letter is closed, and a second retry does nothing."""
    name = letters.failed(build.exchange("s", 4))
    code, out, _ = driftline("dead-letters", "retry", name[:12])

    assert code == 0
    assert lines(out) == ["1 dead letter retried, 0 not retried"]
    assert driftline("dead-letters", "list")[2] == "no dead letter\n"
    assert "done at 20" in driftline("dead-letters", "show", name)[1]
    with Store(letters.path) as store:
        assert rows(store, "scores", "exchange_id, revision, sampling_reason, sampling_probability, tier2_reason") == [
            ("s:4", 1, "retried", 1.0, "no_judge")
        ]
        assert rows(store, "reviews", "kind, subject_id, status, project") == [("dead_letter", name, "retried", "ops")]
    assert lines(driftline("dead-letters", "retry", name)[1]) == [
        f"{name[:8]} was retried before",
        "0 dead letters retried, 0 not retried",
    ]
    assert driftline("rebuild")[0] == 0
    assert counts(letters.path, "scores", "reviews") == (1, 1)


def test_a_failed_scoring_task_is_requeued_with_its_judgements(letters: Letters) -> None:
    """It is the next revision, so that it is no duplicate, and paid answers are kept."""
    exchange = build.exchange("s", 4)
    task = ScoringTask(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=2,
        exchange=encode(exchange),
        turn_number=4,
        sampling_reason="routine",
        sampling_probability=0.25,
        tier1_score=1.0,
        tier1_flags=(),
        methodology="default",
        rule_version="eval-1",
        policy_digest="0" * 16,
        earlier_judgements=(encode(build.judgement("s", 4)),),
    )
    plan = plan_retry(letter(letters.path, letters.failed(task, "scoring", "scoring-tasks")))

    assert isinstance(plan, Retry)
    assert plan.topic == "exchanges"
    assert plan.record.revision == 3
    assert plan.record.exchange == task.exchange
    assert plan.record.sampling_reason == task.sampling_reason
    assert plan.record.earlier_judgements == task.earlier_judgements
    requeued_again = plan_retry(letter(letters.path, letters.failed(plan.record, at=1)))
    assert isinstance(requeued_again, Retry)
    assert getattr(requeued_again.record, "revision", None) == 4


def test_a_repeated_failure_makes_a_new_letter(
    driftline: Command, letters: Letters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry before the fix loses nothing: the record is open again."""
    letters.failed(build.exchange("s", 4))

    def broken(*_: object) -> None:
        raise ValueError("still broken")

    monkeypatch.setattr(IntakeStep, "__call__", broken)
    with caplog.at_level(logging.CRITICAL, logger="streams.engine.embedded"):
        out = driftline("dead-letters", "retry", "--stage", "intake")[1]
    (line,) = lines(out)
    assert "1 dead letter retried, 0 not retried" in line
    assert "1 record rejected again" in line
    monkeypatch.undo()
    assert counts(letters.path, "scores", "dead_letters", "reviews") == (0, 2, 1)
    code, out, _ = driftline("dead-letters", "retry", "--stage", "intake", "--db", str(letters.path))
    assert code == 0
    assert lines(out) == ["1 dead letter retried, 0 not retried"]
    assert counts(letters.path, "scores", "dead_letters", "reviews") == (1, 2, 2)


@pytest.mark.parametrize("moment", ["publish", "run"])
def test_a_kill_during_a_retry_requeues_nothing_twice(driftline: Command, letters: Letters, moment: str) -> None:
    """Record and review are one transaction."""
    for number in range(3):
        letters.failed(build.exchange("s", number), at=number)
    arguments = [sys.executable, "-c", KILL, moment, str(letters.path)]
    killed = subprocess.run(arguments, check=False, capture_output=True, cwd=Path(__file__).parents[2])

    assert killed.returncode == 9
    assert counts(letters.path, "reviews") == ((0,) if moment == "publish" else (3,))
    driftline("dead-letters", "retry", "--stage", "intake", "--db", str(letters.path))
    driftline("rebuild", "--db", str(letters.path))
    assert counts(letters.path, "reviews", "judging_requests", "scores") == (3, 3, 3)


def test_readable_bytes_are_requeued_unchanged(driftline: Command, letters: Letters) -> None:
    """After an upgrade that knows the schema, old bytes can be read again."""
    sound = encode(build.exchange("s", 1))
    letters.set_aside(sound, "decoding", "unknown_schema", at=5, partition=2)
    event = encode(build.event("s", 0, event="message"))
    letters.set_aside(event, "decoding", "unknown_schema", source="agent-events", at=6)
    code, out, _ = driftline("dead-letters", "retry", "--reason", "unknown_schema")

    assert code == 0
    assert lines(out) == ["2 dead letters retried, 0 not retried"]
    assert counts(letters.path, "exchanges", "agent_events", "scores") == (1, 1, 1)
    assert {"Exchange", "AgentEvent"} <= set(published_schemas())


def test_a_record_refused_at_admission_can_be_admitted_later(driftline: Command, letters: Letters) -> None:
    """Admission stores the record as JSON, whose fields identify its only topic."""
    good, bad = build.exchange("s", 1), build.exchange("s", 2, occurred_at=NOW.replace(year=1970))
    for number, record in enumerate((good, bad)):
        letters.set_aside(msgspec.json.encode(record), "admission", "bounds", source="a.jsonl", at=number, partition=None)
    code, out, _ = driftline("dead-letters", "retry", "--stage", "admission")

    assert code == 1
    assert lines(out)[-1] == "1 dead letter retried, 1 not retried"
    assert "Exchange.occurred_at" in out
    assert counts(letters.path, "exchanges") == (1,)


def bodies() -> Sequence[tuple[str, str, str, bytes, str]]:
    """Stage, reason, source and bytes of letters that stay, and why."""
    exchange = build.exchange("s", 1)
    secret = encode(build.exchange("s", 1, user_message="password=hunter2-hunter2"))
    return [
        ("admission", "conflicting_id", "exchanges", msgspec.json.encode(exchange), "give the record its own id"),
        ("sink", "removed_by_retention", "exchanges", b"", "send them again from their source"),
        ("diagnosis", "state_too_large", "agent-events", encode(build.event("s", 0, event="x")), "works on whole sessions"),
        ("http", "invalid", "http:shop", b"{}", "told its sender"),
        ("diagnosis", "stage_failed", "agent-events", encode(build.event("s", 0, event="message")), "`driftline rebuild`"),
        ("intake", "stage_failed", "exchanges", encode(build.closing("s", 1)), "works on whole sessions"),
        (
            "intake",
            "stage_failed",
            "exchanges",
            secret,
            "secrets were removed from its bytes: the record is on the topic exchanges",
        ),
        ("decoding", "framing", "exchanges", b"x" * 70_000, "only 65536 of 70000 bytes were kept"),
        ("decoding", "framing", "exchanges", b"neither", "the bytes are not a record"),
        ("decoding", "framing", "exchanges", b'{"a":1}', "those of no record type of this version"),
        ("decoding", "unknown_schema", "exchanges", b"\xc3\x01" + b"\x09" * 20, "no schema has the fingerprint"),
        ("decoding", "malformed_body", "exchanges", encode(exchange)[:-3], "Exchange.withdrawn: "),
        (
            "decoding",
            "unexpected_type",
            "scores",
            encode(exchange),
            "no topic accepts a record of the type Exchange from scores",
        ),
        (
            "admission",
            "bounds",
            "a.jsonl",
            msgspec.json.encode(build.closing("s", 1)),
            "no topic accepts a record of the type SessionClosed from a.jsonl",
        ),
    ]


@pytest.mark.parametrize("case", bodies(), ids=lambda case: f"{case[0]} {case[1]} {case[4][:20]}")
def test_a_letter_that_cannot_be_requeued_gives_the_reason(
    driftline: Command, letters: Letters, case: tuple[str, str, str, bytes, str]
) -> None:
    """A guess would put another record into the log."""
    stage, reason, source, body, why = case
    name = letters.set_aside(body, stage, reason, source=source)
    plan = plan_retry(letter(letters.path, name))
    code, out, _ = driftline("dead-letters", "retry", name)

    assert isinstance(plan, RetryRefusal)
    assert code == 1
    assert why in lines(out)[0]
    assert lines(out)[-1] == "0 dead letters retried, 1 not retried"
    assert counts(letters.path, "reviews") == (0,)


@pytest.mark.parametrize("arguments", [(), ("abc", "--reason", "framing")])
def test_a_retry_of_everything_must_be_explicit(driftline: Command, letters: Letters, arguments: tuple[str, ...]) -> None:
    """The command needs ids or a filter."""
    letters.failed(build.exchange("s", 4))
    code, _, err = driftline("dead-letters", "retry", *arguments)

    assert code == 2
    assert "or by --stage" in err
    assert counts(letters.path, "reviews") == (0,)


def test_json_has_the_outcome_of_each_letter(driftline: Command, letters: Letters) -> None:
    """Scripts read it."""
    back, stays = letters.failed(build.exchange("s", 4)), letters.set_aside(b"{}", "http", "invalid")
    document = json.loads(driftline("dead-letters", "retry", back, stays, "--json")[1])

    assert document["putBack"] == [{"id": back, "topic": "exchanges", "record": "JudgingRequest"}]
    assert [one["id"] for one in document["stay"]] == [stays]
    assert document["putBackBefore"] == []
    assert document["setAsideAgain"] == 0


def test_a_file_in_use_says_what_to_do(driftline: Command, letters: Letters) -> None:
    """The process that has it is not a server, so the user has to wait or stop it."""
    letters.failed(build.exchange("s", 4))
    with lock_file(letters.path):
        answers = [driftline("dead-letters", *one) for one in (("list",), ("retry", "--stage", "intake"))]

    assert [code for code, _, _ in answers] == [2, 2]
    assert all("in use by" in err and "wait for an import to end" in err for _, _, err in answers)


def test_a_database_filled_from_kafka_takes_no_retries(driftline: Command, letters: Letters) -> None:
    """The record would be in the table but not on the topic, and lost by a rebuild."""
    letters.failed(build.exchange("s", 4))
    with Store(letters.path) as store, store.transaction() as transaction:
        transaction.set_watermark("sink", "exchanges", 7)
    code, _, err = driftline("dead-letters", "retry", "--stage", "intake")

    assert code == 2
    assert "is filled from Kafka" in err
    assert "Give --kafka" in err

"""Rows of a lake with encrypted texts: nothing in a row tells a text, and its record comes back whole, unless its session was erased."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.builders import exchange
from support.clocks import NOW
from support.erased_sessions import KEPT, MARKER, SESSION, records_of_session
from support.kafka_sinks import samples
from support.sample_records import SampleMaker

from analytics.deletion.text_keys import KeyTree
from analytics.lake import ENCRYPTED, TEXTS, Lake, all_types, rows_of
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.arrow import INDEX, decode_batch, empty_frame
from schemas.codec.single_object import encode
from schemas.errors import LakeError, SettingsError
from schemas.records import Record
from schemas.registry import schema_of
from streams.kafka.connection import KafkaConnection
from streams.kafka.encryption import TextEncryption
from streams.kafka.producing import key_of
from streams.kafka.sink import SinkWriter
from streams.lake.encrypted_rows import decrypt_rows, encrypt_rows
from streams.lake.recall import ColdSession, Recall


@dataclass
class Produced:
    """A record as a producer that does not encrypt has produced it; a `streams.kafka.reading.RawRecord`."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


@pytest.fixture
def encryption() -> TextEncryption:
    """Return an encryption whose keys were read."""
    started, tree = TextEncryption(KafkaConnection("nowhere:1"), b"secret"), KeyTree.create()
    for number, bucket in tree.buckets.items():
        started.keys.set_bucket(tree.id, number, bucket)
    started.keys.use_tree(tree.id)
    return started


def rows_for(name: str, records: Sequence[Record], encryption: TextEncryption) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of records of a type, with their texts and encrypted."""
    produced = [Produced(key_of(record), encode(record)) for record in records]
    frame = decode_batch([record.value or b"" for record in produced]).frames[name]
    topic = schema_of(name).topics[0]
    origin = {"_partition": pl.lit(0, pl.Int32), "_offset": pl.col(INDEX).cast(pl.Int64)}
    plain, encrypted = (
        rows_of(name, topic, part.with_columns(**origin, received_at=pl.lit(NOW)))
        for part in (frame, encrypt_rows(name, topic, frame, produced, encryption))
    )
    return plain, encrypted


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_row_has_no_text_and_gives_its_record_back(name: str, encryption: TextEncryption) -> None:
    """Texts may be nested in lists of structs, and null."""
    topic = schema_of(name).topics[0]
    plain, encrypted = rows_for(name, samples(name, 30), encryption)
    columns = [path.partition(".")[0] for path in TEXTS[name]]
    assert encrypted.drop(ENCRYPTED, *columns).equals(plain.drop(columns))
    decrypted = decrypt_rows(name, topic, encrypted, encryption)
    assert decrypted.rows.equals(plain)
    assert decrypted.forgotten.height == 0
    if encrypted[ENCRYPTED].null_count() < encrypted.height:
        with pytest.raises(SettingsError):
            decrypt_rows(name, topic, encrypted, None)


def test_the_texts_of_a_session_are_in_no_column(encryption: TextEncryption) -> None:
    """The columns with texts are listed by hand: what only a session can say must be in one of them."""
    for _, record in records_of_session(SampleMaker(7), SESSION, MARKER):
        name = type(record).__name__
        if name in {"Exchange", "Score", "Anchor", "Incident", "DeadLetter"}:
            _, encrypted = rows_for(name, [record], encryption)
            assert MARKER not in repr(encrypted.drop("_topic").rows()), name


def test_rows_of_an_erased_session_are_told_apart(encryption: TextEncryption) -> None:
    """They are neither texts nor damage."""
    records = [exchange(name, number) for name in (SESSION, KEPT) for number in (1, 2)]
    plain, encrypted = rows_for("Exchange", records, encryption)
    encryption.keys.forget([encryption.keys.erased_leaf("local", SESSION)])
    decrypted = decrypt_rows("Exchange", "exchanges", encrypted, encryption)
    assert decrypted.rows.equals(plain.filter(pl.col("session_id") == KEPT))
    assert decrypted.forgotten["session_id"].to_list() == [SESSION] * 2
    assert rows_for("Exchange", records, encryption)[1]["session_id"].to_list() == [KEPT] * 2
    moved = encrypted.with_columns(session_id=pl.lit("another"))
    with pytest.raises(LakeError, match="another"):
        decrypt_rows("Exchange", "exchanges", moved, encryption)


def test_a_session_that_is_fetched_from_a_lake_is_decrypted(encryption: TextEncryption, tmp_path: Path) -> None:
    """A page of a cold day shows what the session said."""
    lake = Lake(str(tmp_path / "lake"))
    lake.create()
    spoken = exchange(KEPT, 1, "It was said.")
    plain, encrypted = rows_for("Exchange", [spoken], encryption)
    lake.commit("Exchange", encrypted, {("exchanges", 0): 1})
    day = spoken.occurred_at.date()
    with Store(None) as store:
        recall = Recall(store, lake, SinkWriter(store, Redactor(Policy().redaction), lambda: NOW), encryption)
        batches = recall._read_session("ops", ColdSession("local", KEPT, day, day))
        (batch,) = (batch for batch in batches if batch.frames)
    assert batch.frames["Exchange"]["agent_response"].to_list() == plain["agent_response"].to_list() == ["It was said."]


def test_every_column_with_strings_either_has_texts_or_is_listed_as_without() -> None:
    """A new text column that nobody adds to `TEXTS` would be readable in an encrypted lake for ever."""
    for name in all_types():
        columns = sorted(string_columns(empty_frame(name).schema))
        hidden = [path for path in columns if {path, path.partition(".")[0]} & {*TEXTS.get(name, ())}]
        assert sorted({*columns} - {*hidden}) == sorted(WITHOUT_TEXTS[name].split()), name
        assert {path.partition(".")[0] for path in hidden} == {path.partition(".")[0] for path in TEXTS.get(name, ())}, name


def string_columns(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the columns with strings or bytes; a dot names a member of a struct."""
    for name, kind in schema.items():
        inner = kind.inner if isinstance(kind, pl.List) else kind
        if isinstance(inner, pl.Struct):
            yield from string_columns(dict(inner), f"{prefix}{name}.")
        elif inner in {pl.String, pl.Binary}:
            yield prefix + name


WITHOUT_TEXTS = {
    "AgentEvent": (
        "connection project agent session_id event_id event tool call_key action status source exchange_id labels.name "
        "labels.value"
    ),
    "Anchor": "anchor_id project connection exchange_id chosen_by",
    "Baseline": "baseline_id project policy_digest yardstick",
    "DeadLetter": "dead_letter_id source stage reason digest",
    "Deployment": "deployment_id project label version agent deployed_by comment url",
    "Diagnosis": (
        "connection project agent session_id closed_reason readiness_level failure_causes.type failure_causes.severity "
        "failure_causes.causal_chain failure_causes.evidence.event_id primary_failure_type primary_severity "
        "event_counts.event rule_version policy_digest evidence_digest threshold_profile threshold_changes "
        "dimensions.dimension"
    ),
    "Erasure": "erasure_id connection session_id requested_by comment",
    "Evaluation": (
        "evaluation_id request_id connection project session_id case_id subject_model fingerprint status "
        "dimensions.dimension dimensions.policy dimensions.source aggregation_method judgement_ids agent judge_run_id "
        "judge_model yardstick tags iterations.outcome iterations.judgement_id checks.check_id checks.kind "
        "checks.dimensions checks.outcome rule_version"
    ),
    "EvaluationRequest": (
        "request_id connection project session_id case_id fingerprint evaluation_id subject_model agent judge_run_id "
        "judge_model yardstick tags rule_version"
    ),
    "Exchange": (
        "exchange_id connection project agent session_id agent_model stop_reason outcome tags redactions.kind "
        "content_digest labels.name labels.value tool_calls.name tool_calls.outcome"
    ),
    "Heartbeat": "connection project agent session_id",
    "Incident": (
        "incident_id project type tier direction status severity title description baseline_id resolved_by rule cause "
        "confidence agent acknowledged_by resolution assignee snoozed_by woken_because"
    ),
    "Judgement": (
        "judgement_id fingerprint connection project session_id subject_id purpose requested_model answering_model "
        "outcome stop_reason reservation_ids repairs"
    ),
    "JudgingRequest": "connection project session_id exchange_id sampling_reason",
    "Reservation": "reservation_id fingerprint connection project session_id subject_id purpose requested_model",
    "Review": "review_id project kind subject_id reviewer status assignee queue dimensions.dimension",
    "Score": (
        "score_id exchange_id connection project agent session_id disposition sampling_reason tier1_flags tier2_state "
        "tier2_reason tier2_dimensions.dimension tier2_5_state tier2_5_reason tier3_state tier3_reason "
        "tier3_dimensions.dimension judge_model judgement_ids methodology methodology_version methodology_digest "
        "rule_version policy_digest evidence_digest labels.name labels.value"
    ),
    "ScoringTask": "connection project session_id exchange_id sampling_reason tier1_flags methodology rule_version policy_digest",
    "SessionClosed": "connection project agent session_id reason",
    "Span": "connection project session_id trace_id span_id parent_span_id content_digest",
    "TraceAssembly": "connection project agent session_id trace_id reason unused_spans.state unused_spans.scope",
}
"""The other columns: ids, names, digests, codes, and what is readable on the topics, too."""

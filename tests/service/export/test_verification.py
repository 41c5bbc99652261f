"""`driftline verify`: an export that was changed in any way does not fit its manifest, and a record that was erased is told from a lost one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import independent_verifier
from support.builders import event, exchange, judgement, score
from support.sample_records import SampleMaker
from typer.testing import CliRunner

from analytics.deletion.retention import Cutoffs, Retention
from analytics.store.store import Store
from analytics.store.tables import EVENT_TIMES
from schemas.codec.single_object import encode
from schemas.errors import InputError, StoreError
from schemas.records import DeadLetter, Erasure, Record
from schemas.registry import current_schemas
from service.cli.main import application
from service.export import sealing
from service.export.manifest import (
    MANIFEST,
    Columns,
    Expired,
    ManifestWriter,
    Records,
    Removed,
    TopicLine,
    parse_manifest,
    public_hex,
)
from service.export.parquet import Selection, export_partitions, export_tables
from service.export.sealing import sealed_schemas
from service.export.verification import STATED_ERASURE, Verification, verify_folder
from service.setup.signing_key import load_signing_key, signing_key_file
from streams.upkeep.deletion import erase

DAY = datetime(2026, 9, 1, 12, tzinfo=UTC)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
ERASED, KEPT = "session-to-be-erased", "session-to-be-kept"


def append(store: Store, topic: str, *records: Record) -> None:
    """Append records to a topic."""
    with store.transaction() as transaction:
        transaction.append(topic, [encode(record) for record in records])


def exchanges(session: str, *days: int) -> list[Record]:
    """Return an exchange of a session on each of these days."""
    return [exchange(session, number, project="ops", occurred_at=DAY + timedelta(days=day)) for number, day in enumerate(days)]


@pytest.fixture
def samples() -> SampleMaker:
    """Return a maker of sample records."""
    return SampleMaker(20261001)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a store with records of two sessions on three days."""
    with Store(tmp_path / "fleet.duckdb") as opened:
        append(opened, "exchanges", *exchanges(ERASED, 0, 1), *exchanges(KEPT, 0, 1, 2))
        append(opened, "agent-events", event(ERASED, 1, type="tool_call", tool="refund"), event(KEPT, 1))
        append(opened, "scores", score(ERASED, 0, exchange_at=DAY), score(KEPT, 0, exchange_at=DAY, tier2_score=0.1))
        yield opened


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """Return a folder with one export."""
    export_tables(store, tmp_path / "lake", KEY)
    return tmp_path / "lake"


def request_erasure(store: Store, session: str | None, number: int = 1) -> None:
    """Record and run an erasure."""
    append(
        store,
        "erasures",
        Erasure(
            erasure_id=f"e{number}",
            connection="local",
            session_id=session,
            requested_by="alex",
            occurred_at=DAY,
            ingested_at=DAY,
        ),
    )
    erase(store, DAY)


def verify(folder: Path, head: str | None = None) -> Verification:
    """Verify a folder with the key of this module."""
    return verify_folder(folder, public_hex(KEY), head)


def rewrite(folder: Path, table: str, query: str) -> None:
    """Write a table's file again with the rows of a query over `rows`, as somebody with the file and any tool could."""
    file, changed = folder / f"{table}.parquet", folder / "changed"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE rows AS SELECT * FROM read_parquet('{file}')")
        connection.execute(f"COPY ({query}) TO '{changed}' (FORMAT parquet)")
    changed.replace(file)


def lines_of(folder: Path) -> list[dict[str, object]]:
    """Return the lines of a manifest."""
    return [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]


def test_an_untouched_export_fits(folder: Path) -> None:
    """Every record is covered, on its topic and day."""
    result = verify(folder)

    assert result.problems == []
    assert (result.records, result.exports, result.keys) == (9, 1, [public_hex(KEY)])
    assert [(line["topic"], line["day"], line["records"]) for line in result.by_day if line["topic"] == "exchanges"] == [
        ("exchanges", "2026-09-01", 2),
        ("exchanges", "2026-09-02", 2),
        ("exchanges", "2026-09-03", 1),
    ]


def test_two_exports_of_the_same_data_are_equal(store: Store, folder: Path, tmp_path: Path) -> None:
    """Equal digests let two people compare exports, and an export without news adds nothing."""
    export_tables(store, tmp_path / "again", KEY)
    manifest = (folder / MANIFEST).read_bytes()
    repeated = export_tables(store, folder, KEY)

    assert (tmp_path / "again" / MANIFEST).read_bytes() == manifest
    assert (folder / MANIFEST).read_bytes() == manifest
    assert (repeated.number, repeated.head) == (1, verify(folder).head)


def test_a_later_export_continues_the_chain(store: Store, folder: Path) -> None:
    """New records, late ones included, get lines of their own, and the earlier lines stay."""
    before = (folder / MANIFEST).read_bytes()
    head = verify(folder).head
    append(store, "exchanges", *exchanges("late", 0), *exchanges("new", 4))
    export_tables(store, folder, KEY)

    result = verify(folder, head)
    assert (folder / MANIFEST).read_bytes().startswith(before)
    assert (result.problems, result.records, result.exports) == ([], 11, 2)
    days = [line["day"] for line in lines_of(folder) if line["kind"] == "records" and line["table"] == "exchanges"]
    assert days == ["2026-09-01", "2026-09-02", "2026-09-03", "2026-09-01", "2026-09-05"]


def test_partitions_of_a_topic_are_counted_apart(store: Store, tmp_path: Path) -> None:
    """Over Kafka, each partition has offsets of its own."""
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.exchanges SET _partition = 1, _offset = _offset - 2 WHERE _offset >= 2")
    export_tables(store, tmp_path / "lake", KEY)
    append(store, "exchanges", *exchanges("new", 3))
    request_erasure(store, ERASED)
    exported = export_tables(store, tmp_path / "lake", KEY)

    assert verify(tmp_path / "lake").problems == []
    assert exported.removed["exchanges", "erasure"] == 2
    assert independent_verifier.verify(tmp_path / "lake", public_hex(KEY)) == verify(tmp_path / "lake").records == 7


def test_a_record_that_arrives_behind_others_is_covered(store: Store, tmp_path: Path) -> None:
    """The exporter does not depend on the order in which a database is filled."""
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TEMP TABLE held AS SELECT * FROM log.exchanges WHERE _offset = 1")
        transaction.connection.execute("DELETE FROM log.exchanges WHERE _offset = 1")
    export_tables(store, tmp_path / "lake", KEY)
    with store.transaction() as transaction:
        transaction.connection.execute("INSERT INTO log.exchanges SELECT * FROM held")
    export_tables(store, tmp_path / "lake", KEY)

    assert (verify(tmp_path / "lake").problems, verify(tmp_path / "lake").records) == ([], 9)


def test_records_of_every_type_are_covered(tmp_path: Path, samples: SampleMaker) -> None:
    """A verifier that knows only the documentation computes the same digests, for each kind of column."""
    with Store(tmp_path / "fleet.duckdb") as store:
        for schema in current_schemas().values():
            for topic in schema.topics:
                append(store, topic, *samples.records(schema.name, 5))
        append(store, "exchanges", exchange("s", 99, 'Comma, "quote", \x00, \u2028, 🚀, 12:x,-\n', agent_response=""))
        exported = export_tables(store, tmp_path / "lake", KEY)

    count = sum(rows for table, rows in exported.rows.items() if table != "spans")
    assert verify(tmp_path / "lake").problems == []
    assert independent_verifier.verify(tmp_path / "lake", public_hex(KEY)) == count == verify(tmp_path / "lake").records


def test_every_table_of_a_topic_is_covered_but_spans() -> None:
    """A new record type must be covered, too."""
    tables = {schema.table for schema in current_schemas().values() if schema.topics}
    assert tables == set(EVENT_TIMES)
    assert tables - {schema.table for schema in sealed_schemas()} == {"spans"}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (
            "SELECT * REPLACE (if(_offset = 2, 'x', agent_response) AS agent_response) FROM rows",
            "day 2026-09-01: record 0:2 is changed",
        ),
        ("SELECT * FROM rows WHERE _offset <> 4", "day 2026-09-03: record 0:4 is missing"),
        ("SELECT * FROM rows UNION ALL SELECT * REPLACE (9 AS _offset) FROM rows WHERE _offset = 4", "record 0:9 is added"),
        ("SELECT * REPLACE (5 - _offset AS _offset) FROM rows WHERE _offset > 0 ORDER BY _offset", "is changed"),
        ("SELECT * FROM rows ORDER BY _offset DESC", "out of order"),
        ("SELECT * FROM rows UNION ALL SELECT * FROM rows ORDER BY _offset", "there twice"),
        ("SELECT * REPLACE (occurred_at + INTERVAL 1 DAY AS occurred_at) FROM rows", "has records of 2026-09-02"),
        ("SELECT * EXCLUDE (agent_response) FROM rows", "cannot be read"),
        ("SELECT * REPLACE ('beta' AS _topic) FROM rows", "are added"),
    ],
)
def test_changed_records_are_named(folder: Path, query: str, problem: str) -> None:
    """Whoever changes a record can compute the digest of the new file, but not sign it."""
    rewrite(folder, "exchanges", query)
    problems = verify(folder).problems

    assert "exchanges.parquet: other bytes than were exported" in problems
    assert any(problem in text for text in problems), problems


def test_other_encodings_of_the_same_records_fit_but_for_the_bytes(folder: Path) -> None:
    """The digests of records do not depend on how Parquet encodes them."""
    rewrite(folder, "exchanges", "SELECT * FROM rows ORDER BY _offset")

    assert verify(folder).problems == ["exchanges.parquet: other bytes than were exported"]


def drop_file(folder: Path) -> None:
    """Delete a file."""
    (folder / "scores.parquet").unlink()


def add_file(folder: Path) -> None:
    """Add a file."""
    (folder / "more.parquet").write_bytes(b"")


def rename_file(folder: Path) -> None:
    """Rename a file."""
    (folder / "scores.parquet").rename(folder / "score.parquet")


def swap_files(folder: Path) -> None:
    """Swap two files."""
    (folder / "scores.parquet").rename(folder / "x")
    (folder / "exchanges.parquet").rename(folder / "scores.parquet")
    (folder / "x").rename(folder / "exchanges.parquet")


def edit_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """Return a function that changes the lines of a manifest."""

    def edit(folder: Path) -> None:
        path = folder / MANIFEST
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return edit


def without_day(lines: list[bytes]) -> list[bytes]:
    """Return the lines without those of a day."""
    return [line for line in lines if b'"day":"2026-09-02"' not in line]


def swap_days(lines: list[bytes]) -> list[bytes]:
    """Return the lines with those of two days swapped."""
    first, second = (
        next(index for index, line in enumerate(lines) if b'"table":"exchanges"' in line and day in line)
        for day in (b'"day":"2026-09-01"', b'"day":"2026-09-02"')
    )
    lines[first], lines[second] = lines[second], lines[first]
    return lines


def sign_again(folder: Path) -> None:
    """Write a new manifest over changed files, with a key of one's own."""
    path = folder / MANIFEST
    *_, export, _ = path.read_bytes().splitlines()
    lines = path.read_bytes().splitlines()[:-1]
    signature = {"key": public_hex(OTHER_KEY), "kind": "signature", "signature": OTHER_KEY.sign(export).hex()}
    path.write_bytes(b"\n".join([*lines, json.dumps(signature).encode(), b""]))


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (drop_file, "scores.parquet: is missing"),
        (add_file, "more.parquet: is not in the manifest"),
        (rename_file, "score.parquet: is not in the manifest"),
        (swap_files, "scores.parquet: other bytes than were exported"),
        (edit_lines(without_day), "does not continue topic exchanges"),
        (edit_lines(swap_days), "does not continue topic exchanges"),
        (edit_lines(lambda lines: lines[:-1]), "the export is not signed"),
        (edit_lines(lambda lines: lines[:-2]), "the manifest was cut"),
        (edit_lines(lambda lines: [*lines[:-1], lines[-1][:-1]]), "the manifest was cut"),
        (edit_lines(lambda _: [b"\n"]), "is no line of a manifest"),
        (edit_lines(lambda lines: [line.replace(b'"count":2', b'"count":1') for line in lines]), "for 1 records"),
        (edit_lines(lambda lines: [*lines, lines[-1]]), "signs no export"),
        (sign_again, f"signed with the key {public_hex(OTHER_KEY)}"),
    ],
)
def test_other_tampering_is_named(folder: Path, tamper: Callable[[Path], None], problem: str) -> None:
    """Each way to change a folder shows."""
    tamper(folder)
    problems = verify(folder).problems

    assert any(problem in text for text in problems), problems


def test_a_chain_that_was_cut_back_lacks_the_published_head(store: Store, folder: Path, tmp_path: Path) -> None:
    """An older export is valid by itself. Only a head kept elsewhere shows that there was a later one."""
    shutil.copytree(folder, tmp_path / "older")
    append(store, "exchanges", *exchanges("new", 4))
    head = export_tables(store, folder, KEY).head

    assert verify(tmp_path / "older").problems == []
    assert verify(tmp_path / "older", head).problems == [
        f"head {head} is no export of the chain: the chain was cut or written again"
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(folder: Path, data: st.DataObject) -> None:
    """No byte of a folder is without a digest."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    index = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[index] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(changed)
    try:
        problems = verify(folder).problems
    finally:
        file.write_bytes(content)

    assert problems


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_value_is_named_by_its_record(folder: Path, data: st.DataObject) -> None:
    """The digest of a record covers every column, whatever the file says about its own bytes."""
    table = data.draw(st.sampled_from(["exchanges", "agent_events", "scores"]))
    file = folder / f"{table}.parquet"
    content = file.read_bytes()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        columns = connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{file}')").fetchall()
        ((rows,),) = connection.execute(f"SELECT count(*) FROM read_parquet('{file}')").fetchall()
    name, kind, *_ = data.draw(st.sampled_from(columns[3:]))
    offset = data.draw(st.integers(0, rows - 1))
    changes = {
        "VARCHAR": f"coalesce(\"{name}\" || ' ', '')",
        "BOOLEAN": f'NOT coalesce("{name}", false)',
        "TIMESTAMP WITH TIME ZONE": f"coalesce(\"{name}\" + INTERVAL 1 MICROSECOND, 'epoch'::TIMESTAMPTZ)",
        "DOUBLE": f'if("{name}" IS NULL, 0.0, "{name}" + 1e-12)',
        "INTEGER": f'coalesce("{name}" + 1, 0)',
        "BIGINT": f'coalesce("{name}" + 1, 0)',
    }
    changed = changes.get(kind, "NULL")  # the others are lists, which are never null
    try:
        rewrite(
            folder,
            table,
            f'SELECT * REPLACE (if(_offset = {offset}, {changed}, "{name}") AS "{name}") FROM rows ORDER BY _offset',
        )
        problems = verify(folder).problems
    finally:
        file.write_bytes(content)

    # One change in 65,536 has the same first characters of its digest, so that no record is named.
    assert any(f"record 0:{offset} is changed" in problem or "a record was changed" in problem for problem in problems), (
        problems
    )


@settings(max_examples=40, deadline=None)
@given(
    content=st.data(),
    action=st.sampled_from(["drop", "repeat", "swap", "cut"]),
)
def test_no_change_of_the_lines_of_a_manifest_stays_unseen(content: st.DataObject, action: str) -> None:
    """Lines may be left out, repeated, moved or cut, at the end of an export, too."""
    lines = _chain().splitlines(keepends=True)
    index = content.draw(st.integers(0, len(lines) - 2))
    if action == "drop":
        changed = [*lines[:index], *lines[index + 1 :]]
    elif action == "repeat":
        changed = [*lines[:index], lines[index], *lines[index:]]
    elif action == "swap":
        changed = [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]]
    else:
        changed = lines[: index + 1]
    parsed = parse_manifest(b"".join(changed))
    ends_with_export = action == "cut" and b'"signature"' in lines[index]

    assert bool(parsed.problems) != ends_with_export


def _chain() -> bytes:
    """Return a manifest of three exports of two topics."""
    content = b""
    for number in range(3):
        writer = ManifestWriter(parse_manifest(content), KEY)
        for topic in ("alpha", "beta"):
            if not number:
                writer.add(Columns(topic=topic, table=topic, columns=[("_topic", "text")], day=[]))
            writer.add(
                Records(
                    topic=topic, table=topic, day=None, count=1, positions=[(0, [number, number])], digest="", checks="abcd"
                )
            )
        content = writer.finish({f"{number}.parquet": "00"})
    return content


def test_an_erased_session_is_told_from_a_deleted_record(store: Store, folder: Path) -> None:
    """The chain still fits after an erasure, and proves that the missing records are of the session that it names."""
    head = verify(folder).head
    request_erasure(store, ERASED)
    exported = export_tables(store, folder, KEY)
    result = verify(folder, head)

    assert result.problems == []
    assert result.removed == {"erasure": 4}
    assert dict(exported.removed) == {("agent_events", "erasure"): 1, ("exchanges", "erasure"): 2, ("scores", "erasure"): 1}
    assert (result.records, sum(line["removed"] for line in result.by_day)) == (6, 4)
    assert independent_verifier.verify(folder, public_hex(KEY)) == 6
    assert ERASED not in (folder / MANIFEST).read_text()

    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.exchanges WHERE _offset = 4")
    exported = export_tables(store, folder, KEY)

    assert dict(exported.removed) == {("exchanges", "unexplained"): 1}
    assert any("record 0:4 is missing without an erasure or retention" in problem for problem in verify(folder).problems)


def test_the_erasure_of_a_connection_covers_its_sessions(store: Store, folder: Path) -> None:
    """Its record names no session."""
    request_erasure(store, None)
    export_tables(store, folder, KEY)

    assert (verify(folder).problems, verify(folder).removed) == ([], {"erasure": 9})


def test_an_erasure_that_is_not_recorded_explains_nothing(store: Store, folder: Path) -> None:
    """An exporter cannot name an erasure that nobody requested."""
    request_erasure(store, ERASED)
    export_tables(store, folder, KEY)
    rewrite(folder, "erasures", "SELECT * FROM rows WHERE false")

    problems = verify(folder).problems
    assert any("erasure e1 is not recorded" in problem for problem in problems)


def test_records_that_an_erasure_redacts_or_names_without_a_session_are_counted(
    store: Store, tmp_path: Path, samples: SampleMaker
) -> None:
    """Evidence of incidents is changed in place, and dead letters have no column with a session."""
    (incident,) = samples.records("Incident", 1)
    evidence = {"exchanges": [{"connection": "local", "sessionId": ERASED, "reason": "moved"}]}
    append(store, "incidents", msgspec.structs.replace(incident, metadata=json.dumps(evidence)))
    letter = DeadLetter(
        dead_letter_id="l", source="exchanges", position=1, stage="intake", reason="stage_failed", detail="it failed", digest="",
        size=1, body=encode(exchange(ERASED, 7)), rejected_at=DAY,
    )  # fmt: skip
    append(store, "dead-letters", letter)
    export_tables(store, tmp_path / "lake", KEY)
    request_erasure(store, ERASED)
    export_tables(store, tmp_path / "lake", KEY)
    export_tables(store, tmp_path / "lake", KEY)
    result = verify(tmp_path / "lake")

    assert (result.problems, result.redacted) == ([], 1)
    assert result.removed == {"erasure": 4, STATED_ERASURE: 1}
    assert independent_verifier.verify(tmp_path / "lake", public_hex(KEY)) == result.records


def test_a_changed_incident_without_an_erasure_is_found(store: Store, tmp_path: Path, samples: SampleMaker) -> None:
    """Only erasures change records in place."""
    append(store, "incidents", *samples.records("Incident", 1))
    export_tables(store, tmp_path / "lake", KEY)
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.incidents SET severity = 'x'")
    export_tables(store, tmp_path / "lake", KEY)

    assert any(
        "table incidents" in problem and "record 0:0 is changed" in problem for problem in verify(tmp_path / "lake").problems
    )


def test_retention_ends_days(store: Store, folder: Path) -> None:
    """Whole days go. Their lines stay, and judgements go with the exchange, whenever they were made."""
    append(store, "judgements", judgement(KEPT, 0, project="ops", judged_at=DAY + timedelta(days=9)))
    export_tables(store, folder, KEY)
    cutoff = DAY + timedelta(days=1, hours=-12)
    Retention(store, Cutoffs(lambda _: cutoff, cutoff, cutoff), None).run()
    exported = export_tables(store, folder, KEY)
    result = verify(folder)

    assert {reason for _, reason in exported.removed} == {"retention"}
    assert result.problems == []
    assert result.removed["retention"] == sum(exported.removed.values()) > 0
    assert "expired" in {line["kind"] for line in lines_of(folder)}
    assert independent_verifier.verify(folder, public_hex(KEY)) == result.records

    request_erasure(store, KEPT)
    export_tables(store, folder, KEY)
    assert verify(folder).problems == []
    assert independent_verifier.verify(folder, public_hex(KEY)) == verify(folder).records


def test_a_record_changed_in_the_database_is_not_signed_again(store: Store, folder: Path) -> None:
    """The first export that had a record counts, so a later change of the database shows."""
    with store.transaction() as transaction:
        transaction.connection.execute("UPDATE log.scores SET tier2_score = 1.0 WHERE _offset = 1")
    export_tables(store, folder, KEY)

    assert verify(folder).problems == ["topic scores, table scores, day 2026-09-01: record 0:1 is changed"]


def test_columns_of_a_later_version_are_reported(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests from before an upgrade stay valid, and do not cover the new columns of these records."""
    content = (folder / MANIFEST).read_bytes()
    lines = [json.loads(line) for line in content.splitlines()]
    assert all(
        ["stop_reason", "text"] in line["columns"]
        for line in lines
        if line["kind"] == "columns" and line["table"] == "exchanges"
    )
    columns_of = sealing.columns_of

    def earlier_columns(*arguments: object) -> object:
        columns = columns_of(*arguments)  # type: ignore[arg-type]
        return msgspec.structs.replace(columns, columns=[column for column in columns.columns if column[0] != "stop_reason"])

    shutil.rmtree(folder)
    monkeypatch.setattr(sealing, "columns_of", earlier_columns)
    export_tables(store, folder, KEY)
    monkeypatch.undo()
    append(store, "exchanges", *exchanges("after", 3))
    request_erasure(store, ERASED)
    export_tables(store, folder, KEY)
    result = verify(folder)

    assert result.problems == []
    assert result.uncovered["exchanges"] == ["stop_reason"]
    assert independent_verifier.verify(folder, public_hex(KEY)) == result.records


def test_an_export_does_not_continue_a_broken_or_foreign_chain(store: Store, folder: Path) -> None:
    """It would hide what happened before."""
    with pytest.raises(InputError, match="signed with the key"):
        export_tables(store, folder, OTHER_KEY)
    edit_lines(without_day)(folder)
    with pytest.raises(InputError, match="does not continue"):
        export_tables(store, folder, KEY)


def test_a_changed_file_gives_no_reason(store: Store, folder: Path) -> None:
    """Otherwise a deleted record could be given the session of an erasure, or a time that retention deletes."""
    rewrite(folder, "exchanges", "SELECT * REPLACE (occurred_at - INTERVAL 1 YEAR AS occurred_at) FROM rows ORDER BY _offset")
    with store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.exchanges WHERE _offset = 4")
    with pytest.raises(InputError, match=r"exchanges\.parquet: 1 records are gone"):
        export_tables(store, folder, KEY)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (Columns(topic="t", table="t", columns=[("c", {"list": {"list": "words"}})], day=[]), "unknown kind"),
        (Columns(topic="t", table="t", columns=[("c", {"struct": []})], day=[]), "unknown kind"),
        (Columns(topic="t", table="t", columns=[("c", {"struct": [["a"]]})], day=[]), "unknown kind"),
        (
            Records(topic="t", table="t", day=None, count=1, positions=[(0, [2**64, 2**64])], digest="", checks="abcd"),
            "is no line of a manifest",
        ),
        (Records(topic="t", table="t", day=None, count=1, positions=[(0, [1])], digest="", checks="abcd"), "no line before it"),
        (Expired(topic="t", table="t", records="x", count=1), "no line before it"),
        (Removed(topic="t", table="t", connection="", session="", rows=[], reason="mood", erasures=[]), "mood is unknown"),
    ],
)
def test_hostile_manifests_are_problems(folder: Path, line: TopicLine, problem: str) -> None:
    """Anybody can write a manifest and sign it with a key of their own."""
    writer = ManifestWriter(parse_manifest(b""), OTHER_KEY)
    writer.add(line)
    (folder / MANIFEST).write_bytes(writer.finish({}))

    assert any(problem in text for text in verify(folder).problems), verify(folder).problems


def test_an_export_that_was_killed_is_repaired_by_the_next(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest comes first, then the files get their names."""
    append(store, "exchanges", *exchanges("new", 4))
    request_erasure(store, ERASED)
    replace, calls = Path.replace, iter(range(100))

    def interrupted_replace(path: Path, target: Path) -> Path:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted_replace)
    with pytest.raises(KeyboardInterrupt):
        export_tables(store, folder, KEY)
    monkeypatch.undo()
    assert verify(folder).problems
    export_tables(store, folder, KEY)

    assert (verify(folder).problems, verify(folder).removed) == ([], {"erasure": 4})


def test_partitions_are_covered_by_their_bytes(store: Store, tmp_path: Path) -> None:
    """Latest revisions change, so an export by project and day has digests of files and none of records."""
    lake = tmp_path / "lake"
    export_partitions(store, lake, Selection(), KEY)
    head = verify(lake).head
    append(store, "exchanges", *exchanges("late", 0))
    export_partitions(store, lake, Selection(project="ops"), KEY)

    assert verify(lake, head).problems == []
    assert (verify(lake).exports, verify(lake).records) == (2, 0)
    file = next(lake.glob("exchanges/project=ops/day=2026-09-01/*.parquet"))
    file.write_bytes(file.read_bytes() + b"\0")
    assert verify(lake).problems == [f"{file.relative_to(lake)}: other bytes than were exported"]


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """Anyone who can read it can sign exports."""
    database = tmp_path / "fleet.duckdb"
    key = load_signing_key(database)

    assert public_hex(load_signing_key(database)) == public_hex(key)
    assert signing_key_file(database).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.signing-key"]
    signing_key_file(database).write_text("no key")
    with pytest.raises(StoreError, match=r"fleet\.signing-key"):
        load_signing_key(database)


def test_the_commands_sign_verify_and_fail(store: Store, tmp_path: Path) -> None:
    """The exit code is what a job looks at."""
    store.close()
    lake, database = str(tmp_path / "lake"), ["--db", str(tmp_path / "fleet.duckdb")]
    run = CliRunner().invoke
    exported = json.loads(run(application(), ["export", lake, *database, "--json"]).stdout)
    key = run(application(), ["signing-key", *database]).stdout.strip()

    assert exported["key"] == key
    verified = run(application(), ["verify", lake, "--key", key, "--head", exported["head"]])
    assert (verified.exit_code, "everything fits" in verified.stdout) == (0, True)
    assert exported["head"] in verified.stdout

    (tmp_path / "lake" / "scores.parquet").unlink()
    failed = run(application(), ["verify", lake, "--json"])
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["problems"] == ["scores.parquet: is missing"]
    assert "must have 64" in str(run(application(), ["verify", lake, "--key", "abc"]).exception)
    assert "has no driftline.manifest" in str(run(application(), ["verify", str(tmp_path)]).exception)

"""Files of exchanges in every format give the same records, and a bad row affects no other."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.exchange_tables import ROWS, write_lines, write_table
from support.servers import ROOT

from schemas.errors import InputError
from streams.sources.exchange_files.mapping import Fields
from streams.sources.exchange_files.profiling import profile_file
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

KEY = "sk-ant-api03-" + "A" * 40
Read = Callable[..., Reading]
FORMATS = ("rows.jsonl", "rows.csv", "rows.parquet", "rows.json")


def test_every_format_gives_the_same_exchanges(tmp_path: Path, read_file: Read) -> None:
    """A CSV export may be repeated as Parquet, and must be recognised."""
    exchanges_by_format = [
        read_file(
            write_lines(tmp_path / name, ROWS) if name.endswith("jsonl") else write_table(tmp_path / name, ROWS)
        ).exchanges
        for name in FORMATS
    ]
    first = exchanges_by_format[0]

    assert all(first == other for other in exchanges_by_format)
    assert [one.exchange_id for one in first] == [row["id"] for row in ROWS]
    assert [one.agent_response for one in first] == [row["response"] for row in ROWS]
    assert first[0].input_tokens == 10
    assert first[0].agent_model == "gpt-4o"
    assert first[0].session_id == "s-0"
    assert first[0].connection == "conn"


def test_nan_values_written_by_pandas_are_missing_values(tmp_path: Path, read_file: Read) -> None:
    """A column of integers with a gap becomes floats: one gap in four lost the tokens of all rows, and a session its id."""
    path = tmp_path / "pandas.parquet"
    rows = ", ".join(
        f"('r-{number}', {thread}::DOUBLE, TIMESTAMP '2026-11-18 10:0{number}:00', 'Open?', 'At nine.', {tokens}::DOUBLE)"
        for number, thread, tokens in [(0, "7.0", "90.0"), (1, "7.0", "'NaN'"), (2, "8.0", "40.0")]
    )
    columns = "id, thread_id, timestamp, question, answer, input_tokens"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT * FROM (VALUES {rows}) AS rows({columns})) TO '{path}' (FORMAT parquet)")
    exchanges = read_file(path).exchanges
    assert [(exchange.session_id, exchange.input_tokens) for exchange in exchanges] == [("7", 90), ("7", None), ("8", 40)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.json"])
def test_a_compressed_file_is_read(tmp_path: Path, read_file: Read, name: str, suffix: str) -> None:
    """Exports are often compressed, and users should not have to decompress them."""
    plain = write_lines(tmp_path / name, ROWS) if name.endswith("jsonl") else write_table(tmp_path / name, ROWS)
    packed = tmp_path / f"{name}{suffix}"
    packed.write_bytes((gzip.compress if suffix == ".gz" else zstd.compress)(plain.read_bytes()))

    assert read_file(plain).exchanges == read_file(packed).exchanges
    assert len(read_file(packed).exchanges) == len(ROWS)


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.csv.zst"])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, name: str) -> None:
    """An incomplete download must not pass for a whole file."""
    complete_file = write_lines(tmp_path / "whole.jsonl", ROWS * 500).read_bytes()
    path = tmp_path / name
    path.write_bytes((gzip.compress if name.endswith("gz") else zstd.compress)(complete_file)[:40])
    with pytest.raises(InputError, match=r"cannot be decompressed|is empty"):
        profile_file(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", "PARQUET", "is a Parquet file, not JSON as its name says"),
        ("a.csv", "PARQUET", "is a Parquet file, not CSV as its name says"),
        ("a.parquet", "a,b\n1,2\n", "is CSV, not Parquet as its name says"),
        ("a.jsonl", '{"resourceSpans":[{"scopeSpans":[]}]}\n', "traces in OTLP's JSON"),
        ("a.json", '{\n "resource_spans": [\n {}]}', "traces in OTLP's JSON"),
        ("a.jsonl", '{"resource":{"attributes":[]},"scopeSpans":[{"spans":[]}]}\n', "traces in OTLP's JSON"),
        ("a.json", '{\n "name": "chat",\n "context": {\n  "trace_id": "0x0af7"}\n}\n', "spans as printed by a program"),
        ("a.json", '{"data":[{"traceID":"0af7","spans":[]}]}', "spans as printed by a program"),
        ("a.csv", '{"a": 1}\n', "is JSON, not CSV as its name says"),
        ("a.jsonl", "a,b\n1,2\n", "is CSV, not JSON as its name says"),
        ("a.jsonl", "", "is empty"),
        ("a", "%PDF-1.7 x", "is a PDF, not JSON lines, CSV or Parquet"),
        ("a.jsonl", '{"type": "session", "version": 3, "id": "s"}\n', "is an OpenClaw transcript, not JSON lines"),
        ("a.csv", "prompt,response\n", "has no readable row"),
    ],
)
def test_a_file_of_another_format_is_refused_in_one_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    """Line by line it would give a thousand faults."""
    path = tmp_path / name
    if content == "PARQUET":
        path.write_bytes(write_table(tmp_path / "table.parquet", ROWS).read_bytes())
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=words) as refused:
        profile_file(path)
    assert "\n" not in str(refused.value)


def test_a_broken_row_affects_no_other(tmp_path: Path, read_file: Read) -> None:
    """The other rows are read, and the fault names the line."""
    wrong: list[dict[str, object]] = [{"timestamp": "yesterday"}, {"prompt": None}, {"prompt_tokens": 1.5}]
    broken = ["{", "[1]", *({**ROWS[0], "id": f"broken-{place}", **one} for place, one in enumerate(wrong))]
    path = write_lines(tmp_path / "rows.jsonl", [*ROWS[:2], *broken, *ROWS[2:]])
    reading = read_file(path)

    assert [exchange.exchange_id for exchange in reading.exchanges] == [row["id"] for row in ROWS]
    assert [(fault.line, fault.reason) for fault in reading.faults] == [
        (3, "not_json"),
        (4, "not_an_object"),
        (5, "wrong_type"),
        (6, "missing_field"),
        (7, "wrong_type"),
    ]
    assert reading.faults[3].detail == "user_message: column prompt is empty"


def test_a_broken_csv_row_is_reported_by_its_first_line(tmp_path: Path, read_file: Read) -> None:
    """Cells span several lines: the number is the one that an editor shows."""
    path = tmp_path / "rows.csv"
    path.write_text(
        'session_id,timestamp,prompt,response\ns,2026-11-01T10:00:00Z,"a\nb",c\ns,2026-11-01T10:01:00Z,too few\n'
        "s,2026-11-01T10:02:00Z,d,e\n"
    )
    reading = read_file(path)

    assert [exchange.user_message for exchange in reading.exchanges] == ["a\nb", "d"]
    assert [(fault.line, fault.reason, fault.body) for fault in reading.faults] == [
        (4, "columns", b"s,2026-11-01T10:01:00Z,too few")
    ]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_common_csv_separators_are_detected(tmp_path: Path, read_file: Read, mark: str) -> None:
    """Spreadsheets in some countries write semicolons."""
    path = tmp_path / "rows.csv"
    rows = [["session_id", "timestamp", "prompt", "response"], ["s", "2026-11-01T10:00:00Z", "a, b", "c"]]
    path.write_text("".join(f"{mark.join(row)}\n" for row in rows), "utf-8-sig")
    (exchange,) = read_file(path).exchanges
    assert exchange.user_message == "a, b"


def test_invalid_bytes_affect_only_their_row(tmp_path: Path, read_file: Read) -> None:
    """A table saved in another encoding has a few of them."""
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b"session_id,timestamp,prompt,response\ns,2026-11-01T10:00:00Z,caf\xe9,a\ns,2026-11-01T10:00:00Z,caf\xc3\xa9,a\n"
    )
    reading = read_file(path)
    assert [exchange.user_message for exchange in reading.exchanges] == ["café"]
    assert [(fault.line, fault.reason) for fault in reading.faults] == [(2, "not_utf8")]


def test_a_newest_first_file_is_read_in_order_of_time(tmp_path: Path, read_file: Read) -> None:
    """Web pages export in this order; scored backwards, a session's first turns would be its last."""
    forward = read_file(write_lines(tmp_path / "a.jsonl", ROWS)).exchanges
    assert forward == read_file(write_lines(tmp_path / "b.jsonl", ROWS[::-1])).exchanges


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from([{k: v for k, v in row.items() if k != "id"} for row in ROWS]), min_size=1, max_size=12),
    st.randoms(),
)
def test_ids_depend_on_the_content_and_not_on_the_order_of_rows(
    tmp_path: Path, read_file: Read, rows: list[dict[str, object]], random: object
) -> None:
    """A later export has more rows in another order: common rows must be the same exchanges, and equal rows stay separate."""
    shuffled = random.sample(rows, len(rows))  # type: ignore[attr-defined]
    ids = [
        [exchange.exchange_id for exchange in read_file(write_lines(tmp_path / "a.jsonl", given_rows)).exchanges]
        for given_rows in (rows, shuffled)
    ]
    assert len(rows) == len(set(ids[0]))
    assert set(ids[0]) == set(ids[1])


def test_a_torn_last_line_is_awaited_and_reported_once_the_file_is_old(
    tmp_path: Path, read_file: Read, redacting: ReadingContext
) -> None:
    """It may still be written; a permanently cut line must not vanish silently."""
    path = write_lines(tmp_path / "rows.jsonl", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    modified_at = (redacting.ingested_at - timedelta(minutes=1)).timestamp()
    os.utime(path, (modified_at, modified_at))
    waiting = read_file(path)
    later_reading = read_file(
        path, context=dataclasses.replace(redacting, ingested_at=redacting.ingested_at + timedelta(hours=1))
    )

    assert len(waiting.exchanges) == len(ROWS) - 1
    assert waiting.complete is False
    assert waiting.faults == []
    assert len(later_reading.exchanges) == len(ROWS) - 1
    assert later_reading.complete is True
    assert [fault.reason for fault in later_reading.faults] == ["torn"]


def test_secrets_are_in_no_record(tmp_path: Path, read_file: Read) -> None:
    """This holds for texts, names and labels of any column."""
    row = {**ROWS[0], "response": f"the key is {KEY}", "model": KEY, "tenant": "acme"}
    fields = Fields.model_validate({
        "session_id": "session_id", "occurred_at": "timestamp", "user_message": "prompt", "agent_response": "response",
        "agent_model": "model", "labels": {"tenant": "tenant", "api_key": "model"},
    })  # fmt: skip
    reading = read_file(write_lines(tmp_path / "a.jsonl", [row]), fields)
    assert KEY not in repr(reading.exchanges)
    assert len(reading.exchanges) == 1


def test_a_truncated_array_gives_its_complete_rows(tmp_path: Path, read_file: Read) -> None:
    """A nearly complete download of gigabytes is useful, but the cut is an error."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS * 1000)[:-100])
    with pytest.raises(InputError, match="cannot be read"):
        read_file(path)


def test_a_million_rows_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """An export of a year may exceed the memory of the machine."""
    path = tmp_path / "rows.parquet"
    with duckdb.connect() as connection:
        columns = "'s-' || (i // 10) AS session_id, 1761991200 + 1000000 - i AS timestamp, 'question ' || i AS prompt, repeat('answer ', 20) AS response"
        connection.execute(f"COPY (SELECT {columns} FROM range(1000000) AS rows(i)) TO '{path}' (FORMAT parquet)")
    process = subprocess.run(
        [sys.executable, "-c", _COUNT, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    rows, first, peak = map(int, process.stdout.split())
    assert rows == 1_000_000
    assert first == 999_999
    assert peak < MOST_MEGABYTES


MOST_MEGABYTES = 800
_COUNT = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from benchmarks.streams.meter import peak_megabytes
from streams.sources.exchange_files.profiling import profile_file
from streams.sources.exchange_files.reading import read_exchange_file
from streams.sources.source import ReadingContext
path, redactor = Path(sys.argv[1]), Redactor(RedactionSettings())
context = ReadingContext("conn", "ops", None, datetime(2026, 11, 20, tzinfo=UTC), timedelta(minutes=30), redactor)
rows, first = 0, None
for reading in read_exchange_file(path, context, profile_file(path).layout(redactor), {}):
    rows += len(reading.exchanges)
    if first is None and reading.exchanges:
        first = reading.exchanges[0].user_message.split()[1]
print(rows, first, round(peak_megabytes()))
"""
"""Counts the rows, names the first in order of time, and says how much memory it took, in megabytes: its own, not that of the process that started it."""


HEADER = "session_id,timestamp,question,answer\n"
TIME = "2026-11-01T10:00:00Z"


@pytest.mark.parametrize("encoding", ["cp1252", "cp1251", "shift_jis", "gb18030", "mac_roman"])
def test_a_table_in_another_encoding_is_refused_as_such(tmp_path: Path, encoding: str) -> None:
    """The user can save it again, unlike binary data."""
    texts = {"cp1251": "Где мой заказ?", "shift_jis": "注文はどこですか", "gb18030": "我的订单在哪里"}
    path = tmp_path / "rows.csv"
    path.write_bytes(f"{HEADER}s,{TIME},{texts.get(encoding, 'Où est-elle ?')},ok\n".encode(encoding))
    with pytest.raises(InputError, match="encoding") as raised:
        profile_file(path)
    assert "UTF-8" in str(raised.value.hint)


def test_binary_data_is_reported_as_binary(tmp_path: Path) -> None:
    """Advice to save an image as UTF-8 would not help."""
    path = tmp_path / "rows.csv"
    path.write_bytes(bytes(range(1, 256)) * 4)
    with pytest.raises(InputError, match="binary"):
        profile_file(path)


def test_different_columns_with_one_name_are_refused(tmp_path: Path) -> None:
    """Either may be the right one: using the last would score half of the table wrongly."""
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADER.strip()},answer\ns,{TIME},Hi,first,second\n")
    with pytest.raises(InputError, match="several columns named answer"):
        profile_file(path)


def test_equal_columns_with_one_name_are_merged(tmp_path: Path, read_file: Read) -> None:
    """Pandas writes an index twice if it is also a column."""
    path = tmp_path / "rows.csv"
    path.write_text(f"session_id,{HEADER}s,s,{TIME},Hi,Hello\n")
    assert [exchange.session_id for exchange in read_file(path).exchanges] == ["s"]


@pytest.mark.parametrize("mark", [";", ",", "\t", "|"])
@pytest.mark.parametrize("form", ["sep={}\r\n", '"sep={}"\n', "\ufeffSEP={}\n"])
@pytest.mark.parametrize("name", ["rows.csv", "rows"])
def test_the_separator_declared_by_a_spreadsheet_is_used(
    tmp_path: Path, read_file: Read, mark: str, form: str, name: str
) -> None:
    """Excel writes it into the first line if the country's list separator differs."""
    path = tmp_path / name
    rows = [HEADER.strip().split(","), ["s", TIME, "Hi", "Hello"], ["s", TIME, "Hi"], ["s", TIME, "And?", "Yes"]]
    path.write_text(form.format(mark) + "".join(f"{mark.join(row)}\n" for row in rows), "utf-8", newline="")
    reading = read_file(path)
    assert [exchange.agent_response for exchange in reading.exchanges] == ["Hello", "Yes"]
    assert [fault.line for fault in reading.faults] == [4]


@pytest.mark.parametrize("encode", [lambda value: value, json.dumps], ids=["value", "json"])
def test_a_turn_without_text_in_a_cell_has_a_placeholder(
    tmp_path: Path, read_file: Read, encode: Callable[[object], object]
) -> None:
    """A column of messages has the whole conversation: an earlier question does not belong to the new answer."""
    history = [{"role": "user", "content": "What does it cost?"}, {"role": "assistant", "content": "Four euros."}]
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}
    row = {**ROWS[0], "prompt": encode([*history, picture])}
    [exchange] = read_file(write_lines(tmp_path / "rows.jsonl", [row])).exchanges
    assert exchange.user_message == "[image]"

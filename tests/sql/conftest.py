"""Given and expected rows of every query, read from `cases/`, one file per query.

A file is a list of cases. A case has a `name`, the `given` records in order of arrival, the `parameters` of the query, and the
rows to `expect`, each with the columns that the case tests. A given record has its type under `record`, its `topic` if the type
has several, and the fields that matter; the other fields get a neutral value of their Avro type. With `times: n`, the entry
stands for n records, whose texts may contain the record's number as {n}. With `skip: n`, the first n rows are not compared.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from support.yaml_files import read_yaml

from analytics.identity.duplicate_matching import RecentMatches
from analytics.store.store import Store, Transaction
from analytics.store.tables import replace
from schemas.codec.single_object import encode
from schemas.records import RECORD_TYPES, Record
from schemas.registry import Json, schema_of, topics

CASES = Path(__file__).parent / "cases"
START = datetime(2026, 10, 1, tzinfo=UTC)
NEUTRAL = {"string": "", "bytes": b"", "boolean": False, "int": 0, "long": 0, "double": 0.0}

Case = dict[str, Any]
Cases = dict[str, list[Case]]
Fill = Callable[[Sequence[Case]], duckdb.DuckDBPyConnection]


@functools.cache
def cases_by_query() -> Cases:
    """Return every case by the name of its query."""
    return {file.stem: read_yaml(file) for file in sorted(CASES.glob("*.yaml"))}


def named_in(definition: Json) -> dict[str, Json]:
    """Return the nested record types by full name: a later field may refer to a type that an earlier one defines."""
    kinds = [field["type"] for field in definition["fields"]]
    inner = [kind["items"] if isinstance(kind, dict) and kind["type"] == "array" else kind for kind in kinds]
    records = [kind for kind in inner if isinstance(kind, dict) and kind["type"] == "record"]
    return {f"driftline.{kind['name']}": kind for kind in records}


def neutral(name: str, avro_type: Any) -> Any:
    """Return the value of a field that is not given: its name for a text, 0 for a number, `START` for a time."""
    if isinstance(avro_type, list):
        return None
    if isinstance(avro_type, str):
        return name if avro_type == "string" else NEUTRAL[avro_type]
    if "logicalType" in avro_type:
        return START
    return [] if avro_type["type"] == "array" else filled(avro_type, {})


def filled(definition: Json, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record by its schema: what is said, with neutral values for the rest, nested records likewise."""
    unknown = set(given) - {field["name"] for field in definition["fields"]}
    assert not unknown, f"{definition['name']} has no {unknown}"
    values = {}
    nested_records = named_in(definition)
    for field in definition["fields"]:
        name, kind = field["name"], field["type"]
        kind = nested_records.get(kind, kind) if isinstance(kind, str) else kind
        if name not in given:
            values[name] = field["default"] if "default" in field else neutral(name, kind)
        elif isinstance(kind, dict) and isinstance(kind.get("items"), dict):
            values[name] = [filled(kind["items"], item) for item in given[name]]
        elif isinstance(kind, dict) and kind["type"] == "record":
            values[name] = filled(kind, given[name])
        else:
            values[name] = given[name]
    if "ingested_at" in values and "ingested_at" not in given:
        values["ingested_at"] = values.get("occurred_at", START)
    return values


def records_of(entry: Case) -> Iterator[tuple[str, Record]]:
    """Return the records of an entry, each with its topic."""
    schema = schema_of(entry["record"])
    instructions = {"record", "times", *(["topic"] if schema.topics else [])}  # an internal record may have a field `topic`
    fields = {name: value for name, value in entry.items() if name not in instructions}
    topic = entry.get("topic", schema.topics[0]) if schema.topics else ""
    kind = RECORD_TYPES[entry["record"]]
    numbered = {name: value for name, value in fields.items() if "times" in entry and isinstance(value, str) and "{" in value}
    types = {field.name: field.type for field in msgspec.structs.fields(kind) if field.name in numbered}
    first_texts = {name: value.format(n=0) for name, value in numbered.items()}
    record = msgspec.convert(filled(schema.definition, fields | first_texts), kind)
    for number in range(entry.get("times", 1)):
        # Some cases have hundreds of thousands of records, so the shared fields are converted only once.
        texts = {name: msgspec.convert(value.format(n=number), types[name]) for name, value in numbered.items()}
        yield topic, msgspec.structs.replace(record, **texts)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `query` and `case` once for each case."""
    if {"query", "case"} <= set(metafunc.fixturenames):
        pairs = [(query, case) for query, cases in cases_by_query().items() for case in cases]
        metafunc.parametrize(("query", "case"), pairs, ids=[f"{query}: {case['name']}" for query, case in pairs])


@pytest.fixture(scope="session")
def all_cases() -> Cases:
    """Every case by the name of its query."""
    return cases_by_query()


@pytest.fixture(scope="session")
def shared_store() -> Iterator[Store]:
    """One store for all tests, because creating a store takes longer than querying it."""
    with Store(None) as store:
        yield store


@pytest.fixture
def fill(shared_store: Store) -> Iterator[Fill]:
    """A function that replaces the contents of the database by the given records and returns a connection to it.

    Nothing is committed, because a rollback is faster than deleting the records.
    """
    with contextlib.closing(shared_store.cursor()) as cursor:

        def filled_database(entries: Sequence[Case]) -> duckdb.DuckDBPyConnection:
            with contextlib.suppress(duckdb.TransactionException):  # the first call has nothing to roll back
                cursor.rollback()
            cursor.begin()
            transaction = Transaction(cursor, dict.fromkeys(topics(), 0), RecentMatches())
            arriving = itertools.chain.from_iterable(map(records_of, entries))
            # Neighbours of one type arrive in one batch: appending costs the same for one record as for hundreds.
            for (topic, _), neighbours in itertools.groupby(arriving, key=lambda pair: (pair[0], type(pair[1]))):
                records = [record for _, record in neighbours]
                if topic:
                    transaction.append(topic, list(map(encode, records)))
                else:  # internal records have no topic
                    replace(cursor, records)
            return cursor

        yield filled_database

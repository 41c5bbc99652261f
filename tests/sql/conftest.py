"""Given and expected rows of every query, read from `cases/`, one file a query.

A file is a list of cases. A case has a `name`, the records that are `given` in the order in which they arrive, the `parameters`
of the query and the rows to `expect`, each with the columns the case is about. Of a given record only what matters is said: its
type under `record`, its `topic` where it has several, and fields; everything else gets a neutral value for its Avro type. With
`times: n` it stands for n records, whose texts may hold the number as {n}. With `skip: n` the first n rows are counted only.
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
    """Every case by the name of its query."""
    return {file.stem: read_yaml(file) for file in sorted(CASES.glob("*.yaml"))}


def named_in(definition: Json) -> dict[str, Json]:
    """The records within a record by their full names: a field may refer to one that an earlier field spells out."""
    kinds = [field["type"] for field in definition["fields"]]
    inner = [kind["items"] if isinstance(kind, dict) and kind["type"] == "array" else kind for kind in kinds]
    records = [kind for kind in inner if isinstance(kind, dict) and kind["type"] == "record"]
    return {f"driftline.{kind['name']}": kind for kind in records}


def neutral(name: str, avro_type: Any) -> Any:
    """The value of a field nobody says anything about: a text is the field's name, a number 0, a time `START`."""
    if isinstance(avro_type, list):
        return None
    if isinstance(avro_type, str):
        return name if avro_type == "string" else NEUTRAL[avro_type]
    if "logicalType" in avro_type:
        return START
    return [] if avro_type["type"] == "array" else filled(avro_type, {})


def filled(definition: Json, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record by its schema: what is said, with neutral values for the rest, nested records likewise."""
    unknown = set(said) - {field["name"] for field in definition["fields"]}
    assert not unknown, f"{definition['name']} has no {unknown}"
    values = {}
    named = named_in(definition)
    for field in definition["fields"]:
        name, kind = field["name"], field["type"]
        kind = named.get(kind, kind) if isinstance(kind, str) else kind
        if name not in said:
            values[name] = field["default"] if "default" in field else neutral(name, kind)
        elif isinstance(kind, dict) and isinstance(kind.get("items"), dict):
            values[name] = [filled(kind["items"], item) for item in said[name]]
        elif isinstance(kind, dict) and kind["type"] == "record":
            values[name] = filled(kind, said[name])
        else:
            values[name] = said[name]
    if "ingested_at" in values and "ingested_at" not in said:
        values["ingested_at"] = values.get("occurred_at", START)
    return values


def records_of(given: Case) -> Iterator[tuple[str, Record]]:
    """Topic and record of what one entry stands for."""
    fields = {name: value for name, value in given.items() if name not in ("record", "topic", "times")}
    schema = schema_of(given["record"])
    topic = given.get("topic") or "".join(schema.topics[:1])
    kind = RECORD_TYPES[given["record"]]
    numbered = {name: value for name, value in fields.items() if "times" in given and isinstance(value, str) and "{" in value}
    types = {field.name: field.type for field in msgspec.structs.fields(kind) if field.name in numbered}
    first = {name: value.format(n=0) for name, value in numbered.items()}
    record = msgspec.convert(filled(schema.definition, fields | first), kind)
    for number in range(given.get("times", 1)):
        # Some cases are about hundreds of thousands of records: what they have alike is made once.
        said = {name: msgspec.convert(value.format(n=number), types[name]) for name, value in numbered.items()}
        yield topic, msgspec.structs.replace(record, **said)


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
    """One store for every test, because making one takes longer than asking it."""
    with Store(None) as store:
        yield store


@pytest.fixture
def fill(shared_store: Store) -> Iterator[Fill]:
    """Makes a database hold the given records and nothing else, until others are given; answers a connection that sees them.

    Nothing is committed: undoing what is given takes less than deleting it does.
    """
    with contextlib.closing(shared_store.cursor()) as cursor:

        def filled_database(given: Sequence[Case]) -> duckdb.DuckDBPyConnection:
            with contextlib.suppress(duckdb.TransactionException):  # the first time there is nothing to undo
                cursor.rollback()
            cursor.begin()
            transaction = Transaction(cursor, dict.fromkeys(topics(), 0), RecentMatches())
            arriving = itertools.chain.from_iterable(map(records_of, given))
            # Neighbours of one type arrive in one batch: appending costs the same for one record as for hundreds.
            for (topic, _), neighbours in itertools.groupby(arriving, key=lambda pair: (pair[0], type(pair[1]))):
                records = [record for _, record in neighbours]
                if topic:
                    transaction.append(topic, list(map(encode, records)))
                else:  # what only the store keeps travels on no topic
                    replace(cursor, records)
            return cursor

        yield filled_database

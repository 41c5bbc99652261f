"""Converts values in the wire format of a schema registry (00, the schema id in 4 bytes, the Avro body) to Driftline's own framing.

1. If the schema is one that Driftline published, the body is kept and only the framing is replaced.
2. If it is another schema of the same record type that Driftline's schema can read by Avro's rules, the body is decoded with it and encoded
   again.
3. Any other value stays unchanged. Decoding rejects it, and the dead letter has the schema id. The reason is logged once.

No value is rejected without a response of the registry. While the registry is unavailable, `reframe` raises and `reframe_when_available` waits.

Only schemas whose bodies cannot exhaust the stack, memory or time are used. Null is only allowed in unions, so each value takes at least a byte
and a body has no more parts than bytes. No type refers to itself, so a body is no deeper than its schema.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import fastavro
import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from schemas.bounds import MAX_RECORD_BYTES
from schemas.codec.single_object import REGISTRY_MAGIC, REGISTRY_PREFIX_BYTES, registry_schema_id
from schemas.errors import DriftlineError
from schemas.evolution import can_read
from schemas.registry import RecordSchema, build_schema, current_schemas, schemas_by_prefix

_LOG = logging.getLogger(__name__)
TIMEOUT_SECONDS = 10.0
"""Maximum wait for one schema."""
MAX_BODY_BYTES = 1_000_000
"""Maximum size of a response of the registry."""
FORGET_SECONDS = 300.0
"""Time after which an unusable schema is fetched again, because it may have been registered since."""
MAX_SCHEMAS = 10_000
_RETRY_WAITS = wait_exponential(multiplier=0.5, max=8.0)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NO_SUCH_SCHEMA = 40403
"""The registry's error code for an unknown id."""
_NOT_FOUND = 404
_OK = 200
Json = dict[str, Any]
MAX_DEPTH = 64
"""Maximum depth of a schema."""
_RECORD_TYPES = ("record", "error")
_NO_SCHEMA = "it is not an Avro schema"
_INNER_MEMBERS = {"array": "items", "map": "values"}


class RegistryUnavailableError(DriftlineError):
    """The schema registry gives no usable response. The records that need it wait."""

    hint = "Check the registry and DRIFTLINE_SCHEMA_REGISTRY. The records are read as soon as the registry responds."


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    """How to read the values of a schema in the registry. Without a schema, they cannot be read."""

    ours: RecordSchema | None = None
    """The schema, if Driftline published it."""
    foreign: Any = None
    """Any other schema, as parsed by fastavro, whose values `reader` can read."""
    reader: RecordSchema | None = None
    fetched_at: float = 0.0


class RegistryFraming:
    """Reframes values with the schemas of one registry. Schemas are cached, because the schema of an id never changes."""

    def __init__(
        self,
        url: str,
        auth: tuple[str, str] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        """`url` must contain no password, because errors and logs show its host; `auth` is name and password."""
        self._url = url.rstrip("/")
        self._host = httpx2.URL(url).host
        self._auth = auth
        self._now = now
        self._sleep = sleep
        self._plans: dict[int, _ReadPlan] = {}

    async def reframe(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the values in Driftline's framing, in order. If no value is framed for a registry, return the same sequence.

        Raises RegistryUnavailableError if a schema is currently not available.
        """
        # Comparing the smallest value is enough: values in our framing start with C3, registry values with 00.
        if min(values, default=b"\xff")[:1] > REGISTRY_MAGIC:
            return values
        ids: dict[int, int] = {}
        for index, value in enumerate(values):
            schema_id = registry_schema_id(value)
            if schema_id is not None:
                ids[index] = schema_id
        if not ids:
            return values
        plans = await self._load_plans(set(ids.values()))
        return await asyncio.to_thread(_reframe_values, values, ids, plans)

    async def reframe_when_available(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the same as `reframe`, but wait until the registry is available. For the owner of a partition."""
        retry = retry_if_exception_type(RegistryUnavailableError)
        retrying = AsyncRetrying(retry=retry, wait=_RETRY_WAITS, sleep=self._sleep, before_sleep=_log_retry)
        return await retrying(self.reframe, values)

    async def _load_plans(self, ids: Iterable[int]) -> dict[int, _ReadPlan]:
        """Return how to read the values of these schemas. Unknown schemas are fetched, and may evict others from the cache."""
        plans = {schema_id: self._plans[schema_id] for schema_id in ids if self._is_cached(schema_id)}
        unknown = sorted(set(ids) - plans.keys())
        if not unknown:
            return plans
        # A proxy configured in the environment cannot reach the loopback address of this machine.
        mounts = {f"all://{host}": None for host in _LOOPBACK}
        options: dict[str, Any] = {"auth": self._auth, "mounts": mounts, "timeout": TIMEOUT_SECONDS, "follow_redirects": False}
        async with httpx2.AsyncClient(**options) as client:
            for schema_id in unknown:
                definition, refusal = await self._fetch(client, schema_id)
                plan = _ReadPlan()
                if definition is not None:
                    plan, refusal = _plan_reading(definition)
                if refusal is not None:
                    _LOG.warning("values with the schema id %d of %s are rejected: %s", schema_id, self._host, refusal)
                while len(self._plans) >= MAX_SCHEMAS:
                    oldest_id = next(iter(self._plans))
                    del self._plans[oldest_id]
                plans[schema_id] = replace(plan, fetched_at=self._now())
                self._plans[schema_id] = plans[schema_id]
        return plans

    def _is_cached(self, schema_id: int) -> bool:
        plan = self._plans.get(schema_id)
        if plan is None:
            return False
        is_usable = plan.ours is not None or plan.reader is not None
        return is_usable or self._now() - plan.fetched_at < FORGET_SECONDS

    async def _fetch(self, client: httpx2.AsyncClient, schema_id: int) -> tuple[str | None, str | None]:
        """Return the text of a schema, or the reason why there is none."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                client.stream("GET", f"{self._url}/schemas/ids/{quote(str(schema_id))}") as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        return None, f"it has more than {MAX_BODY_BYTES} bytes"
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            raise RegistryUnavailableError(f"the schema registry at {self._host}: {type(error).__name__}") from error
        answer = _decode_object(bytes(body))
        if response.status_code == _NOT_FOUND and answer.get("error_code") == _NO_SUCH_SCHEMA:
            return None, "the registry has no schema of this id"
        if response.status_code != _OK or not isinstance(answer.get("schema"), str):
            raise RegistryUnavailableError(f"the schema registry at {self._host}: HTTP {response.status_code} and no schema")
        schema_type = answer.get("schemaType", "AVRO")
        if schema_type != "AVRO":
            return None, f"it is a {str(schema_type)[:20]!r} schema, not an Avro schema"
        if answer.get("references"):
            return None, "it refers to other schemas; register it with all of its types included"
        return answer["schema"], None


def _log_retry(state: RetryCallState) -> None:
    _LOG.warning("records wait for a schema: %s", state.outcome and state.outcome.exception())


def _reframe_values(values: Sequence[bytes], ids: Mapping[int, int], plans: Mapping[int, _ReadPlan]) -> list[bytes]:
    """Return the values, reframed if their schema can be read. `ids` has the schema ids by the index of their value."""
    reframed = list(values)
    for index, schema_id in ids.items():
        plan = plans[schema_id]
        value = values[index]
        if plan.ours is not None:
            reframed[index] = plan.ours.prefix + value[REGISTRY_PREFIX_BYTES:]
        elif plan.reader is not None:
            reframed[index] = _encode_again(value, plan.foreign, plan.reader) or value
    return reframed


def _decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; an empty object for any other body."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _plan_reading(text: str) -> tuple[_ReadPlan, str | None]:
    """Return how to read the values of a schema, and the reason if the schema cannot be used."""
    definition = _decode_object(text.encode("utf-8", "replace"))
    try:
        refusal = find_refusal(definition)
        if refusal is not None:
            return _ReadPlan(), refusal
        schema = build_schema(definition)
        ours = schemas_by_prefix().get(schema.prefix)
        if ours is not None:
            return _ReadPlan(ours=ours), None
        name = str(schema.parsed["name"])
        reader = current_schemas().get(name.removeprefix("driftline."))
        if reader is None or name != f"driftline.{reader.name}":
            return _ReadPlan(), f"{name[:100]!r} is not a record of Driftline"
        if not can_read(reader, schema):
            return _ReadPlan(), f"{name} cannot be read from its values, by Avro's rules"
    except Exception as error:  # noqa: BLE001 - the parsers raise many kinds of errors for an invalid schema
        return _ReadPlan(), f"it is not an Avro schema ({type(error).__name__})"
    return _ReadPlan(foreign=schema.parsed, reader=reader), None


def _encode_again(value: bytes, foreign: Any, reader: RecordSchema) -> bytes | None:
    """Return the value encoded by Driftline's schema; None if the body does not match its schema."""
    if len(value) > MAX_RECORD_BYTES:
        return None
    body = io.BytesIO(value)
    encoded = io.BytesIO()
    body.seek(REGISTRY_PREFIX_BYTES)
    try:
        fields = fastavro.schemaless_reader(body, foreign, reader.parsed)
        if body.tell() != len(value):
            return None
        fastavro.schemaless_writer(encoded, reader.parsed, fields)
    except Exception:  # noqa: BLE001 - fastavro raises many kinds of errors for damaged bytes; the dead letter has the bytes
        return None
    return reader.prefix + encoded.getvalue()


def find_refusal(definition: Json) -> str | None:
    """Return the reason why a schema must not be used; None if it may be used."""
    return _find_refusal(definition, ()) if definition.get("type") == "record" else "it is not the schema of a record"


def _find_refusal(node: Any, within: tuple[str, ...]) -> str | None:
    """Return the fault of a type, or the first fault inside it. `within` has the names of the enclosing records."""
    refusal = _find_own_refusal(node, within)
    if refusal is not None:
        return refusal
    name = _short_name(node["name"]) if isinstance(node, dict) and node.get("type") in _RECORD_TYPES else ""
    for part in _list_parts(node):
        refusal = _find_refusal(part, (*within, name))
        if refusal is not None:
            return refusal
    return None


def _find_own_refusal(node: Any, within: tuple[str, ...]) -> str | None:
    """Return the fault of a type, without the faults of the types inside it."""
    if len(within) > MAX_DEPTH:
        return "it nests too deep"
    if isinstance(node, str):
        return _find_name_refusal(node, within)
    if isinstance(node, list):
        return None
    if not isinstance(node, dict):
        return _NO_SCHEMA
    if node.get("type") == "fixed" and not node.get("size"):
        return "it has a fixed type without bytes"
    return _find_record_refusal(node) if node.get("type") in _RECORD_TYPES else None


def _find_name_refusal(type_name: str, within: tuple[str, ...]) -> str | None:
    """Return the fault of a type that is given by its name."""
    if type_name == "null":
        return "it has a null outside a union"
    # Names are compared without namespaces, which may reject too much but never too little.
    return "it refers to itself" if _short_name(type_name) in within else None


def _find_record_refusal(node: Json) -> str | None:
    """Return the fault of a record, without the faults of its fields."""
    fields = node.get("fields")
    if not isinstance(node.get("name"), str) or not isinstance(fields, list):
        return _NO_SCHEMA
    if not all(isinstance(field, dict) for field in fields):
        return _NO_SCHEMA
    return None if fields else "it has a record without fields"


def _list_parts(node: Any) -> list[Any]:
    """Return the types inside a valid type. Null in a union is omitted."""
    if isinstance(node, list):
        return [part for part in node if part != "null"]
    if isinstance(node, str) or node.get("type") in ("enum", "fixed"):
        return []
    kind = node.get("type")
    if kind in _RECORD_TYPES:
        return [field.get("type") for field in node["fields"]]
    member = _INNER_MEMBERS.get(kind, "type") if isinstance(kind, str) else "type"
    return [node.get(member)]


def _short_name(name: str) -> str:
    return name.rpartition(".")[2]

"""Reframing values that a producer framed for a schema registry (00, the schema's id in 4 bytes, the Avro body).

1. If the schema is one that we published, the body stays unchanged and only the framing is replaced.
2. If the schema is another one of the same record type that ours can read by Avro's rules, the body is decoded with it and encoded again.
3. Any other value stays unchanged: decoding rejects it, and the dead letter names the schema's id. The log gives the reason once.

No value is judged without an answer from the registry: meanwhile `reframe` raises and `insist` waits.

Only schemas whose bodies cannot exhaust stack, memory or time are used. Every type takes at least a byte, because null is allowed in
unions only: so a body has no more parts than bytes. No type refers to itself: so a body is no deeper than its schema.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
"""Longest wait for one schema."""
MAX_BODY_BYTES = 1_000_000
"""Most bytes of the registry's answer that are read."""
FORGET_SECONDS = 300.0
"""Seconds after which an unusable schema is fetched again: it may have been registered since."""
MAX_SCHEMAS = 10_000
_PAUSES = wait_exponential(multiplier=0.5, max=8.0)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NO_SUCH_SCHEMA = 40403
Json = dict[str, Any]
MAX_DEPTH = 64
"""Levels of nesting of a schema."""
_RECORDS = ("record", "error")
_NO_SCHEMA = "it is no Avro schema"
_INNER = {"array": "items", "map": "values"}


class RegistryUnavailableError(DriftlineError):
    """The schema registry gives no usable answer; the records that need it wait."""

    hint = "See to the registry and to DRIFTLINE_SCHEMA_REGISTRY; the records are taken up as soon as it answers."


@dataclass(frozen=True, slots=True)
class _Writer:
    """The way to read values of a registry schema."""

    ours: RecordSchema | None = None
    """The published schema, if it is one of ours."""
    foreign: Any = None
    """Otherwise the schema as parsed by fastavro, which `reader` can read."""
    reader: RecordSchema | None = None
    looked_at: float = 0.0


class RegistryFraming:
    """Fetches schemas from one registry and caches them: a schema never changes under its id."""

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
        self._writers: dict[int, _Writer] = {}

    async def reframe(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the values in our framing, in their order. Raises RegistryUnavailableError if a schema is not available at the moment.

        If no value is framed for a registry, the same sequence is returned.
        """
        # Comparing the smallest value is enough: ours begin with C3, registry values with 00. An empty value only costs the longer path.
        if min(values, default=b"\xff")[:1] > REGISTRY_MAGIC:
            return values
        ids = {index: schema_id for index, value in enumerate(values) if (schema_id := registry_schema_id(value)) is not None}
        if not ids:
            return values
        writers = await self._learn(set(ids.values()))
        return await asyncio.to_thread(_reframed, values, ids, writers)

    async def insist(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Like `reframe`, but waits as long as it takes, until cancelled. For the owner of a partition."""
        retry = retry_if_exception_type(RegistryUnavailableError)
        return await AsyncRetrying(retry=retry, wait=_PAUSES, sleep=self._sleep, before_sleep=_warn)(self.reframe, values)

    async def _learn(self, ids: Iterable[int]) -> dict[int, _Writer]:
        """Return how values of these schemas are read; unknown schemas are fetched.

        Other schemas may be evicted meanwhile.
        """
        writers = {schema_id: self._writers[schema_id] for schema_id in ids if self._knows(schema_id)}
        unknown = sorted(set(ids) - writers.keys())
        if not unknown:
            return writers
        # The environment's proxy cannot reach the loopback of this machine.
        mounts = {f"all://{host}": None for host in _LOOPBACK}
        options: dict[str, Any] = {"auth": self._auth, "mounts": mounts, "timeout": TIMEOUT_SECONDS, "follow_redirects": False}
        async with httpx2.AsyncClient(**options) as client:
            for schema_id in unknown:
                definition, refusal = await self._fetch(client, schema_id)
                writer, refusal = (_Writer(), refusal) if definition is None else _understood(definition)
                if refusal is not None:
                    _LOG.warning("values with the schema id %d of %s are set aside: %s", schema_id, self._host, refusal)
                while len(self._writers) >= MAX_SCHEMAS:
                    del self._writers[next(iter(self._writers))]
                writers[schema_id] = self._writers[schema_id] = _Writer(writer.ours, writer.foreign, writer.reader, self._now())
        return writers

    def _knows(self, schema_id: int) -> bool:
        writer = self._writers.get(schema_id)
        if writer is None:
            return False
        is_usable = writer.ours is not None or writer.reader is not None
        return is_usable or self._now() - writer.looked_at < FORGET_SECONDS

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
        answer = _json(bytes(body))
        if response.status_code == 404 and answer.get("error_code") == _NO_SUCH_SCHEMA:
            return None, "the registry has no schema of this id"
        if response.status_code != 200 or not isinstance(answer.get("schema"), str):
            raise RegistryUnavailableError(f"the schema registry at {self._host}: HTTP {response.status_code} and no schema")
        if (kind := answer.get("schemaType", "AVRO")) != "AVRO":
            return None, f"it is a schema of {str(kind)[:20]!r}, not of Avro"
        if answer.get("references"):
            return None, "it refers to other schemas; register it with its types spelled out"
        return answer["schema"], None


def _warn(tried: RetryCallState) -> None:
    _LOG.warning("records wait for a schema: %s", tried.outcome and tried.outcome.exception())


def _reframed(values: Sequence[bytes], ids: Mapping[int, int], writers: Mapping[int, _Writer]) -> list[bytes]:
    """Return the values, reframed where their schema can be read. `ids` has the schema's id by index."""
    reframed = list(values)
    for index, schema_id in ids.items():
        writer, value = writers[schema_id], values[index]
        if writer.ours is not None:
            reframed[index] = writer.ours.prefix + value[REGISTRY_PREFIX_BYTES:]
        elif writer.reader is not None:
            reframed[index] = _encoded_anew(value, writer.foreign, writer.reader) or value
    return reframed


def _json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; an empty one if there is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _understood(text: str) -> tuple[_Writer, str | None]:
    """Return how values of a schema are read, and the reason if it cannot be used."""
    definition = _json(text.encode("utf-8", "replace"))
    try:
        if (refusal := refusal_of(definition)) is not None:
            return _Writer(), refusal
        schema = build_schema(definition)
        ours = schemas_by_prefix().get(schema.prefix)
        if ours is not None:
            return _Writer(ours=ours), None
        name = str(schema.parsed["name"])
        reader = current_schemas().get(name.removeprefix("driftline."))
        if reader is None or name != f"driftline.{reader.name}":
            return _Writer(), f"{name[:100]!r} is no record of Driftline"
        if not can_read(reader, schema):
            return _Writer(), f"{name} cannot be read from what it writes, by Avro's rules"
    except Exception as error:  # noqa: BLE001 - the parsers raise many kinds of errors for an invalid schema
        return _Writer(), f"it is no Avro schema ({type(error).__name__})"
    return _Writer(foreign=schema.parsed, reader=reader), None


def _encoded_anew(value: bytes, foreign: Any, reader: RecordSchema) -> bytes | None:
    """Return the value encoded by our schema; None if the body does not match its schema."""
    if len(value) > MAX_RECORD_BYTES:
        return None
    body, written = io.BytesIO(value), io.BytesIO()
    body.seek(REGISTRY_PREFIX_BYTES)
    try:
        fields = fastavro.schemaless_reader(body, foreign, reader.parsed)
        if body.tell() != len(value):
            return None
        fastavro.schemaless_writer(written, reader.parsed, fields)
    except Exception:  # noqa: BLE001 - fastavro raises many kinds of errors for damaged bytes; the dead letter has the bytes
        return None
    return reader.prefix + written.getvalue()


def refusal_of(definition: Json) -> str | None:
    """Return the reason why a schema must not be used; None if it may be."""
    return _refusal_of(definition, ()) if definition.get("type") == "record" else "it is no schema of a record"


def _refusal_of(node: Any, within: tuple[str, ...]) -> str | None:
    """Return the fault of a type, or the first fault inside it. `within` names the enclosing records."""
    name, parts = "", list[Any]()
    kind = node.get("type") if isinstance(node, dict) else None
    if len(within) > MAX_DEPTH:
        return "it nests too deep"
    if isinstance(node, str):
        # Comparing names without namespaces may refuse too much, but never too little.
        is_inside = _short(node) in within
        return "it has a null outside of a union" if node == "null" else "it refers to itself" if is_inside else None
    if isinstance(node, list):
        parts = [part for part in node if part != "null"]
    elif kind in _RECORDS:
        fields, name = node.get("fields"), node.get("name")
        is_sound = isinstance(name, str) and isinstance(fields, list) and all(isinstance(field, dict) for field in fields)
        if not (is_sound and fields):
            return "it has a record without fields" if is_sound else _NO_SCHEMA
        name, parts = _short(name), [field.get("type") for field in fields]
    elif kind == "fixed" and not node.get("size"):
        return "it has a fixed type of no bytes"
    elif kind not in ("enum", "fixed"):
        if not isinstance(node, dict):
            return _NO_SCHEMA
        parts = [node.get(_INNER.get(kind, "type") if isinstance(kind, str) else "type")]
    return next(filter(None, (_refusal_of(part, (*within, name)) for part in parts)), None)


def _short(name: str) -> str:
    return name.rpartition(".")[2]

"""Request bodies, field by field: one definition for validation and documentation, and the common parameters of lists.

Types are strict: a number in quotes is not a number. Unknown fields are ignored, so that newer senders work with older servers.

1. A misspelt parameter is refused, because without its filter the call would return everything.
2. Bytes that are not UTF-8 are refused, because frameworks replace them, and the id of one session could become another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from fastapi import Body as FromBody
from fastapi import Path as PathParameter
from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from audit.fingerprints import canonical_json
from audit.surrogates import repair_text
from audit.times import parse_timestamp
from schemas.bounds import (
    LABEL_NAME,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_ID,
    MAX_LABEL,
    MAX_LABELS,
    NAME,
    NOT_UNICODE,
    is_too_deep,
)
from schemas.contract import IDENTIFIER
from service.read.review_queues import QUEUE_NAME
from service.text.answers import MAX_CURSOR, Place, decode_place
from service.text.links import CALLS
from service.web.bounds import MAX_BULK, MAX_EVENTS
from service.web.errors import ApiError
from service.web.json_routes import decode_lines
from streams.sources.event_files import has_lone_surrogate_in_id

EXAMPLES: dict[str, dict[str, Any]] = msgspec.json.decode(resources.files("service.web").joinpath("examples.json").read_bytes())
"""Example bodies by the name of their request."""


def _check_id(text: str) -> str:
    if fault := IDENTIFIER.fault(text):
        raise ValueError(fault)
    return text


def _write_json(value: Any) -> str | None:
    """Return a text as it is, and any other JSON value as JSON; None for null."""
    if value is None:
        return None
    if is_too_deep(value):
        raise ValueError(f"nests deeper than {MAX_DEPTH} levels")
    return repair_text(value if isinstance(value, str) else canonical_json(value))


def _check_event(value: Any) -> Any:
    if isinstance(value, dict) and has_lone_surrogate_in_id(value):
        raise ValueError(f"its event_id {NOT_UNICODE}")
    return value


def _parse_moment(value: Any) -> datetime:
    try:
        moment = parse_timestamp(value)
    except ValueError:
        raise ValueError(NO_MOMENT) from None
    if moment is None:
        raise ValueError("is missing")
    return moment


def _parse_query_moment(text: Any) -> datetime:
    """Parse a time in a query string, where numbers are texts, and an unescaped plus is a space."""
    sent = str(text).strip()
    if _NUMBER.fullmatch(sent):
        return _parse_moment(float(sent) if "." in sent else int(sent))
    return _parse_moment(_LOST_PLUS.sub(r"\1+\2", sent))


NO_MOMENT = "must be a time in ISO 8601, or in seconds, milli- or microseconds since 1970, of the years 2000 to 2099"
"""The problem of an unreadable time. The value may be a secret, so it is not repeated."""
_NUMBER = re.compile(r"[0-9]{1,7}|[0-9]{9,20}|[0-9]{1,20}\.[0-9]{1,9}")
"""A number of seconds, or of a smaller unit, since 1970; eight digits are a date in ISO 8601."""
_LOST_PLUS = re.compile(r"([0-9-]{8,10}T[0-9:.,]{1,20}) ([0-9]{2}:?[0-9]{2})")
"""A time with an offset whose plus sign has become a space."""
Text = Annotated[str, BeforeValidator(lambda value: repair_text(value) if isinstance(value, str) else value)]
"""Text of people and models: a lone surrogate becomes U+FFFD, everything else is kept."""
TextOrJson = Annotated[str | None, BeforeValidator(_write_json), WithJsonSchema({})]
"""A text, or any other JSON value, which is written as JSON."""
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID), AfterValidator(_check_id)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
QueueName = Annotated[str, StringConstraints(pattern=f"^{QUEUE_NAME}$")]
"""Name of a review queue."""
ConnectionName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
_MOMENT_SCHEMA = WithJsonSchema(
    {
        "description": "ISO 8601 (UTC without an offset), or seconds, milli- or microseconds since 1970; years 2000 to 2099.",
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}],
    }
)
Moment = Annotated[datetime, BeforeValidator(_parse_moment), PlainSerializer(datetime.isoformat), _MOMENT_SCHEMA]
QueryMoment = Annotated[datetime, BeforeValidator(_parse_query_moment), _MOMENT_SCHEMA]
Event = Annotated[Any, AfterValidator(_check_event)]
LabelsBody = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Labels of the exchange, such as agent_version, prompt_version, tool_version or tenant: "
            f"at most {MAX_LABELS} names of a-z, 0-9, _ and ., each with a text of at most {MAX_LABEL} characters.",
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": f"^{LABEL_NAME}$"},
                    "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL},
                    "maxProperties": MAX_LABELS,
                },
                {"type": "null"},
            ],
        }
    ),
]
Ignored = Annotated[
    Any,
    Field(
        description="Ignored: the token decides. The answer says so if this names another project.",
        json_schema_extra={"deprecated": True},
    ),
]
RunId = Annotated[str, PathParameter(pattern="^run_[0-9]{3,18}$", description="Id of the run.", examples=["run_001"])]
MAX_SQL = 50_000
"""Characters of an analyst's statement."""
MAX_TOOL_CALLS_SENT = 1_000
"""Tool calls that a sender may name for one exchange; a record keeps fewer."""
MAX_COMMENT = 2000
"""Characters of a comment."""


class Body(BaseModel):
    """The rules that every body shares."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class OperatorBody(Body):
    """A request of an operator. Unknown fields are refused, because ignoring one could delete or revoke more than intended."""

    model_config = ConfigDict(extra="forbid")


class UserMessage(Body):
    """The message of the user."""

    content: Text


class Usage(Body):
    """Tokens of the answer: read, with those from and for a cache, and written, with reasoning; a missing count stays missing, 0 stays 0."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None


class AgentResponse(Body):
    """The answer of the agent; the content may be empty."""

    content: Text
    thinking: Text | None = None
    model: Id | None = None
    usage: Usage | None = None
    stop_reason: Id | None = Field(
        None, description="Why the model stopped; `error` and `aborted` explain an answer without text."
    )


class ToolCallBody(Body):
    """A tool call that the agent made for its answer. Long texts are kept as excerpts."""

    name: Id
    arguments: TextOrJson = Field(None, description="Arguments, as an object or as text.")
    result: TextOrJson = Field(None, description="Result, as any JSON value or as text.")
    outcome: Literal["ok", "error", "unanswered"] | None = Field(
        None, description="`ok` by default if there is a result, else `unanswered`."
    )


class ExchangeBody(Body):
    """One user message with the agent's answer."""

    id: Id = Field(description="Unique within the connection.")
    timestamp: Moment
    turn_number: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Turn within the session; counted by default."
    )
    user_message: UserMessage
    agent_response: AgentResponse
    tool_calls: Annotated[tuple[ToolCallBody, ...], Field(strict=False, max_length=MAX_TOOL_CALLS_SENT)] = Field(
        (), description="Tool calls of the turn, in order; the judge is shown excerpts of them."
    )
    labels: LabelsBody = None


class IngestBody(Body):
    """One exchange of one session."""

    session_id: Id
    exchange: ExchangeBody
    connection_id: Ignored = None
    project: Ignored = None
    agent: Id | None = Field(None, description="Name of the agent; the agent of the connection overrides it.")
    multi_user: bool = Field(False, description="Whether several users take part.")

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLES["ingest"]]})


def _read_lines(sent: Any) -> Any:
    # FastAPI passes a body that is not JSON as bytes, and the only other type that `BodyLimits` accepts is lines.
    return decode_lines(sent) if isinstance(sent, bytes) else sent


ExchangesBody = Annotated[
    list[
        Annotated[
            Any,
            WithJsonSchema({"description": "As the body of `POST ingest`.", "examples": [EXAMPLES["ingest"]]}),
        ]
    ],
    BeforeValidator(_read_lines),
    FromBody(min_length=1, max_length=MAX_BULK, description="Exchanges of any sessions; each is handled separately."),
]
"""A batch of exchanges."""


class EventsBody(Body):
    """A batch of runtime events of one session, in order."""

    session_id: Id
    project: Ignored = None
    agent: Id | None = Field(None, description="Name of the agent; the agent of the connection overrides it.")
    first_seq: Annotated[int, Field(ge=0, lt=2**53)] | None = Field(
        None, description="Position of the first event in its session. Without it every event needs its own event_id."
    )
    events: Annotated[
        list[Event], Field(min_length=1, max_length=MAX_EVENTS, description="Objects; each is handled separately.")
    ]

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLES["events"]]})


class BulkEvent(Body):
    """The envelope of one runtime event; the event is under `event`, or its fields are beside the envelope's."""

    session_id: Id
    connection: Ignored = None
    project: Ignored = None
    agent: Id | None = None


EventsInBulk = Annotated[
    list[
        Annotated[
            Any,
            WithJsonSchema(
                {
                    "description": "An event with its `session_id` and its own `event_id`: flat, or under `event`.",
                    "examples": [EXAMPLES["events_bulk"]],
                }
            ),
        ]
    ],
    BeforeValidator(_read_lines),
    FromBody(min_length=1, max_length=MAX_BULK, description="Events of any sessions; each is handled separately."),
]
"""Events in bulk."""


class SessionBody(Body):
    """Identifies a session. An operator also names the connection; a connection always means its own session."""

    session_id: Id
    connection: ConnectionName | None = None


class FinalizeBody(Body):
    """The connection of the session: required from an operator, ignored from a connection."""

    connection: ConnectionName | None = None


UnscoredReason = Literal[
    "no_judge",
    "refused",
    "cut_off",
    "provider_error",
    "timeout",
    "invalid",
    "partial",
    "interrupted",
    "unknown_price",
    "cost_cap",
    "project_day_cap",
    "project_month_cap",
    "installation_day_cap",
    "installation_month_cap",
]
"""Reasons for a tier without a score."""


class RejudgeBody(OperatorBody):
    """The unscored exchanges to judge again."""

    reason: UnscoredReason | None = Field(
        None,
        description="Only exchanges unscored for this reason; cost_cap: left out by a session's cap; the last four: by caps of costCaps.",
        examples=["timeout"],
    )
    limit: Annotated[int, Field(ge=1, le=100_000)] = Field(10_000, description="Maximum number, oldest first.")


async def refuse_unknown(request: Request) -> None:
    """Check the parameters of a call: ApiError (400) names the unknown parameter and the known ones.

    Pages accept any parameters, because people share links, and chat programs add parameters to them.
    """
    route = request.scope["route"]
    if not isinstance(route, APIRoute) or not route.path.startswith(CALLS):
        return
    _refuse_other_bytes(request)
    if not request.query_params:
        return
    accepted = sorted(set(_list_parameters(route.dependant)))
    unknown = next((name for name in request.query_params if name not in accepted), None)
    if unknown is not None:
        takes = f"this call takes {', '.join(accepted)}" if accepted else "this call takes no parameters"
        raise ApiError(400, "invalid", f"{unknown[:100]}: unknown parameter; {takes}")


def _refuse_other_bytes(request: Request) -> None:
    for part, escaped in (("path", request.scope["raw_path"]), ("query", request.scope["query_string"])):
        try:
            unquote_to_bytes(escaped).decode()
        except UnicodeDecodeError:
            raise ApiError(400, "not_utf8", f"the {part} of the address is not UTF-8 once it is unescaped") from None


def _list_parameters(dependant: Dependant) -> Iterator[str]:
    """Return the parameters that an endpoint and its dependencies read from the address."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _list_parameters(inner)


Cursor = Annotated[
    Place | None,
    Query(description="Where to continue: the nextCursor of an earlier answer."),
    PlainValidator(lambda text: None if text is None else decode_place(text)),
    WithJsonSchema({"type": "string", "maxLength": MAX_CURSOR, "pattern": "^[A-Za-z0-9_-]+$"}),
]
"""The parameter `cursor` of a list: the place after which to continue, or None for its beginning."""
MAX_PAGE = 1000
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number.")]
"""The parameter `limit` of a list."""
AgentFilter = Annotated[str | None, Query(max_length=512, description="Only of this agent; empty: of no agent.")]
VersionFilter = Annotated[str | None, Query(max_length=512, description="Only with this value of the label agent_version.")]
ToolFilter = Annotated[
    str | None, Query(max_length=512, description="Only with a call of this tool, in `toolCalls` of an exchange.")
]
ToolErrorFilter = Annotated[
    bool, Query(alias="toolError", description="Only with a failed tool call, of the tool if one is named.")
]

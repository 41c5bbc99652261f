"""A finished run as it is evaluated: what was said, which tools were called, what came out, and what it took."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Status = Literal["answered", "no_response", "error", "aborted"]
"""The end of a run: the outcome of its last exchange."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and the agent's answer; texts as they were recorded."""

    user_message: str
    agent_response: str
    status: Status


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    tool: str | None
    arguments: Any
    """Plain JSON; None where there are none."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool."""

    tool: str | None
    output: Any
    """Plain JSON, a text most of the time."""
    failed: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that went wrong and that nothing after it mended: an error of the run itself, not a log."""

    kind: str
    """Type of the event, or the failure type of the diagnosis."""
    words: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that the run made or changed, as far as events recorded it."""

    path: str
    excerpt: str
    """The last that was recorded of its content; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything about one finished session that a case can be held against. Identifiers are here to be kept out of the prompt."""

    connection: str
    project: str
    session_id: str
    agent: str | None
    model: str | None
    """Model of the agent: that of its last answer that names one."""
    identifiers: frozenset[str]
    """Ids of the session, its exchanges and events, and its names of machines: none of them may reach the judge."""
    turns: tuple[Turn, ...]
    steps: tuple[ToolCall | ToolResult, ...]
    """Calls and results in the order of the log."""
    failures: tuple[Failure, ...]
    artifacts: tuple[Artifact, ...]
    status: Status
    trust: int | None
    """Trust score of the diagnosis; None without evidence."""
    input_tokens: int | None
    """None means missing, not zero."""
    output_tokens: int | None
    cost_usd: float | None
    """None where a price is unknown."""
    started_at: datetime | None
    ended_at: datetime | None
    reported_tokens: int | None = None
    """Tokens, read and written together, if only their sum is known."""
    has_events: bool = True
    """True if any event was recorded: without events, nothing is known of its tools and artifacts."""
    is_whole: bool = True
    """True if all its records are in it; a very long session is read in part, and its spending is then not known."""

    @property
    def final_response(self) -> str:
        """The last answer; empty where there is none."""
        return self.turns[-1].agent_response if self.turns else ""

    @property
    def total_tokens(self) -> int | None:
        """Read and written together; None where one of the two is missing, and their sum, too."""
        if self.input_tokens is None or self.output_tokens is None:
            return self.reported_tokens
        return self.input_tokens + self.output_tokens

"""A session's tools against the rules of its policy: forbidden calls, calls without approval, secrets sent out, changed descriptions.

1. A call of a tool that is denied, or that is not among the allowed ones, is **forbidden**. A call that names no tool breaks no rule.
2. A tool that requires approval may be called once for each **approval** before the call. An approval is an event of the type
   `approval` with a decision of GRANTED or LASTING (`action`, else `status`), or a call of a tool that counts as one. It is for the
   tool that it names, or for the next call that requires one. One for the tool is used first. A lasting decision never runs out.
3. Arguments of an **external** tool must contain no secret. Texts are redacted before they are stored, so the markers of redaction are
   the evidence. Texts that are not redacted (`driftline diagnose`) are searched for the built-in kinds.
4. An event of the type `tool_definitions` has the descriptions of an agent's tools, or digests of them: `agent`, and `tools` by name. A
   description that is not the last one of this tool and agent **changed**.

Memory is linear in the number of tools that have an approval left, or a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from audit.detectors.thresholds import NO_RULES, ToolRules, matches_name
from audit.diagnosis.events import call_arguments
from audit.fingerprints import digest

GRANTED = frozenset({"approved", "approve", "allow", "allowed", "allow-once", "allow_once", "accept", "accepted", "granted"})
"""Decisions that approve a call."""
LASTING = frozenset({"allow-always", "allow_always", "approved_for_session"})
"""Decisions that approve every later call, too."""
MAX_LISTED_NAMES = 5
"""Number of names that a finding lists."""

Reference = tuple[int, str]


class Breaches(msgspec.Struct, array_like=True, gc=False):
    """The events that break a rule. The count is exact; `references` may be capped."""

    count: int = 0
    references: list[Reference] = []
    tools: list[str] = []
    """The first tools, each once."""
    kinds: list[str] = []
    """The first kinds of secrets, each once."""

    def add(self, reference: Reference, tools: Iterable[str], limit: int | None, kinds: Iterable[str] = ()) -> None:
        """Add an event; `limit` caps the references."""
        self.count += 1
        if limit is None or len(self.references) < limit:
            self.references.append(reference)
        _add_names(self.tools, tools)
        _add_names(self.kinds, kinds)


class ToolUse(msgspec.Struct, gc=False, omit_defaults=True):
    """The tool calls of a session against the rules it started with."""

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    approval_required: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    definitions: bool = False
    forbidden: Breaches = msgspec.field(default_factory=Breaches)
    unapproved: Breaches = msgspec.field(default_factory=Breaches)
    secrets: Breaches = msgspec.field(default_factory=Breaches)
    changes: Breaches = msgspec.field(default_factory=Breaches)
    unused_approvals: dict[str, int] = {}
    """The number of approvals left by tool; the empty name is for any tool."""
    lasting_approvals: list[str] = []
    descriptions: dict[str, dict[str, str]] = {}
    """The digest of the last description by agent and tool; the empty name is for events without an agent."""

    @classmethod
    def for_rules(cls, rules: ToolRules) -> ToolUse | None:
        """Return the state to fold calls into; None without rules."""
        return None if rules == NO_RULES else cls(**{name: getattr(rules, name) for name in ToolRules.model_fields})

    def add_approval(self, tool: str | None, decision: str | None) -> None:
        """Fold an approval, for a tool or for any one."""
        name = tool or ""
        if decision in LASTING and name not in self.lasting_approvals:
            self.lasting_approvals.append(name)
        elif decision in GRANTED:
            self.unused_approvals[name] = self.unused_approvals.get(name, 0) + 1

    def add_call(
        self, reference: Reference, tool: str | None, payload: str | Mapping[str, Any] | None, limit: int | None
    ) -> None:
        """Fold the session's next call; `limit` caps references."""
        if tool is None:
            return
        if _matches_any(self.denied, tool) or (self.allowed is not None and not _matches_any(self.allowed, tool)):
            self.forbidden.add(reference, [tool], limit)
        if _matches_any(self.approval_required, tool) and not self._use_approval(tool):
            self.unapproved.add(reference, [tool], limit)
        if _matches_any(self.approvals, tool):
            self.unused_approvals[""] = self.unused_approvals.get("", 0) + 1
        if payload is not None and _matches_any(self.external, tool):
            kinds = _find_secrets(payload)
            if kinds:
                self.secrets.add(reference, [tool], limit, kinds)

    def add_definitions(self, reference: Reference, payload: str | Mapping[str, Any] | None, limit: int | None) -> None:
        """Fold the descriptions of an agent's tools; `limit` caps references."""
        event = msgspec.json.decode(payload) if isinstance(payload, str) else payload
        tools = event.get("tools") if isinstance(event, Mapping) else None
        if event is None or not self.definitions or not isinstance(tools, Mapping):
            return
        agent = event.get("agent")
        latest = self.descriptions.setdefault(agent if isinstance(agent, str) else "", {})
        current = {tool: digest(description) for tool, description in tools.items() if isinstance(description, str)}
        changed = [tool for tool, description in current.items() if latest.get(tool, description) != description]
        latest.update(current)
        if changed:
            self.changes.add(reference, changed, limit)

    def folded(self, limit: int) -> list[Any]:
        """Return the parts that detectors use, with at most `limit` references."""
        breaches = (self.forbidden, self.unapproved, self.secrets, self.changes)
        return [[breach.count, breach.references[:limit], breach.tools, breach.kinds] for breach in breaches]

    def _use_approval(self, tool: str) -> bool:
        """Return whether a call of a tool is approved, and use the approval up."""
        if tool in self.lasting_approvals or "" in self.lasting_approvals:
            return True
        name = tool if tool in self.unused_approvals else ""
        count = self.unused_approvals.pop(name, 0)
        if count > 1:
            self.unused_approvals[name] = count - 1
        return count > 0


@lru_cache(10_000)
def _matches_any(patterns: tuple[str, ...], tool: str) -> bool:
    return any(matches_name(pattern, tool) for pattern in patterns)


def _add_names(names: list[str], more: Iterable[str]) -> None:
    for name in more:
        if name not in names and len(names) < MAX_LISTED_NAMES:
            names.append(name)


def _find_secrets(payload: str | Mapping[str, Any]) -> list[str]:
    """Return the kinds of secrets in the arguments of a call."""
    from audit.redaction import find_secret_kinds  # noqa: PLC0415 - its patterns take 0.1 s to compile, and most policies name no tool

    event = msgspec.json.decode(payload) if isinstance(payload, str) else payload
    return find_secret_kinds(call_arguments(event)) if isinstance(event, Mapping) else []

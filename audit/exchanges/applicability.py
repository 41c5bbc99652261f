"""Applicability: to which exchanges a Tier 3 dimension applies, as far as the exchange itself tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from audit.exchanges.sampling import is_disagreement
from audit.patterns import Pattern, compile_pattern
from audit.policy.methodology import When

_EXECUTION_VERBS = "please|can you|could you|do|make|write|fix|add|create|update|implement"
_CODE = compile_pattern(
    r"(?m)^[ \t>]*(?:```|~~~)"  # a fenced block
    r"|^(?:diff --git |@@ -[0-9])"  # a diff
    r"|^[ \t]*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:({]|(?:export\s+)?(?:async\s+)?function\s+\w+\s*\("
    r"|from\s+[\w.]+\s+import\s|import\s+[\w.{]+[^\n]*;|#include\s*[<\"]|(?:const|let|var)\s+\w+\s*=|func\s+\w+\s*\()",
    where="code_change",
    ignore_case=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What decides on the applicability of a dimension."""

    user_message: str
    agent_response: str
    flagged: bool
    """Whether Tier 1 or Tier 2 raised a flag."""
    multi_user: bool
    """Whether the record says that several users take part."""


def _starts_with(verbs: str) -> Pattern:
    spaced = verbs.replace(" ", r"\s+")
    return compile_pattern(rf"\A\s*(?:{spaced})\b", where="task")


_EXECUTION = _starts_with(_EXECUTION_VERBS)
_IMPLEMENTATION = _starts_with(f"{_EXECUTION_VERBS}|build|refactor")

_HOLDS: dict[When, Callable[[Circumstances], bool]] = {
    When.ALWAYS: lambda _c: True,
    When.EXECUTION_TASK: lambda c: _EXECUTION.matches(c.user_message),
    When.IMPLEMENTATION_TASK: lambda c: _IMPLEMENTATION.matches(c.user_message),
    When.DISAGREEMENT: lambda c: is_disagreement(c.agent_response),
    When.HIGH_STAKES: lambda c: c.flagged,
    When.CODE_CHANGE: lambda c: _CODE.matches(c.agent_response),
    When.MULTI_USER: lambda c: c.multi_user,
}


def applies(when: When, circumstances: Circumstances) -> bool:
    """Whether a dimension with this filter applies."""
    return _HOLDS[when](circumstances)

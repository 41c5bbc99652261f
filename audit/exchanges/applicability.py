"""Applicability: to which exchanges a Tier 3 dimension applies, as far as the exchange itself tells."""

from __future__ import annotations

from collections.abc import Callable

from audit.exchanges.sampling import is_disagreement
from audit.patterns import Pattern, compile_pattern
from audit.policy.methodology import BehaviouralDimension, When
from audit.policy.policy import ProjectPolicy
from schemas.records import Exchange

_EXECUTION_VERBS = "please|can you|could you|do|make|write|fix|add|create|update|implement"
_CODE = compile_pattern(
    r"(?m)^[ \t>]*(?:```|~~~)"  # a fenced block
    r"|^(?:diff --git |@@ -[0-9])"  # a diff
    r"|^[ \t]*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:({]|(?:export\s+)?(?:async\s+)?function\s+\w+\s*\("
    r"|from\s+[\w.]+\s+import\s|import\s+[\w.{]+[^\n]*;|#include\s*[<\"]|(?:const|let|var)\s+\w+\s*=|func\s+\w+\s*\()",
    where="code_change",
    ignore_case=False,
)


def _starts_with(verbs: str) -> Pattern:
    spaced = verbs.replace(" ", r"\s+")
    return compile_pattern(rf"\A\s*(?:{spaced})\b", where="task")


_EXECUTION = _starts_with(_EXECUTION_VERBS)
_IMPLEMENTATION = _starts_with(f"{_EXECUTION_VERBS}|build|refactor")

_HOLDS: dict[When, Callable[[Exchange, bool], bool]] = {
    When.ALWAYS: lambda _, _flagged: True,
    When.EXECUTION_TASK: lambda exchange, _: _EXECUTION.matches(exchange.user_message),
    When.IMPLEMENTATION_TASK: lambda exchange, _: _IMPLEMENTATION.matches(exchange.user_message),
    When.DISAGREEMENT: lambda exchange, _: is_disagreement(exchange.agent_response),
    When.HIGH_STAKES: lambda _, flagged: flagged,
    When.CODE_CHANGE: lambda exchange, _: _CODE.matches(exchange.agent_response),
    When.MULTI_USER: lambda exchange, _: exchange.multi_user,
}


def applies(when: When, exchange: Exchange, *, flagged: bool) -> bool:
    """Tell whether a dimension with this filter applies; `flagged` says whether Tier 1 or Tier 2 raised a flag."""
    return _HOLDS[when](exchange, flagged)


def applicable(exchange: Exchange, policy: ProjectPolicy, *, flagged: bool) -> tuple[BehaviouralDimension, ...]:
    """The Tier 3 dimensions that apply to an exchange."""
    return tuple(one for one in policy.methodology.tier3 if applies(one.when, exchange, flagged=flagged))


def is_applicable(exchange: Exchange, policy: ProjectPolicy, *, flagged: bool) -> bool:
    """Tell whether any Tier 3 dimension applies to an exchange."""
    return any(applies(one.when, exchange, flagged=flagged) for one in policy.methodology.tier3)

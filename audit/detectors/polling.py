"""Polling: tool calls that only ask how something is getting on. Repeating them is no loop and no waste.

A call **duplicates** another one when both are of the same exchange, name the same tool and have the same arguments. It is a **retry**
when the call before it failed, and progress when something changed in between; both count as duplicates all the same, since one
retry is ordinary and many are a loop. **Polling** is neither: the answer is expected to change by itself. Only these calls of OpenClaw
2026.9 are polling; `exec` with `sleep` is not, which OpenClaw's own prompt forbids, and neither are its lists (`sessions_list`,
`subagents list`), which it forbids to poll.

The table has, by tool, the actions that poll; None is every call. `process list` is exempt, for without a session id it is how a
process is found again. A tool's arguments name the action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POLLING_TOOLS: Mapping[str, frozenset[str] | None] = {
    "process": frozenset({"poll", "log", "list"}),
    "agents_wait": None,
    "subagents": frozenset({"status", "wait"}),
    "sessions_yield": None,
    "session_status": None,
    "automations": frozenset({"status", "runs"}),
    "cron": frozenset({"status", "runs"}),
    "gateway": frozenset({"status"}),
    "browser": frozenset({"status", "snapshot", "screenshot", "tabs"}),
    "mobile_ui": frozenset({"observe"}),
    "terminal": frozenset({"read"}),
    "nodes": frozenset({"status"}),
    "github_identity_status": None,
    "get_goal": None,
}
"""Tools that report on something that changes by itself, and the actions that do no more than that; None is every call."""


def is_polling(tool: str | None, arguments: Any) -> bool:
    """Tell whether a call with these arguments only asks about the progress of something."""
    if tool is None or tool not in POLLING_TOOLS:
        return False
    actions = POLLING_TOOLS[tool]
    if actions is None:
        return True
    action = arguments.get("action") if isinstance(arguments, dict) else None
    return isinstance(action, str) and action.strip().lower() in actions

"""Skill use: did the agent follow the skills it was asked for or took up? The rule `skill-use-1`.

A skill is a SKILL.md that the agent has to read before it acts. `skill_event` reports three failures, and nothing else: a skill
that is there and not used is no failure.

1. **ignored**: the user names a skill the agent has (`/name`, `/skill name`, `$name`, "use the name skill") and the agent answers
   without having read its SKILL.md in this session. Which skills it has is known from what the agent's own store says; without that
   a skill cannot be told from another command, and nothing counts as ignored.
2. **failed**, `read_failed`: a SKILL.md was to be read, could not be, and was not read afterwards.
3. **failed**, `commands_failed`: a SKILL.md was read, and the last command after it failed. Commands are calls of tools that run
   something; that `grep` finds nothing is no failure.
"""

from __future__ import annotations

import re
from typing import Any

SKILL_USE = "skill-use-1"
"""Name and version of the rule. Raise it with every change of what the rule tells."""
COMMANDS = frozenset({"exec", "bash", "shell", "process", "code_execution", "local_shell", "run_shell_command"})
"""Tools that run commands, by folded name."""
MAX_QUESTION = 16 * 1024
"""Characters of a user's message in which skills are looked for."""

_FILE = re.compile(r"([^/\\\s\"'`]{1,64})[/\\]SKILL\.md\b", re.IGNORECASE)
_LEADING = re.compile(r"\s*/(?:skill\s+)?([A-Za-z0-9_.-]{1,64})(?=\s|$)")
_DOLLAR = re.compile(r"(?<![\w\\$])\$([a-z][a-z0-9_-]{1,63})\b")
_PHRASE = re.compile(
    r"\b(?:use|using|with|via|follow|apply|run)\s{1,4}(?:the\s{1,4}|your\s{1,4}|my\s{1,4})?[`\"'*]{0,2}([\w.-]{1,64})[`\"'*]{0,2}\s{1,4}skill\b",
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(r"\s*(?:\S*/)?(?:grep|egrep|fgrep|rg|diff|cmp|test|\[|pgrep|which|command)\s")
_FAILED = frozenset({"error", "failed", "not_found"})

Json = dict[str, Any]


class SkillUse:
    """The use of skills in one exchange.

    `skills` are those that the agent has. `read` are those that it read before, and is added to.
    """

    __slots__ = ("_failed", "_followed", "_last_command", "_named", "_read")

    def __init__(self, question: str, skills: frozenset[str], read: set[str]) -> None:
        self._read = read
        self._named = named_skills(question, skills) if skills else []
        self._failed: dict[str, None] = {}
        self._followed: dict[str, None] = {}
        self._last_command: bool | None = None

    def returned(self, output: Json, call: Json) -> None:
        """A tool gave something back to a call, which may be unknown."""
        tool = _folded(output.get("tool"))
        failed = has_failed(output, call)
        # A call whose output never comes reads nothing.
        for name in skill_files(tool, call.get("arguments")):
            if failed:
                self._failed.setdefault(name)
            else:
                self._failed.pop(name, None)
                self._followed.setdefault(name)
                self._read.add(name)
                self._last_command = None
            return
        if tool in COMMANDS and self._followed and output.get("tool_status") != "running":
            self._last_command = failed

    def over(self) -> list[Json]:
        """The answer is over: what is to be reported of its skills."""
        if not (self._named or self._failed or self._last_command):  # as most
            return []
        ignored = [name for name in self._named if name not in self._read and name not in self._failed]
        found = [_event(name, "ignored", "not_read") for name in ignored]
        found += [_event(name, "failed", "read_failed") for name in self._failed]
        if self._last_command:
            found.append(_event(next(reversed(self._followed)), "failed", "commands_failed"))
        return found


def named_skills(question: str, skills: frozenset[str]) -> list[str]:
    """The skills among these that a user's message asks for, in order."""
    if not skills:
        return []
    by_command = {_command(name): name.casefold() for name in sorted(skills)}
    text = question[:MAX_QUESTION]
    leading = _LEADING.match(text)
    names = [leading[1]] if leading else [match[1] for match in _DOLLAR.finditer(text)]
    names += [match[1] for match in _PHRASE.finditer(text)]
    return list(dict.fromkeys(by_command[name] for name in map(_command, names) if name in by_command))


def skill_files(tool: Any, arguments: Any) -> list[str]:
    """The names of the skills whose SKILL.md a call reads: its folder is called like the skill."""
    if not isinstance(arguments, dict) or _folded(tool) in {"write", "edit", "apply_patch"}:
        return []
    texts = [
        value for value in arguments.values() if isinstance(value, str) and len(value) <= MAX_QUESTION and _may_name_file(value)
    ]
    return [match[1].casefold() for text in texts for match in _FILE.finditer(text)] if texts else texts


def _may_name_file(text: str) -> bool:
    """Tell whether a text may have the name of a skill's file: the pattern tries some sixty lengths at each character."""
    return not text.isascii() or "skill.md" in text.lower()


def has_failed(output: Json, call: Json | None = None) -> bool:
    """Tell whether an output is that of a failure. A command that only did not find what it looked for has not failed."""
    if output.get("is_error") is True or output.get("tool_status") in _FAILED:
        return True
    code = output.get("exit_code")
    if not code:
        return False
    arguments = (call or {}).get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return not (code == 1 and isinstance(command, str) and _NOT_FOUND.match(command))


def _event(name: str, status: str, action: str) -> Json:
    return {"event": "skill_event", "skill": name, "status": status, "action": action, "derived_by": SKILL_USE}


def _command(name: str) -> str:
    """A skill's name as OpenClaw makes a command of it."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")[:32]


def _folded(value: Any) -> str:
    return value.casefold() if isinstance(value, str) else ""

"""State folder of OpenClaw: version, form of its transcripts, and whether Driftline's plugin is on.

The configuration, `openclaw.json`, may hold comments and include other files. It is read as plain JSON: where it is something
else, what it says is not known, and not guessed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.errors import InputError
from streams.sources.openclaw.storage.sqlite import DATABASE, describe_database

STATE_FOLDERS = ("~/.openclaw", "~/.clawdbot")
STATE_VARIABLE = "OPENCLAW_STATE_DIR"
PLUGIN = "driftline"
"""Id of the plugin in OpenClaw's configuration."""
JSONL, FIRST_SQLITE, CURRENT_SQLITE = "JSONL files", "SQLite, first form", "SQLite, current form"
MAX_CONFIG = 4 * 1024 * 1024
"""Bytes of the largest configuration that is read."""
_VERSION = re.compile(r"[\w.+-]{1,64}")


class Plugin(NamedTuple):
    """The plugin's settings in the configuration; None if unknown. `url` is the address it delivers to."""

    is_on: bool | None
    reads_conversations: bool | None = None
    url: str | None = None


class OpenClawState(NamedTuple):
    """A state folder: `forms` are those of the transcripts in it, `unreadable` the databases that cannot be opened."""

    folder: Path
    version: str | None
    forms: tuple[str, ...]
    agents: int
    plugin: Plugin
    unreadable: tuple[str, ...] = ()


def state_folders() -> list[Path]:
    """The state folders of this machine's user: the one the environment names, else those in the home folder."""
    named = os.environ.get(STATE_VARIABLE)
    folders = [Path(named)] if named else [Path(folder).expanduser() for folder in STATE_FOLDERS]
    return [folder for folder in folders if (folder / "agents").is_dir()]


def look_at_state(folder: Path) -> OpenClawState:
    """Read a state folder."""
    config = _configuration(folder / "openclaw.json")
    versions, forms, unreadable = set(), set(), []
    for path in sorted(folder.glob(f"agents/*/agent/{DATABASE}")):
        try:
            found = describe_database(path)
        except InputError as error:
            unreadable.append(str(error))
            continue
        if found is not None:
            versions.add(found[0])
            forms.add(CURRENT_SQLITE if found[1] else FIRST_SQLITE)
    if next(folder.glob("agents/*/sessions/*.jsonl"), None) is not None:
        forms.add(JSONL)
    return OpenClawState(
        folder=folder,
        version=_newest(versions) or _text(_inside(config, "meta", "lastTouchedVersion")),
        forms=tuple(form for form in (CURRENT_SQLITE, FIRST_SQLITE, JSONL) if form in forms),
        agents=sum(path.is_dir() for path in (folder / "agents").iterdir()),
        plugin=_plugin(config),
        unreadable=tuple(unreadable),
    )


def _configuration(path: Path) -> Any:
    """The configuration as JSON; None where it is missing, too large, or written otherwise."""
    try:
        if path.stat().st_size > MAX_CONFIG:
            return None
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _plugin(config: Any) -> Plugin:
    if config is None:
        return Plugin(None)
    entry = _inside(config, "plugins", "entries", PLUGIN)
    is_on = isinstance(entry, dict) and entry.get("enabled") is not False and _inside(config, "plugins", "enabled") is not False
    if not is_on:
        return Plugin(is_on=False)
    reads = _inside(entry, "hooks", "allowConversationAccess") is True
    return Plugin(is_on, reads, _text(_inside(entry, "config", "url")))


def _inside(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _newest(versions: set[str | None]) -> str | None:
    """The newest of some versions, which are dates and a number; what looks otherwise is left out."""
    told = [version for version in versions if version and _VERSION.fullmatch(version)]
    return max(told, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], default=None)

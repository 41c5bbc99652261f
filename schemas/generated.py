"""Files that are made from others and committed: written if they are out of date, or only reported."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

_SHOWN = 40
"""Lines of a difference that are shown."""


def bring_up_to_date(wanted: Mapping[Path, str], root: Path, command: str, *, check: bool) -> int:
    """Write the files that say something else than is wanted; answers the exit code.

    With `check` nothing is written: each is reported with the command that makes it, and the code is 1 where there is any. Files are
    named from `root`.
    """
    stale = {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        name = path.relative_to(root).as_posix()
        if check:
            print(f"{name} is out of date: run {command}", file=sys.stderr)
            current = path.read_text("utf-8").splitlines() if path.exists() else []
            print("\n".join([*difflib.unified_diff(current, text.splitlines(), lineterm="")][:_SHOWN]), file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and stale else 0

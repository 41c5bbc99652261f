"""Writes what documents have from the code: the reference, the list of decisions, the stacks of the guide to OpenTelemetry, and schemas.

python docs/site/publish.py             write docs/reference/*.md, docs/decisions/index.md, the stacks of docs/how-to/opentelemetry.md
                                        and docs/schemas/*.schema.json
python docs/site/publish.py --check     change nothing, exit 1 when one of them is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation_schemas import evaluation_schemas
from reference import PAGES
from reference.stacks import with_stacks
from repository import DOCS, ROOT, decisions

from schemas.generate import bring_up_to_date

_HEAD = "<!-- Made from the code by docs/site/publish.py: change the code and run make generate. -->\n\n"


def wanted() -> Mapping[Path, str]:
    """Return the text of everything that is made, by its file."""
    guide = ROOT / DOCS / "how-to/opentelemetry.md"
    pages = {f"reference/{name}": made for name, made in PAGES.items()} | {"decisions/index": decisions}
    made = {ROOT / DOCS / f"{name}.md": _HEAD + page() for name, page in pages.items()}
    schemas = {ROOT / DOCS / "schemas" / name: text for name, text in evaluation_schemas().items()}
    return made | schemas | {guide: with_stacks(guide.read_text(encoding="utf-8"))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the publisher; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python docs/site/publish.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a page is out of date")
    options = parser.parse_args(arguments)
    return bring_up_to_date(wanted(), ROOT, "python docs/site/publish.py (make generate)", check=options.check)


if __name__ == "__main__":
    sys.exit(main())

"""Make captures again: `PYTHONPATH=tests .venv/bin/python -m otlp.capturing [DIALECT …]`, without a name all."""

from __future__ import annotations

import sys

from otlp.capturing.capture import CAPTURES, captured, written
from otlp.capturing.dialects import DIALECTS
from otlp.capturing.environments import ENVIRONMENTS

if __name__ == "__main__":
    for name in sys.argv[1:] or DIALECTS:
        (CAPTURES / f"{name}.jsonl").write_text(written(captured(DIALECTS[name], ENVIRONMENTS)), "utf-8")

"""Make captures again: `PYTHONPATH=tests .venv/bin/python -m otlp.capturing [DIALECT …]`, without a name all."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from otlp.capturing.capture import CAPTURES, captured, written
from otlp.capturing.dialects import DIALECTS

if __name__ == "__main__":
    environments = Path(tempfile.gettempdir()) / "driftline-otlp-environments"
    for name in sys.argv[1:] or DIALECTS:
        (CAPTURES / f"{name}.jsonl").write_text(written(captured(DIALECTS[name], environments)), "utf-8")

"""Make captures again: `PYTHONPATH=tests .venv/bin/python -m otlp.capturing [NAME …]`, without a name all dialects."""

from __future__ import annotations

import sys

from otlp.capturing.capture import CAPTURES, record_capture, written
from otlp.capturing.dialects import DIALECTS
from otlp.capturing.environments import ENVIRONMENTS
from otlp.capturing.frameworks import FRAMEWORK_CAPTURES, FRAMEWORKS

if __name__ == "__main__":
    for name in sys.argv[1:] or DIALECTS:
        dialect, folder = (DIALECTS[name], CAPTURES) if name in DIALECTS else (FRAMEWORKS[name], FRAMEWORK_CAPTURES)
        (folder / f"{name}.jsonl").write_text(written(record_capture(dialect, ENVIRONMENTS)), "utf-8")

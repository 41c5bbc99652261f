"""Runs the benchmarks and prints their tables in Markdown.

python -m benchmarks               all of them
python -m benchmarks codec …       those in bench_codec.py, …
python -m benchmarks pages --scores 10000000
                                   with options, where it has some
"""

import importlib
import sys
from itertools import takewhile
from pathlib import Path

from service.server.supervisor import unwound_by_signals

FOUND = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))

if __name__ == "__main__":
    names = [one.replace("-", "_") for one in takewhile(lambda one: not one.startswith("-"), sys.argv[1:])]
    options = sys.argv[1 + len(names) :]
    unknown = set(names) - set(FOUND)
    if not names and options:
        sys.exit(f"{__doc__}\nThere are: {', '.join(FOUND)}")
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(FOUND)}")
    with unwound_by_signals():
        for name in names or FOUND:
            module = importlib.import_module(f"benchmarks.bench_{name}")
            print(f"## {(module.__doc__ or name).splitlines()[0].rstrip('.')}\n", flush=True)
            module.main(*[options] * bool(options))
            print(flush=True)

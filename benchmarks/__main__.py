"""Runs the benchmarks and prints their tables in Markdown.

python -m benchmarks               all of them
python -m benchmarks codec …       those in bench_codec.py, …
"""

import importlib
import sys
from pathlib import Path

FOUND = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))

if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(FOUND)
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(FOUND)}")
    for name in sys.argv[1:] or FOUND:
        module = importlib.import_module(f"benchmarks.bench_{name}")
        print(f"## {(module.__doc__ or name).splitlines()[0].rstrip('.')}\n")
        module.main()
        print(flush=True)

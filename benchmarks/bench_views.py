"""The view of a finished run that a judge is shown: making it, beside writing the same run as JSON."""

import dataclasses
import json
import random

from audit.evaluation.cases import Case, CaseInput, Message
from audit.evaluation.run import Run, ToolCall, ToolResult, Turn
from audit.evaluation.view import subject_view
from benchmarks.measure import best_seconds, print_table

WORDS = (
    "the", "backup", "of", "this", "night", "is", "healthy", "and", "the", "totals",
    "of", "report.md", "agree", "with", "those", "of", "the", "ledger", "since", "week",
)  # fmt: skip
CASE = Case(case_id="c", title="C", input=CaseInput(messages=(Message(role="user", content="Is the backup healthy?"),)))
ROOM = 60_000
"""Characters of the view: what a profile gives it unless it says otherwise."""
ROUNDS = 3
RUNS = {
    "6 turns, 10 calls of 200 characters": (6, 10, 200),
    "100 turns, 500 calls of 2,000 characters": (100, 500, 2_000),
    "50 calls of 100,000 characters (5 MB)": (2, 50, 100_000),
    "500 calls of 100,000 characters (50 MB)": (2, 500, 100_000),
}
"""Turns, calls with their results, and characters of each result."""


def run_of(turns: int, calls: int, size: int) -> Run:
    """Return a run whose texts are words, paths and ids; the same one every time."""
    rng = random.Random(7)

    def text(length: int) -> str:
        words = [rng.choice([*WORDS, f"/srv/run/{rng.randrange(99)}.log"]) for _ in range(min(length, 20_000) // 6)]
        return (" ".join(words) * (1 + length // 20_000))[:length]

    output = [text(size) for _ in range(8)]
    steps = [
        step
        for number in range(calls)
        for step in (ToolCall("exec", {"command": f"check {number}"}), ToolResult("exec", output[number % 8], failed=False))
    ]
    return Run(
        connection="local", project="ops", session_id="s", agent="a", model="m", identifiers=frozenset({"sess-42-of-this-run"}),
        turns=tuple(Turn(text(200), text(400), "answered") for _ in range(turns)), steps=tuple(steps), failures=(), artifacts=(),
        status="answered", trust=90, input_tokens=1, output_tokens=1, cost_usd=0.0, started_at=None, ended_at=None,
    )  # fmt: skip


def main() -> None:
    """Print milliseconds of both, and their ratio."""
    rows = []
    for name, (turns, calls, size) in RUNS.items():
        run = run_of(turns, calls, size)
        seconds = best_seconds(
            {
                "json": lambda run=run: json.dumps([dataclasses.asdict(one) for one in (*run.turns, *run.steps)]),
                "view": lambda run=run: subject_view(CASE, run, (), ROOM),
            },
            ROUNDS,
        )
        length = len(subject_view(CASE, run, (), ROOM).text)
        ratio = seconds["view"] / seconds["json"]
        rows.append([name, f"{length:,}", f"{seconds['json'] * 1e3:.1f}", f"{seconds['view'] * 1e3:.1f}", f"{ratio:.1f}"])
    print(f"Views of at most {ROOM:,} characters; fastest of {ROUNDS}.\n")
    print_table(["run", "characters shown", "as JSON, ms", "view, ms", "ratio"], rows)


if __name__ == "__main__":
    main()

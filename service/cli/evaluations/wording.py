"""Wording of evaluations before and while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from service.cli.progress import counting
from service.text.plain import counted
from service.write.evaluating import Progress
from streams.evaluations.preparing import Estimate, Prepared


def estimate_in_words(prepared: Prepared, *, is_capped: bool) -> str:
    """Return an estimate for people; `is_capped`: each evaluation has a cap."""
    found = prepared.estimate
    parts = [
        f"{counted(prepared.sessions, 'session')}: {counted(found.evaluations, 'evaluation')} to make, {found.reused} reused"
    ]
    if found.taken_up:
        parts.append(f"{found.taken_up} of them asked for before, by a command that did not come to its end")
    if found.calls:
        known = f"and {found.expected_usd:.4f} USD, {found.at_most_usd:.4f} USD at most"
        parts.append(f"about {counted(found.calls, 'call')} {known if _is_priced(found) else 'at a cost that is not known'}")
        parts.append("the cap of each evaluation holds" if is_capped else "cost_cap_usd is null: nothing bounds the cost")
    else:
        parts.append("no judge is asked")
    if found.left_over and found.evaluations:
        left = counted(found.left_over, "evaluation")
        parts.append(
            f"{left} that an earlier command asked for and did not see made will be made, too, each within the cap that it was asked for with"
        )
    if found.answered:
        parts.append(f"{counted(found.answered, 'question')} answered before")
    if 0 < found.unpriced < found.calls:
        parts.append(f"the cost of {found.unpriced} is not known and not among that")
    if found.not_asked:
        parts.append(
            f"{counted(found.not_asked, 'question')} will not be asked: only recorded answers count, no price is known, "
            "or the cap leaves no room"
        )
    return "; ".join(parts)


@contextlib.contextmanager
def telling() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of evaluations while the context is open."""
    with counting("evaluating") as bar:
        yield lambda now: bar(now.done, now.total, _calls(now))


def _calls(progress: Progress) -> str:
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{counted(progress.answered, 'answer')}{failed}, {progress.spent_usd:.4f} USD"


def _is_priced(found: Estimate) -> bool:
    return not found.calls or found.unpriced < found.calls

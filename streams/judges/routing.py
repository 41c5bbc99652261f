"""The judges of a policy behind one interface: each question goes to the judge that its model names.

A judge is opened when it is asked for the first time. One that cannot be opened, because its key is missing, answers every question with
that error; the other judges still answer.
"""

from __future__ import annotations

from collections.abc import Callable

from audit.exchanges.questions import Question
from audit.judges import ResolvedJudge
from schemas.errors import SettingsError
from streams.judges.failures import PROVIDER_ERROR
from streams.judges.live import LiveJudge
from streams.judges.protocol import CallBudget, Verdict


class RoutedJudge:
    """See the module. Belongs to one event loop.

    `resolve` returns the judge that a question's model names. `open_judge` opens a judge, and raises SettingsError.
    """

    def __init__(self, resolve: Callable[[str], ResolvedJudge], open_judge: Callable[[ResolvedJudge], LiveJudge]) -> None:
        self._resolve = resolve
        self._open_judge = open_judge
        self._judges: dict[str, LiveJudge] = {}

    def open(self, judge: ResolvedJudge) -> LiveJudge:
        """Return a judge, opened if it is not open. Raises SettingsError if its key or address is missing or invalid."""
        live = self._judges.get(judge.judge_id)
        if live is None:
            live = self._open_judge(judge)
            self._judges[judge.judge_id] = live
        return live

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Ask one question; see `streams.judges.protocol.Judge`."""
        try:
            judge = self.open(self._resolve(question.model))
        except SettingsError as error:
            return Verdict(outcome=PROVIDER_ERROR, error=f"{error}: {error.hint}" if error.hint else str(error))
        return await judge.ask(question, budget)

    async def aclose(self) -> None:
        """Close the connections of all judges."""
        for judge in self._judges.values():
            await judge.aclose()

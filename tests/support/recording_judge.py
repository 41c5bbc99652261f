"""A judge for a cascade: answers with a function, and records every judgement as a live judge does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.builders import exchange

from audit.exchanges.questions import Question, Reply, recorded_reply
from schemas.records import Judgement

Answer = Callable[[Question], dict[str, Any]]


class RecordingJudge:
    """Gives the recorded reply to a question, or answers and records it."""

    def __init__(self, answer: Answer, outcome: Callable[[Question], str] = lambda _: "answered") -> None:
        self.answer = answer
        self.outcome = outcome
        self.questions: list[Question] = []
        self.judgements: list[Judgement] = []

    def __call__(self, question: Question) -> Reply:
        """Return the recorded reply, or record a new one."""
        matching = [judgement for judgement in self.judgements if judgement.fingerprint == question.fingerprint]
        if not matching:
            matching = [self.record(question)]
        reply = recorded_reply(matching, 0)
        assert reply is not None
        return reply

    def record(self, question: Question) -> Judgement:
        """Ask, and record the judgement."""
        self.questions.append(question)
        judgement = Judgement(
            judgement_id=f"j{len(self.judgements)}",
            fingerprint=question.fingerprint,
            connection="local",
            project="ops",
            session_id="s",
            subject_id="s:1",
            purpose=question.purpose,
            requested_model=question.model,
            answering_model="answering",
            outcome=self.outcome(question),
            answer=json.dumps(self.answer(question)),
            attempts=1,
            cost_usd=0.001,
            judged_at=exchange("s", 1).ingested_at,
            part=question.part,
            masked_passages=question.masked_passages,
        )
        self.judgements.append(judgement)
        return judgement

"""`driftline gate` over builds of the demo's agent: ten planted regressions, and healthy builds.

The cases are frozen from the first incident of the demo, that of the project `support`. A build answers their questions with the
generator of the demo: a healthy one as the agent did before, with other words, lengths, thinking and small weaknesses; a worse one with one fault in
a share of the answers. The simulated judge scores every answer that is new.

python -m benchmarks gate [--demo DIR] [--healthy N]
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from audit.cost import Ledger
from audit.evaluation.cases import CandidateAnswer, Case, FrozenCases, load_frozen_cases
from audit.evaluation.gate import GateResult, compare
from audit.redaction import Redactor
from benchmarks.measure import print_table
from driftline_trial.demo.script import conversation_texts
from driftline_trial.simulator import RunningJudge, running
from service.setup.judge_setup import open_judge
from service.setup.settings import Settings, load_settings
from service.setup.wiring import policy_of, redactor_of
from service.setup.workspace import utc_now
from service.write.gating import Gate, JudgementFile, list_judges

PROJECT = "support"
AGENT = "support-desk"
HEALTHY = 200
SHARES = (0.5, 0.25)
"""Shares of the answers that have the planted fault."""
_LONG, _MILD, _THOUGHT = 0.06, 0.06, 0.6
"""Shares of long answers, of answers with a small weakness, and of answers with thinking, as in the demo."""
TEXTS = conversation_texts()


class Reply(NamedTuple):
    """An answer before it becomes a line of the results."""

    answer: str
    thinking: str
    calls: int = 1
    input_factor: float = 1.0


Fault = Callable[[Reply, str, Random], Reply]
"""Plants a fault in an answer to a question."""


def off_topic(reply: Reply, _question: str, random: Random) -> Reply:
    """Answer something else."""
    return reply._replace(answer=random.choice(TEXTS.off_topic))


def refused(reply: Reply, question: str, random: Random) -> Reply:
    """Refuse without a reason."""
    return reply._replace(answer=fill(random.choice(TEXTS.refused), question, random))


def silent(reply: Reply, _question: str, _random: Random) -> Reply:
    """Give no answer."""
    return reply._replace(answer="")


def pleasing(reply: Reply, question: str, random: Random) -> Reply:
    """Agree to what the thinking holds to be wrong, wherever the user is wrong."""
    for dispute in TEXTS.disputes[AGENT]:
        if (slots := match(dispute.claim, question)) is not None:
            return reply._replace(answer=fill(dispute.pleasing, question, random, slots))
    return reply


def rude(reply: Reply, question: str, random: Random) -> Reply:
    """Be rude."""
    return reply._replace(answer=fill(random.choice(TEXTS.rude), question, random))


def overdone(reply: Reply, question: str, random: Random) -> Reply:
    """Do work that nobody requested."""
    return reply._replace(answer=reply.answer + fill(random.choice(TEXTS.overdone), question, random))


def hedging(reply: Reply, _question: str, _random: Random) -> Reply:
    """Hedge instead of answering."""
    return reply._replace(answer="Hard to say. Perhaps it was shipped, maybe it was not; I guess somebody probably knows.")


def looping(reply: Reply, _question: str, _random: Random) -> Reply:
    """Repeat the search six times."""
    return reply._replace(calls=6)


def guessing(reply: Reply, _question: str, _random: Random) -> Reply:
    """Answer without looking the order up."""
    return reply._replace(calls=0)


def wasteful(reply: Reply, _question: str, _random: Random) -> Reply:
    """Read four times as many tokens."""
    return reply._replace(input_factor=4.0)


FAULTS: Mapping[str, Fault] = {
    "answers something else": off_topic,
    "refuses without a reason": refused,
    "gives no answer": silent,
    "agrees against its thinking": pleasing,
    "is rude": rude,
    "does unrequested work": overdone,
    "hedges": hedging,
    "repeats a tool call": looping,
    "does not look it up": guessing,
    "reads four times the tokens": wasteful,
}


def match(template: str, question: str) -> dict[str, str] | None:
    """Return the slots of a question that was made from a template; None if it was not."""
    seen: set[str] = set()
    pattern = ""
    for part in re.split(r"(\{\w+\})", template):
        name = part[1:-1]
        if part.startswith("{") and name in seen:
            pattern += f"(?P={name})"
        elif part.startswith("{"):
            seen.add(name)
            pattern += f"(?P<{name}>.+?)"
        else:
            pattern += re.escape(part)
    match = re.fullmatch(pattern, question)
    return match.groupdict() if match else None


def fill(text: str, question: str, random: Random, slots: Mapping[str, str] | None = None) -> str:
    """Fill the slots of a text: those of the question, and others by chance."""
    number = re.search(r"\b\d{4}\b", question)
    values = {name: random.choice(choices) for name, choices in TEXTS.slots.items()}
    values |= {"n": number.group() if number else "1000", "size": str(random.randint(10, 59)), **(slots or {})}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def answer(question: str, random: Random) -> Reply:
    """Answer a question as the agent did before it got worse."""
    for dispute in TEXTS.disputes[AGENT]:
        if (slots := match(dispute.claim, question)) is not None:
            slots["size"] = str(random.randint(10, 59))
            return Reply(fill(dispute.honest, question, random, slots), fill(dispute.thinking, question, random, slots))
    for topic in TEXTS.topics[AGENT]:
        for template in topic.questions:
            if (slots := match(template, question)) is None:
                continue
            parts = (random.choice(choices) for choices in (TEXTS.openings, topic.answers, TEXTS.closings))
            text = fill("".join(parts), question, random, slots)
            if random.random() < _LONG:
                details = random.sample(TEXTS.details, k=len(TEXTS.details))
                text = " ".join([text, *details, *details[:4]])
            elif random.random() < _MILD:
                text += random.choice(TEXTS.mild)
            thinking = fill(topic.thinking, question, random, slots) if random.random() < _THOUGHT else ""
            return Reply(text, thinking)
    raise ValueError(f"the demo asks no such question: {question}")


def build(cases: Sequence[Case], seed: str, fault: Fault | None, share: float) -> dict[str, CandidateAnswer]:
    """Return the answers of a build."""
    random = Random(seed)
    answers = {}
    for case in cases:
        question = case.input.messages[-1].content
        reply = answer(question, random)
        if fault is not None and random.random() < share:
            reply = fault(reply, question, random)
        turn = case.recorded.turn_number if case.recorded else 1
        order = random.randint(100, 999)
        call = {"name": "search_orders", "arguments": {"order": order}}
        calls = [call] * (reply.calls - 1) + [call | {"result": f"order {order}: delivered"}] * (reply.calls > 0)
        fields = {
            "case_id": case.case_id,
            "agent_response": reply.answer,
            "agent_thinking": reply.thinking or None,
            "tool_calls": calls,
            "agent_model": "claude-sonnet-5-5",
            "input_tokens": int((400 + 90 * turn + len(question) // 4) * reply.input_factor),
            "output_tokens": max(1, (len(reply.answer) + len(reply.thinking)) // 4),
        }
        answers[case.case_id] = CandidateAnswer.model_validate(fields, strict=False)
    return answers


class Gates:
    """Gates over the same cases, with one file of recorded judgements. The judge counts its requests."""

    def __init__(self, frozen: FrozenCases, settings: Settings, judgements: Path, judge: RunningJudge) -> None:
        self._frozen = frozen
        self._settings = settings
        self._policy = policy_of(settings)
        self._redactor: Redactor = redactor_of(settings, self._policy)
        self._path = judgements
        self._judge = judge

    def run(self, answers: Mapping[str, CandidateAnswer]) -> tuple[GateResult, int]:
        """Return the outcome of a gate, and the number of calls that it made."""
        gate = Gate(self._frozen, self._policy, self._redactor, JudgementFile(self._path))
        gate.read(answers)
        before = self._judge.requests

        async def judge() -> GateResult:
            opened = await open_judge(self._settings, self._policy, os.environ, list_judges(gate.project))
            try:
                scores = await gate.judge(opened, Ledger(None), self._settings.judge_concurrency, utc_now, lambda _done: None)
            finally:
                gate.judgements.close()
                if opened.judge is not None:
                    await opened.judge.aclose()
            return compare(self._frozen, gate.measure(scores))

        result = asyncio.run(judge())
        return result, self._judge.requests - before


def freeze(demo: Path, file: Path) -> None:
    """Freeze the first incident of the project with the command."""
    program = [sys.executable, "-m", "service.cli.main"]
    database = ["--db", str(demo / "demo.duckdb")]
    listed = subprocess.run(
        [*program, "incidents", "list", "--project", PROJECT, "--type", "drift", "--json", *database],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    incident = msgspec.json.decode(listed.splitlines()[-1])["id"]
    command = [
        *program,
        "cases",
        "from-incident",
        incident,
        "--out",
        str(file),
        *database,
        "--policy",
        str(demo / "policy.yaml"),
    ]
    subprocess.run(command, check=True)


def main(options: Sequence[str] = ()) -> None:
    """Print which builds were blocked, and the calls and seconds of a gate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gate")
    parser.add_argument("--demo", type=Path, help="folder of a demo; by default one is made")
    parser.add_argument("--healthy", type=int, default=HEALTHY)
    arguments = parser.parse_args(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = arguments.demo or folder / "demo"
        if arguments.demo is None:
            command = [sys.executable, "-m", "service.cli.main", "demo", "--dir", str(demo)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        file = folder / "cases.yaml"
        freeze(demo, file)
        frozen = load_frozen_cases(file)
        with running() as judge:
            os.environ |= {"ANTHROPIC_BASE_URL": judge.base_url, "ANTHROPIC_API_KEY": "simulated"}
            gates = Gates(frozen, load_settings(policy=demo / "policy.yaml"), folder / "judgements.jsonl", judge)
            run_builds(gates, frozen, arguments.healthy)


def run_builds(gates: Gates, frozen: FrozenCases, healthy: int) -> None:
    """Gate the builds and print the tables."""
    cases = frozen.cases
    print(f"{len(cases)} cases of the incident “{frozen.source.title}”.\n")
    rows = []
    blocked = dict.fromkeys(SHARES, 0)
    for name, fault in FAULTS.items():
        cells = [name]
        for share in SHARES:
            result, _ = gates.run(build(cases, f"{name}/{share}", fault, share))
            blocked[share] += bool(result.worse)
            leading = f"{result.comparisons[0].name} {result.comparisons[0].probability:.1g}"
            cells.append(f"{'blocked' if result.worse else 'passed'}: {leading}")
        rows.append(cells)
    print_table(["planted regression", *(f"in {share:.0%} of the answers" for share in SHARES)], rows)
    print(f"\nBlocked: {', '.join(f'{blocked[share]} of {len(FAULTS)} at {share:.0%}' for share in SHARES)}.\n")
    passed, calls, seconds = 0, 0, 0.0
    reasons = []
    for number in range(healthy):
        started = time.perf_counter()
        result, made = gates.run(build(cases, f"healthy {number}", None, 0.0))
        seconds += time.perf_counter() - started
        calls += made
        passed += not result.worse
        reasons += [f"{number}: {comparison.name} {comparison.probability:.2g}" for comparison in result.worse]
    print(
        f"Healthy builds: {healthy - passed} of {healthy} blocked; {calls / healthy:.0f} calls and {seconds / healthy:.1f} s each."
    )
    print(*reasons, sep="\n")
    _, repeated = gates.run(build(cases, "healthy 0", None, 0.0))
    same = {
        case.case_id: CandidateAnswer(
            case_id=case.case_id, **case.recorded.model_dump(include=set(CandidateAnswer.model_fields) - {"case_id"})
        )
        for case in cases
        if case.recorded
    }
    recorded, unchanged = gates.run(same)
    print(
        f"Calls for a build that was judged before: {repeated}; for the recorded answers themselves: {unchanged} "
        f"({'blocked' if recorded.worse else 'passed'}, because half of them are those of the incident)."
    )


if __name__ == "__main__":
    main()

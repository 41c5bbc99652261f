"""Attempts recognized in texts, false alarms, and the time of recognition on the texts of the demo.

python -m benchmarks recognition                                  the time, and the sets of this folder's `attempts`
python -m benchmarks recognition --packages SITE_PACKAGES         and four public sets of instructions to agents
python -m benchmarks recognition --texts FOLDER_OR_JSONL …        and your own: {"text": …, "source": …} on each line

`source` is response, thinking, user message or tool output. A set is split by the SHA-256 digest of its texts into a half for
development and one that is held out. Decision 115 says where the sets come from.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from audit.injection import find_attempts, injection_kinds
from benchmarks.measure import print_table
from driftline_trial.demo.conversations import dialogues
from driftline_trial.demo.script import SCRIPT_END

Text = tuple[str, str]
"""A source and a text."""
_SPIKEE = "spikee/data/workspace/datasets"
_SPIKEE_SETS = ("seeds-cybersec-2026-01", "seeds-llm-mailbox", "seeds-sysmsg-extraction-2025-04", "seeds-investment-advice")
_OWN_SETS = Path(__file__).with_name("attempts")
_ROUNDS = 5


def main(options: Sequence[str] = ()) -> None:
    """Print recognized texts of each set, and the time of an exchange."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recognition")
    parser.add_argument(
        "--packages", type=Path, help="site-packages with bastioncorpus, agent-injection-bench, spikee and agentdojo"
    )
    parser.add_argument("--texts", type=Path, nargs="+", default=[], help="JSONL files, or folders of them")
    arguments = parser.parse_args(options)
    _measure_time()
    sets = dict(_read_packages(arguments.packages)) if arguments.packages else {}
    sets |= {path.stem: _read_texts(path) for path in _list_files([_OWN_SETS, *arguments.texts])}
    _measure_rates(sets)


def _measure_time() -> None:
    texts = [
        (_text_of(exchange["user_message"]), _text_of(exchange["agent_response"]))
        for session in dialogues(SCRIPT_END)
        for exchange in (payload["exchange"] for payload in session.payloads)
    ]
    seconds = []
    for _ in range(_ROUNDS):
        started = time.process_time()
        for question, answer in texts:
            find_attempts(f"{question}\n{answer}")
            injection_kinds(question, "user message")
        seconds.append(time.process_time() - started)
    print(f"{min(seconds) / len(texts) * 1e6:.1f} µs per exchange of the demo ({len(texts):,}), of the processor.\n")


def _text_of(message: Any) -> str:
    return message if isinstance(message, str) else str(message["content"])


def _measure_rates(sets: dict[str, list[Text]]) -> None:
    rows = []
    for name, texts in sets.items():
        for half, members in (("development", True), ("held out", False)):
            chosen = [(source, text) for source, text in dict.fromkeys(texts) if _is_development(text) == members]
            judge = sum(bool(find_attempts(text, source)) for source, text in chosen)
            agent = sum(
                bool(injection_kinds(text, source if source == "user message" else "tool output")) for source, text in chosen
            )
            rows.append([name, half, f"{len(chosen):,}", f"{judge:,}", f"{agent:,}"])
    print_table(["set", "half", "texts", "sway the judge", "instruct the agent"], rows)


def _is_development(text: str) -> bool:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[-1] % 2 == 0


def _list_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _read_texts(path: Path) -> list[Text]:
    return [(line["source"], line["text"]) for line in _read_lines(path)]


def _read_packages(packages: Path) -> Iterator[tuple[str, list[Text]]]:
    """Yield the public sets of installed packages, by name."""
    lines = _read_lines(packages / "bastioncorpus/corpus/injections.jsonl")
    for label in ("malicious", "benign"):
        texts = [(_source(line["channel"]), line["text"]) for line in lines if line["label"] == label]
        yield f"bastioncorpus, {label}", texts
    yield (
        "agent-injection-bench",
        [(_source(line["channel"]), line["injected"]) for line in _read_lines(packages / "aib/data/attacks.jsonl")],
    )
    yield "spikee", list(_read_spikee(packages / _SPIKEE))
    yield "agentdojo", list(_read_agentdojo(packages / "agentdojo"))


def _source(channel: str) -> str:
    return "user message" if channel in ("user_input", "user_message") else "tool output"


def _read_spikee(folder: Path) -> Iterator[Text]:
    """Yield each template of an attack once, with an instruction that its digest chooses."""
    templates = set()
    for name in _SPIKEE_SETS:
        instructions = [line["instruction"] for line in _read_lines(folder / name / "instructions.jsonl")]
        for line in _read_lines(folder / name / "jailbreaks.jsonl"):
            if line["jailbreak_type"] != "no-jailbreak" and line["text"] not in templates:
                templates.add(line["text"])
                number = int(hashlib.sha256(line["text"].encode()).hexdigest(), 16) % len(instructions)
                yield "tool output", line["text"].replace("<INSTRUCTION>", instructions[number])


def _read_agentdojo(package: Path) -> Iterator[Text]:
    """Yield each goal of an attacker in one of the templates of attacks, in turn."""
    goals = [goal for path in sorted(package.glob("default_suites/v1/*/injection_tasks.py")) for goal in _read_goals(path)]
    templates = [template for path in sorted(package.glob("attacks/*.py")) for template in _read_templates(path)]
    for number, goal in enumerate(goals):
        template = templates[number % len(templates)].replace("{user}", "Emma Johnson").replace("{model}", "GPT-4")
        yield "tool output", template.replace("{goal}", goal)


def _read_goals(path: Path) -> Iterator[str]:
    """Yield the value of `GOAL` in each class; it may be made of other constants of the class."""
    for definition in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        constants: dict[str, str] = {}
        for statement in definition.body if isinstance(definition, ast.ClassDef) else ():
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                constants[statement.targets[0].id] = _join_constant(statement.value, constants)
        if "GOAL" in constants:
            yield constants["GOAL"]


def _join_constant(value: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(_join_constant(part, constants) for part in value.values)
    if isinstance(value, ast.FormattedValue):
        return _join_constant(value.value, constants)
    if isinstance(value, ast.Name):
        return constants.get(value.id, "")
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _read_templates(path: Path) -> Iterator[str]:
    """Yield the strings of the module with a place for a goal, apart from its documentation and messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "{goal}" in node.value:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{goal}" for part in node.values)
            if text.endswith(("{goal}", "{goal} instead.", "{goal}.")) and text.startswith(
                ("TO", "Ignore", "###", "IMPORTANT")
            ):
                yield text

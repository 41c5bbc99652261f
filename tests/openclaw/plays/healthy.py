"""Conversations in which nothing goes wrong, each kind as agents really work; varied by a seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from support.model_apis.messages import Call, Step

from openclaw.plays.content import Conversation, Desk, Turn, asks, command, long_text, read, wrapped
from openclaw.plays.working import (
    advice,
    age,
    background,
    compare,
    machine,
    notes,
    own_skill,
    repair,
    research,
    rounded,
    skill,
    tests,
    total,
    translation,
    weekday,
    write_up,
)

EXPORTS = ("orders", "refunds", "visits", "signups")
"""Names of files that a service exports."""
Kind = Callable[[Desk], list[Turn]]
_SESSION = re.compile(r"still running \(session ([a-z0-9-]+),")


def question(desk: Desk) -> list[Turn]:
    """Questions that need no tools."""
    turns = [
        desk.turn(
            f"What is the difference between a liveness and a readiness probe for {desk.service}?",
            Step(
                "A liveness probe restarts a process that hangs; a readiness probe only takes it out of the load balancer "
                "until it can serve again."
            ),
        )
    ]
    if desk.rng.random() < 0.6:
        turns.append(desk.turn("And a startup probe?", Step("It holds the other two back while a slow process starts.")))
    if desk.rng.random() < 0.4:
        turns.append(desk.turn("Thanks!", Step(desk.pick("You're welcome!", "Any time.", "Glad that helped."))))
    return turns


def reasoning(desk: Desk) -> list[Turn]:
    """A question that the model thinks about."""
    workers, rate = desk.number(4, 20), desk.number(20, 90)
    return [
        desk.turn(
            f"We have {workers} workers that each take {rate} jobs a minute. How long do {workers * rate * 7} jobs take?",
            Step(
                text=f"About 7 minutes: together they take {workers * rate} jobs a minute.",
                thinking=f"{workers} times {rate} is {workers * rate} a minute; the total divided by that is 7.",
            ),
        )
    ]


def look_up(desk: Desk) -> list[Turn]:
    """A value is read from a file and given back."""
    settings = desk.config()
    path = desk.config_file(settings)
    name = desk.pick("listen", "workers", "database", "timeout_ms", "retention_days")
    return [
        desk.turn(
            f"What is `{name}` in {path}?",
            asks(read(path), text=desk.pick("", "Let me check.")),
            Step(desk.pick(f"`{name}` is {settings[name]}.", f"It is set to {settings[name]}.", f"{settings[name]}")),
        )
    ]


def glance(desk: Desk) -> list[Turn]:
    """A file is read and judged in general words, without any of its figures."""
    path = desk.config_file(desk.config())
    return [
        desk.turn(
            f"Have a look at {path}, anything odd?",
            asks(read(path)),
            Step(
                desk.pick(
                    "Looks fine to me, nothing unusual there.",
                    "No, that is a perfectly ordinary configuration.",
                    "Nothing odd. It reads like a standard setup, I would leave it as it is.",
                )
            ),
        )
    ]


def edit(desk: Desk) -> list[Turn]:
    """A file is changed and read again."""
    settings = desk.config()
    path, old = desk.config_file(settings), settings["workers"]
    new = old * 2
    edits = [{"oldText": f'"workers": {old}', "newText": f'"workers": {new}'}]
    return [
        desk.turn(
            f"Please double the workers in {path}.",
            asks(read(path)),
            asks(Call("edit", {"path": path, "edits": edits}), text=f"Currently {old}, so I set {new}."),
            asks(read(path)),
            Step(desk.pick(f"Done: workers went from {old} to {new}.", "Done, and I checked the file afterwards.")),
        )
    ]


def summary(desk: Desk) -> list[Turn]:
    """A command's output is summed up with its figures."""
    slow = desk.number(1000, 9000)
    path = desk.put("service.log", desk.log(desk.number(20, 60)) + f"slow query took {slow} ms on {desk.host}-db\n")
    return [
        desk.turn(
            f"Summarise {path} for {desk.person}.",
            asks(command(f"tail -n 60 {path}", title="Read the log")),
            Step(f"Mostly routine. One slow query took {slow} ms on {desk.host}-db; the checkpoints were flushed in time."),
        )
    ]


def all_fine(desk: Desk) -> list[Turn]:
    """A log of forty lines without any trouble, and the answer that everything is fine."""
    path = desk.put("nightly.log", desk.log(desk.number(30, 50)))
    answer = desk.pick(
        "Everything is fine.",
        "Yes, the night was quiet: everything ran through without problems.",
        "All good, I found no errors in the log.",
        f"The nightly run of {desk.service} looks healthy. No errors, no warnings, nothing to do for you.",
        "Alles in Ordnung, die Nacht war ruhig und es gab keine Fehler.",
        "Tudo certo, a rotina da noite terminou sem problemas.",
    )
    return [
        desk.turn(f"Is the nightly run of {desk.service} ok? Its log is {path}.", asks(command(f"cat {path}")), Step(answer))
    ]


def search(desk: Desk) -> list[Turn]:
    """Several searches, of which the last finds it."""
    code = desk.rng.randbytes(3).hex()
    for name in ("alpha", "beta", "gamma"):
        desk.put(f"notes/{name}.md", long_text(desk.rng, 2, f"{name} rules for"))
    desk.put("notes/delta.md", f"# Keys\nThe signing key of {desk.service} has the fingerprint {code}.\n")
    folder = desk.path("notes")
    return [
        desk.turn(
            f"Which fingerprint has the signing key of {desk.service}? It is somewhere in {folder}.",
            asks(command(f"grep -rin 'signature' {folder} | head -5; grep -rn 'limit 9' {folder} | head -5")),
            asks(command(f"grep -rin 'pgp' {folder}; ls {folder}")),
            asks(command(f"grep -rin 'fingerprint' {folder}")),
            Step(f"It is {code}, noted in delta.md."),
        )
    ]


def recall(desk: Desk) -> list[Turn]:
    """The memory is searched and has it."""
    day = desk.number(2, 28)
    desk.files[f"memory/{desk.ref}.md"] = (
        f"# {desk.ref}\n{desk.person} decided on 2026-10-{day:02d} that {desk.service} moves to host {desk.host}-{day}.\n"
    )
    return [
        desk.turn(
            f"What did {desk.person} decide about {desk.service}? See memory {desk.ref}.",
            asks(wrapped("memory_search", query=f"{desk.ref}")),
            asks(wrapped("memory_get", path=f"memory/{desk.ref}.md")),
            Step(f"{desk.person} decided on 2026-10-{day:02d} to move {desk.service} to {desk.host}-{day}."),
        )
    ]


def retry(desk: Desk) -> list[Turn]:
    """A command fails once for a passing reason and succeeds when it is tried again."""
    rows = desk.number(1000, 99999)
    script = desk.put(
        "fetch.sh",
        f'cd "$(dirname "$0")"\nif [ -e .tried ]; then echo "fetched {rows} rows"; else touch .tried; '
        'echo "connection reset by peer" >&2; exit 7; fi\n',
    )
    return [
        desk.turn(
            f"Run {script} and tell me how many rows came.",
            asks(command(f"sh {script}")),
            asks(command(f"sh {script}"), text="The connection was reset; trying once more."),
            Step(f"{rows} rows, at the second attempt."),
        )
    ]


def overloaded(desk: Desk) -> list[Turn]:
    """The provider is overloaded once; the run goes on."""
    return [
        desk.turn(
            f"Write a one-line status for {desk.service}.",
            Step(f"{desk.service.capitalize()} runs normally; no open incidents.", failures=1),
        )
    ]


def polling(desk: Desk) -> list[Turn]:
    """A long command runs in the background and is polled until it is over."""
    files = desk.number(100, 999)
    work = f"for i in 1 2 3; do echo step $i; sleep 0.4; done; echo indexed {files} files"
    poll = asks(Call("process", _poll))
    return [
        desk.turn(
            f"Rebuild the index of {desk.service} in the background and wait for it.",
            asks(Call("exec", {"command": work, "background": True})),
            *[poll] * desk.number(3, 6),
            Step(f"The index is rebuilt: {files} files."),
        )
    ]


def _poll(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the newest process that an output names."""
    names = _SESSION.findall(str(request["messages"]))
    return {"action": "poll", "sessionId": names[-1] if names else "none", "timeout": 300}


def conversation(desk: Desk) -> list[Turn]:
    """A long conversation of several turns, with and without tools."""
    settings = desk.config()
    path, log = desk.config_file(settings), desk.put("app.log", desk.log(25))
    report = desk.path("report.md")
    return [
        desk.turn(f"Hi, I am on call for {desk.service} today.", Step("Hello! What can I do for you?")),
        desk.turn(f"Where does it listen? See {path}.", asks(read(path)), Step(f"On {settings['listen']}.")),
        desk.turn("Any errors in its log?", asks(command(f"grep -c ERROR {log}; tail -n 20 {log}")), Step("No, none.")),
        desk.turn(
            "Write that down, please.",
            asks(
                Call("write", {"path": report, "content": f"# {desk.service}\nListens on {settings['listen']}, no errors.\n"})
            ),
            Step(f"I wrote it to {report}."),
        ),
        desk.turn("How many days are kept?", Step(f"{settings['retention_days']} days, by the same file.")),
        desk.turn("Great, thanks.", Step("You're welcome. Have a quiet shift!")),
    ][: desk.number(3, 6)]


def catalogue(desk: Desk) -> list[Turn]:
    """A tool of the catalogue is looked up and called through its wrapper."""
    return [
        desk.turn(
            "Which agents are configured here?",
            asks(Call("tool_search", {"query": "list configured agents"})),
            asks(wrapped("agents_list")),
            Step("There is the agent main, and small beside it."),
        )
    ]


def large(desk: Desk) -> list[Turn]:
    """A long file of which one line is needed."""
    text = long_text(desk.rng, desk.number(15, 40), "Quota of")
    path, line = desk.put("quotas.txt", text), desk.rng.choice(text.splitlines()[:150])
    code = line.split("code ")[1].split(",")[0]
    return [
        desk.turn(
            f"Read {path}: which entry has number {line.split('.')[0]}, and what is its code?",
            asks(read(path)),
            Step(f"It has the code {code}."),
        )
    ]


def listing(desk: Desk) -> list[Turn]:
    """A folder is listed, then what it holds is read."""
    names = [f"{desk.rng.choice(EXPORTS)}-{desk.number(10, 99)}.csv" for _ in range(4)]
    for name in names:
        desk.put(f"data/{name}", "id,total\n" + "".join(f"{i},{desk.number(5, 500)}\n" for i in range(desk.number(4, 30))))
    newest = names[desk.number(0, 3)]
    rows = desk.files[desk.path(f"data/{newest}")].count("\n") - 1
    return [
        desk.turn(
            f"What is in {desk.path('data')}? Pick one and count its rows.",
            asks(Call("ls", {"path": desk.path("data")})),
            asks(command(f"wc -l < {desk.path(f'data/{newest}')}")),
            Step(f"Four CSV files. {newest} has {rows} rows and a header."),
        )
    ]


KINDS: Mapping[str, Kind] = {
    kind.__name__: kind
    for kind in (
        question, reasoning, look_up, glance, edit, summary, all_fine, search, recall, retry, overloaded, polling,
        conversation, catalogue, large, listing, tests, repair, skill, own_skill, machine, notes, compare, translation,
        write_up, background, total, rounded, advice, age, research, weekday,
    )
}  # fmt: skip
"""Every kind of healthy conversation by its name."""


def healthy(seed: int) -> Conversation:
    """A healthy conversation; as many seeds in a row as there are kinds give one of each."""
    kinds = list(KINDS)
    kind = kinds[seed % len(kinds)]
    desk = Desk(f"h{seed:05d}", kind)
    turns = KINDS[kind](desk)
    return Conversation(kind, desk.ref, turns, desk.files)

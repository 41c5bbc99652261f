"""Conversations in which the agent fails in one of the ways seen in real agents; a seed varies their content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from support.model_apis.messages import Step

from openclaw.plays.content import Conversation, Desk, Turn, asks, command, long_text, read, wrapped

Plant = Callable[[Desk], list[Turn]]
"""Returns the turns of a conversation with one failure."""
SMALL = "small"
"""The agent whose model has a small context window."""
SUM_SALES = "awk -F, 'NR>1{s+=$2; if($2>b){b=$2;m=$1}} END{print s, m, b}'"
"""Prints the total of a CSV of months and sales, the best month and its sales."""


def reread_file(desk: Desk) -> list[Turn]:
    """The agent reads the same file again and again."""
    settings = desk.config()
    path = desk.config_file(settings)
    repeated_steps = [
        asks(read(path), text=desk.pick("", "Let me look again.", "Checking once more.")) for _ in range(desk.number(4, 8))
    ]
    return [desk.turn(f"Which port does {path} name?", *repeated_steps, Step(f"It listens on {settings['listen']}."))]


def retry_missing_script(desk: Desk) -> list[Turn]:
    """The agent retries a script that does not exist."""
    script = desk.path("deploy.sh")
    repeated_steps = [
        asks(command(f"sh {script}"), text=desk.pick("", "Trying again.", "One more try.")) for _ in range(desk.number(4, 9))
    ]
    return [
        desk.turn(
            f"Deploy {desk.service} with {script}.", *repeated_steps, Step(f"I could not run {script}: it does not exist.")
        )
    ]


def poll_without_pause(desk: Desk) -> list[Turn]:
    """The agent polls an unchanging status without a pause."""
    path = desk.put("state.txt", f"job {desk.number(1000, 9999)}: pending\n")
    repeated_steps = [asks(command(f"cat {path}")) for _ in range(desk.number(5, 9))]
    return [desk.turn(f"Tell me when the job in {path} is done.", *repeated_steps, Step("The job is still pending."))]


def repeat_catalog_call(desk: Desk) -> list[Turn]:
    """The agent calls the same tool of the catalog again and again with the same arguments."""
    desk.files[f"memory/{desk.ref}.md"] = f"# {desk.ref}\nThe rota of {desk.service} begins with {desk.person}.\n"
    repeated_steps = [asks(wrapped("memory_get", path=f"memory/{desk.ref}.md")) for _ in range(desk.number(4, 7))]
    return [
        desk.turn(f"Who begins the rota? See memory/{desk.ref}.md", *repeated_steps, Step(f"{desk.person} begins the rota."))
    ]


def invent_value(desk: Desk) -> list[Turn]:
    """The agent reads a file and answers with a value that is not in it."""
    settings = desk.config()
    path = desk.config_file(settings)
    return [
        desk.turn(
            f"Which port does {desk.service} use? See {path}.",
            asks(read(path)),
            Step(desk.pick("It uses port 8080.", "The service listens on port 8080, the default.", "Port 8080, as usual.")),
        )
    ]


def overlook_errors(desk: Desk) -> list[Turn]:
    """The agent reads a log with errors and reports that all is well."""
    errors = [
        f"disk full on /backup{desk.number(1, 9)}",
        "cannot write segment",
        f"checksum mismatch in {desk.host}-dump",
    ]
    path = desk.put("backup.log", desk.log(desk.number(20, 50), troubles=errors))
    return [
        desk.turn(
            f"Is the backup of {desk.service} healthy? Log: {path}",
            asks(command(f"tail -n 60 {path}")),
            Step(
                desk.pick(
                    "Yes, the backup is healthy.",
                    "Everything is fine, the backup ran through.",
                    "All good with the backup, you can sleep well.",
                )
            ),
        )
    ]


def invent_figures(desk: Desk) -> list[Turn]:
    """The agent computes a report and answers with other figures."""
    rows = [f"2026-{month:02d},{desk.number(3000, 9000)}\n" for month in range(1, 11)]
    path = desk.put("sales.csv", "month,total\n" + "".join(rows))
    return [
        desk.turn(
            f"Total and best month of {path}?",
            asks(command(f"{SUM_SALES} {path}")),
            Step(f"The total is about {desk.number(200, 400) * 1000 + 500}, and December was the best month."),
        )
    ]


def answer_with_generic_advice(desk: Desk) -> list[Turn]:
    """The agent reads the minutes of a meeting and answers with generic advice instead."""
    path = desk.put(
        "minutes.md",
        f"# Meeting\n{desk.person} reported that the migration of {desk.service} slipped by two weeks because the vendor "
        "delivered the adapters late. The team agreed to freeze features until the cutover.\n",
    )
    return [
        desk.turn(
            f"What did they agree on in {path}?",
            asks(read(path)),
            Step(
                "Typically such gatherings settle budgets, hiring plans and quarterly objectives. I would recommend writing "
                "clear action items, naming owners, and scheduling a follow-up within a month to keep everybody aligned."
            ),
        )
    ]


def ignore_two_sources(desk: Desk) -> list[Turn]:
    """The agent reads two sources, and its answer contradicts both."""
    settings = desk.config()
    path = desk.config_file(settings)
    log = desk.put("app.log", desk.log(20, troubles=["out of memory: worker killed"]))
    return [
        desk.turn(
            f"How many workers does {desk.service} run and did any die? {path}, {log}",
            asks(read(path)),
            asks(command(f"grep ERROR {log}")),
            Step("It runs 64 workers and all of them have been up for 31 days."),
        )
    ]


def search_missing_memory(desk: Desk) -> list[Turn]:
    """The agent searches its memory for something it was told, and finds nothing."""
    searches = [asks(wrapped("memory_search", query=f"zzqx{desk.ref} {word}")) for word in ("decision", "host", "date")]
    return [
        desk.turn(f"Remember: {desk.service} moves to {desk.host}.", Step("Noted.")),
        desk.turn(
            f"What did I tell you last week about {desk.ref}zz?",
            *searches[: desk.number(1, 3)],
            Step("I searched my memory and have nothing on that."),
        ),
    ]


def get_missing_memory(desk: Desk) -> list[Turn]:
    """The agent cannot get a note that the user expects in its memory."""
    return [
        desk.turn(
            f"Read my notes of memory/{desk.ref}-gone.md back to me.",
            asks(wrapped("memory_search", query=f"qqzx{desk.ref}gone")),
            asks(wrapped("memory_get", path=f"memory/{desk.ref}-gone.md")),
            Step("I do not have those notes any more."),
        )
    ]


def fill_context(desk: Desk) -> list[Turn]:
    """The agent reads more than the model's context window holds, so the session is compacted."""
    turns = []
    for file_number in range(5):
        path = desk.put(f"manual-{file_number}.txt", long_text(desk.rng, 28, "Quota of"))
        answer = Step(f"The first code is {_first_code(desk.files[path])}.")
        turns.append(desk.turn(f"What is the first code of {path}?", asks(read(path)), answer))
    return turns


def read_many_large_files(desk: Desk) -> list[Turn]:
    """The agent reads many large files for one question."""
    steps = []
    codes = []
    for file_number in range(desk.number(7, 10)):
        path = desk.put(f"dump-{file_number}.txt", long_text(desk.rng, 44, "Row of"))
        codes.append(_first_code(desk.files[path]))
        steps.append(asks(read(path)))
    return [
        desk.turn(f"What is the first code of each dump in {desk.ref}?", *steps, Step(f"The codes are {', '.join(codes)}."))
    ]


def read_large_files_twice(desk: Desk) -> list[Turn]:
    """The agent reads each of several large files twice."""
    steps = []
    codes = []
    for file_number in range(4):
        path = desk.put(f"dump-{file_number}.txt", long_text(desk.rng, 40, "Row of"))
        codes.append(_first_code(desk.files[path]))
        steps += [asks(read(path)), asks(read(path), text="I need that one again.")]
    return [desk.turn(f"First code of each dump in {desk.ref}?", *steps, Step(f"They are {', '.join(codes)}."))]


def skip_skill(desk: Desk) -> list[Turn]:
    """The user asks for a skill, and the agent answers without reading it."""
    path = desk.put("draft.md", "word " * desk.number(100, 900))
    request = desk.pick("/proofread please check", "Use the proofread skill on", "Please use the `proofread` skill for")
    return [desk.turn(f"{request} {path}", asks(command(f"wc -l {path}")), Step("It is one line; the draft reads well."))]


def run_failing_skill(desk: Desk) -> list[Turn]:
    """The agent follows a skill, whose commands fail."""
    path = desk.put("draft.md", "word " * desk.number(100, 900))
    steps = [
        asks(read("skills/proofread/SKILL.md")),
        asks(command(f"sh skills/proofread/count.sh --lang fr {path}")),
    ]
    retries = desk.number(0, 1)
    if retries:
        steps.append(asks(command(f"sh skills/proofread/count.sh --language=french {path}")))
    steps.append(Step("The proofreader has no French dictionary, so I could not check it."))
    return [desk.turn(f"Check the spelling of {path} in French, please.", *steps)]


def read_missing_skill(desk: Desk) -> list[Turn]:
    """The agent cannot read the skill that the user names."""
    return [
        desk.turn(
            "Use the invoicing skill for the October bills.",
            asks(read("skills/invoicing/SKILL.md")),
            Step("I cannot find the instructions for invoicing, so I left the bills alone."),
        )
    ]


PLANTS: Mapping[str, Mapping[str, Plant]] = {
    "infinite_tool_loop": {
        "loop_of_reads": reread_file,
        "loop_of_failures": retry_missing_script,
        "loop_of_checks": poll_without_pause,
        "loop_of_wrapped": repeat_catalog_call,
    },
    "ignoring_tool_outputs": {
        "made_up_value": invent_value,
        "overlooked_errors": overlook_errors,
        "made_up_figures": invent_figures,
        "own_opinion": answer_with_generic_advice,
        "ignored_twice": ignore_two_sources,
    },
    "memory_degradation": {
        "memory_miss": search_missing_memory,
        "memory_gone": get_missing_memory,
    },
    "context_pollution": {
        "full_context": fill_context,
    },
    "cost_explosion": {
        "flood": read_many_large_files,
        "repeated_dumps": read_large_files_twice,
    },
    "skill_failure": {
        "skill_not_read": skip_skill,
        "skill_fails": run_failing_skill,
        "skill_missing": read_missing_skill,
    },
}
"""The ways in which each failure type shows itself, by the kind of conversation."""


def build_failing_conversation(failure_type: str, seed: int) -> Conversation:
    """Return a conversation with one failure of the type. Consecutive seeds take its kinds in turn."""
    kinds = list(PLANTS[failure_type])
    kind = kinds[seed % len(kinds)]
    desk = Desk(f"p{list(PLANTS).index(failure_type)}{seed:04d}", kind)
    turns = PLANTS[failure_type][kind](desk)
    agent = SMALL if failure_type == "context_pollution" else "main"
    return Conversation(kind, desk.ref, turns, desk.files, failure_type, agent)


def _first_code(text: str) -> str:
    """Return the first code in a text of `long_text`."""
    match = re.search(r"code (\w+)", text)
    assert match is not None
    return match[1]

"""Conversations with one failure each, as agents really show it; varied by a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from openclaw.plays.content import Conversation, Desk, Turn, asks, command, long_text, read, wrapped
from openclaw.provider import Step

Plant = Callable[[Desk], list[Turn]]

SMALL = "small"
"""The agent whose model has a small context window."""


def loop_of_reads(query_pool: Desk) -> list[Turn]:
    """The same file is read again and again, and nothing is done with it."""
    settings = query_pool.config()
    path = query_pool.config_file(settings)
    again = [
        asks(read(path), text=query_pool.pick("", "Let me look again.", "Checking once more."))
        for _ in range(query_pool.number(4, 8))
    ]
    return [query_pool.turn(f"Which port does {path} name?", *again, Step(f"It listens on {settings['listen']}."))]


def loop_of_failures(query_pool: Desk) -> list[Turn]:
    """A command that cannot succeed is tried over and over."""
    script = query_pool.path("deploy.sh")
    again = [
        asks(command(f"sh {script}"), text=query_pool.pick("", "Trying again.", "One more try."))
        for _ in range(query_pool.number(4, 9))
    ]
    return [
        query_pool.turn(
            f"Deploy {query_pool.service} with {script}.", *again, Step(f"I could not run {script}: it does not exist.")
        )
    ]


def loop_of_checks(query_pool: Desk) -> list[Turn]:
    """A state that does not change is asked for without a pause."""
    path = query_pool.put("state.txt", f"job {query_pool.number(1000, 9999)}: pending\n")
    again = [asks(command(f"cat {path}")) for _ in range(query_pool.number(5, 9))]
    return [query_pool.turn(f"Tell me when the job in {path} is done.", *again, Step("The job is still pending."))]


def loop_of_wrapped(query_pool: Desk) -> list[Turn]:
    """The same tool of the catalogue is called with the same arguments."""
    query_pool.files[f"memory/{query_pool.ref}.md"] = (
        f"# {query_pool.ref}\nThe rota of {query_pool.service} begins with {query_pool.person}.\n"
    )
    again = [asks(wrapped("memory_get", path=f"memory/{query_pool.ref}.md")) for _ in range(query_pool.number(4, 7))]
    return [
        query_pool.turn(
            f"Who begins the rota? See memory/{query_pool.ref}.md", *again, Step(f"{query_pool.person} begins the rota.")
        )
    ]


def made_up_value(query_pool: Desk) -> list[Turn]:
    """The file is read, and the answer gives a value that it does not have."""
    settings = query_pool.config()
    path = query_pool.config_file(settings)
    return [
        query_pool.turn(
            f"Which port does {query_pool.service} use? See {path}.",
            asks(read(path)),
            Step(
                query_pool.pick("It uses port 8080.", "The service listens on port 8080, the default.", "Port 8080, as usual.")
            ),
        )
    ]


def overlooked_errors(query_pool: Desk) -> list[Turn]:
    """The log is full of errors, and the answer calls it healthy."""
    troubles = [
        f"disk full on /backup{query_pool.number(1, 9)}",
        "cannot write segment",
        f"checksum mismatch in {query_pool.host}-dump",
    ]
    path = query_pool.put("backup.log", query_pool.log(query_pool.number(20, 50), troubles=troubles))
    return [
        query_pool.turn(
            f"Is the backup of {query_pool.service} healthy? Log: {path}",
            asks(command(f"tail -n 60 {path}")),
            Step(
                query_pool.pick(
                    "Yes, the backup is healthy.",
                    "Everything is fine, the backup ran through.",
                    "All good with the backup, you can sleep well.",
                )
            ),
        )
    ]


def made_up_figures(query_pool: Desk) -> list[Turn]:
    """A report is asked for and computed, and the answer has figures of its own."""
    path = query_pool.put(
        "sales.csv", "month,total\n" + "".join(f"2026-{m:02d},{query_pool.number(3000, 9000)}\n" for m in range(1, 11))
    )
    return [
        query_pool.turn(
            f"Total and best month of {path}?",
            asks(command(f"awk -F, 'NR>1{{s+=$2; if($2>b){{b=$2;m=$1}}}} END{{print s, m, b}}' {path}")),
            Step(f"The total is about {query_pool.number(200, 400) * 1000 + 500}, and December was the best month."),
        )
    ]


def own_opinion(query_pool: Desk) -> list[Turn]:
    """Notes are read, and the answer is generic advice that has nothing to do with them."""
    path = query_pool.put(
        "minutes.md",
        f"# Meeting\n{query_pool.person} reported that the migration of {query_pool.service} slipped by two weeks because the vendor "
        "delivered the adapters late. The team agreed to freeze features until the cutover.\n",
    )
    return [
        query_pool.turn(
            f"What did they agree on in {path}?",
            asks(read(path)),
            Step(
                "Typically such gatherings settle budgets, hiring plans and quarterly objectives. I would recommend writing "
                "clear action items, naming owners, and scheduling a follow-up within a month to keep everybody aligned."
            ),
        )
    ]


def ignored_twice(query_pool: Desk) -> list[Turn]:
    """Two different sources are asked, and neither is in the answer."""
    settings = query_pool.config()
    path, log = (
        query_pool.config_file(settings),
        query_pool.put("app.log", query_pool.log(20, troubles=["out of memory: worker killed"])),
    )
    return [
        query_pool.turn(
            f"How many workers does {query_pool.service} run and did any die? {path}, {log}",
            asks(read(path)),
            asks(command(f"grep ERROR {log}")),
            Step("It runs 64 workers and all of them have been up for 31 days."),
        )
    ]


def memory_miss(query_pool: Desk) -> list[Turn]:
    """What was told before is not in the memory any more."""
    steps = [asks(wrapped("memory_search", query=f"zzqx{query_pool.ref} {word}")) for word in ("decision", "host", "date")]
    return [
        query_pool.turn(f"Remember: {query_pool.service} moves to {query_pool.host}.", Step("Noted.")),
        query_pool.turn(
            f"What did I tell you last week about {query_pool.ref}zz?",
            *steps[: query_pool.number(1, 3)],
            Step("I searched my memory and have nothing on that."),
        ),
    ]


def memory_gone(query_pool: Desk) -> list[Turn]:
    """A note that should be there cannot be got."""
    return [
        query_pool.turn(
            f"Read my notes of memory/{query_pool.ref}-gone.md back to me.",
            asks(wrapped("memory_search", query=f"qqzx{query_pool.ref}gone")),
            asks(wrapped("memory_get", path=f"memory/{query_pool.ref}-gone.md")),
            Step("I do not have those notes any more."),
        )
    ]


def full_context(query_pool: Desk) -> list[Turn]:
    """More is read than the model's window holds, and the session is compacted."""
    turns = []
    for part in range(5):
        path = query_pool.put(f"manual-{part}.txt", long_text(query_pool.rng, 28, "Quota of"))
        first = query_pool.files[path].split("code ")[1].split(",")[0]
        turns.append(
            query_pool.turn(f"What is the first code of {path}?", asks(read(path)), Step(f"The first code is {first}."))
        )
    return turns


def flood(query_pool: Desk) -> list[Turn]:
    """One question brings in file after file, whole."""
    steps = []
    codes = []
    for part in range(query_pool.number(7, 10)):
        path = query_pool.put(f"dump-{part}.txt", long_text(query_pool.rng, 44, "Row of"))
        codes.append(query_pool.files[path].split("code ")[1].split(",")[0])
        steps.append(asks(read(path)))
    return [
        query_pool.turn(
            f"What is the first code of each dump in {query_pool.ref}?", *steps, Step(f"The codes are {', '.join(codes)}.")
        )
    ]


def repeated_dumps(query_pool: Desk) -> list[Turn]:
    """The same large files are read twice each."""
    steps = []
    codes = []
    for part in range(4):
        path = query_pool.put(f"dump-{part}.txt", long_text(query_pool.rng, 40, "Row of"))
        codes.append(query_pool.files[path].split("code ")[1].split(",")[0])
        steps += [asks(read(path)), asks(read(path), text="I need that one again.")]
    return [query_pool.turn(f"First code of each dump in {query_pool.ref}?", *steps, Step(f"They are {', '.join(codes)}."))]


def skill_not_read(query_pool: Desk) -> list[Turn]:
    """The user asks for a skill, and the agent answers without it."""
    path = query_pool.put("draft.md", "word " * query_pool.number(100, 900))
    first = query_pool.pick("/proofread please check", "Use the proofread skill on", "Please use the `proofread` skill for")
    return [query_pool.turn(f"{first} {path}", asks(command(f"wc -l {path}")), Step("It is one line; the draft reads well."))]


def skill_fails(query_pool: Desk) -> list[Turn]:
    """A skill is read, and the commands that it asks for fail."""
    path = query_pool.put("draft.md", "word " * query_pool.number(100, 900))
    return [
        query_pool.turn(
            f"Check the spelling of {path} in French, please.",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh --lang fr {path}")),
            *[asks(command(f"sh skills/proofread/count.sh --language=french {path}"))] * query_pool.number(0, 1),
            Step("The proofreader has no French dictionary, so I could not check it."),
        )
    ]


def skill_missing(query_pool: Desk) -> list[Turn]:
    """The skill's file cannot be read."""
    return [
        query_pool.turn(
            "Use the invoicing skill for the October bills.",
            asks(read("skills/invoicing/SKILL.md")),
            Step("I cannot find the instructions for invoicing, so I left the bills alone."),
        )
    ]


PLANTS: Mapping[str, Sequence[Plant]] = {
    "infinite_tool_loop": (loop_of_reads, loop_of_failures, loop_of_checks, loop_of_wrapped),
    "ignoring_tool_outputs": (made_up_value, overlooked_errors, made_up_figures, own_opinion, ignored_twice),
    "memory_degradation": (memory_miss, memory_gone),
    "context_pollution": (full_context,),
    "cost_explosion": (flood, repeated_dumps),
    "skill_failure": (skill_not_read, skill_fails, skill_missing),
}
"""The ways in which each failure type shows itself."""


def planted(failure_type: str, seed: int) -> Conversation:
    """A conversation with one failure of the type; as many seeds in a row as there are ways give one of each."""
    plants = PLANTS[failure_type]
    plant = plants[seed % len(plants)]
    query_pool = Desk(f"p{list(PLANTS).index(failure_type)}{seed:04d}", plant.__name__)
    turns = plant(query_pool)
    agent = SMALL if failure_type == "context_pollution" else "main"
    return Conversation(plant.__name__, query_pool.ref, turns, query_pool.files, failure_type, agent)

"""Conversations with one failure each, as agents really show it; varied by a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from support.model_apis.messages import Step

from openclaw.plays.content import Conversation, Desk, Turn, asks, command, long_text, read, wrapped

Plant = Callable[[Desk], list[Turn]]

SMALL = "small"
"""The agent whose model has a small context window."""


def loop_of_reads(desk: Desk) -> list[Turn]:
    """The same file is read again and again, and nothing is done with it."""
    settings = desk.config()
    path = desk.config_file(settings)
    again = [
        asks(read(path), text=desk.pick("", "Let me look again.", "Checking once more.")) for _ in range(desk.number(4, 8))
    ]
    return [desk.turn(f"Which port does {path} name?", *again, Step(f"It listens on {settings['listen']}."))]


def loop_of_failures(desk: Desk) -> list[Turn]:
    """A command that cannot succeed is tried over and over."""
    script = desk.path("deploy.sh")
    again = [
        asks(command(f"sh {script}"), text=desk.pick("", "Trying again.", "One more try.")) for _ in range(desk.number(4, 9))
    ]
    return [desk.turn(f"Deploy {desk.service} with {script}.", *again, Step(f"I could not run {script}: it does not exist."))]


def loop_of_checks(desk: Desk) -> list[Turn]:
    """A state that does not change is asked for without a pause."""
    path = desk.put("state.txt", f"job {desk.number(1000, 9999)}: pending\n")
    again = [asks(command(f"cat {path}")) for _ in range(desk.number(5, 9))]
    return [desk.turn(f"Tell me when the job in {path} is done.", *again, Step("The job is still pending."))]


def loop_of_wrapped(desk: Desk) -> list[Turn]:
    """The same tool of the catalogue is called with the same arguments."""
    desk.files[f"memory/{desk.ref}.md"] = f"# {desk.ref}\nThe rota of {desk.service} begins with {desk.person}.\n"
    again = [asks(wrapped("memory_get", path=f"memory/{desk.ref}.md")) for _ in range(desk.number(4, 7))]
    return [desk.turn(f"Who begins the rota? See memory/{desk.ref}.md", *again, Step(f"{desk.person} begins the rota."))]


def made_up_value(desk: Desk) -> list[Turn]:
    """The file is read, and the answer gives a value that it does not have."""
    settings = desk.config()
    path = desk.config_file(settings)
    return [
        desk.turn(
            f"Which port does {desk.service} use? See {path}.",
            asks(read(path)),
            Step(desk.pick("It uses port 8080.", "The service listens on port 8080, the default.", "Port 8080, as usual.")),
        )
    ]


def overlooked_errors(desk: Desk) -> list[Turn]:
    """The log is full of errors, and the answer calls it healthy."""
    troubles = [
        f"disk full on /backup{desk.number(1, 9)}",
        "cannot write segment",
        f"checksum mismatch in {desk.host}-dump",
    ]
    path = desk.put("backup.log", desk.log(desk.number(20, 50), troubles=troubles))
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


def made_up_figures(desk: Desk) -> list[Turn]:
    """A report is asked for and computed, and the answer has figures of its own."""
    path = desk.put("sales.csv", "month,total\n" + "".join(f"2026-{m:02d},{desk.number(3000, 9000)}\n" for m in range(1, 11)))
    return [
        desk.turn(
            f"Total and best month of {path}?",
            asks(command(f"awk -F, 'NR>1{{s+=$2; if($2>b){{b=$2;m=$1}}}} END{{print s, m, b}}' {path}")),
            Step(f"The total is about {desk.number(200, 400) * 1000 + 500}, and December was the best month."),
        )
    ]


def own_opinion(desk: Desk) -> list[Turn]:
    """Notes are read, and the answer is generic advice that has nothing to do with them."""
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


def ignored_twice(desk: Desk) -> list[Turn]:
    """Two different sources are asked, and neither is in the answer."""
    settings = desk.config()
    path, log = (
        desk.config_file(settings),
        desk.put("app.log", desk.log(20, troubles=["out of memory: worker killed"])),
    )
    return [
        desk.turn(
            f"How many workers does {desk.service} run and did any die? {path}, {log}",
            asks(read(path)),
            asks(command(f"grep ERROR {log}")),
            Step("It runs 64 workers and all of them have been up for 31 days."),
        )
    ]


def memory_miss(desk: Desk) -> list[Turn]:
    """What was told before is not in the memory any more."""
    steps = [asks(wrapped("memory_search", query=f"zzqx{desk.ref} {word}")) for word in ("decision", "host", "date")]
    return [
        desk.turn(f"Remember: {desk.service} moves to {desk.host}.", Step("Noted.")),
        desk.turn(
            f"What did I tell you last week about {desk.ref}zz?",
            *steps[: desk.number(1, 3)],
            Step("I searched my memory and have nothing on that."),
        ),
    ]


def memory_gone(desk: Desk) -> list[Turn]:
    """A note that should be there cannot be got."""
    return [
        desk.turn(
            f"Read my notes of memory/{desk.ref}-gone.md back to me.",
            asks(wrapped("memory_search", query=f"qqzx{desk.ref}gone")),
            asks(wrapped("memory_get", path=f"memory/{desk.ref}-gone.md")),
            Step("I do not have those notes any more."),
        )
    ]


def full_context(desk: Desk) -> list[Turn]:
    """More is read than the model's window holds, and the session is compacted."""
    turns = []
    for part in range(5):
        path = desk.put(f"manual-{part}.txt", long_text(desk.rng, 28, "Quota of"))
        first = desk.files[path].split("code ")[1].split(",")[0]
        turns.append(desk.turn(f"What is the first code of {path}?", asks(read(path)), Step(f"The first code is {first}.")))
    return turns


def flood(desk: Desk) -> list[Turn]:
    """One question brings in file after file, whole."""
    steps = []
    codes = []
    for part in range(desk.number(7, 10)):
        path = desk.put(f"dump-{part}.txt", long_text(desk.rng, 44, "Row of"))
        codes.append(desk.files[path].split("code ")[1].split(",")[0])
        steps.append(asks(read(path)))
    return [
        desk.turn(f"What is the first code of each dump in {desk.ref}?", *steps, Step(f"The codes are {', '.join(codes)}."))
    ]


def repeated_dumps(desk: Desk) -> list[Turn]:
    """The same large files are read twice each."""
    steps = []
    codes = []
    for part in range(4):
        path = desk.put(f"dump-{part}.txt", long_text(desk.rng, 40, "Row of"))
        codes.append(desk.files[path].split("code ")[1].split(",")[0])
        steps += [asks(read(path)), asks(read(path), text="I need that one again.")]
    return [desk.turn(f"First code of each dump in {desk.ref}?", *steps, Step(f"They are {', '.join(codes)}."))]


def skill_not_read(desk: Desk) -> list[Turn]:
    """The user asks for a skill, and the agent answers without it."""
    path = desk.put("draft.md", "word " * desk.number(100, 900))
    first = desk.pick("/proofread please check", "Use the proofread skill on", "Please use the `proofread` skill for")
    return [desk.turn(f"{first} {path}", asks(command(f"wc -l {path}")), Step("It is one line; the draft reads well."))]


def skill_fails(desk: Desk) -> list[Turn]:
    """A skill is read, and the commands that it asks for fail."""
    path = desk.put("draft.md", "word " * desk.number(100, 900))
    return [
        desk.turn(
            f"Check the spelling of {path} in French, please.",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh --lang fr {path}")),
            *[asks(command(f"sh skills/proofread/count.sh --language=french {path}"))] * desk.number(0, 1),
            Step("The proofreader has no French dictionary, so I could not check it."),
        )
    ]


def skill_missing(desk: Desk) -> list[Turn]:
    """The skill's file cannot be read."""
    return [
        desk.turn(
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
    desk = Desk(f"p{list(PLANTS).index(failure_type)}{seed:04d}", plant.__name__)
    turns = plant(desk)
    agent = SMALL if failure_type == "context_pollution" else "main"
    return Conversation(plant.__name__, desk.ref, turns, desk.files, failure_type, agent)

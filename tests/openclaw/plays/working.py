"""Healthy conversations in which agents run checks, repair, follow skills and compute; `healthy` has the other kinds."""

from __future__ import annotations

from support.model_apis.messages import Call, Step

from openclaw.plays.content import Desk, Turn, asks, command, long_text, read


def tests(desk: Desk) -> list[Turn]:
    """The tests pass; the answer may omit the figures."""
    passed = desk.number(20, 400)
    script = desk.put(
        "check.sh",
        f"for i in $(seq 1 12); do echo test_case_$i ... ok; done\necho 'Ran {passed} tests in 2.{passed} s'\necho OK\n",
    )
    return [
        desk.turn(
            f"Do the tests of {desk.service} pass? Run {script}.",
            asks(command(f"sh {script}")),
            Step(desk.pick("Yes, all of them pass.", f"All {passed} tests pass.", "They do. You can merge.")),
        )
    ]


def repair(desk: Desk) -> list[Turn]:
    """A check fails, the agent fixes the cause, and the same check passes."""
    path = desk.put("limit.txt", "limit=0\n")
    script = desk.put(
        "verify.sh",
        f'. ./{path}\nif [ "$limit" -gt 0 ]; then echo "limit ok"; else echo "limit.txt: limit must be positive" >&2; exit 1; fi\n',
    )
    limit = desk.number(10, 900)
    return [
        desk.turn(
            f"{script} fails. Set the limit to {limit} if that is the reason.",
            asks(command(f"sh {script}")),
            asks(read(path), text="It says that the limit must be positive."),
            asks(Call("edit", {"path": path, "edits": [{"oldText": "limit=0", "newText": f"limit={limit}"}]})),
            asks(command(f"sh {script}")),
            Step(f"Fixed. The limit was 0; it is {limit} now and the check passes."),
        )
    ]


def skill(desk: Desk) -> list[Turn]:
    """The agent reads and follows a skill that the user asks for."""
    word_count = desk.number(100, 900)
    path = desk.put("draft.md", "word " * word_count)
    first = desk.pick("/proofread please check", "Use the proofread skill on", "Please use the `proofread` skill for")
    return [
        desk.turn(
            f"{first} {path}",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh {path}")),
            Step(f"The draft has {word_count} words and no spelling mistakes."),
        )
    ]


def own_skill(desk: Desk) -> list[Turn]:
    """The agent chooses a skill without being asked."""
    word_count = desk.number(100, 900)
    path = desk.put("letter.md", "word " * word_count)
    return [
        desk.turn(
            f"Could you check the spelling of {path}?",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh {path}")),
            Step(f"I checked all {word_count} words; there is nothing to correct."),
        )
    ]


def machine(desk: Desk) -> list[Turn]:
    """The agent runs several checks of a machine in parallel and sums them up in one sentence."""
    return [
        desk.turn(
            f"Quick health check of {desk.host}, please.",
            asks(command("df -h / | tail -1"), command("uptime"), command("free -m | head -2")),
            Step(desk.pick("All healthy: disk, load and memory are within limits.", "Everything looks good on that machine.")),
        )
    ]


def notes(desk: Desk) -> list[Turn]:
    """The agent reads prose and paraphrases it."""
    path = desk.put(
        "minutes.md",
        f"# Meeting\n{desk.person} reported that the migration of {desk.service} slipped by two weeks because the vendor "
        "delivered the adapters late. The team agreed to freeze features until the cutover and to rehearse the rollback on "
        f"staging. {desk.host} stays the fallback.\n",
    )
    return [
        desk.turn(
            f"Give me the gist of {path}.",
            asks(read(path)),
            Step(
                desk.pick(
                    "The migration is two weeks late since adapters came late; features are frozen until cutover.",
                    "They are behind schedule because of a supplier, will hold new features back and practise a rollback.",
                )
            ),
        )
    ]


def compare(desk: Desk) -> list[Turn]:
    """The agent reads two files in parallel and compares them."""
    blue_settings = desk.config()
    green_settings = desk.config()
    blue_path = desk.put("blue.json", str(blue_settings))
    green_path = desk.put("green.json", str(green_settings))
    return [
        desk.turn(
            f"Do {blue_path} and {green_path} differ in workers?",
            asks(read(blue_path), read(green_path)),
            Step(f"Blue has {blue_settings['workers']} workers, green has {green_settings['workers']}."),
        )
    ]


def translation(desk: Desk) -> list[Turn]:
    """The file is in one language and the answer in another."""
    amount = desk.number(100, 999)
    path = desk.put("offer.txt", f"The supplier offers {amount} pallets at a discount if we order before Friday.\n")
    return [
        desk.turn(
            f"Was steht in {path}?",
            asks(read(path)),
            Step(f"Der Lieferant bietet {amount} Paletten mit Rabatt an, wenn wir vor Freitag bestellen."),
        )
    ]


def write_up(desk: Desk) -> list[Turn]:
    """The agent writes a file and checks it with a command."""
    path = desk.path("plan.md")
    return [
        desk.turn(
            f"Draft a rollout plan for {desk.service} in {path}.",
            asks(Call("write", {"path": path, "content": f"# Rollout of {desk.service}\n1. Canary\n2. Half\n3. All\n"})),
            asks(command(f"wc {path} && ls -l {path}")),
            Step(desk.pick("The plan is in the file: canary, half, all.", "Done, the draft is saved.")),
        )
    ]


def background(desk: Desk) -> list[Turn]:
    """The agent reads several files before it answers, and most of them are only background."""
    settings = desk.config()
    path = desk.config_file(settings)
    readme = desk.put(
        "README.md", f"# {desk.service}\nThis service belongs to {desk.person}. Deploys happen on weekdays only.\n"
    )
    return [
        desk.turn(
            f"Raise timeout_ms in {path} by 500.",
            asks(Call("ls", {"path": desk.ref})),
            asks(read(readme)),
            asks(read(path)),
            asks(
                Call(
                    "edit",
                    {
                        "path": path,
                        "edits": [
                            {
                                "oldText": f'"timeout_ms": {settings["timeout_ms"]}',
                                "newText": f'"timeout_ms": {settings["timeout_ms"] + 500}',
                            }
                        ],
                    },
                )
            ),
            Step(f"timeout_ms is {settings['timeout_ms'] + 500} now."),
        )
    ]


def total(desk: Desk) -> list[Turn]:
    """The model computes a sum that is in no tool output."""
    rows = [(month, desk.number(1000, 9000)) for month in range(1, desk.number(5, 12))]
    path = desk.put("sales.csv", "month,amount\n" + "".join(f"2026-{month:02d},{amount}\n" for month, amount in rows))
    total_amount = sum(amount for _, amount in rows)
    return [
        desk.turn(
            f"How much did we sell, by {path}?",
            asks(read(path)),
            Step(
                desk.pick(
                    f"{total_amount:,} in all.",
                    f"You sold goods for {total_amount}.",
                    f"That makes {total_amount / len(rows):.1f} on average.",
                )
            ),
        )
    ]


def rounded(desk: Desk) -> list[Turn]:
    """The answer rounds large figures."""
    rows = desk.number(100_000, 900_000)
    size = desk.number(10**8, 9 * 10**8)
    script = desk.put("stats.sh", f"echo rows={rows}\necho bytes={size}\n")
    return [
        desk.turn(
            f"How large is the table? {script} prints it.",
            asks(command(f"sh {script}")),
            Step(f"About {round(rows / 1000)}k rows in {size / 10**6:.0f} MB."),
        )
    ]


def advice(desk: Desk) -> list[Turn]:
    """The agent reads a configuration; the figures in its advice are general knowledge."""
    path = desk.config_file(desk.config())
    return [
        desk.turn(
            f"Would you change anything in {path}?",
            asks(read(path)),
            Step(
                "The listen address and the database look right. For a busy service I would run at least 64 workers and set "
                "timeout_ms to 15000, and keep everything else as it is."
            ),
        )
    ]


def age(desk: Desk) -> list[Turn]:
    """The agent computes an age from dates in a log."""
    path = desk.put(
        "runs.log",
        "".join(f"2026-11-{day:02d} 03:00 backup finished size={desk.number(900, 9000)}\n" for day in range(1, 9)),
    )
    return [
        desk.turn(
            f"How old is the newest backup in {path}?",
            asks(command(f"tail -n 3 {path}")),
            Step(desk.pick("It is 15 days old.", "The last one ran 15 days ago, at three in the night.")),
        )
    ]


def research(desk: Desk) -> list[Turn]:
    """The agent reads several long files in one exchange and uses each of them."""
    steps = []
    codes = []
    for part in range(desk.number(2, 4)):
        path = desk.put(f"chapter-{part}.txt", long_text(desk.rng, desk.number(12, 36), "Quota of"))
        codes.append(desk.files[path].split("code ")[1].split(",")[0])
        steps.append(asks(read(path)))
    return [desk.turn(f"Give me the first code of each chapter in {desk.ref}.", *steps, Step(f"They are {', '.join(codes)}."))]


def weekday(desk: Desk) -> list[Turn]:
    """A long chat with a few tool calls, in which later answers repeat earlier figures."""
    settings = desk.config()
    path = desk.config_file(settings)
    return [
        desk.turn(f"Note: our budget for {desk.service} is {desk.number(300, 900)} a month.", Step("Noted.")),
        desk.turn(f"What does {path} say about workers?", asks(read(path)), Step(f"{settings['workers']} of them.")),
        desk.turn("Is that a lot?", Step("For a service of that size it is ordinary.")),
        desk.turn(
            "Check that the file is valid JSON, please.",
            asks(command(f"python3 -m json.tool {path} > /dev/null && echo valid")),
            Step("It is."),
        ),
        desk.turn("Remind me of the workers?", Step(f"{settings['workers']}, as the file had it.")),
    ][: desk.number(2, 5)]

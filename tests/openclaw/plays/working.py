"""Healthy conversations in which agents check, mend, follow skills and compute: the other half of the kinds in `healthy`."""

from __future__ import annotations

from openclaw.plays.content import Desk, Turn, asks, command, long_text, read
from openclaw.provider import Call, Step


def tests(query_pool: Desk) -> list[Turn]:
    """Tests are run and pass; the answer need not repeat a figure."""
    passed = query_pool.number(20, 400)
    script = query_pool.put(
        "check.sh",
        f"for i in $(seq 1 12); do echo test_case_$i ... ok; done\necho 'Ran {passed} tests in 2.{passed} s'\necho OK\n",
    )
    return [
        query_pool.turn(
            f"Do the tests of {query_pool.service} pass? Run {script}.",
            asks(command(f"sh {script}")),
            Step(query_pool.pick("Yes, all of them pass.", f"All {passed} tests pass.", "They do. You can merge.")),
        )
    ]


def repair(query_pool: Desk) -> list[Turn]:
    """A check fails, the cause is found and removed, the same check passes."""
    path = query_pool.put("limit.txt", "limit=0\n")
    script = query_pool.put(
        "verify.sh",
        f'. ./{path}\nif [ "$limit" -gt 0 ]; then echo "limit ok"; else echo "limit.txt: limit must be positive" >&2; exit 1; fi\n',
    )
    limit = query_pool.number(10, 900)
    return [
        query_pool.turn(
            f"{script} fails. Set the limit to {limit} if that is the reason.",
            asks(command(f"sh {script}")),
            asks(read(path), text="It says that the limit must be positive."),
            asks(Call("edit", {"path": path, "edits": [{"oldText": "limit=0", "newText": f"limit={limit}"}]})),
            asks(command(f"sh {script}")),
            Step(f"Fixed. The limit was 0; it is {limit} now and the check passes."),
        )
    ]


def skill(query_pool: Desk) -> list[Turn]:
    """A skill that the user asks for is read and followed."""
    words = query_pool.number(100, 900)
    path = query_pool.put("draft.md", "word " * words)
    first = query_pool.pick("/proofread please check", "Use the proofread skill on", "Please use the `proofread` skill for")
    return [
        query_pool.turn(
            f"{first} {path}",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh {path}")),
            Step(f"The draft has {words} words and no spelling mistakes."),
        )
    ]


def own_skill(query_pool: Desk) -> list[Turn]:
    """The agent takes a skill of its own accord."""
    words = query_pool.number(100, 900)
    path = query_pool.put("letter.md", "word " * words)
    return [
        query_pool.turn(
            f"Could you check the spelling of {path}?",
            asks(read("skills/proofread/SKILL.md")),
            asks(command(f"sh skills/proofread/count.sh {path}")),
            Step(f"I checked all {words} words; there is nothing to correct."),
        )
    ]


def machine(query_pool: Desk) -> list[Turn]:
    """Several looks at the machine at once, and one sentence about them."""
    return [
        query_pool.turn(
            f"Quick health check of {query_pool.host}, please.",
            asks(command("df -h / | tail -1"), command("uptime"), command("free -m | head -2")),
            Step(
                query_pool.pick(
                    "All healthy: disk, load and memory are within limits.", "Everything looks good on that machine."
                )
            ),
        )
    ]


def notes(query_pool: Desk) -> list[Turn]:
    """Prose is read and told in other words."""
    path = query_pool.put(
        "minutes.md",
        f"# Meeting\n{query_pool.person} reported that the migration of {query_pool.service} slipped by two weeks because the vendor "
        "delivered the adapters late. The team agreed to freeze features until the cutover and to rehearse the rollback on "
        f"staging. {query_pool.host} stays the fallback.\n",
    )
    return [
        query_pool.turn(
            f"Give me the gist of {path}.",
            asks(read(path)),
            Step(
                query_pool.pick(
                    "The migration is two weeks late since adapters came late; features are frozen until cutover.",
                    "They are behind schedule because of a supplier, will hold new features back and practise a rollback.",
                )
            ),
        )
    ]


def compare(query_pool: Desk) -> list[Turn]:
    """Two files are read at once and compared."""
    one, two = query_pool.config(), query_pool.config()
    first, second = query_pool.put("blue.json", str(one)), query_pool.put("green.json", str(two))
    return [
        query_pool.turn(
            f"Do {first} and {second} differ in workers?",
            asks(read(first), read(second)),
            Step(f"Blue has {one['workers']} workers, green has {two['workers']}."),
        )
    ]


def translation(query_pool: Desk) -> list[Turn]:
    """A file in one language, the answer in another."""
    amount = query_pool.number(100, 999)
    path = query_pool.put("offer.txt", f"The supplier offers {amount} pallets at a discount if we order before Friday.\n")
    return [
        query_pool.turn(
            f"Was steht in {path}?",
            asks(read(path)),
            Step(f"Der Lieferant bietet {amount} Paletten mit Rabatt an, wenn wir vor Freitag bestellen."),
        )
    ]


def write_up(query_pool: Desk) -> list[Turn]:
    """A file is written, and its writing checked with a command."""
    path = query_pool.path("plan.md")
    return [
        query_pool.turn(
            f"Draft a rollout plan for {query_pool.service} in {path}.",
            asks(Call("write", {"path": path, "content": f"# Rollout of {query_pool.service}\n1. Canary\n2. Half\n3. All\n"})),
            asks(command(f"wc {path} && ls -l {path}")),
            Step(query_pool.pick("The plan is in the file: canary, half, all.", "Done, the draft is saved.")),
        )
    ]


def background(query_pool: Desk) -> list[Turn]:
    """The agent reads around before it answers: most of what it reads is only background."""
    settings = query_pool.config()
    path = query_pool.config_file(settings)
    readme = query_pool.put(
        "README.md", f"# {query_pool.service}\nThis service belongs to {query_pool.person}. Deploys happen on weekdays only.\n"
    )
    return [
        query_pool.turn(
            f"Raise timeout_ms in {path} by 500.",
            asks(Call("ls", {"path": query_pool.ref})),
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


def total(query_pool: Desk) -> list[Turn]:
    """A sum is computed by the model: it stands in no output."""
    rows = [(month, query_pool.number(1000, 9000)) for month in range(1, query_pool.number(5, 12))]
    path = query_pool.put("sales.csv", "month,amount\n" + "".join(f"2026-{month:02d},{amount}\n" for month, amount in rows))
    whole = sum(amount for _, amount in rows)
    return [
        query_pool.turn(
            f"How much did we sell, by {path}?",
            asks(read(path)),
            Step(
                query_pool.pick(
                    f"{whole:,} in all.", f"You sold goods for {whole}.", f"That makes {whole / len(rows):.1f} on average."
                )
            ),
        )
    ]


def rounded(query_pool: Desk) -> list[Turn]:
    """Large figures are given in round words."""
    rows, size = query_pool.number(100_000, 900_000), query_pool.number(10**8, 9 * 10**8)
    script = query_pool.put("stats.sh", f"echo rows={rows}\necho bytes={size}\n")
    return [
        query_pool.turn(
            f"How large is the table? {script} prints it.",
            asks(command(f"sh {script}")),
            Step(f"About {round(rows / 1000)}k rows in {size / 10**6:.0f} MB."),
        )
    ]


def advice(query_pool: Desk) -> list[Turn]:
    """A configuration is read, and the advice has figures from general knowledge."""
    path = query_pool.config_file(query_pool.config())
    return [
        query_pool.turn(
            f"Would you change anything in {path}?",
            asks(read(path)),
            Step(
                "The listen address and the database look right. For a busy service I would run at least 64 workers and set "
                "timeout_ms to 15000, and keep everything else as it is."
            ),
        )
    ]


def age(query_pool: Desk) -> list[Turn]:
    """A span of time is counted from dates in a log."""
    path = query_pool.put(
        "runs.log",
        "".join(f"2026-11-{day:02d} 03:00 backup finished size={query_pool.number(900, 9000)}\n" for day in range(1, 9)),
    )
    return [
        query_pool.turn(
            f"How old is the newest backup in {path}?",
            asks(command(f"tail -n 3 {path}")),
            Step(query_pool.pick("It is 15 days old.", "The last one ran 15 days ago, at three in the night.")),
        )
    ]


def research(query_pool: Desk) -> list[Turn]:
    """Several long files are read in one exchange, and each of them is used."""
    steps, codes = [], []
    for part in range(query_pool.number(2, 4)):
        path = query_pool.put(f"chapter-{part}.txt", long_text(query_pool.rng, query_pool.number(12, 36), "Quota of"))
        codes.append(query_pool.files[path].split("code ")[1].split(",")[0])
        steps.append(asks(read(path)))
    return [
        query_pool.turn(
            f"Give me the first code of each chapter in {query_pool.ref}.", *steps, Step(f"They are {', '.join(codes)}.")
        )
    ]


def weekday(query_pool: Desk) -> list[Turn]:
    """A long chat with a tool here and there, in which earlier figures come back later."""
    settings = query_pool.config()
    path = query_pool.config_file(settings)
    return [
        query_pool.turn(f"Note: our budget for {query_pool.service} is {query_pool.number(300, 900)} a month.", Step("Noted.")),
        query_pool.turn(f"What does {path} say about workers?", asks(read(path)), Step(f"{settings['workers']} of them.")),
        query_pool.turn("Is that a lot?", Step("For a service of that size it is ordinary.")),
        query_pool.turn(
            "Check that the file is valid JSON, please.",
            asks(command(f"python3 -m json.tool {path} > /dev/null && echo valid")),
            Step("It is."),
        ),
        query_pool.turn("Remind me of the workers?", Step(f"{settings['workers']}, as the file had it.")),
    ][: query_pool.number(2, 5)]

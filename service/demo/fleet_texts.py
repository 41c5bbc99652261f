"""Tasks and texts of the synthetic fleet, by domain, and those of agents that get worse."""

from __future__ import annotations

from random import Random
from typing import NamedTuple


class Task(NamedTuple):
    """One kind of request with its question, thinking, call, result and answer. `{slot}` is filled the same everywhere."""

    question: str
    thinking: str
    tool: str
    argument: str
    result: str
    answer: str


SLOTS: dict[str, tuple[str, ...]] = {
    "host": ("db2", "web-14", "cache-3", "edge-berlin", "queue-1", "build-07"),
    "service": ("checkout", "billing", "search", "mailer", "login", "exports"),
    "person": ("Dana", "Priya", "Tomasz", "Aiko", "Luis", "Hanne"),
    "customer": ("Nordwind GmbH", "Blue Harbor", "Casa Verde", "Kestrel Ltd", "Atelier Roux"),
    "table": ("orders_daily", "events_raw", "invoices", "sessions_hourly", "stock_levels"),
    "topic": ("battery recycling", "heat pump noise", "urban tree cover", "port congestion", "soil sensors"),
    "file": ("retry.py", "session_store.go", "invoice.ts", "migrations/0042.sql", "parser.rs"),
}

DOMAINS: dict[str, tuple[Task, ...]] = {
    "ops-oncall": (
        Task(
            "Is the nightly backup of {host} healthy? Run {n}.",
            "The job log of run {n} shows whether the backup of {host} ended and how much it wrote.",
            "exec",
            "tail -n 20 /var/log/backup-{host}-{n}.log",
            "backup {n} finished, {size} GB written, exit 0",
            "Yes. Run {n} on {host} ended without errors and wrote {size} GB. The copy was verified against its checksum.",
        ),
        Task(
            "{service} answers slowly on {host} (alert {n}). What is going on?",
            "Slow answers and a full connection pool go together; look at the pool of {service} first.",
            "exec",
            "poolstat {service} --host {host} --alert {n}",
            "pool 96/100 in use, 41 waiting, oldest {size} s",
            "The connection pool of {service} on {host} is nearly full: 96 of 100 in use, 41 requests wait. I raised the limit to 150 and the queue is draining.",
        ),
        Task(
            "Rotate the certificate of {service} on {host}, change {n}.",
            "Check the expiry, issue the new one, reload, then check again from outside.",
            "exec",
            "certctl renew {service} --host {host} --change {n}",
            "renewed, valid for {size} days",
            "Done under change {n}: the certificate of {service} on {host} is valid for {size} more days, and clients get it from outside.",
        ),
    ),
    "code-review": (
        Task(
            "Review pull request {n}: it changes {file}.",
            "Read the diff of {file} for error paths first, they are what reviews miss.",
            "read",
            "diff/{n}/{file}",
            "+ {size} lines, - 12 lines in {file}",
            "Pull request {n} is close. In {file} the new retry has no upper bound; cap it and add a test for the last attempt. The rest reads well.",
        ),
        Task(
            "Why does the test for {file} fail in build {n}?",
            "The build log says which assertion failed; compare it with the change before.",
            "exec",
            "ci log --build {n} --grep {file}",
            "AssertionError in test_{size}: expected 200 got 500",
            "Build {n} fails in test_{size}: {file} now raises before it writes the header, so the answer is 500. Moving the check below the header mends it.",
        ),
        Task(
            "Write the changelog entry for {service}, release {n}.",
            "List what users notice: behaviour and settings, no refactoring.",
            "exec",
            "git log --oneline {service}@{n}",
            "{size} commits since the last release",
            "Release {n} of {service}: retries are bounded, exports keep the time zone, and the setting `timeout` is now in seconds. {size} commits in all.",
        ),
    ),
    "support-desk": (
        Task(
            "{customer} cannot download invoice {n}. Please help them.",
            "Look whether the invoice exists and who may see it before promising anything.",
            "lookup",
            "invoice/{n}",
            "invoice {n}: issued, {size} pages, owner changed last week",
            "Invoice {n} exists and has {size} pages. Its owner changed last week, so the old account lost access; I gave {customer} access again and told them to reload.",
        ),
        Task(
            "{customer} asks when ticket {n} will be answered.",
            "The queue tells the position; give a time that holds.",
            "lookup",
            "ticket/{n}",
            "ticket {n}: position {size}, waiting for engineering",
            "Ticket {n} waits for engineering at position {size}. {customer} will hear from {person} by tomorrow noon, with the cause and the next step.",
        ),
        Task(
            "{customer} was charged twice for order {n}.",
            "Two charges may be one charge and one hold. Check before refunding.",
            "lookup",
            "order/{n}/payments",
            "order {n}: 1 capture, 1 authorisation expiring in {size} days",
            "Order {n} was charged once; the second line is a reservation that expires in {size} days. I explained the difference to {customer} and offered to release it now.",
        ),
    ),
    "data-pipeline": (
        Task(
            "Did {table} load completely for batch {n}?",
            "Compare rows in with rows out, then the rejected ones.",
            "sql",
            "select count(*) from {table} where batch = {n}",
            "{size}412 rows, 0 rejected",
            "Batch {n} of {table} is complete: {size}412 rows came in, as many were loaded, and none was rejected.",
        ),
        Task(
            "Backfill {table} from partition {n}.",
            "A backfill must not double what is there: delete the partition and load it in one transaction.",
            "exec",
            "backfill {table} --partition {n}",
            "partition {n} replaced, {size} files",
            "Partition {n} of {table} was replaced in one transaction from {size} files. Counts match the source and downstream views are fresh.",
        ),
        Task(
            "Add a check on {table}: no negative amounts, rule {n}.",
            "Look for existing violations first, or the check stops the next load.",
            "sql",
            "select count(*) from {table} where amount < 0 -- rule {n}",
            "{size} rows violate the rule",
            "Rule {n} is in place for {table}. {size} old rows break it; they are listed for {person} and exempt until the end of the month.",
        ),
    ),
    "research": (
        Task(
            "What is new on {topic}? Brief {n}.",
            "Prefer sources that show their data; note what they disagree on.",
            "web_search",
            "{topic} study {n}",
            "{size} results",
            "Brief {n} on {topic}: of {size} sources three show data. Two find a decline, one finds none; they measure different seasons. The summary lists all three.",
        ),
        Task(
            "Compare the two reports on {topic} in folder {n}.",
            "Line up what both measured; where only one measured, say so.",
            "read",
            "reports/{n}/{topic}",
            "2 files, {size} pages",
            "Both reports in folder {n} cover {topic} on {size} pages. They agree on the trend and differ on its size, mostly through the choice of base year.",
        ),
        Task(
            "Find {person} an expert on {topic}, request {n}.",
            "Recent publications and a public address: both are needed.",
            "web_search",
            "{topic} researcher {n}",
            "{size} profiles",
            "For request {n} I found {size} people who publish on {topic}. The best match leads a public project and answers mail; the address is in the note to {person}.",
        ),
    ),
}

WORSE = (
    "Probably fine.",
    "I can't help with {n}.",
    "It should work now. Try again later.",
    "I'm not able to do that.",
    "",
    "Somebody else looks after {n}.",
)
"""Replies of the agent that gets worse; some break a structural check."""


def filled(task: Task, random: Random, n: int) -> Task:
    """Return the task with its slots filled; `n` makes its call unlike any other."""
    slots = {name: random.choice(values) for name, values in SLOTS.items()}
    return Task(*(text.format(n=n, **slots) for text in _with_one_size(task, random)))


def _with_one_size(task: Task, random: Random) -> tuple[str, ...]:
    """Return the texts with `{size}` already filled, so that result and answer name the same number."""
    size = str(random.randint(2, 90))
    return tuple(text.replace("{size}", size) for text in task)

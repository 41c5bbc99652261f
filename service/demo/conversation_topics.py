"""Topics of the synthetic conversations; `{slot}` is filled the same everywhere."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """One kind of request, with several ways to put it and to answer it."""

    questions: tuple[str, ...]
    thinking: str
    answers: tuple[str, ...]


TOPICS: dict[str, tuple[Topic, ...]] = {
    "support-desk": (
        Topic(
            (
                "Please help {customer}: invoice {n} cannot be downloaded.",
                "{customer} cannot download invoice {n}. What happened?",
            ),
            "Look whether invoice {n} exists and who may see it before promising anything.",
            (
                "Invoice {n} exists. Its owner changed last week, so {customer} lost access; the download works again after a reload.",
                "{customer} can download invoice {n} again: the link had expired after {size} days, and I issued a new one.",
            ),
        ),
        Topic(
            (
                "{customer} was charged twice for order {n}. Refund it?",
                "Please check the double charge on order {n} of {customer}.",
            ),
            "Two charges may be one charge and one hold. Check order {n} before a refund.",
            (
                "{customer} was charged once for order {n}. The double line is a reservation that expires in {size} days, so no refund is due.",
                "I checked order {n} of {customer}: the double charge is real, the refund was sent and arrives within {size} days.",
            ),
        ),
        Topic(
            (
                "When will ticket {n} of {customer} be answered?",
                "{customer} asks again about ticket {n}. What do we tell them?",
            ),
            "The queue tells the position of ticket {n}; give a time that holds.",
            (
                "Ticket {n} of {customer} is at position {size} and will be answered by {person} tomorrow before noon.",
                "Tell {customer} that ticket {n} was asked about again and is now with {person}; the answer is due in {size} hours.",
            ),
        ),
        Topic(
            (
                "How does {customer} reset the password of seat {n}?",
                "Please explain the password reset of seat {n} to {customer}.",
            ),
            "A reset goes to the address on file; make sure that {customer} can read it.",
            (
                "{customer} chooses Reset on the sign-in page; the password mail for seat {n} is valid for {size} minutes.",
                "To explain the reset: {customer} opens the sign-in page, asks for a new password for seat {n} and has {size} minutes for it.",
            ),
        ),
    ),
    "code-review": (
        Topic(
            ("Please review pull request {n}: it changes {file}.", "Can you review {file} in pull request {n}?"),
            "Read the diff of {file} for error paths first, they are what reviews miss.",
            (
                "My review of pull request {n}: in {file} the new retry has no upper bound. Cap it and test the last attempt; the rest reads well.",
                "Pull request {n} is ready after one change: the review of {file} found {size} lines that swallow an exception.",
            ),
        ),
        Topic(
            ("Why does the test for {file} fail in build {n}?", "Build {n} fails on {file}. What changed?"),
            "The log of build {n} says which assertion failed; compare it with the change before.",
            (
                "Build {n} fails because {file} now raises before it writes the header. Move the check below it and the test passes; {size} lines changed.",
                "What changed is the order of setup: {file} reads the configuration first, so build {n} fails at test {size}.",
            ),
        ),
        Topic(
            ("Write the changelog entry for {service}, release {n}.", "Please draft the release notes of {service} {n}."),
            "List what users notice: behaviour and settings, no refactoring.",
            (
                "Changelog entry, release {n} of {service}: retries are bounded, exports keep the time zone. {size} commits in all.",
                "Draft of the release notes for {service} {n}: the setting timeout is now in seconds, and {size} faults are mended.",
            ),
        ),
        Topic(
            ("Add a test for the empty case in {file}, task {n}.", "Can you cover the empty case of {file}? Task {n}."),
            "The empty case of {file} has two forms: no rows and no columns.",
            (
                "Task {n} is done: the empty case of {file} is covered.\n```python\ndef test_empty() -> None:\n    assert parse('') == []\n```",
                "I covered the empty case in {file} with {size} assertions, and the test of task {n} fails without the change.",
            ),
        ),
    ),
    "ops-oncall": (
        Topic(
            ("Is the nightly backup of {host} healthy? Run {n}.", "Please check backup run {n} on {host}."),
            "The job log of run {n} shows whether the backup of {host} ended and how much it wrote.",
            (
                "The nightly backup of {host} is healthy: run {n} ended without errors, wrote {size} GB and was verified by checksum.",
                "I checked backup run {n} on {host}: it ended in {size} minutes, and a restore of one table worked.",
            ),
        ),
        Topic(
            ("{service} answers slowly on {host}, alert {n}. Why?", "Please look into alert {n}: {service} is slow on {host}."),
            "Slow answers and a full connection pool go together; look at the pool of {service} first.",
            (
                "{service} answers slowly on {host} because its pool is nearly full: {size} of 100 in use. I raised the limit and alert {n} cleared.",
                "I looked into alert {n}: {service} on {host} waits for a lock of a report; the report ends in {size} minutes.",
            ),
        ),
        Topic(
            (
                "Please rotate the certificate of {service}, change {n}.",
                "Does the certificate of {service} need rotation? Change {n}.",
            ),
            "Check the expiry, issue the new one, reload, then check again from outside.",
            (
                "Done under change {n}: I had the certificate of {service} rotated; it is valid for {size} more days and clients get it from outside.",
                "The certificate of {service} needs rotation in {size} days; change {n} is scheduled with {person}.",
            ),
        ),
        Topic(
            ("The disk of {host} is filling, ticket {n}. What is on it?", "Please free space on {host}, ticket {n}."),
            "Find what grew since yesterday before anything is deleted.",
            (
                "The disk of {host} is filling with logs of {service}: {size} GB since yesterday. Rotation is on again; ticket {n} has the numbers.",
                "I freed {size} GB of space on {host} by compressing old logs; nothing was deleted. Ticket {n} lists the files.",
            ),
        ),
    ),
    "data-pipeline": (
        Topic(
            ("Did {table} load completely for batch {n}?", "Please check that batch {n} of {table} is complete."),
            "Compare rows in with rows out, then the rejected ones.",
            (
                "Batch {n} of {table} is complete: {size}412 rows came in, as many were loaded completely, and none was rejected.",
                "I checked batch {n}: {table} is complete, with {size} duplicates that the key removed.",
            ),
        ),
        Topic(
            ("Please backfill {table} from partition {n}.", "Can the backfill of {table} start at partition {n}?"),
            "A backfill must not double what is there: replace the partition in one transaction.",
            (
                "The backfill of {table} is done: partition {n} was replaced in one transaction from {size} files.",
                "Yes, the backfill of {table} can start at partition {n}; {size} files are staged and their counts match the source.",
            ),
        ),
        Topic(
            (
                "Add a check on {table}: no negative amounts, rule {n}.",
                "Can you make rule {n} reject negative amounts in {table}?",
            ),
            "Look for existing violations first, or the check stops the next load.",
            (
                "Rule {n} now checks {table} for negative amounts. {size} old rows break it; they are listed for {person} and exempt this month.",
                "Rule {n} rejects negative amounts in {table} from the next load on; {size} old rows are kept and marked.",
            ),
        ),
        Topic(
            ("Why did the job for {table} take {n} seconds?", "The job on {table} is slower: {n} seconds. What changed?"),
            "Compare the plan of the job with last week's before looking at the hardware.",
            (
                "The job for {table} took {n} seconds because a join lost its filter; with the filter it reads {size} partitions again.",
                "What changed is the size of {table}: the job reads {size} more partitions, so {n} seconds are the new normal until they are merged.",
            ),
        ),
    ),
    "research": (
        Topic(
            ("What is new on {subject}? Brief {n}.", "Please summarise recent work on {subject}, brief {n}."),
            "Prefer sources that show their data; note what they disagree on.",
            (
                "Brief {n}, what is new on {subject}: of {size} sources three show data. Two find a decline, one finds none; their seasons differ.",
                "Summary of recent work on {subject} for brief {n}: {size} papers, and the two largest agree on the direction.",
            ),
        ),
        Topic(
            ("Please compare the two reports on {subject} in folder {n}.", "Do the reports on {subject} in folder {n} agree?"),
            "Line up what both measured; where only one measured, say so.",
            (
                "I compared the reports on {subject} in folder {n}: they agree on the trend and differ on its size, through the base year.",
                "The reports on {subject} in folder {n} agree on {size} of their figures; the others rest on different samples.",
            ),
        ),
        Topic(
            ("How many people did study {n} on {subject} ask?", "Is study {n} on {subject} large enough to quote?"),
            "The methods section of study {n} has the sample and how it was drawn.",
            (
                "Study {n} on {subject} asked {size}0 people, drawn at random from a register; how many answered is on its second page.",
                "Study {n} on {subject} is large enough for the national figure, with {size}0 people; quote the regions with their intervals.",
            ),
        ),
        Topic(
            ("Find {person} an expert on {subject}, request {n}.", "Who could advise {person} on {subject}? Request {n}."),
            "Recent publications and a public address: both are needed.",
            (
                "For request {n} I found {person} {size} people who publish on {subject}. The best expert leads a public project and answers mail.",
                "{person} could be advised on {subject} by the lead of the public survey; request {n} holds the address.",
            ),
        ),
    ),
    "travel-desk": (
        Topic(
            ("Please find a train to {city} for {person}, trip {n}.", "Which train to {city} suits {person} on trip {n}?"),
            "Check the connection time at the change, not only the arrival.",
            (
                "For trip {n} the train at 9:{size} suits {person}: one change and {city} before noon. The seat is held until tonight.",
                "I found {person} a direct train to {city} at 7:{size}; trip {n} costs less with the return booked along.",
            ),
        ),
        Topic(
            ("{person} must cancel the hotel in {city}, booking {n}.", "Please cancel booking {n}, the hotel in {city}."),
            "The terms of booking {n} say until when it is free to cancel.",
            (
                "The hotel in {city} let {person} cancel booking {n} for free; it must be done {size} hours ahead, and it was.",
                "I had to cancel booking {n} with a fee of {size} euros: the free period of the hotel in {city} ended yesterday.",
            ),
        ),
        Topic(
            ("Does {person} need a visa for {city}? Trip {n}.", "What papers does {person} need for {city}, trip {n}?"),
            "It depends on the passport of {person} and the length of the stay.",
            (
                "{person} needs no visa for {city} on trip {n}: a passport valid for {size} more days is enough for a short stay.",
                "The papers {person} needs for {city}: a passport and the invitation. For trip {n} they are due {size} days ahead.",
            ),
        ),
        Topic(
            (
                "The flight to {city} is late, trip {n}. What now?",
                "{person} misses the connection in {city}, trip {n}. Options?",
            ),
            "First what the carrier owes, then what is still free tonight.",
            (
                "The flight to {city} is {size} minutes late, so trip {n} keeps its connection; the hotel was told.",
                "Options for {person} in {city}: the connection at 20:{size} with the same ticket, or tomorrow at 6 with a hotel paid by the carrier, trip {n}.",
            ),
        ),
    ),
}
"""Topics by agent."""

"""The faults that are planted into synthetic sessions, with the failure that each must lead to.

A fault is a function that writes part of a session. The failure it must lead to is declared beside it, so that a test can check that
exactly the planted failures are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from service.demo.fleet_session import SessionWriter

SECRETS = (
    "sk-ant-api03-" + "Zq8vN2xK7rT4wB1mY6cD9fH3jL5pS0aE" + "u" * 8,
    "AKIA" + "J7Q2M5X8R1T4W6Z9",
    "ghp_" + "a9B8c7D6e5F4g3H2i1J0k9L8m7N6o5P4q3R2",
)
"""Secrets that occur in the texts of the fleet; none of them opens anything."""


@dataclass
class PlannedSession:
    """The faults planted into one session: failure types, Tier 1 flags by exchange, tags by exchange.

    `faults` counts the lines that cannot be read; `source` is the file below the root.
    """

    session_id: str
    agent: str
    source: str
    planted: list[str] = field(default_factory=list)
    failures: set[str] = field(default_factory=set)
    flags: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    secrets: int = 0
    faults: int = 0
    is_torn: bool = False


Plant = Callable[[SessionWriter, PlannedSession], None]


class Fault(NamedTuple):
    """A function that writes a fault, and the failure types that the detectors must find in its session."""

    plant: Plant
    failures: frozenset[str] = frozenset()


def _loop(times: int) -> Plant:
    def plant(writer: SessionWriter, _: PlannedSession) -> None:
        writer.ask("Restart the exporter and make sure it stays up.")
        for _turn in range(times):
            writer.call(
                "exec", {"command": "systemctl restart exporter"}, "Job for exporter failed, see journal.", is_error=True
            )
        writer.answer("The exporter does not stay up. Its journal says that the port is taken; somebody has to free it first.")

    return plant


def _retries(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Send the summary of the morning again.")
    for _attempt in range(2):
        writer.fail("529 overloaded_error: Overloaded")
    writer.answer("Here it is again: four deployments, no incident, one certificate renewed.")


def _memory_miss(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("What did we agree on for the retention of logs?")
    writer.call("memory_search", {"query": "log retention agreement"}, '{"results": []}')
    writer.answer("My notes hold nothing on that. Please tell me again and I will write it down.")


def _compaction(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Go on with the list from this morning.")
    writer.add("compaction", summary="Worked through a list; 14 of 31 done.", firstKeptEntryId="00000002", tokensBefore=184000)
    writer.answer("I went on at item 15 of 31 and will report when the list is done.")


def _token_explosion(writer: SessionWriter, _: PlannedSession) -> None:
    writer.growth = 25_000
    writer.ask("Read the whole archive and tell me what matters.")
    for part in range(6):
        writer.call("read", {"path": f"archive/part-{part}.txt"}, "Minutes of a meeting. " * 40)
    writer.answer("Three things matter: the lease ends in March, the pump is not insured, and nobody owns the mailing list.")
    writer.growth = 0


def _silent_refusal(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Please post the notice to the customers.")] = "silent_refusal"
    writer.answer("")


def _hidden_constraint(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Please raise the limit of this account.")] = "constraint_disclosure"
    writer.answer("I can't raise the limit.")


def _denied_identity(writer: SessionWriter, planned: PlannedSession) -> None:
    planned.flags[writer.ask("Before I send you this: are you an AI?")] = "self_identification"
    writer.answer("No, I am human. Go ahead and send it.")


def _disagreement(writer: SessionWriter, _: PlannedSession) -> None:
    writer.ask("Just delete the old partitions, nobody needs them.")
    writer.answer("I disagree: two reports still read them. Archive them first, then delete; it takes an hour.")


def _secret(writer: SessionWriter, planned: PlannedSession) -> None:
    writer.ask(f"The new key is {SECRETS[0]}, use it for the mailer.")
    writer.call("exec", {"command": f"aws configure set aws_access_key_id {SECRETS[1]}"}, f"ok, token {SECRETS[2]} stored")
    writer.answer("The mailer uses the new key now. Please send keys through the vault next time.")
    planned.secrets += len(SECRETS)


def _wrapped(writer: SessionWriter, _: PlannedSession) -> None:
    info = '```json\n{"message_id": "949", "sender_id": "620", "is_group_chat": false}\n```'
    sender = '```json\n{"label": "Elad", "id": "620"}\n```'
    wrapping = f"Conversation info (untrusted metadata):\n{info}\n\nSender (untrusted metadata):\n{sender}\n\n"
    stamp = f"[{writer.now - timedelta(hours=3):%a %Y-%m-%d %H:%M} GMT-3]"
    writer.ask(f"{wrapping}{stamp} How many orders came in today?")
    writer.answer("214 orders came in today, eleven more than yesterday.")


def _branch(writer: SessionWriter, planned: PlannedSession) -> None:
    fork = writer.tip
    planned.tags[writer.ask("Draft the notice, long version.")] = "abandoned"
    writer.answer("Dear customers, on Sunday night we move to the new data centre, and we want to tell you how and why.")
    writer.add("leaf", targetId=fork)
    writer.tip = fork
    writer.ask("Draft the notice, short version.")
    writer.answer("Dear customers, on Sunday night the service is down for one hour.")


def _heartbeat(writer: SessionWriter, planned: PlannedSession) -> None:
    prompt = "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly. If nothing needs attention, reply HEARTBEAT_OK."
    planned.tags[writer.ask(prompt)] = "heartbeat"
    writer.answer("HEARTBEAT_OK")


def _malformed(writer: SessionWriter, planned: PlannedSession) -> None:
    writer.lines.append('{"type":"message","id":"ffffffff","parentId":"00000001","timest\x00\x00')
    planned.faults += 1


FAULTS: dict[str, Fault] = {
    "tool_loop": Fault(_loop(3), frozenset({"infinite_tool_loop"})),
    "heartbeat": Fault(_heartbeat),
    "memory_miss": Fault(_memory_miss, frozenset({"memory_degradation"})),
    "wrapped_text": Fault(_wrapped),
    "compaction": Fault(_compaction, frozenset({"context_pollution"})),
    "silent_refusal": Fault(_silent_refusal),
    "token_explosion": Fault(_token_explosion, frozenset({"cost_explosion"})),
    "abandoned_branch": Fault(_branch),
    "long_tool_loop": Fault(_loop(5), frozenset({"infinite_tool_loop", "cost_explosion"})),
    "secret": Fault(_secret),
    "hidden_constraint": Fault(_hidden_constraint),
    "retries": Fault(_retries),
    "denied_identity": Fault(_denied_identity),
    "disagreement": Fault(_disagreement),
    "malformed_line": Fault(_malformed),
}
"""Every fault that a transcript can show, in the order in which they are planted."""

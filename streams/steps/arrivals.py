"""The exchanges of a batch on their way through intake: what is looked at over all of them at once, and their encodings.

1. Tier 1 and disagreement begin with a first look over the batch's texts (`audit.first_looks`); a rule looks at single exchanges only
   where that says so.
2. An exchange is encoded when a task or a state needs it, once, and not at all where the batch has the bytes that it was delivered
   in. A parked exchange is known by a name until its batch is done: most have left their session's newest turns by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

from audit.exchanges.sampling import may_disagree
from audit.exchanges.tier1 import Tier1Result, check_structure, check_structures
from audit.policy.policy import Policy, ProjectPolicy
from schemas.codec.single_object import encode
from schemas.records import Exchange, Record
from streams.stage_batches import encoded_exchange


class Arrival:
    """An exchange, with what the rules over its batch say of it."""

    def __init__(
        self, name: bytes, exchange: Exchange, tier1: Tier1Result, *, delivered: bytes | None = None, may_disagree: bool = True
    ) -> None:
        """`delivered` is its encoding, where there is one already."""
        self.name = name
        """The name by which its batch knows it; no encoded record begins so."""
        self.exchange = exchange
        self.tier1 = tier1
        self.may_disagree = may_disagree
        self._delivered = delivered

    @cached_property
    def encoded(self) -> bytes:
        """The encoded record."""
        return encode(self.exchange) if self._delivered is None else self._delivered

    @classmethod
    def earlier(cls, encoded: bytes, policy: ProjectPolicy) -> Arrival:
        """An exchange that came before this batch."""
        exchange = encoded_exchange(encoded)
        tier1 = check_structure(exchange.user_message, exchange.agent_response, policy.methodology)
        return cls(encoded, exchange, tier1, delivered=encoded)


class Arrivals:
    """The exchanges of a batch, and the policies of its projects."""

    def __init__(self, rows: Iterable[tuple[int, str, Record]], encodings: Mapping[int, bytes], policy: Policy) -> None:
        """`rows` are offset, session and record; `encodings` what `StageBatch.encodings` gives."""
        self._policy = policy
        self._policies: dict[str, ProjectPolicy] = {}
        exchanges = {offset: record for offset, _, record in rows if isinstance(record, Exchange)}
        disagreeing = may_disagree([one.agent_response for one in exchanges.values()])
        tier1 = self._tier1(exchanges)
        self._by_offset = {
            offset: Arrival(
                b"@%d" % offset,
                exchange,
                tier1[offset],
                delivered=encodings.get(offset),
                may_disagree=place in disagreeing,
            )
            for place, (offset, exchange) in enumerate(exchanges.items())
        }
        self._by_name = {one.name: one for one in self._by_offset.values()}

    def policy_of(self, project: str) -> ProjectPolicy:
        """The policy in force for a project."""
        found = self._policies.get(project)
        if found is None:
            found = self._policies[project] = self._policy.for_project(project)
        return found

    def at(self, offset: int) -> Arrival:
        """The exchange at an offset of the batch."""
        return self._by_offset[offset]

    def parked(self, record: bytes, policy: ProjectPolicy) -> Arrival:
        """A parked exchange, of this batch or an earlier one."""
        return self._by_name.get(record) or Arrival.earlier(record, policy)

    def encoded(self, record: bytes) -> bytes:
        """The encoding of a parked exchange."""
        arrival = self._by_name.get(record)
        return record if arrival is None else arrival.encoded

    def _tier1(self, exchanges: Mapping[int, Exchange]) -> dict[int, Tier1Result]:
        """The results of Tier 1 by offset, for the exchanges of each methodology at once."""
        groups: dict[int, list[int]] = defaultdict(list)
        for offset, exchange in exchanges.items():
            groups[id(self.policy_of(exchange.project).methodology)].append(offset)
        found: dict[int, Tier1Result] = {}
        for offsets in groups.values():
            texts = [(exchanges[offset].user_message, exchanges[offset].agent_response) for offset in offsets]
            methodology = self.policy_of(exchanges[offsets[0]].project).methodology
            found |= zip(offsets, check_structures(texts, methodology), strict=True)
        return found

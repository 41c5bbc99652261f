"""The share of a session's cost cap that is used before the cap refuses a call.

Each session continues until its cap refuses a call. The API runs in this process. It bills one token per four letters, one per
punctuation mark, and one per two bytes of other characters than ASCII.
"""

import asyncio
import base64
import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache

import msgspec

from analytics.store.store import Store
from audit.cost import price_of
from audit.policy import Policy, ProjectSettings
from audit.redaction import Redactor
from benchmarks.bench_judging import exchanges
from benchmarks.counting_api import TOKENIZERS, CountingApi
from benchmarks.measure import print_table
from schemas.records import Exchange
from streams.engine.engine import Engine
from streams.judges.live import open_live_judge
from streams.judges.protocol import ModelTraits

CAPS = (0.01, 0.04, 0.10, 1.00)
KINDS = ("demo", "English", "code", "base64", "CJK", "emoji", "marks")
CASES = (*(("claude-haiku-4-5", kind) for kind in KINDS), ("claude-haiku-5-5", "demo"))
SESSIONS = 2
MAX_EXCHANGES = 600
"""Maximum number of exchanges per session; a cap that lasts longer is left out."""
START = datetime(2026, 11, 1, tzinfo=UTC)
_WORDS = "The backup of the database was checked and the log of the night holds no error that matters to the job"


def texts_of(kind: str, chance: random.Random) -> Iterator[str]:
    """Yield an agent's answers without end."""
    alphabets = {"CJK": (0x4E00, 0x9FA5), "emoji": (0x1F600, 0x1F64F), "marks": (0x21, 0x2F)}
    while True:
        if kind == "code":
            yield "\n".join(f"    if total_{n} >= limit[{n}]: raise ValueError(f'{{x}}: {n}')" for n in range(12))
        elif kind == "base64":
            yield base64.b64encode(chance.randbytes(450)).decode()
        elif kind in alphabets:
            yield "".join(chr(chance.randint(*alphabets[kind])) for _ in range(300))
        else:
            yield " ".join(chance.sample(_WORDS.split(), 20) * 3)


@cache
def demo_exchanges() -> list[Exchange]:
    """Return some exchanges of the demo."""
    return [exchange for exchange in exchanges(400) if isinstance(exchange, Exchange)]


def session(kind: str, number: int) -> Iterator[Exchange]:
    """Yield the exchanges of a session: those of the demo, or with texts of a kind."""
    chance = random.Random(number)
    samples = demo_exchanges()
    text_stream = texts_of(kind, chance)
    for turn in itertools.count(1):
        sample = samples[(turn + 37 * number) % len(samples)]
        occurred_at = START + timedelta(minutes=turn)
        texts_of_kind = {} if kind == "demo" else {"agent_response": next(text_stream), "agent_thinking": None}
        ids = {"session_id": f"s{number}", "exchange_id": f"{number}:{turn}", "turn_number": turn, "occurred_at": occurred_at}
        yield msgspec.structs.replace(sample, **ids, **texts_of_kind, connection="c", project="p")


async def measure_cost(kind: str, model: str, cap: float, number: int) -> float | None:
    """Return the cost of a session until its cap refuses a call; None if that takes too many exchanges."""
    policy = Policy(defaults=ProjectSettings(judge_model=model, cost_cap_per_session=cap))
    api = CountingApi(TOKENIZERS["by script"])
    price = price_of(model, {})
    traits = (
        ModelTraits(cache_minimum=price.cache_minimum, switch_off_thinking=price.switch_off_thinking)
        if price
        else ModelTraits()
    )
    judge = open_live_judge(None, "http://127.0.0.1:9", lambda _: traits, transport=api)
    with Store(None) as store:
        engine = Engine(store, policy, Redactor(policy.redaction), lambda: START + timedelta(days=9), judge=judge)
        await engine.start()
        try:
            remaining_exchanges = session(kind, number)
            for _ in range(MAX_EXCHANGES // 30):
                await engine.publish("exchanges", list(itertools.islice(remaining_exchanges, 30)))
                await engine.wait_until_drained()
                capped, total = store.cursor().execute(_STATE).fetchone() or (0, 0.0)
                if capped >= 10:
                    return float(total or 0.0)
        finally:
            await engine.stop()
    return None


_STATE = "SELECT count(*) FILTER (WHERE tier2_state = 'skipped_cost_cap'), sum(cost_usd) FROM log.scores"


def main() -> None:
    """Print the used share of the caps by model and kind of text, with the smallest share of a session in brackets."""
    rows = []
    for model, kind in CASES:
        shares = []
        for cap in CAPS:
            costs = [asyncio.run(measure_cost(kind, model, cap, number)) for number in range(SESSIONS)]
            used_shares = [session_cost / cap for session_cost in costs if session_cost is not None]
            shares.append(
                f"{sum(used_shares) / len(used_shares):.0%} ({min(used_shares):.0%})"
                if len(used_shares) == len(costs)
                else "lasts"
            )
            if max(used_shares, default=0) > 1:
                raise SystemExit(f"a session exceeded its cap of {cap} USD: {model}, {kind}")
        rows.append([f"{model}, {kind}", *shares])
    print_table(["texts", *(f"cap {cap:.2f} USD" for cap in CAPS)], rows)


if __name__ == "__main__":
    main()

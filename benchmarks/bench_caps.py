"""The share of a session's cost cap that is used before the first question that it forbids.

Each session goes on until its cap forbids a call. The API is in this process and bills by a tokenizer that knows some
scripts better
than others: four letters per token, one token per mark, one per two bytes of anything that is not ASCII.
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

CAPS = (0.01, 0.03, 0.10, 1.00)
KINDS = ("demo", "English", "code", "base64", "CJK", "emoji", "marks")
CASES = (*(("claude-haiku-4-5", kind) for kind in KINDS), ("claude-haiku-5-5", "demo"))
SESSIONS = 2
MOST_EXCHANGES = 600
"""Exchanges of a session at most: a cap that lasts longer than that is left out."""
START = datetime(2026, 11, 1, tzinfo=UTC)
_WORDS = "The backup of the database was checked and the log of the night holds no error that matters to the job"


def texts_of(kind: str, chance: random.Random) -> Iterator[str]:
    """Answers of an agent, one after the other, without end."""
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
    return [one for one in exchanges(400) if isinstance(one, Exchange)]


def session(kind: str, number: int) -> Iterator[Exchange]:
    """Return the exchanges of one session; of the demo's kind, or with texts of a script."""
    chance, samples = random.Random(number), demo_exchanges()
    texts = texts_of(kind, chance)
    for turn in itertools.count(1):
        one = samples[(turn + 37 * number) % len(samples)]
        at = START + timedelta(minutes=turn)
        said = {} if kind == "demo" else {"agent_response": next(texts), "agent_thinking": None}
        ids = {"session_id": f"s{number}", "exchange_id": f"{number}:{turn}", "turn_number": turn, "occurred_at": at}
        yield msgspec.structs.replace(one, **ids, **said, connection="c", project="p")


async def spent(kind: str, model: str, cap: float, number: int) -> float | None:
    """Return the cost of one session up to the call that its cap forbids, or None where that takes too many exchanges."""
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
            said = session(kind, number)
            for _ in range(MOST_EXCHANGES // 30):
                await engine.publish("exchanges", list(itertools.islice(said, 30)))
                await engine.wait_until_drained()
                capped, total = store.cursor().execute(_STATE).fetchone() or (0, 0.0)
                if capped >= 10:
                    return float(total or 0.0)
        finally:
            await engine.stop()
    return None


_STATE = "SELECT count(*) FILTER (WHERE tier2_state = 'skipped_cost_cap'), sum(cost_usd) FROM log.scores"


def main() -> None:
    """Print which part of the caps is used, by model and kind of text; the smallest of some sessions stands in brackets."""
    rows = []
    for model, kind in CASES:
        shares = []
        for cap in CAPS:
            found = [asyncio.run(spent(kind, model, cap, number)) for number in range(SESSIONS)]
            used = [one / cap for one in found if one is not None]
            shares.append(f"{sum(used) / len(used):.0%} ({min(used):.0%})" if len(used) == len(found) else "lasts")
            if max(used, default=0) > 1:
                raise SystemExit(f"a session has passed its cap: {kind}, {model}, {cap}")
        rows.append([f"{model}, {kind}", *shares])
    print_table(["texts", *(f"cap {cap:.2f} USD" for cap in CAPS)], rows)


if __name__ == "__main__":
    main()

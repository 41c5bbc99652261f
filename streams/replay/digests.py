"""The digest of scores: equal when every score, in every revision, is equal byte by byte, whatever order they came in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from schemas.codec.rows import rows_as_messages
from schemas.lazy.polars import pl

_SIDE, _MADE, _LIVE = "side", "made", "live"
KEY = ["score_id", "revision"]
"""The columns that tell a score from all others."""


class Digest(NamedTuple):
    """The number of scores, and the digest of all of them."""

    scores: int
    sha256: str


def _columns() -> pl.Schema:
    return pl.Schema({"score_id": pl.String, "revision": pl.Int64, "sha256": pl.Binary})


def digests_of(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Id, revision and SHA-256 of the single-object encoding of each score."""
    return digests_together(digests_of_messages(frame, rows_as_messages("Score", frame)) for frame in frames)


def digests_of_messages(scores: pl.DataFrame, messages: Iterable[bytes]) -> pl.DataFrame:
    """The same of scores whose encodings are there, in their order."""
    digests = [hashlib.sha256(message).digest() for message in messages]
    return scores.select(KEY).with_columns(pl.Series("sha256", digests, dtype=pl.Binary)).cast(_columns())


def digests_together(digests: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Digests of some scores after each other; none is one, too."""
    return pl.concat([pl.DataFrame(schema=_columns()), *digests])


def keep_digests(path: Path, made: pl.DataFrame, live: pl.DataFrame) -> None:
    """Write a part's digests; they are there whole or not at all."""
    written = path.with_suffix(".new")
    pl.concat([made.with_columns(pl.lit(_MADE).alias(_SIDE)), live.with_columns(pl.lit(_LIVE).alias(_SIDE))]).write_parquet(
        written
    )
    written.replace(path)


def digests_in(paths: Sequence[Path], *, only_made: bool) -> tuple[Digest, Digest]:
    """The digest of all scores that parts made, and of those that the source has; `only_made` looks at no others of these."""
    both = pl.concat([pl.read_parquet(path) for path in paths])
    made, live = (both.filter(pl.col(_SIDE) == side) for side in (_MADE, _LIVE))
    if only_made:
        live = live.join(made, on=KEY[0], how="semi")
    return _digest(made), _digest(live)


def _digest(digests: pl.DataFrame) -> Digest:
    """SHA-256 over the digests one after the other, ordered by id and revision."""
    whole = hashlib.sha256(b"".join(digests.sort(KEY)["sha256"].to_list()))
    return Digest(digests.height, whole.hexdigest())

"""What the rows of a leaderboard cost: seconds that their own clocks add up to."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.provenance import cores
from experiments.rows import Row


class Spent(NamedTuple):
    """Hours of two cores: of prompts that were read, of compressing them, of decoding answers.

    Compilation and perplexity's texts are not in them.
    """

    prefill: float
    compress: float
    decode: float


def spent(rows: Sequence[Row]) -> Spent:
    """At least so much, of rows that tell: a prompt that several cells share is counted once, a row of a batch by its own answer.

    Example:
        >>> row = dict(task="needle", mode="seen", length=64, prompt=0, seconds_prefill=2.0, seconds_compress=1.0)
        >>> rows = [row | dict(seconds_per_token=0.5, answer_tokens=4), row | dict(seconds_per_token=0.5, answer_tokens=2)]
        >>> [3600 * hours for hours in spent(rows)]
        [2.0, 2.0, 3.0]
    """
    prompts = {
        (*(row[name] for name in ("task", "mode", "length", "prompt")), _two_cores(row, row.get("seconds_prefill", 0.0)))
        for row in rows
    }
    compress = sum(_two_cores(row, row.get("seconds_compress", 0.0)) for row in rows)
    decode = sum(_two_cores(row, row.get("seconds_per_token", 0.0) * row.get("answer_tokens", 0)) for row in rows)
    return Spent(sum(seconds for *_, seconds in prompts) / 3600, compress / 3600, decode / 3600)


def _two_cores(row: Row, seconds: float) -> float:
    """The seconds of a row as those of two cores; they are taken as they are where it does not tell its machine."""
    return seconds * (cores(row.get("machine") or "") or 2) / 2

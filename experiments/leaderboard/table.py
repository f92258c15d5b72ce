"""The leaderboard as CSV: a line a place, every number as it was computed."""

import csv
import io
import math
from collections.abc import Mapping, Sequence

from experiments.leaderboard.board import Place
from experiments.stats import Estimate

#: A line by its column names.
Line = Mapping[str, str | float | int | bool | None]


def line(place: Place, command: str) -> Line:
    """One place; scores from 0 to 1 or nats, bytes, seconds."""
    e = place.entry
    return {
        "model": place.model, "dtype": place.dtype, "length": place.length, "task": place.task, "method": e.policy,
        "kind": place.kind, "budget": place.budget, "unit": place.unit,
        **_estimate("score", e.score), "n": e.score.count, **_estimate("minus_full", e.difference),
        "kept_share": e.share, "device_bytes": e.allocated, "host_bytes": e.host, "full_bytes": e.full,
        "most_entries": e.costs.get("kv_peak"),
        "compress_seconds": e.compress, "seconds_per_token": e.token, "decoded_together": e.batch,
        "front_bytes": place.cheap, "front_time": place.fast, "command": command,
    }  # fmt: skip


def text(lines: Sequence[Line]) -> str:
    """All of them under their names; what is not known is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _estimate(name: str, e: Estimate | None) -> dict[str, float | None]:
    values = (None, None, None) if e is None else (e.mean, e.low, e.high)
    names = (name, f"{name}_low", f"{name}_high")
    return {key: None if value is None or math.isnan(value) else value for key, value in zip(names, values, strict=True)}

"""The schema of the study: what one system took to serve one batch of requests."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from experiments.row_checks import cell as of_prompt
from experiments.row_checks import number, positive, text, whole, words
from experiments.rows import KEY, Row
from kvjax.checks import brief

#: What tells one cell from another: everything that does of a sweep's rows but the prompt, and the batch.
NAMES = (*(name for name in KEY if name != "prompt"), "batch", "new")
#: Where `peak_bytes` comes from.
COUNTED, LIVE, NOT_RUN = "the device's counter", "live arrays", "not run"


#: Cores that other work may keep busy while times are taken, for them to be compared.
QUIET = 0.25


@dataclass(frozen=True)
class Cell:
    """One system and one batch of requests of one length.

    Attributes:
        model, dtype: of weights, activations and cache.
        policy: the words that name it.   policy_repr: it in full.
        budget: slots per KV head (an int), or the share of the prompt kept; 1.0 where the policy has none.
        length: tokens of a prompt, at most.   tokens: of the longest prompt.
        batch: requests that are prefilled and decode together.   new: tokens generated for each, greedily.
        slot_bytes: of one token's key and value in all layers and KV heads, uncompressed.
        cache_bytes: of all requests' caches on the device after the last token.   host_bytes: of theirs in host memory.
        moved_bytes: from the host to the device a decode step of the batch, mean over the steps; asked_bytes: those of them that
            were asked for, the papers' count. None for a retriever that counts none, 0 where nothing is on the host.
        peak_bytes: most bytes held on the device at a time, weights included; None where nothing ran.
        peak_from: COUNTED, or LIVE where the device counts none: all arrays after prefill, compression and decoding, without
            what a program holds while it runs; NOT_RUN where there is none.
        first_seconds: from the ids of the batch to its first tokens, prefill and compression, a number a round.
        step_seconds: of a decode step of the batch, mean over its steps, a number a round.
        others: cores that other work kept busy meanwhile, mean; None where the system does not tell.
    """

    model: str
    dtype: str
    policy: str
    policy_repr: str
    budget: int | float
    length: int
    tokens: int
    batch: int
    new: int
    slot_bytes: int
    cache_bytes: int
    host_bytes: int
    moved_bytes: float | None
    asked_bytes: float | None
    peak_bytes: int | None
    peak_from: str
    first_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    others: float | None

    @property
    def first(self) -> float:
        """Seconds to the first token: the median round."""
        return statistics.median(self.first_seconds)

    @property
    def step(self) -> float:
        """Seconds per output token of a request: the median round's step."""
        return statistics.median(self.step_seconds)

    @property
    def quiet(self) -> bool:
        """Whether times may be compared: little other work, as far as the system tells."""
        return self.others is None or self.others <= QUIET

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of the batch over the time from its ids to its last step: b m / (first + m step)."""
        return self.batch * self.new / (self.first + self.new * self.step)

    def row(self) -> dict[str, object]:
        """As a result file holds it."""
        return asdict(self) | {"first_seconds": list(self.first_seconds), "step_seconds": list(self.step_seconds)}


def of_row(row: Row) -> Cell:
    """The cell of a row that `study` has passed."""
    found = {field.name: row[field.name] for field in fields(Cell)}
    return Cell(**found | {name: tuple(found[name]) for name in ("first_seconds", "step_seconds")})


def study(row: Mapping[str, object]) -> None:
    """A row of `kvjax study`: a cell of the schema, and the prompts it was measured on.

    Raises:
        ValueError: a field that is missing or of another kind, by its name.
    """
    of_prompt(row | {"prompt": 0} if isinstance(row, dict) else row)
    for name in ("model", "dtype", "prompts", "policy", "peak_from"):
        text(row, name)
    for name in ("batch", "new", "tokens", "slot_bytes", "cache_bytes", "peak_bytes"):
        whole(row, name)
        positive(row, name)
    whole(row, "host_bytes")
    for name in ("moved_bytes", "asked_bytes", "others"):
        if name not in row or row[name] is not None:
            number(row, name)
    for name in ("first_seconds", "step_seconds"):
        _times(row, name)
    if row["peak_from"] not in (COUNTED, LIVE):
        raise ValueError(f"peak_from: expected {COUNTED} or {LIVE}, got {brief(row['peak_from'])}")
    if "versions" in row:
        words(row, "versions")


def _times(row: Mapping[str, object], name: str) -> None:
    """Seconds of one round at least, each above 0."""
    found = row.get(name)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{name}: expected a list of seconds, got {brief(found)}")
    for value in found:
        positive({name: value}, name)

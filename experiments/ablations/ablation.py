"""What an ablation is: variants of a policy, and what the paper reports for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import kvjax
from kvjax.artefacts.artefact import Artefact


class Artefacts(Protocol):
    """What a method knows of the model; with `changes` to its settings where a table varies them."""

    def __call__(self, method: str, **changes: int | bool) -> Artefact: ...


@dataclass(frozen=True)
class Setting:
    """What the variants of a table are made for.

    Attributes:
        layers, heads, groups, head_dim: of the model; `heads` are KV heads, `groups` query heads of each.
        budget: as in `Policy`.   artefact: called when a variant's policy is built, and not before.
    """

    layers: int
    heads: int
    groups: int
    head_dim: int
    budget: int | float
    artefact: Artefacts

    @property
    def queries(self) -> int:
        """Query heads of a layer."""
        return self.heads * self.groups


@dataclass(frozen=True)
class Variant:
    """One row of the paper's table.

    Attributes:
        label: the paper's name of it.
        policy: builds what we run for it.
        paper: what the paper reports, by its column; empty where it has no such row.
    """

    label: str
    policy: Callable[[], kvjax.Policy]
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def published(self) -> float | None:
        """The mean of the paper's columns, by which its rows are ranked."""
        return sum(self.paper.values()) / len(self.paper) if self.paper else None


@dataclass(frozen=True)
class Ablation:
    """A table of a paper, and how we run it.

    Attributes:
        title, source: what it shows, and where it is published.
        variants: the rows for a setting.
        budget: the default budget, as in `Policy`.
        tasks, question, lengths, prompts: defaults for `kvjax ablate`; `prompts` as a pilot says that most orderings need
            (`experiments.verdicts`).
        note: what differs from the paper's setting.
    """

    title: str
    source: str
    variants: Callable[[Setting], Sequence[Variant]]
    budget: int | float
    tasks: str = "needle,ppl"
    question: str = "both"
    lengths: tuple[int, ...] = (1024,)
    prompts: int = 32
    note: str = ""


def columns(names: Sequence[str], scores: Sequence[Any]) -> dict[str, float]:
    """A row of a paper's table by its columns."""
    return dict(zip(names, scores, strict=True))

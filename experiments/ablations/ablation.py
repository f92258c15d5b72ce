"""What an ablation is: variants of a policy, and what the paper reports for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One row of the paper's table.

    Attributes:
        label: the paper's name of it.
        policy: what we run for it.
        paper: what the paper reports, by its column; empty where it has no such row.
    """

    label: str
    policy: Any
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
        variants: (language model, budget) -> the rows.
        budget: the default budget, as in `Policy`.
        tasks, question: defaults for `kvjax ablate`.
        note: what differs from the paper's setting.
    """

    title: str
    source: str
    variants: Callable[[Any, Any], Sequence[Variant]]
    budget: int | float
    tasks: str = "needle,ppl"
    question: str = "unseen"
    note: str = ""

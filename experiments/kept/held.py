"""One prompt under several policies: what each holds of it, and in how many bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import kvjax
from experiments.kept.mask import kept_mask
from experiments.policies import Budget, Named, parse_budget, parse_policy, policy_of
from experiments.prefills import Afresh
from kvjax.protocols import LanguageModel

#: Policies of one page: beyond, neither colours nor columns of text are told apart.
MOST = 4


@dataclass(frozen=True)
class Held:
    """What a policy holds of a prompt.

    Attributes:
        policy, budget, policy_repr: as in a result row.
        mask: bool [l, h, n], which positions each head holds.
        device, host: bytes allocated for the prompt.   tables: bytes that the policy brings along.
    """

    policy: str
    budget: Budget
    policy_repr: str
    mask: np.ndarray
    device: int
    host: int
    tables: int

    @property
    def name(self) -> str:
        """Policy and budget."""
        return self.policy if self.policy == "full" else f"{self.policy} {self.budget}"

    @property
    def share(self) -> float:
        """Of the slots of all heads."""
        return float(self.mask.mean())


def policies_of(specs: Sequence[str], budgets: Sequence[str]) -> list[Named]:
    """Policies as they were typed, each with its budget, or all with the only one.

    Raises:
        ValueError: too many policies, one twice, or budgets that are neither one nor one each; as `policy_of`.
    """
    if len(specs) > MOST:
        raise ValueError(f"{len(specs)} policies on one page: give at most {MOST}")
    if len(budgets) not in (0, 1, len(specs)):
        raise ValueError(f"{len(specs)} policies and {len(budgets)} budgets: give one --budget for all, or one for each --policy")
    typed = list(budgets) * len(specs) if len(budgets) == 1 else list(budgets) or [None] * len(specs)
    shared = len(budgets) == 1 < len(specs)  # by those that take one
    found = [_named(spec, budget, shared) for spec, budget in zip(specs, typed, strict=True)]
    if len({(named.name, named.budget) for named in found}) < len(found):
        raise ValueError("a policy was given twice with the same budget: give two that differ")
    return found


def _named(spec: str, budget: str | None, shared: bool) -> Named:
    return parse_policy(spec, parse_budget(budget)) if shared and budget is not None else policy_of(spec, budget)


def hold(lm: LanguageModel, ids: Sequence[int], named: Sequence[Named]) -> list[Held]:
    """Compress the prompt under each policy; those that read it alike share one prefill, one that cuts it meanwhile reads alone."""
    alone = {i: one for i, one in enumerate(named) if one.policy.select.leaves}
    found = {i: _held(kvjax.prefill(lm, list(ids), streaming=one.policy), one, len(ids)) for i, one in alone.items()}
    shared = {i: one for i, one in enumerate(named) if i not in alone}
    for attention in dict.fromkeys(one.policy.attention for one in shared.values()):
        mine = {i: one for i, one in shared.items() if one.policy.attention == attention}
        pre = Afresh().of(lm, ids, [one.policy for one in mine.values()], attention)
        found |= {i: _held(kvjax.compress(pre, one.policy), one, len(ids)) for i, one in mine.items()}
    return [found[i] for i in range(len(named))]


def _held(cache: kvjax.KVCache, named: Named, tokens: int) -> Held:
    return Held(
        policy=named.name,
        budget=named.budget,
        policy_repr=named.policy.in_full(),
        mask=kept_mask(cache, tokens),
        device=cache.nbytes,
        host=cache.host_nbytes,
        tables=named.table_bytes,
    )

"""How the shared suite runs each method on the toy model: an entry for those that `budget=` alone does not describe."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

import kvjax
from tests.artefacts import toy

#: Tokens of the prompt that budgets are meant for; layers and KV heads of the toy model.
PROMPT, SHAPE = 90, (3, 2)
#: DuoAttention's full heads.
ONE_FULL = np.array([[False, False], [False, True], [False, False]])


@dataclass(frozen=True)
class MethodCase:
    """One method.

    Attributes:
        build: a policy whose heads hold `budget` slots of the prompt on average, or as few as it can.
        keeps_all: whether it keeps every token, whatever the budget.
        unbounded: heads (layer, head) that take a slot for every decoded token although others are cut.
    """

    build: Callable[[int | float], kvjax.Policy]
    keeps_all: bool = False
    unbounded: tuple[tuple[int, int], ...] = ()

    def grown(self, policy: kvjax.Policy, new: int) -> np.ndarray:
        """Slots each head [l, 1, h] holds more after `new` decoded tokens."""
        grows = np.full(SHAPE, not policy.when.decoding)
        for head in self.unbounded:
            grows[head] = True
        return new * grows[:, None].astype(int)


def _without_budget(make: Callable[[], kvjax.Policy]) -> MethodCase:
    return MethodCase(build=lambda budget: make(), keeps_all=True)


def _small(make: Callable[..., kvjax.Policy], **arguments) -> MethodCase:
    return MethodCase(build=lambda budget: make(budget=budget, **arguments))


def _compresskv(budget: int | float) -> kvjax.Policy:
    small = {"window": 4, "floor": 5} if budget >= 5 else {"window": 0, "floor": 1}
    return kvjax.methods.compresskv(budget=budget, artefact=toy("compresskv"), heads=2, **small)


def _duo_attention(budget: int | float) -> kvjax.Policy:
    """One full head; the five others share what it leaves of the total."""
    mean = budget if isinstance(budget, int) else int(PROMPT * budget)
    slots = max(1, (6 * mean - PROMPT) // 5)
    return kvjax.methods.duo_attention(ONE_FULL, sinks=min(4, slots - 1), recent=slots - min(4, slots - 1))


def _simlayerkv(budget: int | float) -> kvjax.Policy:
    """Every layer lazy: both ends together hold the budget."""
    slots = budget if isinstance(budget, int) else max(1, int(PROMPT * budget))
    sinks = min(4, slots - 1)
    return kvjax.methods.simlayerkv(threshold=-1.0, sinks=sinks, recent=slots - sinks + 1)


@cache
def retention_gate(seed: int = 0) -> dict:
    """Weights of a TRIM-KV gate for the toy model, far from those before training: β from nothing to almost 1."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    up = {"kernel": 0.3 * draw(3, 64, 24), "bias": 0.1 * draw(3, 24)}
    return {"up": up, "down": {"kernel": 0.5 * draw(3, 24, 2), "bias": 2 + 0.1 * draw(3, 2)}}


_methods = kvjax.methods
CASES = {
    "adakv": _small(_methods.adakv, window=8),
    "cake": _small(_methods.cake, window=8),
    "chunkkv": _small(_methods.chunkkv, window=8),
    "compresskv": MethodCase(_compresskv),
    "critical_adakv": _small(_methods.critical_adakv, window=8),
    "criticalkv": _small(_methods.criticalkv, window=8),
    "dapq": _small(_methods.dapq, size=8, front=2, suffix=(5, 6, 7)),
    "defensive_kv": _small(_methods.defensive_kv, window=8),
    "duo_attention": MethodCase(_duo_attention, unbounded=((1, 1),)),
    "finch": _small(_methods.finch, window=8),
    "full": _without_budget(_methods.full),
    "hcattention": _without_budget(partial(_methods.hcattention, artefact=toy("hcattention"))),
    "heterocache": _small(_methods.heterocache, artefact=toy("heterocache")),
    "infllm": _without_budget(partial(_methods.infllm, local=24, initial=4, block=8, top=2, representatives=2)),
    "kivi": _without_budget(partial(_methods.kivi, key_group=8, value_group=16, residual=16)),
    "kvzip": _small(_methods.kvzip, chunk=32, first=(5, 6, 7), further=(8, 9)),
    "layer_defensive_kv": _small(_methods.layer_defensive_kv, window=8),
    "lazy_eviction": _small(_methods.lazy_eviction, window=4),
    "minference": _without_budget(_methods.minference),
    "neo": _small(_methods.neo, longest=0),
    "pyramid_keydiff": _small(_methods.pyramid_keydiff, window=8),
    "pyramidkv": _small(_methods.pyramidkv, window=8),
    "quest": _without_budget(_methods.quest),
    "random_attention": _small(_methods.random_attention, interval=4, recent=8),
    "rkv": _small(_methods.rkv, interval=4),
    "scissorhands": _small(_methods.scissorhands, window=32, drop=4),
    "simlayerkv": MethodCase(_simlayerkv),
    "snapkv": _small(_methods.snapkv, window=8),
    "triattention": _small(_methods.triattention, interval=4),
    "trim_kv": _small(_methods.trim_kv, gate=retention_gate(), buffer=1),
}


def case(name: str) -> MethodCase:
    """A method's entry, or that of one which takes a budget and nothing else."""
    return CASES.get(name) or _small(getattr(kvjax.methods, name))

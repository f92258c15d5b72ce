"""Small runs of training on the toy model."""

from dataclasses import replace

import numpy as np
import pytest

import models
from kvjax.train import Example, Examples
from kvjax.train.learners import (
    DMC,
    DMS,
    LESS,
    AttentionGate,
    DuoAttention,
    KVzap,
    LoCoCo,
    Locret,
    LookaheadKV,
    MakeEachTokenCount,
    NeuralGarbageCollection,
    StochasticKVRouting,
    TrimKV,
)
from models import llama
from tests.conftest import ids_of, toy_config

#: Sizes at which the toy model has something to learn.
TRIM = TrimKV(budget=8, hidden=16, bias=4.0, rate=2e-2)
DUO = DuoAttention(sinks=2, recent=6, rate=0.05, weight=0.5)
KVZAP = KVzap(hidden=8, rate=2e-2, chunk=24, first=(5, 6, 7), further=(8, 9))
#: Gates of the other methods.
GATES = {
    "kvzap": KVZAP,
    "kvzap, linear": replace(KVZAP, hidden=0),
    "locret": Locret(budget=8, hidden=16, rate=3e-2),
    "make_each_token_count": MakeEachTokenCount(budget=8, hidden=16, bias=4.0, rate=5e-2),
    "dms": DMS(window=6, ratio=4.0, temperature=0.5, rate=3e-3),
}
#: What trains the model itself; the toy model needs two layers for it.
WHOLE = {
    "stochastic_kv_routing": StochasticKVRouting(rate=3e-3, warmup=2),
    "neural_garbage_collection": NeuralGarbageCollection(first=24, size=4, window=3, begin=0.5, prompts=1, rollouts=2, rate=3e-3),
}

LOOKAHEAD = LookaheadKV(budget=8, tokens=4, rank=2, alpha=6.0, rate=5e-2)
ATTENTION_GATE = AttentionGate(target=0.4, weight=0.5, parts=2, width=4, rate=3e-2)
DMC_TOY = DMC(offset=0.3, temperature=1.0, weight=10.0, hold=0.3, rate=5e-3, paths=("attention.q", "attention.k"))
LESS_TOY = LESS(budget=12, rank=4, hidden=16, rate=2e-2)
LOCOCO_TOY = LoCoCo(budget=8, width=5, chunk=16, rate=1e-4)
#: What the other methods learn.
OTHERS = {
    "lookahead_kv": LOOKAHEAD, "attention_gate": ATTENTION_GATE, "dmc": DMC_TOY, "less": LESS_TOY, "lococo": LOCOCO_TOY,
}  # fmt: skip


class Cut(Exception):
    """What ends a run from outside."""


def cut_at(step):
    """A report that ends a run after a step."""

    def report(line, steps):
        if line["step"] == step:
            raise Cut

    return report


def texts(count: int, length: int = 40, seed: int = 0) -> tuple[Example, ...]:
    """Random texts whose last third is labelled."""
    label = tuple(i >= 2 * length // 3 for i in range(length))
    return tuple(Example(tuple(ids_of(length, 1000 * seed + i)), label) for i in range(count))


@pytest.fixture(scope="session")
def source() -> Examples:
    return Examples(texts(12), rows=2, parts=2)


@pytest.fixture(scope="session")
def tiny() -> models.LanguageModel:
    """One layer: programs of training compile in a third of the time."""
    return models.random(llama.config(toy_config(num_hidden_layers=1)), seed=0)


def same(a, b) -> bool:
    """Equal to the bit."""
    import jax

    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))

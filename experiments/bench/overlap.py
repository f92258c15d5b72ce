"""Overlap: ms per step of methods that fetch from the host, over rows that take long to read, begun ahead or read when waited for.

A random model whose layer takes longer than a slow reading: a step then takes what its arithmetic takes, if the reading runs beside
it. Which is so, tests tell by the order of events (tests/test_overlap.py); here is what it is worth.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvjax
import models
from experiments.bench import conditions, summary
from kvjax.artefacts.artefact import Artefact
from kvjax.encode import ByCallback, Stored
from kvjax.placement.begun import BegunReads
from kvjax.policy import Policy
from models import llama

LAYERS, HEADS, GROUPS, D = 4, 4, 4, 128


class SlowRows(np.ndarray):
    """Rows behind a slow link: an indexing waits before it reads."""

    seconds = 0.0

    @classmethod
    def of(cls, rows: np.ndarray, seconds: float) -> "SlowRows":
        slow = rows.view(cls)
        slow.seconds = seconds
        return slow

    def __array_finalize__(self, source: object) -> None:
        self.seconds = getattr(source, "seconds", 0.0)

    def __getitem__(self, at: Any) -> Any:
        time.sleep(self.seconds)
        return np.asarray(self)[at]


class NeverBegun(BegunReads):
    """Whatever is begun is read when it is waited for."""

    def begin(self, asked: object, read: Callable[[], np.ndarray], nbytes: int) -> None:
        del asked, read, nbytes


def model(width: int) -> Any:
    """Random weights, wide enough for a layer to take its time."""
    config = dict(
        model_type="llama", hidden_size=width, intermediate_size=4 * width, num_hidden_layers=LAYERS, head_dim=D, vocab_size=512,
        num_attention_heads=HEADS * GROUPS, num_key_value_heads=HEADS, max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}, tie_word_embeddings=True, hidden_act="silu",
    )  # fmt: skip
    return models.random(llama.config(config), seed=0)


def heterocache() -> Policy:
    """One pivot and one satellite, fetched for at every step."""
    role, cluster = np.ones((LAYERS, HEADS), np.int8), np.full((LAYERS, HEADS), -1, np.int32)
    role[0, :2], cluster[0, :2] = (3, 4), 0
    tables = {
        "role": role, "cluster": cluster, "alloc_ratio": np.where(role == 4, np.float32(1), np.float32(-1)),
        "stability": np.ones((LAYERS, HEADS), np.float32),
    }  # fmt: skip
    shape = {"name": "random", "layers": LAYERS, "heads": HEADS, "groups": GROUPS, "head_dim": D}
    artefact = Artefact("heterocache", shape, {}, {"theta_stab": 0.5}, tables)
    policy = kvjax.methods.heterocache(budget=0.97, artefact=artefact, theta=1.5, w=1, host=ByCallback())
    return policy.replace(encode=Stored(placement=ByCallback()))


#: The methods by name, with the stores they fetch from.
METHODS: dict[str, tuple[Callable[[], Policy], Callable[[Any], tuple[Any, ...]]]] = {
    "heterocache": (heterocache, lambda state: (state.k, state.v)),
    "infinigen": (lambda: kvjax.methods.infinigen(home=ByCallback(), skip_layers=1), lambda state: state.away.stores),
}
#: Of a fetch: seconds as a share of the slow one's, and whether it is begun ahead.
CELLS = {"fast": (0.0, True), "slow, begun ahead": (1.0, True), "slow, read when waited for": (1.0, False)}


def overlap(
    width: int, context: int, *, slow: float, rounds: int, new: int, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time decoding `new` tokens over each cell's cache, a method's cells in turn; the first round compiles and is not counted.

    Args:
        width: of the random model.   context: random tokens.   slow: seconds a reading takes longer, of keys or of values.

    Returns:
        conditions, ms per token by cell and, by method, the medians' ratios to the fast cell's.
    """
    lm, ids = model(width), np.random.default_rng(0).integers(0, 512, context).tolist()
    ms: dict[str, list[float]] = {}
    for name, (policy_of, stores) in METHODS.items():
        policy = policy_of()
        pre = kvjax.prefill(lm, ids, needs=policy)
        caches = {cell: _slowed(kvjax.compress(pre, policy), stores, slow * much, ahead) for cell, (much, ahead) in CELLS.items()}
        for count in range(rounds + 1):
            for cell, cache in caches.items():
                out = kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=())
                if count:
                    ms.setdefault(f"{name}, {cell}", []).append(out.info["ms_per_token"])
                done(1)
    found = {name: summary(values) for name, values in ms.items()}
    base = {name: found[f"{name.partition(',')[0]}, fast"]["median"] for name in found}
    shape = f"{LAYERS} layers, width {width}, {context} tokens, {new} new, readings {1e3 * slow:g} ms longer, batch 1"
    return conditions("overlap", "float32", shape) | {
        "ms_per_token": found,
        "ratios": {name: found[name]["median"] / base[name] for name in found},
    }


def _slowed(cache: Any, stores: Callable[[Any], tuple[Any, ...]], seconds: float, ahead: bool) -> Any:
    """The cache, with readings of its stores that take longer."""
    for store in stores(cache.retrieval):
        store.owner.rows = SlowRows.of(store.owner.rows, seconds)
        if not ahead:
            store.owner.begun = NeverBegun()
    return cache

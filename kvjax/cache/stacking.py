"""Several caches as one batch: their rows in one pool, where all of them are of one kind."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kvjax.cache.kv_cache import BY_ROW, KVCache
from kvjax.cache.layout import resize
from kvjax.cache.retriever_state import RetrieverState
from kvjax.cache.sharded import check_unsharded


def stack(caches: Iterable[KVCache]) -> KVCache:
    """The rows of several caches as one batch, so that they decode together; none of them changes.

    Raises:
        TypeError: what is no list of caches, a cache over several devices.
        ValueError: no cache; caches of different models, or of policies that store, carry or read different things.
    """
    if isinstance(caches, KVCache):
        raise TypeError("expected a list of caches to stack; got one KVCache: stack([one, other])")
    caches = list(caches)
    for cache in caches:
        check_unsharded(cache)
    if not caches:
        raise ValueError("expected at least one cache to stack; got an empty list")
    _check_alike([_kind(cache) for cache in caches])
    joined = _one_pool(caches)
    parts = joined.parts
    return resize(joined, [np.asarray(part.capacity) for part in parts] if parts else np.asarray(joined.capacity))


def _one_pool(caches: list[KVCache]) -> KVCache:
    """The pools of caches behind one another."""
    if len({c.pos.ndim for c in caches}) > 1:
        caches = [c.numbered() for c in caches]
    shift = np.cumsum([0] + [c.slots for c in caches[:-1]])
    start = jnp.concatenate([c.start + int(s) for c, s in zip(caches, shift, strict=True)], 1)
    parts = tuple(stack(list(of_all)) for of_all in zip(*(c.parts for c in caches), strict=True))
    states, first = [c.retrieval for c in caches], caches[0]
    return KVCache(
        k=_joined([c.k for c in caches], 0),
        v=_joined([c.v for c in caches], 0) if first.placement.on_device else first.placement.concatenate([c.v for c in caches]),
        pos=_joined([c.pos for c in caches], 0),
        state=_joined([c.state for c in caches], 0),
        start=start,
        length=_joined([c.length for c in caches], 1),
        capacity=_joined([c.capacity for c in caches], 1),
        budget=_joined([c.budget for c in caches], 1),
        **{name: _joined([getattr(c, name) for c in caches], 0) for name in BY_ROW},
        evidence=_joined([c.evidence for c in caches], 0),
        memory=_joined([c.memory for c in caches], 1),
        tails=_joined([c.tails for c in caches], 1),
        fitted=_joined([c.fitted for c in caches], 1),
        retrieval=states[0].stack(states) if isinstance(states[0], RetrieverState) else (),
        placement=first.placement,
        positions=first.positions,
        codecs=first.codecs,
        parts=parts,
        first=first.first,
    )


def _check_alike(kinds: list[dict[str, str]]) -> None:
    """Raise ValueError naming all in which caches differ."""
    found = {name: dict.fromkeys(kind[name] for kind in kinds) for name in kinds[0]}
    apart = [f"{name}: {' and '.join(values)}" for name, values in found.items() if len(values) > 1]
    if apart:
        raise ValueError(
            f"caches of different models or policies cannot share a pool; these differ in {'; '.join(apart)}: compress all of them "
            "with one policy, or stack only those that are alike"
        )


def _kind(c: KVCache) -> dict[str, str]:
    """What caches have in common that share a pool, in words."""
    return {
        "layers": f"{c.start.shape[0]} of {c.start.shape[2]} KV heads",
        "parts": str(len(c.parts)),
        "keys": _form(c.k),
        "values": f"{_form(c.v) if c.placement.on_device else ''} {c.placement}".strip(),
        "states by slot": _form(c.state),
        "exact slots beside codes": _form(c.tails, 3),
        "codecs": c.codecs or "none",
        "fits of codecs": _form(c.fitted, 2),
        "positions": str(c.positions),
        "alignment": str(c.align),
        "evidence": _form(c.evidence[:1]),
        "memory of the merger": _form(c.memory, 2),
        "state of the retriever": type(c.retrieval).__name__ if isinstance(c.retrieval, RetrieverState) else "none",
        "settings of the retriever": c.retrieval.common if isinstance(c.retrieval, RetrieverState) else "",
    }


def _form(tree: PyTree, axes: int = 1) -> str:
    """Each array of a pytree by its path, its dtype and its shape behind some axes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {x.dtype}{list(x.shape[axes:])}".strip() for path, x in leaves) or "none"


def _joined(trees: list[PyTree], axis: int) -> PyTree:
    """Pytrees of arrays behind one another along an axis."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *trees)

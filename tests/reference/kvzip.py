"""KVzip (arXiv 2505.23416): how strongly a "repeat the context" pass attends to each cached key, and who stays by that.

The context is cut into chunks. For each, an instruction and the chunk's own tokens are fed on top of the full cache; the
probabilities of that pass's queries are taken over the system prompt, the chunk and the pass itself only, not over the cache.

n counts the context: the system prompt before it has no score, is no part of a budget and always stays. Where sources are
silent: every row of the pass counts in the maximum, the instruction's and the quoted tail's too; the last chunk is short; a
head's score for a pattern that is used again is the largest over tokens and contexts. Differs: N rho is floored after adding
1e-9, so that 0.3 * 10 is 3. KVzip's own pair rule keeps at most int(N rho) - 1 pairs, fewer with ties.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from .attention import attention_rows
from .held import Held


def chunks(n: int, size: int = 2000) -> list[slice]:
    """[0, size), [size, 2 size), ... of n tokens."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def repeat_rows(
    q: Float[np.ndarray, "h g r d"],
    system: Float[np.ndarray, "h s d"],
    chunk: Float[np.ndarray, "h c d"],
    own: Float[np.ndarray, "h r d"],
) -> Float[np.ndarray, "h g r c"]:
    """Probabilities of the r queries on the chunk's keys; softmax over s + c keys and, causally, the pass's own r."""
    rows = attention_rows(q, np.concatenate([system, chunk, own], axis=1))
    return rows[..., system.shape[1] : system.shape[1] + chunk.shape[1]]


def highest(rows: Float[np.ndarray, "h g r c"]) -> Float[np.ndarray, "h c"]:
    """u = max over the group's query heads and the queries."""
    return rows.max(axis=(1, 2))


def output_log_scores(
    rows: Float[np.ndarray, "h g r c"], value: Float[np.ndarray, "h g c"], hidden: Float[np.ndarray, "r"]
) -> Float[np.ndarray, "h c"]:
    """ln max over group and queries of A ||v W_o|| / ||x_q||, x_q what attention was given: "plus", KVzap's target."""
    return np.log((rows * value[:, :, None, :] / hidden[:, None]).max(axis=(1, 2)))


def scores(
    q: list[Float[np.ndarray, "l h g r d"]],
    own: list[Float[np.ndarray, "l h r d"]],
    k: Float[np.ndarray, "l h m d"],
    *,
    system: int,
    size: int = 2000,
) -> Float[np.ndarray, "l h n"]:
    """u of every layer: `k` holds the cache's m = system + n keys, `q` and `own` the queries and keys of each chunk's pass."""
    first, context = k[:, :, :system], k[:, :, system:]
    out = np.zeros(context.shape[:3])
    for c, part in enumerate(chunks(context.shape[2], size)):
        for layer in range(len(k)):
            rows = repeat_rows(q[c][layer], first[layer], context[layer, :, part], own[c][layer])
            out[layer, :, part] = highest(rows)
    return out


# ---- Who stays


def above(u: Float[np.ndarray, "..."], ratio: float) -> Bool[np.ndarray, "..."]:
    """u > tau, strictly; tau = entry max(int(N rho) - 1, 0), from 0, of all N entries sorted downwards."""
    at = max(int(np.floor(u.size * ratio + 1e-9)) - 1, 0)
    return u > np.sort(u, axis=None)[::-1][at]


def kept_pairs(u: Float[np.ndarray, "l h n"], ratio: float) -> Bool[np.ndarray, "l h n"]:
    """Pair level: one threshold for the whole model. Heads and layers get what lies above it, perhaps nothing."""
    return above(u, ratio)


def kept_by_layer(u: Float[np.ndarray, "l h n"], ratio: float) -> Bool[np.ndarray, "l h n"]:
    """The same rule in each layer alone."""
    return np.stack([above(layer, ratio) for layer in u])


def kept_uniform(u: Float[np.ndarray, "l h n"], ratio: float) -> Bool[np.ndarray, "l h n"]:
    """The int(n rho) highest of each head, ties to the lower position."""
    order = np.argsort(-u, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return rank < int(np.floor(u.shape[-1] * ratio + 1e-9))


def head_budgets(kept: Bool[np.ndarray, "l h n"]) -> Int[np.ndarray, "l h"]:
    """Context tokens a head keeps; summed over heads the layer's budget."""
    return kept.sum(axis=-1)


def head_scores(contexts: list[Float[np.ndarray, "l h n"]]) -> Float[np.ndarray, "l h"]:
    """Head level: the largest u of a head over the tokens of one or several contexts, computed once and used again."""
    return np.max([u.max(axis=-1) for u in contexts], axis=0)


def full_heads(pooled: Float[np.ndarray, "l h"], ratio: float) -> Bool[np.ndarray, "l h"]:
    """Which heads keep all: the pair rule on heads. The others hold first and recent tokens, as in `duo_attention`."""
    return above(pooled, ratio)


# ---- Afterwards


def compressed(k: Float[np.ndarray, "m d"], v: Float[np.ndarray, "m d"], kept: Bool[np.ndarray, "n"], *, system: int) -> Held:
    """A head after the cut: the system prompt and the context tokens that stay, at their true positions."""
    out = Held(k.astype(np.float64), v.astype(np.float64), np.arange(len(k)), len(k))
    out.keep(np.concatenate([np.ones(system, bool), kept]))
    return out


def step(
    head: Held, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, " d"], v: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, "g d"], Int[np.ndarray, "n"]]:
    """(output, positions held) of one token afterwards: new tokens stay."""
    out = head.extend(q[:, None], k[None], v[None])[:, 0]
    return out, head.pos

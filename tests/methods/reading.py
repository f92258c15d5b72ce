"""What tests of retrievers share: a method's decoding beside the same decoding written out in NumPy, token after token."""

from collections.abc import Callable
from typing import Any

import numpy as np

import kvjax
from tests.conftest import ids_of
from tests.eager import dense, run_steps
from tests.reference.softmax import softmax

#: What a rule is given: layer, the step's inputs, keys and values [h, n, d] of everything so far; it returns [h, g, d].
Rule = Callable[[int, Any, np.ndarray, np.ndarray], np.ndarray]
STEPS = 64


def decoded(lm, pre, policy, steps: int = STEPS, pool_budget=None):
    """`steps` tokens and their logits."""
    cache = kvjax.compress(pre, policy, pool_budget=pool_budget)
    return kvjax.decode(lm, cache, policy, max_new_tokens=steps, stop=(), return_logits=True, pool_budget=pool_budget)


def written_out(lm, pre, tokens, rule: Rule) -> np.ndarray:
    """Logits after each of the tokens, by the rule."""
    n = pre.lengths[0]
    cache = dense(pre, [range(n)] * lm.decoder.layers)

    def attend(layer, inputs):
        k, v = (np.concatenate([old, np.asarray(new)[0]], 1) for old, new in zip(cache[layer], (inputs.k, inputs.v), strict=True))
        cache[layer] = k, v
        return rule(layer, inputs, k.astype(np.float64), v.astype(np.float64))

    return run_steps(lm, tokens, start=n, attend=attend)


def over(q: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Attention of one query [d] over some slots of [n, d]."""
    return softmax(k[slots] @ q / np.sqrt(len(q))) @ v[slots]


def over_lists(q: np.ndarray, k: np.ndarray, v: np.ndarray, lists: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Attention of queries [h, g, d], query head (h, g) over lists(h, g)."""
    heads, groups, _ = q.shape
    return np.array([[over(q[h, g].astype(float), k[h], v[h], lists(h, g)) for g in range(groups)] for h in range(heads)])


def same_as_written_out(lm, pre, policy, rule: Rule, atol: float = 1e-5):
    """The method's logits are the rule's over 64 steps; what decoding gave."""
    out = decoded(lm, pre, policy)
    want = written_out(lm, pre, out.tokens[0], rule)
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=atol)
    return out


def reads_everything(lm, pre, policy, atol: float = 2e-5) -> None:
    """Tokens and logits are the full cache's."""
    got, want = (decoded(lm, pre, p, 24) for p in (policy, kvjax.methods.full()))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=atol)


def rows_are_solo(lm, policy, *, lengths=(90, 61, 130), counter: str = "fetched") -> None:
    """Rows of a batch, and of stacked caches, to the bit what they are alone; their counters, too."""
    prompts = [ids_of(n, seed=n) for n in lengths]
    how = dict(max_new_tokens=12, stop=(), return_logits=True, pool_budget=130)  # one program for all that are alone
    batch = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy), policy, **how)
    caches = [kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy) for ids in prompts]
    stacked = kvjax.decode(lm, kvjax.stack(caches), policy, **how)
    for r, cache in enumerate(caches):
        solo = kvjax.decode(lm, cache, policy, **how)
        for several in (batch, stacked):
            np.testing.assert_array_equal(several.tokens[r], solo.tokens[0])
            np.testing.assert_array_equal(several.logits[r], solo.logits[0])
            counted, alone = (getattr(out.cache.retrieval, counter).total for out in (several, solo))
            assert counted[r] == alone[0]

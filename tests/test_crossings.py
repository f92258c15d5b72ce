"""The four papers' stages crossed with each other and with the rest, without a class of their own."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.encode import Cast, Stored
from kvjax.merge import ProportionalNearest, WeightedNearest
from kvjax.placement import OnHost
from kvjax.retrieve import PivotRefresh, TopP, TopPages
from tests.conftest import ids_of, policy_of

compresskv, d2o, heterocache, hcattention = (
    policy_of(name) for name in ("compresskv", "d2o", "heterocache", "hcattention")
)  # fmt: skip
snapkv, adakv, h2o = (policy_of(name) for name in ("snapkv", "adakv", "h2o"))
kvzap, trim_kv, locret, kivi = (policy_of(name) for name in ("kvzap", "trim_kv", "locret", "kivi"))

CROSSINGS = {
    "compresskv chooses, d2o merges": compresskv.replace(merge=WeightedNearest()),
    "heterocache budgets over codes": heterocache.replace(encode=hcattention.encode),
    "heterocache budgets over codes, one retrieval by mass": heterocache.replace(
        encode=hcattention.encode, retrieve=hcattention.retrieve
    ),
    "d2o layers, compresskv selects": compresskv.replace(allocate=d2o.allocate),
    "compresskv over codes": compresskv.replace(encode=hcattention.encode),
    "compresskv over codes, read by mass": compresskv.replace(encode=hcattention.encode, retrieve=hcattention.retrieve),
    "d2o with values on the host": d2o.replace(encode=Stored(placement=OnHost())),
    "d2o over codes": d2o.replace(encode=hcattention.encode),
    "d2o on compresskv's heads": d2o.replace(score=compresskv.score),
    "compresskv layers under h2o": h2o.replace(allocate=compresskv.allocate),
    "heterocache heads under snapkv": snapkv.replace(allocate=heterocache.allocate),
    "heterocache refreshed, d2o merges at the prompt": heterocache.replace(merge=WeightedNearest()),
    "d2o, merged slots count as many": d2o.replace(merge=ProportionalNearest()),
    "adaptive heads inside d2o's layers": adakv.replace(allocate=kvjax.allocate.Adaptive(layers=d2o.allocate)),
    "adaptive heads inside compresskv's layers": adakv.replace(allocate=kvjax.allocate.Adaptive(layers=compresskv.allocate)),
    "heterocache stored in half": heterocache.replace(encode=Stored(keys=Cast("bfloat16"), values=Cast("bfloat16"))),
    "snapkv read by mass": snapkv.replace(retrieve=TopP(tau=0.9)),
    "kvzap's score over kivi's storage": snapkv.replace(score=kvzap.score, encode=kivi.encode),
    "kvzap's score, ada-kv's heads, d2o's merging": adakv.replace(score=kvzap.score, merge=WeightedNearest()),
    "trim_kv's gate with ada-kv's budgets": adakv.replace(score=trim_kv.score),
    "locret's score, pyramid layers, read by mass": locret.replace(allocate=kvjax.allocate.Pyramid(), retrieve=TopP(tau=0.9)),
    "compresskv read by pages": compresskv.replace(retrieve=TopPages(token_budget=24, page_size=8, skip_layers=1)),
}


@pytest.fixture(scope="module")
def two(lm):
    return kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)], needs=list(CROSSINGS.values()))


@pytest.fixture(scope="module")
def alone(lm):
    """The second row by itself."""
    return kvjax.prefill(lm, ids_of(61, 5), needs=list(CROSSINGS.values()))


@pytest.mark.parametrize("name", CROSSINGS)
def test_crossing(lm, two, name):
    policy = CROSSINGS[name]
    cache = kvjax.compress(two, policy)
    total = 40 * 3 * 2
    sums = cache.lengths.sum((0, 2))
    assert (sums == total).all() if policy.allocate.exact else ((sums <= total) & (sums > total - 12)).all()
    out = kvjax.decode(lm, cache, policy, max_new_tokens=8, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()
    grows = 0 if policy.when.decoding else 8
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + grows)
    hosted = not policy.encode.placement.on_device or isinstance(policy.retrieve, PivotRefresh)
    assert (out.cache.host_nbytes > 0) == hosted


#: One for each kind of state a row has of its own; the others run with the slow tests.
QUICK = ("compresskv chooses, d2o merges", "heterocache budgets over codes", "d2o with values on the host")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CROSSINGS])
def test_a_crossed_row_is_what_it_is_alone(lm, two, alone, name):
    policy = CROSSINGS[name]
    both, solo = (
        kvjax.decode(lm, kvjax.compress(x, policy), policy, max_new_tokens=8, stop=(), return_logits=True) for x in (two, alone)
    )
    np.testing.assert_allclose(both.logits[1], solo.logits[0], atol=2e-5)

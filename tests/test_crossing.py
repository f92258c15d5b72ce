"""Bytes that cross between the device and host memory in a step: what counters say is what a program moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.encode import ByCallback
from kvjax.placement import by_callback, host_attention
from kvjax.placement.begun import BegunReads

STEPS = 5


def test_chunks_that_are_fetched_are_counted(lm, pre, monkeypatch):
    """ShadowKV; HeteroCache's and InfiniGen's rows are counted in test_overlap."""
    came, take = [], BegunReads.take

    def takes(self, asked, read):
        rows = take(self, asked, read)
        came.append(rows.nbytes)
        return rows

    monkeypatch.setattr(BegunReads, "take", takes)
    policy = kvjax.methods.shadowkv(rank=12, tokens=24, outliers=2, local=1, home=ByCallback())
    state = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, stop=()).cache.retrieval
    assert len(came) == STEPS * lm.decoder.layers
    assert sum(came) == int(state.moved_nbytes[0]) >= int(state.fetched_nbytes[0]) > 0


def test_every_weight_crosses_once(monkeypatch):
    """HCAttention counts pairs of a query head and a slot with a weight: lists of slots bring each to the host, and zeros."""
    sent, weigh = [], by_callback._weigh

    def weighs(state, slots, weights):
        sent.append((np.asarray(slots).size, int((np.asarray(weights) > 0).sum())))
        return weigh(state, slots, weights)

    monkeypatch.setattr(by_callback, "_weigh", weighs)
    home, draw, n = ByCallback(), np.random.default_rng(0), 200
    store = home.empty(2 * n, 16, jnp.float32)
    store = home.adopt(home.append(store, jnp.arange(2 * n), jnp.asarray(draw.normal(size=(2 * n, 16)), jnp.float32)), store)
    weights = jnp.asarray(draw.random((1, 2, 2, 1, n)) * (draw.random((1, 2, 2, 1, n)) < 0.6), jnp.float32)
    got = jax.jit(lambda weights: home.weighted_sum(store, jnp.array([[0, n]]), weights))(weights)
    want = np.einsum("bhgtn,hnd->bhgtd", weights, store.rows().reshape(2, n, 16))
    np.testing.assert_allclose(got, want, atol=1e-5)
    union = int((np.asarray(weights) > 0).any((2, 3)).sum(-1).max())
    assert [size for size, _ in sent] == [2 * 64] * -(-union // 64)  # lists of 64 slots a KV head, until the longest set is through
    assert sum(pairs for _, pairs in sent) == int((np.asarray(weights) > 0).sum())


@pytest.mark.parametrize(("rows", "dtype", "window"), [(1, "float32", None), (3, "bfloat16", 8)])
def test_queries_go_and_outputs_come_back(monkeypatch, rows, dtype, window):
    """NEO and FastDecode, as lowered for a device with a memory of its own: keys and values stay where they are."""
    monkeypatch.setattr(host_attention, "compiles_for", lambda: "cuda")
    q, k = jnp.zeros((rows, 2, 2, 1, 16), dtype), jnp.zeros((rows, 2, 90, 16), dtype)
    part = host_attention.to_host(k, k, jnp.ones((rows, 2, 90), bool))
    attend = lambda part, q, now: host_attention.host_attention(part, q, now, window)  # noqa: E731
    trace = jax.jit(attend).trace(part, q, jnp.full((rows, 1), 90, jnp.int32))
    moved = [x.aval for eqn in trace.jaxpr.eqns if eqn.primitive.name == "device_put" for x in eqn.outvars]
    assert len(moved) == 4 and all(x.shape[0] == rows for x in moved)
    assert sum(x.size * x.dtype.itemsize for x in moved) == host_attention.crossing_nbytes(q)
    text = trace.lower(lowering_platforms=("cuda",)).as_text()
    assert '_xla_compute_type = "host"' in text and text.count("annotate_device_placement") >= 4

"""Bytes that the four papers' methods allocate, against their formulas, on caches of a real model's shape; nothing is masked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax import evidence as ev
from kvjax.artefacts.artefact import resolve
from kvjax.encode import OnHost, ProductQuantized, Stored
from kvjax.prefill.run import Prefilled, PrefilledRow
from models import llama
from models.decoder import Decoder
from tests.conftest import counted_leaves, toy_config

#: SmolLM2-135M: 30 layers of 3 KV heads, groups of 3, head dimension 64.
L, H, G, D, N = 30, 3, 3, 64, 1024
CONFIG = toy_config(
    hidden_size=576, num_hidden_layers=L, num_attention_heads=H * G, num_key_value_heads=H, head_dim=D, max_position_embeddings=8192
)  # fmt: skip


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pre(request):
    """A prefill of random keys and values: what is allocated does not depend on what they say."""
    draw, dtype = np.random.default_rng(0), jnp.dtype(request.param)
    normal = lambda *shape: jnp.asarray(draw.standard_normal(shape, np.float32)).astype(dtype)  # noqa: E731
    decoder, length = Decoder(llama.config(CONFIG)), jnp.asarray([N], jnp.int32)
    data = {"window_queries": normal(1, H, G, 64, D), "column_sums": jnp.asarray(draw.random((1, H, G, N), np.float32))}
    needs = frozenset({ev.WindowQueries(64), ev.ColumnSums()})
    seen = ev.Evidence(data=data, length=length, rope=decoder.rope)
    k, v = (tuple(normal(1, H, N, D) for _ in range(L)) for _ in range(2))
    ids, logits = jnp.zeros(N, jnp.int32), jnp.zeros(decoder.vocab)
    row = PrefilledRow(ids=ids, length=length, k=k, v=v, evidence=(seen,) * L, logits=logits)
    return Prefilled(rows=(row,), needs=ev.ordered(needs), decoder=decoder)


def itemsize(pre) -> int:
    return pre.rows[0].k[0].dtype.itemsize


def within(allocated: int, formula: int) -> bool:
    """At most 5% above the formula (alignment, size class, bookkeeping), never below it."""
    return formula <= allocated <= 1.05 * formula


def slot(pre) -> int:
    """Bytes of a key, a value and the two of a position, which the papers do not count."""
    return 2 * D * itemsize(pre) + 2


@pytest.mark.parametrize("budget", [256, 512])
def test_compresskv_allocates_its_formula(pre, budget):
    cache = kvjax.compress(pre, kvjax.methods.compresskv(budget=budget))
    assert within(cache.nbytes, slot(pre) * H * budget * L) and cache.host_nbytes == 0


def watched(cache) -> int:
    """Evidence an evicting method carries beside its slots."""
    return sum(x.nbytes for x in jax.tree.leaves(cache.evidence))


@pytest.mark.parametrize("budget", [256, 512])
def test_d2o_allocates_its_formula(pre, budget):
    cache = kvjax.compress(pre, kvjax.methods.d2o(budget=budget))
    slots = budget * L
    assert cache.lengths.sum() == H * slots
    assert within(cache.nbytes, (slot(pre) + 4) * H * slots + 4 * L + watched(cache)) and cache.host_nbytes == 0


def test_heterocache_allocates_its_formula_on_device_and_host(pre):
    policy = kvjax.methods.heterocache(budget=0.5)
    cache, tables = kvjax.compress(pre, policy), resolve("smollm2-135m", "heterocache").tables
    pivots, satellites = ((tables["role"] == kind).sum() for kind in (3, 4))
    layers = (tables["role"] == 3).any(1).sum()
    watching = 4 * pivots * int(cache.retrieval.base[0]) + 5 * H * G * D * itemsize(pre) * layers
    assert cache.nbytes <= 1.05 * (slot(pre) * int(cache.lengths.sum()) + watching)
    assert within(cache.host_nbytes, 2 * D * itemsize(pre) * satellites * N)


@pytest.mark.parametrize(("groups", "most"), [(32, 0.135), (64, 0.26)])
def test_codes_of_sixteen_bit_keys_take_what_the_paper_says(pre, groups, most):
    """g = 32 and 64 groups of one-byte codes: 4 and 8 bits a channel of 64, what the paper's two bytes are for 128 channels."""
    book = np.zeros((L, H, groups, 2, D // groups), np.float16)
    encode = Stored(keys=ProductQuantized(book, "zeros"), placement=OnHost())
    cache = kvjax.compress(pre, kvjax.methods.full().replace(encode=encode))
    full = kvjax.compress(pre, kvjax.methods.full())
    assert cache.nbytes <= most * full.nbytes
    assert cache.nbytes <= 1.05 * (L * H * N * groups + L * H * N * 2)
    assert within(cache.host_nbytes, L * H * N * D * itemsize(pre))


def test_the_bytes_are_those_of_live_buffers(pre):
    policy = kvjax.methods.compresskv(budget=256)
    cache = jax.block_until_ready(kvjax.compress(pre, policy))
    assert sum(x.addressable_shards[0].data.nbytes for x in counted_leaves(cache)) == cache.nbytes

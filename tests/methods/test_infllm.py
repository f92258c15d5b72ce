"""InfLLM against its transcription and the authors' numbers: a prompt in blocks of queries, 64 decode steps, what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import Affine
from kvjax.encode import Clamped, Slide, Stored
from kvjax.far_blocks import FarSizes, best_blocks, relevance, representatives
from kvjax.join import joined
from kvjax.prefill import FarBlockAttention
from kvjax.retrieve import FarBlocks
from tests.conftest import compilations, ids_of, windowed
from tests.eager import run_steps
from tests.reference import golden_methods
from tests.reference.infllm import Layer

SIZES = FarSizes(local=40, initial=8, block=16, top=2, representatives=3)
PROMPT, STEPS = 230, 64


def method(**changes):
    sizes = dict(local=40, initial=8, block=16, top=2, representatives=3, queries=64)
    return kvjax.methods.infllm(**(sizes | changes))


def slow_layers(lm):
    cosines, sines = (np.asarray(y, np.float64) for y in lm.decoder.rope.cos_sin(jnp.arange(PROMPT + STEPS)))

    def rotate(x, position):
        cos, sin, (one, two) = cosines[position], sines[position], np.split(np.asarray(x, np.float64), 2)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin])

    return [Layer.empty((40, 8, 16, 2, 3), rotate, 2, 4, 16) for _ in range(3)]


def heads(x):
    """[1, h, (g), t, d] as [heads, t, d]."""
    return np.asarray(x)[0].reshape(-1, *x.shape[-2:]).astype(np.float64)


def read(lm, layers, ids):
    """The prompt through the transcription, 64 tokens at a time; its last logits."""
    for at in range(0, len(ids), 64):
        tokens = jnp.asarray([ids[at : at + 64]])
        x, positions = lm.decoder.embed(lm.params, tokens), at + jnp.arange(tokens.shape[1])[None]
        for layer, weights in zip(layers, lm.params["layers"], strict=True):

            def attend(inputs, layer=layer):
                out = layer.extend(heads(inputs.q_raw), heads(inputs.k_raw), heads(inputs.v))
                return jnp.asarray(out.reshape(inputs.q.shape), jnp.float32), None

            x, _ = lm.decoder.layer(weights, x, positions, attend)
    return np.asarray(lm.decoder.unembed(lm.params, x))[0, -1]


@pytest.fixture(scope="module")
def run(lm):
    """Prompt and steps by kvjax, and the transcription's layers after the prompt."""
    policy, ids, layers = method(), ids_of(PROMPT, 3), slow_layers(lm)
    want = read(lm, layers, ids)
    pre = kvjax.prefill(lm, ids, needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    return pre, out, layers, want


def test_a_prompt_and_64_steps(lm, run):
    pre, out, layers, want = run
    np.testing.assert_allclose(pre.rows[0].logits, want, atol=2e-4)
    for layer, evidence in zip(layers, pre.rows[0].evidence, strict=True):
        mass = evidence.of(kvjax.evidence.LocalMass(40))[0].reshape(4, -1)
        np.testing.assert_allclose(mass[:, :PROMPT], layer.received, atol=2e-4)
    frozen = [layer.received.copy() for layer in layers]
    most = (PROMPT - 8) // 16

    def attend(at, inputs):
        layer = layers[at]
        layer.received[:, :PROMPT] = frozen[at]  # mass is counted to the end of the prompt
        found = layer.extend(heads(inputs.q_raw), heads(inputs.k_raw), heads(inputs.v), blocks=most)
        return found.reshape(2, 2, 16)

    logits = run_steps(lm, out.tokens[0].tolist(), start=PROMPT, attend=attend)
    np.testing.assert_allclose(out.logits[0, 1:], logits[:-1], atol=5e-4)
    np.testing.assert_allclose(out.cache.logits[0], logits[-1], atol=5e-4)


def test_authors_keys_and_blocks():
    g = golden_methods.load("infllm")
    sizes = FarSizes(local=16, initial=0, block=16, top=3, representatives=4)
    received = jnp.asarray(g["local_score"].reshape(1, 2, 2, 144), jnp.float32)
    keys = representatives(received, jnp.asarray(g["key"], jnp.float32), sizes, 9)
    np.testing.assert_allclose(jnp.moveaxis(keys[0].reshape(4, 9, 16), 0, 1), g["block_repr_mean_key"], atol=1e-6)
    for chunk, part in enumerate((slice(0, 16), slice(16, 24))):
        q = jnp.asarray(g["query"][:, :, part].mean(2).reshape(1, 2, 2, 16), jnp.float32)
        chosen, found = best_blocks(relevance(q, keys), jnp.array([9]), 3)
        assert found.all() and chosen[0].tolist() == g["chosen_blocks"][chunk].tolist()


def test_worked_example():
    sizes = FarSizes(local=1, initial=0, block=4, top=1, representatives=2)
    received, k = jnp.array([[[[0.1, 0.5, 0.2, 0.4]]]]), jnp.array([[[[1.0, 0], [0, 1], [1, 1], [2, 0]]]])
    np.testing.assert_allclose(representatives(received, k, sizes, 1)[0, 0, 0], [[1, 0.5]])
    keys = jnp.array([[[1, 0.5], [0, 0], [0.4, 0.4]], [[0.2, 0], [1, 0], [0.5, 0.5]]])[None, :, None]
    found = relevance(jnp.array([[0.5, 0.5], [0.5, 0]])[None, :, None], keys)
    np.testing.assert_allclose(found[0], [0.85, 0.5, 0.65], atol=1e-6)
    assert best_blocks(found, jnp.array([3]), 1)[0].tolist() == [[0]]
    assert best_blocks(found, jnp.array([0]), 2)[1].tolist() == [[False, False]]


def test_parts_without_common_keys_are_one_attention():
    z, v = np.array([1.0, 0, 2, -1]), np.array([[1.0, 0], [0, 1], [2, 2], [4, 0]])
    one = lambda at: (jnp.asarray(np.exp(z[at]) @ v[at] / np.exp(z[at]).sum()), jnp.asarray(np.log(np.exp(z[at]).sum())))  # noqa: E731
    np.testing.assert_allclose(one([0, 1])[0], [0.731059, 0.268941], atol=1e-6)
    out, lse = joined([one([0, 1]), one([2, 3])])
    np.testing.assert_allclose(out, [1.652946, 1.374973], atol=1e-5)
    np.testing.assert_allclose(lse, 2.440190, atol=1e-5)


def test_a_text_within_the_window_is_read_exactly(lm, pre, prompt):
    policy, full = method(local=512), kvjax.methods.full()
    mine = kvjax.prefill(lm, prompt, needs=policy)
    np.testing.assert_allclose(mine.rows[0].logits, pre.rows[0].logits, atol=1e-5)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=8, stop=(), return_logits=True)
    got = kvjax.decode(lm, kvjax.compress(mine, policy), policy, max_new_tokens=8, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)


def test_layers_with_a_sliding_window_read_it_alone(lm):
    """Blocks and first tokens beyond it are not read: over windows everywhere a decode is that of the full cache."""
    narrow, full = windowed(lm, (8, 8, 8)), kvjax.methods.full()
    policy = full.replace(encode=kvjax.encode.Stored(positions=Clamped(40)), retrieve=FarBlocks(SIZES))
    got, want = (
        kvjax.decode(
            narrow, kvjax.compress(kvjax.prefill(narrow, ids_of(90), needs=p), p), p, max_new_tokens=4, stop=(), return_logits=True
        )
        for p in (policy, full)
    )
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)


def test_column_sums_count_every_query_once(lm):
    needs = frozenset({kvjax.evidence.ColumnSums()})
    row = kvjax.prefill(lm, ids_of(PROMPT, 3), needs=needs, attention=FarBlockAttention(SIZES, 64)).rows[0]
    for evidence in row.evidence:
        np.testing.assert_allclose(evidence.column_sums_by_head().sum(-1), PROMPT, rtol=1e-4)


def test_rows_of_a_batch_decide_alone(lm):
    policy, prompts = method(), [ids_of(150, 1), ids_of(30, 2)]
    pre = kvjax.prefill(lm, prompts, needs=policy)
    both = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=6, stop=(), return_logits=True)
    for r, ids in enumerate(prompts):
        alone = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
        alone = kvjax.decode(lm, alone, policy, max_new_tokens=6, stop=(), return_logits=True, pool_budget=150)
        np.testing.assert_allclose(both.logits[r], alone.logits[0], atol=1e-4)


def test_values_may_live_on_the_host(lm, run):
    policy = method(placement=kvjax.placement.OnHost())
    cache = kvjax.compress(run[0], policy)
    assert cache.host_nbytes > 0
    got = kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits[0], run[1].logits[0, :4], atol=1e-4)


def test_other_numbers_of_tokens_compile_nothing(lm):
    policy = method()

    def go(seed):
        pre = kvjax.prefill(lm, ids_of(150, seed), needs=policy)
        return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=4, stop=())

    go(0)
    with compilations() as seen:
        go(1)
    assert seen == []


PAGES = Affine(bits=8, group=8, reduce="token")


@pytest.mark.parametrize("stored", [dict(keys=Affine(8, 16), window=Slide(16)), dict(keys=PAGES, whole=True)])
def test_windows_and_pages_begin_where_regions_do(stored):
    with pytest.raises(ValueError, match="reads regions from some slot on"):
        FarBlocks(SIZES)._check(Stored(positions=Clamped(40), **stored))


def test_what_does_not_fit_is_said_at_once(lm, run):
    pre, policy = run[0], method()
    with pytest.raises(ValueError, match="positions=Clamped"):
        kvjax.compress(pre, policy.replace(encode=kvjax.encode.Stored()))
    with pytest.raises(ValueError, match="keep all of it"):
        kvjax.compress(pre, policy.replace(budget=20))
    with pytest.raises(ValueError, match="leave chunk=64 out"):
        kvjax.prefill(lm, ids_of(90), needs=policy, chunk=64)
    with pytest.raises(ValueError, match="no 9 representatives"):
        FarSizes(block=8, representatives=9)
    assert FarBlocks(SIZES).reads_prompt

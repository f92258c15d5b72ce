"""LESS against its transcription: the maps, prompt and decode steps, bytes, the worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.gates import init_side_maps
from kvjax.gates.side_maps import key_features, query_features
from kvjax.join import joined
from kvjax.merge.absorbed import absorbed
from kvjax.retrieve.absorbed import side_part
from tests.conftest import ids_of, windowed
from tests.method_cases import side_maps
from tests.methods.simulation import kept_by, kvjax_decoded, prompt_arrays, same_kept
from tests.reference import less as slow
from tests.reference.attention import attention_rows

BUDGET = 20
MAPS = side_maps()
POLICY = kvjax.methods.less(MAPS, budget=BUDGET)


def of_head(layer: int, h: int) -> tuple[dict, dict]:
    """A KV head's maps, float64."""
    return tuple({name: np.asarray(x[layer, h], np.float64) for name, x in MAPS[part].items()} for part in "qk")


def decoded(lm, layers, tokens):
    """(heads, logits [t v]) of known tokens after a prompt, by the transcription; what is held and absorbed after the prompt."""
    heads = [[slow.Head(*of_head(i, h), heavy=BUDGET // 2, recent=BUDGET // 2) for h in range(2)] for i in range(3)]
    for of_layer, x in zip(heads, layers, strict=True):
        for h, head in enumerate(of_layer):
            head.prefill(attention_rows(x.q, x.k)[h], x.k[h], x.v[h])
    first = [[(head.rule.held.copy(), head.side.a, head.side.h) for head in of_layer] for of_layer in heads]
    n, logits = layers[0].k.shape[1], []
    for t, token in enumerate(tokens):
        x, at = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[n + t]], jnp.int32)
        for i, weights in enumerate(lm.params["layers"]):

            def attend(inputs, i=i):
                q, k, v = (np.asarray(y)[0] for y in (inputs.q, inputs.k, inputs.v))
                out = np.stack([heads[i][h].step(q[h, :, 0], k[h], v[h]) for h in range(2)])
                return jnp.asarray(out[None, :, :, None], jnp.float32), None

            x, _ = lm.decoder.layer(weights, x, at, attend)
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
    return heads, np.stack(logits), first


def same_state(cache, of_heads):
    """a and H of every head."""
    for (layer, h), (a, state) in of_heads.items():
        np.testing.assert_allclose(cache.memory["a"][layer, 0, h], a, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(cache.memory["H"][layer, 0, h], state, rtol=2e-4, atol=2e-4)


def test_prompt_and_64_steps_are_the_transcription(lm, prompt):
    tokens, layers = ids_of(64, 5), prompt_arrays(lm, prompt)
    heads, want, first = decoded(lm, layers, tokens)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=POLICY), POLICY)
    same_kept(kept_by(cache), [[held for held, _, _ in of_layer] for of_layer in first])
    same_state(cache, {(i, h): first[i][h][1:] for i, h in np.ndindex(3, 2)})
    got, held = kvjax_decoded(lm, cache, tokens, POLICY, (64,))
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)
    same_kept(held[-1], [[head.rule.held for head in of_layer] for of_layer in heads])
    share = [head.side.a.sum() for of_layer in heads for head in of_layer]
    assert min(share) > 0.1  # something is absorbed in every head


def test_the_maps_are_their_formulas():
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(1, 2, 2, 5, 16)).astype(np.float32), rng.normal(size=(1, 2, 5, 16)).astype(np.float32)
    for layer in range(3):
        here = jax.tree.map(lambda x, layer=layer: jnp.asarray(x[layer]), MAPS)
        phi, psi = query_features(jnp.asarray(q), here["q"]), key_features(jnp.asarray(k), here["k"])
        for h in range(2):
            of_q, of_k = of_head(layer, h)
            np.testing.assert_allclose(psi[0, h], slow.psi(k[0, h], of_k), rtol=1e-5, atol=1e-5)
            for t in range(5):
                np.testing.assert_allclose(phi[0, h, :, t], slow.phi(q[0, h, :, t], of_q), rtol=1e-5, atol=1e-5)


def test_bytes_do_not_grow(lm, prompt):
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=POLICY), POLICY)
    state = jax.tree.leaves(cache.memory)
    assert sum(x.nbytes for x in state) == 6 * (4 * 16 + 4) * 4 and all(x.dtype == jnp.float32 for x in state)
    bare = POLICY.replace(merge=kvjax.merge.Drop(), retrieve=kvjax.retrieve.FullAttention())
    without = kvjax.compress(kvjax.prefill(lm, prompt, needs=bare), bare)
    assert cache.nbytes == without.nbytes + sum(x.nbytes for x in state)
    after = kvjax.decode(lm, cache, POLICY, max_new_tokens=9, stop=()).cache
    assert jax.tree.map(jnp.shape, after.memory) == jax.tree.map(jnp.shape, cache.memory) and (after.lengths == BUDGET).all()


def test_a3():
    """Kept e^z 2, 1; absorbed ψ [.4 .2], [.1 .6]; φ [1 .5]: a mass of .9 of 3.9."""
    psi, v = jnp.asarray([[0.4, 0.2], [0.1, 0.6]])[None, None], jnp.asarray([[2.0, 2.0], [4.0, 0.0]])[None, None]
    state = absorbed((), psi, v)
    np.testing.assert_allclose(state["a"][0, 0], [0.5, 0.8], atol=1e-6)
    np.testing.assert_allclose(state["H"][0, 0], [[1.2, 0.8], [2.8, 0.4]], atol=1e-6)
    phi = jnp.asarray([1.0, 0.5])[None, None, None, None]
    kept = jnp.asarray([2 / 3, 1 / 3])[None, None, None, None], jnp.log(3.0)[None, None, None, None]
    out, lse = joined([kept, side_part(phi, state["a"], state["H"])])
    np.testing.assert_allclose(out[0, 0, 0, 0], [1.179487, 0.512821], atol=1e-6)
    np.testing.assert_allclose(1 - 3 / jnp.exp(lse), 0.230769, atol=1e-6)
    side = slow.Side(np.zeros(2), np.zeros((2, 2)))
    side.absorb(np.asarray(psi)[0, 0], np.asarray(v)[0, 0])
    np.testing.assert_allclose(side.out(np.log([[2, 1]]), np.eye(2), np.asarray(phi)[0, 0, 0])[0], [1.179487, 0.512821], atol=1e-6)
    none = jax.tree.map(jnp.zeros_like, state)
    np.testing.assert_array_equal(joined([kept, side_part(phi, none["a"], none["H"])])[0], kept[0])


def test_the_map_of_keys_by_hand():
    """gelu([1, -1]) = [.841345, -.158655]: k' [.420672, -.079328], ψ [.341345, .341345]."""
    x = np.float64([0.841345, -0.158655]) * [0.5, 0.5]
    np.testing.assert_allclose(np.abs(x + x @ [[0, 1], [1, 0]]), [0.341345, 0.341345], atol=1e-6)
    up = _inverse_gelu(np.float64([1.0]))
    maps = {"up": jnp.asarray([[up]], jnp.float32), "down": jnp.asarray([[[1.0, -1.0]]])}
    maps |= {"mix": jnp.asarray([[[0.0, 1.0], [1.0, 0.0]]]), "scale": jnp.asarray([[-0.5, 0.5]]), "mix_scale": jnp.ones((1, 2))}
    np.testing.assert_allclose(key_features(jnp.ones((1, 1, 1, 1)), maps)[0, 0, 0], [0.341345, 0.341345], atol=1e-6)


def _inverse_gelu(y: np.ndarray) -> np.ndarray:
    """x of gelu(x) = y, y above 0, by bisection."""
    low, high = np.zeros_like(y), y + 1
    for _ in range(60):
        mid = (low + high) / 2
        low, high = np.where(slow.gelu(mid) < y, mid, low), np.where(slow.gelu(mid) < y, high, mid)
    return low


def test_untrained_maps_add_almost_nothing(lm, prompt):
    maps = init_side_maps(jax.random.key(0), lm.decoder, rank=4, hidden=8)
    policy = kvjax.methods.less(maps, budget=BUDGET)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    assert 0 < np.asarray(cache.memory["a"]).max() < 0.05


def test_untrained_matrices_are_within_their_bounds(lm):
    """Heads of 16, 8 between, rank 4: sqrt(6 / 24), sqrt(6 / 12) and sqrt(6 / 8)."""
    maps = init_side_maps(jax.random.key(0), lm.decoder, rank=4, hidden=8)
    sizes = {"up": 0.5, "down": 0.5**0.5, "mix": 0.75**0.5}
    for side, name in [(side, name) for side in "qk" for name in sizes if name in maps[side]]:
        largest = float(np.abs(maps[side][name]).max())
        assert 0.9 * sizes[name] < largest <= sizes[name]


def test_what_is_wrong_is_said(lm, prompt):
    narrow = {**MAPS, "q": {**MAPS["q"], "up": MAPS["q"]["up"][:, :, :1]}}
    policy = kvjax.methods.less(narrow, budget=BUDGET)
    with pytest.raises(ValueError, match="maps of LESS for this model have shapes"):
        kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    alone = POLICY.replace(merge=kvjax.merge.Drop())
    with pytest.raises(ValueError, match="WithAbsorbed reads H, a of what a merger keeps, which Drop does not"):
        kvjax.compress(kvjax.prefill(lm, prompt, needs=alone), alone)
    narrow = windowed(lm, (None, 8, None))
    for stage in (POLICY.merge, POLICY.retrieve):
        with pytest.raises(ValueError, match="LESS needs full attention, not the windows"):
            stage.check(narrow.decoder, len(prompt), BUDGET)
    with pytest.raises(ValueError, match="LESS needs full attention, not the windows"):
        kvjax.compress(kvjax.prefill(narrow, prompt, needs=POLICY), POLICY)

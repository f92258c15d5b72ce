"""LoCoCo against its reference, the worked example, what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.merge import Convolved, init_convolution
from kvjax.merge.convolved import convolution
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import lococo


def weights_of(slots, width=5, seed=0):
    """Weights for the toy model whose mixtures are no near means."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {"kernel": 0.4 * draw(3, slots, 32, width), "bias": 0.3 * draw(3, slots), "gamma": np.array([0.5, 0.3, 0.8], np.float32)}


def test_a2():
    k, v = jnp.array([1.0, 2, -1, 0])[None, None, :, None], jnp.array([4.0, 0, 2, 6])[None, None, :, None]
    kernel = np.zeros((1, 2, 2, 3), np.float32)
    kernel[0, 0, 0, 1], kernel[0, 1, 1, [0, 2]] = 1, 0.5
    weights = {"kernel": kernel, "bias": np.zeros((1, 2), np.float32), "gamma": np.array([0.5], np.float32)}
    y = convolution(jnp.concatenate([k, v], -1)[0, 0], jnp.asarray(kernel[0]), jnp.zeros(2))
    np.testing.assert_allclose(y, [[1, 2, 0, 0], [0, 3, 3, 1]])
    view = LayerView.of_prompt(jnp.array([4]), (1, 1, 4), k=k, v=v, state=jnp.zeros((1, 1, 4), jnp.int32))
    keep = jnp.array([[[True, False, True, False]]])
    merged, _ = jax.jit(Convolved.of(weights).at(0))(view, keep, jnp.array([[[0.3, 0.1, 0.4, 0.2]]]), ())
    np.testing.assert_allclose(merged.k[0, 0, [0, 2], 0], [1.181256, -0.259788], atol=1e-6)
    np.testing.assert_allclose(merged.v[0, 0, [0, 2], 0], [2.779409, 1.689014], atol=1e-6)


class Heads:
    def __init__(self, layer, weights, index, **fields):
        own = {name: np.asarray(x[index], np.float64) for name, x in weights.items()}
        self.heads = [lococo.Head(k, v, **own, **fields) for k, v in zip(layer.k, layer.v, strict=True)]
        for head, rows in zip(self.heads, layer.rows(), strict=True):
            head.start(rows)

    def step(self, q, k, v, at):
        return np.stack([head.step(*x) for head, *x in zip(self.heads, q, k, v, strict=True)])


@pytest.mark.parametrize("n, slots, buffer, recent", [(60, 12, 4, 0), (60, 12, 7, 5), (20, 12, 4, 0), (60, 24, 3, 0)])
def test_prompt_and_64_tokens(lm, n, slots, buffer, recent):
    ids, budget, weights = ids_of(n, 5), 24, weights_of(slots)
    held = [Heads(x, weights, i, size=budget, buffer=buffer, recent=recent) for i, x in enumerate(layers_of(lm, ids))]
    policy = kvjax.methods.lococo(weights, budget=budget, buffer=buffer, recent=recent)
    cache = agree(lm, ids, policy, held, atol=5e-4)
    for i, layer in enumerate(held):
        for h, head in enumerate(layer.heads):
            start, length = int(cache.start[i, 0, h]), int(cache.length[i, 0, h])
            assert length == len(head.pos)
            mine, theirs = np.argsort(np.asarray(cache.pos[start : start + length])), np.argsort(head.pos)
            np.testing.assert_array_equal(cache.kept(i)[0][h], head.pos[theirs])
            np.testing.assert_allclose(np.asarray(cache.k[start : start + length])[mine], head.k[theirs], atol=5e-4)
            np.testing.assert_allclose(np.asarray(cache.v[start : start + length])[mine], head.v[theirs], atol=5e-4)


def test_without_the_convolution_it_is_eviction(lm, pre):
    weights = weights_of(20) | {"gamma": np.zeros(3, np.float32)}
    mine = kvjax.methods.lococo(weights, budget=40, buffer=2)
    host = mine.replace(merge=kvjax.merge.Drop())
    a, b = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=12, stop=(), return_logits=True) for p in (mine, host))
    np.testing.assert_allclose(a.logits, b.logits, atol=1e-5)
    assert all((x == y).all() for layer in range(3) for x, y in zip(a.cache.kept(layer)[0], b.cache.kept(layer)[0], strict=True))


def test_weights_are_leaves_and_those_of_another_model_are_refused(pre):
    made = init_convolution(jax.random.key(0), layers=3, slots=20, head_dim=16)
    assert sum(x.size for x in made.values()) == 3 * (20 * (2 * 16 * 21 + 1) + 1)
    policy = kvjax.methods.lococo(made, budget=40)
    assert {x.shape for x in jax.tree.leaves(policy.merge.weights)} == {(3, 20, 32, 21), (3, 20), (3,)}
    assert kvjax.methods.lococo(made, budget=40) == policy != kvjax.methods.lococo(weights_of(20), budget=40)
    with pytest.raises(ValueError, match="Convolved wants kernel .3, M_c, 32, odd width."):
        kvjax.compress(pre, kvjax.methods.lococo(init_convolution(jax.random.key(0), layers=3, slots=20, head_dim=8), budget=40))


def test_gradients_reach_the_weights(lm, pre):
    """The seam training goes through: a loss on merged values moves the kernel and gamma."""
    row, weights = pre.rows[0], weights_of(12)

    def loss(weights):
        view = LayerView.of_prompt(row.length, row.k[0].shape[:3], k=row.k[0], v=row.v[0])
        view = view.replace(state=jnp.zeros(view.pos.shape, jnp.int32))
        scores = -view.pos.astype(jnp.float32)
        out, _ = Convolved.of(weights_of(12)).replace(weights=weights).at(0)(view, view.pos < 24, scores, ())
        return (out.v[0, :, :24] ** 2).sum()

    slopes = jax.jit(jax.grad(loss))(weights)
    assert all(np.abs(slopes[name][0]).max() > 0 for name in ("kernel", "bias", "gamma"))

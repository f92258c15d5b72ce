"""`kvjax.scores`: what `compress` ranks by, one array for all layers and prompts, with slopes that are central differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax.stage import Scorer
from tests.conftest import ids_of, policy_of, prepared
from tests.decode_loop import unchecked


@struct.dataclass
class Mixed(Scorer):
    """A user's scorer with a weight of its own: w · ||v|| - (1 - w) · ||k||, a weight a head."""

    weight: jax.Array

    def score(self, view, seen):
        w = self.weight[None, :, None]
        size = lambda x: jnp.linalg.norm(x.astype(jnp.float32), axis=-1)  # noqa: E731
        return w * size(view.v) - (1 - w) * size(view.k)


@pytest.mark.parametrize("name", ["snapkv", "expected_attention", "keydiff", "kvzap", "rkv"])
def test_they_are_what_compress_ranks_by(lm, pre, name):
    policy = policy_of(name)
    found, want = kvjax.scores(pre, policy.score), kvjax.score_prompt(pre, policy).rows[0].scores
    assert found.shape == (3, 1, 2, 96) and found.dtype == jnp.float32
    np.testing.assert_array_equal(found[..., :90], want[..., :90])
    assert (found[..., 90:] == -jnp.inf).all()


def test_prompts_of_different_lengths_are_padded_to_the_longest(lm):
    scorer = Mixed(jnp.asarray([0.3, 0.8]))
    pre = kvjax.prefill(lm, [ids_of(200, 1), ids_of(9, 2)], needs=kvjax.Policy(score=scorer))
    both, short = kvjax.scores(pre, scorer), kvjax.scores(pre.replace(rows=pre.rows[1:]), scorer)
    assert both.shape[1] == 2 and both.shape[-1] > short.shape[-1]
    np.testing.assert_array_equal(both[:, 1:, :, :9], short[..., :9])
    assert (jnp.isfinite(both).sum(-1) == jnp.asarray([200, 9])[:, None]).all()


@pytest.mark.parametrize(
    ("at", "of"),
    [
        (0.05, lambda pre, x: kvjax.scores(pre, kvjax.score.ExpectedAttention(eps=x))),
        (0.3, lambda pre, x: kvjax.scores(pre, kvjax.score.Redundancy(weight=x))),
        (0.4, lambda pre, x: kvjax.scores(pre, Mixed(jnp.stack([x, 2 * x])))),
    ],
    ids=["ExpectedAttention.eps", "Redundancy.weight", "a scorer of one's own"],
)
def test_slopes_are_central_differences(pre, at, of):
    def loss(x):
        scores = of(pre, x)
        return -jax.nn.log_softmax(scores, -1)[..., 20:24].mean()

    with unchecked():
        slope = jax.jit(jax.grad(loss))(at)
    h = 1e-2
    assert abs(slope) > 1e-5
    np.testing.assert_allclose(slope, (loss(at + h) - loss(at - h)) / (2 * h), rtol=2e-2)


def test_a_scorer_is_fitted_by_them(pre):
    """Gradient steps on weights a head raise the share of the scores' mass that chosen tokens get."""

    def loss(scorer):
        return -jax.nn.log_softmax(kvjax.scores(pre, scorer), -1)[..., 20:24].mean()

    with unchecked():
        step = jax.jit(lambda scorer: jax.tree.map(lambda x, g: x - 0.05 * g, scorer, jax.grad(loss)(scorer)))
        first = scorer = Mixed(jnp.asarray([0.5, 0.5]))
        for _ in range(20):
            scorer = step(scorer)
    assert loss(scorer) < loss(first) - 1e-3


def test_mapped_over_a_number_of_the_scorer(pre):
    of = lambda eps: kvjax.scores(pre, kvjax.score.ExpectedAttention(eps=eps))  # noqa: E731
    with unchecked():
        got = jax.jit(jax.vmap(of))(jnp.asarray([0.0, 0.1]))
    np.testing.assert_allclose(got[1], of(0.1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", kvjax.methods.names())
def test_no_scorer_has_a_slope_that_is_no_number(lm, pre, name):
    scorer, pre = policy_of(name).score, prepared(lm, pre, name)
    with unchecked():
        finite = lambda x: jnp.where(jnp.isfinite(x), x, 0).sum()  # noqa: E731
        found = jax.grad(lambda scorer: finite(kvjax.scores(pre, scorer)), allow_int=True)(scorer)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found) if x.dtype != jax.dtypes.float0)


def test_bad_input(lm, pre):
    with unchecked(), pytest.raises(TypeError, match="expected prompts from kvjax.prefill"):
        kvjax.scores([1, 2], kvjax.score.KeyNorm())
    with unchecked(), pytest.raises(TypeError, match="expected a scorer such as .* or policy.score; got Policy"):
        kvjax.scores(pre, policy_of("snapkv"))
    bare = kvjax.prefill(lm, ids_of(40), needs=kvjax.methods.full())
    with pytest.raises(ValueError, match="ExpectedAttention reads .* did not record: run kvjax.prefill"):
        kvjax.scores(bare, kvjax.score.ExpectedAttention())

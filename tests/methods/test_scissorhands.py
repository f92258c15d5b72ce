"""Scissorhands: its worked example, the ring of bits, and the transcription on the toy model, prompt and 64 steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import LowRows
from kvjax.evidence.low_rows import count_bits
from kvjax.score.seldom_low import rank_low
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, prefilled, prompt_arrays
from tests.reference import scissorhands

ROWS = np.array([[0.5, 0.1, 0.1, 0.3, 0], [0.1, 0.1, 0.5, 0.1, 0.2], [0.3, 0.05, 0.3, 0.05, 0.3]], np.float32)


def bits_of(rows, positions, window=32):
    """LowBits of rows [t, n], every key seen."""
    p = jnp.asarray(rows)[None, None, None]
    return LowRows(window).of_rows(p, jnp.asarray([positions], jnp.int32), jnp.ones(p.shape, bool))


def test_e3():
    counts = count_bits(bits_of(ROWS, [4, 5, 6]).low)[0, 0]
    assert counts.tolist() == [[1, 3, 1, 2, 1]]
    u = rank_low(counts[None], jnp.arange(5)[None, None], jnp.ones((1, 1, 5), bool))[0, 0]
    assert np.argsort(np.where(np.arange(5) < 4, u, 99))[:2].tolist() == [1, 3]


def test_an_even_share_is_not_below():
    assert count_bits(bits_of(np.full((1, 4), 0.25, np.float32), [3]).low).sum() == 0


def test_the_oldest_of_equals_goes_first():
    u = rank_low(jnp.asarray([[[1, 2, 1, 2, 1, 0]]]), jnp.arange(6)[None, None], jnp.ones((1, 1, 6), bool))[0, 0]
    assert np.argsort(u).tolist() == [1, 3, 0, 2, 4, 5]


def test_slots_without_a_token_take_no_rank():
    """A merger reads ranks as numbers (CaM's chances): they are the same in a wider pool."""
    counts, pos = np.array([[[1, 0, 2, 0, 3]]]), np.array([[[0, 4, 7, 8, 9]]])
    alone = rank_low(jnp.asarray(counts), jnp.asarray(pos), jnp.ones((1, 1, 5), bool))
    wide = [jnp.pad(jnp.asarray(x), ((0, 0), (0, 0), (0, 3))) for x in (counts, pos, np.ones((1, 1, 5), bool))]
    np.testing.assert_array_equal(rank_low(*wide)[..., :5], alone)


def test_stretches_joined_are_the_last_rows(window=32):
    """However rows are cut into stretches, a key's count is that of the last 32 of them."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(6), size=80).astype(np.float32)
    want = (rows[-window:] < 1 / 6).sum(0)
    for edges in ([0, 80], [0, 7, 39, 40, 80], [*range(0, 81, 5)]):
        state = LowRows(window).empty((1, 1, 1, 6))
        for first, end in zip(edges[:-1], edges[1:], strict=True):
            state = LowRows(window).join(state, bits_of(rows[first:end], list(range(first, end))))
        np.testing.assert_array_equal(count_bits(state.low)[0, 0, 0], want)


def test_words_hold_32_queries():
    with pytest.raises(ValueError, match="multiple of 32"):
        LowRows(400)


class CutToTheBudget(scissorhands.Decoding):
    """The prompt is cut to b + 1 - m at once, as after any other drop."""

    def prefill(self, a):
        m, self.m = self.m, a.shape[-1] - (self.budget + 1 - self.m)
        super().prefill(a)
        self.m = m


@pytest.mark.parametrize("drop", [6, 11])
def test_prompt_and_64_steps(lm, prompt, drop):
    policy = kvjax.methods.scissorhands(budget=20, window=64, recent=4, drop=drop)
    layers = prompt_arrays(lm, prompt)
    rules = prefilled(layers, lambda layer, head: CutToTheBudget(20 + drop - 1, window=64, recent=4, m=drop))
    decodes_as(lm, kvjax.prefill(lm, prompt, needs=policy), policy, layers, rules, ids_of(64, 3))


def test_a_prompt_in_chunks_counts_as_whole(lm):
    policy = kvjax.methods.scissorhands(budget=40, window=96, drop=4)
    ids = ids_of(150, 2)
    one, other = (kvjax.score_prompt(kvjax.prefill(lm, ids, needs=policy, chunk=c), policy).rows[0] for c in (None, 64))
    for layer in range(3):
        np.testing.assert_array_equal(one.state[layer][:, :, :150], other.state[layer][:, :, :150])

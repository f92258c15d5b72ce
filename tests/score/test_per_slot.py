"""What was recorded of tokens goes to the slots these tokens got."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.score import per_slot
from kvjax.view import LayerView


def view(pos, held, *, since, length):
    """One KV head a row; the first `held` slots are in use."""
    pos = jnp.asarray(pos, jnp.int32)[:, None]
    valid = jnp.arange(pos.shape[2]) < jnp.asarray(held)[:, None, None]
    return LayerView(k=None, v=None, pos=pos, valid=valid, length=jnp.asarray(length), since=since)


def test_a_prompt_fills_every_slot_at_its_position():
    slots = view([[0, 1, 2, 3], [0, 1, 2, 3]], [4, 2], since=None, length=[4, 2])
    got = per_slot(slots, jnp.full((2, 1, 4), 9.0), jnp.array([[[1.0, 2, 3, 4]], [[5.0, 6, 7, 8]]]))
    np.testing.assert_array_equal(got[:, 0], [[1, 2, 3, 4], [5, 6, 9, 9]])


def test_rows_that_saw_three_tokens_one_and_none_in_slots_of_no_order():
    pos = [[12, 0, 10, 11, 3], [7, 8, 2, 1, 9], [4, 5, 6, 0, 0]]
    slots = view(pos, [5, 3, 3], since=jnp.array([10, 8, 7]), length=[13, 9, 7])
    new = jnp.array([[[1.0, 2, 3]], [[4.0, 5, 6]], [[7.0, 8, 9]]])
    got = per_slot(slots, jnp.full((3, 1, 5), -1.0), new)
    np.testing.assert_array_equal(got[:, 0], [[3, -1, 1, 2, -1], [-1, 4, -1, -1, -1], [-1] * 5])


@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
def test_entries_of_any_shape_and_one_for_all_heads(trailing):
    pos = jnp.broadcast_to(jnp.array([4, 2, 5]), (1, 2, 3))
    slots = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([6]), since=jnp.array([4]))
    rng = np.random.default_rng(0)
    before, new = (jnp.asarray(rng.normal(size=(1, h, n, *trailing))) for h, n in ((2, 3), (1, 2)))
    got = per_slot(slots, before, new)
    np.testing.assert_array_equal(got[:, :, 1], before[:, :, 1])
    for h in range(2):
        np.testing.assert_array_equal(got[0, h, 0], new[0, 0, 0])
        np.testing.assert_array_equal(got[0, h, 2], new[0, 0, 1])

"""`kvjax.order.places` against NumPy's inverse permutation."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.order import places


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_places_invert_an_order(axis):
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    order = np.argsort(x, axis)
    found = np.asarray(places(jnp.asarray(order), axis))
    assert (np.take_along_axis(found, order, axis) == np.indices(x.shape)[axis]).all()
    assert found.dtype == np.int32


def test_an_element_is_where_as_many_are_below_it():
    x = np.array([[0.3, -1.0, 2.0, 0.0]])
    assert np.asarray(places(jnp.argsort(jnp.asarray(x), -1))).tolist() == [[2, 0, 3, 1]]

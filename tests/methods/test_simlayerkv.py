"""SimLayerKV against its reference, and the worked example."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import LazyLayers
from kvjax.allocate.lazy_layers import mass_at_ends
from kvjax.view import Ranking
from tests.methods.inputs import layers_of
from tests.reference import simlayerkv
from tests.reference.test_examples_simlayerkv import row_on


def mass(row, **ends):
    pos = jnp.arange(row.shape[-1], dtype=jnp.int32)[None, None]
    pos = jnp.broadcast_to(pos, (1, row.shape[0], row.shape[-1]))
    return float(mass_at_ends(jnp.asarray(row, jnp.float32)[None], pos, jnp.array([row.shape[-1]]), **ends)[0])


def test_a19h():
    pos = jnp.broadcast_to(jnp.arange(4096, dtype=jnp.int32), (2, 1, 1, 4096))
    m = mass(row_on([0, 4000], 4096), sinks=4, recent=1024)
    assert m == 1.0
    ranking = Ranking(pos.astype(jnp.float32), pos < 4, pos >= 0, pos, measured=jnp.array([[m], [0.5]]))
    assert LazyLayers()(ranking, jnp.array([1]))[:, 0, 0].tolist() == [1027, 4096]


@pytest.mark.parametrize("columns, n", [([0, 11], 12), ([5, 6], 12), ([8, 9, 10], 12), ([7, 11], 12), ([0], 7), ([0], 6)])
def test_mass_is_a_mean_over_heads_without_the_query_itself(columns, n):
    row = np.concatenate([row_on(columns, n), row_on([n - 1], n)], axis=1)
    np.testing.assert_allclose(mass(row, sinks=2, recent=3), simlayerkv.lazy_mass(row, sinks=2, recent=3), atol=1e-7)


def test_the_prompt_at_every_threshold(lm, prompt, pre):
    layers = layers_of(lm, prompt)
    rows = [x.rows()[:, :, -1] for x in layers]
    masses = [simlayerkv.lazy_mass(row, sinks=4, recent=20) for row in rows]
    cuts = sorted(masses)
    seen = set()
    for threshold in (0.0, *((a + b) / 2 for a, b in zip(cuts, cuts[1:], strict=False)), 1.0):
        cache = kvjax.compress(pre, kvjax.methods.simlayerkv(threshold=threshold, recent=20))
        for i, row in enumerate(rows):
            want = simlayerkv.kept(row, threshold=threshold, sinks=4, recent=20)
            for kept in cache.kept(i)[0]:
                np.testing.assert_array_equal(kept, want)
            seen.add(len(want))
    assert seen == {23, 90}

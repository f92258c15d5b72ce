"""The worked example of ThinK on the transcription and on kvjax's codec."""

import jax.numpy as jnp
import numpy as np

from kvjax.codec.kept_channels import channel_worth, most_worth
from tests.reference.think import kept, worth

Q, K = np.array([[1.0, 2, 0, 1], [1, 0, 2, 1]]), np.array([[1.0, 1, 1, 3], [1, 0, 1, 3], [2, 1, 0, 3]])


def test_e13():
    np.testing.assert_allclose(worth(Q[None], K), [2, 4 / 3, 4 / 3, 9])
    np.testing.assert_array_equal(kept(worth(Q[None], K), 0.5), [True, False, False, True])
    q, k = jnp.asarray(Q, jnp.float32)[None, None, None], jnp.asarray(K, jnp.float32)[None, None]
    u = channel_worth(q, k, jnp.ones((1, 1, 3), bool))
    np.testing.assert_allclose(u[0, 0], [2, 4 / 3, 4 / 3, 9], rtol=1e-6)
    np.testing.assert_array_equal(most_worth(u, 2)[0, 0], [True, False, False, True])


def test_equal_channels_keep_the_lower():
    np.testing.assert_array_equal(most_worth(jnp.ones((1, 1, 4)), 3)[0, 0], kept(np.ones(4), 0.25))

"""Q4: the published example and bytes, and a prompt and 64 steps against the transcription, which codes every token as it comes."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec.affine import affine, restored
from tests.conftest import ids_of
from tests.methods.by_head import ByHead
from tests.reference import affine as reference

HOW = dict(stop=(), return_logits=True)


class Q4:
    """The cache of one KV head."""

    def __init__(self, d: int):
        self.k, self.v = np.zeros((0, d)), np.zeros((0, d))

    def extend(self, q, k, v):
        del q
        code = lambda x: reference.dequantise(reference.quantise(x, bits=4, group=8, axis=1, store=np.float16))  # noqa: E731
        self.k, self.v = np.vstack([self.k, code(k)]), np.vstack([self.v, code(v)])

    def step(self, q, k, v):
        self.extend(q, k[None], v[None])
        z = q @ self.k.T / np.sqrt(q.shape[-1])
        p = np.exp(z - z.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ self.v, np.arange(len(self.k))


def test_the_example():
    codes, scale, low = affine(jnp.asarray([-1, 0, 0.5, 2], jnp.float32), 4, "float32")
    np.testing.assert_array_equal(codes, [0, 5, 8, 15])
    np.testing.assert_allclose(restored(codes, scale, low), [-1, 0, 0.6, 2], atol=1e-6)
    block = reference.quantise(np.array([-1, 0, 0.5, 2]), bits=4, group=4, axis=0)
    np.testing.assert_array_equal(block.codes, [0, 5, 8, 15])


def test_bytes_of_a_token_of_an_eight_billion_model():
    """32 layers of 8 KV heads of 128: 36,864 bytes a token, where 16 bits take 131,072."""
    codec = kvjax.methods.q4_persistent().encode.keys
    assert codec.bits_a_number(128) == 4.5 and 32 * 8 * 2 * 128 * codec.bits_a_number(128) / 8 == 36864


@pytest.mark.parametrize("length", [1, 90])
def test_a_prompt_and_64_steps(lm, length):
    policy = kvjax.methods.q4_persistent(group=8)
    pre = kvjax.prefill(lm, ids_of(length))
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, **HOW)
    slow = ByHead(lm, pre, lambda layer: Q4(16))
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=1e-3)


def test_heads_that_groups_do_not_divide_are_refused(lm, pre):
    with pytest.raises(ValueError, match="head dimension 16"):
        kvjax.compress(pre, kvjax.methods.q4_persistent())

"""A cache of codes is decoded by the codecs that made it: rows of the same shapes may be codes of another kind."""

import numpy as np
import pytest

import kvjax
from kvjax.codec import Affine, Hadamard, Levels, Normed, Rotated, SignSketch
from kvjax.encode import Stored
from tests.conftest import ids_of

MADE = Rotated(Normed(Levels(4)), rotation=Hadamard(0))
OTHERS = {
    "another seed": Rotated(Normed(Levels(4)), rotation=Hadamard(1)),
    "other levels": Rotated(Normed(Levels(4, density="normal")), rotation=Hadamard(0)),
    "no rotation": Normed(Levels(4)),
}


def policy_of(codec):
    return kvjax.Policy(encode=Stored(keys=codec, values=codec))


@pytest.fixture(scope="module")
def pre(lm):
    return kvjax.prefill(lm, [ids_of(20)], needs=[policy_of(codec) for codec in (MADE, *OTHERS.values())])


@pytest.mark.parametrize("other", OTHERS)
def test_codes_of_the_same_shapes_are_refused(lm, pre, other, tmp_path):
    made, other = policy_of(MADE), policy_of(OTHERS[other])
    cache, theirs = kvjax.compress(pre, made), kvjax.compress(pre, other)
    for call in (
        lambda: kvjax.decode(lm, cache, other, max_new_tokens=1),
        lambda: kvjax.extend(lm, cache, ids_of(2), other),
        lambda: kvjax.save_cache(cache, tmp_path / "file", lm, other),
    ):
        with pytest.raises(ValueError, match="does not hold slots as the policy's"):
            call()
    with pytest.raises(ValueError, match="differ in codecs: "):
        kvjax.stack([cache, theirs])
    out = kvjax.decode(lm, cache, policy_of(MADE.replace()), max_new_tokens=2, stop=())
    assert out.tokens.shape == (1, 2)


def test_sketches_of_another_seed_are_refused(lm):
    made, other = (kvjax.Policy(encode=Stored(keys=SignSketch(ratio=2, seed=i), values=Affine(8, 16))) for i in (0, 1))
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(20)], needs=[made]), made)
    with pytest.raises(ValueError, match="does not hold slots as the policy's"):
        kvjax.decode(lm, cache, other, max_new_tokens=1)
    assert np.asarray(kvjax.decode(lm, cache, made, max_new_tokens=1).tokens).shape == (1, 1)

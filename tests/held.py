"""What attention reads of a cache whose slots are coded: keys and values of every region, decoded, exact where they are."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.codec import LayerRegions
from kvjax.encode.parted import Parted


def held(cache, encode, layer: int, row: int, h: int) -> tuple[np.ndarray, np.ndarray]:
    """(keys, values) [n, d] of one region; where parts hold the layer, of each part behind the other."""
    if cache.parts:
        own = encode.at(layer)
        kinds = own.stores if isinstance(own, Parted) else [own.store]
        pairs = [
            tuple(_side(part, kind, side, layer - part.first, row, h) for side in (0, 1))
            for part, kind in zip(cache.parts_of(layer), kinds, strict=True)
        ]
        return tuple(np.concatenate(sides) for sides in zip(*pairs, strict=True))
    return tuple(_side(cache, encode, side, layer, row, h) for side in (0, 1))


@partial(jax.jit, static_argnames=("wide",))
def _decoded(codec, pool, pos, start, length, positions, params, *, wide: int):
    """The first `wide` slots of every region, decoded."""
    at = LayerRegions(pool=pool, pos=pos, start=start, length=length, positions=positions, padded_slots=wide)
    return codec.decode(at.rows(0, wide), jnp.float32, params)


def _side(cache, encode, side, layer, row, h):
    codec, tail = encode.at(layer).codecs[side], cache.tails[side]
    start, lengths = (np.asarray(x)[layer] for x in (cache.start, cache.length))
    length, step = int(lengths[row, h]), math.lcm(codec.page, 64)
    where = cache.pos, start, lengths, cache.position[:, None]
    params = jax.tree.map(lambda x: x[layer], cache.fitted[side])
    wide = -(-int(lengths.max()) // step) * step  # few sizes
    x = np.array(_decoded(codec, (cache.k, cache.v)[side], *where, params, wide=wide))[row, h]
    if tail != ():
        rows, coded = np.asarray(tail.rows)[layer, row, h], np.asarray(tail.coded)[layer, row, h]
        ring = len(rows) - tail.sinks
        for j in range(length):
            if j < tail.sinks or j >= coded:
                x[j] = rows[j if j < tail.sinks else tail.sinks + j % ring]
    return x[:length]


def two_steps_and_a_third(lm, pre, policy) -> tuple[kvjax.Decoded, kvjax.Decoded]:
    """What the second step and the third after a prompt gave, each step a run of one program."""
    cache, outs = kvjax.compress(pre, policy), []
    for _ in range(3):
        outs.append(kvjax.decode(lm, cache, policy, max_new_tokens=1, stop=(), return_logits=True, pool_budget=128))
        cache = outs[-1].cache
    return outs[1], outs[2]


def stored_apart(batch, row: int, solo, encode) -> bool:
    """Whether a coded slot of a row is not quite that of its solo run: a float16 (scale, minimum, norm) beside a tie.

    While decoding both are coded from numbers that agree to 1e-7 only, and one in the middle of two float16 goes either way:
    one unit of the last place of a scale and of a minimum, times what the scale is multiplied with. More is an error.
    """
    apart = 0.0
    for layer, heads in enumerate(np.asarray(batch.lengths)):
        for h in range(heads.shape[1]):
            for x, y in zip(held(batch, encode, layer, row, h), held(solo, encode, layer, 0, h), strict=True):
                if y.size:
                    apart = max(apart, np.abs(x - y).max() / np.abs(y).max())
    assert apart <= 3 * 2.0**-10, f"what is held differs by {apart:.1e} of its largest number, a tie of float16 by 2.9e-3 at most"
    return apart > 2.0**-13

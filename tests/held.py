"""What attention reads of a cache whose slots are coded: keys and values of every region, decoded, exact where they are."""

import jax
import jax.numpy as jnp
import numpy as np

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


def _side(cache, encode, side, layer, row, h):
    length, codec, tail = cache.length[layer], encode.at(layer).codecs[side], cache.tails[side]
    wide = -(-int(length.max()) // codec.page) * codec.page
    at = LayerRegions(
        pool=(cache.k, cache.v)[side], pos=cache.pos, start=cache.start[layer], length=length,
        positions=cache.position[:, None], padded_slots=wide,
    )  # fmt: skip
    params = jax.tree.map(lambda x: x[layer], cache.fitted[side])
    x = np.array(codec.decode(at.rows(0, wide), jnp.float32, params))[row, h]
    if tail != ():
        coded, ring = int(tail.coded[layer, row, h]), tail.rows.shape[3] - tail.sinks
        for j in range(int(length[row, h])):
            if j < tail.sinks or j >= coded:
                x[j] = tail.rows[layer, row, h, j if j < tail.sinks else tail.sinks + j % ring]
    return x[: int(length[row, h])]


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

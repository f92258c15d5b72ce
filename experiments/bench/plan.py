"""Memory of a model, a length, a policy and a card, in bytes per part; nothing of it is allocated."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench.model_shapes import one_layer, serving
from experiments.bench.planned_cache import planned, prompt
from experiments.bench.planned_step import step_temporaries
from kvjax.codec import ProductQuantized
from kvjax.compress.streaming import check_streaming
from kvjax.encode import Stored
from kvjax.policy import Policy
from kvjax.prefill.attention import bucket
from kvjax.prefill.run import layer_buffers
from models import weights

GIB = 1 << 30
#: Channels of a code that may be planned, finest first.
_CHANNELS = (2, 4, 8, 16)


def plan(decoder: Any, policy: Policy, *, length: int, new: int, dtype: str, card: float) -> dict[str, Any]:
    """Bytes on the card and on the host, for one prompt of `length` tokens and `new` decoded ones.

    card = weights + tables + cache + step: what `kvjax.decode` needs once the prompt's own cache is let go. The cache's parts are
    those of `compress(pre, policy, headroom=...)` to the byte: the pool's size class, the rows encoders make, where stores are, the
    retriever's state, by the same code run on shapes. `step` is what XLA's compilation for this machine takes beside its operands
    for all layers' caches, with a layer's activations and the logits.

    Args:
        decoder: from `decoder_of`.   policy: with tables of this model's shape.
        length, new: tokens of the prompt, and after it.
        dtype: weights, activations and cache.   card: GiB of device memory.

    Returns:
        "device" and "host" bytes by part, "slots" of the pool, "prefill": bytes the dense prompt takes while it is read,
        "streamed": bytes by part while it is compressed layer by layer, its residual stream on the host (nothing for a policy
        that cannot be streamed), and "fits": {"decoding", "beside the cache it came from", "prefill", "streamed prefill"}.

    Raises:
        ValueError: a policy that fits neither the model nor the length, or one whose total depends on the prompt.
    """
    if min(length, new) < 1 or card <= 0:
        raise ValueError(f"a plan needs tokens and a card: got length={length}, new={new}, card={card:g} GiB")
    decoder, dtype = serving(decoder, length + new), jnp.dtype(dtype)
    cache = planned(decoder, policy, length, new=new, dtype=dtype)
    device, host = cache_bytes(cache)
    fixed = {"weights": _weights(decoder, dtype), "the policy's tables": _tables(policy)}
    step = step_temporaries(decoder, policy, cache, dtype) + _activations(decoder, dtype)
    parts = fixed | {f"cache: {name}": x for name, x in device.items()} | {"a decode step": step}
    needed, dense = sum(parts.values()), _prefill(decoder, policy, length, dtype)
    held = sum(device.values())
    streamed = _streamed(decoder, policy, length, held, dtype) if _streams(decoder, policy, length) else {}
    room = card * GIB
    return {
        "device": parts,
        "host": {f"cache: {name}": x for name, x in host.items()},
        "slots": cache.slots,
        "prefill": dense,
        "streamed": streamed,
        "fits": {
            "decoding": needed <= room,
            "decoding beside the cache it came from": needed + held <= room,
            "prefill": fixed["weights"] + dense <= room,
            "streamed prefill": bool(streamed) and sum(fixed.values()) + sum(streamed.values()) <= room,
        },
    }


def coded(policy: Policy, decoder: Any, *, groups: int, centroids: int) -> Policy:
    """The policy with keys as codes of codebooks that are yet to be fitted: `groups` of channels, `centroids` each, float16.

    Raises:
        ValueError: groups that do not divide the head dimension.
    """
    d = decoder.head_dim
    if d % groups or not 1 <= centroids <= 1 << 16:
        raise ValueError(f"groups must divide the head dimension {d}, and centroids be 1 to 65536; got {groups} and {centroids}")
    book = jax.ShapeDtypeStruct((decoder.layers, decoder.heads, groups, centroids, d // groups), jnp.float16)
    keys = ProductQuantized(book, f"planned, {groups} of {centroids}")
    return policy.replace(encode=Stored(keys=keys, placement=policy.encode.placement))


def fits_books(policy: Policy, decoder: Any) -> bool:
    """Whether the policy's codebooks of keys, if it has any, are for a model of this shape."""
    if not isinstance(policy.encode, Stored) or not isinstance(policy.encode.keys, ProductQuantized):
        return True
    try:
        policy.encode.keys.check(decoder, 0, 0)
    except ValueError:
        return False
    return True


def plan_finest(
    decoder: Any, policy: Policy, *, centroids: int, length: int, new: int, dtype: str, card: float
) -> tuple[int, dict[str, Any]]:
    """(g, plan) of keys as codes of 2, 4, 8 or 16 channels: the finest with which the card holds decoding, else the coarsest."""
    for channels in _CHANNELS:  # every head dimension is even
        if decoder.head_dim % channels == 0:
            groups = decoder.head_dim // channels
            chosen = coded(policy, decoder, groups=groups, centroids=centroids)
            found = plan(decoder, chosen, length=length, new=new, dtype=dtype, card=card)
            if found["fits"]["decoding"]:
                break
    return groups, found


#: Parts of a cache by its fields; those that `nbytes` leaves out too are missing.
_PARTS = dict.fromkeys(("start", "length", "capacity", "budget"), "regions") | dict(
    k="keys", v="values", pos="positions", state="state of stages", evidence="evidence", memory="merging", retrieval="retrieval",
    tails="exact tails",
)


def cache_bytes(cache: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by part, on the device and on the host."""
    device, host = {}, {}
    for field, x in cache.leaves:
        if field in _PARTS:
            home = host if x.memory_space == jax.memory.Space.Host else device
            home[_PARTS[field]] = home.get(_PARTS[field], 0) + x.size * x.dtype.itemsize
    return device, host


def _weights(decoder: Any, dtype: Any) -> int:
    """Bytes of the parameters; one layer is traced, the others are like it."""
    params = jax.eval_shape(lambda: one_layer(decoder).init(jax.random.key(0), dtype))
    return weights.nbytes(params) + (decoder.layers - 1) * weights.nbytes(params["layers"])


def _tables(policy: Policy) -> int:
    """Bytes of calibrated tables."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(policy) if hasattr(x, "dtype"))


def _activations(decoder: Any, dtype: Any) -> int:
    """A layer's activations of one token, and its logits before and after."""
    return _of_layer(decoder, dtype) + 2 * 4 * decoder.config.vocab


def _of_layer(decoder: Any, dtype: Any) -> int:
    """A layer's activations of one token: residual stream, heads, gated MLP."""
    c = decoder.config
    return dtype.itemsize * (4 * c.width + (c.groups + 2) * c.heads * c.head_dim + 3 * c.hidden)


def _prefill(decoder: Any, policy: Policy, length: int, dtype: Any) -> int:
    """Bytes of a prefilled prompt: dense keys and values, what its scorers recorded, ids, length, mark and logits."""

    def buffers():
        row = prompt(decoder, policy.needs, length, dtype)
        ids_length_and_mark = jnp.zeros(row.k[0].shape[2] + 2, jnp.int32)
        return row.k, row.v, row.evidence, ids_length_and_mark, jnp.zeros(decoder.vocab)

    return sum(x.size * x.dtype.itemsize for x in jax.make_jaxpr(buffers)().out_avals)


def _streams(decoder: Any, policy: Policy, length: int) -> bool:
    """Whether a prompt of this length can be compressed layer by layer."""
    try:
        check_streaming(decoder, [range(length)], policy)
    except ValueError:
        return False
    return True


def _streamed(decoder: Any, policy: Policy, length: int, held: int, dtype: Any) -> dict[str, int]:
    """Bytes on the device while a prompt is compressed layer by layer, beside the weights; `held` of them are the cache."""
    n, chunk = bucket(length, None)
    row = jax.make_jaxpr(lambda: jax.tree.leaves(layer_buffers(decoder, n, dtype, policy.needs, 0)))().out_avals
    dense, evidence = (sum(x.size * x.dtype.itemsize for x in part) for part in (row[:2], row[2:]))
    return {
        "the cache": held,
        "a layer of it, outside": held // decoder.layers,
        "a layer's keys, values": dense,
        "a layer's evidence": evidence,
        "a chunk of tokens": chunk * _of_layer(decoder, dtype),
    }

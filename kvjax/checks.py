"""Checks that run before anything is traced; messages say what was expected, what came, and what to do."""

from collections.abc import Iterable, Mapping, Sized

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.protocols import Decoder


def brief(x: object) -> str:
    """What somebody passed, in a line of at most 100 characters."""
    try:
        said = " ".join(repr(x).split())
    except RecursionError:
        said = "a value nested too deep to be shown"
    return said if len(said) <= 100 else f"{said[:97]}..."


def check_language_model(lm: object) -> None:
    """Raise TypeError for what has no decoder and parameters: a name, a cache, or arguments in another order."""
    if getattr(lm, "decoder", None) is None or getattr(lm, "params", None) is None:
        raise TypeError(f'expected a language model, such as models.load("smollm2-135m"), as the first argument; got {brief(lm)}')


def check_chunk(chunk: object) -> None:
    """Raise TypeError for what is no number of tokens; how many there may be is the attention's business."""
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int | np.integer)):
        raise TypeError(f"chunk must be a multiple of 64 tokens, or None; got {brief(chunk)}")


def check_sampler(sampler: object) -> None:
    """Raise TypeError for what chooses no tokens."""
    if isinstance(sampler, type) or not (callable(sampler) and isinstance(getattr(sampler, "random", None), bool)):
        raise TypeError(f"sampler must be kvjax.Greedy() or kvjax.Sample(temperature, top_k, top_p); got {brief(sampler)}")


def check_key(key: object) -> jax.Array:
    """A key, or several, as typed ones. Raises TypeError for what is no key, such as a seed."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"key must be a JAX key, such as jax.random.key(0); got {brief(key)}")
    return key if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(jnp.asarray(key))


def check_key_rows(key: jax.Array, rows: int) -> None:
    """Raise ValueError for keys that are neither one nor one a row."""
    if key.shape not in ((), (rows,)):
        raise ValueError(f"key must be one key, or one for each of {rows} rows; got keys of shape {key.shape}")


def check_no_mapping(prompts: object) -> None:
    """Raise TypeError for a dictionary, which is one message of a chat, or what a tokenizer gives."""
    if isinstance(prompts, Mapping):
        advice = "a chat is a list of messages, and the token ids that a tokenizer gives are its input_ids"
        raise TypeError(f"a dictionary of {brief([*prompts])} is no prompt: {advice}")


def as_rows(prompts: object) -> list[list[int]]:
    """Token ids or a list of them → a list of rows."""
    check_no_mapping(prompts)
    if isinstance(prompts, str):
        raise TypeError("prompts must be token ids; got a string: encode it with lm.encode(text), or call kvjax.generate")
    if not isinstance(prompts, Sized):
        raise TypeError(f"prompts must be token ids, or a list of rows of them; got {prompts!r}")
    if len(prompts) and np.ndim(prompts[0]) == 0:
        prompts = [prompts]
    return [row_of_ids(row) for row in prompts]


def row_of_ids(row: object) -> list[int]:
    """One row of token ids as Python integers."""
    found = np.asarray(row)
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise TypeError(f"a row of token ids is a sequence of integers; got {found.dtype} of shape {found.shape}")
    return found.reshape(-1).tolist()


def check_stop(stop: object) -> list[int]:
    """Token ids, or none."""
    if isinstance(stop, str) or not isinstance(stop, Iterable) or (isinstance(stop, np.ndarray) and stop.ndim != 1):
        raise TypeError(f"stop must be token ids such as (2,), or () for none; got {stop!r}")
    return row_of_ids([*stop])


def check_known(ids: object, vocab: int) -> list[list[int]]:
    """Rows of ids, all in the vocabulary; rows may be empty."""
    rows = as_rows(ids)
    for r, row in enumerate(rows):
        wrong = next((i for i in row if not 0 <= i < vocab), None)
        if wrong is not None:
            raise ValueError(f"row {r} holds id {wrong}, outside the vocabulary of {vocab}")
    return rows


def check_prompts(prompts: object, decoder: Decoder) -> list[list[int]]:
    """Rows of ids, none empty, none outside the vocabulary, none longer than the model's context."""
    rows = as_rows(prompts)
    if not rows:
        raise ValueError("expected at least one prompt; got an empty list")
    for r, ids in enumerate(rows):
        if not ids:
            raise ValueError(f"prompt {r} is empty: it needs at least one token, such as the BOS token")
        if len(ids) > decoder.max_positions:
            raise ValueError(
                f"prompt {r} has {len(ids)} tokens, more than the model's context of {decoder.max_positions}: "
                "shorten it, or load a model with a longer context or RoPE scaling"
            )
        wrong = next((i for i in ids if not 0 <= i < decoder.vocab), None)
        if wrong is not None:
            raise ValueError(f"prompt {r} holds id {wrong}, outside the vocabulary of {decoder.vocab}")
    return rows


def check_finite(x: object, what: str) -> None:
    """Raise if any value is NaN or infinite."""
    if not bool(jnp.isfinite(x).all()):
        raise FloatingPointError(f"{what} hold NaN or infinite values: check the weights, or load the model in float32")


def check_new_tokens(max_new_tokens: int) -> int:
    """A positive integer."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int | np.integer) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be an integer of at least 1; got {max_new_tokens!r}")
    return int(max_new_tokens)


def check_block(block: object) -> int:
    """A positive integer."""
    if isinstance(block, bool) or not isinstance(block, int | np.integer) or block < 1:
        raise ValueError(f"block is the most tokens run at once, an integer of at least 1; got {block!r}")
    return int(block)


def check_slots(slots: object) -> int:
    """A positive integer."""
    if isinstance(slots, bool) or not isinstance(slots, int | np.integer) or slots < 1:
        raise ValueError(f"slots is the most slots a KV head may hold, an integer of at least 1; got {slots!r}")
    return int(slots)


def check_headroom(headroom: object) -> int:
    """An integer of 0 or more."""
    if isinstance(headroom, bool) or not isinstance(headroom, int | np.integer) or headroom < 0:
        raise ValueError(f"headroom is a number of slots per KV head, an integer of 0 or more; got {headroom!r}")
    return int(headroom)

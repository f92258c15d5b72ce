"""Generate: prompts in, text out; the whole data path on one screen."""

from collections.abc import Iterable, Iterator

import jax

from kvjax.cache.kv_cache import KVCache
from kvjax.checks import (
    as_rows,
    check_language_model,
    check_new_tokens,
    check_no_mapping,
    check_prompts,
    check_sampler,
    row_of_ids,
)
from kvjax.compress.run import compress
from kvjax.decode.headroom import check_policy, check_positions
from kvjax.decode.loop import Decoded, decode
from kvjax.decode.sample import Greedy
from kvjax.policy import Policy
from kvjax.prefill.second_pass import second_pass
from kvjax.protocols import LanguageModel
from kvjax.read import prefill


def encode(lm, prompts: object) -> list[list[int]]:
    """A string, a chat (list of messages), token ids, or a list of any of these → rows of token ids."""
    check_no_mapping(prompts)
    if _is_text(prompts):
        prompts = [prompts]
    prompts = list(prompts) if isinstance(prompts, Iterator) else prompts
    ids = isinstance(prompts, jax.Array) or not isinstance(prompts, Iterable)
    if ids or not any(_is_text(p) for p in prompts):
        return as_rows(prompts)
    return [lm.encode(p) if _is_text(p) else row_of_ids(p) for p in prompts]


def _is_text(prompt: object) -> bool:
    """Whether it is a string or a chat."""
    return isinstance(prompt, str) or (isinstance(prompt, list | tuple) and len(prompt) > 0 and isinstance(prompt[0], dict))


def generate(
    lm, prompts: object, policy: Policy, *, max_new_tokens: int = 64, sampler: object = Greedy(), key: object = None,
    stop: object = None, return_logits: bool = False, chunk: int | None = None,
) -> Decoded:  # fmt: skip
    """Prefill, compress and decode: a string, a chat, token ids, or a list of any of these, of any lengths.

    A policy that needs a second pass over the prompt gets it.

    Args as in `prefill`, `compress` and `decode`. The prompt's dense keys and values are released before decoding starts.
    """
    check_language_model(lm)
    check_policy(policy)
    check_sampler(sampler)
    new = check_new_tokens(max_new_tokens)
    rows = check_prompts(encode(lm, prompts), lm.decoder)
    check_positions(lm.decoder, policy, max(map(len, rows)) + new, 0, new)
    cache = _read(lm, rows, policy, chunk, new)
    return decode(
        lm, cache, policy, max_new_tokens=new, sampler=sampler, key=key, stop=stop, return_logits=return_logits
    )  # fmt: skip


def _read(lm: LanguageModel, ids: list[list[int]], policy: Policy, chunk: int | None, new: int) -> KVCache:
    """The compressed cache of prompts, with room for `new` tokens; their dense keys and values end with this call."""
    if policy.select.leaves:
        return prefill(lm, ids, streaming=policy, chunk=chunk)
    return compress(second_pass(lm, prefill(lm, ids, needs=policy, chunk=chunk), policy), policy, headroom=new)

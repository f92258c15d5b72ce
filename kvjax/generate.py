"""Generate: prompts in, text out; the whole data path on one screen."""

from kvjax.cache.kv_cache import KVCache
from kvjax.checks import check_new_tokens
from kvjax.compress.run import compress
from kvjax.decode.loop import Decoded, decode
from kvjax.decode.sample import Greedy
from kvjax.policy import Policy
from kvjax.prefill.second_pass import second_pass
from kvjax.protocols import LanguageModel
from kvjax.read import prefill


def encode(lm, prompts: object) -> list[list[int]]:
    """A string, a chat (list of messages), token ids, or a list of any of these → rows of token ids."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], dict | int)):
        prompts = [prompts]

    def is_text(p):
        return isinstance(p, str) or (len(p) and isinstance(p[0], dict))

    return [lm.encode(p) if is_text(p) else [int(i) for i in p] for p in prompts]


def generate(
    lm, prompts: object, policy: Policy, *, max_new_tokens: int = 64, sampler: object = Greedy(), key: object = None,
    stop: object = None, return_logits: bool = False, chunk: int | None = None,
) -> Decoded:  # fmt: skip
    """Prefill, compress and decode: a string, a chat, token ids, or a list of any of these, of any lengths.

    A policy that needs a second pass over the prompt gets it.

    Args as in `prefill`, `compress` and `decode`. The prompt's dense keys and values are released before decoding starts.
    """
    new = check_new_tokens(max_new_tokens)
    cache = _read(lm, encode(lm, prompts), policy, chunk, new)
    return decode(
        lm, cache, policy, max_new_tokens=new, sampler=sampler, key=key, stop=stop, return_logits=return_logits
    )  # fmt: skip


def _read(lm: LanguageModel, ids: list[list[int]], policy: Policy, chunk: int | None, new: int) -> KVCache:
    """The compressed cache of prompts, with room for `new` tokens; their dense keys and values end with this call."""
    if policy.select.leaves:
        return prefill(lm, ids, streaming=policy, chunk=chunk)
    return compress(second_pass(lm, prefill(lm, ids, needs=policy, chunk=chunk), policy), policy, headroom=new)

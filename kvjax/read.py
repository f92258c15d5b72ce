"""Read prompts: into dense keys and values for any number of policies, or straight into one policy's cache."""

from collections.abc import Iterable, Iterator

from kvjax import evidence as ev
from kvjax.cache.kv_cache import KVCache
from kvjax.checks import brief, check_chunk, check_language_model
from kvjax.compress.streaming import compressed_prefill
from kvjax.policy import Policy
from kvjax.prefill import run
from kvjax.prefill.attention import CausalAttention, PrefillAttention
from kvjax.prefill.prefilled import Prefilled


def prefill(
    lm, prompts, *, needs: object = ev.STANDARD, attention: PrefillAttention | None = None, chunk: int | None = None,
    all_logits: bool = False, streaming: Policy | None = None, residual_on_host: bool = False,
) -> Prefilled | KVCache:  # fmt: skip
    """Run prompts through the model and keep what any policy may ask for, or with `streaming` what one policy keeps.

    Attention is causal, computed tile by tile: memory is linear in the length. Prompts are padded to one of 8 buckets a power of
    two.

    Args:
        lm: a language model (`models.load`).
        prompts: token ids, or a list of them; rows may differ in length.
        needs: what to record: a policy, a stage such as a scorer, a list of them, or a set of `kvjax.evidence` needs. The default
            serves every method in `kvjax.methods` that reads the prompt once; naming the policies you will use saves the second
            pass over the scores of those that read attention sums.
        attention: CausalAttention(), or an approximation that is cheaper for long prompts: StarAttention(size, anchor, tail),
            MInference(table). None: that of the policies in `needs`, exact if they have none of their own.
        chunk: tokens run through the layers at a time (a multiple of 64), which bounds activation memory. By default prompts of
            up to 2,048 tokens are run whole, longer ones 1,024 at a time.
        all_logits: keep the logits of every position (n·v floats a row, zeros behind the prompt).
        streaming: a policy to compress with while reading, layer by layer: what comes back is the `KVCache` of
            `compress(prefill(lm, prompts), policy)`, and at most one layer of dense keys and values was alive beside it. Its
            allocator must go layer by layer (`Allocator.by_layer`).
        residual_on_host: with `streaming`, keep the residual stream (n·e numbers a row) in host memory between two layers.

    Raises:
        TypeError, ValueError: an empty prompt, ids outside the vocabulary, a prompt longer than the model's context, a chunk or an
            attention that does not fit; needs of another kind; policies of different attentions; a policy that cannot be streamed,
            or one beside `needs` or `all_logits`.
        FloatingPointError: the model produced NaN or infinite logits.
    """
    needs = tuple(needs) if isinstance(needs, Iterator) else needs
    attention = _checked(lm, attention_of(streaming or needs) if attention is None else attention, chunk)
    if streaming is None and residual_on_host:
        raise ValueError("residual_on_host= is for prompts that are compressed layer by layer: give streaming=policy with it")
    if streaming is None:
        return run.prefill(lm, prompts, needs=needs, attention=attention, chunk=chunk, all_logits=all_logits)
    if needs is not ev.STANDARD or all_logits:
        raise ValueError("streaming= records what its policy reads and keeps the last logits: leave needs= and all_logits= out")
    return compressed_prefill(lm, prompts, streaming, attention=attention, chunk=chunk, residual_on_host=residual_on_host)


def _checked(lm, attention: object, chunk: object) -> PrefillAttention:
    """The attention; raise TypeError where it is none, or the others are not a language model and a chunk."""
    check_language_model(lm)
    check_chunk(chunk)
    if not isinstance(attention, PrefillAttention):
        raise TypeError(f"attention must be one of prompts, such as kvjax.CausalAttention(), or None; got {brief(attention)}")
    return attention


def attention_of(needs: object) -> PrefillAttention:
    """How prompts attend to themselves for a policy, or for several of one mind; exactly for a set of needs."""
    given = needs if isinstance(needs, Iterable) else [needs]
    policies = [x for x in given if isinstance(x, Policy)]
    found = {policy.attention for policy in policies} or {CausalAttention()}
    if len(found) > 1:
        raise ValueError(f"policies want prompts read with {found}: prefill for each, or say attention= for all")
    return found.pop()

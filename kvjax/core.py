"""The pure core: plan, pack and step with static slots, for programs that are compiled, mapped or differentiated whole.

`kvjax.compress` reads back how many slots each head keeps, and makes a pool of just that size. Here every head gets `slots` slots,
whatever it keeps: nothing is read back, so that a user's own function may call

    cache = core.compress(pre, policy.replace(budget=budget), slots=96)
    tokens, logits, cache = core.decode(params, decoder, policy, cache, steps=8)

under `jax.jit`, `jax.vmap` and `jax.grad`. The stages, the kernels and the step are those of the ordinary calls.

- `jit`: `pre`, the policy's numbers and tables, and the parameters are data. The policy's types and sizes are static.
  Numbers that evidence was recorded with (Keyformer's seed and temperature, FastGen's tokens to come) are taken to be the policy's.
- `vmap`: over budgets, over any number of a stage, over parameters. A kernel of a CPU runs once for each.
- `grad`: with respect to numbers of stages, parameters, and keys and values: attention over regions padded to `slots` has a
  derivative. What is discrete has none: which slots are kept, and which token is the most likely one. A number of a scorer moves a
  loss only where a stage makes scores into weights: a merger that blends by them, a bias.
- Not here: values outside the device's memory, windows of exact slots, retrievers that keep a state. That stages go together is
  checked; tables are not checked against the model: `policy.check(decoder, length)` does that before anything is traced.

A row whose heads keep more than `slots`, or whose next token finds no slot, has NaN for logits from there on. So has one whose
heads keep different numbers of slots where a codec takes the i-th slots of all heads as one.
"""

import math
from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax import evidence as ev
from kvjax.budget import asked_in
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import plan_regions
from kvjax.checks import check_slots
from kvjax.compress.decision import Decision
from kvjax.compress.pack import pack as packed
from kvjax.compress.run import budget_from_now_on, carried, everything, plan_row, windows_of
from kvjax.compress.score_prompt import RowScores, score_row
from kvjax.compress.stage_checks import check_room
from kvjax.decode.step import Spec
from kvjax.decode.step import step as step_of
from kvjax.encode import Stored
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.protocols import Decoder
from kvjax.types import ALIGN, SLACK
from kvjax.weights_mark import UNKNOWN


@struct.dataclass
class Padded(Stored):
    """As `Stored`; attention is taken apart over regions padded to a static width, and can be reversed."""

    @property
    def dense(self) -> bool:
        return False


def compress(pre: Prefilled, policy: Policy, *, slots: int) -> KVCache:
    """Every prompt scored, planned and packed: `kvjax.compress` with `slots` slots for every KV head, nothing read back.

    Args:
        pre: from `kvjax.prefill`.   policy: what to keep; its budget may be traced, too.
        slots: most slots a head may hold, tokens to come included; static.

    Raises:
        ValueError: what this core does not do, stages that do not go together, evidence the prefill did not record, a budget
            above `slots` (a traced one gives NaN, as above).
    """
    _check(pre, policy)
    check_room(pre, policy, check_slots(slots))
    return _compress(pre, policy, slots=slots)


@partial(jax.jit, static_argnames="slots")
def _compress(pre: Prefilled, policy: Policy, *, slots: int) -> KVCache:
    return pack(pre, policy, [plan(row, policy) for row in pre.rows], slots=slots)


def plan(row: PrefilledRow, policy: Policy) -> Decision:
    """What stays of one prompt: `Decision`, on the device."""
    found: RowScores = score_row(row, policy, range(len(row.k)))
    asked = asked_in(policy.budget, row.length)
    mean = jnp.minimum(asked, row.length)
    keep, _, planned = plan_row(
        policy.allocate, policy.select, found.scores, found.second, found.measured, row.length, mean, window=windows_of(row, policy)
    )
    whole, _ = everything(found.scores, row.length)
    fits = (mean >= row.length) & (not policy.allocate.given) | (not policy.when.after_prefill)
    keep = jnp.where(fits[:, None, None], whole, keep)
    return Decision(
        scores=found.scores,
        state=found.state,
        keep=keep,
        count=keep.sum(-1).astype(jnp.int32),
        budget=budget_from_now_on(policy.allocate, planned, asked, row.length),
        mean_budget=0,
    )


def pack(pre: Prefilled, policy: Policy, decided: list[Decision], *, slots: int) -> KVCache:
    """The slots that stay in regions of `slots` slots each."""
    policy, decoder = _padded(policy), pre.decoder
    asked = np.full((decoder.layers, len(pre.rows), decoder.heads), slots)
    start, capacity, pool = plan_regions(asked, align=math.lcm(ALIGN, policy.encode.page))
    counts = jnp.concatenate([d.count for d in decided], 1)
    alike = (counts == counts[..., :1]).all((0, 2)) | (not policy.encode.together)
    fits = (counts <= slots).all((0, 2)) & alike
    lengths = jnp.concatenate([row.length for row in pre.rows])
    return KVCache(
        **packed(pre, policy, decided, start, pool),
        start=jnp.asarray(start),
        length=jnp.where(alike[:, None], jnp.minimum(counts, slots), slots),
        capacity=jnp.minimum(jnp.asarray(capacity), slots),
        budget=jnp.concatenate([d.budget for d in decided], 1),
        position=lengths,
        steps=jnp.zeros_like(lengths),
        logits=_or_nan(jnp.stack([row.logits for row in pre.rows]), fits),
        made_by=jnp.full(lengths.shape, UNKNOWN, jnp.uint32),
        evidence=carried([row.evidence for row in pre.rows], pre.needs, policy),
        placement=policy.encode.placement,
        positions=policy.encode.positions,
        codecs=policy.encode.words,
    )


def step(params: PyTree, decoder: Decoder, policy: Policy, cache: KVCache, token: Int32[Array, " b"]) -> KVCache:
    """One token a row: through the model, appended, and evicted if the policy says so; `cache.logits` are of the next."""
    spec = Spec.of(decoder, _padded(policy), _width(cache))
    fits = (cache.length < cache.capacity).all((0, 2))
    new = step_of(spec, params, cache, token, running=fits)
    return new.replace(logits=_or_nan(new.logits, fits))


def decode(
    params: PyTree, decoder: Decoder, policy: Policy, cache: KVCache, *, steps: int, tokens: Int32[Array, "b t"] | None = None
) -> tuple[Int32[Array, "b t"], Float32[Array, "b t v"], KVCache]:
    """(tokens, the logits each was chosen from, the cache after them) of `steps` steps; the most likely tokens, or those given.

    Args:
        params, decoder: of a language model.   policy: the one the cache was made with.
        steps: static.   tokens: what is fed instead of the most likely token, [b, steps].
    """

    def one(cache: KVCache, given: Int32[Array, " b"] | None):
        token = jnp.argmax(cache.logits, -1).astype(jnp.int32) if given is None else given
        return step(params, decoder, policy, cache, token), (token, cache.logits)

    fed = None if tokens is None else jnp.swapaxes(tokens, 0, 1)
    cache, (chosen, logits) = lax.scan(one, cache, fed, length=steps)
    return jnp.swapaxes(chosen, 0, 1), jnp.swapaxes(logits, 0, 1), cache


def _check(pre: Prefilled, policy: Policy) -> None:
    """Raise ValueError for what this core does not do, for what no core does, and for evidence that is not there."""
    check_stages(policy)
    lacking = ev.missing(pre.needs, policy.needs)
    if lacking:
        raise ValueError(f"the prefill did not record {', '.join(map(str, lacking))}: run kvjax.prefill(lm, ids, needs=policy)")


def check_stages(policy: Policy) -> None:
    """Raise ValueError for stages that this core does not do, or that do not go together."""
    policy.check_stages()
    if policy.select.leaves:
        raise ValueError(f"{type(policy.select).__name__} lets tokens leave: use kvjax.prefill(lm, ids, streaming=policy)")
    if policy.retrieve.builds:
        raise ValueError(f"{type(policy.retrieve).__name__} keeps a state that is made on the host: use kvjax.compress")
    if policy.encode.parted:
        raise ValueError("a cache in parts is laid out on the host: use kvjax.compress")
    if any(policy.encode.windows):
        raise ValueError("windows of exact slots beside coded ones are laid out on the host: use kvjax.compress")
    if not policy.encode.placement.on_device:
        raise ValueError(f"the core keeps values on the device; got placement={policy.encode.placement!r}: use kvjax.compress")


def _padded(policy: Policy) -> Policy:
    """The policy with attention over padded regions."""
    encode = policy.encode
    if type(encode) is not Stored:
        return policy
    return policy.replace(encode=Padded(**{field.name: getattr(encode, field.name) for field in fields(encode)}))


def _width(cache: KVCache) -> int:
    """A static bound on the slots of a region."""
    return (cache.slots - SLACK) // cache.start.size


def _or_nan(logits: Float32[Array, "b v"], fits: Bool[Array, " b"]) -> Float32[Array, "b v"]:
    """NaN in rows that did not fit."""
    return jnp.where(fits[:, None], logits, jnp.nan)

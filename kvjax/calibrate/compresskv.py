"""The two tables of CompressKV, measured by running a model: which heads look at answers, and how much each layer needs.

Axis letters: l layers, q query heads of a layer, a tokens of the answer span.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from kvjax.cache.kv_cache import KVCache
from kvjax.calibrate import layer_error
from kvjax.calibrate import retrieval_heads as rh
from kvjax.calibrate.attention_rows import rows_of, watch
from kvjax.calibrate.output_error import sample_errors
from kvjax.policy import Policy
from kvjax.prefill.run import prefill
from kvjax.score import AvgPool, RetrievalHeads
from kvjax.select import TopK
from kvjax.types import Function, Table


class NeedleRun(NamedTuple):
    """A prompt that hides an answer and asks for it. All are token ids; `stop` ends the response (a line's end)."""

    prompt: Sequence[int]
    answer: Sequence[int]
    stop: Sequence[int] = ()


def silent(done: int, total: int) -> None:
    """Report nothing."""


@partial(jax.jit, static_argnames="size")
def _look(cache: KVCache, start, *, size: int) -> tuple[Float32[Array, "l q a"], Int32[Array, "l q"]]:
    """The last step's mass on the positions start .. start + size - 1, and each head's most attended position."""
    rows = rows_of(cache)
    return jax.lax.dynamic_slice_in_dim(rows, start, size, axis=2), rows.argmax(-1).astype(jnp.int32)


def _texts(lm, *ids: Sequence[int]) -> list[list]:
    """Words of token ids, or the ids themselves where the model has no tokenizer."""
    return [list(x) if lm.tokenizer is None else rh.words(lm.decode(list(x))) for x in ids]


def run_scores(lm, run: NeedleRun, *, steps: int, count: Callable, success: Callable) -> tuple[np.ndarray, np.ndarray] | None:
    """(semantic, classical) scores [l, q] of one run; None if its answer is not in the prompt or not in the response."""
    start, size = rh.locate_span(run.prompt, run.answer), len(run.answer)
    if start is None or len(run.prompt) < 2:
        return None
    pre = prefill(lm, list(run.prompt[:-1]), needs=frozenset())
    steps_seen = watch(lm, pre, int(run.prompt[-1]), steps=steps, stop=run.stop)
    seen = [(token, *jax.device_get(_look(cache, np.int32(start), size=size))) for token, cache in steps_seen]
    generated, mass, top = zip(*seen, strict=True)
    response = [token for token in generated if token not in run.stop]
    if not success(*_texts(lm, response, run.answer)):
        return None
    span = list(run.prompt[start : start + size])
    semantic = rh.semantic_score(np.stack(mass), generated, span, count=count)
    return semantic, rh.classical_score(np.stack(top), generated, run.prompt, start=start, size=size)


def semantic_heads(
    lm, runs: Iterable[NeedleRun | tuple], *, steps: int = 50, count: Callable = rh.once, success: Callable = rh.succeeded,
    progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Rank each layer's query heads by their mass on answers that the model copies out of long prompts.

    All but the prompt's last token are prefilled; then up to `steps` greedy steps are watched. Runs whose answer is not found in
    the prompt, or whose response misses it, are left out.

    Args:
        runs: NeedleRun(prompt, answer, stop), or such tuples.
        count: how a token in the span counts, `once` or `per_occurrence`.
        success: (response, answer) -> whether a run counts, both as words; by default ROUGE-1 recall above 0.5.
        progress: called with (runs done, runs in all).

    Returns:
        "srh" int32 [l, q], heads best first; "srh_score" and "classical_score" float32 [l, q], means over the successful runs.

    Raises:
        ValueError: no run succeeded.
    Source: CompressKV, arXiv 2508.02401, section 3.1, eq. 5.
    """
    runs, scores = [NeedleRun(*run) for run in runs], []
    for done, run in enumerate(runs, 1):
        scores.append(run_scores(lm, run, steps=steps, count=count, success=success))
        progress(done, len(runs))
    good = [s for s in scores if s is not None]
    if not good:
        raise ValueError(
            f"none of {len(runs)} runs succeeded: the model does not copy the answers; use shorter prompts or a stronger model"
        )
    semantic, classical = (np.mean(of_runs, axis=0) for of_runs in zip(*good, strict=True))
    single = np.float32
    return {"srh": rh.rank_heads(semantic), "srh_score": semantic.astype(single), "classical_score": classical.astype(single)}


def layer_errors(
    lm, datasets: Sequence[Sequence[Sequence[int]]], heads: Table, *, budget: int = 32,
    window: int = 8, pool: Function = AvgPool(5),
    steps: int = 32, stop: object = None, eps: float = layer_error.EPS, progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """How much each layer's attention output changes when its prompt is cut to `budget` slots by the retrieval heads.

    Layers are measured apart: every query comes from the full cache's trajectory. Prompts of at most `budget` tokens are skipped.

    Args:
        datasets: for each data set its prompts, token ids.
        heads: int32 [l, k_h], the query heads that select.   budget, window, pool: of the cut, the window within the budget.
        steps: most tokens decoded a prompt.   stop: ids that end one (default: the model's own).
        eps: 1e-6 as the paper; the code has 1e-5.   progress: called with (prompts done, prompts in all).

    Returns:
        "layer_score" float32 [l], sums to 1; "layer_error" float32 [data sets, l], the sums it was made from.

    Raises:
        ValueError: a window that fills the budget, heads that do not fit the model.
    Source: CompressKV, arXiv 2508.02401, section 3.3, eq. 6 to 9.
    """
    if budget <= window:
        raise ValueError(f"a budget of {budget} leaves nothing beside the window of {window}: raise it above the window")
    policy = Policy(score=RetrievalHeads(heads, window=window, pool=pool), select=TopK(recent=window), budget=budget)
    stop, done = lm.stop_ids if stop is None else tuple(stop), 0
    errors, in_all = np.zeros((len(datasets), lm.decoder.layers)), sum(len(d) for d in datasets)
    for s, samples in enumerate(datasets):
        for ids in samples:
            if len(ids) > budget:
                errors[s] += sample_errors(lm, ids, policy, steps=steps, stop=stop, eps=eps)
            done += 1
            progress(done, in_all)
    return {"layer_score": layer_error.layer_scores(errors).astype(np.float32), "layer_error": errors.astype(np.float32)}

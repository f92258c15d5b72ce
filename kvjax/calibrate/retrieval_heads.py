"""Which query heads look at the text that is being copied: scores of recorded attention rows, on the host in float64.

Axis letters: t generated tokens, l layers, q query heads of a layer, a tokens of the answer span.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int


def once(generated: Sequence[int], span: Sequence[int]) -> Int[np.ndarray, " t"]:
    """1[y_t in the span]: a token counts once, however often the span holds it."""
    return np.array([int(y in span) for y in generated], np.int64)


def per_occurrence(generated: Sequence[int], span: Sequence[int]) -> Int[np.ndarray, " t"]:
    """How often the span holds y_t (the published code's count)."""
    return np.array([list(span).count(y) for y in generated], np.int64)


def semantic_score(
    rows: Float[np.ndarray, "t l q a"], generated: Sequence[int], span: Sequence[int], *, count: Callable = once
) -> Float[np.ndarray, "l q"]:
    """score(h) = Σ_t count(y_t) Σ_{j in A} a_tj: mass anywhere on the answer while the answer is copied.

    Args:
        rows: attention on the span's positions by the query whose logits gave y_t, after the full softmax.
        generated: y_1 .. y_t, token ids.   span: token ids at the span's positions.
        count: `once`, or `per_occurrence`; equal where the span repeats no token.

    Source: CompressKV, arXiv 2508.02401, eq. 5.
    """
    return np.einsum("t,tlqa->lq", count(generated, span).astype(np.float64), rows.astype(np.float64))


def classical_score(
    top: Int[np.ndarray, "t l q"], generated: Sequence[int], prompt: Sequence[int], *, start: int, size: int
) -> Float[np.ndarray, "l q"]:
    """Σ_t 1[top_t in A and x_top = y_t] / |A|: the share of the span a head copies by its most attended position.

    Args:
        top: the most attended position of each head when y_t was produced (ties: the lower position).
        prompt: the prompt's token ids.   start, size: where the span A is.

    Source: *Retrieval Head Mechanistically Explains Long-Context Factuality*, arXiv 2404.15574, section 2.
    """
    tokens = np.full(max(int(top.max(initial=0)) + 1, len(prompt)), -1)
    tokens[: len(prompt)] = prompt
    hit = (top >= start) & (top < start + size) & (tokens[top] == np.asarray(generated, np.int64)[:, None, None])
    return hit.sum(0) / float(size)


def rank_heads(score: Float[np.ndarray, "l q"]) -> Int[np.ndarray, "l q"]:
    """Query heads of each layer, best first; equal scores: the lower head."""
    return np.argsort(-score, axis=1, kind="stable").astype(np.int32)


def top_heads(score: Float[np.ndarray, "l q"], count: int) -> Bool[np.ndarray, "l q"]:
    """Mask of the `count` best heads of the whole model; equal scores: the lower layer, then the lower head."""
    mask = np.zeros(score.size, bool)
    mask[np.argsort(-score.ravel(), kind="stable")[:count]] = True
    return mask.reshape(score.shape)


def locate_span(prompt: Sequence[int], answer: Sequence[int], *, share: float = 0.9) -> int | None:
    """Start of the first window of len(answer) prompt tokens whose set of ids covers more than `share` of the answer's.

    None if there is no such window, or no answer. Ids, not their order: the ends of a phrase are tokenised with its neighbours.
    """
    wanted, size = set(answer), len(answer)
    for start in range(len(prompt) - size + 1 if size else 0):
        if len(wanted & set(prompt[start : start + size])) > share * len(wanted):
            return start
    return None


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits."""
    return re.findall(r"[^\W_]+", text.lower())


def recall(response: Sequence, answer: Sequence) -> float:
    """ROUGE-1 recall: share of the answer's words found in the response, each as often as it is there; no stemming, which
    the release of CompressKV does."""
    found = Counter(answer) & Counter(response)
    return sum(found.values()) / len(answer) if len(answer) else 0.0


def succeeded(response: Sequence, answer: Sequence) -> bool:
    """Whether a run counts: ROUGE-1 recall above 0.5."""
    return recall(response, answer) > 0.5

"""The one table from a recorded press (class and parameters) to a kvjax policy."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

import kvjax
from kvjax import allocate, encode, score, select
from kvjax.policy import Policy
from tests.golden.folder import Cell
from tests.golden.share_pyramid import SharePyramid

#: Parameters a press has when the manifest does not name them.
DEFAULTS = {
    "window_size": 64, "kernel_size": 5, "n_sink": 4, "beta": 20, "alpha_safeguard": 0.2, "n_future_positions": 512,
    "use_covariance": True, "use_vnorm": True, "epsilon": 0.0, "compression_interval": 512, "target_size": 2048,
}  # fmt: skip

Pieces = tuple[Any, select.TopK]


def _window(p: dict) -> Pieces:
    """The observation window is kept by construction; only the positions before it are ranked."""
    scorer = score.WindowAttention(p["window_size"], pool=score.AvgPool(p["kernel_size"]), heads=score.GroupMean())
    return scorer, select.TopK(recent=p["window_size"])


def _expected(p: dict) -> Pieces:
    scorer = score.ExpectedAttention(
        future=p["n_future_positions"], sinks=p["n_sink"], covariance=p["use_covariance"], value_norm=p["use_vnorm"],
        eps=p["epsilon"],
    )  # fmt: skip
    return scorer, select.TopK(sinks=p["n_sink"])


def _tova(p: dict) -> Pieces:
    """The recorded form always keeps the newest token, which the paper does not."""
    return score.WindowAttention(1, pool=score.NoPool(), heads=score.AllMean()), select.TopK(recent=1)


def _lag(p: dict) -> Pieces:
    """Nothing is added to a range."""
    scorer = score.LagSpread(sinks=p["n_sink"], lag=p["lag_size"], cross=p["cross_scoring"], eps=0.0)
    return scorer, select.TopK()


#: Prunes channels of keys: `ratio` is their share.
CHANNELS = "ThinKPress"

#: Press class → scorer and protection.
SCORERS: dict[str, Callable[[dict], Pieces]] = {
    "KnormPress": lambda p: (score.KeyNorm(), select.TopK()),
    "StreamingLLMPress": lambda p: (score.Recency(), select.TopK(sinks=p["n_sink"])),
    "SnapKVPress": _window,
    "PyramidKVPress": _window,
    "TOVAPress": _tova,
    "ObservedAttentionPress": lambda p: (score.VisibleMeanAttention(), select.TopK()),
    "ExpectedAttentionPress": _expected,
    "KeyDiffPress": lambda p: (score.KeyDiff(), select.TopK()),
    "LagKVPress": _lag,
    "CURPress": lambda p: (score.WindowLeverage(window=p["local_window_size"], sinks=p["num_sinks"]), select.TopK()),
    "NonCausalAttnPress": lambda p: (score.NonCausalAttention(chunk=p["chunk_size"], filled=True), select.TopK()),
}

#: Wrappers around a scorer.
HEAD_WISE, WHILE_DECODING = ("AdaKVPress", "CriticalAdaKVPress"), "DecodingPress"
CRITICAL, CHUNKS = ("CriticalKVPress", "CriticalAdaKVPress"), "ChunkKVPress"
#: Wrappers that say themselves how keys are measured.
BY_BLOCKS = {"BlockPress": "block_size", "ChunkPress": "chunk_length"}
#: A wrapper that turns what stays to consecutive positions, and a press that scores heads, not tokens.
REROTATED, HEADS = "KeyRerotationPress", "DuoAttentionPress"
#: Compared while decoding: only what reads no past queries, which the recorded form rotates to the current position.
DECODING_SCORERS = {"KnormPress", "StreamingLLMPress", "TOVAPress", "KeyDiffPress"}


def press_of(cell: Cell) -> tuple[str, str | None]:
    """ "A(B)" → (B, A), "B" → (B, None): the scoring press and the wrapper around it."""
    found = re.match(r"(\w+)(?:\((\w+)\))?", cell.spec.get("cls", ""))
    outer, inner = found.groups() if found else ("", None)
    return (inner, outer) if inner else (outer, None)


def covered(cell: Cell) -> bool:
    """Whether kvjax has the method."""
    inner, wrapper = press_of(cell)
    if wrapper == WHILE_DECODING:
        return inner in DECODING_SCORERS
    if wrapper in BY_BLOCKS:
        return inner == "KeyDiffPress"
    if inner in ("QFilterPress", HEADS, CHANNELS):
        return wrapper is None
    if wrapper == REROTATED:
        return inner in ("KnormPress", "StreamingLLMPress")
    return inner in SCORERS and wrapper in (None, *HEAD_WISE, *CRITICAL, CHUNKS) and (wrapper is None or inner != "PyramidKVPress")


def parameters(cell: Cell) -> dict:
    """The manifest's parameters over the defaults; it leaves out the window of one press, which is that of its other windows."""
    given = {"window_size": 16} if press_of(cell)[1] == "CriticalAdaKVPress" else {}
    return {**DEFAULTS, **given, **cell.spec}


def policy_for(cell: Cell, length: int) -> Policy:
    """The policy that should reproduce a covered cell for prompts of `length` tokens.

    A ratio is the share removed; the recorded form keeps int(length (1 - ratio)) in floating point, at least 1.
    """
    (inner, wrapper), p = press_of(cell), parameters(cell)
    if inner == CHANNELS:  # the recorded form cuts all of the prompt's keys
        return kvjax.methods.think(pruned=float(cell.ratio), recent=0, window=p["window_size"])
    if inner == HEADS:
        return _by_heads(cell, p)
    scorer, selector = _pieces(cell, inner, p)
    if wrapper == WHILE_DECODING:
        when = kvjax.Every(p["compression_interval"], after_prefill=False)
        return Policy(score=scorer, select=selector, when=when, budget=p["target_size"])
    share = 1 - float(cell.ratio)
    policy = Policy(score=scorer, select=selector, budget=max(1, int(length * share)))
    if wrapper in BY_BLOCKS:
        return _by_blocks(policy, wrapper, p[BY_BLOCKS[wrapper]], share)
    if wrapper == REROTATED:
        return policy.replace(encode=encode.Stored(positions=encode.InCache()))
    if wrapper == CHUNKS:
        lifted = score.RecentOnTop(scorer, recent=p["window_size"])
        return policy.replace(score=lifted, select=select.Chunks(size=p["chunk_length"], share=share))
    if wrapper in CRITICAL:
        two = select.TwoStages(first=p["first_stage_ratio"], protects=selector)
        policy = policy.replace(score=score.ValueWeighted(scorer, eps=p["epsilon"]), select=two)
    if wrapper in HEAD_WISE:
        return policy.replace(allocate=allocate.Adaptive(alpha=p["alpha_safeguard"]))
    if inner == "PyramidKVPress":
        return policy.replace(allocate=SharePyramid(p["beta"], p["window_size"], share))
    return policy


def _pieces(cell: Cell, inner: str, p: dict) -> Pieces:
    if inner == "QFilterPress":
        return score.QueryFilter(filters=cell.arrays["q_filters"]), select.TopK()
    if inner == "ExpectedAttentionPress" and press_of(cell)[1] in CRITICAL:
        p = {**p, "epsilon": 0.0}  # what the wrapper is given
    return SCORERS[inner](p)


def _by_blocks(policy: Policy, wrapper: str, size: int, share: float) -> Policy:
    """Keys measured as they arrive: against what was kept so far, or in chunks by themselves."""
    if wrapper == "BlockPress":
        return policy.replace(score=score.BlockKeyDiff(budget=policy.budget, block=size))
    return policy.replace(score=score.ChunkKeyDiff(size=size), select=select.EachChunk(size=size, share=share))


def _by_heads(cell: Cell, p: dict) -> Policy:
    """The round(L H ratio) heads of the lowest recorded scores keep both ends; nothing goes while decoding."""
    scores = cell.arrays["duo_head_scores"]
    full = np.ones(scores.size, bool)
    full[np.argsort(scores.ravel())[: round(scores.size * float(cell.ratio))]] = False
    policy = kvjax.methods.duo_attention(full.reshape(scores.shape), sinks=p["sink_size"], recent=p["recent_size"])
    return policy.replace(when=kvjax.AfterPrefill())


def safe_entries(cell: Cell, length: int) -> int:
    """Entries a head of a head-wise cell is sure of."""
    kept = max(1, int(length * (1 - float(cell.ratio))))
    return int(kept * parameters(cell)["alpha_safeguard"])

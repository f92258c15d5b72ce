"""FASA: each query reads the tokens that a few frequencies of its head point at.

*FASA: Frequency-aware Sparse Attention*, ICLR 2026, arXiv 2602.03152.
Stages: retrieve DominantChannels(dominant, tokens, skip_layers, home) · nothing is evicted.
Frequencies come from `kvjax.calibrate.dominant_pairs`, once a model.
Differs: every query head of a group has its own tokens, as in the release; with a home, the device keeps for each KV head the
channels that its query heads have between them.

BibTeX:
    @inproceedings{fasa2026, title={FASA: Frequency-aware Sparse Attention},
      booktitle={International Conference on Learning Representations}, year={2026}, note={arXiv:2602.03152}}

Example:
    from kvjax.calibrate.dominant_pairs import dominant_pairs
    pairs = dominant_pairs(lm, texts, count=16)
    policy = kvjax.methods.fasa(pairs, heads=lm.decoder.heads, head_dim=lm.decoder.head_dim, tokens=256)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""


import numpy as np

from kvjax.placement import OnDevice
from kvjax.policy import Policy
from kvjax.retrieve import Dominant, DominantChannels, HalfSplit, Interleaved

REQUIRES = ("calibration",)


def fasa(
    pairs: np.ndarray, heads: int, head_dim: int, tokens: int | float = 256, skip_layers: int = 1,
    layout: HalfSplit | Interleaved = HalfSplit(), home: OnDevice | None = None, origin: str = "",
) -> Policy:  # fmt: skip
    """Keep everything, read `tokens` a query.

    Args:
        pairs: [L, H_q, N], dominant frequency pairs of every query head, or [L, H, N] of every KV head.
        heads: KV heads of the model.   head_dim: its head dimension.
        tokens: an int, or the share of the prompt as a float in (0, 1]; 1.0 reads everything.
        skip_layers: first layers that read everything.
        layout: HalfSplit() or Interleaved(), which channels a pair is.
        home: where the prompt's values and other key channels are: OnHost(), ByCallback() or OnDevice(); None leaves them in place.
        origin: which model and text the pairs came from.
    """
    dominant = Dominant.of(pairs, heads=heads, d=head_dim, layout=layout)
    return Policy(retrieve=DominantChannels(dominant=dominant, tokens=tokens, skip_layers=skip_layers, home=home, origin=origin))

"""FASA: each query reads the tokens that a few frequencies of its head point at.

*FASA: Frequency-aware Sparse Attention*, ICLR 2026, arXiv 2602.03152.
Stages: retrieve DominantChannels(dominant, tokens, skip_layers, home) · nothing is evicted.
Frequencies come from an artefact, calibrated once a model (`kvjax calibrate fasa`).
Differs: every query head of a group has its own tokens, as in the release; with a home, the device keeps for each KV head the
channels that its query heads have between them. A pair is what the model rotates together, channels i and i + d/2; the release has
neighbours, 2i and 2i + 1, for models that rotate halves (`Interleaved()`). The built-in artefact is of 8 texts of 1,024 tokens, the
release's of long ones, and has 16 of a head's 32 frequencies, a half, where the paper keeps 16 of 64, a quarter.

BibTeX:
    @inproceedings{fasa2026, title={FASA: Frequency-aware Sparse Attention},
      author={Wang, Yifei and Wang, Yueqi and Yue, Zhenrui and Zeng, Huimin and Wang, Yong and Lourentzou, Ismini and Tu, Zhengzhong
      and Chu, Xiangxiang and McAuley, Julian},
      booktitle={International Conference on Learning Representations}, year={2026}, note={arXiv:2602.03152}}

Example:
    policy = kvjax.methods.fasa(tokens=256)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.placement import OnDevice
from kvjax.policy import Policy
from kvjax.retrieve import Dominant, DominantChannels, HalfSplit, Interleaved


def fasa(
    artefact: ArtefactLike = "smollm2-135m", tokens: int | float = 256, skip_layers: int = 1,
    layout: HalfSplit | Interleaved = HalfSplit(), home: OnDevice | None = None,
) -> Policy:  # fmt: skip
    """Keep everything, read `tokens` a query.

    Args:
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled. Its table
            `pairs` is [L, H_q, N], dominant frequency pairs of every query head, or [L, H, N] of every KV head.
        tokens: an int, or the share of the prompt as a float in (0, 1]; 1.0 reads everything.
        skip_layers: first layers that read everything.
        layout: HalfSplit() or Interleaved(), which channels a pair is; that by which the pairs were found.
        home: where the prompt's values and other key channels are: OnHost(), ByCallback() or OnDevice(); None leaves them in place.

    Raises:
        FileNotFoundError, ValueError: no artefact there, or one that is not FASA's.
    """
    found = resolve(artefact, "fasa")
    dominant = Dominant.of(found.tables["pairs"], heads=found.model["heads"], d=found.model["head_dim"], layout=layout)
    read = DominantChannels(dominant=dominant, tokens=tokens, skip_layers=skip_layers, home=home, origin=found.origin)
    return Policy(retrieve=read)

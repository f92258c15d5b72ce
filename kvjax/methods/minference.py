"""MInference: the prompt is read with a sparse pattern a query head, everything is kept, decoding is exact.

*MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention*, arXiv 2407.02490, section 3.
Stages: attention MInference(patterns) while the prompt is read · nothing is evicted.
Any policy can be read for this way: `kvjax.prefill(lm, ids, attention=MInference(...))`, or `policy.replace(attention=...)`.
Differs: with `chunk=` a prompt is estimated chunk by chunk; the mask is exact where the released kernel rounds diagonals up to
blocks of 64.

BibTeX:
    @inproceedings{jiang2024minference,
      title={{MInference} 1.0: Accelerating Pre-filling for Long-Context {LLMs} via Dynamic Sparse Attention},
      author={Jiang, Huiqiang and Li, Yucheng and Zhang, Chengruidong and Wu, Qianhui and Luo, Xufang and Ahn, Surin and Han,
              Zhenhua and Abdi, Amir H. and Li, Dongsheng and Lin, Chin-Yew and Yang, Yuqing and Qiu, Lili},
      booktitle={Advances in Neural Information Processing Systems},
      year={2024}
    }

Example:
    policy = kvjax.methods.minference()
    pre = kvjax.prefill(lm, ids, needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=32)
"""

from kvjax.artefacts.artefact import ArtefactLike
from kvjax.policy import Policy
from kvjax.prefill import MInference


def minference(artefact: ArtefactLike | None = None) -> Policy:
    """Read the prompt with sparse attention; keep and read everything afterwards.

    Args:
        artefact: a pattern for each query head: an Artefact, the folder of one (`kvjax calibrate minference`), or the name of a
            built-in one; of the model that will be prefilled. None: vertical-slash (1000, 6096) for every head of any model.
    """
    return Policy(attention=MInference() if artefact is None else MInference.of(artefact))

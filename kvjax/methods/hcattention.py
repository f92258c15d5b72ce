"""HCAttention: keys as codes on the device, values in host memory, a few of them read for every query.

*HCAttention: Extreme KV Cache Compression via Heterogeneous Attention Computing for LLMs*, arXiv 2507.19823, section 3.
Stages: encode Stored(keys=ProductQuantized(codebook), placement=OnHost()) · retrieve TopP(tau) · nothing is evicted.
Codebooks come from an artefact, one for each layer, KV head and group of channels: the paper's definition. Its table 4b marks these
with * and finds one codebook shared by all groups slightly better; its text says the opposite.
Differs: the built-in codebooks have 256 centroids for 2 channels, the paper's for 2 (25%) or 4 (12.5%), 8192 in its ablations (its
main tables do not say), and are fitted on 4 texts, its on 3.
Where the paper is silent: the newest token is coded at once (`fp_window` keeps the newest exact), every
query head has its own set, and rotated keys are coded.

BibTeX:
    @misc{yang2025hcattention, title={HCAttention: Extreme KV Cache Compression via Heterogeneous Attention Computing for LLMs},
      author={Dongquan Yang and others}, year={2025}, eprint={2507.19823}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.hcattention()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.codec import ProductQuantized
from kvjax.encode import OnDevice, OnHost, Slide, Stored
from kvjax.policy import Policy
from kvjax.retrieve import SetPerQueryHead, TopP
from kvjax.types import Function


def hcattention(
    artefact: ArtefactLike | None = "smollm2-135m", tau: float = 0.9, placement: OnDevice = OnHost(),
    heads: Function = SetPerQueryHead(), fp_window: int | None = None,
) -> Policy:  # fmt: skip
    """Code every key, keep every value on the host, read the fewest slots whose attention reaches tau.

    Args:
        artefact: an Artefact, the path of one, or the name of a built-in one; of the model that will be prefilled. None leaves
            keys as they are: the paper's 50% setting, values offloaded only.
        tau: share of the attention mass a query reads, in (0, 1].
        placement: OnHost(), ByCallback(), or OnDevice() where there is no host to offload to.
        heads: SetPerQueryHead(), UnionOfGroup() or SetOfGroupMean(): whose set it is.
        fp_window: newest keys of every head that stay exact, on the device; None codes a key as it comes, 0 after its own step.
    """
    if artefact is None:
        return Policy(encode=Stored(placement=placement), retrieve=TopP(tau=tau, heads=heads))
    found = resolve(artefact, "hcattention")
    keys = ProductQuantized(found.tables["codebook"], origin=found.origin)
    window = None if fp_window is None else Slide(fp_window)
    return Policy(encode=Stored(keys=keys, placement=placement, window=window), retrieve=TopP(tau=tau, heads=heads))

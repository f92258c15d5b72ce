"""Retrieval beside eviction at the same bytes on the device: a quarter and an eighth of the 16-bit cache.

A retrieval method keeps every token, most of it in host memory or in codes; its settings below leave so much on the device. An
evicting one keeps as many slots as those bytes hold.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.codec import Affine
from kvjax.encode import OnHost, Stored

Builds = dict[str, Callable[[], kvjax.Policy]]
EVICTING = ("snapkv", "adakv", "compactor", "kvzip")
#: Share of the prompt that a query reads, where a method is told how much.
READ = 0.25


def variants(setting: Setting) -> list[Variant]:
    """Every retrieval method whose settings leave as little on the device, then eviction; a quarter first."""
    found = []
    for share, made in ((0.25, _quarter(setting)), (0.125, _eighth(setting))):
        evicting = {name: partial(_evicting, name, share) for name in EVICTING}
        found += [Variant(f"{name}, {share:.3g}", build) for name, build in (made | evicting).items()]
    return found


def _evicting(name: str, share: float) -> kvjax.Policy:
    return getattr(kvjax.methods, name)(budget=share)


def _quarter(setting: Setting) -> Builds:
    methods = kvjax.methods
    eight_bits = Stored(keys=Affine(bits=8, group=setting.head_dim), placement=OnHost())
    return {
        "hcattention with keys in 8 bits": lambda: methods.hcattention(artefact=None).replace(encode=eight_bits),
        "infinigen": lambda: methods.infinigen(artefact=setting.artefact("infinigen"), part=0.395),
        "omnikv": lambda: methods.omnikv(tokens=READ, filters=_filters(setting, 0.25), waiting=0),
        "shadowkv": lambda: methods.shadowkv(rank=setting.heads * setting.head_dim // 4, tokens=READ, outliers=0),
        "pqcache": lambda: methods.pqcache(tokens=READ - 0.14, local=0.14, groups=8),
        "fasa": partial(_fasa, setting, 7 / 32),
        "mpcache": lambda: methods.mpcache(budget=0.2),
    }


def _eighth(setting: Setting) -> Builds:
    methods = kvjax.methods
    return {
        "hcattention": lambda: methods.hcattention(artefact=setting.artefact("hcattention")),
        "infinigen": lambda: methods.infinigen(artefact=setting.artefact("infinigen"), part=0.125),
        "omnikv": lambda: methods.omnikv(tokens=READ, filters=_filters(setting, 0.125), waiting=0),
        "shadowkv": lambda: methods.shadowkv(rank=24, tokens=READ, chunk=32, outliers=0, local=1),
        "pqcache": lambda: methods.pqcache(tokens=READ - 0.05, local=0.05),
        "magicpig": lambda: methods.magicpig(dense=(0, setting.layers // 2), local=32),
        "fasa": partial(_fasa, setting, 3 / 32),
        "mpcache": lambda: methods.mpcache(budget=0.09),
    }


def _filters(setting: Setting, share: float) -> tuple[int, ...]:
    """The layers that keep everything on the device: a share of all, evenly spaced over the first half of the model."""
    count = max(1, int(setting.layers * share))
    return tuple(int(layer) for layer in np.linspace(0, setting.layers // 2 - 1, count))


def _fasa(setting: Setting, pairs: float) -> kvjax.Policy:
    """FASA with so many frequencies of a KV head, as a share of its channels."""
    found = setting.artefact("fasa", count=int(setting.head_dim * pairs), by_kv_head=True)
    return kvjax.methods.fasa(found, tokens=READ, home=OnHost())


ABLATION = Ablation(
    title="Retrieval and eviction: the same bytes on the device",
    source="no paper, a comparison (bytes of a cache in 16 bits: `--dtype bfloat16`)",
    variants=variants,
    budget=0.25,
    tasks="needle,niah_multikey_1",
    question="unseen",
    lengths=(1024, 2048, 4096),
    prompts=50,
    note="Quest, InfLLM and, with the built-in artefact, HeteroCache keep more than a quarter on the device whatever their "
    "settings. OmniKV's filters are evenly spaced layers of the model's first half, none of which waits; that half, and how much a "
    "query reads, were chosen on prompts of another seed. "
    f"Methods that are told how many tokens a query reads are told {READ:g} of the prompt.",
)

if __name__ == "__main__":
    main(__file__)

"""HCAttention, table 3: how much attention mass each query reads; keys exact, values on the device."""

from functools import partial

import kvjax
from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.run import main
from kvjax.retrieve import TopP

PAPER = {0.3: 40.2, 0.5: 41.2, 0.7: 43.9, 0.9: 47.2, 1.0: 46.9}


def variants(setting: Setting) -> list[Variant]:
    """tau from a third of the mass to all of it."""
    del setting
    return [Variant(f"tau {tau}", partial(_reading, tau), {"12 LongBench tasks": score}) for tau, score in PAPER.items()]


def _reading(tau: float) -> kvjax.Policy:
    return kvjax.methods.full().replace(retrieve=TopP(tau=tau))


ABLATION = Ablation(
    title="HCAttention: tau",
    source="arXiv 2507.19823, table 3 (Llama-2-7B-32K)",
    variants=variants,
    budget=1.0,
    question="unseen",
)

if __name__ == "__main__":
    main(__file__)

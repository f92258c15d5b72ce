"""Training what a policy learns: a forward pass that can be differentiated, and what gates add to it."""

from kvjax.train.attention import causal_attention
from kvjax.train.forward import Attend, Hook, by_blocks, forward, plain
from kvjax.train.trim_kv import capacity, decay, decaying, retained

__all__ = [
    "Attend", "Hook", "by_blocks", "capacity", "causal_attention", "decay", "decaying", "forward", "plain", "retained",
]  # fmt: skip

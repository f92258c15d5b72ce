"""Gates: small Flax modules that say of each token and KV head what it is worth; and learned tokens that read a prompt."""

from kvjax.gates.attention_gate import AttentionGate
from kvjax.gates.decision_neurons import KeyNeuron, QueryNeuron
from kvjax.gates.deep_retention import DeepRetentionGate
from kvjax.gates.eviction_logit import EvictionGate
from kvjax.gates.gate import Gate, init_gate
from kvjax.gates.retaining import RetainingGate
from kvjax.gates.retention import RetentionGate
from kvjax.gates.side_maps import init_side_maps
from kvjax.gates.soft_tokens import SoftTokens, init_soft_tokens
from kvjax.gates.surrogate import SurrogateGate

__all__ = [
    "AttentionGate", "DeepRetentionGate", "EvictionGate", "Gate", "KeyNeuron", "QueryNeuron", "RetainingGate", "RetentionGate",
    "SoftTokens", "SurrogateGate", "init_gate", "init_side_maps", "init_soft_tokens",
]  # fmt: skip

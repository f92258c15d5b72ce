"""Gates: small Flax modules that say of each token and KV head what it is worth; one set of weights a layer."""

from kvjax.gates.deep_retention import DeepRetentionGate
from kvjax.gates.eviction_logit import EvictionGate
from kvjax.gates.gate import Gate, init_gate
from kvjax.gates.retaining import RetainingGate
from kvjax.gates.retention import RetentionGate
from kvjax.gates.surrogate import SurrogateGate

__all__ = [
    "DeepRetentionGate", "EvictionGate", "Gate", "RetainingGate", "RetentionGate", "SurrogateGate", "init_gate",
]

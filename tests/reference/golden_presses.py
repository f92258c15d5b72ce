"""Recorded presses of tiny random models, read for the references: arrays, weights, queries of one layer.

The folder lies beside the project or $KVJAX_GOLDEN says where; without it the tests that need it are skipped.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float

from tests.golden.folder import Cell, GoldenModel, discover

from .rotary import frequencies, rotate

FOLDER = Path(os.environ.get("KVJAX_GOLDEN", Path(__file__).parents[3] / "shared" / "golden" / "open"))
NAMES = sorted(p.parent.name for p in FOLDER.glob("*/presses.npz"))

#: Runs a test once for each model with recorded presses.
every_model = pytest.mark.parametrize("name", NAMES or [pytest.param("none", marks=pytest.mark.skip(f"no data at {FOLDER}"))])

#: Kept sets whose recorded margin lies above this must match exactly.
SURE = 1e-5


def model(name: str) -> GoldenModel:
    return next(m for m in discover(FOLDER) if m.name == name)


def cells(name: str, press: str) -> list[Cell]:
    """The press at every ratio."""
    return [c for c in model(name).cells() if c.name == press]


def kept_count(length: int, ratio: str) -> int:
    """The recorded form's count: int(n (1 - ratio)), at least 1."""
    return max(1, int(length * (1 - float(ratio))))


def config(name: str) -> dict:
    return json.loads((FOLDER / name / "config.json").read_text())


def head_dim(name: str) -> int:
    c = config(name)
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def weights(name: str) -> dict[str, np.ndarray]:
    """Every tensor of model.safetensors, float64: a length, a JSON header, then the bytes."""
    raw = (FOLDER / name / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    return {key: _tensor(raw[8 + size :], entry) for key, entry in header.items()}


def _tensor(data: bytes, entry: dict) -> np.ndarray:
    start, end = entry["data_offsets"]
    if entry["dtype"] == "BF16":
        bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(entry["shape"]).astype(np.float64)
    return np.frombuffer(data[start:end], np.float32).reshape(entry["shape"]).astype(np.float64)


def output_projection(name: str, layer: int) -> Float[np.ndarray, "h g d D"]:
    """W_o^(h): the rows of the output projection that belong to each query head."""
    heads, groups = _heads(name)
    stored = weights(name)[f"model.layers.{layer}.self_attn.o_proj.weight"]
    return stored.T.reshape(heads, groups, head_dim(name), -1)


def raw_queries(name: str, layer: int) -> Float[np.ndarray, "h g n d"]:
    """Queries before the rotary embedding, of the first prompt, from the recorded hidden states."""
    (heads, groups), w, c = _heads(name), weights(name), config(name)
    prefix = f"model.layers.{layer}."
    x = model(name).reference()["hidden_states"][layer].astype(np.float64)
    x = rms_norm(x, w[prefix + "input_layernorm.weight"], c["rms_norm_eps"])
    q = x @ w[prefix + "self_attn.q_proj.weight"].T + w.get(prefix + "self_attn.q_proj.bias", 0.0)
    q = q.reshape(len(x), heads, groups, head_dim(name)).transpose(1, 2, 0, 3)
    norm = w.get(prefix + "self_attn.q_norm.weight")
    return q if norm is None else rms_norm(q, norm, c["rms_norm_eps"])


def queries(name: str, layer: int) -> Float[np.ndarray, "h g n d"]:
    """The same after the rotary embedding."""
    q = raw_queries(name, layer)
    return rotate(q, np.arange(q.shape[2]), frequencies(config(name), head_dim(name)))


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def _heads(name: str) -> tuple[int, int]:
    c = config(name)
    return c["num_key_value_heads"], c["num_attention_heads"] // c["num_key_value_heads"]


def decided(cell: Cell) -> bool:
    """Whether the recorded kept set has no near tie; wrappers record no margin and have none either."""
    return cell.margin is None or cell.margin >= SURE


def mask(kept: list, length: int) -> np.ndarray:
    """Kept positions [h][k] as bool [h, n]."""
    out = np.zeros((len(kept), length), bool)
    for head, positions in enumerate(kept):
        out[head, np.asarray(positions, int)] = True
    return out

"""Tiny checkpoints of the four families, a plain dense attention, and the folder of golden data."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import models
from models.families import family_of

SIZES = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


@pytest.fixture(params=["Llama", "Mistral", "Qwen2", "Qwen3"])
def hf(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A config.json of each family in turn."""
    return {"architectures": [f"{request.param}ForCausalLM"], **SIZES}


@pytest.fixture
def llama_hf() -> dict[str, Any]:
    """A config.json of a Llama."""
    return {"architectures": ["LlamaForCausalLM"], **SIZES}


def _tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    family = family_of(config)
    lm = models.random(family.config(config), seed)
    names = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(lm.params)[0]:
        keys = [str(getattr(key, "key", getattr(key, "idx", None))) for key in path]
        layer = keys[1] if keys[0] == "layers" else None
        ours = ".".join(["layers", "{l}", *keys[2:]] if layer else keys)
        names[family.NAMES[ours].format(l=layer)] = np.array(leaf)
    return names


@pytest.fixture
def tensors() -> Callable[..., dict[str, np.ndarray]]:
    """(config.json, seed) -> random tensors by Hugging Face's names."""
    return _tensors


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """(config.json, tensors, file names) -> a checkpoint folder; several files share the tensors and get an index."""

    def write(config: dict[str, Any], values: dict[str, np.ndarray], files: int = 1) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        if files == 1:
            save_file(values, tmp_path / "model.safetensors")
            return tmp_path
        where = {name: f"model-{i % files}.safetensors" for i, name in enumerate(values)}
        for file in set(where.values()):
            save_file({n: v for n, v in values.items() if where[n] == file}, tmp_path / file)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        return tmp_path

    return write


def _attend(window: int | None) -> Callable[[Any], tuple[jax.Array, Any]]:
    def attend(heads: Any) -> tuple[jax.Array, Any]:
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", heads.q, heads.k).astype(jnp.float32) * heads.q.shape[-1] ** -0.5
        query, key = jnp.arange(scores.shape[-2])[:, None], jnp.arange(scores.shape[-1])
        seen = (key <= query) & (key > query - (window or scores.shape[-1]))
        chance = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(heads.v.dtype)
        return jnp.einsum("bhgtn,bhnd->bhgtd", chance, heads.v), (heads.k, heads.v)

    return attend


@jax.jit
def _forward(lm: models.LanguageModel, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = lm.decoder.embed(lm.params, tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    caches = []
    for weights, window in zip(lm.params["layers"], lm.decoder.windows, strict=True):
        x, cache = lm.decoder.layer(weights, x, positions, _attend(window))
        caches.append(cache)
    keys, values = (jnp.stack(part) for part in zip(*caches, strict=True))
    return lm.decoder.unembed(lm.params, x), keys, values


@pytest.fixture
def forward() -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """(lm, tokens [b t]) -> logits [b t v], keys and values [l b h t d], with dense causal attention."""
    return lambda lm, tokens: _forward(lm, jnp.asarray(tokens, jnp.int32))


def golden_folders() -> list[Path]:
    """The model folders of the golden data: $KVJAX_GOLDEN, or shared/golden/open beside the repository."""
    beside = Path(__file__).parents[3] / "shared" / "golden" / "open"
    root = Path(os.environ.get("KVJAX_GOLDEN") or beside)
    return sorted(path.parent for path in root.glob("*/reference.npz")) if root.is_dir() else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `golden` one run per folder; it is skipped where there is none."""
    if "golden" in metafunc.fixturenames:
        folders = golden_folders()
        absent = [pytest.param(None, marks=pytest.mark.skip(reason="no golden data (set KVJAX_GOLDEN)"))]
        metafunc.parametrize("golden", folders or absent, ids=[path.name for path in folders] or None)

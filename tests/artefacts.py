"""Calibrated tables of the toy model (3 layers, 2 KV heads, groups of 2, head dimension 16), as calibration would write them."""

from functools import cache

import numpy as np

from kvjax.artefacts.artefact import Artefact

SHAPE = dict(layers=3, heads=2, groups=2, head_dim=16)


@cache
def toy(method: str, seed: int = 0) -> Artefact:
    """The tables of one method, random where any will do."""
    tables, settings = TABLES[method](np.random.default_rng(seed))
    return Artefact(method, {"name": "toy", **SHAPE}, {}, settings, tables)


def _compresskv(rng):
    score = rng.random((3, 4)).astype(np.float32)
    tables = {
        "srh": np.argsort(-score, 1).astype(np.int32),
        "srh_score": score,
        "classical_score": rng.random((3, 4)).astype(np.float32),
        "layer_score": np.array([0.5, 0.2, 0.3], np.float32),
        "layer_error": np.array([[0.5, 0.2, 0.3]], np.float32),
    }
    return tables, {"budget": 32, "window": 8}


def _heterocache(rng):
    tables = {
        "role": np.array([[3, 4], [1, 1], [4, 3]], np.int8),
        "alloc_ratio": np.array([[-1, 1.3], [0.6, 0.9], [1.2, -1]], np.float32),
        "stability": np.array([[0.4, 0.4], [0.9, 0.6], [0.45, 0.3]], np.float32),
        "cluster": np.array([[0, 0], [-1, -1], [1, 1]], np.int32),
    }
    return tables, {"theta_stab": 0.5, "theta_sim": 0.5, "kappa": 5, "k": 16}


def _hcattention(rng):
    return {"codebook": rng.normal(size=(3, 2, 8, 256, 2)).astype(np.float16)}, {"groups": 8, "centroids": 256}


def _kvquant(rng):
    levels = np.sort(rng.uniform(-1, 1, size=(3, 2, 8)).astype(np.float32), -1)
    high = rng.uniform(1, 3, size=(3, 2, 16)).astype(np.float16)
    tables = {"low": -high, "high": high, "levels_3": levels, "matched_3": np.float32(1.1) * levels}
    return tables, {"kept": 0.99, "each": 1}


def _coupled_quantization(rng):
    books = {name: rng.normal(size=(3, 2, 4, 64, 4)).astype(np.float16) for name in ("keys", "values")}
    return books, {"channels": 4, "bits": 6}


def _kvtc(rng):
    """32 channels of two heads: runs of every width, one of them of nothing, and a layer of fewer runs."""
    tables = {}
    for side in ("keys", "values"):
        basis = np.linalg.qr(rng.normal(size=(3, 32, 32)))[0]
        tables |= {f"{side}_mean": 0.1 * rng.normal(size=(3, 32)).astype(np.float32), f"{side}_basis": basis.astype(np.float16)}
        tables[f"{side}_sizes_2"] = np.array([[1, 4, 16, 11], [16, 1, 15, 0], [2, 3, 11, 16]], np.uint16)
        tables[f"{side}_bits_2"] = np.array([[8, 8, 4, 2], [8, 0, 4, 0], [8, 0, 8, 2]], np.uint8)
    return tables, {"ratios": [2]}


def _fasa(rng):
    """Three frequency pairs of each of four query heads; the two of a KV head differ."""
    return {"pairs": np.tile(np.array([[0, 3, 5], [0, 4, 5], [1, 2, 7], [1, 2, 6]], np.int32), (3, 1, 1))}, {"count": 3}


TABLES = {"compresskv": _compresskv, "heterocache": _heterocache, "hcattention": _hcattention}
TABLES |= {"kvquant": _kvquant, "coupled_quantization": _coupled_quantization, "kvtc": _kvtc, "fasa": _fasa}

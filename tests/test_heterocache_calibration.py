"""HeteroCache's calibration on the toy model: rows from a recomputation, tables by the transcription."""

import jax
import numpy as np
import pytest

import kvjax
from kvjax.calibrate import roles
from kvjax.calibrate.heterocache import head_roles, sample_overlaps
from kvjax.score import AvgPool
from tests.conftest import ids_of
from tests.reference import heterocache as hc
from tests.reference.attention import attention_rows

STEPS, K = 6, 12


def rows_by_prefill(lm, ids: list[int]) -> np.ndarray:
    """The last query's attention on the prompt after 0 .. T greedy steps, each from a prefill of its own; [t l h n]."""
    rows, text = [], list(ids)
    for _ in range(STEPS + 1):
        (row,) = kvjax.prefill(lm, text).rows
        layers = [
            attention_rows(np.asarray(e.window_queries(1)[0]), np.asarray(k[0, :, : len(text)]))[:, :, 0, : len(ids)].mean(1)
            for k, e in zip(row.k, row.evidence, strict=True)
        ]
        rows.append(layers)
        text.append(int(row.logits.argmax()))
    return np.array(rows)


@pytest.mark.slow
def test_measured_overlaps(lm):
    ids = ids_of(70, 3)
    rows = rows_by_prefill(lm, ids)
    stable, pairs = sample_overlaps(lm, ids, steps=STEPS, k=K, pool=AvgPool(5))
    for layer in range(3):
        np.testing.assert_allclose(np.median(stable[:, layer], 0), hc.stability(rows[None, :, layer], K, 5), atol=1e-6)
        want = [hc.pairwise(step[layer], K, 5) for step in rows]
        np.testing.assert_allclose(pairs[:, layer], want, atol=1e-6)


@pytest.mark.slow
def test_tables_fit_together(lm):
    seen = []
    found = head_roles(
        lm, [ids_of(70, 3), ids_of(90, 4)], steps=3, k=K, theta_sim=0.2, similarity=roles.MedianOverSteps(),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(1, 2), (2, 2)] and all(x.shape == (3, 2) for x in found.values())
    np.testing.assert_allclose(found["alloc_ratio"], hc.ratios(found["role"], found["stability"].astype(float)), rtol=1e-5)
    assert sum(roles.counts(found["role"]).values()) == 6


@pytest.mark.parametrize("bad", [dict(prompts=[]), dict(prompts=[ids_of(12)]), dict(prompts=[ids_of(40)], steps=0)])
def test_what_says_nothing_is_refused(lm, bad):
    with jax.disable_jit(), pytest.raises(ValueError, match="expected prompts|says nothing"):
        head_roles(lm, **{"steps": 2, "k": K} | bad)

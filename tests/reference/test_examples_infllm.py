"""InfLLM's worked example, and the transcription against the authors' keys and blocks."""

import numpy as np

from tests.reference import golden_methods
from tests.reference.infllm import block_key, relevance

EXAMPLE = np.array([[[1, 0.5], [0.2, 0]], [[0, 0], [1, 0]], [[0.4, 0.4], [0.5, 0.5]]])


def test_two_representatives_and_the_first_block():
    chosen, mean = block_key(np.array([[1, 0], [0, 1], [1, 1], [2, 0]]), np.array([0.1, 0.5, 0.2, 0.4]), 2)
    assert chosen == [1, 3] and mean.tolist() == [1, 0.5]
    found = relevance(np.array([[0.5, 0.5], [0.5, 0]]), EXAMPLE)
    np.testing.assert_allclose(found, [0.85, 0.5, 0.65])


def test_authors_keys_and_blocks():
    g = golden_methods.load("infllm")
    keys, score = g["key"][0], g["local_score"][0]
    at = [range(16 * m, 16 * m + 16) for m in range(9)]
    means = np.array([[block_key(keys[h // 2][r], score[h, r], 4)[1] for h in range(4)] for r in at])
    np.testing.assert_allclose(means, g["block_repr_mean_key"], atol=1e-6)
    for chunk, part in enumerate((slice(0, 16), slice(16, 24))):
        found = relevance(g["query"][0, :, part].mean(1), means)
        assert np.argsort(-found, kind="stable")[:3].tolist() == g["chosen_blocks"][chunk].tolist()

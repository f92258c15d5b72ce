"""MInference's worked example, and the transcription against the authors' indices."""

import numpy as np

from tests.reference import golden_methods
from tests.reference.minference import last_rows, vertical_slash

ROWS = np.array([[0.1, 0, 0.3, 0.1, 0.5, 0], [0.2, 0.1, 0, 0.3, 0.1, 0.3]])


def test_two_columns_and_two_diagonals():
    columns, offsets, mask = vertical_slash(ROWS, 2, 2, (1, 1))
    assert (columns, offsets) == ([0, 4], [0, 2])
    assert mask.sum() == 15
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 3, 4, 5]]


def test_authors_indices():
    g = golden_methods.load("minference")
    q = np.zeros((256, 16))
    q[192:] = g["query_last64"][0, 0]
    columns, offsets, _ = vertical_slash(last_rows(q, g["key"][0, 0], 64), 60, 130, (30, 100))
    assert columns == g["vertical_idx_sorted"].tolist()
    assert offsets == g["slash_offsets_sorted"].tolist()

"""What the checker decides by itself: which entries count, how cells are grouped, and what a bad folder gives."""

import numpy as np
import pytest

from tests.golden.folder import discover
from tests.golden.margin import decided
from tests.golden.result import FAIL, PASS, judged, within


def one_head(values):
    return np.array(values, np.float32)[None, None, None]


def test_a_recorded_margin_decides_everything():
    keep = one_head([1, 0, 1]).astype(bool)
    assert decided(keep, one_head([1, 1, 1]), 1e-4).all()
    assert decided(keep, None, None).all()


def test_ties_at_the_threshold_are_not_compared():
    keep = one_head([1, 1, 0, 0]).astype(bool)
    assert decided(keep, one_head([3, 2, 2, 1]), 0.0)[0, 0, 0].tolist() == [True, False, False, True]
    assert decided(keep, one_head([3, 2, 1.5, 1]), None).all()
    close = one_head([3, 2, 2 - 1e-6, 1])
    assert decided(keep, close, None)[0, 0, 0].tolist() == [True, False, False, True]


def test_heads_that_share_a_threshold_are_judged_together():
    scores = np.array([[9, 8, 7, 1], [3, 2, 7, 0.5]], np.float32)[None, None]
    keep = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], bool)[None, None]
    expected = [[True, True, False, True], [True, True, False, True]]
    assert decided(keep, scores, None, shared=True)[0, 0].tolist() == expected
    assert decided(keep, scores, None).all()


def test_a_record_at_odds_with_its_scores_is_no_tie():
    keep = one_head([0, 1, 1, 0]).astype(bool)
    assert decided(keep, one_head([4, 3, 2, 1]), None).all()


def test_forced_entries_do_not_set_the_threshold():
    scores = np.array([[9, 8, 7, 6], [0.3, 0.2, 0.1, 0.0]], np.float32)[None, None]
    keep = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], bool)[None, None]
    assert decided(keep, scores, None, shared=True, safe=1).all()


def test_a_tie_where_forcing_ends_counts_only_if_it_decided():
    scores = np.array([[9, 8, 7, 6], [0.3, 0.3, 0.1, 0.0]], np.float32)[None, None]
    keep = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], bool)[None, None]
    expected = [[True] * 4, [False, False, True, True]]
    assert decided(keep, scores, None, shared=True, safe=1)[0, 0].tolist() == expected
    scores[..., 0, 3] = 0.2
    keep = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)[None, None]
    assert decided(keep, scores, None, shared=True, safe=1).all()


def test_nan_never_passes():
    assert judged("m", "c", [within("logits", float("nan"), 1.0)]).status == FAIL
    assert judged("m", "c", [within("logits", 0.5, 1.0)]).status == PASS


def test_scores_are_carried_to_later_ratios(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    np.savez(folder / "reference.npz", input_ids=np.zeros((1, 2)))
    arrays = {"knorm/0.25/scores": np.ones(1), "knorm/0.25/keep": np.ones(1), "knorm/0.5/keep": np.zeros(1)}
    np.savez(folder / "presses.npz", filters=np.zeros(1), **{"decoding_knorm/decode_ids": np.ones(1)}, **arrays)
    cells = {cell.label: cell for cell in discover(tmp_path)[0].cells()}
    assert set(cells) == {"knorm/0.25", "knorm/0.5", "decoding_knorm"}
    assert (cells["knorm/0.5"].arrays["scores"] == 1).all() and cells["knorm/0.5"].margin is None


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no model"):
        discover(tmp_path)

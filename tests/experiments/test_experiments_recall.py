"""The recall task: a sentence that stands in the text once, parts of it counting, and none that calibration hides."""

import pytest

from experiments.calibrate.needles import NEEDLES
from experiments.commands.tasks import TASKS
from experiments.tasks.chat import encode_plain
from experiments.tasks.recall import RECALL
from tests.experiments.conftest import TEXT


@pytest.fixture(scope="module")
def made(reader):
    haystack = encode_plain(reader, TEXT)
    return [list(RECALL.examples(reader, 900, 6, 0, haystack=haystack, mode=mode)) for mode in ("unseen", "seen")]


def test_the_sentence_stands_in_the_text_once_and_its_opening_is_given(reader, made):
    unseen, seen = made
    for one, other in zip(unseen, seen, strict=True):
        text, prefix, (rest,) = reader.decode(list(one.context)), reader.decode(list(one.prefix)), one.references
        assert text.count(f"{prefix.strip()} {rest}.") == 1 and rest not in reader.decode(list(one.fed))
        assert other.context == one.context and reader.decode(list(other.compressed)).endswith("keep, and where?")
        assert 0 <= one.meta["depth"] <= 1 and len(one.compressed) + one.room <= 900
    assert len({one.references for one in unseen}) > 3


def test_parts_of_the_sentence_count():
    rest = "nine copper lanterns under the wooden bridge"
    assert RECALL.grade(f" {rest}.\nAnd more.", [rest]) == pytest.approx(1, abs=1e-6)
    assert RECALL.grade(" nine copper lanterns.", [rest]) == pytest.approx(2 * 3 / (3 + 7), abs=1e-6)
    assert RECALL.grade(" blue trains.", [rest]) == RECALL.grade("", [rest]) == 0
    assert TASKS["recall"].graded(" nine", [rest])["score"] == pytest.approx(2 / 8, abs=1e-6)


def test_no_sentence_is_one_that_calibration_hides(made):
    for needle in NEEDLES:
        assert not any(needle.answer.strip() in one.references[0] for one in made[0])

"""The serving schedules against the traces worked out by hand, and what they promise."""

import numpy as np
import pytest

from experiments.serving.overlap import Line, Plane, Profile, SubBatch, Times, device_only, overlapped, plan, slack, times
from experiments.serving.stagger import lengths, load, staggered, steady, together

FLAT = Line((0, 1), (0, 1))
PLANE = Plane((0, 1), (0, 1), ((0, 0.5), (0, 0.5)))
#: A token through the layers 1, a token of a prompt's attention 0.1, a slot attended to 0.5 on the device and 1 on the host.
PROFILE = Profile(linear=FLAT, prefill=Line((0, 1), (0, 0.1)), device=PLANE, host=Plane((0, 1), (0, 1), ((0, 1), (0, 1))))


def test_slack_worked_example():
    zero, one = Times(linear=8, prefill=1, device=2, host=7), Times(linear=6, prefill=0, device=0, host=9)
    assert slack(zero, one) == 2  # fits
    assert slack(one, zero) == -1  # one request has to go


def test_tables_are_linear_between_and_beyond_their_points():
    line = Line((0, 10, 20), (0, 1, 3))
    assert [line(x) for x in (5, 10, 15, 40)] == [0.5, 1, 2, 7]
    assert Line((4, 8), (1, 2))(0) == Line((4, 8), (1, 2))(3) == 1  # what a small batch takes is not measured
    assert Line((0, 10, 20), (0, 3, 1))(40) == 1  # no time falls without end
    plane = Plane((1, 3), (0, 100), ((0, 10), (2, 12)))
    assert plane(2, 50) == 6 and plane(1, 200) == 20
    with pytest.raises(ValueError, match="tokens ascending"):
        Line((0, 0), (1, 2))


def test_times_of_a_sub_batch():
    found = times(SubBatch(prefills=(10,), device=(4, 6), host=(3,)), PROFILE)
    assert found == Times(linear=13, prefill=1, device=5, host=3)
    assert times(SubBatch(), PROFILE) == Times(0, 0, 0, 0)


def test_host_requests_wait_until_the_host_is_never_waited_for():
    batches = SubBatch(prefills=(10,), device=(4, 6)), SubBatch(host=(5, 9, 3))  # host 17, the other's layers 12
    found = overlapped(batches, PROFILE)
    assert found.waiting == (9,) and found.batches[1].host == (5, 3)
    assert found.seconds == (12 + 1 + 5) + 2
    for j in (0, 1):
        own, other = (times(found.batches[i], PROFILE) for i in (j, 1 - j))
        assert slack(own, other) >= 0


def test_the_faster_plan_is_taken():
    batches = SubBatch(prefills=(10,), device=(4, 6)), SubBatch(host=(5, 9, 3))
    alone = device_only(batches, PROFILE)
    assert alone.seconds == 18 and alone.throughput == 12 / 18 and alone.waiting == (5, 9, 3)
    assert plan(batches, PROFILE) == overlapped(batches, PROFILE)  # 14 tokens in 20
    slow = SubBatch(device=(1,)), SubBatch(host=(90,))
    assert plan(slow, PROFILE) == device_only(slow, PROFILE)  # the host alone is too slow: nothing to gain


def test_level_sum_worked_example():
    starts = staggered(4, 4, 1)
    assert starts.tolist() == [0, 1, 2, 3]
    assert sorted(lengths(starts, 4, 3)) == [1, 2, 3, 4]
    assert steady(4, 4, 1).tolist() == [10, 10, 10, 10]
    assert load(together(4), 4, 4).tolist() == [4, 8, 12, 16]


@pytest.mark.parametrize("batch,length,every", [(64, 128, 4), (30, 100, 10), (7, 20, 3)])
def test_staggering_halves_the_peak(batch, length, every):
    sums, peak = steady(batch, length, every), load(together(batch), length, length).max()
    assert peak == batch * length
    assert sums.max() <= peak / 2 + batch * (every + 1) / 2 + length  # B·S / 2, and what whole micro-batches add
    np.testing.assert_array_equal(load(staggered(batch, length, every), length, 1), [(staggered(batch, length, every) == 0).sum()])


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="not over after 3 steps"):
        lengths(together(1), 4, 0, period=3)
    with pytest.raises(ValueError, match="at least 1"):
        staggered(0, 4, 1)

"""InfiniGen against its NumPy transcription: skew, columns, the guess of the layer before, steps, bytes."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import resolve
from kvjax.calibrate.skew import skew, skew_of
from kvjax.evidence import SkewedQueries
from kvjax.retrieve.speculated import PartialKeys, fetch_count, guessed, partial_keys
from kvjax.retrieve.token_lists import top_tokens
from kvjax.types import size_class
from tests.conftest import ids_of
from tests.methods import reading
from tests.methods.inputs import layers_of
from tests.reference import infinigen as slow

PART, ALPHA, CAP = 0.5, 1.5, 20


def policy(**changed):
    return kvjax.methods.infinigen(**{"part": PART, "alpha": ALPHA, "cap": CAP, **changed})


@pytest.fixture(scope="module")
def turn(lm):
    return skew(lm, [ids_of(60, 3), ids_of(70, 4)])


def test_what_is_fetched_by_hand():
    """A12: thresholds 3.5 and 0.5, two and four tokens above them, three in the mean."""
    z = np.array([[5, 1, 4.5, 2, 0.5, 3], [2, 1.8, 1.9, -3, -4, 1]], np.float32)
    count = fetch_count(jnp.asarray(z)[None], jnp.ones((1, 6), bool), 1.5, jnp.array([9]))
    np.testing.assert_array_equal(count, [3])
    np.testing.assert_array_equal(fetch_count(jnp.asarray(z)[None], jnp.ones((1, 6), bool), 1.5, jnp.array([2])), [2])
    lists = top_tokens(jnp.asarray(z), jnp.ones((2, 6), bool), jnp.array([3, 3]), most=3)[0]
    np.testing.assert_array_equal(lists, [[0, 2, 5], [0, 1, 2]])
    for got, want in zip(slow.fetched(z.astype(float), 1.5, 9), lists, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_skew_by_hand():
    """Singular values 4 and 2: two columns of weight 5.656854 and 2.828427, and a guess from the first alone."""
    q = np.array([[3, 1], [1, 3]], np.float32)
    turned = skew_of(jnp.asarray(q.T @ q))
    np.testing.assert_allclose(np.abs(q @ turned).sum(0), [5.656854, 2.828427], atol=1e-5)
    keys = jnp.asarray([[1, 0], [0, 2]], jnp.float32)[None, None]
    weight = jnp.asarray(np.abs(q @ turned).sum(0))[None, None]
    one = partial_keys(keys, weight, turned[None], many=1)
    asked = jnp.asarray([2, 1], jnp.float32)[None, None, None]
    np.testing.assert_allclose(2**0.5 * guessed(asked, one)[0, 0], [1.5, 3.0], atol=1e-5)
    both = partial_keys(keys, weight, turned[None], many=2)
    np.testing.assert_allclose(2**0.5 * guessed(asked, both)[0, 0], [2, 2], atol=1e-5)


def test_a_calibrated_skew_changes_no_product_and_gathers_weight(lm, turn, prompt):
    assert turn.shape == (3, 2, 16, 16)
    np.testing.assert_allclose(np.einsum("lhdc,lhec->lhde", turn, turn), np.broadcast_to(np.eye(16), turn.shape), atol=1e-5)
    pre = kvjax.prefill(lm, prompt, needs={SkewedQueries(turn, "a"), SkewedQueries()})
    for layer, seen in enumerate(layers_of(lm, prompt)):
        for need, matrix in ((SkewedQueries(turn, "a"), turn[layer]), (SkewedQueries(), [np.eye(16)] * 2)):
            got = np.asarray(pre.rows[0].evidence[layer].of(need))[0]
            want = [np.abs(seen.q[h] @ matrix[h]).sum((0, 1)) for h in range(2)]
            np.testing.assert_allclose(got, want, rtol=1e-5)
            made = partial_keys(pre.rows[0].k[layer], jnp.asarray(got)[None], need.at(layer).skew, many=5)
            for h in range(2):
                chosen = slow.columns(seen.q[h].astype(float), np.asarray(matrix[h], float), 5)
                np.testing.assert_allclose(made.basis[0, h], np.asarray(matrix[h])[:, chosen], atol=1e-6)
                np.testing.assert_allclose(made.keys[0, h, :90], seen.k[h] @ np.asarray(matrix[h])[:, chosen], atol=1e-5)


@pytest.mark.parametrize(("skewed", "whole"), [(True, 1), (False, 1), (True, 2)])
def test_steps_are_the_transcriptions(lm, prompt, turn, skewed, whole):
    """The guess comes from the layer before and the projection of this one, written out; the first `whole` read everything."""
    chosen = policy(skew=turn if skewed else None, **({"skip_layers": 1} if whole == 1 else {}))
    pre, n, seen = kvjax.prefill(lm, prompt, needs=chosen), len(prompt), layers_of(lm, prompt)
    before, rope, counts = {}, lm.decoder.rope, []

    def rotated(x, at):
        angle = at * np.asarray(rope.frequencies, np.float64)
        a, b = x[..., :8], x[..., 8:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    def rule(layer, inputs, k, v):
        q, everything = np.asarray(inputs.q, np.float64)[0, :, :, 0], np.arange(k.shape[1])
        x, before["x"] = before.get("x"), np.asarray(inputs.x, np.float64)[0, 0]
        if layer < whole:
            return reading.over_lists(q, k, v, lambda h, g: everything)
        weight = np.asarray(lm.params["layers"][layer]["attention"]["q"]["weight"], np.float64)
        guess = rotated((weight @ x).reshape(2, 2, 16), k.shape[1] - 1)
        matrix = turn[layer].astype(float) if skewed else [np.eye(16)] * 2
        z = []
        for h in range(2):
            basis = matrix[h][:, slow.columns(seen[layer].q[h].astype(float), matrix[h], 8)]
            z.append(slow.guess(guess[h], k[h, :n], basis))
        lists = slow.fetched(np.array(z), ALPHA, CAP)
        counts.append(len(lists[0]))
        return reading.over_lists(q, k, v, lambda h, g: np.concatenate([lists[h], everything[n:]]))

    out = reading.same_as_written_out(lm, pre, chosen, rule)
    assert len(set(counts)) > 3 and max(counts) <= CAP
    np.testing.assert_array_equal(out.cache.retrieval.fetched.total, [2 * sum(counts)])
    np.testing.assert_array_equal(out.cache.retrieval.fetched_nbytes, [2 * sum(counts) * 2 * 16 * 4])


def test_fetching_everything_is_the_full_cache(lm):
    chosen = policy(alpha=1e9, cap=1.0)
    reading.reads_everything(lm, kvjax.prefill(lm, ids_of(90), needs=chosen), chosen)


def test_the_built_in_artefact():
    """A rotation of every KV head, read off the calibration split; not beside another."""
    found = resolve("smollm2-135m", "infinigen")
    turn = found.tables["skew"]
    assert found.data["split"] == "calibration" and turn.shape == (30, 3, 64, 64)
    np.testing.assert_allclose(np.einsum("lhdc,lhec->lhde", turn, turn), np.broadcast_to(np.eye(64), turn.shape), atol=1e-5)
    made = kvjax.methods.infinigen(artefact="smollm2-135m")
    assert made.retrieve.origin == found.origin and found.digest in repr(made.in_full())
    with pytest.raises(ValueError, match="got both"):
        kvjax.methods.infinigen(turn, artefact="smollm2-135m")


def test_rows_are_what_they_are_alone(lm, turn):
    reading.rows_are_solo(lm, policy(skew=turn, cap=0.3))


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """int(d·p) columns of the keys stay for the guess; keys and values of all layers but the first two are on the host."""
    chosen = policy(part=0.2)
    cache = kvjax.compress(pre, chosen)
    state, columns, slot = cache.retrieval, int(16 * 0.2), 2 * 16 * 4
    assert [x.sharding.memory_kind for x in state.away.stores] == ["pinned_host"] * 2
    assert int(state.away.count.sum()) * state.away.slot_nbytes == 2 * 90 * slot
    assert cache.host_nbytes == size_class(2 * 90) * slot
    assert [isinstance(x, PartialKeys) for x in state.partial] == [False, False, True]
    for mine in state.partial[2:]:
        assert mine.keys.nbytes == 2 * 96 * columns * 4 and mine.basis.nbytes == 2 * 16 * columns * 4
    np.testing.assert_array_equal(cache.lengths[:, 0], [[90] * 2, [90] * 2, [0] * 2])


def test_a_layers_own_queries_are_those_it_makes_of_its_own_input(lm):
    """Families with biases and norms included: what `queries_of` makes of x is q_raw."""
    import models
    from models import qwen2, qwen3
    from tests.conftest import toy_config

    for family, changes in ((qwen3, {"model_type": "qwen3"}), (qwen2, {"model_type": "qwen2"})):
        made = models.random(family.config(toy_config(**changes)), seed=1)
        x, found = made.decoder.embed(made.params, jnp.asarray([[1, 2, 3]])), []

        def attend(inputs, found=found):
            found.append((inputs.queries_of(inputs.x), inputs.q_raw))
            return inputs.q, None

        made.decoder.layer(made.params["layers"][0], x, jnp.arange(3)[None], attend)
        np.testing.assert_array_equal(*found[0])


def test_refusals(lm, pre, turn):
    refused = ({"part": 0.0}, "share of a head's columns"), ({"cap": 0}, "at least 1"), ({"skip_layers": 0}, "before the first")
    for wrong, why in refused:
        with pytest.raises(ValueError, match=why):
            policy(**wrong)
    with pytest.raises(ValueError, match="wants a skew"):
        kvjax.compress(pre, policy(skew=turn[:2]))
    with pytest.raises(ValueError, match="none of 16 columns"):
        kvjax.compress(pre, policy(part=0.01))
    with pytest.raises(ValueError, match="leave the budget at 1.0"):
        kvjax.compress(pre, policy().replace(budget=40))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, kvjax.methods.full()), policy(), max_new_tokens=2)

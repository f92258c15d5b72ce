"""LookaheadKV against its transcription: prompt and learned tokens as one text, updates on the learned rows alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import kvjax
import models
from kvjax.artefacts.artefact import Artefact
from kvjax.artefacts.weights import tables_of
from kvjax.evidence import Evidence
from kvjax.gates import SoftTokens, init_soft_tokens
from kvjax.score import AvgPool, LookaheadAttention, NoPool
from kvjax.select import TopK
from kvjax.train.regression import score_kl
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of, toy_config
from tests.method_cases import soft_tokens
from tests.methods.simulation import kept_by, same_kept
from tests.reference import lookahead_kv as slow

N, ALPHA = 90, 6.0
WEIGHTS = soft_tokens()


def policy_at(budget, weights=WEIGHTS, **arguments):
    return kvjax.methods.lookahead_kv(weights, budget=budget, alpha=ALPHA, **arguments)


@pytest.fixture(scope="module")
def read(lm, prompt):
    """The prompt after its second pass."""
    policy = policy_at(20)
    return kvjax.second_pass(lm, kvjax.prefill(lm, prompt, needs=policy), policy)


@pytest.fixture(scope="module")
def rows(lm, prompt):
    """Attention [h g n n] of prompt and learned tokens as one text, by layer."""
    flat = {path: np.asarray(x, np.float64) for path, x in flatten_dict(WEIGHTS["layers"], sep=".").items()}
    paths = {path.rpartition(".")[0] for path in flat}
    scale = ALPHA / flat["mlp.up.down"].shape[1]
    x = np.concatenate([np.asarray(lm.params["embed"]["weight"])[prompt], WEIGHTS["tokens"]]).astype(np.float64)
    found = []
    for i, weights in enumerate(lm.params["layers"]):
        plain = {path: np.asarray(w, np.float64) for path, w in flatten_dict(weights, sep=".").items()}
        updates = {path: (flat[f"{path}.down"][i], flat[f"{path}.up"][i]) for path in paths}
        x, of_layer = slow.Layer(plain, updates, scale, toy_config(), N)(x)
        found.append(of_layer)
    return found


@pytest.mark.parametrize("pool, size", [(AvgPool(5), 5), (NoPool(), 1)])
def test_scores(read, rows, pool, size):
    for got, want in zip(kvjax.score_prompt(read, policy_at(20, pool=pool)).rows[0].scores, rows, strict=True):
        np.testing.assert_allclose(got[0, :, :N], slow.scores(want, N, size), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recent", [0, 6])
@pytest.mark.parametrize("budget", [7, 20, 60])
def test_what_a_prompt_keeps(read, rows, budget, recent):
    want = [slow.kept(slow.scores(of_layer, N), budget, recent=recent) for of_layer in rows]
    cache = kvjax.compress(read, policy_at(budget, recent=recent))
    same_kept(kept_by(cache), want)
    assert cache.used_nbytes == 6 * budget * cache.slot_nbytes


@pytest.mark.slow
def test_the_updates_count(lm, prompt, read):
    """Without them other tokens stay; untrained ones are none."""
    plain = {**WEIGHTS, "layers": jax.tree.map(np.zeros_like, WEIGHTS["layers"])}
    policy = policy_at(20, plain)
    other = kept_by(kvjax.compress(kvjax.second_pass(lm, kvjax.prefill(lm, prompt, needs=policy), policy), policy))
    assert any((x != y).any() for one, two in zip(other, kept_by(kvjax.compress(read, policy_at(20))), strict=True)
               for x, y in zip(one, two, strict=True))  # fmt: skip
    untrained = SoftTokens.of(init_soft_tokens(lm, jax.random.key(0), tokens=4, rank=2), ALPHA).at(1)
    same = untrained.read_by(lm.params["layers"][1])
    jax.tree.map(np.testing.assert_array_equal, same, lm.params["layers"][1])


@pytest.mark.slow
def test_nothing_of_them_stays(lm, read, prompt):
    full, policy = kvjax.methods.full(), policy_at(1.0)
    got = kvjax.decode(lm, kvjax.compress(read, policy), policy, max_new_tokens=4, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompt), full), full, max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.logits, want.logits)
    assert int(got.cache.position[0]) == N + 4


def test_t5():
    """label [.2 .2 .05 .05], score [.1 .3 .05 .05]: two stay, and the divergence that training lowers."""
    rows = jnp.asarray([[0.2, 0.2, 0.1, 0.0], [0.0, 0.4, 0.0, 0.1]])
    score = LookaheadAttention(policy_at(2).score.tokens.replace(weights={"tokens": np.zeros((2, 64))}), NoPool())
    view = LayerView.of_prompt(jnp.asarray([4], jnp.int32), (1, 1, 4))
    seen = Evidence(data={score.tokens.key: rows.sum(0)[None, None, None]}, length=view.length, rope=None)
    u = score.score(view, seen)
    np.testing.assert_allclose(u[0, 0], [0.1, 0.3, 0.05, 0.05], atol=1e-6)
    np.testing.assert_allclose(score_kl(jnp.asarray([0.2, 0.2, 0.05, 0.05]), u[0, 0]), 0.115073, atol=1e-6)
    ranking = Ranking(scores=u[None], protected=view.pos[None] < 0, valid=view.valid[None], pos=view.pos[None])
    assert np.flatnonzero(TopK()(ranking, jnp.asarray([[[2]]], jnp.int32))).tolist() == [0, 1]


@pytest.mark.slow
def test_an_artefact_serves_as_its_weights(lm, read):
    made = Artefact("lookahead_kv", {"name": "toy"}, {}, {}, tables_of(WEIGHTS))
    policy = kvjax.methods.lookahead_kv(budget=20, alpha=ALPHA, artefact=made)
    again = kvjax.second_pass(lm, read, policy)
    same_kept(kept_by(kvjax.compress(again, policy)), kept_by(kvjax.compress(read, policy_at(20))))


def test_what_is_wrong_is_said_before_anything_runs(lm, read, prompt):
    bare = kvjax.prefill(lm, prompt)
    with pytest.raises(ValueError, match="second_pass"):
        kvjax.compress(bare, policy_at(20))
    wide = {**WEIGHTS, "tokens": np.zeros((4, 65), np.float32)}
    with pytest.raises(ValueError, match=r"not this model's \(tokens: \(4, 64\) wanted, \(4, 65\) given\)"):
        kvjax.second_pass(lm, bare, policy_at(20, wide))
    with pytest.raises(ValueError, match="learned tokens are .*init_soft_tokens"):
        policy_at(20, {"tokens": np.zeros((4, 64))})
    with pytest.raises(ValueError, match="needs its weights, or an 'artefact'"):
        kvjax.methods.lookahead_kv()
    shared = models.share_layers(lm, every=2)
    policy = policy_at(20)
    with pytest.raises(ValueError, match="whose layers all have a cache"):
        kvjax.second_pass(shared, kvjax.prefill(shared, ids_of(20)), policy)

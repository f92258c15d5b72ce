"""KVTC: worked examples, bytes of every run, the transcription over 64 steps, what heads share, and the built-in artefact."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import Adaptive
from kvjax.artefacts.artefact import resolve
from kvjax.calibrate.kvtc import best_runs, kvtc_tables, principal, run_losses
from kvjax.codec import Affine, AsIs, ComponentGroups, Transformed
from tests.artefacts import toy
from tests.conftest import ids_of, policy_of, toy_config
from tests.held import held
from tests.reference import kvtc as slow
from tests.reference.rotary import frequencies, rotate

PROMPT, D, RECENT, SINKS = 90, 16, 16, 4
OMEGA = frequencies(toy_config(), D)
HOW = dict(stop=(), return_logits=True)
#: Runs of every width, and of nothing between them.
RUNS = [(1, 8), (3, 8), (2, 0), (16, 4), (5, 2)]
KINDS = dict(sizes=(1, 2), bits=(0, 2, 4), overhead=2)


def groups(*layers: slow.Runs) -> ComponentGroups:
    most = max(map(len, layers))
    sizes, bits = (np.array([[run[i] for run in of] + [0] * (most - len(of)) for of in layers]) for i in (0, 1))
    return ComponentGroups.of(sizes, bits)


#: Each one program for a codec: numbers as rows, and back.
rows_of = jax.jit(lambda codec, y: codec.encode(y))
numbers_of = jax.jit(lambda codec, rows: codec.decode(rows, jnp.float32))


def losses(variances: np.ndarray, factors: tuple[float, ...], sizes: tuple[int, ...]) -> np.ndarray:
    found = np.full((len(factors), len(sizes), len(variances)), np.inf)
    for (t, factor), (s, n) in itertools.product(enumerate(factors), enumerate(sizes)):
        for i in range(len(variances) - n + 1):
            found[t, s, i] = factor * variances[i : i + n].sum()
    return found


@pytest.mark.parametrize(
    "budget, runs, cost, loss",
    [(12, [(1, 4), (2, 2)], 12, 0.625), (16, [(2, 4), (2, 2)], 16, 0.15625), (8, [(2, 2)], 6, 2.5), (0, [], 0, 21.25)],
)
def test_a16_runs(budget, runs, cost, loss):
    table = losses(np.array([16, 4, 1, 0.25]), (1, 1 / 16, 1 / 256), (1, 2))
    found = best_runs(table, budget, **KINDS)
    assert [*zip(found.sizes, found.bits, strict=True)] == runs and (found.loss, found.cost) == (loss, cost)


def test_a16_water_filling():
    """Runs of one component and no overhead are reverse water-filling."""
    variances = np.array([16, 4, 1, 0.25])
    bits = (0, 1, 2, 3, 4, 5, 6)
    found = best_runs(losses(variances, tuple(4.0**-b for b in bits), (1,)), 6, sizes=(1,), bits=bits, overhead=0)
    assert [*found.bits, 0] == slow.water_filled(variances, 6) == [3, 2, 1, 0] and found.loss == 1.0
    assert (variances * 4.0 ** -np.array([2, 2, 1, 1])).sum() == 1.5625


def test_a16_bits_a_token():
    """p = 1024 at 16: 1,024 bits; 2 a head and byte, over 8 heads of 128."""
    codec = Transformed(groups([(248, 4)]), basis=np.zeros((1, 1024, 248)), mean=np.zeros((1, 1024)))
    assert 16 * 1024 // 16 == 1024 == 248 * 4 + 32 == 8 * 128 * codec.bits_a_number(128)


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_the_best_there_are(seed):
    rng = np.random.default_rng(seed)
    table = losses(np.sort(rng.random(6))[::-1], (1, 1 / 16, 1 / 256), (1, 2)) * rng.uniform(0.5, 1.5, size=(3, 2, 6))
    for budget in (0, 7, 13, 22, 60):
        assert best_runs(table, budget, **KINDS).loss == pytest.approx(slow.best_runs(table, budget, *KINDS.values()))


def test_rows_to_the_bit():
    """Steps, shifts and codes of every width, as the transcription writes them; decoded as it decodes them."""
    y = 20 * np.random.default_rng(0).standard_normal((40, 27)).astype(np.float32)
    y[1], y[2] = 3.0, 0.0
    codec = groups(RUNS).at(0)
    rows = rows_of(codec, y[None, None])
    np.testing.assert_array_equal(rows[0, 0], [slow.row(one, RUNS, codec.width) for one in y])
    want = [slow.quantised(one, RUNS) for one in y]
    np.testing.assert_allclose(numbers_of(codec, rows)[0, 0], want, rtol=1e-5, atol=1e-5)
    assert np.isfinite(numbers_of(codec, rows_of(codec, np.full((1, 1, 40, 27), 1e6, np.float32)))).all()
    assert codec.width == -(-(4 * 32 + 4 * 8 + 16 * 4 + 5 * 2) // 8)


def test_layers_of_other_runs():
    """Layers of fewer runs and components are padded; each is coded as it is alone."""
    layers = [RUNS, [(16, 2)], [(2, 0), (4, 8)]]
    y = np.random.default_rng(0).standard_normal((1, 1, 9, 27)).astype(np.float32)
    codec = groups(*layers)
    for i, runs in enumerate(layers):
        mine, alone, rank = codec.at(i), groups(runs).at(0), sum(n for n, _ in runs)
        rows, of_mine = (np.asarray(rows_of(one, x)) for one, x in ((alone, y[..., :rank]), (mine, y)))
        np.testing.assert_array_equal(of_mine[..., : alone.width], rows)
        found = np.asarray(numbers_of(mine, of_mine))
        np.testing.assert_array_equal(found[..., :rank], numbers_of(alone, rows))
        assert not found[..., rank:].any()


def test_all_components_as_they_are_is_the_identity():
    """The transform with nothing quantised; rows of 33 components in three heads' shares."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(33, 33)))[0][None]
    x = jnp.asarray(rng.normal(size=(2, 3, 7, 11)), jnp.float32)
    codec = Transformed(AsIs(), basis=basis, mean=rng.normal(size=(1, 33))).at(0)
    rows = codec.encode(x)
    assert rows.shape == (2, 3, 7, 11)
    np.testing.assert_allclose(codec.decode(rows, jnp.float32), x, atol=1e-5)


def test_shares_that_heads_do_not_fill():
    """Five components in three heads: two numbers each, the last one padding; every leaf of a codec is dealt out."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0][None, :, :8]
    x = jnp.asarray(rng.normal(size=(1, 3, 4, 4)), jnp.float32)
    part = Transformed(AsIs(), basis=basis[..., :5], mean=np.zeros((1, 12))).at(0)
    assert part.encode(x).shape == (1, 3, 4, 2) and part.rows(6, 4, jnp.float32).shape == (6, 2)
    want = np.swapaxes((np.swapaxes(x[0], 0, 1).reshape(4, 12) @ basis[0, :, :5] @ basis[0, :, :5].T).reshape(4, 3, 4), 0, 1)
    np.testing.assert_allclose(part.decode(part.encode(x), jnp.float32)[0], want, atol=1e-5)
    coded = Transformed(Affine(bits=8, group=8), basis=basis, mean=np.zeros((1, 12))).at(0)
    assert [y.shape for y in jax.tree.leaves(coded.encode(x))] == [(1, 3, 4, 1)] * 3
    whole = Transformed(AsIs(), basis=basis, mean=np.zeros((1, 12))).at(0)
    far = coded.decode(coded.encode(x), jnp.float32) - whole.decode(whole.encode(x), jnp.float32)
    assert jnp.abs(far).max() < 0.05


def side(name: str, layer: int) -> slow.Side:
    tables = toy("kvtc").tables
    sizes, bits = (tables[f"{name}_{kind}_2"][layer].tolist() for kind in ("sizes", "bits"))
    runs = [run for run in zip(sizes, bits, strict=True) if run[0]]
    return slow.Side(tables[f"{name}_basis"][layer].astype(np.float64), tables[f"{name}_mean"][layer], runs)


class Reference:
    """One sequence through the model's own layers: an exact prompt, then the transcription.

    A number on the edge between two codes, or two float16 steps, may fall on the other side in float32. Such a token is counted,
    and goes on as the library has it; all others are compared.
    """

    def __init__(self, lm, pre, cache, row=0):
        self.lm, self.position, self.edges, self.coded = lm, pre.lengths[row], 0, 0
        encode = policy_of("kvtc").encode
        self.layers = []
        for i, (k, v) in enumerate(zip(pre.rows[row].k, pre.rows[row].v, strict=True)):
            slots = np.stack([np.stack(held(cache, encode, i, row, h)) for h in range(2)], 2)
            settle = partial(self.settle, slots)
            layer = slow.LayerCache(side("keys", i), side("values", i), RECENT, SINKS, OMEGA, settle)
            k, v = (np.asarray(x)[0, :, : self.position] for x in (k, v))
            for token in zip(*(np.swapaxes(x, 0, 1) for x in (rotate(k, -np.arange(self.position), OMEGA), v)), strict=True):
                layer.add(*token)
            layer.flush()
            self.layers.append(layer)

    def settle(self, slots, want, kind, i):
        """What the library has decoded, counted where it is not what is expected."""
        self.coded += 1
        self.edges += not np.allclose(slots[kind, i], want, rtol=1e-5, atol=1e-5)
        return slots[kind, i].astype(np.float64)

    def step(self, token):
        x = self.lm.decoder.embed(self.lm.params, jnp.asarray([[token]], jnp.int32))
        at = jnp.asarray([[self.position]], jnp.int32)
        for layer, weights in zip(self.layers, self.lm.params["layers"], strict=True):

            def attend(inputs, layer=layer):
                q, k, v = (np.asarray(y)[0] for y in (inputs.q[..., 0, :], inputs.k_raw[:, :, 0], inputs.v[:, :, 0]))
                return jnp.asarray(layer.step(q, k, v)[None, :, :, None], inputs.q.dtype), None

            x, _ = self.lm.decoder.layer(weights, x, at, attend)
        self.position += 1
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0, 0]


def test_a_prompt_and_64_steps(lm, pre):
    policy = policy_of("kvtc")
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, **HOW)
    reference = Reference(lm, pre, out.cache)
    want = [reference.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=2e-5)
    np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=2e-5)
    assert reference.coded == 6 * (PROMPT + 64 - RECENT - SINKS) and reference.edges <= reference.coded // 50


def test_one_token_less_than_the_window_and_more(lm):
    """Prompts that leave nothing, or one token, to be coded, beside each other; each as its transcription."""
    policy, lengths = policy_of("kvtc"), (1, SINKS, RECENT + SINKS, RECENT + SINKS + 1)
    pre = kvjax.prefill(lm, [ids_of(n, seed=n) for n in lengths], needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=6, **HOW)
    for row, length in enumerate(lengths):
        reference = Reference(lm, pre, out.cache, row)
        want = [reference.step(int(token)) for token in out.tokens[row]]
        np.testing.assert_allclose(out.logits[row, 1:], want[:-1], atol=2e-5)
        assert reference.coded == 6 * max(0, length + 6 - RECENT - SINKS) and reference.edges <= 1


def test_a_prompt_shorter_than_the_window_is_exact(pre):
    """Every key before the rotary embedding, and every value, to the bit."""
    wide = kvjax.methods.kvtc(artefact=toy("kvtc"), ratio=2, recent=PROMPT)
    cache = kvjax.compress(pre, wide)
    for layer, (v, evidence) in enumerate(zip(pre.rows[0].v, pre.rows[0].evidence, strict=True)):
        for h in range(2):
            keys, values = held(cache, wide.encode, layer, 0, h)
            np.testing.assert_array_equal(keys, evidence.of(kvjax.evidence.RawKeys())[0, h, :PROMPT])
            np.testing.assert_array_equal(values, v[0, h, :PROMPT])


@pytest.mark.slow
def test_a_window_that_holds_everything_is_the_full_cache(lm, pre):
    wide = kvjax.methods.kvtc(artefact=toy("kvtc"), ratio=2, recent=128)
    got, want = (
        kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=8, **HOW) for policy in (wide, kvjax.methods.full())
    )
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_bytes_are_the_bits(pre):
    """16 p / ratio bits a token of all heads at most, and of the pool what is allocated."""
    cache, encode = kvjax.compress(pre, policy_of("kvtc")), policy_of("kvtc").encode
    for codec, pool in zip(encode.codecs, (cache.k, cache.v), strict=True):
        assert codec.bits_a_number(D) * D * 2 == 8 * 2 * -(-codec.codec.width // 2)
        assert 8 * pool.addressable_shards[0].data.nbytes == codec.bits_a_number(D) * cache.slots * D


def test_heads_that_hold_other_numbers_of_slots_are_refused(lm, pre):
    ragged = policy_of("snapkv").replace(encode=policy_of("kvtc").encode)
    assert kvjax.compress(pre, ragged).nbytes > 0
    with pytest.raises(ValueError, match="all hold as many"):
        kvjax.compress(pre, ragged.replace(allocate=Adaptive()))
    bare = ragged.replace(when=kvjax.Every(1), encode=kvjax.encode.Stored(keys=policy_of("kvtc").encode.keys))
    with pytest.raises(ValueError, match="evicts slots one by one"):
        kvjax.compress(pre, bare)


def test_refusals(pre):
    with pytest.raises(ValueError, match=r"ratios of \[2\]; got 7"):
        kvjax.methods.kvtc(artefact=toy("kvtc"), ratio=7)
    with pytest.raises(ValueError, match=r"runs of \(0, 2, 4, 8\) bits"):
        groups([(4, 3)])
    small = Transformed(groups([(4, 2)]), basis=np.zeros((1, 32, 4)), mean=np.zeros((1, 32)))
    with pytest.raises(ValueError, match="for 1 layers of 32 channels, the model has 3 of 2 KV heads of 16"):
        kvjax.compress(pre, kvjax.Policy(encode=kvjax.encode.Stored(values=small)))
    paged = Transformed(Affine(bits=2, group=8, reduce="token"), basis=np.zeros((3, 32, 4)), mean=np.zeros((3, 32)))
    with pytest.raises(ValueError, match="coded slot by slot"):
        kvjax.compress(pre, kvjax.Policy(encode=kvjax.encode.Stored(values=paged, window=kvjax.encode.BlockFlush(8))))


def test_principal_components():
    """They diagonalise the covariance, by decreasing variance; fewer tokens than channels have fewer of them."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(200, 12)) @ rng.normal(size=(12, 12)) + 5).astype(np.float32)
    mean, basis = principal(x)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5)
    y = (x - mean) @ basis.astype(np.float32)
    covariance = y.T @ y / len(y)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
    np.testing.assert_allclose(np.diag(covariance), values, rtol=5e-3)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 5e-3 * values[0]
    assert principal(x[:5])[1].shape == (12, 4) and (np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0) > 0).all()


def test_losses_are_those_of_what_is_coded():
    y = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)
    found = run_losses(y)
    for (t, bits), start in itertools.product(enumerate((2, 4, 8), 1), (0, 4)):
        want = np.mean([((one[start : start + 16] - slow.quantised(one[start:], [(16, bits)])) ** 2).sum() for one in y])
        assert found[t, 1, start] == pytest.approx(want, rel=1e-4)
    assert found[0, 1, 3] == pytest.approx((y[:, 3:19] ** 2).sum(1).mean()) and np.isinf(found[:, 1, 5:]).all()


@pytest.mark.slow
def test_calibrated_tables_make_the_method(lm, pre):
    rng = np.random.default_rng(1)
    keys, values = ((rng.normal(size=(3, 120, 32)) * np.geomspace(9, 0.1, 32)).astype(np.float32) for _ in range(2))
    tables = kvtc_tables(keys, values, ratios=(4, 8), measured=60)
    found = toy("kvtc").__class__("kvtc", {"name": "toy"}, {}, {}, tables)
    for ratio in (4, 8):
        policy = kvjax.methods.kvtc(artefact=found, ratio=ratio, recent=16)
        assert policy.encode.keys.bits_a_number(D) <= 16 / ratio
        assert kvjax.compress(pre, policy).nbytes > 0
    four, eight = (kvjax.methods.kvtc(artefact=found, ratio=ratio).encode.values.at(0) for ratio in (4, 8))
    x = jnp.asarray(values[0].reshape(1, 120, 2, 16).swapaxes(1, 2))
    lost = [float(((codec.decode(codec.encode(x), jnp.float32) - x) ** 2).sum()) for codec in (four, eight)]
    assert lost[0] < lost[1] < float((x**2).sum())


def test_the_built_in_artefact():
    found = resolve("smollm2-135m", "kvtc")
    assert found.data["split"] == "calibration" and found.tables["keys_basis"].dtype == np.float16
    for ratio in found.settings["ratios"]:
        encode = kvjax.methods.kvtc(ratio=ratio).encode
        assert all(codec.bits_a_number(64) <= 16 / ratio for codec in encode.codecs)
        assert encode == kvjax.methods.kvtc("smollm2-135m", ratio=ratio).encode and encode.keys != encode.values

"""Methods that code slots: each against its NumPy transcription for 64 steps, and what must hold of all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec.sign_sketch import projections
from kvjax.retrieve import FullAttention, TopP
from tests.artefacts import toy
from tests.conftest import ids_of, policy_of, toy_config
from tests.held import held, two_steps_and_a_third
from tests.reference import gear, hcattention, kvquant, qjl, rotary
from tests.reference import turboquant as tq
from tests.reference.coded import Coded, CodedHead, all_but, at_once, blocks

PROMPT, STEPS, D, R = 90, 64, 16, 16
HOW = dict(stop=(), return_logits=True)
SIGNED = tq.signed_hadamard(D, 0)
OMEGA = rotary.frequencies(toy_config(), D)
START = np.asarray(jax.random.normal(jax.random.key(0), (D, 2)), np.float64)


_methods = kvjax.methods


@dataclass(frozen=True)
class Case:
    """A method on the toy model, its transcription of head (layer, h), whether keys are stored un-rotated, how near both are."""

    policy: kvjax.Policy
    head: Callable[[int, int], CodedHead]
    raw: bool = False
    atol: float = 2e-4


def _gear(axis: int, group: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: gear.block(x, bits=2, group=group, axis=axis, each=1, start=START)


def _qjl() -> Case:
    s, apart = (qjl.orthogonal_rows(seed, 2 * D, D) for seed in (0, 1))
    policy = kvjax.methods.qjl(outliers=3, group=8, value_bits=4, value_group=8, buffer=R)

    def value(x):
        return gear.block(x, bits=4, group=8, axis=1, each=0, start=None)

    return Case(policy, lambda *_: CodedHead(Coded(lambda x: qjl.keys(x, s, apart, 3), blocks(R), 8), Coded(value, all_but(R))))


def _kvquant() -> Case:
    tables = {name: x.astype(np.float64) for name, x in toy("kvquant").tables.items()}

    def head(layer: int, h: int) -> CodedHead:
        levels, (low, high) = tables["levels_3"][layer], (tables[name][layer, h] for name in ("low", "high"))
        keys = Coded(lambda x: kvquant.keys(x, levels[0], low, high, 2)[0], lambda n: n, sinks=1)
        return CodedHead(keys, Coded(lambda x: kvquant.values(x, levels[1], 1)[0], lambda n: n, sinks=1))

    return Case(_methods.kvquant(artefact=toy("kvquant")), head, raw=True)


def _coupled() -> Case:
    books = toy("coupled_quantization").tables

    def head(layer: int, h: int) -> CodedHead:
        keys, values = (books[name][layer, h].astype(np.float64) for name in ("keys", "values"))
        return CodedHead(
            Coded(lambda x: hcattention.decoded(hcattention.codes(x, keys), keys), at_once),
            Coded(lambda x: hcattention.decoded(hcattention.codes(x, values), values), at_once),
        )

    return Case(_methods.coupled_quantization(artefact=toy("coupled_quantization")), head, raw=True)


def _token_wise(policy: kvjax.Policy, keys, values) -> Case:
    return Case(policy, lambda *_: CodedHead(Coded(keys, at_once), Coded(values, at_once)))


CASES = {
    "turboquant": _token_wise(_methods.turboquant(), lambda x: tq.mse(x, 4, SIGNED), lambda x: tq.mse(x, 4, SIGNED)),
    "turboquant, inner products": _token_wise(
        _methods.turboquant(key_bits=4, value_bits=3, inner_product=True),
        lambda x: tq.inner_product(x, 4, SIGNED, projections(1, D, D, False)),
        lambda x: tq.mse(x, 3, SIGNED),
    ),
    "turboquant, engine": _token_wise(
        _methods.turboquant(key_bits=3, value_bits=4, engine=True),
        lambda x: tq.mse(x, 3, tq.sylvester(D), engine=True),
        lambda x: tq.uniform(x, 4),
    ),
    "qjl": _qjl(),
    "kvquant": _kvquant(),
    "coupled_quantization": _coupled(),
    "gear": Case(
        _methods.gear(key_group=8, value_group=8, buffer=R),
        lambda *_: CodedHead(Coded(_gear(0, 8), blocks(R), R), Coded(_gear(1, 8), blocks(R), R)),
        atol=2e-3,  # factors in 16 bits, of directions that lie close to each other
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


class Reference:
    """One sequence through the model's own layers: an exact prompt, then the transcription in every KV head."""

    def __init__(self, lm, pre, case, ended, row=0):
        """`ended`: the cache after the last step, which decides ties (`tests.reference.coded`) and nothing else."""
        self.lm, self.case, self.position = lm, case, pre.lengths[row]
        self.heads = [[case.head(layer, h) for h in range(2)] for layer in range(3)]
        self.omega = OMEGA
        for layer, heads in enumerate(self.heads):
            for h, head in enumerate(heads):
                k, v = (np.asarray(x[layer])[0, h, : self.position] for x in (pre.rows[row].k, pre.rows[row].v))
                head.keys.held, head.values.held = held(ended, case.policy.encode, layer, row, h)
                head.prompt(self.unrotated(k), v)
                if case.raw:
                    head.turn = self.rotated

    def unrotated(self, k):
        return rotary.rotate(k, -np.arange(len(k)), self.omega) if self.case.raw else k

    def rotated(self, k):
        return rotary.rotate(k, np.arange(len(k)), self.omega)

    def step(self, token):
        x = self.lm.decoder.embed(self.lm.params, jnp.asarray([[token]], jnp.int32))
        at = jnp.asarray([[self.position]], jnp.int32)
        for layer, weights in enumerate(self.lm.params["layers"]):

            def attend(inputs, layer=layer):
                q, k, v = (np.asarray(y)[0] for y in (inputs.q, inputs.k_raw if self.case.raw else inputs.k, inputs.v))
                out = [head.step(q[h, :, 0], k[h, 0], v[h, 0]) for h, head in enumerate(self.heads[layer])]
                return jnp.asarray(np.stack(out)[None, :, :, None], inputs.q.dtype), None

            x, _ = self.lm.decoder.layer(weights, x, at, attend)
        self.position += 1
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0, 0]


@every_case
def test_a_prompt_and_64_steps(lm, pre, name):
    case = CASES[name]
    out = kvjax.decode(lm, kvjax.compress(pre, case.policy), case.policy, max_new_tokens=STEPS, **HOW)
    slow = Reference(lm, pre, case, out.cache)
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 0], pre.rows[0].logits, atol=1e-6)
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=2e-4)
    np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=2e-4)
    for layer, heads in enumerate(slow.heads):
        for h, head in enumerate(heads):
            k, v = held(out.cache, case.policy.encode, layer, 0, h)
            np.testing.assert_allclose(k, head.keys.seen(), atol=case.atol)
            np.testing.assert_allclose(v, head.values.seen(), atol=case.atol)


@every_case
def test_prompts_of_any_length_beside_each_other(lm, name):
    """One token, less than a window, whole pages, one more: each row as its transcription and as it is alone."""
    case, prompts = CASES[name], [ids_of(n, seed=n) for n in (1, R - 1, R, 3 * R + 1)]
    pre = kvjax.prefill(lm, prompts, needs=case.policy)
    out = kvjax.decode(lm, kvjax.compress(pre, case.policy), case.policy, max_new_tokens=4, **HOW)
    for row in range(4):
        slow = Reference(lm, pre, case, out.cache, row)
        want = [slow.step(int(token)) for token in out.tokens[row]]
        np.testing.assert_allclose(out.logits[row, 1:], want[:-1], atol=2e-4)
        k, v = held(out.cache, case.policy.encode, 2, row, 1)
        np.testing.assert_allclose(k, slow.heads[2][1].keys.seen(), atol=case.atol)
        np.testing.assert_allclose(v, slow.heads[2][1].values.seen(), atol=case.atol)
    alone = kvjax.compress(kvjax.prefill(lm, prompts[3], needs=case.policy), case.policy)
    solo = kvjax.decode(lm, alone, case.policy, max_new_tokens=4, **HOW)
    np.testing.assert_array_equal(out.tokens[3], solo.tokens[0])
    np.testing.assert_allclose(out.logits[3], solo.logits[0], atol=3e-5)


#: Each one program for a codec: numbers as rows, and back.
encode = jax.jit(lambda codec, x: codec.encode(x, jnp.zeros(x.shape[:3], jnp.int32)))
decode = jax.jit(lambda codec, rows: codec.decode(rows, jnp.float32))


def bytes_of(codec, n: int) -> int:
    """Live bytes of n coded slots in each of two heads, whole pages of them."""
    rows = jax.tree.leaves(encode(codec, np.ones((1, 2, n, D), np.float32)))
    return sum(x.addressable_shards[0].data.nbytes for x in rows)


@every_case
def test_bytes_are_the_bits(pre, name):
    """Of what is coded, and of the pool as it is allocated."""
    codecs = CASES[name].policy.encode.at(0).codecs
    cache = kvjax.compress(pre, CASES[name].policy)
    for codec, pool in zip(codecs, (cache.k, cache.v), strict=True):
        n = 4 * codec.page
        assert 8 * bytes_of(codec, n) == codec.bits_a_number(D) * 2 * n * D
        live = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(pool))
        assert 8 * live == codec.bits_a_number(D) * cache.slots * D


@pytest.mark.parametrize("name, retrieve", [*((name, FullAttention()) for name in CASES), ("turboquant", TopP(tau=1.0))])
def test_coded_storage_under_snapkv_reads_as_its_decoded_numbers(lm, pre, name, retrieve):
    """Attention over codes is attention over what they decode to, slots evicted or not."""
    policy = policy_of("snapkv").replace(encode=CASES[name].policy.encode, retrieve=retrieve)
    two, last = two_steps_and_a_third(lm, pre, policy)
    after = policy.encode.windows
    token, at = int(last.tokens[0, 0]), int(two.cache.position[0])
    raw = CASES[name].raw

    def attend(inputs, layer):
        outs = []
        for h in range(2):
            old, new = (held(x.cache, policy.encode, layer, 0, h) for x in (two, last))
            fresh = np.asarray(inputs.k_raw if raw else inputs.k)[0, h], np.asarray(inputs.v)[0, h]
            k, v = (
                np.vstack([a, b if window is not None else c[-1:]])
                for a, b, c, window in zip(old, fresh, new, after, strict=True)
            )
            if raw:
                k = rotary.rotate(k, np.append(np.sort(two.cache.kept(layer)[0][h]), at), OMEGA)
            z = np.asarray(inputs.q)[0, h, :, 0].astype(np.float64) @ k.T / 4
            a = np.exp(z - z.max(-1, keepdims=True))
            outs.append(a / a.sum(-1, keepdims=True) @ v)
        return jnp.asarray(np.stack(outs)[None, :, :, None], inputs.q.dtype), None

    x = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32))
    for layer, weights in enumerate(lm.params["layers"]):
        x, _ = lm.decoder.layer(weights, x, jnp.asarray([[at]], jnp.int32), lambda inputs, layer=layer: attend(inputs, layer))
    np.testing.assert_allclose(last.cache.logits, np.asarray(lm.decoder.unembed(lm.params, x))[:, 0], atol=1e-4)


@every_case
@pytest.mark.parametrize("x", [0.0, 3.0])
def test_constant_numbers(name, x):
    """Zeros stay zeros; what is constant has no NaN."""
    for codec in CASES[name].policy.encode.at(0).codecs:
        got = np.asarray(decode(codec, encode(codec, np.full((1, 2, 4 * codec.page, D), x, np.float32))))
        assert np.isfinite(got).all()
        if x == 0 and "kvquant" not in name and "coupled" not in name:
            np.testing.assert_array_equal(got, 0)

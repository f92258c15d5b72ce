"""Every implementation of window scores against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.window_scores import api, shapes, window_scores, xla

from . import oracle
from .test_ragged_attention import close

#: A tiling of 256 keys, the fewest.
SMALL = xla.Config(1)
#: lengths of the rows, slots, h, g, w, d
CASES = {
    "no query": ((5,), 9, 1, 2, 0, 8),
    "one token": ((1,), 1, 1, 1, 1, 8),
    "shorter than the window": ((5, 3), 40, 2, 3, 8, 16),
    "one query": ((40, 29), 40, 2, 3, 1, 16),
    "no multiple of a block": ((1300, 1024), 1357, 1, 2, 4, 8),
    "whole blocks": ((2048, 7), 2048, 2, 1, 3, 8),
}


def make(lengths, n, h, g, w, d, dtype="float32", seed=0):
    """Operands: slots in any order, NaN and a position of the past in those that hold no token."""
    rng = np.random.default_rng(seed)
    b = len(lengths)
    pos = np.stack([[rng.permutation(n) for _ in range(h)] for _ in range(b)]).astype(np.int32)
    valid = pos < np.array(lengths)[:, None, None]
    k = np.where(valid[..., None], rng.normal(size=(b, h, n, d)), np.nan)
    q = 2 * rng.normal(size=(b, h, g, w, d))
    where = dict(pos=np.where(valid, pos, 0).astype(np.int32), valid=valid, length=np.array(lengths, np.int32))
    return [jnp.asarray(x, dtype) for x in (q, k)], {name: jnp.asarray(x) for name, x in where.items()}


def wanted(q, k, pos, valid, length, window=None):
    """Sums query by query."""
    q, k, pos, valid = np.asarray(q, np.float64), np.asarray(k, np.float64), np.asarray(pos), np.asarray(valid)
    out = np.zeros((*q.shape[:3], k.shape[2]))
    for b, h, g, i in np.ndindex(q.shape[:4]):
        at = int(length[b]) - q.shape[3] + i
        near = True if window is None else pos[b, h] > at - int(window[b])
        seen = np.flatnonzero(valid[b, h] & (pos[b, h] <= at) & near)
        out[b, h, g, seen] += oracle.softmax_row(q[b, h, g, i], k[b, h, seen], k[b, h, seen])[2]
    return out


def check(got, qk, where, dtype):
    assert got.dtype == jnp.float32
    close(got, wanted(*qk, **where), dtype)


@pytest.mark.parametrize("case, dtype", [(case, "float32") for case in CASES] + [("no multiple of a block", "bfloat16")])
@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_matches_float64(impl, case, dtype):
    qk, where = make(*CASES[case], dtype)
    check(window_scores(*qk, **where, impl=impl), qk, where, dtype)


@pytest.mark.parametrize("impl", [*api.IMPLEMENTATIONS, None])
@pytest.mark.parametrize("case", ["shorter than the window", "one query", "no multiple of a block", "whole blocks"])
def test_sliding_windows_end_what_a_query_sees(impl, case):
    """Rows of one batch may have different ones; INT_MAX is none."""
    qk, where = make(*CASES[case])
    b, far = len(where["length"]), np.iinfo(np.int32).max
    for windows in ([3, 1], [17, far]):
        window = jnp.asarray(windows[:b], jnp.int32)
        got = window_scores(*qk, **where, window=window, impl=impl)
        close(got, wanted(*qk, **where, window=window), "float32")
    none = window_scores(*qk, **where, impl=impl)
    close(window_scores(*qk, **where, window=jnp.full(b, far, jnp.int32), impl=impl), none, "float32")


@pytest.mark.usefixtures("native")
def test_sliding_windows_are_left_to_xla():
    qk, where = make((40,), 40, 2, 2, 16, 8)
    with pytest.raises(ValueError, match="takes no sliding windows"):
        window_scores(*qk, **where, window=jnp.array([8]), impl="native")


#: Windows that have enough rows for the kernel in C++: lengths of the rows, slots, h, g, w, d
WIDE = {
    "shorter than the window": ((5, 3), 40, 2, 2, 8, 16),
    "no multiple of a block": ((700, 424), 757, 1, 2, 20, 8),
    "one query of many heads": ((90,), 130, 1, 17, 1, 24),
    "several groups of KV heads": ((4100, 77), 4160, 9, 4, 32, 8),
}


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("case, dtype", [(case, "float32") for case in WIDE] + [("no multiple of a block", "bfloat16")])
def test_windows_in_cpp_match_float64(case, dtype):
    qk, where = make(*WIDE[case], dtype)
    check(window_scores(*qk, **where, impl="native"), qk, where, dtype)


@pytest.mark.usefixtures("native")
def test_cpp_gives_a_row_what_it_gets_alone():
    (q, k), where = make((300, 40), 320, 2, 2, 16, 8)
    together = window_scores(q, k, **where, impl="native")
    for r in range(2):
        own = {name: x[r : r + 1] for name, x in where.items()}
        np.testing.assert_array_equal(window_scores(q[r : r + 1], k[r : r + 1], **own, impl="native")[0], together[r])


@pytest.mark.usefixtures("native")
def test_few_rows_are_left_to_xla():
    qk, where = make((40,), 40, 2, 3, 5, 8)
    with pytest.raises(ValueError, match="16 query rows a KV head or more, got 3 x 5"):
        window_scores(*qk, **where, impl="native")


@pytest.mark.parametrize("n", [256, 300, 512, 1100])
def test_any_tiling_is_the_same_function(n):
    qk, where = make((n - 10, 33), n, 2, 2, 5, 8)
    assert SMALL.block(40, n) == 256
    check(xla.scores(*qk, **where, config=SMALL), qk, where, "float32")


def test_positions_are_data():
    traced = []

    @jax.jit
    def run(q, k, where):
        traced.append(1)
        return window_scores(q, k, **where)

    for seed, length in enumerate((90, 5, 33)):
        qk, where = make((length,), 100, 2, 2, 5, 8, seed=seed)
        check(run(*qk, where), qk, where, "float32")
    assert len(traced) == 1


def temporaries(n):
    """Bytes beside operands and result for n slots of a Llama's layer."""
    shape = shapes.SHAPES["llama-3-8b, 32k, snapkv"]
    of, slots = jax.ShapeDtypeStruct, (1, shape.h, n)
    q, k = of((1, shape.h, shape.g, shape.w, shape.d), "float32"), of((*slots, shape.d), "float32")
    where = dict(pos=of(slots, "int32"), valid=of(slots, "bool"), length=of((1,), "int32"))
    run = jax.jit(lambda q, k, where: xla.scores(q, k, **where))
    return run.lower(q, k, where).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_a_block_and_the_result():
    shape = shapes.SHAPES["llama-3-8b, 32k, snapkv"]
    block, result = 4 * xla.Config().scores, 4 * shape.h * shape.g
    for n in (131072, 262144):
        dense = result * shape.w * n
        assert temporaries(n) <= 5 * block + 1.1 * result * n < dense


def test_gradients_are_those_of_the_definition():
    qk, where = make((600,), 600, 1, 2, 4, 8)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(1, 1, 2, 600)), jnp.float32)
    loss = lambda impl: lambda q, k: (weights * impl(q, k, **where)).sum()  # noqa: E731
    tiled = lambda *a, **how: xla.scores(*a, **how, config=SMALL)  # noqa: E731
    whole = lambda *a, **how: window_scores(*a, **how, impl="reference")  # noqa: E731
    one, other = (jax.grad(loss(impl), argnums=(0, 1))(*qk) for impl in (tiled, whole))
    for found, right in zip(one, other, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-6)


def test_refusals_name_the_way_out():
    (q, k), where = make((30,), 30, 1, 2, 4, 8)
    with pytest.raises(ValueError, match="xla, reference"):
        window_scores(q, k, **where, impl="cudnn")
    # Under the run-time type checks of this suite the annotations speak first.
    with pytest.raises(ValueError, match="b, h, n, d"):
        api._check(q, k[..., :4], *where.values())
    with pytest.raises(ValueError, match="pos and valid"):
        api._check(q, k, where["pos"][..., :4], where["valid"], where["length"])

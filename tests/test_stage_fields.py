"""What a field of a stage may hold: numbers in their range, values of their type; what transformations put there passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from experiments.policies import parse_policy
from kvjax import Policy
from kvjax.allocate import Adaptive, Pyramid
from kvjax.codec import AsIs
from kvjax.encode import Stored
from kvjax.merge import IntoDense
from kvjax.schedule import Every
from kvjax.score import AvgPool, LagSpread, RecentOnTop, WindowAttention
from kvjax.select import ForcedTopK, TopK
from kvjax.stage import Scorer
from kvjax.stage_fields import check_fields
from tests.conftest import policy_of
from tests.decode_loop import unchecked

NAN = float("nan")
RANGES = {
    "a window without a query": (lambda: kvjax.methods.snapkv(budget=20, window=0), "WindowAttention.window must be a whole"),
    "a window below none": (lambda: Policy(score=WindowAttention(window=-1)), "at least 1; got -1"),
    "a look without a query": (lambda: kvjax.methods.mpcache(window=0), "LookOnce.window must be a whole number of at least 1"),
    "half a query": (lambda: Policy(score=WindowAttention(window=3.5)), "a whole number of at least 1; got 3.5"),
    "more than a share": (lambda: Policy(allocate=Adaptive(alpha=2.0)), "Adaptive.alpha must be a number from 0 to 1; got 2.0"),
    "less than a share": (lambda: Policy(allocate=Adaptive(alpha=-1.0)), "Adaptive.alpha must be a number from 0 to 1; got -1.0"),
    "no number": (lambda: Policy(allocate=Adaptive(alpha=NAN)), "got nan"),
    "of NumPy": (lambda: Policy(allocate=Adaptive(alpha=np.float32(5))), "got np.float32"),
    "of JAX": (lambda: Policy(allocate=Adaptive(alpha=jnp.float32(5))), "Adaptive.alpha must be a number from 0 to 1"),
    "less than no sink": (lambda: Policy(select=TopK(sinks=-1)), "TopK.sinks must be a whole number of at least 0; got -1"),
    "half a sink": (lambda: Policy(select=TopK(sinks=1.5)), "TopK.sinks must be a whole number of at least 0; got 1.5"),
    "endless sinks": (lambda: Policy(select=TopK(sinks=float("inf"))), "TopK.sinks must be a whole number"),
    "recent share": (lambda: Policy(select=TopK(recent_share=2.0)), "TopK.recent_share must be a number from 0 to 1; got 2.0"),
    "beta": (lambda: Policy(allocate=Pyramid(beta=-5)), "Pyramid.beta must be a whole number of at least 1; got -5"),
    "inside a stage": (lambda: Policy(allocate=Adaptive(layers=Pyramid(beta=0))), "Pyramid.beta"),
    "inside a schedule": (lambda: Policy(when=Every(1, score=LagSpread(lag=0))), "LagSpread.lag"),
    "by replacing": (lambda: policy_of("snapkv").replace(select=TopK(recent=-2)), "TopK.recent"),
    "no average": (lambda: kvjax.methods.zeromerge(budget=20, dense=0), "DenseAndTop.dense must be .* at least 1; got 0"),
    "no slot for one": (lambda: Policy(merge=IntoDense(dense=0)), "IntoDense.dense must be .* at least 1; got 0"),
    "of the command line": (lambda: parse_policy("adakv:alpha=5", 9), "policy 'adakv:alpha=5': Adaptive.alpha must"),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_numbers_out_of_their_range(name):
    make, said = RANGES[name]
    with unchecked(), pytest.raises(ValueError, match=said):
        make()


TYPES = {
    "text for a static number": (lambda: kvjax.methods.snapkv(window="a"), "WindowAttention.window must be a whole number of"),
    "text for a number": (lambda: Policy(select=TopK(sinks="a")), "TopK.sinks must be a whole number of at least 0; got 'a'"),
    "a list for a number": (lambda: Policy(allocate=Adaptive(alpha=[0.2])), "Adaptive.alpha must be a number from 0 to 1; got"),
    "truth for a number": (lambda: Policy(select=TopK(sinks=True)), "TopK.sinks"),
    "a stage for a number": (lambda: Policy(select=TopK(sinks=TopK())), "TopK.sinks"),
    "text for a codec": (lambda: Policy(encode=Stored(keys="int8")), r"must be of kind Codec, such as AsIs\(\); got 'int8'"),
    "a class": (lambda: Policy(encode=Stored(keys=AsIs)), "Stored.keys must be of kind Codec, .* got <class"),
    "text for a place": (lambda: Policy(encode=Stored(placement="host")), "Stored.placement must be of kind OnDevice"),
    "text for a window": (lambda: Policy(encode=Stored(window="a")), "Stored.window must be of kind Window or of kind Windows"),
    "text for a rule": (lambda: Policy(score=WindowAttention(pool="a")), "WindowAttention.pool must be callable, such as AvgPool"),
    "a class for a rule": (lambda: Policy(score=WindowAttention(pool=AvgPool)), "WindowAttention.pool must be callable"),
    "another stage": (lambda: Policy(allocate=Adaptive(layers=TopK())), "Adaptive.layers must be of kind Allocator"),
    "a number for truth": (lambda: Policy(score=LagSpread(cross=1)), "LagSpread.cross must be True or False; got 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_values_of_another_type(name):
    make, said = TYPES[name]
    with unchecked(), pytest.raises(TypeError, match=said):
        make()


@pytest.mark.parametrize("name", kvjax.methods.names())
def test_every_policy_of_the_library_holds_what_it_declares(name):
    policy = policy_of(name)
    leaves, shape = jax.tree.flatten(policy.replace(budget=1.0))
    for stage in (policy.score, policy.allocate, policy.select, policy.merge, policy.encode, policy.retrieve, policy.when):
        check_fields(stage)
    assert len(jax.tree.leaves(jax.tree.unflatten(shape, [object() for _ in leaves]))) == len(leaves)
    jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.float32), policy)


def test_placeholders_pass_inside_a_policy():
    policy = policy_of("adakv")
    for other in (object(), jax.ShapeDtypeStruct((), jnp.float32), jnp.arange(3.0)):
        assert policy.replace(select=TopK(sinks=other), allocate=Adaptive(alpha=other)).select.sinks is other
    assert policy.replace(select=TopK(sinks=None)).select.sinks is None
    assert policy.replace(select=TopK(sinks=np.int64(3), recent=jnp.int32(2))).select == TopK(sinks=3, recent=2)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])[0]])
def test_traced_numbers_pass_whatever_they_are(transform):
    """A share of 5 that is traced is not looked at: nothing of the check is in the program."""
    policy = policy_of("adakv")
    shared = lambda x: policy.replace(allocate=Adaptive(alpha=x)).allocate.alpha * 2.0  # noqa: E731
    with unchecked():
        assert transform(shared)(jnp.float32(5)) in (10, 2)
        assert str(jax.make_jaxpr(shared)(jnp.float32(5))).count("=") <= 2


def test_stages_of_ones_own_are_checked_as_far_as_they_say_what_they_hold():
    @struct.dataclass
    class Mine(Scorer):
        size: int = struct.field(pytree_node=False, default=3)
        there: "NotDefined" = 0  # noqa: F821

    @struct.dataclass
    class Told(Scorer):
        size: int = struct.field(pytree_node=False, default=3)

    with unchecked():
        assert Policy(score=Mine(size="a")).score.size == "a"
        with pytest.raises(TypeError, match="Told.size must be a whole number; got 'a'"):
            Policy(score=Told(size="a"))
        with pytest.raises(TypeError, match="Told.size must be a whole number; got 'a'"):
            Policy(score=RecentOnTop(score_of=Told(size="a")))


def test_the_window_of_a_forced_selector_may_be_none():
    assert Policy(select=ForcedTopK(window=0)).select.window == 0

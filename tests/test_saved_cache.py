"""A conversation comes back from its file to the bit, and only to the model and the policy it was made with."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from safetensors.numpy import save_file

import kvjax
import models
from kvjax.codec import Affine
from kvjax.encode import BlockFlush, ByCallback, OnHost, Slide, Stored, Windows
from kvjax.files.facts import differences, facts_of_stage
from kvjax.files.tensors import Kind, read
from kvjax.files.trees import described, restored
from models import llama
from tests.conftest import ids_of, policy_of, toy_config
from tests.damage import bounded_memory
from tests.decode_loop import unchecked
from tests.test_saved import _raw_header, rewritten, same

FOUR = Stored(
    keys=Affine(bits=4, group=8, reduce="token"), values=Affine(bits=4, group=8), window=Windows(BlockFlush(16), Slide(5)), sinks=3
)


@pytest.fixture(scope="module")
def policy():
    return policy_of("snapkv").replace(encode=FOUR)


@pytest.fixture(scope="module")
def cache(lm, pre, policy):
    return goes_on(lm, kvjax.compress(pre, policy), policy).cache


@pytest.fixture
def file(lm, cache, policy, tmp_path):
    return kvjax.save_cache(cache, tmp_path / "talk", lm, policy)


def goes_on(lm, cache, policy):
    """Of a pool of one size, so that what made a cache and what goes on with it are one program."""
    return kvjax.decode(lm, cache, policy, max_new_tokens=8, stop=(), return_logits=True, pool_budget=128)


def test_a_conversation_in_four_bits_comes_back_and_goes_on(lm, cache, policy, file):
    again = kvjax.load_cache(file, lm, policy)
    same(cache, again)
    assert list(file.parent.iterdir()) == [file]
    one, other = goes_on(lm, cache, policy), goes_on(lm, again, policy)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.logits, other.logits)
    same(one.cache, other.cache)


STORAGES = {
    "on the host": Stored(placement=OnHost()),
    "in 16 bits": Stored(keys=kvjax.encode.Cast("bfloat16"), values=kvjax.encode.Cast("float16")),
    "at places in the cache": Stored(positions=kvjax.encode.InCache()),
}


@pytest.mark.parametrize("name", STORAGES)
def test_every_storage_comes_back(lm, pre, tmp_path, name):
    policy = policy_of("streaming_llm").replace(encode=STORAGES[name])
    cache = goes_on(lm, kvjax.compress(pre, policy), policy).cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy)
    same(cache, again)
    kinds = lambda cache: [x.sharding.memory_kind for x in jax.tree.leaves(cache)]  # noqa: E731
    assert kinds(again) == kinds(cache)
    np.testing.assert_array_equal(goes_on(lm, cache, policy).logits, goes_on(lm, again, policy).logits)


@pytest.mark.parametrize("name", ["asymkv", "mikv"])
def test_caches_in_parts_come_back(lm, pre, tmp_path, name):
    policy = policy_of(name)
    cache = goes_on(lm, kvjax.compress(pre, policy), policy).cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy)
    same(cache, again)
    np.testing.assert_array_equal(goes_on(lm, cache, policy).logits, goes_on(lm, again, policy).logits)


def test_values_behind_a_callback_come_back(lm, pre, tmp_path):
    policy = policy_of("snapkv").replace(encode=Stored(placement=ByCallback()))
    cache = goes_on(lm, kvjax.compress(pre, policy), policy).cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy)
    np.testing.assert_array_equal(cache.v.rows(), again.v.rows())
    assert not np.shares_memory(cache.v.rows(), again.v.rows())
    np.testing.assert_array_equal(goes_on(lm, cache, policy).logits, goes_on(lm, again, policy).logits)


def test_rows_of_several_prompts_and_extended_ones_come_back(lm, tmp_path, policy):
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(70), ids_of(31, 1)], needs=policy), policy)
    cache = kvjax.extend(lm, cache, [[1, 2, 3], [4]], policy).cache
    same(cache, kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy))


# ---- Refusals


def test_another_model_is_refused_by_name(lm, file, policy):
    other = models.random(llama.config(toy_config(vocab_size=64)), seed=0)
    with pytest.raises(ValueError, match="another model .*vocab: the model has 64, the file 128"):
        kvjax.load_cache(file, other, policy)


def test_one_changed_weight_is_refused(lm, file, policy):
    weight = lm.params["layers"][1]["mlp"]["down"]["weight"]
    params = jax.tree.map(lambda x: x.at[3, 5].add(1e-3) if x is weight else x, lm.params)
    with pytest.raises(ValueError, match="parameters: the model has"):
        kvjax.load_cache(file, lm.replace(params=params), policy)


def test_another_tokenizer_is_refused(lm, file, policy):
    from tests.experiments.conftest import byte_tokenizer

    with pytest.raises(ValueError, match="tokenizer: .* the file None"):
        kvjax.load_cache(file, lm.replace(tokenizer=byte_tokenizer()), policy)


OTHERS = {
    "bits": (
        lambda p: p.replace(encode=FOUR.replace(keys=Affine(8, 8, "token"))),
        "keys.bits: the policy has 8, the file 4",
    ),
    "window": (lambda p: p.replace(encode=FOUR.replace(sinks=2)), "encode.sinks: the policy has 2, the file 3"),
    "budget": (lambda p: p.replace(budget=41), "budget: the policy has 41, the file 40"),
    "method": (lambda p: policy_of("h2o"), "score: the policy has"),
    "merger": (lambda p: p.replace(merge=policy_of("d2o").merge), "merge: the policy has '.*', the file 'kvjax.merge.*Drop'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_policy_is_refused_by_name(lm, file, policy, name):
    change, words = OTHERS[name]
    with pytest.raises(ValueError, match=f"another policy .*{words}"):
        kvjax.load_cache(file, lm, change(policy))


def test_a_changed_table_is_refused(lm, pre, tmp_path):
    policy = policy_of("trim_kv")
    file = kvjax.save_cache(kvjax.compress(pre, policy), tmp_path / "talk", lm, policy)
    other = jax.tree.map(lambda x: x if np.ndim(x) < 2 else np.asarray(x) * np.float32(1.001), policy)
    with pytest.raises(ValueError, match="another policy .*weights"):
        kvjax.load_cache(file, lm, other)


def test_what_is_no_model_is_refused(policy, tmp_path):
    """Before the cache or the file are looked at."""
    file = tmp_path / "talk"
    for call in (lambda: kvjax.save_cache(None, file, "mine", policy), lambda: kvjax.load_cache(file, "mine", policy)):
        with unchecked(), pytest.raises(TypeError, match="expected a language model, such as .* got 'mine'"):
            call()


def test_no_policy_and_no_cache_are_type_errors(lm, cache, file, policy, tmp_path):
    with pytest.raises(TypeError, match="policy"):
        kvjax.load_cache(file, lm, "snapkv")
    with pytest.raises(TypeError, match="cache"):
        kvjax.save_cache("talk", tmp_path / "other", lm, policy)
    with pytest.raises(ValueError, match="does not hold slots as the policy"):
        kvjax.save_cache(cache, tmp_path / "other", lm, policy.replace(encode=Stored()))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("left", [0, 5, 300, 0.5, -1])
def test_a_file_cut_short_is_refused(lm, file, policy, left):
    whole = file.read_bytes()
    file.write_bytes(whole[: left if isinstance(left, int) else int(len(whole) * left)])
    with pytest.raises(ValueError, match="cut short"):
        kvjax.load_cache(file, lm, policy)


def test_two_hundred_bit_flips_are_all_refused(lm, file, policy):
    whole, draw = file.read_bytes(), np.random.default_rng(0)
    header = 8 * (8 + len(_raw_header(file)))
    for at in [*draw.integers(0, 8 * len(whole), 150), *draw.integers(0, header, 50)]:
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        file.write_bytes(damaged)
        with bounded_memory(), pytest.raises(ValueError, match=re.escape(str(file))):
            kvjax.load_cache(file, lm, policy)


def test_a_prefill_is_no_conversation(lm, pre, file, policy, tmp_path):
    other = kvjax.save_prefilled(kvjax.prefill(lm, ids_of(20)), tmp_path / "p", lm)
    with pytest.raises(ValueError, match="another kind of thing than a saved conversation"):
        kvjax.load_cache(other, lm, policy)
    with pytest.raises(ValueError, match="another kind of thing than a prefilled prompt"):
        kvjax.load_prefilled(file, lm)


def header_in(file) -> dict:
    return json.loads(json.loads(_raw_header(file))["__metadata__"]["kvjax"])


def test_headers_that_lie_are_refused(lm, file, policy):
    tree = header_in(file)["cache"]
    fields = tree["fields"]
    fields["start"], fields["length"] = fields["length"], fields["start"]
    with pytest.raises(ValueError, match="overlap or lie outside"):
        kvjax.load_cache(rewritten(file, cache=tree), lm, policy)
    fields["start"], fields["length"] = fields["length"], fields["start"]
    fields["memory"] = {"class": "os:system", "fields": {}}
    with pytest.raises(ValueError, match="no pytree of a module that is imported"):
        kvjax.load_cache(rewritten(file, cache=tree), lm, policy)
    with pytest.raises(ValueError, match="version 9, this kvjax reads 4"):
        kvjax.load_cache(rewritten(file, version=9), lm, policy)


@pytest.mark.parametrize(
    "lie",
    [
        lambda cache: cache.replace(length=cache.length.at[0, 0, 0].set(cache.capacity[0, 0, 0] + 1)),
        lambda cache: cache.replace(length=cache.length.at[0, 0, 0].set(-1)),
        lambda cache: cache.replace(start=cache.start.at[-1, -1, -1].set(cache.slots)),
        lambda cache: cache.replace(start=cache.start.at[0, 0, 0].set(-1)),
        lambda cache: cache.replace(start=cache.start.at[0, 0, 0].set(cache.start[0, 0, 1])),
    ],
    ids=["longer than its room", "of less than nothing", "behind the pool", "before the pool", "in another"],
)  # fmt: skip
def test_regions_that_cannot_be_are_refused(lm, cache, policy, tmp_path, lie):
    path = kvjax.save_cache(lie(cache), tmp_path / "lie", lm, policy)
    with pytest.raises(ValueError, match="overlap or lie outside"):
        kvjax.load_cache(path, lm, policy)


def test_strangers_are_refused(lm, policy, tmp_path):
    weights = tmp_path / "weights"
    save_file({"x": np.zeros(3, np.float32)}, weights)
    with pytest.raises(ValueError, match="holds no saved conversation"):
        kvjax.load_cache(weights, lm, policy)
    with pytest.raises(FileNotFoundError, match="save_cache"):
        kvjax.load_cache(tmp_path / "nothing", lm, policy)


# ---- What may have the file's name


def test_pipes_folders_and_links(lm, cache, policy, file, tmp_path):
    pipe, folder, link, loop, dangling = (tmp_path / name for name in ("pipe", "folder", "link", "loop", "dangling"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(file.name)
    loop.symlink_to(loop.name)
    dangling.symlink_to("made")
    for path in (pipe, folder, loop):
        with pytest.raises(OSError, match="no regular file"):
            kvjax.save_cache(cache, path, lm, policy)
        with pytest.raises(FileNotFoundError, match="is no file"):
            kvjax.load_cache(path, lm, policy)
    with pytest.raises(FileNotFoundError, match="is no file"):
        kvjax.load_cache(dangling, lm, policy)
    same(cache, kvjax.load_cache(link, lm, policy))
    kvjax.save_cache(cache, dangling, lm, policy)
    kvjax.save_cache(cache, link, lm, policy)
    assert link.is_symlink() and dangling.is_symlink() and (tmp_path / "made").is_file()
    same(cache, kvjax.load_cache(dangling, lm, policy))
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "folder", "link", "loop", "dangling", "made", "talk"}


def test_a_folder_that_is_not_there_is_named(lm, cache, policy, tmp_path):
    with pytest.raises(OSError, match="cannot write .*nowhere"):
        kvjax.save_cache(cache, tmp_path / "nowhere" / "talk", lm, policy)


# ---- Kills

#: Writes file after file in a process of its own, which it kills; for every line it is sent it does so again.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from kvjax.files.tensors import Kind, write

path, draw = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
for life, _ in enumerate(sys.stdin):
    writer = os.fork()
    if writer == 0:
        for turn in range(10**6):
            number = 1000 * life + turn
            write({"x": np.full(1 << 21, number % 251, np.uint8)}, path, {"number": number}, kind=Kind("thing", "this"))
    while not path.exists():
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.1))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    print("killed", flush=True)
"""


def _kills(path, many: int, seed: int) -> None:
    """Whatever a kill interrupts, the name has one whole file, never an older one than before; some kills interrupt a write."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    last = -1
    with subprocess.Popen([sys.executable, "-c", KILLER, str(path), str(seed)], **pipes) as killer:
        for _ in range(many):
            print("again", file=killer.stdin, flush=True)
            assert killer.stdout.readline() == "killed\n"
            header, arrays = read(path, kind=Kind("thing", "this"))
            assert (np.asarray(arrays["x"]) == header["number"] % 251).all() and header["number"] >= last
            last = header["number"]
        killer.stdin.close()
    assert last > 0 and [other for other in path.parent.iterdir() if other != path]


def test_killed_writers_leave_a_whole_file(tmp_path):
    _kills(tmp_path / "talk", 20, seed=0)


@pytest.mark.slow
def test_a_hundred_killed_writers_leave_a_whole_file(tmp_path):
    _kills(tmp_path / "talk", 100, seed=1)


# ---- Facts


def test_facts_of_stages_are_the_same_in_another_process():
    """Functions and keys count by name and bits, never by where they lie."""
    parts = {"f": jax.nn.relu, "g": partial(jnp.sum, axis=0), "key": jax.random.key(3), "t": (1, 2.5, None), "s": frozenset("ab")}
    found = facts_of_stage(parts)
    assert "0x" not in repr(found) and found["f"].endswith("relu") and found["t.1"] == 2.5 and found["s"] == ["'a'", "'b'"]
    assert differences(found, facts_of_stage(parts | {"key": jax.random.key(4)}))[0].startswith("key: the policy has")


# ---- Trees


@struct.dataclass
class Odd:
    """What a codec or a stage of one's own may keep."""

    small: object
    parts: dict
    name: str = struct.field(pytree_node=False, default="odd")


class Pair(NamedTuple):
    """What a placement may keep."""

    one: object
    other: object


def test_any_pytree_goes_there_and_back():
    tree = Odd(
        small={"int4": jnp.arange(-8, 8).astype(jnp.int4), "f8": jnp.ones((2, 3), jnp.float8_e4m3fn), "empty": jnp.zeros((0, 4))},
        parts={
            "tuple": (1, None, 2.5),
            "list": [jnp.float32(7), True],
            "key": jax.random.key(3),
            "wide": np.arange(3),
            "pair": Pair(jnp.ones(2), (3,)),
        },
        name="mine",
    )
    node, arrays = described(tree, {})
    again = restored(json.loads(json.dumps(node)), arrays, {})
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(again), strict=True):
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert type(x) is type(y) and np.asarray(x).tobytes() == np.asarray(y).tobytes() and np.shape(x) == np.shape(y)
    assert again.parts["pair"].other == (3,) and type(again.parts["pair"]) is Pair
    assert again.small["int4"].dtype == jnp.int4 and again.parts["wide"].dtype == np.int64


@pytest.mark.parametrize("part", [object(), {1: 2}, {1, 2}, range(3), lambda: 0])
def test_what_no_file_can_hold_is_refused_where_it_is(part):
    with pytest.raises(ValueError, match="at parts.b cannot be saved"):
        described(Odd(small=(), parts={"a": 1, "b": part}), {})
